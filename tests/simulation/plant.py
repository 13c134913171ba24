"""The true state of a simulated lab: light, packets, optical devices.

The devices are the emulated ones, with their protocols' real bytes, and keep their maps when they
die. Nothing here is read by the controller but by its drivers and its speaker.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchlight.controller.packet_switches.openflow.flowtable import (
    SpeakerOptions,
)
from patchlight.testbed.lab.model import (
    CircuitSwitch,
    Endpoint,
    Host,
    Lab,
    PacketSwitch,
    Server,
)
from patchlight.testbed.lab.portmap import AnyMap
from patchlight.testbed.lab.wiring import Links, lab_links
from patchlight.testbed.wire.worker_api import WorkerSpec
from tests.simulation.optical import Device
from tests.simulation.packet_switches import KINDS, SimulatedSpeaker
from tests.simulation.world import Process, World
from tests.support.fake_network import Packet, unicast

if TYPE_CHECKING:
    from tests.simulation.servers import Worker


class Plant:
    """Everything that carries light and packets, in truth."""

    def __init__(self, world: World, lab: Lab) -> None:
        self.world = world
        self.lab = lab
        self.folder = world.folder
        self.devices = {
            switch.name: Device(world, self, switch.name)
            for switch in lab.optical_switches
        }
        self.switches = {
            switch.name: KINDS[switch.driver](self, switch)
            for switch in lab.packet_switches
        }
        self._links_of: tuple[AnyMap, ...] | None = None
        self._links: Links
        self._heard_in: tuple[object, ...] = ()
        self._heard: dict[tuple[str, str], bool] = {}
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
                    return light is not None and int(
                        end.port
                    ) in light.arriving(end.device)
        return False

    def has_carrier(self, host: Host) -> bool:
        """Whether a NIC receives light."""
        return (
            host.name not in self.dark
            and self.links().peer(host.endpoint) is not None
        )

    def hears(self, sender: Host, receiver: Host) -> bool:
        """Whether a packet from one NIC reaches another."""
        if sender.name in self.dark or receiver.name in self.dark:
            return False
        state = (
            self.links(),
            *(switch.version for switch in self.switches.values()),
        )
        if state != self._heard_in:
            self._heard_in = state
            self._heard = {}
        pair = (sender.name, receiver.name)
        if pair not in self._heard:
            ends = self.reached(
                self.links().peer(sender.endpoint), unicast(receiver)
            )
            self._heard[pair] = receiver.endpoint in ends
        return self._heard[pair]

    def reached(
        self, at: Endpoint | None, packet: Packet | None
    ) -> Set[Endpoint]:
        """The NICs that a packet reaches which comes in at a port, or has come out at one; without
        a packet, all to which there is a way."""
        waiting = [at]
        seen = set[Endpoint | None]()
        found = set()
        while waiting:
            at = waiting.pop()
            if at is None or at in seen:
                continue
            seen.add(at)
            switch = self.switches.get(at.device)
            if switch is None:
                found.add(at)
                continue
            plugs = (
                switch.numbers
                if packet is None
                else switch.outputs(int(at.port), packet)
            )
            waiting += [
                self.links().peer(Endpoint(at.device, str(plug)))
                for plug in plugs
            ]
        return found

    def ring_of(self, spec: WorkerSpec) -> list[Worker]:
        """The workers that have joined one attempt's ring."""
        return self.rings.setdefault(spec.id.rpartition("-")[0], [])

    def publish(self, event: Mapping[str, Any]) -> None:
        """Let the speaker tell its clients what a switch has told it."""
        for speaker in self.speakers:
            if speaker.running:
                speaker.publish(event)

    async def launch_speaker(self, command: Sequence[str]) -> SimulatedSpeaker:
        """Start a speaker as the controller does, by its command line."""
        options = SpeakerOptions.from_command(command[-1])
        speaker = SimulatedSpeaker(self, options)
        self.speakers.append(speaker)
        self.speaker_processes.append(speaker.process)
        await asyncio.sleep(0.3)
        serving = speaker.process.start(speaker.serve())
        await asyncio.wait(
            {serving, speaker.over}, return_when=asyncio.FIRST_COMPLETED
        )
        if not speaker.running:
            raise await speaker.ended()
        return speaker


def located(lab: Lab, folder: Path) -> Lab:
    """The lab with an address of the world for each agent and device."""
    servers = tuple(
        dataclasses.replace(
            server, management=f"unix:{folder}/{server.name}.sock"
        )
        for server in lab.servers
    )
    return lab.with_changes(servers=servers)
