"""Reserves ports of circuit switches for a wiring search, and probes. The circuits to restore are
stored before any changes, so that the next controller can restore them."""

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any

from pydantic import TypeAdapter

from patchlight.controller.changes.device_maps import Decide
from patchlight.controller.changes.parts import CircuitParts
from patchlight.controller.changes.record import ChangeOptions, Refused
from patchlight.controller.changes.transaction import Transactions
from patchlight.controller.discovery.search import LIGHT, Heard, Light
from patchlight.controller.hosts.fleet import Fleet
from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.jobs.scheduler import Scheduler
from patchlight.controller.packet_switches.openflow.client import Speaker
from patchlight.controller.packet_switches.openflow.flowtable import Message
from patchlight.controller.packet_switches.ports import EndNames
from patchlight.controller.packet_switches.switches import PacketSwitches
from patchlight.controller.packet_switches.telemetry import Telemetry
from patchlight.testbed.errors import BadInput, PatchlightError, in_words
from patchlight.testbed.lab.model import Endpoint, Lab, PacketSwitch, Server
from patchlight.testbed.lab.portmap import CrossConnect, PortMap
from patchlight.testbed.wire import probe_frames
from patchlight.testbed.wire.agent_status import LONGEST_LISTEN_S

_log = logging.getLogger(__name__)

_MARK = "discovery"
_PAUSES_S = (0.5, 2.0)
_SEND_EVERY_S = 0.2


class _NothingWritten(PatchlightError):
    """A change of the window was refused: a lock, or the stop button."""


@dataclass(
    frozen=True,
    slots=True,
)
class Opened:
    """An open window: its ports and their circuits ``before``, by OCS; ``queue_held`` for it."""

    by: str
    ports: dict[str, list[int]]
    before: dict[str, list[str]]
    queue_held: bool
    whole: bool


_OPENED = TypeAdapter(Opened)


def _opened(row: dict[str, Any]) -> Opened:
    opened = _OPENED.validate_python(row)
    if opened.ports.keys() != opened.before.keys():
        raise ValueError("the circuits of some switches are missing")
    for texts in opened.before.values():
        PortMap.parse(texts)
    return opened


