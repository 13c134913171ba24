"""Lanes come to the same as single episodes, job for job."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("gymnasium", reason="Gymnasium is not installed: extra 'learn'")

from patchlight.controller.policies.observation import Observer
from patchlight.emulation.learning.lanes import Finished, VectorEpisodes
from patchlight.emulation.learning.luck import ControlVariate
from patchlight.emulation.simulator.ramp import (
    Episode,
    JobOutcome,
    RampShape,
    Workloads,
    pac_ml_scenario,
)
from patchlight.emulation.simulator.ramp.arrivals import PoissonArrivals
from patchlight.emulation.simulator.ramp.failures import Failures
from patchlight.emulation.simulator.ramp.scenario import Scenario
from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs import builtin_graph

RULES = ("ramp-first-fit", "ramp-block")


@pytest.fixture(scope="module")
def workloads() -> Workloads:
    return Workloads([builtin_graph(name) for name in ("alexnet", "gnmt", "vgg16")])


@pytest.mark.parametrize("rule", RULES)
def test_lanes_do_what_episodes_do(workloads: Workloads, rule: str) -> None:
    scenarios = [pac_ml_scenario(workloads, law, rule, horizon_s=1.5e5) for law in "AD"]
    count, rng = 6, np.random.default_rng(1)
    lanes = VectorEpisodes(scenarios, count, 1000)
    episodes = [
        Episode(scenarios[int(lanes.scenario_of[i])], int(lanes.seed_of[i])) for i in range(count)
    ]
    observers = [Observer(lanes.layout) for _ in range(count)]
    arrays = lanes.layout.empty(count)
    finished: dict[int, Finished] = {}
    outcomes = set()
    for turn in range(150):
        if turn % 7 == 0:
            lanes.observe(arrays)
            for lane, (episode, observer) in enumerate(zip(episodes, observers, strict=True)):
                seen = observer.observe(*episode.question())
                for name, array in seen.items():
                    assert np.allclose(array, arrays[name][lane], atol=2e-4), (turn, lane, name)
        # Mostly what can succeed, now and then what cannot.
        odds = (lanes.mask + 0.5) * rng.random(lanes.mask.shape)
        actions = odds.argmax(axis=1)
        accepted, ended = lanes.step(actions)
        finished |= {each.lane: each for each in ended}
        for lane, episode in enumerate(episodes):
            outcome = episode.decide(lanes.layout.actions[actions[lane]])
            outcomes.add(outcome)
            assert (outcome is JobOutcome.ACCEPTED) == accepted[lane]
    assert {
        JobOutcome.ACCEPTED,
        JobOutcome.REFUSED,
        JobOutcome.NO_BLOCK,
        JobOutcome.LATE,
    } <= outcomes
    assert len(finished) == count
    for lane, episode in enumerate(episodes):
        assert finished[lane].blocking_rate == pytest.approx(episode.result().blocking_rate())


def test_jobs_that_come_at_random_times_and_another_shape(workloads: Workloads) -> None:
    small = Workloads(workloads.graphs[:2], RampShape(2, 2, 2))
    plain = pac_ml_scenario(small, "A", "ramp-block", horizon_s=6e4)
    scenario = Scenario(small, plain.law, plain.rule, 6e4, PoissonArrivals(900.0), None, False)
    lanes = VectorEpisodes([scenario], 3, 1000)
    rates: dict[int, float] = {}
    while len(rates) < 3:
        for each in lanes.step(lanes.mask.shape[1] - 1 - lanes.mask[:, ::-1].argmax(axis=1))[1]:
            rates.setdefault(each.seed, each.blocking_rate)
    for seed, rate in rates.items():
        episode = Episode(scenario, seed)
        observer = Observer(lanes.layout)
        while episode.job is not None:
            mask = observer.observe(*episode.question())["mask"]
            episode.decide(lanes.layout.actions[int(np.flatnonzero(mask)[-1])])
        assert rate == pytest.approx(episode.result().blocking_rate())


def test_staggered_lanes_report_whole_episodes_only(workloads: Workloads) -> None:
    scenario = pac_ml_scenario(workloads, "A", horizon_s=1e5)
    lanes = VectorEpisodes([scenario], 20, 1000, staggered=True)
    ended = []
    for _ in range(100):
        ended += lanes.step(np.zeros(20, int))[1]
    assert len({each.lane for each in ended}) < 20
    assert {each.blocking_rate for each in ended} <= {100 / 101}


def test_the_luck_of_the_draw_is_nothing_on_average(workloads: Workloads) -> None:
    lanes = VectorEpisodes([pac_ml_scenario(workloads, "A")], 64, 1000, staggered=True)
    luck, rng, found = ControlVariate(lanes), np.random.default_rng(0), []
    for turn in range(400):
        kinds = lanes_kinds = luck.kinds(lanes)
        if turn > 200:
            found.append(luck.of(kinds))
        # Strict jobs are worth less.
        luck.learn(lanes_kinds, lanes.beta + 0.01 * rng.random(64))
        lanes.step((lanes.mask * rng.random(lanes.mask.shape)).argmax(axis=1))
    assert abs(np.mean(found)) < 0.02
    assert np.std(found) > 0.15


def test_what_lanes_cannot_do_is_refused(workloads: Workloads) -> None:
    plain = pac_ml_scenario(workloads, "A")
    broken = Scenario(workloads, plain.law, plain.rule, failures=Failures(1e5, 1e4))
    with pytest.raises(BadInput, match="break"):
        VectorEpisodes([broken], 2, 0)
    with pytest.raises(BadInput, match="same workloads"):
        VectorEpisodes([plain, pac_ml_scenario(Workloads(workloads.graphs), "A")], 2, 0)
