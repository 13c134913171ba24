"""What the API's answers look like, for its description (``/openapi.json``).

Answers are not taken apart to be compared with these on their way, which would take longer than
making them: tests do that.
"""

from collections.abc import Mapping

from pydantic import BaseModel, Field

from patchlight.controller.answer_types import AttemptRow, CircuitSwitchShape, Link
from patchlight.controller.answer_types import LogPartShape as LogPartShape
from patchlight.controller.answer_types import PathShape as PathShape
from patchlight.controller.answer_types import PathsShape as PathsShape
from patchlight.controller.answer_types import RegroupPlan as RegroupPlan
from patchlight.controller.answer_types import SavedMaps as SavedMaps
from patchlight.controller.answer_types import WhoAmI as WhoAmI
from patchlight.controller.api.describing import Json, Shape
from patchlight.controller.changes.preflight import PortLock
from patchlight.controller.shapes.changes import Change
from patchlight.controller.tokens import Token
from patchlight.testbed.jobs import JobStatus

Job = JobStatus


class LabShape(Shape):
    """Which lab the controller has."""

    name: str
    file: str
    fingerprint: str


class Status(BaseModel):
    """Who is there and who is not."""

    lab: str
    version: str
    engine: str | None
    policies: Json
    policy_faults: list[Json]
    light: Json
    drained: bool
    queue_pass_s: float | None
    parts: list[Json]
    switches: list[Json]
    nic_differences: list[str]
    unknown_switch_connections: int
    circuit_switches: list[Json]
    agents: list[Json]


class Shutdown(Shape):
    """How many jobs there are in each state that is not an end."""

    jobs: dict[str, int]


class LinksShape(Shape):
    """The links that light makes now; ``unread`` says which switches are not known, and why."""

    unread: dict[str, str]
    links: list[Link]


class OcsMap(Shape):
    """The cross-connects of an OCS; ``map`` is ``None`` if it cannot be reached."""

    map: list[str] | None
    unreachable: str = ""
    assumed: list[str] = Field(default=[])


class CircuitSwitches(Shape):
    """Every circuit switch of the lab."""

    circuit_switches: list[CircuitSwitchShape]


class Light(Shape):
    """The power of each circuit of an OCS (dBm), and the states of its ports by number."""

    monitored: bool
    circuits: list[Json]
    ports: dict[str, Json]
    unreachable: str


class Alarms(Shape):
    """What devices reported."""

    alarms: list[Json]


class DriftOf(Shape):
    """How a device differs from its last committed map."""

    missing: list[str]
    unknown: list[str]
    reconfiguration: int | None
    committed_at: float | None
    unreachable: str


class DriftShape(Shape):
    """The drift of each OCS."""

    drift: dict[str, DriftOf]


class Baselines(Shape):
    """How many circuits of each OCS have the power of now for their baseline."""

    circuits: dict[str, int]


class AllSavedMaps(Shape):
    """Everything that was saved."""

    maps: list[SavedMaps]


class Named(Shape):
    """What is gone."""

    name: str


class LocksShape(Shape):
    """Locks of ports."""

    locks: list[PortLock]


class Pressed(Shape):
    """Who pressed the stop button."""

    by: str
    why: str
    at: float


class StopButton(Shape):
    """Whether the stop button is pressed."""

    pressed: Pressed | None


class EventShape(BaseModel):
    """Something that happened; what else is there depends on its kind."""

    number: int
    at: float
    kind: str


class EventList(Shape):
    """What happened, the oldest first, and the number of the latest event of all."""

    events: list[EventShape]
    last: int


class Jobs(Shape):
    """Jobs, each with what is predicted of it."""

    jobs: list[JobStatus]


class Previews(Shape):
    """What would become of jobs now."""

    jobs: list[Json]


class Iterations(BaseModel):
    """What workers reported; ask for those ``after`` the ``next`` one."""

    iterations: list[Json]


class JobHistory(Shape):
    """The states that a job came to."""

    states: list[Json]


class Decisions(Shape):
    """What policies decided of a job."""

    decisions: list[Json]


class ProposalShape(Shape):
    """The change of light that gains most, if one pays."""

    proposal: Json | None


class ChangeShape(Shape):
    """The change that was made, if one paid."""

    change: Change | None


class PoliciesShape(Shape):
    """What decides now, by kind."""

    policies: Mapping[str, str | bool | None]


class Drained(BaseModel):
    """The jobs that were ended, or that jobs are started again."""

    ended: list[str] = Field(default=[])
    drained: bool = True


class Samples(BaseModel):
    """What was measured, the oldest first."""

    ports: list[Json] = []
    gpus: list[Json] = []


class TokensShape(Shape):
    """Every token that was made."""

    tokens: list[Token]


class NewToken(Shape):
    """A token that was just made; its text, ``token``, is told only now."""

    id: str
    user: str
    role: str
    created_at: float
    created_by: str
    expires_at: float
    why: str
    revoked_at: None
    revoked_by: str
    token: str


class AuditShape(Shape):
    """Who wanted to change what."""

    attempts: list[AttemptRow]
