"""How long jobs take that share links: by hand, beside the simulator, and where little is known."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchlight.controller.policies.contract import ClusterView, JobView
from patchlight.controller.policies.order import Fifo
from patchlight.controller.policies.topology import regroup
from patchlight.controller.prediction.network import PredictedJob, Training
from patchlight.emulation.experiments.ofc2022.results import jobs_of
from patchlight.emulation.simulator.cluster import LabCluster, Policies, QueueJob, simulate
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.labfile.reader import load_lab
from tests.support.predicted_jobs import predict

HOSTS = ("gpu0", "gpu1", "gpu2", "gpu3", "gpu4", "gpu5")
FOREIGN = Training(100, math.nan, {})


@pytest.fixture(scope="module")
def lab() -> Lab:
    return load_lab("ofc2022")


def case(lab: Lab, name: str) -> list[PredictedJob]:
    return [
        PredictedJob(s.name, s.hosts, Training(s.iterations, s.gradient_bytes, s.compute_s))
        for s in jobs_of(name, lab, 12)
    ]


def test_the_formula_and_what_holds_a_job_up(lab: Lab) -> None:
    first, second = predict(lab, lab.initial_maps, case(lab, "a"))
    bits = 138.36e6 * 32
    iteration_s = 0.5 + 1.5 * bits / (10e9 / 3)
    assert first.iteration_s == pytest.approx(iteration_s)
    assert first.completion_s == pytest.approx(12 * iteration_s)
    assert first.bottleneck == (
        "limited by the link from tor1 to tor2, 10Gbps, used by 3 edges of 2 jobs"
    )
    # Once the first has ended, the second has the link to itself, with one edge each way.
    assert second.iteration_s is not None
    left = 24 - 12 * iteration_s / second.iteration_s
    alone_s = 0.5 / 3 + bits / 10e9
    assert second.completion_s == pytest.approx(12 * iteration_s + left * alone_s)


def test_light_under_one_switch_leaves_the_nics(lab: Lab) -> None:
    jobs = case(lab, "a")
    maps = regroup(lab, lab.initial_maps, [job.hosts for job in jobs])
    first, second = predict(lab, maps, jobs)
    bits = 138.36e6 * 32
    assert first.iteration_s == pytest.approx(0.5 + 1.5 * bits / 40e9)
    assert second.iteration_s == pytest.approx(0.5 / 3 + bits / 40e9)
    assert first.bottleneck.startswith("limited by the NIC of server")
    assert first.bottleneck.endswith("40Gbps, used by it alone")


@given(
    st.permutations(HOSTS),
    st.lists(st.integers(1, 4), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(1, 500), st.floats(1e6, 1e9)), min_size=6, max_size=6),
)
@settings(max_examples=60, deadline=None)
def test_jobs_end_when_they_do_in_the_simulator(
    hosts: Sequence[str], sizes: list[int], work: list[tuple[int, float]]
) -> None:
    lab = load_lab("ofc2022")
    rings, left = list[tuple[str, ...]](), list(hosts)
    for size in sizes:
        if size <= len(left):
            rings.append(tuple(left[:size]))
            left = left[size:]
    speed = {"Tesla M40": 0.5, "Titan V": 0.2}
    trainings = [Training(count, size, speed) for count, size in work]
    placed = [
        PredictedJob(str(number), ring, training)
        for number, (ring, training) in enumerate(zip(rings, trainings, strict=False))
    ]
    cluster = LabCluster(lab)
    numbers = {host: [h.name for h in cluster.hosts].index(lab.host(host).name) for host in HOSTS}

    class Told:
        def place(self, cluster: ClusterView, job: JobView, workers: int) -> list[int]:
            return [numbers[host] for host in rings[int(job.name)]]

    jobs = [
        QueueJob(JobView(job.name, len(job.hosts)), 1.0, training=job.training) for job in placed
    ]
    records = simulate(cluster, jobs, Policies(Fifo(), Told())).records
    predicted = predict(lab, lab.initial_maps, placed)
    # The simulator does what is nearer than 0.1 µs at one moment.
    assert [each.completion_s for each in predicted] == pytest.approx(
        [record.ended_s for record in records], abs=1e-5
    )


def test_an_emulated_lab_is_bound_by_its_machine_where_the_scale_is_too_small(lab: Lab) -> None:
    first, second = case(lab, "a")
    free = predict(lab, lab.initial_maps, [first])
    emulated = lab.with_changes(machine_rate_bps=860_000_000)
    assert predict(emulated.with_changes(scale=1000), lab.initial_maps, [first]) == free
    (found,) = predict(emulated, lab.initial_maps, [first])
    bits = 138.36e6 * 32
    # Each of its four edges passes both switches.
    assert found.iteration_s == pytest.approx(0.5 + 8 * 1.5 * bits / 860e6)
    assert found.bottleneck == "bound by this machine: 860Mbps"
    both = predict(emulated, lab.initial_maps, [first, second])
    assert (both[0].iteration_s or 0) > (found.iteration_s or math.inf)
    assert both[1].bottleneck == "bound by this machine: 860Mbps"


def test_without_light_nothing_is_known(lab: Lab) -> None:
    maps = {"ocs1": PortMap.parse(["1-7", "2-8"])}
    job = PredictedJob("far", ("gpu0", "gpu2"), Training(10, 1e9, {"Tesla M40": 0.1}))
    (found,) = predict(lab, maps, [job])
    assert (found.iteration_s, found.completion_s) == (None, None)
    assert found.bottleneck == "no route: server2.gpu2 without a link"
    alone = PredictedJob("alone", ("gpu2",), Training(10, 1e9, {"Tesla M40": 0.1}))
    (found,) = predict(lab, maps, [alone])
    assert found.completion_s == pytest.approx(1.0)
    assert found.bottleneck == "it uses no link"


def test_a_job_of_which_nothing_is_known_still_takes_its_share(lab: Lab) -> None:
    known = PredictedJob("known", ("gpu0", "gpu2"), Training(10, 1e9, {"Tesla M40": 0.1}))
    foreign = PredictedJob("foreign", ("gpu4", "gpu5"), FOREIGN)
    first, second = predict(lab, lab.initial_maps, [known, foreign])
    assert first.iteration_s == pytest.approx(0.1 + 8e9 / 5e9)
    assert first.completion_s is not None
    assert (second.iteration_s, second.completion_s) == (None, None)
    assert second.bottleneck.startswith("limited by the link from")


def test_hosts_that_cannot_be(lab: Lab) -> None:
    with pytest.raises(BadInput, match="no host called 'gpu9'"):
        predict(lab, lab.initial_maps, [PredictedJob("j", ("gpu9",), FOREIGN)])
