"""The lab's packet switches: flow tables that follow the circuits, counters, unknown switches."""

import asyncio
import itertools
import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

from patchlight.controller.openflow.client import Speaker
from patchlight.controller.openflow.flow_sync import FlowSync
from patchlight.controller.openflow.flowtable import FlowEntry, FlowTable, Match
from patchlight.controller.openflow.forwarding import PRIORITY_ARP, Forwarding, assumed_mac
from patchlight.testbed.lab.model import Endpoint, Host, Lab
from patchlight.testbed.lab.wiring import Links
from patchlight.testbed.wire.probe_frames import ETHERTYPE, ETHERTYPE_LLDP

_log = logging.getLogger(__name__)

# Samples come once a second; the time series on disk have what was before.
_RATES_KEPT_S = 600
_LATELY_S = 10.0
# One that comes again and again is told of once a minute.
_SECOND_FOR_S = 120.0
_CONTROLLER_PORT = 0xFFFFFFFD
# What a switch needs to tell whose frames come in at its ports.
_EARS = frozenset(
    FlowEntry.ours(Match(eth_type=kind), (_CONTROLLER_PORT,), priority=PRIORITY_ARP + 10)
    for kind in (ETHERTYPE, ETHERTYPE_LLDP)
)

_EVERY_S = 60.0
_LISTED = 8


