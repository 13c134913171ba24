"""What the pages show is what the controller says; in a browser, and with the keyboard alone."""

import asyncio
import itertools
import json
import os
import pwd
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
from playwright.async_api import Page, WebSocketRoute, expect

from patchlight.client.client import ControllerClient
from patchlight.testbed.jobs import JobSpec, JobState, JobStatus
from patchlight.testbed.lab.portmap import AnyMap
from tests.support.dashboard import (
    browser_page,
    dashboard_of,
    pictures_folder,
    shown_circuits,
    take_picture,
)
from tests.support.waiting import eventually
from tests.support.watched_lab import (
    JOB,
    WatchedLab,
    put_samples_on_disk,
    watched_lab,
)

pytestmark = pytest.mark.browser

LAYOUT = Path(__file__).with_name("layout.js").read_text(encoding="utf-8")
WHY = "the worker on server1.gpu1 (rank 0) failed: no answer from its agent"
WHY += " at unix:/run/patchlight/a-lab-with-a-long-name/agents/server1.sock to GET /workers/other-0"

# As a user of the machine who is nobody in particular: one request, and what came of it.
_AS_NOBODY = """
import http.client, sys
h = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
h.request("GET", sys.argv[2])
answer = h.getresponse()
print(answer.status, answer.read().decode())
"""


@pytest.mark.others
async def test_pages_show_what_the_controller_says_and_change_it(
    tmp_path: Path,
) -> None:
    # One lab and one dashboard for all of it: they take seconds to start.
    pictures = pictures_folder(tmp_path)
    async with (
        watched_lab(tmp_path) as lab,
        dashboard_of(tmp_path, lab.address) as url,
        browser_page() as watched,
    ):
        page = watched.page
        await page.goto(url)
        await the_lab_is_shown(page, lab)
        # The keyboard alone: to a device, and to the page on circuits.
        await page.get_by_role("button", name="ocs1,").focus()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("dialog")).to_contain_text(
            "server1.nic0"
        )
        await page.keyboard.press("Escape")
        await press_until(page, "Shift+Tab", "link", "Circuits")
        await page.keyboard.press("Enter")
        await a_change_is_planned_made_and_undone(page, lab)
        await a_change_is_dragged(page, lab)
        await a_change_of_others_is_followed_and_cancelled(page, lab, pictures)
        await page.goto(f"{url}history")
        row = page.get_by_role("row", name="tries a fibre").first
        await expect(row).to_contain_text("committed")
        # Stages under 1 ms are hidden; making a circuit takes the switching time at least.
        await expect(row).to_contain_text("make")
        await pages_fit_at_any_width(page, url, lab)
        await history_is_turned_page_by_page(page, url, lab)
        await page.goto(f"{url}jobs")
        await expect(page.get_by_role("row", name=JOB)).to_contain_text(
            "running"
        )
        await page.wait_for_function(
            "document.querySelectorAll('canvas').length === 4"
        )
        await a_past_period_is_shown(page, url, lab)
        await page.emulate_media(color_scheme="dark")
        losing = Losing()
        await page.route_web_socket("**/_nicegui_ws/**", losing.between)
        await page.goto(url)
        await what_others_do_is_seen(page, lab)
        await take_picture(page, pictures / "dashboard-dark.png")
        await what_a_browser_missed_is_sent_again(page, lab, losing)
        await strangers_see_what_they_may(url)


async def the_lab_is_shown(page: Page, lab: WatchedLab) -> None:
    await expect(page.get_by_role("status")).to_have_text("live")
    await expect(page.locator("[data-circuit]")).to_have_count(6)
    assert await shown_circuits(page) == duplex(lab)
    # Which GPUs train which job over which light path, from the page alone.
    await expect(page.locator("[data-host]")).to_have_count(6)
    about = page.locator("[data-circuit='ocs1 1>7'] title")
    for words in (
        "server1.nic0 to tor1.1, 40 Gb/s",
        f"used by {JOB}",
        "dBm in",
    ):
        await expect(about).to_contain_text(words)
    host = page.locator("[data-host='server1.gpu0'] title")
    await expect(host).to_contain_text(f"in {JOB}, busy 90 %, nic0 sends")


