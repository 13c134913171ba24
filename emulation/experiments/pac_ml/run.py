"""The whole experiment: which episodes there are, and what their figures come to."""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from emulation.experiments.machine import describe_machine
from emulation.experiments.pac_ml import paper
from emulation.experiments.pac_ml.episodes import (
    Bench,
    Bound,
    Place,
    Ran,
    Run,
    Task,
    Tuning,
    do_all,
)
from emulation.experiments.pac_ml.policies import CONSTANTS, NAMES, ROLL_OUT, check_names
from emulation.flow.counting import Counting, Interval, mean_and_interval
from emulation.flow.hindsight import HindsightBound
from emulation.flow.placement import PlacementRule
from emulation.flow.requirements import LAW_NAMES
from emulation.flow.rollout import LookAhead
from emulation.flow.scenario import PAC_ML_HORIZON_S
from testbed.errors import BadInput
from testbed.graphs import ComputationGraph, builtin_graph
from testbed.graphs.profiles import SOURCES, profile_cache, profile_in, read_profiles
from testbed.mistakes import nearest

SCHEMA_VERSION = 1
SEEDS, QUICK_SEEDS = 10, 3
_FUTURES, _QUICK_FUTURES, _AHEAD = 32, 12, 40


@dataclass(frozen=True)
class Wishes:
    """What the user asked for. ``seeds`` ``None`` is 10, or 3 if ``quick``."""

    seeds: int | None = None
    quick: bool = False
    profiles: Path | None = None
    laws: tuple[str, ...] = LAW_NAMES
    rules: tuple[str, ...] = tuple(PlacementRule)
    policies: tuple[str, ...] = NAMES
    processes: int = 1
    horizon_s: float = PAC_ML_HORIZON_S

    def __post_init__(self) -> None:
        if self.seeds is not None and self.seeds < 1:
            raise BadInput(f"cannot run {self.seeds} seeds: expected 1 or more")
        if self.processes < 1:
            raise BadInput(f"cannot run on {self.processes} processes: expected 1 or more")
        _check("requirement law", self.laws, LAW_NAMES)
        _check("placement rule", self.rules, [rule.value for rule in PlacementRule])
        check_names(list(self.policies))
        for what, asked in (
            ("laws", self.laws),
            ("rules", self.rules),
            ("policies", self.policies),
        ):
            if not asked:
                raise BadInput(f"no {what} to run: name at least one")

    @property
    def seed_count(self) -> int:
        """How many episodes of each kind; their seeds count from 0."""
        return self.seeds or (QUICK_SEEDS if self.quick else SEEDS)


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
    wishes: Wishes, say: Callable[[str], None], tell: Callable[[int, int], None]
) -> dict[str, Any]:
    """Everything that ``result.json`` holds. ``tell`` hears (episodes done, episodes in all)."""
    profiles = find_profiles(wishes.profiles)
    say(f"models: {profiles.source}")
    if not profiles.published:
        say("these are not the profiles that the paper used: its figures are then no comparison")
    started, clock = datetime.datetime.now(datetime.UTC), time.monotonic()
    machine = describe_machine()
    bench = Bench(profiles.graphs, wishes.horizon_s)
    places = [Place(rule, law) for rule in dict.fromkeys(wishes.rules)
              for law in dict.fromkeys(wishes.laws)]  # fmt: skip
    names, seeds = check_names(list(wishes.policies)), range(wishes.seed_count)
    looks = _tune(bench, places, wishes, say) if ROLL_OUT in names else {}
    runs = [
        Run(place, name, seed, looks.get(place) if name == ROLL_OUT else None)
        for place in places for name in names for seed in seeds
    ]  # fmt: skip
    # The long ones first, so that no process is left with one at the end.
    runs.sort(key=lambda run: run.policy != ROLL_OUT)
    tasks: list[Task] = [*runs, *(Bound(place, seed) for place in places for seed in seeds)]
    done = 0

    def one_more() -> None:
        nonlocal done
        done += 1
        tell(done, len(tasks))

    say(f"{len(runs)} episodes of {int(wishes.horizon_s / 1000) + 1} arrivals")
    found = dict(zip(tasks, do_all(bench, tasks, wishes.processes, one_more), strict=True))
    return {
        "experiment": "pac-ml", "schema_version": SCHEMA_VERSION,
        "started_at": started.isoformat(timespec="seconds"),
        "duration_s": time.monotonic() - clock, "machine": machine,
        "processes": wishes.processes, "quick": wishes.quick,
        "profiles": {"source": profiles.source, "published": profiles.published,
                     "models": [graph.name for graph in profiles.graphs]},
        "seeds": list(seeds), "horizon_s": wishes.horizon_s, "counting": Counting.FAITHFUL.value,
        "comparable": profiles.published and wishes.horizon_s == PAC_ML_HORIZON_S,
        "rules": _by_place(
            places, lambda place: _cell(place, names, seeds, found, looks.get(place))
        ),
        "published": {
            "blocking_rate": {
                name: {law: each._asdict() for law, each in rates.items()}
                for name, rates in {**paper.PAC_ML, **paper.BLOCKING}.items()
            },
            "jct_mean_s": paper.JCT_S, "throughput_bytes_per_s": paper.THROUGHPUT_BYTES_PER_S,
        },
    }  # fmt: skip


