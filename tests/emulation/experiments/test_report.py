"""Result, table, plots and page, made of formulas' measurements."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from patchlight.emulation.experiments.ofc2022.measurements import CaseRun
from patchlight.emulation.experiments.ofc2022.report import rows_of, write_report
from patchlight.emulation.experiments.ofc2022.results import Setting, result_of
from patchlight.testbed.errors import PatchlightError

ROOT = Path(__file__).resolve().parents[3]
Simulate = Callable[..., CaseRun]

SETTING = Setting(
    lab="ofc2022", scale=1000, iterations=12, workers="process", engine="ryu",
    started_at="2024-01-01T00:00:00+00:00", duration_s=100.0, machine={"cores": 2},
)  # fmt: skip


@pytest.fixture(scope="module")
def runs(simulate: Simulate) -> list[CaseRun]:
    cases = [simulate(case, wiring) for case in "ab" for wiring in ("static", "optical")]
    return [*cases, simulate("a", "live")]


@pytest.fixture(scope="module")
def result(runs: list[CaseRun]) -> dict[str, Any]:
    return result_of(SETTING, runs)


def test_the_result_holds_what_the_schema_promises(result: dict[str, Any]) -> None:
    for case in "ab":
        found = result["cases"][case]
        for wiring in ("static", "optical"):
            for name in ("completion_s", "iteration_s", "gpu_utilization", "throughput_bps"):
                assert found[wiring][name] > 0
        assert 0 < found["reduction"] < 1
        assert found["paper_reduction"] == pytest.approx({"a": 0.732, "b": 0.620}[case])
    live = result["live"]
    assert live["iteration_after_s"] < live["iteration_before_s"]
    assert live["longest_gap_s"] > 0
    assert list(result["reconfiguration"]["stages_s"]) == ["read", "drain", "make", "undrain"]
    assert json.loads(json.dumps(result)) == result


def _keys(value: Any, prefix: str = "") -> set[str]:
    if isinstance(value, dict):
        return {k for name, v in value.items() for k in ({f"{prefix}{name}"} | _keys(v))}
    if isinstance(value, list):
        return {k for v in value for k in _keys(v)}
    return set()


def test_every_key_of_the_result_is_documented(result: dict[str, Any]) -> None:
    documented = set(
        re.findall(r"`([A-Za-z_0-9]+)`", (ROOT / "docs/result-ofc2022.md").read_text("utf-8"))
    )
    free = {"a", "b", "cores", *result["parameters"]["compute_s"]}
    free |= set(result["reconfiguration"]["stages_s"])
    assert _keys(result) - free - documented == set()


def test_each_figure_of_the_paper_has_its_difference(
    simulate: Simulate, result: dict[str, Any]
) -> None:
    # Nothing was rewired: "optical" measured like static.
    static = simulate("a", "static")
    unchanged = CaseRun("a", "optical", static.jobs, static.ports, static.gpus)
    same = result_of(SETTING, [static, unchanged])
    assert [(c["name"], c["paper"], c["measured"]) for c in same["comparisons"]] == [
        ("cases.a.reduction", 0.732, 0.0),
        ("cases.a.gpu_utilization_ratio", 3.0, 1.0),
    ]
    assert [c["difference"] for c in same["comparisons"]] == pytest.approx([-0.732, -2.0])
    assert [(row[1], row[2], row[4]) for row in rows_of(same) if row[4]] == [
        ("completion time lower by", "73.2 %", "−73.2 points"),
        ("GPU utilisation, static → optical", "× 3", "−2.0"),
    ]
    assert [c["name"] for c in result["comparisons"]] == [
        "cases.a.reduction",
        "cases.a.gpu_utilization_ratio",
        "cases.b.reduction",
    ]


def test_reports_are_written_whole(
    result: dict[str, Any], runs: list[CaseRun], tmp_path: Path
) -> None:
    files = write_report(result, runs, tmp_path / "out")
    assert {f.name for f in files} == {
        "report.html",
        "result.json",
        "measurements.json",
        "completion.png",
        "case-a.png",
        "case-b.png",
        "live.png",
    }
    assert json.loads((tmp_path / "out/result.json").read_text()) == result
    page = (tmp_path / "out/report.html").read_text()
    assert page.count("data:image/png;base64,") == 4
    assert not re.search(r"(src|href)='?\"?(https?:|/)", page)  # self-contained
    assert "consistent with" in page
    for plot in (f for f in files if f.suffix == ".png"):
        assert plot.read_bytes().startswith(b"\x89PNG")
        assert plot.stat().st_size > 10_000


def test_a_part_of_the_cases_gives_a_part_of_the_result(
    runs: list[CaseRun], tmp_path: Path
) -> None:
    result = result_of(SETTING, runs[2:4])
    assert list(result["cases"]) == ["b"]
    assert "live" not in result
    assert {f.name for f in write_report(result, runs[2:4], tmp_path)} == {
        "report.html",
        "result.json",
        "measurements.json",
        "completion.png",
        "case-b.png",
    }
    only_live = result_of(SETTING, runs[4:])
    assert only_live["cases"] == {}
    assert only_live["comparisons"] == []


def test_a_folder_that_cannot_be_written_is_said(
    result: dict[str, Any], runs: list[CaseRun], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PatchlightError, match="cannot write the results"):
        write_report(result, runs, tmp_path / "file" / "out")
