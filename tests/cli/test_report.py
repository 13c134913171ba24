"""``patchlight report``: a page on what happened, from records and from a lab at work."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from patchlight.cli.main import cli
from patchlight.cli.report import Period, as_page, headline, time_with_data
from patchlight.controller.policies.topology import regroup
from patchlight.testbed.errors import BadInput
from patchlight.testbed.wire.rest.circuits import ChangeAnswer
from patchlight.testbed.wire.rest.jobs import JobInList
from patchlight.testbed.wire.rest.lab import Samples
from tests.support.answers import some
from tests.support.change_bench import JOBS
from tests.support.job_api import LabCommand
from tests.support.waiting import eventually
from tests.support.watched_lab import JOB, put_samples_on_disk, watched_lab

HOSTILE = "</td></svg><script src='//x.example'>$\\frac{$ \x1b[31m"


class Page(HTMLParser):
    """The tags of a page, what it refers to, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.refers_to: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(
        self, tag: str, attrs: list[tuple[str, str | None]]
    ) -> None:
        self.tags.add(tag)
        self.refers_to += [
            value or ""
            for name, value in attrs
            if name in ("src", "href", "xlink:href", "data")
        ]

    def handle_data(self, data: str) -> None:
        self.text += data


def period(**more: object) -> Period:
    job = {
        "id": HOSTILE,
        "state": "failed",
        "by": HOSTILE,
        "hosts": ["a", "b"],
        "submitted_at": 100.0,
        "started_at": 110.0,
        "finished_at": 150.0,
        "iterations_done": 3,
        "spec": {"iterations": 5},
        "message": HOSTILE,
        "energy_j": {"a": 3.6e6},
    }
    change = {
        "id": 7,
        "state": "committed",
        "started_at": 105.0,
        "finished_at": 105.5,
        "by": HOSTILE,
        "why": HOSTILE,
        "message": "done",
        "changes": {"o1": {"makes": ["1>2"], "breaks": []}},
        "stages_s": {"make": 0.025},
    }
    event = {
        "at": 120.0,
        "number": 1,
        "kind": "alarm",
        "ocs": "o1",
        "words": HOSTILE,
    }
    fields = {
        "jobs": [some(JobInList, job)],
        "changes": [some(ChangeAnswer, change)],
        "events": [event],
    }
    samples = Samples(width_s=10, lab=[], jobs={})
    whole = {
        "since": 90.0,
        "until": 200.0,
        **fields,
        "samples": samples,
        **more,
    }
    return Period("lab", **whole)  # type: ignore[arg-type]


def check_loads_nothing(html: str) -> Page:
    page = Page(html)
    assert page.tags.isdisjoint(
        {"script", "link", "img", "iframe", "object", "embed", "base"}
    )
    assert all(each.startswith("#") for each in page.refers_to)
    assert not re.search(r"url\((?!#)|@import", html)
    return page


def test_what_users_and_devices_say_is_text() -> None:
    page = check_loads_nothing(as_page(period()))
    assert page.text.count("</td></svg><script src='//x.example'>") >= 5
    assert "\x1b" not in page.text
    assert "1 kWh" in page.text
    assert "25 ms" in page.text


def test_a_period_in_which_nothing_happened_is_a_page_too() -> None:
    page = check_loads_nothing(as_page(period(jobs=[], changes=[], events=[])))
    for words in (
        "No job waited or ran",
        "No circuit was changed",
        "No GPU samples",
    ):
        assert words in page.text


def test_plots_show_the_time_that_has_records_and_events_are_short() -> None:
    told = period(since=0.0, until=1e6)
    assert time_with_data(told) == (100.0, 150.0)
    assert time_with_data(period(jobs=[], changes=[], events=[])) == (
        90.0,
        200.0,
    )
    assert headline(told) == (
        "1 job (1 failed); 1 committed change of circuits, 500 ms each (median)."
    )
    ports = {f"p{number}": number for number in range(20)}
    event = {
        "at": 120.0,
        "number": 1,
        "kind": "up",
        "ports": ports,
        "at_switch": {"a": [1, 2]},
    }
    text = check_loads_nothing(as_page(period(events=[event]))).text
    assert "ports 20 entries, at_switch a 1-2" in text


async def test_a_lab_at_work_is_reported(tmp_path: Path) -> None:
    async with watched_lab(tmp_path) as lab:
        controller = lab.controller
        change = await controller.transactions.change(
            lambda maps: regroup(controller.lab, maps, JOBS), "why not"
        )
        for samples in (
            controller.fleet.gpu_samples,
            controller.switches.port_rates,
        ):
            await eventually(
                lambda s=samples: len({each["at"] for each in s}) > 2  # type: ignore[misc]
            )
        await put_samples_on_disk(lab)
        report = LabCommand(lab.address, "report")
        output = tmp_path / "report.html"
        said = await report("--since", "1h", "--output", str(output))
        assert f"wrote {output}: 1 job, 1 change, " in " ".join(said.split())
        assert re.search(
            r"1 job \(1 running\); GPUs \d+ % busy on average; 1 committed",
            said,
        )
        page = check_loads_nothing(output.read_text())
        for words in (
            JOB,
            "why not: done",
            "committed",
            "GPU utilisation (%)",
        ):
            assert words in page.text
        assert change.state == "committed"
        assert "samples." not in page.text
        unwritable = str(tmp_path / "nowhere" / "r.html")
        assert "cannot write the report" in await report(
            "--output", unwritable, code=1
        )


@pytest.mark.parametrize("since", ["2h", "2026-01-01", "2026-01-01 10:00"])
def test_times_are_spans_or_dates(since: str, tmp_path: Path) -> None:
    words = ["report", "--since", since, "--controller", "127.0.0.1:1"]
    failed = (
        CliRunner()
        .invoke(cli, [*words, "--output", str(tmp_path / "r.html")])
        .exception
    )
    assert not isinstance(failed, BadInput)  # nobody answers there


def test_tables_fit_a_phone_and_count_what_was_done() -> None:
    told = {
        "id": 7,
        "state": "refused",
        "changes": {"o1": {"makes": ["1>2", "2>1"], "breaks": []}},
    }
    page = as_page(period(changes=[some(ChangeAnswer, told)]))
    assert '#jobs td:nth-child(1)::before { content: "job"; }' in page
    row = page[page.index('<td class="refused">') :]
    counts = re.findall(r'<td class="n">(\d*)</td>', row)[:3]
    assert counts[-2:] == ["0", "0"]
