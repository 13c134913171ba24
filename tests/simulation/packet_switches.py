"""Packet switches of every kind in a simulated lab, and the speaker of those with OpenFlow.

A switch keeps forwarding while nobody controls it. Drivers over SSH are the real ones; a shell in
memory runs their commands. The SSH layer, and SNMP's encoding, are left out.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import copy
import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchlight.controller.circuits.contract import DeviceUnreachable
from patchlight.controller.circuits.dialect import Session
from patchlight.controller.circuits.protocols import tcp
from patchlight.controller.packet_switches.contract import (
    Applied,
    PacketSwitchDriver,
    SwitchState,
    Wish,
)
from patchlight.controller.packet_switches.linux_bridge import LinuxBridge
from patchlight.controller.packet_switches.openflow import flowtable
from patchlight.controller.packet_switches.openflow.client import SpeakerFailed
from patchlight.controller.packet_switches.openflow.flowtable import (
    FlowEntry,
    FlowTable,
    Match,
    SpeakerOptions,
)
from patchlight.controller.packet_switches.registry import open_packet_driver
from patchlight.controller.packet_switches.snmp import Oid, SnmpFailed, Value
from patchlight.controller.packet_switches.sonic import Sonic
from patchlight.testbed.errors import OutcomeUnknown, PatchlightError
from patchlight.testbed.lab.model import PacketSwitch
from patchlight.testbed.lab.rules import Snmp
from tests.simulation.world import Process, World
from tests.support.fake_network import FakeNetwork, Packet
from tests.support.packet_switch_driver import TABLES, Example
from tests.support.switch_shells import BridgeShell, SonicShell, SwitchShell

if TYPE_CHECKING:
    from tests.simulation.plant import Plant


class Switch:
    """A packet switch in truth, by default one that learns and floods.

    ``connected``: its management answers; ``stall_s`` is how long each answer takes.
    """

    def __init__(self, plant: Plant, switch: PacketSwitch) -> None:
        self.plant = plant
        self.switch = switch
        self.name = switch.name
        self.connected = True
        self.numbers = {port: port for port in range(1, switch.ports + 1)}
        """The number of each plug; one that has vanished has none."""
        self.reported_down: set[int] = set()
        """Plugs that it reports without a link, whatever is true."""
        self.stall_s = 0.0
        self.version = 0
        """Counts the changes of its state."""
        self.stray = ""
        """The MAC whose frames an entry of another application leads astray."""

    def start(self) -> None:
        """Its management answers again."""
        self.connected = True

    def kill(self) -> None:
        """Its management is gone; it goes on forwarding."""
        self.connected = False

    def ports_up(self) -> dict[int, bool]:
        """Its present ports by number, and whether it reports each with a link."""
        ends = (end for pair in self.plant.links().pairs() for end in pair)
        up = {
            int(end.port) for end in ends if end.device == self.name
        } - self.reported_down
        return {
            number: plug in up for plug, number in sorted(self.numbers.items())
        }

    def outputs(self, plug: int, packet: Packet) -> Collection[int]:
        """The plugs by which a packet leaves that has come in at one."""
        if plug not in self.numbers:
            return ()
        numbers = self.forwards(self.numbers[plug], packet)
        return [
            there
            for there, n in self.numbers.items()
            if n in numbers and there != plug
        ]

    def forwards(self, number: int, packet: Packet) -> Collection[int]:
        """The same by numbers."""
        return self.numbers.values()

    def refuse(self, entries: int) -> None:
        """It refuses the next entries."""

    def enter(self, mac: str, number: int | None) -> None:
        """Set an entry of another application, or remove it."""

    @property
    def has_stray(self) -> bool:
        """Whether that entry is there."""
        return True

    def own_entries(self) -> Mapping[str, int]:
        """The port to which each entry of Patchlight leads, by MAC."""
        return {}

    def lead_astray(self, mac: str, number: int | None) -> None:
        """Another application makes an entry that leads to this port, or removes it."""
        if number is not None or self.stray == mac:
            self.stray = "" if number is None else mac
            self.enter(mac, number)
            self.version += 1

    def renumbered(self) -> None:
        """Ports have vanished, come back, or changed their number or link."""
        self.version += 1

    def restore_ports(self) -> None:
        """All ports are there, with their own numbers."""
        self.numbers = {port: port for port in range(1, self.switch.ports + 1)}
        self.reported_down.clear()
        self.renumbered()

    def save(self) -> Any:
        """A copy of its state."""

    def reboot(self, old: Any) -> None:
        """Switch it off and on: without a state, or with an ``old`` one."""
        self.version += 1
        self.stray = ""


def port_names(switch: PacketSwitch) -> tuple[str, ...]:
    """What a switch with OpenFlow calls its ports."""
    return tuple(f"p{port}" for port in range(1, switch.ports + 1))


class FlowSwitch(Switch):
    """A switch with OpenFlow, behind the speaker."""

    def __init__(self, plant: Plant, switch: PacketSwitch) -> None:
        super().__init__(plant, switch)
        assert switch.datapath_id is not None
        self.datapath_id = switch.datapath_id
        self.table: dict[flowtable.FlowKey, FlowEntry] = {}
        self._refuses = 0
        self._shown: tuple[int, FlowTable] | None = None

    def start(self) -> None:
        """It connects."""
        if not self.connected:
            self.connected = True
            self.plant.publish({"event": "switch-up", **self.described()})

    def kill(self) -> None:
        """It loses its connection."""
        if self.connected:
            self.connected = False
            self.plant.publish(
                {"event": "switch-down", "datapath_id": self.datapath_id}
            )

    def forwards(self, number: int, packet: Packet) -> Collection[int]:
        """By the best entry."""
        if self._shown is None or self._shown[0] != self.version:
            self._shown = (
                self.version,
                FlowTable(frozenset(self.table.values())),
            )
        network = FakeNetwork(
            self.plant.lab, self.plant.links(), {self.name: self._shown[1]}
        )
        return network.outputs(self.name, number, packet)

    def save(self) -> Any:
        """See ``Switch``."""
        return dict(self.table)

    def reboot(self, old: Any) -> None:
        """See ``Switch``."""
        super().reboot(old)
        self.table = {
            key: entry for key, entry in (old or {}).items() if entry.is_ours
        }

    def refuse(self, entries: int) -> None:
        """See ``Switch``."""
        self._refuses = entries

    def enter(self, mac: str, number: int | None) -> None:
        """See ``Switch``. It has precedence over Patchlight's."""
        entry = FlowEntry(
            0, 120, Match({"eth_dst": mac}), (number or 0,), cookie=7
        )
        self.table.pop(entry.key, None)
        if number is not None:
            self.table[entry.key] = entry

    def own_entries(self) -> Mapping[str, int]:
        """See ``Switch``."""
        return {
            str(entry.match["eth_dst"]): entry.outputs[0]
            for entry in self.table.values()
            if entry.is_ours and entry.outputs and "eth_dst" in entry.match
        }

    @property
    def has_stray(self) -> bool:
        """See ``Switch``."""
        return not all(entry.is_ours for entry in self.table.values())

    def described(self) -> dict[str, Any]:
        """Its ports, as the speaker describes them."""
        own = port_names(self.switch)
        names = {
            number: own[plug - 1] for plug, number in self.numbers.items()
        }
        ports = [
            {"port": n, "name": names[n], "up": up}
            for n, up in self.ports_up().items()
        ]
        return {
            "datapath_id": self.datapath_id,
            "address": "10.1.1.1:1",
            "ports": ports,
        }

    def counters(self) -> dict[str, Any]:
        """The event with its counters."""
        nothing = {
            "rx_bytes": 0,
            "tx_bytes": 0,
            "rx_packets": 0,
            "tx_packets": 0,
        }
        ours = (entry for entry in self.table.values() if entry.is_ours)
        return {
            "event": "counters",
            "datapath_id": self.datapath_id,
            "at": self.plant.world.wall(),
            "ports": [
                {"port": number, **nothing}
                for number in sorted(self.numbers.values())
            ],
            "flows": [
                {"cookie": entry.cookie, "bytes": 0, "packets": 0}
                for entry in ours
            ],
            "read_s": 0.001,
        }

    async def answer(self, operation: str, request: Mapping[str, Any]) -> Any:
        """The result of one of the speaker's operations on it."""
        if operation == "ports":
            return self.described()["ports"]
        if operation == "read_flows":
            flows = [entry.to_json() for entry in self.table.values()]
            return {
                "flows": flows,
                "selects": True if request.get("spread") else None,
            }
        assert operation == "apply", operation
        removed = added = 0
        failed = []
        for item in request.get("removes", []):
            entry = FlowEntry.from_json(item)
            # Strictly, and by the cookie: another application's entry with this key stays.
            if (
                known := self.table.get(entry.key)
            ) is not None and known.cookie == entry.cookie:
                del self.table[entry.key]
            removed += 1
            self.version += 1
        for item in request.get("adds", []):
            # Its connection or the speaker may end in the middle.
            await asyncio.sleep(0)
            if not self.connected:
                raise PatchlightError(
                    f"switch {self.datapath_id:#x} disconnected"
                )
            entry = FlowEntry.from_json(item)
            if self._refuses:
                self._refuses -= 1
                failed.append({"entry": item, "error": "table full"})
                continue
            self.table[entry.key] = entry
            self.version += 1
            added += 1
        result = {"removed": removed, "added": added}
        if failed:
            raise _Refused(
                "refused entries", {"failed": failed, "result": result}
            )
        return result

    def renumbered(self) -> None:
        """See ``Switch``. It reports each port that has gone, and what the others are now."""
        super().renumbered()
        changes = {
            n: {"change": "removed", "port": n, "name": "", "up": False}
            for n in range(1, self.switch.ports + 1)
        }
        for port in self.described()["ports"]:
            changes[port["port"]] = {"change": "modified", **port}
        for change in changes.values():
            if self.connected:
                self.plant.publish(
                    {
                        "event": "port",
                        "datapath_id": self.datapath_id,
                        **change,
                    }
                )


