"""The lab's packet switches: forwarding that follows the circuits, and port counters."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal, get_args

from patchlight.controller.packet_switches.contract import (
    Lack,
    PacketSwitchDriver,
    PortState,
    Wish,
)
from patchlight.controller.packet_switches.keeping import KeptSwitch
from patchlight.controller.packet_switches.openflow.client import Speaker
from patchlight.controller.packet_switches.openflow.flow_sync import (
    FlowSync,
    RefusedEntry,
)
from patchlight.controller.packet_switches.openflow.flowtable import (
    FlowEntry,
    FlowTable,
    Match,
)
from patchlight.controller.packet_switches.openflow.forwarding import (
    PRIORITY_ARP,
    Forwarding,
    assumed_mac,
)
from patchlight.controller.packet_switches.ports import (
    MissingPorts,
    NumberedPorts,
    used_ports,
)
from patchlight.controller.packet_switches.trunks import Trunks, Uplink
from patchlight.testbed.errors import PatchlightError, in_words
from patchlight.testbed.lab.model import Endpoint, Host, Lab
from patchlight.testbed.lab.wiring import Links
from patchlight.testbed.tasks import run_all
from patchlight.testbed.wire.agent_status import AgentStatus
from patchlight.testbed.wire.probe_frames import ETHERTYPE, ETHERTYPE_LLDP

LOG = logging.getLogger(__name__)

# One sample per second; older ones are in the time series on disk.
_RATES_KEPT_S = 600
_LATELY_S = 10.0
# A switch that reconnects repeatedly is reported once a minute.
_SECOND_FOR_S = 120.0
_CONTROLLER_PORT = 0xFFFFFFFD
# What a switch needs to identify the senders at its ports.
_EARS = frozenset(
    FlowEntry.ours(
        Match(eth_type=kind), (_CONTROLLER_PORT,), priority=PRIORITY_ARP + 10
    )
    for kind in (ETHERTYPE, ETHERTYPE_LLDP)
)


Source = Literal["snmp", "switch", "nic"]
"""Who counted: a switch by SNMP or by its driver, or the host's NIC; the best first."""
_SOURCES = get_args(Source)
# How long a better source may be silent.
_HELD_S = 30.0


@dataclass(
    frozen=True,
    slots=True,
)
class _Counted:
    """What a host has sent and received in all, counted at this place."""

    where: str
    at: float
    sent: int
    received: int


