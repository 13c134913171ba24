"""``patchlight env``: environments listed, shown, checked and compared."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from patchlight.cli.main import cli
from patchlight.testbed.errors import BadInput, PatchlightError

pytest.importorskip(
    "gymnasium", reason="Gymnasium is not installed: extra 'learn'"
)

from patchlight.emulation.learning.envs.registry import ENVIRONMENTS

MINE = """
import gymnasium
import numpy as np


class Good(gymnasium.Env):
    metadata = {"render_modes": []}
    figure = "sum"
    action_space = gymnasium.spaces.Discrete(3)
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.sum = 0, 0
        return self.seen(), {}

    def seen(self):
        return self.np_random.random(1, np.float32)

    def step(self, action):
        self.steps, self.sum = self.steps + 1, self.sum + int(action)
        return self.seen(), float(action), self.steps == 5, False, {"sum": self.sum}

    def action_masks(self):
        return np.array([True, True, False])


class Unseeded(Good):
    def seen(self):
        return np.random.default_rng().random(1, np.float32)


class NoMasks(Good):
    action_masks = None


class NothingAllowed(Good):
    def action_masks(self):
        return np.zeros(3, bool)


class OutOfSpace(Good):
    def seen(self):
        return super().seen() + np.float32(1.5)


class Raises(Good):
    def step(self, action):
        raise RuntimeError("out of order")


number = 3
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["env", *arguments])


def test_list_and_show_name_what_there_is() -> None:
    listed = json.loads(run("show", "--json").output)
    assert [each["name"] for each in listed] == [
        each.name for each in ENVIRONMENTS
    ]
    assert all(len(each["heuristics"]) >= 2 for each in listed)
    assert "the next waiting job" in run("show").output
    shown = run("show", "Schedule").output
    assert 'gymnasium.make("patchlight/Schedule-v0")' in shown
    assert "16 × 5 numbers, 0 to 1" in shown


def test_an_environment_of_a_file_is_checked_and_compared(mine: Path) -> None:
    done = run(
        "check", f"{mine}:Good", "--steps", "40", "--episodes", "3", "--json"
    )
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.output)
    assert found["good"]
    assert found["steps_per_cpu_s"] > 0
    assert set(found["checks"].values()) == {"ok"}
    assert found["figure"] == "sum"
    (rule,) = found["rules"]
    assert rule["rule"] == "random"
    assert 0 < rule["mean"] < 5


SEED = """

class Seed(Good):
    figure = "seed"

    def reset(self, *, seed=None, options=None):
        self.given = seed
        return super().reset(seed=seed)

    def step(self, action):
        seen, reward, over, cut, info = super().step(action)
        return seen, reward, over, cut, {"seed": self.given}
"""


def test_episodes_are_compared_from_the_first_seed_on(mine: Path) -> None:
    mine.write_text(MINE + SEED)
    words = ["check", f"{mine}:Seed", "--steps", "40", "--episodes", "3"]
    for first in (0, 97000):
        done = run(*words, "--first-seed", str(first), "--json")
        assert done.exit_code == 0, done.output
        (found,) = json.loads(done.output)
        assert found["rules"][0]["mean"] == first + 1  # of three in a row


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Unseeded", "two episodes of seed 3 under the same actions differ"),
        ("NoMasks", "NoMasks has no action_masks()"),
        ("NothingAllowed", "no action is allowed at step 0"),
        ("OutOfSpace", "not in the observation space"),
        ("Raises", "RuntimeError: out of order"),
    ],
)
def test_what_is_wrong_is_said(mine: Path, name: str, said: str) -> None:
    done = run("check", f"{mine}:{name}", "--steps", "20", "--json")
    assert isinstance(done.exception, PatchlightError)
    assert said in done.output


def test_bad_names_are_refused(mine: Path) -> None:
    for arguments, said in (
        (("show", "Scedule"), "schedule"),
        (("show", f"{mine}:number"), "is not an environment"),
        (("show", f"{mine}:Other"), "has no 'Other'"),
        (("show", "nowhere.py:Env"), "cannot read"),
        (("check",), "no environment given"),
        (("check", "Schedule", "--all"), "exclude"),
        (("check", f"{mine}:Good", "--episodes", "1"), None),
    ):
        done = run(*arguments)
        assert done.exit_code
        if said is not None:
            assert isinstance(done.exception, BadInput)
            assert said in f"{done.exception.message} {done.exception.hint}"
