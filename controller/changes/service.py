"""Implements the requests for a lab's circuits: the REST API without HTTP, and ``ocs --direct``."""

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from patchlight.controller.changes.device_maps import Decide, Drift
from patchlight.controller.changes.device_watch import power_report
from patchlight.controller.changes.parts import CircuitParts
from patchlight.controller.changes.plan import ChangePlan
from patchlight.controller.changes.power import PortReading
from patchlight.controller.changes.preflight import LockKind, PortLock
from patchlight.controller.changes.record import (
    ChangeOptions,
    Reconfiguration,
    Refused,
    fingerprint,
    wanted_maps,
)
from patchlight.controller.changes.transaction import Transactions
from patchlight.controller.changes.wanted import (
    bringing_together,
    lighting,
    undoing,
)
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab import wiring
from patchlight.testbed.lab.optical_links import Entry
from patchlight.testbed.lab.portmap import AnyMap, MapChange
from patchlight.testbed.lab.spectrum import ChannelConnect
from patchlight.testbed.lab.wavelengths import WavelengthSwitch
from patchlight.testbed.wire.rest import circuits as rest
from patchlight.testbed.wire.rest import requests
from patchlight.testbed.wire.rest.circuits import (
    Alarms,
    AlarmShape,
    AllSavedMaps,
    Baselines,
    ChangeAnswer,
    Changes,
    CircuitLight,
    CircuitSwitches,
    CircuitSwitchShape,
    DriftOf,
    DriftShape,
    IdentityShape,
    LightAnswer,
    Locks,
    MapChangeAnswer,
    Named,
    OcsMap,
    PlanAnswer,
    PortCondition,
    Pressed,
    SavedMaps,
    StopButton,
)
from patchlight.testbed.wire.rest.lab import (
    HostWithoutLink,
    Link,
    LinksAnswer,
    Via,
)

ChangeOrPlan = ChangeAnswer | PlanAnswer


