"""Simulates a cluster that accepts or blocks each job on arrival: no queue, no retry.

An ``Episode`` stops at each arrival until ``decide`` sets the job's partition degree. ``fork``
copies it there, to look ahead.
"""

from __future__ import annotations

import copy
from array import array
from bisect import insort
from enum import IntEnum
from functools import partial
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from patchlight.controller.policies.contract import (
    ClusterView,
    JobView,
    PartitionPolicy,
    PlacedDegree,
    Running,
    no_choice,
)
from patchlight.emulation.simulator.outages import Outage
from patchlight.emulation.simulator.ramp.ramp import (
    Block,
    PlacementRule,
    place,
    sub_blocks,
)
from patchlight.emulation.simulator.ramp.scenario import (
    Accepted,
    EpisodeResult,
    Job,
    Scenario,
)
from patchlight.emulation.simulator.ramp.workloads import Workloads
from patchlight.testbed.errors import BadInput

EPSILON_S = 1e-7
RECENT = 64
# A job that ends at its limit but for rounding is in time.
_ROUNDING = 1 + 1e-12


class JobOutcome(IntEnum):
    """The result for a job: accepted, or blocked and why."""

    ACCEPTED = 0
    REFUSED = 1
    """The policy chose 0."""
    ILLEGAL = 2
    """The policy chose a degree that the mask forbids."""
    NO_BLOCK = 3
    """No free servers in the shapes that the degree needs."""
    NO_MEMORY = 4
    """At this degree the job may not fit into a server's memory."""
    LATE = 5
    """It would have taken longer than its requirement allows."""


class Question(NamedTuple):
    """The arguments of a partition policy for an arriving job: ``policy.degree(*question)``.

    ``legal`` are the degrees that the mask allows, 0 first: those that some shape serves and
    that are at most the number of free servers. A legal degree can still find no free block:
    ``cluster.preview`` says so.
    """

    cluster: ClusterView
    job: JobView
    legal: tuple[int, ...]


