"""Runs a controller until it is stopped, and opens the sockets of its API.

At its Unix socket and on loopback the kernel identifies the caller. Other addresses need TLS and
tokens; a controller that listens there also has a Unix socket, where the first token is created.
"""

import asyncio
import gc
import grp
import logging
import os
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from patchlight.controller.circuits.registry import CONTROLLER, device_lock
from patchlight.controller.metrics import exposition
from patchlight.controller.parts import Controller, ControllerSettings
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.rules import Access, Role
from patchlight.testbed.linux.credentials import (
    controller_name,
    new_context,
    read_credentials,
)
from patchlight.testbed.linux.sockets import (
    UNIX,
    bind_unix,
    is_loopback,
    joined_address,
    listen,
    split_address,
)
from patchlight.testbed.logs import log_to_stderr, log_trouble
from patchlight.testbed.wire.lab_api import keepers_socket, own_socket

if TYPE_CHECKING:
    from fastapi import FastAPI
    from opentelemetry.sdk.trace import SpanProcessor


# Connections at a time, and new ones in two seconds.
_PER_USER = 32
_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Front:
    """A socket of the API, the host names that requests may use for it, and its TLS, if any."""

    socket: socket.socket
    hosts: tuple[str, ...]
    tls: ssl.SSLContext | None = None


