"""The masked deep Q-network: its replay memory, what it learns, its runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: extra 'learn'")
pytest.importorskip("gymnasium", reason="Gymnasium is not installed: extra 'learn'")
pytest.importorskip("onnx", reason="onnx is not installed: extra 'learn'")

import torch

from patchlight.controller.policies.learned import load_learned
from patchlight.emulation.experiments.pac_ml.episodes import Faults, make_policy
from patchlight.emulation.learning.algorithms import Dqn
from patchlight.emulation.learning.config import Config, parse_config
from patchlight.emulation.learning.dqn import DqnLearner, DqnWorker, Played
from patchlight.emulation.learning.export import export
from patchlight.emulation.learning.network import OptionScorer
from patchlight.emulation.learning.players import network_of, play, player_of
from patchlight.emulation.learning.replay import Chunk, Replay
from patchlight.emulation.learning.rollouts import MeanRewards, Orders, Share
from patchlight.emulation.learning.training import Run, scenarios_of
from patchlight.emulation.learning.vector_episodes import VectorEpisodes
from patchlight.emulation.simulator.ramp import run_episode
from patchlight.testbed.errors import BadInput
from tests.support.tiny_models import GRAPHS

# What PyTorch imports at a first optimizer, and the compiled loops, are had once.
pytestmark = pytest.mark.xdist_group("training")

TEXT = """
name: tiny
algorithm: masked-dqn
steps: 4000
environment: {laws: [D], law_instance: 0, num_envs: 32, horizon_s: 1e5, rule: ramp-block}
network: {hidden: [16], busy_after_ks: [1, 4, 10]}
dqn: {buffer_size: 4000, learning_starts: 500, batch_size: 64, n_steps: 4, learning_rate: 3e-3,
  target_update_interval: 500, exploration_fraction: 0.8}
