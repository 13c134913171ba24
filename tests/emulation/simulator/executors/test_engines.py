"""Tasks on every engine: equal results, and no result lost when a process is killed."""

import importlib.util
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from patchlight.emulation.simulator.executors import (
    Engine,
    EngineFailure,
    run_all,
)
from patchlight.testbed.errors import BadInput, PackageMissing
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.xdist_group("a Ray of its own")
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="Ray is not installed: the extra 'ray'",
)
ENGINES = [
    Engine("serial"),
    Engine("processes", 2),
    pytest.param(Engine("ray", 2), marks=needs_ray),
]
SEVERAL = ENGINES[1:]


@pytest.fixture(scope="module", autouse=True)
def _nothing_left(one_ray: None) -> Iterator[None]:
    """No Ray is left once its last tests have run: idle, it goes on taking processor time."""
    yield
    if importlib.util.find_spec("ray") is not None:
        import ray

        ray.shutdown()


def draw(seed: int) -> tuple[int, float]:
    """A result that depends on nothing but the task."""
    return seed, float(np.random.default_rng(seed).normal())


class Counting:
    """Keeps what it was asked for, as long as its process lives."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, task: int) -> tuple[int, int]:
        self.asked.append(task)
        return task, len(self.asked)


class Dying:
    """Kills its process at one task: the first time, or always."""

    def __init__(self, marker: Path, always: bool = False) -> None:
        self.marker = marker
        self.always = always
        self.home = os.getpid()

    def __call__(self, task: int) -> tuple[int, float]:
        first = not self.marker.exists()
        if task == 3 and os.getpid() != self.home and (first or self.always):
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return draw(task)


def refuses(task: int) -> int:
    if task == 2:
        raise BadInput("there is no task 2", hint="count differently")
    return task


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_results_are_those_of_the_serial_run_in_the_tasks_order(
    engine: Engine,
) -> None:
    told: list[int] = []
    assert run_all(range(20), draw, engine, lambda: told.append(1)) == [
        draw(n) for n in range(20)
    ]
    assert len(told) == 20
    assert run_all([], draw, engine) == []


@pytest.mark.parametrize("engine", SEVERAL, ids=lambda engine: engine.name)
def test_a_process_that_dies_loses_no_result(
    engine: Engine, tmp_path: Path
) -> None:
    told: list[int] = []
    found = run_all(
        range(8), Dying(tmp_path / "died"), engine, lambda: told.append(1)
    )
    assert (tmp_path / "died").exists()
    assert found == [draw(n) for n in range(8)]
    assert len(told) == 8


@pytest.mark.parametrize("engine", SEVERAL, ids=lambda engine: engine.name)
def test_processes_that_always_die_are_an_error(
    engine: Engine, tmp_path: Path
) -> None:
    with pytest.raises(EngineFailure, match="processes died 3 times"):
        run_all(range(4), Dying(tmp_path / "died", always=True), engine)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_an_error_of_the_worker_is_raised_as_it_is(engine: Engine) -> None:
    with pytest.raises(BadInput, match="there is no task 2") as caught:
        run_all(range(4), refuses, engine)
    assert caught.value.hint == "count differently"


@pytest.mark.parametrize("engine", SEVERAL, ids=lambda engine: engine.name)
def test_a_process_keeps_its_worker(engine: Engine) -> None:
    counts = dict(run_all(range(12), Counting(), engine))
    # Two processes share twelve tasks: a worker that was made anew each time would count to one.
    assert max(counts.values()) >= 6


def test_without_ray_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(PackageMissing, match="not installed") as caught:
        run_all(range(2), draw, Engine("ray"))
    assert str(caught.value.hint).endswith("pip install 'patchlight[ray]'")


@needs_ray
def test_a_ray_that_is_not_there_is_told_at_once() -> None:
    code = (
        "from patchlight.emulation.simulator.executors import Engine, run_all\n"
        "run_all([1, 2], abs, Engine('ray', address='127.0.0.1:1'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert "connecting to Ray at 127.0.0.1:1: " in done.stderr
    assert "Connection refused" in done.stderr


def test_engines_that_cannot_be() -> None:
    with pytest.raises(BadInput, match="did you mean 'serial'"):
        Engine("seriel")
    with pytest.raises(BadInput, match="only ray does"):
        Engine("processes", address="127.0.0.1:6379")
    with pytest.raises(BadInput, match="-1 processes"):
        Engine("processes", -1)
