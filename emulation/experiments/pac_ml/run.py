"""Runs PAC-ML's experiment: its episodes and their figures."""

import datetime
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

from patchlight.console.rendering import span
from patchlight.emulation.experiments import paper
from patchlight.emulation.experiments.pac_ml import episodes, results
from patchlight.emulation.experiments.pac_ml.variation import (
    Variation,
    outside_training,
)
from patchlight.emulation.simulator.executors import (
    Engine,
    Interrupted,
    run_all,
)
from patchlight.emulation.simulator.graphs import profiles as pipedream
from patchlight.emulation.simulator.ramp.ramp import (
    PAC_ML_SHAPE,
    PlacementRule,
)
from patchlight.emulation.simulator.ramp.rollout import LookAhead
from patchlight.emulation.simulator.ramp.scenario import PAC_ML_HORIZON_S
from patchlight.emulation.simulator.ramp.workloads import LAW_NAMES, law
from patchlight.emulation.simulator.results import policy_files, provenance
from patchlight.testbed.errors import BadInput, nearest
from patchlight.testbed.graphs import ComputationGraph, builtin_graph

SEEDS = 10
QUICK_SEEDS = 3
QUICK_LAWS = ("A", "D")
FUTURES = 32
QUICK_FUTURES = 2
AHEAD = 40
ROUNDS = 2
QUICK_ROUNDS = 1  # of trials
ALL = "all"
_SERIAL = Engine("serial")
_START_S = 5.0  # of the processes


@dataclass(frozen=True)
class PacMlOptions:
    """The user's options. ``seeds`` ``None`` is 10, or 3 if ``quick``.

    In ``policies``, ``all`` means all built-in and shipped ones. A learned policy runs only with
    the placement rule that it was trained for. ``salt``: ``Scenario.salted``; ``None`` is a secret
    one if a policy is the user's program, else 0.
    """

    seeds: int | None = None
    first_seed: int = 0
    quick: bool = False
    profiles: Path | None = None
    laws: tuple[str, ...] = LAW_NAMES
    rules: tuple[str, ...] = tuple(PlacementRule)
    policies: tuple[str, ...] = (ALL,)
    engine: Engine = _SERIAL
    horizon_s: float = PAC_ML_HORIZON_S
    variation: Variation = field(default_factory=Variation)
    salt: int | None = None

    def __post_init__(self) -> None:
        if self.seeds is not None and self.seeds < 1:
            raise BadInput(
                f"cannot run {self.seeds} seeds: expected 1 or more"
            )
        if self.first_seed < 0:
            raise BadInput(
                f"the first seed is {self.first_seed}: expected 0 or more"
            )
        for name in self.laws:
            law(name)
        known = [rule.value for rule in PlacementRule]
        for rule in self.rules:
            if rule not in known:
                raise BadInput(
                    f"no placement rule {rule!r}: {nearest(rule, known)}"
                )
        named = episodes.check_names(
            [name for name in self.policies if name != ALL],
            self.variation.ramp,
        )
        for what in ("laws", "rules", "policies"):
            if not getattr(self, what):
                raise BadInput(f"no {what} to run: name at least one")
        for name in named:
            if not any(episodes.made_for(name, rule) for rule in self.rules):
                raise BadInput(
                    f"policy {name!r} was not trained for {' or '.join(self.rules)}",
                    hint="'patchlight policy show' shows its placement rule",
                )

    @property
    def all_seeds(self) -> range:
        """The seeds of all episodes."""
        count = self.seeds or (QUICK_SEEDS if self.quick else SEEDS)
        return range(self.first_seed, self.first_seed + count)

    def names(self, rule: str) -> list[str]:
        """The policies that run with this placement rule."""
        every = (*episodes.NAMES, *episodes.shipped(self.variation.ramp))
        asked = [
            name
            for each in self.policies
            for name in (every if each == ALL else (each,))
        ]
        return [
            name
            for name in dict.fromkeys(asked)
            if episodes.made_for(name, rule)
        ]

    @property
    def cells(self) -> list[episodes.TableCell]:
        """All placement rules that a policy runs with, under all laws."""
        rules = [
            rule for rule in dict.fromkeys(self.rules) if self.names(rule)
        ]
        return [
            episodes.TableCell(rule, law)
            for rule in rules
            for law in dict.fromkeys(self.laws)
        ]


@dataclass(frozen=True)
class Profiles:
    """The five models, where they come from, whether they are published, and files of theirs."""

    graphs: tuple[ComputationGraph, ...]
    source: str
    published: bool
    files: tuple[Path, ...] = ()

    @property
    def models(self) -> list[str]:
        """The models' names."""
        return [graph.name for graph in self.graphs]

    @property
    def words(self) -> dict[str, Any]:
        """As in ``result.json``."""
        return {
            "source": self.source,
            "published": self.published,
            "models": self.models,
        }


