"""Requests and answers of an agent's API about workers.

Unknown keys are refused in requests and ignored in answers, so that agents may be newer.
"""

import re
from base64 import b64encode
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    Discriminator,
    FailFast,
    Field,
    IPvAnyAddress,
    Tag,
    model_validator,
)

from patchlight.testbed import jobs
from patchlight.testbed.errors import short

LARGEST_TASK_GRADIENT_BYTES = 2_000_000_000
"""A worker holds some four times its gradient in memory."""

_LOST_RANK = re.compile(r"lost rank (\d{1,6}) ")

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
_Seconds = Annotated[
    float,
    Field(
        ge=0,
        le=1e12,
        allow_inf_nan=False,
    ),
]
Mac = Annotated[str, Field(pattern=r"^[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}$")]


class _Request(BaseModel, extra="forbid"):
    """A request has its fields and no others."""


class RingMember(_Request):
    """One worker of the ring, and its listening address."""

    rank: Annotated[int, Field(ge=0)]
    address: IPvAnyAddress
    port: Annotated[
        int,
        Field(
            ge=1,
            le=65535,
        ),
    ]


class Neighbour(_Request):
    """A static neighbour entry: no ARP crosses the fabric."""

    address: IPvAnyAddress
    mac: Mac


class SyntheticTask(_Request):
    """Ring all-reduces of synthetic gradients whose sums are checked.

    ``gradient_bytes`` are scaled already; ``compute_s`` is for this GPU. A stopped job continues at
    ``first_iteration``, with any number of workers. ``window_bytes`` limits what a neighbour may
    send ahead, on links whose rate is scaled. With ``paths`` each all-reduce requests an optical
    path from the agent. ``transport``: what carries the gradients.
    """

    trainer: Literal["synthetic"] = "synthetic"
    iterations: Annotated[
        int,
        Field(
            ge=1,
            le=jobs.MOST_ITERATIONS,
        ),
    ]
    gradient_bytes: Annotated[
        int,
        Field(
            ge=1,
            le=LARGEST_TASK_GRADIENT_BYTES,
        ),
    ]
    compute_s: Annotated[
        float,
        Field(
            ge=0,
            le=jobs.LONGEST_COMPUTE_S,
            allow_inf_nan=False,
        ),
    ]
    seed: Annotated[
        int,
        Field(
            ge=0,
            le=jobs.LARGEST_SEED,
        ),
    ] = 0
    device: Literal["auto", "sleep"] = "auto"
    window_bytes: Annotated[int, Field(ge=4096)] | None = None
    first_iteration: Annotated[int, Field(ge=0)] = 0
    paths: bool = False
    transport: jobs.Transport = "tcp"

    @model_validator(mode="after")
    def _begins_before_its_end(self) -> Self:
        if self.first_iteration >= self.iterations:
            raise ValueError(
                f"first_iteration {self.first_iteration} is not one of {self.iterations} iterations"
            )
        return self


class TorchTask(_Request):
    """A model of the built-in graphs, trained by PyTorch over all the job's workers.

    Mini-batches of ``batch`` samples (``None``: the graph's) come from ``data``, a folder of the
    server, or are synthetic. A checkpoint is saved each ``checkpoint_every`` iterations.
    ``compute_s``: the least time of an iteration on an emulated GPU. ``image`` and
    ``window_bytes`` as in a command.
    """

    trainer: Literal["torch"]
    model: jobs.Line
    iterations: Annotated[
        int,
        Field(
            ge=1,
            le=jobs.MOST_ITERATIONS,
        ),
    ]
    batch: (
        Annotated[
            int,
            Field(
                ge=1,
                le=jobs.LARGEST_BATCH,
            ),
        ]
        | None
    ) = None
    data: jobs.AbsolutePath | None = None
    checkpoint_every: Annotated[
        int,
        Field(
            ge=1,
            le=jobs.MOST_ITERATIONS,
        ),
    ] = 100
    compute_s: Annotated[
        float,
        Field(
            ge=0,
            le=jobs.LONGEST_COMPUTE_S,
            allow_inf_nan=False,
        ),
    ] = 0.0
    seed: Annotated[
        int,
        Field(
            ge=0,
            le=jobs.LARGEST_SEED,
        ),
    ] = 0
    image: jobs.Image | None = None
    window_bytes: Annotated[int, Field(ge=4096)] | None = None


