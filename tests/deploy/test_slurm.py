"""What Slurm runs before and after a job: circuits are claimed, and given back."""

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.support.house import ROOT
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.wings
CIRCUITS = ROOT / "deploy/slurm/circuits.sh"
JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "s[1-2]"}
# What it calls answers with the next line of a file, or with success, and keeps what it was told.
PROGRAM = """#!/bin/sh
cd "${{0%/*}}"
echo "{name} $*" >>calls
answers={name}.answers
case "$*" in --oneliner*) answers=states ;; esac
[ -s $answers ] || exit 0
read -r status words <$answers
sed -i 1d $answers
echo "$words"
exit "$status"
"""
Context = Callable[..., int]


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """Runs the script as slurmctld does, which then kills its process group; the exit status."""
    for name in ("patchlight", "scontrol", "sleep"):
        (tmp_path / name).write_text(PROGRAM.format(name=name))
        (tmp_path / name).chmod(0o755)

    def run(when: str, state: str = "RUNNING", **variables: str) -> int:
        (tmp_path / "states").write_text(f"0 JobState={state}\n" * 9)
        script = subprocess.Popen(
            [CIRCUITS],
            env=JOB
            | {"SLURM_SCRIPT_CONTEXT": f"{when}_slurmctld"}
            | {"PATCHLIGHT": str(tmp_path / "patchlight")}
            | {"PATH": f"{tmp_path}:/usr/bin:/bin"}
            | variables,
            process_group=0,
        )
        status = script.wait(PATIENCE_S)
        with suppress(ProcessLookupError):
            os.killpg(script.pid, signal.SIGKILL)
        return status

    return run


def calls(folder: Path, of: str = "") -> list[str]:
    file = folder / "calls"
    lines = file.read_text().splitlines() if file.exists() else []
    return [line for line in lines if line.startswith(of)]


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        ({}, "switch"),
        ({"SLURM_JOB_COMMENT": "circuits=ring, thanks"}, "ring"),
        ({"SLURM_JOB_CONSTRAINTS": "fast&circuits=open"}, "open"),
    ],
)
def test_a_job_starts_with_its_circuits(
    context: Context, tmp_path: Path, given: dict[str, str], shape: str
) -> None:
    assert context("prolog", **given) == 0
    assert calls(tmp_path, "patchlight") == [
        f"patchlight ocs claim slurm-7 --nodes s[1-2] --shape {shape} "
        "--wait 300s"
    ]


def test_a_job_that_wants_no_circuits_gets_none(
    context: Context, tmp_path: Path
) -> None:
    done = context("prolog", SLURM_JOB_COMMENT="circuits=none")
    assert (done, calls(tmp_path, "patchlight")) == (0, [])


def test_a_claim_outlives_the_time_limit_of_its_job_by_ten_minutes(
    context: Context, tmp_path: Path
) -> None:
    context("prolog", SLURM_JOB_START_TIME="100", SLURM_JOB_END_TIME="160")
    assert "--time-limit 660s" in calls(tmp_path, "patchlight")[0]


def test_a_job_waits_in_line_for_as_long_as_it_takes(
    context: Context, tmp_path: Path
) -> None:
    (tmp_path / "patchlight.answers").write_text("3 in line\n" * 3 + "0\n")
    assert context("prolog") == 0
    assert len(calls(tmp_path, "patchlight")) == 4


def test_a_job_that_fails_again_and_again_is_held_with_the_reason(
    context: Context, tmp_path: Path
) -> None:
    refused = '1 node "s9" is unknown\n'
    (tmp_path / "patchlight.answers").write_text(refused * 2)
    # Slurm is not done yet with the job's first end.
    (tmp_path / "scontrol.answers").write_text("0\n0\n1 not pending\n")
    update = (
        "scontrol update JobId=7 AdminComment=attempt {} of 3: "
        "no circuits: node s9 is unknown"
    )
    again = [update.format(3), "scontrol uhold 7"]
    reported = [update.format(2), *again * 2]
    for restarts, most in ((1, 1), (2, 5)):
        done = context("prolog", SLURM_JOB_RESTART_COUNT=str(restarts))
        assert done == 1
        want = reported[:most]
        wait_until(partial(_are, tmp_path, want, "scontrol u"), str(want))


def _are(folder: Path, want: list[str], of: str = "") -> bool:
    return calls(folder, of) == want


RELEASE = "patchlight ocs claim slurm-7 --release"
LATER = ["sleep 10", "scontrol --oneliner show job 7"]


def test_circuits_are_given_back_once_the_controller_answers(
    context: Context, tmp_path: Path
) -> None:
    (tmp_path / "patchlight.answers").write_text("1 no answer\n" * 3)
    assert context("epilog", state="COMPLETED") == 0
    again = [*LATER, RELEASE]
    wait_until(partial(_are, tmp_path, [RELEASE, *again * 3]))


def test_a_job_that_has_started_again_keeps_its_circuits(
    context: Context, tmp_path: Path
) -> None:
    (tmp_path / "patchlight.answers").write_text("1 no answer\n")
    context("epilog")
    wait_until(partial(_are, tmp_path, [RELEASE, *LATER]))


def test_a_job_that_ends_without_its_epilog_gives_its_circuits_back(
    context: Context, tmp_path: Path
) -> None:
    context("prolog", state="CANCELLED")
    wait_until(lambda: calls(tmp_path, "patchlight")[-1:] == [RELEASE])
