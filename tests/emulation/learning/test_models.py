"""Models of several runs, and of policies that choose the block, too."""

import pytest

pytest.importorskip(
    "gymnasium", reason="Gymnasium is not installed: extra 'learn'"
)
pytest.importorskip("torch", reason="PyTorch is not installed: extra 'learn'")

import json
from pathlib import Path

import numpy as np
import torch
from click.testing import CliRunner

from patchlight.cli.main import cli
from patchlight.controller.policies.files import CardError
from patchlight.controller.policies.learned import load_learned
from patchlight.emulation.learning.config import ConfigError, parse_config
from patchlight.emulation.learning.episode_arrays import EpisodeJobs
from patchlight.emulation.learning.export import export, of_runs, rounded
from patchlight.emulation.learning.learner import network_of, play, player_of
from patchlight.emulation.learning.network import (
    MeanScorer,
    NearestScorer,
    OptionScorer,
)
from patchlight.emulation.learning.training import TrainingRun, scenarios_of
from patchlight.emulation.learning.vector_episodes import VectorEpisodes
from patchlight.emulation.simulator.ramp.lossnetwork import run_episode
from patchlight.emulation.simulator.ramp.scenario import pac_ml_scenario
from patchlight.emulation.simulator.ramp.workloads import Workloads
from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs import builtin_graph

pytestmark = pytest.mark.xdist_group("training")


CONDITIONS = (
    ["fixed:1000"],
    ["fixed:2000", "fixed:1000 gnmt=1"],
    ["poisson:1000"],
)
OF_CONDITIONS = """
name: tiny
seed: {seed}
steps: 600
environment: {{laws: [A], horizon_s: 2.0e5, num_envs: 16, conditions: {conditions}}}
network: {{hidden: [16], busy_after_ks: [1, 4, 10]}}
evaluation: {{first_seed: 500, seeds: 1, every_steps: 1000}}
"""


@pytest.fixture(scope="module")
def workloads() -> Workloads:
    return Workloads(
        [builtin_graph(name) for name in ("alexnet", "gnmt", "vgg16")]
    )


@pytest.fixture(scope="module")
def runs(
    tmp_path_factory: pytest.TempPathFactory, workloads: Workloads
) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    # The last learned under the same condition as the first, with another seed.
    for number, conditions in enumerate((*CONDITIONS, CONDITIONS[0])):
        config = parse_config(
            OF_CONDITIONS.format(seed=number, conditions=conditions)
        )
        TrainingRun(config, workloads, folder / str(number)).learn()
    return [folder / str(number) for number in range(4)]


def test_under_each_condition_those_decide_that_learned_under_it(
    runs: list[Path], workloads: Workloads
) -> None:
    network, layout, _, training = of_runs(runs)
    assert isinstance(network, NearestScorer)
    listed = [each for conditions in CONDITIONS for each in conditions]
    assert training["config"]["environment"]["conditions"] == listed
    config = parse_config(OF_CONDITIONS.format(seed=0, conditions=listed))
    expected = ([0.5, 0, 0, 0.5], [0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0])
    for scenario, shares in zip(
        scenarios_of(config, workloads), expected, strict=True
    ):
        recent = torch.from_numpy(EpisodeJobs.of(scenario, 7).recent)
        # Of the first job nothing is known yet: the first condition's decide.
        assert network.weights(recent[0]).tolist() == expected[0]
        weights = network.weights(recent[64:])
        assert weights.sum(-1).allclose(torch.ones(()))
        assert weights.mean(0).allclose(torch.tensor(shares).float(), atol=0.1)
    assert layout.servers == 32


def test_their_model_decides_as_the_network_does(
    runs: list[Path], workloads: Workloads, tmp_path: Path
) -> None:
    policy = load_learned(export(*of_runs(runs), tmp_path, "any"))
    network, *_ = of_runs(runs)
    config = parse_config(
        OF_CONDITIONS.format(seed=0, conditions=["poisson:1000"])
    )
    (scenario,) = scenarios_of(config, workloads)
    rates = play(network, scenario, 3, 2)
    single = [
        run_episode(scenario, policy, seed).blocking_rate() for seed in (3, 4)
    ]
    assert np.mean(single) == pytest.approx(np.mean(rates), abs=0.02)


