"""How fast an emulated lab comes up and goes again, beside Mininet on the same topology.

A tree of 256 hosts, 16 to a switch. Ours is what a user runs: ``patchlight emulate up``, then
``down``, each a process of its own, start-up included. CPU time is that of every process on the
way, Open vSwitch's daemons included. Between up and down, outside the time, the first host must
reach the last one: a lab that does not carry packets is not measured.

Then what a user waits for: from the command to the first answer across the lab, with the controller
and the flow tables (or on Linux bridges, which have neither), beside a Mininet tree with the
controller that Mininet starts.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import figure
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.generate import generate
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.labfile.writer import write_lab
from tests.support.private_ovs import PrivateOvs

HOSTS = 256
PER_SWITCH = 16
ROUNDS = 3
_SYSTEM_PYTHON = "/usr/bin/python3"
_PEER = Path("/usr/lib/python3/dist-packages/mininet")
# What Mininet raises at its start and leaves so.
_SYSCTLS = (
    "fs/file-max", "kernel/pty/max", "net/core/wmem_max", "net/core/rmem_max",
    "net/core/netdev_max_backlog", "net/ipv4/tcp_rmem", "net/ipv4/tcp_wmem",
    "net/ipv4/route/max_size", "net/ipv4/neigh/default/gc_thresh1",
    "net/ipv4/neigh/default/gc_thresh2", "net/ipv4/neigh/default/gc_thresh3",
)  # fmt: skip
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds on the clock, and of all processors together."""

    wall_s: float
    cpu_s: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.wall_s + other.wall_s, self.cpu_s + other.cpu_s)


def run() -> list[dict[str, Any]]:
    """The figures; ``PatchlightError`` if a lab does not come up or does not carry packets."""
    # Daemons that outlive the command that started them come to us, and so does their CPU time.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory() as folder:
        bridge = _median(
            [_ours(Path(folder), "bridge") for _ in range(ROUNDS)]
        )
        # Ours and Mininet's in turn, so that both see the machine as busy as it is.
        ours = []
        peers = []
        for _ in range(ROUNDS):
            ours.append(_ours(Path(folder), "openvswitch"))
            if _PEER.is_dir():
                peers.append(_mininet(Path(folder)))
        ports = [
            _ours(Path(folder), "openvswitch", one_switch=300)
            for _ in range(ROUNDS)
        ]
        answers = list(_first_answers(Path(folder)))
    mininet = _median(peers) if peers else None
    return [
        *_figures(bridge, _median(ours), mininet, _median(ports)),
        *answers,
    ]


def _first_answers(folder: Path) -> Iterator[dict[str, Any]]:
    """Seconds from the command to the first answer across, for labs of three sizes."""
    has_mininet = (
        _PEER.is_dir() and shutil.which("ovs-testcontroller") is not None
    )
    ours = []
    peers = []
    for _ in range(ROUNDS):
        ours.append(_first_answer_s(folder, generate.tree(HOSTS)))
        if has_mininet:
            peers.append(_mininet_first_answer_s(folder))
    name = "command to first answer across"
    yield figure(
        f"{name}, {HOSTS} hosts, Open vSwitch and controller",
        statistics.median(ours),
        "s",
        "at most 3",
        peer="Mininet --controller ovsc" if has_mininet else None,
        peer_value=statistics.median(peers) if has_mininet else None,
    )
    large = _first_answer_s(folder, generate.tree(1024))
    yield figure(
        f"{name}, 1,024 hosts, Open vSwitch and controller",
        large,
        "s",
        "at most 10",
    )
    bridges = _first_answer_s(
        folder, generate.tree(4096, hosts_per_switch=64, fabric="bridge")
    )
    yield figure(
        f"{name}, 4,096 hosts, Linux bridges", bridges, "s", "at most 30"
    )


def _first_answer_s(folder: Path, lab: Lab) -> float:
    name = f"bench-{os.getpid()}"
    file = folder / "lab.yaml"
    file.write_text(write_lab(lab.with_changes(name=name)))
    began = time.monotonic()
    _patchlight("up", str(file), "--no-agents")
    try:
        _ping_across(name, lab)
        return time.monotonic() - began
    finally:
        _patchlight("down", name)


def _mininet_first_answer_s(folder: Path) -> float:
    return float(
        _mininet_said(folder, "controller")
        .rpartition("answered_s=")[2]
        .split()[0]
    )


