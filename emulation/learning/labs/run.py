"""A training run over random labs: collects decisions, fits a network to them, and tests it.

What an answer did to the jobs that happened to come is mostly chance, so decisions of every fifth
lab are kept apart: the network is that of the epoch that predicted them best, and there is no model
where its gain on them is not significant.
"""

import copy
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from patchlight.controller.policies.files import lab_range
from patchlight.emulation.learning.labs.network import (
    LEARNED,
    LabConfig,
    OptionNetwork,
    joined,
    policy_of,
)
from patchlight.emulation.learning.labs.what_if import (
    Tried,
    WhatIf,
    episode_of,
    play,
)
from patchlight.emulation.learning.run_folder import (
    FIRST_SAID_S,
    KEPT_EVERY_S,
    SAID_EVERY_S,
    RunFolder,
    RunLog,
)
from patchlight.emulation.simulator.executors import Engine
from patchlight.emulation.simulator.randomlabs import (
    PlayedPolicies,
    played_jct_s,
)

APART = 5
"""The decisions of one lab in so many are kept apart."""


@dataclass(frozen=True)
class Gain:
    """A network's gain over the rule on held-out decisions.

    ``gain`` and ``gain_ci95`` are per decision, in times that jobs last, over ``decisions``, in
    ``changed`` of which it differs from the rule.
    """

    gain: float
    gain_ci95: float
    changed: int
    decisions: int

    @property
    def is_one(self) -> bool:
        """Whether it is significant."""
        return self.decisions > 1 and self.gain > self.gain_ci95

    @property
    def words(self) -> str:
        """In a few words."""
        return (
            f"{self.changed} of {self.decisions} decisions differ from the rule's: "
            f"{self.gain:+.3f} ± {self.gain_ci95:.3f} of a job's time for each"
        )


@dataclass(frozen=True)
class Fitted:
    """A network, of which epoch, and its ``gain``: ``None`` where nothing could be fitted."""

    network: OptionNetwork
    epoch: int
    gain: Gain | None

    @property
    def corrects(self) -> bool:
        """Whether it is significantly better than the rule."""
        return self.gain is not None and self.gain.is_one


@dataclass(frozen=True)
class _Set:
    """Decisions side by side; ``of`` says of which each option is, ``worth`` is centred in each."""

    seen: dict[str, Tensor]
    of: Tensor
    worth: Tensor
    count: int

    @classmethod
    def join(cls, tried: Sequence[Tried]) -> "_Set":
        seen = joined([each.seen for each in tried])
        worth = torch.tensor([value for each in tried for value in each.worth])
        counts = torch.tensor([len(each.worth) for each in tried])
        of = torch.arange(len(tried)).repeat_interleave(counts)
        return cls(
            seen,
            of,
            worth.float(),
            len(tried),
        )

    def centred(self, values: Tensor) -> Tensor:
        """Values less the mean over the options of the same decision."""
        sums = torch.zeros(self.count).index_add(0, self.of, values)
        counts = torch.zeros(self.count).index_add(
            0, self.of, torch.ones_like(values)
        )
        return values - (sums / counts)[self.of]

    def loss(self, scores: Tensor) -> Tensor:
        """How far scores are from what options are worth."""
        return nn.functional.huber_loss(
            self.centred(scores), self.centred(self.worth)
        )

    def chosen(self, scores: Tensor) -> Tensor:
        """The row of the best option of each decision."""
        best = torch.full((self.count,), -torch.inf).scatter_reduce(
            0,
            self.of,
            scores,
            "amax",
        )
        rows = torch.where(
            scores == best[self.of], torch.arange(len(scores)), len(scores)
        )
        return torch.full((self.count,), len(scores)).scatter_reduce(
            0,
            self.of,
            rows,
            "amin",
        )


