"""The routes on circuits: looking, locking, saving maps, stopping.

They need the parts of a change and nothing else of the controller, so that they also serve who
talks to the devices directly.
"""

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import PlainTextResponse

from patchlight.controller.api import models
from patchlight.controller.api.answers import Answered
from patchlight.controller.api.caller import Operator
from patchlight.controller.api.describing import gives
from patchlight.controller.changes.operations import CircuitOperations, DriftReport, PowerReport
from patchlight.controller.changes.parts import CircuitParts
from patchlight.controller.changes.power import PortReading
from patchlight.controller.changes.preflight import LockKind
from patchlight.controller.changes.record import as_texts, fingerprint
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.labmaps import check_map_name
from patchlight.testbed.lab.optical_links import Entry
from patchlight.testbed.lab.spectrum import ChannelConnect
from patchlight.testbed.lab.topology import FORMATS, topology_of
from patchlight.testbed.lab.wavelengths import WavelengthSwitch
from patchlight.testbed.wire.rest import circuits as shapes
from patchlight.testbed.wire.rest.lab import Links, TopologyShape

Answer = dict[str, Any]


def circuit_routes(operations: CircuitOperations) -> APIRouter:
    """The routes on the circuits of one lab."""
    routes = APIRouter(prefix="/v1", tags=["circuits"])
    _look(routes, operations)
    _operate(routes, operations)
    return routes


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


def _look(routes: APIRouter, operations: CircuitOperations) -> None:
    parts = operations.parts

    @routes.get("/links", **gives(Links))
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

    @routes.get("/topology", **gives(TopologyShape, also="text/plain"))
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

    @routes.get("/locks", **gives(shapes.Locks))
    async def locks() -> Answer:
        return {"locks": [asdict(lock) for lock in parts.locks.all()]}

    @routes.post("/locks", **gives(shapes.Locks))
    async def lock(request: models.LockRequest, caller: Operator) -> Answer:
        kind: LockKind = "kept" if request.keep else "locked"
        places = operations.places(request.ocs, request.ports)
        made = parts.locks.lock(request.ocs, places, kind, caller.by, request.why)
        return {"locks": [asdict(lock) for lock in made]}

    @routes.post("/locks/release", **gives(shapes.Locks))
    async def unlock(request: models.UnlockRequest, caller: Operator) -> Answer:
        places = operations.places(request.ocs, request.ports)
        gone = parts.locks.unlock(request.ocs, places, caller.by, request.why)
        return {"locks": [asdict(lock) for lock in gone]}

    def button() -> Answer:
        return {"pressed": parts.stop.pressed, "unwritten": parts.stop.unwritten}

    @routes.get("/stop", **gives(shapes.StopButton))
    async def stopped() -> Answer:
        return button()

    @routes.post("/stop", **gives(shapes.StopButton))
    async def press(request: models.StopRequest, caller: Operator) -> Answer:
        parts.stop.press(caller.by, request.why)
        return button()

    @routes.post("/stop/clear", **gives(shapes.StopButton))
    async def clear(request: models.StopRequest, caller: Operator) -> Answer:
        parts.stop.clear(caller.by, request.why)
        return button()
