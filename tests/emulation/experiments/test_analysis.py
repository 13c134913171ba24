"""Figures out of measurements whose truth is known, because a formula made them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from patchlight.emulation.experiments.ofc2022.analysis import (
    case_figures,
    iteration_ends,
    live_figures,
    reduction,
)
from patchlight.emulation.experiments.ofc2022.measurements import CaseRun
from patchlight.emulation.experiments.ofc2022.scenario import GRADIENT_BYTES
from patchlight.testbed.errors import PatchlightError

Simulate = Callable[..., CaseRun]

STATIC_S = 0.5 + 1.5 * 3 * GRADIENT_BYTES * 8 / 10e9  # an iteration of case (a): 3 flows cross
OPTICAL_S = 0.5 + 1.5 * GRADIENT_BYTES * 8 / 40e9


def test_times_are_those_of_the_first_job(simulate: Simulate) -> None:
    static, optical = case_figures(simulate("a", "static")), case_figures(simulate("a", "optical"))
    assert static.iterations == 12
    assert static.completion_s == pytest.approx(12 * STATIC_S, abs=0.01)
    assert static.iteration_s == pytest.approx(STATIC_S, abs=0.001)
    assert optical.completion_s == pytest.approx(12 * OPTICAL_S, abs=0.01)
    assert reduction(static, optical) == pytest.approx(1 - OPTICAL_S / STATIC_S, abs=0.001)


def test_utilization_and_throughput_are_means_over_the_run(simulate: Simulate) -> None:
    figures = case_figures(simulate("a", "static"))
    assert figures.gpu_utilization == pytest.approx(0.5 / STATIC_S, abs=0.01)
    sent_bits = 1.5 * GRADIENT_BYTES * 8
    assert figures.throughput_bps == pytest.approx(sent_bits / STATIC_S, rel=0.02)
    assert figures.throughput_peak_bps == pytest.approx(10e9 / 3, rel=0.01)
    assert figures.compute_s == pytest.approx(0.5)


def test_samples_from_outside_the_run_count_for_nothing(simulate: Simulate) -> None:
    run = simulate("a", "optical")
    late = tuple(replace(s, at=s.at + 1000, utilization=1.0) for s in run.gpus)
    assert case_figures(replace(run, gpus=run.gpus + late)) == case_figures(run)
    with pytest.raises(PatchlightError, match=r"no sample of GPU utilisation of server1\.gpu0"):
        case_figures(replace(run, gpus=late))


def test_a_lost_or_doubled_iteration_is_an_error_not_a_figure(simulate: Simulate) -> None:
    run = simulate("b", "static")
    job = run.jobs[0]
    assert len(iteration_ends(job)) == 16
    lost = replace(job, iterations=tuple(i for i in job.iterations if (i.rank, i.index) != (2, 7)))
    with pytest.raises(PatchlightError, match=r"missing \(rank, iteration\): \[\(2, 7\)\]"):
        case_figures(replace(run, jobs=(lost, *run.jobs[1:])))
    doubled = replace(job, iterations=(*job.iterations, job.iterations[0]))
    with pytest.raises(PatchlightError, match="49 reports of iterations instead of 48"):
        iteration_ends(doubled)


def test_live_compares_whole_iterations_before_and_after(simulate: Simulate) -> None:
    run = simulate("a", "live")
    figures = live_figures(run)
    assert figures.iteration_before_s == pytest.approx(STATIC_S, abs=0.01)
    assert figures.iteration_after_s == pytest.approx(OPTICAL_S, abs=0.01)
    assert figures.longest_gap_s == pytest.approx(STATIC_S, abs=0.01)
    assert figures.iterations_before + figures.iterations_after == 10  # 11 gaps, one changed in


def test_live_without_its_change_is_an_error(simulate: Simulate) -> None:
    run = simulate("a", "live")
    with pytest.raises(PatchlightError, match="had 0 reconfigurations instead of one"):
        live_figures(replace(run, reconfigurations=()))
    change = run.reconfigurations[0]
    early = replace(change, started_at=change.started_at - 1000)
    with pytest.raises(PatchlightError, match="left 0 whole iterations before"):
        live_figures(replace(run, reconfigurations=(early,)))