async def a_change_is_planned_made_and_undone(
    page: Page, lab: WatchedLab
) -> None:
    await press_until(page, "Tab", "textbox", "connect, e.g. 1-7 2>8")
    await page.keyboard.type("19-20")
    await press_until(page, "Tab", "textbox", "why")
    await page.keyboard.type("tries a fibre")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("ocs1: +19>20 +20>19")).to_be_visible()
    assert changes(lab) == []  # it was only planned
    await press_until(page, "Tab", "button", "Apply …")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog")).to_contain_text(
        "Change circuits: ocs1: +19>20"
    )
    await press_until(page, "Tab", "button", "Change")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("Change 1: committed")).to_be_visible()
    await expect(page.get_by_role("row", name="19 20").first).to_be_visible()
    assert "ocs1 19>20" in duplex(lab)
    await press_until(page, "Tab", "button", "Roll back change 1 …")
    await page.keyboard.press("Enter")
    await press_until(page, "Tab", "button", "Roll back")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("Change 2: committed")).to_be_visible()
    await eventually(lambda: "ocs1 19>20" not in duplex(lab))
    assert changes(lab) == ["tries a fibre", "undoes change 1"]


async def a_change_is_dragged(page: Page, lab: WatchedLab) -> None:
    before = changes(lab)
    make = page.get_by_label("connect, e.g. 1-7 2>8")
    # The matrix is drawn anew without the ports that are dark again.
    await expect(page.locator("[data-entry]")).to_have_count(12)
    # A circuit to another column, then the row of another port.
    await drag(page, "[data-entry='5>11']", "[data-drop='12'].pl-column")
    await expect(make).to_have_value("5-12")
    await expect(
        page.get_by_text("ocs1: −5>11 −11>5 +5>12 +12>5")
    ).to_be_visible()
    await expect(
        page.get_by_text(f"jobs that use these circuits: {JOB}")
    ).to_be_visible()
    await drag(
        page,
        "[data-name='in 6 server4.nic5'] text",
        "[data-drop='17'].pl-column",
    )
    await expect(make).to_have_value("5-12 6-17")
    await expect(page.locator(".pl-planned")).to_have_count(4)
    await drag(page, "[data-entry='1>7']", "[role=banner], header")
    await expect(page.get_by_label("disconnect, e.g. 3 15")).to_have_value("1")
    await expect(
        page.get_by_text("links that go down: server1.nic0")
    ).to_be_visible()
    assert changes(lab) == before


async def drag(page: Page, source: str, target: str) -> None:
    await page.locator(source).hover()
    await page.mouse.down()
    # On the name of a column, where no circuit is.
    box = await page.locator(target).bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 8, steps=3)
    await page.mouse.up()


async def a_change_of_others_is_followed_and_cancelled(
    page: Page, lab: WatchedLab, pictures: Path
) -> None:
    lab.device.fault(stall_s=9.0, acknowledge=True)
    with ControllerClient(lab.address) as client:
        moves = {"ocs1": ["19-20", "21-22"]}
        ask = partial(
            client.reconfigure, moves, why="begun elsewhere", detach=True
        )
        number = (await asyncio.to_thread(ask)).id
        await expect(
            page.get_by_text(f"Change {number}: in progress")
        ).to_be_visible()
        await expect(page.locator("[aria-current=step]")).to_contain_text(
            "make ocs1, 0 of 4"
        )
        await take_picture(page, pictures / "dashboard-circuits.png")
        for name in (f"Cancel change {number} …", "Stop and roll back"):
            await page.get_by_role("button", name=name).focus()
            await page.keyboard.press("Enter")
        await expect(
            page.get_by_text(f"Change {number}: rolled-back")
        ).to_be_visible()
        ended = await asyncio.to_thread(client.reconfiguration, number)
    assert (ended.state, ended.stages_s.keys() >= {"roll-back"}) == (
        "rolled-back",
        True,
    )
    await expect(page.get_by_text("cancelled by")).to_be_visible()


