"""The queue on a site of its own: order, quotas, shares, dependencies, and why entries wait."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from patchlight.controller.jobs.discipline.contract import (
    UserAccounts,
    admission,
)
from patchlight.controller.jobs.discipline.queue import JobQueue
from patchlight.testbed.lab.rules import (
    Allowance,
    Discipline,
    Waiting,
    WaitReason,
)
from tests.support.queued_site import FAIR, FIFO, Cluster, Job


def test_priority_comes_before_the_order() -> None:
    jobs = [Job(0, 8, 10), Job(1, 8, 10, 1), Job(2, 8, 10, 2, priority=5)]
    cluster = Cluster(jobs, Discipline())
    cluster.play(until_s=2)
    assert {name: why.words for name, why in cluster.why().items()} == {
        "job2": "it needs 8 GPUs, and 0 of them are free",
        "job1": "it depends on job2",
    }
    cluster.play()
    assert [job.index for job in cluster.started] == [0, 2, 1]


def test_a_user_over_the_quota_holds_up_nobody() -> None:
    jobs = [
        Job(0, 3, 10, user="ann"),
        Job(1, 2, 10, user="ann"),
        Job(2, 1, 10, user="ann"),
    ]
    jobs.append(Job(3, 4, 10, user="bob"))
    cluster = Cluster(jobs, Discipline(each_user=Allowance(gpus=4)))
    cluster.play(until_s=0)
    assert [job.index for job in cluster.started] == [0, 3]
    why = cluster.why()
    assert why["job1"] == Waiting(
        WaitReason.QUOTA,
        "user ann has 3 of at most 4 GPUs, and it needs 2",
        is_blocked=True,
    )
    # A user's own jobs stay in turn: small ones would keep a large one waiting for ever.
    assert why["job2"] == Waiting(WaitReason.BEHIND, "it depends on job1")
    cluster.play()
    assert [job.index for job in cluster.started] == [0, 3, 1, 2]


def test_gpu_hours_are_there_again_in_the_next_window() -> None:
    jobs = [
        Job(0, 8, 1800, user="ann"),
        Job(1, 1, 10, user="ann"),
        Job(2, 1, 9000, user="bob"),
    ]
    allowed = ("ann", Allowance(gpu_hours=4))
    cluster = Cluster(jobs, Discipline(users=(allowed,), quota_window_s=7200))
    cluster.play(until_s=1800)
    why = cluster.why()["job1"]
    assert why.reason is WaitReason.QUOTA
    assert (
        "has used 4 GPU-hours, the quota: more become available in 1.5 h"
        in why.words
    )
    cluster.play()
    assert jobs[1].spans[0][0] == 7200


def test_who_may_not_even_wait() -> None:
    discipline = Discipline(
        each_user=Allowance(jobs=2),
        users=(("ann", Allowance(gpus=4, jobs=1)),),
    )
    assert admission(discipline, "bob", 100, 1) is None
    for user, gpus, jobs in (("bob", 1, 2), ("ann", 1, 1), ("ann", 5, 0)):
        why = admission(discipline, user, gpus, jobs)
        assert why is not None
        assert why.reason is WaitReason.QUOTA


def test_fair_share_goes_by_use_over_share_and_forgets() -> None:
    discipline = Discipline(
        half_life_s=1000, users=(("bob", Allowance(share=3)),)
    )
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
    cluster = Cluster(
        [*heavy, Job(10, 8, 100, 150, user="bob")], Discipline(), FAIR
    )
    cluster.play()
    assert [job.index for job in cluster.started][:4] == [0, 1, 10, 2]


def test_what_comes_after_others_waits_until_they_are_done() -> None:
    jobs = [
        Job(0, 1, 50),
        Job(1, 1, 10, after=("job0",)),
        Job(2, 1, 10, after=("lost", "job0")),
    ]
    cluster = Cluster([*jobs, Job(3, 1, 10, held=True)], Discipline())
    cluster.failed.add("lost")
    cluster.play(until_s=0)
    assert cluster.why() == {
        "job1": Waiting(
            WaitReason.DEPENDENCY, "it depends on job0, which is not done yet"
        ),
        "job2": Waiting(
            WaitReason.DEPENDENCY,
            "it depends on lost, which can no longer succeed",
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


def test_what_finds_no_place_on_a_free_cluster_is_passed_and_tried_again_later() -> (
    None
):
    jobs = [
        Job(0, 8, 10),
        Job(1, 2, 10, placeable=False),
        Job(2, 8, 10),
        Job(3, 99, 10),
    ]
    cluster = Cluster([*jobs, Job(4, 1, 10)], Discipline())
    cluster.play(until_s=5)
    # While something runs, nobody passes it.
    assert cluster.why()["job2"] == Waiting(
        WaitReason.BEHIND, "it depends on job1"
    )
    cluster.play()
    assert [job.index for job in cluster.started] == [0, 2, 4]
    assert cluster.why() == {
        "job1": Waiting(WaitReason.NO_PLACE, "no place", is_blocked=True),
        "job3": Waiting(
            WaitReason.NO_GPUS,
            "it needs 99 GPUs, and 8 of them are free",
            is_blocked=True,
        ),
    }
    jobs[1].placeable = True
    cluster.queue.decide()
    assert not cluster.running
    cluster.layout += 1
    cluster.queue.decide()
    assert list(cluster.running) == [1]


def test_who_is_removed_waits_no_more() -> None:
    jobs = [
        Job(0, 8, 10),
        Job(1, 8, 10),
        Job(2, 8, 10),
        Job(3, 1, 10, after=("job9",)),
    ]
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
    jobs = [
        Job(0, 4, 1000, preemptible=False),
        Job(1, 4, 1000),
        Job(2, 4, 10, 500, priority=1),
    ]
    cluster = Cluster(jobs, Discipline(preempt=True, quantum_s=100))
    cluster.play(until_s=500)
    assert sorted(cluster.running) == [0, 2]
    cluster.play(until_s=600)
    assert sorted(cluster.running) == [0, 1]


class Dim(Cluster):
    """No light joins the ``dark`` GPUs to others."""

    dark = 0

    def can_start(
        self, entry: Job, placement: list[int], without: Sequence[Job]
    ) -> bool:
        assert all(each.index in self.running for each in without)
        return len(placement) == 1 or not self.dark & self.gpus_of(placement)

    def start(self, entry: Job, placement: list[int]) -> bool:
        return self.can_start(entry, placement, ()) and super().start(
            entry, placement
        )


def test_nobody_loses_gpus_that_no_light_joins() -> None:
    jobs = [Job(0, 3, 1000, priority=2), Job(1, 2, 1000), Job(2, 1, 1000)]
    jobs.append(Job(3, 3, 10, 500, priority=1))
    cluster = Dim(jobs, Discipline(preempt=True, quantum_s=100))
    cluster.dark = 0b0100_0000
    cluster.play(until_s=500)
    assert sorted(cluster.running) == [0, 3], (
        "on those of jobs 1 and 2, as GPU 6 is dark"
    )
    assert jobs[3].gpus == 0b0011_1000
    # Where all that it could have are dark, everybody goes on, however often it looks again.
    jobs = [replace(job, gpus=0, had_s=0.0, spans=[]) for job in jobs]
    cluster = Dim(jobs, Discipline(preempt=True, backfill=True, quantum_s=100))
    cluster.dark = 0b0010_0000
    cluster.play()
    assert [len(job.spans) for job in jobs] == [1, 1, 1, 1]


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
        def place(
            self, entry: Job, occupied: int | None = None
        ) -> list[int] | Waiting:
            if entry.index == 1:
                return Waiting(
                    WaitReason.UNREACHABLE, "no number of GPUs is in time"
                )
            return super().place(entry, occupied)

    cluster = Strict(
        [Job(0, 4, 10), Job(1, 1, 10), Job(2, 4, 10)], Discipline()
    )
    cluster.play(until_s=0)
    assert sorted(cluster.running) == [0, 2]
    assert cluster.why()["job1"].is_blocked
