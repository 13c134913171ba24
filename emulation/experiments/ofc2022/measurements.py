"""What a run of one case brought home, as values. Rates are the lab's, not the scaled ones."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from patchlight.testbed.jobs import Iteration, JobStatus, Trainer

Wiring = Literal["static", "optical", "live"]


@dataclass(frozen=True, slots=True)
class PortRate:
    """What the switch port of ``host`` counted in the second before ``at`` (Unix time)."""

    at: float
    host: str
    rx_bps: float
    tx_bps: float


@dataclass(frozen=True, slots=True)
class GpuSample:
    """The share of the second before ``at`` in which ``gpu`` computed, 0…1."""

    at: float
    gpu: str
    utilization: float


@dataclass(frozen=True, slots=True)
class Reconfiguration:
    """One change of the optical switches' maps; ``stages_s`` is in the order they ran."""

    id: str
    state: str
    message: str
    stages_s: Mapping[str, float]
    started_at: float
    finished_at: float
    cross_connects_changed: int = 0

    @property
    def switching_s(self) -> float:
        """How long it took once the traffic was held: all that came after the drain."""
        names = list(self.stages_s)
        until = names.index("drain") + 1 if "drain" in names else 0
        held = sum(self.stages_s[name] for name in names[:until])
        return self.finished_at - self.started_at - held


@dataclass(frozen=True, slots=True)
class JobRun:
    """A job that has ended, with every iteration that its workers reported.

    ``given_compute_s`` is for each rank how long an iteration was to compute.
    """

    status: JobStatus
    iterations: tuple[Iteration, ...]
    given_compute_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CaseRun:
    """One case under one wiring: the jobs (the one that is looked at first) and the counters.

    All jobs have the same ``trainer``.
    """

    case: str
    wiring: Wiring
    jobs: tuple[JobRun, ...]
    ports: tuple[PortRate, ...]
    gpus: tuple[GpuSample, ...]
    reconfigurations: tuple[Reconfiguration, ...] = field(default=())
    trainer: Trainer = "synthetic"
