"""Episodes side by side give what single ones give, job for job."""

import numpy as np
import pytest

from patchlight.controller.policies.observation import RampObserver
from patchlight.emulation.learning.afterstates import ControlVariate
from patchlight.emulation.learning.episodes import Episodes, Finished
from patchlight.emulation.simulator.ramp.lossnetwork import Episode, JobOutcome
from patchlight.emulation.simulator.ramp.ramp import RampShape
from patchlight.emulation.simulator.ramp.scenario import (
    PoissonArrivals,
    Scenario,
    pac_ml_scenario,
)
from patchlight.emulation.simulator.ramp.workloads import Workloads
from patchlight.testbed.graphs import builtin_graph

pytest.importorskip(
    "gymnasium", reason="Gymnasium is not installed: extra 'learn'"
)


# What PyTorch imports at a first optimizer, and the compiled loops, are had once.
pytestmark = pytest.mark.xdist_group("training")

RULES = ("ramp-first-fit", "ramp-block")


@pytest.fixture(scope="module")
def workloads() -> Workloads:
    return Workloads(
        [builtin_graph(name) for name in ("alexnet", "gnmt", "vgg16")]
    )


@pytest.mark.parametrize("rule", RULES)
def test_they_do_what_single_episodes_do(
    workloads: Workloads, rule: str
) -> None:
    scenarios = [
        pac_ml_scenario(workloads, law, rule, horizon_s=1.5e5) for law in "AD"
    ]
    count = 6
    rng = np.random.default_rng(1)
    several = Episodes(scenarios, count, 1000)
    singles = [
        Episode(scenarios[int(several.scenario_of[env])], 1000 + env)
        for env in range(count)
    ]
    observers = [RampObserver(several.layout) for _ in range(count)]
    actions = len(several.layout.actions)
    finished: dict[int, Finished] = {}
    outcomes = set()
    for turn in range(150):
        for env, (episode, observer) in enumerate(
            zip(singles, observers, strict=True)
        ):
            if turn % 7:
                continue
            seen = observer.observe(*episode.question())
            left = several.afterstates(
                np.full(actions, env), np.arange(actions)
            )
            assert np.allclose(seen["remaining"], left, atol=2e-4)
            assert np.array_equal(seen["mask"] > 0, several.mask[env])
            assert np.allclose(seen["recent"], several.recent[env], atol=1e-4)
            free = seen["job"][3] * several.layout.servers
            assert round(free) == several.free[env]
        # Mostly what can succeed, now and then what cannot.
        odds = (several.mask + 0.5) * rng.random(several.mask.shape)
        chosen = odds.argmax(axis=1)
        accepted, ended = several.step(chosen)
        finished |= {each.env: each for each in ended}
        for env, episode in enumerate(singles):
            outcome = episode.decide(several.layout.actions[chosen[env]])
            outcomes.add(outcome)
            assert (outcome is JobOutcome.ACCEPTED) == accepted[env]
    assert {JobOutcome.ACCEPTED, JobOutcome.REFUSED} <= outcomes
    assert {JobOutcome.NO_BLOCK, JobOutcome.LATE} <= outcomes
    assert len(finished) == count
    for env, episode in enumerate(singles):
        assert finished[env].blocking_rate == pytest.approx(
            episode.result().blocking_rate()
        )


def test_jobs_that_come_at_random_times_and_another_shape(
    workloads: Workloads,
) -> None:
    small = Workloads(workloads.graphs[:2], RampShape(2, 2, 2))
    plain = pac_ml_scenario(small, "A", "ramp-block", horizon_s=6e4)
    scenario = Scenario(
        small, plain.law, plain.rule, 6e4, PoissonArrivals(900.0), None, False
    )
    several = Episodes([scenario], 3, 1000)
    rates: dict[int, float] = {}
    while len(rates) < 3:
        for each in several.step(
            several.mask.shape[1] - 1 - several.mask[:, ::-1].argmax(axis=1)
        )[1]:
            rates.setdefault(each.seed, each.blocking_rate)
    for seed, rate in rates.items():
        episode = Episode(scenario, seed)
        observer = RampObserver(several.layout)
        while episode.job is not None:
            mask = observer.observe(*episode.question())["mask"]
            episode.decide(
                several.layout.actions[int(np.flatnonzero(mask)[-1])]
            )
        assert rate == pytest.approx(episode.result().blocking_rate())


def test_staggered_episodes_report_whole_episodes_only(
    workloads: Workloads,
) -> None:
    scenario = pac_ml_scenario(workloads, "A", horizon_s=1e5)
    several = Episodes([scenario], 20, 1000, staggered=True)
    ended = []
    for _ in range(100):
        ended += several.step(np.zeros(20, int))[1]
    assert len({each.env for each in ended}) < 20
    assert {each.blocking_rate for each in ended} <= {100 / 101}


def test_the_control_variate_is_nothing_on_average(
    workloads: Workloads,
) -> None:
    several = Episodes(
        [pac_ml_scenario(workloads, "A")], 64, 1000, staggered=True
    )
    variate = ControlVariate(several)
    rng = np.random.default_rng(0)
    found = []
    for turn in range(400):
        kinds = variate.kinds(several)
        if turn > 200:
            found.append(variate.of(kinds))
        # Strict jobs are worth less.
        variate.learn(kinds, several.beta + 0.01 * rng.random(64))
        several.step(
            (several.mask * rng.random(several.mask.shape)).argmax(axis=1)
        )
    assert abs(np.mean(found)) < 0.02
    assert np.std(found) > 0.15


def test_the_control_variate_leaves_in_what_is_special_of_an_episodes_law(
    workloads: Workloads,
) -> None:
    each = [
        pac_ml_scenario(workloads, name, horizon_s=2e5)
        for name in ("uniform:0.2:0.6", "A")
    ]
    several = Episodes(each, 40, 1000)
    variate = ControlVariate(several)
    rng = np.random.default_rng(0)
    found = []
    for turn in range(190):
        # As if both laws were one: what a kind of job costs is learned of both together.
        kinds = np.zeros(40, int), *variate.kinds(several)[1:]
        if turn > 90:
            found.append(variate.of(kinds))
        variate.learn(kinds, several.beta)
        several.step(
            (several.mask * rng.random(several.mask.shape)).argmax(axis=1)
        )
    by_law = [
        np.mean(np.array(found)[:, several.scenario_of == law])
        for law in (0, 1)
    ]
    assert np.abs(by_law).max() < 0.03
