"""Paths of light for flows."""

from typing import Literal

from typing_extensions import TypedDict

from patchlight.testbed.wire.rest import exactly


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
