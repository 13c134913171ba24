"""The dashboard as an application: its pages by path, for authenticated visitors."""

from pathlib import Path

from fastapi import FastAPI, Request
from nicegui import app as pages
from nicegui import ui
from starlette.types import ASGIApp

from patchlight.cli.dashboard.auth import VISITOR, Authenticated, Visitor, Visitors
from patchlight.cli.dashboard.circuits_page import CircuitsPage
from patchlight.cli.dashboard.history_page import HistoryPage
from patchlight.cli.dashboard.jobs_page import JobsPage
from patchlight.cli.dashboard.lab_page import LabPage
from patchlight.cli.dashboard.lab_watch import LabWatch

_STYLE = Path(__file__).with_name("style.css")
_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">'
    '<path d="M2 13 8 3l6 10" fill="none" stroke="#0072B2" stroke-width="3"/></svg>'
)


def dashboard_app(watch: LabWatch, visitors: Visitors) -> ASGIApp:
    """The pages of one lab; a process has one such application."""

    @ui.page("/", title="Lab")
    def lab(request: Request) -> None:
        LabPage(watch, visitor_of(request), "/").open()

    @ui.page("/jobs", title="Jobs")
    def jobs(request: Request, since: str = "", until: str = "") -> None:
        JobsPage(watch, visitor_of(request), "/jobs", (since, until)).open()

    @ui.page("/circuits", title="Circuits")
    def circuits(request: Request, ocs: str = "") -> None:
        CircuitsPage(watch, visitor_of(request), "/circuits", ocs).open()

    @ui.page("/history", title="History")
    def history(request: Request, since: str = "", until: str = "") -> None:
        HistoryPage(watch, visitor_of(request), "/history", (since, until)).open()

    inner = FastAPI(openapi_url=None)
    ui.run_with(
        inner,
        title="Patchlight",
        dark=None,
        favicon=_ICON,
        show_welcome_message=False,
        tailwind=False,
    )
    ui.add_css(_STYLE.read_text(encoding="utf-8"), shared=True)
    pages.on_shutdown(watch.close)
    return Authenticated(inner, visitors)


def visitor_of(request: Request) -> Visitor:
    """Who was authenticated."""
    visitor = getattr(request.state, VISITOR)
    assert isinstance(visitor, Visitor)
    return visitor
