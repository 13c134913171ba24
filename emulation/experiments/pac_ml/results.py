"""The result of PAC-ML's experiment, its ``result.json`` and its plots."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from patchlight.emulation.experiments import paper
from patchlight.emulation.experiments.pac_ml import CONSTANTS, policies_in
from patchlight.emulation.experiments.pac_ml.episodes import EpisodeOutcome
from patchlight.emulation.simulator import figures, results
from patchlight.emulation.simulator.ramp import scenario
from patchlight.emulation.simulator.ramp.rollout import LookAhead
from patchlight.testbed.errors import BadInput

SCHEMA_VERSION = 2
_TIMES = ("jct_mean_s", "jct_p50_s", "jct_p99_s", "slowdown_mean")
_MEANS = (
    *_TIMES,
    "throughput_bytes_per_s",
    "allocated",
    "busy",
    "mean_degree",
)


@dataclass(
    frozen=True,
    slots=True,
)
class PolicyFigures:
    """A policy's figures over all episodes of a cell; ``None`` where there is nothing to say.

    ``ci95`` is half the width of a 95 % interval, ``causes`` are shares of all arrivals;
    ``decisions_per_s`` and latencies are measured.
    """

    blocking_rate: float | None
    ci95: float | None
    corrected_blocking_rate: float | None
    corrected_ci95: float | None
    causes: Mapping[str, float]
    jct_mean_s: float | None
    jct_p50_s: float | None
    jct_p99_s: float | None
    slowdown_mean: float | None
    throughput_bytes_per_s: float | None
    allocated: float | None
    busy: float | None
    mean_degree: float | None
    decisions_per_s: float | None
    decision_latency_p50_s: float | None
    decision_latency_p99_s: float | None
    published: Mapping[str, Any] | None
    episodes: Sequence[Mapping[str, Any]]
    faults: Mapping[str, Any]

    @property
    def rates(self) -> dict[int, float]:
        """The blocking rate of each episode by its seed."""
        return {each["seed"]: each["blocking_rate"] for each in self.episodes}

    @classmethod
    def of(
        cls,
        by_seed: Mapping[int, EpisodeOutcome],
        published: paper.Published | None,
    ) -> PolicyFigures:
        """The figures of these episodes; ``BadInput`` if no job came in any."""
        outcomes = list(by_seed.values())
        results = [outcome.result for outcome in outcomes]
        arrivals = sum(result.arrivals for result in results)
        if not arrivals:
            raise BadInput(
                "no job arrived in any episode: shorten the mean interval of arrivals, or use "
                "more seeds"
            )
        faithful = [
            result.blocking_rate(scenario.Counting.FAITHFUL)
            for result in results
        ]
        corrected = [
            result.blocking_rate(scenario.Counting.CORRECTED)
            for result in results
        ]
        causes = {
            cause: sum(r.blocked[cause] for r in results) / arrivals
            for cause in results[0].blocked
        }
        causes["unfinished"] = (
            sum(result.unfinished for result in results) / arrivals
        )
        causes["lost"] = sum(result.lost for result in results) / arrivals
        latencies_s = [
            each for outcome in outcomes for each in outcome.latencies_s
        ]
        cpu_s = sum(outcome.cpu_s for outcome in outcomes)
        return cls(
            *_interval(scenario.mean_and_interval(faithful)),
            *_interval(scenario.mean_and_interval(corrected)),
            causes,
            **{
                name: _mean(getattr(result, name) for result in results)
                for name in _MEANS
            },
            decisions_per_s=sum(r.decisions for r in results) / cpu_s
            if cpu_s
            else None,
            decision_latency_p50_s=_percentile(latencies_s, 50),
            decision_latency_p99_s=_percentile(latencies_s, 99),
            published=None if published is None else published._asdict(),
            episodes=[
                {"seed": seed, "blocking_rate": rate}
                for seed, rate in zip(by_seed, faithful, strict=True)
            ],
            faults={
                "count": sum(outcome.faults for outcome in outcomes),
                "first": next(
                    (each.first_fault for each in outcomes if each.faults), ""
                ),
            },
        )


@dataclass(
    frozen=True,
    slots=True,
)
class BoundFigures:
    """A bound: no policy can block less, in any episode or, without foresight, in the mean."""

    blocking_rate: float | None
    ci95: float | None

    @classmethod
    def of(cls, rates: Sequence[float]) -> BoundFigures:
        """Over the bounds of all seeds; ``None`` where there is none yet."""
        return (
            cls(*_interval(scenario.mean_and_interval(rates)))
            if rates
            else cls(None, None)
        )


@dataclass(
    frozen=True,
    slots=True,
)
class RollOutFigures:
    """How the roll-out looks ahead: how often, how far, and which rules it plays on by."""

    futures: int
    arrivals: int
    unfinished: float
    rules: Sequence[Mapping[str, Any]]

    @classmethod
    def of(cls, look: LookAhead) -> RollOutFigures:
        """As it was tuned."""
        rules = [
            {"degrees": list(rule.degrees), "spare": rule.spare}
            for rule in look.rules
        ]
        return cls(
            look.futures,
            look.arrivals,
            look.unfinished,
            rules,
        )


@dataclass(
    frozen=True,
    slots=True,
)
class Difference:
    """A policy's blocking rate less another's, paired by seed; ``p`` is of no difference at all."""

    difference: float | None
    ci95: float | None
    worse_episodes: int
    p: float
    significant: bool = False

    @classmethod
    def of(cls, policy: PolicyFigures, other: PolicyFigures) -> Difference:
        """Over the episodes that both ran."""
        mine = policy.rates
        theirs = other.rates
        both = [seed for seed in mine if seed in theirs]
        if not both:
            return cls(
                None,
                None,
                0,
                1.0,
            )
        less = [mine[seed] - theirs[seed] for seed in both]
        worse = sum(mine[seed] > theirs[seed] for seed in both)
        return cls(
            *_interval(scenario.mean_and_interval(less)),
            worse,
            scenario.p_value(less),
        )

    @classmethod
    def together(
        cls, found: Mapping[str, Difference]
    ) -> dict[str, Difference]:
        """With the significant ones marked: at 95 %, by Holm's method for all of them."""
        marked = scenario.significant([each.p for each in found.values()])
        return {
            name: replace(each, significant=sure)
            for (name, each), sure in zip(found.items(), marked, strict=True)
        }


