"""Training on Ray: workers that play while the learner learns, and one that is killed."""

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: extra 'learn'")
pytest.importorskip("ray", reason="Ray is not installed: extra 'ray'")

from patchlight.emulation.learning import training
from patchlight.emulation.learning.afterstate_worker import AfterstateWorker, Returns
from patchlight.emulation.learning.config import Config, parse_config
from patchlight.emulation.learning.rollouts import Orders, Share
from patchlight.emulation.learning.training import Run
from patchlight.emulation.simulator.executors import Engine, EngineFailure
from patchlight.emulation.simulator.ramp.scenario import Scenario
from patchlight.testbed.errors import BadInput
from tests.support.tiny_models import GRAPHS

pytestmark = pytest.mark.xdist_group("a Ray of its own")
TEXT = """
name: tiny
steps: 4096
environment: {laws: [D], law_instance: 0, num_envs: 32, horizon_s: 1e5, rule: ramp-block}
network: {hidden: [16], busy_after_ks: [1, 4, 10]}
evaluation: {seeds: 2, every_steps: 2048}
"""


class Mortal(AfterstateWorker):
    """A worker whose process is killed: that of the first to play a second time."""

    def __init__(
        self, marker: Path, config: Config, scenarios: Sequence[Scenario], share: Share, done: int
    ) -> None:
        super().__init__(config, scenarios, share, done)
        self._marker, self._plays = marker, 0

    def play(self, orders: Orders) -> Returns:
        self._plays += 1
        if self._plays == 2:
            with suppress(FileExistsError):
                self._marker.touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        return super().play(orders)


class Dooming:
    """Makes such workers."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __call__(self, *arguments: Any) -> Mortal:
        return Mortal(self._marker, *arguments)


@pytest.mark.timeout(180)
@pytest.mark.usefixtures("one_ray")
def test_a_killed_worker_costs_a_run_no_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "killed"
    monkeypatch.setattr(training, "AfterstateWorker", Dooming(marker))
    lines: list[str] = []
    run = Run(parse_config(TEXT), GRAPHS, tmp_path / "run", lines.append, Engine("ray", 2))
    report = run.learn()
    assert marker.exists()
    # Each play of half of the environments counts once, the killed one's as it was played anew.
    assert report.training["steps"] == 4096
    # Where the machine is busy, there are more lines between the two evaluations.
    assert len([line for line in lines if "blocking: D 0." in line]) == 2
    # It is a run like any other: this process goes on with it.
    longer = Run(parse_config(TEXT.replace("4096", "5000")), GRAPHS, tmp_path / "run")
    longer.resume()
    assert longer.learn().training["steps"] >= 5000


def test_what_ray_cannot_do_is_said_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ppo = parse_config(TEXT.replace("steps", "algorithm: maskable-ppo\nsteps", 1))
    with pytest.raises(BadInput, match="'maskable-ppo' learns in one process"):
        Run(ppo, GRAPHS, tmp_path / "run", engine=Engine("ray", 2))
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # by another test
    nowhere = Engine("ray", 2, "127.0.0.1:1")
    with pytest.raises(EngineFailure, match=r"connecting to Ray at 127\.0\.0\.1:1"):
        Run(parse_config(TEXT), GRAPHS, tmp_path / "run", engine=nowhere).learn()
    assert not list((tmp_path / "run").glob("*.pt"))
