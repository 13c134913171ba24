"""Measurements of a network that exists only as formulas, to try the analysis on."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from patchlight.emulation.experiments.ofc2022.analysis import (
    CaseRun,
    GpuUse,
    Iteration,
    JobRun,
    MeasuredChange,
    PortRate,
    Wiring,
)
from patchlight.emulation.experiments.ofc2022.results import (
    given_compute_s,
    jobs_of,
)
from patchlight.testbed.jobs import JobSpec, JobState, JobStatus
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.labfile.reader import read_lab

T0 = 1_700_000_000.0
NIC_BPS = 40e9
INTER_TOR_BPS = 10e9
SWITCH_S = 0.4

Simulate = Callable[..., CaseRun]
# Communication of an iteration in seconds, rate in bit/s.
Phase = tuple[float, float]


@pytest.fixture(scope="session")
def lab() -> Lab:
    return read_lab(Path(__file__).parents[3] / "testbed/labs/ofc2022.yaml")


def _phase(spec: JobSpec, *, crossing: int) -> Phase:
    """Each ring edge carries 2(n-1)/n of the gradient; ``crossing`` flows share a direction."""
    rate_bps = INTER_TOR_BPS / crossing if crossing else NIC_BPS
    n = len(spec.hosts)
    return 2 * (n - 1) / n * spec.gradient_bytes * 8 / rate_bps, rate_bps


def _train(
    spec: JobSpec, phases: Sequence[Phase], change_at: int | None
) -> list[Iteration]:
    # The slowest GPU of the ring sets the pace.
    compute_s = spec.compute_s[
        "Titan V" if spec.name == "a2-2gpu" else "Tesla M40"
    ]
    now = T0
    found = []
    for index in range(spec.iterations):
        live = change_at is not None and index >= change_at
        communication_s = phases[1 if live else 0][0]
        if index == change_at:
            communication_s += SWITCH_S
        now += compute_s + communication_s
        found += [
            Iteration(
                rank, index, now - 0.001 * rank, compute_s, communication_s, 1
            )
            for rank in range(len(spec.hosts))
        ]
    return found


@pytest.fixture(scope="session")
def simulate(lab: Lab) -> Simulate:
    def run(case: str, wiring: Wiring, iterations: int = 12) -> CaseRun:
        specs = jobs_of(case, lab, iterations)
        # A ring of four that alternates over two ToRs crosses twice in each direction, any
        # other once.
        together = sum(2 if len(spec.hosts) == 4 else 1 for spec in specs)
        jobs = []
        ports = []
        gpus = []
        changes = []
        for spec in specs:
            static = _phase(spec, crossing=together)
            optical = _phase(spec, crossing=0)
            change_at = spec.iterations // 2 if wiring == "live" else None
            done = _train(
                spec,
                [optical if wiring == "optical" else static, optical],
                change_at,
            )
            status = JobStatus(
                f"{spec.name}-id", spec, JobState.DONE, hosts=spec.hosts
            )
            status = replace(status, iterations_done=spec.iterations)
            jobs.append(
                JobRun(status, tuple(done), given_compute_s(spec, lab))
            )
            end = max(i.finished_at for i in done)
            for second in range(int(end - T0) + 4):
                at = T0 + second + 0.5
                window = (at - 1, at)
                mine = [i for i in done if i.rank == 0]
                busy = moved = 0.0
                for i in mine:
                    began = i.finished_at - i.compute_s - i.communication_s
                    busy += _overlap(window, (began, began + i.compute_s))
                    moved += _overlap(
                        window, (began + i.compute_s, i.finished_at)
                    ) / (i.communication_s)
                n = len(spec.hosts)
                rx_bps = moved * 2 * (n - 1) / n * spec.gradient_bytes * 8
                ports += [
                    PortRate(at, host, rx_bps, rx_bps) for host in spec.hosts
                ]
                gpus += [GpuUse(at, host, busy) for host in spec.hosts]
        if wiring == "live":
            ends = sorted(
                {i.index: i.finished_at for i in jobs[0].iterations}.items()
            )
            began = ends[len(ends) // 2 - 1][1] + 0.5
            stages = {"read": 0.01, "drain": 0.2, "make": 0.1, "undrain": 0.09}
            changes = [
                MeasuredChange(
                    "1",
                    "committed",
                    "done",
                    stages,
                    began,
                    began + SWITCH_S,
                    12,
                )
            ]
        return CaseRun(
            case,
            wiring,
            tuple(jobs),
            tuple(ports),
            tuple(gpus),
            tuple(changes),
        )

    return run


def _overlap(a: tuple[float, float], b: tuple[float, float]) -> float:
    return max(0.0, min(a[1], b[1]) - max(a[0], b[0]))
