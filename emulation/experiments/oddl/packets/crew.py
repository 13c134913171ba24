"""Runs the nodes of a job as processes in an emulated lab: start, iterate, stop."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from patchlight.controller.jobs.specs import scaled_window_bytes
from patchlight.emulation.experiments.oddl.packets.node import (
    READY,
    LightTask,
    NodeTask,
    Stretch,
)
from patchlight.emulation.fabric import links
from patchlight.emulation.fabric.lab_state import MARK
from patchlight.emulation.lab.emulated_lab import EmulatedLab
from patchlight.emulation.lab.hosts import EmulatedHost
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.tuning import LIGHT_SOCKET
from patchlight.testbed.linux.netlink import Netlink, set_neighbours
from patchlight.testbed.linux.sockets import free_ports
from patchlight.testbed.paths.light_networks import LightNetwork

_END_S = 10.0
_KEY_BYTES = 32
_LEAST_LEASE_S = 2.0


@dataclass(frozen=True)
class CrewTraining:
    """Seconds from the first node's start to the last one's end; by iteration those by stage."""

    took_s: float
    iterations: Sequence[Mapping[str, Sequence[float]]]


@dataclass(frozen=True)
class NodeLoad:
    """A node's work in an emulated iteration: bytes and seconds are scaled already."""

    gradient_bytes: int
    compute_s: float
    sends_s: float


class Crew:
    """Nodes that are ready. Made by ``crew_of``."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        self._processes = processes

    def train(self, iterations: int, *, turning: bool = False) -> CrewTraining:
        """So many iterations. ``PatchlightError`` with what a node said where one fails."""
        stretch = Stretch(iterations, turning)
        for process in self._processes:
            _tell(process, json.dumps(stretch._asdict()))
        found = [
            [_heard(process) for process in self._processes]
            for _ in range(stretch.iterations)
        ]
        every = [node for same in found for node in same]
        took_s = max(node["ended_s"] for node in every) - min(
            node["began_s"] for node in every
        )
        stages = found[0][0]["stages_s"]
        together = [
            {s: [node["stages_s"][s] for node in same] for s in stages}
            for same in found
        ]
        return CrewTraining(took_s, together)


@contextmanager
def crew_of(
    emulated: EmulatedLab,
    load: NodeLoad,
    network: LightNetwork | None = None,
) -> Iterator[Crew]:
    """A job's nodes inside the block: all hosts, or those of a ``network``, which ask for paths."""
    hosts = emulated.hosts
    if network is not None:
        hosts = tuple(emulated.host(name) for name in network.hosts)
    _set_neighbours(hosts)
    tasks = _tasks(
        emulated,
        hosts,
        load,
        network,
    )
    with ExitStack() as stack:
        # Between each two neighbours of the ring, over the control network.
        pairs = [socket.socketpair() for _ in tasks]
        for end in (end for pair in pairs for end in pair):
            stack.callback(end.close)
        processes: list[subprocess.Popen[str]] = []
        stack.callback(_end, processes)
        for number, task in enumerate(tasks):
            ends = (pairs[number - 1][1].fileno(), pairs[number][0].fileno())
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "patchlight.emulation.experiments.oddl.packets.node",
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                pass_fds=ends,
                start_new_session=True,  # Ctrl-C is for us: they end with their input.
                env={**os.environ, MARK: str(emulated.run_dir)},
            )
            processes.append(process)
            _tell(process, replace(task, neighbours=ends).to_json())
        for pair in pairs:
            for end in pair:
                end.close()
        for process in processes:
            if _heard(process).get("state") != READY:
                raise PatchlightError("a node did not report ready")
        yield Crew(processes)


def _set_neighbours(hosts: Sequence[EmulatedHost]) -> None:
    """Tell each host the others' MACs, as agents tell workers: ARP does not work in the dark."""
    macs = [(host.address, str(host.host.nic.mac)) for host in hosts]
    for host in hosts:
        netlink = Netlink(host.namespace())
        try:
            name = host.host.endpoint.port
            here = {
                link.name: link.index
                for link in links.list_links(netlink).values()
            }
            others = [each for each in macs if each[0] != host.address]
            set_neighbours(
                netlink,
                here[name],
                name,
                others,
            )
        finally:
            netlink.close()


def _tasks(
    emulated: EmulatedLab,
    hosts: Sequence[EmulatedHost],
    load: NodeLoad,
    network: LightNetwork | None,
) -> list[NodeTask]:
    light: list[LightTask | None] = [None] * len(hosts)
    if network is not None:
        control = tuple(f"127.0.0.1:{port}" for port in free_ports(len(hosts)))
        key = os.urandom(_KEY_BYTES).hex()
        channels = tuple(map(str, network.channels[: len(hosts)]))
        path = str(emulated.run_dir / LIGHT_SOCKET)
        lease_s = (
            _LEAST_LEASE_S + 2 * network.paths.tuning_s + 4 * load.sends_s
        )
        light = [
            LightTask(
                path,
                str(each.host.endpoint),
                channels,
                control,
                key,
                lease_s,
            )
            for each in hosts
        ]
    return [
        NodeTask(
            number,
            str(each.namespace()),
            tuple(host.address for host in hosts),
            load.gradient_bytes,
            load.compute_s,
            load.sends_s,
            scaled_window_bytes(emulated.lab),
            (-1, -1),
            light[number],
        )
        for number, each in enumerate(hosts)
    ]


def _tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(line + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        _heard(process)  # It said why, before it ended.


def _heard(process: subprocess.Popen[str]) -> dict[str, Any]:
    """A node's next message; ``PatchlightError`` for an error message, or for none."""
    assert process.stdout is not None
    line = process.stdout.readline()
    found: dict[str, Any] = (
        json.loads(line) if line else {"error": "a node ended unexpectedly"}
    )
    if "error" in found:
        raise PatchlightError(
            f"training in the emulated lab: {found['error']}",
            hint="run it again; 'patchlight doctor' checks this machine",
        )
    return found


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