@dataclass(
    frozen=True,
    slots=True,
)
class Lowest:
    """The policy that blocks least in a cell; ``below_all`` if significantly, of all others.

    ``constant`` is the best constant degree, ``less_constant`` what each policy blocks less that.
    """

    policy: str
    blocking_rate: float | None
    below_all: bool
    constant: str | None
    less_constant: Mapping[str, Difference]

    @classmethod
    def of(cls, policies: Mapping[str, PolicyFigures]) -> Lowest:
        """The lowest of a cell's policies."""
        rates: dict[str, Any] = {
            name: each.blocking_rate for name, each in policies.items()
        }
        ranked = sorted(rates, key=rates.__getitem__)
        name, *rest = ranked
        lowest = policies[name]
        beside = Difference.together(
            {each: Difference.of(lowest, policies[each]) for each in rest}
        )
        constant = next((each for each in ranked if each in CONSTANTS), None)
        return cls(
            name,
            lowest.blocking_rate,
            all(each.significant for each in beside.values()),
            constant,
            Difference.together(
                {
                    each: Difference.of(policies[each], policies[constant])
                    for each in policies
                    if constant is not None and each != constant
                }
            ),
        )


@dataclass(
    frozen=True,
    slots=True,
)
class CellFigures:
    """All figures of a placement rule under a law.

    ``decided_by`` says by policy what decided for it: itself, or a constant degree.
    """

    policies: Mapping[str, PolicyFigures]
    hindsight_bound: BoundFigures
    online_bound: BoundFigures
    roll_out: RollOutFigures | None
    lowest: Lowest
    less_maximum: Mapping[str, float]
    decided_by: Mapping[str, str]


