"""Keeps the requested flow tables in the packet switches.

To install a table, the switch is read, and what differs is removed and added. It is checked again
when a switch connects, when its counters show that an entry is missing, and from time to time while
it refuses entries: its table may have room again.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from typing import Any, NamedTuple

from patchlight.controller.packet_switches.keeping import RetryPauses
from patchlight.controller.packet_switches.openflow import flowtable
from patchlight.controller.packet_switches.openflow.client import (
    Speaker,
    SpeakerRefused,
)
from patchlight.controller.packet_switches.openflow.flowtable import (
    FlowEntry,
    FlowTable,
    Message,
)
from patchlight.controller.packet_switches.openflow.forwarding import (
    PRIORITY_UNICAST,
    leads_to,
)
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.tasks import run_all

LOG = logging.getLogger(__name__)

# Entries of others are looked for as often as that takes a small share of the speaker's time.
_LOOK_EVERY_S = 10.0
_LOOK_PER_ENTRY_S = 0.0025
_LOST = "accepted, but missing in its table"


class RefusedEntry(NamedTuple):
    """A flow entry that a switch refused, and its reason from OpenFlow."""

    entry: FlowEntry
    error: str

    @property
    def reason(self) -> str:
        """The reason in plain words: "table full" for ``…: OFPFMFC_TABLE_FULL``."""
        code = re.fullmatch(r"OFPET_\w+\S*: OFP[A-Z]+_(\w+).*", self.error)
        return code[1].replace("_", " ").lower() if code else self.error

    def concerns(self, mac: str, address: IPv4Address) -> bool:
        """Whether it is about this NIC."""
        return leads_to(self.entry.match, mac, address)


@dataclass(
    frozen=True,
    slots=True,
)
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
        """The entries that each switch refused."""
        self.above: Mapping[int, tuple[FlowEntry, ...]] = {}
        """Entries of other applications with precedence over Patchlight's, by switch."""
        self.without_groups: frozenset[int] = frozenset()
        """Switches without select groups, which get fixed paths instead."""
        self._pauses: defaultdict[int, RetryPauses] = defaultdict(RetryPauses)
        self._looked_at: dict[int, float] = {}
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
        self,
        tables: Mapping[int, FlowTable],
        *,
        deadline_s: float = flowtable.DEFAULT_DEADLINE_S,
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

    async def read(self, datapath_id: int) -> FlowTable:
        """The table that a switch has."""
        return await self._read(datapath_id, flowtable.DEFAULT_DEADLINE_S)

    # -- setting ------------------------------------------------------------------------------

    async def _set(
        self,
        tables: Mapping[int, FlowTable],
        deadline_s: float,
        *,
        read_back: bool = False,
    ) -> dict[int, Applied]:
        read = await _each(tables, lambda i: self._read(i, deadline_s))
        applied = {
            i: Applied(error=str(e))
            for i, e in read.items()
            if isinstance(e, Exception)
        }
        have = {
            i: table
            for i, table in read.items()
            if isinstance(table, FlowTable)
        }
        tables = {
            i: table.on_fixed_paths if i in self.without_groups else table
            for i, table in tables.items()
        }
        changes = {i: flowtable.diff(have[i], tables[i]) for i in have}
        removed, added = await self._change(have, changes, deadline_s)
        now = await _each(
            added if read_back else (), lambda i: self._read(i, deadline_s)
        )
        for i in have:
            done = _joined(changes[i].held, removed.get(i), added.get(i))
            table = now.get(i)
            if isinstance(table, FlowTable) and done.error is None:
                done = _without_lost(done, changes[i].adds, table)
            applied[i] = done
        for i, result in applied.items():
            self._expected[i] = _expected_cookies(
                tables[i], result, now.get(i)
            )
        failed = {i: result.failed for i, result in applied.items()}
        self.refused = {
            i: f for i, f in {**self.refused, **failed}.items() if f
        }
        return applied

    async def _change(
        self,
        have: Mapping[int, FlowTable],
        changes: Mapping[int, flowtable.FlowChange],
        deadline_s: float,
    ) -> tuple[dict[int, Any], dict[int, Any]]:
        """Remove, then add, where anything is to be removed or added: the results of both."""
        first = flowtable.removals_first(have, changes)

        removed = await _each(
            first,
            lambda i: self._apply(
                i,
                first[i],
                (),
                deadline_s,
            ),
        )
        # If removing failed, nothing is added.
        bad = {
            i
            for i, step in removed.items()
            if not isinstance(step, Applied) or step.failed
        }
        adds = {
            i: change.adds
            for i, change in changes.items()
            if change.adds and i not in bad
        }
        added = await _each(
            adds,
            lambda i: self._apply(
                i,
                (),
                adds[i],
                deadline_s,
            ),
        )
        return removed, added

    async def _read(self, datapath_id: int, deadline_s: float) -> FlowTable:
        spread = any(
            entry.spread for entry in self.wanted.get(datapath_id, ())
        )
        result = await self._speaker.request(
            "read_flows",
            datapath_id=datapath_id,
            deadline_s=deadline_s,
            spread=spread,
        )
        without = {datapath_id} if result["selects"] is False else set[int]()
        self.without_groups = self.without_groups - {datapath_id} | without
        entries = [FlowEntry.from_json(item) for item in result["flows"]]
        table = FlowTable(frozenset(entries))
        self._looked_at[datapath_id] = time.monotonic()
        above = tuple(
            e
            for e in entries
            if not e.is_ours and e.priority > PRIORITY_UNICAST
        )
        others = {
            i: entries for i, entries in self.above.items() if i != datapath_id
        }
        self.above = {**others, datapath_id: above} if above else others
        return table

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
            result = refused.result
            failed = refused.failed
        return Applied(
            result["added"],
            result["removed"],
            tuple(
                RefusedEntry(FlowEntry.from_json(f["entry"]), f["error"])
                for f in failed
            ),
        )

    # -- keeping ------------------------------------------------------------------------------

    def _on_event(self, event: Message) -> None:
        kind = event["event"]
        datapath_id = event.get("datapath_id", -1)
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
            wrong = cookies != expected or self._is_due(datapath_id)
            if wrong and not self._locks[datapath_id].locked():
                self._mend_soon(datapath_id)

    def _is_due(self, datapath_id: int) -> bool:
        """Whether a switch is to be read: it gets what it refused again, or others' entries are
        looked for."""
        now = time.monotonic()
        period_s = max(
            _LOOK_EVERY_S, _LOOK_PER_ENTRY_S * len(self.wanted[datapath_id])
        )
        looked_at = self._looked_at.setdefault(datapath_id, now)
        due = self._pauses[datapath_id].is_due(
            datapath_id in self.refused, now
        )
        return due or now - looked_at > period_s

    def _mend_soon(self, datapath_id: int) -> None:
        if datapath_id not in self._mending:
            task = asyncio.create_task(self._mend(datapath_id))
            self._mending[datapath_id] = task
            task.add_done_callback(
                lambda _: self._mending.pop(datapath_id, None)
            )

    async def _mend(self, datapath_id: int) -> None:
        async with self._locks[datapath_id]:
            table = self.wanted[datapath_id]
            before = self.refused.get(datapath_id)
            tables = {datapath_id: table}
            limit_s = flowtable.DEFAULT_DEADLINE_S
            applied = (await self._set(tables, limit_s, read_back=True))[
                datapath_id
            ]
        if applied.error is not None:
            # Not connected: it is set at its next connection.
            LOG.info(
                "switch %#x is not repaired yet: %s",
                datapath_id,
                applied.error,
            )
            return
        if applied.changed or (applied.failed and applied.failed != before):
            counts = (applied.added, applied.removed, len(applied.failed))
            message = "switch %#x was repaired: %d flow entries added, %d removed, %d refused"
            LOG.warning(message, datapath_id, *counts)


