"""Simulates the alternatives to a decision: other worker counts, each to the end of the trace.

An episode is played once, by the rule *least-delay*. At some of its decisions other options are
taken instead, and what comes then is played by that rule, too: the same jobs come, so what
differs is due to the answer alone. The sums of completion times say which options were good and by
how much (policy improvement by roll-outs: Tesauro and Galperin, NIPS 1996). Nothing of it is
sampled but the labs and jobs, and which decisions are looked at. ``fitting`` learns from it.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from patchlight.controller.policies.contract import ClusterView, JobView
from patchlight.controller.policies.options.observation import (
    NOT_PROPOSERS,
    Observation,
    typical_s,
)
from patchlight.controller.policies.options.policies import (
    LeastDelayPartition,
    LeastDelayPlacement,
    WeighsPartitions,
    rule_cost,
)
from patchlight.emulation.learning.labs.network import (
    DRAWN,
    LabConfig,
    OptionNetwork,
    policy_of,
)
from patchlight.emulation.simulator.cluster import QueueResult
from patchlight.emulation.simulator.executors import Engine, run_all
from patchlight.emulation.simulator.randomlabs import (
    Episode,
    draw_jobs,
    trace_of,
    traced_jobs,
)
from patchlight.emulation.simulator.traces.model import TraceJob
from patchlight.testbed.generate.generate import random_lab

_MOST = (
    10.0  # of a difference, in times that jobs last; more is as good as that
)


class NotedDecision(NamedTuple):
    """One that the rule made, after so many answers before it; ``ranked`` has its choice first.

    Of options that look the same only one is there. ``latest`` is the last job that had come.
    """

    number: int
    seen: Observation
    answers: Sequence[int]
    ranked: list[int]
    unit_s: float
    latest: str


@dataclass
class Script:
    """A partition policy: the answers that are ``given`` first, then those of the rule.

    With a ``policy`` its decisions are noted: what was seen, and which options there were.
    """

    given: Sequence[int | None] = ()
    policy: WeighsPartitions | None = None
    answers: list[int | None] = field(default_factory=list)
    decisions: list[NotedDecision] = field(default_factory=list)

    def degree(
        self,
        cluster: ClusterView,
        job: JobView,
        legal: tuple[int, ...],
    ) -> int | None:
        """As the contract says."""
        if len(self.answers) < len(self.given):
            answer = self.given[len(self.answers)]
        elif self.policy is None:
            answer = LeastDelayPartition().degree(cluster, job, legal)
        else:
            answer = self._weighed(
                self.policy,
                cluster,
                job,
                legal,
            )
        self.answers.append(answer)
        return answer

    def _weighed(
        self,
        policy: WeighsPartitions,
        cluster: ClusterView,
        job: JobView,
        legal: tuple[int, ...],
    ) -> int | None:
        """The answer of the lowest cost; noted as a decision where there are several."""
        outlook = policy.outlook(cluster)
        options = policy.options(outlook, job, legal)
        if not options:
            return None
        by_cost = sorted(
            range(len(options)), key=lambda number: rule_cost(options[number])
        )
        answers: list[int] = [option.answer for option in options]
        if len(options) > 1:
            seen = policy.observe(outlook, job, options)
            looks = np.round(seen["options"][by_cost, :NOT_PROPOSERS], 4)
            _, firsts = np.unique(
                looks,
                axis=0,
                return_index=True,
            )
            ranked = [by_cost[place] for place in sorted(firsts.tolist())]
            if len(ranked) > 1:
                unit_s = typical_s(outlook.cluster, options)
                latest = cluster.recent[-1].name
                number = len(self.answers)
                self.decisions.append(
                    NotedDecision(
                        number,
                        seen,
                        answers,
                        ranked,
                        unit_s,
                        latest,
                    )
                )
        return answers[by_cost[0]]


def of_these(seen: Observation, options: Sequence[int]) -> Observation:
    """An observation as if there were only these options, in this order."""
    rows = np.array(options, np.int64)
    there = np.full(len(seen["options"]), -1, np.int64)
    there[rows] = np.arange(len(rows))
    touched = there[seen["touched"][:, 0]]
    kept = touched >= 0
    pairs = np.stack([touched[kept], seen["touched"][kept, 1]], 1)
    changed = {"options": seen["options"][rows], "touched": pairs}
    return {**seen, **changed, "amounts": seen["amounts"][kept]}


class Tried(NamedTuple):
    """A decision that was looked at, in the lab of a seed.

    ``seen`` has the options that were tried alone, the rule's own first. ``worth`` says of each by
    how much jobs end sooner than in the mean of them, in times that jobs last.
    """

    seed: int
    seen: Observation
    worth: list[float]


class Looking:
    """Looks at decisions in the lab of a seed: which depends on nothing else but ``config``."""

    def __init__(self, config: LabConfig) -> None:
        self.config = config

    @cached_property
    def policy(self) -> WeighsPartitions:
        """Records options and observations; the rule decides, not its scores."""
        return policy_of(OptionNetwork(self.config.network))

    def __call__(self, seed: int) -> list[Tried]:
        """Play an episode, and some of its decisions otherwise."""
        draw = random.Random(f"what if {self.config.seed} {seed}")
        what_if = self.config.what_if
        episode = episode_of(self.config, seed).opened()
        played = Script(policy=self.policy)
        play(episode, played)
        names = [job.view.name for job in episode.jobs]
        found = []
        many = min(what_if.decisions, len(played.decisions))
        for decision in draw.sample(played.decisions, many):
            before = played.answers[: decision.number]
            # The best by the rule, and one of the others, so that those too are known.
            best = decision.ranked[: what_if.options]
            others = decision.ranked[what_if.options :]
            tried = [*best, *draw.sample(others, min(1, len(others)))]
            last = names.index(decision.latest) + 1 + what_if.horizon
            then = Episode(episode.lab, episode.jobs[:last])
            scripts = [
                Script([*before, decision.answers[number]]) for number in tried
            ]
            sums_s = [
                float(np.sum(play(then, script).jobs["jct_s"]))
                for script in scripts
            ]
            if not all(np.isfinite(sums_s)):
                continue
            mean_s = sum(sums_s) / len(sums_s)
            worth = [
                max(-_MOST, min(_MOST, (mean_s - each_s) / decision.unit_s))
                for each_s in sums_s
            ]
            found.append(Tried(seed, of_these(decision.seen, tried), worth))
        return found


def play(
    episode: Episode, partition: Script | WeighsPartitions
) -> QueueResult:
    """An episode, beside the rule's placement, first in, first out, light as it is."""
    return episode.play(
        LeastDelayPlacement(circuits=False), partition=partition
    )


