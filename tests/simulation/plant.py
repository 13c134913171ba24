"""The true state of a simulated lab: light, flow tables, optical devices, the OpenFlow speaker.

The devices are the emulated ones, with their protocols' real bytes, and keep their maps when they
die. Packet switches are flow tables that forward. Nothing here is read by the controller but by
its drivers and its speaker.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchlight.controller.packet_switches.openflow import flowtable
from patchlight.controller.packet_switches.openflow.client import SpeakerFailed
from patchlight.controller.packet_switches.openflow.flowtable import (
    FlowEntry,
    FlowTable,
    SpeakerOptions,
)
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import CircuitSwitch, Endpoint, Host, Lab, PacketSwitch, Server
from patchlight.testbed.lab.portmap import AnyMap
from patchlight.testbed.lab.wiring import Links, lab_links
from patchlight.testbed.wire.worker_api import WorkerSpec
from tests.simulation.optical import Device
from tests.simulation.world import Process, World
from tests.support.fake_network import FakeNetwork, unicast

if TYPE_CHECKING:
    from tests.simulation.servers import Worker


class FlowSwitch:
    """A packet switch: its flow table outlives whoever controls it."""

    def __init__(self, switch: PacketSwitch) -> None:
        assert switch.datapath_id is not None
        self.name = switch.name
        self.datapath_id = switch.datapath_id
        self.ports = switch.ports
        self.table: dict[flowtable.FlowKey, FlowEntry] = {}
        self.connected = True
        self.refuses = 0
        """How many of the next entries it refuses."""


class Plant:
    """Everything that carries light and packets, in truth."""

    def __init__(self, world: World, lab: Lab) -> None:
        self.world = world
        self.lab = lab
        self.folder = world.folder
        self.devices = {
            switch.name: Device(world, self, switch.name) for switch in lab.optical_switches
        }
        self.switches = {
            switch.name: FlowSwitch(switch) for switch in lab.packet_switches if switch.datapath_id
        }
        self._links_of: tuple[AnyMap, ...] | None = None
        self._links: Links
        self.speakers: list[SimulatedSpeaker] = []
        self.speaker_processes: list[Process] = []
        self.rings: dict[str, list[Worker]] = {}
        """The workers that have joined a ring, by job and attempt."""
        self.dark: set[str] = set()
        """Hosts whose fibre is cut."""

    def maps(self) -> Mapping[str, AnyMap]:
        """The map of each device."""
        return {name: device.map for name, device in self.devices.items()}

    def links(self) -> Links:
        """What the light joins now."""
        maps = tuple(device.map for device in self.devices.values())
        if maps != self._links_of:
            self._links_of = maps
            self._links = lab_links(self.lab, self.maps())
        return self._links

    def is_lit(self, end: Endpoint) -> bool:
        """Whether light arrives at a port of an optical switch."""
        seen = set[Endpoint]()
        while end in self.lab.fibre_ends and end not in seen:
            seen.add(end)
            source = self.lab.fibre_ends[end][0]
            match self.lab.device(source.device):
                case Server() as server:
                    return not any(
                        host.endpoint == source and host.name in self.dark
                        for host in self.lab.hosts
                        if host.server is server
                    )
                case PacketSwitch():
                    return True
                case CircuitSwitch(name=name):
                    inputs = {c.out: c.inp for c in self.devices[name].map}
                    end = Endpoint(name, str(inputs.get(int(source.port), 0)))
                case _:
                    light = self.links().light
                    return light is not None and int(end.port) in light.arriving(end.device)
        return False

    def has_carrier(self, host: Host) -> bool:
        """Whether a NIC receives light."""
        return host.name not in self.dark and self.links().peer(host.endpoint) is not None

    def hears(self, sender: Host, receiver: Host) -> bool:
        """Whether a packet from one NIC reaches another."""
        if sender.name in self.dark or receiver.name in self.dark:
            return False
        tables = {
            name: FlowTable(frozenset(switch.table.values()))
            for name, switch in self.switches.items()
        }
        network = FakeNetwork(self.lab, self.links(), tables)
        return receiver.endpoint in network.send(sender, unicast(receiver)).arrived

    def ring_of(self, spec: WorkerSpec) -> list[Worker]:
        """The workers that have joined one attempt's ring."""
        return self.rings.setdefault(spec.id.rpartition("-")[0], [])

    def connect(self, switch: FlowSwitch, *, up: bool) -> None:
        """A packet switch's connection to its controller comes or goes."""
        if switch.connected != up:
            switch.connected = up
            for speaker in self.speakers:
                if speaker.running:
                    speaker.tell(switch)

    async def launch_speaker(self, command: Sequence[str]) -> SimulatedSpeaker:
        """Start a speaker as the controller does, by its command line."""
        options = SpeakerOptions.from_command(command[-1])
        speaker = SimulatedSpeaker(self, options)
        self.speakers.append(speaker)
        self.speaker_processes.append(speaker.process)
        await asyncio.sleep(0.3)
        serving = speaker.process.start(speaker.serve())
        await asyncio.wait({serving, speaker.over}, return_when=asyncio.FIRST_COMPLETED)
        if not speaker.running:
            raise await speaker.ended()
        return speaker


