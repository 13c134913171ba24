"""Rollout policy: simulates each possible degree on sampled futures and takes the best.

Roll-out improves on a plain rule by one step of policy iteration (Bertsekas, Tsitsiklis and Wu,
1997). For each degree that would be accepted now, and for refusing, the cluster as it is
goes on with jobs drawn from the scenario's own laws, under each of some plain rules; the degree
after which the best of the rules accepts the most is chosen. It knows the laws, never
the jobs to come: an ``Episode``'s own future stays unseen, and so does the episode's end.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from zlib import crc32

import numpy as np

from patchlight.controller.policies.contract import ClusterView, JobView
from patchlight.emulation.simulator.ramp.lossnetwork import (
    EPSILON_S,
    run_episode,
)
from patchlight.emulation.simulator.ramp.ramp import place
from patchlight.emulation.simulator.ramp.scenario import Scenario
from patchlight.testbed.errors import BadInput

# Occupancies recur; a cluster has too many of them to keep all.
_MOST_KEPT = 200_000
_DRAWN_AT_ONCE = 64
# So that no episode is drawn from the seeds that futures are drawn from.
_TAG = 0x524F4C4C

_Running = Sequence[tuple[float, int]]
Option = tuple[float, tuple[int, ...]]
"""A degree that a job can be run at: how long it takes, and the blocks it needs."""
Future = list[tuple[float, tuple[Option, ...]]]
"""Jobs to come: when (seconds from now), and their options in the order in which to try them."""


@dataclass(
    frozen=True,
    slots=True,
)
class Rule:
    """A plain rule for a drawn future: a job's degrees in the order in which to try them.

    Of ``degrees`` those that meet the job's requirement; with ``spare`` a degree that finds no
    block gives way to the next, else only the first is tried.
    """

    degrees: tuple[int, ...]
    spare: bool = False


@dataclass(
    frozen=True,
    slots=True,
)
class LookAhead:
    """How far and how often to look.

    ``futures`` are drawn for each decision, of ``arrivals`` jobs each. What still runs at a
    future's end costs ``unfinished`` times its part of a mean job: the room it takes from
    those after. ``rules`` are played, by default ``constant_rules``.
    """

    futures: int = 16
    arrivals: int = 40
    unfinished: float = 0.5
    rules: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        if self.futures < 1 or self.arrivals < 1:
            raise BadInput(
                f"cannot look ahead with {self.futures} futures of {self.arrivals} "
                "arrivals: expected at least 1 of each"
            )
        if not (math.isfinite(self.unfinished) and self.unfinished >= 0):
            raise BadInput(
                f"unfinished is {self.unfinished}: expected 0 or more"
            )


def constant_rules(degrees: Sequence[int]) -> tuple[Rule, ...]:
    """One rule for each degree that is a power of two, 1 left out where there is another."""
    powers = [d for d in degrees if d & (d - 1) == 0]
    return tuple(Rule((d,)) for d in powers if d > 1 or len(powers) == 1)


def candidates(
    scenario: Scenario,
    futures: int = 16,
    arrivals: int = 40,
) -> tuple[LookAhead, ...]:
    """Ways to look ahead of which one or another is best, by law and placement rule.

    Rules that stick to one degree keep the cluster in order; ones that give way fill it.
    """
    degrees = scenario.workloads.degrees
    plain = constant_rules(degrees)
    middle = next((d for d in degrees if 2 * d >= degrees[-1]), degrees[-1])
    near = sorted(degrees, key=lambda d: (abs(math.log(d / middle)), d))
    giving_way = (Rule(tuple(near), spare=True), Rule((middle, degrees[-1])))
    return (
        LookAhead(
            futures,
            arrivals,
            0.5,
            plain,
        ),
        LookAhead(
            futures,
            arrivals,
            0.7,
            (*plain, *giving_way),
        ),
    )


def tuned(
    scenario: Scenario,
    choices: Sequence[LookAhead],
    seed: int = 0,
    jobs: int = 400,
) -> LookAhead:
    """The choice that blocks least (``corrected``) in one drawn episode of about ``jobs`` jobs.

    Only this function's own seeds are used: never an evaluation's, if that counts from 0.
    """
    span_s = scenario.horizon_s / max(1, len(scenario.jobs(seed)))
    trial = replace(scenario, horizon_s=jobs * span_s)
    drawn = int(np.random.SeedSequence([seed, _TAG, 1]).generate_state(1)[0])
    rates = [
        run_episode(trial, RollOut(trial, drawn, look), drawn).blocking_rate(
            "corrected"
        )
        for look in choices
    ]
    return choices[rates.index(min(rates))]


class RollOut:
    """Plays each degree out in drawn futures, and takes the one after which most jobs are accepted.

    A ``PartitionPolicy`` for one scenario, whose laws it knows. The seed fixes the futures, so
    all that it does.
    """

    def __init__(
        self,
        scenario: Scenario,
        seed: int = 0,
        look: LookAhead | None = None,
    ) -> None:
        self.look = look or LookAhead()
        self._rule = scenario.rule
        self._workloads = scenario.workloads
        self._ramp = scenario.workloads.ramp
        self.rules = self.look.rules or constant_rules(self._workloads.degrees)
        self._mean_s = float(np.mean(self._workloads.sequential_s))
        self._masks: dict[tuple[tuple[int, ...], int], int] = {}
        self._futures = self._draw(scenario, seed)

    def degree(
        self,
        cluster: ClusterView,
        job: JobView,
        legal: tuple[int, ...],
    ) -> int:
        """The degree after which most jobs were accepted; the first found of equals.

        0 is the first, then the largest degree, and so on down. ``BadInput`` for a job of
        another model than the scenario's.
        """
        if len(self._masks) > _MOST_KEPT:
            self._masks.clear()
        now_s = cluster.now_s
        occupied = cluster.occupied
        graph = self._workloads.number_of(job.graph)
        possible: list[tuple[int, Option, int]] = []
        for degree in reversed(legal):
            option = self._option(graph, job.limit_s, degree)
            mask = option and self.servers(option[1], occupied)
            if option and mask:
                possible.append((degree, option, mask))
        if not possible:
            return 0
        start = _number(job) * self.look.futures
        count = len(self._futures)
        futures = [
            self._futures[(start + k) % count]
            for k in range(self.look.futures)
        ]
        now_running = [(each.ends_s, each.gpus) for each in cluster.running]
        best = self._value(
            now_running,
            occupied,
            futures,
            now_s,
        )
        chosen = 0
        for degree, (lasting_s, _), mask in possible:
            running = [*now_running, (now_s + lasting_s, mask)]
            heapify(running)
            value = 1.0 + self._value(
                running,
                occupied | mask,
                futures,
                now_s,
            )
            # Sums of the same numbers in another order may differ in the last digit.
            if value > best + 1e-9:
                best = value
                chosen = degree
        return chosen

    def servers(self, splits: tuple[int, ...], occupied: int) -> int:
        """The servers that the placement rule would take, a bit for each; 0 if there are none."""
        key = (splits, occupied)
        if (known := self._masks.get(key)) is None:
            known = 0
            for block in (
                place(
                    self._ramp,
                    self._rule,
                    splits,
                    occupied,
                )
                or ()
            ):
                known |= block.mask
            self._masks[key] = known
        return known

    def options(
        self,
        graph: int,
        limit_s: float,
        rule: Rule,
    ) -> tuple[Option, ...]:
        """The degrees that a rule tries for a job of this model with this limit."""
        found = (
            self._option(graph, limit_s, degree) for degree in rule.degrees
        )
        options = tuple(option for option in found if option)
        return options if rule.spare else options[:1]

    def accepted(
        self,
        running: _Running,
        occupied: int,
        future: Future,
        now_s: float,
    ) -> tuple[int, float]:
        """Plays one future: jobs accepted, and the server-seconds still to run at its end.

        ``running`` is a heap of (end, servers).
        """
        heap = list(running)
        masks = self._masks
        count = 0
        at = now_s
        for wait_s, options in future:
            at = now_s + wait_s
            limit = at + EPSILON_S
            while heap and heap[0][0] <= limit:
                occupied ^= heappop(heap)[1]
            for lasting_s, splits in options:
                mask = masks.get((splits, occupied))
                if mask is None:
                    mask = self.servers(splits, occupied)
                if mask:
                    occupied |= mask
                    heappush(heap, (at + lasting_s, mask))
                    count += 1
                    break
        return count, sum((end - at) * mask.bit_count() for end, mask in heap)

    def _value(
        self,
        running: _Running,
        occupied: int,
        futures: list[tuple[Future, ...]],
        now_s: float,
    ) -> float:
        best = -math.inf
        for place_of_rule in range(len(self.rules)):
            total = 0.0
            for future in futures:
                count, left = self.accepted(
                    running,
                    occupied,
                    future[place_of_rule],
                    now_s,
                )
                total += count - self.look.unfinished * left / self._mean_s
            best = max(best, total / len(futures))
        return best

    def _option(
        self,
        graph: int,
        limit_s: float,
        degree: int,
    ) -> Option | None:
        plan = self._workloads.plans[graph].get(degree)
        if plan is None or not plan.fits_memory:
            return None
        lasting_s = self._workloads.expected_s(graph, degree, self._rule)
        return (lasting_s, plan.splits) if lasting_s <= limit_s else None

    def _draw(self, scenario: Scenario, seed: int) -> list[tuple[Future, ...]]:
        """Futures to choose from, each under every rule."""
        count = max(_DRAWN_AT_ONCE, self.look.futures)
        # Not the bare seed: an episode with that seed has the jobs that it would draw.
        seeds = (
            np.random.SeedSequence([seed, _TAG]).generate_state(count).tolist()
        )
        return [
            tuple(
                [
                    (job_s, self.options(graph, limit_s, rule))
                    for job_s, graph, limit_s in jobs
                ]
                for rule in self.rules
            )
            for jobs in (self._jobs(scenario, each) for each in seeds)
        ]

    def _jobs(
        self, scenario: Scenario, seed: int
    ) -> list[tuple[float, int, float]]:
        """(seconds from now, model, limit) of the jobs after one that comes now."""
        wanted = self.look.arrivals
        horizon_s = scenario.horizon_s / 16
        while True:
            jobs = replace(
                scenario,
                horizon_s=horizon_s,
                replication=None,
            ).jobs(seed)
            later = [
                (j.arrived_s, j.graph, j.limit_s)
                for j in jobs
                if j.arrived_s > EPSILON_S
            ]
            if len(later) >= wanted:
                return later[:wanted]
            horizon_s *= 2


def _number(job: JobView) -> int:
    """So that jobs look into different futures, and a job always into the same."""
    return int(job.name) if job.name.isdecimal() else crc32(job.name.encode())
