"""What goes over an agent's API, for both ends: requests and answers as pydantic models.

A request with a key that is not known is refused; in an answer such a key is passed over, so
that a controller understands agents that say more than it knows.
"""

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, FailFast, Field, IPvAnyAddress, model_validator

from patchlight.testbed.files.issues import short
from patchlight.testbed.jobs import LARGEST_SEED, LONGEST_COMPUTE_S, MOST_ITERATIONS, MOST_WORKERS

LARGEST_TASK_GRADIENT_BYTES = 2_000_000_000
"""A worker holds some four times its gradient in memory."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
Mac = Annotated[str, Field(pattern=r"^[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}$")]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class RingMember(_Request):
    """One worker of the ring, and where it listens."""

    rank: Annotated[int, Field(ge=0)]
    address: IPvAnyAddress
    port: Annotated[int, Field(ge=1, le=65535)]


class Neighbour(_Request):
    """A static neighbour entry: no ARP crosses the fabric."""

    address: IPvAnyAddress
    mac: Mac


class WorkerTask(_Request):
    """What to train. ``gradient_bytes`` are scaled already; ``compute_s`` is for this GPU.

    ``window_bytes`` limits what a neighbour may send ahead, on links whose rate is scaled.
    """

    iterations: Annotated[int, Field(ge=1, le=MOST_ITERATIONS)]
    gradient_bytes: Annotated[int, Field(ge=1, le=LARGEST_TASK_GRADIENT_BYTES)]
    compute_s: Annotated[float, Field(ge=0, le=LONGEST_COMPUTE_S, allow_inf_nan=False)]
    seed: Annotated[int, Field(ge=0, le=LARGEST_SEED)] = 0
    device: Literal["auto", "sleep"] = "auto"
    window_bytes: Annotated[int, Field(ge=4096)] | None = None


class WorkerSpec(_Request):
    """One worker: its place in the ring, and the GPU and NIC it gets."""

    id: Name
    job: Name
    rank: Annotated[int, Field(ge=0)]
    gpu: str | None = None
    nic: str
    # A list ends at its first mistake: a report on each of a million takes minutes.
    ring: Annotated[list[RingMember], FailFast(), Field(min_length=1, max_length=MOST_WORKERS)]
    neighbours: Annotated[list[Neighbour], FailFast(), Field(max_length=MOST_WORKERS)] = []
    task: WorkerTask

    @model_validator(mode="after")
    def _ring_fits(self) -> Self:
        ranks = sorted(member.rank for member in self.ring)
        if ranks != list(range(len(ranks))):
            got = short(", ".join(map(str, ranks[:30])))
            raise ValueError(f"the ring must have ranks 0…n−1, once each: got {got}")
        if self.rank >= len(ranks):
            raise ValueError(f"rank {self.rank} is not in a ring of {len(ranks)}")
        return self


class WorkerState(StrEnum):
    """A worker's life; ``done``, ``failed`` and ``stopped`` are final."""

    STARTING = "starting"
    READY = "ready"
    RUNNING = "running"
    HELD = "held"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def is_final(self) -> bool:
        """Whether nothing more will happen to the worker."""
        return self in (WorkerState.DONE, WorkerState.FAILED, WorkerState.STOPPED)


class WorkerStatus(BaseModel):
    """What is known of a worker now. ``last_lines`` are the end of its output.

    ``restarts`` counts how often its training began anew in the same worker. An agent starts none
    twice: it was somebody else, a container engine maybe.
    """

    id: str
    job: str = ""
    rank: int = 0
    state: WorkerState
    exit_code: int | None = None
    message: str = ""
    last_lines: list[str] = []
    iterations_done: int = 0
    gpu: str | None = None
    nic: str | None = None
    restarts: int = 0


class Report(BaseModel):
    """One iteration of one worker. Times in seconds, ``finished_at`` in Unix time."""

    index: int
    finished_at: float
    compute_s: float
    communication_s: float
    sent_bytes: int
    check: str
    device: str = ""


class Reports(BaseModel):
    """Reports that came after the first ``after``; ask for those after ``next`` next time."""

    reports: list[Report]
    next: int


class HoldRequest(_Request):
    """Pause just before the all-reduce of this iteration."""

    iteration: Annotated[int, Field(ge=0)]


class GateAnswer(BaseModel):
    """``iteration``: the one whose all-reduce has not begun yet."""

    iteration: int


class GpuStatus(BaseModel):
    """One GPU; ``utilization`` is 0…1 over the last second."""

    name: str
    model: str
    uuid: str | None = None
    utilization: float
    busy_s: float
    worker: str | None = None


class NicStatus(BaseModel):
    """One NIC of the server."""

    name: str
    address: str
    state: Literal["idle", "leased"]
    worker: str | None = None


class AgentStatus(BaseModel):
    """The server as its agent sees it."""

    server: str
    version: str
    runner: str
    gpus: list[GpuStatus]
    nics: list[NicStatus]
    workers: list[WorkerStatus]
