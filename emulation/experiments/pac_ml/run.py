"""The whole experiment: its episodes, and their figures."""

import datetime
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

from patchlight.emulation.experiments import paper
from patchlight.emulation.experiments.pac_ml.episodes import (
    NAMES,
    ROLL_OUT,
    BoundTask,
    EpisodeOutcome,
    EpisodeTask,
    TableCell,
    Task,
    TaskRunner,
    TuningTask,
    check_names,
    made_for,
    shipped,
)
from patchlight.emulation.experiments.pac_ml.results import (
    BoundFigures,
    CellFigures,
    Lowest,
    PacMlResult,
    PolicyFigures,
    RollOutFigures,
    less_maximum,
)
from patchlight.emulation.experiments.pac_ml.variation import Variation
from patchlight.emulation.simulator.executors import Engine, Interrupted, run_all
from patchlight.emulation.simulator.graphs.profiles import (
    SOURCES,
    profile_cache,
    profile_in,
    read_profiles,
)
from patchlight.emulation.simulator.ramp.ramp import PlacementRule
from patchlight.emulation.simulator.ramp.rollout import LookAhead
from patchlight.emulation.simulator.ramp.scenario import PAC_ML_HORIZON_S
from patchlight.emulation.simulator.ramp.workloads import LAW_NAMES, law
from patchlight.emulation.simulator.results import policy_files, provenance
from patchlight.testbed.errors import BadInput, nearest
from patchlight.testbed.graphs import ComputationGraph, builtin_graph

SEEDS, QUICK_SEEDS = 10, 3
FUTURES, QUICK_FUTURES, AHEAD = 32, 4, 40
_SERIAL = Engine("serial")


@dataclass(frozen=True)
class PacMlOptions:
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
        for name in self.laws:
            law(name)
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
    def cells(self) -> list[TableCell]:
        """All placement rules that a policy runs with, under all laws."""
        rules = [rule for rule in dict.fromkeys(self.rules) if self.names(rule)]
        return [TableCell(rule, law) for rule in rules for law in dict.fromkeys(self.laws)]


@dataclass(frozen=True)
class Profiles:
    """The five models: where they come from, and whether they are the published ones.

    ``files`` are none of the built-in ones.
    """

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
        return {"source": self.source, "published": self.published, "models": self.models}


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
    files = tuple(file for name in SOURCES if (file := profile_in(folder, name)) is not None)
    return Profiles(tuple(found), f"{kind}, in {folder}", published, files)


def run_experiment(
    options: PacMlOptions, say: Callable[[str], None], tell: Callable[[int, int], None]
) -> dict[str, Any]:
    """Everything that ``result.json`` holds. ``tell`` hears (episodes done, episodes in all).

    Ctrl-C keeps the episodes that are finished; where none is, it is raised.
    """
    profiles = find_profiles(options.profiles)
    say(f"models: {profiles.source}")
    if not profiles.published:
        say("these are not the profiles that the paper used: its figures are then no comparison")
    options.variation.check_models(profiles.graphs)
    started, clock = datetime.datetime.now(datetime.UTC), time.monotonic()
    origin = provenance(options.all_seeds, _files(options, profiles))
    runner = TaskRunner(profiles.graphs, options.horizon_s, options.variation)
    looks = _tune(runner, options, say)
    runs = _runs(options, looks)
    bounds = _bounds(options)
    say(f"{len(runs)} episodes of {int(options.horizon_s / 1000) + 1} arrivals")
    done = _run([*runs, *bounds], runner, options, tell)
    figures: dict[str, dict[str, CellFigures]] = {}
    for cell in options.cells:
        if not (policies := _policies(runs, cell, done.outcomes)):
            continue
        look = looks.get(cell)
        figures.setdefault(cell.rule, {})[cell.law] = CellFigures(
            policies,
            _bound([b for b in bounds if b.foresight and b.cell == cell], done.outcomes),
            # The same for all placement rules.
            _bound(
                [b for b in bounds if not b.foresight and b.cell.law == cell.law], done.outcomes
            ),
            None if look is None else RollOutFigures.of(look),
            Lowest.of(policies),
            less_maximum(policies),
        )
    result = PacMlResult(
        started_at=started.isoformat(timespec="seconds"),
        duration_s=time.monotonic() - clock,
        machine=origin["machine"],
        provenance=origin,
        processes=options.engine.count,
        engine=options.engine.name,
        quick=options.quick,
        profiles=profiles.words,
        seeds=list(options.all_seeds),
        horizon_s=options.horizon_s,
        law_instance=options.variation.law_instance,
        interrupted=done.interrupted,
        episodes_finished=done.episodes,
        episodes_wanted=len(runs),
        varied=options.variation.written,
        comparable=profiles.published
        and options.horizon_s == PAC_ML_HORIZON_S
        and not options.variation.written,
        rules=figures,
    )
    return asdict(result)


