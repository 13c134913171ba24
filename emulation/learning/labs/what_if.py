"""Trying out what would have been: other answers to a decision, each played to the end.

An episode is played once, by the rule *least-delay*. At some of its decisions other options are
taken instead, and what comes then is played by that rule, too: the same jobs come, so what
differs is due to the answer alone. The sums of completion times say which options were good and by
how much (policy improvement by roll-outs: Tesauro and Galperin, NIPS 1996). Nothing of it is
sampled but the labs and jobs, and which decisions are looked at. ``fitting`` learns from it.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from patchlight.controller.policies.contract import ClusterView, JobView, PlacementPolicy
from patchlight.controller.policies.options.learned import (
    LearnedPlacement,
    LearnedTopology,
    OptionsCard,
    WeighsOptions,
)
from patchlight.controller.policies.options.least_delay import (
    LeastDelayPlacement,
    LeastDelayTopology,
    rule_cost,
)
from patchlight.controller.policies.options.listing import Option
from patchlight.controller.policies.options.observation import (
    NOT_PROPOSERS,
    SCHEMA,
    VERSION,
    Observation,
    typical_s,
)
from patchlight.controller.policies.options.outlook import Outlook
from patchlight.emulation.learning.labs.config import LabConfig
from patchlight.emulation.learning.labs.network import INPUTS, OptionNetwork, joined
from patchlight.emulation.simulator.cluster import QueueResult
from patchlight.emulation.simulator.executors import Engine, run_all
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
    """A decision that was looked at, in the lab of a seed.

    ``seen`` has the options that were tried alone, the rule's own first. ``worth`` says of each by
    how much jobs end sooner than in the mean of them, in times that jobs last.
    """

    seed: int
    seen: Observation
    worth: list[float]


class _Decision(NamedTuple):
    """One that the rule made, after so many answers before it; ``ranked`` has its choice first.

    Of options that look the same only one is there.
    """

    number: int
    seen: Observation
    options: list[Option]
    ranked: list[int]
    unit_s: float
    job: str


@dataclass
class _Script:
    """The answers of an episode: those that are given first, then the rule's.

    With ``policies`` its decisions are noted: what was seen, and which options there were.
    """

    given: Sequence[Any] = ()
    policies: tuple[LearnedPlacement, LearnedTopology | None] | None = None
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
        """The answer of the lowest cost; noted as a decision where there are several."""
        if not options:
            return self.answer(None)
        by_cost = sorted(range(len(options)), key=lambda number: rule_cost(options[number]))
        if len(options) > 1:
            seen = policy.observe(outlook, job, options)
            looks = np.round(seen["options"][by_cost, :NOT_PROPOSERS], 4)
            _, firsts = np.unique(looks, axis=0, return_index=True)
            ranked = [by_cost[place] for place in sorted(firsts.tolist())]
            if len(ranked) > 1:
                unit_s = typical_s(outlook.cluster, options)
                number = len(self.answers)
                self.decisions.append(_Decision(number, seen, options, ranked, unit_s, self.job))
        return self.answer(options[by_cost[0]].answer)


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
        if script.policies is None:
            return cast(Sequence[int], script.answer(self._plain.place(cluster, job, workers)))
        policy = script.policies[0]
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
        if script.policies is None or script.policies[1] is None:
            return cast(Mapping[str, Any], script.answer(self._plain.circuits(cluster, groups)))
        policy = script.policies[1]
        outlook = policy.outlook(cluster)
        options = policy.options(outlook, groups)
        return cast(Mapping[str, Any], script.weigh(policy, outlook, None, options))


class Looking:
    """Looks at decisions in the lab of a seed: which depends on nothing else but ``config``."""

    def __init__(self, config: LabConfig) -> None:
        self.config = config

    @cached_property
    def _policies(self) -> tuple[LearnedPlacement, LearnedTopology | None]:
        """They list options and show what is seen of them; the rule decides, not their scores."""
        return policies_of(OptionNetwork(self.config.network), self.config.learns)

    def __call__(self, seed: int) -> list[Tried]:
        """Play an episode, and some of its decisions otherwise."""
        draw = random.Random(f"what if {self.config.seed} {seed}")
        what_if, episode = self.config.what_if, episode_of(self.config, seed)
        played = _Script(policies=self._policies)
        self._play(episode, played)
        names = [job.view.name for job in episode.jobs]
        found = []
        many = min(what_if.decisions, len(played.decisions))
        for decision in draw.sample(played.decisions, many):
            before = played.answers[: decision.number]
            # The best by the rule, and one of the others, so that those too are known.
            best, others = decision.ranked[: what_if.options], decision.ranked[what_if.options :]
            tried = [*best, *draw.sample(others, min(1, len(others)))]
            last = names.index(decision.job) + 1 + what_if.horizon
            then, sums_s = Episode(episode.lab, episode.jobs[:last]), []
            for number in tried:
                answer = decision.options[number].answer
                sums_s.append(_jct_s(self._play(then, _Script([*before, answer]))))
            if not all(np.isfinite(sums_s)):
                continue
            mean_s = sum(sums_s) / len(sums_s)
            worth = [
                max(-_MOST, min(_MOST, (mean_s - each_s) / decision.unit_s)) for each_s in sums_s
            ]
            found.append(Tried(seed, of_these(decision.seen, tried), worth))
        return found

    def _play(self, episode: Episode, script: _Script) -> QueueResult:
        with_topology = "topology" in self.config.learns
        plain = LeastDelayPlacement(circuits=with_topology)
        return episode.play(_Placement(script, plain), _Topology(script) if with_topology else None)


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
            {
                "seed": each.seed,
                "seen": {name: torch.tensor(array) for name, array in each.seen.items()},
                "worth": each.worth,
            }
            for each in self.tried
        ]
        return {"steps": self.steps, "episodes": self.episodes, "tried": tried}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.steps, self.episodes = int(state["steps"]), int(state["episodes"])
        self.tried = [
            Tried(
                int(each["seed"]),
                {name: array.numpy() for name, array in each["seen"].items()},
                list(each["worth"]),
            )
            for each in state["tried"]
        ]


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


def episode_of(config: LabConfig, seed: int) -> Episode:
    """The lab and the jobs of a seed."""
    labs = config.labs
    lab = random_lab(seed, labs.largest, labs.mixed)
    load = random.Random(f"load {seed}").uniform(labs.lowest_load, labs.highest_load)
    return Episode(lab, draw_jobs(lab, seed, labs.jobs, load))


def _jct_s(result: QueueResult) -> float:
    """The sum of all jobs' completion times; no number where one did not end."""
    return float(np.sum(result.jobs["jct_s"]))
