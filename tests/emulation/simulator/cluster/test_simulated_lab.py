"""``patchlight simulate --lab``: the lab file's queue, and jobs of a job file."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from click.testing import CliRunner

from patchlight.emulation.simulator.commands.simulate import simulate
from patchlight.testbed.labfile.reader import builtin_lab

JOBS = """
defaults: {iterations: 100, gradient: 400KB, compute: {Tesla M40: 100ms, Titan V: 100ms}}
jobs:
  - {name: half, workers: 4}
  - {name: all, workers: 6}
  - {name: small, workers: 2}
"""


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.yaml"
    path.write_text(JOBS)
    return path


@pytest.fixture
def backfilled(tmp_path: Path) -> Path:
    path = tmp_path / "lab.yaml"
    queue = "queue: {backfill: true, users: [{name: nobody-here, gpus: 1}]}\n"
    path.write_text(builtin_lab("ofc2022").read_text() + queue)
    return path


def simulated(tmp_path: Path, jobs: Path, *options: str) -> dict[str, Any]:
    arguments = [
        "--trace",
        str(jobs),
        "--output",
        str(tmp_path / "out"),
        *options,
        "--json",
    ]
    done = CliRunner().invoke(simulate, arguments)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def started_s(tmp_path: Path, found: dict[str, Any]) -> dict[str, float]:
    table = parquet.read_table(
        tmp_path / "out" / found["runs"][0]["jobs_file"]
    ).to_pydict()
    return dict(zip(table["name"], table["started_s"], strict=True))


@pytest.mark.usefixtures("undrawn")
def test_jobs_of_a_job_file_wait_as_in_the_labs_queue(
    tmp_path: Path, jobs: Path, backfilled: Path
) -> None:
    found = simulated(tmp_path, jobs, "--lab", "ofc2022")
    starts = started_s(tmp_path, found)
    assert 0 == starts["half"] < starts["all"] < starts["small"]
    assert starts["all"] == pytest.approx(10.0, rel=0.05)

    found = simulated(tmp_path, jobs, "--lab", str(backfilled))
    assert found["settings"]["backfill"] is True
    starts = started_s(tmp_path, found)
    assert 0 == starts["half"] == starts["small"] < starts["all"]

    quota = ("--no-backfill", "--set", "each_user={gpus: 5}")
    found = simulated(tmp_path, jobs, "--lab", str(backfilled), *quota)
    assert found["settings"]["backfill"] is False
    assert found["settings"]["each_user"]["gpus"] == 5
    assert found["settings"]["users"]["nobody-here"]["gpus"] == 1
    assert found["runs"][0]["blocked"] == {"quota": 1}


OPEN = """
defaults: {iterations: 100, gradient: 400KB, compute: {Tesla M40: 100ms, Titan V: 100ms}}
jobs:
  - {name: any, workers: auto}
  - {name: few, workers: auto, degrees: [1, 2]}
  - {name: two, workers: 2}
"""


@pytest.mark.usefixtures("undrawn")
def test_a_partition_policy_says_how_many_workers_jobs_get(
    tmp_path: Path, jobs: Path
) -> None:
    jobs.write_text(OPEN)
    options = ("--lab", "ofc2022", "--partition", "constant:4,maximum,minimum")
    found = simulated(tmp_path, jobs, *options)
    assert [run["blocked"] for run in found["runs"]] == [{}] * 3
    gpus = []
    for run in found["runs"]:
        table = parquet.read_table(
            tmp_path / "out" / run["jobs_file"]
        ).to_pydict()
        gpus.append(dict(zip(table["name"], table["gpus"], strict=True)))
    assert [each["any"] for each in gpus] == [4, 6, 1]
    assert [each["few"] for each in gpus] == [2, 2, 1]
    assert {each["two"] for each in gpus} == {2}
    found = simulated(
        tmp_path,
        jobs,
        "--lab",
        "ofc2022",
        "--partition",
        _mine(tmp_path, "Nobody"),
    )
    assert found["runs"][0]["blocked"] == {"refused": 2}
    # It lets jobs wait until it has all GPUs; so nobody waits where nothing runs.
    found = simulated(
        tmp_path,
        jobs,
        "--lab",
        "ofc2022",
        "--partition",
        _mine(tmp_path, "All"),
    )
    assert found["runs"][0]["blocked"] == {"unplaceable": 1}
    starts = started_s(tmp_path, found)
    assert starts["any"] == 0 < starts["two"]


def _mine(tmp_path: Path, name: str) -> str:
    path = tmp_path / "mine.py"
    path.write_text(
        "class Nobody:\n"
        "    def degree(self, cluster, job, legal):\n"
        "        return 0\n"
        "class All:\n"
        "    def degree(self, cluster, job, legal):\n"
        "        return 6 if 6 in legal else None\n"
    )
    return f"{path}:{name}"


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        (JOBS, (), "which needs a lab"),
        (
            JOBS.replace("workers: 4", "hosts: [gpu0]"),
            ("--lab", "ofc2022"),
            "has 'hosts'",
        ),
        (
            JOBS.replace("workers: 6", "workers: 7"),
            ("--lab", "ofc2022"),
            "7 workers requested, but",
        ),
        (
            "{name: a, workers: 1, command: [ls]}",
            ("--lab", "ofc2022"),
            "its duration is unknown",
        ),
        ("name: 1", ("--lab", "ofc2022"), "jobs.yaml:1:"),
        (OPEN, ("--lab", "ofc2022"), "expected 'workers'"),
        (
            OPEN,
            ("--lab", "ofc2022", "--partition", "learned-first-fit-inexact"),
            "trained for a RAMP",
        ),
        (
            OPEN,
            ("--lab", "ofc2022", "--partition", "as-asked,maximum"),
            "expected 'workers'",
        ),
        (
            OPEN,
            ("--lab", "ofc2022", "--partition", "fifo"),
            "unknown policy 'fifo'",
        ),
    ],
)
def test_a_job_file_that_cannot_be_simulated(
    tmp_path: Path, jobs: Path, text: str, options: tuple[str, ...], words: str
) -> None:
    jobs.write_text(text)
    arguments = [
        "--trace",
        str(jobs),
        "--output",
        str(tmp_path / "out"),
        *options,
    ]
    done = CliRunner().invoke(simulate, arguments)
    assert done.exit_code != 0
    assert words in f"{done.output} {done.exception}"
    assert not (tmp_path / "out").exists()