@dataclass(frozen=True)
class PolicyRuns:
    """Figures of policies by cell; how many episodes they are of, and how many were wanted.

    A policy has a place in a cell once one of its episodes there is finished.
    """

    cells: Mapping[TableCell, Mapping[str, PolicyFigures]]
    interrupted: bool
    episodes_finished: int
    episodes_wanted: int
    profiles: Profiles
    provenance: Mapping[str, Any]


def run_policies(options: PacMlOptions, tell: Callable[[int, int], None]) -> PolicyRuns:
    """Only the figures of policies: no bound. ``tell`` and Ctrl-C are as in ``run_experiment``."""
    profiles = find_profiles(options.profiles)
    options.variation.check_models(profiles.graphs)
    origin = provenance(options.all_seeds, _files(options, profiles))
    runner = TaskRunner(profiles.graphs, options.horizon_s, options.variation)
    looks = _tune(runner, options, lambda words: None)
    runs = _runs(options, looks)
    done = _run(runs, runner, options, tell)
    cells = {cell: _policies(runs, cell, done.outcomes) for cell in options.cells}
    return PolicyRuns(cells, done.interrupted, done.episodes, len(runs), profiles, origin)


class _Done(NamedTuple):
    """The outcomes of the tasks that are finished."""

    outcomes: Mapping[Task, Any]
    interrupted: bool

    @property
    def episodes(self) -> int:
        return sum(isinstance(task, EpisodeTask) for task in self.outcomes)


def _run(
    wanted: Sequence[EpisodeTask | BoundTask],
    runner: TaskRunner,
    options: PacMlOptions,
    tell: Callable[[int, int], None],
) -> _Done:
    """Do all tasks, or those until Ctrl-C: seed by seed, so that all policies get equally far."""
    # Of a seed the long ones first, so that no process is left with one at the end.
    tasks = sorted(wanted, key=lambda task: (task.seed, getattr(task, "policy", "") != ROLL_OUT))
    count = itertools.count(1)
    try:
        found = run_all(tasks, runner.run, options.engine, lambda: tell(next(count), len(tasks)))
    except Interrupted as stop:
        done = _Done({tasks[number]: each for number, each in stop.results.items()}, True)
        if not done.episodes:
            raise
        return done
    return _Done(dict(zip(tasks, found, strict=True)), False)


def _files(options: PacMlOptions, profiles: Profiles) -> list[Path]:
    """All files that the results depend on."""
    names = {name: None for cell in options.cells for name in options.names(cell.rule)}
    named = [name for name in names if name not in NAMES]
    return [*profiles.files, *policy_files(named, "partition")]


def _runs(options: PacMlOptions, looks: Mapping[TableCell, LookAhead]) -> list[EpisodeTask]:
    return [
        EpisodeTask(cell, name, seed, looks[cell] if name == ROLL_OUT else None)
        for cell in options.cells
        for name in options.names(cell.rule)
        for seed in options.all_seeds
    ]


def _bounds(options: PacMlOptions) -> list[BoundTask]:
    """In hindsight for each cell, and without foresight, which takes long, for each law."""
    once = {} if options.quick else {cell.law: cell for cell in reversed(options.cells)}
    return [
        BoundTask(cell, seed, foresight)
        for foresight, cells in ((True, options.cells), (False, once.values()))
        for cell in cells
        for seed in options.all_seeds
    ]


def _bound(tasks: Sequence[BoundTask], outcomes: Mapping[Task, Any]) -> BoundFigures:
    return BoundFigures.of([outcomes[task] for task in tasks if task in outcomes])


def _tune(
    runner: TaskRunner, options: PacMlOptions, say: Callable[[str], None]
) -> dict[TableCell, LookAhead]:
    cells = [cell for cell in options.cells if ROLL_OUT in options.names(cell.rule)]
    if not cells:
        return {}
    say("choosing how the roll-out looks ahead, on separate drawn episodes")
    futures = QUICK_FUTURES if options.quick else FUTURES
    tunings: list[Task] = [TuningTask(cell, futures, AHEAD) for cell in cells]
    chosen = run_all(tunings, runner.run, options.engine)
    return dict(zip(cells, cast(list[LookAhead], chosen), strict=True))


def _policies(
    runs: Sequence[EpisodeTask], cell: TableCell, outcomes: Mapping[Task, Any]
) -> dict[str, PolicyFigures]:
    finished: dict[str, dict[int, EpisodeOutcome]] = {}
    for run in runs:
        if run.cell == cell and run in outcomes:
            finished.setdefault(run.policy, {})[run.seed] = outcomes[run]
    return {
        name: PolicyFigures.of(by_seed, paper.BLOCKING.get(name, {}).get(cell.law))
        for name, by_seed in finished.items()
    }


def _check(what: str, asked: Sequence[str], known: Sequence[str]) -> None:
    for name in asked:
        if name not in known:
            raise BadInput(f"no {what} {name!r}: {nearest(name, known)}")