def fit(
    config: LabConfig,
    tried: Sequence[Tried],
    say: Callable[[str], None] = lambda line: None,
) -> Fitted:
    """The network of a configuration, fitted to what was tried; the same each time."""
    torch.manual_seed(config.seed)
    network = OptionNetwork(config.network)
    fitting = config.fitting
    apart = [each for each in tried if each.seed % APART == 0]
    learned = [each for each in tried if each.seed % APART]
    if not apart or not learned:
        return Fitted(network, 0, None)
    optimiser = torch.optim.AdamW(
        network.parameters(),
        lr=fitting.learning_rate,
        weight_decay=fitting.weight_decay,
    )
    draw = random.Random(f"fit {config.seed}")
    kept = _Set.join(apart)
    best: tuple[float, int, dict[str, Any]] = (
        _loss(network, kept),
        0,
        _weights(network),
    )
    first_loss = best[0]
    for epoch in range(1, fitting.n_epochs + 1):
        order = draw.sample(learned, len(learned))
        for start in range(0, len(order), fitting.batch_size):
            batch = _Set.join(order[start : start + fitting.batch_size])
            optimiser.zero_grad()
            loss: Any = batch.loss(network(batch.seen))
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
        error = _loss(network, kept)
        say(
            f"epoch {epoch}: loss on held-out labs {error:.4f}, {first_loss:.4f} by the rule"
        )
        if error < best[0]:
            best = error, epoch, _weights(network)
    network.load_state_dict(best[2])
    return Fitted(network, best[1], _gain(network.eval(), kept))


def _gain(network: OptionNetwork, kept: _Set) -> Gain:
    with torch.inference_mode():
        rule = kept.chosen(network.plain(kept.seen["options"]))
        chosen = kept.chosen(network(kept.seen))
    gains = (kept.worth[chosen] - kept.worth[rule]).numpy()
    spread = 1.96 * float(np.std(gains)) / len(gains) ** 0.5
    return Gain(
        float(gains.mean()),
        spread,
        int((chosen != rule).sum()),
        kept.count,
    )


def _loss(network: OptionNetwork, kept: _Set) -> float:
    with torch.inference_mode():
        return float(kept.loss(network(kept.seen)))


def _weights(network: OptionNetwork) -> dict[str, Any]:
    return copy.deepcopy(network.state_dict())


_RULE = PlayedPolicies("least-delay:circuits=false")
COMPARED = (
    _RULE,
    *(
        _RULE._replace(partition=each)
        for each in ("maximum", "constant:4", "least-delay")
    ),
)
"""The policies that a model is compared with; the last is the rule that it begins as."""


@dataclass(frozen=True)
class Tested:
    """The mean completion time over that of each built-in choice, lab by lab: mean and 95 %.

    ``tested_range`` has the lowest and highest of each measure of these labs.
    """

    labs: int
    jct_over: Mapping[str, tuple[float, float]]
    tested_range: Mapping[str, tuple[float, float]]

    @property
    def words(self) -> list[str]:
        """A line for each it is compared with."""
        return [
            f"mean JCT over that of {name}: {mean:.3f} ± {spread:.3f} ({self.labs} labs)"
            for name, (mean, spread) in self.jct_over.items()
        ]


def run_test(
    network: OptionNetwork,
    config: LabConfig,
    tell: Callable[[int, int], None] = lambda done, of: None,
) -> Tested:
    """Play the labs of the configuration's test with the network and with each built-in choice."""
    testing = config.testing
    count = config.testing.labs
    drawn = replace(
        config.labs,
        largest=testing.largest,
        mixed=testing.mixed,
    )
    tested = replace(config, labs=drawn)
    ratios: dict[str, list[float]] = {
        policies.name: [] for policies in COMPARED
    }
    measures: dict[str, list[float]] = {}
    for number in range(count):
        episode = episode_of(tested, testing.first_seed + number)
        for name, value in lab_range(episode.lab).items():
            measures.setdefault(name, []).append(value)
        learned = _mean_s(
            play(episode.opened(), policy_of(network)).jobs["jct_s"]
        )
        for policies in COMPARED:
            ratios[policies.name].append(
                learned / _mean_s(played_jct_s(episode, policies))
            )
        tell(number + 1, count)
    return Tested(
        count,
        {name: _interval(each) for name, each in ratios.items()},
        {name: (min(each), max(each)) for name, each in measures.items()},
    )


