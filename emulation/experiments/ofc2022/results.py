"""The jobs of OFC 2022, their GPUs, and the result of all runs (docs/results/ofc2022.md).

How long a GPU computes and how fast links are was fitted to the paper's four completion times. All
that is measured is real time: on a busy machine jobs that should run in step drift apart, so the
result says whether it was quiet enough.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, zip_longest
from statistics import fmean
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from patchlight.emulation.experiments.ofc2022 import analysis
from patchlight.emulation.experiments.paper import PAPER
from patchlight.emulation.simulator.results import CpuTicks
from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobs import JobSpec, Trainer, Transport
from patchlight.testbed.lab.model import Host, Lab
from patchlight.testbed.lab.wiring import trace_links

# VGG16: 138.36 million parameters in float32.
GRADIENT_BYTES = 138_360_000 * 4
# Forward and backward of one iteration.
COMPUTE_S: Mapping[str, float] = MappingProxyType(
    {"Tesla M40": 0.50, "Titan V": 0.50 / 3}
)
# Over RDMA, with emulated processors, all is so many times as long: messages wait for processors,
# and the longer an iteration takes, the less that counts.
SLOW_MOTION: Mapping[Transport, int] = MappingProxyType({"tcp": 1, "rdma": 4})
# A real model for links that are scaled by 1,000: within 1 % of that gradient, so scaled.
REAL_MODEL = "tiny-transformer"
# How many GPUs each job of a case has. The figures are those of the first job.
CASES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"a": (4, 2), "b": (3, 3)}
)
# Strong scaling: ``iterations`` are those of a job of this size; a smaller one does more of them.
REFERENCE_WORKERS = 4


def jobs_of(
    case: str,
    lab: Lab,
    iterations: int,
    mismatch_percent: float = 0.0,
    trainer: Trainer = "synthetic",
    transport: Transport = "tcp",
) -> tuple[JobSpec, ...]:
    """The jobs of case ``a`` or ``b``, first job first, each with its ring in order.

    All train over the same data with the same batch for each GPU: a job of n workers does
    ``iterations * 4 / n`` iterations. The second computes ``mismatch_percent`` longer than its GPUs
    say. ``BadInput`` if the lab lacks the GPUs, or a ring would not cross ToRs at first.
    """
    if not (math.isfinite(mismatch_percent) and mismatch_percent >= 0):
        raise BadInput(
            f"a mismatch of {mismatch_percent} %: expected 0 or more"
        )
    if case not in CASES:
        raise BadInput(f"no case {case!r}: expected one of {', '.join(CASES)}")
    if iterations < 1:
        raise BadInput(f"{iterations} iterations: expected 1 or more")
    sizes = CASES[case]
    tor_of = _tors(lab)
    jobs = []
    for number, hosts in enumerate(_shares(lab, tor_of, sizes), start=1):
        size = len(hosts)
        slower = SLOW_MOTION[transport]
        longer = slower * (1 + (mismatch_percent / 100 if number > 1 else 0))
        if len({tor_of[host.name] for host in hosts}) < 2:
            raise BadInput(
                f"lab {lab.name}: the {size} GPUs of job {number} of case {case} are already on "
                f"one packet switch: regrouping changes nothing"
            )
        what: dict[str, Any] = {
            "gradient_bytes": slower * GRADIENT_BYTES,
            "transport": transport,
        }
        if trainer == "torch":
            what = {"trainer": trainer, "model": REAL_MODEL}
        jobs.append(
            JobSpec(
                name=f"{case}{number}-{size}gpu",
                iterations=max(
                    1, round(iterations * REFERENCE_WORKERS / size)
                ),
                **what,
                compute_s={
                    h.gpu.model: COMPUTE_S[h.gpu.model] * longer
                    for h in hosts
                    if h.gpu
                },
                workers=size,
                hosts=tuple(host.name for host in _alternating(hosts, tor_of)),
                seed=number,
            )
        )
    return tuple(jobs)


def given_compute_s(spec: JobSpec, lab: Lab) -> tuple[float, ...]:
    """How long each rank of a job is to compute in an iteration."""
    gpus = [lab.host(name).gpu for name in spec.hosts]
    return tuple(spec.compute_s[gpu.model] for gpu in gpus if gpu is not None)


def _tors(lab: Lab) -> dict[str, str]:
    """The ToR that each GPU's NIC is connected to at the start, by host name."""
    links = trace_links(lab, lab.initial_maps)
    found: dict[str, str] = {}
    for host in lab.hosts:
        if host.gpu is None:
            continue
        if host.gpu.model not in COMPUTE_S:
            raise BadInput(
                f"{host.name} is a {host.gpu.model}, whose compute time is unknown: expected one "
                f"of {', '.join(COMPUTE_S)}"
            )
        tor = links.switch_of(lab, host.endpoint)
        if tor is None:
            raise BadInput(
                f"{host.name} is not connected to a packet switch by the initial cross-connects "
                f"of lab {lab.name}"
            )
        found[host.name] = tor
    return found


