"""What holds of the queue for any jobs under any settings."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from patchlight.controller.jobs.discipline.contract import OrderTraits
from patchlight.testbed.lab.rules import Allowance, Discipline
from tests.support.queued_site import FAIR, FIFO, GPUS, Cluster, Job

NAMES = ("", "ann", "bob", "eve")


@st.composite
def jobs_drawn(draw: st.DrawFn) -> list[Job]:
    drawn = []
    for number in range(draw(st.integers(1, 25))):
        before = (
            draw(st.sets(st.integers(0, number - 1), max_size=2))
            if number
            else set()
        )
        job = Job(
            number,
            draw(st.integers(1, GPUS)),
            float(draw(st.integers(1, 300))),
            float(draw(st.integers(0, 300))),
            draw(st.sampled_from(NAMES)),
            draw(st.integers(-1, 1)),
            draw(st.booleans()),
            after=tuple(f"job{n}" for n in sorted(before))
            if draw(st.booleans())
            else (),
        )
        drawn.append(job)
    return drawn


DISCIPLINES = st.builds(
    Discipline,
    backfill=st.booleans(),
    backfill_depth=st.integers(1, 30),
    preempt=st.booleans(),
    quantum_s=st.sampled_from([1.0, 20.0, 200.0]),
    half_life_s=st.sampled_from([1.0, 100.0, 1e6]),
    each_user=st.builds(
        Allowance,
        gpus=st.none() | st.integers(GPUS, 2 * GPUS),
        share=st.sampled_from([None, 2.0]),
    ),
    users=st.just(()) | st.just((("ann", Allowance(share=3.0, gpus=GPUS)),)),
)
ORDERS = st.sampled_from([FIFO, FAIR, OrderTraits()])


class Watched(Cluster):
    """Looks after each pass at what must never be."""

    def after_pass(self) -> None:
        running = self.running.values()
        taken = sum(job.gpus.bit_count() for job in running)
        assert (
            taken
            == self.occupancy.occupied.bit_count()
            == GPUS - self.occupancy.free
        )
        for user in NAMES:
            most = self.discipline.allowance(user).gpus
            held = sum(job.workers for job in running if job.user == user)
            assert most is None or held <= most
        for job in running:
            assert self.done.issuperset(job.after)
        waiting = {
            job.name
            for job in self.jobs
            if job.arrived_s <= self.now_s
            and job.name not in self.done
            and not job.gpus
        }
        assert set(self.why()) == waiting


def copied(jobs: Sequence[Job]) -> list[Job]:
    return [replace(job, spans=[]) for job in jobs]


@given(jobs_drawn(), DISCIPLINES, ORDERS)
@settings(max_examples=60, deadline=None)
def test_everybody_gets_gpus_of_their_own_in_turn_and_is_done(
    jobs: list[Job], discipline: Discipline, order: OrderTraits
) -> None:
    runs = [Watched(copied(jobs), discipline, order) for _ in range(2)]
    for cluster in runs:
        cluster.play()
        assert cluster.done == {job.name for job in jobs}
    # The same jobs, the same lives.
    assert [job.spans for job in runs[0].jobs] == [
        job.spans for job in runs[1].jobs
    ]


class Promising(Cluster):
    """Notes, for each that is first in line, when it can start at the latest."""

    latest_s: dict[int, float]

    def after_pass(self) -> None:
        head = self.queue.first()
        if head is None or head.index in self.latest_s:
            return
        free = self.occupancy.free
        when_s = self.now_s
        for ends_s, gpus, _ in self.ends():
            if free >= head.workers:
                break
            when_s = ends_s
            free = free + gpus.bit_count()
        self.latest_s[head.index] = when_s


@given(jobs_drawn(), st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_backfilling_never_puts_off_the_next_one(
    jobs: list[Job], depth: int
) -> None:
    alike = [replace(job, priority=0, after=(), spans=[]) for job in jobs]
    cluster = Promising(alike, Discipline(backfill=True, backfill_depth=depth))
    cluster.latest_s = {}
    cluster.play()
    for index, latest_s in cluster.latest_s.items():
        assert alike[index].spans[0][0] <= latest_s + 1e-6


@given(jobs_drawn())
@settings(max_examples=60, deadline=None)
def test_fair_share_starts_nobody_before_a_user_who_had_less(
    jobs: list[Job],
) -> None:
    class Fair(Cluster):
        def start(self, entry: Job, placement: list[int]) -> bool:
            came = [each for each in self.jobs if each.arrived_s <= self.now_s]
            users = {
                each.user
                for each in came
                if each.name not in self.done and not each.gpus
            }
            assert self.accounts is not None
            shares = self.accounts.shares(self.now_s)
            assert shares.get(entry.user, 0.0) == min(
                shares.get(user, 0.0) for user in users
            )
            return super().start(entry, placement)

    cluster = Fair(
        [replace(job, priority=0, after=(), spans=[]) for job in jobs],
        Discipline(),
        FAIR,
    )
    cluster.play()
    assert len(cluster.done) == len(jobs)
