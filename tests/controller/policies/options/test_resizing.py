"""What other numbers of workers cost and gain, and the rule that goes by it, worked out by hand."""

import math
from collections.abc import Sequence
from typing import Any

import pytest

from patchlight.controller.policies.cheapest import HORIZON_S
from patchlight.controller.policies.contract import (
    ClusterShape,
    ClusterView,
    ElasticJob,
    GpuSite,
    QueuedJob,
    Running,
)
from patchlight.controller.policies.options.listing import (
    MOST_OPTIONS,
    Listing,
)
from patchlight.controller.policies.options.outlook import (
    Outlook,
    Prospect,
    Resizing,
)
from patchlight.controller.policies.registry import load_policy

SHAPE = ClusterShape(
    tuple(
        GpuSite(f"s{n}.g", n, 0, "M40" if n < 6 else "Titan") for n in range(8)
    ),
    tuple(f"s{n}" for n in range(8)),
    ("r0",),
)
HALVES = {1: 4.0, 2: 2.0, 4: 1.0, 8: 0.5}


def view(*running: tuple[str, int, float]) -> ClusterView:
    """A cluster at 1,000 s where these jobs, each with its GPUs, end in so many seconds."""
    jobs = [
        Running(1000 + ends_s, gpus, name) for name, gpus, ends_s in running
    ]
    occupied = sum(job.gpus for job in jobs)
    return ClusterView(1000.0, SHAPE, occupied, running=tuple(sorted(jobs)))


def elastic(
    name: str, degree: int, left: float, cost_s: float = 10.0
) -> ElasticJob:
    return ElasticJob(name, degree, HALVES, left, cost_s)


def cost(prospect: Prospect) -> tuple[float, float]:
    assert prospect.lasts_s == 0
    return prospect.delays_s, prospect.queue_s


def rule(
    cluster: ClusterView, jobs: Sequence[ElasticJob], *queue: QueuedJob
) -> dict[str, int]:
    policy: Any = load_policy("least-delay", "elasticity")
    return dict(policy.resize(cluster, jobs, queue))


def test_a_job_that_grows_holds_more_for_a_shorter_time() -> None:
    cluster = view(("a", 0b11, 200.0))
    jobs = [elastic("a", 2, 100)]
    # It ends in 110 s on 4 GPUs, not in 200 on 2: 40 of the GPU-seconds of 8 more are held.
    assert cost(Resizing(cluster, jobs, []).of({"a": 4})) == pytest.approx(
        (-90, 40 / 8)
    )
    assert rule(cluster, jobs) == {"a": 8}
    assert rule(view(("a", 0b11, 20.0)), [elastic("a", 2, 10)]) == {}


def test_all_that_wait_count_for_a_job_that_shrinks() -> None:
    cluster = view(("a", 0xFF, 50.0))
    jobs = [elastic("a", 8, 100)]
    one = QueuedJob("b", 2)
    two = QueuedJob("c", 2)
    for queue, sooner_s in (
        ([one], 50),
        ([one, two], 100),
        ([one, two, two], 100),
    ):
        found = Resizing(cluster, jobs, queue).of({"a": 4})
        # It ends in 110 s. Who finds no room in the GPUs that come free waits until then.
        later_s = 60 if len(queue) == 3 else 0
        assert cost(found) == pytest.approx(
            (60, later_s - sooner_s + (4 * 110 - 8 * 50) / 8)
        )
    # give-and-take looks at one that waits: 40 s sooner is less than 60 s later.
    assert (
        load_policy("give-and-take", "elasticity").resize(  # type: ignore[union-attr]
            cluster, jobs, [one, two]
        )
        == {}
    )
    assert rule(cluster, jobs, one) == {}
    assert rule(cluster, jobs, one, two) == {"a": 4}