def _tune(
    bench: Bench, places: list[Place], wishes: Wishes, say: Callable[[str], None]
) -> dict[Place, LookAhead]:
    say("choosing how the roll-out looks ahead, on drawn episodes of its own")
    futures = _QUICK_FUTURES if wishes.quick else _FUTURES
    tunings: list[Task] = [Tuning(place, futures, _AHEAD) for place in places]
    chosen = do_all(bench, tunings, wishes.processes, lambda: None)
    return dict(zip(places, cast(list[LookAhead], chosen), strict=True))


def _by_place(
    places: list[Place], cell: Callable[[Place], dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for place in places:
        found.setdefault(place.rule, {})[place.law] = cell(place)
    return found


def _cell(
    place: Place,
    names: Sequence[str],
    seeds: Iterable[int],
    found: dict[Task, Any],
    look: LookAhead | None,
) -> dict[str, Any]:
    policies = {
        name: _figures(
            [found[Run(place, name, seed, look if name == ROLL_OUT else None)] for seed in seeds],
            paper.BLOCKING.get(name, {}).get(place.law),
        )
        for name in names
    }
    bounds: list[HindsightBound] = [found[Bound(place, seed)] for seed in seeds]
    bound = _interval(mean_and_interval([each.blocking_rate for each in bounds]))
    return {
        "policies": policies,
        "hindsight_bound": {"blocking_rate": bound[0], "ci95": bound[1]},
        "roll_out": None if look is None else {
            "futures": look.futures, "arrivals": look.arrivals, "unfinished": look.unfinished,
            "rules": [{"degrees": list(rule.degrees), "spare": rule.spare} for rule in look.rules],
        },
        "target": _target(place, policies),
    }  # fmt: skip


def _figures(ran: list[Ran], published: paper.Published | None) -> dict[str, Any]:
    results = [each.result for each in ran]
    faithful = [result.blocking_rate(Counting.FAITHFUL) for result in results]
    rate, ci95 = _interval(mean_and_interval(faithful))
    corrected = [result.blocking_rate(Counting.CORRECTED) for result in results]
    corrected_rate, corrected_ci95 = _interval(mean_and_interval(corrected))
    arrivals = sum(result.arrivals for result in results)
    causes = {cause: sum(r.blocked[cause] for r in results) / arrivals for cause in
              results[0].blocked}  # fmt: skip
    causes["unfinished"] = sum(result.unfinished for result in results) / arrivals
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
        "mean_degree": _mean(r.mean_degree for r in results),
        "decisions_per_s": sum(r.decisions for r in results) / cpu_s if cpu_s else None,
        "published": None if published is None else published._asdict(),
        "episodes": [{"seed": seed, "blocking_rate": rate_} for seed, rate_ in
                     enumerate(faithful)],
    }  # fmt: skip


def _target(place: Place, policies: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What is to be reached, and by which policy how much was."""
    rates = {name: figures["blocking_rate"] for name, figures in policies.items()}
    constants = {n: r for n, r in rates.items() if n in {f"constant-{c}" for c in CONSTANTS}}
    best = min(rates, key=rates.__getitem__)
    asked = paper.TARGETS[place.rule][place.law]
    return {
        "below": asked, "best_policy": best, "best": rates[best], "met": rates[best] < asked,
        "best_constant": min(constants, key=constants.__getitem__) if constants else None,
    }  # fmt: skip


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
