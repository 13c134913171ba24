"""The rule that weighs options: what it takes, when it waits, which light it moves."""

import itertools
import math
from typing import Any

import pytest

from patchlight.controller.jobs.cluster_view import WiredLab
from patchlight.controller.policies.contract import (
    ClusterView,
    JobView,
    RingOfJob,
    Running,
)
from patchlight.controller.policies.options.listing import (
    MOST_OPTIONS,
    Listing,
    _some,
)
from patchlight.controller.policies.options.observation import Observer
from patchlight.controller.policies.registry import load_policy
from patchlight.controller.prediction.network import Load, Training
from patchlight.testbed.labfile.reader import load_lab

LAB = load_lab("ofc2022")
HOSTS = [host for host in LAB.hosts if host.gpu is not None]
FAST = [
    n
    for n, host in enumerate(HOSTS)
    if host.gpu and host.gpu.model == "Titan V"
]
SLOW = [n for n in range(len(HOSTS)) if n not in FAST]
# 100 s on a Titan V, 250 s on a Tesla M40.
TRAINING = Training(1000, 1.0, {"Titan V": 0.1, "Tesla M40": 0.25})
SINGLE = JobView("single", 1, training=TRAINING)
PAIR = JobView("pair", 2, training=TRAINING)


def view(busy: list[int], ends_s: float = math.inf) -> ClusterView:
    """The lab, with a job on each of these GPUs that ends then."""
    wired = WiredLab(LAB, LAB.initial_maps)
    running = tuple(Running(ends_s, 1 << gpu, f"on {gpu}") for gpu in busy)
    occupied = sum(1 << gpu for gpu in busy)
    found = wired.view(0.0, {})
    return found._replace(occupied=occupied, running=running, recent=(PAIR,))


def placed(
    cluster: ClusterView, job: JobView, name: str = "least-delay"
) -> Any:
    policy: Any = load_policy(name, "placement")
    return policy.place(cluster, job, job.workers)


def test_a_job_gets_the_gpus_on_which_it_ends_soonest() -> None:
    assert placed(view([]), SINGLE)[0] in FAST
    assert set(placed(view([]), PAIR)) == set(FAST)
    assert placed(view(list(range(6))), SINGLE) is None


def test_no_faster_gpu_is_taken_beside_a_slow_one() -> None:
    assert set(placed(view([FAST[0]]), PAIR)) <= set(SLOW)


@pytest.mark.parametrize(
    ("ends_s", "waits"), [(20.0, True), (800.0, False), (math.inf, False)]
)
def test_it_waits_for_faster_gpus_where_that_takes_less(
    ends_s: float, waits: bool
) -> None:
    ring = placed(view(FAST, ends_s), SINGLE)
    assert (ring is None) == waits


def test_a_job_of_which_nothing_is_known_goes_where_the_default_puts_it() -> (
    None
):
    unknown = JobView("unknown", 3)
    for busy in ([], [0], [1, 4]):
        cluster = view(busy)
        assert placed(cluster, unknown) == placed(
            cluster, unknown, "consolidated"
        )


def test_those_that_wait_count() -> None:
    cluster = view([])
    load = Load(1000, 0.1, 0.0)
    alone = Observer().outlook(cluster).of(load, [0])
    ten = (
        Observer()
        .outlook(cluster._replace(queue=(SINGLE,) * 10))
        .of(load, [0])
    )
    assert ten.lasts_s == alone.lasts_s
    assert ten.queue_s == pytest.approx(10 * alone.queue_s)
    assert ten.cost_s > alone.cost_s


def test_light_moves_where_that_takes_less() -> None:
    topology: Any = load_policy("least-delay", "topology")
    cluster = view([])
    here, there = (gpus & -gpus for gpus in cluster.shape.rack_gpus[:2])
    ring = (here.bit_length() - 1, there.bit_length() - 1)
    busy = RingOfJob("busy", ring, Load(900, 0.1, 4e10), waits=True)
    assert topology.circuits(
        cluster._replace(rings=(busy,)), [ring]
    ).keys() == {"ocs1"}
    quiet = busy._replace(load=Load(1, 0.1, 8.0))
    assert topology.circuits(cluster._replace(rings=(quiet,)), [ring]) == {}
    assert topology.explanation["options"][0]["chosen"]


# 600 s on one Titan V, 1,500 s on a Tesla M40; the gradient takes as long as computing on six.
SPLIT = Training(
    1000, 1e9 / 16, {"Titan V": 0.6, "Tesla M40": 1.5}, split=True
)
LEGAL = (0, 1, 2, 3, 4, 5, 6)


def degree(
    job: JobView, *waiting: JobView, legal: tuple[int, ...] = LEGAL
) -> Any:
    policy: Any = load_policy("least-delay", "partition")
    return policy.degree(view([])._replace(queue=waiting), job, legal)


def test_the_more_wait_the_fewer_workers_a_job_gets() -> None:
    job = JobView("open", 0, training=SPLIT)
    others = [job._replace(name=f"other{n}") for n in range(40)]
    found = [degree(job, job, *others[:n]) for n in (0, 3, 10, 40)]
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1] >= 1
    assert degree(job, legal=(0, 1)) == 1


def test_a_job_that_has_to_end_in_time_gets_as_many_workers_as_that_takes() -> (
    None
):
    job = JobView("open", 0, training=SPLIT)
    others = [job._replace(name=f"other{n}") for n in range(40)]
    few = degree(job, job, *others)
    assert degree(job._replace(limit_s=450.0), job, *others) > few
    # None of them does: then it is as if nobody had said so. It is not refused.
    assert degree(job._replace(limit_s=1.0), job, *others) == few


def test_a_job_of_which_nothing_is_known_gets_the_least_number_of_workers() -> (
    None
):
    assert degree(JobView("open", 0), legal=(0, 2, 4)) == 2
    assert degree(JobView("open", 0), legal=(0,)) is None


def test_of_many_degrees_some_are_looked_at() -> None:
    cluster = view([])
    outlook = Observer().outlook(cluster)
    job = JobView("open", 0, training=SPLIT)
    assert [
        each.answer for each in Listing().degrees(outlook, job, LEGAL)
    ] == list(LEGAL[1:])
    few = list(_some(range(1, 1025)))
    assert (few[0], few[-1]) == (1, 1024)
    assert len(few) <= MOST_OPTIONS
    assert all(low < high <= 2 * low for low, high in itertools.pairwise(few))
