"""The same jobs in a lab's queue and in the simulator: the same ones run at every moment.

The simulator says when jobs come and end. A scheduler over servers in memory is told so, by a clock
of its own, and has to start and preempt the same jobs at each moment.
"""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from patchlight.controller.policies.registry import load_policy
from patchlight.emulation.simulator.cluster import (
    LabCluster,
    Policies,
    QueueJob,
    Settings,
    Simulation,
)
from patchlight.emulation.simulator.cluster.jobs import jobs_of_specs
from patchlight.emulation.simulator.cluster.simulated_job import SimulatedJob, State
from patchlight.emulation.simulator.cluster.sweep import QueueScheduler
from patchlight.testbed.jobs import JobSpec, JobState
from patchlight.testbed.lab.rules import Allowance, Discipline, PolicyChoice
from patchlight.testbed.wire.worker_api import WorkerState
from tests.support.job_cluster import LAB, Cluster, at_work

BEGIN_S = 1e6
JOBS, TRACES = 10, 2
DISCIPLINES: dict[str, tuple[str, dict[str, Any]]] = {
    "fifo": ("fifo", {}),
    "backfill": ("fifo", {"backfill": True}),
    "fair-share": (
        "fair-share",
        {"half_life_s": 900.0, "users": (("ann", Allowance(share=2.0)),), "backfill": True},
    ),
    "priorities": ("fifo", {"preempt": True, "quantum_s": 150.0}),
    "shortest": ("srpt", {"preempt": True, "quantum_s": 150.0, "backfill": True}),
    "least-attained": ("las", {"preempt": True, "quantum_s": 150.0}),
    "quotas": ("fifo", {"each_user": Allowance(gpus=4)}),
}


@dataclass
class Clock:
    """The time of one trace: many are played beside each other."""

    now_s: float = BEGIN_S


_clock: ContextVar[Clock] = ContextVar("clock")


class Trace(NamedTuple):
    """Jobs, each with its arrival and user, and how they wait."""

    arrivals: list[tuple[float, str, JobSpec]]
    order: str
    rules: dict[str, Any]
    placement: str


def drawn(discipline: str, seed: int) -> Trace:
    """Jobs that come faster than six GPUs can run them."""
    draw = random.Random(f"{discipline} {seed}")
    order, rules = DISCIPLINES[discipline]
    arrivals, at_s = [], 0.0
    for number in range(JOBS):
        at_s += draw.expovariate(1 / 90)
        spec = JobSpec(
            f"job{number}",
            iterations=draw.randint(10_000, 60_000),
            gradient_bytes=draw.choice([4_000, 2_000_000, 20_000_000]),
            compute_s={"Tesla M40": 0.01, "Titan V": 0.004},
            workers=draw.choice([1, 1, 2, 2, 3, 4, 6] if discipline != "quotas" else [1, 2, 3, 4]),
            priority=draw.choice([0, 0, 1]) if discipline == "priorities" else 0,
        )
        arrivals.append((at_s, draw.choice(["ann", "ben"]), spec))
    return Trace(arrivals, order, rules, draw.choice(["first-fit", "consolidated"]))


def as_simulated(trace: Trace) -> tuple[Simulation, QueueScheduler]:
    jobs: list[QueueJob] = [
        job for at_s, user, spec in trace.arrivals for job in jobs_of_specs(LAB, [spec], user, at_s)
    ]
    settings = Settings(**trace.rules, restart_s=0.0)
    simulation = Simulation(LabCluster(LAB), jobs, settings)
    order: Any = load_policy(trace.order, "order")
    placement: Any = load_policy(trace.placement, "placement")
    return simulation, QueueScheduler(simulation, Policies(order, placement))


