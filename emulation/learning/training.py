"""A training run: rounds of learning, progress, evaluation, checkpoints; and going on with one.

A run's folder holds ``config.json``, ``progress.csv``, ``checkpoint.pt`` (weights and optimiser,
read back as tensors only) and, at the end, the model: ``NAME.onnx`` with its card.
"""

import csv
import json
import math
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from patchlight.emulation.learning.afterstates import AfterstateLearner
from patchlight.emulation.learning.config import Config, check
from patchlight.emulation.learning.learner import Learner, Progress, play
from patchlight.emulation.learning.network import (
    CHECKPOINT,
    CONFIG,
    Likeness,
    likeness_of,
    of_this_network,
)
from patchlight.emulation.learning.policy_iteration import PolicyIterationLearner
from patchlight.emulation.learning.vector_episodes import layout_of
from patchlight.emulation.simulator.ramp.scenario import Scenario
from patchlight.emulation.simulator.ramp.workloads import Workloads
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.graphs import ComputationGraph

PROGRESS, TENSORBOARD = "progress.csv", "tensorboard"
SAID_EVERY_S = 15.0
KEPT_EVERY_S, _EPISODES_SHOWN = 60.0, 200


class RunLog:
    """The log of a run in ``folder`` that goes on after ``first`` of ``steps`` decisions, in which
    ``before_s`` were spent: rows of ``progress.csv``; TensorBoard's files where it is installed.
    """

    def __init__(self, folder: Path, steps: int, first: int, before_s: float) -> None:
        self._folder, self._steps, self._first = folder, steps, first
        self._before_s = before_s
        self._board: Any = None
        if find_spec("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(folder / TENSORBOARD), purge_step=first or None)

    def row(self, figures: Mapping[str, float]) -> None:
        """One more row of the table; ``figures`` are the same each time."""
        path = self._folder / PROGRESS
        new = not path.exists()
        with path.open("a", newline="") as file:
            writer = csv.writer(file)
            if new:
                writer.writerow(figures)
            writer.writerow(figures.values())

    def scalars(self, steps: int, figures: Mapping[str, float]) -> None:
        """Figures after so many decisions, for TensorBoard, but for those that are no numbers."""
        if self._board is not None:
            for name, value in figures.items():
                if math.isfinite(value):
                    self._board.add_scalar(name, value, steps)
            self._board.flush()

    def words(self, steps: int, spent_s: float) -> str:
        """How far it is, after ``spent_s`` of this sitting, and how long the rest takes."""
        done, part = steps - self._first, min(1.0, steps / self._steps)
        words = f"{part:4.0%}  {steps:>10,} decisions  {self._before_s + spent_s:6.0f} s"
        left_s = max(0.0, spent_s * (self._steps - steps) / done) if done else math.nan
        return f"{words}, {left_s:.0f} s left" if math.isfinite(left_s) else words

    def close(self) -> None:
        """Nothing more comes."""
        if self._board is not None:
            self._board.close()


@dataclass(frozen=True)
class Report:
    """What came of a run: the scorer, and what its card says of it."""

    scorer: nn.Module
    training: dict[str, Any]


def scenarios_of(
    config: Config, graphs: Sequence[ComputationGraph] | Workloads, training: bool = False
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


class Run:
    """A training run in a folder. ``say`` hears of its progress, a line at a time."""

    def __init__(
        self,
        config: Config,
        graphs: Sequence[ComputationGraph] | Workloads,
        folder: Path,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.config, self.folder, self._say = config, folder, say
        self.scenarios = scenarios_of(config, graphs)
        self.models = list(self.scenarios[0].workloads.names)
        self.layout = layout_of(self.scenarios[0])
        check(config, self.layout.degrees)
        self._before_s = 0.0
        self._done = 0
        self._state: dict[str, Any] | None = None

    def resume(self) -> None:
        """Go on from the folder's checkpoint; ``BadInput`` if it has none of this configuration."""
        path = self.folder / CHECKPOINT
        try:
            kept = torch.load(path, weights_only=True)
        except FileNotFoundError as error:
            raise BadInput(f"cannot resume in {self.folder}: it has no {CHECKPOINT}") from error
        except Exception as error:  # torch raises whatever its archive reader does
            raise BadInput(f"cannot read the checkpoint {path}: {error}") from error
        written = json.dumps(_timeless(self.config), sort_keys=True)
        if not isinstance(kept, dict) or kept.get("config") != written:
            raise BadInput(
                f"the checkpoint {path} is of another configuration",
                hint="only 'steps' and 'evaluation' may change; else begin in a new folder",
            )
        self._done, self._before_s = int(kept["steps"]), float(kept["wall_s"])
        self._state = kept["learner"]

    def learn(self) -> Report:
        """All rounds. Interrupted, it keeps a checkpoint first."""
        if self._state is None and (self.folder / CHECKPOINT).exists():
            raise BadInput(
                f"{self.folder} holds a run already", hint="go on with --resume, or name another"
            )
        learner = self._learner()
        self.folder.mkdir(parents=True, exist_ok=True)
        _write(self.folder / CONFIG, json.dumps(self.config.as_data(), indent=2) + "\n")
        with closing(RunLog(self.folder, self.config.steps, learner.steps, self._before_s)) as log:
            rates, spent_s = self._rounds(learner, log)
        if not rates:
            rates = self.evaluate(learner.average)
        config, wall_s = self.config.as_data(), self._before_s + spent_s
        done: dict[str, Any] = {"config": config, "steps": learner.steps, "models": self.models}
        about = {
            "wall_s": wall_s,
            "torch": str(torch.__version__),
            "evaluated_blocking_rate": rates,
        }
        return Report(learner.average, done | about)

    def _rounds(self, learner: Learner, log: RunLog) -> tuple[dict[str, float], float]:
        """All rounds: what the last evaluation found, and how long they took."""
        config, rates = self.config, dict[str, float]()
        started = kept = said = time.monotonic()
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
                due = learner.steps - evaluated >= config.evaluation.every_steps
                if due or learner.steps >= config.steps:
                    evaluated = learner.steps
                    rates = self.evaluate(learner.average)
                elif now - said < SAID_EVERY_S:
                    continue
                said = time.monotonic()
                is_new = evaluated == learner.steps
                self._log(log, learner.steps, said - started, progress, playing, rates, is_new)
        finally:
            self._keep(learner, time.monotonic() - started)
        return rates, time.monotonic() - started

    def evaluate(self, scorer: nn.Module) -> dict[str, float]:
        """The mean faithful blocking rate in each scenario, over the evaluation's seeds.

        ``PatchlightError`` if the scorer's weights are no numbers.
        """
        evaluation, names = self.config.evaluation, self.config.environment.names
        if not _is_finite(scorer):
            raise PatchlightError(
                f"training {self.config.name!r} has diverged: weights are no numbers any more",
                hint="try a lower learning_rate; the checkpoint is the last that was sound",
            )
        found = {}
        for name, scenario in zip(names, self.scenarios, strict=True):
            if name in found:
                continue
            blocks = self.config.environment.blocks
            rates = play(scorer, scenario, evaluation.first_seed, evaluation.seeds, blocks)
            found[name] = round(sum(rates) / len(rates), 5)
        return found

    def _learner(self) -> Learner:
        config, done = self.config, self._done
        scenarios = scenarios_of(config, self.scenarios[0].workloads, training=True)
        learner: Learner
        if config.algorithm == "policy-iteration":
            learner = PolicyIterationLearner(config, scenarios, done)
        else:
            learner = AfterstateLearner(config, scenarios, done)
        if self._state is not None:
            with of_this_network(f"the checkpoint in {self.folder}"):
                learner.restore(self._state)
        return learner

    def _keep(self, learner: Learner, spent_s: float) -> None:
        if not _is_finite(learner.average):
            return
        state = {
            "config": json.dumps(_timeless(self.config), sort_keys=True),
            "steps": learner.steps,
            "wall_s": self._before_s + spent_s,
            "learner": learner.state(),
            "ramp": list(self.layout.ramp),
            "degrees": list(self.layout.degrees),
            "observation_version": self.layout.version,
            "discount": self.config.settings.gamma,
            "likenesses": self._likenesses,
            "average": learner.average.state_dict(),
        }
        path = self.folder / CHECKPOINT
        draft = path.with_suffix(".tmp")
        torch.save(state, draft)
        os.replace(draft, path)

    @cached_property
    def _likenesses(self) -> dict[str, Likeness]:
        """What jobs are like under each condition, for those that decide together with others."""
        environment = self.config.environment
        laws = len(environment.laws)
        firsts = zip(environment.conditions, self.scenarios[::laws], strict=True)
        return {
            condition: likeness_of(scenario, self.layout, environment.first_seed)
            for condition, scenario in firsts
        }

    def _log(
        self,
        log: RunLog,
        steps: int,
        spent_s: float,
        progress: Progress,
        playing: Collection[float],
        rates: dict[str, float],
        is_new: bool,
    ) -> None:
        """``playing`` are the blocking rates of the latest episodes, ``rates`` those on the
        evaluation's seeds, which may be new.
        """
        in_play = sum(playing) / len(playing) if playing else float("nan")
        figures = {"loss": progress.loss, "blocking_in_training": in_play}
        found = {f"blocking_{name}": rate for name, rate in rates.items()} if is_new else {}
        log.scalars(steps, {**figures, "blocked_lately": progress.blocked, **found})
        if is_new:
            wall_s = round(self._before_s + spent_s, 1)
            log.row({"steps": steps, "wall_s": wall_s, **figures, **found})
            shown = "  ".join(f"{name} {rate:.4f}" for name, rate in rates.items())
        else:
            shown = f"{progress.blocked:.4f} of the latest jobs"
        # Policy iteration learns nothing before enough was played out.
        loss = "" if math.isnan(progress.loss) else f"  loss {progress.loss:.4f}"
        self._say(f"{log.words(steps, spent_s)}{loss}  blocking: {shown}")


def _is_finite(network: nn.Module) -> bool:
    return all(bool(torch.isfinite(weights).all()) for weights in network.parameters())


def _timeless(config: Config) -> dict[str, Any]:
    """What may not change between a run and its resumption."""
    found = config.as_data()
    del found["steps"], found["evaluation"]
    return found


def _write(path: Path, text: str) -> None:
    draft = path.with_suffix(".tmp")
    draft.write_text(text)
    os.replace(draft, path)
