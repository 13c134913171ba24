"""Draws random labs, jobs and policies, and simulates what will happen."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from patchlight.emulation.simulator.cluster import (
    LabCluster,
    QueueJob,
    Settings,
)
from patchlight.emulation.simulator.cluster.jobs import jobs_of_specs
from patchlight.emulation.simulator.cluster.simulation import Simulation
from patchlight.emulation.simulator.cluster.sweep import (
    Faults,
    QueueScheduler,
    load_policies,
)
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.generate.generate import RandomLabShape, lab_of
from patchlight.testbed.jobs import JobSpec
from patchlight.testbed.lab.model import Lab

SPREAD = "first-fit", "keep"
"""Placement and topology policies under which jobs share links, as servers are shuffled."""
OTHERS = (
    ("consolidated", "keep"),
    ("regroup", "regroup"),
    ("cheapest", "cheapest"),
    ("least-delay", "least-delay"),
)
"""Each mix draws one of these pairs to compare."""
_SLOW = (("calient-tl1", 1.0), ("calient-tl1", 5.0), ("telescent-ssh", 1.0))
_NIC_BPS = 20_000_000_000
_ALONE_S = 12.0, 30.0  # A job alone takes so long, from and to.
_LATEST_S = 8.0  # The last job comes by then.


class Overheads(NamedTuple):
    """A lab's overhead beside computing and communicating, in seconds, measured with one job.

    ``start_s`` is from a job's place to its first iteration, ``end_s`` from its last one to its
    end, ``wiring_s`` what a change of circuits takes beside its outage.
    """

    start_s: float
    end_s: float
    wiring_s: float


class JobTimes(NamedTuple):
    """A job's hosts, and its seconds in the queue, before its first iteration, at work and after
    its last one."""

    hosts: tuple[str, ...]
    waited_s: float
    starts_s: float
    runs_s: float
    ends_s: float

    @property
    def jct_s(self) -> float:
        """From its arrival to its end."""
        return self.waited_s + self.starts_s + self.runs_s + self.ends_s


@dataclass(frozen=True)
class Mix:
    """A lab, the jobs that come to it at these times, and two pairs of policies to compare."""

    lab: Lab
    jobs: Sequence[JobSpec]
    arrivals_s: Sequence[float]
    policies: Sequence[tuple[str, str]]


def draw_mix(seed: int, most_servers: int) -> Mix:
    """The mix of a seed: a lab of 2 to so many servers under 1 to 3 OCSs, and 3 to 5 jobs.

    Each third lab or so has slow OCSs, or robots that make one cross-connect after the other.
    """
    draw = random.Random(f"twin {seed}")
    leaves = draw.randint(2, max(2, min(6, most_servers // 2)))
    most = max(1, most_servers // leaves)
    shape = RandomLabShape(
        leaves,
        draw.randint(min(2, most), most),
        gpus=1,
        ocs=draw.randint(1, min(3, leaves)),
        spare=draw.randint(1, 2),
        oversubscription=draw.choice((2.0, 4.0, 8.0)),
        nic_bps=_NIC_BPS,
        switching_time_s=draw.choice((0.025, 0.1, 0.5)),
    )
    lab = lab_of(shape, f"twin-{seed}")
    lab = lab.with_changes(
        servers=tuple(draw.sample(lab.servers, len(lab.servers)))
    )
    models = {gpu.model for server in lab.servers for gpu in server.gpus}
    jobs = []
    for number in range(draw.randint(3, 5)):
        compute_s = draw.uniform(0.2, 1.5)
        sends_s = draw.uniform(0.2, 1.5)
        iterations = max(
            5, round(draw.uniform(*_ALONE_S) / (compute_s + sends_s))
        )
        workers = draw.randint(2, max(2, min(6, shape.size // 2)))
        gradient_bytes = round(
            sends_s * _NIC_BPS * workers / (16 * (workers - 1))
        )
        by_model = dict.fromkeys(models, compute_s)
        spec = JobSpec(
            f"job{number}",
            iterations,
            gradient_bytes,
            by_model,
            workers,
        )
        jobs.append(replace(spec, seed=seed))
    arrivals_s = sorted(draw.uniform(0.0, _LATEST_S) for _ in jobs)
    policies = SPREAD, draw.choice(OTHERS)
    slow = draw.choice((None, None, None, *_SLOW))
    if slow is not None:
        driver, switching_time_s = slow
        lab = lab.with_changes(
            circuit_switches=tuple(
                replace(ocs, driver=driver, switching_time_s=switching_time_s)
                for ocs in lab.circuit_switches
            )
        )
    return Mix(
        lab,
        jobs,
        arrivals_s,
        policies,
    )


def predicted_times(
    lab: Lab,
    jobs: Sequence[JobSpec],
    arrivals_s: Sequence[float],
    policies: tuple[str, str],
    overheads: Overheads,
) -> Mapping[str, JobTimes]:
    """The simulator's prediction for each job, by name, if they come at these times.

    Waiting for circuits counts as a part of the start.
    """
    came: list[QueueJob] = []
    for spec, arrived_s in zip(jobs, arrivals_s, strict=True):
        came += jobs_of_specs(
            lab,
            [spec],
            "",
            arrived_s,
        )
    chosen = load_policies(
        "fifo",
        *policies,
        0,
        Faults(),
    )
    around_s = overheads.start_s + overheads.end_s
    cluster = LabCluster(lab)
    settings = Settings(start_s=around_s, wiring_s=overheads.wiring_s)
    simulation = Simulation(cluster, came, settings)
    scheduler = QueueScheduler(simulation, chosen)
    while simulation.ended < len(came):
        if not simulation.advance():
            raise PatchlightError(
                f"the simulation of {lab.name} with {policies[0]} makes no progress"
            )
        if scheduler.decides:
            scheduler.decide()
    found = {}
    for job in simulation.jobs:
        hosts = tuple(cluster.hosts[gpu].name for gpu in job.ring)
        starts_s = job.resume_s - job.started_s - overheads.end_s
        runs_s = job.ended_s - job.resume_s
        found[job.name] = JobTimes(
            hosts,
            job.waited_s,
            starts_s,
            runs_s,
            overheads.end_s,
        )
    return found
