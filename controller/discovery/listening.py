"""One round of probes: idle NICs and ports of packet switches send, and all of them hear."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

from patchlight.controller.discovery.search import LIGHT, Heard
from patchlight.controller.hosts.agent_client import AgentClient
from patchlight.controller.hosts.fleet import Fleet
from patchlight.controller.openflow.client import Speaker
from patchlight.controller.openflow.flowtable import Message
from patchlight.controller.openflow.packet_switches import PacketSwitches
from patchlight.testbed.errors import PatchlightError, in_words
from patchlight.testbed.lab.model import Endpoint, Lab, PacketSwitch, Server
from patchlight.testbed.wire.agent_status import LONGEST_LISTEN_S
from patchlight.testbed.wire.probe_frames import (
    Neighbour,
    lldp_neighbour,
    probe_frame,
    probe_source,
)

_SEND_EVERY_S = 0.2


@dataclass
class Listened:
    """What one round brought: who was ``heard`` by whom, who had a carrier, who took part.

    ``silent`` says of the lab's other ends with a fibre why they did not.
    """

    heard: set[tuple[str, str]] = field(default_factory=set)
    carriers: set[str] = field(default_factory=set)
    ends: set[str] = field(default_factory=set)
    silent: dict[str, str] = field(default_factory=dict)

    def beside(self, dark: "Listened") -> Heard:
        """Who was heard; ``LIGHT`` by who had a carrier and none in that round in the dark."""
        return frozenset(self.heard | {(LIGHT, end) for end in self.carriers - dark.carriers})


class SwitchListening:
    """Has the agents and the packet switches of a lab probe their fibres."""

    def __init__(self, lab: Lab, fleet: Fleet, switches: PacketSwitches, speaker: Speaker) -> None:
        self._lab, self._fleet, self._switches, self._speaker = lab, fleet, switches, speaker

    async def listen(self, token: str, listen_s: float) -> Listened:
        """Probe for so long, with probes of this token. Whoever does not answer is silent."""
        found, frames = Listened(), list[Message]()
        unsubscribe = self._speaker.subscribe(
            lambda event: frames.append(event) if event["event"] == "frame" else None
        )
        sending = asyncio.create_task(self._keep_sending(token, found))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(listen_s))
                for server in self._lab.servers:
                    group.create_task(self._ask_agent(server, token, listen_s, found))
        finally:
            sending.cancel()
            unsubscribe()
            await asyncio.gather(sending, return_exceptions=True)
        await self._look_at_switches(found)
        for event in frames:
            self._take(event, token, found)
        return found

    # -- NICs -----------------------------------------------------------------------------

    async def _ask_agent(
        self, server: Server, token: str, listen_s: float, found: Listened
    ) -> None:
        names = [str(Endpoint(server.name, nic.name)) for nic in server.nics]
        client = self._fleet.clients.get(server.name)
        if client is None:
            found.silent |= dict.fromkeys(names, f"the lab file names no agent of {server.name}")
            return
        try:
            left_s = listen_s
            while left_s > 0:
                await self._probe(client, token, min(left_s, LONGEST_LISTEN_S), found)
                left_s -= LONGEST_LISTEN_S
        except PatchlightError as error:
            found.silent |= dict.fromkeys(names, in_words(error))

    async def _probe(
        self, client: AgentClient, token: str, listen_s: float, found: Listened
    ) -> None:
        for nic in (await client.probe(token, listen_s)).nics:
            name = str(Endpoint(client.server, nic.name))
            if nic.problem:
                found.silent[name] = nic.problem
                continue
            found.ends.add(name)
            found.heard |= {(source, name) for source in nic.heard}
            neighbours = [Neighbour(each.device, each.port) for each in nic.lldp]
            found.heard |= {(end_of(self._lab, each), name) for each in neighbours}
            if nic.carrier:
                found.carriers.add(name)

    # -- ports of packet switches ---------------------------------------------------------

    async def _keep_sending(self, token: str, found: Listened) -> None:
        while True:
            for switch in self._connected():
                try:
                    await self._send(switch, token)
                except PatchlightError as error:
                    found.silent |= dict.fromkeys(_ports_of(self._lab, switch), in_words(error))
            await asyncio.sleep(_SEND_EVERY_S)

    async def _send(self, switch: PacketSwitch, token: str) -> None:
        frames = [
            {"port": int(number), "frame": probe_frame(name, token).hex()}
            for name in _ports_of(self._lab, switch)
            for _, _, number in [name.rpartition(".")]
        ]
        await self._speaker.request("send", datapath_id=switch.datapath_id, frames=frames)

    async def _look_at_switches(self, found: Listened) -> None:
        """Which ports there are and have a carrier; what they hear has come when this is back."""
        connected = list(self._connected())
        for switch in self._lab.packet_switches:
            names = _ports_of(self._lab, switch)
            if switch not in connected:
                found.silent |= dict.fromkeys(names, f"{switch.name} is not connected")
                continue
            try:
                ports = await self._speaker.request("ports", datapath_id=switch.datapath_id)
            except PatchlightError as error:
                found.silent |= dict.fromkeys(names, in_words(error))
                continue
            there = {f"{switch.name}.{port['port']}": bool(port["up"]) for port in ports}
            found.ends |= there.keys() & set(names)
            found.carriers |= {name for name in names if there.get(name)}
            gone = f"{switch.name} says that it has no such port"
            found.silent |= dict.fromkeys(set(names) - there.keys(), gone)

    def _connected(self) -> Iterator[PacketSwitch]:
        connected = self._switches.connected()
        return (switch for switch in self._lab.packet_switches if connected[switch.name])

    def _take(self, event: Message, token: str, found: Listened) -> None:
        end = str(self._switches.endpoint(event["datapath_id"], event["port"]))
        frame = bytes.fromhex(event["frame"])
        if (source := probe_source(frame, token)) is not None:
            found.heard.add((source, end))
        elif (neighbour := lldp_neighbour(frame)) is not None:
            found.heard.add((end_of(self._lab, neighbour), end))


def end_of(lab: Lab, neighbour: Neighbour) -> str:
    """The end of the lab that sends such LLDP, told by a NIC's MAC or a switch's name and port
    number; in other words where it is none of the lab."""
    by_mac = {host.nic.mac.lower(): str(host.endpoint) for host in lab.hosts}
    for said in (neighbour.port, neighbour.device):
        if said.lower() in by_mac:
            return by_mac[said.lower()]
    ports = {switch.name: switch.ports for switch in lab.packet_switches}.get(neighbour.device, 0)
    if neighbour.port.isdecimal() and 1 <= int(neighbour.port) <= ports:
        return f"{neighbour.device}.{int(neighbour.port)}"
    return str(neighbour)


def _ports_of(lab: Lab, switch: PacketSwitch) -> list[str]:
    return [f"{switch.name}.{number}" for number in range(1, switch.ports + 1)]
