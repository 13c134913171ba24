"""What an update of the dashboard's pages costs a browser, in a lab of more than 1,000 ports.

The pages are served here, and show a lab that is made up: at each update all rates and GPUs are
other ones, and one circuit moves. Chromium says what its scripts took, the kernel what the tab's
process holds. Times are of processor, so that it does not matter how busy the machine is.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
from playwright.async_api import CDPSession, Page, expect

from benchmarks import figure
from patchlight.cli.dashboard import dashboard_app
from patchlight.cli.dashboard.auth import Visitors
from patchlight.cli.dashboard.lab_view import LabView, job_colours
from patchlight.cli.dashboard.lab_watch import LabWatch
from patchlight.client.client import ControllerClient
from patchlight.testbed.generate.generate import two_tors
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.linux.http_server import http_server
from patchlight.testbed.linux.sockets import listen
from patchlight.testbed.wire.rest.circuits import OcsMap
from patchlight.testbed.wire.rest.jobs import JobInList
from tests.support.answers import some
from tests.support.dashboard import browser_page

GPUS = 500
UPDATES = 80


def run() -> list[dict[str, Any]]:
    """The figures."""
    return asyncio.run(_measured())


def _answer(_: httpx.Request) -> httpx.Response:
    return httpx.Response(
        200, json={"name": "l", "file": "", "fingerprint": ""} | _ME
    )


_ME = {"user": "bench", "role": "admin", "origin": ""}


def _nobody(uid: int | None = None) -> ControllerClient:
    return ControllerClient(
        "127.0.0.1:1", transport=httpx.MockTransport(_answer)
    )


async def _measured() -> list[dict[str, Any]]:
    lab = two_tors(GPUS)
    watch = LabWatch(_nobody)
    watch.lab = lab
    watch.trouble = ""
    app = dashboard_app(watch, Visitors(_nobody, for_all=True))
    server = http_server(
        app, websockets=True, lifespan="on", timeout_graceful_shutdown=1
    )
    with listen("127.0.0.1:0") as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
            async with browser_page() as watched:
                return await _figures(watched.page, url, watch, lab)
        finally:
            server.should_exit = True
            await serving


async def _figures(
    page: Page, url: str, watch: LabWatch, lab: Lab
) -> list[dict[str, Any]]:
    name = f"dashboard, {GPUS} GPUs, {len(lab.circuit_fibres['ocs1'])} ports of an OCS, update of"
    figures = await _costs(
        page, url, watch, f"{name} the picture", _picture_shows
    )
    held = figure(
        f"{name} the picture: memory of the tab's process",
        _renderer_bytes() / 1e6,
        "MB",
        "at most 200",
    )
    circuits = await _costs(
        page, f"{url}circuits", watch, f"{name} the circuits", _table_shows
    )
    return [*figures, held, *circuits]


async def _costs(
    page: Page,
    url: str,
    watch: LabWatch,
    name: str,
    shows: Callable[[Page, int], Awaitable[None]],
) -> list[dict[str, Any]]:
    """What so many updates of one page cost."""
    _update(watch, 0)
    await page.goto(url)
    await shows(page, 0)
    session = await page.context.new_cdp_session(page)
    await session.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = await _metrics(session)
    ours_s = time.process_time()
    for number in range(1, UPDATES + 1):
        _update(watch, number)
        await shows(page, number)
    after = await _metrics(session)
    ours_s = time.process_time() - ours_s
    script_ms, all_ms = (
        1e3 * (after[key] - before[key]) / UPDATES
        for key in ("ScriptDuration", "TaskDuration")
    )
    return [
        figure(f"{name}: scripting", script_ms, "ms", "at most 150"),
        figure(f"{name}: all work of the tab", all_ms, "ms"),
        figure(
            f"{name}: processor of the dashboard", 1e3 * ours_s / UPDATES, "ms"
        ),
        figure(
            f"{name}: heap of the tab", after["JSHeapUsedSize"] / 1e6, "MB"
        ),
    ]


def _update(watch: LabWatch, number: int) -> None:
    """Other rates and shares for all hosts, and one circuit that moves to a free port."""
    lab = watch.lab
    now = time.time()
    for n, host in enumerate(lab.hosts):
        watch.rates[host.name].append(
            (now, 1e9 + 1e6 * ((n * 7 + number * 13) % 997))
        )
        watch.gpus[f"{host.server.name}.gpu0"].append(
            (now, ((n + number) % 100) / 100)
        )
    jobs = [
        _job(f"job-{n}", [h.name for h in lab.hosts[n::10]]) for n in range(10)
    ]
    circuits = [str(c) for c in lab.initial_maps["ocs1"] if 1 not in c]
    to = _lit_to(number)
    circuits += [f"1>{to}", f"{to}>1"]
    colours = job_colours({}, [job.id for job in jobs])
    maps = {"ocs1": OcsMap(map=circuits)}
    watch.view = LabView(
        lab,
        jobs,
        maps,
        colours=colours,
    )
    watch.jobs = jobs
    watch.revision += 1


def _job(job_id: str, hosts: list[str]) -> JobInList:
    spec = {"name": job_id, "iterations": 100}
    known = {
        "id": job_id,
        "spec": spec,
        "state": "running",
        "hosts": hosts,
        "by": "bench",
    }
    times = {
        "submitted_at": 0.0,
        "started_at": 1.0,
        "runs_since": 1.0,
        "finished_at": None,
    }
    return some(JobInList, known | times | {"iterations_done": 1})


def _lit_to(number: int) -> int:
    """The port that the circuit which moves leads to after that update."""
    return GPUS + 1 if number % 2 == 0 else 2 * GPUS + 1


async def _picture_shows(page: Page, number: int) -> None:
    circuit = page.locator(f"[data-circuit='ocs1 1>{_lit_to(number)}']")
    await expect(circuit).to_have_count(1)


async def _table_shows(page: Page, number: int) -> None:
    cell = page.locator("tbody tr:first-child td:nth-child(3)")
    await expect(cell).to_have_text(str(_lit_to(number)))


async def _metrics(session: CDPSession) -> dict[str, float]:
    told = await session.send("Performance.getMetrics")
    return {each["name"]: each["value"] for each in told["metrics"]}


def _renderer_bytes() -> int:
    """What the largest tab's process holds, what it shares with others counted in part."""
    found = [0]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if b"--type=renderer" in (process / "cmdline").read_bytes():
                lines = (process / "smaps_rollup").read_text().splitlines()
                found += [
                    1024 * int(line.split()[1])
                    for line in lines
                    if line.startswith("Pss:")
                ]
        except OSError:
            continue
    return max(found)
