"""Models a training job: its specification and its status."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import pydantic
from pydantic import AfterValidator, ConfigDict, FailFast, Field

from patchlight.testbed.errors import (
    BadInput,
    joined,
    mistake_in_words,
    nearest,
    short,
)

RESERVED_VARIABLES = frozenset(
    [
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "NCCL_SOCKET_IFNAME",
        "GLOO_SOCKET_IFNAME",
        "NCCL_IB_HCA",
        "NCCL_IB_ADDR_RANGE",
        "UCX_NET_DEVICES",
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
    ]
)
"""Variables that an agent sets, in addition to those that begin with ``PATCHLIGHT_``."""


def is_reserved(variable: str) -> bool:
    """Whether an agent sets this environment variable."""
    return variable in RESERVED_VARIABLES or variable.startswith("PATCHLIGHT_")


LONGEST_TEXT = 4096
MOST_WORDS = 1000
MOST_MOUNTS = 64
AbsolutePath = Annotated[
    str,
    Field(
        pattern=r"^/[^\x00]*$",
        max_length=LONGEST_TEXT,
    ),
]
Line = Annotated[
    str,
    Field(
        pattern=r"^[^\x00]*$",
        max_length=LONGEST_TEXT,
    ),
]
Variable = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        max_length=255,
    ),
]
Image = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$",
        max_length=255,
    ),
]
# Bytes.
SharedMemory = Annotated[
    int,
    Field(
        ge=2**20,
        le=2**40,
    ),
]
# Bytes.
MemoryLimit = Annotated[
    int,
    Field(
        ge=16 * 2**20,
        le=2**44,
    ),
]
CpuLimit = Annotated[
    float,
    Field(
        ge=0.01,
        le=4096,
        allow_inf_nan=False,
    ),
]
HowHeld = Literal["auto", "protocol", "freeze"]
MOST_WORKDIR_BYTES = 64 * 2**20
MOST_WORKDIR_FILES = 20_000
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


@dataclass(
    frozen=True,
    slots=True,
)
class Mount:
    """A file or folder of the server, and where a container sees it."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    source: AbsolutePath
    target: AbsolutePath
    read_only: bool = True


class CommandTask(pydantic.BaseModel):
    """A user's own program, the same on every rank.

    ``image`` ``None``: Patchlight's worker image. ``working_directory`` ``None``: the worker's
    folder. ``workdir``: the digest of an archive of the user's files, where it then starts.
    ``hold`` is how the program pauses during a change of circuits: ``protocol``, by the
    control socket that it opens; ``freeze``, by stopping its processes and packets; ``auto``, by
    the socket if it exists. ``window_bytes`` limits the TCP window on links of scaled rate.
    """

    model_config = ConfigDict(extra="forbid")

    trainer: Literal["command"]
    command: Annotated[
        list[Line],
        Field(
            min_length=1,
            max_length=MOST_WORDS,
        ),
    ]
    image: Image | None = None
    environment: Annotated[
        dict[Variable, Line], Field(max_length=MOST_WORDS)
    ] = {}
    mounts: Annotated[list[Mount], Field(max_length=MOST_MOUNTS)] = []
    shared_memory_bytes: SharedMemory | None = None
    working_directory: AbsolutePath | None = None
    workdir: Digest | None = None
    hold: HowHeld = "auto"
    window_bytes: Annotated[int, Field(ge=4096)] | None = None

    @pydantic.field_validator("environment")
    @classmethod
    def _leaves_ours_alone(cls, environment: dict[str, str]) -> dict[str, str]:
        if taken := ", ".join(
            name for name in environment if is_reserved(name)
        ):
            raise ValueError(
                f"Patchlight sets {taken} for each rank: leave it out"
            )
        return environment


