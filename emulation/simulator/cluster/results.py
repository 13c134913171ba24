"""What came of a simulation: a record for each job, and what was so over time."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, get_type_hints

import numpy as np
import numpy.typing as npt

from patchlight.emulation.simulator.cluster.simulated_job import SimulatedJob, State
from patchlight.emulation.simulator.cluster.simulation import Simulation

Floats = npt.NDArray[np.float64]


class JobRecord(NamedTuple):
    """One job's life. Times are seconds, not a number where it did not come so far.

    ``duration_s`` is how long it takes on links of its own, ``waited_s`` how long it waited in
    all, ``jct_s`` from its arrival to its end, ``slowdown`` that over its duration. ``servers``
    and ``racks`` are over how many it ran last. ``allocated_gpu_s`` counts GPUs held,
    ``busy_gpu_s`` those that computed. ``cause`` says why it was blocked.
    """

    name: str
    cluster: str
    gpus: int
    arrived_s: float
    duration_s: float
    started_s: float
    ended_s: float
    waited_s: float
    jct_s: float
    slowdown: float
    deadline_s: float
    servers: int
    racks: int
    preemptions: int
    losses: int
    allocated_gpu_s: float
    busy_gpu_s: float
    state: str
    cause: str

    @classmethod
    def of(cls, job: SimulatedJob) -> JobRecord:
        """Made from what the simulator kept."""
        view = job.spec.view
        done = job.state is State.DONE
        jct_s = job.ended_s - view.arrived_s if done else math.nan
        duration_s = job.spec.duration_s
        return cls(
            name=view.name,
            cluster=job.spec.cluster,
            gpus=view.workers,
            arrived_s=view.arrived_s,
            duration_s=duration_s,
            started_s=job.started_s,
            ended_s=job.ended_s if done else math.nan,
            waited_s=job.waited_s,
            jct_s=jct_s,
            slowdown=jct_s / duration_s if duration_s > 0 else math.nan,
            deadline_s=view.arrived_s + view.limit_s if view.limit_s < math.inf else math.nan,
            servers=job.servers,
            racks=job.racks,
            preemptions=job.preemptions,
            losses=job.losses,
            allocated_gpu_s=job.attained_gpu_s,
            busy_gpu_s=job.busy_gpu_s,
            state=job.state.value,
            cause="" if job.cause is None else job.cause.value,
        )


class Series(NamedTuple):
    """What was so until each moment: jobs waiting, GPUs held, part of the free ones in pieces."""

    until_s: Floats
    queue: Floats
    held: Floats
    fragmentation: Floats


Columns = Mapping[str, Any]
"""For each field of ``JobRecord`` the values of all jobs: numbers as an array, names as a list."""


@dataclass(frozen=True)
class QueueResult:
    """All that a simulation gives; ``latencies_s`` are those of placement decisions, measured.

    ``jobs`` has the fields of ``JobRecord`` as columns. ``held_up_s`` is for how long the next
    job waited though as many GPUs were free as it wanted. ``dark_s`` adds up the switching
    times, ``dark_gpu_s`` those of each NIC that was dark.
    """

    gpus: int
    jobs: Columns
    series: Series
    latencies_s: Floats
    held_up_s: float
    reconfigurations: int
    cross_connects: int
    regroups_refused: int
    dark_s: float
    dark_gpu_s: float

    @classmethod
    def of(cls, simulation: Simulation, latencies_s: array[float]) -> QueueResult:
        """Of a simulation that is over."""
        accounts = simulation.accounts
        return cls(
            gpus=len(simulation.cluster.shape.gpus),
            jobs=_columns([JobRecord.of(job) for job in simulation.jobs]),
            series=Series(*(np.array(each) for each in accounts.series)),
            latencies_s=np.array(latencies_s),
            held_up_s=accounts.held_up_s,
            reconfigurations=accounts.reconfigurations,
            cross_connects=accounts.cross_connects,
            regroups_refused=accounts.regroups_refused,
            dark_s=accounts.dark_s,
            dark_gpu_s=accounts.dark_gpu_s,
        )

    @property
    def records(self) -> list[JobRecord]:
        """A record for each job, in the order in which they came."""
        lists = (
            column.tolist() if isinstance(column, np.ndarray) else column
            for column in (self.jobs[name] for name in JobRecord._fields)
        )
        return [JobRecord(*values) for values in zip(*lists, strict=True)]


def _columns(records: Sequence[JobRecord]) -> Columns:
    kinds = {int: np.int64, float: np.float64}
    found: dict[str, Any] = {}
    for place, (name, kind) in enumerate(get_type_hints(JobRecord).items()):
        values = [record[place] for record in records]
        found[name] = np.array(values, kinds[kind]) if kind in kinds else values
    return found
