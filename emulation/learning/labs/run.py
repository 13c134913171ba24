"""A training run over random labs: rounds, progress, checkpoints, and a test at the end.

A run's folder holds ``config.json``, ``progress.csv``, ``checkpoint.pt`` (read back as tensors
only) and, at the end, the model: ``NAME.onnx`` with its card.
"""

import json
import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from patchlight.emulation.learning.labs.config import LabConfig, parse_lab_config
from patchlight.emulation.learning.labs.network import OptionNetwork
from patchlight.emulation.learning.labs.testing import Tested, run_test
from patchlight.emulation.learning.labs.what_if import WhatIfLearner
from patchlight.emulation.learning.network import CHECKPOINT, CONFIG, of_this_network
from patchlight.emulation.learning.run_log import SAID_EVERY_S, RunLog
from patchlight.testbed.errors import BadInput

_KEPT_EVERY_S = 60.0


@dataclass(frozen=True)
class LabReport:
    """What came of a run: the network, its test, and what its card says of the training."""

    network: OptionNetwork
    tested: Tested
    training: dict[str, Any]


class LabRun:
    """A training run in a folder. ``say`` hears of its progress, a line at a time."""

    def __init__(
        self, config: LabConfig, folder: Path, say: Callable[[str], None] = lambda line: None
    ) -> None:
        self.config, self.folder, self._say = config, folder, say
        self._before_s = 0.0
        self._learner = WhatIfLearner(config)
        self._is_resumed = False

    def resume(self) -> None:
        """Go on from the folder's checkpoint; ``BadInput`` if it has none of this configuration."""
        kept = read_checkpoint(self.folder)
        if kept.get("config") != _timeless(self.config):
            raise BadInput(
                f"the checkpoint in {self.folder} is of another configuration",
                hint="only 'steps' and 'testing' may change; else begin in a new folder",
            )
        with of_this_network(f"the checkpoint in {self.folder}"):
            self._learner.restore(kept["learner"])
        self._before_s, self._is_resumed = float(kept["wall_s"]), True

    def learn(self) -> LabReport:
        """All rounds, and the test. Interrupted, it keeps a checkpoint first."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._is_resumed and (self.folder / CHECKPOINT).exists():
            raise BadInput(
                f"{self.folder} holds a run already", hint="go on with --resume, or name another"
            )
        (self.folder / CONFIG).write_text(json.dumps(self.config.as_data(), indent=2) + "\n")
        learner, steps = self._learner, self.config.steps
        began = kept = said = time.monotonic()
        losses = list[float]()
        with closing(RunLog(self.folder, steps, learner.steps, self._before_s)) as log:
            try:
                while learner.steps < steps:
                    losses.append(learner.round())
                    now = time.monotonic()
                    if now - kept >= _KEPT_EVERY_S:
                        kept = now
                        self._keep(now - began)
                    if now - said >= SAID_EVERY_S or learner.steps >= steps:
                        said = now
                        self._log(log, now - began, sum(losses) / len(losses))
                        losses = []
            finally:
                self._keep(time.monotonic() - began)
        spent_s = self._before_s + time.monotonic() - began
        self._say(f"testing on {self.config.testing.labs} labs that it has not seen")
        tested = run_test(learner.average, self.config)
        training = {
            "config": self.config.as_data(),
            "steps": learner.steps,
            "labs": learner.episodes,
            "wall_s": round(spent_s, 1),
            "torch": str(torch.__version__),
            "tested": asdict(tested),
        }
        return LabReport(learner.average, tested, training)

    def _keep(self, spent_s: float) -> None:
        state = {
            "config": _timeless(self.config),
            "wall_s": self._before_s + spent_s,
            "learner": self._learner.state(),
        }
        path = self.folder / CHECKPOINT
        draft = path.with_suffix(".tmp")
        torch.save(state, draft)
        os.replace(draft, path)

    def _log(self, log: RunLog, spent_s: float, loss: float) -> None:
        steps, labs = self._learner.steps, self._learner.episodes
        wall_s = round(self._before_s + spent_s, 1)
        log.row({"steps": steps, "labs": labs, "wall_s": wall_s, "loss": loss})
        log.scalars(steps, {"labs": labs, "loss": loss})
        self._say(f"{log.words(steps, spent_s)}  in {labs:,} labs  loss {loss:.4f}")


def read_checkpoint(folder: Path) -> dict[str, Any]:
    """A run's checkpoint, as plain tensors; ``BadInput`` if there is none that can be read."""
    path = folder / CHECKPOINT
    try:
        kept = torch.load(path, weights_only=True)
    except FileNotFoundError as error:
        raise BadInput(
            f"{folder} is no training run: it has no {CHECKPOINT}",
            hint="give the folder that 'patchlight policy train' wrote",
        ) from error
    except Exception as error:  # torch raises whatever its archive reader does
        raise BadInput(f"cannot read the checkpoint {path}: {error}") from error
    if not isinstance(kept, dict) or not {"config", "wall_s", "learner"} <= kept.keys():
        raise BadInput(f"the checkpoint {path} is of another kind of training")
    return kept


def load_lab_run(folder: Path) -> tuple[OptionNetwork, LabConfig, dict[str, Any]]:
    """The network that a run has come to, its configuration, and what its card says of it."""
    config = parse_lab_config((folder / CONFIG).read_text(), str(folder / CONFIG))
    kept = read_checkpoint(folder)
    network = OptionNetwork(config.network)
    with of_this_network(f"the checkpoint in {folder}"):
        network.load_state_dict(kept["learner"]["average"])
    steps, labs = kept["learner"]["steps"], kept["learner"]["episodes"]
    about = {"config": config.as_data(), "steps": steps, "labs": labs, "wall_s": kept["wall_s"]}
    return network, config, about


def _timeless(config: LabConfig) -> str:
    """What may not change between a run and its resumption."""
    found = config.as_data()
    del found["steps"], found["testing"]
    return json.dumps(found, sort_keys=True)