class CircuitService:
    """Each method answers one request; those that make changes get the caller."""

    def __init__(
        self, parts: CircuitParts, transactions: Transactions
    ) -> None:
        self.parts = parts
        self.transactions = transactions

    def _named(self, names: Collection[str]) -> list[str]:
        """These optical switches, or all with a driver if none are named; else ``BadInput``."""
        switch = self.parts.lab.optical_switch
        return [wiring.driven(switch(name)) for name in names] or list(
            self.parts.drivers
        )

    def _places(
        self, name: str, given: Iterable[int | str]
    ) -> list[wiring.Place]:
        switch = self.parts.lab.optical_switch(name)
        place_of = wiring.Place
        places = [
            place_of(each) if isinstance(each, int) else place_of.parse(each)
            for each in given
        ]
        for place in places:
            if place.channel is not None:
                wiring.check_place(switch, place)
        return places

    # -- changing circuits ---------------------------------------------------------------------
    # Each returns a plan (``dry_run``), the started change (``detaches``), or the finished change.

    async def reconfigure(
        self, request: requests.ReconfigurationRequest, who: ChangeOptions
    ) -> ChangeOrPlan:
        """Make cross-connects, and disconnect ports."""
        lab = self.parts.lab
        asked = {
            name: wiring.parse_map(lab.optical_switch(name), texts)
            for name, texts in request.maps.items()
        }
        dropped = {
            name: self._places(name, given)
            for name, given in request.disconnect.items()
        }

        def decide(maps: Mapping[str, AnyMap]) -> dict[str, AnyMap]:
            return wanted_maps(
                lab,
                maps,
                asked,
                dropped,
                only=request.only,
            )

        return await self._run(
            decide,
            request,
            who,
            asked,
        )

    async def roll_back(
        self,
        number: requests.Number,
        request: requests.ChangeRequest,
        who: ChangeOptions,
    ) -> ChangeOrPlan:
        """Undo one change only."""
        decide, adopts = undoing(self.parts, number)
        who = replace(who, reverts=number)
        why = f"undoes change {number}"
        return await self._run(
            decide,
            request,
            who,
            adopts,
            why,
        )

    async def together(
        self, request: requests.TogetherRequest, who: ChangeOptions
    ) -> ChangeOrPlan:
        """Connect nodes to one packet switch."""
        decide = await bringing_together(
            self.parts, request.nodes, request.force
        )
        spared = request.model_copy(
            update={"spare_jobs": request.spare_jobs or not request.force}
        )
        why = f"connects {', '.join(request.nodes)} to one switch"
        return await self._run(
            decide,
            spared,
            who,
            {},
            why,
        )

    async def light_paths(
        self, request: requests.LightRequest, who: ChangeOptions
    ) -> ChangeOrPlan:
        """Connect pairs of ends, over any number of switches."""
        pairs = [(one, other) for one, other in request.pairs]
        decide = await lighting(self.parts, pairs, request.force)
        why = f"connects {', '.join(f'{one}:{other}' for one, other in pairs)}"
        return await self._run(
            decide,
            request,
            who,
            {},
            why,
        )

    async def restore(
        self,
        name: str,
        request: requests.ChangeRequest,
        who: ChangeOptions,
    ) -> ChangeOrPlan:
        """Restore saved maps."""
        saved = {
            switch: wiring.recorded_map(self.parts.lab, switch, texts)
            for switch, texts in self._restorable(name).maps.items()
        }
        return await self._run(
            lambda _: saved,
            request,
            who,
            saved,
            f"restores {name}",
        )

    async def repair(
        self, request: requests.RepairRequest, who: ChangeOptions
    ) -> ChangeOrPlan:
        """Restore devices to their committed maps."""
        committed = self.parts.committed.maps
        names = self._named(request.ocs)
        for name in names if request.ocs else ():
            if name not in committed:
                raise Refused(
                    f"{name} has no committed map: the controller has never read it"
                )
        if lost := self.parts.committed.unreadable.intersection(names):
            raise Refused(
                f"the committed map of {', '.join(sorted(lost))} could not be read",
                hint="check its circuits, and accept them with: patchlight ocs verify --adopt",
            )
        wanted = {name: committed[name] for name in names if name in committed}
        return await self._run(
            lambda _: wanted,
            request,
            who,
            wanted,
            "repairs drift",
        )

    async def adopt(
        self, request: requests.PresentMapsRequest, who: ChangeOptions
    ) -> ChangeOrPlan:
        """Commit the present maps of the devices."""
        maps = await self.parts.maps.read()
        adopts = {name: maps[name] for name in self._named(request.ocs)}
        asked = requests.ChangeRequest(why=request.why)
        return await self._run(
            lambda _: {},
            asked,
            who,
            adopts,
            "adopts drift",
        )

    async def _run(
        self,
        decide: Decide,
        request: requests.ChangeRequest,
        who: ChangeOptions,
        adopts: Mapping[str, AnyMap],
        why: str = "",
    ) -> ChangeOrPlan:
        shown = request.planned_from or who.planned_from
        options = replace(
            who,
            spare_jobs=request.spare_jobs,
            force=request.force,
            planned_from=shown,
            adopts=adopts,
        )
        if request.dry_run:
            return self._planned(
                *await self.transactions.preview(decide, options)
            )
        why = (
            ": ".join(filter(None, (why, request.why)))
            or "requested by the user"
        )
        if who.detaches:
            return begun(await self.transactions.begin(decide, why, options))
        return ended(await self.transactions.change(decide, why, options))

    def _planned(self, plan: ChangePlan, objections: list[str]) -> PlanAnswer:
        before = set(plan.links_before.pairs())
        after = set(plan.links_after.pairs())
        committed = self.parts.committed.maps
        return PlanAnswer(
            state="planned",
            changes={
                name: _as_answer(change)
                for name, change in plan.changes.items()
            },
            links_down=[f"{a}:{b}" for a, b in sorted(before - after)],
            links_up=[f"{a}:{b}" for a, b in sorted(after - before)],
            jobs=self.parts.traffic.jobs_using(plan.moved),
            # Broken cross-connects that no recorded change made.
            strangers={
                name: theirs
                for name, change in plan.changes.items()
                if (
                    theirs := [
                        str(c)
                        for c in change.breaks
                        if c not in committed.get(name, (c,))
                    ]
                )
            },
            # Cross-connects that are not replaced.
            lost={
                name: len(change.breaks) - len(change.makes)
                for name, change in plan.changes.items()
                if len(change.breaks) > len(change.makes)
            },
            cleared=[
                n
                for n in plan.changes
                if plan.before[n] and not len(plan.wanted[n])
            ],
            objections=objections,
            hosts_losing_link=[
                HostWithoutLink(host=host, reason=reason)
                for host, reason in plan.losing_link(self.parts.lab).items()
            ],
            planned_from=fingerprint(plan.before),
        )

    # -- changes that were made ----------------------------------------------------------------

    async def changes(
        self,
        last: int = requests.PAGE,
        after: int | None = None,
        since: float | None = None,
        until: float = requests.LATEST,
        before: int = requests.NO_NUMBER,
    ) -> Changes:
        """The last changes, or the first ones after a number, or the last of a period."""
        if since is None:
            rows = self.parts.store.reconfigurations(last, after)
        else:
            rows = self.parts.store.past_reconfigurations(
                (since, until), last, before
            )
        return Changes.model_construct(reconfigurations=self._as_known(rows))

    async def change(
        self,
        number: int,
        step: int = 0,
        wait_s: float = 0.0,
    ) -> ChangeAnswer:
        """One change; while in progress once it is beyond ``step``, or after ``wait_s``."""
        record = self.transactions.under_way(number)
        if record is not None and wait_s:
            await record.progress.news.after(step, wait_s)
        row = self.parts.store.reconfiguration(number)
        if row is None:
            raise BadInput(
                f"unknown change {number}: see 'patchlight ocs history'"
            )
        return self._as_known([row])[0]

    async def cancel(
        self,
        number: requests.Number,
        request: requests.StopRequest,
        who: ChangeOptions,
    ) -> ChangeAnswer:
        """Stop a change before its next step, and undo what it did."""
        if (await self.change(number)).state in ("intent", "committed"):
            self.transactions.cancel(number, who.by, request.why)
        return await self.change(number)

    def _as_known(self, rows: list[ChangeAnswer]) -> list[ChangeAnswer]:
        """Add the progress of running changes, and which change undid the others."""
        undone = self.parts.store.undone_by(
            min((row.id for row in rows), default=0)
        )
        known = []
        for row in rows:
            is_open = row.state == "intent"
            record = self.transactions.under_way(row.id) if is_open else None
            if row.id in undone:
                row.undone_by = undone[row.id]
            known.append(row if record is None else begun(record))
        return known

    # -- circuits as they are ------------------------------------------------------------------

    async def links(self) -> LinksAnswer:
        """The links of the present cross-connects."""
        present = self.parts.maps.links(await self.parts.maps.read())
        return LinksAnswer(
            # Links through these are unknown, and omitted.
            unread=self.parts.devices.unread,
            links=[
                Link(
                    a=str(a),
                    b=str(b),
                    rate_bps=present.paths[a].rate_bps,
                    via=[
                        _via(ocs, c)
                        for (ocs, c), _ in present.passed(present.paths[a])
                    ],
                )
                for a, b in present.pairs()
            ],
        )

    async def circuits(self) -> dict[str, OcsMap]:
        """The map of each optical switch."""
        maps = await self.parts.maps.read()
        # No map rather than an empty one, which would clear the switch if applied later.
        held = maps.assumed
        unread = {
            name: OcsMap(
                map=None,
                unreachable=reason,
                assumed=[*held[name].one_way_texts],
            )
            for name, reason in maps.unread.items()
        }
        known = {
            name: OcsMap(map=[*port_map.one_way_texts])
            for name, port_map in maps.items()
        }
        return {name: (known | unread)[name] for name in self.parts.drivers}

    def tag(self) -> str:
        """``planned_from`` for the last known maps; empty if some are unknown."""
        maps = self.parts.maps.last
        return "" if maps is None or maps.unread else fingerprint(maps)

    async def switches(self) -> CircuitSwitches:
        """Each optical switch: whether it answers, and its identity."""
        rows = []
        for status in self.parts.devices.status():
            switch = self.parts.lab.optical_switch(status["name"])
            row = CircuitSwitchShape(
                **status,
                driver=switch.driver,
                address=switch.address,
                ports=switch.ports,
                switching_time_s=switch.switching_time_s,
                insertion_loss_db=switch.insertion_loss_db,
                identity=None,
                standing_alarms=None,
            )
            if isinstance(switch, WavelengthSwitch):
                row.grid = str(switch.grid)
            if row.reachable:
                try:
                    driver = self.parts.drivers[switch.name]
                    identity = asdict(await driver.identify())
                    row.identity = IdentityShape(**identity)
                    row.standing_alarms = sum(
                        alarm.standing for alarm in await driver.alarms()
                    )
                except PatchlightError as error:
                    row.words = error.message
            rows.append(row)
        return CircuitSwitches(circuit_switches=rows)

    async def light(self, ocs: str) -> LightAnswer:
        """The power of each circuit of one switch, and its ports that are not ready."""
        (name,) = self._named([ocs])
        report = await power_report(
            self.parts, name, await self.parts.maps.read()
        )
        return LightAnswer(
            monitored=report.monitored,
            circuits=[_light(reading) for reading in report.readings],
            ports={
                str(port): PortCondition(
                    condition=state.condition,
                    words=state.words,
                )
                for port, state in report.ports.items()
            },
            unreachable=report.unreachable,
        )

    async def alarms(self, ocs: Collection[str] = ()) -> Alarms:
        """The devices' alarms."""
        return Alarms(
            alarms=[
                AlarmShape(ocs=name, **asdict(alarm))
                for name in self._named(ocs)
                for alarm in await self.parts.devices.alarms(name)
            ]
        )

    async def drift(self) -> DriftShape:
        """How each device differs from its last committed map, and the change that left it so."""
        committed = self.parts.store.committed_maps(lambda _, row: row)
        drift = await self.transactions.drift()
        unread = self.parts.devices.unread
        return DriftShape(
            drift={
                name: DriftOf(
                    **drift.get(name, Drift((), ())).as_texts(),
                    reconfiguration=committed.get(name, {}).get(
                        "reconfiguration"
                    ),
                    committed_at=committed.get(name, {}).get("at"),
                    unreachable=unread.get(name, ""),
                )
                for name in self.parts.drivers
                if name in committed or name in unread
            }
        )

    # -- what operators leave ------------------------------------------------------------------

    async def accept_power(
        self, request: requests.BaselinesRequest, who: ChangeOptions
    ) -> Baselines:
        """Use the present power as baselines, except for failed circuits."""
        maps = await self.parts.maps.read()
        counts: dict[str, int] = {}
        for name in self._named(request.ocs):
            maps[name]  # raises if unknown
            readings = (await power_report(self.parts, name, maps)).readings
            good = [
                reading
                for reading in readings
                if reading.verdict.kind != "failed"
            ]
            counts[name] = self.parts.power_check.baselines.begin_anew(
                name, good
            )
        event = {"circuits": counts, "by": who.by}
        self.parts.store.add_event(time.time(), "baselines", event)
        return Baselines(circuits=counts)

    async def saved_maps(self) -> AllSavedMaps:
        """The saved maps."""
        maps = list(self.parts.store.saved_maps().values())
        return AllSavedMaps(maps=maps)

    async def save(
        self,
        name: str,
        request: requests.PresentMapsRequest,
        who: ChangeOptions,
    ) -> SavedMaps:
        """Save the present maps under a name."""
        wiring.check_map_name(name)
        maps = await self.parts.maps.read()
        texts = {
            ocs: [*maps[ocs].one_way_texts] for ocs in self._named(request.ocs)
        }
        saved = SavedMaps(
            name=name,
            maps=texts,
            by=who.by,
            why=request.why,
            at=time.time(),
        )
        self.parts.store.save_map(name, dict(saved))
        return saved

    async def forget(self, name: str) -> Named:
        """Delete saved maps."""
        self._saved(name)
        self.parts.store.delete_map(name)
        return Named(name=name)

    def _saved(self, name: str) -> SavedMaps:
        saved = self.parts.store.saved_maps()
        if name not in saved:
            raise BadInput(
                f"no maps saved as {name!r}: the saved maps are {', '.join(saved) or 'none'}"
            )
        return saved[name]

    def _restorable(self, name: str) -> SavedMaps:
        saved = self._saved(name)
        if not saved.maps:
            raise Refused(
                f"nothing was changed: no map is saved as {name}: {saved.why}"
            )
        return saved

    async def locks(self) -> Locks:
        """Every locked port."""
        return _locks(self.parts.locks.all())

    async def lock(
        self, request: requests.LockRequest, who: ChangeOptions
    ) -> Locks:
        """Lock ports for all users, or for all but the caller."""
        places = self._places(request.ocs, request.ports)
        kind: LockKind = "kept" if request.keep else "locked"
        made = self.parts.locks.lock(
            request.ocs,
            places,
            kind,
            who.by,
            request.why,
        )
        self.transactions.heed_locks()
        return _locks(made)

    async def unlock(
        self, request: requests.UnlockRequest, who: ChangeOptions
    ) -> Locks:
        """Remove locks."""
        places = self._places(request.ocs, request.ports)
        numbers = {request.ocs: [place.port for place in places]}
        for lock in self.parts.locks.on(numbers):
            if lock.claim:
                raise Refused(
                    f"{lock}",
                    hint=f"release it: patchlight ocs claim {lock.claim} --release",
                )
        return _locks(
            self.parts.locks.unlock(
                request.ocs,
                places,
                who.by,
                request.why,
            )
        )

    async def stop_button(self) -> StopButton:
        """Whether the stop button is pressed."""
        pressed = self.parts.stop.pressed
        return StopButton(
            pressed=None if pressed is None else Pressed(**pressed),
            unwritten=self.parts.stop.unwritten,
        )

    async def press_stop(
        self, request: requests.StopRequest, who: ChangeOptions
    ) -> StopButton:
        """Stop the change in progress, and refuse new ones."""
        self.parts.stop.press(who.by, request.why)
        return await self.stop_button()

    async def clear_stop(
        self, request: requests.StopRequest, who: ChangeOptions
    ) -> StopButton:
        """Allow changes again."""
        self.parts.stop.clear(who.by, request.why)
        return await self.stop_button()


