"""What sending in turns gains jobs that share a link: in the simulator, and in packets.

python -m benchmarks.interleaving              # the simulator's table
python -m benchmarks benchmarks.interleaving   # two jobs in the emulated OFC 2022 lab
"""

import math
import random
from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from benchmarks import figure
from patchlight import EmulatedLab
from patchlight.controller.prediction.completion import (
    PhasedJob,
    set_ends,
    set_paces_of,
)
from patchlight.controller.prediction.framing import EMULATED_BYTES, tcp
from patchlight.controller.prediction.interleaving import set_slots_of
from patchlight.testbed.jobs import JobSpec
from tests.support.lab_jobs import connected, ended

MIXES: Mapping[str, Sequence[tuple[float, float]]] = {
    "2 equal, a third": [(1.0, 0.5)] * 2,
    "2, one 1 % slower": [(1.0, 0.5), (1.01, 0.5)],
    "2 equal, a half": [(0.5, 0.5)] * 2,
    "3 equal, a third": [(1.0, 0.5)] * 3,
    "3 equal, a half": [(0.5, 0.5)] * 3,
    "periods 1 : 2": [(0.7, 0.3), (1.5, 0.5)],
    "periods 2 : 3": [(0.7, 0.3), (1.05, 0.45)],
}
"""Seconds of computing, and of sending alone, of jobs on one link."""
_ITERATIONS = 90
_STARTS = 20
_LINK: dict[Hashable, float] = {"link": 1.0}


def simulated(
    works: Sequence[tuple[float, float]],
) -> tuple[float, float, float]:
    """How much longer than alone iterations take, in the mean of jobs: started together; at random
    times; and then with slots."""
    draw = random.Random(0)
    found: list[list[float]] = [[], [], []]
    for number in range(_STARTS):
        together = [
            PhasedJob({"link": 1}, *work, float(_ITERATIONS)) for work in works
        ]
        apart = [
            PhasedJob({"link": 1}, *work, float(_ITERATIONS)) for work in works
        ]
        slotted = [
            PhasedJob({"link": 1}, *work, float(_ITERATIONS)) for work in works
        ]
        set_slots_of(slotted, _LINK)
        for job, other in zip(apart, slotted, strict=True):
            job.begins_s = other.begins_s = draw.uniform(0, 2)
        for column, jobs in zip(
            found, (together, apart, slotted), strict=True
        ):
            if jobs is not together or not number:
                set_ends(jobs, _LINK)
                took = [
                    (job.ends_s - job.begins_s) / _ITERATIONS for job in jobs
                ]
                column.append(
                    fmean(
                        s / sum(work)
                        for s, work in zip(took, works, strict=True)
                    )
                )
    together_s, apart_s, slotted_s = map(fmean, found)
    return together_s, apart_s, slotted_s


def unlike(groups: int = 60) -> tuple[float, float]:
    """The same of random groups of 2 to 4 unlike jobs, started together, without slots and with."""
    draw = random.Random(3)
    found = list[tuple[float, float]]()
    for _ in range(groups):
        works = [
            (draw.uniform(0.3, 1.5), draw.uniform(0.1, 0.6))
            for _ in range(draw.choice((2, 2, 3, 4)))
        ]
        jobs = [PhasedJob({"link": 1}, *work, math.inf) for work in works]
        ratios = []
        for find in (set_paces_of, set_slots_of):
            find(jobs, _LINK)
            ratios.append(
                fmean(
                    job.pace_s / sum(w)
                    for job, w in zip(jobs, works, strict=True)
                )
            )
        found.append((ratios[0], ratios[1]))
    return fmean(without for without, _ in found), fmean(
        turns for _, turns in found
    )


def measured(
    interleave: bool, slower: Sequence[float], iterations: int = 40
) -> list[float]:
    """Seconds of an iteration of pairs over one uplink of the OFC 2022 lab, by job: they compute
    for 1 s and so much longer, and send for 0.5 s."""
    rings = (("gpu0", "gpu2"), ("gpu1", "gpu3"))[: len(slower)]
    with (
        EmulatedLab.from_file(
            "ofc2022",
            scale=1000,
            name="bench-turns",
            workers="process",
            real_time=True,
        ) as emulated,
        connected(emulated) as client,
    ):
        client.use_policies({"interleave": interleave})
        nbytes = round(0.5 * 10e9 / 8 / sum(tcp(1500, EMULATED_BYTES)))
        specs = []
        for number, (ring, part) in enumerate(zip(rings, slower, strict=True)):
            compute_s = dict.fromkeys(("Tesla M40", "Titan V"), 1.0 + part)
            specs.append(
                JobSpec(
                    f"job{number}",
                    iterations,
                    nbytes,
                    compute_s,
                    hosts=ring,
                    seed=1,
                )
            )
        ids = [row.id for row in client.submit(specs, "keep")]
        ends = []
        for job_id in ids:
            job = ended(client, job_id)
            assert job.state == "done", job.message
            mine: dict[int, float] = {}
            for report in client.iterations(job_id)[0]:
                mine[report.index] = max(
                    mine.get(report.index, 0.0), report.finished_at
                )
            ends.append([mine[index] for index in sorted(mine)])
    first_end = min(each[-1] for each in ends)
    # The first iterations are those in which slots are found.
    found = []
    for each in ends:
        gaps = [
            after - before
            for before, after in pairwise(each)
            if after <= first_end
        ]
        found.append(fmean(gaps[8:]))
    return found


def run() -> list[dict[str, Any]]:
    """Two jobs in packets, each alone, at once, and in turns."""
    figures = []
    for words, interleave, slower in (
        ("alone", False, [0.0]),
        ("2 equal, at once", False, [0.0, 0.0]),
        ("2 equal, in turns", True, [0.0, 0.0]),
        ("2, one 1 % slower, at once", False, [0.0, 0.01]),
        ("2, one 1 % slower, in turns", True, [0.0, 0.01]),
    ):
        times_s = measured(interleave, slower)
        figures.append(
            figure(f"an iteration in packets: {words}", fmean(times_s), "s")
        )
    return figures


if __name__ == "__main__":
    print("| jobs | together | at random times | in turns | random / turns |")
    for name, works in MIXES.items():
        together, apart, turns = simulated(works)
        print(
            f"| {name} | {together:.2f} | {apart:.2f} | {turns:.2f} | {apart / turns:.2f} |"
        )
    together, turns = unlike()
    print(f"| 60 random groups | {together:.2f} | | {turns:.2f} | |")
