"""The whole experiment: which episodes there are, and what their figures come to."""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from patchlight.emulation.experiments.machine import describe_machine
from patchlight.emulation.experiments.pac_ml import paper
from patchlight.emulation.experiments.pac_ml.episodes import (
    Bench,
    Bound,
    Place,
    Ran,
    Run,
    Task,
    Tuning,
)
from patchlight.emulation.experiments.pac_ml.policies import (
    CONSTANTS,
    NAMES,
    ROLL_OUT,
    check_names,
    made_for,
    shipped,
)
from patchlight.emulation.experiments.pac_ml.variation import Variation
from patchlight.emulation.simulator.executors import Engine, run_all
from patchlight.emulation.simulator.ramp.counting import Counting, Interval, mean_and_interval
from patchlight.emulation.simulator.ramp.hindsight import HindsightBound
from patchlight.emulation.simulator.ramp.placement import PlacementRule
from patchlight.emulation.simulator.ramp.requirements import LAW_NAMES
from patchlight.emulation.simulator.ramp.rollout import LookAhead
from patchlight.emulation.simulator.ramp.scenario import PAC_ML_HORIZON_S
from patchlight.testbed.errors import BadInput
from patchlight.testbed.files.issues import nearest
from patchlight.testbed.graphs import ComputationGraph, builtin_graph
from patchlight.testbed.graphs.profiles import SOURCES, profile_cache, profile_in, read_profiles

SCHEMA_VERSION = 1
SEEDS, QUICK_SEEDS = 10, 3
_FUTURES, _QUICK_FUTURES, _AHEAD = 32, 12, 40
_SERIAL = Engine("serial")


@dataclass(frozen=True)
class ExperimentOptions:
    """What the user asked for. ``seeds`` ``None`` is 10, or 3 if ``quick``.

    ``policies`` ``None`` is all built-in ones and the learned ones that are shipped; ``added``
    come beside. A learned one runs only with the placement rule that it was trained for.
    """

    seeds: int | None = None
    first_seed: int = 0
    quick: bool = False
    profiles: Path | None = None
    laws: tuple[str, ...] = LAW_NAMES
    rules: tuple[str, ...] = tuple(PlacementRule)
    policies: tuple[str, ...] | None = None
    added: tuple[str, ...] = ()
    engine: Engine = _SERIAL
    horizon_s: float = PAC_ML_HORIZON_S
    variation: Variation = field(default_factory=Variation)

    def __post_init__(self) -> None:
        if self.seeds is not None and self.seeds < 1:
            raise BadInput(f"cannot run {self.seeds} seeds: expected 1 or more")
        if self.first_seed < 0:
            raise BadInput(f"the first seed is {self.first_seed}: expected 0 or more")
        _check("requirement law", self.laws, LAW_NAMES)
        _check("placement rule", self.rules, [rule.value for rule in PlacementRule])
        named = check_names([*(self.policies or ()), *self.added], self.variation.ramp)
        for what, asked in (
            ("laws", self.laws),
            ("rules", self.rules),
            ("policies", (NAMES if self.policies is None else self.policies) + self.added),
        ):
            if not asked:
                raise BadInput(f"no {what} to run: name at least one")
        for name in named:
            if not any(made_for(name, rule) for rule in self.rules):
                raise BadInput(
                    f"policy {name!r} was not trained for {' or '.join(self.rules)}",
                    hint="'patchlight policy show' says for which placement rule it was",
                )

    @property
    def all_seeds(self) -> range:
        """Those of the episodes of each kind."""
        count = self.seeds or (QUICK_SEEDS if self.quick else SEEDS)
        return range(self.first_seed, self.first_seed + count)

    def names(self, rule: str) -> list[str]:
        """The policies that run with this placement rule."""
        chosen = (*NAMES, *shipped()) if self.policies is None else self.policies
        asked = dict.fromkeys((*chosen, *self.added))
        return [name for name in asked if made_for(name, rule)]

    @property
    def places(self) -> list[Place]:
        """All placement rules that a policy runs with, under all laws."""
        rules = [rule for rule in dict.fromkeys(self.rules) if self.names(rule)]
        return [Place(rule, law) for rule in rules for law in dict.fromkeys(self.laws)]


@dataclass(frozen=True)
class Profiles:
    """The five models: where they come from, and whether they are the published ones."""

    graphs: tuple[ComputationGraph, ...]
    source: str
    published: bool


