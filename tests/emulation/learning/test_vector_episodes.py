"""Vector episodes come to the same as single ones, job for job."""

import numpy as np
import pytest

from patchlight.controller.policies.observation import RampObserver
from patchlight.emulation.learning.afterstates import ControlVariate
from patchlight.emulation.learning.vector_episodes import (
    Finished,
    VectorEpisodes,
)
from patchlight.emulation.simulator.outages import Outages
from patchlight.emulation.simulator.ramp.lossnetwork import Episode, JobOutcome
from patchlight.emulation.simulator.ramp.ramp import RampShape
from patchlight.emulation.simulator.ramp.scenario import (
    PoissonArrivals,
    Scenario,
    pac_ml_scenario,
)
from patchlight.emulation.simulator.ramp.workloads import Workloads
from patchlight.testbed.errors import BadInput
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
    vector = VectorEpisodes(scenarios, count, 1000)
    singles = [
        Episode(scenarios[int(vector.scenario_of[i])], int(vector.seed_of[i]))
        for i in range(count)
    ]
    observers = [RampObserver(vector.layout) for _ in range(count)]
    arrays = vector.layout.empty(count)
    finished: dict[int, Finished] = {}
    outcomes = set()
    for turn in range(150):
        if turn % 7 == 0:
            vector.observe(arrays)
            for env, (episode, observer) in enumerate(
                zip(singles, observers, strict=True)
            ):
                seen = observer.observe(*episode.question())
                for name, array in seen.items():
                    assert np.allclose(array, arrays[name][env], atol=2e-4), (
                        turn,
                        env,
                        name,
                    )
        # Mostly what can succeed, now and then what cannot.
        odds = (vector.mask + 0.5) * rng.random(vector.mask.shape)
        actions = odds.argmax(axis=1)
        accepted, ended = vector.step(actions)
        finished |= {each.env: each for each in ended}
        for env, episode in enumerate(singles):
            outcome = episode.decide(vector.layout.actions[actions[env]])
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
    vector = VectorEpisodes([scenario], 3, 1000)
    rates: dict[int, float] = {}
    while len(rates) < 3:
        for each in vector.step(
            vector.mask.shape[1] - 1 - vector.mask[:, ::-1].argmax(axis=1)
        )[1]:
            rates.setdefault(each.seed, each.blocking_rate)
    for seed, rate in rates.items():
        episode = Episode(scenario, seed)
        observer = RampObserver(vector.layout)
        while episode.job is not None:
            mask = observer.observe(*episode.question())["mask"]
            episode.decide(
                vector.layout.actions[int(np.flatnonzero(mask)[-1])]
            )
        assert rate == pytest.approx(episode.result().blocking_rate())


def test_staggered_episodes_report_whole_episodes_only(
    workloads: Workloads,
) -> None:
    scenario = pac_ml_scenario(workloads, "A", horizon_s=1e5)
    vector = VectorEpisodes([scenario], 20, 1000, staggered=True)
    ended = []
    for _ in range(100):
        ended += vector.step(np.zeros(20, int))[1]
    assert len({each.env for each in ended}) < 20
    assert {each.blocking_rate for each in ended} <= {100 / 101}


def test_the_control_variate_is_nothing_on_average(
    workloads: Workloads,
) -> None:
    vector = VectorEpisodes(
        [pac_ml_scenario(workloads, "A")], 64, 1000, staggered=True
    )
    variate = ControlVariate(vector)
    rng = np.random.default_rng(0)
    found = []
    for turn in range(400):
        kinds = variate.kinds(vector)
        if turn > 200:
            found.append(variate.of(kinds))
        # Strict jobs are worth less.
        variate.learn(kinds, vector.beta + 0.01 * rng.random(64))
        vector.step(
            (vector.mask * rng.random(vector.mask.shape)).argmax(axis=1)
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
    vector = VectorEpisodes(each, 40, 1000)
    variate = ControlVariate(vector)
    rng = np.random.default_rng(0)
    found = []
    for turn in range(190):
        # As if both laws were one: what a kind of job costs is learned of both together.
        kinds = np.zeros(40, int), *variate.kinds(vector)[1:]
        if turn > 90:
            found.append(variate.of(kinds))
        variate.learn(kinds, vector.beta)
        vector.step(
            (vector.mask * rng.random(vector.mask.shape)).argmax(axis=1)
        )
    by_law = [
        np.mean(np.array(found)[:, vector.scenario_of == law])
        for law in (0, 1)
    ]
    assert np.abs(by_law).max() < 0.03


def test_what_they_cannot_do_is_refused(workloads: Workloads) -> None:
    plain = pac_ml_scenario(workloads, "A")
    broken = Scenario(
        workloads, plain.law, plain.rule, failures=Outages("server", 1e5, 1e4)
    )
    with pytest.raises(BadInput, match="server failures"):
        VectorEpisodes([broken], 2, 0)
    with pytest.raises(BadInput, match="same workloads"):
        VectorEpisodes(
            [plain, pac_ml_scenario(Workloads(workloads.graphs), "A")], 2, 0
        )
