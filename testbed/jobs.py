"""A training job as a value: what the user asks for, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class JobState(StrEnum):
    """A job's life, in order; ``failed`` and ``stopped`` can follow any state."""

    QUEUED = "queued"
    RECONFIGURING = "reconfiguring"
    PREPARING = "preparing"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def is_final(self) -> bool:
        """Whether nothing more will happen to the job."""
        return self in (JobState.DONE, JobState.FAILED, JobState.STOPPED)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """Synchronous data-parallel training with ring all-reduce.

    ``hosts`` is the ring: rank r runs on ``hosts[r]`` and sends to rank r+1; empty lets the
    placement policy choose ``workers`` of them. ``gradient_bytes`` are the bytes of one
    gradient as in the lab (the lab's scale is applied later). ``compute_s`` gives, for each
    GPU model, the seconds that forward and backward of one iteration take.
    """

    name: str
    iterations: int
    gradient_bytes: int
    compute_s: Mapping[str, float]
    workers: int = 0
    hosts: tuple[str, ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration of one worker, as it reported it.

    ``finished_at`` is Unix time in seconds; ``sent_bytes`` counts payload bytes.
    """

    rank: int
    index: int
    finished_at: float
    compute_s: float
    communication_s: float
    sent_bytes: int


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What is known of a job now; ``message`` says why it failed or what it waits for."""

    id: str
    spec: JobSpec
    state: JobState
    message: str = ""
    hosts: tuple[str, ...] = ()
    submitted_at: float = 0.0
    started_at: float | None = None
    finished_at: float | None = None
    iterations_done: int = 0
    restarts: int = 0
    last_lines: tuple[str, ...] = field(default=())

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> JobStatus:
        """The status that ``dataclasses.asdict`` made a record of, also by way of JSON."""
        spec = record["spec"]
        lists = {name: tuple(record[name]) for name in ("hosts", "last_lines")}
        return cls(
            **{
                **record,
                **lists,
                "spec": JobSpec(**{**spec, "hosts": tuple(spec["hosts"])}),
                "state": JobState(record["state"]),
            }
        )
