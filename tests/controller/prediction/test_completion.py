"""How long jobs take that share links: by hand, beside the simulator, and where little is known."""

import math
import random
from collections.abc import Sequence
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchlight.controller.policies.topology import regroup
from patchlight.controller.prediction.completion import PredictedJob
from patchlight.controller.prediction.framing import EMULATED_BYTES, tcp
from patchlight.controller.prediction.network import Training
from patchlight.emulation.experiments.ofc2022.results import jobs_of
from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobs import JobSpec
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.labfile.reader import load_lab
from tests.support.flow_model import flow_ends_s
from tests.support.predicted_jobs import predict

HOSTS = ("gpu0", "gpu1", "gpu2", "gpu3", "gpu4", "gpu5")
WIRE = sum(tcp(1500))
BITS = WIRE * 138.36e6 * 32
FOREIGN = Training(100, math.nan, {})


@pytest.fixture(scope="module")
def lab() -> Lab:
    return load_lab("ofc2022")


def case(lab: Lab, name: str) -> list[PredictedJob]:
    return [
        PredictedJob(
            s.name,
            s.hosts,
            Training(s.iterations, s.gradient_bytes, s.compute_s),
        )
        for s in jobs_of(name, lab, 12)
    ]


def test_the_formula_and_what_holds_a_job_up(lab: Lab) -> None:
    first, second = case(lab, "a")
    (alone,) = predict(lab, lab.initial_maps, [first])
    # Two of the ring's edges cross between the ToRs in each direction.
    iteration_s = 0.5 + 1.5 * BITS / (10e9 / 2)
    assert alone.iteration_s == pytest.approx(iteration_s)
    assert alone.completion_s == pytest.approx(12 * iteration_s)
    both = predict(lab, lab.initial_maps, [first, second])
    assert both[0].bottleneck == (
        "limited by the link from tor1 to tor2, 10Gbps, used by 3 edges of 2 jobs"
    )
    # While the other one computes, a job has the link to itself: less than a third is lost.
    assert (
        iteration_s
        < (both[0].iteration_s or 0)
        < 0.5 + 1.5 * BITS / (10e9 / 3)
    )


def test_equal_jobs_in_step_share_a_link_whenever_they_send(lab: Lab) -> None:
    training = Training(50, 1e9, dict.fromkeys(("Tesla M40", "Titan V"), 0.5))
    rings = (("gpu0", "gpu2"), ("gpu1", "gpu3"))
    jobs = [PredictedJob(ring[0], ring, training) for ring in rings]
    for found in predict(lab, lab.initial_maps, jobs):
        assert found.iteration_s == pytest.approx(0.5 + WIRE * 8e9 / 5e9)


def test_light_under_one_switch_leaves_the_nics(lab: Lab) -> None:
    jobs = case(lab, "a")
    maps = regroup(lab, lab.initial_maps, [job.hosts for job in jobs])
    first, second = predict(lab, maps, jobs)
    assert first.iteration_s == pytest.approx(0.5 + 1.5 * BITS / 40e9)
    assert second.iteration_s == pytest.approx(0.5 / 3 + BITS / 40e9)
    assert first.bottleneck.startswith("limited by the NIC of server")
    assert first.bottleneck.endswith("40Gbps, used by it alone")


@given(
    st.permutations(HOSTS),
    st.lists(st.integers(2, 4), min_size=1, max_size=3),
    st.lists(
        st.tuples(st.integers(1, 90), st.floats(1e6, 1e9)),
        min_size=3,
        max_size=3,
    ),
)
@settings(max_examples=40, deadline=None)
def test_jobs_end_when_they_do_in_the_network_simulator(
    hosts: Sequence[str], sizes: list[int], work: list[tuple[int, float]]
) -> None:
    lab = load_lab("ofc2022").with_changes(scale=1000)
    specs = list[JobSpec]()
    left = list(hosts)
    for size, (iterations, nbytes) in zip(sizes, work, strict=False):
        if size <= len(left):
            speed = {"Tesla M40": 0.5, "Titan V": 0.2}
            ring = tuple(left[:size])
            left = left[size:]
            specs.append(
                JobSpec(
                    f"j{len(specs)}",
                    iterations,
                    int(nbytes),
                    speed,
                    hosts=ring,
                )
            )
    placed = [
        PredictedJob(
            s.name,
            s.hosts,
            Training(s.iterations, s.gradient_bytes, s.compute_s),
        )
        for s in specs
    ]
    predicted = predict(lab, lab.initial_maps, placed)
    assert [each.completion_s for each in predicted] == pytest.approx(
        flow_ends_s(lab, lab.initial_maps, specs)
    )


