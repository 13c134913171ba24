"""PAC-ML's agent: what it sees, its memory, and that it learns which degree its law wants."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from patchlight.emulation.learning.config import (
    CONFIGS,
    Dqn,
    parse_config,
    read_config,
)
from patchlight.emulation.learning.dqn import DqnLearner, Replay
from patchlight.emulation.learning.learner import network_of, play, player_of
from patchlight.emulation.learning.network import load_run
from patchlight.emulation.learning.pac_ml_agent import (
    PacMlNetwork,
    PacMlPlayer,
    TrainingGraphs,
)
from patchlight.emulation.learning.training import TrainingRun, scenarios_of
from patchlight.emulation.learning.vector_episodes import VectorEpisodes
from patchlight.emulation.simulator.graphs.profiles import (
    profile_files,
    read_profiles,
)
from patchlight.emulation.simulator.ramp.workloads import Workloads
from tests.support.tiny_models import GRAPHS

for _package in ("torch", "gymnasium"):
    pytest.importorskip(
        _package, reason=f"{_package} is not installed: extra 'learn'"
    )

pytestmark = pytest.mark.xdist_group("training")

TINY = """
name: tiny
algorithm: dqn
steps: 4000
environment: {laws: [D], law_instance: 0, num_envs: 32, horizon_s: 1e5, rule: ramp-first-fit}
network: {observation: pac-ml, graph_width: 4}
dqn: {learning_rate: 0.0005, learning_starts: 1000, target_update_interval: 2000, batch_size: 64}
evaluation: {seeds: 2, every_steps: 1000}
"""

# What public ddls (9e0b5ba) tells its agent of each model: operations, edges, time, memory and size
# of edges among all models, training steps; mean and median of compute, memory and edges.
DDLS = """
alexnet 0 0 0.9422 0.02399 4.727e-06 1 0.02466 0.0008358 0.3339 0.2353 0.26 0.1676
gnmt 0.5208 0.1628 0 0 0 1 0.05864 0 0.07546 0.01884 0.04518 0.03168
resnet18 1 0.2605 0.9603 0.527 6.002e-05 1 0.0109 0.001345 0.1478 0.06537 0.1433 0.0625
squeezenet1_0 0.9375 0.2465 1 0.7996 9.113e-05 1 0.01177 0.001599 0.1571 0.1227 0.1562 0.1227
vgg16 0.375 0.08372 0.8964 1 9.641e-05 1 0.0743 0.01699 0.2271 0.125 0.2159 0.125
"""


def test_large_errors_are_drawn_more_often_and_count_less() -> None:
    memory = Replay(100, alpha=1.0, beta=0.5)
    rng = np.random.default_rng(0)
    memory.add([np.arange(60)], np.full(60, 0.1))
    memory.add([np.arange(60, 120)], np.full(60, 0.1))
    assert memory.kept == 100
    rows, (values,), counts = memory.draw(2000, rng)
    # The oldest 20 gave way.
    assert set(values.tolist()) == set(range(20, 120))
    assert counts == pytest.approx(np.ones(2000))
    memory.rate(np.unique(rows[values == 50]), np.array([9.9]))
    _, (values,), counts = memory.draw(2000, rng)
    # It has half of all priority, as much as the other 99 together.
    assert np.mean(values == 50) == pytest.approx(0.5, abs=0.06)
    assert counts[values == 50] == pytest.approx(99**-0.5, rel=1e-3)
    assert counts.max() == 1.0


def test_the_agent_is_told_of_the_published_models_what_ddls_tells_its_own(
    pipedream: Path,
) -> None:
    graphs = list(read_profiles(profile_files(pipedream))[0])
    told = TrainingGraphs(Workloads(graphs)).about
    there = dict(line.split(maxsplit=1) for line in DDLS.split("\n") if line)
    for graph, found in zip(graphs, told, strict=True):
        expected = [float(each) for each in there[graph.name].split()]
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-6), graph.name


def test_the_agent_sees_the_job_and_how_full_the_cluster_is() -> None:
    config = parse_config(TINY)
    scenario = scenarios_of(config, GRAPHS)[0]
    network = network_of(config, scenario)
    assert isinstance(network, PacMlNetwork)
    episodes = VectorEpisodes([scenario], 8, 0)
    player = PacMlPlayer(network)
    graph, empty = player.seen(episodes)
    assert graph.tolist() == episodes.graph.tolist()
    assert empty.shape == (8, 34)
    assert empty[:, 5] == pytest.approx(episodes.beta)
    assert (empty[:, 3:5] >= 0).all()
    assert (empty[:, 3:5] <= 1).all()
    legal = [int(degree in (0, 1, 2, 4, 6, 8, 16)) for degree in range(17)]
    assert (empty[:, 17:] == legal).all()
    assert (empty[:, 15:17] == 0).all()
    for _ in range(3):  # 16 servers each, so that two jobs fill the cluster
        episodes.step(np.full(8, len(episodes.layout.actions) - 1))
    _, full = player.seen(episodes)
    busy = 1 - episodes.free / 32
    assert busy.max() > 0
    assert full[:, 15] == pytest.approx(busy)
    assert full[:, 16] == pytest.approx(episodes.running / 32)
    assert full[:, 17 + 16].tolist() == (episodes.free >= 16).tolist()


def test_the_graph_changes_what_the_agent_does_only_where_it_has_one() -> None:
    other = Workloads([GRAPHS[0], replace(GRAPHS[1], edges=())])
    found = {}
    for width in (0, 4):
        config = parse_config(
            TINY.replace("graph_width: 4", f"graph_width: {width}")
        )
        for workloads in (Workloads(GRAPHS), other):
            torch.manual_seed(0)
            network = network_of(config, scenarios_of(config, workloads)[0])
            with torch.no_grad():
                values = network(
                    torch.tensor([0, 1]), torch.full((2, 34), 0.5).cumsum(1)
                )
            found[width, workloads is other] = values
    assert torch.equal(found[0, False], found[0, True])
    assert torch.equal(found[4, False][0], found[4, True][0])
    assert not torch.equal(found[4, False][1], found[4, True][1])


def test_it_learns_keeps_the_best_and_goes_on(tmp_path: Path) -> None:
    config = parse_config(TINY.replace("4000", "12000"))
    run = TrainingRun(config, GRAPHS, tmp_path)
    torch.manual_seed(config.seed)
    scenario = run.scenarios[0]
    before = np.mean(play(network_of(config, scenario), scenario, 500, 4))
    report = run.learn()
    _, kept = load_run(tmp_path)
    best = network_of(config, scenario)
    best.load_state_dict(kept["best"]["average"])
    assert np.mean(play(best, scenario, 500, 2)) == pytest.approx(
        kept["best"]["blocking"], abs=1e-4
    )
    assert kept["best"]["blocking"] <= min(
        report.training["evaluated_blocking_rate"].values()
    )
    assert np.mean(play(best, scenario, 500, 4)) < 0.6 * before
    longer = TrainingRun(replace(config, steps=13000), GRAPHS, tmp_path)
    longer.resume()
    assert longer.learn().training["steps"] >= 13000


def test_actions_that_no_shape_serves_refuse() -> None:
    config = parse_config(TINY)
    scenario = scenarios_of(config, GRAPHS)[0]
    network = network_of(config, scenario)
    assert isinstance(network, PacMlNetwork)
    last = network.better[-1]
    assert isinstance(last, torch.nn.Linear)
    episodes = VectorEpisodes([scenario], 4, 0)
    for degree, action in ((3, 0), (4, 3)):
        with torch.no_grad():
            last.bias.zero_()
            last.bias[degree] = 100.0
        assert (
            player_of(network).scores(episodes).argmax(axis=1).tolist()
            == [action] * 4
        )


def test_returns_are_of_three_rewards_and_end_with_the_episode() -> None:
    config = parse_config(TINY.replace("1e5", "5e3"))
    config = replace(config, dqn=replace(config.dqn, gamma=0.5, n_steps=8))
    learner = DqnLearner(config, scenarios_of(config, GRAPHS))
    learner.round()
    rows, columns, _ = learner.replay.draw(4000, np.random.default_rng(0))
    returns = columns[3]
    discount = columns[4]
    assert len(np.unique(rows)) > 200
    # Sums of up to three rewards of 1 or -1; the last two of a round are shorter.
    sums = {
        a + b / 2 + c / 4
        for a in (-1, 1)
        for b in (-1, 0, 1)
        for c in (-1, 0, 1)
    }
    assert set(np.unique(returns)) <= sums
    assert set(np.unique(discount)) == {0.0, 0.125, 0.25, 0.5}


def test_the_shipped_configurations_have_the_published_settings() -> None:
    for letter in "abcd":
        config = read_config(CONFIGS / f"pac-ml-{letter}.yaml")
        assert config.environment.laws == (letter.upper(),)
        assert config.dqn == Dqn()
        assert config.network.graph_width == 16
