"""Which jobs the elasticity policy *give-and-take* grows and shrinks, worked out by hand."""

import math
from collections.abc import Sequence

import pytest

from patchlight.controller.policies.contract import (
    ClusterShape,
    ClusterView,
    ElasticJob,
    GpuSite,
    QueuedJob,
    Running,
)
from patchlight.controller.policies.degrees import GiveAndTake, Rigid

SHAPE = ClusterShape(
    tuple(
        GpuSite(f"s{n}.g", n, 0, "M40" if n < 6 else "Titan") for n in range(8)
    ),
    tuple(f"s{n}" for n in range(8)),
    ("r0",),
)
HALVES = {1: 4.0, 2: 2.0, 4: 1.0, 8: 0.5}


def view(*running: tuple[str, int, float], now_s: float = 0.0) -> ClusterView:
    """A cluster where these jobs, each with its GPUs and its end, run."""
    jobs = tuple(Running(ends_s, gpus, name) for name, gpus, ends_s in running)
    occupied = 0
    for job in jobs:
        occupied |= job.gpus
    return ClusterView(now_s, SHAPE, occupied, running=tuple(sorted(jobs)))


def elastic(
    name: str, degree: int, left: float, cost_s: float = 10.0
) -> ElasticJob:
    return ElasticJob(name, degree, HALVES, left, cost_s)


def answer(
    cluster: ClusterView, jobs: Sequence[ElasticJob], *queue: QueuedJob
) -> dict[str, int]:
    assert Rigid().resize(cluster, jobs, queue) == {}
    return dict(GiveAndTake().resize(cluster, jobs, queue))


def test_a_job_grows_into_idle_gpus_where_that_pays() -> None:
    two_free = view(("a", 0b11, 200.0), ("b", 0b111100, 200.0))
    # From 2 to 4: 1 s less in each iteration, at a cost of 10 s.
    assert answer(two_free, [elastic("a", 2, 100)]) == {"a": 4}
    assert answer(two_free, [elastic("a", 2, 10)]) == {}
    assert answer(two_free, [elastic("a", 2, 10.1)]) == {"a": 4}
    assert answer(two_free, [elastic("a", 2, math.inf)]) == {"a": 4}
    # On to 8: half a second less each, for nothing more.
    assert answer(view(("a", 0b11, 200.0)), [elastic("a", 2, 20)]) == {"a": 8}


def test_the_idle_gpus_go_where_each_gains_most() -> None:
    cluster = view(("a", 0b11, 400.0), ("b", 0b1100, 800.0))
    # Of four that are free, b takes two and could not go on to 8 with the other two.
    assert answer(cluster, [elastic("a", 2, 200), elastic("b", 2, 400)]) == {
        "a": 4,
        "b": 4,
    }
    tight = view(
        ("a", 0b11, 400.0), ("b", 0b1100, 800.0), ("c", 0b110000, 50.0)
    )
    assert answer(tight, [elastic("a", 2, 200), elastic("b", 2, 400)]) == {
        "b": 4
    }


def test_a_job_shrinks_for_one_that_could_start_then() -> None:
    cluster = view(("a", 0xFF, 500.0))
    jobs = [elastic("a", 8, 1000)]
    # It would wait for 500 s, and gets 4 GPUs in 10. The other loses 0.5 s an iteration for good,
    # which is 510 s, or half of what the new one takes and two changes, 20 + 25 s.
    assert answer(cluster, jobs, QueuedJob("b", 4, lasts_s=50.0)) == {"a": 4}
    assert answer(cluster, jobs, QueuedJob("b", 4)) == {}
    assert answer(cluster, jobs, QueuedJob("b", 4, lasts_s=941.0)) == {}
    assert answer(cluster, jobs, QueuedJob("b", 4, lasts_s=939.0)) == {"a": 4}
    # Nobody can free eight, but four for the next.
    large = QueuedJob("b", 8, lasts_s=50.0)
    assert answer(cluster, jobs, large) == {}
    assert answer(cluster, jobs, large, QueuedJob("c", 4, lasts_s=50.0)) == {
        "a": 4
    }


def test_no_job_shrinks_for_one_that_has_room_or_needs_other_gpus() -> None:
    half = view(("a", 0b1111, 500.0))
    jobs = [elastic("a", 4, 1000)]
    assert answer(half, jobs, QueuedJob("b", 4, lasts_s=50.0)) == {}
    busy = view(("a", 0b1111, 500.0), ("c", 0b11110000, 2000.0))
    titans = QueuedJob("b", 2, frozenset({"Titan"}), lasts_s=50.0)
    assert answer(busy, jobs, titans) == {}
    m40 = QueuedJob("b", 2, frozenset({"M40"}), lasts_s=50.0)
    assert answer(busy, jobs, m40) == {"a": 2}


@pytest.mark.parametrize("wanted", [1, 2, 3])
def test_who_loses_least_shrinks(wanted: int) -> None:
    cluster = view(("a", 0b1111, 1000.0), ("b", 0b11110000, 1000.0))
    jobs = [
        elastic("a", 4, 1000, cost_s=20.0),
        elastic("b", 4, 1000, cost_s=10.0),
    ]
    waits = QueuedJob("c", wanted, lasts_s=10.0)
    assert answer(cluster, jobs, waits) == {"b": 4 - max(2, wanted)}
