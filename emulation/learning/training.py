"""A training run: rounds of learning, progress, evaluation, checkpoints; and resuming it."""

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from patchlight.emulation.learning.afterstates import AfterstateLearner
from patchlight.emulation.learning.config import Config, check
from patchlight.emulation.learning.dqn import DqnLearner
from patchlight.emulation.learning.export import export, of_runs
from patchlight.emulation.learning.learner import Learner, RoundProgress, play
from patchlight.emulation.learning.network import (
    Likeness,
    OptionScorer,
    likeness_of,
    of_this_network,
)
from patchlight.emulation.learning.policy_iteration import (
    PolicyIterationLearner,
)
from patchlight.emulation.learning.run_folder import (
    CHECKPOINT,
    FIRST_SAID_S,
    KEPT_EVERY_S,
    SAID_EVERY_S,
    RunFolder,
    RunLog,
)
from patchlight.emulation.learning.vector_episodes import layout_of
from patchlight.emulation.simulator.ramp.scenario import Scenario
from patchlight.emulation.simulator.ramp.workloads import Workloads
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.graphs import ComputationGraph

_EPISODES_SHOWN = 200


@dataclass(frozen=True)
class TrainingReport:
    """The result of a run: the scorer, and what its card says of it."""

    scorer: nn.Module
    training: dict[str, Any]


def scenarios_of(
    config: Config,
    graphs: Sequence[ComputationGraph] | Workloads,
    training: bool = False,
) -> list[Scenario]:
    """One scenario for each law under each condition; they share the cluster and the models.

    An episode has as many jobs under each condition: its horizon is longer where fewer come.
    ``training``: those to learn from, whose episodes may be longer.
    """
    environment = config.environment
    workloads = graphs if isinstance(graphs, Workloads) else Workloads(graphs)
    found = []
    for law, condition in environment.scenarios:
        varied = replace(
            environment.under(condition),
            horizon_s=environment.horizon_of(condition, training),
            law_instance=environment.law_instance,
        )
        varied.check_models(workloads.graphs)
        found.append(varied.scenario(workloads, law, environment.rule))
    return found


