"""Job files handed in as a user hands them in, with the command line, in the lab of the paper."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from patchlight import EmulatedLab
from patchlight.cli.main import cli
from patchlight.testbed.lab.rules import PolicyChoice
from tests.support.lab_jobs import every_iteration
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from patchlight.testbed.wire.rest.jobs import IterationReport

pytestmark = [pytest.mark.root, pytest.mark.ovs]

EXAMPLES = Path(__file__).parents[2] / "examples" / "jobs"
SMALL = "gradient: 40MB\ncompute: {Tesla M40: 0.2s, Titan V: 0.2s}\n"


@pytest.fixture(scope="module")
def lab() -> Iterator[EmulatedLab]:
    choice = PolicyChoice(placement="regroup")
    with EmulatedLab.from_file(
        "ofc2022",
        scale=1000,
        name="jobfiles",
        workers="process",
        policies=choice,
    ) as emulated:
        yield emulated


def job(*words: str, code: int = 0, text: str | None = None) -> str:
    done = CliRunner().invoke(
        cli, ["job", *words], input=text, env={"PATCHLIGHT_LAB": "jobfiles"}
    )
    assert done.exit_code == code, (done.output, done.exception)
    return done.stdout


def test_the_third_job_waits_says_for_what_and_runs_when_one_ends(
    lab: EmulatedLab,
) -> None:
    four = "name: four\nworkers: 4\ngpu_models: Tesla M40\ntopology: regroup\niterations: 5000\n"
    job("submit", "-", text=four + SMALL)
    two = lab.submit(
        {"name": "two", "hosts": ["gpu1", "gpu3"], "command": "sleep 600"}
    )[0].id
    wait_until(lambda: lab.controller.job(two).state == "running")
    wait_until(
        lambda: (
            json.loads(job("show", "four", "--json"))["iterations_done"] > 0
        )
    )
    third = "name: third\nworkers: 2\niterations: 2\n" + SMALL
    (row,) = json.loads(job("submit", "-", "--dry-run", "--json", text=third))
    assert "it needs 2 GPUs" in row["waits_for"]
    job("submit", "-", text=third)
    wait_until(lambda: "it needs 2 GPUs" in job("show", "third"))
    job("stop", "four")
    job("show", "--follow", "third")
    past = json.loads(job("show", "third", "--history", "--json"))["states"]
    states = [row["state"] for row in past]
    assert states[0] == "queued"
    assert states[-2:] == ["running", "done"]
    job("stop", "two")
    assert (
        job("show", "--follow", "four", "two", code=1).count(
            "stopped by the user"
        )
        == 2
    )


needs_torch = pytest.mark.skipif(
    find_spec("torch") is None, reason="no PyTorch: pip install torch"
)


@needs_torch
@pytest.mark.others
def test_an_unchanged_script_of_pytorch_is_a_job(
    lab: EmulatedLab, tmp_path: Path
) -> None:
    if EXAMPLES.is_relative_to("/tmp"):
        pytest.skip("workers do not see /tmp, where this checkout is")
    script = str(EXAMPLES / "train_gloo.py")
    words = (
        "--workers",
        "2",
        "--set",
        "hold=freeze",
        "--",
        sys.executable,
        script,
        "--steps",
        "3",
    )
    job_id = job("submit", "gloo", *words).strip()
    wait_until(lambda: "rank 1 step 2" in job("logs", "gloo"))
    job("show", "--follow", job_id)


@needs_torch
def test_a_real_model_is_regrouped_while_it_learns(lab: EmulatedLab) -> None:
    since = time.time()
    hosts = ("--hosts", "gpu1,gpu3")  # under different ToRs
    words = ("--model", "tiny-transformer", "--iterations", "40")
    job_id = job("submit", "real", *hosts, *words).strip()
    wait_until(lambda: lab.controller.job(job_id).iterations_done >= 12)
    assert lab.controller.job(job_id).predicted_iteration_s
    job("regroup", "real")
    job("show", "--follow", "real")
    ended = lab.controller.job(job_id)
    assert ended.restarts == 0
    reports, _ = lab.controller.iterations(job_id)
    assert sorted(
        (each.rank, each.index) for each in reports
    ) == every_iteration(2, 40)
    assert {each.check for each in reports} == {"ok"}
    rank0, rank1 = (
        [each for each in reports if each.rank == rank] for rank in (0, 1)
    )
    for rank in (rank0, rank1):
        assert fmean(r.loss or 0.0 for r in rank[-3:]) < fmean(
            r.loss or 0.0 for r in rank[:3]
        )
    # A port that light moves away in the middle of a second takes its count along.
    (change,) = [
        row
        for row in lab.controller.reconfigurations()
        if row.started_at > since
    ]
    ports = [
        p for p in lab.controller.ports(since) if p.at < change.started_at
    ]
    # Of a full frame 66 bytes are headers, and every other one is acknowledged.
    whole = 1514 / 1448 + 66 / (2 * 1448)
    for host, sender in (("server1.gpu1", rank1), ("server2.gpu3", rank0)):
        rates = [
            (p.at, p.rx_bps / lab.lab.scale) for p in ports if p.host == host
        ]
        counted_bytes = sum(
            (at - before) * bps / 8
            for (before, _), (at, bps) in pairwise(rates)
        )
        sent_bytes = sum(sent_by(rates[-1][0], each) for each in sender)
        assert sent_bytes > 8 * 547_840
        if sender is rank0:  # its parameters, once
            sent_bytes += 547_840
        assert counted_bytes == pytest.approx(whole * sent_bytes, rel=0.05)


def sent_by(at: float, report: IterationReport) -> float:
    """How much of an iteration's gradient is under way by then (Unix time)."""
    left = (report.finished_at - at) / report.communication_s
    return float(report.sent_bytes * min(1.0, max(0.0, 1 - left)))