def find_profiles(folder: Path | None) -> Profiles:
    """PipeDream's profiles in ``folder``, else in ``$PATCHLIGHT_PROFILES``, else computed ones.

    ``BadInput`` if some are missing there.
    """
    folder = folder or (
        Path(named)
        if (named := os.environ.get("PATCHLIGHT_PROFILES"))
        else None
    )
    if folder is None:
        graphs = tuple(builtin_graph(name) for name in pipedream.SOURCES)
        return Profiles(graphs, "built in, computed", published=False)
    files = pipedream.profile_files(folder)
    found, published = pipedream.read_profiles(files)
    kind = "PipeDream's" if published else "the user's"
    return Profiles(
        tuple(found),
        f"{kind}, in {folder}",
        published,
        tuple(files.values()),
    )


FirstLook = Callable[
    [Mapping[episodes.TableCell, Mapping[str, results.PolicyFigures]]], None
]
"""Gets the figures of the first seed as soon as they are there, if there are more seeds."""


def run_experiment(
    options: PacMlOptions,
    say: Callable[[str], None],
    tell: Callable[[int, int], None],
    early: FirstLook = lambda cells: None,
) -> dict[str, Any]:
    """The content of ``result.json``; ``tell`` gets (percent done, 100).

    Ctrl-C keeps the finished episodes; ``Interrupted`` is raised if there are none.
    """
    started = datetime.datetime.now(datetime.UTC)
    clock = time.monotonic()
    profiles = find_profiles(options.profiles)
    varied = options.variation
    if not profiles.published:
        say(
            f"models: {profiles.source}, not the paper's profiles, so its figures cannot be "
            f"compared"
        )
    varied.check_models(profiles.graphs)
    origin = provenance(options.all_seeds, _files(options, profiles))
    salt = options.salt
    if salt is None:
        salt = (
            secrets.randbits(53)
            if any(map(episodes.is_users, {*options.policies} - {ALL}))
            else 0
        )
    runner = episodes.TaskRunner(
        profiles.graphs,
        options.horizon_s,
        varied,
        salt,
    )
    tunings = _tunings(options)
    trials = _trials(options)
    bounds = _bounds(options)
    expected = {task.cell: LookAhead(task.futures) for task in tunings}
    planned: list[episodes.Task] = [
        *tunings,
        *trials,
        *_runs(options, expected, {}),
        *bounds,
    ]
    done_s = 0.0
    all_s = sum(map(episodes.cost_s, planned))

    def tick(task: episodes.Task) -> None:
        nonlocal done_s
        done_s += episodes.cost_s(task)
        tell(round(100 * done_s / all_s), 100)

    say(
        f"{len(planned)} episodes and bounds, about {span(_estimate_s(all_s, options))}"
    )
    tell(0, 100)
    first: list[episodes.Task] = [*tunings, *trials]
    heard = run_all(
        first,
        runner.run,
        options.engine,
        hear=lambda n, _: tick(first[n]),
    )
    found = dict(zip(first, heard, strict=True))
    looks = {task.cell: cast(LookAhead, found[task]) for task in tunings}
    deciders = {
        (task.cell, task.policy): cast(str, found[task]) for task in trials
    }
    runs = _runs(options, looks, deciders)

    def look_at(outcomes: Mapping[episodes.Task, Any]) -> None:
        early(
            {cell: _policies(runs, cell, outcomes) for cell in options.cells}
        )

    done = _run(
        [*runs, *bounds],
        runner,
        options,
        tick,
        look_at,
    )
    figures: dict[str, dict[str, results.CellFigures]] = {}
    for cell in options.cells:
        policies = _policies(runs, cell, done.outcomes)
        if not policies:
            continue
        look = looks.get(cell)
        hindsight = [b for b in bounds if b.foresight and b.cell == cell]
        # The same for all placement rules.
        online = [
            b for b in bounds if not b.foresight and b.cell.law == cell.law
        ]
        figures.setdefault(cell.rule, {})[cell.law] = results.CellFigures(
            policies,
            _bound(hindsight, done.outcomes),
            _bound(online, done.outcomes),
            None if look is None else results.RollOutFigures.of(look),
            results.Lowest.of(policies),
            results.less_maximum(policies),
            {
                name: decides
                for (where, name), decides in deciders.items()
                if where == cell
            },
        )
    usual = options.horizon_s == PAC_ML_HORIZON_S and not varied.written
    result = results.PacMlResult(
        started_at=started.isoformat(timespec="seconds"),
        duration_s=time.monotonic() - clock,
        machine=origin["machine"],
        provenance=origin,
        processes=options.engine.count,
        engine=options.engine.name,
        quick=options.quick,
        profiles=profiles.words,
        seeds=list(options.all_seeds),
        salt=salt,
        horizon_s=options.horizon_s,
        law_instance=varied.law_instance,
        interrupted=done.interrupted,
        episodes_finished=done.episodes,
        episodes_wanted=len(runs),
        varied=varied.written,
        outside_training=_outside_training(options, profiles),
        comparable=profiles.published and usual,
        rules=figures,
    )
    return asdict(result)


def _outside_training(
    options: PacMlOptions, profiles: Profiles
) -> dict[str, list[str]]:
    """For each learned policy the conditions that it was not trained for, if any."""
    found: dict[str, dict[str, None]] = {}
    for cell in options.cells:
        for name in options.names(cell.rule):
            if (card := episodes.card_of(name)) is not None:
                models = profiles.models
                published = profiles.published
                words = outside_training(
                    card,
                    options.variation,
                    cell.law,
                    models,
                    published,
                )
                found.setdefault(name, {}).update(dict.fromkeys(words))
    return {name: list(words) for name, words in found.items() if words}


