"""Policies that choose the block, too: they learn on the blocks that they will choose from."""

from pathlib import Path

import numpy as np
import pytest

from patchlight.controller.policies.files import CardError
from patchlight.controller.policies.learned import load_learned
from patchlight.emulation.learning.config import ConfigError, parse_config
from patchlight.emulation.learning.export import export, rounded
from patchlight.emulation.learning.learner import network_of, play, player_of
from patchlight.emulation.learning.network import OptionScorer
from patchlight.emulation.learning.training import TrainingRun, scenarios_of
from patchlight.emulation.learning.vector_episodes import VectorEpisodes
from patchlight.emulation.simulator.ramp.lossnetwork import run_episode
from patchlight.emulation.simulator.ramp.scenario import pac_ml_scenario
from patchlight.emulation.simulator.ramp.workloads import Workloads
from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs import builtin_graph

pytest.importorskip("gymnasium", reason="Gymnasium is not installed: extra 'learn'")


pytestmark = pytest.mark.xdist_group("training")

GRAPHS = [builtin_graph(name) for name in ("alexnet", "gnmt", "vgg16")]
TINY = """
name: tiny
steps: 3000
environment: {rule: ramp-block, laws: [B], horizon_s: 2.0e5, num_envs: 16, blocks: 4}
network: {hidden: [16], busy_after_ks: [1, 4, 10]}
evaluation: {first_seed: 500, seeds: 2, every_steps: 1000}
"""


@pytest.fixture(scope="module")
def workloads() -> Workloads:
    return Workloads(GRAPHS)


def test_each_degree_is_offered_on_different_free_blocks(workloads: Workloads) -> None:
    scenario = pac_ml_scenario(workloads, "B", "ramp-block", horizon_s=2e5)
    one, four = (VectorEpisodes([scenario], 24, 7, staggered=True, blocks=n) for n in (1, 4))
    degrees, rng, several = len(one.layout.degrees), np.random.default_rng(3), 0
    for _ in range(60):
        assert np.array_equal(four.mask[:, : degrees + 1], one.mask)
        envs, actions = np.nonzero(four.mask[:, 1:])
        taken = four.servers(envs, actions + 1)
        busy = four.afterstates(np.arange(24), np.zeros(24, int)) > 0
        assert not (taken & busy[envs]).any()
        seen = {(e, a % degrees): set[bytes]() for e, a in zip(envs, actions, strict=True)}
        for env, action, servers in zip(envs, actions, taken, strict=True):
            blocks = seen[env, action % degrees]
            assert servers.tobytes() not in blocks
            blocks.add(servers.tobytes())
        several += sum(len(blocks) == 4 for blocks in seen.values())
        # Both take first blocks, so that both go on alike.
        wanted = one.mask * rng.random(one.mask.shape)
        assert (one.step(wanted.argmax(axis=1))[0] == four.step(wanted.argmax(axis=1))[0]).all()
    assert several > 100


def test_what_is_trained_is_what_the_model_does(tmp_path: Path, workloads: Workloads) -> None:
    config = parse_config(TINY)
    run = TrainingRun(config, workloads, tmp_path / "run")
    report = run.learn()
    assert isinstance(report.scorer, OptionScorer)
    path = export(report.scorer, run.layout, config, report.training, tmp_path)
    model, (scenario,) = load_learned(path), scenarios_of(config, workloads)
    assert model.card.blocks == 4
    rates = [run_episode(scenario, model, seed).blocking_rate() for seed in (500, 501)]
    scorer = rounded(report.scorer)
    assert play(scorer, scenario, 500, 2, blocks=4) == pytest.approx(rates)
    first = model.with_parameters(1)
    rates = [run_episode(scenario, first, seed).blocking_rate() for seed in (500, 501)]
    assert play(scorer, scenario, 500, 2) == pytest.approx(rates)


def test_other_blocks_than_the_first_ones_are_taken(workloads: Workloads) -> None:
    config = parse_config(TINY)
    (scenario,) = scenarios_of(config, workloads)
    network = network_of(config, scenario)
    episodes = VectorEpisodes([scenario], 32, 0, blocks=4)
    player, others, degrees = player_of(network), 0, len(episodes.layout.degrees)
    for _ in range(30):
        actions = player.scores(episodes).argmax(axis=1)
        others += int((actions > degrees).sum())
        accepted, _ = episodes.step(actions)
        assert accepted[actions > degrees].all()
    assert others > 50


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ramp-block", "ramp-first-fit", "'blocks' is of rule ramp-block"),
        ("hidden: [16]", "hidden: [16], observation: pac-ml", "need each other"),
        ("blocks: 4", "blocks: 0", "from 1 to 64"),
    ],
)
def test_what_cannot_choose_blocks_is_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(TINY.replace(old, new))


def test_a_card_that_lies_about_its_blocks(tmp_path: Path, workloads: Workloads) -> None:
    with pytest.raises(BadInput, match="a block is chosen under ramp-block"):
        VectorEpisodes([pac_ml_scenario(workloads, "A")], 2, 0, blocks=2)
    config = parse_config(TINY)
    run = TrainingRun(config, workloads, tmp_path / "run")
    scorer = network_of(config, run.scenarios[0])
    assert isinstance(scorer, OptionScorer)
    path = export(scorer, run.layout, config, {}, tmp_path)
    card = path.with_suffix(".json")
    card.write_text(card.read_text().replace('"blocks": 4', '"blocks": 0'))
    with pytest.raises(CardError, match="'blocks' is 0: expected 1 or more"):
        load_learned(path)


def test_a_condition_says_how_far_off_remaining_times_are(workloads: Workloads) -> None:
    text = TINY.replace(
        "blocks: 4",
        "conditions: ['fixed:800', 'poisson:1000 error:0.3 gnmt=1', 'fixed:900 error:0'], "
        "remaining_error: 0.1",
    )
    plain, other, exact = scenarios_of(parse_config(text), workloads)
    assert [each.remaining_error for each in (plain, other, exact)] == [0.1, 0.3, 0.0]
    assert plain.mix is None
    assert other.mix == (0.0, 1.0, 0.0)
    for wrong in ("error:much", "error:-1", "error:4"):
        with pytest.raises(ConfigError, match=f"'{wrong}' is not an error: expected 0 to 3"):
            parse_config(TINY.replace("blocks: 4", f"conditions: ['fixed:800 {wrong}']"))
