"""A change of the network as a transaction: it ends in the wanted map or the one before.

read → plan → journal → drain → break → make → verify → flows → undrain → commit. Devices,
flow tables, traffic and the journal stand behind four small seams, so that the order of
things is all there is to see here. Nothing is written to a device before the intent is in
the journal and the map has been read once more; a failure after that rolls back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

from controller.circuits.contract import CircuitDriver, DirectedPort
from controller.optics import expected_powers, judge
from controller.planning import Plan, plan
from controller.store import Store
from testbed.errors import PatchlightError
from testbed.lab import Endpoint, Lab
from testbed.portmap import PortMap, PortMapChange
from testbed.wiring import Links, follow_light

State = Literal["intent", "committed", "refused", "rolled-back", "unknown"]
Decide = Callable[[Mapping[str, PortMap]], Mapping[str, PortMap]]


class Flows(Protocol):
    """Whoever keeps the packet switches' flow tables in step with the light."""

    async def follow(self, links: Links) -> list[str]:
        """Have the switches forward over these links and no others; what failed, in words."""


class Traffic(Protocol):
    """Whoever sends over the network and can be asked to wait."""

    async def hold(self, moved: frozenset[Endpoint]) -> list[str]:
        """Quiesce what rides on these ports; who could not be, in words."""

    async def release(self) -> None:
        """Let everything that was held go on."""


class _Failed(PatchlightError):
    """A step after the first write did not succeed: roll back."""


@dataclass
class Reconfiguration:
    """What became of one change. ``stages_s`` gives the seconds spent in each stage."""

    why: str
    started_at: float
    id: int = 0
    state: State = "intent"
    message: str = ""
    changes: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    before: dict[str, list[str]] = field(default_factory=dict)
    wanted: dict[str, list[str]] = field(default_factory=dict)
    stages_s: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    finished_at: float | None = None

    def note(self, words: list[str]) -> None:
        """Keep what is new of these remarks; a stage may say again what another said."""
        self.notes += [w for w in words if w not in self.notes]


