"""How long it takes to deploy to one rehearsal server, to sixteen, and with nothing changed.

All servers share this machine's processors, which servers of a lab do not: what each of them does
by itself (unpacking, starting its agent) is done sixteen times by the same few cores. So processor
time is measured, too, that of a server and that of the machine which deploys: sixteen times the
latter is the least that sixteen servers with processors of their own take.
"""

import os
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import figure
from patchlight import EmulatedLab
from patchlight.controller.access.authority import Authority
from patchlight.deploy.bundle import (
    FromHere,
    Part,
    Role,
    Supply,
    Target,
    bundle_file,
    here,
)
from patchlight.deploy.check import Servers
from patchlight.deploy.push import Push, PushOptions
from patchlight.deploy.remote import on_all_servers
from patchlight.deploy.ssh import Passwords
from patchlight.emulation.fabric.lab_state import disk_dir
from patchlight.emulation.servers.server import USER
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.generate.generate import tree
from patchlight.testbed.lab.model import Lab, Server
from patchlight.testbed.labfile.writer import write_lab
from patchlight.testbed.linux.processes import command_line, process_ids
from tests.support.remote_helpers import small_wheel

SERVERS = 16
BUNDLE_BYTES = 50_000_000
_NAME = "bench-deploying"
_PATIENCE_S = 30.0


class _Filled(Supply):
    """One part, for agents here, that one more wheel makes as large as the bundle is to be."""

    def __init__(self, folder: Path) -> None:
        part = FromHere(lambda text: None).part(here(), "agent")
        missing = BUNDLE_BYTES - sum(file.size for file in part.files.values())
        filling = bundle_file(
            small_wheel(folder, "1", random.Random(1).randbytes(missing))
        )
        self._part = replace(
            part, files={**part.files, filling.path.name: filling}
        )

    def part(self, target: Target, role: Role) -> Part:
        return self._part


def run() -> list[dict[str, Any]]:
    """The figures; ``PatchlightError`` if a server cannot be deployed to."""
    lab = tree(SERVERS).with_changes(name=_NAME)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "lab.yaml").write_text(write_lab(lab))
        options: dict[str, Any] = {
            "controller": False,
            "fabric": "bridge",
            "servers": "ssh",
        }
        with EmulatedLab.from_file(folder / "lab.yaml", **options) as emulated:
            return _measured(emulated.lab, folder)


def _measured(lab: Lab, folder: Path) -> list[dict[str, Any]]:
    os.environ["XDG_DATA_HOME"] = os.environ["XDG_CACHE_HOME"] = str(folder)
    supply = _Filled(folder)
    authority = Authority(lab.name, folder / "ca")

    def push(servers: Sequence[Server]) -> tuple[float, float, float]:
        """Seconds that passed, those of a processor here, and those of one on the servers."""
        began = time.monotonic()
        here_s = time.process_time()
        servers_s = _spent_s(lab)
        pushing = Push(
            lab, supply, authority, PushOptions("benchmark", workers="process")
        )
        _all(
            on_all_servers(
                lab,
                servers,
                pushing.server,
                lambda done, total: None,
                Passwords(),
            )
        )
        took_s = time.monotonic() - began
        here_s = time.process_time() - here_s
        return took_s, here_s, _spent_s(lab) - servers_s

    def remove(servers: Sequence[Server]) -> None:
        agents = Push(lab, supply, authority, PushOptions("benchmark")).agents
        removing = Servers(agents, "benchmark")
        _all(
            on_all_servers(
                lab,
                servers,
                lambda s, r: removing.remove(s, r, end_workers=True),
                lambda done, total: None,
                Passwords(),
            )
        )

    one_s, _, server_s = push(lab.servers[:1])
    remove(lab.servers[:1])
    all_s, here_s, servers_s = push(lab.servers)
    again_s, *_ = push(lab.servers)
    remove(lab.servers)
    most = f"at most {2.5 * one_s:.1f} s (2.5 times that of one)"
    cores = len(os.sched_getaffinity(0))
    least_s = (here_s + servers_s) / cores
    return [
        figure("deploying: one server, 50 MB", one_s, "s"),
        figure("deploying: processor time of one server", server_s, "s"),
        figure(
            "deploying: processor time here for each server",
            here_s / SERVERS,
            "s",
        ),
        figure(
            f"deploying: processor time here for {SERVERS} servers",
            here_s,
            "s",
            most,
        ),
        figure(
            f"deploying: {SERVERS} servers, 50 MB",
            all_s,
            "s",
            f"{most}; {cores} cores for all of them need {least_s:.1f} s",
        ),
        figure(
            f"deploying: {SERVERS} servers, nothing changed",
            again_s,
            "s",
            "at most 3 s",
        ),
    ]


def _spent_s(lab: Lab) -> float:
    """The processor time that all servers of a lab have spent since they were booted.

    Looked at when connections have ended on the servers, too.
    """
    ends = time.monotonic() + _PATIENCE_S
    while True:
        spent, connected = _processes_of(lab)
        if not connected:
            return sum(spent) / os.sysconf("SC_CLK_TCK")
        if time.monotonic() > ends:
            raise PatchlightError(
                f"somebody is logged in to a server as {USER}"
            )
        time.sleep(0.05)


def _processes_of(lab: Lab) -> tuple[list[int], bool]:
    """The ticks that each process of the servers has spent; whether one is a connection."""
    children: dict[int, list[int]] = {}
    spent: dict[int, int] = {}
    for pid in process_ids():
        with suppress(OSError):
            fields = (
                Path(f"/proc/{pid}/stat")
                .read_text()
                .rpartition(")")[2]
                .split()
            )
            children.setdefault(int(fields[1]), []).append(pid)
            # Its own, and that of children that ended.
            spent[pid] = sum(map(int, fields[11:15]))
    commands = {pid: command_line(pid) for pid in spent}
    disks = {f"{disk_dir(lab.name) / server.name}" for server in lab.servers}
    # The first process of each server, and all that descend from it.
    ours = [
        p
        for p, c in commands.items()
        if c.startswith("unshare ") and disks & {*c.split()}
    ]
    for pid in ours:
        ours += children.get(pid, [])
    connected = any(commands[pid].startswith(f"sshd: {USER}") for pid in ours)
    return [spent[pid] for pid in ours], connected


def _all(outcomes: Sequence[Any]) -> None:
    for outcome in outcomes:
        if outcome.error is not None:
            raise PatchlightError(f"deploying failed: {outcome.error}")
