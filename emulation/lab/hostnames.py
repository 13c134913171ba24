"""Hosts by name for commands in a lab: an ``/etc/hosts`` of the lab's own, seen by them alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from patchlight.testbed.lab import Lab
from patchlight.testbed.linux.namespaces import see_file_at

_HOSTS = Path("/etc/hosts")


def hosts_file(run_dir: Path) -> Path:
    """Where a lab's hosts file is."""
    return run_dir / "hosts"


def write_hosts_file(lab: Lab, run_dir: Path) -> None:
    """Write the machine's own names and after them every name that a host of the lab has."""
    names: dict[str, list[str]] = {}
    for name, host in lab.host_names.items():
        names.setdefault(str(host.nic.address), []).append(name)
    own = _HOSTS.read_text(errors="replace") if _HOSTS.exists() else "127.0.0.1 localhost\n"
    lines = [f"{address} {' '.join(aliases)}" for address, aliases in names.items()]
    hosts_file(run_dir).write_text("\n".join([own.rstrip(), f"# lab {lab.name}", *lines, ""]))


def names_for_child(run_dir: Path) -> Callable[[], None] | None:
    """What a child does before it becomes the command; ``None`` where nothing is to be done.

    It gets a mount namespace of its own with the lab's file in the place of ``/etc/hosts``.
    """
    file = hosts_file(run_dir)
    if not (file.exists() and _HOSTS.exists()):
        return None
    return lambda: see_file_at(file, _HOSTS)
