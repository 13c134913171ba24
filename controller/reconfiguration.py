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
from typing import Protocol

from controller.checks import POWER_CEILING_DBM, Checked, Checks, Conditions
from controller.circuits.contract import CircuitDriver
from controller.commitments import Commitments, Drift
from controller.locks import Locks
from controller.planning import Plan, difference, plan
from controller.record import Reconfiguration, Terms, as_stored, as_texts, fingerprint
from controller.recovery import is_done, raise_refusals, restore
from controller.stop import StopButton
from controller.store import Store
from controller.verification import read_back, verify_light
from testbed.errors import PatchlightError
from testbed.lab import Endpoint, Lab
from testbed.portmap import PortMap, PortMapChange
from testbed.wiring import Links, follow_light

log = logging.getLogger("patchlight.circuits")

Decide = Callable[[Mapping[str, PortMap]], Mapping[str, PortMap]]
NO_TERMS = Terms()


class Flows(Protocol):
    """Whoever keeps the packet switches' flow tables in step with the light."""

    async def follow(self, links: Links) -> list[str]:
        """Have the switches forward over these links and no others; what failed, in words."""


class Traffic(Protocol):
    """Whoever sends over the network and can be asked to wait."""

    def riding(self, moved: frozenset[Endpoint]) -> list[str]:
        """The running jobs whose traffic uses these ports."""

    async def hold(self, moved: frozenset[Endpoint]) -> list[str]:
        """Quiesce what rides on these ports; who could not be, in words."""

    async def release(self) -> None:
        """Let everything that was held go on."""


