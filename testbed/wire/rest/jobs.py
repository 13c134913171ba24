"""Jobs: what was asked for, how they are, what they reported, and what was decided of them."""

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
    about = "A job as it was asked for: see ``JobSpec``."
    JobSpecShape = answer_of(JobSpec, "JobSpecShape", about, mounts=list[MountShape])


class LightMove(TypedDict):
    """A time that a job's light moved while it trained, and the iterations before and after."""

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
    """A job: see ``JobStatus``. One that runs also has what is predicted of it."""

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
    """A job by itself, also with what its light gained, and how its workers are held.

    ``rigid_because``: of a split job, why its number of workers stays as it is.
    """

    measured_iteration_s: float | None
    light_moves: list[LightMove]
    holds_by: list[Literal["iteration", "protocol", "freeze"] | None]
    rigid_because: NotRequired[str | None]


class Preview(TypedDict):
    """What would become of a job now: its ``hosts`` and ``circuits``, or what it ``waits_for``.

    ``ahead``: how many jobs are before it; ``objections``: what speaks against the circuits.
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
    """One iteration of one worker of an ``attempt``; ``loss`` where a model is trained."""

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


class StateOfJob(TypedDict):
    """A state that a job came to, and why."""

    at: float
    state: str
    message: str


class DecisionShape(TypedDict):
    """What a policy answered, and what it saw; its ``kind`` is the policy's, or ``defragment``.
    ``fault``: what the policy raised, or why its answer was refused; the default decided."""

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
    """What a worker printed, and the byte to go on from."""

    text: str
    next: int
    ended: bool


class RegroupPlan(TypedDict):
    """What a regroup would make."""

    jobs: list[str]
    makes: dict[str, list[str]]
    objections: list[str]


class ProposalShape(TypedDict):
    """A change of light under running jobs, and how much sooner each would end (seconds)."""

    maps: dict[str, list[str]]
    jobs: list[str]
    gains_s: dict[str, float]
    costs_s: dict[str, float]
    cross_connects: int
    dark_s: float
    gain_s: float


Jobs = answer("Jobs", "Jobs, each with what is predicted of it.", jobs=list[JobInList])
Submitted = answer("Submitted", "The jobs that were queued.", jobs=list[SubmittedJob])
Previews = answer("Previews", "What would become of jobs now.", jobs=list[Preview])
Iterations = answer(
    "Iterations",
    "What workers reported; ask for those ``after`` the ``next`` one.",
    iterations=list[IterationReport],
    next=int,
)
JobHistory = answer("JobHistory", "The states that a job came to.", states=list[StateOfJob])
Decisions = answer("Decisions", "What policies decided of a job.", decisions=list[DecisionShape])
Defragmentation = answer(
    "Defragmentation",
    "The change of light that gains most, if one pays.",
    proposal=ProposalShape | None,
)
Defragmented = answer(
    "Defragmented", "The change that was made, if one paid.", change=ChangeAnswer | None
)
Policies = answer("Policies", "What decides now, by kind.", policies=PoliciesInUse)
Drained = answer("Drained", "The jobs that were ended.", ended=list[str])
Resumed = answer("Resumed", "Jobs are started again.", drained=bool)

close(globals(), but=("IterationReport", "DecisionShape"))
