"""How soon packets reach NICs that moved, on each kind of packet switch.

Two jobs in the OFC 2022 lab; changes of circuits move three of their six NICs to the other switch
and back. Every few milliseconds each gets a frame from the port that its circuit leads to, and a
packet from a worker of its job whose NIC stays. The first frame shows when the circuit is there,
the first packet after it that the switches forward to the NIC's new place. A NIC that moves sends
nothing for this: a switch that learns hears its announcement only.
"""

import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks import figure
from patchlight import EmulatedLab
from patchlight.client.client import ControllerClient
from patchlight.controller.policies.topology import regroup
from patchlight.emulation.fabric.plan import (
    fabric_namespace,
    is_machine,
    namespace_name,
    namespace_prefix,
    switch_port_name,
)
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.generate.generate import with_switches
from patchlight.testbed.lab.model import Host, Lab
from patchlight.testbed.lab.packet_drivers import PACKET_DRIVERS
from patchlight.testbed.lab.portmap import AnyMap
from patchlight.testbed.lab.wiring import lab_links
from patchlight.testbed.labfile.reader import load_lab
from patchlight.testbed.linux import namespaces
from tests.support.lab_jobs import PAIR, SPREAD, connected, spread_spec
from tests.support.waiting import wait_until

CHANGES = 6
ALL_CHANGES = 50
LIMIT_S = 0.15
_EVERY_S = 0.004
# For local experiments (IEEE 802); workers greet each other with it, too.
_ETHERTYPE = 0x88B6
_FROM_ITS_PORT = b"from its port"
_FROM_A_WORKER = b"from a worker"

_Place = tuple[Path, str]  # a namespace, and an interface there


class _Move(NamedTuple):
    """A host whose NIC moves, one of its job that stays, and the switch's port that it gets."""

    host: Host
    stays: Host
    port: _Place


def run(*, full: bool = False) -> list[dict[str, Any]]:
    """The longest delay on each kind of switch, and how long jobs waited."""
    count = ALL_CHANGES if full else CHANGES
    return [
        each for driver in PACKET_DRIVERS for each in figures_of(driver, count)
    ]


def figures_of(driver: str, count: int) -> list[dict[str, Any]]:
    """The figures of so many changes with switches of this kind."""
    lab = with_switches(load_lab("ofc2022"), driver)
    start: Mapping[str, AnyMap] = lab.initial_maps
    ways = (start, {**start, **regroup(lab, lab.initial_maps, [SPREAD, PAIR])})
    with (
        EmulatedLab.from_lab(
            lab, 4000, name="bench-moved", workers="process"
        ) as emulated,
        connected(emulated) as client,
    ):
        specs = [
            spread_spec("four", SPREAD, 100_000),
            spread_spec("two", PAIR, 100_000),
        ]
        ids = [job.id for job in client.submit(specs)]
        wait_until(
            lambda: all(client.job(job_id).iterations_done for job_id in ids)
        )
        nics = _nics(emulated.lab)
        delays_s = list[float]()
        waits_s = list[float]()
        for number in range(count):
            before = ways[number % 2]
            wanted = ways[(number + 1) % 2]
            moves = _moves(emulated.lab, wanted, before)
            change = partial(_change, client, wanted, waits_s)
            delays_s.append(_delay_s(nics, moves, change))
    name = f"moved NICs, {driver}: {count} changes"
    in_time = sum(each <= LIMIT_S for each in delays_s)
    return [
        figure(
            f"{name}: packets pass within {LIMIT_S:g} s",
            in_time,
            "",
            str(count),
        ),
        figure(
            f"{name}: longest until packets pass",
            max(delays_s),
            "s",
            f"at most {LIMIT_S:g}",
        ),
        figure(f"{name}: jobs wait, median", median(waits_s), "s"),
    ]


def _change(
    client: ControllerClient,
    wanted: Mapping[str, AnyMap],
    waits_s: list[float],
) -> None:
    """Change the circuits, and add the seconds for which jobs waited."""
    record = client.reconfigure(
        {ocs: each.texts for ocs, each in wanted.items()}, only=True
    )
    if record.state != "committed":
        raise PatchlightError(
            f"the change was {record.state}: {record.message}"
        )
    stages = [*record.stages_s]
    waits_s.append(
        sum(record.stages_s[each] for each in stages[stages.index("drain") :])
    )


