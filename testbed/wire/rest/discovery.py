"""The search for the wiring: what it would do, how far it is, what it found."""

from typing import Literal

from typing_extensions import TypedDict

from patchlight.testbed.wire.rest import exactly


@exactly
class FoundPort(TypedDict):
    """What ``sends`` into a port of an OCS, what ``hears`` what goes out there, and what the lab
    file ``said``."""

    ocs: str
    port: int
    sends: str | None
    hears: str | None
    said: str | None
    verdict: str
    words: str


@exactly
class Wiring(TypedDict):
    """What was found; ``silent``: ends that were not heard, and why."""

    ports: list[FoundPort]
    differences: list[str]
    doubts: list[str]
    silent: dict[str, str]
    fibres: list[tuple[str, str]]


@exactly
class Search(TypedDict):
    """How far the search is, or what the last one came to.

    ``rounds_left`` is the most that can be left; ``open``: circuits are away from their places.
    ``step`` is a number that grows with each news of it.
    """

    step: int
    state: Literal["idle", "looking", "restoring", "done", "stopped", "failed"]
    by: str
    rounds_done: int
    rounds_left: int
    began_at: float
    took_s: float
    left_s: float
    message: str
    hint: str | None
    wiring: Wiring | None
    open: bool


@exactly
class SearchPlan(TypedDict):
    """What a search would look at, what goes dark, how long it takes, what is against it."""

    ports: dict[str, list[int]]
    circuits: dict[str, list[str]]
    rounds: int
    takes_s: float
    objections: list[str]
