"""Learning from what would have been: other answers to a decision, each played to the end.

An episode is played once, as the network has it. At some of its decisions other options are taken
instead, and what comes then is played by the rule *least-delay*: the same jobs come, so what
differs is due to the answer alone. The sums of completion times say which options were good and by
how much (policy improvement by roll-outs: Tesauro and Galperin, NIPS 1996). Nothing of it is
sampled but the labs and jobs, and which decisions are looked at.
"""

import copy
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import nn

from patchlight.controller.policies.contract import ClusterView, JobView, PlacementPolicy
from patchlight.controller.policies.model_files import OUTPUT
from patchlight.controller.policies.options.learned import (
    LearnedPlacement,
    LearnedTopology,
    OptionsCard,
    WeighsOptions,
)
from patchlight.controller.policies.options.least_delay import (
    LeastDelayPlacement,
    LeastDelayTopology,
)
from patchlight.controller.policies.options.listing import Option
from patchlight.controller.policies.options.observation import (
    SCHEMA,
    VERSION,
    Observation,
    typical_s,
)
from patchlight.controller.policies.options.outlook import Outlook
from patchlight.emulation.learning.labs.config import LabConfig
from patchlight.emulation.learning.labs.network import INPUTS, OptionNetwork, joined
from patchlight.emulation.simulator.cluster import QueueResult
from patchlight.emulation.simulator.randomlabs.episodes import Episode, draw_jobs
from patchlight.testbed.random_lab import random_lab

_MOST = 10.0  # of a difference, in times that jobs last; more is as good as that


class _Input(NamedTuple):
    name: str


class TorchSession:
    """A network where a policy expects a model."""

    def __init__(self, network: OptionNetwork) -> None:
        self._network = network

    def get_inputs(self) -> list[_Input]:
        """All arrays of an observation."""
        return [_Input(name) for name in INPUTS]

    def run(self, names: Sequence[str], seen: Observation) -> list[np.ndarray[Any, Any]]:
        """The scores of one decision's options."""
        with torch.inference_mode():
            return [self._network(joined([seen])).numpy()]


def policies_of(
    network: OptionNetwork, kinds: Sequence[str]
) -> tuple[LearnedPlacement, LearnedTopology | None]:
    """The policies that a network makes."""
    card = OptionsCard("training", tuple(kinds), SCHEMA, VERSION, 0, "", {}, "", "")
    session = TorchSession(network)
    topology = LearnedTopology(card, session) if "topology" in kinds else None
    return LearnedPlacement(card, session), topology


class Tried(NamedTuple):
    """A decision that was looked at: what was seen, which options were tried, their worth.

    ``worth`` says by how much jobs end sooner than with the mean of those that were tried.
    """

    seen: Observation
    options: list[int]
    worth: list[float]


class _Decision(NamedTuple):
    """One that the network made, after so many answers before it."""

    number: int
    seen: Observation
    options: list[Option]
    chosen: int
    unit_s: float
    job: str


@dataclass
class _Script:
    """The answers of an episode: those that are given first, then the network's, else a rule's."""

    given: Sequence[Any] = ()
    network: tuple[LearnedPlacement, LearnedTopology | None] | None = None
    answers: list[Any] = field(default_factory=list)
    decisions: list[_Decision] = field(default_factory=list)
    job: str = ""

    @property
    def is_given(self) -> bool:
        """Whether the next answer is."""
        return len(self.answers) < len(self.given)

    def answer(self, answer: Any) -> Any:
        """Note an answer, and give it."""
        self.answers.append(answer)
        return answer

    def weigh(
        self, policy: WeighsOptions, outlook: Outlook, job: JobView | None, options: list[Option]
    ) -> Any:
        """The answer of the network, noted as a decision."""
        chosen = 0
        if len(options) > 1:
            seen = policy.observe(outlook, job, options)
            (scores,) = policy.session.run([OUTPUT], seen)
            chosen = int(scores.argmax())
            unit_s = typical_s(outlook.cluster, options)
            number = len(self.answers)
            self.decisions.append(_Decision(number, seen, options, chosen, unit_s, self.job))
        return self.answer(options[chosen].answer)


class _Placement:
    def __init__(self, script: _Script, plain: PlacementPolicy) -> None:
        self._script, self._plain = script, plain

    def place(self, cluster: ClusterView, job: JobView, workers: int) -> Sequence[int] | None:
        script = self._script
        if cluster.free_for(job).bit_count() < workers:
            return None
        script.job = job.name
        if script.is_given:
            return cast(Sequence[int], script.answer(script.given[len(script.answers)]))
        if script.network is None:
            return cast(Sequence[int], script.answer(self._plain.place(cluster, job, workers)))
        policy = script.network[0]
        outlook = policy.outlook(cluster)
        options = policy.options(outlook, job, workers)
        return cast(Sequence[int], script.weigh(policy, outlook, job, options))


