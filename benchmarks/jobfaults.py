"""Jobs while things go wrong, in the emulated OFC 2022 lab.

The campaign of ``benchmarks.job_campaign``: random jobs with random faults, and an audit after
every ten. Then how long an iteration of a job takes while something befalls another job, beside
how long it took before; the median of each, in the same lab.
"""

import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from benchmarks import figure
from benchmarks.job_campaign import campaign
from benchmarks.jobs_under_faults import begins_again, other_job, victim
from benchmarks.lab_faults import (
    gpu_gone,
    kill_a_worker,
    lose_light,
    no_carrier,
)
from patchlight import EmulatedLab
from tests.support.lab_jobs import connected

JOBS = 200
SEED = 1
QUIET_S = 5.0


def run() -> list[dict[str, Any]]:
    """The figures; ``PatchlightError`` where a job or a store is not as it should be."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        ended = campaign(Path(folder), JOBS, SEED)
    count = sum(ended.values())
    took_s = time.monotonic() - began
    figures = [
        figure(
            "faults: random jobs, all explained, nothing left behind",
            count,
            "jobs",
            "≥ 200",
        ),
        figure("faults: the same, how long it took", took_s, "s"),
    ]
    return figures + list(_other_jobs())


@contextmanager
def _worker_killed(lab: EmulatedLab, _: str, worker: str) -> Iterator[None]:
    kill_a_worker(lab, random.Random(0), worker)
    yield


@contextmanager
def _light_lost(lab: EmulatedLab, host: str, _: str) -> Iterator[None]:
    lose_light(lab, host)
    lab.controller.drift()  # the switch is looked at
    yield
    lab.controller.repair(["ocs1"])


FAULTS: Mapping[
    str, Callable[[EmulatedLab, str, str], AbstractContextManager[None]]
] = {
    "a worker is killed": _worker_killed,
    "a GPU falls off": lambda lab, host, _: gpu_gone(lab, host),
    "a NIC loses its carrier": lambda lab, host, _: no_carrier(lab, host),
    "a circuit is lost": _light_lost,
}


def _other_jobs() -> Iterator[dict[str, Any]]:
    with (
        EmulatedLab.from_file(
            "ofc2022",
            scale=1000,
            name="bench-faults",
            workers="process",
            real_time=True,
        ) as lab,
        connected(lab) as client,
        other_job(lab) as other,
    ):
        for name, fault in FAULTS.items():
            with victim(client, "victim") as job_id:
                before = time.time()
                time.sleep(QUIET_S)
                usual_s = other.iteration_s(before)
                befallen = time.time()
                with fault(lab, client.job(job_id).hosts[-1], f"{job_id}-1"):
                    begins_again(client, job_id)
                off = other.iteration_s(befallen) / usual_s - 1
            yield figure(
                f"faults: iteration of another job while {name}, − 1",
                off,
                "",
                "± 0.10",
            )
        other.check_every_iteration()
