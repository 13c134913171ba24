"""A training run over random labs: rounds, progress, checkpoints, and a test at the end."""

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
from patchlight.emulation.learning.run_folder import (
    CONFIG,
    KEPT_EVERY_S,
    SAID_EVERY_S,
    RunFolder,
    RunLog,
    read_checkpoint,
)
from patchlight.emulation.simulator.executors import Engine
from patchlight.testbed.errors import BadInput


@dataclass(frozen=True)
class LabReport:
    """The result of a run: the network, its test, and what its card says of the training."""

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
        self.config, self._say = config, say
        self._engine = engine or Engine("serial")
        timeless = config.as_data()
        del timeless["steps"], timeless["testing"], timeless["fitting"]
        self._folder = RunFolder(folder, timeless, "'steps', 'fitting' and 'testing'")
        self._trials = WhatIf(config)

    def resume(self) -> None:
        """Go on from the folder's checkpoint; ``BadInput`` if it has none of this configuration."""
        self._trials.restore(self._folder.resume()["trials"])

    def learn(self) -> LabReport:
        """All rounds, and the test. Interrupted, it keeps a checkpoint first."""
        self._folder.check()
        self._folder.begin(self.config.as_data())
        trials, began = self._trials, time.monotonic()
        self._look(began)
        fitted = fit(self.config, trials.tried, self._say)
        if fitted.gain is not None:
            self._say(f"on labs kept apart: {fitted.gain.words}")
            if not fitted.corrects:
                self._say("that cannot be told from nothing: the model is the rule")
        spent_s = self._folder.before_s + time.monotonic() - began
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

        with closing(RunLog(self._folder.path, steps, trials.steps, self._folder.before_s)) as log:
            try:
                trials.look(self._engine, told)
            finally:
                self._keep(time.monotonic() - began)

    def _keep(self, spent_s: float) -> None:
        self._folder.keep({"trials": self._trials.state()}, spent_s)

    def _log(self, log: RunLog, spent_s: float) -> None:
        steps, labs = self._trials.steps, self._trials.episodes
        wall_s = round(self._folder.before_s + spent_s, 1)
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


def load_lab_run(folder: Path) -> tuple[OptionNetwork, LabConfig, dict[str, Any]]:
    """The network that a run has trained, its configuration, and what its card says of it."""
    config = parse_lab_config((folder / CONFIG).read_text(), str(folder / CONFIG))
    kept, trials = read_checkpoint(folder), WhatIf(config)
    if "trials" not in kept:
        raise BadInput(f"the checkpoint in {folder} is of another kind of training")
    trials.restore(kept["trials"])
    fitted = fit(config, trials.tried)
    return fitted.network, config, about(config, trials, kept["wall_s"], fitted)
