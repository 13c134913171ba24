"""A change of circuits, planned, under way and over."""

from collections.abc import Mapping
from typing import Literal, NotRequired

from typing_extensions import TypedDict

from patchlight.testbed.wire.rest import exactly


@exactly
class MapChange(TypedDict):
    """The cross-connects that go, and those that come, of one switch."""

    breaks: list[str]
    makes: list[str]


@exactly
class Progress(TypedDict):
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


@exactly
class Change(TypedDict):
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
    changes: Mapping[str, MapChange]
    before: dict[str, list[str]]
    wanted: dict[str, list[str]]
    commits: dict[str, list[str]]
    adopted: list[str]
    stages_s: dict[str, float]
    notes: list[str]
    progress: NotRequired[Progress]
    undone_by: NotRequired[int]


@exactly
class Changes(TypedDict):
    """Changes of circuits, the oldest first."""

    reconfigurations: list[Change]


@exactly
class Plan(TypedDict):
    """What a change would do (``dry_run``); ``planned_from`` is the answer's ``ETag``, too.

    ``strangers``: cross-connects that would break and that nobody made here; ``lost``: how many
    go without another in their place; ``cleared``: switches that would have none left.
    """

    state: Literal["planned"]
    changes: Mapping[str, MapChange]
    links_down: list[str]
    links_up: list[str]
    jobs: list[str]
    strangers: dict[str, list[str]]
    lost: dict[str, int]
    cleared: list[str]
    objections: list[str]
    planned_from: str