MOST_ITERATIONS = 10_000_000
MOST_JOBS = 1000
MOST_WORKERS = 65_536
MOST_GPU_MODELS = 1000
LONGEST_COMPUTE_S = 86_400.0
LONGEST_DARK_S = 86_400.0
STOP_GRACE_S = 30.0
LONGEST_STOP_GRACE_S = 3600.0
StopGrace = Annotated[
    float,
    Field(
        ge=0,
        le=LONGEST_STOP_GRACE_S,
        allow_inf_nan=False,
    ),
]
LARGEST_SEED = 2**63 - 1
LARGEST_BATCH = 1_000_000
LARGEST_GRADIENT_BYTES = 10**15
MOST_RETRIES = 100
LONGEST_GRAPH = 2**20
_MOST_DEGREES = 100
LONGEST_LIMIT_S = 10 * 366 * 86_400.0
JOB_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,40}$"

Seconds = Annotated[
    float,
    Field(
        gt=0,
        le=LONGEST_LIMIT_S,
        allow_inf_nan=False,
    ),
]
Trainer = Literal["synthetic", "torch", "command"]
Transport = Literal["tcp", "rdma"]


class JobState(StrEnum):
    """A job's life, in order; ``failed`` and ``stopped`` can follow any state.

    A ``blocked`` job is queued and needs more than time; a ``paused`` one waits for its circuits.
    """

    QUEUED = "queued"
    BLOCKED = "blocked"
    RECONFIGURING = "reconfiguring"
    PREPARING = "preparing"
    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def is_final(self) -> bool:
        """Whether the job has ended."""
        return self in (JobState.DONE, JobState.FAILED, JobState.STOPPED)

    @property
    def is_waiting(self) -> bool:
        """Whether the job has no hosts and no workers yet."""
        return self in (JobState.QUEUED, JobState.BLOCKED)


def _name(text: str) -> str:
    if re.fullmatch(JOB_NAME, text):
        return text
    raise ValueError(
        f"{short(text)!r}: expected letters, digits, '_', '.' and '-', a letter or digit first, "
        "and 41 characters at most"
    )


