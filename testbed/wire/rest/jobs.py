"""Defines REST responses about jobs: specifications, states, reports and decisions."""

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from pydantic import Field, create_model

from patchlight.testbed.jobs import JobSpec, JobState, Mount, Pace
from patchlight.testbed.wire.rest import Absent, Answer
from patchlight.testbed.wire.rest.circuits import ChangeAnswer
from patchlight.testbed.wire.rest.lab import PoliciesInUse


def _fields_of(kind: type) -> dict[str, Any]:
    """The fields of a dataclass, required and without bounds."""
    types = get_type_hints(kind)
    return {field.name: (types[field.name], ...) for field in fields(kind)}


if TYPE_CHECKING:
    JobSpecShape = JobSpec
    PaceShape = Pace
else:
    PaceShape = create_model(
        "PaceShape",
        __base__=Answer,
        __doc__="A job's iterations between two changes of its circuits: see ``Pace``.",
        **_fields_of(Pace),
    )
    MountShape = create_model(
        "MountShape",
        __base__=Answer,
        __doc__="A file or folder of the server, and where a container sees it.",
        **_fields_of(Mount),
    )
    JobSpecShape = create_model(
        "JobSpecShape",
        __base__=Answer,
        __doc__="A job's specification: see ``JobSpec``.",
        **_fields_of(JobSpec) | {"mounts": (list[MountShape], ...)},
    )


class LightMove(Answer):
    """An outage while a job trained, and the iterations before and after."""

    policy: str
    reconfiguration: int
    moved_at: float
    predicted_before_s: float
    predicted_after_s: float
    measured_before_s: float | None
    unsettled_before: bool
    measured_after_s: float | None


JobStateName = Annotated[str, Field(json_schema_extra={"enum": [*JobState]})]


HeldBy = Literal["iteration", "protocol", "freeze"]


class JobInList(Answer):
    """A job: see ``JobStatus``. A running one also has predictions."""

    id: str
    spec: JobSpecShape
    state: JobStateName
    message: str
    hosts: list[str]
    submitted_at: float
    started_at: float | None
    finished_at: float | None
    iterations_done: int
    restarts: int
    last_lines: list[str]
    by: str
    policy_faults: int
    gang: str
    topology: str
    attempt: int
    failures: int
    first_iteration: int
    avoid: list[str]
    runs_since: float | None
    gpu_s: float
    degrees: list[tuple[float, int, int]]
    energy_j: dict[str, float]
    paces: list[PaceShape]
    predicted_iteration_s: float | Absent = None
    predicted_completion_s: float | None = None
    bottleneck: str | Absent = None


class JobAnswer(JobInList):
    """One job with its outages, and how its workers are held.

    ``measured_iteration_s``: the mean of the latest iterations; of an ended job, of its last pace.
    ``workers_run_as``: ``docker`` or ``process``, as its hosts' agents say. ``rigid_because``: why
    a split job's number of workers cannot change. ``reports_kept``: how many of the
    ``reports_made`` are stored; older ones are thinned out evenly.
    """

    measured_iteration_s: float | None
    light_moves: list[LightMove]
    holds_by: list[HeldBy | None]
    workers_run_as: list[str] | Absent = None
    rigid_because: str | None = None
    reports_kept: int | Absent = None
    reports_made: int | Absent = None


class Preview(Answer):
    """What would happen to a job now: its ``hosts`` and ``circuits``, or what it ``waits_for``.

    ``ahead``: how many jobs are before it; ``objections``: what prevents the circuits.
    ``start_s``: how long its workers take to start, which the predicted completion includes.
    """

    job: str
    hosts: list[str]
    waits_for: str
    ahead: int
    topology: str
    circuits: list[str] | Absent = None
    objections: list[str] | Absent = None
    start_s: float | Absent = None
    predicted_iteration_s: float | Absent = None
    predicted_completion_s: float | None = None
    bottleneck: str | Absent = None


class SubmittedJob(JobInList):
    """A queued job, and if it was requested what would become of it as of then."""

    plan: Preview | Absent = None


class IterationReport(Answer):
    """One iteration of one worker of an ``attempt``; ``loss`` if a model is trained; over RDMA the
    queue pairs made and the retries since its start."""

    rank: int
    attempt: int | Absent = None
    index: int
    finished_at: float
    compute_s: float
    communication_s: float
    sent_bytes: int
    check: str
    device: str
    origin: str = ""
    loss: float | None
    queue_pairs_made: int | None = None
    rdma_retries: int | None = None


class StateOfJob(Answer):
    """A state of a job, and why."""

    at: float
    state: str
    message: str


class DecisionShape(Answer, extra="allow"):
    """A policy's answer and its input; ``kind`` is the policy's, or ``defragment``. ``fault``: what
    the policy raised, or why its answer was refused; then the default decided."""

    number: int
    at: float
    kind: str
    policy: str
    answer: Any
    seconds: float
    digest: str
    saw: dict[str, Any]
    weighed: Any = None
    fault: str | Absent = None
    reconfiguration: int | Absent = None


class LogPartShape(Answer):
    """A worker's output, and the byte to continue from."""

    text: str
    next: int
    ended: bool


class RegroupPlan(Answer):
    """What a regroup would change; ``iterations_s``: predicted for running jobs, now and then."""

    jobs: list[str]
    makes: dict[str, list[str]]
    objections: list[str]
    iterations_s: dict[str, tuple[float, float]]


class ProposalShape(Answer):
    """A rewiring under running jobs, and how much sooner each would end (seconds);
    ``iterations_s``: predicted, now and then."""

    maps: dict[str, list[str]]
    jobs: list[str]
    gains_s: dict[str, float]
    costs_s: dict[str, float]
    cross_connects: int
    dark_s: float
    gain_s: float
    iterations_s: dict[str, tuple[float, float]]


class Jobs(Answer):
    """Jobs, each with predictions."""

    jobs: list[JobInList]


class Submitted(Answer):
    """The jobs that were queued."""

    jobs: list[SubmittedJob]


class Previews(Answer):
    """What would happen to jobs now."""

    jobs: list[Preview]


class Iterations(Answer):
    """Reports of workers; request those ``after`` the ``next`` one."""

    iterations: list[IterationReport]
    next: int


class JobHistory(Answer):
    """The states of a job."""

    states: list[StateOfJob]


class Decisions(Answer):
    """Decisions of policies about a job."""

    decisions: list[DecisionShape]


class Defragmentation(Answer):
    """The most profitable rewiring, if any pays."""

    proposal: ProposalShape | None


class Defragmented(Answer):
    """The rewiring that was made, if one paid."""

    change: ChangeAnswer | None


class PoliciesAnswer(Answer):
    """The present policies, by kind."""

    policies: PoliciesInUse


class Drained(Answer):
    """The jobs that were stopped."""

    ended: list[str]


class Resumed(Answer):
    """Scheduling has resumed."""

    drained: bool
