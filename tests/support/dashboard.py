"""A dashboard that runs for a test, and a browser that looks at it."""

import asyncio
import contextlib
import io
import os
import re
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from PIL import Image
from playwright.async_api import Page, async_playwright, expect

from tests.support.waiting import PATIENCE_S, eventually

_PATIENCE_MS = 1000 * PATIENCE_S


@contextlib.asynccontextmanager
async def dashboard_of(folder: Path, address: str) -> AsyncIterator[str]:
    """``patchlight dashboard`` of the controller at ``address``; where its page is."""
    said = folder / "dashboard.log"
    command = [sys.executable, "-m", "patchlight", "dashboard"]
    command += ["--controller", address, "--listen", "127.0.0.1:0"]
    with said.open("w") as log:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=log, stderr=log
        )
    try:
        await eventually(lambda: _url(process, said), "the dashboard")
        yield _url(process, said)
    finally:
        process.terminate()
        ended = await asyncio.wait_for(process.wait(), PATIENCE_S)
    assert ended == 0, said.read_text()
    assert "Traceback" not in said.read_text(), said.read_text()


def _url(process: asyncio.subprocess.Process, said: Path) -> str:
    assert process.returncode is None, said.read_text()
    found = re.search(r"http://\S+", said.read_text())
    return found[0] if found else ""


@dataclass
class Watched:
    """A page, and what it loaded and complained of."""

    page: Page
    hosts: set[str] = field(default_factory=set)
    complaints: list[str] = field(default_factory=list)


@contextlib.asynccontextmanager
async def browser_page(*, dark: bool = False) -> AsyncIterator[Watched]:
    """A page in Debian's Chromium, without a head. At its end nothing came from elsewhere."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path="/usr/bin/chromium",
            # Root cannot have one, nor can a container; there is no page but ours.
            chromium_sandbox=False,
            args=[
                "--disable-component-update",
                "--disable-background-networking",
            ],
        )
        try:
            page = await browser.new_page(
                viewport={"width": 1366, "height": 768},
                color_scheme="dark" if dark else "light",
                reduced_motion="reduce",
            )
            page.set_default_timeout(_PATIENCE_MS)
            expect.set_options(timeout=_PATIENCE_MS)
            watched = Watched(page)
            page.on(
                "request",
                lambda request: watched.hosts.add(_host(request.url)),
            )
            page.on(
                "websocket",
                lambda socket: watched.hosts.add(_host(socket.url)),
            )
            page.on(
                "pageerror",
                lambda error: watched.complaints.append(str(error)),
            )
            yield watched
        finally:
            await browser.close()
    assert watched.hosts - {""} == {"127.0.0.1"}
    assert watched.complaints == []


def _host(url: str) -> str:
    """The host that an address names; none for what is in the page itself."""
    return urlsplit(url).hostname or "" if not url.startswith("data:") else ""


async def shown_circuits(page: Page) -> set[str]:
    """The circuits that the picture has, like ``ocs1 1>7``: each as one of its two directions."""
    named = "every => every.map(each => each.dataset.circuit)"
    return set(await page.locator("[data-circuit]").evaluate_all(named))


async def take_picture(page: Page, file: Path, **how: bool) -> None:
    """Write what a page shows as a PNG with a palette, a third as large."""
    taken = Image.open(io.BytesIO(await page.screenshot(**how)))  # type: ignore[arg-type]
    colours = taken.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE)
    colours.save(file, optimize=True)


def pictures_folder(otherwise: Path) -> Path:
    """Where pictures of pages go: ``PATCHLIGHT_PICTURES``, where the documentation is to have new
    ones (``docs/images``)."""
    return Path(os.environ.get("PATCHLIGHT_PICTURES", otherwise))
