"""Policy iteration: futures that are played out, what is compared, what is learned of it."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: extra 'learn'")
pytest.importorskip(
    "gymnasium", reason="Gymnasium is not installed: extra 'learn'"
)
pytest.importorskip("onnx", reason="onnx is not installed: extra 'learn'")

from patchlight.controller.policies.learned import load_learned
from patchlight.emulation.experiments.pac_ml.episodes import (
    PolicyFaults,
    make_policy,
)
from patchlight.emulation.learning.config import parse_config
from patchlight.emulation.learning.export import export
from patchlight.emulation.learning.learner import play
from patchlight.emulation.learning.network import OptionScorer
from patchlight.emulation.learning.policy_iteration import (
    DrawnJobs,
    Futures,
    PolicyIterationLearner,
    drawn,
)
from patchlight.emulation.learning.training import TrainingRun, scenarios_of
from patchlight.emulation.learning.vector_episodes import VectorEpisodes
from patchlight.emulation.simulator.ramp.lossnetwork import run_episode
from patchlight.testbed.errors import BadInput
from tests.support.tiny_models import GRAPHS

# What PyTorch imports at a first optimizer, and the compiled loops, are had once.
pytestmark = pytest.mark.xdist_group("training")

TEXT = """
name: tiny
algorithm: policy-iteration
steps: 3000
environment: {laws: [A, D], law_instance: 0, num_envs: 32, horizon_s: 1e5, rule: ramp-block}
network: {hidden: [16], busy_after_ks: [1, 4, 10]}
policy_iteration: {futures: 2, jobs: 8, learning_starts: 200, batch_size: 64}
evaluation: {seeds: 2, every_steps: 1500}
"""
CONDITIONS = """
name: tiny
environment: {laws: [A, C], num_envs: 16, horizon_s: 1e5, conditions: ["poisson:900", "fixed:700"]}
"""
BLOCKS = TEXT.replace("ramp-block}", "ramp-block, blocks: 3}")


@pytest.mark.parametrize(
    "text", [CONDITIONS, TEXT, BLOCKS], ids=["first-fit", "block", "blocks"]
)
def test_a_future_of_the_jobs_to_come_is_what_comes(text: str) -> None:
    config = parse_config(text)
    blocks = config.environment.blocks
    episodes = VectorEpisodes(
        scenarios_of(config, GRAPHS), 16, 3, blocks=blocks
    )
    rng = np.random.default_rng(0)

    def any_action(of: VectorEpisodes) -> np.ndarray:
        found: np.ndarray = np.where(
            of.mask, rng.random(of.mask.shape), -1
        ).argmax(axis=1)
        return found

    for _ in range(12):
        episodes.step(any_action(episodes))
    envs = np.array([3, 3, 7, 0, 12])
    known = [episodes.jobs[env] for env in envs]
    ahead = slice(12, 33)
    jobs = DrawnJobs(
        np.stack(
            [
                np.diff(each.arrived_s[ahead], prepend=each.arrived_s[12])
                for each in known
            ]
        ),
        np.stack([each.graph[ahead] for each in known]),
        np.stack([each.beta[ahead] for each in known]),
    )
    futures = Futures(episodes)
    futures.begin(episodes, envs, jobs)
    for _ in range(20):
        assert np.array_equal(futures.mask, episodes.mask[envs])
        assert futures.afterstates(
            np.arange(5), futures.mask.argmax(axis=1)
        ) == pytest.approx(
            episodes.afterstates(envs, futures.mask.argmax(axis=1))
        )
        actions = any_action(episodes)
        came, _ = futures.step(actions[envs])
        accepted, _ = episodes.step(actions)
        assert np.array_equal(came, accepted[envs])


def test_futures_are_drawn_as_the_episodes_jobs_are() -> None:
    episodes = VectorEpisodes(
        scenarios_of(parse_config(CONDITIONS), GRAPHS), 8, 3
    )
    envs = np.repeat(np.arange(8), 40)
    jobs = drawn(episodes, envs, 60, np.random.default_rng(1))
    assert np.array_equal(jobs.graph[:, 0], episodes.graph[envs])
    assert np.array_equal(jobs.beta[:, 0], episodes.beta[envs])
    assert not jobs.wait_s[:, 0].any()
    for env in range(8):
        mine = envs == env
        known = episodes.jobs[env]
        assert set(jobs.beta[mine, 1:].ravel()) <= set(known.beta)
        between = np.diff(known.arrived_s)
        assert jobs.wait_s[mine, 1:].mean() == pytest.approx(
            between.mean(), rel=0.1
        )
        assert jobs.beta[mine, 1:].mean() == pytest.approx(
            known.beta[1:].mean(), rel=0.05
        )


def test_actions_are_compared_in_the_same_futures() -> None:
    config = parse_config(TEXT)
    learner = PolicyIterationLearner(config, scenarios_of(config, GRAPHS))
    for _ in range(5):
        learner.round()
    episodes = learner.episodes
    envs = np.flatnonzero(episodes.mask.sum(axis=1) > 1)[:6]
    actions = episodes.mask[envs, 1:].argmax(axis=1) + 1
    # One that blocks the job, and twice the same that does not.
    rows = np.repeat(envs, 3)
    tried = np.stack([0 * actions, actions, actions], 1).ravel()
    counts = np.full(len(envs), 3)
    values = learner._played_out(envs, counts, rows, tried).reshape(-1, 3)
    assert np.array_equal(values[:, 1], values[:, 2])
    assert not np.array_equal(values[:, 0], values[:, 1])
    # Of eight jobs to come, discounted, and the little that an untrained network says of the rest.
    assert (values >= -1).all()
    assert (values <= 8).all()


def test_only_what_is_near_the_best_is_compared_and_each_but_once() -> None:
    config = parse_config(TEXT)
    learner = PolicyIterationLearner(config, scenarios_of(config, GRAPHS))
    episodes = learner.episodes
    actions = learner.episodes.mask.shape[1]
    assert actions >= 5
    scores = np.full((32, actions), -np.inf)
    scores[:, 0] = 0.0
    scores[4, :5] = 0.95, 1.0, 1.0, 0.5, 0.9
    scores[9, :2] = 0.5, 1.0
    found = learner.compared(scores)
    # Of environment 4, 1.0 (once), 0.95 and 0.9: four are looked at, two of which are one.
    assert found.there.tolist() == [[True, False, True, True]]
    assert found.recent == pytest.approx(episodes.recent[[4]])
    tried = episodes.afterstates(np.array([4, 4, 4]), np.array([1, 0, 4]))
    assert found.left[0, [0, 2, 3]] == pytest.approx(tried)


def test_it_learns_what_brings_more_and_beats_chance() -> None:
    config = parse_config(TEXT)
    scenarios = scenarios_of(config, GRAPHS)
    learner = PolicyIterationLearner(config, scenarios)
    losses = list[float]()
    while learner.steps < config.steps:
        losses.append(learner.round().loss)
    errors = [loss for loss in losses if np.isfinite(loss)]
    assert np.mean(errors[-5:]) < 0.8 * np.mean(errors[:2])
    chance = [
        run_episode(
            scenarios[1],
            make_policy("random", scenarios[1], seed, None, PolicyFaults()),
            seed,
        ).blocking_rate()
        for seed in range(500, 504)
    ]
    assert np.mean(
        play(learner.average, scenarios[1], 500, 4)
    ) < 0.8 * np.mean(chance)


def test_a_run_is_exported_gone_on_with_and_begun_with(tmp_path: Path) -> None:
    config = parse_config(TEXT.replace("3000", "600"))
    run = TrainingRun(config, GRAPHS, tmp_path / "run")
    report = run.learn()
    assert isinstance(report.scorer, OptionScorer)
    policy = load_learned(
        export(report.scorer, run.layout, config, report.training, tmp_path)
    )
    kept = policy.card.training["config"]
    assert kept["policy_iteration"]["futures"] == 2
    assert "afterstates" not in kept
    again = TrainingRun(
        parse_config(TEXT.replace("3000", "900")), GRAPHS, tmp_path / "run"
    )
    again.resume()
    report = again.learn()
    assert report.training["steps"] >= 900

    start = f"start: {tmp_path / 'run'}"
    begun = parse_config(TEXT.replace("futures: 2", f"futures: 2, {start}"))
    learner = PolicyIterationLearner(begun, scenarios_of(begun, GRAPHS))
    scenario = again.scenarios[0]
    assert play(learner.average, scenario, 500, 2) == play(
        report.scorer, scenario, 500, 2
    )
    other = parse_config(
        TEXT.replace("futures: 2", f"futures: 2, {start}").replace(
            "[16]", "[16, 8]"
        )
    )
    with pytest.raises(
        BadInput, match="has another network than its configuration"
    ):
        PolicyIterationLearner(other, scenarios_of(other, GRAPHS))
