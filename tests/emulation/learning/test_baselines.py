"""Baselines: any environment is learned, the model plays it, and what is no baseline is refused."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: extra 'learn'")
pytest.importorskip("onnx", reason="onnx is not installed: extra 'learn'")

import torch
from click.testing import CliRunner

from patchlight.cli.main import cli
from patchlight.controller.policies.files import CardError
from patchlight.emulation.learning.baseline_files import load_baseline, shipped_baselines
from patchlight.emulation.learning.baselines import imitation
from patchlight.emulation.learning.baselines.config import (
    BaselineConfig,
    Evaluation,
    Layers,
    Ppo,
    Teacher,
    baseline_config,
    parse_baseline_config,
)
from patchlight.emulation.learning.baselines.run import BaselineRun
from patchlight.emulation.learning.baselines.scorer import ActionScorer, inputs_of
from patchlight.emulation.learning.config import ConfigError
from patchlight.emulation.learning.envs.registry import ENVIRONMENTS, find_environment
from patchlight.emulation.learning.envs.testing import figure_of
from patchlight.testbed.errors import BadInput

# What PyTorch imports at a first optimizer, and the compiled loops, are had once.
pytestmark = pytest.mark.xdist_group("training")

# The best action is the row with the least number, but the first is never allowed.
LEAST = """
import gymnasium
import numpy as np


class Least(gymnasium.Env):
    metadata = {"render_modes": []}
    figure = "sum"
    per_action = ("rows",)
    action_space = gymnasium.spaces.Discrete(4)
    observation_space = gymnasium.spaces.Dict(
        rows=gymnasium.spaces.Box(0.0, 1.0, (4, 1), np.float32),
        time=gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32),
    )
    heuristics = {"last": lambda env, seen: 3}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.sum = 0, 0.0
        return self.seen(), {}

    def seen(self):
        self.rows = self.np_random.random((4, 1), np.float32)
        return {"rows": self.rows, "time": np.array([self.steps / 8], np.float32)}

    def step(self, action):
        cost = float(self.rows[action, 0])
        self.steps, self.sum = self.steps + 1, self.sum + cost
        return self.seen(), -cost, self.steps == 8, False, {"sum": self.sum}

    def action_masks(self):
        return np.array([False, True, True, True])
