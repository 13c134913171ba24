"""The result of PAC-ML's experiment, its ``result.json`` and its plots."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from patchlight.emulation.experiments import paper
from patchlight.emulation.experiments.pac_ml import CONSTANTS, policies_in
from patchlight.emulation.experiments.pac_ml.episodes import ROLL_OUT, EpisodeOutcome
from patchlight.emulation.simulator import results
from patchlight.emulation.simulator.ramp import scenario
from patchlight.emulation.simulator.ramp.rollout import LookAhead
from patchlight.testbed.errors import BadInput

SCHEMA_VERSION = 2
_TIMES = ("jct_mean_s", "jct_p50_s", "jct_p99_s", "slowdown_mean")
_MEANS = (*_TIMES, "throughput_bytes_per_s", "allocated", "busy", "mean_degree")


@dataclass(frozen=True, slots=True)
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
        cls, by_seed: Mapping[int, EpisodeOutcome], published: paper.Published | None
    ) -> PolicyFigures:
        """Of these episodes; ``BadInput`` if no job came in any."""
        outcomes = list(by_seed.values())
        results = [outcome.result for outcome in outcomes]
        arrivals = sum(result.arrivals for result in results)
        if not arrivals:
            raise BadInput(
                "no job came in any episode: let them come more often, or use more seeds"
            )
        faithful = [result.blocking_rate(scenario.Counting.FAITHFUL) for result in results]
        corrected = [result.blocking_rate(scenario.Counting.CORRECTED) for result in results]
        causes = {
            cause: sum(r.blocked[cause] for r in results) / arrivals for cause in results[0].blocked
        }
        causes["unfinished"] = sum(result.unfinished for result in results) / arrivals
        causes["lost"] = sum(result.lost for result in results) / arrivals
        latencies_s = [each for outcome in outcomes for each in outcome.latencies_s]
        cpu_s = sum(outcome.cpu_s for outcome in outcomes)
        return cls(
            *_interval(scenario.mean_and_interval(faithful)),
            *_interval(scenario.mean_and_interval(corrected)),
            causes,
            **{name: _mean(getattr(result, name) for result in results) for name in _MEANS},
            decisions_per_s=sum(r.decisions for r in results) / cpu_s if cpu_s else None,
            decision_latency_p50_s=_percentile(latencies_s, 50),
            decision_latency_p99_s=_percentile(latencies_s, 99),
            published=None if published is None else published._asdict(),
            episodes=[
                {"seed": seed, "blocking_rate": rate}
                for seed, rate in zip(by_seed, faithful, strict=True)
            ],
            faults={
                "count": sum(outcome.faults for outcome in outcomes),
                "first": next((each.first_fault for each in outcomes if each.faults), ""),
            },
        )


@dataclass(frozen=True, slots=True)
class BoundFigures:
    """A bound: no policy can block less, in any episode or, without foresight, in the mean."""

    blocking_rate: float | None
    ci95: float | None

    @classmethod
    def of(cls, rates: Sequence[float]) -> BoundFigures:
        """Over the bounds of all seeds; ``None`` where there is none yet."""
        return cls(*_interval(scenario.mean_and_interval(rates))) if rates else cls(None, None)


@dataclass(frozen=True, slots=True)
class RollOutFigures:
    """How the roll-out looks ahead: how often, how far, and which rules it plays on by."""

    futures: int
    arrivals: int
    unfinished: float
    rules: Sequence[Mapping[str, Any]]

    @classmethod
    def of(cls, look: LookAhead) -> RollOutFigures:
        """As it was tuned."""
        rules = [{"degrees": list(rule.degrees), "spare": rule.spare} for rule in look.rules]
        return cls(look.futures, look.arrivals, look.unfinished, rules)


@dataclass(frozen=True, slots=True)
class Difference:
    """A policy's blocking rate less another's, paired by seed; ``significant`` at 95 %."""

    difference: float | None
    ci95: float | None
    worse_episodes: int
    significant: bool

    @classmethod
    def of(cls, policy: PolicyFigures, other: PolicyFigures) -> Difference:
        """Over the episodes that both ran."""
        mine, theirs = policy.rates, other.rates
        both = [seed for seed in mine if seed in theirs]
        if not both:
            return cls(None, None, 0, significant=False)
        found = scenario.paired_difference(
            [mine[seed] for seed in both], [theirs[seed] for seed in both]
        )
        worse = sum(mine[seed] > theirs[seed] for seed in both)
        return cls(*_interval(found), worse, abs(found.mean) > found.half_width)


@dataclass(frozen=True, slots=True)
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
        """Of a cell's policies."""
        rates: dict[str, Any] = {name: each.blocking_rate for name, each in policies.items()}
        ranked = sorted(rates, key=rates.__getitem__)
        name, *rest = ranked
        lowest = policies[name]
        beside = [Difference.of(lowest, policies[other]) for other in rest]
        constant = next((each for each in ranked if each in CONSTANTS), None)
        return cls(
            name,
            lowest.blocking_rate,
            all(each.significant for each in beside),
            constant,
            {
                each: Difference.of(policies[each], policies[constant])
                for each in policies
                if constant is not None and each != constant
            },
        )


