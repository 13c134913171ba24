"""The result of a whole experiment as one JSON object (docs/result-ofc2022.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from patchlight.emulation.experiments.ofc2022.analysis import (
    CaseFigures,
    LiveFigures,
    case_figures,
    live_figures,
    reduction,
    the_change,
)
from patchlight.emulation.experiments.ofc2022.measurements import CaseRun, Wiring
from patchlight.emulation.experiments.ofc2022.paper import LIVE_SLACK_S, PAPER, REDUCTION_TOLERANCE
from patchlight.emulation.experiments.ofc2022.scenario import COMPUTE_S, GRADIENT_BYTES

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Setting:
    """What was run, where and when. ``iterations`` are those of a job of four GPUs."""

    lab: str
    scale: float
    iterations: int
    workers: str
    engine: str
    started_at: str
    duration_s: float
    machine: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """A figure that was asked for, and whether the measured one reaches it."""

    name: str
    asked: str
    measured: float
    met: bool


def result_of(setting: Setting, runs: Sequence[CaseRun]) -> dict[str, Any]:
    """Everything that ``result.json`` holds. Cases that were not run are not in it."""
    by_name: dict[tuple[str, Wiring], CaseRun] = {(run.case, run.wiring): run for run in runs}
    names = sorted({case for case, wiring in by_name if wiring != "live"})
    figures = {key: case_figures(run) for key, run in by_name.items() if run.wiring != "live"}
    live_run = next((run for run in runs if run.wiring == "live"), None)
    live = live_figures(live_run) if live_run else None
    changes = [(run, change) for run in runs for change in run.reconfigurations]
    result: dict[str, Any] = {
        "experiment": "ofc2022",
        "schema_version": SCHEMA_VERSION,
        **asdict(setting),
        "parameters": {
            "gradient_bytes": GRADIENT_BYTES,
            "compute_s": dict(COMPUTE_S),
            "fitted_to_the_paper": True,
        },
        "cases": {case: _case(case, by_name, figures) for case in names},
        "reconfigurations": [
            {"case": run.case, "wiring": run.wiring, **asdict(change)} for run, change in changes
        ],
        "targets": [asdict(target) for target in targets_of(figures, live)],
    }
    if live_run is not None and live is not None:
        result["live"] = {"case": live_run.case, **asdict(live)}
    if changes:
        # The one under running jobs where there is one: it is the one with a drain to show.
        shown = the_change(live_run) if live_run is not None else changes[-1][1]
        result["reconfiguration"] = {
            "stages_s": dict(shown.stages_s),
            "total_s": shown.finished_at - shown.started_at,
            "switching_s": shown.switching_s,
            "cross_connects_changed": shown.cross_connects_changed,
        }
    return result


def _case(
    case: str,
    runs: Mapping[tuple[str, Wiring], CaseRun],
    figures: Mapping[tuple[str, Wiring], CaseFigures],
) -> dict[str, Any]:
    wirings: tuple[Wiring, ...] = ("static", "optical")
    there = [wiring for wiring in wirings if (case, wiring) in figures]
    jobs = runs[case, there[0]].jobs
    found: dict[str, Any] = {
        "jobs": [
            {
                "name": job.status.spec.name,
                "iterations": job.status.spec.iterations,
                "ring": list(job.status.spec.hosts),
            }
            for job in jobs
        ],
        **{wiring: asdict(figures[case, wiring]) for wiring in there},
        "paper": asdict(PAPER[case]),
        "paper_reduction": PAPER[case].reduction,
    }
    if len(there) == 2:
        static, optical = figures[case, "static"], figures[case, "optical"]
        found["reduction"] = reduction(static, optical)
        found["gpu_utilization_ratio"] = optical.gpu_utilization / static.gpu_utilization
    return found


def targets_of(
    figures: Mapping[tuple[str, Wiring], CaseFigures], live: LiveFigures | None
) -> list[Target]:
    """What was asked for, with what was measured; only for what was run."""
    found: list[Target] = []
    for case, paper in PAPER.items():
        static, optical = figures.get((case, "static")), figures.get((case, "optical"))
        if static is None or optical is None:
            continue
        got = reduction(static, optical)
        found.append(
            Target(
                f"cases.{case}.reduction",
                f"{100 * paper.reduction:.1f} ± {100 * REDUCTION_TOLERANCE:.0f} points",
                got,
                abs(got - paper.reduction) <= REDUCTION_TOLERANCE,
            )
        )
        if paper.utilization_ratio is not None:
            ratio = optical.gpu_utilization / static.gpu_utilization
            found.append(
                Target(
                    f"cases.{case}.gpu_utilization_ratio",
                    f"at least {paper.utilization_ratio:g}",
                    ratio,
                    ratio >= paper.utilization_ratio,
                )
            )
    if live is not None:
        case_a = figures.get(("a", "static"))
        limit = (case_a.iteration_s if case_a else live.iteration_before_s) + LIVE_SLACK_S
        found += [
            Target(
                "live.longest_gap_s",
                f"at most {limit:.2f} s (a static iteration + {LIVE_SLACK_S:g} s)",
                live.longest_gap_s,
                live.longest_gap_s <= limit,
            ),
            Target("live.restarts", "0", live.restarts, live.restarts == 0),
        ]
    return found
