"""A training run: rounds of learning, progress, evaluation, checkpoints; and going on with one.

A run's folder holds ``config.json``, ``progress.csv``, ``checkpoint.pt`` (weights and optimiser,
read back as tensors only) and, at the end, the model: ``NAME.onnx`` with its card.
"""

import csv
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from patchlight.emulation.experiments.pac_ml.variation import Variation
from patchlight.emulation.learning.afterstates import AfterstateLearner
from patchlight.emulation.learning.config import Config, check
from patchlight.emulation.learning.network import CHECKPOINT, CONFIG
from patchlight.emulation.learning.players import play
from patchlight.emulation.learning.vector_episodes import layout_of
from patchlight.emulation.simulator.ramp.scenario import Scenario
from patchlight.emulation.simulator.ramp.workloads import Workloads
from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs import ComputationGraph

PROGRESS = "progress.csv"
_KEPT_EVERY_S = 60.0


class Learner(Protocol):
    """What a run does round for round."""

    steps: int

    @property
    def average(self) -> nn.Module:
        """The scorer to evaluate and to keep."""

    def round(self) -> Any:
        """Plays and learns."""

    def state(self) -> dict[str, Any]:
        """What to go on from."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there."""


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
            Variation.under(condition),
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
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._state is None and (self.folder / CHECKPOINT).exists():
            raise BadInput(
                f"{self.folder} holds a run already", hint="go on with --resume, or name another"
            )
        _write(self.folder / CONFIG, json.dumps(self.config.as_data(), indent=2) + "\n")
        learner = self._learner()
        started = kept = time.monotonic()
        evaluated = learner.steps
        rates: dict[str, float] = {}
        finished: list[float] = []
        progress = None
        try:
            while learner.steps < self.config.steps:
                progress = learner.round()
                finished += [each.blocking_rate for each in progress.finished]
                now = time.monotonic()
                if now - kept >= _KEPT_EVERY_S:
                    kept = now
                    self._keep(learner, now - started)
                due = learner.steps - evaluated >= self.config.evaluation.every_steps
                if due or learner.steps >= self.config.steps:
                    evaluated = learner.steps
                    rates = self.evaluate(learner.average)
                    playing = sum(finished) / len(finished) if finished else float("nan")
                    self._log(learner, time.monotonic() - started, progress.loss, playing, rates)
                    finished = []
        finally:
            self._keep(learner, time.monotonic() - started)
        if not rates:
            rates = self.evaluate(learner.average)
        config, wall_s = self.config.as_data(), self._before_s + time.monotonic() - started
        done: dict[str, Any] = {"config": config, "steps": learner.steps, "models": self.models}
        about = {
            "wall_s": wall_s,
            "torch": str(torch.__version__),
            "evaluated_blocking_rate": rates,
        }
        return Report(learner.average, done | about)

    def evaluate(self, scorer: nn.Module) -> dict[str, float]:
        """The mean faithful blocking rate in each scenario, over the evaluation's seeds."""
        evaluation, names = self.config.evaluation, self.config.environment.names
        found = {}
        for name, scenario in zip(names, self.scenarios, strict=True):
            if name in found:
                continue
            rates = play(scorer, scenario, evaluation.first_seed, evaluation.seeds)
            found[name] = round(sum(rates) / len(rates), 5)
        return found

    def _learner(self) -> Learner:
        learner: Learner
        scenarios = scenarios_of(self.config, self.scenarios[0].workloads, training=True)
        if self.config.algorithm == "afterstates":
            learner = AfterstateLearner(self.config, scenarios, self._done)
        else:
            from patchlight.emulation.learning.ppo import PpoLearner

            learner = PpoLearner(self.config, scenarios, self._done)
        if self._state is not None:
            learner.restore(self._state)
        return learner

    def _keep(self, learner: Learner, spent_s: float) -> None:
        state = {
            "config": json.dumps(_timeless(self.config), sort_keys=True),
            "steps": learner.steps,
            "wall_s": self._before_s + spent_s,
            "learner": learner.state(),
            "ramp": list(self.layout.ramp),
            "degrees": list(self.layout.degrees),
            "observation_version": self.layout.version,
            "discount": self.config.discount,
            "average": learner.average.state_dict(),
        }
        path = self.folder / CHECKPOINT
        draft = path.with_suffix(".tmp")
        torch.save(state, draft)
        os.replace(draft, path)

    def _log(
        self, learner: Learner, spent_s: float, loss: float, playing: float, rates: dict[str, float]
    ) -> None:
        path = self.folder / PROGRESS
        new = not path.exists()
        wall_s = self._before_s + spent_s
        with path.open("a", newline="") as file:
            writer = csv.writer(file)
            if new:
                columns = [f"blocking_{name}" for name in rates]
                writer.writerow(["steps", "wall_s", "loss", "blocking_in_training", *columns])
            writer.writerow([learner.steps, round(wall_s, 1), loss, playing, *rates.values()])
        written = "  ".join(f"{law} {rate:.4f}" for law, rate in rates.items())
        part = learner.steps / self.config.steps
        self._say(
            f"{part:4.0%}  {learner.steps:>10,} steps  {wall_s:6.0f} s  "
            f"loss {loss:.4f}  blocking: {written}"
        )


def _timeless(config: Config) -> dict[str, Any]:
    """What may not change between a run and its resumption."""
    found = config.as_data()
    del found["steps"], found["evaluation"]
    return found


def _write(path: Path, text: str) -> None:
    draft = path.with_suffix(".tmp")
    draft.write_text(text)
    os.replace(draft, path)
