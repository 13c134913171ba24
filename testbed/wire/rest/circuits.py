"""REST answers about circuits: maps, optical power, changes, locks, optical paths."""

from collections.abc import Mapping
from typing import Literal, NotRequired

from typing_extensions import TypedDict

from patchlight.testbed.wire.rest import answer, close
from patchlight.testbed.wire.rest.lab import CircuitSwitchStatus, HostWithoutLink


class OcsMap(TypedDict):
    """The cross-connects of an OCS; where it cannot be reached, ``map`` is ``None``, and
    ``assumed`` are those that it had last."""

    map: list[str] | None
    unreachable: NotRequired[str]
    assumed: NotRequired[list[str]]


class IdentityShape(TypedDict):
    """What a device says that it is; empty where it does not tell."""

    vendor: str
    model: str
    serial: str
    software: str
    name: str


class CircuitSwitchShape(CircuitSwitchStatus):
    """A switch, whether it answers, what it says that it is; its ``grid`` if it is a WSS."""

    driver: str
    address: str
    ports: int
    switching_time_s: float
    insertion_loss_db: float
    identity: IdentityShape | None
    standing_alarms: int | None
    grid: NotRequired[str]


class CircuitLight(TypedDict):
    """The power of a circuit (dBm), what is expected, and what that says; ``source``: who sends."""

    cross_connect: str
    in_dbm: float | None
    out_dbm: float | None
    expected_dbm: float | None
    baseline_dbm: float | None
    source: str | None
    verdict: Literal["ok", "degraded", "unverified", "failed"]
    words: str


class PortCondition(TypedDict):
    """How a port is that is not ready, and the device's words for it."""

    condition: Literal["ready", "locked", "failed", "absent"]
    words: str


class LightAnswer(TypedDict):
    """The power of each circuit of an OCS, and its ports that are not ready (``in:3``)."""

    monitored: bool
    circuits: list[CircuitLight]
    ports: dict[str, PortCondition]
    unreachable: str


class AlarmShape(TypedDict):
    """Something that a device reported; ``standing``: it is on the device's own list."""

    ocs: str
    at: float
    severity: Literal["critical", "major", "minor", "notice"]
    subject: str
    words: str
    standing: bool


class DriftOf(TypedDict):
    """How a device differs from its last committed map."""

    missing: list[str]
    unknown: list[str]
    reconfiguration: int | None
    committed_at: float | None
    unreachable: str


class SavedMaps(TypedDict):
    """Maps that were saved under a name."""

    name: str
    maps: dict[str, list[str]]
    by: str
    why: str
    at: float


class Named(TypedDict):
    """What is gone."""

    name: str


class Lock(TypedDict):
    """A lock of a port, or of one ``channel`` there: nobody changes it (``locked``), only ``by``
    does (``kept``), or a change that could not be undone left it so (``bad``)."""

    ocs: str
    port: int
    kind: Literal["locked", "kept", "bad"]
    by: str
    why: str
    at: float
    channel: str


class Pressed(TypedDict):
    """Who pressed the stop button."""

    by: str
    why: str
    at: float


class StopButton(TypedDict):
    """Whether the stop button is pressed.

    ``unwritten``: why that is in memory alone for now (a full disk); empty where it is on disk.
    """

    pressed: Pressed | None
    unwritten: str


class MapChangeAnswer(TypedDict):
    """The cross-connects that go, and those that come, of one switch."""

    breaks: list[str]
    makes: list[str]


class ProgressAnswer(TypedDict):
    """How far a change under way is; ``step`` is a number that grows with each news of it.

    It is in this ``stage`` ``since`` then, at this ``ocs``, where ``done`` of so many
    ``cross_connects`` that are to break or to be made are. ``cancelled``: by whom, and why.
    """

    step: int
    stage: str
    since: float
    ocs: str
    cross_connects: int
    done: int
    cancelled: str
    may_cancel: bool


class ChangeAnswer(TypedDict):
    """A change; while it is an ``intent`` that a controller is at, with its ``progress``.

    ``reverts``: the change that it undoes. ``undone_by``: the later one that undid this one.
    """

    id: int
    state: Literal["intent", "committed", "refused", "rolled-back", "unknown"]
    message: str
    why: str
    by: str
    origin: str
    started_at: float
    finished_at: float | None
    reverts: int | None
    changes: Mapping[str, MapChangeAnswer]
    before: dict[str, list[str]]
    wanted: dict[str, list[str]]
    commits: dict[str, list[str]]
    adopted: list[str]
    stages_s: dict[str, float]
    notes: list[str]
    progress: NotRequired[ProgressAnswer]
    undone_by: NotRequired[int]


class PlanAnswer(TypedDict):
    """What a change would do (``dry_run``); ``planned_from`` is the answer's ``ETag``, too.

    ``strangers``: cross-connects that would break and that nobody made here; ``lost``: how many
    go without another in their place; ``cleared``: switches that would have none left;
    ``hosts_losing_link``: hosts that would have no link any more.
    """

    state: Literal["planned"]
    changes: Mapping[str, MapChangeAnswer]
    links_down: list[str]
    links_up: list[str]
    jobs: list[str]
    strangers: dict[str, list[str]]
    lost: dict[str, int]
    cleared: list[str]
    objections: list[str]
    hosts_losing_link: list[HostWithoutLink]
    planned_from: str


class PathShape(TypedDict):
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


class PathNetworkShape(TypedDict):
    """Hosts whose light reaches each other. ``routed``: the channel says to whom."""

    hosts: list[str]
    channels: list[str]
    routed: bool
    tuning_s: float


class PathHostShape(TypedDict):
    """A host that agrees on paths with others: within which bounds, and what it does now."""

    host: str
    job: str
    epoch: int
    state: Literal["quiet", "dark", "asks", "sends"]
    destination: str | None
    channel: str | None


class PathsShape(TypedDict):
    """The networks of paths, paths used or waited for, and ``nodes`` that agree on others."""

    scheduler: str
    networks: list[PathNetworkShape]
    paths: list[PathShape]
    nodes: list[PathHostShape]


CircuitSwitches = answer(
    "CircuitSwitches", "Every circuit switch of the lab.", circuit_switches=list[CircuitSwitchShape]
)
Alarms = answer("Alarms", "What devices reported.", alarms=list[AlarmShape])
DriftShape = answer("DriftShape", "The drift of each OCS.", drift=dict[str, DriftOf])
Baselines = answer(
    "Baselines",
    "How many circuits of each OCS have the power of now for their baseline.",
    circuits=dict[str, int],
)
AllSavedMaps = answer("AllSavedMaps", "Everything that was saved.", maps=list[SavedMaps])
Locks = answer("Locks", "Locks of ports.", locks=list[Lock])
Changes = answer(
    "Changes", "Changes of circuits, the oldest first.", reconfigurations=list[ChangeAnswer]
)

close(globals())