def _joined(
    held: tuple[FlowEntry, ...],
    *steps: Applied | Exception | None,
) -> Applied:
    """The result of a switch's steps: what each changed, and the last error."""
    done = Applied(held=held)
    for step in steps:
        if isinstance(step, Applied):
            done = done.plus(step)
        elif step is not None:
            done = replace(done, error=str(step))
    return done


def _without_lost(
    done: Applied,
    added: Iterable[FlowEntry],
    table: FlowTable,
) -> Applied:
    """The result after reading back: entries that are not in the table are refused ones."""
    known = {entry.cookie for entry in table}
    known.update(refused.entry.cookie for refused in done.failed)
    lost = tuple(
        RefusedEntry(entry, _LOST)
        for entry in added
        if entry.cookie not in known
    )
    return done.plus(Applied(added=-len(lost), failed=lost))


def _expected_cookies(
    wanted: FlowTable,
    result: Applied,
    now: FlowTable | Exception | None,
) -> set[int]:
    """The cookies that the switch has after this; ``now`` is its table where it was read back."""
    lacking = {entry.cookie for entry in result.held}
    lacking.update(refused.entry.cookie for refused in result.failed)
    found = {entry.cookie for entry in wanted} - lacking
    if isinstance(now, FlowTable):
        # Entries that a refused one should have replaced may still be there.
        keys = {refused.entry.key for refused in result.failed}
        found.update(
            entry.cookie
            for entry in now
            if entry.is_ours and entry.key in keys
        )
    return found


async def _each(
    datapath_ids: Iterable[int], work: Callable[[int], Any]
) -> dict[int, Any]:
    async def one(datapath_id: int) -> Any:
        try:
            return await work(datapath_id)
        except PatchlightError as error:
            return error

    order = list(datapath_ids)
    return dict(zip(order, await run_all(map(one, order)), strict=True))
