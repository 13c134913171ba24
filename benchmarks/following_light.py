"""Light that follows jobs: random jobs on the emulated OFC 2022 lab, without it and with it.

The trace is 30 minutes long, and played ``COMPRESSION`` times as fast: iterations compute and send
so many times less, and the lab's policies look and count in shorter seconds. Nothing is drawn to
fit: kinds and sizes are equally likely, lengths and gaps are distributed as below, and the seed is
the first one. It is the first ten minutes, and in full all of it: ``python -m benchmarks --full
benchmarks.following_light``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from benchmarks import figure
from patchlight import EmulatedLab
from patchlight.controller.policies.order import Fifo
from patchlight.controller.policies.placement import Consolidated
from patchlight.emulation.experiments.ofc2022.run import ExperimentClient
from patchlight.emulation.experiments.twin.mixes import Overheads
from patchlight.emulation.experiments.twin.run import (
    measured_jobs,
    measured_overheads,
)
from patchlight.emulation.simulator.cluster import (
    LabCluster,
    Policies,
    Settings,
    simulate,
)
from patchlight.emulation.simulator.cluster.jobs import jobs_of_specs
from patchlight.testbed.jobs import JobSpec
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.rules import PolicyChoice
from tests.support.lab_jobs import connected

SEED = 0
COMPRESSION = 6.0
FULL_S = 1800.0
SHORT_S = 600.0
# Models as on the page "Run jobs": bytes of a gradient, seconds of an iteration on each GPU.
KINDS: Sequence[tuple[str, int, Mapping[str, float]]] = (
    ("vgg", 553_000_000, {"Tesla M40": 0.5, "Titan V": 0.25}),
    ("alexnet", 233_000_000, {"Tesla M40": 0.3, "Titan V": 0.15}),
    ("resnet", 102_000_000, {"Tesla M40": 0.24, "Titan V": 0.12}),
)
SIZES = (2, 3, 4)
# Of the GPUs, so many would be busy if no job waited or was slowed down.
LOAD = 0.9
# A job's time under one packet switch: log-normal.
MEDIAN_S = 120.0
MEAN_S = 180.0
LOOKED_AT_EVERY_S = 600.0
MINIMUM_GAIN_S = 10.0


class TracedJob(NamedTuple):
    """A job of the trace, and when it comes, in compressed seconds."""

    arrives_s: float
    spec: JobSpec


def trace(lab: Lab, length_s: float, seed: int = SEED) -> list[TracedJob]:
    """The jobs that come in the first so many seconds."""
    rng = np.random.default_rng(seed)
    gpus = sum(host.gpu is not None for host in lab.hosts)
    nic_bps = min(host.nic.rate_bps or math.inf for host in lab.hosts)
    gap_s = fmean(SIZES) * MEAN_S / (LOAD * gpus)
    spread = math.sqrt(2 * math.log(MEAN_S / MEDIAN_S))
    found: list[TracedJob] = []
    at_s = 0.0
    while at_s < length_s:
        name, gradient_bytes, compute_s = KINDS[int(rng.integers(len(KINDS)))]
        workers = int(rng.choice(SIZES))
        lasts_s = rng.lognormal(math.log(MEDIAN_S), spread)
        bits = 2 * (workers - 1) / workers * 8 * gradient_bytes
        alone_s = max(compute_s.values()) + bits / nic_bps
        spec = JobSpec(
            f"{name}-{len(found)}",
            max(1, round(lasts_s / alone_s)),
            round(gradient_bytes / COMPRESSION),
            {model: each / COMPRESSION for model, each in compute_s.items()},
            workers=workers,
        )
        found.append(TracedJob(at_s / COMPRESSION, spec))
        at_s += rng.exponential(gap_s)
    return found


def simulated_jct_s(
    lab: Lab,
    jobs: Sequence[TracedJob],
    policies: Policies,
    settings: Settings | None = None,
) -> float:
    """The mean completion time that the simulator predicts."""
    queue = [
        each
        for job in jobs
        for each in jobs_of_specs(lab, [job.spec], "", job.arrives_s)
    ]
    records = simulate(LabCluster(lab), queue, policies, settings).records
    return fmean(record.ended_s - record.arrived_s for record in records)


class Played(NamedTuple):
    """A trace that was played: the mean completion time, what the lab needed around a job in the
    mean, and the events of moves of light."""

    jct_s: float
    overheads: Overheads
    moves: list[dict[str, Any]]
    gains: list[dict[str, Any]]


def played(jobs: Sequence[TracedJob], choice: PolicyChoice) -> Played:
    """The jobs on the emulated lab, with real packets, and who decides there."""
    with (
        EmulatedLab.from_file(
            "ofc2022",
            scale=1000,
            name="bench-follows",
            workers="process",
            real_time=True,
            policies=choice,
        ) as emulated,
        connected(emulated) as client,
    ):
        probe = measured_overheads(client, emulated.lab, jobs[0].spec)
        ExperimentClient(client).reconfigure(emulated.lab.initial_maps)
        began = time.monotonic()
        ids = []
        for job in jobs:
            time.sleep(max(0.0, began + job.arrives_s - time.monotonic()))
            ids.append(client.submit([job.spec])[0].id)
        times = [
            each.times
            for each in measured_jobs(
                client, ids, [job.spec for job in jobs]
            ).values()
        ]
        overheads = Overheads(
            fmean(each.starts_s for each in times),
            fmean(each.ends_s for each in times),
            probe.wiring_s,
        )
        events = client.events()
    return Played(
        fmean(each.jct_s for each in times),
        overheads,
        [event for event in events if event["kind"] == "defragmented"],
        [event for event in events if event["kind"] == "light-measured"],
    )


def run(*, full: bool = False) -> list[dict[str, Any]]:
    """Completion times without and with it, measured and predicted; what its moves gained."""
    lab = EmulatedLab.from_file(
        "ofc2022", scale=1000, name="bench-follows"
    ).lab
    jobs = trace(lab, FULL_S if full else SHORT_S)
    every_s = LOOKED_AT_EVERY_S / COMPRESSION
    gain_s = MINIMUM_GAIN_S / COMPRESSION
    stays = played(jobs, PolicyChoice(defragment=False))
    follows = played(
        jobs,
        PolicyChoice(
            defragment=True, defragment_every_s=every_s, minimum_gain_s=gain_s
        ),
    )
    plain = Policies(Fifo(), Consolidated())
    around = stays.overheads
    lost_s = around.start_s + around.end_s
    settings = Settings(
        start_s=lost_s,
        wiring_s=around.wiring_s,
        minimum_gain_s=gain_s,
    )
    bare_s = simulated_jct_s(lab, jobs, plain)
    without_s = simulated_jct_s(lab, jobs, plain, settings)
    with_s = simulated_jct_s(
        lab, jobs, plain, replace(settings, defragment_s=every_s)
    )
    lower = 1 - follows.jct_s / stays.jct_s
    predicted = 1 - with_s / without_s
    head = f"light that follows, {len(jobs)} jobs of {'30' if full else 'the first 10'} minutes"
    told = [
        (each["predicted_after_s"], each["measured_after_s"])
        for each in follows.gains
    ]
    off = [took / said - 1 for said, took in told if said and took]
    figures = [
        figure(
            f"{head}: mean JCT without, ×{COMPRESSION:g}",
            stays.jct_s * COMPRESSION,
            "s",
        ),
        figure(
            f"{head}: mean JCT with, ×{COMPRESSION:g}",
            follows.jct_s * COMPRESSION,
            "s",
        ),
        figure(
            f"{head}: mean JCT lower by",
            lower,
            "",
            "at least 0.25" if full else None,
        ),
        figure(f"{head}: the simulator predicts", predicted, ""),
        figure(f"{head}: lost around a job", COMPRESSION * lost_s, "s"),
        figure(
            f"{head}: predicted / measured mean JCT without",
            without_s / stays.jct_s,
            "",
        ),
        figure(
            f"{head}: the same, if nothing is lost around a job",
            bare_s / stays.jct_s,
            "",
        ),
        figure(
            f"{head}: predicted / measured mean JCT with",
            with_s / follows.jct_s,
            "",
        ),
        figure(
            f"{head}: predicted / measured difference",
            (without_s - with_s) / (stays.jct_s - follows.jct_s),
            "",
            "1 ± 1/3" if full else None,
        ),
        figure(f"{head}: changes of light", len(follows.moves), ""),
    ]
    if off:
        name = f"{head}: iterations after a change: measured / predicted − 1, mean"
        figures.append(figure(name, fmean(off), ""))
    return figures
