"""The rule that weighs options: what it takes, when it waits, which light it moves."""

import math
from typing import Any

import pytest

from patchlight.controller.jobs.cluster_view import WiredLab
from patchlight.controller.policies.contract import ClusterView, JobView, RingOfJob, Running
from patchlight.controller.policies.options.observation import Observer
from patchlight.controller.policies.registry import load_policy
from patchlight.controller.prediction.load import Load, Training
from patchlight.testbed.labfile.reader import load_lab

LAB = load_lab("ofc2022")
HOSTS = [host for host in LAB.hosts if host.gpu is not None]
FAST = [n for n, host in enumerate(HOSTS) if host.gpu and host.gpu.model == "Titan V"]
SLOW = [n for n in range(len(HOSTS)) if n not in FAST]
# 100 s on a Titan V, 250 s on a Tesla M40.
TRAINING = Training(1000, 1.0, {"Titan V": 0.1, "Tesla M40": 0.25})
SINGLE, PAIR = JobView("single", 1, training=TRAINING), JobView("pair", 2, training=TRAINING)


def view(busy: list[int], ends_s: float = math.inf) -> ClusterView:
    """The lab, with a job on each of these GPUs that ends then."""
    wired = WiredLab(LAB, LAB.initial_maps)
    running = tuple(Running(ends_s, 1 << gpu, f"on {gpu}") for gpu in busy)
    occupied = sum(1 << gpu for gpu in busy)
    found = wired.view(0.0, {})
    return found._replace(occupied=occupied, running=running, recent=(PAIR,))


def placed(cluster: ClusterView, job: JobView, name: str = "least-delay") -> Any:
    policy: Any = load_policy(name, "placement")
    return policy.place(cluster, job, job.workers)


def test_a_job_gets_the_gpus_on_which_it_ends_soonest() -> None:
    assert placed(view([]), SINGLE)[0] in FAST
    assert set(placed(view([]), PAIR)) == set(FAST)
    assert placed(view(list(range(6))), SINGLE) is None


def test_no_faster_gpu_is_taken_beside_a_slow_one() -> None:
    assert set(placed(view([FAST[0]]), PAIR)) <= set(SLOW)


@pytest.mark.parametrize(("ends_s", "waits"), [(20.0, True), (800.0, False), (math.inf, False)])
def test_it_waits_for_faster_gpus_where_that_takes_less(ends_s: float, waits: bool) -> None:
    ring = placed(view(FAST, ends_s), SINGLE)
    assert (ring is None) == waits


def test_a_job_of_which_nothing_is_known_goes_where_the_default_puts_it() -> None:
    unknown = JobView("unknown", 3)
    for busy in ([], [0], [1, 4]):
        cluster = view(busy)
        assert placed(cluster, unknown) == placed(cluster, unknown, "consolidated")


def test_those_that_wait_count() -> None:
    cluster, load = view([]), Load(1000, 0.1, 0.0)
    alone = Observer().outlook(cluster).of(load, [0])
    ten = Observer().outlook(cluster._replace(queue=(SINGLE,) * 10)).of(load, [0])
    assert ten.lasts_s == alone.lasts_s
    assert ten.queue_s == pytest.approx(10 * alone.queue_s)
    assert ten.cost_s > alone.cost_s


def test_light_moves_where_that_takes_less() -> None:
    topology: Any = load_policy("least-delay", "topology")
    cluster = view([])
    here, there = (gpus & -gpus for gpus in cluster.shape.rack_gpus[:2])
    ring = (here.bit_length() - 1, there.bit_length() - 1)
    busy = RingOfJob("busy", ring, Load(900, 0.1, 4e10), waits=True)
    assert topology.circuits(cluster._replace(rings=(busy,)), [ring]).keys() == {"ocs1"}
    quiet = busy._replace(load=Load(1, 0.1, 8.0))
    assert topology.circuits(cluster._replace(rings=(quiet,)), [ring]) == {}
    assert topology.explanation["options"][0]["chosen"]
