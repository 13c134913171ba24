"""Finds the address of a lab's controller, and identifies a lab for commands."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from patchlight.testbed.lab.model import Lab
from patchlight.testbed.linux.files import user_folder
from patchlight.testbed.linux.sockets import (
    UNIX,
    is_beyond_this_machine,
    unix_socket_answers,
)

RUN_ROOT = Path("/run/patchlight")
API_SOCKET = "api.sock"
USER_HEADER = "X-Patchlight-User"
UID_HEADER = "X-Patchlight-Uid"


def api_address(lab: Lab) -> str:
    """The address of the lab's controller: ``host:port`` or ``unix:/path``.

    That in the lab file, else the Unix socket of root's controller if it exists, else of this
    user's.
    """
    if not lab.controller_api or is_beyond_this_machine(lab.controller_api):
        system = system_socket(lab.name)
        # An existing but forbidden socket is named, not skipped.
        if unix_socket_answers(system) or (
            system.exists() and not os.access(system, os.W_OK)
        ):
            return f"{UNIX}{system}"
    return new_api_address(lab)


def new_api_address(lab: Lab) -> str:
    """The socket of this user's controller of the lab."""
    return lab.controller_api or own_socket(lab.name)


def system_socket(lab: str) -> Path:
    """The socket of a lab's controller that root runs."""
    return RUN_ROOT / lab / API_SOCKET


def keepers_socket(api: Path) -> Path:
    """The socket next to an API's for root and its owner; other users cannot fill its queue."""
    return api.with_name(f".{api.name}")


def own_socket(lab: str) -> str:
    """The address of a lab's controller that this user runs: ``unix:/path``."""
    if os.geteuid() == 0:
        return f"{UNIX}{system_socket(lab)}"
    folder = (
        user_folder("XDG_RUNTIME_DIR", ".local/state")
        / "patchlight/controllers"
    )
    return f"{UNIX}{folder / f'{lab}.sock'}"


@dataclass(frozen=True)
class LabIdentity:
    """A lab's name, its file, and a ``fingerprint`` of its devices, ports, addresses and fibres."""

    name: str
    file: str
    fingerprint: str

    @classmethod
    def of(cls, lab: Lab, file: Path | None) -> Self:
        """The identity of a lab, from a file or made in memory."""
        lines = [
            f"{s.name} {nic.name} {nic.address} {nic.gpu}"
            for s in lab.servers
            for nic in s.nics
        ]
        lines += [
            f"{p.name} {p.datapath_id or p.driver} {p.ports}"
            for p in lab.packet_switches
        ]
        lines += [
            f"{c.name} {c.driver} {c.address} {c.ports}"
            for c in lab.circuit_switches
        ]
        lines += [
            f"{w.name} {w.inputs} {w.outputs} {w.driver} {w.address}"
            for w in lab.wavelength_switches
        ]
        lines += [f"{p.name} {p.kind} {p.ports}" for p in lab.passive_parts]
        lines += [" ".join(sorted((str(f.a), str(f.b)))) for f in lab.fibres]
        digest = hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()
        return cls(
            lab.name, str(file.resolve()) if file else "no file", digest[:16]
        )