async def pages_fit_at_any_width(
    page: Page, url: str, lab: WatchedLab
) -> None:
    jobs = lab.controller.jobs
    for state, words in (
        (JobState.QUEUED, "it needs 8 GPUs, 6 are free"),
        (JobState.FAILED, WHY),
    ):
        told = JobStatus(
            f"other-{state}",
            JobSpec("other"),
            state,
            words,
            submitted_at=time.time(),
        )
        jobs.add([told])
    lab.controller.store.add_event(
        time.time(), "alarm", {"ocs": "ocs1", "words": WHY}
    )
    for path, there in (
        ("", "Jobs"),
        ("jobs", WHY),
        ("circuits", "Rows are inputs"),
        ("history", WHY),
    ):
        await page.goto(f"{url}{path}")
        await expect(page.get_by_text(there).first).to_be_visible()
        for width, scheme in itertools.product(
            (390, 820, 1440), ("light", "dark")
        ):
            await page.set_viewport_size({"width": width, "height": 900})
            await page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            dark = scheme == "dark"
            await page.wait_for_function(
                f"document.body.matches('.body--dark') === {dark}".lower()
            )
            # Labels of fields move to their place.
            await eventually(
                partial(_fits, page),
                f"/{path} to fit at {width} pixels, {scheme}",
            )
    await page.set_viewport_size({"width": 1366, "height": 768})
    await page.emulate_media(color_scheme="light")


async def _fits(page: Page) -> bool:
    return not await page.evaluate(LAYOUT)


async def history_is_turned_page_by_page(
    page: Page, url: str, lab: WatchedLab
) -> None:
    store = lab.controller.store
    began = time.time()
    for number in range(25):
        store.add_event(
            began + number / 1000,
            "alarm",
            {"ocs": "ocs1", "words": f"no. {number}!"},
        )
    alarms = page.locator(
        ".q-table__container", has_text="Alarms, drift and faults"
    )
    # What just happened is seen as it happens, and what is older on further pages.
    await expect(alarms.get_by_text("no. 24!")).to_be_visible()
    await expect(alarms.get_by_text("no. 14!")).to_have_count(0)
    for _ in range(2):
        await page.get_by_role("button", name="Older Alarms").click()
    await expect(alarms.get_by_text("no. 4!")).to_be_visible()
    await expect(alarms.get_by_text("no. 24!")).to_have_count(0)
    await expect(
        page.get_by_role("button", name="Older Alarms")
    ).to_be_disabled()
    await page.get_by_role("button", name="Newer Alarms").click()
    await expect(alarms.get_by_text("no. 14!")).to_be_visible()
    # A period in which there were none, and nothing else either.
    await page.goto(f"{url}history?since=2026-01-01&until=2026-01-02")
    for title in ("Changes of circuits", "Alarms, drift and faults", "Events"):
        there = page.locator(
            ".q-table__container", has=page.get_by_text(title, exact=True)
        )
        await expect(
            there.locator(".q-table__bottom--nodata")
        ).to_contain_text("none")


async def a_past_period_is_shown(
    page: Page, url: str, lab: WatchedLab
) -> None:
    await put_samples_on_disk(lab)
    await page.get_by_label("Jobs and charts of").click()
    await page.get_by_role("option", name="from … to …").click()
    await expect(page.get_by_role("note")).to_contain_text(
        "Means over 10 s are bold"
    )
    await expect(page.get_by_role("row", name=JOB)).to_contain_text("200 ms")
    await page.get_by_label("to", exact=True).fill("2026-01-01T00:00:00")
    await page.get_by_role("button", name="Show").click()
    await expect(page.get_by_role("alert")).to_have_text(
        "from must be before to"
    )


async def what_others_do_is_seen(page: Page, lab: WatchedLab) -> None:
    await expect(page.locator("[data-circuit]")).to_have_count(6)
    with ControllerClient(lab.address) as client:
        # server2 and server4 move over to the other switch.
        moves = {"ocs1": ["3-9", "4-10", "6-12"]}
        change = await asyncio.to_thread(
            client.reconfigure, moves, why="regroup"
        )
    assert change.state == "committed", change.message
    await expect(page.locator("[data-circuit='ocs1 3>9']")).to_have_count(1)
    # While the light moves, what goes and what comes are both shown.
    await expect(page.locator("[data-circuit]")).to_have_count(6)
    assert await shown_circuits(page) == duplex(lab)
    await expect(page.get_by_text("cross-connects broken and")).to_be_visible()
    parts = lab.controller.circuits
    parts.locks.lock("ocs1", [3], "locked", "eva", "being <b>cleaned")
    locked = page.locator("[data-circuit='ocs1 3>9'] title")
    await expect(locked).to_contain_text(
        "port 3 is locked by eva: being <b>cleaned"
    )
    await expect(page.get_by_text("locked: ocs1.3")).to_be_visible()
    parts.stop.press("eva", "fire drill")
    await expect(
        page.get_by_text("stop button pressed by eva")
    ).to_be_visible()
    background = await page.evaluate(
        "getComputedStyle(document.body).backgroundColor"
    )
    assert background not in ("rgb(255, 255, 255)", "rgba(0, 0, 0, 0)")


