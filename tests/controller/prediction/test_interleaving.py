"""Slots of jobs that share links: who gets them, whether they collide, and what they gain."""

import random
from collections.abc import Hashable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchlight.controller.prediction.completion import (
    PhasedJob,
    PredictedJob,
    Slot,
    predict,
    set_ends,
    set_paces_of,
)
from patchlight.controller.prediction.framing import tcp
from patchlight.controller.prediction.interleaving import set_slots_of
from patchlight.controller.prediction.network import LabNetwork, Training
from patchlight.emulation.simulator.cluster import LabCluster, Settings
from patchlight.emulation.simulator.cluster.jobs import jobs_of_specs
from patchlight.emulation.simulator.cluster.simulation import Simulation
from patchlight.testbed.jobs import JobSpec
from patchlight.testbed.lab.rules import PolicyChoice
from patchlight.testbed.lab.wiring import trace_links
from patchlight.testbed.labfile.reader import load_lab

LINK: dict[Hashable, float] = {"up": 1.0}
MANY = 120


def jobs(
    *works: tuple[float, float], iterations: float = MANY
) -> list[PhasedJob]:
    """Jobs that compute so long, then send so long if the link is theirs alone."""
    return [
        PhasedJob({"up": 1}, compute_s, sends_s, iterations)
        for compute_s, sends_s in works
    ]


def mean_s(group: list[PhasedJob], begins_s: list[float]) -> float:
    """The mean time of an iteration, played to the end from these beginnings on."""
    again = [
        PhasedJob(
            job.demand, job.compute_s, job.bits, job.left, at, slot=job.slot
        )
        for job, at in zip(group, begins_s, strict=True)
    ]
    set_ends(again, LINK)
    return sum((job.ends_s - job.begins_s) / MANY for job in again) / len(
        again
    )


@pytest.mark.parametrize(
    ("works", "at_once_s", "most_s"),
    [
        ([(1.0, 0.5)] * 2, 1.99, 1.54),
        # They drift through all phases.
        (
            [(1.0, 0.5), (1.01, 0.5)],
            1.6,
            1.56,
        ),
        ([(1.0, 0.5)] * 3, 2.49, 1.57),
        ([(0.5, 0.7)] * 2, 1.89, 1.45),  # Together they send all the time.
    ],
)
def test_equal_jobs_in_turns_take_as_long_as_alone(
    works: list[tuple[float, float]], at_once_s: float, most_s: float
) -> None:
    group = jobs(*works)
    starts = [0.0] * len(group)
    assert mean_s(group, starts) > at_once_s
    set_slots_of(group, LINK)
    assert mean_s(group, starts) <= most_s
    draw = random.Random(0)
    for _ in range(10):
        assert mean_s(group, [draw.uniform(0, 3) for _ in group]) <= most_s


def test_a_job_passes_a_circle_as_often_as_it_fits() -> None:
    short, long = group = jobs((0.7, 0.3), (1.5, 0.5))
    set_slots_of(group, LINK)
    assert short.slot is not None
    assert long.slot is not None
    assert long.slot.period_s == pytest.approx(2 * short.slot.period_s)
    assert short.pace_s < 1.03
    assert long.pace_s < 2.06


def test_nobody_gets_a_slot_that_gains_nothing() -> None:
    alone = jobs((1.0, 0.5))
    apart = jobs((1.0, 0.5), (1.0, 0.001))
    unknown = jobs((1.0, 0.5), (float("nan"), 0.5))
    for group in (alone, apart, unknown):
        set_slots_of(group, LINK)
        assert [job.slot for job in group] == [None] * len(group)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0.2, 2.0), st.floats(0.05, 1.0)),
        min_size=2,
        max_size=4,
        unique=True,
    )
)
def test_slots_never_make_jobs_slower_in_the_mean(
    works: list[tuple[float, float]],
) -> None:
    plain = jobs(*works)
    group = jobs(*works)
    set_paces_of(plain, LINK)
    set_slots_of(group, LINK)
    alone_s = [compute_s + sends_s for compute_s, sends_s in works]
    without, found = (
        sum(job.pace_s / a for job, a in zip(each, alone_s, strict=True))
        for each in (plain, group)
    )
    assert found <= without + 1e-9
    assert all(
        j.slot is None or j.slot.period_s >= a
        for j, a in zip(group, alone_s, strict=True)
    )


def test_who_is_a_little_late_goes_and_who_is_later_waits() -> None:
    slot = Slot(period_s=2.0, offset_s=0.5, late_s=0.2)
    assert slot.wait_s(10.5) == 0.0
    assert slot.wait_s(10.69) == 0.0
    assert slot.wait_s(11.0) == pytest.approx(1.5)
    assert slot.wait_s(12.5 - 1e-15) == 0.0


def test_a_lab_that_interleaves_is_predicted_and_simulated_so() -> None:
    plain = load_lab("ofc2022")
    turns = plain.with_changes(policies=PolicyChoice(interleave=True))
    # Over the link between the ToRs, 10 Gb/s: 1 s of computing, 0.5 s of sending.
    compute_s = dict.fromkeys(("Tesla M40", "Titan V"), 1.0)
    nbytes = round(5e9 / 8 / sum(tcp(1500)))
    hosts = ("gpu0", "gpu2"), ("gpu1", "gpu3")
    placed = [
        PredictedJob(ring[0], ring, Training(300, nbytes, compute_s), 0.0)
        for ring in hosts
    ]
    network = LabNetwork(plain, trace_links(plain, plain.initial_maps))
    for pacing, iteration_s in ((None, 2.0), (set_slots_of, 1.53)):
        for found in predict(network, placed, pacing):
            assert found.iteration_s == pytest.approx(iteration_s, rel=0.01)
            assert found.completion_s == pytest.approx(
                300 * iteration_s, rel=0.01
            )
    specs = [
        JobSpec(ring[0], 300, nbytes, compute_s, workers=2) for ring in hosts
    ]
    for lab, iteration_s in ((plain, 2.0), (turns, 1.53)):
        jobs = jobs_of_specs(lab, specs, "")
        simulation = Simulation(LabCluster(lab), jobs, Settings())
        simulation.advance()
        for job, ring in zip(
            list(simulation.waiting.values()), hosts, strict=True
        ):
            assert simulation.start(
                job, [network.number(name) for name in ring]
            )
        while simulation.advance():
            pass
        for job in simulation.jobs:
            assert job.ended_s == pytest.approx(300 * iteration_s, rel=0.02)
