"""Circuits as they are: maps, switches, light, alarms, drift, and what operators leave."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from patchlight.testbed.wire.rest import exactly
from patchlight.testbed.wire.rest.lab import CircuitSwitchStatus


@exactly
class OcsMap(TypedDict):
    """The cross-connects of an OCS; where it cannot be reached, ``map`` is ``None``, and
    ``assumed`` are those that it had last."""

    map: list[str] | None
    unreachable: NotRequired[str]
    assumed: NotRequired[list[str]]


@exactly
class IdentityShape(TypedDict):
    """What a device says that it is; empty where it does not tell."""

    vendor: str
    model: str
    serial: str
    software: str
    name: str


@exactly
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


@exactly
class CircuitSwitches(TypedDict):
    """Every circuit switch of the lab."""

    circuit_switches: list[CircuitSwitchShape]


@exactly
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


@exactly
class PortCondition(TypedDict):
    """How a port is that is not ready, and the device's words for it."""

    condition: Literal["ready", "locked", "failed", "absent"]
    words: str


@exactly
class Light(TypedDict):
    """The power of each circuit of an OCS, and its ports that are not ready (``in:3``)."""

    monitored: bool
    circuits: list[CircuitLight]
    ports: dict[str, PortCondition]
    unreachable: str


@exactly
class AlarmShape(TypedDict):
    """Something that a device reported; ``standing``: it is on the device's own list."""

    ocs: str
    at: float
    severity: Literal["critical", "major", "minor", "notice"]
    subject: str
    words: str
    standing: bool


@exactly
class Alarms(TypedDict):
    """What devices reported."""

    alarms: list[AlarmShape]


@exactly
class DriftOf(TypedDict):
    """How a device differs from its last committed map."""

    missing: list[str]
    unknown: list[str]
    reconfiguration: int | None
    committed_at: float | None
    unreachable: str


@exactly
class DriftShape(TypedDict):
    """The drift of each OCS."""

    drift: dict[str, DriftOf]


@exactly
class Baselines(TypedDict):
    """How many circuits of each OCS have the power of now for their baseline."""

    circuits: dict[str, int]


@exactly
class SavedMaps(TypedDict):
    """Maps that were saved under a name."""

    name: str
    maps: dict[str, list[str]]
    by: str
    why: str
    at: float


@exactly
class AllSavedMaps(TypedDict):
    """Everything that was saved."""

    maps: list[SavedMaps]


@exactly
class Named(TypedDict):
    """What is gone."""

    name: str


@exactly
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


@exactly
class Locks(TypedDict):
    """Locks of ports."""

    locks: list[Lock]


@exactly
class Pressed(TypedDict):
    """Who pressed the stop button."""

    by: str
    why: str
    at: float


@exactly
class StopButton(TypedDict):
    """Whether the stop button is pressed.

    ``unwritten``: why that is in memory alone for now (a full disk); empty where it is on disk.
    """

    pressed: Pressed | None
    unwritten: str
