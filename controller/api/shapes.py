"""What the API's answers look like, for its description (``/openapi.json``).

Answers are not taken apart to be compared with these on their way, which would take longer than
making them: tests do that.
"""

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, Field

from patchlight.controller.api.describing import Json, Shape
from patchlight.controller.changes.preflight import PortLock
from patchlight.controller.changes.record import Reconfiguration
from patchlight.controller.circuits.contract import Identity
from patchlight.controller.tokens import Token
from patchlight.testbed.jobs import JobStatus

Job = JobStatus
Change = Reconfiguration


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


class Via(Shape):
    """A circuit that a link goes through."""

    ocs: str
    inp: int
    out: int


class Link(Shape):
    """Two ports that light joins, by way of these circuits."""

    a: str
    b: str
    rate_bps: float | None
    via: list[Via]


class LinksShape(Shape):
    """The links that light makes now; ``unread`` says which switches are not known, and why."""

    unread: dict[str, str]
    links: list[Link]


class OcsMap(Shape):
    """The cross-connects of an OCS; ``map`` is ``None`` if it cannot be reached."""

    map: list[str] | None
    unreachable: str = ""
    assumed: list[str] = Field(default=[])


class CircuitSwitchShape(Shape):
    """A circuit switch, whether it answers, and what it says that it is."""

    name: str
    reachable: bool
    since: float | None
    words: str
    driver: str
    address: str
    ports: int
    switching_time_s: float
    insertion_loss_db: float
    identity: Identity | None
    standing_alarms: int | None


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


class PlanShape(Shape):
    """What a change would do (``dry_run``); ``planned_from`` is the answer's ``ETag``, too."""

    state: str
    changes: dict[str, dict[str, list[str]]]
    links_down: list[str]
    links_up: list[str]
    jobs: list[str]
    strangers: dict[str, list[str]]
    lost: dict[str, int]
    cleared: list[str]
    objections: list[str]
    planned_from: str


class Changes(Shape):
    """Changes of circuits, the oldest first."""

    reconfigurations: list[Reconfiguration]


class Baselines(Shape):
    """How many circuits of each OCS have the power of now for their baseline."""

    circuits: dict[str, int]


class SavedMaps(Shape):
    """Maps that were saved under a name."""

    name: str
    maps: dict[str, list[str]]
    by: str
    why: str
    at: float


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


class LogPartShape(Shape):
    """What a worker printed, and the byte to go on from."""

    text: str
    next: int
    ended: bool


class ProposalShape(Shape):
    """The change of light that gains most, if one pays."""

    proposal: Json | None


class ChangeShape(Shape):
    """The change that was made, if one paid."""

    change: Reconfiguration | None


class RegroupPlan(Shape):
    """What a regroup would make."""

    jobs: list[str]
    makes: dict[str, list[str]]
    objections: list[str]


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


class WhoAmI(Shape):
    """Who one is to the controller."""

    user: str
    role: str
    origin: str


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


class AttemptRow(Shape):
    """An attempt to change something."""

    number: int
    at: float
    by: str
    origin: str
    role: str
    what: str
    outcome: Literal["done", "refused", "failed", "unknown"]
    status: int
    why: str
    token: str
    about: str
    repeated: int


class AuditShape(Shape):
    """Who wanted to change what."""

    attempts: list[AttemptRow]


class PathShape(Shape):
    """A path of light, or a flow that waits for one."""

    id: int
    source: str
    destination: str
    bytes: float
    collective: str | None
    round: int
    by: str
    lease_s: float
    wanted_at: float
    until: float
    state: Literal["waiting", "granted", "released", "expired"]
    channel: str | None
    starts_at: float | None
    ends_at: float | None
    ended_at: float | None


class PathNetworkShape(Shape):
    """Hosts whose light reaches each other. ``routed``: the channel says to whom."""

    hosts: list[str]
    channels: list[str]
    routed: bool
    tuning_s: float


class PathsShape(Shape):
    """The networks of paths, and the paths that are used or waited for."""

    scheduler: str
    networks: list[PathNetworkShape]
    paths: list[PathShape]