def _shares(
    lab: Lab,
    tor_of: Mapping[str, str],
    sizes: Sequence[int],
) -> list[list[Host]]:
    """Which GPUs each job gets: the racks in turn, slow GPUs first, whatever the network is.

    Jobs of different sizes get one kind of GPU as far as it goes; jobs of one size as many of each.
    """
    slowest_first = sorted(COMPUTE_S, key=lambda model: -COMPUTE_S[model])
    of_model = {
        model: _alternating(
            [h for h in lab.hosts if h.gpu and h.gpu.model == model], tor_of
        )
        for model in slowest_first
    }
    shares: list[list[Host]] = []
    if len(set(sizes)) == 1:
        for number in range(len(sizes)):
            share: list[Host] = []
            for hosts in of_model.values():
                each = len(hosts) // len(sizes)
                share += hosts[number * each : (number + 1) * each]
            shares.append(share[: sizes[number]])
    else:
        row = [host for hosts in of_model.values() for host in hosts]
        ends = list(accumulate(sizes))
        shares = [
            row[end - size : end]
            for end, size in zip(ends, sizes, strict=True)
        ]
    if [len(share) for share in shares] != list(sizes):
        counts = ", ".join(
            f"{len(hosts)} × {model}" for model, hosts in of_model.items()
        )
        raise BadInput(
            f"lab {lab.name} cannot run jobs with {' and '.join(map(str, sizes))} GPUs: "
            f"it has {counts} with a NIC"
        )
    return shares


def _alternating(
    hosts: Sequence[Host], tor_of: Mapping[str, str]
) -> list[Host]:
    """These hosts, one of each ToR in turn, beginning under the ToR that has most of them."""
    by_tor: dict[str, list[Host]] = {}
    for host in hosts:
        by_tor.setdefault(tor_of[host.name], []).append(host)
    racks = sorted(
        by_tor.values(),
        key=len,
        reverse=True,
    )
    return [
        host
        for turn in zip_longest(*racks)
        for host in turn
        if host is not None
    ]


MOST_BUSY_BEFORE = 0.6
MOST_STEAL = 0.02
# The error of a measured time that is worth a note, and that makes it void.
MOST_COMPUTE_STRETCH = 0.05
_MOST_ERROR = 0.15
Effect = Literal["unaffected", "note", "void"]


@dataclass(
    frozen=True,
    slots=True,
)
class Disturbance:
    """Processor time taken by others, as shares, and its ``effect`` on the measured times.

    ``busy_before`` is of processor time in the second before; ``steal`` what a virtual machine's
    host gave to others; ``too_busy`` says which is over its limit. ``compute_stretch`` is how much
    longer than given compute phases took; ``iteration_error`` the standard error of the mean
    iteration, as a share of it.
    """

    busy_before: float
    steal: float
    compute_stretch: float
    iteration_error: float
    too_busy: list[str]
    effect: Effect

    @classmethod
    def of(
        cls,
        busy_before: float,
        before: CpuTicks,
        after: CpuTicks,
        runs: Sequence[analysis.CaseRun],
    ) -> "Disturbance":
        """From the processors' ticks before and after, and the runs."""
        steal = (after.steal - before.steal) / max(
            1, after.total - before.total
        )
        stretch = max((_stretch(run) for run in runs), default=0.0)
        limits = (
            (
                busy_before,
                MOST_BUSY_BEFORE,
                "other programs used {:.0%} of the processor before it began",
            ),
            (
                steal,
                MOST_STEAL,
                "this virtual machine's host withheld {:.0%} of the processor",
            ),
        )
        words = [
            text.format(found).replace("%", " %")
            for found, most, text in limits
            if found > most
        ]
        error = max(
            (_error(run) for run in runs if run.wiring != "live"), default=0.0
        )
        worst = max(stretch, error)
        effect: Effect = (
            "note" if worst > MOST_COMPUTE_STRETCH else "unaffected"
        )
        return cls(
            busy_before,
            steal,
            stretch,
            error,
            words,
            "void" if worst > _MOST_ERROR else effect,
        )