class SpeakerProcess(ABC):
    """A speaker's process: its line protocol at a Unix socket in memory."""

    def __init__(
        self, world: World, name: str, options: SpeakerOptions
    ) -> None:
        self.options = options
        self.process = Process(world, name)
        self.over: asyncio.Future[None] = world.loop.create_future()
        self.process.at_end.append(lambda: self.over.set_result(None))

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self.process.alive

    async def ended(self) -> SpeakerFailed:
        """Wait for its end."""
        await asyncio.shield(self.over)
        return SpeakerFailed("the OpenFlow speaker ended: it was killed")

    async def stop(self) -> None:
        """End it."""
        self.process.end()

    async def serve(self) -> None:
        """Listen."""
        await asyncio.start_unix_server(
            self._converse, self.options.socket, limit=flowtable.LONGEST_LINE
        )

    @abstractmethod
    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer one client."""


class SimulatedSpeaker(SpeakerProcess):
    """The speaker of the packet switches with OpenFlow."""

    COUNT_EVERY_S = 5.0

    def __init__(self, plant: Plant, options: SpeakerOptions) -> None:
        super().__init__(plant.world, "speaker", options)
        self.plant = plant
        self.clients: list[asyncio.StreamWriter] = []
        self.stall_s = 0.0
        """How long each answer takes."""

    async def serve(self) -> None:
        """Listen, and count from now on."""
        await super().serve()
        self.process.start(self._count())

    async def _count(self) -> None:
        while True:
            await asyncio.sleep(self.COUNT_EVERY_S)
            for switch in self._connected():
                self.publish(switch.counters())

    def _connected(self) -> list[FlowSwitch]:
        switches = self.plant.switches.values()
        return [
            s for s in switches if isinstance(s, FlowSwitch) and s.connected
        ]

    def publish(self, event: Mapping[str, Any]) -> None:
        """Tell every client."""
        for client in self.clients:
            client.write(flowtable.encode(dict(event)))

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.clients.append(writer)
        while line := await reader.readline():
            self.process.start(self._handle(flowtable.decode(line), writer))
        self.clients.remove(writer)
        writer.close()

    async def _handle(
        self, request: Mapping[str, Any], writer: asyncio.StreamWriter
    ) -> None:
        await asyncio.sleep(self.plant.world.latency_s() + self.stall_s)
        try:
            answer = {"ok": True, "result": await self._in_time(request)}
        except _Refused as refused:
            answer = {"ok": False, "error": refused.message, **refused.fields}
        except TimeoutError:
            answer = {
                "ok": False,
                "error": "no answer in time",
                "kind": "DeadlinePassed",
            }
        except PatchlightError as error:
            answer = {
                "ok": False,
                "error": error.message,
                "kind": "SwitchGone",
            }
        line = flowtable.encode({"id": request["id"], **answer})
        middle = len(line) // 2
        writer.write(line[:middle])
        writer.write(line[middle:])  # it may die between the two

    async def _in_time(self, request: Mapping[str, Any]) -> Any:
        """The result, within the request's deadline. A slow switch does it then, too."""
        work = self.process.start(self._answer(request))
        async with asyncio.timeout(request["deadline_s"]):
            return await asyncio.shield(work)

    async def _answer(self, request: Mapping[str, Any]) -> Any:
        operation = request["op"]
        if operation == "hello":
            about = {"engine": "simulated", "engine_version": "1"}
            return {
                "protocol": 1,
                "datapaths": sorted(self.options.datapath_ids),
                **about,
            }
        if operation == "switches":
            return [switch.described() for switch in self._connected()]
        if operation == "counters":
            return [switch.counters() for switch in self._connected()]
        for switch in self._connected():
            if switch.datapath_id == request["datapath_id"]:
                await asyncio.sleep(switch.stall_s)
                return await switch.answer(operation, request)
        raise PatchlightError(
            f"switch {request['datapath_id']:#x} is not connected"
        )


