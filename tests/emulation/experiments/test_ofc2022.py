"""The experiment of OFC 2022: its jobs, and the figures and report of measurements by formula."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patchlight.emulation.experiments.commands.group import print_ofc2022
from patchlight.emulation.experiments.ofc2022.analysis import (
    CaseRun,
    busy_shares,
    case_figures,
    iteration_ends,
    live_figures,
    received_bps,
    reduction,
    whole_iterations,
)
from patchlight.emulation.experiments.ofc2022.report import (
    page,
    rows_of,
    write_report,
)
from patchlight.emulation.experiments.ofc2022.results import (
    GRADIENT_BYTES,
    Disturbance,
    Setting,
    headline,
    jobs_of,
    result_of,
)
from patchlight.emulation.experiments.ofc2022.run import plan_of
from patchlight.emulation.simulator.results import (
    CpuTicks,
    cpu_ticks,
    provenance,
)
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.graphs import builtin_graph
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.wiring import trace_links
from tests.support.figures import for_a_paper


def tors(lab: Lab, hosts: tuple[str, ...]) -> list[str | None]:
    links = trace_links(lab, lab.initial_maps)
    return [links.switch_of(lab, lab.host(name).endpoint) for name in hosts]


def models(lab: Lab, hosts: tuple[str, ...]) -> list[str]:
    return [
        gpu.model for name in hosts if (gpu := lab.host(name).gpu) is not None
    ]


def test_case_a_is_four_m40_beside_two_titan_v(lab: Lab) -> None:
    first, second = jobs_of("a", lab, 12)
    assert [h.partition(".")[2] for h in first.hosts] == [
        "gpu0",
        "gpu2",
        "gpu4",
        "gpu5",
    ]
    assert [h.partition(".")[2] for h in second.hosts] == ["gpu1", "gpu3"]
    assert models(lab, first.hosts) == ["Tesla M40"] * 4
    assert models(lab, second.hosts) == ["Titan V"] * 2


def test_case_b_is_two_jobs_of_three_that_mirror_each_other(lab: Lab) -> None:
    first, second = jobs_of("b", lab, 12)
    assert [h.partition(".")[2] for h in first.hosts] == [
        "gpu0",
        "gpu2",
        "gpu1",
    ]
    assert [h.partition(".")[2] for h in second.hosts] == [
        "gpu5",
        "gpu4",
        "gpu3",
    ]
    # The same GPU at the same place of the ring, under the other ToR.
    assert models(lab, first.hosts) == models(lab, second.hosts)
    other = {"tor1": "tor2", "tor2": "tor1"}
    assert [other[str(tor)] for tor in tors(lab, first.hosts)] == tors(
        lab, second.hosts
    )


@pytest.mark.parametrize("case", ["a", "b"])
def test_rings_alternate_over_the_tors_and_share_no_gpu(
    lab: Lab, case: str
) -> None:
    jobs = jobs_of(case, lab, 12)
    for job in jobs:
        assert all(a != b for a, b in pairwise(tors(lab, job.hosts)))
    hosts = [host for job in jobs for host in job.hosts]
    assert sorted(hosts) == sorted(host.name for host in lab.hosts)


def test_every_job_trains_over_the_same_data(lab: Lab) -> None:
    for case in ("a", "b"):
        for job in jobs_of(case, lab, 12):
            assert job.iterations * len(job.hosts) == 12 * 4
            assert job.gradient_bytes == GRADIENT_BYTES == 553_440_000


def test_a_lab_that_cannot_show_anything_is_refused(lab: Lab) -> None:
    with pytest.raises(BadInput, match="no case 'c'"):
        jobs_of("c", lab, 12)
    with pytest.raises(BadInput, match="expected 1 or more"):
        jobs_of("a", lab, 0)
    with pytest.raises(
        BadInput,
        match="cannot run jobs with 4 and 2 GPUs: it has 2 × Tesla M40, 2 × Titan V",
    ):
        jobs_of(
            "a", lab.with_changes(servers=(lab.servers[0], lab.servers[1])), 12
        )

    ocs = lab.circuit_switches[0]
    dark = lab.with_changes(
        circuit_switches=(replace(ocs, initial=PortMap()),)
    )
    with pytest.raises(BadInput, match="not connected to a packet switch"):
        jobs_of("a", dark, 12)
    one_tor = PortMap.duplex((nic, nic + 6) for nic in range(1, 7))
    regrouped = lab.with_changes(
        circuit_switches=(replace(ocs, initial=one_tor),)
    )
    with pytest.raises(BadInput, match="already on one packet switch"):
        jobs_of("a", regrouped, 12)

    server = lab.servers[0]
    strange = replace(
        server, gpus=tuple(replace(g, model="Voodoo 2") for g in server.gpus)
    )
    with pytest.raises(
        BadInput, match="Voodoo 2, whose compute time is unknown"
    ):
        jobs_of("a", lab.with_changes(servers=(strange, *lab.servers[1:])), 12)


Simulate = Callable[..., CaseRun]

# An iteration of case (a): 3 flows cross.
STATIC_S = 0.5 + 1.5 * 3 * GRADIENT_BYTES * 8 / 10e9
OPTICAL_S = 0.5 + 1.5 * GRADIENT_BYTES * 8 / 40e9


def test_times_are_those_of_the_first_job(simulate: Simulate) -> None:
    static = case_figures(simulate("a", "static"))
    optical = case_figures(simulate("a", "optical"))
    assert static.iterations == 12
    assert static.completion_s == pytest.approx(12 * STATIC_S, abs=0.01)
    assert static.iteration_s == pytest.approx(STATIC_S, abs=0.001)
    assert optical.completion_s == pytest.approx(12 * OPTICAL_S, abs=0.01)
    assert reduction(static, optical) == pytest.approx(
        1 - OPTICAL_S / STATIC_S, abs=0.001
    )


def test_utilization_and_throughput_are_means_over_the_run(
    simulate: Simulate,
) -> None:
    figures = case_figures(simulate("a", "static"))
    assert figures.gpu_utilization == pytest.approx(0.5 / STATIC_S, abs=0.01)
    sent_bits = 1.5 * GRADIENT_BYTES * 8
    assert figures.throughput_bps == pytest.approx(
        sent_bits / STATIC_S, rel=0.02
    )
    assert figures.throughput_peak_bps == pytest.approx(10e9 / 3, rel=0.01)
    assert figures.compute_s == pytest.approx(0.5)


def test_samples_from_outside_the_run_count_for_nothing(
    simulate: Simulate,
) -> None:
    run = simulate("a", "optical")
    late = tuple(replace(s, at=s.at + 1000, utilization=1.0) for s in run.gpus)
    assert case_figures(replace(run, gpus=run.gpus + late)) == case_figures(
        run
    )
    with pytest.raises(
        PatchlightError, match=r"no sample of GPU utilisation of server1\.gpu0"
    ):
        case_figures(replace(run, gpus=late))


def test_a_lost_or_doubled_iteration_is_an_error_not_a_figure(
    simulate: Simulate,
) -> None:
    run = simulate("b", "static")
    job = run.jobs[0]
    assert len(iteration_ends(job)) == 16
    lost = replace(
        job,
        iterations=tuple(
            i for i in job.iterations if (i.rank, i.index) != (2, 7)
        ),
    )
    with pytest.raises(
        PatchlightError, match=r"missing \(rank, iteration\): \[\(2, 7\)\]"
    ):
        case_figures(replace(run, jobs=(lost, *run.jobs[1:])))
    doubled = replace(job, iterations=(*job.iterations, job.iterations[0]))
    with pytest.raises(
        PatchlightError, match="49 reports of iterations instead of 48"
    ):
        iteration_ends(doubled)


def test_live_compares_whole_iterations_before_and_after(
    simulate: Simulate,
) -> None:
    run = simulate("a", "live")
    figures = live_figures(run)
    assert figures.iteration_before_s == pytest.approx(STATIC_S, abs=0.01)
    assert figures.iteration_after_s == pytest.approx(OPTICAL_S, abs=0.01)
    assert figures.longest_gap_s == pytest.approx(STATIC_S, abs=0.01)
    # 11 gaps, one changed in.
    assert figures.iterations_before + figures.iterations_after == 10


@pytest.mark.parametrize("number", [0, 1])
def test_a_worker_that_was_started_again_is_an_error(
    simulate: Simulate, number: int
) -> None:
    run = simulate("a", "live")
    assert live_figures(run).restarts == 0
    jobs = list(run.jobs)
    again = replace(jobs[number].status, restarts=1)
    jobs[number] = replace(jobs[number], status=again)
    with pytest.raises(
        PatchlightError, match="its workers were restarted 1 times"
    ):
        live_figures(replace(run, jobs=tuple(jobs)))


def test_live_without_its_change_is_an_error(simulate: Simulate) -> None:
    run = simulate("a", "live")
    with pytest.raises(
        PatchlightError, match="had 0 reconfigurations instead of one"
    ):
        live_figures(replace(run, reconfigurations=()))
    change = run.reconfigurations[0]
    early = replace(change, started_at=change.started_at - 1000)
    with pytest.raises(
        PatchlightError, match="left 0 whole iterations before"
    ):
        live_figures(replace(run, reconfigurations=(early,)))


ROOT = Path(__file__).resolve().parents[3]

STARTED = "2024-01-01T00:00:00+00:00"
QUIET = Disturbance(0.1, 0.0, 0.01, [])
ORIGIN = provenance((), [], {"cores": 2})
SETTING = Setting(
    "ofc2022",
    1000,
    12,
    "process",
    "ryu",
    STARTED,
    100.0,
    ORIGIN,
    ORIGIN["machine"],
    QUIET,
)
TEXTS = {"report.html", "result.json", "measurements.json"}


def pictures(*names: str) -> set[str]:
    return {
        f"{name}.{suffix}"
        for name in names
        for suffix in ("png", "pdf", "svg")
    }


def printed(result: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> str:
    print_ofc2022(result)
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def runs(simulate: Simulate) -> list[CaseRun]:
    cases = [
        simulate(case, wiring)
        for case in "ab"
        for wiring in ("static", "optical")
    ]
    return [*cases, simulate("a", "live")]


@pytest.fixture(scope="module")
def result(runs: list[CaseRun]) -> dict[str, Any]:
    return result_of(SETTING, runs)


def test_the_result_holds_what_the_schema_promises(
    result: dict[str, Any],
) -> None:
    for case in "ab":
        found = result["cases"][case]
        for wiring in ("static", "optical"):
            for name in (
                "completion_s",
                "iteration_s",
                "gpu_utilization",
                "throughput_bps",
            ):
                assert found[wiring][name] > 0
        assert 0 < found["reduction"] < 1
        assert found["paper_reduction"] == pytest.approx(
            {"a": 0.732, "b": 0.620}[case]
        )
    live = result["live"]
    assert live["iteration_after_s"] < live["iteration_before_s"]
    assert live["longest_gap_s"] > 0
    assert list(result["reconfiguration"]["stages_s"]) == [
        "read",
        "drain",
        "make",
        "undrain",
    ]
    assert json.loads(json.dumps(result)) == result


@pytest.fixture(scope="module")
def with_real(runs: list[CaseRun]) -> list[CaseRun]:
    """All cases, and case (a) as if its jobs had trained a real model that took as long."""

    def of_torch(run: CaseRun) -> CaseRun:
        jobs = []
        for job in run.jobs:
            spec = replace(
                job.status.spec, trainer="torch", model="tiny-transformer"
            )
            jobs.append(replace(job, status=replace(job.status, spec=spec)))
        return replace(run, jobs=tuple(jobs), trainer="torch")

    return [*runs, *(of_torch(run) for run in runs[:2])]


def test_a_real_model_stands_beside_and_changes_no_other_figure(
    runs: list[CaseRun],
    with_real: list[CaseRun],
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = result_of(SETTING, runs)
    result = result_of(SETTING, with_real)
    real = result.pop("real")
    assert {**result, "parameters": None} == {**plain, "parameters": None}
    made_up = plain["cases"]["a"]
    assert (real["case"], real["model"]) == ("a", "tiny-transformer")
    assert (real["static"], real["reduction"]) == (
        made_up["static"],
        made_up["reduction"],
    )
    rows = [
        row[1:]
        for row in rows_of({**result, "real": real})
        if row[0] == "real"
    ]
    reduction = f"{100 * made_up['reduction']:.1f} %"
    assert rows[2:] == [
        ("completion lower by", "", reduction, ""),
        ("… with synthetic gradients", "", reduction, ""),
    ]
    # The paper has no such figure, so there is none to agree with.
    assert all(row[1] == "" for row in rows)
    said = page(
        {**result, "real": real}, rows_of({**result, "real": real}), []
    )
    assert "train the tiny-transformer with PyTorch over Gloo" in said
    assert "… with synthetic gradients" in printed(
        {**result, "real": real}, capsys
    )


def test_a_real_model_computes_as_long_on_the_same_gpus(lab: Lab) -> None:
    made_up = jobs_of("a", lab, 12)
    real = jobs_of("a", lab, 12, trainer="torch")
    for one, other in zip(made_up, real, strict=True):
        assert other.model == "tiny-transformer"
        same = replace(
            other,
            trainer="synthetic",
            model=None,
            gradient_bytes=GRADIENT_BYTES,
        )
        assert same == one
    runs = plan_of(["a"], "torch")
    assert [(run.trainer, run.wiring) for run in runs[2:]] == [
        ("torch", "static"),
        ("torch", "optical"),
    ]
    assert str(runs[3]) == "case (a), optical, with a real model"
    real_bytes = builtin_graph("tiny-transformer").parameter_bytes
    assert real_bytes == pytest.approx(GRADIENT_BYTES / 1000, rel=0.02)


def _keys(value: Any, prefix: str = "") -> set[str]:
    if isinstance(value, dict):
        return {
            k
            for name, v in value.items()
            for k in ({f"{prefix}{name}"} | _keys(v))
        }
    if isinstance(value, list):
        return {k for v in value for k in _keys(v)}
    return set()


def test_every_key_of_the_result_is_documented(
    with_real: list[CaseRun],
) -> None:
    result = result_of(SETTING, with_real)
    documented = set(
        re.findall(
            r"`([A-Za-z_0-9]+)`",
            (ROOT / "docs/results/ofc2022.md").read_text("utf-8"),
        )
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
    assert [
        (c["name"], c["paper"], c["measured"]) for c in same["comparisons"]
    ] == [
        ("cases.a.reduction", 0.732, 0.0),
        ("cases.a.gpu_utilization_ratio", 3.0, 1.0),
    ]
    assert [c["difference"] for c in same["comparisons"]] == pytest.approx(
        [-0.732, -2.0]
    )
    relative = [c["relative_difference"] for c in same["comparisons"]]
    assert relative == pytest.approx([-1.0, -2 / 3])
    assert [(row[1], row[2], row[4]) for row in rows_of(same) if row[4]] == [
        ("completion lower by", "73.2 %", "−73.2 points"),
        ("GPU utilisation", "× 3", "67 % below"),
    ]
    keys = ("reduction", "gpu_utilization_ratio")
    names = [f"cases.{case}.{key}" for case in "ab" for key in keys]
    assert [
        comparison["name"] for comparison in result["comparisons"]
    ] == names


def test_more_than_the_paper_is_no_agreement_either(
    result: dict[str, Any],
) -> None:
    """The model's utilisation rises by 1/(1 − reduction): the paper's own is lower, twice."""
    rows = {(row[0], row[1]): row for row in rows_of(result)}
    for case, words, model in (
        ("a", "× 3", 3.73),
        ("b", "no significant improvement", 2.63),
    ):
        row = rows[f"({case})", "GPU utilisation"]
        assert row[2] == words
        assert row[4].endswith("% above")
        found = result["cases"][case]
        by_model = 1 / (1 - found["reduction"])
        assert found["gpu_utilization_ratio"] == pytest.approx(
            by_model, rel=0.05
        )
        assert found["paper_model_utilization_ratio"] == pytest.approx(
            model, abs=0.01
        )


def test_the_second_job_computes_longer_by_the_mismatch(
    lab: Lab, result: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for case in "ab":
        first, second = jobs_of(case, lab, 12)
        same, longer = jobs_of(case, lab, 12, 5.0)
        assert same == first
        assert longer.compute_s == {
            m: pytest.approx(1.05 * s) for m, s in second.compute_s.items()
        }
        assert longer.hosts == second.hosts
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(BadInput, match="expected 0 or more"):
            jobs_of("b", lab, 12, wrong)
    assert "longer" not in printed(result, capsys)
    assert "computing 5 % longer" in printed(
        result | {"mismatch_percent": 5.0}, capsys
    )


@pytest.mark.parametrize(
    ("busy_before", "steal", "stretch", "words"),
    [
        (0.2, 0, 1.0, []),
        (0.8, 0, 1.0, ["80% of its CPU time was in use before"]),
        (0.2, 30, 1.0, ["30% of its CPU time"]),
        (0.2, 0, 1.2, ["20% longer than specified"]),
        (0.7, 30, 1.2, ["70% of its", "30% of its CPU", "20% longer"]),
    ],
)
def test_a_machine_too_busy_is_said(
    simulate: Simulate,
    runs: list[CaseRun],
    capsys: pytest.CaptureFixture[str],
    busy_before: float,
    steal: int,
    stretch: float,
    words: list[str],
) -> None:
    run = simulate("a", "static")
    second = run.jobs[1]
    slow = tuple(
        replace(i, compute_s=stretch * i.compute_s) for i in second.iterations
    )
    hit = replace(run, jobs=(run.jobs[0], replace(second, iterations=slow)))
    before = CpuTicks(500, 100, 1000)
    after = CpuTicks(500 + steal, 150, 1100)
    found = Disturbance.of(
        busy_before, before, after, [hit, simulate("a", "optical")]
    )
    assert found.compute_stretch == pytest.approx(stretch - 1)
    assert len(found.too_busy) == len(words)
    for said, expected in zip(found.too_busy, words, strict=True):
        assert expected in said
    result = result_of(replace(SETTING, disturbance=found), runs)
    for place in (page(result, rows_of(result), []), printed(result, capsys)):
        assert ("times may be unreliable" in place) == bool(words)


def test_means_over_whole_iterations_do_not_swing_with_the_sampling(
    simulate: Simulate,
) -> None:
    run = simulate("a", "static")
    for job in run.jobs:
        cuts = whole_iterations(job)
        ends = iteration_ends(job)
        assert set(cuts[1:]) <= set(ends)
        assert cuts[-1] == ends[-1]
        assert (np.diff(cuts) >= 1).all()
        shares = busy_shares(job, cuts)
        computed = [
            sum(i.compute_s for i in job.iterations if i.rank == r)
            for r in range(2)
        ]
        assert (shares * np.diff(cuts)).sum(axis=1)[:2] == pytest.approx(
            computed
        )
        # Every iteration is like the others here: so is every step.
        assert shares == pytest.approx(
            np.full_like(shares, shares.mean()), abs=0.005
        )
        rates = received_bps(run, job, cuts)
        assert rates.shape == shares.shape
        sent = [
            sum(p.rx_bps for p in run.ports if p.host == h)
            for h in job.status.spec.hosts
        ]
        assert (rates * np.diff(cuts)).sum(axis=1) == pytest.approx(
            sent, rel=0.1
        )


def test_the_machine_counts_its_ticks() -> None:
    first = cpu_ticks()
    second = cpu_ticks()
    assert 0 <= first.steal <= first.total <= second.total
    assert 0 <= second.busy_since(first) <= 1
    assert CpuTicks(0, 175, 200).busy_since(CpuTicks(0, 100, 100)) == 0.25


def test_the_table_fits_a_small_terminal(
    result: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = printed(result, capsys).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    said = " ".join(" ".join(lines).split())
    for words in (
        "(a) completion, static 407 s",
        "29 % → 74 %",
        "12 cross-connects",
        "+0.1 points",
    ):
        assert words in said


def test_the_headline_is_computed_from_the_runs(
    result: dict[str, Any],
) -> None:
    lower = 100 * result["cases"]["a"]["reduction"]
    assert (
        f"completion time by {lower:.0f} % in case (a) (paper: 73 %)"
        in result["headline"]
    )
    changed = {
        **result,
        "cases": {"a": {**result["cases"]["a"], "reduction": 0.111}},
    }
    assert "by 11 % in case (a) (paper: 73 %). Rewired" in headline(changed)


def test_reports_are_written_whole(
    result: dict[str, Any], runs: list[CaseRun], tmp_path: Path
) -> None:
    files = write_report(result, runs, tmp_path / "out")
    assert {f.name for f in files} == TEXTS | pictures(
        "completion", "case-a", "case-b", "live"
    )
    assert json.loads((tmp_path / "out/result.json").read_text()) == result
    html = (tmp_path / "out/report.html").read_text()
    assert html.count("data:image/png;base64,") == 4
    # Self-contained.
    assert not re.search(r"(src|href)='?\"?(https?:|/)", html)
    assert "consistent with" in html
    assert "S. Yan" in html
    assert "contradicts the fitted model" in html
    assert "and not a measurement of GPUs" in html
    assert f"<strong>{escape(result['headline'])}</strong>" in html
    machine = {"memory_bytes": 25276514304, "load_average_1min": 0.60595703125}
    html = page({**result, "machine": machine}, [], [])
    assert "<td>memory</td><td>25 GB</td>" in html
    assert "<td>0.61 before</td>" in html
    assert "longer per iteration" not in html  # nothing is, without --mismatch
    for plot in (f for f in files if f.suffix == ".png"):
        assert plot.read_bytes().startswith(b"\x89PNG")
        assert plot.stat().st_size > 10_000
        assert plot.with_suffix(".pdf").read_bytes().startswith(b"%PDF")
        for_a_paper(plot.with_suffix(".svg"))


def test_a_part_of_the_cases_gives_a_part_of_the_result(
    runs: list[CaseRun], tmp_path: Path
) -> None:
    result = result_of(SETTING, runs[2:4])
    assert list(result["cases"]) == ["b"]
    assert "live" not in result
    files = write_report(result, runs[2:4], tmp_path)
    assert {file.name for file in files} == TEXTS | pictures(
        "completion", "case-b"
    )
    only_live = result_of(SETTING, runs[4:])
    assert only_live["cases"] == {}
    assert only_live["headline"].startswith(
        "Rewired while it trains, its iterations go from "
    )
    assert only_live["comparisons"] == []


def test_a_folder_that_cannot_be_written_is_said(
    result: dict[str, Any], runs: list[CaseRun], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PatchlightError, match="cannot write the results"):
        write_report(result, runs, tmp_path / "file" / "out")