class Episode:
    """One run of a scenario. Deterministic: the seed and the decisions fix everything."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario = scenario
        self.seed = seed
        self._jobs = scenario.jobs(seed)
        self._next = 0
        self.now_s = (
            self._jobs[0].arrived_s if self._jobs else scenario.horizon_s
        )
        self.busy = self.broken = 0
        self._events = scenario.server_events(seed)
        self._next_event = 0
        # Ascending: the next end is the first.
        self._running: list[Running] = []
        self._shape = scenario.workloads.cluster
        self._views = scenario.views(self._jobs)
        self._told = scenario.told_over_true(seed, len(self._jobs))
        self._completion: dict[tuple[int, int], float] = {}
        self.accepted: list[Accepted] = []
        self.causes = [0] * len(JobOutcome)
        degrees = scenario.workloads.degrees
        size = scenario.workloads.ramp.shape.size
        self._legal = [
            (0, *(d for d in degrees if d <= free)) for free in range(size + 1)
        ]
        if self._events:
            self._until(self.now_s)

    @property
    def job(self) -> Job | None:
        """The job that waits for a decision; ``None`` when the episode is over."""
        if self._next < len(self._jobs):
            job = self._jobs[self._next]
            if job.arrived_s < self.scenario.horizon_s:
                return job
        return None

    def question(self) -> Question:
        """The arguments of a policy for the waiting job; ``BadInput`` when the episode is over."""
        self._waiting()
        number = self._next
        occupied = self.busy | self.broken
        workloads = self.scenario.workloads
        rule = self.scenario.rule
        chooses = rule == PlacementRule.RAMP_BLOCK
        cluster = ClusterView(
            self.now_s,
            self._shape,
            occupied,
            self.broken,
            tuple(self._running)
            if self._told is None
            else self._running_as_told(self._told),
            self._views[number - RECENT if number > RECENT else 0 : number],
            # Not the scenario itself: it draws the jobs to come.
            partial(
                _preview,
                workloads,
                rule,
                occupied,
            ),
            places=partial(_places, workloads, occupied)
            if chooses
            else no_choice,
            if_occupied=partial(_preview, workloads, rule),
        )
        free = len(self._legal) - 1 - occupied.bit_count()
        return Question(cluster, self._views[number], self._legal[free])

    def _running_as_told(
        self, told: NDArray[np.float64]
    ) -> tuple[Running, ...]:
        now = self.now_s
        found = [
            each._replace(
                ends_s=now + (each.ends_s - now) * float(told[int(each.name)])
            )
            for each in self._running
        ]
        return tuple(sorted(found))

    def decide(self, degree: int, block: Block | None = None) -> JobOutcome:
        """Place the waiting job at this degree, or block it, and go on to the next arrival.

        With ``ramp-block``, ``block`` or a ``PlacedDegree`` can choose a block other than the first
        free one: ``BadInput`` with another rule, ``NO_BLOCK`` if it is not free or of another size.
        """
        if block is None and isinstance(degree, PlacedDegree):
            block = self.scenario.workloads.ramp.block(degree.gpus)
        outcome = self._place(self._waiting(), degree, block)
        self.causes[outcome] += 1
        self._next += 1
        jobs = self._jobs
        horizon_s = self.scenario.horizon_s
        self._until(
            jobs[self._next].arrived_s if self._next < len(jobs) else horizon_s
        )
        return outcome

    def _waiting(self) -> Job:
        job = self.job
        if job is None:
            raise BadInput("the episode is over: no job waits for a decision")
        return job

    def _place(
        self,
        job: Job,
        degree: int,
        block: Block | None,
    ) -> JobOutcome:
        if degree == 0:
            return JobOutcome.REFUSED
        occupied = self.busy | self.broken
        if (
            degree
            not in self._legal[len(self._legal) - 1 - occupied.bit_count()]
        ):
            return JobOutcome.ILLEGAL
        scenario = self.scenario
        workloads = scenario.workloads
        plan = workloads.plans[job.graph][degree]
        if not plan.fits_memory:
            return JobOutcome.NO_MEMORY
        if block is None:
            blocks = place(
                workloads.ramp,
                scenario.rule,
                plan.splits,
                occupied,
            )
        elif scenario.rule != PlacementRule.RAMP_BLOCK:
            raise BadInput(
                f"{scenario.rule} has no block to choose: expected rule ramp-block"
            )
        elif block.mask & occupied or len(block.servers) != plan.max_split:
            blocks = None
        else:
            blocks = sub_blocks(workloads.ramp, block, plan.splits)
        if blocks is None:
            return JobOutcome.NO_BLOCK
        key = (job.graph, plan.max_split)
        completion = (
            self._completion.get(key) if scenario.reuse_first_time else None
        )
        if completion is None:
            completion = workloads.completion_s(job.graph, degree, blocks)
            self._completion[key] = completion
        if completion > job.limit_s * _ROUNDING:
            return JobOutcome.LATE
        mask = 0
        for each in blocks:
            mask |= each.mask
        self.busy |= mask
        insort(
            self._running,
            Running(
                self.now_s + completion, mask, self._views[self._next].name
            ),
        )
        self.accepted.append(
            Accepted(
                job,
                degree,
                completion,
                mask,
            )
        )
        return JobOutcome.ACCEPTED

    def _until(self, now: float) -> None:
        """Go on to this time; jobs that end free their servers."""
        self.now_s = now
        limit = now + EPSILON_S
        events = self._events
        while (
            self._next_event < len(events)
            and events[self._next_event].at_s <= limit
        ):
            event = events[self._next_event]
            self._next_event += 1
            self._end_jobs(event.at_s)
            self.broken ^= event.gpus
            if event.broken and self.busy & event.gpus:
                self._lose_job(event)
        self._end_jobs(limit)

    def _end_jobs(self, limit_s: float) -> None:
        running = self._running
        ended = 0
        for each in running:
            if each[0] > limit_s:
                break
            self.busy ^= each[1]
            ended += 1
        if ended:
            del running[:ended]

    def _lose_job(self, event: Outage) -> None:
        """End the job on the server that just broke; its other servers are free."""
        lost = next(entry for entry in self._running if entry[1] & event.gpus)
        self._running.remove(lost)
        self.busy ^= lost[1]
        # Its record is the last one with these servers.
        place = max(
            i for i, a in enumerate(self.accepted) if a.servers == lost[1]
        )
        self.accepted[place] = self.accepted[place]._replace(lost_s=event.at_s)

    def fork(self) -> Episode:
        """An independent copy of the present state."""
        twin = copy.copy(self)
        twin._running = self._running.copy()
        twin._completion = self._completion.copy()
        twin.accepted = self.accepted.copy()
        twin.causes = self.causes.copy()
        return twin

    def result(self) -> EpisodeResult:
        """The result; ``BadInput`` while a job still waits."""
        if self.job is not None:
            raise BadInput(
                "the episode is not over: a job waits for a decision"
            )
        causes = {
            each.name.lower(): self.causes[each] for each in JobOutcome if each
        }
        workloads = self.scenario.workloads
        horizon_s = self.scenario.horizon_s + EPSILON_S
        return EpisodeResult.of(
            len(self._jobs),
            causes,
            tuple(self.accepted),
            workloads,
            horizon_s,
        )


def _preview(
    workloads: Workloads,
    rule: PlacementRule,
    occupied: int,
    job: JobView,
    degree: int,
) -> int | None:
    """As ``contract.Preview``; ``None`` also where a server's memory may not hold the job."""
    plan = workloads.plans[workloads.number_of(job.graph)].get(degree)
    if plan is None or not plan.fits_memory:
        return None
    blocks = place(
        workloads.ramp,
        rule,
        plan.splits,
        occupied,
    )
    if blocks is None:
        return None
    servers = 0
    for block in blocks:
        servers |= block.mask
    return servers


def _places(
    workloads: Workloads,
    occupied: int,
    job: JobView,
    degree: int,
) -> list[int]:
    """As ``contract.Places``, of rule ``ramp-block``."""
    plan = workloads.plans[workloads.number_of(job.graph)].get(degree)
    if plan is None or not plan.fits_memory:
        return []
    return [
        block.mask
        for block in workloads.ramp.free_blocks(plan.max_split, occupied)
    ]


def run_episode(
    scenario: Scenario,
    policy: PartitionPolicy,
    seed: int,
    latencies_s: array[float] | None = None,
) -> EpisodeResult:
    """One whole episode under a policy; the time of each decision is added to ``latencies_s``."""
    episode = Episode(scenario, seed)
    degree = policy.degree
    while episode.job is not None:
        question = episode.question()
        if latencies_s is None:
            episode.decide(degree(*question) or 0)  # Nobody waits there.
            continue
        began = perf_counter()
        answer = degree(*question)
        latencies_s.append(perf_counter() - began)
        episode.decide(answer or 0)
    return episode.result()