class SimulatedSpeaker:
    """The speaker's process: its line protocol at a Unix socket in memory."""

    COUNT_EVERY_S = 5.0

    def __init__(self, plant: Plant, options: SpeakerOptions) -> None:
        self.plant = plant
        self.options = options
        self.process = Process(plant.world, "speaker")
        self.clients: list[asyncio.StreamWriter] = []
        self.over: asyncio.Future[None] = plant.world.loop.create_future()
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
        """Listen, and count from now on."""
        await asyncio.start_unix_server(
            self._converse, self.options.socket, limit=flowtable.LONGEST_LINE
        )
        self.process.start(self._count())

    async def _count(self) -> None:
        while True:
            await asyncio.sleep(self.COUNT_EVERY_S)
            for switch in self._connected():
                self.publish(self._counters(switch))

    def _connected(self) -> list[FlowSwitch]:
        return [switch for switch in self.plant.switches.values() if switch.connected]

    def publish(self, event: Mapping[str, Any]) -> None:
        """Tell every client."""
        for client in self.clients:
            client.write(flowtable.encode(dict(event)))

    def tell(self, switch: FlowSwitch) -> None:
        """Tell every client that a switch has come or gone."""
        if switch.connected:
            self.publish({"event": "switch-up", **self._described(switch)})
        else:
            self.publish({"event": "switch-down", "datapath_id": switch.datapath_id})

    def _counters(self, switch: FlowSwitch) -> dict[str, Any]:
        ports = [
            {"port": port, "rx_bytes": 0, "tx_bytes": 0, "rx_packets": 0, "tx_packets": 0}
            for port in range(1, switch.ports + 1)
        ]
        flows = [
            {"cookie": entry.cookie, "bytes": 0, "packets": 0} for entry in switch.table.values()
        ]
        return {
            "event": "counters",
            "datapath_id": switch.datapath_id,
            "at": self.plant.world.wall(),
            "ports": ports,
            "flows": flows,
            "read_s": 0.001,
        }

    def _described(self, switch: FlowSwitch) -> dict[str, Any]:
        links = self.plant.links()
        lit = {int(end.port) for pair in links.pairs() for end in pair if end.device == switch.name}
        ports = [
            {"port": port, "name": f"p{port}", "up": port in lit}
            for port in range(1, switch.ports + 1)
        ]
        return {"datapath_id": switch.datapath_id, "address": "10.1.1.1:1", "ports": ports}

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.clients.append(writer)
        while line := await reader.readline():
            request = flowtable.decode(line)
            try:
                answer = {"ok": True, "result": self._answer(request)}
            except _Refused as refused:
                answer = {"ok": False, "error": refused.message, **refused.fields}
            except PatchlightError as error:
                answer = {"ok": False, "error": error.message, "kind": "SwitchGone"}
            await asyncio.sleep(self.plant.world.latency_s())
            writer.write(flowtable.encode({"id": request["id"], **answer}))
        self.clients.remove(writer)
        writer.close()

    def _answer(self, request: Mapping[str, Any]) -> Any:
        operation = request["op"]
        if operation == "hello":
            about = {"engine": "simulated", "engine_version": "1"}
            return {"protocol": 1, "datapaths": sorted(self.options.datapath_ids), **about}
        if operation == "switches":
            return [self._described(switch) for switch in self._connected()]
        if operation == "counters":
            return [self._counters(switch) for switch in self._connected()]
        switch = next(
            (s for s in self._connected() if s.datapath_id == request["datapath_id"]), None
        )
        if switch is None:
            raise PatchlightError(f"switch {request['datapath_id']:#x} is not connected")
        if operation == "read_flows":
            flows = [entry.to_json() for entry in switch.table.values()]
            return {"flows": flows, "selects": True if request.get("spread") else None}
        if operation == "ports":
            return self._described(switch)["ports"]
        assert operation == "apply", operation
        return self._apply(switch, request)

    def _apply(self, switch: FlowSwitch, request: Mapping[str, Any]) -> dict[str, int]:
        removed = added = 0
        failed = []
        for item in request.get("removes", []):
            entry = FlowEntry.from_json(item)
            removed += switch.table.pop(entry.key, None) is not None
        for item in request.get("adds", []):
            entry = FlowEntry.from_json(item)
            if switch.refuses:
                switch.refuses -= 1
                failed.append({"entry": item, "error": "table full"})
                continue
            switch.table[entry.key] = entry
            added += 1
        result = {"removed": removed, "added": added}
        if failed:
            raise _Refused("refused entries", {"failed": failed, "result": result})
        return result


@dataclasses.dataclass
class _Refused(Exception):
    message: str
    fields: dict[str, Any]


def located(lab: Lab, folder: Path) -> Lab:
    """The lab with an address of the world for each agent and device."""
    servers = tuple(
        dataclasses.replace(server, management=f"unix:{folder}/{server.name}.sock")
        for server in lab.servers
    )
    return lab.with_changes(servers=servers)