class PacketSwitches:
    """The lab's packet switches, by their names in the lab file.

    Those with OpenFlow are behind the speaker, and set together; ``drivers`` are those of the
    others. With tables set while ``hand_over_probes``, switches send probes and LLDP to the
    controller as ``frame``. ``on_missing`` gets a switch, a port and why it is missing, empty once
    it is back.
    """

    def __init__(
        self,
        lab: Lab,
        speaker: Speaker,
        mac_of: Callable[[Host], str] = assumed_mac,
        drivers: Iterable[PacketSwitchDriver] = (),
        on_missing: Callable[[str, int, str], None] = lambda *_: None,
    ) -> None:
        self.hand_over_probes = False
        self._lab = lab
        self._speaker = speaker
        self._mac_of = mac_of
        self._flows = FlowSync(speaker)
        self._forwarding = Forwarding(lab, mac_of)
        self._links: Links | None = None
        self._trunks = Trunks(lab)
        self._missing = MissingPorts(on_missing)
        self._numbered = {
            s.datapath_id: NumberedPorts(
                used_ports(lab.fibre_ends, s), s.interfaces
            )
            for s in lab.packet_switches
            if s.datapath_id
        }
        self._counted_ports: dict[int, set[int]] = {}
        self._looking: dict[int, asyncio.Task[None]] = {}
        self._routing: asyncio.Task[None] | None = None
        self._is_released = False
        # Tables of other MACs or links must not overtake each other.
        self._following = asyncio.Lock()
        self._name_of = {
            s.datapath_id: s.name for s in lab.packet_switches if s.datapath_id
        }
        self._kept = {
            driver.name: KeptSwitch(driver, self._count_ports)
            for driver in drivers
        }
        self._learning = {
            switch.name for switch in lab.packet_switches if switch.learns
        }
        self._connected: set[int] = set()
        self._second_from: dict[int, tuple[str, float]] = {}
        self._unserved_of: object = None
        self._unserved: Mapping[str, str] = {}
        self._traffic: dict[str, Mapping[str, Any]] = {}
        self.refused: Mapping[str, int] = {}
        self._host_at: dict[tuple[str, int], str] = {}
        self._host_of = {str(host.endpoint): host for host in lab.hosts}
        self._switch_names = {switch.name for switch in lab.packet_switches}
        self._last: dict[tuple[Source, str], _Counted] = {}
        self._latest: dict[str, dict[str, Any]] = {}
        self.port_rates: deque[dict[str, Any]] = deque(
            maxlen=_RATES_KEPT_S * len(lab.hosts)
        )

    async def close(self) -> None:
        """Stop keeping the switches' forwarding, which stays."""
        ending = [*self._looking.values()]
        if self._routing is not None:
            ending.append(self._routing)
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)
        await run_all(
            (
                self._flows.close(),
                *(kept.close() for kept in self._kept.values()),
            )
        )

    async def follow(self, links: Links) -> list[str]:
        """Set every switch's forwarding for these links; returns failures as text.

        A switch that does not answer is not a failure: it is set when it does.
        """
        async with self._following:
            if self._is_released:
                return []
            self._links = links
            return await self._follow(links)

    async def release(self) -> None:
        """Remove Patchlight's entries from all switches; then they are left alone.

        ``PatchlightError`` if that fails for one: then all forward as before.
        """
        async with self._following:
            if away := [
                name
                for name, answers in self.connected().items()
                if not answers
            ]:
                raise PatchlightError(
                    f"nothing was removed: no answer from {', '.join(away)}",
                    hint="if they are gone permanently, remove them from the lab file and "
                    "restart the controller",
                )
            empty = dict.fromkeys(self._name_of, FlowTable())
            applied, *others = await asyncio.gather(
                self._flows.set_tables(empty),
                *(kept.release() for kept in self._kept.values()),
                return_exceptions=True,
            )
            failed = [
                in_words(error)
                for error in (applied, *others)
                if isinstance(error, Exception)
            ]
            if isinstance(applied, dict):
                failed += [
                    f"{self._name_of[i]}: {a.error or a.failed[0].reason}"
                    for i, a in applied.items()
                    if not a.ok
                ]
            if not failed:
                self._links = None
                self._is_released = True
            elif self._links is not None:
                await self._follow(self._links)
        if failed:
            raise PatchlightError(
                f"all switches forward as before: {'; '.join(failed)}"
            )

    async def learn(self) -> None:
        """Forward by the present MACs."""
        async with self._following:
            self._forwarding = Forwarding(self._lab, self._mac_of)
            await self._follow_again()

    async def _follow_again(self) -> None:
        if self._links is not None:
            for note in await self._follow(self._links):
                LOG.warning("%s", note)

    def _route_around(self) -> None:
        """Forward over the links between switches that have a signal."""
        if (
            self._trunks.down != self._forwarding.down
            and self._routing is None
        ):
            self._routing = asyncio.create_task(self._route())
            self._routing.add_done_callback(
                lambda _: setattr(self, "_routing", None)
            )

    async def _route(self) -> None:
        while (
            self._links is not None
            and self._trunks.down != self._forwarding.down
        ):
            down = ", ".join(map(str, sorted(self._trunks.down))) or "none"
            LOG.warning(
                "ports to other packet switches without a link: %s", down
            )
            async with self._following:
                await self._follow_again()

    async def _follow(self, links: Links) -> list[str]:
        self._trunks.follow(links)
        self._forwarding.down = self._trunks.down
        ids = {
            name: datapath_id for datapath_id, name in self._name_of.items()
        }
        self._host_at = {
            (peer.device, int(peer.port)): host.name
            for host in self._lab.hosts
            if (peer := links.peer(host.endpoint)) is not None
            and peer.device in self._switch_names
        }
        others = run_all(map(KeptSwitch.follow, *self._wishes(links)))
        ears = _EARS if self.hand_over_probes else frozenset[FlowEntry]()
        tables = {
            ids[name]: FlowTable(table.entries | ears)
            for name, table in self._forwarding.tables(links).items()
            if name in ids
        }
        notes: list[str] = []
        # An earlier ``others`` must not be under way when the next begins.
        answers: list[Any] = await run_all(
            (self._flows.set_tables(tables), others)
        )
        set_now, noted = answers
        for datapath_id, applied in set_now.items():
            name = self._name_of[datapath_id]
            if applied.failed:
                lacks = _lacks(applied.failed, "flow ")
                notes.append(
                    f"{name} {lacks}; the first: {applied.failed[0].entry}"
                )
            notes += [
                f"{name}: another application holds {e}" for e in applied.held
            ]
            if applied.error is not None:
                notes.append(
                    f"{name}: its flows will be set later: {applied.error.splitlines()[0]}"
                )
        return [*notes, *itertools.chain.from_iterable(noted)]

    def _wishes(self, links: Links) -> tuple[list[KeptSwitch], list[Wish]]:
        """What the switches without OpenFlow are to do."""
        to_learning = {
            near
            for pair in links.pairs()
            for near, far in (pair, pair[::-1])
            if far.device in self._learning
        }
        places = self._forwarding.places(links, self._kept)
        wishes = []
        for name in self._kept:
            ports = [end for end in self._lab.fibre_ends if end.device == name]
            learning = frozenset(
                int(end.port) for end in ports if end in to_learning
            )
            wishes.append(
                Wish(
                    places[name],
                    frozenset(int(end.port) for end in ports),
                    learning,
                )
            )
        return [*self._kept.values()], wishes

    def without_groups(self) -> set[str]:
        """Switches that should hash flows over equal paths, but have no select groups."""
        return {
            self._name_of[datapath_id]
            for datapath_id in self._flows.without_groups
        }

    def ports_down(self, switch: str) -> list[int]:
        """The ports of a switch to others that have no link, though a fibre is there."""
        down = self._trunks.down - self._missing.ports.keys()
        return sorted(int(end.port) for end in down if end.device == switch)

    def trunks_down(self) -> frozenset[Endpoint]:
        """The ports to other switches that have no link, or are missing."""
        return self._trunks.down

    def missing_ports(self) -> Mapping[Endpoint, str]:
        """The lab's ports that switches lack, and why, as text that follows "tor1 has"."""
        return self._missing.ports

    def missing_by_switch(self) -> dict[str, list[str]]:
        """The same as sentences: "tor1 has no port 1"; for each switch of the lab."""
        return {
            name: self._missing.as_text(name)
            for name in sorted(self._switch_names)
        }

    def report_missing(
        self,
        by: Source,
        switch: str,
        missing: Mapping[int, str],
    ) -> None:
        """Record which of the lab's ports a switch lacks."""
        if self._missing.report(by, switch, missing):
            self._trunks.set_missing(self._missing.ports)
            self._route_around()

    def uplinks(self) -> list[Uplink]:
        """What goes by each of several equally near ports of a switch."""
        return self._trunks.uplinks(self._forwarding.equal, time.time())

    def endpoint(self, datapath_id: int, port: int) -> Endpoint:
        """The port of this number of the switch with this id, which is one of the lab's."""
        return Endpoint(self._name_of[datapath_id], str(port))

    def connected(self) -> dict[str, bool]:
        """Which switches answer; without those that learn, which are not asked."""
        connected = {
            name: i in self._connected for i, name in self._name_of.items()
        }
        kept = {
            name: k.reachable
            for name, k in self._kept.items()
            if name not in self._learning
        }
        return connected | kept

    def troubles(self) -> dict[str, str]:
        """Why switches without OpenFlow do not answer."""
        return {
            name: k.trouble
            for name, k in self._kept.items()
            if not k.reachable
        }

    def lacking(self) -> dict[str, str]:
        """Switches that refused entries, and what they lack, like "lacks 4 flow entries: table
        full".
        """
        return {
            name: _lacks(lacks)
            if name in self._kept
            else _lacks(lacks, "flow ")
            for name, lacks in self._all_lacks().items()
        }

    def lacking_entries(self) -> dict[str, int]:
        """How many entries each of these switches lacks."""
        return {name: len(lacks) for name, lacks in self._all_lacks().items()}

    def foreign(self) -> dict[str, list[str]]:
        """Entries of others that go before Patchlight's, by switch, as text."""
        above = self._flows.above.items()
        foreign = {
            self._name_of[i]: [str(entry) for entry in entries]
            for i, entries in above
        }
        return foreign | {
            name: [*k.foreign] for name, k in self._kept.items() if k.foreign
        }

    def unserved(self) -> Mapping[str, str]:
        """Hosts to which a switch does not forward, by name, and the reason: it refused
        their entries, or lacks their port."""
        refused = (
            self._flows.refused,
            *(kept.lacks for kept in self._kept.values()),
        )
        of = (*refused, self._missing.ports, self._host_at)
        if of != self._unserved_of:
            self._unserved_of = of
            words = self.lacking()
            self._unserved = {
                host.name: f"{name} {words[name]}"
                for name, lacks in self._all_lacks().items()
                for host in self._lab.hosts
                if any(
                    lack.concerns(self._mac_of(host), host.nic.address)
                    for lack in lacks
                )
            } | {
                host: f"{end.device} has {why}"
                for end, why in self._missing.ports.items()
                if (host := self._host_at.get((end.device, int(end.port))))
                is not None
            }
        return self._unserved

    def _all_lacks(self) -> dict[str, Sequence[Lack | RefusedEntry]]:
        refused = {
            self._name_of[i]: entries
            for i, entries in self._flows.refused.items()
        }
        return refused | {
            name: k.lacks for name, k in self._kept.items() if k.lacks
        }

    def second_from(self, now: float) -> dict[str, str]:
        """The address of another switch that recently used a connected one's id; ``now`` is Unix
        time."""
        return {
            self._name_of[datapath_id]: address
            for datapath_id, (address, at) in self._second_from.items()
            if now - at < _SECOND_FOR_S
        }

    def traffic_by_switch(self) -> Mapping[str, Mapping[str, Any]]:
        """The last ``traffic`` event of each switch; empty before that."""
        return self._traffic

    async def look(self) -> None:
        """Ask the speaker which switches are connected; events keep that up to date."""
        for switch in await self._speaker.request("switches"):
            self._connected.add(int(switch["datapath_id"]))
            self._see_ports(switch["datapath_id"], switch["ports"])

    def _see_ports(
        self,
        datapath_id: int,
        ports: Iterable[Mapping[str, Any]],
        *,
        whole: bool = True,
    ) -> None:
        """Take all ports of a switch, or one that has changed."""
        numbered = self._numbered[datapath_id]
        now = {} if whole else dict(numbered.now)
        for port in ports:
            is_gone = port.get("change") == "removed"
            self._trunks.heard(
                self.endpoint(datapath_id, port["port"]),
                port["up"] and not is_gone,
            )
            now[port["port"]] = port["name"]
            if is_gone:
                del now[port["port"]]
        if whole or numbered.is_known:
            self.report_missing(
                "switch", self._name_of[datapath_id], numbered.see(now)
            )
        self._route_around()

    def _compare_ports(self, datapath_id: int, counted: set[int]) -> None:
        """Read the ports of a switch whose counters are not of the ports it has described: not all
        report changes."""
        is_new = self._counted_ports.get(datapath_id) != counted
        self._counted_ports[datapath_id] = counted
        if is_new and counted != self._numbered[datapath_id].now.keys():
            task = asyncio.create_task(self._look_at_ports(datapath_id))
            self._looking[datapath_id] = task

    async def _look_at_ports(self, datapath_id: int) -> None:
        try:
            ports = await self._speaker.request(
                "ports", datapath_id=datapath_id
            )
        except PatchlightError as error:
            # The next counters are compared again.
            self._counted_ports.pop(datapath_id, None)
            LOG.info(
                "reading the ports of %s: %s",
                self._name_of[datapath_id],
                error.message,
            )
        else:
            self._see_ports(datapath_id, ports)

    def on_event(self, event: Mapping[str, Any], now: float) -> None:
        """Handle an event of the speaker: connections, counters."""
        kind = event["event"]
        if kind == "switch-up":
            self._connected.add(event["datapath_id"])
            self._see_ports(event["datapath_id"], event["ports"])
        elif kind == "port":
            self._see_ports(event["datapath_id"], [event], whole=False)
        elif kind == "switch-down":
            self._connected.discard(event["datapath_id"])
        elif kind == "second-switch":
            self._second_from[event["datapath_id"]] = event["address"], now
        elif kind == "traffic":
            told = {
                self._name_of[each["datapath_id"]]: each
                for each in event["switches"]
            }
            self._traffic = told
            self.refused = event["refused"]
        elif kind == "speaker-down":
            self._connected.clear()
            self._traffic = {}
            self.refused = {}
        elif kind == "counters":
            # Counters only come from connected switches, also after a restart of the speaker.
            self._connected.add(event["datapath_id"])
            self._count(event)

    def rates_bps(
        self, since: float | None = None
    ) -> dict[str, tuple[float, float]]:
        """What each host sent and received on average since then (Unix time), bit/s of the lab.

        By default in the last ten seconds with samples; without hosts that have none.
        """
        found: dict[str, list[tuple[float, float]]] = {}
        # Policies call this from their threads.
        samples = self.port_rates.copy()
        if since is None:
            since = samples[-1]["at"] - _LATELY_S if samples else 0.0
        for sample in itertools.takewhile(
            lambda s: s["at"] >= since, reversed(samples)
        ):
            found.setdefault(sample["host"], []).append(
                (sample["tx_bps"], sample["rx_bps"])
            )
        for host, latest in self._latest.items():
            # A switch that updates its counters less often.
            if host not in found and since - _HELD_S < latest["at"] < since:
                found[host] = [(latest["tx_bps"], latest["rx_bps"])]
        return {
            host: (
                fmean(sent for sent, _ in rates),
                fmean(got for _, got in rates),
            )
            for host, rates in found.items()
        }

    def _count(self, event: Mapping[str, Any]) -> None:
        name = self._name_of[int(event["datapath_id"])]
        at = float(event["at"])
        octets = {
            int(p["port"]): (int(p["rx_bytes"]), int(p["tx_bytes"]))
            for p in event["ports"]
        }
        self.count(
            "switch",
            name,
            at,
            octets,
        )
        self._compare_ports(int(event["datapath_id"]), set(octets))

    def _count_ports(
        self,
        switch: str,
        at: float,
        ports: Mapping[int, PortState],
        missing: Mapping[int, str],
    ) -> None:
        for number, port in ports.items():
            self._trunks.heard(Endpoint(switch, str(number)), port.up)
        self.report_missing("switch", switch, missing)
        self._route_around()
        octets = {
            number: (port.rx_bytes, port.tx_bytes)
            for number, port in ports.items()
        }
        self.count(
            "switch",
            switch,
            at,
            octets,
        )

    def count(
        self,
        by: Source,
        switch: str,
        at: float,
        octets: Mapping[int, tuple[int, int]],
    ) -> None:
        """Take what a switch has received and sent in all at each port."""
        for port, (received, sent) in octets.items():
            self._trunks.count(
                by,
                Endpoint(switch, str(port)),
                at,
                sent,
            )
            if (host := self._host_at.get((switch, port))) is not None:
                # The host's transmit is the switch's receive.
                there = _Counted(
                    f"{switch}.{port}",
                    at,
                    received,
                    sent,
                )
                self._add(
                    by,
                    host,
                    there,
                    Endpoint(switch, str(port)),
                )

    def count_nics(self, status: AgentStatus) -> None:
        """Take what the NICs of a server have sent and received: it counts where nothing else
        does."""
        for nic in status.nics:
            host = self._host_of.get(f"{status.server}.{nic.name}")
            counted = nic.counters
            # Both are 0 while the NIC moves. A worker may have counters of its own.
            if host is not None and (counted.tx_bytes or counted.rx_bytes):
                owner = nic.worker or ""
                there = _Counted(
                    owner,
                    time.time(),
                    counted.tx_bytes,
                    counted.rx_bytes,
                )
                peer = (
                    None
                    if self._links is None
                    else self._links.peer(host.endpoint)
                )
                self._add(
                    "nic",
                    host.name,
                    there,
                    peer,
                )

    def _add(
        self,
        by: Source,
        host: str,
        now: _Counted,
        peer: Endpoint | None,
    ) -> None:
        """Convert bytes to rates of the host, in bit/s of the lab: measured × scale."""
        before = self._last.get((by, host))
        self._last[by, host] = now
        if before is None or before.where != now.where or now.at <= before.at:
            return
        if now.sent < before.sent or now.received < before.received:
            return
        best = self._latest.get(host)
        is_better = best is not None and _SOURCES.index(
            best["by"]
        ) < _SOURCES.index(by)
        if best is not None and is_better and now.at - best["at"] < _HELD_S:
            return
        to_bps = 8 * self._lab.scale / (now.at - before.at)
        at_switch = peer is not None and peer.device in self._switch_names
        self._latest[host] = {
            "at": now.at,
            "host": host,
            "switch": peer.device if peer is not None and at_switch else "",
            "port": int(peer.port) if peer is not None and at_switch else 0,
            "by": by,
            "rx_bps": (now.received - before.received) * to_bps,
            "tx_bps": (now.sent - before.sent) * to_bps,
        }
        self.port_rates.append(self._latest[host])


def _lacks(lacks: Sequence[Lack | RefusedEntry], kind: str = "") -> str:
    entries = "entry" if len(lacks) == 1 else "entries"
    return f"lacks {len(lacks)} {kind}{entries}: {lacks[0].reason}"
