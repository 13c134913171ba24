"""The same jobs in a lab's queue and in the simulator: the same ones run at every moment.

The simulator says when jobs come and end. A lab in a simulated world is told so, by a clock that
stands still while the lab decides, and has to start and preempt the same jobs at each moment.
"""

import asyncio
import contextlib
import random
from collections import Counter
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
from patchlight.emulation.simulator.cluster.simulated_job import (
    SimulatedJob,
    State,
)
from patchlight.emulation.simulator.cluster.sweep import QueueScheduler
from patchlight.testbed.jobs import JobSpec, JobState
from patchlight.testbed.lab.rules import Allowance, Discipline, PolicyChoice
from tests.simulation.world import EPOCH_S, World
from tests.support.job_cluster import LAB, Cluster, play

JOBS = 8
SEED = 27
"""With this one, the simulator starts other jobs without a discipline's order, users' shares or
backfilling, and each discipline that may preempt does."""
LOOK_S = 1.0
"""In this time the queue is looked at again, once it is told to."""
DISCIPLINES: dict[str, tuple[str, dict[str, Any]]] = {
    "fifo": ("fifo", {}),
    "backfill": ("fifo", {"backfill": True}),
    "fair-share": (
        "fair-share",
        {
            "half_life_s": 900.0,
            "users": (("ann", Allowance(share=2.0)),),
            "backfill": True,
        },
    ),
    "priorities": ("fifo", {"preempt": True, "quantum_s": 150.0}),
    "shortest": (
        "srpt",
        {"preempt": True, "quantum_s": 150.0, "backfill": True},
    ),
    "least-attained": ("las", {"preempt": True, "quantum_s": 150.0}),
    "quotas": ("fifo", {"each_user": Allowance(gpus=4)}),
}


@dataclass
class Clock:
    """The wall clock of a lab that follows a simulation."""

    now_s: float = EPOCH_S


class Trace(NamedTuple):
    """Jobs, each with its arrival and user, and how they wait."""

    arrivals: list[tuple[float, str, JobSpec]]
    order: str
    rules: dict[str, Any]
    placement: str


def drawn(discipline: str) -> Trace:
    """Jobs that come faster than six GPUs can run them."""
    draw = random.Random(f"{discipline} {SEED}")
    order, rules = DISCIPLINES[discipline]
    arrivals = []
    at_s = 0.0
    for number in range(JOBS):
        at_s += draw.expovariate(1 / 90)
        spec = JobSpec(
            f"job{number}",
            iterations=draw.randint(10_000, 60_000),
            gradient_bytes=draw.choice([4_000, 2_000_000, 20_000_000]),
            compute_s={"Tesla M40": 0.01, "Titan V": 0.004},
            workers=draw.choice(
                [1, 1, 2, 2, 3, 4, 6]
                if discipline != "quotas"
                else [1, 2, 3, 4]
            ),
            priority=draw.choice([0, 0, 1])
            if discipline == "priorities"
            else 0,
        )
        arrivals.append((at_s, draw.choice(["ann", "ben"]), spec))
    return Trace(
        arrivals, order, rules, draw.choice(["first-fit", "consolidated"])
    )


def as_simulated(trace: Trace) -> tuple[Simulation, QueueScheduler]:
    jobs: list[QueueJob] = [
        job
        for at_s, user, spec in trace.arrivals
        for job in jobs_of_specs(LAB, [spec], user, at_s)
    ]
    settings = Settings(**trace.rules, restart_s=0.0)
    simulation = Simulation(LabCluster(LAB), jobs, settings)
    order: Any = load_policy(trace.order, "order")
    placement: Any = load_policy(trace.placement, "placement")
    return simulation, QueueScheduler(simulation, Policies(order, placement))


class Beside:
    """A lab that follows a simulation."""

    def __init__(self, trace: Trace, cluster: Cluster, clock: Clock) -> None:
        self._trace = trace
        self._cluster = cluster
        self._clock = clock
        self._ids: dict[str, str] = {}

    async def catch_up(self, simulation: Simulation) -> None:
        """Come to the same moment: iterations are done, jobs end and come."""
        cluster = self._cluster
        await self._work(simulation)
        await cluster.scheduler.hold_queue(
            "not all of this moment has happened yet"
        )
        self._clock.now_s = EPOCH_S + simulation.now_s
        over = {
            self._ids[job.name]
            for job in simulation.jobs
            if job.state is State.DONE
        }
        for job_id in over & cluster.table.running.keys():
            cluster.end(job_id)
        await cluster.until(lambda: not over & cluster.table.running.keys())
        for job in simulation.jobs:
            if job.state is not State.COMING and job.name not in self._ids:
                _, user, spec = self._trace.arrivals[job.index]
                (status,) = cluster.scheduler.submit([spec], by=user)
                self._ids[job.name] = status.id
        cluster.scheduler.resume()

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
                for worker in cluster.workers_of(job_id):
                    # One report tells of all.
                    worker.done_iterations = done[job_id] - 1
                    worker.skip_to(done[job_id])
        await cluster.until(
            lambda: all(
                cluster.table[each].iterations_done >= n
                for each, n in done.items()
            )
        )

    async def decided(self, expected: set[str]) -> None:
        """Wait until these jobs run, and a further look at the queue changes nothing of that."""
        cluster = self._cluster
        with contextlib.suppress(AssertionError):
            await cluster.until(lambda: self._running() == expected)
        assert self._running() == expected
        cluster.scheduler.resume()
        await asyncio.sleep(LOOK_S)  # simulated: costs no time
        assert self._running() == expected

    def _running(self) -> set[str]:
        """The jobs that have hosts, once all of their workers run."""
        cluster = self._cluster
        placed = [cluster.table[job_id] for job_id in cluster.table.running]
        if any(status.state is not JobState.RUNNING for status in placed):
            return set()
        states = Counter(worker.state for worker in cluster.workers.values())
        all_run = states == {
            "running": sum(len(status.hosts) for status in placed)
        }
        return {status.spec.name for status in placed} if all_run else set()


def iterations_done(job: SimulatedJob, now_s: float) -> int:
    left = job.progress(now_s, known=True).remaining_s / job.spec.duration_s
    return int((1 - left) * job.units)


def follow(trace: Trace, clock: Clock) -> int:
    """Play a trace in both; how often a job was preempted. Some have to wait."""
    simulation, scheduler = as_simulated(trace)
    waited = 0

    async def beside(cluster: Cluster) -> None:
        nonlocal waited
        cluster.trains = False
        lab = Beside(trace, cluster, clock)
        while simulation.ended < JOBS:
            assert simulation.advance()
            await lab.catch_up(simulation)
            if simulation.waiting:
                scheduler.decide()
            waited += len(simulation.waiting)
            await lab.decided(
                {job.name for job in simulation.running.values()}
            )
        assert not cluster.faults()

    choice = PolicyChoice(placement=trace.placement, order=trace.order)
    play(LAB.with_changes(queue=Discipline(**trace.rules)), choice, beside)
    assert waited > JOBS
    return sum(job.preemptions for job in simulation.jobs)


@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_a_lab_starts_and_preempts_the_same_jobs_as_the_simulator(
    discipline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(World, "wall", lambda _: clock.now_s)
    preempted = follow(drawn(discipline), clock)
    assert (preempted > 0) == ("preempt" in DISCIPLINES[discipline][1])
