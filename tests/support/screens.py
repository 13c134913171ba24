"""Pictures of the dashboard's pages of a lab that is made up, at the widths of a phone, tablet
and desk: ``python -m tests.support.screens FOLDER SERVERS``.

Ends with 1 where something on a page is cut, overlaps, or scrolls sideways.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import httpx
from playwright.async_api import Page

from patchlight.cli.dashboard import dashboard_app
from patchlight.cli.dashboard.auth import Visitors
from patchlight.cli.dashboard.lab_view import job_colours
from patchlight.cli.dashboard.lab_watch import LabWatch
from patchlight.client.client import ControllerClient
from patchlight.testbed.generate.builder import LabBuilder
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.linux.http_server import http_server
from patchlight.testbed.linux.sockets import listen
from tests.support import answers
from tests.support.dashboard import browser_page, take_picture

WIDTHS = (390, 820, 1440)
_LAYOUT = Path(__file__).parents[1] / "cli" / "dashboard" / "layout.js"
_LAB_PAGE = "/"
_PAGES = {_LAB_PAGE: "lab", "/jobs": "jobs"}
_SCREENS = 3  # before the first chart, on a phone
_LOG = {"text": f"iteration 1 {'takes ' * 40}\n", "next": 9, "ended": False}
_NAMES = ("resnet50", "bert-large", "vgg16")


def lab_of(servers: int) -> Lab:
    """So many servers on two OCSs of two vendors, under 3 ToRs, or 4 if they are many."""
    build = LabBuilder(f"lab{servers}", network="10.1.0.0/16")
    tors = 3 if servers < 16 else 4
    for number in range(tors):
        build.switch(f"tor{number + 1}")
    for number, driver in enumerate(("calient-tl1", "polatis-scpi")):
        build.ocs(f"ocs{number + 1}", driver=driver)
    for number in range(servers):
        name = build.server(
            f"server{number + 1}", gpus=["Tesla M40"], rate="40Gbps"
        )
        ocs = f"ocs{2 * number // servers + 1}"
        tor = f"tor{tors * number // servers + 1}"
        build.fibre(name, ocs)
        _, port = build.fibre(ocs, tor)
        build.circuit(f"{name}.nic0", port)
    for number in range(1, tors):
        build.fibre(f"tor{number}", f"tor{number + 1}", rate="10Gbps")
    return build.lab()


def _nobody(uid: int | None = None) -> ControllerClient:
    def answer(request: httpx.Request) -> httpx.Response:
        log = _LOG if "after=0" in str(request.url) else {**_LOG, "text": ""}
        said = {"name": "lab", "file": "", "fingerprint": "", "origin": ""}
        return httpx.Response(
            200, json={**said, "user": "eva", "role": "admin", **log}
        )

    return ControllerClient(
        "127.0.0.1:1", transport=httpx.MockTransport(answer)
    )


def _filled(watch: LabWatch, lab: Lab) -> None:
    """Three jobs at work and one that waits, a change that was refused, and samples."""
    now = time.time()
    hosts = [host.name for host in lab.hosts]
    each = len(hosts) // 3
    jobs: list[dict[str, Any]] = [
        {
            "id": f"{name}-{number}",
            "spec": {"name": name, "iterations": 400},
            "state": "running",
            "hosts": hosts[number * each : (number + 1) * each],
            "by": "eva",
            "submitted_at": now - 300,
            "finished_at": None,
            "runs_since": now - 280 + 20 * number,
            "predicted_iteration_s": 0.9,
        }
        for number, name in enumerate(_NAMES)
    ]
    words = f"it needs 8 GPUs, {len(hosts) - 3 * each} are free"
    spec = {"name": "gpt-mini", "iterations": 400}
    jobs.append(
        {"id": "gpt", "spec": spec, "state": "queued", "message": words}
    )
    first = next(iter(lab.initial_maps))
    refused = {
        "id": 8,
        "state": "refused",
        "by": "eva",
        "message": "nothing was changed: port 1 is locked by bo",
        "started_at": now - 100,
        "finished_at": now - 99,
        "changes": {first: {"breaks": [], "makes": ["1>9"]}},
    }
    # Also of the next minute, for pages that are looked at later.
    for second in range(360):
        for number, host in enumerate(lab.hosts):
            share = (number * 7 + second * 13) % 97 / 97
            at = now - 300 + second
            watch.rates[host.name].append((at, 2e10 * share))
            gpu = f"{host.server.name}.gpu0"
            watch.gpus[gpu].append((at, 0.6 + 0.4 * share))
    maps = {
        name: {"map": [str(c) for c in port_map]}
        for name, port_map in lab.initial_maps.items()
    }
    colours = job_colours({}, [job["id"] for job in jobs])
    watch.lab = lab
    watch.trouble = ""
    watch.view = answers.shown(
        lab,
        jobs=jobs,
        maps=maps,
        changes=[refused],
        colours=colours,
    )
    watch.revision += 1


async def _pictures(folder: Path, servers: int) -> list[str]:
    """Take all pictures; what is wrong with the pages."""
    watch = LabWatch(_nobody)
    _filled(watch, lab_of(servers))
    app = dashboard_app(watch, Visitors(_nobody, for_all=True))
    server = http_server(
        app, websockets=True, lifespan="on", timeout_graceful_shutdown=1
    )
    wrong: list[str] = []
    with listen("127.0.0.1:0") as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with browser_page() as watched:
            for path, name in _PAGES.items():
                await watched.page.goto(url + path)
                for width in WIDTHS:
                    found = await _look(watched.page, width)
                    wrong += [f"{name}, {width} px: {each}" for each in found]
                    file = folder / f"{name}-{servers}-{width}.png"
                    await take_picture(watched.page, file, full_page=True)
        server.should_exit = True
        await serving
    return wrong


async def _look(page: Page, width: int) -> list[str]:
    """What is wrong with a page that has this width; it has settled when two looks agree."""
    height = 844 if width < 600 else 900
    await page.set_viewport_size({"width": width, "height": height})
    await page.get_by_text("gpt-mini").first.wait_for()
    layout = _LAYOUT.read_text(encoding="utf-8")
    found: list[str] = await page.evaluate(layout)
    for _ in range(20):
        await page.wait_for_timeout(
            250
        )  # labels of fields move to their place
        before = found
        found = await page.evaluate(layout)
        if found == before:
            break
    top = "document.querySelector('canvas')?.getBoundingClientRect().top ?? 0"
    if await page.evaluate(top) > _SCREENS * height:
        found.append("the first chart is too far down")
    return found


if __name__ == "__main__":
    target, count = sys.argv[1:]
    Path(target).mkdir(parents=True, exist_ok=True)
    mistakes = asyncio.run(_pictures(Path(target), int(count)))
    print(json.dumps(mistakes, indent=2))
    sys.exit(bool(mistakes))
