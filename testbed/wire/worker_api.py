"""What goes over an agent's API about workers, for both ends: requests and answers as models.

A request with a key that is not known is refused; in an answer such a key is passed over, so
that a controller understands agents that say more than it knows.
"""

import re
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    FailFast,
    Field,
    IPvAnyAddress,
    Tag,
    model_validator,
)

from patchlight.testbed.io.issues import short
from patchlight.testbed.jobs import (
    LARGEST_BATCH,
    LARGEST_SEED,
    LONGEST_COMPUTE_S,
    MOST_ITERATIONS,
    MOST_WORKERS,
    AbsolutePath,
    CommandTask,
    CpuLimit,
    Image,
    Line,
    MemoryLimit,
)

LARGEST_TASK_GRADIENT_BYTES = 2_000_000_000
"""A worker holds some four times its gradient in memory."""

_LOST_RANK = re.compile(r"lost rank (\d{1,6}) ")

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
_Seconds = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
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


class SyntheticTask(_Request):
    """Ring all-reduces of made-up gradients whose sums are checked.

    ``gradient_bytes`` are scaled already; ``compute_s`` is for this GPU. A job that was stopped
    before ``first_iteration`` goes on there, with as many workers as then or with others.
    ``window_bytes`` limits what a neighbour may send ahead, on links whose rate is scaled. With
    ``paths`` it asks its agent for a path of light for each all-reduce.
    """

    trainer: Literal["synthetic"] = "synthetic"
    iterations: Annotated[int, Field(ge=1, le=MOST_ITERATIONS)]
    gradient_bytes: Annotated[int, Field(ge=1, le=LARGEST_TASK_GRADIENT_BYTES)]
    compute_s: Annotated[float, Field(ge=0, le=LONGEST_COMPUTE_S, allow_inf_nan=False)]
    seed: Annotated[int, Field(ge=0, le=LARGEST_SEED)] = 0
    device: Literal["auto", "sleep"] = "auto"
    window_bytes: Annotated[int, Field(ge=4096)] | None = None
    first_iteration: Annotated[int, Field(ge=0)] = 0
    paths: bool = False

    @model_validator(mode="after")
    def _begins_before_its_end(self) -> Self:
        if self.first_iteration >= self.iterations:
            raise ValueError(
                f"first_iteration {self.first_iteration} is not one of {self.iterations} iterations"
            )
        return self


class TorchTask(_Request):
    """A model of the built-in graphs, trained by PyTorch over all the job's workers.

    Each takes mini-batches of ``batch`` samples (``None``: as many as the graph has) out of
    ``data``, a folder of the server, or made up. It goes on where the worker's checkpoint is, and
    saves one each ``checkpoint_every`` iterations. ``compute_s`` is the least that an iteration
    takes on an emulated GPU. ``image`` and ``window_bytes`` as in a command.
    """

    trainer: Literal["torch"]
    model: Line
    iterations: Annotated[int, Field(ge=1, le=MOST_ITERATIONS)]
    batch: Annotated[int, Field(ge=1, le=LARGEST_BATCH)] | None = None
    data: AbsolutePath | None = None
    checkpoint_every: Annotated[int, Field(ge=1, le=MOST_ITERATIONS)] = 100
    compute_s: Annotated[float, Field(ge=0, le=LONGEST_COMPUTE_S, allow_inf_nan=False)] = 0.0
    seed: Annotated[int, Field(ge=0, le=LARGEST_SEED)] = 0
    image: Image | None = None
    window_bytes: Annotated[int, Field(ge=4096)] | None = None


def _trainer_of(task: Any) -> str:
    if isinstance(task, dict):
        return str(task.get("trainer", "synthetic"))
    return str(getattr(task, "trainer", ""))