class MaintenanceWindow:
    """The maintenance window of a search; there is at most one."""

    def __init__(
        self,
        parts: CircuitParts,
        transactions: Transactions,
        switches: PacketSwitches,
        scheduler: Scheduler,
        jobs: JobTable,
    ) -> None:
        self._parts = parts
        self._transactions = transactions
        self._switches = switches
        self._scheduler = scheduler
        self._jobs = jobs

    @property
    def opened(self) -> Opened | None:
        """The open window, also one that an earlier controller left open."""
        # Without it the ports stay locked, and the queue held, until somebody releases both.
        return self._parts.store.mark(_MARK, _opened, unreadable=None)

    async def ports(
        self, wanted: Mapping[str, Collection[int]]
    ) -> dict[str, list[int]]:
        """The requested ports (all, if none are named) that can be tested, by OCS; ``Refused`` or
        ``BadInput`` for others, and for circuits that leave the window."""
        parts = self._parts
        if parts.lab.sorting:
            raise Refused(
                f"the lab has {parts.lab.sorting[0].name}, a passive part, which discovery does "
                f"not support yet"
            )
        for ocs, numbers in wanted.items():
            last = parts.lab.circuit_switch(ocs).ports
            if wrong := [
                number for number in numbers if not 1 <= number <= last
            ]:
                raise BadInput(f"{ocs} has ports 1–{last}, not {wrong[0]}")
        staying, failed = await parts.closed_ports()
        maps = await parts.maps.read()
        found: dict[str, list[int]] = {}
        for switch in parts.lab.circuit_switches:
            ocs = switch.name
            closed = {*staying.get(ocs, ()), *failed.get(ocs, ())}
            if wanted:
                numbers = sorted(set(wanted.get(ocs, ())))
                if numbers and ocs in maps.unread:
                    raise Refused(f"{ocs} does not answer: {maps.unread[ocs]}")
                if len(numbers) == 1:
                    raise BadInput(
                        f"{ocs}.{numbers[0]} alone cannot be tested",
                        hint=f"name a second port of {ocs}, preferably with a known fibre",
                    )
                if shut := closed & set(numbers):
                    raise Refused(
                        f"{ocs}.{min(shut)} is locked or out of order: omit it"
                    )
            elif ocs in maps.unread:
                continue
            else:
                staying_too = _with_their_ends(closed, maps.circuits[ocs])
                numbers = [
                    n
                    for n in range(1, switch.ports + 1)
                    if n not in staying_too
                ]
            inside = set(numbers)
            for c in maps[ocs] if numbers else ():
                if len(inside & {c.inp, c.out}) == 1 and c.inp != c.out:
                    raise Refused(
                        f"circuit {c} of {ocs} leads to a port that was not selected",
                        hint=f"select both {ocs}.{c.inp} and {ocs}.{c.out}, or disconnect them "
                        f"first",
                    )
            if numbers:
                found[ocs] = numbers
        return found

    async def objections(
        self, ports: Mapping[str, Collection[int]], *, whole: bool
    ) -> list[str]:
        """Objections to a window of these ports now."""
        found: list[str] = []
        if (open_now := self.opened) is not None:
            found.append(f"{open_now.by} has already moved circuits")
        if stopped := self._parts.stop.message:
            found.append(stopped)
        busy = [
            status.id
            for status in self._jobs.live()
            if not status.state.is_waiting
        ]
        if whole and busy:
            found.append(f"the lab is not idle: {', '.join(busy)}")
        drifted = [
            o
            for o, d in (await self._transactions.drift()).items()
            if d and o in ports
        ]
        if drifted:
            found.append(
                f"{', '.join(drifted)}: they differ from the committed map, see 'patchlight ocs "
                f"verify'"
            )
        options = ChangeOptions(spare_jobs=True)
        _, against = await self._transactions.preview(
            _only(ports, {}), options
        )
        return list(dict.fromkeys(found + against))

    async def open(
        self,
        ports: Mapping[str, Collection[int]],
        caller: ChangeOptions,
        *,
        whole: bool,
    ) -> None:
        """Lock these ports, and start no jobs; ``Refused`` if there are objections."""
        if objections := await self.objections(ports, whole=whole):
            raise Refused(
                f"the wiring was not discovered: {'; '.join(objections)}",
                hint="wait for the jobs or stop them, or select free ports with --ports",
            )
        opened = Opened(
            by=f"wiring discovery of {caller.by}",
            ports={ocs: list(numbers) for ocs, numbers in ports.items()},
            before=await self.circuits(ports),
            queue_held=not self._scheduler.drained,
            whole=whole,
        )
        self._parts.store.set_mark(_MARK, asdict(opened))
        self._parts.store.add_event(
            time.time(), "discovery-begun", {"by": caller.by}
        )
        if opened.queue_held:
            await self._scheduler.hold_queue(opened.by)
        why = "wiring discovery"
        for ocs, numbers in ports.items():
            self._parts.locks.lock(
                ocs,
                numbers,
                "kept",
                opened.by,
                why,
            )
        # This waits for earlier changes.
        await self._transactions.drift()
        latest = replace(opened, before=await self.circuits(ports))
        self._parts.store.set_mark(_MARK, asdict(latest))
        self._switches.hand_over_probes = True

    async def circuits(
        self, ports: Mapping[str, Collection[int]]
    ) -> dict[str, list[str]]:
        """The present cross-connects of these ports."""
        maps = await self._parts.maps.read()
        return {
            ocs: [str(c) for c in maps[ocs] if set(numbers) & {c.inp, c.out}]
            for ocs, numbers in ports.items()
        }

    async def light(self, light: Light, why: str) -> None:
        """Make exactly these cross-connects on the window's ports."""
        wanted: dict[str, list[CrossConnect]] = {}
        for inp, out in light.items():
            wanted.setdefault(inp.ocs, []).append(
                CrossConnect(inp.number, out.number)
            )
        await self._change(
            {ocs: PortMap.of(circuits) for ocs, circuits in wanted.items()},
            why,
        )

    async def close(self) -> None:
        """Restore circuits, locks and queue, if a window is open. ``PatchlightError`` if that
        fails: the ports stay locked, and it can be repeated."""
        opened = self.opened
        if opened is None:
            return
        self._switches.hand_over_probes = False
        before = {
            ocs: PortMap.parse(texts) for ocs, texts in opened.before.items()
        }
        for pause_s in (*_PAUSES_S, None):
            try:
                await self._change(
                    before,
                    "circuits from before the wiring discovery",
                    restores=True,
                )
                break
            except PatchlightError as error:
                if pause_s is None:
                    kind = (
                        Refused
                        if isinstance(error, _NothingWritten)
                        else PatchlightError
                    )
                    raise kind(
                        f"the previous circuits were not restored: {error.message}",
                        hint="solve that, then run: patchlight lab discover "
                        f"{self._parts.lab.name} --restore",
                    ) from error
                await asyncio.sleep(pause_s)
        for ocs, numbers in opened.ports.items():
            self._parts.locks.unlock(
                ocs,
                numbers,
                opened.by,
                "wiring discovery has ended",
            )
        if opened.queue_held:
            self._scheduler.resume()
        self._parts.store.set_mark(_MARK, None)
        self._parts.store.add_event(
            time.time(), "discovery-ended", {"by": opened.by}
        )

    async def _change(
        self,
        circuits: Mapping[str, PortMap],
        why: str,
        *,
        restores: bool = False,
    ) -> None:
        opened = self.opened
        assert opened is not None
        options = ChangeOptions(
            by=opened.by,
            spare_jobs=not restores,
            judged=False,
        )
        decide = _only(opened.ports, circuits)
        record = await self._transactions.change(decide, why, options)
        if record.state != "committed":
            kind = (
                _NothingWritten
                if record.state == "refused"
                else PatchlightError
            )
            raise kind(f"change {record.id}: {record.state}, {record.message}")