def _error(run: analysis.CaseRun) -> float:
    """The standard error of the mean iteration of a run's first job, as a share of it."""
    times = np.diff(analysis.iteration_ends(run.jobs[0]))
    return float(np.std(times) / np.mean(times) / np.sqrt(len(times)))


def _stretch(run: analysis.CaseRun) -> float:
    """How much longer than given the compute phases of a run's jobs were, the most of them."""
    return max(
        fmean(each.compute_s for each in job.iterations)
        / fmean(job.given_compute_s[each.rank] for each in job.iterations)
        - 1
        for job in run.jobs
    )


SCHEMA_VERSION = 3


@dataclass(
    frozen=True,
    slots=True,
)
class Setting:
    """Options, machine, time and disturbances; ``iterations`` of a job of four GPUs."""

    lab: str
    scale: float
    iterations: int
    workers: str
    engine: str
    started_at: str
    duration_s: float
    provenance: Mapping[str, Any]
    machine: Mapping[str, Any]
    disturbance: Disturbance
    mismatch_percent: float = 0.0
    servers: str = "namespace"
    transport: Transport = "tcp"


@dataclass(
    frozen=True,
    slots=True,
)
class PaperComparison:
    """A measured figure and the paper's; the difference is measured less published."""

    name: str
    paper: float
    measured: float
    difference: float
    relative_difference: float

    @classmethod
    def of(
        cls,
        name: str,
        paper: float,
        measured: float,
    ) -> "PaperComparison":
        """The relative difference of two figures."""
        return cls(
            name,
            paper,
            measured,
            measured - paper,
            measured / paper - 1,
        )


def result_of(
    setting: Setting, every: Sequence[analysis.CaseRun]
) -> dict[str, Any]:
    """Everything that ``result.json`` holds. Cases that were not run are not in it."""
    runs = [run for run in every if run.trainer == "synthetic"]
    by_name: dict[tuple[str, analysis.Wiring], analysis.CaseRun] = {
        (run.case, run.wiring): run for run in runs
    }
    names = sorted({case for case, wiring in by_name if wiring != "live"})
    figures = {
        key: analysis.case_figures(run)
        for key, run in by_name.items()
        if run.wiring != "live"
    }
    live_run = next((run for run in runs if run.wiring == "live"), None)
    live = analysis.live_figures(live_run) if live_run else None
    changes = [
        (run, change) for run in every for change in run.reconfigurations
    ]
    slower = SLOW_MOTION[setting.transport]
    result: dict[str, Any] = {
        "experiment": "ofc2022",
        "schema_version": SCHEMA_VERSION,
        **asdict(setting),
        "parameters": {
            "gradient_bytes": slower * GRADIENT_BYTES,
            "compute_s": {
                model: slower * each for model, each in COMPUTE_S.items()
            },
            "fitted_to_the_paper": True,
        },
        "cases": {case: _case(case, by_name, figures) for case in names},
        "reconfigurations": [
            {
                "case": run.case,
                "wiring": run.wiring,
                "trainer": run.trainer,
                **asdict(change),
            }
            for run, change in changes
        ],
        "comparisons": [
            asdict(comparison) for comparison in comparisons_of(figures)
        ],
    }
    if live_run is not None and live is not None:
        result["live"] = {"case": live_run.case, **asdict(live)}
        if rdma := analysis.rdma_figures(live_run):
            result["live"]["rdma"] = rdma
    result["headline"] = headline(result)
    if real := {run.wiring: run for run in every if run.trainer == "torch"}:
        result["real"] = _real(real)
    if changes:
        # The one under running jobs where there is one: it is the one with a drain to show.
        shown = (
            analysis.the_change(live_run)
            if live_run is not None
            else changes[-1][1]
        )
        result["reconfiguration"] = {
            "stages_s": dict(shown.stages_s),
            "total_s": shown.finished_at - shown.started_at,
            "switching_s": shown.switching_s,
            "cross_connects_changed": shown.cross_connects_changed,
        }
    return result


