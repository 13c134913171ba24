"""Keeps the flow tables of the lab's packet switches up to date, and reads their counters.

To install a table, the switch is read and differences are removed and added. This is repeated when
a switch connects, when its counters show that one of Patchlight's entries is missing, and from time
to time while it refuses entries, because its table may have room again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, NamedTuple

from patchlight.controller.openflow import flowtable
from patchlight.controller.openflow.client import Speaker, SpeakerRefused
from patchlight.controller.openflow.flowtable import FlowEntry, FlowTable, Match, Message
from patchlight.controller.openflow.forwarding import (
    PRIORITY_ARP,
    Forwarding,
    assumed_mac,
    leads_to,
)
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import Endpoint, Host, Lab
from patchlight.testbed.lab.wiring import Links
from patchlight.testbed.wire.probe_frames import ETHERTYPE, ETHERTYPE_LLDP

LOG = logging.getLogger(__name__)


# Pauses before a switch that refused entries gets them again; the last one repeats.
_TRY_AGAIN_S = (5.0, 10.0, 20.0, 60.0)


class RefusedEntry(NamedTuple):
    """A flow entry that a switch refused, and its reason from OpenFlow."""

    entry: FlowEntry
    error: str

    @property
    def reason(self) -> str:
        """The reason in plain words: "table full" for ``…: OFPFMFC_TABLE_FULL``."""
        code = re.fullmatch(r"OFPET_\w+\S*: OFP[A-Z]+_(\w+).*", self.error)
        return code[1].replace("_", " ").lower() if code else self.error


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of setting one switch's table.

    ``added`` counts entries added or replaced. ``held`` are wanted entries blocked by another
    application's. ``error``: why the switch could not be set; it is set when it reconnects.
    """

    added: int = 0
    removed: int = 0
    failed: tuple[RefusedEntry, ...] = ()
    held: tuple[FlowEntry, ...] = ()
    error: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the switch has all wanted entries."""
        return not self.failed and self.error is None

    @property
    def changed(self) -> bool:
        """Whether anything was changed."""
        return bool(self.added or self.removed)

    def plus(self, other: Applied) -> Applied:
        """The combined result of two steps."""
        return Applied(
            self.added + other.added,
            self.removed + other.removed,
            self.failed + other.failed,
            self.held + other.held,
            self.error or other.error,
        )


class FlowSync:
    """The wanted flow tables by datapath id, which are kept in the switches."""

    def __init__(self, speaker: Speaker) -> None:
        self.wanted: dict[int, FlowTable] = {}
        self.refused: Mapping[int, tuple[RefusedEntry, ...]] = {}
        """What each switch refused of its wanted table, if it refused anything."""
        self._tries: dict[int, tuple[int, float]] = {}
        self._speaker = speaker
        self._locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        # The expected cookies of a switch: the wanted ones, without those it cannot have.
        self._expected: dict[int, set[int]] = {}
        self._mending: dict[int, asyncio.Task[None]] = {}
        self._unsubscribe = speaker.subscribe(self._on_event)

    async def close(self) -> None:
        """Stop keeping tables. Entries stay in the switches."""
        self._unsubscribe()
        for task in self._mending.values():
            task.cancel()
        await asyncio.gather(*self._mending.values(), return_exceptions=True)

    async def set_table(self, datapath_id: int, table: FlowTable) -> Applied:
        """Set and keep the table of one switch."""
        return (await self.set_tables({datapath_id: table}))[datapath_id]

    async def set_tables(
        self, tables: Mapping[int, FlowTable], *, deadline_s: float = flowtable.DEFAULT_DEADLINE_S
    ) -> dict[int, Applied]:
        """Set several switches at once, independently; returns the results.

        If the route to a destination changes on several switches, its old entries are removed
        everywhere before new ones are added: old and new never form a loop. ``deadline_s`` applies
        to each of the three steps (read, remove, add).
        """
        self.wanted.update(tables)
        async with AsyncExitStack() as stack:
            for datapath_id in sorted(tables):
                await stack.enter_async_context(self._locks[datapath_id])
            return await self._set(tables, deadline_s)

    # -- setting ------------------------------------------------------------------------------

    async def _set(self, tables: Mapping[int, FlowTable], deadline_s: float) -> dict[int, Applied]:
        read = await _each(tables, lambda i: self._read(i, deadline_s))
        applied = {i: Applied(error=str(e)) for i, e in read.items() if isinstance(e, Exception)}
        have = {i: table for i, table in read.items() if isinstance(table, FlowTable)}
        changes = {i: flowtable.diff(have[i], tables[i]) for i in have}
        first = flowtable.removals_first(have, changes)

        removed = await _each(first, lambda i: self._apply(i, first[i], (), deadline_s))
        # If removing failed, nothing is added.
        bad = {i for i, step in removed.items() if not isinstance(step, Applied) or step.failed}
        adds = {i: change.adds for i, change in changes.items() if change.adds and i not in bad}
        added = await _each(adds, lambda i: self._apply(i, (), adds[i], deadline_s))
        for i in have:
            done = Applied(held=changes[i].held)
            for step in (removed.get(i), added.get(i)):
                if isinstance(step, Applied):
                    done = done.plus(step)
                elif step is not None:
                    done = replace(done, error=str(step))
            applied[i] = done
        for i, result in applied.items():
            lacking = {e.cookie for e in result.held} | {r.entry.cookie for r in result.failed}
            self._expected[i] = {entry.cookie for entry in tables[i]} - lacking
        failed = {i: result.failed for i, result in applied.items()}
        self.refused = {i: f for i, f in {**self.refused, **failed}.items() if f}
        return applied

    async def _read(self, datapath_id: int, deadline_s: float) -> FlowTable:
        result = await self._speaker.request(
            "read_flows", datapath_id=datapath_id, deadline_s=deadline_s
        )
        return FlowTable(frozenset(FlowEntry.from_json(item) for item in result["flows"]))

    async def _apply(
        self,
        datapath_id: int,
        removes: Iterable[FlowEntry],
        adds: Iterable[FlowEntry],
        deadline_s: float,
    ) -> Applied:
        failed: list[Message] = []
        try:
            result = await self._speaker.request(
                "apply",
                datapath_id=datapath_id,
                removes=[entry.to_json() for entry in removes],
                adds=[entry.to_json() for entry in adds],
                deadline_s=deadline_s,
            )
        except SpeakerRefused as refused:
            if not refused.failed:
                raise
            result, failed = refused.result, refused.failed
        return Applied(
            result["added"],
            result["removed"],
            tuple(RefusedEntry(FlowEntry.from_json(f["entry"]), f["error"]) for f in failed),
        )

    # -- keeping ------------------------------------------------------------------------------

    def _on_event(self, event: Message) -> None:
        kind, datapath_id = event["event"], event.get("datapath_id", -1)
        if kind == "speaker-up":
            # Switches that connected earlier announced themselves to nobody.
            for known in self.wanted:
                self._mend_soon(known)
        elif datapath_id not in self.wanted:
            return
        elif kind == "switch-up":
            self._mend_soon(datapath_id)
        elif kind == "counters" and (flows := event.get("flows")) is not None:
            cookies = {flow["cookie"] for flow in flows}
            expected = self._expected.get(datapath_id, cookies)
            wrong = cookies != expected or self._is_to_be_tried(datapath_id)
            if wrong and not self._locks[datapath_id].locked():
                self._mend_soon(datapath_id)

    def _is_to_be_tried(self, datapath_id: int) -> bool:
        """Whether a switch that refused entries is due to get them again."""
        if datapath_id not in self.refused:
            self._tries.pop(datapath_id, None)
            return False
        now = time.monotonic()
        tries, at = self._tries.setdefault(datapath_id, (0, now + _TRY_AGAIN_S[0]))
        if now < at:
            return False
        pause_s = _TRY_AGAIN_S[min(tries + 1, len(_TRY_AGAIN_S) - 1)]
        self._tries[datapath_id] = tries + 1, now + pause_s
        return True

    def _mend_soon(self, datapath_id: int) -> None:
        if datapath_id not in self._mending:
            task = asyncio.create_task(self._mend(datapath_id))
            self._mending[datapath_id] = task
            task.add_done_callback(lambda _: self._mending.pop(datapath_id, None))

    async def _mend(self, datapath_id: int) -> None:
        async with self._locks[datapath_id]:
            table, before = self.wanted[datapath_id], self.refused.get(datapath_id)
            applied = (await self._set({datapath_id: table}, flowtable.DEFAULT_DEADLINE_S))[
                datapath_id
            ]
        if applied.error is not None:
            # Not connected: it is set at its next connection.
            LOG.info("switch %#x is not repaired yet: %s", datapath_id, applied.error)
            return
        if applied.changed or (applied.failed and applied.failed != before):
            counts = (applied.added, applied.removed, len(applied.failed))
            message = "switch %#x was repaired: %d flow entries added, %d removed, %d refused"
            LOG.warning(message, datapath_id, *counts)


async def _each(datapath_ids: Iterable[int], work: Callable[[int], Any]) -> dict[int, Any]:
    async def one(datapath_id: int) -> Any:
        try:
            return await work(datapath_id)
        except PatchlightError as error:
            return error

    order = list(datapath_ids)
    return dict(zip(order, await asyncio.gather(*map(one, order)), strict=True))


def _lacks(refused: Sequence[RefusedEntry]) -> str:
    entries = "flow entry" if len(refused) == 1 else "flow entries"
    return f"lacks {len(refused)} {entries}: {refused[0].reason}"


# One sample per second; older ones are in the time series on disk.
_RATES_KEPT_S = 600
_LATELY_S = 10.0
# A switch that reconnects repeatedly is reported once a minute.
_SECOND_FOR_S = 120.0
_CONTROLLER_PORT = 0xFFFFFFFD
# What a switch needs to identify the senders at its ports.
_EARS = frozenset(
    FlowEntry.ours(Match(eth_type=kind), (_CONTROLLER_PORT,), priority=PRIORITY_ARP + 10)
    for kind in (ETHERTYPE, ETHERTYPE_LLDP)
)


class PacketSwitches:
    """The lab's packet switches behind the speaker, by their names in the lab file.

    With tables set while ``hand_over_probes``, switches send probes and LLDP to the controller as
    ``frame``.
    """

    def __init__(
        self, lab: Lab, speaker: Speaker, mac_of: Callable[[Host], str] = assumed_mac
    ) -> None:
        self.hand_over_probes = False
        self._lab, self._speaker, self._mac_of = lab, speaker, mac_of
        self._flows = FlowSync(speaker)
        self._forwarding = Forwarding(lab, mac_of)
        self._links: Links | None = None
        # Tables of other MACs or links must not overtake each other.
        self._following = asyncio.Lock()
        self._name_of = {s.datapath_id: s.name for s in lab.packet_switches}
        self._connected: set[int] = set()
        self._second_from: dict[int, tuple[str, float]] = {}
        self._unserved_of: Mapping[int, tuple[RefusedEntry, ...]] = self._flows.refused
        self._unserved: Mapping[str, str] = {}
        self._traffic: dict[str, Mapping[str, Any]] = {}
        self.refused: Mapping[str, int] = {}
        self._host_at: dict[tuple[int, int], str] = {}
        self._last: dict[tuple[int, int], tuple[float, int, int]] = {}
        self.port_rates: deque[dict[str, Any]] = deque(maxlen=_RATES_KEPT_S * len(lab.hosts))

    async def close(self) -> None:
        """Stop keeping the flow tables; entries stay in the switches."""
        await self._flows.close()

    async def follow(self, links: Links) -> list[str]:
        """Set every switch's table for these links; returns failures as text.

        A disconnected switch is not a failure: it gets its table when it reconnects.
        """
        async with self._following:
            self._links = links
            return await self._follow(links)

    async def learn(self) -> None:
        """Forward by the present MACs."""
        async with self._following:
            self._forwarding = Forwarding(self._lab, self._mac_of)
            if self._links is not None:
                for note in await self._follow(self._links):
                    LOG.warning("%s", note)

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
            if applied.failed:
                notes.append(
                    f"{name} {_lacks(applied.failed)}; the first: {applied.failed[0].entry}"
                )
            notes += [f"{name}: another application holds {e}" for e in applied.held]
            if applied.error is not None:
                notes.append(
                    f"{name}: its flows will be set later: {applied.error.splitlines()[0]}"
                )
        return notes

    def endpoint(self, datapath_id: int, port: int) -> Endpoint:
        """The port of this number of the switch with this id, which is one of the lab's."""
        return Endpoint(self._name_of[datapath_id], str(port))

    def connected(self) -> dict[str, bool]:
        """Which switches are connected to the speaker."""
        return {name: datapath_id in self._connected for datapath_id, name in self._name_of.items()}

    def lacking(self) -> dict[str, str]:
        """Switches that refused flow entries, and what they lack, like "lacks 4 flow entries:
        table full".
        """
        return {self._name_of[i]: _lacks(refused) for i, refused in self._flows.refused.items()}

    def lacking_entries(self) -> dict[str, int]:
        """How many entries each of these switches lacks."""
        return {self._name_of[i]: len(refused) for i, refused in self._flows.refused.items()}

    def unserved(self) -> Mapping[str, str]:
        """Hosts to which a switch refused to forward, by name, and the reason."""
        if self._flows.refused is not self._unserved_of:
            self._unserved_of = self._flows.refused
            self._unserved = {
                host.name: f"{self._name_of[i]} {_lacks(refused)}"
                for i, refused in self._unserved_of.items()
                for host in self._lab.hosts
                if any(
                    leads_to(r.entry.match, self._mac_of(host), host.nic.address) for r in refused
                )
            }
        return self._unserved

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

    def on_event(self, event: Mapping[str, Any], now: float) -> None:
        """Handle an event of the speaker: connections, counters."""
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
            # Counters only come from connected switches, also after a restart of the speaker.
            self._connected.add(event["datapath_id"])
            self._count(event)

    def rates_bps(self, since: float | None = None) -> dict[str, tuple[float, float]]:
        """What each host sent and received on average since then (Unix time), bit/s of the lab.

        By default in the last ten seconds with samples; without hosts that have none.
        """
        found: dict[str, list[tuple[float, float]]] = {}
        # Policies call this from their threads.
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
        """Convert bytes to rates of the host at each port, in bit/s of the lab: measured × scale.

        The host's transmit is the switch's receive.
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