def _mean_s(jct_s: Sequence[float]) -> float:
    return float(np.mean(jct_s))


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half-width of the 95 % interval, both rounded."""
    spread = 1.96 * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return round(float(np.mean(values)), 4), round(spread, 4)


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
        self.config = config
        self._say = say
        self._engine = engine or Engine("serial")
        timeless = config.as_data()
        del timeless["steps"], timeless["testing"], timeless["fitting"]
        self._folder = RunFolder(
            folder, timeless, "'steps', 'fitting' and 'testing'"
        )
        self._trials = WhatIf(config)

    def resume(self) -> None:
        """Go on from the folder's checkpoint; ``BadInput`` if it has none of this configuration."""
        self._trials.restore(self._folder.resume()["trials"])

    def learn(self) -> LabReport | None:
        """All rounds, and the test. Interrupted, it keeps a checkpoint first.

        ``None`` where nothing was learned that decides better than the rule.
        """
        self._folder.check()
        self._folder.begin(self.config.as_data())
        trials = self._trials
        began = time.monotonic()
        self._look(began)
        fitted = fit(self.config, trials.tried, self._say)
        if fitted.gain is not None:
            self._say(f"on held-out labs: {fitted.gain.words}")
        if not fitted.corrects:
            return None
        spent_s = self._folder.before_s + time.monotonic() - began
        self._say(f"testing on {self.config.testing.labs} unseen labs")
        tested = run_test(fitted.network, self.config)
        training = {
            **about(
                self.config,
                trials,
                spent_s,
                fitted,
            ),
            "tested": asdict(tested),
        }
        return LabReport(fitted.network, tested, training)

    def _look(self, began: float) -> None:
        """All decisions, with progress and checkpoints."""
        trials = self._trials
        steps = self.config.steps
        kept = began
        said = began - SAID_EVERY_S + FIRST_SAID_S

        def told() -> None:
            nonlocal kept, said
            now = time.monotonic()
            if now - kept >= KEPT_EVERY_S:
                kept = now
                self._keep(now - began)
            if now - said >= SAID_EVERY_S or trials.steps >= steps:
                said = now
                self._log(log, now - began)

        with closing(
            RunLog(
                self._folder.path,
                steps,
                trials.steps,
                self._folder.before_s,
            )
        ) as log:
            try:
                trials.look(self._engine, told)
            finally:
                self._keep(time.monotonic() - began)

    def _keep(self, spent_s: float) -> None:
        self._folder.keep({"trials": self._trials.state()}, spent_s)

    def _log(self, log: RunLog, spent_s: float) -> None:
        steps = self._trials.steps
        labs = self._trials.episodes
        wall_s = round(self._folder.before_s + spent_s, 1)
        log.row({"steps": steps, "labs": labs, "wall_s": wall_s})
        log.scalars(steps, {"labs": labs})
        self._say(f"{log.words(steps, spent_s)}  in {labs:,} labs")


def about(
    config: LabConfig,
    trials: WhatIf,
    wall_s: float,
    fitted: Fitted,
) -> dict[str, Any]:
    """The card's record of a training run."""
    gains = (
        {}
        if fitted.gain is None
        else dict.fromkeys(LEARNED, asdict(fitted.gain))
    )
    found = {"epoch": fitted.epoch, "gains": gains}
    return {
        "config": config.as_data(),
        "steps": trials.steps,
        "labs": trials.episodes,
        "wall_s": round(wall_s, 1),
        "torch": str(torch.__version__),
        "fitted": found,
    }
