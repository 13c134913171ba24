"""A past period on the page on jobs: what there was, and how it is drawn."""

import re
from pathlib import Path
from typing import Any

import pytest

from patchlight.cli.dashboard import charts, page
from patchlight.cli.dashboard.lab_watch import Past
from patchlight.cli.dashboard.page import moments
from patchlight.testbed.labfile.reader import builtin_lab, read_lab
from patchlight.testbed.wire.rest.circuits import ChangeAnswer
from patchlight.testbed.wire.rest.jobs import JobInList
from patchlight.testbed.wire.rest.lab import WindowShape
from tests.support.answers import some

LAB = read_lab(builtin_lab("ofc2022"))
FOLDER = Path(page.__file__).parent
JOB: dict[str, Any] = {
    "id": "job-1",
    "spec": {"name": "trains", "iterations": 10},
    "state": "done",
    "hosts": ["server1.gpu0"],
    "submitted_at": 90.0,
    "started_at": 100.0,
    "runs_since": 100.0,
    "finished_at": 400.0,
}


def window(at: int, mean: float, iterations: int = 1) -> Any:
    spread = {"mean": mean, "least": mean / 2, "most": mean * 2}
    told = {
        "iterations": iterations,
        "iteration_s": spread if iterations else None,
    }
    return WindowShape.model_validate(
        {
            "at": at,
            "gpus": 1,
            "busy": spread,
            "sent_bps": None,
            "predicted_s": 0.2,
            **told,
        }
    )


def past(*windows: Any) -> Past:
    change = some(
        ChangeAnswer, {"id": 7, "changes": {"ocs1": {}}, "started_at": 150.0}
    )
    job = some(JobInList, JOB)
    return Past(100.0, 500.0, [job], [change], 10, {"job-1": list(windows)})


def test_figures_of_a_period_count_each_iteration() -> None:
    found = past(window(100, 0.2, 3), window(110, 0.6, 1), window(120, 9.0, 0))
    assert found.iteration_s("job-1") == pytest.approx((3 * 0.2 + 0.6) / 4)
    assert found.predicted_s("job-1") == pytest.approx(0.2)
    assert found.sends_bps("job-1") is None
    assert found.iteration_s("nobody") is None


def test_lines_break_where_nothing_was_measured() -> None:
    found = past(window(100, 0.2), window(110, 0.4), window(200, 0.6))
    view = found.view(LAB, {"job-1": "#123456"})
    series = charts.of_past(found, view)
    assert series["sent"] == []
    (mean,) = (s for s in series["took"] if s["lineStyle"].get("width") == 3)
    assert [at for at, _ in mean["data"]] == [
        105_000,
        115_000,
        204_999,
        205_000,
    ]
    assert [value for _, value in mean["data"]] == [0.2, 0.4, None, 0.6]
    (predicted,) = (
        s for s in series["took"] if s["lineStyle"].get("type") == "dashed"
    )
    assert {value for _, value in predicted["data"]} == {0.2, None}
    assert {s["itemStyle"]["color"] for s in series["busy"]} == {"#123456"}
    assert (
        max(v for s in series["busy"] for _, v in s["data"] if v is not None)
        == 120.0
    )
    assert series["busy"][0]["markLine"]["data"][0]["xAxis"] == 150_000
    bars = charts.timeline(view, found.since, found.until)["series"]
    assert [bar["name"] for bar in bars] == ["trains"]
    assert charts.timeline(view, 10.0, 50.0)["series"] == []


@pytest.mark.parametrize(
    ("since", "until", "good"),
    [
        ("2026-11-22T14:30", "2026-11-22T14:30:05", True),
        ("2026-11-22 14:30", "2026-11-23", True),
        ("2026-11-22T14:30", "2026-11-22T14:30", False),
        ("2026-11-23", "2026-11-22", False),
        ("", "", False),
        ("yesterday", "today", False),
        ("0001-01-01", "9999-12-31", False),
    ],
)
def test_two_moments_are_a_period_if_one_is_before_the_other(
    since: str, until: str, good: bool
) -> None:
    assert (moments(since, until) is not None) is good


def test_every_class_that_a_page_uses_is_in_the_style_sheet() -> None:
    ours = {
        name.replace("\\", "")
        for name in re.findall(
            r"^\.(\S+) \{", (FOLDER / "style.css").read_text(), re.MULTILINE
        )
    }
    quasars = {"flex", "text-negative"}
    used = {
        name
        for file in FOLDER.glob("*.py")
        for classes in re.findall(
            r'(?:\.classes\(| class=)"([^"]*)"', file.read_text()
        )
        for name in classes.split()
        if not name.startswith("pl-")
    }
    assert used - ours - quasars == set()
