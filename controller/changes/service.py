"""The circuits of a lab as JSON: what the REST API answers, and ``ocs --direct`` without it."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from typing import Any

from patchlight.controller.changes import requests
from patchlight.controller.changes.device_maps import Decide
from patchlight.controller.changes.operations import CircuitOperations, bringing_together, lighting
from patchlight.controller.changes.power import PortReading
from patchlight.controller.changes.preflight import LockKind
from patchlight.controller.changes.record import (
    ChangeOptions,
    ChangePlan,
    Reconfiguration,
    as_texts,
    change_as_texts,
    fingerprint,
    to_row,
    wanted_maps,
)
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.optical_links import Entry
from patchlight.testbed.lab.portmap import AnyMap
from patchlight.testbed.lab.spectrum import ChannelConnect
from patchlight.testbed.lab.wavelengths import WavelengthSwitch
from patchlight.testbed.lab.wiring import check_map_name, parse_map

Answer = dict[str, Any]


class CircuitService:
    """Each method answers one request; those that change something are told who asks."""

    def __init__(self, operations: CircuitOperations) -> None:
        self._operations, self._parts = operations, operations.parts
        self._transactions = operations.transactions

    # -- changing circuits ---------------------------------------------------------------------
    # Each answers with a plan where that is asked for (``dry_run``), with the change as it begins
    # to who ``detaches``, else with the change as it ended.

    async def reconfigure(
        self, request: requests.ReconfigurationRequest, who: ChangeOptions
    ) -> Answer:
        """Make cross-connects, and free ports."""
        lab, places = self._parts.lab, self._operations.places
        asked = {n: parse_map(lab.optical_switch(n), texts) for n, texts in request.maps.items()}
        dropped = {n: places(n, given) for n, given in request.disconnect.items()}

        def decide(maps: Mapping[str, AnyMap]) -> dict[str, AnyMap]:
            return wanted_maps(lab, maps, asked, dropped, only=request.only)

        return await self._run(decide, request, who, asked)

    async def roll_back(
        self, number: int, request: requests.ChangeRequest, who: ChangeOptions
    ) -> Answer:
        """Undo one change, and nothing that other changes did."""
        decide, adopts = self._operations.undoing(number)
        who, why = replace(who, reverts=number), f"undoes change {number}"
        return await self._run(decide, request, who, adopts, why)

    async def together(self, request: requests.TogetherRequest, who: ChangeOptions) -> Answer:
        """Connect nodes to one packet switch."""
        decide = await bringing_together(self._parts, request.nodes, request.force)
        spared = request.model_copy(update={"spare_jobs": request.spare_jobs or not request.force})
        why = f"brings together {', '.join(request.nodes)}"
        return await self._run(decide, spared, who, {}, why)

    async def light_paths(self, request: requests.LightRequest, who: ChangeOptions) -> Answer:
        """Join pairs of ends, over as many switches as it takes."""
        pairs = [(one, other) for one, other in request.pairs]
        decide = await lighting(self._parts, pairs)
        why = f"lights {', '.join(f'{one}:{other}' for one, other in pairs)}"
        return await self._run(decide, request, who, {}, why)

    async def restore(
        self, name: str, request: requests.ChangeRequest, who: ChangeOptions
    ) -> Answer:
        """Bring about saved maps."""
        saved = self._operations.saved(name)
        return await self._run(lambda _: saved, request, who, saved, f"restores {name}")

    async def repair(self, request: requests.RepairRequest, who: ChangeOptions) -> Answer:
        """Bring devices back to their committed maps."""
        committed = self._operations.repairing(request.ocs)
        return await self._run(lambda _: committed, request, who, committed, "repairs drift")

    async def adopt(self, request: requests.PresentMapsRequest, who: ChangeOptions) -> Answer:
        """Take what the devices have as their committed maps."""
        maps = await self._parts.maps.read()
        adopts = {name: maps[name] for name in self._operations.named(request.ocs)}
        asked = requests.ChangeRequest(why=request.why)
        return await self._run(lambda _: {}, asked, who, adopts, "adopts drift")

    async def _run(
        self,
        decide: Decide,
        request: requests.ChangeRequest,
        who: ChangeOptions,
        adopts: Mapping[str, AnyMap],
        why: str = "",
    ) -> Answer:
        shown = request.planned_from or who.planned_from
        options = replace(who, spare_jobs=request.spare_jobs, planned_from=shown, adopts=adopts)
        if request.dry_run:
            plan, objections = await self._transactions.preview(decide, options)
            return self._planned(plan, objections)
        why = ": ".join(filter(None, (why, request.why))) or "asked by the user"
        if who.detaches:
            return as_it_is(await self._transactions.begin(decide, why, options))
        return to_row(await self._transactions.change(decide, why, options))

    def _planned(self, plan: ChangePlan, objections: list[str]) -> Answer:
        before, after = set(plan.links_before.pairs()), set(plan.links_after.pairs())
        committed = self._parts.committed.maps
        return {
            "state": "planned",
            "changes": {name: change_as_texts(change) for name, change in plan.changes.items()},
            "links_down": [f"{a}:{b}" for a, b in sorted(before - after)],
            "links_up": [f"{a}:{b}" for a, b in sorted(after - before)],
            "jobs": self._parts.traffic.jobs_using(plan.moved),
            # Cross-connects that would break and that no change of ours made: somebody else's.
            "strangers": {
                name: theirs
                for name, change in plan.changes.items()
                if (theirs := [str(c) for c in change.breaks if c not in committed.get(name, (c,))])
            },
            # Cross-connects that go without another in their place.
            "lost": {
                name: len(change.breaks) - len(change.makes)
                for name, change in plan.changes.items()
                if len(change.breaks) > len(change.makes)
            },
            "cleared": [n for n in plan.changes if plan.before[n] and not len(plan.wanted[n])],
            "objections": objections,
            "planned_from": fingerprint(plan.before),
        }

    # -- changes that were made ----------------------------------------------------------------

    async def changes(
        self,
        last: int = requests.PAGE,
        after: int | None = None,
        since: float | None = None,
        until: float = requests.LATEST,
        before: int = requests.NO_NUMBER,
    ) -> Answer:
        """The last changes, or the first so many after a number, or the last of a period."""
        if since is None:
            rows = self._parts.store.reconfigurations(last, after)
        else:
            rows = self._parts.store.past_reconfigurations((since, until), last, before)
        return {"reconfigurations": self._as_known(rows)}

    async def change(self, number: int, step: int = 0, wait_s: float = 0.0) -> Answer:
        """One change; one under way once its progress is beyond ``step``, or after ``wait_s``."""
        record = self._transactions.under_way(number)
        if record is not None and wait_s:
            await record.progress.news.after(step, wait_s)
        return self._change(number)

    async def cancel(
        self, number: int, request: requests.StopRequest, who: ChangeOptions
    ) -> Answer:
        """Halt a change before its next step, and undo what it did."""
        if self._change(number)["state"] in ("intent", "committed"):
            self._transactions.cancel(number, who.by, request.why)
        return self._change(number)

    def _change(self, number: int) -> Answer:
        record = self._parts.store.reconfiguration(number)
        if record is None:
            raise BadInput(f"there is no change {number}: 'patchlight ocs history' shows them")
        return self._as_known([record])[0]

    def _as_known(self, rows: list[Answer]) -> list[Answer]:
        """With the progress of those under way, and which change undid the others."""
        undone = self._parts.store.undone_by(min((row["id"] for row in rows), default=0))
        known = []
        for row in rows:
            is_open = row["state"] == "intent"
            record = self._transactions.under_way(row["id"]) if is_open else None
            by = {"undone_by": undone[row["id"]]} if row["id"] in undone else {}
            known.append({**row, **by} if record is None else as_it_is(record))
        return known

    # -- circuits as they are ------------------------------------------------------------------

    async def links(self) -> Answer:
        """The links that the present cross-connects make."""
        present = self._parts.maps.links(await self._parts.maps.read())
        return {
            # Links through these are not known; they are left out.
            "unread": self._parts.devices.unread,
            "links": [
                {
                    "a": str(a),
                    "b": str(b),
                    "rate_bps": present.paths[a].rate_bps,
                    "via": [_via(*hop) for hop, _ in present.passed(present.paths[a])],
                }
                for a, b in present.pairs()
            ],
        }

    async def circuits(self) -> Answer:
        """The map of each optical switch."""
        maps = await self._parts.maps.read()
        # No map at all, rather than an empty one: applied later, that would clear the switch.
        unread = {
            name: {"map": None, "unreachable": reason, "assumed": as_texts(maps.assumed[name])}
            for name, reason in maps.unread.items()
        }
        known = {name: {"map": as_texts(port_map)} for name, port_map in maps.items()}
        return {name: (known | unread)[name] for name in self._parts.drivers}

    def tag(self) -> str:
        """What ``planned_from`` is for the maps as last read; empty if some were not."""
        maps = self._parts.maps.last
        return "" if maps is None or maps.unread else fingerprint(maps)

    async def switches(self) -> Answer:
        """Each optical switch: whether it answers, and what it says that it is."""
        return {"circuit_switches": [await self._switch(s) for s in self._parts.devices.status()]}

    async def _switch(self, status: Answer) -> Answer:
        switch = self._parts.lab.optical_switch(status["name"])
        row = status | {
            "driver": switch.driver,
            "address": switch.address,
            "ports": switch.ports,
            "switching_time_s": switch.switching_time_s,
            "insertion_loss_db": switch.insertion_loss_db,
            "identity": None,
            "standing_alarms": None,
        }
        if isinstance(switch, WavelengthSwitch):
            row["grid"] = str(switch.grid)
        if status["reachable"]:
            try:
                driver = self._parts.drivers[switch.name]
                row["identity"] = asdict(await driver.identify())
                row["standing_alarms"] = sum(alarm.standing for alarm in await driver.alarms())
            except PatchlightError as error:
                row["words"] = error.message
        return row

    async def light(self, name: str) -> Answer:
        """The power of each circuit of one switch, and its ports that are not ready."""
        report = await self._operations.power(name)
        return {
            "monitored": report.monitored,
            "circuits": [_reading(reading) for reading in report.readings],
            "ports": {
                str(port): {"condition": state.condition, "words": state.words}
                for port, state in report.ports.items()
            },
            "unreachable": report.unreachable,
        }

    async def alarms(self, ocs: Collection[str] = ()) -> Answer:
        """What the devices reported by themselves."""
        rows: list[Answer] = []
        for name in self._operations.named(ocs):
            rows += [{"ocs": name, **asdict(a)} for a in await self._parts.devices.alarms(name)]
        return {"alarms": rows}

    async def drift(self) -> Answer:
        """How each device differs from its last committed map."""
        return {
            "drift": {
                name: {
                    **report.drift.as_texts(),
                    "reconfiguration": report.committed_by,
                    "committed_at": report.committed_at,
                    "unreachable": report.unreachable,
                }
                for name, report in (await self._operations.drift()).items()
            }
        }

    # -- what operators leave ------------------------------------------------------------------

    async def accept_power(self, request: requests.BaselinesRequest, who: ChangeOptions) -> Answer:
        """Take the power as it is now for the baselines."""
        return {"circuits": await self._operations.accept_power(request.ocs, who.by)}

    async def saved_maps(self) -> Answer:
        """The maps that were saved."""
        return {"maps": list(self._parts.store.saved_maps().values())}

    async def save(
        self, name: str, request: requests.PresentMapsRequest, who: ChangeOptions
    ) -> Answer:
        """Keep the present maps under a name."""
        check_map_name(name)
        return await self._operations.save(name, request.ocs, who.by, request.why)

    async def forget(self, name: str) -> Answer:
        """Forget saved maps."""
        self._operations.saved(name)
        self._parts.store.delete_map(name)
        return {"name": name}

    async def locks(self) -> Answer:
        """Every locked port."""
        return {"locks": [asdict(lock) for lock in self._parts.locks.all()]}

    async def lock(self, request: requests.LockRequest, who: ChangeOptions) -> Answer:
        """Lock ports for everybody, or for everybody else."""
        kind: LockKind = "kept" if request.keep else "locked"
        places = self._operations.places(request.ocs, request.ports)
        made = self._parts.locks.lock(request.ocs, places, kind, who.by, request.why)
        return {"locks": [asdict(lock) for lock in made]}

    async def unlock(self, request: requests.UnlockRequest, who: ChangeOptions) -> Answer:
        """Take locks away."""
        places = self._operations.places(request.ocs, request.ports)
        gone = self._parts.locks.unlock(request.ocs, places, who.by, request.why)
        return {"locks": [asdict(lock) for lock in gone]}

    async def stop_button(self) -> Answer:
        """Whether the stop button is pressed."""
        return {"pressed": self._parts.stop.pressed, "unwritten": self._parts.stop.unwritten}

    async def press_stop(self, request: requests.StopRequest, who: ChangeOptions) -> Answer:
        """Halt the change under way, and refuse new ones."""
        self._parts.stop.press(who.by, request.why)
        return await self.stop_button()

    async def clear_stop(self, request: requests.StopRequest, who: ChangeOptions) -> Answer:
        """Let changes begin again."""
        self._parts.stop.clear(who.by, request.why)
        return await self.stop_button()


def as_it_is(record: Reconfiguration) -> Answer:
    """A change under way: it is an intent until its end is in the journal."""
    return {**to_row(record), "state": "intent", "progress": record.progress.as_json}


def _via(ocs: str, entry: Entry) -> Answer:
    row: Answer = {"ocs": ocs, "inp": entry.inp, "out": entry.out}
    return row | {"channel": str(entry.channel)} if isinstance(entry, ChannelConnect) else row


def _reading(reading: PortReading) -> Answer:
    return {
        "cross_connect": str(reading.cross_connect),
        "in_dbm": reading.in_dbm,
        "out_dbm": reading.out_dbm,
        "expected_dbm": reading.expected.power_dbm if reading.expected else None,
        "baseline_dbm": reading.baseline_dbm,
        "source": str(reading.source) if reading.source else None,
        "verdict": reading.verdict.kind,
        "words": reading.verdict.words,
    }