def _figures(
    bridge: Cost, ours: Cost, mininet: Cost | None, ports: Cost
) -> Iterator[dict[str, Any]]:
    what = f"{HOSTS}-host lab, up and down"
    yield figure(f"{what}, Linux bridges", bridge.wall_s, "s", "at most 4")
    yield figure(
        f"{what}, Linux bridges, CPU", bridge.cpu_s, "CPU-s", "at most 1.5"
    )
    name = f"{what}, Open vSwitch"
    if mininet is None:
        yield figure(name, ours.wall_s, "s")
        yield figure(f"{name}, CPU", ours.cpu_s, "CPU-s")
    else:
        peer = "Mininet --switch ovs,datapath=user"
        yield figure(
            name, ours.wall_s, "s", peer=peer, peer_value=mininet.wall_s
        )
        yield figure(
            f"{name}, CPU",
            ours.cpu_s,
            "CPU-s",
            peer=peer,
            peer_value=mininet.cpu_s,
        )
        times = mininet.wall_s / ours.wall_s
        yield figure(
            f"{name}, times faster than Mininet", times, "times", "at least 4"
        )
    yield figure(
        "one Open vSwitch with 300 ports, up and down",
        ports.wall_s,
        "s",
        "works",
    )


def _median(costs: list[Cost]) -> Cost:
    return Cost(
        statistics.median(cost.wall_s for cost in costs),
        statistics.median(cost.cpu_s for cost in costs),
    )


def _ours(folder: Path, fabric: str, *, one_switch: int = 0) -> Cost:
    name = f"bench-{os.getpid()}"
    lab = generate.single(one_switch) if one_switch else generate.tree(HOSTS)
    file = folder / "lab.yaml"
    file.write_text(write_lab(lab.with_changes(fabric=fabric, name=name)))
    up = _patchlight("up", str(file), "--no-controller", "--no-agents")
    try:
        _ping_across(name, lab)
    finally:
        down = _patchlight("down", name)
    return up + down


def _ping_across(name: str, lab: Lab) -> None:
    last = str(lab.hosts[-1].nic.address)
    ping = ("ping", "-c", "1", "-W", "5", last)
    _patchlight("exec", "--lab", name, lab.hosts[0].name, "--", *ping)


def _patchlight(*arguments: str) -> Cost:
    return _run([sys.executable, "-m", "patchlight", "emulate", *arguments])


def _run(command: list[str], **options: Any) -> Cost:
    """Run a command and all that it leaves to us; ``PatchlightError`` if it fails."""
    before = _children_cpu_s()
    began = time.monotonic()
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, **options
    )
    wall_s = time.monotonic() - began
    _reap()
    if done.returncode:
        raise PatchlightError(
            f"{' '.join(command)}: {done.stdout}{done.stderr}"
        )
    return Cost(wall_s, _children_cpu_s() - before)


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _mininet(folder: Path) -> Cost:
    """The same tree by Mininet, with switches that learn."""
    before = _children_cpu_s()
    said = _mininet_said(folder, "standalone")
    _reap()
    times = dict(word.split("=") for word in said.split())
    return Cost(
        float(times["all_s"]) - float(times["pinging_s"]),
        _children_cpu_s() - before,
    )


def _mininet_said(folder: Path, switches: str) -> str:
    """What a run of ``mininet_tree.py`` prints, in a namespace and with an own Open vSwitch.

    Its Open vSwitch runs before the clock starts, as the host's service would.
    """
    directory = Path(tempfile.mkdtemp(dir=folder))
    with (
        _restored_sysctls(),
        PrivateOvs(f"pl.bench-{os.getpid()}-mn", directory) as ovs,
    ):
        script = Path(__file__).with_name("mininet_tree.py")
        command = [
            "nsenter",
            f"--net={ovs.netns}",
            _SYSTEM_PYTHON,
            str(script),
        ]
        began = time.monotonic()
        done = subprocess.run(
            [*command, str(HOSTS), str(PER_SWITCH), switches],
            env={**os.environ, "OVS_RUNDIR": str(directory), "PYTHONPATH": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        all_s = time.monotonic() - began
    if "reached=True" not in done.stdout:
        raise PatchlightError(
            f"Mininet's tree did not work: {done.stdout}{done.stderr}"[-3000:]
        )
    return (
        f"{done.stdout[done.stdout.index('reached=') :].strip()} all_s={all_s}"
    )


@contextmanager
def _restored_sysctls() -> Iterator[None]:
    paths = [Path("/proc/sys") / name for name in _SYSCTLS]
    values = {path: path.read_text() for path in paths if path.exists()}
    try:
        yield
    finally:
        for path, value in values.items():
            if path.read_text() != value:
                path.write_text(value)


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