@dataclass(
    frozen=True,
    slots=True,
)
class JobSpec:
    """Synchronous data-parallel training: what runs, on what, and how it is scheduled.

    A ``synthetic`` job is Patchlight's ring all-reduce: ``iterations`` of ``gradient_bytes`` bytes
    (before the lab's scale); ``compute_s`` is the time in seconds of forward and backward of one
    iteration on each GPU model; ``transport`` carries its gradients. ``torch`` trains a built-in
    graph's ``model`` with PyTorch: each worker has mini-batches of ``batch`` samples (``None``: as
    many as the graph) from the folder ``data`` of its server (``None``: synthetic), and the job's
    ``checkpoint`` is written each ``checkpoint_every`` iterations. The compute time is measured
    unless given; an emulated GPU computes at least that long. A ``command`` runs the user's program
    in each worker, with the environment of PyTorch's launchers; its iterations, gradient and
    compute time (0 or empty: not known) are used for predictions only.

    ``hosts`` is the ring: rank r runs on ``hosts[r]`` and sends to rank r+1; empty lets the
    placement policy choose ``workers`` of them, of ``gpu_models`` (empty: those of ``compute_s``,
    or any). ``workers`` 0 leaves the number to the partition policy, one of ``degrees`` if there
    are any: ``compute_s`` is then an iteration's time on one GPU, which n workers share, and the
    elasticity policy may change their number while the job runs. The deadline is ``deadline_s``
    after submission, or ``requirement`` times its time on one GPU (PAC-ML's β). Jobs of higher
    ``priority`` start sooner; all wait until the jobs ``after`` (ids or names) are done. A failed
    job restarts up to ``retries`` times; a synthetic one continues where it was. ``memory_bytes``
    and ``cpus`` limit each worker. Without optical signals on all its NICs the job pauses, and
    fails after ``dark_limit_s``. To end a worker, SIGTERM is sent, and SIGKILL ``stop_grace_s``
    later. ``topology`` and ``placement`` override the lab's policies;
    ``graph`` is a built-in computation graph's name, or one as JSON.

    Bounds are in the annotations; ``checked_specs`` and the REST API enforce them.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid",
        revalidate_instances="always",
    )

    name: Annotated[
        str,
        AfterValidator(_name),
        Field(json_schema_extra={"pattern": JOB_NAME}),
    ]
    iterations: Annotated[
        int,
        Field(
            ge=0,
            le=MOST_ITERATIONS,
        ),
    ] = 0
    gradient_bytes: Annotated[
        int,
        Field(
            ge=0,
            le=LARGEST_GRADIENT_BYTES,
        ),
    ] = 0
    compute_s: Annotated[
        Mapping[
            str,
            Annotated[
                float,
                Field(
                    gt=0,
                    le=LONGEST_COMPUTE_S,
                    allow_inf_nan=False,
                ),
            ],
        ],
        Field(max_length=MOST_GPU_MODELS),
    ] = field(default_factory=dict)
    workers: Annotated[
        int,
        Field(
            ge=0,
            le=MOST_WORKERS,
        ),
    ] = 0
    hosts: Annotated[
        tuple[str, ...], FailFast(), Field(max_length=MOST_WORKERS)
    ] = ()
    seed: Annotated[
        int,
        Field(
            ge=0,
            le=LARGEST_SEED,
        ),
    ] = 0
    dark_limit_s: Annotated[
        float,
        Field(
            gt=0,
            le=LONGEST_DARK_S,
            allow_inf_nan=False,
        ),
    ] = 600.0
    stop_grace_s: StopGrace = STOP_GRACE_S
    trainer: Trainer = "synthetic"
    model: Line | None = None
    batch: (
        Annotated[
            int,
            Field(
                ge=1,
                le=LARGEST_BATCH,
            ),
        ]
        | None
    ) = None
    data: AbsolutePath | None = None
    command: Annotated[
        tuple[Line, ...], FailFast(), Field(max_length=MOST_WORDS)
    ] = ()
    image: Image | None = None
    environment: Annotated[
        Mapping[Variable, Line], Field(max_length=MOST_WORDS)
    ] = field(default_factory=dict)
    mounts: Annotated[
        tuple[Mount, ...], FailFast(), Field(max_length=MOST_MOUNTS)
    ] = ()
    shared_memory_bytes: SharedMemory | None = None
    memory_bytes: MemoryLimit | None = None
    cpus: CpuLimit | None = None
    working_directory: AbsolutePath | None = None
    workdir: Digest | None = None
    hold: HowHeld = "auto"
    gpu_models: Annotated[
        tuple[str, ...], FailFast(), Field(max_length=MOST_GPU_MODELS)
    ] = ()
    degrees: Annotated[
        tuple[
            Annotated[
                int,
                Field(
                    ge=1,
                    le=MOST_WORKERS,
                ),
            ],
            ...,
        ],
        Field(max_length=MOST_WORDS),
    ] = ()
    deadline_s: Seconds | None = None
    requirement: (
        Annotated[
            float,
            Field(
                gt=0,
                le=1000,
                allow_inf_nan=False,
            ),
        ]
        | None
    ) = None
    priority: Annotated[
        int,
        Field(
            ge=-1000,
            le=1000,
        ),
    ] = 0
    after: Annotated[
        tuple[Line, ...], FailFast(), Field(max_length=MOST_WORDS)
    ] = ()
    retries: Annotated[
        int,
        Field(
            ge=0,
            le=MOST_RETRIES,
        ),
    ] = 0
    checkpoint: AbsolutePath | None = None
    checkpoint_every: Annotated[
        int,
        Field(
            ge=1,
            le=MOST_ITERATIONS,
        ),
    ] = 100
    graph: Annotated[str, Field(max_length=LONGEST_GRAPH)] | None = None
    topology: Line | None = None
    placement: Line | None = None
    transport: Transport = "tcp"
    preemptible: bool = True

    def runs_on(self, model: str) -> bool:
        """Whether the job may run on GPUs of this model."""
        is_known = self.trainer != "synthetic" or model in self.compute_s
        return is_known and (not self.gpu_models or model in self.gpu_models)

    @property
    def size(self) -> int:
        """How many GPUs it requests; 0 if a policy decides."""
        return len(self.hosts) or self.workers

    @property
    def least_workers(self) -> int:
        """How many GPUs it requests; the minimum if a policy decides."""
        return self.size or min(self.degrees, default=1)

    @property
    def is_split(self) -> bool:
        """Whether an iteration's work is split over the workers."""
        return not self.size


