"""The queue on a site of its own: entries of known lengths on GPUs without a network."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchlight.controller.jobs.discipline.accounts import UserAccounts, admission
from patchlight.controller.jobs.discipline.contract import Fate, OrderTraits
from patchlight.controller.jobs.discipline.queue import JobQueue
from patchlight.controller.policies.contract import Progress, Running
from patchlight.controller.policies.order import Fifo
from patchlight.controller.policies.sets import lowest
from patchlight.testbed.queueing import Allowance, Discipline, Waiting, WaitReason

FIFO = OrderTraits.of(Fifo())
FAIR = OrderTraits(by_user=True)
GPUS = 8


@dataclass(eq=False)
class Job:
    """An entry that runs for ``lasts_s``; ``placeable``: the placement policy finds it a place."""

    index: int
    workers: int
    lasts_s: float
    arrived_s: float = 0.0
    user: str = ""
    priority: int = 0
    preemptible: bool = True
    held: bool = False
    after: Sequence[str] = ()
    placeable: bool = True
    gpus: int = 0
    began_s: float = math.nan
    had_s: float = 0.0
    spans: list[tuple[float, float, int]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"job{self.index}"

    @property
    def wants(self) -> str:
        return f"{self.workers} GPUs"

    def progress(self, now_s: float, known: bool) -> Progress:
        had_s = self.had_s + (now_s - self.began_s if self.gpus else 0.0)
        return Progress(had_s * self.workers, self.lasts_s - had_s)


@dataclass
class Now:
    free: int
    occupied: int
    broken: int = 0


class Cluster:
    """A site that keeps what it is told, and plays it forward."""

    def __init__(
        self, jobs: Sequence[Job], discipline: Discipline, order: OrderTraits = FIFO
    ) -> None:
        self.jobs, self.discipline = list(jobs), discipline
        self.by_user = order.by_user
        self._coming = sorted(jobs, key=lambda job: (job.arrived_s, job.index))
        self.now_s = 0.0
        self.joined: list[Job] = []
        self.running: dict[int, Job] = {}
        self.accounts: UserAccounts | None = UserAccounts(discipline)
        self.occupancy = Now(GPUS, 0)
        self.released = self.layout = 0
        self.done: set[str] = set()
        self.failed: set[str] = set()
        self.wakes_s = math.inf
        self.known = True
        self.started: list[Job] = []
        self.queue: JobQueue[Job, list[int]] = JobQueue(self, discipline, order)

    def rank(self, entry: Job) -> float:
        if not self.by_user:
            return entry.arrived_s
        assert self.accounts is not None
        return self.accounts.shares(self.now_s).get(entry.user, 0.0)

    def ends(self) -> Sequence[Running]:
        return sorted(
            Running(self.would_end_s(job) - (self.now_s - job.began_s), job.gpus, job.name)
            for job in self.running.values()
        )

    def out_of_reach(self, entry: Job) -> None:
        """All its GPUs are well."""

    def would_end_s(self, entry: Job) -> float:
        return self.now_s + entry.lasts_s - entry.had_s if self.known else math.inf

    def fate(self, name: str) -> Fate:
        if name in self.failed:
            return Fate.FAILED
        return Fate.DONE if name in self.done else Fate.PENDING

    def free_for(self, entry: Job) -> int:
        return self.occupancy.free

    def place(self, entry: Job, occupied: int | None = None) -> list[int] | Waiting:
        taken = self.occupancy.occupied if occupied is None else occupied
        free = ~taken & (1 << GPUS) - 1
        if not entry.placeable or free.bit_count() < entry.workers:
            return Waiting(WaitReason.NO_PLACE, "no place")
        return lowest(free, entry.workers)

    def gpus_of(self, placement: list[int]) -> int:
        return sum(1 << gpu for gpu in placement)

    def start(self, entry: Job, placement: list[int]) -> bool:
        gpus = self.gpus_of(placement)
        assert not gpus & self.occupancy.occupied
        entry.gpus, entry.began_s = gpus, self.now_s
        self.running[entry.index] = entry
        self.started.append(entry)
        self._took(entry, 1)
        return True

    def preempt(self, entry: Job) -> None:
        assert entry.preemptible
        self._stop(entry)
        self.joined.append(entry)

    def refuse(self, entry: Job, why: Waiting) -> bool:
        return False

    def wake_at(self, at_s: float) -> None:
        self.wakes_s = min(self.wakes_s, at_s)

    def _took(self, job: Job, sign: int) -> None:
        self.occupancy.occupied ^= job.gpus
        self.occupancy.free -= sign * job.workers
        assert self.accounts is not None
        account = self.accounts.took if sign > 0 else self.accounts.gave_back
        account(job.user, job.workers, self.now_s)

    def _stop(self, job: Job) -> None:
        job.had_s += self.now_s - job.began_s
        job.spans.append((job.began_s, self.now_s, job.gpus))
        del self.running[job.index]
        self._took(job, -1)
        job.gpus = 0
        self.released += 1

    def play(self, until_s: float = math.inf) -> None:
        """On to the next moments, with a pass at each."""
        coming = self._coming
        while True:
            while coming and coming[0].arrived_s <= self.now_s:
                self.joined.append(coming.pop(0))
            self.queue.decide()
            self.after_pass()
            nexts_s = [job.arrived_s for job in coming[:1]]
            nexts_s += [self.now_s + job.lasts_s - self.had_s(job) for job in self.running.values()]
            if self.wakes_s < math.inf and (self.running or self.queue.first() is None):
                nexts_s.append(self.wakes_s)
            if not nexts_s or min(nexts_s) > until_s or not (coming or self.running):
                return
            self.now_s = min(nexts_s)
            self.wakes_s = math.inf if self.wakes_s <= self.now_s else self.wakes_s
            for job in list(self.running.values()):
                if self.had_s(job) >= job.lasts_s - 1e-9:
                    self._stop(job)
                    self.done.add(job.name)

    def had_s(self, job: Job) -> float:
        return job.had_s + self.now_s - job.began_s

    def after_pass(self) -> None:
        """What is to hold after each pass."""

    def why(self) -> dict[str, Waiting]:
        return {entry.name: why for entry, why in self.queue.reasons()}


def test_priority_comes_before_the_order() -> None:
    jobs = [Job(0, 8, 10), Job(1, 8, 10, 1), Job(2, 8, 10, 2, priority=5)]
    cluster = Cluster(jobs, Discipline())
    cluster.play(until_s=2)
    assert {name: why.words for name, why in cluster.why().items()} == {
        "job2": "it wants 8 GPUs, and 0 of them are free",
        "job1": "it comes after job2",
    }
    cluster.play()
    assert [job.index for job in cluster.started] == [0, 2, 1]


def test_a_user_over_the_quota_holds_up_nobody() -> None:
    jobs = [Job(0, 3, 10, user="ann"), Job(1, 2, 10, user="ann"), Job(2, 1, 10, user="ann")]
    jobs.append(Job(3, 4, 10, user="bob"))
    cluster = Cluster(jobs, Discipline(each_user=Allowance(gpus=4)))
    cluster.play(until_s=0)
    assert [job.index for job in cluster.started] == [0, 3]
    why = cluster.why()
    assert why["job1"] == Waiting(
        WaitReason.QUOTA, "user ann has 3 of 4 GPUs at once, and it wants 2", is_blocked=True
    )
    # A user's own jobs stay in turn: small ones would keep a large one waiting for ever.
    assert why["job2"] == Waiting(WaitReason.BEHIND, "it comes after job1")
    cluster.play()
    assert [job.index for job in cluster.started] == [0, 3, 1, 2]


def test_gpu_hours_are_there_again_in_the_next_window() -> None:
    jobs = [Job(0, 8, 1800, user="ann"), Job(1, 1, 10, user="ann"), Job(2, 1, 9000, user="bob")]
    allowed = ("ann", Allowance(gpu_hours=4))
    cluster = Cluster(jobs, Discipline(users=(allowed,), quota_window_s=7200))
    cluster.play(until_s=1800)
    why = cluster.why()["job1"]
    assert why.reason is WaitReason.QUOTA
    assert "had all 4 GPU-hours: the next ones are there in 1.5 h" in why.words
    cluster.play()
    assert jobs[1].spans[0][0] == 7200


def test_who_may_not_even_wait() -> None:
    discipline = Discipline(
        each_user=Allowance(jobs=2), users=(("ann", Allowance(gpus=4, jobs=1)),)
    )
    assert admission(discipline, "bob", 100, 1) is None
    for user, gpus, jobs in (("bob", 1, 2), ("ann", 1, 1), ("ann", 5, 0)):
        why = admission(discipline, user, gpus, jobs)
        assert why is not None
        assert why.reason is WaitReason.QUOTA


def test_fair_share_goes_by_use_over_share_and_forgets() -> None:
    discipline = Discipline(half_life_s=1000, users=(("bob", Allowance(share=3)),))
    accounts = UserAccounts(discipline)
    accounts.took("ann", 2, 0.0)
    accounts.took("bob", 3, 0.0)
    accounts.gave_back("ann", 2, 10.0)
    accounts.gave_back("bob", 3, 10.0)
    shares = accounts.shares(10.0)
    assert shares["ann"] == pytest.approx(20, rel=0.01)
    assert shares["bob"] == pytest.approx(10, rel=0.01)
    assert accounts.shares(1010.0)["ann"] == pytest.approx(shares["ann"] / 2)
    # What was kept is read again; what runs then is told again.
    again = UserAccounts(discipline, accounts.usage(10.0))
    assert again.shares(1010.0) == accounts.shares(1010.0)


def test_fair_share_lets_a_newcomer_in_before_the_heavy_user() -> None:
    heavy = [Job(number, 8, 100, user="ann") for number in range(10)]
    cluster = Cluster([*heavy, Job(10, 8, 100, 150, user="bob")], Discipline(), FAIR)
    cluster.play()
    assert [job.index for job in cluster.started][:4] == [0, 1, 10, 2]


def test_what_comes_after_others_waits_until_they_are_done() -> None:
    jobs = [Job(0, 1, 50), Job(1, 1, 10, after=("job0",)), Job(2, 1, 10, after=("lost", "job0"))]
    cluster = Cluster([*jobs, Job(3, 1, 10, held=True)], Discipline())
    cluster.failed.add("lost")
    cluster.play(until_s=0)
    assert cluster.why() == {
        "job1": Waiting(WaitReason.DEPENDENCY, "it comes after job0, which is not done yet"),
        "job2": Waiting(
            WaitReason.DEPENDENCY,
            "it was to come after lost, which will never be done",
            is_blocked=True,
        ),
        "job3": Waiting(WaitReason.HELD, "it is held back", is_blocked=True),
    }
    cluster.play()
    assert [job.index for job in cluster.started] == [0, 1]
    # Somebody made the lost one do after all, and let go of the other.
    cluster.failed.clear()
    cluster.done.add("lost")
    cluster.jobs[3].held = False
    cluster.queue.decide()
    assert [job.index for job in cluster.started] == [0, 1, 2, 3]


def test_what_finds_no_place_on_a_free_cluster_is_passed_and_tried_again_later() -> None:
    jobs = [Job(0, 8, 10), Job(1, 2, 10, placeable=False), Job(2, 8, 10), Job(3, 99, 10)]
    cluster = Cluster([*jobs, Job(4, 1, 10)], Discipline())
    cluster.play(until_s=5)
    # While something runs, nobody passes it.
    assert cluster.why()["job2"] == Waiting(WaitReason.BEHIND, "it comes after job1")
    cluster.play()
    assert [job.index for job in cluster.started] == [0, 2, 4]
    assert cluster.why() == {
        "job1": Waiting(WaitReason.NO_PLACE, "no place", is_blocked=True),
        "job3": Waiting(
            WaitReason.NO_GPUS, "it wants 99 GPUs, and 8 of them are free", is_blocked=True
        ),
    }
    jobs[1].placeable = True
    cluster.queue.decide()
    assert not cluster.running
    cluster.layout += 1
    cluster.queue.decide()
    assert list(cluster.running) == [1]


def test_who_is_removed_waits_no_more() -> None:
    jobs = [Job(0, 8, 10), Job(1, 8, 10), Job(2, 8, 10), Job(3, 1, 10, after=("job9",))]
    cluster = Cluster(jobs, Discipline())
    cluster.play(until_s=0)
    cluster.queue.remove(jobs[1])
    cluster.queue.remove(jobs[3])
    assert list(cluster.why()) == ["job2"]
    cluster.play()
    assert [job.index for job in cluster.started] == [0, 2]


def test_without_known_ends_only_what_is_left_over_is_given_away() -> None:
    jobs = [Job(0, 4, 100), Job(1, 6, 100), Job(2, 3, 10), Job(3, 2, 10)]
    cluster = Cluster(jobs, Discipline(backfill=True))
    cluster.known = False
    cluster.queue.decide()
    cluster.play(until_s=0)
    # Job 1 leaves two of eight.
    assert [job.index for job in cluster.started] == [0, 3]


def test_nobody_is_preempted_who_may_not_be() -> None:
    jobs = [Job(0, 4, 1000, preemptible=False), Job(1, 4, 1000), Job(2, 4, 10, 500, priority=1)]
    cluster = Cluster(jobs, Discipline(preempt=True, quantum_s=100))
    cluster.play(until_s=500)
    assert sorted(cluster.running) == [0, 2]
    cluster.play(until_s=600)
    assert sorted(cluster.running) == [0, 1]


def test_a_new_queue_knows_of_who_runs_already() -> None:
    jobs = [Job(0, 4, 1000), Job(1, 4, 1000, preemptible=False)]
    cluster = Cluster(jobs, Discipline())
    cluster.play(until_s=0)
    cluster.discipline = Discipline(preempt=True, quantum_s=100)
    cluster.queue = JobQueue(cluster, cluster.discipline, FIFO)
    cluster.now_s = 200
    cluster.joined.append(Job(2, 4, 10, 200, priority=1))
    cluster.queue.decide()
    assert sorted(cluster.running) == [1, 2]


def test_what_no_gpu_would_mend_is_passed_at_once() -> None:
    class Strict(Cluster):
        def place(self, entry: Job, occupied: int | None = None) -> list[int] | Waiting:
            if entry.index == 1:
                return Waiting(WaitReason.UNREACHABLE, "no number of GPUs is in time")
            return super().place(entry, occupied)

    cluster = Strict([Job(0, 4, 10), Job(1, 1, 10), Job(2, 4, 10)], Discipline())
    cluster.play(until_s=0)
    assert sorted(cluster.running) == [0, 2]
    assert cluster.why()["job1"].is_blocked


# -- for any jobs

NAMES = ("", "ann", "bob", "eve")


@st.composite
def jobs_drawn(draw: st.DrawFn) -> list[Job]:
    drawn = []
    for number in range(draw(st.integers(1, 25))):
        before = draw(st.sets(st.integers(0, number - 1), max_size=2)) if number else set()
        job = Job(
            number,
            draw(st.integers(1, GPUS)),
            float(draw(st.integers(1, 300))),
            float(draw(st.integers(0, 300))),
            draw(st.sampled_from(NAMES)),
            draw(st.integers(-1, 1)),
            draw(st.booleans()),
            after=tuple(f"job{n}" for n in sorted(before)) if draw(st.booleans()) else (),
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
        Allowance, gpus=st.none() | st.integers(GPUS, 2 * GPUS), share=st.sampled_from([None, 2.0])
    ),
    users=st.just(()) | st.just((("ann", Allowance(share=3.0, gpus=GPUS)),)),
)
ORDERS = st.sampled_from([FIFO, FAIR, OrderTraits()])


class Watched(Cluster):
    """Looks after each pass at what must never be."""

    def after_pass(self) -> None:
        running = self.running.values()
        taken = sum(job.gpus.bit_count() for job in running)
        assert taken == self.occupancy.occupied.bit_count() == GPUS - self.occupancy.free
        for user in NAMES:
            most = self.discipline.allowance(user).gpus
            held = sum(job.workers for job in running if job.user == user)
            assert most is None or held <= most
        for job in running:
            assert self.done.issuperset(job.after)
        waiting = {
            job.name
            for job in self.jobs
            if job.arrived_s <= self.now_s and job.name not in self.done and not job.gpus
        }
        assert set(self.why()) == waiting


def copied(jobs: Sequence[Job]) -> list[Job]:
    return [replace(job, spans=[]) for job in jobs]


@given(jobs_drawn(), DISCIPLINES, ORDERS)
@settings(max_examples=150, deadline=None)
def test_everybody_gets_gpus_of_their_own_in_turn_and_is_done(
    jobs: list[Job], discipline: Discipline, order: OrderTraits
) -> None:
    runs = [Watched(copied(jobs), discipline, order) for _ in range(2)]
    for cluster in runs:
        cluster.play()
        assert cluster.done == {job.name for job in jobs}
    # The same jobs, the same lives.
    assert [job.spans for job in runs[0].jobs] == [job.spans for job in runs[1].jobs]


class Promising(Cluster):
    """Notes, for each that is first in line, when it can start at the latest."""

    latest_s: dict[int, float]

    def after_pass(self) -> None:
        head = self.queue.first()
        if head is None or head.index in self.latest_s:
            return
        free, when_s = self.occupancy.free, self.now_s
        for ends_s, gpus, _ in self.ends():
            if free >= head.workers:
                break
            when_s, free = ends_s, free + gpus.bit_count()
        self.latest_s[head.index] = when_s


@given(jobs_drawn(), st.integers(1, 30))
@settings(max_examples=150, deadline=None)
def test_backfilling_never_puts_off_the_next_one(jobs: list[Job], depth: int) -> None:
    alike = [replace(job, priority=0, after=(), spans=[]) for job in jobs]
    cluster = Promising(alike, Discipline(backfill=True, backfill_depth=depth))
    cluster.latest_s = {}
    cluster.play()
    for index, latest_s in cluster.latest_s.items():
        assert alike[index].spans[0][0] <= latest_s + 1e-6


@given(jobs_drawn())
@settings(max_examples=150, deadline=None)
def test_fair_share_starts_nobody_before_a_user_who_had_less(jobs: list[Job]) -> None:
    class Fair(Cluster):
        def start(self, entry: Job, placement: list[int]) -> bool:
            came = [each for each in self.jobs if each.arrived_s <= self.now_s]
            users = {each.user for each in came if each.name not in self.done and not each.gpus}
            assert self.accounts is not None
            shares = self.accounts.shares(self.now_s)
            assert shares.get(entry.user, 0.0) == min(shares.get(user, 0.0) for user in users)
            return super().start(entry, placement)

    cluster = Fair(
        [replace(job, priority=0, after=(), spans=[]) for job in jobs], Discipline(), FAIR
    )
    cluster.play()
    assert len(cluster.done) == len(jobs)
