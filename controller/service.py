"""The controller at work: opens its parts, runs them, lets go of them."""

import asyncio
import contextlib
import gc
import logging
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from patchlight.controller.api.listening import Front, listening_for_api
from patchlight.controller.circuits.registry import CONTROLLER, device_lock
from patchlight.controller.metrics.exposition import (
    LOCAL_NAMES,
    ControllerMetrics,
    listen_for_metrics,
)
from patchlight.controller.metrics.job_traces import JobTraces, sending_to
from patchlight.controller.parts import Controller, Settings
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.logs import log_to_stderr, log_trouble

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI
    from opentelemetry.sdk.trace import SpanProcessor


def serve(lab: Lab, settings: Settings, on_ready: Callable[[], None]) -> None:
    """Run a controller until it is told to stop; its log goes to standard error.

    ``on_ready`` is called once it serves. ``BadInput`` or ``PatchlightError`` before that for what
    it cannot be run with; an address that is refused leaves no trace.
    """
    log_to_stderr(logging.INFO, "%(asctime)s %(levelname)s %(name)s: %(message)s")
    for chatty in ("httpx", "httpcore"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    with contextlib.ExitStack() as stack:
        fronts = stack.enter_context(listening_for_api(lab, settings.api, settings.tls))
        metrics = listen_for_metrics(settings.metrics) if settings.metrics else None
        if metrics is not None:
            stack.enter_context(metrics)
        receiver = sending_to(settings.traces) if settings.traces is not None else None
        sockets = _Sockets(fronts, metrics)
        asyncio.run(_run(Controller(lab, settings), sockets, receiver, on_ready))


class _Sockets(NamedTuple):
    """Where requests come in: all of them, and those for metrics alone."""

    api: list[Front]
    metrics: socket.socket | None


async def _run(
    controller: Controller,
    sockets: _Sockets,
    receiver: "SpanProcessor | None",
    on_ready: Callable[[], None],
) -> None:
    """Serve until SIGTERM or Ctrl-C. Circuits and flow entries outlive the controller."""
    asyncio.get_running_loop().set_exception_handler(log_trouble)
    metrics = ControllerMetrics(controller)
    told_to_stop = asyncio.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signal_number, told_to_stop.set)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(controller.store.close)
        stack.callback(controller.series.close)
        stack.push_async_callback(controller.fleet.close)
        if receiver is not None:
            stack.callback(JobTraces(controller.lab.name, controller.jobs, receiver).close)
        holder = f"{CONTROLLER} {controller.lab.name}"
        driven = [switch for switch in controller.lab.optical_switches if switch.driver]
        stack.enter_context(device_lock(driven, holder))
        for driver in controller.drivers.values():
            stack.push_async_callback(driver.close)
        stack.push_async_callback(controller.speaker.close)
        controller.speaker.subscribe(controller.on_event)
        # A process of its own, which takes as long to start as what follows here.
        speaking = asyncio.create_task(controller.speaker.start(), name="speaker")
        stack.push_async_callback(_over, speaking)
        await asyncio.sleep(0)
        # Who does not answer is left for later: one switch does not keep the lab waiting.
        await controller.circuits.devices.open()
        app, servers = _servers(controller, sockets, metrics)
        await speaking
        stack.push_async_callback(controller.switches.close)
        await controller.switches.look()
        stack.push_async_callback(controller.transactions.close)
        await controller.device_watch.begin()
        await controller.transactions.settle_flows()
        stack.push_async_callback(controller.scheduler.close)
        stack.push_async_callback(controller.discovery.close)
        await controller.discovery.recover()
        stack.push_async_callback(controller.background.close)
        controller.background.start("scheduler", controller.scheduler.run)
        controller.background.start("light", controller.scheduler.rewiring.run)
        controller.background.start("job traffic", controller.traffic.watch)
        controller.background.start("retention", controller.retention.run)
        controller.background.start("journal", controller.store.keep_writing)
        controller.background.start("fleet", controller.fleet.watch)
        controller.background.start("time series", controller.recorder.run)
        controller.background.start("device watch", controller.device_watch.run)
        controller.background.start("optical power", metrics.power.run)
        controller.background.start("paths", controller.paths.run)
        if controller.lab.paths == "nodes":
            controller.background.start("bounds of paths", controller.path_bounds.run)
        serving = [
            asyncio.create_task(server.serve(sockets=[at]), name="api") for server, at in servers
        ]
        stopping = asyncio.create_task(told_to_stop.wait(), name="stop")
        # What is here now stays: to look through it for garbage would hold up decisions, by up to
        # a tenth of a second.
        gc.freeze()
        on_ready()
        try:
            # Without its API a controller cannot be asked or told anything: that ends it. Its
            # parts begin again by themselves.
            done, _ = await asyncio.wait([*serving, stopping], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            app.state.events.close()
            for server, _ in servers:
                server.should_exit = True
            stopping.cancel()
            await asyncio.gather(*serving, stopping, return_exceptions=True)


def _servers(
    controller: Controller, sockets: _Sockets, metrics: ControllerMetrics
) -> "tuple[FastAPI, list[tuple[uvicorn.Server, socket.socket]]]":
    """The API, and who answers at which socket: what that takes is imported while the speaker
    starts."""
    from patchlight.controller.api.app import create_app
    from patchlight.controller.api.metrics import metrics_app, metrics_routes
    from patchlight.testbed.linux.http_server import http_server

    app = create_app(controller)
    app.include_router(metrics_routes(metrics))
    servers = [
        (http_server(app, hosts=front.hosts, tls=front.tls, lifespan="off"), front.socket)
        for front in sockets.api
    ]
    if sockets.metrics is not None:
        readers = http_server(metrics_app(metrics), hosts=LOCAL_NAMES, lifespan="off")
        servers.append((readers, sockets.metrics))
    return app, servers


async def _over(task: asyncio.Task[None]) -> None:
    """Cancel the task if it is not at its end, and wait for that."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