def _only(
    ports: Mapping[str, Collection[int]], circuits: Mapping[str, PortMap]
) -> Decide:
    """These circuits on these ports; all other ports unchanged."""

    def decide(maps: Mapping[str, PortMap]) -> dict[str, PortMap]:
        wanted = {}
        for ocs, numbers in ports.items():
            inside = set(numbers)
            staying = PortMap.of(
                c for c in maps[ocs] if not inside & {c.inp, c.out}
            )
            wanted[ocs] = staying.joined(circuits.get(ocs, PortMap()))
        return wanted

    return decide


def _with_their_ends(numbers: Collection[int], port_map: PortMap) -> set[int]:
    """These ports, and all that chains of circuits connect to them."""
    joined = set(numbers)
    while (
        more := {n for c in port_map if joined & {c.inp, c.out} for n in c}
        - joined
    ):
        joined |= more
    return joined


@dataclass
class Listened:
    """The result of a round; ``silent`` has the lab's other ends with a fibre, and the reasons.
    ``mute`` are the ends that receive, but cannot be made to send: ports read by SNMP.
    ``neighbours`` were received at these ends, the ``older`` ones perhaps before the round;
    ``claims`` are names of switches' ports."""

    heard: set[tuple[str, str]] = field(default_factory=set)
    carriers: set[str] = field(default_factory=set)
    ends: set[str] = field(default_factory=set)
    mute: set[str] = field(default_factory=set)
    neighbours: list[tuple[probe_frames.LldpNeighbour, str]] = field(
        default_factory=list
    )
    older: list[tuple[probe_frames.LldpNeighbour, str]] = field(
        default_factory=list
    )
    claims: list[tuple[str, str]] = field(default_factory=list)
    silent: dict[str, str] = field(default_factory=dict)

    def beside(self, dark: "Listened") -> Heard:
        """What was heard; ``LIGHT`` for ends with a carrier in that round only."""
        return frozenset(
            self.heard
            | {(LIGHT, end) for end in self.carriers - dark.carriers}
        )


