"""A queue under policies: who runs when, worked out by hand."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from patchlight.controller.policies.contract import (
    ClusterView,
    JobView,
    Progress,
)
from patchlight.controller.policies.degrees import GiveAndTake
from patchlight.controller.policies.order import (
    Deadline,
    Fifo,
    LeastAttainedService,
    Srpt,
)
from patchlight.controller.policies.placement import FirstFit, RandomPlacement
from patchlight.controller.prediction.network import Training
from patchlight.emulation.simulator.cluster import (
    Policies,
    QueueJob,
    QueueResult,
    Settings,
    TwoLevel,
    queue_jobs,
    simulate,
)
from patchlight.emulation.simulator.cluster.jobs import SyntheticJobs, load_of
from patchlight.emulation.simulator.cluster.results import (
    JobRecord,
    summary_of,
)
from patchlight.emulation.simulator.cluster.simulation import Simulation
from patchlight.emulation.simulator.cluster.sweep import QueueScheduler
from patchlight.emulation.simulator.outages import Outages
from patchlight.emulation.simulator.traces.model import TraceJob
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.rules import Allowance

FOUR = TwoLevel(1, 1, 4)


def job(
    name: str, at_s: float, gpus: int, lasts_s: float, **more: Any
) -> QueueJob:
    return QueueJob(JobView(name, gpus, arrived_s=at_s, **more), lasts_s)


def run(*what: Any, **more: Any) -> dict[str, JobRecord]:
    return {record.name: record for record in whole(*what, **more).records}


def whole(
    jobs: Sequence[QueueJob],
    order: Any = None,
    cluster: TwoLevel = FOUR,
    placement: Any = None,
    **settings: Any,
) -> QueueResult:
    policies = Policies(order or Fifo(), placement or FirstFit())
    return simulate(cluster, jobs, policies, Settings(**settings))


BEHIND = [
    job("a", 0, 3, 100),
    job("b", 1, 4, 50),
    job("c", 2, 1, 20),
    job("d", 3, 1, 500),
]


def test_backfilling_holds_up_nobody() -> None:
    found = run(BEHIND, backfill=True)
    # c ends before b can begin, d would not.
    assert {n: r.started_s for n, r in found.items()} == {
        "a": 0,
        "b": 100,
        "c": 2,
        "d": 150,
    }
    # b leaves one GPU free: a long job may have that.
    smaller = [BEHIND[0], job("b", 1, 3, 50), *BEHIND[2:]]
    assert run(smaller, backfill=True)["d"].started_s == 22
    with pytest.raises(BadInput, match="needs job durations"):
        Settings(backfill=True, known=False)


def test_the_earliest_deadline_is_next_and_missed_ones_are_counted() -> None:
    traced = [
        TraceJob("a", 0, 100, 4),
        TraceJob("b", 1, 50, 4),
        TraceJob("c", 2, 10, 4, deadline_s=105),
        TraceJob("d", 3, 10, 4, deadline_s=1000),
    ]
    result = whole(queue_jobs(traced), Deadline())
    started = {record.name: record.started_s for record in result.records}
    assert started == {"a": 0, "c": 100, "d": 110, "b": 120}
    summary = summary_of(result)
    assert (summary["deadlines"], summary["deadlines_missed"]) == (2, 1)


def test_a_policy_that_looks_at_the_clock_is_asked_again() -> None:
    class Aging:
        """Turns round after 50 s."""

        def priority(
            self, cluster: ClusterView, job: JobView, progress: Progress
        ) -> float:
            return job.arrived_s if cluster.now_s < 50 else -job.arrived_s

    jobs = [job("a", 0, 4, 100), job("b", 1, 4, 10), job("c", 2, 4, 10)]
    assert run(jobs, Aging())["c"].started_s == 100
    assert run(jobs, Fifo())["c"].started_s == 110


def test_outages_are_drawn_by_seed() -> None:
    jobs = [job(str(n), 50.0 * n, 2, 400) for n in range(100)]
    cluster = TwoLevel(2, 2, 2)

    def losses(seed: int) -> list[float]:
        found = run(
            jobs, cluster=cluster, outages=Outages("gpu", 3000, 500), seed=seed
        )
        assert all(record.state == "done" for record in found.values())
        return [record.ended_s for record in found.values()]

    assert losses(1) == losses(1) != losses(2)


def test_jobs_that_can_never_run_are_blocked_and_hold_up_nobody() -> None:
    class OneServer:
        def place(
            self, cluster: ClusterView, job: JobView, workers: int
        ) -> Any:
            free = [
                members & cluster.free for members in cluster.shape.server_gpus
            ]
            fitting = [gpus for gpus in free if gpus.bit_count() >= workers]
            if not fitting:
                return None
            return [gpu for gpu in range(8) if fitting[0] >> gpu & 1][:workers]

    jobs = [
        job("a", 0, 2, 10),
        job("wide", 1, 3, 10),
        job("huge", 2, 9, 10),
        job("b", 3, 1, 10),
    ]
    for outages in (None, Outages("server", 1e5, 1e3)):
        result = whole(
            jobs,
            cluster=TwoLevel(2, 2, 2),
            placement=OneServer(),
            outages=outages,
        )
        causes = {record.name: record.cause for record in result.records}
        assert causes == {
            "a": "",
            "wide": "unplaceable",
            "huge": "too-large",
            "b": "",
        }
        summary = summary_of(result)
        assert summary["blocked"] == {"too-large": 1, "unplaceable": 1}
        assert summary["blocking_rate"] == 0.5


def test_an_unplaceable_job_holds_up_others_only_while_something_runs() -> (
    None
):
    class NotWide(FirstFit):
        def place(
            self, cluster: ClusterView, job: JobView, workers: int
        ) -> Any:
            return (
                None
                if job.name == "wide"
                else super().place(cluster, job, workers)
            )

    jobs = [
        job("a", 0, 4, 10),
        job("wide", 1, 2, 10),
        job("b", 2, 4, 10),
        job("late", 99, 1, 10),
    ]
    found = run(jobs, placement=NotWide())
    assert (found["wide"].cause, found["wide"].waited_s) == ("unplaceable", 9)
    assert (found["b"].started_s, found["late"].started_s) == (10, 99)


@pytest.mark.parametrize("answer", [[0, 0], [0], [0, 9], [-1, 0]])
def test_nonsense_of_a_placement_policy_is_an_error(answer: list[int]) -> None:
    class Odd:
        def place(
            self, cluster: ClusterView, job: JobView, workers: int
        ) -> list[int]:
            return answer

    with pytest.raises(BadInput, match="job a cannot run on GPUs"):
        run([job("a", 0, 2, 10)], placement=Odd())


def test_views_tell_the_truth_and_stay_as_they_were() -> None:
    seen: list[ClusterView] = []

    class Looking(FirstFit):
        def place(
            self, cluster: ClusterView, job: JobView, workers: int
        ) -> Any:
            seen.append(cluster)
            if len(seen) == 3:
                assert cluster.preview(job, 1) == 0b1000
                assert cluster.preview(job, 2) is None
            return super().place(cluster, job, workers)

    run(
        [job("a", 0, 1, 100), job("b", 10, 2, 20), job("c", 20, 1, 5)],
        placement=Looking(),
    )
    del seen[3]  # That was the preview.
    assert [view.now_s for view in seen] == [0, 10, 20]
    assert [view.occupied for view in seen] == [0, 0b1, 0b111]
    running = [(job.name, job.ends_s, job.gpus) for job in seen[2].running]
    assert running == [("b", 30, 0b110), ("a", 100, 0b1)]
    assert [view.name for view in seen[2].recent] == ["a", "b", "c"]


@pytest.mark.parametrize("preempt", [False, True])
@pytest.mark.parametrize("order", [Fifo(), Srpt(), LeastAttainedService()])
def test_every_job_is_done_and_gpus_are_never_shared(
    order: Any, preempt: bool
) -> None:
    jobs = SyntheticJobs(count=150, load=2.0).draw(
        np.random.default_rng(0), 32
    )
    cluster = TwoLevel(4, 2, 4, oversubscription=4)
    outages = Outages("server", 2e5, 1e4)
    result = whole(
        jobs,
        order,
        cluster,
        RandomPlacement(1),
        preempt=preempt,
        outages=outages,
    )
    records = result.records
    assert all(record.state == "done" for record in records)
    summary = summary_of(result)
    held_s = float(
        (result.series.held * np.diff(result.series.until_s, prepend=0)).sum()
    )
    assert held_s == pytest.approx(
        sum(r.allocated_gpu_s for r in records), rel=1e-9
    )
    assert result.series.held.max() <= 32
    assert 0 < summary["busy"] <= summary["allocated"] <= 1
    for record in records:
        lived = record.waited_s + record.allocated_gpu_s / record.gpus
        assert record.jct_s == pytest.approx(lived, rel=1e-9)
        # Whatever was lost or shared, it did at least its work.
        assert record.busy_gpu_s >= 0.74 * record.duration_s * record.gpus


def test_figures_of_a_small_case() -> None:
    summary = summary_of(whole(BEHIND))
    assert summary["makespan_s"] == 650
    assert summary["queue_max"] == 3
    assert summary["jct_s"]["mean"] == pytest.approx(
        (100 + 149 + 168 + 647) / 4
    )
    assert summary["allocated"] == pytest.approx(
        (300 + 200 + 20 + 500) / (4 * 650)
    )
    # One of four GPUs is free beside a for 100 s, two or three of them after b: always in pieces.
    assert summary["fragmentation"] == pytest.approx(1.0)
    assert summary["held_up_s"] == 0
    assert summary["decisions"]["placements"] == 4
    assert not math.isnan(summary["decisions"]["latency_p99_s"])


def test_jobs_out_of_order_are_refused() -> None:
    with pytest.raises(BadInput, match="order of their arrival"):
        whole([job("a", 5, 1, 1), job("b", 0, 1, 1)])


def test_failures_are_read() -> None:
    assert Outages.parse("server:30d:4h") == Outages(
        "server", 30 * 86400, 4 * 3600
    )


class _LargeFirst:
    stable = True

    def priority(
        self, cluster: ClusterView, job: JobView, progress: Progress
    ) -> float:
        return -job.workers


def test_backfilling_reckons_with_the_time_to_begin_again() -> None:
    jobs = [
        job("stays", 0, 2, 100),
        job("again", 0, 2, 100),
        job("large", 10, 4, 10),
    ]
    simulation = Simulation(FOUR, jobs, Settings(backfill=True, restart_s=60))
    scheduler = QueueScheduler(simulation, Policies(_LargeFirst(), FirstFit()))
    for _ in range(2):
        simulation.advance()
        scheduler.decide()
    assert simulation.now_s == 10
    # Preempted, it would be done when "large" can start, but for the time to begin again.
    simulation.preempt(simulation.jobs[1])
    scheduler.decide()
    assert simulation.jobs[1].state == "waiting"
    simulation.advance()
    scheduler.decide()
    assert (simulation.now_s, simulation.jobs[2].state) == (100, "running")


def elastic(
    name: str, at_s: float, gpus: int, lasts_s: float, **more: Any
) -> QueueJob:
    """A job that computes alone, for as long as it takes on so many GPUs."""
    return job(name, at_s, gpus, lasts_s, **more)._replace(degrees=(1, 2, 4))


def resized(
    jobs: Sequence[QueueJob], **settings: Any
) -> tuple[dict[str, JobRecord], int]:
    policies = Policies(Fifo(), FirstFit(), elasticity=GiveAndTake())
    result = simulate(FOUR, jobs, policies, Settings(restart_s=10, **settings))
    return {record.name: record for record in result.records}, result.resizes


def test_a_job_grows_into_gpus_that_nobody_wants() -> None:
    # On 4 GPUs instead of 2 it is done in half the time, after 10 s to begin again.
    found, resizes = resized([elastic("a", 0, 2, 100)])
    assert found["a"].ended_s == pytest.approx(10 + 50)
    assert resizes == 1
    assert found["a"].allocated_gpu_s == pytest.approx(4 * 60)
    assert found["a"].busy_gpu_s == pytest.approx(2 * 100)
    assert (found["a"].waited_s, found["a"].preemptions) == (0, 0)
    # Of 20 s, it would gain 10, which it costs.
    found, resizes = resized([elastic("a", 0, 2, 20)])
    assert (found["a"].ended_s, resizes) == (20, 0)
    mine = Allowance(gpus=3)
    found, resizes = resized(
        [elastic("a", 0, 2, 100, user="ann")], each_user=mine
    )
    assert (found["a"].ended_s, resizes) == (100, 0)


def test_a_job_shrinks_for_one_that_waits_and_grows_again() -> None:
    found, resizes = resized([elastic("a", 0, 2, 100), job("b", 20, 2, 10)])
    # At 20 s it has 80 s left of 2 GPUs, or 40 of 4. b has two GPUs from 20 to 30 s; then a
    # begins again on 4, at 40.
    assert (found["b"].started_s, found["b"].ended_s) == (20, 30)
    assert found["a"].ended_s == pytest.approx(30 + 10 + 40)
    assert resizes == 3
    # For 30 s, it would lose 2 · 10 + 15 s: more than the 30 that b gains.
    found, resizes = resized([elastic("a", 0, 2, 100), job("b", 20, 2, 30)])
    assert (found["a"].ended_s, found["b"].started_s, resizes) == (60, 60, 1)


def test_a_job_that_grew_can_be_preempted() -> None:
    jobs = [elastic("a", 0, 2, 100), job("c", 0, 2, 10), job("b", 40, 4, 5)]
    policies = Policies(Srpt(), FirstFit(), elasticity=GiveAndTake())
    settings = Settings(restart_s=10, preempt=True, quantum_s=5)
    found = {
        r.name: r for r in simulate(FOUR, jobs, policies, settings).records
    }
    # a has four GPUs from 10 s on, and 50 s of two left when b comes.
    assert (found["b"].started_s, found["a"].preemptions) == (40, 1)
    assert found["a"].ended_s == pytest.approx(45 + 10 + 25)


def test_on_other_numbers_of_gpus_a_job_moves_the_same_gradient() -> None:
    traced = elastic("a", 0, 2, 100)._replace(communication=0.2)
    nic_bps = 1e9
    # n GPUs compute 2/n as long; each edge of the ring carries (n−1)/n of twice the gradient.
    wanted = {1: 1.6, 2: 0.8 + 0.2, 4: 0.4 + 0.2 * (3 / 4) / (1 / 2)}
    for workers, seconds in wanted.items():
        assert load_of(traced, workers, (), nic_bps).unit_s(
            nic_bps
        ) == pytest.approx(seconds)
    split = Training(100, 1e9, {"M40": 0.8}, split=True)
    trained = traced._replace(training=split)
    bits = 2 * 3 / 4 * 8e9
    assert load_of(trained, 4, ["M40"], 1e10).unit_s(1e10) == pytest.approx(
        0.2 + bits / 1e10
    )


def test_jobs_of_a_trace_may_have_half_or_twice_as_many() -> None:
    jobs = queue_jobs([TraceJob(str(n), 0, 100, n) for n in (1, 2, 3, 8)])
    assert [job.degrees for job in jobs] == [(), (1, 2, 4), (3, 6), (4, 8, 16)]


def test_a_job_whose_degree_is_open_gets_what_the_policy_says_each_time_it_starts() -> (
    None
):
    asked: list[tuple[int, ...]] = []

    class Largest:
        def degree(
            self, cluster: ClusterView, job: JobView, legal: tuple[int, ...]
        ) -> int | None:
            asked.append(legal)
            return legal[-1] if job.name != "patient" or 4 in legal else None

    view = JobView(
        "open", 0, arrived_s=0.0, sequential_s=400, degrees=(1, 2, 4)
    )
    training = Training(100, 0.0, {"": 4.0}, split=True)
    jobs = [
        QueueJob(view, 400, training=training, degrees=(1, 2, 4)),
        job("first", 10, 2, 50)._replace(priority=1),
        QueueJob(
            view._replace(name="patient", arrived_s=11.0),
            400,
            training=training,
        ),
    ]
    policies = Policies(Fifo(), FirstFit(), None, None, Largest())
    result = simulate(
        FOUR, jobs, policies, Settings(preempt=True, quantum_s=1, restart_s=0)
    )
    found = {record.name: record for record in result.records}
    # Four GPUs, of which two are taken; then it goes on with two, 90 s of four are left.
    assert asked[:2] == [(0, 1, 2, 4), (0, 1, 2)]
    assert (found["first"].started_s, found["open"].preemptions) == (10, 1)
    assert found["open"].ended_s == pytest.approx(10 + 180)
    assert found["patient"].started_s == pytest.approx(190)
    assert found["patient"].gpus == 4
    assert found["patient"].ended_s == pytest.approx(290)


def test_a_job_that_says_no_number_of_gpus_is_refused() -> None:
    with pytest.raises(BadInput, match="no number of GPUs"):
        run([QueueJob(JobView("a"), 10)])


def test_without_a_partition_policy_a_job_whose_degree_is_open_never_starts() -> (
    None
):
    view = JobView("open", 0, sequential_s=400, degrees=(1, 2, 4))
    open_job = QueueJob(
        view, 400, training=Training(100, 0.0, {"": 4.0}, split=True)
    )
    assert run([open_job])["open"].state == "blocked"
