"""Talking to the circuit switches without a controller, in this process.

The same transactions, journal, locks and routes as a controller has; only that nobody is
asked to pause and no flow table follows the light.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import httpx
from fastapi import FastAPI

from controller.api.circuits import circuit_routes, explain
from controller.circuits.registry import open_driver, password_of
from controller.claims import DIRECT, DeviceClaimed, claimed
from controller.client import ControllerClient, ControllerError
from controller.plant import Plant
from controller.store import Store
from testbed.errors import PatchlightError
from testbed.lab import Endpoint, Lab
from testbed.wiring import Links


class _Nobody:
    """No packet switches to program, no jobs to pause."""

    async def follow(self, links: Links) -> list[str]:
        return []

    def riding(self, moved: frozenset[Endpoint]) -> list[str]:
        return []

    async def hold(self, moved: frozenset[Endpoint]) -> list[str]:
        return ["direct: no job was asked to pause, and no flow table follows the light"]

    async def release(self) -> None:
        return None


class InProcess(httpx.BaseTransport):
    """Requests to an application in this process, on a loop that runs while it answers."""

    def __init__(self, app: FastAPI, loop: asyncio.AbstractEventLoop) -> None:
        self._inner, self._loop = httpx.ASGITransport(app, client=("direct", 0)), loop

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Have the application answer."""
        return self._loop.run_until_complete(self._answer(request))

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        content = request.read()
        asked = httpx.Request(request.method, request.url, headers=request.headers, content=content)
        response = await self._inner.handle_async_request(asked)
        body = await response.aread()
        return httpx.Response(response.status_code, headers=response.headers, content=body)


# What is logged of devices and changes, a command without a controller prints as its own answer.
logging.getLogger("patchlight.circuits").addHandler(logging.NullHandler())

Needs = Callable[[Store], Collection[str]]
"""Which circuit switches a command talks to, given the journal."""


@contextlib.contextmanager
def direct_client(
    lab: Lab, state_dir: Path, user: str = "", needs: Needs | None = None, *, talks: bool = True
) -> Iterator[ControllerClient]:
    """A client whose requests go straight to the lab's circuit switches.

    Only those that the command ``needs`` are opened and held (default: all); what the others
    have is taken from the journal. Without ``talks`` they are held and not opened: for what
    is in the journal alone. The journal is in ``state_dir``: what an earlier one left half done
    is finished or undone first, as far as it concerns these devices. ``DeviceClaimed`` if a
    controller runs for the lab or somebody holds one of the devices.
    """
    refuse_beside_a_controller(lab)
    with contextlib.ExitStack() as stack:
        store = open_store(state_dir)
        stack.callback(store.close)
        names = {s.name for s in lab.circuit_switches} if needs is None else set(needs(store))
        switches = [s for s in lab.circuit_switches if s.name in names]
        stack.enter_context(claimed(switches, DIRECT))
        runner = stack.enter_context(asyncio.Runner())
        loop = runner.get_loop()
        drivers = {s.name: open_driver(s, password_of(s)) for s in switches if talks}
        for driver in drivers.values():
            stack.callback(lambda closing: loop.run_until_complete(closing()), driver.close)
        plant = Plant(lab, drivers, _Nobody(), _Nobody(), store)
        # After Ctrl-C: a change that has begun comes to its end.
        stack.callback(lambda: loop.run_until_complete(plant.reconfigurer.close()))
        if talks:
            loop.run_until_complete(plant.reach.open())
            loop.run_until_complete(plant.begin())
        app = FastAPI()
        app.exception_handler(PatchlightError)(explain)
        app.include_router(circuit_routes(plant))
        transport = InProcess(app, loop)
        yield stack.enter_context(ControllerClient("direct", user=user, transport=transport))


def open_store(state_dir: Path) -> Store:
    """The journal in a directory, which is made if it is not there."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PatchlightError(
            f"keeping the journal in {state_dir}: {error.strerror}",
            hint="name another place with --state",
        ) from error
    return Store(state_dir / "controller.db")


def refuse_beside_a_controller(lab: Lab) -> None:
    """``DeviceClaimed`` if a controller of the lab answers."""
    with ControllerClient(lab.controller_api, deadline_s=2.0) as client:
        try:
            running = client.status()["lab"]
        except ControllerError:
            return
    raise DeviceClaimed(
        f"a controller of lab {running} runs at {lab.controller_api}: it holds the switches",
        hint="leave out --direct, or stop the controller first",
    )