def serve(
    lab: Lab,
    settings: ControllerSettings,
    on_ready: Callable[[], None],
) -> None:
    """Run a controller until it is stopped, with its log on standard error; ``on_ready`` is called
    once it serves. ``PatchlightError`` before that if it cannot start."""
    log_to_stderr(
        logging.INFO, "%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for chatty in ("httpx", "httpcore"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    with ExitStack() as stack:
        fronts = stack.enter_context(
            listening_for_api(lab, settings.api, settings.tls)
        )
        metrics = (
            exposition.listen_for_metrics(settings.metrics)
            if settings.metrics
            else None
        )
        if metrics is not None:
            stack.enter_context(metrics)
        receiver = (
            exposition.sending_to(settings.traces)
            if settings.traces is not None
            else None
        )
        asyncio.run(
            _run(
                Controller(lab, settings),
                fronts,
                metrics,
                receiver,
                on_ready,
            )
        )


async def _run(
    controller: Controller,
    fronts: list[Front],
    metrics_socket: socket.socket | None,
    receiver: "SpanProcessor | None",
    on_ready: Callable[[], None],
) -> None:
    asyncio.get_running_loop().set_exception_handler(log_trouble)
    told_to_stop = asyncio.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(
            signal_number, told_to_stop.set
        )
    metrics = exposition.ControllerMetrics(controller)
    async with running_parts(controller, metrics, receiver) as app:
        from patchlight.controller.api.app import metrics_app
        from patchlight.controller.api.caller import admin_uids
        from patchlight.testbed.linux.http_server import (
            ServerLimits,
            http_server,
        )

        limits = ServerLimits(
            per_user=_PER_USER,
            trusted=admin_uids(),
        )
        serving_with = partial(
            http_server,
            limits=limits,
            lifespan="off",
        )
        servers = [
            (
                serving_with(
                    app,
                    hosts=front.hosts,
                    tls=front.tls,
                ),
                front.socket,
            )
            for front in fronts
        ]
        if metrics_socket is not None:
            readers = serving_with(metrics_app(metrics), hosts=_LOCAL_NAMES)
            servers.append((readers, metrics_socket))
        serving = [
            asyncio.create_task(server.serve(sockets=[at]), name="api")
            for server, at in servers
        ]
        stopping = asyncio.create_task(told_to_stop.wait(), name="stop")
        # Without the objects made so far, a garbage collection takes 0.1 s less.
        gc.freeze()
        try:
            on_ready()
            # The end of its API ends the controller; its background parts restart.
            done, _ = await asyncio.wait(
                [*serving, stopping], return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()
        finally:
            app.state.events.close()
            for server, _ in servers:
                server.should_exit = True
            stopping.cancel()
            await asyncio.gather(*serving, stopping, return_exceptions=True)


@asynccontextmanager
async def running_parts(
    controller: Controller,
    metrics: exposition.ControllerMetrics,
    receiver: "SpanProcessor | None" = None,
) -> AsyncIterator["FastAPI"]:
    """Run the controller's parts during the block; yields its API, which has to be served."""
    async with AsyncExitStack() as stack:
        stack.callback(controller.store.close)
        stack.callback(controller.series.close)
        stack.push_async_callback(controller.fleet.close)
        if receiver is not None:
            stack.callback(
                exposition.JobTraces(
                    controller.lab.name, controller.jobs, receiver
                ).close
            )
        holder = f"{CONTROLLER} {controller.lab.name}"
        driven = [
            switch
            for switch in controller.lab.optical_switches
            if switch.driver
        ]
        stack.enter_context(
            device_lock(driven, holder, controller.external.device_locks)
        )
        for driver in controller.drivers.values():
            stack.push_async_callback(driver.close)
        stack.push_async_callback(controller.speaker.close)
        controller.speaker.subscribe(controller.on_event)
        # The speaker's process starts meanwhile.
        speaking = asyncio.create_task(
            controller.speaker.start(), name="speaker"
        )
        stack.push_async_callback(_cancel, speaking)
        await asyncio.sleep(0)
        # Devices that do not answer are opened later.
        await controller.circuits.devices.open()
        # Imported while the speaker starts.
        from patchlight.controller.api.app import create_app, metrics_routes

        app = create_app(controller)
        app.include_router(metrics_routes(metrics))
        await speaking
        stack.push_async_callback(controller.switches.close)
        await controller.switches.look()
        stack.push_async_callback(controller.transactions.close)
        await controller.device_watch.begin()
        await controller.transactions.settle_flows()
        stack.push_async_callback(controller.scheduler.close)
        stack.push_async_callback(controller.discovery.close)
        await controller.discovery.recover()
        stack.callback(controller.telemetry.close)
        stack.push_async_callback(controller.background.close)
        for name, run in {
            "scheduler": controller.scheduler.run,
            "light": controller.scheduler.rewiring.run,
            "claims": controller.scheduler.claims.run,
            "interleaving": controller.scheduler.interleaving.run,
            "job traffic": lambda: controller.traffic.watch(
                controller.circuits.maps
            ),
            "retention": controller.retention.run,
            "journal": controller.store.keep_writing,
            "fleet": controller.fleet.watch,
            "time series": controller.recorder.run,
            "device watch": controller.device_watch.run,
            "optical power": metrics.power.run,
            "paths": controller.paths.run,
        }.items():
            controller.background.start(name, run)
        if controller.telemetry.problems:
            controller.background.start("SNMP", controller.telemetry.run)
        if controller.lab.paths == "nodes":
            controller.background.start(
                "bounds of paths", controller.path_bounds.run
            )
        yield app


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@contextmanager
def listening_for_api(
    lab: Lab,
    address: str,
    tls: Path | None,
) -> Iterator[list[Front]]:
    """Sockets at ``host:port`` or ``unix:/path``, removed afterwards. ``BadInput`` for one that
    other machines can reach without a certificate in ``tls``; ``PatchlightError`` if it is in
    use."""
    with ExitStack() as stack:
        if address.startswith(UNIX):
            yield _at_unix_sockets(stack, address, lab.access)
            return
        host = _as_one_address(address)
        if is_loopback(host.rpartition(":")[0].strip("[]")):
            called = (*_LOCAL_NAMES, split_address(address)[0].lower())
            yield [Front(stack.enter_context(listen(host)), called)]
            return
        context = _tls_of(lab.name, address, tls)
        local = _at_unix_sockets(stack, own_socket(lab.name), lab.access)
        own_name = controller_name(lab.name).lower()
        machine = {socket.gethostname().lower(), socket.getfqdn().lower()}
        names = (own_name, split_address(address)[0].lower(), *machine)
        yield [
            Front(stack.enter_context(listen(host)), names, context),
            *local,
        ]


def _at_unix_sockets(
    stack: ExitStack,
    address: str,
    access: Access,
) -> list[Front]:
    path = Path(address.removeprefix(UNIX))
    group = _group_id(access.group)
    # Users without a role cannot connect at all.
    for_group = group is not None or access.others is Role.NOBODY
    if not path.parent.exists():

        def remove_if_empty() -> None:
            with suppress(OSError):
                path.parent.rmdir()

        stack.callback(remove_if_empty)
    fronts = []
    for each, mode in (
        (path, 0o660 if for_group else 0o666),
        (keepers_socket(path), 0o600),
    ):
        listener = stack.enter_context(
            bind_unix(each, "controller", mode=mode)
        )
        stack.callback(each.unlink, missing_ok=True)
        # Immediately: a socket without a listener looks like a dead server's.
        listener.listen()
        fronts.append(Front(listener, _LOCAL_NAMES))
    if group is not None:
        os.chown(path, -1, group)
    return fronts


def _group_id(name: str) -> int | None:
    with suppress(KeyError):
        number = grp.getgrnam(name).gr_gid
        return (
            number if os.geteuid() == 0 or number in os.getgroups() else None
        )
    return None


def _as_one_address(address: str) -> str:
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise BadInput(
            f"listening for the API at {address}: {error.strerror}"
        ) from error
    # An external address comes first: its errors say what is needed.
    numbers = sorted((str(row[4][0]) for row in found), key=is_loopback)
    return joined_address(numbers[0], port)


def _tls_of(
    lab: str,
    address: str,
    folder: Path | None,
) -> ssl.SSLContext:
    if folder is None:
        raise BadInput(
            f"the API cannot listen at {address} without TLS: tokens could be read on the network",
            hint="pass the folder of the controller's certificate with --tls ('patchlight deploy "
            "certificates LAB' creates it), or omit --api and the lab file's controller.api "
            "and use SSH",
        )
    found = read_credentials(folder)
    found.check(controller_name(lab))
    if not found.serves:
        raise BadInput(
            f"the certificate in {folder} is for calls to agents, not for serving users",
            hint="issue a new one with 'patchlight deploy certificates LAB --output DIR'",
        )
    context = new_context(server=True)
    found.load_into(context)
    # Callers use a token instead.
    context.verify_mode = ssl.CERT_NONE
    return context
