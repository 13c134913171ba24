"""The routes on circuits: looking, changing, undoing, locking, stopping.

They need an optical plant and nothing else of the controller, so that they also serve who
talks to the devices directly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse

from patchlight.controller.api.caller import caller_of
from patchlight.controller.api.models import (
    AdoptRequest,
    BaselinesRequest,
    ChangeRequest,
    LockRequest,
    ReconfigurationRequest,
    RepairRequest,
    SaveRequest,
    StopRequest,
    UnlockRequest,
)
from patchlight.controller.changes.device_maps import Decide
from patchlight.controller.changes.locks import FieldType
from patchlight.controller.changes.planning import wanted_maps
from patchlight.controller.changes.record import ChangeOptions, Refused, as_texts, to_row
from patchlight.controller.operations import CircuitOperations
from patchlight.testbed.errors import BadInput, OutcomeUnknown, PatchlightError
from patchlight.testbed.portmap import PortMap

Answer = dict[str, Any]


async def explain(_: Request, error: Exception) -> JSONResponse:
    """An error of ours as the API tells it: what is wrong, and what to do next."""
    assert isinstance(error, PatchlightError)
    status = 422 if isinstance(error, BadInput) else 409 if isinstance(error, Refused) else 502
    said = {"error": error.message, "hint": error.hint}
    if isinstance(error, OutcomeUnknown):
        said["outcome"] = "unknown"
    return JSONResponse(said, status_code=status)


Caller = Annotated[ChangeOptions, Depends(caller_of)]


def circuit_routes(plant: CircuitOperations) -> APIRouter:
    """The routes of one plant."""
    routes = APIRouter(prefix="/v1")
    _look(routes, plant)
    _change(routes, plant)
    _operate(routes, plant)
    return routes


async def _run(
    plant: CircuitOperations,
    decide: Decide,
    request: ChangeRequest,
    caller: ChangeOptions,
    adopts: Mapping[str, PortMap],
    *,
    why: str,
    reverts: int | None = None,
) -> Answer:
    terms = ChangeOptions(
        by=caller.by,
        origin=caller.origin,
        spare_jobs=request.spare_jobs,
        planned_from=request.planned_from,
        adopts=adopts,
        reverts=reverts,
    )
    if request.dry_run:
        return plant.preview_as_json(*await plant.reconfigurer.preview(decide, terms))
    return to_row(await plant.reconfigurer.change(decide, request.why or why, terms))


def _look(routes: APIRouter, plant: CircuitOperations) -> None:
    @routes.get("/links")
    async def links() -> Answer:
        found = await plant.reconfigurer.links()
        return {
            # Links through these are not known; they are left out.
            "unread": plant.reach.unread,
            "links": [
                {
                    "a": str(a),
                    "b": str(b),
                    "rate_bps": found.paths[a].rate_bps,
                    "via": [
                        {"ocs": ocs, "inp": c.inp, "out": c.out} for ocs, c in found.paths[a].hops
                    ],
                }
                for a, b in found.pairs()
            ],
        }

    @routes.get("/circuits")
    async def circuits() -> Answer:
        maps = await plant.reconfigurer.read_maps()
        # No map at all, rather than an empty one: applied later, that would clear the switch.
        unread = {
            name: {"map": None, "unreachable": words, "assumed": as_texts(maps.assumed[name])}
            for name, words in maps.unread.items()
        }
        known = {name: {"map": as_texts(port_map)} for name, port_map in maps.items()}
        return {name: (known | unread)[name] for name in plant.drivers}

    @routes.get("/circuit-switches")
    async def circuit_switches() -> Answer:
        return {"circuit_switches": await plant.circuit_switches()}

    @routes.get("/circuits/{ocs}/light")
    async def light(ocs: str) -> Answer:
        return await plant.light(ocs)

    @routes.get("/alarms")
    async def alarms(ocs: Annotated[list[str] | None, Query()] = None) -> Answer:
        return {"alarms": await plant.alarms(ocs or [])}

    @routes.get("/drift")
    async def drift() -> Answer:
        return {"drift": await plant.drift()}

    @routes.get("/events")
    async def events(after: int = 0) -> Answer:
        return {"events": plant.store.events(after), "last": plant.store.last_event()}


def _change(routes: APIRouter, plant: CircuitOperations) -> None:
    @routes.post("/reconfigurations")
    async def reconfigure(request: ReconfigurationRequest, caller: Caller) -> Answer:
        asked = {name: PortMap.parse(texts) for name, texts in request.maps.items()}

        def decide(maps: Mapping[str, PortMap]) -> dict[str, PortMap]:
            return wanted_maps(plant.lab, maps, asked, request.disconnect, only=request.only)

        return await _run(plant, decide, request, caller, asked, why="asked by the user")

    @routes.get("/reconfigurations")
    async def reconfigurations(last: int | None = None) -> Answer:
        return {"reconfigurations": plant.store.reconfigurations(last)}

    @routes.get("/reconfigurations/{number}")
    async def reconfiguration(number: int) -> Answer:
        record = plant.store.reconfiguration(number)
        if record is None:
            raise BadInput(f"there is no change {number}: 'patchlight ocs history' shows them")
        return record

    @routes.post("/reconfigurations/{number}/rollback")
    async def roll_back(number: int, request: ChangeRequest, caller: Caller) -> Answer:
        decide, adopts = plant.undoing(number)
        why = f"undoes change {number}"
        return await _run(plant, decide, request, caller, adopts, why=why, reverts=number)

    @routes.post("/maps/{name}/restore")
    async def restore(name: str, request: ChangeRequest, caller: Caller) -> Answer:
        saved = plant.saved(name)
        return await _run(plant, lambda _: saved, request, caller, saved, why=f"restores {name}")

    @routes.post("/drift/repair")
    async def repair(request: RepairRequest, caller: Caller) -> Answer:
        committed = plant.repairing(request.ocs)
        return await _run(
            plant, lambda _: committed, request, caller, committed, why="repairs drift"
        )

    @routes.post("/drift/adopt")
    async def adopt(request: AdoptRequest, caller: Caller) -> Answer:
        maps = await plant.reconfigurer.read_maps()
        adopts = {name: maps[name] for name in plant.named(request.ocs)}
        asked = ChangeRequest(why=request.why)
        return await _run(plant, lambda _: {}, asked, caller, adopts, why="adopts drift")


def _operate(routes: APIRouter, plant: CircuitOperations) -> None:
    @routes.post("/baselines")
    async def accept(request: BaselinesRequest, caller: Caller) -> Answer:
        return {"circuits": await plant.accept_light(request.ocs, caller.by)}

    @routes.get("/maps")
    async def maps() -> Answer:
        return {"maps": list(plant.store.saved_maps().values())}

    @routes.put("/maps/{name}")
    async def save(name: str, request: SaveRequest, caller: Caller) -> Answer:
        return await plant.save(name, request.ocs, caller.by, request.why)

    @routes.delete("/maps/{name}")
    async def forget(name: str) -> Answer:
        plant.saved(name)
        plant.store.delete_map(name)
        return {"name": name}

    @routes.get("/locks")
    async def locks() -> Answer:
        return {"locks": [asdict(lock) for lock in plant.locks.all()]}

    @routes.post("/locks")
    async def lock(request: LockRequest, caller: Caller) -> Answer:
        kind: FieldType = "kept" if request.keep else "locked"
        made = plant.locks.lock(request.ocs, request.ports, kind, caller.by, request.why)
        return {"locks": [asdict(each) for each in made]}

    @routes.post("/locks/release")
    async def unlock(request: UnlockRequest, caller: Caller) -> Answer:
        gone = plant.locks.unlock(request.ocs, request.ports, caller.by, request.why)
        return {"locks": [asdict(each) for each in gone]}

    @routes.get("/stop")
    async def stopped() -> Answer:
        return {"pressed": plant.stop.pressed}

    @routes.post("/stop")
    async def press(request: StopRequest, caller: Caller) -> Answer:
        plant.stop.press(caller.by, request.why)
        return {"pressed": plant.stop.pressed}

    @routes.post("/stop/clear")
    async def clear(request: StopRequest, caller: Caller) -> Answer:
        plant.stop.clear(caller.by, request.why)
        return {"pressed": plant.stop.pressed}