class PacketSwitches:
    """The lab's packet switches behind the speaker, by their names in the lab file.

    While ``hand_over_probes`` is set, the tables that are set have the switches hand over the
    probes and the LLDP that come to their ports, as the speaker's event ``frame``.
    """

    def __init__(
        self, lab: Lab, speaker: Speaker, mac_of: Callable[[Host], str] = assumed_mac
    ) -> None:
        self.hand_over_probes = False
        self._lab, self._speaker, self._mac_of = lab, speaker, mac_of
        self._flows = FlowSync(speaker)
        self._forwarding = Forwarding(lab, mac_of)
        self._links: Links | None = None
        # Tables of other MACs and tables of other links must not overtake each other.
        self._following = asyncio.Lock()
        self._name_of = {s.datapath_id: s.name for s in lab.packet_switches}
        self._connected: set[int] = set()
        self._second_from: dict[int, tuple[str, float]] = {}
        self._traffic: dict[str, Mapping[str, Any]] = {}
        self.refused: Mapping[str, int] = {}
        self._host_at: dict[tuple[int, int], str] = {}
        self._last: dict[tuple[int, int], tuple[float, int, int]] = {}
        self.port_rates: deque[dict[str, Any]] = deque(maxlen=_RATES_KEPT_S * len(lab.hosts))

    async def close(self) -> None:
        """Stop keeping the flow tables; what is in the switches stays."""
        await self._flows.close()

    async def follow(self, links: Links) -> list[str]:
        """Set every switch's table to what these links need; what failed, in words.

        A switch that is away is no failure of a change of circuits: it forwards nothing to
        a dark port by itself, and gets its table as soon as it is back.
        """
        async with self._following:
            self._links = links
            return await self._follow(links)

    async def learn(self) -> None:
        """Forward by the MACs that are known now."""
        async with self._following:
            self._forwarding = Forwarding(self._lab, self._mac_of)
            if self._links is not None:
                for note in await self._follow(self._links):
                    _log.warning("%s", note)

    async def _follow(self, links: Links) -> list[str]:
        ids = {name: datapath_id for datapath_id, name in self._name_of.items()}
        self._host_at = {
            (ids[peer.device], int(peer.port)): host.name
            for host in self._lab.hosts
            if (peer := links.peer(host.endpoint)) is not None and peer.device in ids
        }
        ears = _EARS if self.hand_over_probes else frozenset[FlowEntry]()
        tables = {
            ids[name]: FlowTable(table.entries | ears)
            for name, table in self._forwarding.tables(links).items()
        }
        notes: list[str] = []
        for datapath_id, applied in (await self._flows.set_tables(tables)).items():
            name = self._name_of[datapath_id]
            notes += [f"{name}: {r.entry}: {r.error}" for r in applied.failed]
            notes += [f"{name}: an application of yours holds {e}" for e in applied.held]
            if applied.error is not None:
                notes.append(f"{name}: its flows are to follow: {applied.error.splitlines()[0]}")
        return notes

    def endpoint(self, datapath_id: int, port: int) -> Endpoint:
        """The port of this number of the switch with this id, which is one of the lab's."""
        return Endpoint(self._name_of[datapath_id], str(port))

    def connected(self) -> dict[str, bool]:
        """Which switches have a connection to the speaker."""
        return {name: datapath_id in self._connected for datapath_id, name in self._name_of.items()}

    def second_from(self, now: float) -> dict[str, str]:
        """Where another switch with the datapath id of a connected one came from in the last
        minutes (``now`` is Unix time).

        It was left alone: the one that was there first answers.
        """
        return {
            self._name_of[datapath_id]: address
            for datapath_id, (address, at) in self._second_from.items()
            if now - at < _SECOND_FOR_S
        }

    def traffic_by_switch(self) -> Mapping[str, Mapping[str, Any]]:
        """What the speaker told last of each switch: its ``traffic`` event; empty before that."""
        return self._traffic

    async def look(self) -> None:
        """Ask the speaker which switches are connected; events keep that true from then on."""
        for switch in await self._speaker.request("switches"):
            self._connected.add(int(switch["datapath_id"]))

    def on_event(self, event: Mapping[str, Any], now: float) -> None:
        """Take in what the speaker tells at that time: who is connected, what ports counted."""
        kind = event["event"]
        if kind == "switch-up":
            self._connected.add(event["datapath_id"])
        elif kind == "switch-down":
            self._connected.discard(event["datapath_id"])
        elif kind == "second-switch":
            self._second_from[event["datapath_id"]] = event["address"], now
        elif kind == "traffic":
            told = {self._name_of[each["datapath_id"]]: each for each in event["switches"]}
            self._traffic, self.refused = told, event["refused"]
        elif kind == "speaker-down":
            self._connected.clear()
            self._traffic, self.refused = {}, {}
        elif kind == "counters":
            # Counters come from connected switches only, also from those that connected to a
            # restarted speaker before anybody listened.
            self._connected.add(event["datapath_id"])
            self._count(event)

    def rates_bps(self, since: float | None = None) -> dict[str, tuple[float, float]]:
        """What each host sent and received on average since then (Unix time), bit/s of the lab.

        By default in the last ten seconds that were counted. Hosts whose ports nobody counted are
        not there.
        """
        found: dict[str, list[tuple[float, float]]] = {}
        # Policies ask from threads of theirs, while more is counted.
        samples = self.port_rates.copy()
        if since is None:
            since = samples[-1]["at"] - _LATELY_S if samples else 0.0
        for sample in itertools.takewhile(lambda s: s["at"] >= since, reversed(samples)):
            found.setdefault(sample["host"], []).append((sample["tx_bps"], sample["rx_bps"]))
        return {
            host: (fmean(sent for sent, _ in rates), fmean(got for _, got in rates))
            for host, rates in found.items()
        }

    def _count(self, event: Mapping[str, Any]) -> None:
        """Turn bytes into rates of the host at each port.

        The rates are the host's own (its transmit is the switch's receive), in bits per
        second as in the lab: measured × scale.
        """
        datapath_id, at = int(event["datapath_id"]), float(event["at"])
        for port in event["ports"]:
            key = (datapath_id, int(port["port"]))
            rx_bytes, tx_bytes = int(port["rx_bytes"]), int(port["tx_bytes"])
            earlier = self._last.get(key)
            self._last[key] = (at, rx_bytes, tx_bytes)
            host = self._host_at.get(key)
            if earlier is None or host is None or at <= earlier[0] or rx_bytes < earlier[1]:
                continue
            to_bps = 8 * self._lab.scale / (at - earlier[0])
            self.port_rates.append(
                {
                    "at": at,
                    "host": host,
                    "switch": self._name_of[datapath_id],
                    "port": key[1],
                    "rx_bps": (tx_bytes - earlier[2]) * to_bps,
                    "tx_bps": (rx_bytes - earlier[1]) * to_bps,
                }
            )


class UnknownSwitches:
    """Counts connections of switches that are not the lab's; time is an argument (Unix seconds).

    The first is an event at once. Later ones are added up and reported once a minute at most, so
    that a switch that keeps connecting cannot fill the journal.
    """

    def __init__(self) -> None:
        self.connections = 0
        self._untold: Counter[tuple[int, str]] = Counter()
        self._untold_count = 0
        self._told_at = float("-inf")

    def connected(self, datapath_id: int, address: str, now: float) -> dict[str, Any] | None:
        """What to tell of this connection and those untold before it; ``None``: nothing yet."""
        self.connections += 1
        self._untold_count += 1
        who = (datapath_id, address.rpartition(":")[0])
        if who in self._untold or len(self._untold) < _LISTED:
            self._untold[who] += 1
        if now - self._told_at < _EVERY_S:
            return None
        event = {
            "event": "unknown-switch",
            "datapath_id": datapath_id,
            "address": address,
            "connections": self._untold_count,
            "switches": [
                {"datapath_id": number, "host": host, "connections": count}
                for (number, host), count in self._untold.items()
            ],
        }
        self._untold.clear()
        self._untold_count, self._told_at = 0, now
        return event
