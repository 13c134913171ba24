"""Keeps the flow tables of all packet switches as they are wanted.

To install a table, the switch is read, and what differs is removed and added. It is checked again
when a switch connects, and when its counters show that an entry of ours is missing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from patchlight.controller.openflow import flowtable
from patchlight.controller.openflow.client import Speaker, SpeakerRefused
from patchlight.controller.openflow.flowtable import (
    DEFAULT_DEADLINE_S,
    FlowEntry,
    FlowTable,
    Message,
)
from patchlight.testbed.errors import PatchlightError

LOG = logging.getLogger(__name__)


class RefusedEntry(NamedTuple):
    """A flow entry that a switch refused, and its reason in OpenFlow's words."""

    entry: FlowEntry
    error: str


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of one switch's wanted table.

    ``added`` counts entries added or replaced. ``held`` are wanted entries whose place another
    application's entry keeps. ``error``: why the switch could not be set before it connects again.
    """

    added: int = 0
    removed: int = 0
    failed: tuple[RefusedEntry, ...] = ()
    held: tuple[FlowEntry, ...] = ()
    error: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the switch now does all that was wanted."""
        return not self.failed and self.error is None

    @property
    def changed(self) -> bool:
        """Whether anything had to be changed."""
        return bool(self.added or self.removed)

    def plus(self, other: Applied) -> Applied:
        """Both, one after the other."""
        return Applied(
            self.added + other.added,
            self.removed + other.removed,
            self.failed + other.failed,
            self.held + other.held,
            self.error or other.error,
        )


class FlowSync:
    """The wanted flow tables, by datapath id, and the work of keeping them."""

    def __init__(self, speaker: Speaker) -> None:
        self.wanted: dict[int, FlowTable] = {}
        self._speaker = speaker
        self._locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        # The cookies that a switch should show: those wanted, less what it cannot have.
        self._expected: dict[int, set[int]] = {}
        self._mending: dict[int, asyncio.Task[None]] = {}
        self._unsubscribe = speaker.subscribe(self._on_event)

    async def close(self) -> None:
        """Stop keeping tables. What is in the switches stays."""
        self._unsubscribe()
        for task in self._mending.values():
            task.cancel()
        await asyncio.gather(*self._mending.values(), return_exceptions=True)

    async def set_table(self, datapath_id: int, table: FlowTable) -> Applied:
        """Make ``table`` the one that the switch has and keeps."""
        return (await self.set_tables({datapath_id: table}))[datapath_id]

    async def set_tables(
        self, tables: Mapping[int, FlowTable], *, deadline_s: float = DEFAULT_DEADLINE_S
    ) -> dict[int, Applied]:
        """Set several switches at once, whichever fails; what became of each.

        Where the way to a destination changes on more than one switch, its old entries go
        everywhere before new ones come anywhere: old and new never form a loop. ``deadline_s`` is
        for each of the three steps (read, remove, add).
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
        # Where removing failed, nothing is added.
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
            # Switches that connected before we did announced themselves to nobody.
            for known in self.wanted:
                self._mend_soon(known)
        elif datapath_id not in self.wanted:
            return
        elif kind == "switch-up":
            self._mend_soon(datapath_id)
        elif kind == "counters" and (flows := event.get("flows")) is not None:
            cookies = {flow["cookie"] for flow in flows}
            expected = self._expected.get(datapath_id, cookies)
            if cookies != expected and not self._locks[datapath_id].locked():
                self._mend_soon(datapath_id)

    def _mend_soon(self, datapath_id: int) -> None:
        if datapath_id not in self._mending:
            task = asyncio.create_task(self._mend(datapath_id))
            self._mending[datapath_id] = task
            task.add_done_callback(lambda _: self._mending.pop(datapath_id, None))

    async def _mend(self, datapath_id: int) -> None:
        async with self._locks[datapath_id]:
            table = self.wanted[datapath_id]
            applied = (await self._set({datapath_id: table}, DEFAULT_DEADLINE_S))[datapath_id]
        if applied.error is not None:
            # Not connected yet, or gone again: its next connection mends it.
            LOG.info("switch %#x is not mended yet: %s", datapath_id, applied.error)
            return
        if applied.changed or applied.failed:
            counts = (applied.added, applied.removed, len(applied.failed))
            message = "switch %#x was mended: %d flow entries added, %d removed, %d refused"
            LOG.warning(message, datapath_id, *counts)


async def _each(datapath_ids: Iterable[int], work: Callable[[int], Any]) -> dict[int, Any]:
    """Do the work for all at once: each one's result, or its ``PatchlightError``."""

    async def one(datapath_id: int) -> Any:
        try:
            return await work(datapath_id)
        except PatchlightError as error:
            return error

    order = list(datapath_ids)
    return dict(zip(order, await asyncio.gather(*map(one, order)), strict=True))
