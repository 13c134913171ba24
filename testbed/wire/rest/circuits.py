"""Defines REST responses about circuits: maps, optical power, changes, locks, optical paths."""

from collections.abc import Mapping
from typing import Literal

from patchlight.testbed.wire.rest import Absent, Answer
from patchlight.testbed.wire.rest.lab import (
    CircuitSwitchStatus,
    HostWithoutLink,
)


class OcsMap(Answer):
    """The cross-connects of an OCS; if unreachable, ``map`` is ``None`` and ``assumed`` is
    known."""

    map: list[str] | None
    unreachable: str | Absent = None
    assumed: list[str] | Absent = None


class IdentityShape(Answer):
    """A device's identity; empty for what it does not report."""

    vendor: str
    model: str
    serial: str
    software: str
    name: str


class CircuitSwitchShape(CircuitSwitchStatus):
    """A switch, whether it answers, and its identity; with a ``grid`` if it is a WSS."""

    driver: str
    address: str
    ports: int
    switching_time_s: float
    insertion_loss_db: float
    identity: IdentityShape | None
    standing_alarms: int | None
    grid: str | Absent = None


class CircuitLight(Answer):
    """A circuit's power (dBm), the expected power, and the verdict; ``source``: who sends."""

    cross_connect: str
    in_dbm: float | None
    out_dbm: float | None
    expected_dbm: float | None
    baseline_dbm: float | None
    source: str | None
    verdict: Literal["ok", "degraded", "unverified", "failed"]
    words: str


class PortCondition(Answer):
    """The state of a port that is not ready, and the device's message."""

    condition: Literal["ready", "locked", "failed", "absent"]
    words: str


class LightAnswer(Answer):
    """The power of each circuit of an OCS, and its ports that are not ready (``in:3``)."""

    monitored: bool
    circuits: list[CircuitLight]
    ports: dict[str, PortCondition]
    unreachable: str


class AlarmShape(Answer):
    """An alarm or event of a device; ``standing``: it is still on the device's list."""

    ocs: str
    at: float
    severity: Literal["critical", "major", "minor", "notice"]
    subject: str
    words: str
    standing: bool


class DriftOf(Answer):
    """How a device differs from its last committed map."""

    missing: list[str]
    unknown: list[str]
    reconfiguration: int | None
    committed_at: float | None
    unreachable: str


class SavedMaps(Answer):
    """Maps saved under a name."""

    name: str
    maps: dict[str, list[str]]
    by: str
    why: str
    at: float


class Named(Answer):
    """What was removed."""

    name: str


class Lock(Answer):
    """A lock of a port, or of one ``channel`` there: nobody may change it (``locked``), only ``by``
    may (``kept``), a failed rollback locked it (``bad``), or a ``claim`` holds it (``claimed``)."""

    ocs: str
    port: int
    kind: Literal["locked", "kept", "bad", "claimed"]
    by: str
    why: str
    at: float
    channel: str
    claim: str


class ClaimAnswer(Answer):
    """A claim; ``words``: what is in its way, or why it ended. Nobody else changes the ports
    ``owned``; ``circuits`` are those of them when it was verified, by OCS.

    ``hosts`` are in the order of the ring. It is ``overdue`` from ``until`` on, and expires
    ``hold_s`` later.
    """

    name: str
    number: int
    state: Literal[
        "waiting", "held", "overdue", "released", "expired", "failed"
    ]
    words: str
    hosts: list[str]
    ports: dict[str, list[int]]
    shape: Literal["switch", "ring", "open"]
    time_limit_s: float | None
    hold_s: float
    by: str
    why: str
    owned: dict[str, list[int]]
    circuits: dict[str, list[str]]
    reconfiguration: int | None
    made_at: float
    held_at: float | None
    until: float | None
    ended_at: float | None


class ClaimsAnswer(Answer):
    """Claims, in the order of their requests."""

    claims: list[ClaimAnswer]


class Pressed(Answer):
    """Who pressed the stop button."""

    by: str
    why: str
    at: float


class StopButton(Answer):
    """Whether the stop button is pressed.

    ``unwritten``: why that is only in memory for now (a full disk); empty if it is on disk.
    """

    pressed: Pressed | None
    unwritten: str


class MapChangeAnswer(Answer):
    """The cross-connects to break and to make, of one switch."""

    breaks: list[str]
    makes: list[str]


class ProgressAnswer(Answer):
    """The progress of a change; ``step`` grows with each update.

    It is in this ``stage`` since ``since``, at this ``ocs``, with ``done`` of its
    ``cross_connects``. ``cancelled``: by whom, and why.
    """

    step: int
    stage: str
    since: float
    ocs: str
    cross_connects: int
    done: int
    cancelled: str
    may_cancel: bool


class ChangeAnswer(Answer):
    """A change; an ``intent`` in progress has its ``progress``.

    ``reverts``: the change that it undoes. ``undone_by``: the later one that undid this one.
    ``late_until``: until then (Unix time) a switch may still carry out what it did not answer.
    """

    id: int
    state: Literal["intent", "committed", "refused", "rolled-back", "unknown"]
    message: str
    why: str
    by: str
    origin: str
    started_at: float
    finished_at: float | None
    late_until: float | None
    reverts: int | None
    changes: Mapping[str, MapChangeAnswer]
    before: dict[str, list[str]]
    wanted: dict[str, list[str]]
    commits: dict[str, list[str]]
    adopted: list[str]
    stages_s: dict[str, float]
    notes: list[str]
    progress: ProgressAnswer | Absent = None
    undone_by: int | Absent = None


class PlanAnswer(Answer):
    """What a change would do (``dry_run``); ``planned_from`` is also the response's ``ETag``.

    ``strangers``: cross-connects to break that were not made here; ``lost``: how many are not
    replaced; ``cleared``: switches that would be empty; ``hosts_losing_link``: hosts that would
    lose their link.
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


class PathShape(Answer):
    """An optical path, or a flow that waits for one."""

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


class PathNetworkShape(Answer):
    """Hosts whose signals reach each other. ``routed``: the channel determines the destination."""

    hosts: list[str]
    channels: list[str]
    routed: bool
    tuning_s: float


class PathHostShape(Answer):
    """A host that agrees on paths with others: its bounds, and what it does now."""

    host: str
    job: str
    epoch: int
    state: Literal["quiet", "dark", "asks", "sends"]
    destination: str | None
    channel: str | None


class PathsShape(Answer):
    """The networks of paths, paths in use or requested, and ``nodes`` that agree on paths."""

    scheduler: str
    networks: list[PathNetworkShape]
    paths: list[PathShape]
    nodes: list[PathHostShape]


class CircuitSwitches(Answer):
    """Every circuit switch of the lab."""

    circuit_switches: list[CircuitSwitchShape]


class Alarms(Answer):
    """What devices reported."""

    alarms: list[AlarmShape]


class DriftShape(Answer):
    """The drift of each OCS."""

    drift: dict[str, DriftOf]


class Baselines(Answer):
    """How many circuits of each OCS have their present power as baseline."""

    circuits: dict[str, int]


class AllSavedMaps(Answer):
    """Everything that was saved."""

    maps: list[SavedMaps]


class Locks(Answer):
    """Locks of ports."""

    locks: list[Lock]


class Changes(Answer):
    """Changes of circuits, oldest first."""

    reconfigurations: list[ChangeAnswer]
