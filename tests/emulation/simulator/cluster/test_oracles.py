"""Queues beside two simulations of another kind: in fractions, and second by second."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from patchlight.controller.policies.contract import (
    ClusterShape,
    JobView,
    OrderPolicy,
)
from patchlight.controller.policies.order import (
    Fifo,
    LeastAttainedService,
    Srpt,
)
from patchlight.controller.policies.placement import FirstFit
from patchlight.emulation.simulator.cluster import (
    Policies,
    QueueJob,
    Settings,
    TwoLevel,
    simulate,
)
from patchlight.emulation.simulator.outages import Outage, Outages

LATEST_S = 60


@dataclass(frozen=True)
class GivenOutages(Outages):
    """For each part that breaks its GPUs, and from when to when it is broken, in whole seconds."""

    what: str = "gpu"  # type: ignore[assignment]
    mean_up_s: float = 1.0
    mean_down_s: float = 1.0
    parts: tuple[tuple[frozenset[int], tuple[tuple[int, int], ...]], ...] = ()

    def events(self, shape: ClusterShape, seed: int) -> Iterator[Outage]:
        found = []
        for gpus, spans in self.parts:
            bits = sum(1 << gpu for gpu in gpus)
            for broken_s, mended_s in spans:
                found += [
                    Outage(broken_s, bits, True),
                    Outage(mended_s, bits, False),
                ]
        return iter(sorted(found))

    def broken_at(self, second: Fraction | int) -> frozenset[int]:
        """The GPUs that are broken then."""
        return frozenset().union(
            *(
                gpus
                for gpus, spans in self.parts
                if any(a <= second < b for a, b in spans)
            )
        )


def _spans(moments: set[int]) -> tuple[tuple[int, int], ...]:
    ordered = sorted(moments)
    return tuple(pairwise(ordered))[::2]


_SPANS = st.sets(st.integers(1, LATEST_S), max_size=4).map(_spans)


def outages_of(parts: list[frozenset[int]]) -> st.SearchStrategy[GivenOutages]:
    """Each part breaks twice at most, and is mended."""
    return st.tuples(*(_SPANS for _ in parts)).map(
        lambda spans: GivenOutages(parts=tuple(zip(parts, spans, strict=True)))
    )


def gpu_outages(gpus: int) -> st.SearchStrategy[GivenOutages]:
    """Of single GPUs."""
    return outages_of([frozenset([gpu]) for gpu in range(gpus)])


RACKS = 2
SERVERS = 2
GPUS = 2
IN_RACK = SERVERS * GPUS
RESTART = 2
CHECKPOINT = 5
SERVER_GPUS = [
    frozenset(range(server * GPUS, (server + 1) * GPUS))
    for server in range(RACKS * SERVERS)
]


@dataclass
class ExactJob:
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
        return (
            {rack: turns.count(rack) for rack in turns} if self.share else {}
        )


@dataclass
class Exact:
    """The cluster, stepped from event to event."""

    order: str
    oversubscription: int
    outages: GivenOutages
    jobs: list[ExactJob]
    now: Fraction = Fraction(-1)
    running: list[ExactJob] = field(default_factory=list)

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
        ends = [
            max(self.now, job.begins) + job.left * job.pace
            for job in self.running
        ]
        moments = {
            second
            for _, spans in self.outages.parts
            for span in spans
            for second in span
        }
        coming = [
            Fraction(at)
            for at in moments | {job.at for job in self.jobs}
            if at > self.now
        ]
        return [*ends, *coming]

    def _go_to(self, moment: Fraction) -> None:
        for job in self.running:
            done = (
                max(Fraction(0), moment - max(self.now, job.begins)) / job.pace
            )
            job.left -= done
            job.held += (moment - self.now) * job.workers
            job.busy += done * (1 - job.share) * job.workers
        self.now = moment

    def _lose(self) -> None:
        """What was done since the last checkpoint, counted at the pace it had last."""
        broken = self.outages.broken_at(self.now)
        for job in [job for job in self.running if broken & set(job.ring)]:
            again = (
                max(Fraction(0), self.now - job.begins) % CHECKPOINT / job.pace
            )
            job.left = min(job.left_at_start, job.left + again)
            job.lost += 1
            job.ring = ()
            self.running.remove(job)

    def _waiting(self) -> list[ExactJob]:
        there = [
            job
            for job in self.jobs
            if job.at <= self.now and job.ended is None
        ]
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
        taken = set(self.outages.broken_at(self.now)).union(
            *(job.ring for job in self.running)
        )
        for job in self._waiting():
            free = [gpu for gpu in range(RACKS * IN_RACK) if gpu not in taken]
            if len(free) < job.workers:
                return
            job.ring = tuple(free[: job.workers])
            taken.update(job.ring)
            job.left_at_start = job.left
            job.begins = (
                self.now if job.started is None else self.now + RESTART
            )
            job.started = self.now if job.started is None else job.started
            self.running.append(job)

    def _share(self) -> None:
        """All rates rise together; a ring stays where a link of it is full, or a NIC."""
        uplink = Fraction(IN_RACK, self.oversubscription)
        rates: dict[int, Fraction] = {}
        while rising := [
            job for job in self.running if job.number not in rates
        ]:
            levels = {}
            for rack in range(RACKS):
                edges = {
                    job.number: job.leaves().get(rack, 0)
                    for job in self.running
                }
                room = uplink - sum(
                    rates[n] * edges[n] for n in rates if n in edges
                )
                wanted = sum(edges[job.number] for job in rising)
                if wanted:
                    levels[rack] = room / wanted
            level = min([Fraction(1), *levels.values()])
            full = [rack for rack, at in levels.items() if at == level]
            stay = [
                job
                for job in rising
                if level == 1 or any(r in job.leaves() for r in full)
            ]
            rates |= {job.number: level for job in stay}
        for job in self.running:
            job.pace = 1 - job.share + job.share / rates[job.number]


SHARING_JOBS = st.lists(
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
    (0, 1, 30, 0.0),
    (0, 1, 30, 0.0),
    (0, 1, 1, 0.0),
    (0, 1, 2, 0.0),
    (0, 1, 30, 0.0),
    (1, 2, 20, 0.5),
    (2, 2, 20, 0.5),
]
BROKEN_ONCE = GivenOutages(parts=((SERVER_GPUS[1], ((9, 12),)),))


@pytest.mark.parametrize("order", ["fifo", "srpt"])
@example(drawn=TWO_LOST_AT_ONCE, oversubscription=4, outages=BROKEN_ONCE)
@settings(max_examples=150, deadline=None)
@given(
    drawn=SHARING_JOBS,
    oversubscription=st.integers(1, 8),
    outages=outages_of(SERVER_GPUS),
)
def test_queues_on_shared_links_are_those_in_fractions(
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
            ExactJob(
                number,
                at,
                workers,
                Fraction(lasts),
                Fraction(share if workers > 1 else 0),
            )
            for number, (at, workers, lasts, share) in enumerate(drawn)
        ],
    )
    exact.run()
    orders: dict[str, OrderPolicy] = {"fifo": Fifo(), "srpt": Srpt()}
    result = simulate(
        TwoLevel(RACKS, SERVERS, GPUS, oversubscription=oversubscription),
        jobs,
        Policies(orders[order], FirstFit()),
        Settings(
            restart_s=float(RESTART),
            checkpoint_s=float(CHECKPOINT),
            outages=outages,
        ),
    )
    for record, job in zip(result.records, exact.jobs, strict=True):
        assert record.losses == job.lost
        found = (
            record.started_s,
            record.ended_s,
            record.allocated_gpu_s,
            record.busy_gpu_s,
        )
        assert job.started is not None
        assert job.ended is not None
        expected = tuple(
            map(float, (job.started, job.ended, job.held, job.busy))
        )
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)


ALL_GPUS = 4
RESTART = 2
CHECKPOINT = 5
FIRST_GPU_S = 6


@dataclass
class SteppedJob:
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
        return (
            self.at if order == "fifo" else int(self.attained >= FIRST_GPU_S)
        )


def stepped(
    order: str,
    wanted: list[tuple[int, int, int]],
    broken_at: Callable[[int], frozenset[int]],
) -> list[tuple[int, int, int, int, int]]:
    """When each job started and ended, its preemptions, losses and GPU-seconds.

    The quantum is 1 s; ``broken_at`` gives the GPUs that are broken in the second that begins.
    """
    jobs = [SteppedJob(number, *each) for number, each in enumerate(wanted)]
    running: list[SteppedJob] = []
    now = 0
    while any(job.ended < 0 for job in jobs):
        for job in list(running):
            if not job.left and not job.idle:
                job.ended = now
                job.gpus = frozenset()
                running.remove(job)
        broken = broken_at(now)
        for job in [job for job in running if job.gpus & broken]:
            job.gpus = frozenset()
            job.lost = job.lost + 1
            job.left += job.worked % CHECKPOINT
            running.remove(job)
        waiting = [
            job
            for job in jobs
            if job.at <= now and job.ended < 0 and job not in running
        ]
        while waiting:
            head = min(
                waiting, key=lambda job: (job.priority(order), job.number)
            )
            free = frozenset(range(ALL_GPUS)).difference(
                broken, *(job.gpus for job in running)
            )
            behind = [
                job
                for job in running
                if job.began < now
                and job.priority(order) > head.priority(order)
            ]
            behind.sort(key=lambda job: (job.priority(order), job.number))
            while len(free) < head.workers and behind:
                free |= behind.pop().gpus
            if len(free) < head.workers:
                break
            head.gpus = frozenset(sorted(free)[: head.workers])
            for job in [job for job in running if job.gpus & head.gpus]:
                job.gpus = frozenset()
                job.preempted = job.preempted + 1
                running.remove(job)
                waiting.append(job)
            waiting.remove(head)
            running.append(head)
            head.began = now
            head.worked = 0
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
    return [
        (job.started, job.ended, job.preempted, job.lost, job.attained)
        for job in jobs
    ]


JOBS = st.lists(
    st.tuples(
        st.integers(0, 30), st.integers(1, ALL_GPUS), st.integers(1, 20)
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize("order", ["fifo", "srpt", "las"])
@settings(max_examples=150, deadline=None)
@given(drawn=JOBS, outages=st.just(GivenOutages()) | gpu_outages(ALL_GPUS))
def test_preemptive_queues_are_those_of_each_second(
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
        QueueJob(
            JobView(str(number), workers, arrived_s=float(at)), float(lasts)
        )
        for number, (at, workers, lasts) in enumerate(wanted)
    ]
    result = simulate(
        TwoLevel(1, 1, ALL_GPUS),
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
        (r.started_s, r.ended_s, r.preemptions, r.losses, r.allocated_gpu_s)
        for r in result.records
    ]
    assert found == stepped(order, wanted, outages.broken_at)