class Reconfigurer:
    """Runs one change at a time over the lab's circuit switches."""

    def __init__(
        self,
        lab: Lab,
        drivers: Mapping[str, CircuitDriver],
        flows: Flows,
        traffic: Traffic,
        store: Store,
        power_ceiling_dbm: float = POWER_CEILING_DBM,
    ) -> None:
        self._lab, self._drivers, self._flows = lab, drivers, flows
        self._traffic, self._store = traffic, store
        self.locks, self.stop = Locks(lab, store), StopButton(store)
        self.conditions = Conditions(drivers)
        self.commitments = Commitments(store)
        self._checks = Checks(
            drivers, self.locks, self.conditions, traffic.riding, power_ceiling_dbm
        )
        # The maps as last read, and the light through them: what to plan from, never what to
        # write on. Before a device is written to, its map is read.
        self._known: dict[str, PortMap] = {}
        self._links: Links | None = None
        self._one_at_a_time = asyncio.Lock()
        self._running: set[asyncio.Task[Reconfiguration]] = set()

    async def read_maps(self) -> dict[str, PortMap]:
        """The present map of every circuit switch, asked of the devices at once."""
        names = list(self._drivers)
        maps = await asyncio.gather(*(self._drivers[name].read_map() for name in names))
        self._known = dict(zip(names, maps, strict=True))
        return dict(self._known)

    async def links(self) -> Links:
        """Who lights up whom now."""
        maps = await self.read_maps()
        return follow_light(self._lab, maps, self._links)

    async def settle_flows(self) -> None:
        """Make the flow tables those of the circuits that the devices have now."""
        async with self._one_at_a_time:
            await self._flows.follow(await self.links())

    async def close(self) -> None:
        """Wait until the change under way, if there is one, has come to its end."""
        await asyncio.gather(*self._running, return_exceptions=True)

    async def change(self, decide: Decide, why: str, terms: Terms = NO_TERMS) -> Reconfiguration:
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

    async def preview(self, decide: Decide, terms: Terms = NO_TERMS) -> tuple[Plan, list[str]]:
        """What ``change`` would do now, and what speaks against it."""
        before = await self.read_maps()
        steps = plan(self._lab, before, decide(before))
        checked = await self._checks.of(steps, terms.by, spare_jobs=terms.spare_jobs)
        return steps, [*([self.stop.words] if self.stop.pressed else []), *checked.objections]

    async def _change(self, decide: Decide, why: str, terms: Terms) -> Reconfiguration:
        async with self._one_at_a_time:
            record = Reconfiguration(
                why=why, started_at=time.time(), by=terms.by, origin=terms.origin,
                reverts=terms.reverts,
            )  # fmt: skip
            try:
                # First from the maps as last read, which are read again before the first
                # write; if they are out of date, once more from those that the devices have.
                if not await self._attempt(decide, record, terms, from_memory=True):
                    await self._attempt(decide, record, terms, from_memory=False)
            finally:
                # However this ends, the journal says where it stands.
                if record.id:
                    self._end(record)
            return record

    async def _attempt(
        self, decide: Decide, record: Reconfiguration, terms: Terms, *, from_memory: bool
    ) -> bool:
        """Plan, check and carry out; ``False`` if it takes newer maps to know what to do."""
        if from_memory and (terms.planned_from or self._known.keys() != self._drivers.keys()):
            return False
        with record.stage("read"):
            before = dict(self._known) if from_memory else await self.read_maps()
        with record.stage("plan"):
            try:
                steps = plan(self._lab, before, decide(before), self._links)
            except PatchlightError:
                if from_memory:
                    return False
                raise
            self._links = steps.links_before
            self._write_down(steps, record, terms)
        with record.stage("check"):
            checked = Checked([self.stop.words] if self.stop.pressed else [])
            if terms.planned_from and terms.planned_from != fingerprint(before):
                checked.objections.append("the maps changed since the change was shown")
            if not checked.objections:
                checked = await self._checks.of(steps, terms.by, spare_jobs=terms.spare_jobs)
        if from_memory and (checked.objections or not steps):
            return False
        if record.id:
            self._store.update_reconfiguration(record.id, "intent", as_stored(record))
        else:
            record.id = self._store.begin_reconfiguration(as_stored(record))
        if checked.objections:
            record.state = "refused"
            record.message = f"nothing was written: {'; '.join(checked.objections)}"
        elif not steps:
            record.message = "nothing to change: the circuits are there already"
            await self._set_flows(steps.links_after, record)
            record.state = "committed"
        else:
            return await self._carry_out(steps, checked, record, from_memory=from_memory)
        return True

    def _write_down(self, steps: Plan, record: Reconfiguration, terms: Terms) -> None:
        record.before = {name: as_texts(m) for name, m in steps.before.items()}
        record.wanted = {name: as_texts(m) for name, m in steps.wanted.items()}
        record.changes = {
            name: {"breaks": [str(c) for c in c_.breaks], "makes": [str(c) for c in c_.makes]}
            for name, c_ in steps.changes.items()
        }
        committed = self.commitments.after(steps, terms.adopts)
        record.adopted = [name for name in committed if name not in steps.changes]
        record.commits = {
            name: as_texts(m) for name, m in committed.items() if m != steps.wanted[name]
        }

    async def _carry_out(
        self, steps: Plan, checked: Checked, record: Reconfiguration, *, from_memory: bool
    ) -> bool:
        """Do it or undo it; ``False`` if the plan turns out to be made from old maps."""
        try:
            try:
                with record.stage("drain"):
                    record.note(await self._traffic.hold(steps.moved))
                    record.note(await self._flows.follow(steps.links_staying))
                with record.stage("check"):
                    differs = difference(steps.before, await self.read_maps())
            except PatchlightError as error:
                differs, from_memory = error.message, False
            if differs and from_memory:
                record.note([f"planned anew: {differs}"])
                return False
            if differs:
                record.state, record.message = "refused", f"nothing was written: {differs}"
                await self._set_flows(steps.links_before, record)
                return True
            try:
                await self._write(steps, checked, record)
                await self._set_flows(steps.links_after, record)
                record.state, record.message = "committed", "done"
                self._known, self._links = dict(steps.wanted), steps.links_after
            except PatchlightError as error:
                await self._roll_back(steps, record, error.message)
            except Exception as error:
                # A bug, of a driver maybe: the devices are not to stay half changed for it.
                log.exception("change %d", record.id)
                await self._roll_back(steps, record, f"unexpected {type(error).__name__}: {error}")
            return True
        finally:
            with record.stage("undrain"):
                await self._traffic.release()

    async def _write(self, steps: Plan, checked: Checked, record: Reconfiguration) -> None:
        """Device after device: what goes wrong on one does not reach the next."""
        several, maps = len(steps.changes) > 1, dict(steps.before)
        for name, change in steps.changes.items():
            driver = self._drivers[name]
            self.stop.check()
            if change.breaks:
                with record.stage("break"):
                    outcome = await driver.disconnect(change.breaks)
                    raise_refusals(name, "break", outcome.refused)
                self.stop.check()
            if change.makes:
                with record.stage("make"):
                    outcome = await driver.connect(change.makes)
                    raise_refusals(name, "make", outcome.refused)
                self.stop.check()
            maps[name] = steps.wanted[name]
            with record.stage("verify"):
                # Paths through a device that is still to change are not there yet: of these
                # only what is plainly wrong counts, the rest is looked at in the end.
                here = follow_light(self._lab, maps) if several else steps.links_after
                arriving = checked.arriving_dbm.get(name)
                # Both at once: the device answers the one while the other is understood.
                read, lit = await asyncio.gather(
                    read_back(driver, steps.wanted[name]),
                    verify_light(self._lab, here, driver, change.makes, arriving),
                    return_exceptions=True,
                )
                for found in (read, lit):
                    if isinstance(found, BaseException):
                        raise found
                notes = lit if isinstance(lit, list) else []
            if not several:
                record.note(notes)
        if several:
            with record.stage("verify"):
                for name, change in steps.changes.items():
                    driver = self._drivers[name]
                    record.note(
                        await verify_light(self._lab, steps.links_after, driver, change.makes)
                    )
        self.stop.check()

    async def _roll_back(self, steps: Plan, record: Reconfiguration, reason: str) -> None:
        for name in steps.changes:
            self.conditions.forget(name)
        self._known = {}
        try:
            with record.stage("roll-back"):
                await restore(self._drivers, steps.changes)
                await self._set_flows(steps.links_before, record)
            record.state = "rolled-back"
            record.message = f"{reason}; the map before stands again"
        except PatchlightError as second:
            record.state = "unknown"
            record.message = (
                f"{reason}; rolling back failed too: {second.message}. "
                "Read the switch with 'patchlight ocs show' before anything else; until they "
                "are unlocked, the ports of this change are locked"
            )
            self._mark_bad(record)

    def _mark_bad(self, record: Reconfiguration) -> None:
        for name, change in record.changes.items():
            touched = PortMapChange(
                breaks=tuple(PortMap.parse(change["breaks"])),
                makes=tuple(PortMap.parse(change["makes"])),
            )
            self.locks.mark_bad(name, touched.ports, f"change {record.id} could not be undone")

    async def _set_flows(self, links: Links, record: Reconfiguration) -> None:
        with record.stage("flows"):
            record.note(await self._flows.follow(links))

    def _end(self, record: Reconfiguration) -> None:
        record.finished_at = time.time()
        with record.stage("commit"):
            committed = self.commitments.of(record) if record.state == "committed" else {}
            self._store.update_reconfiguration(
                record.id, record.state, as_stored(record), self.commitments.rows(committed, record)
            )
            self.commitments.take(committed)

    async def drift(self) -> dict[str, Drift]:
        """How the devices differ from their last committed maps, while no change is under way."""
        async with self._one_at_a_time:
            return self.commitments.drift(await self.read_maps())

    async def resume(self) -> list[Reconfiguration]:
        """Finish or undo what a dead controller left behind; returns what became of each.

        A change found whole on the devices is committed; anything else goes back to the
        map before. Circuits that no unfinished change names are left as they are.
        """
        ended: list[Reconfiguration] = []
        for row in self._store.unfinished_reconfigurations():
            record = Reconfiguration(**row)
            before = {name: PortMap.parse(texts) for name, texts in record.before.items()}
            wanted = {name: PortMap.parse(texts) for name, texts in record.wanted.items()}
            changed = {n: before[n].diff(wanted[n]) for n in before if before[n] != wanted[n]}
            try:
                now = await self.read_maps()
                if all(is_done(change, now[name]) for name, change in changed.items()):
                    record.state, record.message = "committed", "found whole after a restart"
                else:
                    await restore(self._drivers, changed)
                    record.state = "rolled-back"
                    record.message = "cut short by the controller's end; the map before stands"
            except PatchlightError as error:
                record.state, record.message = "unknown", error.message
                self._mark_bad(record)
            self._end(record)
            ended.append(record)
        self._known = {}
        return ended
