"""Trying out what would have been: other answers to a decision, each played to the end.

An episode is played once, by the rule *least-delay*. At some of its decisions other options are
taken instead, and what comes then is played by that rule, too: the same jobs come, so what
differs is due to the answer alone. The sums of completion times say which options were good and by
how much (policy improvement by roll-outs: Tesauro and Galperin, NIPS 1996). Nothing of it is
sampled but the labs and jobs, and which decisions are looked at. ``fitting`` learns from it.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from patchlight.controller.policies.contract import KINDS, PlacementPolicy, PolicyKind
from patchlight.controller.policies.options.observation import Observation
from patchlight.emulation.learning.labs.config import DRAWN, LabConfig
from patchlight.emulation.learning.labs.network import OptionNetwork
from patchlight.emulation.learning.labs.policies import Learned, policies_of, rule_of
from patchlight.emulation.learning.labs.script import (
    Next,
    Script,
    ScriptedElasticity,
    ScriptedOrder,
    ScriptedPartition,
    ScriptedPlacement,
    ScriptedTopology,
)
from patchlight.emulation.simulator.cluster import QueueResult
from patchlight.emulation.simulator.executors import Engine, run_all
from patchlight.emulation.simulator.randomlabs.episodes import (
    Episode,
    draw_jobs,
    trace_of,
    traced_jobs,
)
from patchlight.emulation.simulator.traces import TraceJob
from patchlight.testbed.errors import BadInput
from patchlight.testbed.generate.random_lab import random_lab

_MOST = 10.0  # of a difference, in times that jobs last; more is as good as that


class Tried(NamedTuple):
    """A decision that was looked at, in the lab of a seed.

    ``seen`` has the options that were tried alone, the rule's own first: in one observation, or of
    jobs that wait in one for each. ``worth`` says of each by how much jobs end sooner than in the
    mean of them, in times that jobs last.
    """

    seed: int
    seen: Sequence[Observation]
    worth: list[float]

    @property
    def kind(self) -> PolicyKind:
        """The kind of decision."""
        return KINDS[int(np.argmax(self.seen[0]["state"][0, -len(KINDS) :]))]


class Looking:
    """Looks at decisions in the lab of a seed: which depends on nothing else but ``config``."""

    def __init__(self, config: LabConfig) -> None:
        self.config = config

    @cached_property
    def _policies(self) -> Learned:
        """They list options and show what is seen of them; the rule decides, not their scores."""
        return policies_of(OptionNetwork(self.config.network), self.config.learns)

    def __call__(self, seed: int) -> list[Tried]:
        """Play an episode, and some of its decisions otherwise."""
        draw = random.Random(f"what if {self.config.seed} {seed}")
        what_if = self.config.what_if
        episode = open_for(self.config.learns, episode_of(self.config, seed))
        played = Script(policies=self._policies)
        self._play(episode, played)
        names = [job.view.name for job in episode.jobs]
        found = []
        many = min(what_if.decisions, len(played.decisions))
        for decision in draw.sample(played.decisions, many):
            before = played.answers[: decision.number]
            # The best by the rule, and one of the others, so that those too are known.
            best, others = decision.ranked[: what_if.options], decision.ranked[what_if.options :]
            tried = [*best, *draw.sample(others, min(1, len(others)))]
            last = names.index(decision.latest) + 1 + what_if.horizon
            then, sums_s = Episode(episode.lab, episode.jobs[:last]), []
            for number in tried:
                answer = decision.answers[number]
                if isinstance(answer, Next):
                    script = Script(before, next=answer)
                else:
                    script = Script([*before, answer])
                sums_s.append(_jct_s(self._play(then, script)))
            if not all(np.isfinite(sums_s)):
                continue
            mean_s = sum(sums_s) / len(sums_s)
            worth = [
                max(-_MOST, min(_MOST, (mean_s - each_s) / decision.unit_s)) for each_s in sums_s
            ]
            found.append(Tried(seed, decision.seen_of(tried), worth))
        return found

    def _play(self, episode: Episode, script: Script) -> QueueResult:
        learns = self.config.learns
        elasticity = ScriptedElasticity(script) if "elasticity" in learns else None
        placement: PlacementPolicy = rule_of(learns)
        if "placement" in learns:
            placement = ScriptedPlacement(script, placement, elasticity is not None)
        topology = ScriptedTopology(script) if "topology" in learns else None
        order = ScriptedOrder(script) if "order" in learns else None
        partition = ScriptedPartition(script) if "partition" in learns else None
        return episode.play(placement, topology, order, elasticity, partition)


class WhatIf:
    """Tries out answers, lab by lab; ``steps`` counts the decisions that were looked at."""

    def __init__(self, config: LabConfig) -> None:
        self.config, self.steps, self.episodes = config, 0, 0
        self.tried: list[Tried] = []

    def look(self, engine: Engine | None = None, tell: Callable[[], None] = lambda: None) -> None:
        """Labs until there are the configuration's steps; ``tell`` after each.

        Whoever looks at them, they are taken in their order, as one process alone takes them.
        """
        looking, first = Looking(self.config), self.config.labs.first_seed
        ahead: dict[int, list[Tried]] = {}

        def take(number: int, tried: list[Tried]) -> None:
            ahead[begun + number] = tried
            while self.episodes in ahead:
                found = ahead.pop(self.episodes)
                self.tried += found
                self.steps += max(1, len(found))
                self.episodes += 1
            tell()

        while (left := self.config.steps - self.steps) > 0:
            # So many labs are needed at least.
            begun, count = self.episodes, -(-left // self.config.what_if.decisions)
            seeds = range(first + begun, first + begun + count)
            run_all(seeds, looking, engine or Engine("serial"), hear=take)

    def state(self) -> dict[str, Any]:
        """What to go on from, as plain tensors."""
        tried = [
            {"seed": each.seed, "seen": [_tensors(seen) for seen in each.seen], "worth": each.worth}
            for each in self.tried
        ]
        return {"steps": self.steps, "episodes": self.episodes, "tried": tried}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there; ``BadInput`` for a state that an earlier version kept."""
        if any(isinstance(each["seen"], Mapping) for each in state["tried"]):
            raise BadInput(
                "an earlier version of Patchlight kept what this run has tried",
                hint="train it again, in a new folder",
            )
        self.steps, self.episodes = int(state["steps"]), int(state["episodes"])
        self.tried = [
            Tried(int(each["seed"]), [_arrays(seen) for seen in each["seen"]], list(each["worth"]))
            for each in state["tried"]
        ]


