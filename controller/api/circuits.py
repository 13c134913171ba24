"""The routes on circuits: looking, changing, undoing, locking, stopping.

They need the parts of a change and nothing else of the controller, so that they also serve who
talks to the devices directly.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import PlainTextResponse

from patchlight.controller.api import models, shapes
from patchlight.controller.api.answers import Answered
from patchlight.controller.api.caller import Caller, Operator
from patchlight.controller.api.describing import Json, gives
from patchlight.controller.changes.device_maps import Decide
from patchlight.controller.changes.parts import CircuitParts
from patchlight.controller.changes.planning import Plan, wanted_maps
from patchlight.controller.changes.power import PortReading
from patchlight.controller.changes.preflight import LockKind
from patchlight.controller.changes.record import as_texts, change_as_texts, fingerprint, to_row
from patchlight.controller.circuit_calls import check_map_name
from patchlight.controller.lighting import lighting
from patchlight.controller.operations import CircuitOperations, DriftReport, PowerReport
from patchlight.controller.together import bringing_together
from patchlight.testbed.colours import WavelengthSwitch
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab import Lab
from patchlight.testbed.labmaps import Place, check_place, parse_map
from patchlight.testbed.light import Entry
from patchlight.testbed.spectrum import ChannelConnect
from patchlight.testbed.switchmap import AnyMap
from patchlight.testbed.topology import topology_of
from patchlight.testbed.topology_files import FORMATS

Answer = dict[str, Any]


def circuit_routes(operations: CircuitOperations) -> APIRouter:
    """The routes on the circuits of one lab."""
    routes = APIRouter(prefix="/v1", tags=["circuits"])
    _look(routes, operations)
    _change(routes, operations)
    _operate(routes, operations)
    return routes


async def _run(
    operations: CircuitOperations,
    decide: Decide,
    request: models.ChangeRequest,
    caller: Caller,
    adopts: Mapping[str, AnyMap],
    *,
    why: str,
    reverts: int | None = None,
) -> Any:
    shown, spare_jobs = request.planned_from or caller.planned_from, request.spare_jobs
    options = replace(
        caller, spare_jobs=spare_jobs, planned_from=shown, adopts=adopts, reverts=reverts
    )
    if request.dry_run:
        plan, objections = await operations.transactions.preview(decide, options)
        parts = operations.parts
        jobs, committed = parts.traffic.jobs_using(plan.moved), parts.committed.maps
        planned = _plan_as_json(plan, objections, jobs, committed)
        return Answered(planned, headers={"ETag": f'"{planned["planned_from"]}"'})
    return to_row(await operations.transactions.change(decide, request.why or why, options))


def _plan_as_json(
    plan: Plan, objections: list[str], jobs: list[str], committed: Mapping[str, AnyMap]
) -> Answer:
    before, after = set(plan.links_before.pairs()), set(plan.links_after.pairs())
    return {
        "state": "planned",
        "changes": {name: change_as_texts(change) for name, change in plan.changes.items()},
        "links_down": [f"{a}:{b}" for a, b in sorted(before - after)],
        "links_up": [f"{a}:{b}" for a, b in sorted(after - before)],
        "jobs": jobs,
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


def _via(ocs: str, entry: Entry) -> Answer:
    row: Answer = {"ocs": ocs, "inp": entry.inp, "out": entry.out}
    return row | {"channel": str(entry.channel)} if isinstance(entry, ChannelConnect) else row


def _drift_as_json(report: DriftReport) -> Answer:
    return {
        **report.drift.as_texts(),
        "reconfiguration": report.committed_by,
        "committed_at": report.committed_at,
        "unreachable": report.unreachable,
    }


def _power_as_json(report: PowerReport) -> Answer:
    return {
        "monitored": report.monitored,
        "circuits": [_reading_as_json(reading) for reading in report.readings],
        "ports": {
            str(port): {"condition": state.condition, "words": state.words}
            for port, state in report.ports.items()
        },
        "unreachable": report.unreachable,
    }


def _reading_as_json(reading: PortReading) -> Answer:
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


async def _switch_as_json(parts: CircuitParts, status: Answer) -> Answer:
    """Whether an optical switch answers (``status``), and what it says that it is."""
    switch = parts.lab.optical_switch(status["name"])
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
            driver = parts.drivers[switch.name]
            row["identity"] = asdict(await driver.identify())
            row["standing_alarms"] = sum(alarm.standing for alarm in await driver.alarms())
        except PatchlightError as error:
            row["words"] = error.message
    return row


def _places(lab: Lab, name: str, given: Iterable[int | str]) -> list[Place]:
    """The ports of a switch, or channels there, that are meant; ``BadInput`` for what is none."""
    switch = lab.optical_switch(name)
    places = [Place(each) if isinstance(each, int) else Place.parse(each) for each in given]
    for place in places:
        if place.channel is not None:
            check_place(switch, place)
    return places


def _look(routes: APIRouter, operations: CircuitOperations) -> None:
    parts = operations.parts

    @routes.get("/links", **gives(shapes.LinksShape))
    async def links() -> Answer:
        present = parts.maps.links(await parts.maps.read())
        return {
            # Links through these are not known; they are left out.
            "unread": parts.devices.unread,
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

    @routes.get("/topology", **gives(Json, also="text/plain"))
    async def topology(format: models.TopologyFormat = "json") -> Any:
        found = topology_of(parts.lab, parts.maps.links(await parts.maps.read()))
        if format == "json":
            # Links through these are not known; they are left out.
            return {**found.as_json, "unread": parts.devices.unread}
        return PlainTextResponse(FORMATS[format](found))

    @routes.get("/circuits", **gives(dict[str, shapes.OcsMap]))
    async def circuits() -> Any:
        maps = await parts.maps.read()
        # No map at all, rather than an empty one: applied later, that would clear the switch.
        unread = {
            name: {"map": None, "unreachable": reason, "assumed": as_texts(maps.assumed[name])}
            for name, reason in maps.unread.items()
        }
        known = {name: {"map": as_texts(port_map)} for name, port_map in maps.items()}
        found = {name: (known | unread)[name] for name in parts.drivers}
        # As a plan's ``planned_from``: who plans by these maps can have them be the condition.
        tag = {"ETag": f'"{fingerprint(maps)}"'} if not unread else None
        return Answered(found, headers=tag)

    @routes.get("/circuit-switches", **gives(shapes.CircuitSwitches))
    async def circuit_switches() -> Answer:
        statuses = parts.devices.status()
        return {"circuit_switches": [await _switch_as_json(parts, row) for row in statuses]}

    @routes.get("/circuits/{ocs}/light", **gives(shapes.Light))
    async def light(ocs: str) -> Answer:
        return _power_as_json(await operations.power(ocs))

    @routes.get("/alarms", **gives(shapes.Alarms))
    async def alarms(ocs: Annotated[list[str] | None, Query()] = None) -> Answer:
        rows: list[Answer] = []
        for name in operations.named(ocs or []):
            rows += [{"ocs": name, **asdict(a)} for a in await parts.devices.alarms(name)]
        return {"alarms": rows}

    @routes.get("/drift", **gives(shapes.DriftShape))
    async def drift() -> Answer:
        reports = await operations.drift()
        return {"drift": {name: _drift_as_json(report) for name, report in reports.items()}}


def _change(routes: APIRouter, operations: CircuitOperations) -> None:
    parts = operations.parts

    @routes.post("/reconfigurations", **gives(shapes.Change | shapes.PlanShape))
    async def reconfigure(request: models.ReconfigurationRequest, caller: Operator) -> Any:
        lab = parts.lab
        asked = {n: parse_map(lab.optical_switch(n), texts) for n, texts in request.maps.items()}
        dropped = {n: _places(lab, n, given) for n, given in request.disconnect.items()}

        def decide(maps: Mapping[str, AnyMap]) -> dict[str, AnyMap]:
            return wanted_maps(lab, maps, asked, dropped, only=request.only)

        return await _run(operations, decide, request, caller, asked, why="asked by the user")

    @routes.get("/reconfigurations", **gives(shapes.Changes))
    async def reconfigurations(
        last: models.PageLength = models.PAGE, after: models.Number | None = None
    ) -> Answer:
        return {"reconfigurations": parts.store.reconfigurations(last, after)}

    @routes.get("/reconfigurations/{number}", **gives(shapes.Change))
    async def reconfiguration(number: models.Number) -> Answer:
        record = parts.store.reconfiguration(number)
        if record is None:
            raise BadInput(f"there is no change {number}: 'patchlight ocs history' shows them")
        return record

    @routes.post("/reconfigurations/{number}/rollback", **gives(shapes.Change | shapes.PlanShape))
    async def roll_back(
        number: models.Number, request: models.ChangeRequest, caller: Operator
    ) -> Any:
        decide, adopts = operations.undoing(number)
        why = f"undoes change {number}"
        return await _run(operations, decide, request, caller, adopts, why=why, reverts=number)

    @routes.post("/together", **gives(shapes.Change | shapes.PlanShape))
    async def together(request: models.TogetherRequest, caller: Operator) -> Any:
        decide = await bringing_together(parts, request.nodes, request.force)
        spared = request.model_copy(update={"spare_jobs": request.spare_jobs or not request.force})
        why = f"brings together {', '.join(request.nodes)}"
        return await _run(operations, decide, spared, caller, {}, why=why)

    @routes.post("/light-paths", **gives(shapes.Change | shapes.PlanShape))
    async def light_paths(request: models.LightRequest, caller: Operator) -> Any:
        pairs = [(one, other) for one, other in request.pairs]
        decide = await lighting(parts, pairs)
        why = f"lights {', '.join(f'{one}:{other}' for one, other in pairs)}"
        return await _run(operations, decide, request, caller, {}, why=why)

    @routes.post("/maps/{name}/restore", **gives(shapes.Change | shapes.PlanShape))
    async def restore(name: str, request: models.ChangeRequest, caller: Operator) -> Any:
        saved = operations.saved(name)
        return await _run(
            operations, lambda _: saved, request, caller, saved, why=f"restores {name}"
        )

    @routes.post("/drift/repair", **gives(shapes.Change | shapes.PlanShape))
    async def repair(request: models.RepairRequest, caller: Operator) -> Any:
        committed = operations.repairing(request.ocs)
        return await _run(
            operations, lambda _: committed, request, caller, committed, why="repairs drift"
        )

    @routes.post("/drift/adopt", **gives(shapes.Change | shapes.PlanShape))
    async def adopt(request: models.PresentMapsRequest, caller: Operator) -> Any:
        maps = await parts.maps.read()
        adopts = {name: maps[name] for name in operations.named(request.ocs)}
        asked = models.ChangeRequest(why=request.why)
        return await _run(operations, lambda _: {}, asked, caller, adopts, why="adopts drift")


def _operate(routes: APIRouter, operations: CircuitOperations) -> None:
    parts = operations.parts

    @routes.post("/baselines", **gives(shapes.Baselines))
    async def accept(request: models.BaselinesRequest, caller: Operator) -> Answer:
        return {"circuits": await operations.accept_power(request.ocs, caller.by)}

    @routes.get("/maps", **gives(shapes.AllSavedMaps))
    async def maps() -> Answer:
        return {"maps": list(parts.store.saved_maps().values())}

    @routes.put("/maps/{name}", **gives(shapes.SavedMaps))
    async def save(name: str, request: models.PresentMapsRequest, caller: Operator) -> Answer:
        check_map_name(name)
        return await operations.save(name, request.ocs, caller.by, request.why)

    @routes.delete("/maps/{name}", **gives(shapes.Named))
    async def forget(name: str, caller: Operator) -> Answer:
        operations.saved(name)
        parts.store.delete_map(name)
        return {"name": name}

    @routes.get("/locks", **gives(shapes.LocksShape))
    async def locks() -> Answer:
        return {"locks": [asdict(lock) for lock in parts.locks.all()]}

    @routes.post("/locks", **gives(shapes.LocksShape))
    async def lock(request: models.LockRequest, caller: Operator) -> Answer:
        kind: LockKind = "kept" if request.keep else "locked"
        places = _places(parts.lab, request.ocs, request.ports)
        made = parts.locks.lock(request.ocs, places, kind, caller.by, request.why)
        return {"locks": [asdict(lock) for lock in made]}

    @routes.post("/locks/release", **gives(shapes.LocksShape))
    async def unlock(request: models.UnlockRequest, caller: Operator) -> Answer:
        places = _places(parts.lab, request.ocs, request.ports)
        gone = parts.locks.unlock(request.ocs, places, caller.by, request.why)
        return {"locks": [asdict(lock) for lock in gone]}

    @routes.get("/stop", **gives(shapes.StopButton))
    async def stopped() -> Answer:
        return {"pressed": parts.stop.pressed}

    @routes.post("/stop", **gives(shapes.StopButton))
    async def press(request: models.StopRequest, caller: Operator) -> Answer:
        parts.stop.press(caller.by, request.why)
        return {"pressed": parts.stop.pressed}

    @routes.post("/stop/clear", **gives(shapes.StopButton))
    async def clear(request: models.StopRequest, caller: Operator) -> Answer:
        parts.stop.clear(caller.by, request.why)
        return {"pressed": parts.stop.pressed}
