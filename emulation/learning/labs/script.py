"""An episode by a script: answers that are given first, then those of the rule *least-delay*.

What the rule weighs is noted, so that other answers can be tried (``what_if``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np

from patchlight.controller.policies.contract import (
    ClusterView,
    ElasticJob,
    JobView,
    PlacementPolicy,
    Progress,
    QueuedJob,
)
from patchlight.controller.policies.options.learned import (
    LearnedElasticity,
    LearnedPlacement,
    LearnedTopology,
    WeighsOptions,
    WeighsPartitions,
)
from patchlight.controller.policies.options.least_delay import (
    LeastDelayElasticity,
    LeastDelayPartition,
    LeastDelayTopology,
    rule_cost,
)
from patchlight.controller.policies.options.listing import Option
from patchlight.controller.policies.options.observation import NOT_PROPOSERS, Observation, typical_s
from patchlight.controller.policies.options.outlook import Outlook
from patchlight.controller.policies.order import LeastDelay
from patchlight.emulation.learning.labs.policies import Learned


class Next(NamedTuple):
    """The answer that a job is next from a moment on."""

    job: str
    from_s: float


class Decision(NamedTuple):
    """One that the rule made, after so many answers before it; ``ranked`` has its choice first.

    Of options that look the same only one is there. ``latest`` is the last job that had come.
    """

    number: int
    seen: Sequence[Observation]
    answers: Sequence[Any]
    ranked: list[int]
    unit_s: float
    latest: str

    def seen_of(self, tried: Sequence[int]) -> Sequence[Observation]:
        """What is seen of these options alone."""
        if len(self.seen) > 1:
            return [self.seen[number] for number in tried]
        return [of_these(self.seen[0], tried)]


@dataclass
class Script:
    """The answers of an episode: those that are given first, then the rule's.

    With ``policies`` its decisions are noted: what was seen, and which options there were.
    """

    given: Sequence[Any] = ()
    policies: Learned | None = None
    next: Next | None = None
    answers: list[Any] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    latest: str = ""
    turns: dict[str, tuple[Observation, float]] = field(default_factory=dict)

    @property
    def is_given(self) -> bool:
        """Whether the next answer is."""
        return len(self.answers) < len(self.given)

    def is_next(self, job: str, now_s: float) -> bool:
        """Whether this job goes before all others, after what is given."""
        wanted = self.next
        return wanted is not None and (
            job == wanted.job and now_s >= wanted.from_s and not self.is_given
        )

    def answer(self, answer: Any) -> Any:
        """Note an answer, and give it."""
        self.answers.append(answer)
        return answer

    def decide(
        self,
        policy: LearnedPlacement | LearnedTopology | LearnedElasticity | WeighsPartitions | None,
        plain: Callable[..., Any],
        job: JobView | None,
        cluster: ClusterView,
        *asked: Any,
    ) -> Any:
        """What is given, else the rule's answer: weighed where there is a policy, or plain."""
        if self.is_given:
            return self.answer(self.given[len(self.answers)])
        if policy is None:
            return self.answer(plain(cluster, *asked))
        outlook = policy.outlook(cluster)
        return self.weigh(policy, outlook, job, policy.options(outlook, *asked))

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
                answers = [option.answer for option in options]
                self._note([seen], answers, ranked, unit_s)
        return self.answer(options[by_cost[0]].answer)

    def weigh_turns(self, cluster: ClusterView, first: str) -> None:
        """Note that another of those that wait could be next instead of the ``first``."""
        names = [each.name for each in cluster.queue if each.name in self.turns]
        if len(names) < 2 or first not in names:
            return
        names.sort(key=lambda name: (name != first, self.turns[name][1]))
        seen = [self.turns[name][0] for name in names]
        answers = [Next(name, cluster.now_s) for name in names]
        # Whom a job delays by going first are all that wait: worth counts for each of them.
        unit_s = typical_s(cluster, ()) * len(names)
        self._note(seen, answers, list(range(len(names))), unit_s)

    def _note(
        self, seen: Sequence[Observation], answers: Sequence[Any], ranked: list[int], unit_s: float
    ) -> None:
        number = len(self.answers)
        self.decisions.append(Decision(number, seen, answers, ranked, unit_s, self.latest))


class ScriptedPlacement:
    """Where jobs go. Where they are ``elastic``, jobs that run are asked about, too."""

    def __init__(self, script: Script, plain: PlacementPolicy, elastic: bool = False) -> None:
        self._script, self._plain, self._elastic = script, plain, elastic

    def place(self, cluster: ClusterView, job: JobView, workers: int) -> Sequence[int] | None:
        """As the contract says."""
        script, policies = self._script, self._script.policies
        if cluster.free_for(job).bit_count() < workers:
            return None
        if self._elastic and all(each.name != job.name for each in cluster.queue):
            return self._plain.place(cluster, job, workers)  # What if it went on there: no answer.
        script.latest = cluster.recent[-1].name
        if policies is not None and policies.order is not None:
            script.weigh_turns(cluster, job.name)
        policy = policies and cast(LearnedPlacement, policies.placement)
        answer = script.decide(policy, self._plain.place, job, cluster, job, workers)
        return cast(Sequence[int], answer)


class ScriptedTopology:
    """Which circuits they get."""

    def __init__(self, script: Script) -> None:
        self._script, self._plain = script, LeastDelayTopology()

    def circuits(self, cluster: ClusterView, groups: Sequence[Sequence[int]]) -> Mapping[str, Any]:
        """As the contract says."""
        policy = self._script.policies and self._script.policies.topology
        answer = self._script.decide(policy, self._plain.circuits, None, cluster, groups)
        return cast(Mapping[str, Any], answer)


class ScriptedElasticity:
    """Which running jobs get other numbers of workers."""

    stable = True

    def __init__(self, script: Script) -> None:
        self._script, self._plain = script, LeastDelayElasticity()

    def resize(
        self, cluster: ClusterView, jobs: Sequence[ElasticJob], queue: Sequence[QueuedJob]
    ) -> Mapping[str, int]:
        """As the contract says."""
        self._script.latest = cluster.recent[-1].name
        policy = self._script.policies and self._script.policies.elasticity
        answer = self._script.decide(policy, self._plain.resize, None, cluster, jobs, queue)
        return cast(Mapping[str, int], answer)


class ScriptedPartition:
    """How many workers jobs get."""

    def __init__(self, script: Script) -> None:
        self._script, self._plain = script, LeastDelayPartition()

    def degree(self, cluster: ClusterView, job: JobView, legal: tuple[int, ...]) -> int | None:
        """As the contract says."""
        self._script.latest = cluster.recent[-1].name
        policy = self._script.policies and self._script.policies.partition
        answer = self._script.decide(policy, self._plain.degree, job, cluster, job, legal)
        return cast(int | None, answer)


class ScriptedOrder:
    """Who is next: by the rule, asked again in each pass, so that a script can say otherwise."""

    def __init__(self, script: Script) -> None:
        self._script, self._plain = script, LeastDelay()

    def priority(self, cluster: ClusterView, job: JobView, progress: Progress) -> float:
        """As the contract says."""
        script = self._script
        rank = self._plain.priority(cluster, job, progress)
        policy = script.policies and script.policies.order
        if policy is not None and job.name not in script.turns:
            outlook = policy.outlook(cluster)
            option = policy.turn(outlook, job, progress)
            script.turns[job.name] = policy.observe(outlook, job, [option]), rank
        return -1.0 if script.is_next(job.name, cluster.now_s) else rank


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