class Degree(NamedTuple):
    """How many workers a job has, since when (Unix time) and from which iteration."""

    since: float
    iteration: int
    workers: int


MOST_PACES = 50


@dataclass(
    frozen=True,
    slots=True,
)
class Pace:
    """A job's iterations from the start of an attempt or a change of its circuits to the next.

    ``why``: the change, with its number ``reconfiguration``. ``predicted_s``, for the circuits and
    jobs when it began, and the mean ``iteration_s`` are seconds an iteration; ``communication`` is
    the share of exchanging gradients. ``None``: not known. ``source``: ``reported`` by the program,
    or observed at the steps of PyTorch's ``optimizer``.
    """

    since: float
    why: str = ""
    reconfiguration: int | None = None
    predicted_s: float | None = None
    iterations: int = 0
    iteration_s: float | None = None
    communication: float | None = None
    source: str = ""


@dataclass(
    frozen=True,
    slots=True,
)
class JobStatus:
    """The present state of a job; ``message`` says why it failed or what it waits for.

    ``by`` is the user who submitted it. ``policy_faults`` counts decisions by the default after a
    policy failed. Jobs of one ``gang`` start together. ``attempt`` counts from 0; the present one
    began at ``first_iteration`` and has its hosts since ``runs_since``. ``gpu_s`` are the
    GPU-seconds of earlier hosts, ``avoid`` the hosts of failed attempts, ``degrees`` the latest
    numbers of workers if a policy chooses them. ``energy_j`` are joules by GPU's full name, for
    GPUs that report them; they are known when the worker has ended. ``paces``: its iteration times,
    oldest first.
    """

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
    last_lines: tuple[str, ...] = ()
    by: str = ""
    policy_faults: int = 0
    gang: str = ""
    topology: str = ""
    attempt: int = 0
    failures: int = 0
    first_iteration: int = 0
    avoid: tuple[str, ...] = ()
    runs_since: float | None = None
    gpu_s: float = 0.0
    degrees: tuple[Degree, ...] = ()
    energy_j: Mapping[str, float] = field(default_factory=dict)
    paces: tuple[Pace, ...] = ()

    def with_hosts(self, hosts: tuple[str, ...], now_s: float) -> "JobStatus":
        """The job moved to these hosts."""
        had = self.degrees
        gpu_s = self.gpu_seconds(now_s)
        if self.spec.is_split:
            had = (*had, Degree(now_s, self.iterations_done, len(hosts)))[
                -_MOST_DEGREES:
            ]
        return replace(
            self,
            hosts=hosts,
            runs_since=now_s,
            gpu_s=gpu_s,
            degrees=had,
        )

    def gpu_seconds(self, now_s: float) -> float:
        """What the job has used until now (Unix time), in GPU-seconds."""
        held_s = 0.0 if self.runs_since is None else now_s - self.runs_since
        return self.gpu_s + len(self.hosts) * held_s

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "JobStatus":
        """The status from ``as_record``; ignores unknown keys. ``pydantic.ValidationError``."""
        return _STATUS.validate_python(record)

    @property
    def as_record(self) -> dict[str, Any]:
        """Like ``dataclasses.asdict``, but faster."""
        return dict(_STATUS.dump_python(self))

    @property
    def as_text(self) -> bytes:
        """``as_record`` as JSON without the message; ``ValueError`` for a lone surrogate."""
        return _STATUS.dump_json(self, exclude={"message"})

    @property
    def as_json(self) -> str:
        """The status as text; ``from_json`` reads it."""
        return json.dumps(self.as_record)

    @classmethod
    def from_json(cls, text: str) -> "JobStatus":
        """The status in this text; ignores unknown keys. ``ValueError`` if it is invalid."""
        try:
            return _STATUS.validate_json(text)
        except pydantic.ValidationError:
            # Unlike Python's, pydantic's JSON parser refuses lone surrogates.
            return cls.from_dict(json.loads(text))


