"""Runs that decide together: of several conditions those whose jobs are like the recent ones."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gymnasium", reason="Gymnasium is not installed: extra 'learn'")
pytest.importorskip("torch", reason="PyTorch is not installed: extra 'learn'")

import torch
from click.testing import CliRunner

from patchlight.cli.main import cli
from patchlight.controller.policies.learned import load_learned
from patchlight.emulation.learning.config import parse_config
from patchlight.emulation.learning.episode_arrays import EpisodeJobs
from patchlight.emulation.learning.export import export, of_runs
from patchlight.emulation.learning.learner import play
from patchlight.emulation.learning.network import MeanScorer, NearestScorer
from patchlight.emulation.learning.training import TrainingRun, scenarios_of
from patchlight.emulation.simulator.ramp.lossnetwork import run_episode
from patchlight.emulation.simulator.ramp.workloads import Workloads
from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs import builtin_graph

pytestmark = pytest.mark.xdist_group("training")

CONDITIONS = (["fixed:1000"], ["fixed:2000", "fixed:1000 gnmt=1"], ["poisson:1000"])
TINY = """
name: tiny
seed: {seed}
steps: 600
environment: {{laws: [A], horizon_s: 2.0e5, num_envs: 16, conditions: {conditions}}}
network: {{hidden: [16], busy_after_ks: [1, 4, 10]}}
evaluation: {{first_seed: 500, seeds: 1, every_steps: 1000}}
"""


@pytest.fixture(scope="module")
def workloads() -> Workloads:
    return Workloads([builtin_graph(name) for name in ("alexnet", "gnmt", "vgg16")])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, workloads: Workloads) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    # The last learned under the same condition as the first, with another seed.
    for number, conditions in enumerate((*CONDITIONS, CONDITIONS[0])):
        config = parse_config(TINY.format(seed=number, conditions=conditions))
        TrainingRun(config, workloads, folder / str(number)).learn()
    return [folder / str(number) for number in range(4)]


def test_under_each_condition_those_decide_that_learned_under_it(
    runs: list[Path], workloads: Workloads
) -> None:
    network, layout, _, training = of_runs(runs)
    assert isinstance(network, NearestScorer)
    listed = [each for conditions in CONDITIONS for each in conditions]
    assert training["config"]["environment"]["conditions"] == listed
    config = parse_config(TINY.format(seed=0, conditions=listed))
    expected = ([0.5, 0, 0, 0.5], [0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0])
    for scenario, shares in zip(scenarios_of(config, workloads), expected, strict=True):
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
    config = parse_config(TINY.format(seed=0, conditions=["poisson:1000"]))
    (scenario,) = scenarios_of(config, workloads)
    rates = play(network, scenario, 3, 2)
    single = [run_episode(scenario, policy, seed).blocking_rate() for seed in (3, 4)]
    assert np.mean(single) == pytest.approx(np.mean(rates), abs=0.02)


def test_a_condition_can_be_said_in_the_command(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY.format(seed=0, conditions=["fixed:1000"]))
    arguments = ["policy", "train", str(tmp_path / "tiny.yaml"), "--output", str(tmp_path / "run")]
    arguments += ["--steps", "64", "--profiles", str(tmp_path / "none")]
    wrong = CliRunner().invoke(cli, [*arguments, "--condition", "never:1"])
    assert isinstance(wrong.exception, BadInput)
    for_labs = CliRunner().invoke(
        cli, ["policy", "train", "lab-partition", "--condition", "fixed:800"]
    )
    assert isinstance(for_labs.exception, BadInput)
    assert "--condition is for partition policies" in str(for_labs.exception)


def test_a_seed_can_be_said_in_the_command(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY.format(seed=0, conditions=["fixed:1000"]))
    arguments = ["policy", "train", str(tmp_path / "tiny.yaml"), "--output", str(tmp_path / "run")]
    done = CliRunner().invoke(cli, [*arguments, "--steps", "64", "--seed", "7"])
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "run" / "config.json").read_text())["seed"] == 7


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
    with pytest.raises(BadInput, match="does not say what its jobs were like"):
        of_runs([runs[0], tmp_path])