def ended(record: Reconfiguration) -> ChangeAnswer:
    """A change as it ended."""
    return ChangeAnswer(**record.as_row)


def begun(record: Reconfiguration) -> ChangeAnswer:
    """A change in progress."""
    return ChangeAnswer(**record.as_intent)


def _as_answer(change: MapChange[Any]) -> MapChangeAnswer:
    return MapChangeAnswer(
        breaks=[str(c) for c in change.breaks],
        makes=[str(c) for c in change.makes],
    )


def _via(ocs: str, entry: Entry) -> Via:
    via = Via(
        ocs=ocs,
        inp=entry.inp,
        out=entry.out,
    )
    if isinstance(entry, ChannelConnect):
        via.channel = str(entry.channel)
    return via


def _light(reading: PortReading) -> CircuitLight:
    expected = reading.expected
    return CircuitLight(
        cross_connect=str(reading.cross_connect),
        in_dbm=reading.in_dbm,
        out_dbm=reading.out_dbm,
        expected_dbm=expected.power_dbm if expected else None,
        baseline_dbm=reading.baseline_dbm,
        source=str(expected.source) if expected else None,
        verdict=reading.verdict.kind,
        words=reading.verdict.words,
    )


def _locks(locks: Iterable[PortLock]) -> Locks:
    return Locks(locks=[rest.Lock(**asdict(lock)) for lock in locks])
