"""Queues on shared links beside a simulation of another kind: in fractions, without rounding.

Servers break meanwhile. At each event all that is to be known is worked out again from the jobs
that run: nobody is preempted, so that nothing but arrivals, ends and outages is an event.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from patchlight.controller.policies.contract import JobView, OrderPolicy
from patchlight.controller.policies.order import Fifo, Srpt
from patchlight.controller.policies.placement import FirstFit
from patchlight.emulation.simulator.cluster import Policies, QueueJob, Settings, TwoLevel, simulate
from tests.support.given_outages import GivenOutages, outages_of

RACKS, SERVERS, GPUS = 2, 2, 2
IN_RACK = SERVERS * GPUS
RESTART, CHECKPOINT = 2, 5
SERVER_GPUS = [
    frozenset(range(server * GPUS, (server + 1) * GPUS)) for server in range(RACKS * SERVERS)
]


@dataclass
class Job:
    """``left`` seconds of work; each takes ``pace`` seconds on the links as they are shared."""

    number: int
    at: int
    workers: int
    left: Fraction
    share: Fraction
    ring: tuple[int, ...] = ()
    left_at_start: Fraction = Fraction(0)
    begins: Fraction = Fraction(0)
    pace: Fraction = Fraction(1)
    started: Fraction | None = None
    ended: Fraction | None = None
    lost: int = 0
    held: Fraction = Fraction(0)
    busy: Fraction = Fraction(0)

    def leaves(self) -> dict[int, int]:
        """How often its ring leaves each rack."""
        racks = [gpu // IN_RACK for gpu in self.ring]
        turns = [a for a, b in pairwise([*racks, racks[0]]) if a != b]
        return {rack: turns.count(rack) for rack in turns} if self.share else {}


@dataclass
class Exact:
    """The cluster, stepped from event to event."""

    order: str
    oversubscription: int
    outages: GivenOutages
    jobs: list[Job]
    now: Fraction = Fraction(-1)
    running: list[Job] = field(default_factory=list)

    def run(self) -> None:
        while any(job.ended is None for job in self.jobs):
            self._go_to(min(self._events()))
            for job in [job for job in self.running if not job.left]:
                job.ended = self.now
                self.running.remove(job)
            self._lose()
            self._start()
            self._share()

    def _events(self) -> list[Fraction]:
        ends = [max(self.now, job.begins) + job.left * job.pace for job in self.running]
        moments = {second for _, spans in self.outages.parts for span in spans for second in span}
        coming = [Fraction(at) for at in moments | {job.at for job in self.jobs} if at > self.now]
        return [*ends, *coming]

    def _go_to(self, moment: Fraction) -> None:
        for job in self.running:
            done = max(Fraction(0), moment - max(self.now, job.begins)) / job.pace
            job.left -= done
            job.held += (moment - self.now) * job.workers
            job.busy += done * (1 - job.share) * job.workers
        self.now = moment

    def _lose(self) -> None:
        """What was done since the last checkpoint, counted at the pace it had last."""
        broken = self.outages.broken_at(self.now)
        for job in [job for job in self.running if broken & set(job.ring)]:
            again = max(Fraction(0), self.now - job.begins) % CHECKPOINT / job.pace
            job.left = min(job.left_at_start, job.left + again)
            job.lost += 1
            job.ring = ()
            self.running.remove(job)

    def _waiting(self) -> list[Job]:
        there = [job for job in self.jobs if job.at <= self.now and job.ended is None]
        waiting = [job for job in there if job not in self.running]
        if self.order == "fifo":
            return sorted(waiting, key=lambda job: (job.at, job.number))
        waiting.sort(key=lambda job: (job.left, job.number))
        for first, second in pairwise(waiting):
            # What is equal in fractions need not be where the work that was done is rounded.
            never_ran = first.started is None and second.started is None
            assume(never_ran or first.left != second.left)
        return waiting

    def _start(self) -> None:
        taken = set(self.outages.broken_at(self.now)).union(*(job.ring for job in self.running))
        for job in self._waiting():
            free = [gpu for gpu in range(RACKS * IN_RACK) if gpu not in taken]
            if len(free) < job.workers:
                return
            job.ring = tuple(free[: job.workers])
            taken.update(job.ring)
            job.left_at_start = job.left
            job.begins = self.now if job.started is None else self.now + RESTART
            job.started = self.now if job.started is None else job.started
            self.running.append(job)

    def _share(self) -> None:
        """All rates rise together; a ring stays where a link of it is full, or a NIC."""
        uplink = Fraction(IN_RACK, self.oversubscription)
        rates: dict[int, Fraction] = {}
        while rising := [job for job in self.running if job.number not in rates]:
            levels = {}
            for rack in range(RACKS):
                edges = {job.number: job.leaves().get(rack, 0) for job in self.running}
                room = uplink - sum(rates[n] * edges[n] for n in rates if n in edges)
                wanted = sum(edges[job.number] for job in rising)
                if wanted:
                    levels[rack] = room / wanted
            level = min([Fraction(1), *levels.values()])
            full = [rack for rack, at in levels.items() if at == level]
            stay = [job for job in rising if level == 1 or any(r in job.leaves() for r in full)]
            rates |= {job.number: level for job in stay}
        for job in self.running:
            job.pace = 1 - job.share + job.share / rates[job.number]


JOBS = st.lists(
    st.tuples(
        st.integers(0, 30),
        st.integers(1, 6),
        st.integers(1, 20),
        st.sampled_from([0.0, 0.25, 0.5, 0.75]),
    ),
    min_size=1,
    max_size=10,
)


# A server breaks under two jobs that share a link: what each lost counts at the pace that it had
# beside the other.
TWO_LOST_AT_ONCE = [
    *((0, 1, 30, 0.0), (0, 1, 30, 0.0), (0, 1, 1, 0.0), (0, 1, 2, 0.0), (0, 1, 30, 0.0)),
    *((1, 2, 20, 0.5), (2, 2, 20, 0.5)),
]
BROKEN_ONCE = GivenOutages(parts=((SERVER_GPUS[1], ((9, 12),)),))


@pytest.mark.parametrize("order", ["fifo", "srpt"])
@example(drawn=TWO_LOST_AT_ONCE, oversubscription=4, outages=BROKEN_ONCE)
@settings(max_examples=150, deadline=None)
@given(drawn=JOBS, oversubscription=st.integers(1, 8), outages=outages_of(SERVER_GPUS))
def test_both_say_the_same(
    order: str,
    drawn: list[tuple[int, int, int, float]],
    oversubscription: int,
    outages: GivenOutages,
) -> None:
    drawn = sorted(drawn, key=lambda each: each[0])
    jobs = [
        QueueJob(
            JobView(str(number), workers, arrived_s=float(at)),
            float(lasts),
            communication=share if workers > 1 else 0.0,
        )
        for number, (at, workers, lasts, share) in enumerate(drawn)
    ]
    exact = Exact(
        order,
        oversubscription,
        outages,
        [
            Job(number, at, workers, Fraction(lasts), Fraction(share if workers > 1 else 0))
            for number, (at, workers, lasts, share) in enumerate(drawn)
        ],
    )
    exact.run()
    orders: dict[str, OrderPolicy] = {"fifo": Fifo(), "srpt": Srpt()}
    result = simulate(
        TwoLevel(RACKS, SERVERS, GPUS, oversubscription=oversubscription),
        jobs,
        Policies(orders[order], FirstFit()),
        Settings(restart_s=float(RESTART), checkpoint_s=float(CHECKPOINT), outages=outages),
    )
    for record, job in zip(result.records, exact.jobs, strict=True):
        assert record.losses == job.lost
        found = (record.started_s, record.ended_s, record.allocated_gpu_s, record.busy_gpu_s)
        assert job.started is not None
        assert job.ended is not None
        expected = tuple(map(float, (job.started, job.ended, job.held, job.busy)))
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)