# A further trainer is one more class here, and its program in ``agents/workers/programs.py``.
Task = Annotated[
    Annotated[SyntheticTask, Tag("synthetic")]
    | Annotated[TorchTask, Tag("torch")]
    | Annotated[CommandTask, Tag("command")],
    Discriminator(
        _trainer_of,
        custom_error_type="trainer",
        custom_error_message="trainer: expected 'synthetic', 'torch' or 'command'",
    ),
]
"""A task without ``trainer`` is a synthetic one."""


class WorkerSpec(_Request):
    """One worker: its place in the ring, the GPU and NIC it gets, and what it runs.

    ``checkpoint`` is a folder of the server that outlives the worker, for what the program saves.
    ``rendezvous`` is where rank 0 is found by its second interface, if all ranks have one.
    ``memory_bytes`` and ``cpus`` are the most it may use; without, what such a one usually needs.
    ``user`` is who submitted the job, empty where that is not known.
    """

    id: Name
    job: Name
    user: Annotated[str, Field(max_length=255)] = ""
    rank: Annotated[int, Field(ge=0)]
    gpu: str | None = None
    nic: str
    # A list ends at its first mistake: a report on each of a million takes minutes.
    ring: Annotated[list[RingMember], FailFast(), Field(min_length=1, max_length=MOST_WORKERS)]
    rendezvous: IPvAnyAddress | None = None
    neighbours: Annotated[list[Neighbour], FailFast(), Field(max_length=MOST_WORKERS)] = []
    checkpoint: AbsolutePath | None = None
    memory_bytes: MemoryLimit | None = None
    cpus: CpuLimit | None = None
    task: Task

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


class GidStatus(BaseModel):
    """The GID that a worker's RDMA traffic uses: its text, and where it stands in the table."""

    device: str
    port: int
    index: int
    gid: str


class WorkerStatus(BaseModel):
    """What is known of a worker now. ``last_lines`` are the end of its output.

    ``restarts`` counts how often its training began anew in the same worker. An agent starts none
    twice: it was somebody else, a container engine maybe. ``holds_by``: whether a hold waits for
    the program's next iteration (``protocol``), or stops its processes and packets (``freeze``).
    ``gid`` is that of its RDMA device, as last seen. ``energy_j`` is what its GPU has used while
    the worker had it, where the GPU tells. ``lost_rank`` is the rank whose loss it failed of.
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
    energy_j: float | None = None
    holds_by: Literal["protocol", "freeze"] | None = None
    gid: GidStatus | None = None
    lost_rank: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _lost_rank_of_older(self) -> Self:
        # Older agents and worker images say it in the message only.
        if self.lost_rank is None and (found := _LOST_RANK.match(self.message)):
            self.lost_rank = int(found[1])
        return self


class Report(BaseModel):
    """One iteration of one worker. Times in seconds, ``finished_at`` in Unix time.

    ``loss`` is that of its own mini-batch, before it learnt from it, where a model is trained.
    Somebody else's program may leave out what it does not know.
    """

    index: Annotated[int, Field(ge=0, le=2**53)]
    finished_at: _Seconds
    compute_s: _Seconds = 0.0
    communication_s: _Seconds = 0.0
    sent_bytes: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    check: Annotated[str, Field(max_length=200)] = ""
    device: Annotated[str, Field(max_length=200)] = ""
    loss: Annotated[float, Field(allow_inf_nan=False)] | None = None


class Reports(BaseModel):
    """Reports that came after the first ``after``; ask for those after ``next`` next time."""

    reports: list[Report]
    next: int


class HoldRequest(_Request):
    """Pause just before the all-reduce of this iteration."""

    iteration: Annotated[int, Field(ge=0)]


class StopAtRequest(_Request):
    """End, as ``stopped``, just before the all-reduce of this iteration."""

    iteration: Annotated[int, Field(ge=0)]


class LogPart(BaseModel):
    """Part of a worker's output, from byte ``offset`` on; ask after ``next`` next time.

    ``offset`` is later than the byte asked after where the output before it is not kept any more.
    """

    offset: int
    text: str
    next: int


class GateAnswer(BaseModel):
    """``iteration``: the one whose all-reduce has not begun yet."""

    iteration: int