class Beside:
    """A lab that follows a simulation."""

    def __init__(self, trace: Trace, cluster: Cluster, clock: Clock) -> None:
        self._trace, self._cluster, self._clock = trace, cluster, clock
        self._ids: dict[str, str] = {}
        self._reads_before = 0

    async def catch_up(self, simulation: Simulation) -> None:
        """Come to the same moment: iterations are done, jobs end and come."""
        cluster = self._cluster
        await self._work(simulation)
        self._clock.now_s = BEGIN_S + simulation.now_s
        over = {self._ids[job.name] for job in simulation.jobs if job.state is State.DONE}
        for job_id in over & cluster.table.running.keys():
            for name in self._workers(job_id):
                cluster.fleet.put_worker(name, WorkerState.DONE)
        await self._until(lambda: not over & cluster.table.running.keys())
        for job in simulation.jobs:
            if job.state is not State.COMING and job.name not in self._ids:
                _, user, spec = self._trace.arrivals[job.index]
                (status,) = cluster.scheduler.submit([spec], by=user)
                self._ids[job.name] = status.id
        self._reads_before = cluster.ocs.reads
        cluster.ocs.readable.set()

    async def _work(self, simulation: Simulation) -> None:
        """Let workers report the last iteration that they did by now."""
        cluster = self._cluster
        done = {}
        for job in simulation.running.values():
            job_id = self._ids.get(job.name)
            if job_id is None or job_id not in cluster.table.running:
                continue
            done[job_id] = iterations_done(job, simulation.now_s)
            if done[job_id] > cluster.table[job_id].iterations_done:
                for name in self._workers(job_id):
                    cluster.fleet.report(name, done[job_id] - 1)
        await self._until(
            lambda: all(cluster.table[each].iterations_done >= n for each, n in done.items())
        )

    async def decided(self, expected: set[str]) -> None:
        """Wait until these jobs run, and a further look at the queue changes nothing of that.

        What is tried in vain is not tried again for a while: also a moment at which nothing
        changes has its look, however long the queue rests before it.
        """
        cluster = self._cluster
        with contextlib.suppress(AssertionError):
            await self._until(lambda: self._running() == expected)
        assert self._running() == expected
        ocs = cluster.ocs
        await self._until(lambda: ocs.reads > self._reads_before or not self._any_waits())
        ocs.readable.clear()
        cluster.scheduler.resume()
        await self._until(lambda: ocs.is_read or not self._any_waits())
        assert self._running() == expected

    async def _until(self, condition: Callable[[], object]) -> None:
        await self._cluster.until(condition)

    def _workers(self, job_id: str) -> list[str]:
        return [worker.spec.id for worker in self._cluster.table.running[job_id].workers]

    def _any_waits(self) -> bool:
        return any(status.state.is_waiting for status in self._cluster.table.live())

    def _running(self) -> set[str]:
        """The jobs that have hosts, once all of their workers run."""
        table, fleet = self._cluster.table, self._cluster.fleet
        placed = [table[job_id] for job_id in table.running]
        if any(status.state is not JobState.RUNNING for status in placed):
            return set()
        names = [name for status in placed for name in self._workers(status.id)]
        all_run = all(fleet.workers[name].state is WorkerState.RUNNING for name in names)
        return {status.spec.name for status in placed} if all_run else set()


def iterations_done(job: SimulatedJob, now_s: float) -> int:
    left = job.progress(now_s, known=True).remaining_s / job.spec.duration_s
    return int((1 - left) * job.units)


async def follow(trace: Trace) -> int:
    """Play a trace in both; how often a job was preempted. Some have to wait."""
    clock = Clock()
    _clock.set(clock)
    simulation, scheduler = as_simulated(trace)
    choice = PolicyChoice(placement=trace.placement, order=trace.order)
    waited = 0
    async with at_work(choice, discipline=Discipline(**trace.rules)) as cluster:
        cluster.scheduler.longest_rest_s = 0.0
        lab = Beside(trace, cluster, clock)
        while simulation.ended < JOBS:
            assert simulation.advance()
            await lab.catch_up(simulation)
            if simulation.waiting:
                scheduler.decide()
            waited += len(simulation.waiting)
            await lab.decided({job.name for job in simulation.running.values()})
        assert not cluster.faults()
    assert waited > JOBS
    return sum(job.preemptions for job in simulation.jobs)


@pytest.fixture
def own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    really = time.time

    def now_s() -> float:
        clock = _clock.get(None)
        return really() if clock is None else clock.now_s

    monkeypatch.setattr(time, "time", now_s)


@pytest.mark.usefixtures("own_clock")
async def test_a_lab_starts_and_preempts_the_same_jobs_as_the_simulator() -> None:
    traces = [(name, seed) for name in DISCIPLINES for seed in range(TRACES)]
    found = await asyncio.gather(
        *(follow(drawn(*trace)) for trace in traces), return_exceptions=True
    )
    preempted = Counter[str]()
    for (name, seed), times in zip(traces, found, strict=True):
        assert isinstance(times, int), f"{name}, trace {seed}: {times}"
        preempted[name] += times
    assert {name for name in preempted if preempted[name]} == {
        name for name, (_, rules) in DISCIPLINES.items() if "preempt" in rules
    }
