"""Changes of the network as transactions: one at a time, and each to its end."""

import asyncio
from collections.abc import Callable
from typing import Any

from pydantic import TypeAdapter

from patchlight.controller.changes.change import Change, journal_end
from patchlight.controller.changes.device_maps import Decide
from patchlight.controller.changes.executor import changes_of, finish_or_undo, lock_places
from patchlight.controller.changes.parts import CircuitParts
from patchlight.controller.changes.planning import Plan
from patchlight.controller.changes.record import ChangeOptions, Drift, Reconfiguration, to_row
from patchlight.testbed.errors import in_words

NO_OPTIONS = ChangeOptions()
_RECORD = TypeAdapter(Reconfiguration)


class Transactions:
    """Runs one change at a time over the lab's optical switches; ``on_end`` hear of each."""

    def __init__(self, parts: CircuitParts) -> None:
        self.parts = parts
        self.on_end: list[Callable[[Reconfiguration], None]] = []
        self._one_at_a_time = asyncio.Lock()
        self._running: set[asyncio.Task[Reconfiguration]] = set()

    @property
    def busy(self) -> bool:
        """Whether a change is under way."""
        return self._one_at_a_time.locked()

    async def settle_flows(self) -> None:
        """Make the flow tables those of the circuits that the devices have now."""
        async with self._one_at_a_time:
            maps = await self.parts.maps.read()
            await self.parts.flows.follow(self.parts.maps.links(maps.everywhere))

    async def close(self) -> None:
        """Wait until the change under way, if there is one, has come to its end."""
        await asyncio.gather(*self._running, return_exceptions=True)

    async def change(
        self, decide: Decide, why: str, options: ChangeOptions = NO_OPTIONS
    ) -> Reconfiguration:
        """Turn the present maps into what ``decide`` makes of them.

        Always returns a record whose state is final: ``committed``, ``refused`` (nothing
        was written), ``rolled-back`` or ``unknown``. An error of ``decide`` is raised, and
        ``OutcomeUnknown`` where the journal does not take how the change ended.
        ``decide`` may be called again, with maps that are newer.
        """
        # A task of its own: whoever waits for a change may be cancelled, the change may not.
        task = asyncio.create_task(self._run(decide, why, options))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def _run(self, decide: Decide, why: str, options: ChangeOptions) -> Reconfiguration:
        async with self._one_at_a_time:
            change = await Change(self.parts, decide, why, options).run()
        for hear in self.on_end:
            hear(change)
        return change

    async def preview(
        self, decide: Decide, options: ChangeOptions = NO_OPTIONS
    ) -> tuple[Plan, list[str]]:
        """What ``change`` would do now, and what speaks against it."""
        plan = self.parts.maps.plan(await self.parts.maps.read(), decide)
        checked = await self.parts.preflight.check(plan, options)
        return plan, [*self.parts.preflight.halts(plan), *checked.objections]

    async def drift(self) -> dict[str, Drift]:
        """How the devices differ from their last committed maps, while no change is under way."""
        async with self._one_at_a_time:
            return self.parts.committed.drift(await self.parts.maps.read())

    async def resume(self) -> list[Reconfiguration]:
        """Finish or undo what a dead controller left behind; returns what became of each.

        A change found whole on the devices is committed; anything else goes back to the
        map before. Circuits that no unfinished change names are left as they are. A change of
        a device that does not answer stays open, and its devices closed to others, until this
        is called when the device is back.
        """
        parts = self.parts
        ended: list[Reconfiguration] = []
        async with self._one_at_a_time:
            parts.preflight.unfinished.clear()
            for record in parts.store.unfinished_reconfigurations(self._read):
                maps, changed = await parts.maps.read(), changes_of(parts.lab, record)
                if away := [name for name in changed if name not in maps]:
                    message = f"change {record.id} is unfinished: it waits for {', '.join(away)}"
                    parts.preflight.unfinished.update(dict.fromkeys(changed, message))
                    record.message = f"cut short by the controller's end; waits for {away[0]}"
                    parts.store.update_reconfiguration(record.id, "intent", to_row(record))
                    continue
                try:
                    await finish_or_undo(parts.lab, record, parts.drivers, maps)
                except Exception as error:
                    record.state, record.message = "unknown", in_words(error)
                    lock_places(parts.locks, record.id, changed)
                journal_end(parts, record, parts.committed.of(record), {})
                ended.append(record)
            parts.maps.forget()
        return ended

    def _read(self, row: dict[str, Any]) -> Reconfiguration:
        """An unfinished change as it was journalled; raises if it is not whole."""
        record = _RECORD.validate_python(row)
        changes_of(self.parts.lab, record)
        self.parts.committed.of(record)
        return record