evaluation: {seeds: 2, every_steps: 2000}
"""


def test_returns_are_of_n_steps_and_end_with_their_episode() -> None:
    gamma, n_steps, envs = 0.5, 3, 2
    rng = np.random.default_rng(0)
    replay, rewards, last = Replay(16, n_steps, gamma), list[Any](), list[Any]()
    for count in (3, 4, 4):  # Together more than there is room for.
        first = len(rewards)
        seen = np.stack([np.arange(first, first + count)] * envs, axis=1)
        chunk = Chunk(
            (seen,),
            seen * envs + np.arange(envs),
            rng.random((count, envs)),
            rng.random((count, envs)) < 0.3,
            follows=first != 3,
        )
        replay.add(chunk)
        rewards += list(chunk.rewards)
        last += list(chunk.last)
        if count == 3:  # What comes next is of another life.
            last[-1] = np.ones(envs, bool)
    assert len(replay) == 7 * envs
    drawn = replay.sample(2000, rng)
    starts = drawn.actions // envs
    assert set(starts) <= set(range(3, 10))
    for action, total, discount, then in zip(
        drawn.actions, drawn.returns, drawn.discounts, drawn.then[0], strict=True
    ):
        start, env = divmod(int(action), envs)
        length = 0
        while length < n_steps and start + length < 10 and not last[start + length][env]:
            length += 1
        assert length > 0
        expected = sum(gamma**k * rewards[start + k][env] for k in range(length))
        assert (total, discount, then) == (pytest.approx(expected), gamma**length, start + length)
    # Each that has anything after it is drawn.
    possible = {(n, e) for n in range(3, 10) for e in range(envs) if not last[n][e]}
    assert {divmod(int(action), envs) for action in drawn.actions} == possible


def learner_of(config: Config) -> DqnLearner:
    return DqnLearner(config, scenarios_of(config, GRAPHS))


def test_it_learns_to_beat_chance() -> None:
    config = parse_config(TEXT)
    scenario, learner = scenarios_of(config, GRAPHS)[0], learner_of(config)
    while learner.steps < config.steps:
        learner.round()
    drawn = [
        run_episode(scenario, make_policy("random", scenario, seed, None, Faults()), seed)
        for seed in range(500, 504)
    ]
    chance = np.mean([episode.blocking_rate() for episode in drawn])
    assert np.mean(play(learner.average, scenario, 500, 4)) < 0.8 * chance


@pytest.mark.parametrize("network", ["graph_width: 4", "observation: pac-ml, graph_width: 4"])
def test_what_is_kept_scores_actions_as_play_does(network: str) -> None:
    config = parse_config(TEXT.replace("hidden: [16]", f"hidden: [16], {network}"))
    scenario = scenarios_of(config, GRAPHS)[0]
    episodes, net = VectorEpisodes([scenario], 16, 0, staggered=True), network_of(config, scenario)
    player = player_of(net, scenario.workloads)
    for _ in range(20):
        scores = player.scores(episodes)
        observed = [torch.from_numpy(np.array(each)) for each in player.observed(episodes)]
        with torch.no_grad():
            found = player.scores_of(*observed).numpy()
        allowed = np.isfinite(scores)
        assert (found[~allowed] < -1e5).all()
        assert found[allowed] == pytest.approx(scores[allowed], abs=1e-4)
        episodes.step(scores.argmax(axis=1))
    learner = learner_of(config)
    losses = [learner.round().loss for _ in range(8)]
    assert np.isfinite(losses[-1])


def test_exploring_takes_allowed_actions_only() -> None:
    config = parse_config(TEXT.replace("dqn: {", "dqn: {exploration_initial_eps: 1, "))
    worker = DqnWorker(config, scenarios_of(config, GRAPHS))
    orders = Orders(0, MeanRewards.first(1))
    for _ in range(10):
        chunk = worker.play(orders).chunk
        mask = chunk.observed[1]
        assert np.take_along_axis(mask, chunk.actions[..., None], axis=2).all()
    assert len(np.unique(chunk.actions)) > 3


def test_exploring_gets_less() -> None:
    settings = Dqn(exploration_initial_eps=0.8, exploration_final_eps=0.2, exploration_fraction=0.5)
    parts = (0, 0.25, 0.5, 1)
    assert [settings.epsilon_at(part) for part in parts] == pytest.approx([0.8, 0.5, 0.2, 0.2])


def test_a_run_is_exported_and_gone_on_with(tmp_path: Path) -> None:
    config = parse_config(TEXT.replace("4000\nenv", "1500\nenv"))
    run = Run(config, GRAPHS, tmp_path / "run")
    report = run.learn()
    assert isinstance(report.scorer, OptionScorer)
    policy = load_learned(export(report.scorer, run.layout, config, report.training, tmp_path))
    assert "afterstates" not in policy.card.training["config"]
    assert policy.card.training["config"]["dqn"]["n_steps"] == 4
    again = Run(parse_config(TEXT.replace("4000\nenv", "2500\nenv")), GRAPHS, tmp_path / "run")
    again.resume()
    assert again.learn().training["steps"] >= 2500


class InTurns:
    """Workers in this process, each with its share, one after the other."""

    def __init__(self, workers: list[DqnWorker]) -> None:
        self.workers = workers

    def play(self, orders: Orders) -> Played:
        self.workers.append(self.workers.pop(0))
        return self.workers[-1].play(orders)


def test_several_workers_share_the_environments() -> None:
    config = parse_config(TEXT)
    scenarios = scenarios_of(config, GRAPHS)
    workers = [DqnWorker(config, scenarios, Share(number, 3)) for number in range(3)]
    assert sorted(worker.episodes.num_envs for worker in workers) == [10, 11, 11]
    seeds = [seed for worker in workers for seed in worker.episodes.seed_of.tolist()]
    assert len(set(seeds)) == 32
    learner = DqnLearner(config, scenarios, 0, InTurns(workers), len(workers))
    for _ in range(9):
        progress = learner.round()
    assert learner.steps == 3 * 32 * 4
    for _ in range(9):
        progress = learner.round()
    assert np.isfinite(progress.loss)
    with pytest.raises(BadInput, match="33 workers cannot share 32 environments"):
        Share(0, 33).num_envs(config)