def find_profiles(folder: Path | None) -> Profiles:
    """PipeDream's profiles from a folder or the user's cache, else the built-in computed ones.

    ``BadInput`` if there are not all five in the folder, or in a cache that has some.
    """
    cache = profile_cache()
    if folder is None and cache.is_dir() and any(profile_in(cache, name) for name in SOURCES):
        folder = cache
    if folder is None:
        graphs = tuple(builtin_graph(name) for name in SOURCES)
        return Profiles(graphs, "built in, computed", published=False)
    found, published = read_profiles(folder)
    kind = "PipeDream's" if published else "the user's"
    return Profiles(tuple(found), f"{kind}, in {folder}", published)


def run_experiment(
    wishes: ExperimentOptions, say: Callable[[str], None], tell: Callable[[int, int], None]
) -> dict[str, Any]:
    """Everything that ``result.json`` holds. ``tell`` hears (episodes done, episodes in all)."""
    profiles = find_profiles(wishes.profiles)
    say(f"models: {profiles.source}")
    if not profiles.published:
        say("these are not the profiles that the paper used: its figures are then no comparison")
    started, clock = datetime.datetime.now(datetime.UTC), time.monotonic()
    machine = describe_machine()
    bench = Bench(profiles.graphs, wishes.horizon_s)
    places, seeds = wishes.places, wishes.all_seeds
    looks = _tune(bench, wishes, say)
    runs = _runs(wishes, looks)
    tasks: list[Task] = [*runs, *(Bound(place, seed) for place in places for seed in seeds)]
    done = 0

    def one_more() -> None:
        nonlocal done
        done += 1
        tell(done, len(tasks))

    say(f"{len(runs)} episodes of {int(wishes.horizon_s / 1000) + 1} arrivals")
    found = dict(zip(tasks, run_all(tasks, bench.do, wishes.engine, one_more), strict=True))
    return {
        "experiment": "pac-ml", "schema_version": SCHEMA_VERSION,
        "started_at": started.isoformat(timespec="seconds"),
        "duration_s": time.monotonic() - clock, "machine": machine,
        "processes": wishes.engine.count, "engine": wishes.engine.name, "quick": wishes.quick,
        "profiles": {"source": profiles.source, "published": profiles.published,
                     "models": [graph.name for graph in profiles.graphs]},
        "seeds": list(seeds), "horizon_s": wishes.horizon_s, "counting": Counting.FAITHFUL.value,
        "comparable": profiles.published and wishes.horizon_s == PAC_ML_HORIZON_S,
        "rules": _by_place(
            places, lambda place: _cell(wishes, place, found, looks.get(place))
        ),
        "published": {
            "blocking_rate": {
                name: {law: each._asdict() for law, each in rates.items()}
                for name, rates in {**paper.PAC_ML, **paper.BLOCKING}.items()
            },
            "jct_mean_s": paper.JCT_S, "throughput_bytes_per_s": paper.THROUGHPUT_BYTES_PER_S,
        },
    }  # fmt: skip


def run_policies(wishes: ExperimentOptions) -> dict[Place, dict[str, dict[str, Any]]]:
    """Only the policies' figures, as in ``result.json``: no bound, nothing published."""
    graphs = find_profiles(wishes.profiles).graphs
    wishes.variation.check_models(graphs)
    bench = Bench(graphs, wishes.horizon_s, wishes.variation)
    looks = _tune(bench, wishes, lambda words: None)
    runs = _runs(wishes, looks)
    found = dict(zip(runs, run_all(runs, bench.do, wishes.engine), strict=True))
    return {place: _policies(wishes, place, found, looks.get(place)) for place in wishes.places}


def _runs(wishes: ExperimentOptions, looks: dict[Place, LookAhead]) -> list[Run]:
    runs = [
        Run(place, name, seed, looks[place] if name == ROLL_OUT else None)
        for place in wishes.places
        for name in wishes.names(place.rule)
        for seed in wishes.all_seeds
    ]
    # The long ones first, so that no process is left with one at the end.
    return sorted(runs, key=lambda run: run.policy != ROLL_OUT)


def _tune(
    bench: Bench, wishes: ExperimentOptions, say: Callable[[str], None]
) -> dict[Place, LookAhead]:
    places = [place for place in wishes.places if ROLL_OUT in wishes.names(place.rule)]
    if not places:
        return {}
    say("choosing how the roll-out looks ahead, on drawn episodes of its own")
    futures = _QUICK_FUTURES if wishes.quick else _FUTURES
    tunings: list[Task] = [Tuning(place, futures, _AHEAD) for place in places]
    chosen = run_all(tunings, bench.do, wishes.engine)
    return dict(zip(places, cast(list[LookAhead], chosen), strict=True))