"""

CONFIG = BaselineConfig(
    "least.py:Least",
    "least",
    steps=3000,
    num_envs=4,
    network=Layers(hidden=16),
    ppo=Ppo(gamma=0.2, learning_rate=5e-3, n_steps=64, batch_size=64),
    evaluation=Evaluation(seeds=10, every_steps=1500),
)


@pytest.fixture
def least(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "least.py").write_text(LEAST)
    return tmp_path


def test_what_is_learned_is_kept_and_plays(least: Path) -> None:
    said: list[str] = []
    run = BaselineRun(CONFIG, least / "run", said.append)
    before = figure_of(run._env, run.play, 0, "sum")
    model = load_baseline(run.learn())
    # Three numbers from 0 to 1: any of them is 0.5 in the mean, the least of them 0.25.
    played = [figure_of(run._env, model, seed, "sum") / 8 for seed in range(20)]
    assert np.mean(played) == pytest.approx(0.25, abs=0.05)
    assert played[0] < before / 8
    assert model.card.inputs == {"rows": [4, 1], "time": [1]}
    assert len(said) >= 3
    assert (least / "run" / "progress.csv").read_text().count("\n") == len(said) + 1


def test_a_rule_is_imitated_and_the_same_seed_gives_the_same(least: Path) -> None:
    config = dataclasses.replace(
        CONFIG, steps=0, teacher=Teacher("last", steps=300, learning_rate=1e-2, batch_size=16)
    )
    one, same = (BaselineRun(config, least / name).learn() for name in "ab")
    assert one.read_bytes() == same.read_bytes()
    env = find_environment("least.py:Least").make()
    seen, _ = env.reset(seed=3)
    actions = []
    for _ in range(8):
        actions.append(load_baseline(one)(env, seen))
        seen, *_ = env.step(np.int64(actions[-1]))
    assert actions == [3] * 8


def test_in_further_rounds_the_network_plays_and_the_rule_says_what_it_would_do(
    least: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = Teacher("last", steps=64, rounds=2, n_epochs=1, learning_rate=1e-9, batch_size=64)
    config = dataclasses.replace(CONFIG, teacher=teacher)
    run = BaselineRun(config, least / "run")
    done, env = list[int](), run._env
    step = env.step

    def watched(action: Any) -> Any:
        done.append(int(action))
        return step(action)

    monkeypatch.setattr(env, "step", watched)
    learned: list[list[int]] = []
    monkeypatch.setattr(imitation, "_fit", lambda *given: learned.append(list(given[3])))
    imitation.imitate(run.scorer, env, lambda env, seen: 3, config)
    assert done[:32] == [3] * 32
    assert set(done[32:]) > {3}
    assert learned == [[3] * 32, [3] * 64]


@pytest.mark.parametrize("each", ENVIRONMENTS, ids=lambda each: each.name)
def test_every_environment_has_a_configuration_that_fits_it(each: Any) -> None:
    config = baseline_config(each.name)
    recipe = find_environment(config.environment)
    assert recipe.name == each.name
    env = recipe.make()
    inputs = inputs_of(env.observation_space, config.network.inputs)
    per_action = env.per_action  # type: ignore[attr-defined]
    assert set(per_action) & inputs.keys()
    assert not config.teacher.rule or config.teacher.rule in env.heuristics  # type: ignore[attr-defined]
    actions = int(env.action_space.n)  # type: ignore[attr-defined]
    scorer = ActionScorer(inputs, actions, per_action, config.network.hidden)
    seen, _ = env.reset(seed=1)
    shown = {name: torch.from_numpy(np.asarray(seen[name]))[None] for name in inputs}
    assert scorer(shown).shape == (1, actions + 1)


def test_shipped_baselines_play_what_their_cards_say() -> None:
    for name, models in shipped_baselines().items():
        env = find_environment(name).make()
        seen, _ = env.reset(seed=0)
        for path in models.values():
            model = load_baseline(path)
            assert path.stat().st_size < 200_000
            assert env.action_masks()[model(env, seen)]  # type: ignore[attr-defined]


def test_what_is_no_baseline_is_refused(least: Path) -> None:
    path = BaselineRun(dataclasses.replace(CONFIG, steps=0), least / "run").learn()
    env = find_environment("Schedule").make()
    seen, _ = env.reset(seed=0)
    with pytest.raises(BadInput, match=r"was trained for least\.py:Least"):
        load_baseline(path)(env, seen)
    card = path.with_suffix(".json")
    right = json.loads(card.read_text())
    for wrong, said in (
        ({**right, "format": "patchlight-policy"}, "no card of a baseline"),
        ({**right, "format_version": 9}, "version 9"),
        ({**right, "sha256": "0" * 64}, "SHA-256"),
        ({**right, "inputs": {"rows": [5, 1], "time": [1]}}, "not as its card says"),
        ({key: each for key, each in right.items() if key != "actions"}, "keys missing"),
    ):
        card.write_text(json.dumps(wrong))
        load_baseline.cache_clear()
        with pytest.raises(CardError, match=said):
            load_baseline(path)


def test_mistakes_of_a_configuration_are_told(least: Path) -> None:
    with pytest.raises(ConfigError) as told:
        parse_baseline_config("environment: Schedule\nalgorithm: dqn\nppo: {n_step: 1}\n")
    assert "'dqn' is not an algorithm" in str(told.value)
    assert "n_step" in str(told.value)
    for config, said in (
        (dataclasses.replace(CONFIG, teacher=Teacher("first")), "no heuristic 'first'"),
        (dataclasses.replace(CONFIG, network=Layers(("row",))), "no array 'row'"),
        (dataclasses.replace(CONFIG, environment="Scedule"), "no environment"),
    ):
        with pytest.raises(BadInput, match=said):
            BaselineRun(config, least / "run")
    assert not (least / "run").exists()


def test_the_command_trains_and_compares(least: Path) -> None:
    file = least / "mine.yaml"
    file.write_text(
        "environment: least.py:Least\nname: mine\nsteps: 256\nnum_envs: 2\n"
        "ppo: {n_steps: 64}\nevaluation: {seeds: 2}\n"
    )
    done = CliRunner().invoke(cli, ["env", "train", str(file)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    model = "results/learning/mine/mine.onnx"
    assert f"patchlight env compare least.py:Least --model {model}" in done.output
    arguments = ["env", "compare", "least.py:Least", "--model", model, "--episodes", "3", "--json"]
    (found,) = json.loads(CliRunner().invoke(cli, arguments, catch_exceptions=False).output)
    assert [(each["rule"], each["sort"]) for each in found["rules"]][2] == ("mine", "trained")
