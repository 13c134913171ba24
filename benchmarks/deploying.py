"""How long it takes to deploy to one rehearsal server, to sixteen, and with nothing changed.

All servers share this machine's processors, which servers of a lab do not: what each of them does
by itself (unpacking, starting its agent) is done sixteen times by the same few cores.
"""

import os
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import figure
from patchlight import EmulatedLab
from patchlight.deploy.authority import Authority
from patchlight.deploy.bundle import FromHere, Part, Role, Supply, Target, bundle_file, here
from patchlight.deploy.everywhere import everywhere
from patchlight.deploy.installed import Servers
from patchlight.deploy.push import Push, Settings
from patchlight.deploy.ssh import Passwords
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.generate import tree
from patchlight.testbed.lab import Lab, Server
from patchlight.testbed.labfile.writer import write_lab
from tests.support.far_ends import small_wheel

SERVERS = 16
BUNDLE_BYTES = 50_000_000
_NAME = "bench-deploying"


class _Filled(Supply):
    """One part, for agents here, that one more wheel makes as large as the bundle is to be."""

    def __init__(self, folder: Path) -> None:
        part = FromHere(lambda text: None).part(here(), "agent")
        missing = BUNDLE_BYTES - sum(file.size for file in part.files.values())
        filling = bundle_file(small_wheel(folder, "1", random.Random(1).randbytes(missing)))
        self._part = replace(part, files={**part.files, filling.path.name: filling})

    def part(self, target: Target, role: Role) -> Part:
        return self._part


def run() -> list[dict[str, Any]]:
    """The figures; ``PatchlightError`` if a server cannot be deployed to."""
    lab = tree(SERVERS).with_changes(name=_NAME)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "lab.yaml").write_text(write_lab(lab))
        options: dict[str, Any] = {"controller": False, "fabric": "bridge", "servers": "ssh"}
        with EmulatedLab.from_file(folder / "lab.yaml", **options) as emulated:
            return _measured(emulated.lab, folder)


def _measured(lab: Lab, folder: Path) -> list[dict[str, Any]]:
    os.environ["XDG_DATA_HOME"] = os.environ["XDG_CACHE_HOME"] = str(folder)
    supply = _Filled(folder)
    authority = Authority(lab.name, folder / "ca")

    def push(servers: Sequence[Server]) -> float:
        began = time.monotonic()
        pushing = Push(lab, supply, authority, Settings("benchmark", workers="process"))
        _all(everywhere(lab, servers, pushing.server, lambda done, total: None, Passwords()))
        return time.monotonic() - began

    def remove(servers: Sequence[Server]) -> None:
        door = Push(lab, supply, authority, Settings("benchmark")).door
        removing = Servers(door, "benchmark")
        _all(
            everywhere(
                lab,
                servers,
                lambda s, r: removing.remove(s, r, end_workers=True),
                lambda done, total: None,
                Passwords(),
            )
        )

    one_s = push(lab.servers[:1])
    remove(lab.servers[:1])
    all_s = push(lab.servers)
    again_s = push(lab.servers)
    remove(lab.servers)
    times = f"at most {2.5 * one_s:.1f} s (2.5 times that of one)"
    return [
        figure("deploying: one server, 50 MB", one_s, "s"),
        figure(f"deploying: {SERVERS} servers, 50 MB", all_s, "s", times),
        figure(f"deploying: {SERVERS} servers, nothing changed", again_s, "s", "at most 3 s"),
    ]


def _all(outcomes: Sequence[Any]) -> None:
    for outcome in outcomes:
        if outcome.error is not None:
            raise PatchlightError(f"deploying failed: {outcome.error}")
