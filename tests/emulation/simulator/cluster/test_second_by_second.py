"""Preemptive queues beside a simulation of another kind: second by second, in whole numbers.

GPUs break and are mended meanwhile. Shared links are in ``test_in_fractions.py``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchlight.controller.policies.contract import JobView, OrderPolicy
from patchlight.controller.policies.order import Fifo, LeastAttainedService, Srpt
from patchlight.controller.policies.placement import FirstFit
from patchlight.emulation.simulator.cluster import Policies, QueueJob, Settings, TwoLevel, simulate
from tests.support.given_outages import GivenOutages, gpu_outages

GPUS, RESTART, CHECKPOINT = 4, 2, 5
FIRST_GPU_S = 6


@dataclass
class Job:
    number: int
    at: int
    workers: int
    left: int
    gpus: frozenset[int] = frozenset()
    began: int = -1
    idle: int = 0
    attained: int = 0
    started: int = -1
    ended: int = -1
    preempted: int = 0
    lost: int = 0
    worked: int = 0  # Since it began on these GPUs.

    def priority(self, order: str) -> int:
        if order == "srpt":
            return self.left
        return self.at if order == "fifo" else int(self.attained >= FIRST_GPU_S)


def stepped(
    order: str, wanted: list[tuple[int, int, int]], broken_at: Callable[[int], frozenset[int]]
) -> list[tuple[int, int, int, int, int]]:
    """When each job started and ended, its preemptions, losses and GPU-seconds.

    The quantum is 1 s; ``broken_at`` gives the GPUs that are broken in the second that begins.
    """
    jobs = [Job(number, *each) for number, each in enumerate(wanted)]
    running: list[Job] = []
    now = 0
    while any(job.ended < 0 for job in jobs):
        for job in list(running):
            if not job.left and not job.idle:
                job.ended, job.gpus = now, frozenset()
                running.remove(job)
        broken = broken_at(now)
        for job in [job for job in running if job.gpus & broken]:
            job.gpus, job.lost = frozenset(), job.lost + 1
            job.left += job.worked % CHECKPOINT
            running.remove(job)
        waiting = [job for job in jobs if job.at <= now and job.ended < 0 and job not in running]
        while waiting:
            head = min(waiting, key=lambda job: (job.priority(order), job.number))
            free = frozenset(range(GPUS)).difference(broken, *(job.gpus for job in running))
            behind = [
                job
                for job in running
                if job.began < now and job.priority(order) > head.priority(order)
            ]
            behind.sort(key=lambda job: (job.priority(order), job.number))
            while len(free) < head.workers and behind:
                free |= behind.pop().gpus
            if len(free) < head.workers:
                break
            head.gpus = frozenset(sorted(free)[: head.workers])
            for job in [job for job in running if job.gpus & head.gpus]:
                job.gpus, job.preempted = frozenset(), job.preempted + 1
                running.remove(job)
                waiting.append(job)
            waiting.remove(head)
            running.append(head)
            head.began, head.worked = now, 0
            head.idle = 0 if head.started < 0 else RESTART
            head.started = now if head.started < 0 else head.started
        now += 1
        for job in running:
            job.attained += job.workers
            if job.idle:
                job.idle -= 1
            else:
                job.left -= 1
                job.worked += 1
    return [(job.started, job.ended, job.preempted, job.lost, job.attained) for job in jobs]


JOBS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, GPUS), st.integers(1, 20)), min_size=1, max_size=12
)


@pytest.mark.parametrize("order", ["fifo", "srpt", "las"])
@settings(max_examples=150, deadline=None)
@given(drawn=JOBS, outages=st.just(GivenOutages()) | gpu_outages(GPUS))
def test_both_say_the_same(
    order: str, drawn: list[tuple[int, int, int]], outages: GivenOutages
) -> None:
    wanted = sorted(drawn, key=lambda each: each[0])
    first_s = wanted[0][0]
    wanted = [(at - first_s, workers, lasts) for at, workers, lasts in wanted]
    orders: dict[str, OrderPolicy] = {
        "fifo": Fifo(),
        "srpt": Srpt(),
        "las": LeastAttainedService(first_gpu_s=FIRST_GPU_S),
    }
    jobs = [
        QueueJob(JobView(str(number), workers, arrived_s=float(at)), float(lasts))
        for number, (at, workers, lasts) in enumerate(wanted)
    ]
    result = simulate(
        TwoLevel(1, 1, GPUS),
        jobs,
        Policies(orders[order], FirstFit()),
        Settings(
            preempt=True,
            quantum_s=1.0,
            restart_s=float(RESTART),
            checkpoint_s=float(CHECKPOINT),
            outages=outages,
        ),
    )
    found = [
        (r.started_s, r.ended_s, r.preemptions, r.losses, r.allocated_gpu_s) for r in result.records
    ]
    assert found == stepped(order, wanted, outages.broken_at)
