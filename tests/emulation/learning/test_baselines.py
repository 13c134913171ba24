"""Models of environments: one plays where it was trained, and what does not match is refused."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

from patchlight.cli.main import cli
from patchlight.controller.policies.files import CardError
from patchlight.emulation.learning.envs.registry import find_environment
from patchlight.emulation.learning.envs.testing import figure_of, load_baseline
from patchlight.testbed.errors import BadInput

pytest.importorskip("onnx", reason="onnx is not installed: extra 'learn'")
pytest.importorskip("gymnasium", reason="Gymnasium is not installed: extra 'learn'")


# The best action is the row with the least number, but the first is never allowed.
LEAST = """
import gymnasium
import numpy as np


class Least(gymnasium.Env):
    metadata = {"render_modes": []}
    figure = "sum"
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


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Scores each action by its row: the less the better."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "least.py").write_text(LEAST)
    nodes = [
        helper.make_node("Neg", ["rows"], ["less"]),
        helper.make_node("Squeeze", ["less", "axes"], ["scores"]),
    ]
    axes = numpy_helper.from_array(np.array([2], np.int64), "axes")
    inputs = [helper.make_tensor_value_info("rows", TensorProto.FLOAT, [1, 4, 1])]
    outputs = [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 4])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [axes])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 8
    path = tmp_path / "mine.onnx"
    path.write_bytes(content := made.SerializeToString())
    card = {
        "format": "patchlight-baseline",
        "format_version": 1,
        "name": "mine",
        "environment": "least.py:Least",
        "algorithm": "maskable-ppo",
        "inputs": {"rows": [4, 1]},
        "actions": 4,
        "figure": "sum",
        "code_version": "0.1.0",
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    path.with_suffix(".json").write_text(json.dumps(card))
    load_baseline.cache_clear()
    return path


def test_a_model_plays_the_allowed_action_with_the_best_score(model: Path) -> None:
    env, rule = find_environment("least.py:Least").make(), load_baseline(model)
    # Three numbers from 0 to 1: any of them is 0.5 in the mean, the least of them 0.25.
    played = [figure_of(env, rule, seed, "sum") / 8 for seed in range(20)]
    assert np.mean(played) == pytest.approx(0.25, abs=0.05)


def test_the_command_compares_it_with_the_rules(model: Path) -> None:
    arguments = ["env", "check", "least.py:Least", "--episodes", "10", "--steps", "40"]
    arguments += ["--model", str(model), "--json"]
    (found,) = json.loads(CliRunner().invoke(cli, arguments, catch_exceptions=False).output)
    assert [(each["rule"], each["sort"]) for each in found["rules"]][2] == ("mine", "trained")


def test_what_does_not_match_is_refused(model: Path) -> None:
    env = find_environment("Schedule").make()
    seen, _ = env.reset(seed=0)
    with pytest.raises(BadInput, match=r"was trained for least\.py:Least"):
        load_baseline(model)(env, seen)
    card = model.with_suffix(".json")
    right = json.loads(card.read_text())
    for wrong, said in (
        ({**right, "format": "patchlight-policy"}, "not the card of a model of an environment"),
        ({**right, "format_version": 9}, "version 9"),
        ({**right, "sha256": "0" * 64}, "SHA-256"),
        ({**right, "inputs": {"rows": [5, 1]}}, "not as its card says"),
        ({key: each for key, each in right.items() if key != "actions"}, "keys missing"),
    ):
        card.write_text(json.dumps(wrong))
        load_baseline.cache_clear()
        with pytest.raises(CardError, match=said):
            load_baseline(model)