class TrainingRun:
    """A training run in a folder. ``say`` hears of its progress, a line at a time."""

    def __init__(
        self,
        config: Config,
        graphs: Sequence[ComputationGraph] | Workloads,
        folder: Path,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.config = config
        self._say = say
        timeless = config.as_data()
        del timeless["steps"], timeless["evaluation"]
        self._folder = RunFolder(folder, timeless, "'steps' and 'evaluation'")
        self.scenarios = scenarios_of(config, graphs)
        self.models = list(self.scenarios[0].workloads.names)
        self.layout = layout_of(self.scenarios[0])
        check(config, self.layout.degrees)
        self._done = 0
        self._state: dict[str, Any] | None = None
        self._best: dict[str, Any] = {}

    def resume(self) -> None:
        """Go on from the folder's checkpoint; ``BadInput`` if it has none of this configuration."""
        kept = self._folder.resume()
        self._done = int(kept["steps"])
        self._state = kept["learner"]
        self._best = kept.get("best", {})

    def learn(self) -> TrainingReport:
        """All rounds. Interrupted, it keeps a checkpoint first."""
        folder = self._folder
        folder.check()
        learner = self._learner()
        folder.begin(self.config.as_data())
        with closing(
            RunLog(
                folder.path,
                self.config.steps,
                learner.steps,
                folder.before_s,
            )
        ) as log:
            rates, spent_s = self._rounds(learner, log)
        if not rates:
            rates = self.evaluate(learner.average)
        config = self.config.as_data()
        wall_s = folder.before_s + spent_s
        done: dict[str, Any] = {
            "config": config,
            "steps": learner.steps,
            "models": self.models,
        }
        about = {
            "wall_s": wall_s,
            "torch": str(torch.__version__),
            "evaluated_blocking_rate": rates,
        }
        return TrainingReport(learner.average, done | about)

    def _rounds(
        self, learner: Learner, log: RunLog
    ) -> tuple[dict[str, float], float]:
        """All rounds: what the last evaluation found, and how long they took."""
        config = self.config
        rates = dict[str, float]()
        started = kept = time.monotonic()
        said = started - SAID_EVERY_S + FIRST_SAID_S
        evaluated = learner.steps
        playing = deque[float](maxlen=_EPISODES_SHOWN)
        try:
            while learner.steps < config.steps:
                progress = learner.round()
                playing += [each.blocking_rate for each in progress.finished]
                now = time.monotonic()
                if now - kept >= KEPT_EVERY_S:
                    kept = now
                    self._keep(learner, now - started)
                due = (
                    learner.steps - evaluated >= config.evaluation.every_steps
                )
                if due or learner.steps >= config.steps:
                    evaluated = learner.steps
                    rates = self.evaluate(learner.average)
                    self._compare_with_best(
                        learner, sum(rates.values()) / len(rates)
                    )
                elif now - said < SAID_EVERY_S:
                    continue
                said = time.monotonic()
                is_new = evaluated == learner.steps
                self._log(
                    log,
                    learner.steps,
                    said - started,
                    progress,
                    playing,
                    rates,
                    is_new,
                )
        finally:
            self._keep(learner, time.monotonic() - started)
        return rates, time.monotonic() - started

    def evaluate(self, scorer: nn.Module) -> dict[str, float]:
        """The mean faithful blocking rate in each scenario, over the evaluation's seeds.

        ``PatchlightError`` if the scorer's weights are not numbers.
        """
        evaluation = self.config.evaluation
        names = self.config.environment.names
        if not _is_finite(scorer):
            raise PatchlightError(
                f"training {self.config.name!r} has diverged: weights are not finite",
                hint="try a lower learning_rate; the checkpoint is the last good one",
            )
        found = {}
        for name, scenario in zip(names, self.scenarios, strict=True):
            if name in found:
                continue
            blocks = self.config.environment.blocks
            rates = play(
                scorer,
                scenario,
                evaluation.first_seed,
                evaluation.seeds,
                blocks,
            )
            found[name] = round(sum(rates) / len(rates), 5)
        return found

    def _learner(self) -> Learner:
        config = self.config
        done = self._done
        scenarios = scenarios_of(
            config, self.scenarios[0].workloads, training=True
        )
        learner: Learner
        if config.algorithm == "policy-iteration":
            learner = PolicyIterationLearner(config, scenarios, done)
        elif config.algorithm == "dqn":
            learner = DqnLearner(config, scenarios, done)
        else:
            learner = AfterstateLearner(config, scenarios, done)
        if self._state is not None:
            with of_this_network(f"the checkpoint in {self._folder.path}"):
                learner.restore(self._state)
        return learner

    def _compare_with_best(self, learner: Learner, blocking: float) -> None:
        """Remember the weights if they block less on the evaluation's seeds than any before."""
        if blocking < self._best.get("blocking", math.inf):
            weights = {
                name: each.clone()
                for name, each in learner.average.state_dict().items()
            }
            self._best = {
                "steps": learner.steps,
                "blocking": blocking,
                "average": weights,
            }

    def _keep(self, learner: Learner, spent_s: float) -> None:
        if not _is_finite(learner.average):
            return
        state = {
            "steps": learner.steps,
            "learner": learner.state(),
            "ramp": list(self.layout.ramp),
            "degrees": list(self.layout.degrees),
            "observation_version": self.layout.version,
            "discount": self.config.settings.gamma,
            "likenesses": self._likenesses,
            "average": learner.average.state_dict(),
            "best": self._best,
        }
        self._folder.keep(state, spent_s)

    @cached_property
    def _likenesses(self) -> dict[str, Likeness]:
        """What jobs are like under each condition, for those that decide together with others."""
        environment = self.config.environment
        laws = len(environment.laws)
        firsts = zip(
            environment.conditions, self.scenarios[::laws], strict=True
        )
        return {
            condition: likeness_of(
                scenario, self.layout, environment.first_seed
            )
            for condition, scenario in firsts
        }

    def _log(
        self,
        log: RunLog,
        steps: int,
        spent_s: float,
        progress: RoundProgress,
        playing: Collection[float],
        rates: dict[str, float],
        is_new: bool,
    ) -> None:
        """``playing`` are the blocking rates of the latest episodes, ``rates`` those on the
        evaluation's seeds, which may be new.
        """
        in_play = sum(playing) / len(playing) if playing else float("nan")
        figures = {"loss": progress.loss, "blocking_in_training": in_play}
        found = (
            {f"blocking_{name}": rate for name, rate in rates.items()}
            if is_new
            else {}
        )
        log.scalars(
            steps, {**figures, "blocked_lately": progress.blocked, **found}
        )
        if is_new:
            wall_s = round(self._folder.before_s + spent_s, 1)
            log.row(
                {
                    "steps": steps,
                    "wall_s": wall_s,
                    **figures,
                    **found,
                }
            )
            shown = "  ".join(
                f"{name} {rate:.4f}" for name, rate in rates.items()
            )
        else:
            shown = f"{progress.blocked:.4f} of the latest jobs"
        # Policy iteration learns nothing before enough was played out.
        loss = (
            "" if math.isnan(progress.loss) else f"  loss {progress.loss:.4f}"
        )
        self._say(f"{log.words(steps, spent_s)}{loss}  blocking: {shown}")


def _is_finite(network: nn.Module) -> bool:
    return all(
        bool(torch.isfinite(weights).all()) for weights in network.parameters()
    )


_EPISODES_APART = 10_000_000


def seeded(config: Config, seed: int) -> Config:
    """A configuration with another training seed: other weights, draws and episodes."""
    first = config.environment.first_seed + _EPISODES_APART * seed
    environment = replace(config.environment, first_seed=first)
    return replace(
        config,
        seed=seed,
        environment=environment,
    )


def train_with_seeds(
    config: Config,
    seeds: int,
    graphs: Sequence[ComputationGraph],
    source: str,
    folder: Path,
    resume: bool,
    say: Callable[[str], None],
) -> Path | None:
    """Train in ``folder``, or with each seed in ``folder/seed-N``; the path of the model.

    ``None`` if networks of this observation have no model. ``resume`` continues what there is.
    ``source`` of the profiles is for the card.
    """
    several = [
        (seeded(config, seed), folder / f"seed-{seed}")
        for seed in range(seeds)
    ]
    for number, (each, where) in enumerate(
        several if seeds > 1 else [(config, folder)]
    ):
        if seeds > 1:
            say(f"seed {number}, run {number + 1} of {seeds}")
        run = TrainingRun(
            each,
            graphs,
            where,
            say,
        )
        if resume and (seeds == 1 or (where / CHECKPOINT).exists()):
            run.resume()
        report = run.learn()
    if not config.network.has_model:
        return None
    if seeds == 1:
        assert isinstance(report.scorer, OptionScorer)
        about = report.training | {"profiles": source}
        return export(
            report.scorer,
            run.layout,
            config,
            about,
            folder,
        )
    scorer, layout, config, about = of_runs([where for _, where in several])
    return export(
        scorer,
        layout,
        config,
        about | {"profiles": source},
        folder,
    )
