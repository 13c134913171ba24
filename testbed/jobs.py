"""A training job as a value: what the user asks for, and what became of it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, ConfigDict, FailFast, Field, TypeAdapter, ValidationError

from patchlight.testbed.errors import BadInput
from patchlight.testbed.files.issues import short
from patchlight.testbed.mistakes import joined, mistake_in_words

MOST_ITERATIONS = 10_000_000
MOST_JOBS = 1000
MOST_WORKERS = 65_536
MOST_GPU_MODELS = 1000
LONGEST_COMPUTE_S = 86_400.0
LONGEST_DARK_S = 86_400.0
LARGEST_SEED = 2**63 - 1
LARGEST_GRADIENT_BYTES = 10**15


class JobState(StrEnum):
    """A job's life, in order; ``failed`` and ``stopped`` can follow any state.

    A ``paused`` job is a running one that waits for light; it runs again or fails.
    """

    QUEUED = "queued"
    RECONFIGURING = "reconfiguring"
    PREPARING = "preparing"
    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def is_final(self) -> bool:
        """Whether nothing more will happen to the job."""
        return self in (JobState.DONE, JobState.FAILED, JobState.STOPPED)


_NAME = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,40}$"


def _name(text: str) -> str:
    if re.fullmatch(_NAME, text):
        return text
    raise ValueError(
        f"{short(text)!r}: expected letters, digits, '_', '.' and '-', a letter or digit first, "
        "and 41 characters at most"
    )


@dataclass(frozen=True, slots=True)
class JobSpec:
    """Synchronous data-parallel training with ring all-reduce.

    ``hosts`` is the ring: rank r runs on ``hosts[r]`` and sends to rank r+1; empty lets the
    placement policy choose ``workers`` of them. ``gradient_bytes`` are the bytes of one
    gradient as in the lab (the lab's scale is applied later). ``compute_s`` gives, for each
    GPU model, the seconds that forward and backward of one iteration take. Without light on all
    its NICs the job pauses, and fails after ``dark_limit_s``.

    The bounds stand in the annotations; ``checked_specs`` and the REST API hold a spec to them.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", revalidate_instances="always"
    )

    name: Annotated[str, AfterValidator(_name), Field(json_schema_extra={"pattern": _NAME})]
    iterations: Annotated[int, Field(ge=1, le=MOST_ITERATIONS)]
    gradient_bytes: Annotated[int, Field(ge=4, le=LARGEST_GRADIENT_BYTES)]
    compute_s: Annotated[
        Mapping[str, Annotated[float, Field(gt=0, le=LONGEST_COMPUTE_S, allow_inf_nan=False)]],
        Field(max_length=MOST_GPU_MODELS),
    ]
    workers: Annotated[int, Field(ge=0, le=MOST_WORKERS)] = 0
    hosts: Annotated[tuple[str, ...], FailFast(), Field(max_length=MOST_WORKERS)] = ()
    seed: Annotated[int, Field(ge=0, le=LARGEST_SEED)] = 0
    dark_limit_s: Annotated[float, Field(gt=0, le=LONGEST_DARK_S, allow_inf_nan=False)] = 600.0


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
    """What is known of a job now; ``message`` says why it failed or what it waits for.

    ``by`` is the user who submitted it; ``policy_faults`` counts how often a policy failed on it,
    and the default decided.
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
    last_lines: tuple[str, ...] = field(default=())
    by: str = ""
    policy_faults: int = 0

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "JobStatus":
        """The status that ``dataclasses.asdict`` made a record of, also by way of JSON.

        A key that is not known is passed over. ``pydantic.ValidationError`` for what is no status.
        """
        return _STATUS.validate_python(record)


_SPECS = TypeAdapter(Annotated[list[JobSpec], Field(max_length=MOST_JOBS)])
_STATUS = TypeAdapter(JobStatus)


def checked_specs(given: object) -> list[JobSpec]:
    """The specs in a list of them, or of mappings, each value within its bounds.

    ``BadInput`` names every field that is not.
    """
    try:
        return _SPECS.validate_python(given)
    except ValidationError as error:
        raise BadInput(joined(_in_words(given, each) for each in error.errors())) from error


def _in_words(given: Any, mistake: Mapping[str, Any]) -> str:
    if not mistake["loc"]:
        return mistake_in_words(mistake, (), "jobs")
    number, *place = mistake["loc"]
    spec = given[number]
    name = spec.get("name") if isinstance(spec, Mapping) else getattr(spec, "name", None)
    return f"job {str(name or number)[:40]}: {mistake_in_words(mistake, place)}"
