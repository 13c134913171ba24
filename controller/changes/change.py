"""Carries out one change of the network, to its end.

read → plan → check → journal → drain → break → make → verify → flows → announce → undrain → commit.
Nothing is written to a device before the intent is in the journal and the map has been read again;
a failure after that rolls back.
"""

import asyncio
import functools
import logging
import time
from collections import defaultdict
from collections.abc import (
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any

from patchlight.controller.changes import power
from patchlight.controller.changes.device_maps import Decide, Maps
from patchlight.controller.changes.parts import CircuitParts
from patchlight.controller.changes.plan import ChangePlan
from patchlight.controller.changes.preflight import PreflightResult
from patchlight.controller.changes.record import (
    LATE_S,
    ChangeOptions,
    Reconfiguration,
    StepFailed,
    difference,
    fingerprint,
)
from patchlight.controller.changes.recovery import raise_refusals, undo
from patchlight.controller.circuits import contract
from patchlight.controller.storage.store import BaselineKey
from patchlight.testbed.errors import (
    NoReply,
    OutcomeUnknown,
    PatchlightError,
    in_words,
)
from patchlight.testbed.lab.model import Endpoint, Lab
from patchlight.testbed.lab.ocs_drivers import makes_one_by_one
from patchlight.testbed.lab.portmap import AnyMap
from patchlight.testbed.lab.reach import Reach
from patchlight.testbed.lab.wiring import Links, lab_links

log = logging.getLogger("patchlight.circuits")
_FORWARDING_S = 10.0
# Maximum age, listening and learning (IEEE 802.1D): 20 + 15 + 15 s.
_SPANNING_TREE_S = 50.0
_UNDER_WAY_S = 0.005  # by then a device has its command


class Change:
    """One change: its request, its plan, and the ``record`` of its progress."""

    def __init__(
        self,
        parts: CircuitParts,
        decide: Decide,
        why: str,
        options: ChangeOptions,
    ) -> None:
        by = options.by
        origin = options.origin
        reverts = options.reverts
        self.record = Reconfiguration(
            why,
            time.time(),
            by=by,
            origin=origin,
            reverts=reverts,
        )
        self._parts = parts
        self._decide = decide
        self._options = options
        self._plan: ChangePlan
        self._committed: dict[str, AnyMap] = {}
        self._readings: dict[BaselineKey, tuple[float, ...]] = {}
        self._failed: list[Exception] = []
        self.is_closed = True
        """Whether its end, if any, is in the journal."""

    async def run(self) -> Reconfiguration:
        """Run the change to its end; raises the errors of ``decide``."""
        try:
            # First from the last known maps, which are read again before the first write; if they
            # are out of date, once more from the devices' maps.
            if not await self._attempt(from_memory=True):
                await self._attempt(from_memory=False)
        except Exception as error:
            # Failures after the first write are rolled back where they occur. An open intent would
            # be undone at the next start, under later changes.
            if self.record.state == "intent":
                self._refuse(in_words(error))
            raise
        finally:
            # However this ends, the journal has the result.
            if self.record.id:
                self.close()
        return self.record

    async def _attempt(self, *, from_memory: bool) -> bool:
        """Plan, check and carry out; false if the plan was made from outdated maps."""
        parts = self._parts
        record = self.record
        remembered = parts.maps.last if from_memory else None
        if from_memory and (self._options.planned_from or remembered is None):
            return False
        record.enter("read")
        maps = (
            remembered if remembered is not None else await parts.maps.read()
        )
        record.enter("plan")
        try:
            self._plan = parts.maps.plan(maps, self._decide)
        except PatchlightError:
            if from_memory:
                return False
            raise
        self._committed = parts.committed.after(
            self._plan, self._options.adopts
        )
        record.fill(
            self._plan, self._committed, self._plan.losing_link(parts.lab)
        )
        record.enter("check")
        preflight = await self._check()
        if from_memory and (preflight.objections or not self._plan):
            return False
        if not record.id:
            self.prepared_intent()()
        if preflight.objections:
            self._refuse("; ".join(preflight.objections))
        elif not self._plan:
            record.message = "nothing to change"
            record.message += (
                "; the circuits are now committed" if record.adopted else ""
            )
            await self._set_flows(self._plan.links_after)
            record.state = "committed"
        else:
            return await self._drain_and_write(
                preflight, from_memory=from_memory
            )
        return True

    async def _check(self) -> PreflightResult:
        """Objections to the plan. Without any, it is in the journal afterwards."""
        plan = self._plan
        options = self._options
        preflight = self._parts.preflight
        objections = preflight.halts(plan)
        if self.record.progress.cancelled:
            objections.append(self.record.progress.cancelled)
        if options.planned_from and options.planned_from != fingerprint(
            plan.before
        ):
            objections.append("the maps have changed since the preview")
        if objections or not plan:
            return PreflightResult(objections)
        # The devices are read while the intent is written to disk.
        journalled = asyncio.create_task(
            asyncio.to_thread(self.prepared_intent())
        )
        try:
            return await preflight.check(plan, options)
        except PatchlightError as error:
            return PreflightResult([error.message])
        finally:
            await journalled

    def give_up(self) -> None:
        """End it before its start, because it was cancelled."""
        self._refuse(self.record.progress.cancelled)
        self.close()

    def prepared_intent(self) -> Callable[[], None]:
        """A function that writes the present intent into the journal."""
        write = self._parts.store.prepared_intent(
            self.record.id, self.record.as_row
        )

        def journal() -> None:
            self.record.id = write()

        return journal

    async def _drain_and_write(
        self, preflight: PreflightResult, *, from_memory: bool
    ) -> bool:
        """Drain, read again, and write if the maps are those of the plan."""
        parts = self._parts
        plan = self._plan
        record = self.record
        try:
            try:
                record.enter("drain")
                record.note(await parts.traffic.drain(plan.moved))
                record.note(await parts.flows.follow(plan.links_prepared))
                record.enter("check")
                maps = await parts.maps.read()
                for name in plan.changes:
                    maps[name]  # raises if it cannot be read
                changed = difference(plan.before, maps)
            except PatchlightError as error:
                changed = error.message
                from_memory = False
            if not changed:
                await self._write(preflight, maps)
            elif from_memory:
                record.note([f"planned again: {changed}"])
                # If the new plan is refused, the obsolete part of the old one must stay.
                await self._set_flows(parts.maps.links(maps.everywhere))
                return False
            else:
                self._refuse(changed)
                await self._set_flows(plan.links_before)
            return True
        finally:
            record.enter("undrain")
            await parts.traffic.undrain(parts.maps)

    async def _write(self, preflight: PreflightResult, maps: Maps) -> None:
        """Break, make, verify, and set the flows; restore the previous ``maps`` if that fails."""
        parts = self._parts
        plan = self._plan
        record = self.record
        try:
            await self._rewire(preflight, maps)
            await self._set_flows(plan.links_after)
            record.enter("announce")
            await self._wait_for_workers()
            record.state = "committed"
            record.message = "done"
            parts.maps.done(plan, maps)
        except Exception as error:
            if not isinstance(error, PatchlightError):
                # A bug, perhaps in a driver, must not leave the devices half changed.
                log.exception("change %d", record.id)
            await self._roll_back(error)

    async def _rewire(self, preflight: PreflightResult, maps: Maps) -> None:
        """Break, make and verify, each at all devices at once; ``maps`` were just read.

        Everything breaks first: so each path that is there meanwhile is one of those before or of
        those after. Raises errors of devices, and ``StepFailed`` for a refusal, a wrong map, wrong
        power, a cancellation and the stop button.
        """
        plan = self._plan
        self._check_stop()
        if any(change.breaks for change in plan.changes.values()):
            self.record.enter("break")
            await self._at_each(self._break)
        maps = maps.after({name: plan.wanted[name] for name in plan.changes})
        # Power is not expected through devices that do not answer.
        links = (
            lab_links(self._parts.lab, maps)
            if maps.unread
            else plan.links_after
        )
        expected = await self._make(links)
        self.record.enter("verify")

        async def verify(name: str) -> None:
            await self._verify(
                name,
                expected.get(name, ()),
                preflight.arriving_dbm.get(name, {}),
            )

        await self._at_each(
            verify if self._options.judged else self._read_back
        )

    async def _at_each(self, step: Callable[[str], Awaitable[None]]) -> None:
        """Take a step at all devices at once, and look at the stop button; raises the first error
        once every device has ended."""

        async def taken(name: str) -> None:
            try:
                await step(name)
            except Exception as error:
                self._failed.append(error)

        await asyncio.gather(*map(taken, self._plan.changes))
        self._check_stop()

    async def _break(self, name: str) -> None:
        for group in self._groups(name, self._plan.changes[name].breaks):
            outcome = await self._parts.drivers[name].disconnect(group)
            raise_refusals(name, "break", outcome.refused)

    async def _make(
        self, links: Links
    ) -> Mapping[str, Sequence[power.ExpectedReading]]:
        """Make the devices' circuits; the power that they must show over these links."""
        makes = {
            name: change.makes
            for name, change in self._plan.changes.items()
            if change.makes
        }
        if not makes:
            return {}
        self.record.enter("make")
        making = asyncio.create_task(self._at_each(self._connect))
        try:
            # Computed while the mirrors turn.
            turning_s = min(
                self._parts.lab.optical_switch(name).switching_time_s
                for name in makes
            )
            await asyncio.sleep(min(turning_s / 2, _UNDER_WAY_S))
            expected = {
                name: self._parts.power_check.expected(links, name, entries)
                for name, entries in makes.items()
            }
            _ = self._announced
        finally:
            # It is made or has failed before anything is rolled back.
            await asyncio.wait([making])
        making.result()
        return expected

    async def _connect(self, name: str) -> None:
        for group in self._groups(name, self._plan.changes[name].makes):
            outcome = await self._parts.drivers[name].connect(group)
            raise_refusals(name, "make", outcome.refused)

    def _groups(
        self, name: str, entries: Sequence[Any]
    ) -> Iterator[Sequence[Any]]:
        """What one command breaks or makes, counted; ``StepFailed`` between them as below."""
        groups: Iterable[Sequence[Any]] = [entries] if entries else []
        done = 0
        if makes_one_by_one(self._parts.lab.optical_switch(name)):
            # So it can be stopped between two circuits.
            by_circuit = defaultdict[frozenset[int], list[Any]](list)
            for entry in entries:
                by_circuit[frozenset((entry.inp, entry.out))].append(entry)
            groups = by_circuit.values()
        for group in groups:
            if done:
                self._check_stop()
            self.record.progress.count(name, done, len(entries))
            yield group
            done += len(group)

    async def _verify(
        self,
        name: str,
        expected: Sequence[power.ExpectedReading],
        arriving_dbm: contract.Powers,
    ) -> None:
        """``StepFailed`` if a device's map or power is wrong; both are read at once."""
        results = await asyncio.gather(
            self._read_back(name),
            self._verify_power(name, expected, arriving_dbm),
            return_exceptions=True,
        )
        for result in results:
            if result is not None:
                raise result

    async def _read_back(self, name: str) -> None:
        wanted = self._plan.wanted[name]
        now: AnyMap = await self._parts.drivers[name].read_map()
        if now != wanted:
            left = now.diff(wanted)
            apart = [f"{c} still exists" for c in left.breaks]
            apart += [f"{c} is missing" for c in left.makes]
            raise StepFailed(
                f"{name} reads back differently: {', '.join(apart)}"
            )

    async def _verify_power(
        self,
        name: str,
        expected: Sequence[power.ExpectedReading],
        arriving_dbm: contract.Powers,
    ) -> None:
        """``StepFailed`` if power is wrong; else it is kept."""
        check = self._parts.power_check
        verified = await check.verify(
            self._parts.drivers[name], expected, arriving_dbm
        )
        self.record.note(verified.remarks)
        self._readings |= check.baselines.with_readings(name, verified.good)

    async def _wait_for_workers(self) -> None:
        """Announce what moved until the workers of each job hear each other."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _reached_within_s(self._parts.lab)
        while silent := await self._announce(self._plan.links_after):
            if loop.time() > end:
                if self._options.judged:
                    raise StepFailed(
                        f"packets do not pass: {'; '.join(silent)}"
                    )
                self.record.note(silent)
                break
            self._check_stop()

    def _check_stop(self) -> None:
        """``StepFailed`` if the stop button is pressed, or the change is cancelled; the error of a
        device that failed."""
        if self._failed:
            raise self._failed[0]
        self._parts.stop.check()
        if self.record.progress.cancelled:
            raise StepFailed(self.record.progress.cancelled)

    async def _roll_back(self, error: Exception) -> None:
        parts = self._parts
        plan = self._plan
        record = self.record
        reason = in_words(error)
        for name in plan.changes:
            parts.port_states.forget(name)
        parts.maps.forget()
        try:
            record.enter("roll-back")
            now, undone = await undo(parts.drivers, plan.before, plan.changes)
            # Follow the devices' maps, also where another client changed them.
            links = parts.maps.links({**plan.before, **now})
            await self._set_flows(links)
            record.note(await self._announce(links))
            record.state = "rolled-back"
            record.message = f"{reason}; {undone}"
        except Exception as second:
            if not isinstance(second, PatchlightError):
                log.exception("rolling back change %d", record.id)
            record.state = "unknown"
            record.message = (
                f"{reason}; rolling back failed too: {in_words(second)}. Check the switch with "
                "'patchlight ocs show' first; the ports of this change stay locked until you "
                "unlock them, or its switches show the whole change or none of it"
            )
            parts.locks.mark_bad(plan.changes, record.id)
        else:
            if isinstance(error, NoReply):
                record.state = "unknown"
                record.late_until = time.time() + LATE_S
                record.message += (
                    ". The switch may still carry out the command: the ports of this change stay "
                    f"locked, and are checked again in {LATE_S:.0f} s"
                )
                parts.locks.mark_bad(plan.changes, record.id)

    def _refuse(self, reason: str) -> None:
        self.record.state = "refused"
        self.record.message = f"nothing was changed: {reason}"

    async def _set_flows(self, links: Links) -> None:
        self.record.enter("flows")
        self.record.note(await self._parts.flows.follow(links))

    @functools.cached_property
    def _announced(self) -> frozenset[Endpoint] | None:
        """The ports whose NICs are announced; ``None`` if a trunk moves: those of all jobs."""
        is_trunk = self._plan.moves_trunk(self._parts.lab)
        return None if is_trunk else self._plan.moved

    async def _announce(self, links: Links) -> list[str]:
        """Announce the NICs that moved; whose workers do not hear each other although these links
        join them, as text."""
        parts = self._parts
        if not self._plan.moved:
            return []
        found = await parts.traffic.announce(
            self._announced, Reach(parts.lab, links)
        )
        self.record.note([*found.unknown])
        # With wavelength channels a path may be there only while its workers send.
        return [] if parts.lab.coloured else [*found.silent]

    def close(self) -> None:
        """Journal the end; if the journal fails, refuse changes of the devices until it is there:
        ``OutcomeUnknown``."""
        record = self.record
        self.is_closed = False
        try:
            self._parts.journal_end(record, self._committed, self._readings)
        except PatchlightError as error:
            message = f"the end of change {record.id} is not in the journal: {error.message}"
            self._parts.preflight.unfinished.update(
                dict.fromkeys(record.changes, message)
            )
            raise OutcomeUnknown(
                f"change {record.id}: {record.state}, {record.message}; but {message}",
                hint="free space for the journal: it will be written then",
            ) from error
        self.is_closed = True


def _reached_within_s(lab: Lab) -> float:
    """How long carriers may take to return, and switches to forward to their ports."""
    blocks = any(switch.spanning_tree for switch in lab.packet_switches)
    relock_s = max(
        (host.nic.relock_s or 0.0 for host in lab.hosts), default=0.0
    )
    return (_SPANNING_TREE_S if blocks else _FORWARDING_S) + relock_s
