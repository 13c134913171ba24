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

from patchlight.emulation.learning.labs.config import LEARNED, LabConfig, parse_lab_config
from patchlight.emulation.learning.labs.fitting import Fitted, Tested, fit, run_test
from patchlight.emulation.learning.labs.network import OptionNetwork
from patchlight.emulation.learning.labs.what_if import WhatIf
from patchlight.emulation.learning.network import CHECKPOINT, CONFIG
from patchlight.emulation.learning.training import KEPT_EVERY_S, SAID_EVERY_S, RunLog
from patchlight.emulation.simulator.executors import Engine
from patchlight.testbed.errors import BadInput


@dataclass(frozen=True)
class LabReport:
    """What came of a run: the network, its test, and what its card says of the training."""

    network: OptionNetwork
    tested: Tested
    training: dict[str, Any]


class LabRun:
    """A training run in a folder. ``say`` hears of its progress, a line at a time.

    ``engine`` says who looks at decisions: this process, others of this machine, or Ray. That
    makes no difference to what is learned.
    """

    def __init__(
        self,
        config: LabConfig,
        folder: Path,
        say: Callable[[str], None] = lambda line: None,
        engine: Engine | None = None,
    ) -> None:
        self.config, self.folder, self._say = config, folder, say
        self._engine = engine or Engine("serial")
        self._before_s = 0.0
        self._trials = WhatIf(config)
        self._is_resumed = False

    def resume(self) -> None:
        """Go on from the folder's checkpoint; ``BadInput`` if it has none of this configuration."""
        kept = read_checkpoint(self.folder)
        if kept.get("config") != _timeless(self.config):
            raise BadInput(
                f"the checkpoint in {self.folder} is of another configuration",
                hint="only 'steps', 'fitting' and 'testing' may change; else begin in a new folder",
            )
        self._trials.restore(kept["trials"])
        self._before_s, self._is_resumed = float(kept["wall_s"]), True

    def learn(self) -> LabReport:
        """All rounds, and the test. Interrupted, it keeps a checkpoint first."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._is_resumed and (self.folder / CHECKPOINT).exists():
            raise BadInput(
                f"{self.folder} holds a run already", hint="go on with --resume, or name another"
            )
        (self.folder / CONFIG).write_text(json.dumps(self.config.as_data(), indent=2) + "\n")
        trials, began = self._trials, time.monotonic()
        self._look(began)
        fitted = fit(self.config, trials.tried, self._say)
        if fitted.gain is not None:
            self._say(f"on labs kept apart: {fitted.gain.words}")
            if not fitted.corrects:
                self._say("that cannot be told from nothing: the model is the rule")
        spent_s = self._before_s + time.monotonic() - began
        self._say(f"testing on {self.config.testing.labs} labs that it has not seen")
        tested = run_test(fitted.network, self.config)
        training = {**about(self.config, trials, spent_s, fitted), "tested": asdict(tested)}
        return LabReport(fitted.network, tested, training)

    def _look(self, began: float) -> None:
        """All decisions, with progress and checkpoints."""
        trials, steps, kept, said = self._trials, self.config.steps, began, began

        def told() -> None:
            nonlocal kept, said
            now = time.monotonic()
            if now - kept >= KEPT_EVERY_S:
                kept = now
                self._keep(now - began)
            if now - said >= SAID_EVERY_S or trials.steps >= steps:
                said = now
                self._log(log, now - began)

        with closing(RunLog(self.folder, steps, trials.steps, self._before_s)) as log:
            try:
                trials.look(self._engine, told)
            finally:
                self._keep(time.monotonic() - began)

    def _keep(self, spent_s: float) -> None:
        state = {
            "config": _timeless(self.config),
            "wall_s": self._before_s + spent_s,
            "trials": self._trials.state(),
        }
        path = self.folder / CHECKPOINT
        draft = path.with_suffix(".tmp")
        torch.save(state, draft)
        os.replace(draft, path)

    def _log(self, log: RunLog, spent_s: float) -> None:
        steps, labs = self._trials.steps, self._trials.episodes
        wall_s = round(self._before_s + spent_s, 1)
        log.row({"steps": steps, "labs": labs, "wall_s": wall_s})
        log.scalars(steps, {"labs": labs})
        self._say(f"{log.words(steps, spent_s)}  in {labs:,} labs")


def about(config: LabConfig, trials: WhatIf, wall_s: float, fitted: Fitted) -> dict[str, Any]:
    """What a card says of a training run."""
    gains = {} if fitted.gain is None else dict.fromkeys(LEARNED, asdict(fitted.gain))
    corrects = list(LEARNED) if fitted.corrects else []
    found = {"epoch": fitted.epoch, "corrects": corrects, "gains": gains}
    return {
        "config": config.as_data(),
        "steps": trials.steps,
        "labs": trials.episodes,
        "wall_s": round(wall_s, 1),
        "torch": str(torch.__version__),
        "fitted": found,
    }


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
    if not isinstance(kept, dict) or not {"config", "wall_s", "trials"} <= kept.keys():
        raise BadInput(f"the checkpoint {path} is of another kind of training")
    return kept


def load_lab_run(folder: Path) -> tuple[OptionNetwork, LabConfig, dict[str, Any]]:
    """The network that a run has come to, its configuration, and what its card says of it."""
    config = parse_lab_config((folder / CONFIG).read_text(), str(folder / CONFIG))
    kept, trials = read_checkpoint(folder), WhatIf(config)
    trials.restore(kept["trials"])
    fitted = fit(config, trials.tried)
    return fitted.network, config, about(config, trials, kept["wall_s"], fitted)


def _timeless(config: LabConfig) -> str:
    """What may not change between a run and its resumption."""
    found = config.as_data()
    del found["steps"], found["testing"], found["fitting"]
    return json.dumps(found, sort_keys=True)