@dataclass
class _Refused(Exception):
    message: str
    fields: dict[str, Any]


class MachineSwitch(Switch, ABC):
    """A switch whose management is a process of the world, which runs commands."""

    def __init__(self, plant: Plant, switch: PacketSwitch) -> None:
        super().__init__(plant, switch)
        self.process = Process(plant.world, self.name)
        self.process.alive = False

    def start(self) -> None:
        """Its management starts."""
        if not self.process.alive:
            self.process = Process(self.plant.world, self.name)
            self.process.at_end.append(
                lambda: setattr(self, "version", self.version + 1)
            )
            self.process.start(self._serve())

    def kill(self) -> None:
        """Its management dies, in the middle of a command, maybe."""
        self.process.kill()

    async def _serve(self) -> None:
        said = self.switch
        host, _, port = (
            said.snmp.address if said.snmp else said.address
        ).rpartition(":")
        await asyncio.start_server(
            self._converse, host, int(port), limit=1 << 24
        )

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                number, command, text = json.loads(line)
                await asyncio.sleep(self.stall_s)
                answer = await self.run(command, text)
                writer.write(json.dumps([number, *answer]).encode() + b"\n")
        writer.close()

    @abstractmethod
    async def run(self, command: str, text: str) -> tuple[int, str, str]:
        """Exit status, output and errors of a command with this input."""


