"""Runs ``patchlight dashboard``: the command, its server and its pages."""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from patchlight.console.connection import connect, controller_options
from patchlight.console.rendering import say
from patchlight.testbed.errors import BadInput, require_packages
from patchlight.testbed.linux.sockets import (
    PortTaken,
    is_beyond_this_machine,
    listen,
)

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from patchlight.cli.dashboard.auth import Visitors
    from patchlight.cli.dashboard.lab_watch import LabWatch
    from patchlight.client.client import ControllerClient

_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">'
    '<path d="M2 13 8 3l6 10" fill="none" stroke="#0072B2" stroke-width="3"/></svg>'
)
USUAL_ADDRESS = "127.0.0.1:8480"


@click.command()
@click.option(
    "--listen",
    "listen_at",
    metavar="HOST:PORT",
    help=f"Address of the page, on this machine only.  [default: {USUAL_ADDRESS}, or a free port "
    "if that is taken]",
)
@click.option(
    "--while-stdin",
    is_flag=True,
    hidden=True,
    help="Exit when standard input ends.",
)
@controller_options
def dashboard(
    listen_at: str | None,
    while_stdin: bool,
    lab_name: str | None,
    address: str | None,
) -> None:
    """Show the lab in a browser.

    It shows circuits, jobs and history, live, until Ctrl-C, and allows what your role allows. Only
    you can open it; if root runs it, every user of this machine can, with their own role.
    """
    require_packages("the dashboard", "nicegui")
    with _listening(listen_at) as listener:
        connecting = partial(connect, lab_name, address)
        with connecting() as client:
            lab = client.identity().name
            for_all = os.geteuid() == 0 and not client.is_logged_in
        host, port = listener.getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
        ready = f"dashboard of {lab}: {url}"
        asyncio.run(
            _serve(
                listener,
                connecting,
                ready,
                for_all=for_all,
                while_stdin=while_stdin,
            )
        )


def _listening(listen_at: str | None) -> socket.socket:
    if listen_at is not None and is_beyond_this_machine(listen_at):
        raise BadInput(
            f"the dashboard cannot listen at {listen_at}: it serves users of this machine only",
            hint="run it on the machine with the browser, with --controller HOST:PORT after "
            "'patchlight login', or forward a port: ssh -L 8480:127.0.0.1:8480 HOST",
        )
    try:
        return listen(listen_at or USUAL_ADDRESS)
    except PortTaken:
        if listen_at is not None:
            raise
        return listen("127.0.0.1:0")


async def _serve(
    listener: socket.socket,
    connecting: "partial[ControllerClient]",
    ready: str,
    *,
    for_all: bool,
    while_stdin: bool,
) -> None:
    # Imported late: NiceGUI takes most of a second, which --help does not need.
    from patchlight.cli.dashboard.auth import Visitors
    from patchlight.cli.dashboard.lab_watch import LabWatch
    from patchlight.testbed.linux.http_server import http_server
    from patchlight.testbed.logs import log_to_stderr

    log_to_stderr(logging.WARNING, "%(levelname)s %(name)s: %(message)s")
    visitors = Visitors(connecting, for_all=for_all)
    watch = LabWatch(connecting)
    server = http_server(
        dashboard_app(watch, visitors),
        hosts=("localhost", "127.0.0.1", "::1"),
        websockets=True,
        lifespan="on",
        timeout_graceful_shutdown=2,
    )
    loop = asyncio.get_running_loop()

    def end(*, of_input: bool = False) -> None:
        if of_input:
            loop.remove_reader(sys.stdin.fileno())
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    if while_stdin:  # the parent never writes to it
        loop.add_reader(sys.stdin.fileno(), partial(end, of_input=True))
    watch.start()
    try:
        say(ready)
        await server.serve(sockets=[listener])
    finally:
        watch.close()
        visitors.close()


def dashboard_app(watch: "LabWatch", visitors: "Visitors") -> "ASGIApp":
    """The pages of one lab, for authenticated visitors; one application per process."""
    from fastapi import FastAPI, Request
    from nicegui import app as pages
    from nicegui import ui

    from patchlight.cli.dashboard.auth import Authenticated
    from patchlight.cli.dashboard.circuits_page import CircuitsPage
    from patchlight.cli.dashboard.lab_page import LabPage
    from patchlight.cli.dashboard.page import PAGES, Page
    from patchlight.cli.dashboard.period_pages import HistoryPage, JobsPage

    def add(path: str, kind: "Callable[[LabWatch, Request], Page]") -> None:
        @ui.page(path, title=PAGES[path])
        def opened(request: Request) -> None:
            kind(watch, request).open()

    kinds = {
        "/": LabPage,
        "/jobs": JobsPage,
        "/circuits": CircuitsPage,
        "/history": HistoryPage,
    }
    for path, kind in kinds.items():
        add(path, kind)
    inner = FastAPI(openapi_url=None)
    ui.run_with(
        inner,
        title="Patchlight",
        dark=None,
        favicon=_ICON,
        show_welcome_message=False,
        tailwind=False,
    )
    ui.add_css(
        Path(__file__).with_name("style.css").read_text(encoding="utf-8"),
        shared=True,
    )
    pages.on_shutdown(watch.close)
    return Authenticated(inner, visitors)