def headline(result: Mapping[str, Any]) -> str:
    """The result in a sentence or two."""
    words = [
        f"{100 * case['reduction']:.0f} % in case ({name}) "
        f"(paper: {100 * case['paper_reduction']:.0f} %)"
        for name, case in result["cases"].items()
        if "reduction" in case
    ]
    said = f"Rewiring cuts the first job's completion time by {' and '.join(words)}. "
    if live := result.get("live"):
        before_s = live["iteration_before_s"]
        after_s = live["iteration_after_s"]
        longest_s = live["longest_gap_s"]
        said = (said if words else "") + (
            f"Rewired while it trains, its iterations go from {before_s:.2f} s to {after_s:.2f} s; "
            f"with a longest gap of {longest_s:.2f} s."
        )
    return (
        said.strip()
        if words or live
        else "No case ran both static and rewired."
    )


def _real(runs: Mapping[analysis.Wiring, analysis.CaseRun]) -> dict[str, Any]:
    """The case with a real model. Its own scale is 1: only links are scaled, not the gradient."""
    static = analysis.case_figures(runs["static"])
    optical = analysis.case_figures(runs["optical"])
    first = runs["static"].jobs[0].status.spec
    return {
        "case": runs["static"].case,
        "model": first.model,
        "gradient_bytes": first.gradient_bytes,
        "static": asdict(static),
        "optical": asdict(optical),
        "reduction": analysis.reduction(static, optical),
        "gpu_utilization_ratio": analysis.utilization_ratio(static, optical),
    }


def _case(
    case: str,
    runs: Mapping[tuple[str, analysis.Wiring], analysis.CaseRun],
    figures: Mapping[tuple[str, analysis.Wiring], analysis.CaseFigures],
) -> dict[str, Any]:
    wirings: tuple[analysis.Wiring, ...] = ("static", "optical")
    there = [wiring for wiring in wirings if (case, wiring) in figures]
    specs = [job.status.spec for job in runs[case, there[0]].jobs]
    found: dict[str, Any] = {
        "jobs": [
            {"name": s.name, "iterations": s.iterations, "ring": list(s.hosts)}
            for s in specs
        ],
        **{wiring: asdict(figures[case, wiring]) for wiring in there},
        "rdma": {
            wiring: analysis.rdma_figures(runs[case, wiring])
            for wiring in there
        },
        "paper": asdict(PAPER[case]),
        "paper_reduction": PAPER[case].reduction,
        "paper_model_utilization_ratio": PAPER[case].model_utilization_ratio,
    }
    if len(there) == 2:
        static = figures[case, "static"]
        optical = figures[case, "optical"]
        found["reduction"] = analysis.reduction(static, optical)
        found["gpu_utilization_ratio"] = analysis.utilization_ratio(
            static, optical
        )
    return found


def comparisons_of(
    figures: Mapping[tuple[str, analysis.Wiring], analysis.CaseFigures],
) -> list[PaperComparison]:
    """The measured figures that the paper has too; only of what was run."""
    comparisons: list[PaperComparison] = []
    for case, paper in PAPER.items():
        static = figures.get((case, "static"))
        optical = figures.get((case, "optical"))
        if static is None or optical is None:
            continue
        for key, published, measured in (
            (
                "reduction",
                paper.reduction,
                analysis.reduction(static, optical),
            ),
            (
                "gpu_utilization_ratio",
                paper.utilization_ratio,
                analysis.utilization_ratio(static, optical),
            ),
        ):
            comparisons.append(
                PaperComparison.of(f"cases.{case}.{key}", published, measured)
            )
    return comparisons
