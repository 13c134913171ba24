"""A training run: rounds of learning, progress, evaluation, checkpoints; and going on with one.

A run's folder holds ``config.json``, ``progress.csv``, ``checkpoint.pt`` (weights and optimiser,
read back as tensors only) and, at the end, the model: ``NAME.onnx`` with its card.
"""

import json
import math
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from patchlight.emulation.learning.afterstate_worker import AfterstateWorker
from patchlight.emulation.learning.afterstates import AfterstateLearner
from patchlight.emulation.learning.config import Config, check
from patchlight.emulation.learning.dqn import DqnLearner, DqnWorker
from patchlight.emulation.learning.ensembles import Likeness, likeness_of
from patchlight.emulation.learning.network import CHECKPOINT, CONFIG, of_this_network
from patchlight.emulation.learning.on_ray import MakeWorker, RayRollouts
from patchlight.emulation.learning.players import play
from patchlight.emulation.learning.policy_iteration import PlayOutWorker, PolicyIterationLearner
from patchlight.emulation.learning.rollouts import Experience, Progress
from patchlight.emulation.learning.run_log import SAID_EVERY_S, RunLog
from patchlight.emulation.learning.vector_episodes import layout_of
from patchlight.emulation.simulator.executors import Engine
from patchlight.emulation.simulator.executors.on_ray import connected
from patchlight.emulation.simulator.ramp.scenario import Scenario
from patchlight.emulation.simulator.ramp.workloads import Workloads
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.graphs import ComputationGraph

_KEPT_EVERY_S, _EPISODES_SHOWN = 60.0, 200

E = TypeVar("E", bound=Experience)


class Learner(Protocol):
    """What a run does round for round."""

    steps: int

    @property
    def average(self) -> nn.Module:
        """The scorer to evaluate and to keep."""

    def round(self) -> Progress:
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
            environment.under(condition),
            horizon_s=environment.horizon_of(condition, training),
            law_instance=environment.law_instance,
        )
        varied.check_models(workloads.graphs)
        found.append(varied.scenario(workloads, law, environment.rule))
    return found


class Run:
    """A training run in a folder. ``say`` hears of its progress, a line at a time.

    ``engine`` says who plays: ``serial`` this process, ``ray`` as many workers as it has processes.
    """

    def __init__(
        self,
        config: Config,
        graphs: Sequence[ComputationGraph] | Workloads,
        folder: Path,
        say: Callable[[str], None] = lambda line: None,
        engine: Engine | None = None,
    ) -> None:
        self.config, self.folder, self._say = config, folder, say
        self.scenarios = scenarios_of(config, graphs)
        self.models = list(self.scenarios[0].workloads.names)
        self.layout = layout_of(self.scenarios[0])
        check(config, self.layout.degrees)
        self._engine = engine or Engine("serial")
        if self._engine.name == "ray" and config.algorithm == "maskable-ppo":
            raise BadInput(
                "'maskable-ppo' learns in one process: Stable-Baselines3 plays for it",
                hint="leave out --engine, or take another algorithm",
            )
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
        with ExitStack() as stack:
            learner = self._learner(stack)
            _write(self.folder / CONFIG, json.dumps(self.config.as_data(), indent=2) + "\n")
            log = RunLog(self.folder, self.config.steps, learner.steps, self._before_s)
            stack.enter_context(closing(log))
            rates, spent_s = self._rounds(learner, log)
        if not rates:
            rates = self.evaluate(learner.average)
        config, wall_s = self.config.as_data(), self._before_s + spent_s
        done: dict[str, Any] = {"config": config, "steps": learner.steps, "models": self.models}
        about = {
            "wall_s": wall_s,
            "engine": self._engine.name,
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
                if now - kept >= _KEPT_EVERY_S:
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

    def _learner(self, stack: ExitStack) -> Learner:
        """Who learns; what it needs is taken down with the ``stack``."""
        config, done = self.config, self._done
        scenarios = scenarios_of(config, self.scenarios[0].workloads, training=True)
        learner: Learner
        if config.algorithm == "maskable-ppo":
            from patchlight.emulation.learning.ppo import PpoLearner

            learner = PpoLearner(config, scenarios, done)
        elif config.algorithm == "masked-dqn":
            players = self._on_ray(stack, DqnWorker, scenarios)
            workers = players.count if players else 1
            learner = DqnLearner(config, scenarios, done, players, workers)
        elif config.algorithm == "policy-iteration":
            playing_out = self._on_ray(stack, PlayOutWorker, scenarios)
            learner = PolicyIterationLearner(config, scenarios, done, playing_out)
        else:
            others = self._on_ray(stack, AfterstateWorker, scenarios)
            learner = AfterstateLearner(config, scenarios, done, others)
        if self._state is not None:
            with of_this_network(f"the checkpoint in {self.folder}"):
                learner.restore(self._state)
        return learner

    def _on_ray(
        self, stack: ExitStack, make: MakeWorker[E], scenarios: Sequence[Scenario]
    ) -> RayRollouts[E] | None:
        if self._engine.name != "ray":
            return None
        ray = stack.enter_context(connected(self._engine))
        count = self._engine.processes or int(ray.cluster_resources()["CPU"])
        found = RayRollouts(ray, count, make, self.config, scenarios, self._done)
        return stack.enter_context(closing(found))

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
            "discount": self.config.discount,
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
        # A replay memory is filled before anything is learned.
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