class _Topology:
    def __init__(self, script: _Script) -> None:
        self._script, self._plain = script, LeastDelayTopology()

    def circuits(self, cluster: ClusterView, groups: Sequence[Sequence[int]]) -> Mapping[str, Any]:
        script = self._script
        if script.is_given:
            return cast(Mapping[str, Any], script.answer(script.given[len(script.answers)]))
        if script.network is None or script.network[1] is None:
            return cast(Mapping[str, Any], script.answer(self._plain.circuits(cluster, groups)))
        policy = script.network[1]
        outlook = policy.outlook(cluster)
        options = policy.options(outlook, groups)
        return cast(Mapping[str, Any], script.weigh(policy, outlook, None, options))


class WhatIfLearner:
    """Learns by trying out; ``steps`` counts the decisions that were looked at."""

    def __init__(self, config: LabConfig) -> None:
        self.config, self.steps, self.episodes = config, 0, 0
        torch.manual_seed(config.seed)
        self.network = OptionNetwork(config.network)
        self.average = copy.deepcopy(self.network)
        rate = config.what_if.learning_rate
        self._adam = torch.optim.Adam(self.network.parameters(), lr=rate)
        self._kept: list[Tried] = []

    def round(self) -> float:
        """One episode looked at, and some steps of learning; the mean loss."""
        seed = self.config.labs.first_seed + self.episodes
        draw = random.Random(f"what if {self.config.seed} {seed}")
        self._kept += self._look(episode_of(self.config, seed), draw)
        self._kept = self._kept[-self.config.what_if.buffer :]
        self.episodes += 1
        losses = [self._learn(draw) for _ in range(self.config.what_if.gradient_steps)]
        return sum(losses) / len(losses)

    def _look(self, episode: Episode, draw: random.Random) -> list[Tried]:
        """Play an episode, and some of its decisions otherwise."""
        what_if, kinds = self.config.what_if, self.config.learns
        played = _Script(network=policies_of(self.average, kinds))
        whole_s = _jct_s(self._play(episode, played))
        found = []
        names = [job.view.name for job in episode.jobs]
        many = min(what_if.decisions, len(played.decisions))
        for decision in draw.sample(played.decisions, many):
            before = played.answers[: decision.number]
            others = [n for n in range(len(decision.options)) if n != decision.chosen]
            tried = [decision.chosen, *draw.sample(others, min(what_if.options, len(others)))]
            last = names.index(decision.job) + 1 + what_if.horizon
            then, sums_s = Episode(episode.lab, episode.jobs[:last]), []
            for number in tried:
                answer = decision.options[number].answer
                sums_s.append(_jct_s(self._play(then, _Script([*before, answer]))))
            if not all(np.isfinite(sums_s)):
                continue
            # The rule that plays on is the same for all of them, also for what the network took.
            mean_s = sum(sums_s) / len(sums_s)
            worth = [
                max(-_MOST, min(_MOST, (mean_s - each_s) / decision.unit_s)) for each_s in sums_s
            ]
            found.append(Tried(decision.seen, tried, worth))
        self.steps += max(1, len(found)) if np.isfinite(whole_s) else 1
        return found

    def _play(self, episode: Episode, script: _Script) -> QueueResult:
        with_topology = "topology" in self.config.learns
        plain = LeastDelayPlacement(circuits=with_topology)
        return episode.play(_Placement(script, plain), _Topology(script) if with_topology else None)

    def _learn(self, draw: random.Random) -> float:
        """A step of learning from decisions that were looked at."""
        if not self._kept:
            return 0.0
        batch = draw.sample(self._kept, min(self.config.what_if.batch_size, len(self._kept)))
        seen = joined([each.seen for each in batch])
        scores = self.network(seen)
        rows, firsts = [], 0
        for each in batch:
            rows.append([firsts + number for number in each.options])
            firsts += len(each.seen["options"])
        wanted = torch.tensor([worth for each in batch for worth in each.worth])
        centred = torch.cat([scores[each] - scores[each].mean() for each in rows])
        loss: Any = nn.functional.huber_loss(centred, wanted.float())
        self._adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self._adam.step()
        with torch.no_grad():
            pairs = zip(self.average.parameters(), self.network.parameters(), strict=True)
            for kept, new in pairs:
                kept.lerp_(new, self.config.what_if.ema_rate)
        return float(loss.detach())

    def state(self) -> dict[str, Any]:
        """What to go on from; what was tried is not kept."""
        return {
            "steps": self.steps,
            "episodes": self.episodes,
            "network": self.network.state_dict(),
            "average": self.average.state_dict(),
            "adam": self._adam.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.steps, self.episodes = int(state["steps"]), int(state["episodes"])
        self.network.load_state_dict(state["network"])
        self.average.load_state_dict(state["average"])
        self._adam.load_state_dict(state["adam"])


def episode_of(config: LabConfig, seed: int) -> Episode:
    """The lab and the jobs of a seed."""
    labs = config.labs
    lab = random_lab(seed, labs.largest, labs.mixed)
    load = random.Random(f"load {seed}").uniform(labs.lowest_load, labs.highest_load)
    return Episode(lab, draw_jobs(lab, seed, labs.jobs, load))


def _jct_s(result: QueueResult) -> float:
    """The sum of all jobs' completion times; no number where one did not end."""
    return float(np.sum(result.jobs["jct_s"]))
