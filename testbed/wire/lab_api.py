"""Where a lab's controller answers, and how it says which lab it has.

Each lab has an address of its own, so that a command for one lab finds no other's controller;
and before a command asks for a change, it compares the lab that it means with the controller's.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from patchlight.testbed.lab.model import Lab
from patchlight.testbed.linux.files import user_folder
from patchlight.testbed.linux.sockets import is_loopback, split_address, unix_socket_answers

RUN_ROOT = Path("/run/patchlight")
UNIX = "unix:"
API_SOCKET = "api.sock"
USER_HEADER = "X-Patchlight-User"
UID_HEADER = "X-Patchlight-Uid"


def api_address(lab: Lab) -> str:
    """Where the lab's controller is found: ``host:port`` or ``unix:/path``.

    What the lab file says, else the lab's own Unix socket: that of a controller which root
    runs, where one answers or this is root, else that of one which this user runs.
    """
    if not lab.controller_api or is_beyond_this_machine(lab.controller_api):
        system = system_socket(lab.name)
        # One that is there and not for this user is to be named, not passed over.
        if unix_socket_answers(system) or (system.exists() and not os.access(system, os.W_OK)):
            return f"{UNIX}{system}"
    return new_api_address(lab)


def new_api_address(lab: Lab) -> str:
    """Where a controller of the lab that this user starts is to listen."""
    return lab.controller_api or own_socket(lab.name)


def system_socket(lab: str) -> Path:
    """Where the controller of a lab answers on its machine if root runs it."""
    return RUN_ROOT / lab / API_SOCKET


def own_socket(lab: str) -> str:
    """The address on this machine of a lab's controller that this user runs: ``unix:/path``."""
    if os.geteuid() == 0:
        return f"{UNIX}{system_socket(lab)}"
    return f"{UNIX}{_user_folder() / f'{lab}.sock'}"


def is_beyond_this_machine(address: str) -> bool:
    """Whether other machines reach an API at ``host:port``, or may."""
    if address.startswith(UNIX):
        return False
    host, _ = split_address(address)
    try:
        return not is_loopback(host)
    except ValueError:
        return host.lower() != "localhost"


def _user_folder() -> Path:
    return user_folder("XDG_RUNTIME_DIR", ".local/state") / "patchlight/controllers"


@dataclass(frozen=True)
class LabIdentity:
    """Which lab is meant: its name, its file, and a fingerprint of what its names stand for.

    Two files have the same ``fingerprint`` if their devices, ports, addresses and fibres are
    the same: then a name means the same port to whoever read either.
    """

    name: str
    file: str
    fingerprint: str

    @classmethod
    def of(cls, lab: Lab, file: Path | None) -> Self:
        """The identity of a lab, and the file that it was read from, if it was."""
        lines = [
            f"{s.name} {nic.name} {nic.address} {nic.gpu}" for s in lab.servers for nic in s.nics
        ]
        lines += [f"{p.name} {p.datapath_id} {p.ports}" for p in lab.packet_switches]
        lines += [f"{c.name} {c.driver} {c.address} {c.ports}" for c in lab.circuit_switches]
        lines += [
            f"{w.name} {w.inputs} {w.outputs} {w.driver} {w.address}"
            for w in lab.wavelength_switches
        ]
        lines += [f"{p.name} {p.kind} {p.ports}" for p in lab.passive_parts]
        lines += [" ".join(sorted((str(f.a), str(f.b)))) for f in lab.fibres]
        digest = hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()
        return cls(lab.name, str(file.resolve()) if file else "no file", digest[:16])