class WhatIf:
    """Tries out answers, lab by lab; ``steps`` counts the decisions that were looked at."""

    def __init__(self, config: LabConfig) -> None:
        self.config = config
        self.steps = 0
        self.episodes = 0
        self.tried: list[Tried] = []

    def look(
        self,
        engine: Engine | None = None,
        tell: Callable[[], None] = lambda: None,
    ) -> None:
        """Labs until there are the configuration's steps; ``tell`` after each.

        They are taken in their order, as one process alone takes them, on any engine.
        """
        looking = Looking(self.config)
        first = self.config.labs.first_seed
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
            begun = self.episodes
            count = -(-left // self.config.what_if.decisions)
            seeds = range(first + begun, first + begun + count)
            run_all(
                seeds,
                looking,
                engine or Engine("serial"),
                hear=take,
            )

    def state(self) -> dict[str, Any]:
        """The checkpoint's state, as plain tensors."""
        tried = [
            {
                "seed": each.seed,
                "seen": [_tensors(each.seen)],
                "worth": each.worth,
            }
            for each in self.tried
        ]
        return {"steps": self.steps, "episodes": self.episodes, "tried": tried}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from there."""
        self.steps = int(state["steps"])
        self.episodes = int(state["episodes"])
        self.tried = [
            Tried(
                int(each["seed"]),
                _arrays(each["seen"][0]),
                list(each["worth"]),
            )
            for each in state["tried"]
        ]


def episode_of(config: LabConfig, seed: int) -> Episode:
    """The lab of a seed, and its jobs as they are asked for."""
    labs = config.labs
    lab = random_lab(seed, labs.largest, labs.mixed)
    load = random.Random(f"load {seed}").uniform(
        labs.lowest_load, labs.highest_load
    )
    trace = labs.traces[seed % len(labs.traces)]
    if trace == DRAWN:
        jobs = draw_jobs(
            lab,
            seed,
            labs.jobs,
            load,
        )
    else:
        jobs = traced_jobs(
            lab,
            _drawn_by(trace, labs.largest),
            seed,
            labs.jobs,
            load,
        )
    return Episode(lab, jobs)


@cache
def _drawn_by(law: str, largest: int) -> Sequence[TraceJob]:
    return trace_of(law, largest)


def _tensors(seen: Observation) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(array) for name, array in seen.items()}


def _arrays(seen: Mapping[str, torch.Tensor]) -> Observation:
    return {name: tensor.numpy() for name, tensor in seen.items()}