class ShellSwitch(MachineSwitch):
    """A switch that is driven by shell scripts over SSH."""

    def __init__(self, plant: Plant, switch: PacketSwitch) -> None:
        super().__init__(plant, switch)
        self.shell: SwitchShell
        self._answers: dict[str, tuple[object, tuple[int, str, str]]] = {}
        self.reboot(None)

    def forwards(self, number: int, packet: Packet) -> Collection[int]:
        """By the table; others are flooded, as far as it floods."""
        there = self.shell.table.get(str(packet["eth_dst"]).lower())
        names = self.shell.flooded if there is None else {there}
        return [
            n
            for n, name in enumerate(self.switch.interface_names, 1)
            if name in names
        ]

    async def run(self, command: str, text: str) -> tuple[int, str, str]:
        """See ``MachineSwitch``."""
        self._see_ports()
        if command != "sh":
            answer = await self.shell.run(command, text)
            self.version += 1
            return answer
        state = self.version, self.shell.ports
        if text not in self._answers or self._answers[text][0] != state:
            self._answers[text] = state, await self.shell.run(command, text)
        return self._answers[text][1]

    def _see_ports(self) -> None:
        names = self.switch.interface_names
        self.shell.ports = {
            names[number - 1]: up for number, up in self.ports_up().items()
        }

    def renumbered(self) -> None:
        """See ``Switch``."""
        super().renumbered()
        self._see_ports()

    def save(self) -> Any:
        """See ``Switch``. Entries of others are not in it."""
        shell = copy.deepcopy(self.shell)
        shell.enter(self.stray, None)
        return shell

    def reboot(self, old: Any) -> None:
        """See ``Switch``."""
        super().reboot(old)
        kind = (
            BridgeShell if self.switch.driver == "linux-bridge" else SonicShell
        )
        self.shell = copy.deepcopy(old) or kind(self.switch)

    def refuse(self, entries: int) -> None:
        """See ``Switch``."""
        self.shell.refuses = entries

    def enter(self, mac: str, number: int | None) -> None:
        """See ``Switch``."""
        self.shell.enter(
            mac, self.switch.interface_names[number - 1] if number else None
        )

    @property
    def has_stray(self) -> bool:
        """See ``Switch``."""
        return self.stray in self.shell.table

    def own_entries(self) -> Mapping[str, int]:
        """See ``Switch``."""
        names = self.switch.interface_names
        table = self.shell.table.items()
        return {
            mac: names.index(name) + 1
            for mac, name in table
            if mac != self.stray
        }


