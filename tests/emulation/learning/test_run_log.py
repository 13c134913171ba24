"""What a training run says of itself."""

import csv
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: extra 'learn'")

from patchlight.emulation.learning.export import TENSORBOARD
from patchlight.emulation.learning.run_folder import RunLog


def test_rows_and_what_is_left(tmp_path: Path) -> None:
    log = RunLog(tmp_path, steps=1000, first=200, before_s=30.0)
    assert log.words(200, 0.0) == " 20%         200 decisions      30 s"
    # 400 decisions in 10 s; as many are left.
    assert (
        log.words(600, 10.0)
        == " 60%         600 decisions      40 s, 10 s left"
    )
    assert (
        log.words(1100, 20.0)
        == "100%       1,100 decisions      50 s, 0 s left"
    )
    for steps in (600, 1000):
        log.row({"steps": steps, "loss": 0.5})
        log.scalars(steps, {"loss": 0.5, "blocking": float("nan")})
    log.close()
    RunLog(tmp_path, 2000, 1000, 60.0).row({"steps": 1200, "loss": 0.25})
    with (tmp_path / "progress.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["steps", "loss"],
        ["600", "0.5"],
        ["1000", "0.5"],
        ["1200", "0.25"],
    ]


@pytest.mark.skipif(
    find_spec("tensorboard") is None,
    reason="the extra 'tensorboard' is missing",
)
def test_tensorboard_reads_the_figures(tmp_path: Path) -> None:
    reader: Any = import_module(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    log = RunLog(tmp_path, 1000, 0, 0.0)
    log.scalars(100, {"loss": 0.5, "blocking_A": 0.25})
    log.scalars(200, {"loss": 0.4, "blocking_A": float("nan")})
    log.close()
    read = reader.EventAccumulator(str(tmp_path / TENSORBOARD))
    read.Reload()
    assert [
        (each.step, each.value) for each in read.Scalars("blocking_A")
    ] == [(100, 0.25)]
    assert [each.step for each in read.Scalars("loss")] == [100, 200]