class SwitchListening:
    """Makes the agents and the packet switches of a lab probe their fibres."""

    def __init__(
        self,
        lab: Lab,
        fleet: Fleet,
        switches: PacketSwitches,
        speaker: Speaker,
        telemetry: Telemetry,
    ) -> None:
        self._lab = lab
        self._fleet = fleet
        self._switches = switches
        self._speaker = speaker
        self._telemetry = telemetry

    async def listen(self, token: str, listen_s: float) -> Listened:
        """Probe for that long, with probes of this token."""
        found = Listened()
        frames = list[Message]()
        unsubscribe = self._speaker.subscribe(
            lambda event: (
                frames.append(event) if event["event"] == "frame" else None
            )
        )
        sending = asyncio.create_task(self._keep_sending(token, found))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(listen_s))
                for server in self._lab.servers:
                    group.create_task(
                        self._ask_agent(
                            server,
                            token,
                            listen_s,
                            found,
                        )
                    )
        finally:
            sending.cancel()
            unsubscribe()
            await asyncio.gather(sending, return_exceptions=True)
        await self._look_at_switches(token, found)
        await self._look_for_macs(found)
        for event in frames:
            end = str(
                self._switches.endpoint(event["datapath_id"], event["port"])
            )
            frame = bytes.fromhex(event["frame"])
            if (source := probe_frames.probe_source(frame, token)) is not None:
                found.heard.add((source, end))
            elif (neighbour := probe_frames.lldp_neighbour(frame)) is not None:
                found.neighbours.append((neighbour, end))
        macs = {
            str(host.endpoint): self._fleet.macs.of(host)
            for host in self._lab.hosts
        }
        names = NeighbourNames(
            self._lab, [*found.claims, *self._telemetry.claims()], macs
        )
        # Of NICs that probe, older neighbours may be from another circuit.
        probing = {source for source, _ in found.heard}
        older = {
            (names.end_of(neighbour), end) for neighbour, end in found.older
        }
        found.heard |= {pair for pair in older if pair[0] not in probing}
        found.heard |= {
            (names.end_of(neighbour), end)
            for neighbour, end in found.neighbours
        }
        return found

    async def _ask_agent(
        self,
        server: Server,
        token: str,
        listen_s: float,
        found: Listened,
    ) -> None:
        names = [str(Endpoint(server.name, nic.name)) for nic in server.nics]
        client = self._fleet.clients.get(server.name)
        if client is None:
            found.silent |= dict.fromkeys(
                names, f"the lab file has no agent for {server.name}"
            )
            return
        try:
            left_s = listen_s
            while left_s > 0:
                answer = await client.probe(
                    token, min(left_s, LONGEST_LISTEN_S)
                )
                left_s -= LONGEST_LISTEN_S
                for nic in answer.nics:
                    name = str(Endpoint(server.name, nic.name))
                    if nic.problem:
                        found.silent[name] = nic.problem
                        continue
                    found.ends.add(name)
                    found.heard |= {(source, name) for source in nic.heard}
                    found.neighbours += [(each, name) for each in nic.lldp]
                    if nic.carrier:
                        found.carriers.add(name)
        except PatchlightError as error:
            found.silent |= dict.fromkeys(names, in_words(error))

    async def _keep_sending(self, token: str, found: Listened) -> None:
        while True:
            for switch in self._connected():
                names = _ports_of(switch)
                frames = [
                    {
                        "port": port,
                        "frame": probe_frames.probe_frame(name, token).hex(),
                    }
                    for port, name in enumerate(names, start=1)
                ]
                at = switch.datapath_id
                try:
                    await self._speaker.request(
                        "send",
                        datapath_id=at,
                        frames=frames,
                    )
                except PatchlightError as error:
                    found.silent |= dict.fromkeys(names, in_words(error))
            await asyncio.sleep(_SEND_EVERY_S)

    async def _look_at_switches(self, token: str, found: Listened) -> None:
        """Which ports exist and have a carrier; received frames have arrived when this returns."""
        connected = list(self._connected())
        for switch in self._lab.packet_switches:
            names = _ports_of(switch)
            try:
                if switch not in connected:
                    await self._ask_by_snmp(switch, token, found)
                    continue
                ports = await self._speaker.request(
                    "ports", datapath_id=switch.datapath_id
                )
            except PatchlightError as error:
                found.silent |= dict.fromkeys(names, in_words(error))
                continue
            there = {
                f"{switch.name}.{port['port']}": bool(port["up"])
                for port in ports
            }
            for port in ports:
                end = f"{switch.name}.{port['port']}"
                found.claims += [
                    (port["mac"], end),
                    (f"{switch.name} {port['name']}", end),
                ]
            found.ends |= there.keys() & set(names)
            found.carriers |= {name for name in names if there.get(name)}
            gone = f"{switch.name} reports that it has no such port"
            found.silent |= dict.fromkeys(set(names) - there.keys(), gone)

    async def _look_for_macs(self, found: Listened) -> None:
        """Say where switches see the NICs that cannot probe."""
        macs = {
            self._fleet.macs.of(host).lower(): str(host.endpoint)
            for host in self._lab.hosts
            if str(host.endpoint) in found.silent
        }
        for mac, end in (await self._telemetry.behind(macs)).items():
            found.silent[macs[mac]] += f"; {end} has its MAC"

    async def _ask_by_snmp(
        self,
        switch: PacketSwitch,
        token: str,
        found: Listened,
    ) -> None:
        said = await self._telemetry.heard(switch.name, token)
        if said is None:
            found.silent |= dict.fromkeys(
                _ports_of(switch), f"{switch.name} is not connected"
            )
            return
        found.ends |= said.ends
        found.mute |= said.ends
        found.carriers |= said.up
        found.silent |= said.silent
        found.heard |= said.probes
        found.older += said.neighbours

    def _connected(self) -> Iterator[PacketSwitch]:
        connected = self._switches.connected()
        return (
            s
            for s in self._lab.packet_switches
            if connected.get(s.name) and s.datapath_id
        )