@dataclass(frozen=True, slots=True)
class CellFigures:
    """All figures of a placement rule under a law."""

    policies: Mapping[str, PolicyFigures]
    hindsight_bound: BoundFigures
    online_bound: BoundFigures
    roll_out: RollOutFigures | None
    lowest: Lowest
    less_maximum: Mapping[str, float]


def less_maximum(policies: Mapping[str, PolicyFigures]) -> dict[str, float]:
    """By which share each policy blocks less than maximum parallelisation; empty without that."""
    most = policies["maximum"].blocking_rate if "maximum" in policies else None
    if not most:
        return {}
    rates = {name: figures.blocking_rate for name, figures in policies.items()}
    return {name: 1 - rate / most for name, rate in rates.items() if rate is not None}


def _published() -> dict[str, Any]:
    return {
        "blocking_rate": {
            name: {law: each._asdict() for law, each in rates.items()}
            for name, rates in {**paper.PAC_ML, **paper.BLOCKING}.items()
        },
        "jct_mean_s": paper.JCT_S,
        "throughput_bytes_per_s": paper.THROUGHPUT_BYTES_PER_S,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class PacMlResult:
    """What was run, where and when, and the figures by placement rule and law.

    ``law_instance`` is that of laws B, C and D, ``None`` for new ones in each episode; ``varied``
    is what else is other than in the paper.
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
    horizon_s: float
    law_instance: int | None
    varied: Mapping[str, str]
    interrupted: bool
    episodes_finished: int
    episodes_wanted: int
    counting: str = scenario.Counting.FAITHFUL.value
    comparable: bool
    rules: Mapping[str, Mapping[str, CellFigures]]
    published: Mapping[str, Any] = field(default_factory=_published)


def _percentile(values: Sequence[float], percent: float) -> float | None:
    return float(np.percentile(values, percent)) if values else None


def _interval(interval: scenario.Interval) -> tuple[float | None, float | None]:
    """JSON knows neither infinity nor not-a-number."""
    mean, half_width = (each if math.isfinite(each) else None for each in interval)
    return mean, half_width


def _mean(values: Iterable[float]) -> float | None:
    """The mean of the episodes that have one: where no job was completed, there is no JCT."""
    kept = [value for value in values if math.isfinite(value)]
    return math.fsum(kept) / len(kept) if kept else None


_CONSTANT_SHADES = ("#c6dbef", "#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#084594")
_COLOURS = {
    "maximum": "#fdae6b",
    "minimum": "#e6550d",
    "sufficient": "#a63603",
    "random": "#bdbdbd",
    ROLL_OUT: "#31a354",
}
_OTHERS = ("#756bb1", "#dd1c77", "#1b9e77", "#d8b365", "#80cdc1", "#7f3b08")
# Bars that a printer without colours tells apart.
_HATCHES = ("", "//", "..", "\\\\", "xx", "--", "oo", "||", "++", "**", "OO", "/.", "\\o")
_BOUNDS = (
    ("hindsight_bound", "bound in hindsight", "-"),
    ("online_bound", "bound without foresight", ":"),
)


def blocking_figure(result: dict[str, Any], rule: str) -> Figure:
    """The blocking rates of a placement rule, with the bound and the published ones."""
    laws: dict[str, Any] = result["rules"][rule]
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    axis = figure.subplots()
    _bars(axis, laws, "blocking_rate", 1.0, error="ci95")
    _reference_lines(axis, result, laws)
    axis.set_ylabel("blocking rate")
    axis.set_ylim(bottom=0)
    figure.legend(loc="outside right upper", fontsize=8)
    figure.suptitle(f"Jobs blocked, {rule}, {len(result['seeds'])} seeds, 95 % intervals")
    return figure


def completion_figure(result: dict[str, Any], rule: str) -> Figure:
    """Completion times and demand throughput of a placement rule."""
    laws: dict[str, Any] = result["rules"][rule]
    figure = Figure(figsize=(11, 7), layout="constrained")
    times, moved = figure.subplots(2, 1, sharex=True)
    _bars(times, laws, "jct_mean_s", 1e-3)
    times.set_ylabel("mean completion time (1,000 s)")
    _bars(moved, laws, "throughput_bytes_per_s", 1e-6)
    moved.set_ylabel("demand throughput (MB/s)")
    handles, labels = times.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=8)
    figure.suptitle(f"Completed jobs, {rule}, {len(result['seeds'])} seeds")
    return figure


def _bars(
    axis: Axes, laws: dict[str, Any], key: str, factor: float, error: str | None = None
) -> None:
    names = policies_in(laws)
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        found = [cell["policies"].get(name, {}) for cell in laws.values()]
        at = [place - 0.4 + width * (number + 0.5) for place in range(len(laws))]
        heights = [(figures.get(key) or 0.0) * factor for figures in found]
        spread = [figures.get(error) or 0.0 for figures in found] if error else None
        # A policy's file without its folders: the plot needs the room.
        label, colour = name.rpartition("/")[2], _colour(name, number)
        turn, kind = divmod(number, len(_HATCHES))
        look: dict[str, Any] = {"color": colour, "hatch": _HATCHES[kind] * (turn + 1)}
        look |= {"edgecolor": "#ffffff", "linewidth": 0}
        axis.bar(at, heights, width, yerr=spread, label=label, error_kw={"linewidth": 0.8}, **look)
    axis.set_xticks(range(len(laws)), [f"law {law}" for law in laws])
    axis.grid(axis="y", alpha=0.25)


def _reference_lines(axis: Axes, result: dict[str, Any], laws: dict[str, Any]) -> None:
    for number, (law, cell) in enumerate(laws.items()):
        # Matplotlib leaves labels that begin with an underscore out of the legend.
        first, span = "_" if number else "", (number - 0.4, number + 0.4)
        for key, name, style in _BOUNDS:
            bound, label = cell[key]["blocking_rate"], f"{first}{name} (no policy is below)"
            if bound is not None:
                axis.hlines(bound, *span, "#000000", linestyle=style, linewidth=1, label=label)
        if result["comparable"] and law in result["published"]["blocking_rate"][paper.BEST]:
            published = result["published"]["blocking_rate"][paper.BEST][law]["blocking_rate"]
            label = f"{first}{paper.BEST} (published)"
            axis.hlines(published, *span, "#d62728", linestyle="--", linewidth=1.2, label=label)


def _colour(name: str, place: int) -> str:
    if name in CONSTANTS:
        return _CONSTANT_SHADES[list(CONSTANTS).index(name)]
    return _COLOURS[name] if name in _COLOURS else _OTHERS[place % len(_OTHERS)]


def write_report(result: dict[str, Any], output: Path) -> list[Path]:
    """Write ``result.json`` and the plots into ``output``; the files."""
    plots = {}
    for rule in result["rules"]:
        plots[f"blocking-{rule}"] = partial(blocking_figure, result, rule)
        plots[f"completion-{rule}"] = partial(completion_figure, result, rule)
    return results.write_report(result, output, plots)


def faults_of(result: dict[str, Any]) -> list[str]:
    """What policies did wrong: how often, and the first time."""
    found: dict[str, tuple[int, str]] = {}
    for laws in result["rules"].values():
        for cell in laws.values():
            for name, figures in cell["policies"].items():
                count, first = found.get(name, (0, ""))
                faults = figures["faults"]
                found[name] = count + faults["count"], first or faults["first"]
    return [
        first if count == 1 else f"{count} times; at first: {first}"
        for count, first in found.values()
        if count
    ]