def _trainer_of(task: Any) -> str:
    if isinstance(task, dict):
        return str(task.get("trainer", "synthetic"))
    return str(getattr(task, "trainer", ""))


# A further trainer is one more class here, and its program in ``agents/workers/programs.py``.
Task = Annotated[
    Annotated[SyntheticTask, Tag("synthetic")]
    | Annotated[TorchTask, Tag("torch")]
    | Annotated[jobs.CommandTask, Tag("command")],
    Discriminator(
        _trainer_of,
        custom_error_type="trainer",
        custom_error_message="trainer: expected 'synthetic', 'torch' or 'command'",
    ),
]
"""A task without ``trainer`` is a synthetic one."""


class WorkerSpec(_Request):
    """One worker: its place in the ring, its GPU and NIC, and what it runs.

    ``checkpoint``: a folder of the server that outlives the worker. ``rendezvous``: the address of
    rank 0's second interface, if all ranks have one. ``memory_bytes`` and ``cpus``: its limits, by
    default what such a worker usually needs. ``stop_grace_s``: how long after SIGTERM it is killed.
    ``user``: who submitted the job, if known.
    """

    id: Name
    job: Name
    user: Annotated[str, Field(max_length=255)] = ""
    rank: Annotated[int, Field(ge=0)]
    gpu: str | None = None
    nic: str
    # Fails fast: a report on each of a million mistakes takes minutes.
    ring: Annotated[
        list[RingMember],
        FailFast(),
        Field(
            min_length=1,
            max_length=jobs.MOST_WORKERS,
        ),
    ]
    rendezvous: IPvAnyAddress | None = None
    neighbours: Annotated[
        list[Neighbour], FailFast(), Field(max_length=jobs.MOST_WORKERS)
    ] = []
    checkpoint: jobs.AbsolutePath | None = None
    memory_bytes: jobs.MemoryLimit | None = None
    cpus: jobs.CpuLimit | None = None
    stop_grace_s: jobs.StopGrace = jobs.STOP_GRACE_S
    task: Task

    @model_validator(mode="after")
    def _ring_fits(self) -> Self:
        ranks = sorted(member.rank for member in self.ring)
        if ranks != list(range(len(ranks))):
            got = short(", ".join(map(str, ranks[:30])))
            raise ValueError(
                f"the ring must contain ranks 0…n−1 once each: got {got}"
            )
        if self.rank >= len(ranks):
            raise ValueError(
                f"rank {self.rank} is not in a ring of {len(ranks)}"
            )
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
        """Whether it is an end."""
        return self in (
            WorkerState.DONE,
            WorkerState.FAILED,
            WorkerState.STOPPED,
        )


class GidStatus(BaseModel):
    """The GID of a worker's RDMA traffic, and its ``index`` in the device's table."""

    device: str
    port: int
    index: int
    gid: str


