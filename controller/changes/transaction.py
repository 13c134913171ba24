"""A change of the network as a transaction: it ends in the wanted map or the one before.

read → plan → check → journal → drain → break → make → verify → flows → undrain → commit.
Devices, flow tables, traffic and the journal stand behind small seams, so that the order of
things is all there is to see here. Nothing is written to a device before the intent is in
the journal and the map has been read once more; a failure after that rolls back.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from patchlight.controller.changes.committed_maps import CommittedMaps, Drift
from patchlight.controller.changes.device_maps import Decide, DeviceMonitor, MapCache, Maps
from patchlight.controller.changes.executor import PlanExecutor
from patchlight.controller.changes.hooks import FlowHook, TrafficHook
from patchlight.controller.changes.locks import Locks, StopButton
from patchlight.controller.changes.planning import Plan, difference
from patchlight.controller.changes.power_budget import DEFAULT_TOLERANCES, Tolerances
from patchlight.controller.changes.power_check import Baselines, PowerCheck, Readings
from patchlight.controller.changes.preflight import (
    POWER_CEILING_DBM,
    Checks,
    Ports,
    PortStates,
    PreflightResult,
)
from patchlight.controller.changes.record import (
    ChangeOptions,
    Reconfiguration,
    fill_record,
    fingerprint,
    to_row,
)
from patchlight.controller.changes.recovery import changes_of, finish_or_undo, restore
from patchlight.controller.circuits.contract import CircuitDriver
from patchlight.controller.store import Store
from patchlight.testbed.errors import OutcomeUnknown, PatchlightError, in_words
from patchlight.testbed.lab import Lab
from patchlight.testbed.portmap import PortMap
from patchlight.testbed.wiring import Links

log = logging.getLogger("patchlight.circuits")

NO_OPTIONS = ChangeOptions()


class Transactions:
    """Runs one change at a time over the lab's circuit switches."""

    def __init__(
        self,
        lab: Lab,
        drivers: Mapping[str, CircuitDriver],
        flows: FlowHook,
        traffic: TrafficHook,
        store: Store,
        power_ceiling_dbm: float = POWER_CEILING_DBM,
        tolerances: Tolerances = DEFAULT_TOLERANCES,
    ) -> None:
        self._lab, self._drivers, self._flows = lab, drivers, flows
        self._traffic, self._store = traffic, store
        self.locks, self.stop = Locks(lab, store), StopButton(store)
        self.conditions = PortStates(drivers)
        self.commitments = CommittedMaps(store)
        self.reach = DeviceMonitor(lab, drivers, self.commitments, store)
        self.baselines = Baselines(store)
        self.light = PowerCheck(lab, self.baselines, tolerances)
        self._checks = Checks(
            drivers, self.locks, self.conditions, traffic.jobs_using, power_ceiling_dbm
        )
        self._writer = PlanExecutor(lab, drivers, self.light, self.stop)
        self._seen = MapCache(lab, self.reach)
        self._unfinished: dict[str, str] = {}
        self._readings: Readings = {}
        self._committing: dict[str, PortMap] = {}
        self._one_at_a_time = asyncio.Lock()
        self._running: set[asyncio.Task[Reconfiguration]] = set()

    async def read_maps(self) -> Maps:
        """The present map of every circuit switch that answers, asked of the devices at once."""
        return await self._seen.read()

    async def links(self) -> Links:
        """Who lights up whom now, as far as the circuit switches answer."""
        return self._seen.light(await self.read_maps())

    def unseen_hosts(self) -> dict[str, str]:
        """The hosts that are plugged into a circuit switch that does not answer, and why not."""
        return self.reach.unseen_hosts()

    async def closed_ports(self) -> tuple[Ports, Ports]:
        """The ports, by OCS, whose circuits are to stay, and those that can carry none."""
        return await self._checks.closed_ports(self.reach.unread)

    async def settle_flows(self) -> None:
        """Make the flow tables those of the circuits that the devices have now."""
        async with self._one_at_a_time:
            maps = await self.read_maps()
            await self._flows.follow(self._seen.light(maps.everywhere))

    async def close(self) -> None:
        """Wait until the change under way, if there is one, has come to its end."""
        await asyncio.gather(*self._running, return_exceptions=True)

    async def change(
        self, decide: Decide, why: str, terms: ChangeOptions = NO_OPTIONS
    ) -> Reconfiguration:
        """Turn the present maps into what ``decide`` makes of them.

        Always returns a record whose state is final: ``committed``, ``refused`` (nothing
        was written), ``rolled-back`` or ``unknown``. An error of ``decide`` is raised.
        ``decide`` may be called again, with maps that are newer.
        """
        # A task of its own: whoever waits for a change may be cancelled, the change may not.
        task = asyncio.create_task(self._change(decide, why, terms))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def preview(
        self, decide: Decide, terms: ChangeOptions = NO_OPTIONS
    ) -> tuple[Plan, list[str]]:
        """What ``change`` would do now, and what speaks against it."""
        maps = await self.read_maps()
        steps = self._seen.plan(maps, decide)
        checked = await self._checks.of(steps, terms.by, spare_jobs=terms.spare_jobs)
        return steps, [*self._halted(steps), *checked.objections]

    def _halted(self, steps: Plan) -> list[str]:
        """What keeps any change of these switches from beginning, whatever it is."""
        words = [self.stop.words] if self.stop.pressed else []
        return words + list(
            dict.fromkeys(self._unfinished[n] for n in steps.changes if n in self._unfinished)
        )

    async def _change(self, decide: Decide, why: str, terms: ChangeOptions) -> Reconfiguration:
        async with self._one_at_a_time:
            record = Reconfiguration(
                why=why,
                started_at=time.time(),
                by=terms.by,
                origin=terms.origin,
                reverts=terms.reverts,
            )
            try:
                # First from the maps as last read, which are read again before the first
                # write; if they are out of date, once more from those that the devices have.
                if not await self._attempt(decide, record, terms, from_memory=True):
                    await self._attempt(decide, record, terms, from_memory=False)
            except Exception as error:
                # What fails once something was written is rolled back where it fails. An intent
                # left open would be undone at the next start, under the changes made since.
                if record.state == "intent":
                    record.state = "refused"
                    record.message = f"nothing was written: {in_words(error)}"
                raise
            finally:
                # However this ends, the journal says where it stands.
                if record.id:
                    self._close(record)
            return record

    async def _attempt(
        self, decide: Decide, record: Reconfiguration, terms: ChangeOptions, *, from_memory: bool
    ) -> bool:
        """Plan, check and carry out; ``False`` if it takes newer maps to know what to do."""
        if from_memory and (terms.planned_from or self._seen.maps is None):
            return False
        with record.stage("read"):
            memory = self._seen.maps if from_memory else None
            maps = memory if memory is not None else await self.read_maps()
        with record.stage("plan"):
            try:
                steps = self._seen.plan(maps, decide)
            except PatchlightError:
                if from_memory:
                    return False
                raise
            self._committing = self.commitments.after(steps, terms.adopts)
            fill_record(record, steps, self._committing)
        with record.stage("check"):
            checked = PreflightResult(self._halted(steps))
            if terms.planned_from and terms.planned_from != fingerprint(steps.before):
                checked.objections.append("the maps changed since the change was shown")
            if steps and not checked.objections:
                checked = await self._checked_and_journalled(steps, record, terms)
        if from_memory and (checked.objections or not steps):
            return False
        if not record.id:
            self._intend(record)()
        if checked.objections:
            record.state = "refused"
            record.message = f"nothing was written: {'; '.join(checked.objections)}"
        elif not steps:
            record.message = "nothing to change: the maps are so already"
            record.message += ", and count as committed" if record.adopted else ""
            await self._set_flows(steps.links_after, record)
            record.state = "committed"
        else:
            return await self._carry_out(steps, checked, record, from_memory=from_memory)
        return True

    async def _checked_and_journalled(
        self, steps: Plan, record: Reconfiguration, terms: ChangeOptions
    ) -> PreflightResult:
        """Ask the devices what speaks against it, while the intent goes to the disk."""
        journalled = asyncio.create_task(asyncio.to_thread(self._intend(record)))
        try:
            return await self._checks.of(steps, terms.by, spare_jobs=terms.spare_jobs)
        except PatchlightError as error:
            return PreflightResult([error.message])
        finally:
            await journalled

    def _intend(self, record: Reconfiguration) -> Callable[[], None]:
        """What puts the intent into the journal: as it is now, when called."""
        write = self._store.prepared_intent(record.id, to_row(record))

        def journal() -> None:
            record.id = write()

        return journal

    async def _carry_out(
        self, steps: Plan, checked: PreflightResult, record: Reconfiguration, *, from_memory: bool
    ) -> bool:
        """Do it or undo it; ``False`` if the plan turns out to be made from old maps."""
        try:
            try:
                with record.stage("drain"):
                    record.note(await self._traffic.drain(steps.moved))
                    record.note(await self._flows.follow(steps.links_staying))
                with record.stage("check"):
                    now = await self.read_maps()
                    for name in steps.changes:
                        now[name]  # refuses where it cannot be read any more
                    differs = difference(steps.before, now)
            except PatchlightError as error:
                differs, from_memory = error.message, False
            if differs and from_memory:
                record.note([f"planned anew: {differs}"])
                # The new plan may be refused: then what was to go from the old one has to stay.
                await self._set_flows(self._seen.light(now.everywhere), record)
                return False
            if differs:
                record.state, record.message = "refused", f"nothing was written: {differs}"
                await self._set_flows(steps.links_before, record)
                return True
            try:
                self._readings = await self._writer.write(steps, checked, record, now)
                await self._set_flows(steps.links_after, record)
                record.state, record.message = "committed", "done"
                self._seen.done(steps, now)
            except PatchlightError as error:
                await self._roll_back(steps, record, error.message)
            except Exception as error:
                # A bug, of a driver maybe: the devices are not to stay half changed for it.
                log.exception("change %d", record.id)
                await self._roll_back(steps, record, in_words(error))
            return True
        finally:
            with record.stage("undrain"):
                await self._traffic.undrain()

    async def _roll_back(self, steps: Plan, record: Reconfiguration, reason: str) -> None:
        for name in steps.changes:
            self.conditions.forget(name)
        self._seen.forget()
        try:
            with record.stage("roll-back"):
                await restore(self._drivers, steps.changes)
                await self._set_flows(steps.links_before, record)
            record.state = "rolled-back"
            record.message = f"{reason}; the map before stands again"
        except Exception as second:
            if not isinstance(second, PatchlightError):
                log.exception("rolling back change %d", record.id)
            record.state = "unknown"
            record.message = (
                f"{reason}; rolling back failed too: {in_words(second)}. "
                "Read the switch with 'patchlight ocs show' before anything else; until they "
                "are unlocked, the ports of this change are locked"
            )
            self._mark_bad(record)

    def _mark_bad(self, record: Reconfiguration) -> None:
        for name, change in changes_of(record).items():
            self.locks.mark_bad(name, change.ports, f"change {record.id} could not be undone")

    async def _set_flows(self, links: Links, record: Reconfiguration) -> None:
        with record.stage("flows"):
            record.note(await self._flows.follow(links))

    def _end(self, record: Reconfiguration) -> None:
        record.finished_at = time.time()
        with record.stage("commit"):
            done = record.state == "committed"
            committed = self._committing if done else {}
            readings, self._readings, self._committing = self._readings, {}, {}
            self._store.update_reconfiguration(
                record.id,
                record.state,
                to_row(record),
                self.commitments.rows(committed, record),
                readings if done else None,
            )
            self.commitments.take(committed)
            self.baselines.take(readings if done else {})

    def _close(self, record: Reconfiguration) -> None:
        """``_end``; where the journal takes no more, its devices are closed to changes."""
        try:
            self._end(record)
        except PatchlightError as error:
            words = f"how change {record.id} ended is not in the journal: {error.message}"
            self._unfinished |= dict.fromkeys(record.changes, words)
            raise OutcomeUnknown(
                f"change {record.id} came to: {record.state}, {record.message}; but {words}",
                hint="make room for the journal and start the controller again",
            ) from error

    async def drift(self) -> dict[str, Drift]:
        """How the devices differ from their last committed maps, while no change is under way."""
        async with self._one_at_a_time:
            return self.commitments.drift(await self.read_maps())

    async def resume(self) -> list[Reconfiguration]:
        """Finish or undo what a dead controller left behind; returns what became of each.

        A change found whole on the devices is committed; anything else goes back to the
        map before. Circuits that no unfinished change names are left as they are. A change of
        a device that does not answer stays open, and its devices closed to others, until this
        is called when the device is back.
        """
        ended: list[Reconfiguration] = []
        async with self._one_at_a_time:
            self._unfinished = {}
            for row in self._store.unfinished_reconfigurations():
                record = Reconfiguration(**row)
                now, changed = await self.read_maps(), changes_of(record)
                if away := [name for name in changed if name not in now]:
                    words = f"change {record.id} is unfinished: it waits for {', '.join(away)}"
                    self._unfinished |= dict.fromkeys(changed, words)
                    record.message = f"cut short by the controller's end; waits for {away[0]}"
                    self._store.update_reconfiguration(record.id, "intent", to_row(record))
                    continue
                try:
                    await finish_or_undo(record, self._drivers, now)
                except Exception as error:
                    record.state, record.message = "unknown", in_words(error)
                    self._mark_bad(record)
                self._committing = self.commitments.of(record)
                self._end(record)
                ended.append(record)
            self._seen.forget()
        return ended