class LearningSwitch(MachineSwitch):
    """A switch that gets nothing. It answers by SNMP."""

    MIB = (1, 3, 6, 1, 2, 1)

    async def run(self, command: str, text: str) -> tuple[int, str, str]:
        """What follows each of these object ids in IF-MIB, row by row."""
        table: dict[Oid, Any] = {}
        for number, up in self.ports_up().items():
            texts = dict.fromkeys(
                ((2, 2, 1, 2), (31, 1, 1, 1, 1)), f"{self.name}-{number}"
            )
            row = {
                **texts,
                (2, 2, 1, 8): 1 if up else 2,
                (31, 1, 1, 1, 6): 0,
                (31, 1, 1, 1, 10): 0,
            }
            table |= {
                (*self.MIB, *column, number): value
                for column, value in row.items()
            }
        oids = sorted(table)
        after, rows = json.loads(text)
        at = [bisect.bisect_right(oids, tuple(oid)) for oid in after]
        found = [
            (oids[place], table[oids[place]])
            if place < len(oids)
            else (after[column], None)
            for row in range(rows)
            for column, place in enumerate(first + row for first in at)
        ]
        return 0, json.dumps(found), ""


class TableSwitch(Switch):
    """A switch of a kind that another package drives: a table that forwards."""

    def __init__(self, plant: Plant, switch: PacketSwitch) -> None:
        super().__init__(plant, switch)
        self.reboot(None)

    def forwards(self, number: int, packet: Packet) -> Collection[int]:
        """By the table only."""
        return [
            p
            for mac, p in self.own_entries().items()
            if mac == str(packet["eth_dst"]).lower()
        ]

    def own_entries(self) -> Mapping[str, int]:
        """See ``Switch``."""
        return {
            station.mac: port
            for station, port in TABLES[self.switch.address].items()
        }

    def save(self) -> Any:
        """See ``Switch``."""
        return dict(TABLES[self.switch.address])

    def reboot(self, old: Any) -> None:
        """See ``Switch``."""
        super().reboot(old)
        TABLES[self.switch.address] = dict(old or {})


