"""What a learned policy sees."""

import math

import numpy as np
import pytest

from patchlight.controller.policies.contract import (
    ClusterShape,
    ClusterView,
    GpuSite,
    JobView,
    Running,
    nowhere,
)
from patchlight.controller.policies.observation import (
    COUNTED,
    INTERVAL,
    LONGEST,
    MAX_NODES,
    RECENT_BINS,
    RECENT_FEATURES,
    UNEVENNESS,
    ObservationLayout,
    RampObserver,
    graph_features,
    recent_features,
)
from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs import (
    ComputationGraph,
    Operation,
    builtin_graph,
)

LAYOUT = ObservationLayout((2, 2, 1), (1, 2, 4))
GRAPH = builtin_graph("alexnet")


def shape(ramp: tuple[int, int, int] | None = (2, 2, 1)) -> ClusterShape:
    names = tuple(f"s{n}" for n in range(4))
    gpus = tuple(GpuSite(f"{name}.gpu0", n, 0) for n, name in enumerate(names))
    return ClusterShape(gpus, names, ("r0",), ramp)


def job(**changes: object) -> JobView:
    expected_s = {1: 8000.0, 2: 4000.0, 4: 2000.0}
    plain = JobView(
        "j", 0, GRAPH, 0.0, 8000.0, 0.6, limit_s=4800.0, expected_s=expected_s
    )
    return plain._replace(**changes)  # type: ignore[arg-type]


def view(**changes: object) -> ClusterView:
    running = (Running(3500.0, 0b0001),)
    plain = ClusterView(1000.0, shape(), occupied=0b0001, running=running)
    preview = {1: 0b0010, 2: 0b0110}
    given = {"preview": lambda job, degree: preview.get(degree)} | changes
    return plain._replace(**given)  # type: ignore[arg-type]


def test_an_option_shows_for_how_long_each_server_would_be_busy() -> None:
    seen = RampObserver(LAYOUT).observe(view(), job(), (0, 1, 2))
    assert seen["remaining"].tolist() == [
        [2.5, 0, 0, 0],  # refused: the cluster as it is
        [2.5, 0, 0, 0],  # degree 1 would be too late
        [2.5, 4, 4, 0],
        [2.5, 0, 0, 0],  # degree 4 is not legal
    ]
    assert seen["mask"].tolist() == [1, 0, 1, 0]
    assert seen["options"][2].tolist() == [
        0.5,
        4.0,
        pytest.approx(4 / 4.8),
        0.5,
    ]
    assert seen["job"].tolist() == pytest.approx([0.6, 8.0, 4.8, 0.75])
    assert {name: array.shape for name, array in seen.items()} == LAYOUT.shapes
    assert all(array.dtype == np.float32 for array in seen.values())


def test_what_nobody_knows_and_what_is_broken_counts_as_busy_for_long() -> (
    None
):
    running = (Running(math.inf, 0b0001),)
    unknown = view(
        occupied=0b1101, broken=0b1000, running=running, preview=nowhere
    )
    row = (
        RampObserver(LAYOUT)
        .observe(unknown, job(), (0, 1))["remaining"][0]
        .tolist()
    )
    assert row == [LONGEST, 0, LONGEST, LONGEST]


def test_an_observer_remembers_nothing_of_the_job_before() -> None:
    observer = RampObserver(LAYOUT)
    observer.observe(view(), job(), (0, 1, 2))
    other = job(graph=builtin_graph("vgg16"), requirement=0.9, limit_s=7200.0)
    empty = view(occupied=0, running=())
    again = {
        name: array.copy()
        for name, array in observer.observe(empty, other, (0,)).items()
    }
    fresh = RampObserver(LAYOUT).observe(empty, other, (0,))
    assert all(np.array_equal(again[name], fresh[name]) for name in fresh)


@pytest.mark.parametrize(
    ("cluster", "asked", "message"),
    [
        (view(shape=shape((4, 1, 1))), job(), "2×2×1.*4×1×1"),
        (view(shape=shape(None)), job(), "another lab"),
        (view(), job(graph=None), "has no computation graph"),
    ],
)
def test_another_lab_or_a_job_without_graph_is_refused(
    cluster: ClusterView, asked: JobView, message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        RampObserver(LAYOUT).observe(cluster, asked, (0,))


def test_recent_jobs_are_told_by_what_they_asked_for() -> None:
    times = [0.0, 800.0, 2000.0, 2100.0]
    found = recent_features(
        [0.1, 0.55, 1.0], [1000.0, 3000.0, math.nan], times
    )
    assert found.shape == (4, RECENT_FEATURES)
    assert found[0].nonzero()[0].tolist() == [INTERVAL]
    assert found[0, INTERVAL] == 1.0
    assert found[2, :RECENT_BINS].tolist() == [
        0,
        0.5,
        0,
        0,
        0,
        0.5,
        0,
        0,
        0,
        0,
    ]
    about = [0.325, 0.225, 2.0, 2 / 64, 1.0, 1.0, 0.2]
    assert found[2, RECENT_BINS:].tolist() == pytest.approx(about)
    assert found[3, INTERVAL] == pytest.approx(0.7)
    assert found[3, 9] == pytest.approx(1 / 3)


def test_only_64_recent_jobs_count() -> None:
    times = [*range(0, 6400, 100), *range(6400, 51300, 700)]
    found = recent_features([0.1] * 64 + [0.9] * 64, [1.0] * 128, times)
    assert found[-1, 9] == 1.0
    assert found[-1, COUNTED] == 1.0
    assert found[64, INTERVAL] == pytest.approx(0.1)
    assert found[-1, INTERVAL] == pytest.approx(0.7)
    assert found[-1, UNEVENNESS] == 0.0


def test_models_of_version_1_see_what_they_saw_and_no_graph_where_they_look_at_none() -> (
    None
):
    cluster = view(recent=(job(), job(arrived_s=500.0)))
    old = RampObserver(
        ObservationLayout((2, 2, 1), (1, 2, 4), 1), graphs=False
    )
    seen = {
        n: a.copy()
        for n, a in old.observe(cluster, job(graph=None), (0, 1, 2)).items()
    }
    now = RampObserver(LAYOUT).observe(cluster, job(), (0, 1, 2))
    assert seen["recent"].tolist() == now["recent"][: COUNTED + 1].tolist()
    assert now["recent"][INTERVAL] == 0.5
    assert np.array_equal(seen["remaining"], now["remaining"])


def test_a_graph_too_large_to_be_seen_is_refused() -> None:
    many = tuple(
        Operation(f"o{n}", "x", 1.0, 1.0, 1, 1) for n in range(MAX_NODES + 1)
    )
    chain = tuple((n, n + 1) for n in range(MAX_NODES))
    with pytest.raises(BadInput, match=f"at most {MAX_NODES}"):
        graph_features(ComputationGraph("big", many, chain))
