"""The controller at work: opens its parts, runs them, lets go of them."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable

from patchlight.controller.api.app import create_app
from patchlight.controller.api.listening import Front, listening_for_api
from patchlight.controller.circuits.device_lock import CONTROLLER, device_lock
from patchlight.controller.parts import Controller, Settings
from patchlight.testbed.lab import Lab
from patchlight.testbed.linux.http_server import http_server


def serve(lab: Lab, settings: Settings, on_ready: Callable[[], None]) -> None:
    """Run a controller until it is told to stop; its log goes to standard error.

    ``on_ready`` is called once it serves. ``BadInput`` or ``PatchlightError`` before that for what
    it cannot be run with; an address that is refused leaves no trace.
    """
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.INFO, format=form)
    for chatty in ("httpx", "httpcore"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    with listening_for_api(lab, settings.api, settings.tls) as fronts:
        asyncio.run(_run(Controller(lab, settings), fronts, on_ready))


async def _run(controller: Controller, fronts: list[Front], on_ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or Ctrl-C. Circuits and flow entries outlive the controller."""
    app = create_app(controller)
    servers = [http_server(app, hosts=f.hosts, tls=f.tls, lifespan="off") for f in fronts]
    told_to_stop = asyncio.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signal_number, told_to_stop.set)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(controller.store.close)
        stack.push_async_callback(controller.fleet.close)
        holder = f"{CONTROLLER} {controller.lab.name}"
        stack.enter_context(device_lock(controller.lab.circuit_switches, holder))
        for driver in controller.drivers.values():
            stack.push_async_callback(driver.close)
        # Who does not answer is left for later: one switch does not keep the lab waiting.
        await controller.circuits.devices.open()
        stack.push_async_callback(controller.speaker.close)
        controller.speaker.subscribe(controller.on_event)
        await controller.speaker.start()
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
        controller.background.start("light", controller.scheduler.follower.run)
        controller.background.start("job traffic", controller.traffic.watch)
        controller.background.start("retention", controller.retention.run)
        controller.background.start("fleet", controller.fleet.watch)
        controller.background.start("device watch", controller.device_watch.run)
        serving = [
            asyncio.create_task(server.serve(sockets=[front.socket]), name="api")
            for server, front in zip(servers, fronts, strict=True)
        ]
        stopping = asyncio.create_task(told_to_stop.wait(), name="stop")
        on_ready()
        try:
            # Without its API a controller cannot be asked or told anything: that ends it. Its
            # parts begin again by themselves.
            done, _ = await asyncio.wait([*serving, stopping], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            app.state.events.close()
            for server in servers:
                server.should_exit = True
            stopping.cancel()
            await asyncio.gather(*serving, stopping, return_exceptions=True)