class TableDriver(Example):
    """The driver of a ``TableSwitch``, over a link that may be cut."""

    def __init__(self, there: TableSwitch) -> None:
        super().__init__(there.switch, "")
        self._there = there

    async def open(self) -> None:
        """See ``PacketSwitchDriver``."""
        await self._exchange()

    async def set_forwarding(self, wish: Wish) -> Applied:
        """See ``PacketSwitchDriver``."""
        await self._exchange()
        applied = await super().set_forwarding(wish)
        self._there.version += 1
        try:
            await self._exchange()
        except DeviceUnreachable as error:
            raise OutcomeUnknown(error.message) from error
        return applied

    async def read(self) -> SwitchState:
        """See ``PacketSwitchDriver``."""
        await self._exchange()
        return await super().read()

    async def _exchange(self) -> None:
        world = self._there.plant.world
        await asyncio.sleep(world.latency_s() + self._there.stall_s)
        cuts = {
            ("controller", self.name),
            (self.name, "controller"),
        } & world.network.cuts
        if cuts or not self._there.connected:
            raise DeviceUnreachable(f"no answer from {self.name}")


class SimulatedLogin:
    """A login on a ``MachineSwitch``; commands and answers are lines of JSON on a stream."""

    flooded = False

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._number = 0

    @classmethod
    async def open(cls, session: Session) -> SimulatedLogin:
        """Connect."""
        return cls(
            *await asyncio.open_connection(
                session.host, session.port, limit=1 << 24
            )
        )

    @property
    def trouble(self) -> str:
        """Why it ended."""
        return "the connection was lost" if self._reader.at_eof() else ""

    async def close(self) -> None:
        """Close it."""
        self._writer.close()

    async def run(
        self, command: str, text: str, timeout_s: float
    ) -> tuple[int, str, str]:
        """See ``CommandConnection``."""
        self._number += 1
        self._writer.write(
            json.dumps([self._number, command, text]).encode() + b"\n"
        )
        try:
            while (line := await self._reader.readline()).endswith(b"\n"):
                number, status, output, errors = json.loads(line)
                if number == self._number:
                    return status, output, errors
        except OSError as error:
            raise tcp.ConnectionLost(str(error)) from error
        raise tcp.ConnectionLost("the connection was closed")


class SimulatedSnmp:
    """Requests to a ``LearningSwitch``, each on a stream of its own, as datagrams may be lost."""

    WAITS_S = 4.0

    def __init__(
        self, name: str, said: Snmp, netns: Path | None = None
    ) -> None:
        self.name = name
        self._address = said.address

    def close(self) -> None:
        """Nothing is open."""

    async def following(
        self, after: Sequence[Oid], rows: int
    ) -> list[tuple[Oid, Value | None]]:
        """See ``SnmpSession``."""
        host, _, port = self._address.rpartition(":")
        try:
            async with asyncio.timeout(self.WAITS_S):
                login = SimulatedLogin(
                    *await asyncio.open_connection(host, int(port))
                )
                try:
                    _, output, _ = await login.run(
                        "snmp", json.dumps([after, rows]), self.WAITS_S
                    )
                finally:
                    await login.close()
        except (OSError, TimeoutError, tcp.ConnectionLost) as error:
            raise SnmpFailed(
                f"no SNMP answer from {self.name} at {self._address}"
            ) from error
        found = json.loads(output)
        return [
            (tuple(oid), v.encode() if isinstance(v, str) else v)
            for oid, v in found
        ]


KINDS: Mapping[str, type[Switch]] = {
    "openflow": FlowSwitch,
    "linux-bridge": ShellSwitch,
    "sonic": ShellSwitch,
    "learning": LearningSwitch,
    "example": TableSwitch,
}
"""The kinds of switches by driver."""


def open_driver(there: Switch, password: str) -> PacketSwitchDriver:
    """The driver of a simulated switch: the real one of its kind."""
    if isinstance(there, TableSwitch):
        return TableDriver(there)
    if isinstance(there, ShellSwitch):
        kind = LinuxBridge if there.switch.driver == "linux-bridge" else Sonic
        return kind(there.switch, password, login=SimulatedLogin.open)
    return open_packet_driver(there.switch, password)