class Losing:
    """Between a page and its server: the first update of a picture that has ``words`` is lost."""

    def __init__(self) -> None:
        self.words = ""
        self.lost = 0

    def between(self, browser: WebSocketRoute) -> None:
        server = browser.connect_to_server()
        server.on_message(lambda message: browser.send(self._less(message)))

    def _less(self, message: str | bytes) -> str | bytes:
        if (
            not self.words
            or not isinstance(message, str)
            or self.words not in message
        ):
            return message
        number, bracket, rest = message.partition("[")
        event, elements = json.loads(bracket + rest)
        for name, element in elements.items():
            props = (
                element.get("props", {}) if isinstance(element, dict) else {}
            )
            if "differ" in props and self.words in json.dumps(props["differ"]):
                self.words = ""
                self.lost = self.lost + 1
                del elements[name]
                break
        return number + json.dumps([event, elements])


async def what_a_browser_missed_is_sent_again(
    page: Page, lab: WatchedLab, losing: Losing
) -> None:
    losing.words = "the first lock"
    locks = lab.controller.circuits.locks
    locks.lock("ocs1", [1], "locked", "eva", "the first lock")
    await eventually(lambda: losing.lost == 1)
    locks.lock("ocs1", [2], "locked", "eva", "the second lock")
    for circuit, words in (("2>8", "second"), ("1>7", "first")):
        title = page.locator(f"[data-circuit='ocs1 {circuit}'] title")
        await expect(title).to_contain_text(f"the {words} lock")
    await expect(page.locator("[data-circuit]")).to_have_count(6)
    assert losing.lost == 1


async def strangers_see_what_they_may(url: str) -> None:
    port = url.rstrip("/").rpartition(":")[2]
    assert (await upgraded(port, f"http://127.0.0.1:{port}")).startswith(
        b"HTTP/1.1 101"
    )
    assert (await upgraded(port, "http://evil.example")).startswith(
        b"HTTP/1.1 403"
    )
    if os.geteuid() != 0:
        return
    assert "nobody, viewer" in await as_nobody(port, "/")
    assert "Only operators may change" in await as_nobody(port, "/circuits")


async def upgraded(port: str, origin: str) -> bytes:
    """What a page of ``origin`` is answered that wants a socket."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
    head = "GET /_nicegui_ws/socket.io/?EIO=4&transport=websocket HTTP/1.1\r\n"
    head += (
        f"Host: 127.0.0.1:{port}\r\nOrigin: {origin}\r\nUpgrade: websocket\r\n"
    )
    head += "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    head += "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    writer.write(head.encode())
    answer = await reader.readline()
    writer.close()
    return answer


async def as_nobody(port: str, path: str) -> str:
    """The page that another user of this machine gets."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _AS_NOBODY,
        port,
        path,
        stdout=asyncio.subprocess.PIPE,
        user=pwd.getpwnam("nobody").pw_uid,
        cwd="/",
        env={},
    )
    told, _ = await process.communicate()
    return told.decode()


def duplex(lab: WatchedLab) -> set[str]:
    """The circuits that the controller has, each as the lower of its two directions."""
    maps: Mapping[str, AnyMap] = lab.controller.circuits.maps.last or {}
    return {
        f"{ocs} {c}" for ocs, m in maps.items() for c in m if c.inp < c.out
    }


def changes(lab: WatchedLab) -> list[str]:
    """Why circuits were changed so far."""
    return [
        change.why
        for change in lab.controller.store.reconfigurations(10, None)
    ]


async def press_until(page: Page, key: str, role: str, name: str) -> None:
    """Press a key until that control has the focus."""
    wanted = page.get_by_role(role, name=name, exact=True)  # type: ignore[arg-type]
    for _ in range(60):
        if await wanted.evaluate("each => each === document.activeElement"):
            return
        await page.keyboard.press(key)
    raise AssertionError(f"no {key} leads to the {role} {name}")
