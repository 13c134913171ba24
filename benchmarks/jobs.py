"""How long a job waits for its first iteration in an emulated lab, and where the time goes.

From the call that submits it to the end of its first iteration, as its workers report it: a job of
four workers in the OFC 2022 lab, for which circuits are changed each time (a switch has three of
the six GPUs at first), and one of 64 on 64 hosts. Workers are processes. An iteration takes some
20 ms.
"""

import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from benchmarks import figure
from patchlight import EmulatedLab
from patchlight.client.client import ControllerClient
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.generate import generate
from patchlight.testbed.jobs import JobSpec, JobState
from patchlight.testbed.lab.model import Lab
from tests.support.lab_jobs import connected
from tests.support.waiting import wait_until

ROUNDS = 15
LARGE = 64
LARGE_ROUNDS = 3
_GRADIENT_BYTES = 4_000
_COMPUTE_S = 0.01


def run() -> list[dict[str, Any]]:
    """The figures; ``PatchlightError`` if a job fails or moves no light."""
    with (
        EmulatedLab.from_file(
            "ofc2022", scale=1000, name="bench-jobs", workers="process"
        ) as lab,
        connected(lab) as client,
    ):
        first = {
            ocs: list(each.texts) for ocs, each in lab.lab.initial_maps.items()
        }
        rounds = []
        for _ in range(ROUNDS):
            client.reconfigure(first, only=True)
            rounds.append(_parts(client, _spec(lab.lab, 4), "regroup"))
    tree = generate.tree(LARGE)
    with (
        EmulatedLab.from_lab(
            tree, name="bench-jobs-64", agents=True, workers="process"
        ) as lab,
        connected(lab) as client,
    ):
        large = [
            _parts(client, _spec(lab.lab, LARGE), "keep")
            for _ in range(LARGE_ROUNDS)
        ]
    name = (
        "job, OFC 2022 lab, submitted to end of first iteration, with wiring"
    )
    limits = {
        "in all": "at most 1.5",
        "decisions": "at most 0.01",
        "flows": "at most 0.05",
    }
    small = [
        figure(f"{name}: {part}", value, "s", limits.get(part))
        for part, value in _medians(rounds).items()
    ]
    value = _medians(large)["in all"]
    name = f"job, {LARGE} workers on {LARGE} hosts, submitted to end of first iteration"
    return [*small, figure(name, value, "s", "at most 8")]


def _spec(lab: Lab, workers: int) -> JobSpec:
    compute_s = {
        host.gpu.model: _COMPUTE_S
        for host in lab.hosts
        if host.gpu is not None
    }
    return JobSpec("first", 2, _GRADIENT_BYTES, compute_s, workers=workers)


def _parts(
    client: ControllerClient, spec: JobSpec, topology: str
) -> dict[str, float]:
    """Seconds from the call to the first iteration, and parts of it."""
    changes = len(client.reconfigurations())
    began = time.time()
    job_id = client.submit([spec], topology)[0].id
    wait_until(lambda: client.job(job_id).finished_at)
    status = client.job(job_id)
    if status.state != JobState.DONE:
        raise PatchlightError(f"job {job_id} {status.state}: {status.message}")
    reports = [r for r in client.iterations(job_id)[0] if r.index == 0]
    first_at = max(report.finished_at for report in reports)
    parts = {"in all": first_at - began}
    for row, after in pairwise(client.history(job_id)):
        ends = first_at if row.state == JobState.RUNNING else after.at
        parts[row.state] = ends - row.at
    parts["decisions"] = sum(row.seconds for row in client.decisions(job_id))
    new = client.reconfigurations()[changes:]
    if topology == "regroup":
        if not new or not any(change.changes for change in new):
            raise PatchlightError(f"no light was moved for job {job_id}")
        stages = new[-1].stages_s
        parts |= {
            "flows": stages.get("flows", 0.0),
            "change of light": sum(stages.values()),
        }
    return parts


def _medians(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    return {
        part: statistics.median(each[part] for each in rounds)
        for part in rounds[0]
    }