def test_paces_of_long_jobs_are_near_those_of_playing_them_to_their_ends(
    lab: Lab,
) -> None:
    emulated = lab.with_changes(scale=1000)
    draw = random.Random(1)
    off = []
    for _ in range(20):
        hosts = draw.sample(HOSTS, 6)
        specs = [
            JobSpec(
                name,
                draw.randint(300, 900),
                draw.randint(10**8, 2 * 10**9),
                dict.fromkeys(("Tesla M40", "Titan V"), draw.uniform(0.1, 2)),
                hosts=tuple(ring),
            )
            for name, ring in (
                ("a", hosts[:2]),
                ("b", hosts[2:4]),
                ("c", hosts[4:]),
            )
        ]
        placed = [
            PredictedJob(
                s.name,
                s.hosts,
                Training(s.iterations, s.gradient_bytes, s.compute_s),
            )
            for s in specs
        ]
        predicted = predict(emulated, lab.initial_maps, placed)
        played_s = flow_ends_s(emulated, lab.initial_maps, specs)
        pairs = zip(predicted, played_s, strict=True)
        off += [
            abs((each.completion_s or 0) / end_s - 1) for each, end_s in pairs
        ]
    assert median(off) < 0.01
    assert max(off) < 0.1


def test_an_emulated_lab_is_bound_by_its_machine_where_the_scale_is_too_small(
    lab: Lab,
) -> None:
    first, second = case(lab, "a")
    emulated = lab.with_changes(machine_rate_bps=860_000_000)
    free = predict(lab.with_changes(scale=1000), lab.initial_maps, [first])
    assert (
        predict(emulated.with_changes(scale=1000), lab.initial_maps, [first])
        == free
    )
    (found,) = predict(emulated, lab.initial_maps, [first])
    bits = 138.36e6 * 32 * sum(tcp(1500, EMULATED_BYTES))
    # Each of its four edges passes both switches.
    assert found.iteration_s == pytest.approx(0.5 + 8 * 1.5 * bits / 860e6)
    assert found.bottleneck == "bound by this machine: 860Mbps"
    both = predict(emulated, lab.initial_maps, [first, second])
    assert (both[0].iteration_s or 0) > (found.iteration_s or math.inf)
    assert both[1].bottleneck == "bound by this machine: 860Mbps"


def test_without_light_nothing_is_known(lab: Lab) -> None:
    maps = {"ocs1": PortMap.parse(["1-7", "2-8"])}
    job = PredictedJob(
        "far", ("gpu0", "gpu2"), Training(10, 1e9, {"Tesla M40": 0.1})
    )
    (found,) = predict(lab, maps, [job])
    assert (found.iteration_s, found.completion_s) == (None, None)
    assert found.bottleneck == "no route: server2.gpu2 without a link"
    alone = PredictedJob(
        "alone", ("gpu2",), Training(10, 1e9, {"Tesla M40": 0.1})
    )
    (found,) = predict(lab, maps, [alone])
    assert found.completion_s == pytest.approx(1.0)
    assert found.bottleneck == "it uses no link"


def test_a_job_of_which_nothing_is_known_still_takes_its_share(
    lab: Lab,
) -> None:
    known = PredictedJob(
        "known", ("gpu0", "gpu2"), Training(10, 1e9, {"Tesla M40": 0.1})
    )
    foreign = PredictedJob("foreign", ("gpu4", "gpu5"), FOREIGN)
    first, second = predict(lab, lab.initial_maps, [known, foreign])
    assert first.iteration_s == pytest.approx(0.1 + WIRE * 8e9 / 5e9)
    assert first.completion_s is not None
    assert (second.iteration_s, second.completion_s) == (None, None)
    assert second.bottleneck.startswith("limited by the link from")


def test_hosts_that_cannot_be(lab: Lab) -> None:
    with pytest.raises(BadInput, match="no host called 'gpu9'"):
        predict(lab, lab.initial_maps, [PredictedJob("j", ("gpu9",), FOREIGN)])