def less_maximum(policies: Mapping[str, PolicyFigures]) -> dict[str, float]:
    """By which share each policy blocks less than maximum parallelisation; empty without that."""
    most = policies["maximum"].blocking_rate if "maximum" in policies else None
    if not most:
        return {}
    rates = {name: figures.blocking_rate for name, figures in policies.items()}
    return {
        name: 1 - rate / most
        for name, rate in rates.items()
        if rate is not None
    }


def _published() -> dict[str, Any]:
    return {
        "blocking_rate": {
            name: {law: each._asdict() for law, each in rates.items()}
            for name, rates in {**paper.PAC_ML, **paper.BLOCKING}.items()
        },
        "jct_mean_s": paper.JCT_S,
        "throughput_bytes_per_s": paper.THROUGHPUT_BYTES_PER_S,
    }


@dataclass(
    frozen=True,
    slots=True,
    kw_only=True,
)
class PacMlResult:
    """Options, machine and time, and the figures by placement rule and law.

    ``salt`` draws the same episodes again (``PacMlOptions``). ``law_instance`` is that of laws B, C
    and D, ``None`` for new ones in each episode; ``varied`` is what else differs from the paper.
    ``outside_training`` says by policy what a learned one was not trained for.
    """

    experiment: str = "pac-ml"
    schema_version: int = SCHEMA_VERSION
    started_at: str
    duration_s: float
    machine: Mapping[str, Any]
    provenance: Mapping[str, Any]
    processes: int
    engine: str
    quick: bool
    profiles: Mapping[str, Any]
    seeds: Sequence[int]
    salt: int
    horizon_s: float
    law_instance: int | None
    varied: Mapping[str, str]
    outside_training: Mapping[str, Sequence[str]]
    interrupted: bool
    episodes_finished: int
    episodes_wanted: int
    counting: str = scenario.Counting.FAITHFUL.value
    comparable: bool
    rules: Mapping[str, Mapping[str, CellFigures]]
    published: Mapping[str, Any] = field(default_factory=_published)


def _percentile(values: Sequence[float], percent: float) -> float | None:
    return float(np.percentile(values, percent)) if values else None


def _interval(
    interval: scenario.Interval,
) -> tuple[float | None, float | None]:
    """JSON knows neither infinity nor not-a-number."""
    mean, half_width = (
        each if math.isfinite(each) else None for each in interval
    )
    return mean, half_width


def _mean(values: Iterable[float]) -> float | None:
    """The mean of the episodes that have one: where no job was completed, there is no JCT."""
    kept = [value for value in values if math.isfinite(value)]
    return math.fsum(kept) / len(kept) if kept else None


_LINES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (
        "hindsight_bound",
        "bound in hindsight (no policy blocks less)",
        {"color": "black"},
    ),
    (
        "online_bound",
        "bound without foresight",
        {"color": "black", "linestyle": ":"},
    ),
    (
        "published",
        f"{paper.BEST} (published)",
        {"color": figures.VERMILION, "linestyle": "--"},
    ),
)


def blocking_figure(result: dict[str, Any], rule: str) -> Figure:
    """The blocking rates of a placement rule, with the bounds and the published ones."""
    laws: dict[str, Any] = result["rules"][rule]
    measured = {"blocking_rate": (1.0, f"blocking rate ({_seeds(laws)})")}
    figure = _panels(laws, measured, "ci95")
    for axis, (law, cell) in zip(figure.axes, laws.items(), strict=True):
        lines = {
            key: cell[key]["blocking_rate"]
            for key in ("hindsight_bound", "online_bound")
        }
        if (
            result["comparable"]
            and law in result["published"]["blocking_rate"][paper.BEST]
        ):
            best = result["published"]["blocking_rate"][paper.BEST][law]
            lines["published"] = best["blocking_rate"]
        for key, label, look in _LINES:
            if lines.get(key) is not None:
                axis.axvline(
                    lines[key],
                    label=label,
                    linewidth=1,
                    **look,
                )
    figures.legend(figure, 2)
    return figure