def test_a_condition_can_be_said_in_the_command(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(
        OF_CONDITIONS.format(seed=0, conditions=["fixed:1000"])
    )
    arguments = [
        "policy",
        "train",
        str(tmp_path / "tiny.yaml"),
        "--output",
        str(tmp_path / "run"),
    ]
    arguments += ["--steps", "64", "--profiles", str(tmp_path / "none")]
    wrong = CliRunner().invoke(cli, [*arguments, "--condition", "never:1"])
    assert isinstance(wrong.exception, BadInput)
    for_labs = CliRunner().invoke(
        cli, ["policy", "train", "lab-partition", "--condition", "fixed:800"]
    )
    assert isinstance(for_labs.exception, BadInput)
    assert "--condition is for partition policies" in str(for_labs.exception)


def test_a_seed_can_be_said_in_the_command(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(
        OF_CONDITIONS.format(seed=0, conditions=["fixed:1000"])
    )
    arguments = [
        "policy",
        "train",
        str(tmp_path / "tiny.yaml"),
        "--output",
        str(tmp_path / "run"),
    ]
    done = CliRunner().invoke(
        cli, [*arguments, "--steps", "64", "--seed", "7"]
    )
    assert done.exit_code == 0, done.output
    assert (
        json.loads((tmp_path / "run" / "config.json").read_text())["seed"] == 7
    )


def test_runs_under_one_condition_are_averaged(runs: list[Path]) -> None:
    network, *_, training = of_runs([runs[0], runs[3]])
    assert type(network) is MeanScorer
    assert training["training_seeds"] == [0, 3]
    assert network.weights(torch.zeros(2, 17)).tolist() == [[0.5, 0.5]] * 2


def test_a_run_that_does_not_say_what_its_jobs_were_like_is_refused(
    runs: list[Path], tmp_path: Path
) -> None:
    for name in ("config.json", "checkpoint.pt"):
        (tmp_path / name).write_bytes((runs[2] / name).read_bytes())
    kept = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    del kept["likenesses"]
    torch.save(kept, tmp_path / "checkpoint.pt")
    with pytest.raises(BadInput, match="does not describe its jobs"):
        of_runs([runs[0], tmp_path])


TINY = """
name: tiny
steps: 3000
environment: {rule: ramp-block, laws: [B], horizon_s: 2.0e5, num_envs: 16, blocks: 4}
network: {hidden: [16], busy_after_ks: [1, 4, 10]}
evaluation: {first_seed: 500, seeds: 2, every_steps: 1000}
"""


def test_each_degree_is_offered_on_different_free_blocks(
    workloads: Workloads,
) -> None:
    scenario = pac_ml_scenario(workloads, "B", "ramp-block", horizon_s=2e5)
    one, four = (
        VectorEpisodes([scenario], 24, 7, staggered=True, blocks=n)
        for n in (1, 4)
    )
    degrees = len(one.layout.degrees)
    rng = np.random.default_rng(3)
    several = 0
    for _ in range(60):
        assert np.array_equal(four.mask[:, : degrees + 1], one.mask)
        envs, actions = np.nonzero(four.mask[:, 1:])
        taken = four.servers(envs, actions + 1)
        busy = four.afterstates(np.arange(24), np.zeros(24, int)) > 0
        assert not (taken & busy[envs]).any()
        seen = {
            (e, a % degrees): set[bytes]()
            for e, a in zip(envs, actions, strict=True)
        }
        for env, action, servers in zip(envs, actions, taken, strict=True):
            blocks = seen[env, action % degrees]
            assert servers.tobytes() not in blocks
            blocks.add(servers.tobytes())
        several += sum(len(blocks) == 4 for blocks in seen.values())
        # Both take first blocks, so that both go on alike.
        wanted = one.mask * rng.random(one.mask.shape)
        assert (
            one.step(wanted.argmax(axis=1))[0]
            == four.step(wanted.argmax(axis=1))[0]
        ).all()
    assert several > 100


def test_what_is_trained_is_what_the_model_does(
    tmp_path: Path, workloads: Workloads
) -> None:
    config = parse_config(TINY)
    run = TrainingRun(config, workloads, tmp_path / "run")
    report = run.learn()
    assert isinstance(report.scorer, OptionScorer)
    path = export(report.scorer, run.layout, config, report.training, tmp_path)
    model = load_learned(path)
    (scenario,) = scenarios_of(config, workloads)
    assert model.card.blocks == 4
    rates = [
        run_episode(scenario, model, seed).blocking_rate()
        for seed in (500, 501)
    ]
    scorer = rounded(report.scorer)
    assert play(scorer, scenario, 500, 2, blocks=4) == pytest.approx(rates)
    first = model.with_parameters(1)
    rates = [
        run_episode(scenario, first, seed).blocking_rate()
        for seed in (500, 501)
    ]
    assert play(scorer, scenario, 500, 2) == pytest.approx(rates)


def test_other_blocks_than_the_first_ones_are_taken(
    workloads: Workloads,
) -> None:
    config = parse_config(TINY)
    (scenario,) = scenarios_of(config, workloads)
    network = network_of(config, scenario)
    episodes = VectorEpisodes([scenario], 32, 0, blocks=4)
    player = player_of(network)
    others = 0
    degrees = len(episodes.layout.degrees)
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
        (
            "hidden: [16]",
            "hidden: [16], observation: pac-ml",
            "need each other",
        ),
        ("blocks: 4", "blocks: 0", "from 1 to 64"),
    ],
)
def test_what_cannot_choose_blocks_is_refused(
    old: str, new: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(TINY.replace(old, new))


def test_a_card_that_lies_about_its_blocks(
    tmp_path: Path, workloads: Workloads
) -> None:
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


def test_a_condition_says_how_far_off_remaining_times_are(
    workloads: Workloads,
) -> None:
    text = TINY.replace(
        "blocks: 4",
        "conditions: ['fixed:800', 'poisson:1000 error:0.3 gnmt=1', 'fixed:900 error:0'], "
        "remaining_error: 0.1",
    )
    plain, other, exact = scenarios_of(parse_config(text), workloads)
    assert [each.remaining_error for each in (plain, other, exact)] == [
        0.1,
        0.3,
        0.0,
    ]
    assert plain.mix is None
    assert other.mix == (0.0, 1.0, 0.0)
    for wrong in ("error:much", "error:-1", "error:4"):
        with pytest.raises(
            ConfigError, match=f"'{wrong}' is not an error: expected 0 to 3"
        ):
            parse_config(
                TINY.replace("blocks: 4", f"conditions: ['fixed:800 {wrong}']")
            )