class WorkerStatus(BaseModel):
    """The state of a worker. ``last_lines``: the end of its output.

    ``restarts``: how often its training began again in the same worker (by a container engine, say:
    agents start none twice). ``holds_by``: whether a hold waits for the program's next iteration
    (``protocol``), or stops its processes and packets (``freeze``). ``energy_j``: what its GPU has
    used since the worker has it. ``lost_rank``: the rank whose loss made it fail. ``stop_grace_s``:
    that of its spec.
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
    stop_grace_s: jobs.StopGrace = jobs.STOP_GRACE_S

    @model_validator(mode="after")
    def _lost_rank_of_older(self) -> Self:
        # Older agents and worker images have it only in the message.
        if self.lost_rank is None and (
            found := _LOST_RANK.match(self.message)
        ):
            self.lost_rank = int(found[1])
        return self


class Report(BaseModel):
    """One iteration of one worker; ``finished_at`` in Unix time.

    ``loss``: that of its own mini-batch before the update, if a model is trained.
    ``origin``: what reported it instead of the program: ``optimizer``, a step of PyTorch's.
    ``queue_pairs_made`` and ``rdma_retries``: over RDMA, since the worker's start (two are made
    first). Users' programs may leave out what has a default.
    """

    index: Annotated[
        int,
        Field(
            ge=0,
            le=2**53,
        ),
    ]
    finished_at: _Seconds
    compute_s: _Seconds = 0.0
    communication_s: _Seconds = 0.0
    sent_bytes: Annotated[
        int,
        Field(
            ge=0,
            le=2**63 - 1,
        ),
    ] = 0
    check: Annotated[str, Field(max_length=200)] = ""
    device: Annotated[str, Field(max_length=200)] = ""
    origin: Annotated[str, Field(max_length=40)] = ""
    loss: Annotated[float, Field(allow_inf_nan=False)] | None = None
    queue_pairs_made: (
        Annotated[
            int,
            Field(
                ge=0,
                le=2**53,
            ),
        ]
        | None
    ) = None
    rdma_retries: (
        Annotated[
            int,
            Field(
                ge=-(2**53),
                le=2**53,
            ),
        ]
        | None
    ) = None


class Reports(BaseModel):
    """Reports after the first ``after``; continue with ``after=next``."""

    reports: list[Report]
    next: int


class HoldRequest(_Request):
    """Pause just before the all-reduce of this iteration."""

    iteration: Annotated[int, Field(ge=0)]


class SlotRequest(_Request):
    """Begin all-reduces ``at`` this Unix time and multiples of ``period_s`` later, or up to
    ``late_s`` after that, for the next ``lasts_s``."""

    at: _Seconds
    period_s: Annotated[
        float,
        Field(
            gt=0,
            le=jobs.LONGEST_COMPUTE_S,
            allow_inf_nan=False,
        ),
    ]
    late_s: _Seconds
    lasts_s: _Seconds


WORKDIR_PART_BYTES = 512 * 2**10


class WorkdirPart(_Request):
    """A part of the archive of a job's working directory, whose whole ``size`` is in bytes: its
    ``data`` from byte ``offset`` on, in Base64."""

    offset: Annotated[int, Field(ge=0)]
    size: Annotated[
        int,
        Field(
            ge=1,
            le=jobs.MOST_WORKDIR_BYTES,
        ),
    ]
    data: Annotated[
        str,
        Field(
            pattern=r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
            max_length=2 * WORKDIR_PART_BYTES,
        ),
    ]

    @classmethod
    def of(cls, archive: bytes, offset: int) -> Self:
        """The part of an archive from there on."""
        part = archive[offset : offset + WORKDIR_PART_BYTES]
        return cls(
            offset=offset,
            size=len(archive),
            data=b64encode(part).decode(),
        )


class WorkdirAnswer(BaseModel):
    """The byte to continue at; the archive's size when all of it is there."""

    next: int


class StopAtRequest(_Request):
    """End, as ``stopped``, just before the all-reduce of this iteration."""

    iteration: Annotated[int, Field(ge=0)]


class AnnounceRequest(_Request):
    """Announce a worker's NIC, and greet the job's other workers for at most ``wait_s``."""

    token: Annotated[str, Field(pattern=r"^[0-9a-z-]{1,64}$")]
    wait_s: Annotated[
        float,
        Field(
            ge=0,
            le=10,
            allow_inf_nan=False,
        ),
    ]


class AnnounceAnswer(BaseModel):
    """The addresses of the workers that were not heard."""

    unheard: list[str]


class LogPart(BaseModel):
    """Part of a worker's output, from byte ``offset`` on; continue after byte ``next``.

    ``offset`` is beyond the requested byte if the output before it is no longer kept.
    """

    offset: int
    text: str
    next: int


class GateAnswer(BaseModel):
    """``iteration``: the first whose all-reduce has not begun."""

    iteration: int
