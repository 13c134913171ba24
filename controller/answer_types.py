"""Answers of the REST API whose fields type checkers know: the client's, and its description's."""

from typing import Literal, NotRequired

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from patchlight.controller.circuits.contract import Identity

exactly = with_config(ConfigDict(extra="forbid"))
"""These fields and no others."""


@exactly
class Via(TypedDict):
    """A circuit that a link goes through."""

    ocs: str
    inp: int
    out: int
    channel: NotRequired[str]


@exactly
class Link(TypedDict):
    """Two ports that light joins, by way of these circuits."""

    a: str
    b: str
    rate_bps: float | None
    via: list[Via]


@exactly
class CircuitSwitchShape(TypedDict):
    """A switch, whether it answers, what it says that it is; its ``grid`` if it is a WSS."""

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
    grid: NotRequired[str]


@exactly
class SavedMaps(TypedDict):
    """Maps that were saved under a name."""

    name: str
    maps: dict[str, list[str]]
    by: str
    why: str
    at: float


@exactly
class LogPartShape(TypedDict):
    """What a worker printed, and the byte to go on from."""

    text: str
    next: int
    ended: bool


@exactly
class RegroupPlan(TypedDict):
    """What a regroup would make."""

    jobs: list[str]
    makes: dict[str, list[str]]
    objections: list[str]


@exactly
class WhoAmI(TypedDict):
    """Who one is to the controller."""

    user: str
    role: str
    origin: str


@exactly
class AttemptRow(TypedDict):
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


@exactly
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


@exactly
class PathNetworkShape(TypedDict):
    """Hosts whose light reaches each other. ``routed``: the channel says to whom."""

    hosts: list[str]
    channels: list[str]
    routed: bool
    tuning_s: float


@exactly
class PathHostShape(TypedDict):
    """A host that agrees on paths with others: within which bounds, and what it does now."""

    host: str
    job: str
    epoch: int
    state: Literal["quiet", "dark", "asks", "sends"]
    destination: str | None
    channel: str | None


@exactly
class PathsShape(TypedDict):
    """The networks of paths, paths used or waited for, and ``nodes`` that agree on others."""

    scheduler: str
    networks: list[PathNetworkShape]
    paths: list[PathShape]
    nodes: list[PathHostShape]