def _by_place(
    places: list[Place], cell: Callable[[Place], dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for place in places:
        found.setdefault(place.rule, {})[place.law] = cell(place)
    return found


def _policies(
    wishes: ExperimentOptions, place: Place, found: Mapping[Any, Any], look: LookAhead | None
) -> dict[str, dict[str, Any]]:
    seeds = wishes.all_seeds
    return {
        name: _figures(
            seeds,
            [found[Run(place, name, seed, look if name == ROLL_OUT else None)] for seed in seeds],
            paper.BLOCKING.get(name, {}).get(place.law),
        )
        for name in wishes.names(place.rule)
    }


def _cell(
    wishes: ExperimentOptions, place: Place, found: Mapping[Any, Any], look: LookAhead | None
) -> dict[str, Any]:
    policies = _policies(wishes, place, found, look)
    bounds: list[HindsightBound] = [found[Bound(place, seed)] for seed in wishes.all_seeds]
    bound = _interval(mean_and_interval([each.blocking_rate for each in bounds]))
    return {
        "policies": policies,
        "hindsight_bound": {"blocking_rate": bound[0], "ci95": bound[1]},
        "roll_out": None
        if look is None
        else {
            "futures": look.futures,
            "arrivals": look.arrivals,
            "unfinished": look.unfinished,
            "rules": [{"degrees": list(rule.degrees), "spare": rule.spare} for rule in look.rules],
        },
        "target": _target(place, policies),
    }


def _figures(seeds: range, ran: list[Ran], published: paper.Published | None) -> dict[str, Any]:
    results = [each.result for each in ran]
    faithful = [result.blocking_rate(Counting.FAITHFUL) for result in results]
    rate, ci95 = _interval(mean_and_interval(faithful))
    corrected = [result.blocking_rate(Counting.CORRECTED) for result in results]
    corrected_rate, corrected_ci95 = _interval(mean_and_interval(corrected))
    arrivals = sum(result.arrivals for result in results)
    if not arrivals:
        raise BadInput("no job came in any episode: let them come more often, or use more seeds")
    causes = {
        cause: sum(r.blocked[cause] for r in results) / arrivals for cause in results[0].blocked
    }
    causes["unfinished"] = sum(result.unfinished for result in results) / arrivals
    causes["lost"] = sum(result.lost for result in results) / arrivals
    latencies_s = [each for r in ran for each in r.latencies_s]
    cpu_s = sum(each.cpu_s for each in ran)
    return {
        "blocking_rate": rate, "ci95": ci95,
        "corrected_blocking_rate": corrected_rate, "corrected_ci95": corrected_ci95,
        "causes": causes,
        "jct_mean_s": _mean(r.jct_mean_s for r in results),
        "jct_p50_s": _mean(r.jct_p50_s for r in results),
        "jct_p99_s": _mean(r.jct_p99_s for r in results),
        "slowdown_mean": _mean(r.slowdown_mean for r in results),
        "throughput_bytes_per_s": _mean(r.throughput_bytes_per_s for r in results),
        "allocated": _mean(r.allocated for r in results),
        "busy": _mean(r.busy for r in results),
        "mean_degree": _mean(r.mean_degree for r in results),
        "decisions_per_s": sum(r.decisions for r in results) / cpu_s if cpu_s else None,
        "decision_latency_p50_s": _percentile(latencies_s, 50),
        "decision_latency_p99_s": _percentile(latencies_s, 99),
        "published": None if published is None else published._asdict(),
        "episodes": [{"seed": seed, "blocking_rate": rate_} for seed, rate_ in
                     zip(seeds, faithful, strict=True)],
        "faults": {"count": sum(each.faults for each in ran),
                   "first": next((each.first_fault for each in ran if each.faults), "")},
    }  # fmt: skip


def _target(place: Place, policies: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What is to be reached, and by which policy how much was."""
    rates = {name: figures["blocking_rate"] for name, figures in policies.items()}
    constants = {n: r for n, r in rates.items() if n in {f"constant-{c}" for c in CONSTANTS}}
    best = min(rates, key=rates.__getitem__)
    asked = paper.TARGETS[place.rule][place.law]
    return {
        "below": asked,
        "best_policy": best,
        "best": rates[best],
        "met": rates[best] < asked,
        "best_constant": min(constants, key=constants.__getitem__) if constants else None,
    }


def _percentile(values: Sequence[float], percent: float) -> float | None:
    return float(np.percentile(values, percent)) if values else None


def _interval(interval: Interval) -> tuple[float | None, float | None]:
    """JSON knows neither infinity nor not-a-number."""
    return _finite(interval.mean), _finite(interval.half_width)


def _mean(values: Iterable[float]) -> float | None:
    """The mean of the episodes that have one: where no job was completed, there is no JCT."""
    kept = [value for value in values if math.isfinite(value)]
    return math.fsum(kept) / len(kept) if kept else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _check(what: str, asked: Sequence[str], known: Sequence[str]) -> None:
    for name in asked:
        if name not in known:
            raise BadInput(f"no {what} {name!r}: {nearest(name, known)}")