class NeighbourNames:
    """Finds which of the lab's ends a neighbour is: by the MAC of its port, or by its device with
    the name, number or description of its port. ``macs`` are the NICs' present ones."""

    def __init__(
        self,
        lab: Lab,
        claims: Iterable[tuple[str, str]] = (),
        macs: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._claims = EndNames(claims)
        self._nics = Counter(host.server.name for host in lab.hosts)
        for host in lab.hosts:
            end = str(host.endpoint)
            called = {host.nic.name, host.nic.interface or host.nic.name}
            self._claims.add(
                (f"{host.server.name} {name}", end) for name in called
            )
            self._claims.add(
                (mac.lower(), end) for mac in {host.nic.mac, macs.get(end, "")}
            )
        for switch in lab.packet_switches:
            numbers = tuple(map(str, range(1, switch.ports + 1)))
            for names in (numbers, switch.interfaces):
                for number, name in enumerate(names, start=1):
                    self._claims.add(
                        [(f"{switch.name} {name}", f"{switch.name}.{number}")]
                    )

    def end_of(self, neighbour: probe_frames.LldpNeighbour) -> str:
        """The lab's end; the neighbour as text if it is none, or ambiguous."""
        port = neighbour.port
        mac = neighbour.device.lower()
        # Ports with one MAC still tell their device by it.
        owners = {re.split("[. ]", end)[0] for end in self._claims.ends(mac)}
        devices = {neighbour.device, *(owners if len(owners) == 1 else ())}
        said = [port.lower()] if ":" in port else []
        said += [
            f"{device} {text}"
            for device in devices
            for text in (port, neighbour.about)
        ]
        found = {
            end
            for name in said
            if (end := self._claims.only(name)) is not None
        }
        if not found and all(self._nics[owner] == 1 for owner in owners):
            found = {*self._claims.ends(mac)}
        return found.pop() if len(found) == 1 else str(neighbour)


def _ports_of(switch: PacketSwitch) -> list[str]:
    return [f"{switch.name}.{number}" for number in range(1, switch.ports + 1)]