class Reconfigurer:
    """Runs one change at a time over the lab's circuit switches."""

    def __init__(
        self,
        lab: Lab,
        drivers: Mapping[str, CircuitDriver],
        flows: Flows,
        traffic: Traffic,
        store: Store,
    ) -> None:
        self._lab, self._drivers, self._flows = lab, drivers, flows
        self._traffic, self._store = traffic, store
        self._one_at_a_time = asyncio.Lock()

    async def read_maps(self) -> dict[str, PortMap]:
        """The present map of every circuit switch, asked of the devices at once."""
        names = list(self._drivers)
        maps = await asyncio.gather(*(self._drivers[name].read_map() for name in names))
        return dict(zip(names, maps, strict=True))

    async def change(self, decide: Decide, why: str) -> Reconfiguration:
        """Turn the present maps into what ``decide`` makes of them.

        Always returns a record whose state is final: ``committed``, ``refused`` (nothing
        was written), ``rolled-back`` or ``unknown``. An error of ``decide`` is raised.
        """
        async with self._one_at_a_time:
            record = Reconfiguration(why=why, started_at=time.time())
            async with self._stage(record, "read"):
                before = await self.read_maps()
            async with self._stage(record, "plan"):
                steps = plan(self._lab, before, decide(before))
            record.before = {name: _texts(m) for name, m in before.items()}
            record.wanted = {name: _texts(m) for name, m in steps.wanted.items()}
            record.changes = {
                name: {"breaks": [str(c) for c in c_.breaks], "makes": [str(c) for c in c_.makes]}
                for name, c_ in steps.changes.items()
            }
            record.id = self._store.begin_reconfiguration(asdict(record))
            try:
                if steps:
                    await self._carry_out(steps, record)
                else:
                    record.message = "nothing to change: the circuits are there already"
                    await self._set_flows(steps.links_after, record)
                    record.state = "committed"
            finally:
                # However this ends (also by cancellation), the journal says where it stands.
                record.finished_at = time.time()
                self._store.update_reconfiguration(record.id, record.state, asdict(record))
            return record

    async def _carry_out(self, steps: Plan, record: Reconfiguration) -> None:
        try:
            async with self._stage(record, "drain"):
                record.note(await self._traffic.hold(steps.moved))
                record.note(await self._flows.follow(steps.links_staying))
            try:
                differs = await self._differs_from(steps)
            except PatchlightError as error:
                differs = f"cannot read the maps again: {error.message}"
            if differs:
                record.state, record.message = "refused", f"nothing was written: {differs}"
                await self._set_flows(steps.links_before, record)
                return
            try:
                await self._write(steps, record)
                await self._set_flows(steps.links_after, record)
                record.state, record.message = "committed", "done"
            except PatchlightError as error:
                await self._roll_back(steps, record, error)
        finally:
            async with self._stage(record, "undrain"):
                await self._traffic.release()

    async def _differs_from(self, steps: Plan) -> str:
        """Compare-and-set: in words, how the devices differ from the plan's start."""
        now = await self.read_maps()
        return "; ".join(
            f"the map of {name} changed meanwhile: "
            + ", ".join(
                [f"{c} is gone" for c in steps.before[name].diff(now[name]).breaks]
                + [f"{c} is new" for c in steps.before[name].diff(now[name]).makes]
            )
            for name in steps.before
            if now[name] != steps.before[name]
        )

    async def _write(self, steps: Plan, record: Reconfiguration) -> None:
        async with self._stage(record, "break"):
            for name, change in steps.changes.items():
                if change.breaks:
                    outcome = await self._drivers[name].disconnect(change.breaks)
                    _raise_refusals(name, "break", outcome.refused)
        async with self._stage(record, "make"):
            for name, change in steps.changes.items():
                if change.makes:
                    outcome = await self._drivers[name].connect(change.makes)
                    _raise_refusals(name, "make", outcome.refused)
        async with self._stage(record, "verify"):
            await self._verify(steps, record)

    async def _verify(self, steps: Plan, record: Reconfiguration) -> None:
        now = await self.read_maps()
        for name in steps.changes:
            if now[name] != steps.wanted[name]:
                left = now[name].diff(steps.wanted[name])
                raise _Failed(
                    f"{name} reads back differently: "
                    + ", ".join([f"{c} is there" for c in left.breaks]
                                + [f"{c} is missing" for c in left.makes])
                )  # fmt: skip
        expected = expected_powers(self._lab, steps.links_after)
        for name, change in steps.changes.items():
            driver = self._drivers[name]
            if not driver.capabilities.power_out:
                record.notes.append(f"{name}: unverified, it has no power monitor")
                continue
            here = {c: e for (ocs, c), e in expected.items() if ocs == name}
            ports = [DirectedPort("in", c.inp) for c in change.makes]
            ports += [DirectedPort("out", c.out) for c in change.makes]
            power = await driver.power(ports)
            for made in change.makes:
                words, failed = judge(
                    here, made,
                    power.get(DirectedPort("in", made.inp)),
                    power.get(DirectedPort("out", made.out)),
                )  # fmt: skip
                if failed:
                    raise _Failed(f"{name}: {words}")
                if words:
                    record.notes.append(f"{name}: {words}")

    async def _roll_back(
        self, steps: Plan, record: Reconfiguration, error: PatchlightError
    ) -> None:
        try:
            async with self._stage(record, "roll-back"):
                await self._restore(steps.changes)
                await self._set_flows(steps.links_before, record)
            record.state = "rolled-back"
            record.message = f"{error.message}; the map before stands again"
        except PatchlightError as second:
            record.state = "unknown"
            record.message = (
                f"{error.message}; rolling back failed too: {second.message}. "
                "Read the switch with 'patchlight ocs show' before anything else"
            )

    async def _restore(self, changes: Mapping[str, PortMapChange]) -> None:
        """Undo these changes as far as the devices show them done; touch nothing else."""
        for name, change in changes.items():
            driver = self._drivers[name]
            # Also those that the map does not show: one that was entered and not activated
            # holds its ports all the same. Breaking what is not there is no error.
            if change.makes:
                _raise_refusals(name, "break", (await driver.disconnect(change.makes)).refused)
            now = frozenset(await driver.read_map())
            makes = tuple(c for c in change.breaks if c not in now)
            if makes:
                _raise_refusals(name, "make", (await driver.connect(makes)).refused)
            if not _is_done(change.inverse, await driver.read_map()):
                raise _Failed(f"{name} does not read back as it was before")

    async def _set_flows(self, links: Links, record: Reconfiguration) -> None:
        async with self._stage(record, "flows"):
            record.note(await self._flows.follow(links))

    @asynccontextmanager
    async def _stage(self, record: Reconfiguration, name: str) -> AsyncIterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            spent = time.monotonic() - began
            record.stages_s[name] = round(record.stages_s.get(name, 0.0) + spent, 6)

    async def resume(self) -> list[Reconfiguration]:
        """Finish or undo what a dead controller left behind; returns what became of each.

        A change found whole on the devices is committed; anything else goes back to the
        map before. Circuits that no unfinished change names are left as they are.
        """
        ended: list[Reconfiguration] = []
        for row in self._store.reconfigurations():
            if row["state"] != "intent":
                continue
            record = Reconfiguration(**row)
            before = {name: PortMap.parse(texts) for name, texts in record.before.items()}
            wanted = {name: PortMap.parse(texts) for name, texts in record.wanted.items()}
            changed = {n: before[n].diff(wanted[n]) for n in before if before[n] != wanted[n]}
            try:
                now = await self.read_maps()
                if all(_is_done(change, now[name]) for name, change in changed.items()):
                    record.state, record.message = "committed", "found whole after a restart"
                else:
                    await self._restore(changed)
                    record.state = "rolled-back"
                    record.message = "cut short by the controller's end; the map before stands"
            except PatchlightError as error:
                record.state, record.message = "unknown", error.message
            record.finished_at = time.time()
            self._store.update_reconfiguration(record.id, record.state, asdict(record))
            ended.append(record)
        return ended

    async def settle_flows(self) -> None:
        """Make the flow tables those of the circuits that the devices have now."""
        async with self._one_at_a_time:
            await self._flows.follow(await self.links())

    async def links(self) -> Links:
        """Who lights up whom now."""
        return follow_light(self._lab, await self.read_maps())


def _raise_refusals(ocs: str, verb: str, refused: Any) -> None:
    if refused:
        words = "; ".join(f"{refusal.cross_connect}: {refusal.words}" for refusal in refused)
        raise _Failed(f"{ocs} refused to {verb} {words}")


def _is_done(change: PortMapChange, now: PortMap) -> bool:
    there = frozenset(now)
    return there.issuperset(change.makes) and there.isdisjoint(change.breaks)


def _texts(port_map: PortMap) -> list[str]:
    return [str(cross_connect) for cross_connect in port_map]
