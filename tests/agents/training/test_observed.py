"""Iterations of programs without a line of Patchlight's, seen at the steps of their optimizer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from patchlight.agents.workers.programs import TRAINING

pytest.importorskip("torch")

STEPS = """
import torch
layer = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for step in range(4):
    {own}
    layer(torch.randn(3)).sum().backward()
    optimizer.step()
"""
OWN = 'open("{}", "a").write("own\\n")'


def ran(
    program: str,
    reports: Path,
    *path: Path,
    local_rank: str = "0",
) -> str:
    folders = [TRAINING / "observed", *path]
    variables = {
        **os.environ,
        "PYTHONPATH": ":".join(map(str, folders)),
        "PATCHLIGHT_REPORTS": str(reports),
        "GLOO_SOCKET_IFNAME": "lo",
        "LOCAL_RANK": local_rank,
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=variables,
        check=True,
        capture_output=True,
        text=True,
    )
    assert not done.stderr
    return done.stdout


def test_each_step_of_an_optimizer_is_an_iteration(tmp_path: Path) -> None:
    reports = tmp_path / "reports.jsonl"
    ran(STEPS.format(own="pass"), reports)
    found = [json.loads(line) for line in reports.read_text().splitlines()]
    assert [each["index"] for each in found] == [0, 1, 2, 3]
    ends = [each["finished_at"] for each in found]
    assert ends == sorted(ends)
    assert {each["origin"] for each in found} == {"optimizer"}
    took_s = found[2]["compute_s"] + found[2]["communication_s"]
    assert took_s == pytest.approx(ends[2] - ends[1], abs=0.05)


def test_a_program_that_reports_is_left_to_do_so(tmp_path: Path) -> None:
    reports = tmp_path / "reports.jsonl"
    ran(STEPS.format(own=OWN.format(reports)), reports)
    assert reports.read_text() == 4 * "own\n"


def test_one_process_of_a_worker_is_observed(tmp_path: Path) -> None:
    reports = tmp_path / "reports.jsonl"
    ran(STEPS.format(own="pass"), reports, local_rank="1")
    assert not reports.exists()


def test_the_module_that_it_hides_is_imported(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("print('imported')")
    assert ran("", tmp_path / "none", hidden) == "imported\n"