def _nics(lab: Lab) -> dict[Host, _Place]:
    """Where the NIC of each host is: in its worker's namespace."""
    found = {}
    host_of = {host.nic.mac.lower(): host for host in lab.hosts}
    for name in namespaces.names_with_prefix(namespace_prefix(lab.name)):
        command = ["ip", "-n", name, "-json", "link", "show"]
        shown = subprocess.run(
            command, capture_output=True, text=True, check=True
        ).stdout
        for link in json.loads(shown or "[]"):
            if (host := host_of.get(link.get("address", ""))) is not None:
                found[host] = namespaces.namespace_path(name), link["ifname"]
    return found


def _moves(
    lab: Lab, wanted: Mapping[str, AnyMap], before: Mapping[str, AnyMap]
) -> list[_Move]:
    """The NICs of the jobs that move with this change."""
    links = lab_links(lab, wanted)
    earlier = lab_links(lab, before)
    found = []
    for job in (SPREAD, PAIR):
        hosts = [lab.host(name) for name in job]
        moved = [
            h
            for h in hosts
            if links.peer(h.endpoint) != earlier.peer(h.endpoint)
        ]
        stays = next(host for host in hosts if host not in moved)
        for host in moved:
            peer = links.peer(host.endpoint)
            assert peer is not None
            switch = next(
                s for s in lab.packet_switches if s.name == peer.device
            )
            space = fabric_namespace(lab.name)
            port = switch_port_name(*peer)
            if is_machine(switch):
                space = namespace_name(lab.name, switch.name)
                port = switch.interface_names[int(peer.port) - 1]
            found.append(
                _Move(host, stays, (namespaces.namespace_path(space), port))
            )
    return found


def _delay_s(
    nics: Mapping[Host, _Place],
    moves: Sequence[_Move],
    change: Callable[[], None],
) -> float:
    """Change the circuits; how long after its circuit was there packets reached a NIC, at most."""
    with ExitStack() as stack:

        def opened(place: _Place) -> socket.socket:
            line = namespaces.inside(place[0], lambda: _line(place[1]))
            return stack.enter_context(line)

        probes = [
            _Probe(
                move,
                opened(nics[move.stays]),
                opened(nics[move.host]),
                opened(move.port),
            )
            for move in moves
        ]
        ended = threading.Event()

        def send_and_receive() -> None:
            while not ended.wait(_EVERY_S):
                for probe in probes:
                    probe.send()
                for probe in probes:
                    probe.receive()

        thread = threading.Thread(target=send_and_receive)
        thread.start()
        try:
            change()
            wait_until(
                lambda: all(probe.delay_s is not None for probe in probes),
                "packets",
            )
        finally:
            ended.set()
            thread.join()
    return max(probe.delay_s or 0.0 for probe in probes)


def _line(interface: str) -> socket.socket:
    line = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    line.bind((interface, _ETHERTYPE))
    line.setblocking(False)
    return line


class _Probe:
    """Frames to one NIC that moves; ``delay_s``: from the first of its new port to the next from a
    worker."""

    def __init__(
        self,
        move: _Move,
        worker: socket.socket,
        nic: socket.socket,
        port: socket.socket,
    ) -> None:
        self._mac, of_worker = (
            bytes.fromhex(host.nic.mac.replace(":", ""))
            for host in (move.host, move.stays)
        )
        head = self._mac + of_worker
        kind = _ETHERTYPE.to_bytes(2, "big")
        self._frames = {
            port: head + kind + _FROM_ITS_PORT,
            worker: head + kind + _FROM_A_WORKER,
        }
        self._nic = nic
        self._lit_at = 0.0
        self.delay_s: float | None = None

    def send(self) -> None:
        for line, frame in self._frames.items():
            with suppress(OSError):  # a full queue
                line.send(frame.ljust(60, b"\0"))

    def receive(self) -> None:
        with suppress(BlockingIOError):
            while True:
                frame = self._nic.recv(2048)
                now = time.monotonic()
                said = frame[14:]
                if frame[:6] != self._mac:
                    continue
                if said.startswith(_FROM_ITS_PORT):
                    self._lit_at = self._lit_at or now
                elif (
                    said.startswith(_FROM_A_WORKER)
                    and self._lit_at
                    and self.delay_s is None
                ):
                    self.delay_s = now - self._lit_at