def episode_of(config: LabConfig, seed: int) -> Episode:
    """The lab of a seed, and its jobs as they are asked for."""
    labs = config.labs
    lab = random_lab(seed, labs.largest, labs.mixed)
    load = random.Random(f"load {seed}").uniform(labs.lowest_load, labs.highest_load)
    trace = labs.traces[seed % len(labs.traces)]
    if trace == DRAWN:
        jobs = draw_jobs(lab, seed, labs.jobs, load)
    else:
        jobs = traced_jobs(lab, _drawn_by(trace, labs.largest), seed, labs.jobs, load)
    return Episode(lab, jobs)


def open_for(kinds: Sequence[str], episode: Episode) -> Episode:
    """An episode for policies of these kinds: they decide what is open of its jobs."""
    if "partition" in kinds:
        return episode.opened()
    return episode.elastic() if "elasticity" in kinds else episode


@cache
def _drawn_by(law: str, largest: int) -> Sequence[TraceJob]:
    return trace_of(law, largest)


def _jct_s(result: QueueResult) -> float:
    """The sum of all jobs' completion times; no number where one did not end."""
    return float(np.sum(result.jobs["jct_s"]))


def _tensors(seen: Observation) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(array) for name, array in seen.items()}


def _arrays(seen: Mapping[str, torch.Tensor]) -> Observation:
    return {name: tensor.numpy() for name, tensor in seen.items()}