def _estimate_s(cost_s: float, options: PacMlOptions) -> float:
    """How long tasks take while the machine is as busy as now."""
    cost_s *= options.horizon_s / PAC_ML_HORIZON_S
    cores = os.cpu_count() or 1
    processes = options.engine.count
    slowdown = max(1.0, (os.getloadavg()[0] + processes) / cores)
    return _START_S + cost_s / processes * slowdown


class _Done(NamedTuple):
    """The outcomes of the tasks that are finished."""

    outcomes: Mapping[episodes.Task, Any]
    interrupted: bool

    @property
    def episodes(self) -> int:
        return sum(
            isinstance(task, episodes.EpisodeTask) for task in self.outcomes
        )


def _run(
    wanted: Sequence[episodes.EpisodeTask | episodes.BoundTask],
    runner: episodes.TaskRunner,
    options: PacMlOptions,
    tick: Callable[[episodes.Task], None],
    early: Callable[[Mapping[episodes.Task, Any]], None],
) -> _Done:
    """Do all tasks, or those until Ctrl-C: seed by seed, so that all policies get equally far."""
    tasks = sorted(wanted, key=lambda task: task.seed)
    first = {
        number
        for number, task in enumerate(tasks)
        if task.seed == options.first_seed
    }
    outcomes: dict[episodes.Task, Any] = {}

    def hear(number: int, outcome: object) -> None:
        outcomes[tasks[number]] = outcome
        if number in first:
            first.remove(number)
            if not first and len(outcomes) < len(tasks):
                early(outcomes)
        tick(tasks[number])

    try:
        run_all(
            tasks,
            runner.run,
            options.engine,
            hear=hear,
        )
    except Interrupted:
        done = _Done(outcomes, True)
        if not done.episodes:
            raise
        return done
    return _Done(outcomes, False)


def _files(options: PacMlOptions, profiles: Profiles) -> list[Path]:
    """All files that the results depend on."""
    names = {
        name: None
        for cell in options.cells
        for name in options.names(cell.rule)
    }
    named = [name for name in names if name not in episodes.NAMES]
    return [*profiles.files, *policy_files(named, "partition")]


def _runs(
    options: PacMlOptions,
    looks: Mapping[episodes.TableCell, LookAhead],
    deciders: Mapping[tuple[episodes.TableCell, str], str],
) -> list[episodes.EpisodeTask]:
    return [
        episodes.EpisodeTask(
            cell,
            name,
            seed,
            looks[cell] if name == episodes.ROLL_OUT else None,
            deciders.get((cell, name)),
        )
        for cell in options.cells
        for name in options.names(cell.rule)
        for seed in options.all_seeds
    ]


def _bounds(options: PacMlOptions) -> list[episodes.BoundTask]:
    """In hindsight for each cell, and without foresight, which takes long, for each law."""
    varied = options.variation
    skipped = (
        options.quick
        or varied.ramp != PAC_ML_SHAPE
        or varied.failures is not None
    )
    once = (
        {} if skipped else {cell.law: cell for cell in reversed(options.cells)}
    )
    return [
        episodes.BoundTask(cell, seed, foresight)
        for foresight, cells in ((True, options.cells), (False, once.values()))
        for cell in cells
        for seed in options.all_seeds
    ]


def _bound(
    tasks: Sequence[episodes.BoundTask], outcomes: Mapping[episodes.Task, Any]
) -> results.BoundFigures:
    return results.BoundFigures.of(
        [outcomes[task] for task in tasks if task in outcomes]
    )


def _tunings(options: PacMlOptions) -> list[episodes.TuningTask]:
    """How the roll-out looks ahead is chosen for each cell, on separate drawn episodes."""
    futures = QUICK_FUTURES if options.quick else FUTURES
    return [
        episodes.TuningTask(cell, futures, AHEAD)
        for cell in options.cells
        if episodes.ROLL_OUT in options.names(cell.rule)
    ]


def _trials(options: PacMlOptions) -> list[episodes.TrialTask]:
    """The policy that decides in each cell, where a policy gives way to a constant degree."""
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    return [
        episodes.TrialTask(cell, name, rounds)
        for cell in options.cells
        for name in options.names(cell.rule)
        if episodes.yields(name)
    ]


def _policies(
    runs: Sequence[episodes.EpisodeTask],
    cell: episodes.TableCell,
    outcomes: Mapping[episodes.Task, Any],
) -> dict[str, results.PolicyFigures]:
    finished: dict[str, dict[int, episodes.EpisodeOutcome]] = {}
    for run in runs:
        if run.cell == cell and run in outcomes:
            finished.setdefault(run.policy, {})[run.seed] = outcomes[run]
    return {
        name: results.PolicyFigures.of(
            by_seed, paper.BLOCKING.get(name, {}).get(cell.law)
        )
        for name, by_seed in finished.items()
    }
