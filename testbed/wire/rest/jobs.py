"""Defines REST responses about jobs: specifications, states, reports and decisions."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from patchlight.testbed.jobs import JobSpec, JobState, Mount
from patchlight.testbed.wire.rest import answer, answer_of, close
from patchlight.testbed.wire.rest.circuits import ChangeAnswer
from patchlight.testbed.wire.rest.lab import PoliciesInUse

if TYPE_CHECKING:
    JobSpecShape = dict[str, Any]
else:
    about = "A file or folder of the server, and where a container sees it."
    MountShape = answer_of(Mount, "MountShape", about)
    about = "A job's specification: see ``JobSpec``."
    JobSpecShape = answer_of(
        JobSpec,
        "JobSpecShape",
        about,
        mounts=list[MountShape],
    )


class LightMove(TypedDict):
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


class JobInList(TypedDict):
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
    predicted_iteration_s: NotRequired[float]
    predicted_completion_s: NotRequired[float | None]
    bottleneck: NotRequired[str]


class JobAnswer(JobInList):
    """One job with its outages, and how its workers are held.

    ``rigid_because``: why a split job's number of workers cannot change. ``reports_kept``: how many
    of the ``reports_made`` are stored; older ones are thinned out evenly.
    """

    measured_iteration_s: float | None
    light_moves: list[LightMove]
    holds_by: list[Literal["iteration", "protocol", "freeze"] | None]
    rigid_because: NotRequired[str | None]
    reports_kept: NotRequired[int]
    reports_made: NotRequired[int]


class Preview(TypedDict):
    """What would happen to a job now: its ``hosts`` and ``circuits``, or what it ``waits_for``.

    ``ahead``: how many jobs are before it; ``objections``: what prevents the circuits.
    """

    job: str
    hosts: list[str]
    waits_for: str
    ahead: int
    topology: str
    circuits: NotRequired[list[str]]
    objections: NotRequired[list[str]]
    predicted_iteration_s: NotRequired[float]
    predicted_completion_s: NotRequired[float | None]
    bottleneck: NotRequired[str]


class SubmittedJob(JobInList):
    """A queued job, and if it was requested what would become of it as of then."""

    plan: NotRequired[Preview]


class IterationReport(TypedDict):
    """One iteration of one worker of an ``attempt``; ``loss`` if a model is trained; over RDMA the
    queue pairs made and the retries since its start."""

    rank: int
    attempt: NotRequired[int]
    index: int
    finished_at: float
    compute_s: float
    communication_s: float
    sent_bytes: int
    check: str
    device: str
    loss: float | None
    queue_pairs_made: NotRequired[int | None]
    rdma_retries: NotRequired[int | None]


class StateOfJob(TypedDict):
    """A state of a job, and why."""

    at: float
    state: str
    message: str


class DecisionShape(TypedDict):
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
    weighed: NotRequired[Any]
    fault: NotRequired[str]
    reconfiguration: NotRequired[int]


class LogPartShape(TypedDict):
    """A worker's output, and the byte to continue from."""

    text: str
    next: int
    ended: bool


class RegroupPlan(TypedDict):
    """What a regroup would change."""

    jobs: list[str]
    makes: dict[str, list[str]]
    objections: list[str]


class ProposalShape(TypedDict):
    """A rewiring under running jobs, and how much sooner each would end (seconds)."""

    maps: dict[str, list[str]]
    jobs: list[str]
    gains_s: dict[str, float]
    costs_s: dict[str, float]
    cross_connects: int
    dark_s: float
    gain_s: float


Jobs = answer("Jobs", "Jobs, each with predictions.", jobs=list[JobInList])
Submitted = answer(
    "Submitted", "The jobs that were queued.", jobs=list[SubmittedJob]
)
Previews = answer(
    "Previews", "What would happen to jobs now.", jobs=list[Preview]
)
Iterations = answer(
    "Iterations",
    "Reports of workers; request those ``after`` the ``next`` one.",
    iterations=list[IterationReport],
    next=int,
)
JobHistory = answer(
    "JobHistory", "The states of a job.", states=list[StateOfJob]
)
Decisions = answer(
    "Decisions",
    "Decisions of policies about a job.",
    decisions=list[DecisionShape],
)
Defragmentation = answer(
    "Defragmentation",
    "The most profitable rewiring, if any pays.",
    proposal=ProposalShape | None,
)
Defragmented = answer(
    "Defragmented",
    "The rewiring that was made, if one paid.",
    change=ChangeAnswer | None,
)
Policies = answer(
    "Policies", "The present policies, by kind.", policies=PoliciesInUse
)
Drained = answer("Drained", "The jobs that were stopped.", ended=list[str])
Resumed = answer("Resumed", "Scheduling has resumed.", drained=bool)

close(globals(), but=("IterationReport", "DecisionShape"))