_SPECS = pydantic.TypeAdapter(
    Annotated[list[JobSpec], Field(max_length=MOST_JOBS)]
)
_STATUS = pydantic.TypeAdapter(JobStatus)


def checked_specs(given: object) -> list[JobSpec]:
    """The specs in a list of specs or mappings; ``BadInput`` names every field out of bounds."""
    try:
        specs = _SPECS.validate_python(given)
    except pydantic.ValidationError as error:
        raise BadInput(
            joined(_in_words(given, each) for each in error.errors())
        ) from error
    if mistakes := [
        f"job {spec.name}: {each}"
        for spec in specs
        for each in contradictions(spec)
    ]:
        raise BadInput("; ".join(mistakes))
    return specs


_NEEDS: Mapping[Trainer, tuple[str, ...]] = {
    "synthetic": ("iterations", "gradient_bytes", "compute_s"),
    "torch": ("model", "iterations"),
    "command": ("command",),
}
# Fields that only some trainers use.
_ONLY_FOR: Mapping[str, tuple[Trainer, ...]] = {
    **dict.fromkeys(("model", "batch", "data"), ("torch",)),
    "command": ("command",),
    "image": ("torch", "command"),
    **dict.fromkeys(
        (
            "environment",
            "mounts",
            "shared_memory_bytes",
            "working_directory",
            "workdir",
        ),
        ("command",),
    ),
}


def contradictions(spec: JobSpec) -> list[str]:
    """Contradictions between a spec's fields, as text."""
    found = list[str]()
    if lacking := [
        name for name in _NEEDS[spec.trainer] if not getattr(spec, name)
    ]:
        kind = (
            "job with trainer command"
            if spec.trainer == "command"
            else f"{spec.trainer} job"
        )
        found.append(
            f"a {kind} needs {'a ' * (lacking == ['command'])}{', '.join(lacking)}"
        )
    elif spec.trainer == "synthetic" and spec.gradient_bytes < 4:
        found.append(
            f"a gradient of {spec.gradient_bytes} bytes: expected 4 or more"
        )
    elif spec.model is not None and spec.trainer == "torch":
        from patchlight.testbed.graphs import BUILTIN_NAMES

        if spec.model not in BUILTIN_NAMES:
            found.append(
                f"unknown model {spec.model!r}: {nearest(spec.model, BUILTIN_NAMES)}"
            )
    unused: dict[tuple[Trainer, ...], list[str]] = {}
    for name, trainers in _ONLY_FOR.items():
        if getattr(spec, name) and spec.trainer not in trainers:
            unused.setdefault(trainers, []).append(name)
    if spec.transport != "tcp" and spec.trainer != "synthetic":
        found.append(
            "transport: only for synthetic jobs; others choose their own (NCCL, UCX)"
        )
    for trainers, names in unused.items():
        found.append(
            f"{', '.join(names)}: only for jobs with trainer {' or '.join(trainers)}"
        )
    if spec.hosts and spec.workers and len(spec.hosts) != spec.workers:
        found.append(
            f"{spec.workers} workers and {len(spec.hosts)} hosts: expected one of the two"
        )
    if spec.degrees and (spec.workers or spec.hosts):
        found.append("degrees need 'workers: auto'")
    if spec.deadline_s is not None and spec.requirement is not None:
        found.append("expected a deadline or a requirement, not both")
    if spec.after and spec.name in spec.after:
        found.append("it cannot wait for itself")
    return found


def _in_words(given: Any, mistake: Mapping[str, Any]) -> str:
    if not mistake["loc"]:
        return mistake_in_words(mistake, (), "jobs")
    number, *place = mistake["loc"]
    spec = given[number]
    name = (
        spec.get("name")
        if isinstance(spec, Mapping)
        else getattr(spec, "name", None)
    )
    return (
        f"job {str(name or number)[:40]}: {mistake_in_words(mistake, place)}"
    )