def test_what_shrinks_may_grow_again_when_those_that_begin_have_ended() -> (
    None
):
    cluster = view(("a", 0xFF, 500.0))
    jobs = [elastic("a", 8, 1000)]
    # For 50 s half as fast, and two changes: less than 510 s.
    assert (
        cost(
            Resizing(cluster, jobs, [QueuedJob("b", 4, lasts_s=50)]).of(
                {"a": 4}
            )
        )[0]
        == 45
    )
    # The second one that begins at once takes longer; the third begins later.
    queue = [
        QueuedJob(name, 2, lasts_s=s)
        for name, s in (("b", 50), ("c", 70), ("d", 900))
    ]
    assert cost(Resizing(cluster, jobs, queue).of({"a": 4}))[0] == 55
    # Nobody can begin: it is for good.
    assert (
        cost(
            Resizing(cluster, jobs, [QueuedJob("b", 8, lasts_s=50)]).of(
                {"a": 4}
            )
        )[0]
        == 510
    )


def test_who_waits_needs_gpus_of_its_models() -> None:
    # Of four that end at once, two are Titan.
    cluster = view(("a", 0b00001111, 100.0), ("b", 0b11110000, 300.0))
    jobs = [elastic("a", 4, 100)]
    titans = QueuedJob("c", 2, frozenset(["Titan"]))
    kept = Resizing(cluster, jobs, [titans]).of({"a": 2})
    # It waits for b all the same.
    assert kept.queue_s == pytest.approx((2 * 210 - 4 * 100) / 8)
    any_gpu = Resizing(cluster, jobs, [QueuedJob("c", 2)]).of({"a": 2})
    assert any_gpu.queue_s == pytest.approx(kept.queue_s - 100)
    # Who can never begin holds up nobody.
    never = QueuedJob("d", 3, frozenset(["Titan"]))
    assert Resizing(cluster, jobs, [never]).of(
        {"a": 2}
    ).queue_s == pytest.approx(kept.queue_s)


def test_what_nobody_knows_counts_as_an_hour() -> None:
    cluster = view(("a", 0xFF, math.inf))
    jobs = [elastic("a", 8, math.inf)]
    found = Resizing(cluster, jobs, [QueuedJob("b", 4)]).of({"a": 4})
    held_gpu_s = 4 * (2 * HORIZON_S + 10) - 8 * HORIZON_S
    assert cost(found) == pytest.approx(
        (HORIZON_S + 10, held_gpu_s / 8 - HORIZON_S)
    )


def test_the_options_are_the_cheapest_and_to_leave_all() -> None:
    names = [f"j{n}" for n in range(4)]
    cluster = view(
        *((name, 0b11 << 2 * n, 100.0) for n, name in enumerate(names))
    )
    jobs = [elastic(name, 2, 50 + n) for n, name in enumerate(names)]
    waits = QueuedJob("w", 3, lasts_s=10)
    keep, *others = Listing().sizes(Outlook(cluster, None), jobs, [waits])
    assert (keep.answer, keep.prospect.cost_s) == ({}, 0)
    # Three together make room, which no job alone can.
    assert {"j0": 1, "j1": 1, "j2": 1} in [option.answer for option in others]
    assert {len(option.answer) for option in others} == {1, 3}
    assert [option.taken for option in others if len(option.answer) == 1] == [
        -1
    ] * 4
    costs = [option.prospect.cost_s for option in others]
    assert costs == sorted(costs)
    (given,) = (option for option in others if option.proposers)
    assert given.answer == {"j0": 1, "j1": 1, "j2": 1}
    assert list(Resizing(cluster, jobs, [waits]).single(2)) == [
        {"j0": 1},
        {"j1": 1},
    ]
    many = [
        job._replace(iteration_s={n: 4.0 / n for n in range(1, 9)})
        for job in jobs
    ]
    free = cluster._replace(occupied=0)
    listed = Listing().sizes(Outlook(free, None), many, [])
    assert len(listed) == MOST_OPTIONS
    assert listed[0].answer == {}