def completion_figure(result: dict[str, Any], rule: str) -> Figure:
    """Completion times and demand throughput of a placement rule."""
    measured = {
        "jct_mean_s": (1e-3, "mean completion time (1,000 s)"),
        "throughput_bytes_per_s": (1e-6, "demand throughput (MB/s)"),
    }
    return _panels(result["rules"][rule], measured)


def _panels(
    laws: dict[str, Any],
    measured: Mapping[str, tuple[float, str]],
    error: str = "",
) -> Figure:
    """A column for each law and a row for each figure; policies are the lines of each panel."""
    names = policies_in(laws)
    known = [
        each for cell in laws.values() for each in cell["policies"].values()
    ]
    # Where no job was completed, there is no time of completion to show.
    measured = {
        key: what
        for key, what in measured.items()
        if any(p[key] is not None for p in known)
    }
    figure = figures.new(len(measured) * (0.6 + 0.145 * len(names)) + 0.3)
    parts = figure.subfigures(len(measured), 1, squeeze=False)[:, 0]
    for part, (key, (factor, label)) in zip(
        parts, measured.items(), strict=True
    ):
        axes = part.subplots(
            1,
            len(laws),
            sharex=True,
            sharey=True,
            squeeze=False,
        )[0]
        for axis, (law, cell) in zip(axes, laws.items(), strict=True):
            found = [cell["policies"].get(name, {}) for name in names]
            values = [
                math.nan if each.get(key) is None else each[key] * factor
                for each in found
            ]
            spread = (
                [each.get(error) or 0.0 for each in found] if error else None
            )
            look = {"fmt": "o", "color": figures.BLUE, "elinewidth": 1}
            axis.errorbar(
                values,
                range(len(names)),
                xerr=spread,
                **look,
            )
            axis.set_title(f"law {law}")
        # A policy's file without its folders: the plot needs the room.
        axes[0].set_yticks(
            range(len(names)), [name.rpartition("/")[2] for name in names]
        )
        axes[0].invert_yaxis()
        axes[0].set_xlim(left=0)
        part.supxlabel(label, fontsize=8)
    return figure


def _seeds(laws: dict[str, Any]) -> str:
    """How many episodes a figure's means are over: less than all seeds once it is interrupted."""
    counts = {
        len(policy["episodes"])
        for cell in laws.values()
        for policy in cell["policies"].values()
    }
    shown = "–".join(
        str(each) for each in dict.fromkeys((min(counts), max(counts)))
    )
    return "1 seed" if shown == "1" else f"{shown} seeds, 95 % interval"


def write_report(result: dict[str, Any], output: Path) -> list[Path]:
    """Write ``result.json`` and the plots into ``output``; the files."""
    plots = {}
    for rule in result["rules"]:
        plots[f"blocking-{rule}"] = partial(blocking_figure, result, rule)
        plots[f"completion-{rule}"] = partial(completion_figure, result, rule)
    note = ""
    if result["interrupted"]:
        note = f"interrupted: {result['episodes_finished']} of {result['episodes_wanted']} episodes"
    return results.write_report(
        result,
        output,
        plots,
        note=note,
    )


def faults_of(result: dict[str, Any]) -> list[str]:
    """The faults of policies: how many, and the first."""
    found: dict[str, tuple[int, str]] = {}
    for name, faults in _faults(result):
        count, first = found.get(name, (0, ""))
        found[name] = count + faults["count"], first or faults["first"]
    return [
        first if count == 1 else f"{count} times; at first: {first}"
        for count, first in found.values()
        if count
    ]


def count_faults(result: dict[str, Any]) -> int:
    """How often policies failed."""
    return sum(faults["count"] for _, faults in _faults(result))


def _faults(result: dict[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for laws in result["rules"].values():
        for cell in laws.values():
            for name, policy in cell["policies"].items():
                yield name, policy["faults"]
