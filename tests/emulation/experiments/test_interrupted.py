"""Ctrl-C in the middle of partition policies' episodes: what is finished is written, and said."""

import json
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from patchlight.emulation.experiments.commands.pac_ml import print_tables
from patchlight.emulation.experiments.pac_ml.results import write_report
from patchlight.emulation.experiments.pac_ml.run import (
    PacMlOptions,
    run_experiment,
)
from patchlight.emulation.simulator.executors import Engine
from tests.support.figures import for_a_paper
from tests.support.waiting import PATIENCE_S, wait_until

# The second of its episodes never ends.
STICKS = """
import time
from pathlib import Path


class Sticks:
    def __init__(self):
        here = Path(__file__).parent
        self.stuck = (here / "first").exists()
        (here / ("stuck" if self.stuck else "first")).touch()

    def degree(self, cluster, job, legal):
        while self.stuck:
            time.sleep(60)  # until it is interrupted
        return legal[-1]
"""
SHORT = PacMlOptions(
    seeds=3,
    quick=True,
    laws=("A", "D"),
    rules=("ramp-block",),
    horizon_s=6e4,
    policies=("constant-8", "random"),
)


@pytest.fixture(autouse=True)
def no_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PATCHLIGHT_PROFILES", raising=False)


def interrupted(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Exit code and both outputs of a command that got Ctrl-C while it was stuck."""
    process = subprocess.Popen(
        [sys.executable, "-m", "patchlight", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that runs tests in the background has them ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.default_int_handler
        ),
    )

    def is_stuck() -> bool:
        assert process.poll() is None, "it ended before an episode stuck"
        return (folder / "stuck").exists()

    with process:
        try:
            wait_until(is_stuck, "an episode that sticks")
            process.send_signal(signal.SIGINT)
            said, complained = process.communicate(timeout=PATIENCE_S)
        except BaseException as error:
            process.kill()
            error.add_note("".join(process.communicate()))
            raise
    return process.returncode, said, complained


PAC_ML = (
    "experiment",
    "pac-ml",
    "--rules",
    "ramp-block",
    "--laws",
    "A",
    "--quick",
)


def test_ctrl_c_writes_and_prints_what_is_finished(tmp_path: Path) -> None:
    sticks = tmp_path / "sticks.py"
    output = tmp_path / "out"
    sticks.write_text(STICKS)
    named = ("--policies", f"constant-8,{sticks}:Sticks", "--seeds", "3")
    arguments = (*PAC_ML, *named, "--processes", "1", "--output", str(output))
    code, said, complained = interrupted(tmp_path, *arguments)
    assert code == 130, complained
    # Seed by seed: both policies have the first one, constant-8 the second too.
    assert "only 3 of 6 episodes are finished and written" in complained
    found = json.loads(
        (output / "result.json").read_text(), parse_constant=pytest.fail
    )
    assert found["interrupted"] is True
    assert (found["episodes_finished"], found["episodes_wanted"]) == (3, 6)
    policies = found["rules"]["ramp-block"]["A"]["policies"]
    assert (
        found["rules"]["ramp-block"]["A"]["hindsight_bound"]["blocking_rate"]
        is not None
    )
    assert {
        name: len(each["episodes"]) for name, each in policies.items()
    } == {
        "constant-8": 2,
        f"{sticks}:Sticks": 1,
    }
    assert "constant-8" in said
    assert "Sticks" in said


def test_ctrl_c_before_anything_is_finished_writes_nothing(
    tmp_path: Path,
) -> None:
    sticks = tmp_path / "sticks.py"
    output = tmp_path / "out"
    sticks.write_text(STICKS)
    (tmp_path / "first").touch()
    few = (
        "--policies",
        f"{sticks}:Sticks",
        "--seeds",
        "1",
        "--processes",
        "1",
    )
    code, _, complained = interrupted(
        tmp_path, *PAC_ML, *few, "--output", str(output)
    )
    assert code == 130, complained
    assert not output.exists()


class Stop:
    """Presses Ctrl-C once so many episodes are done."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, done: int, total: int) -> None:
        self.left -= done > 0
        if not self.left:
            raise KeyboardInterrupt


def part(options: PacMlOptions, after: int) -> dict[str, Any]:
    return run_experiment(options, lambda words: None, Stop(after))


@pytest.mark.parametrize(
    ("engine", "stops"),
    [(Engine("serial"), (1, 7)), (Engine("processes", 2), (7,))],
    ids=["1", "2"],
)
def test_figures_are_those_of_the_finished_episodes(
    engine: Engine,
    stops: tuple[int, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    said: list[str] = []
    looks: list[Any] = []
    told: list[int] = []
    whole = run_experiment(
        SHORT, said.append, lambda done, _: told.append(done), looks.append
    )
    assert re.search(r"^18 episodes and bounds, about \d+ s$", said[-1])
    assert (told[0], told[-1]) == (0, 100)
    (first,) = looks  # once the first of three seeds is done
    assert [
        len(each.episodes) for cell in first.values() for each in cell.values()
    ] == [1] * 4
    assert not whole["interrupted"]
    assert whole["episodes_finished"] == whole["episodes_wanted"] == 12
    for after in stops:
        some = part(replace(SHORT, engine=engine), after)
        assert some["interrupted"]
        episodes = 0
        for law, cell in some["rules"]["ramp-block"].items():
            for name, figures in cell["policies"].items():
                there = whole["rules"]["ramp-block"][law]["policies"][name][
                    "episodes"
                ]
                assert [
                    each for each in there if each in figures["episodes"]
                ] == figures["episodes"]
                episodes += len(figures["episodes"])
        assert episodes == some["episodes_finished"] < 12
        if engine.name != "serial":
            continue
        # Tables and plots do without what is not there.
        assert len(write_report(some, tmp_path / "out")) == 7
        for plot in ("blocking-ramp-block", "completion-ramp-block"):
            text = for_a_paper(tmp_path / "out" / f"{plot}.svg")
            assert f"interrupted: {episodes} of 12 episodes" in text
        print_tables(some)
        assert "constant-8" in capsys.readouterr().out
