"""The states of jobs, and of gangs in the queue: which may follow each, and why.

``docs/architecture.md`` has their picture.
"""

import logging
from collections.abc import Mapping
from enum import StrEnum

_log = logging.getLogger(__name__)

Moves = Mapping[str, Mapping[str, str]]
"""The states that may follow each state, and why they do."""


class GangState(StrEnum):
    """Where a gang is in the queue, whose line changes only in passes.

    It waits while it is ``arriving``, ``in_line``, or ``rejoining``: in line, at an old place.
    ``placed`` ones have hosts; ``preempted`` ones too, and are in line. ``leaving`` ones are in
    line, but do not wait.
    """

    OUT = "out"
    ARRIVING = "arriving"
    IN_LINE = "in_line"
    PLACED = "placed"
    PREEMPTED = "preempted"
    LEAVING = "leaving"
    REJOINING = "rejoining"

    @property
    def is_waiting(self) -> bool:
        """Whether the gang's jobs wait for hosts."""
        return self in ("arriving", "in_line", "rejoining")


GANG_MOVES: Moves = {
    "out": {
        "arriving": "submitted, or queued again",
        "placed": "ran under an earlier controller",
        "leaving": "ended while a pass preempted it",
    },
    "arriving": {
        "in_line": "next pass",
        "rejoining": "queued again while a pass preempted it",
        "out": "stopped",
    },
    "in_line": {
        "placed": "gets hosts",
        "arriving": "disk full, next pass tries again",
        "leaving": "stopped, or refused by a policy",
    },
    "placed": {
        "preempted": "a pass gives its hosts to others",
        "out": "hosts released",
    },
    "preempted": {"leaving": "hosts released"},
    "leaving": {
        "out": "next pass",
        "rejoining": "queued again",
    },
    "rejoining": {
        "in_line": "next pass",
        "leaving": "stopped",
    },
}

# From each state of a job that has not ended; special causes replace these.
_ALWAYS = {
    "queued": "another attempt",
    "failed": "no attempt left",
    "stopped": "stopped by its user",
}
_STARTS = {
    "reconfiguring": "gets hosts and circuits",
    "preparing": "gets hosts",
}

JOB_MOVES: Moves = {
    "queued": {
        **_ALWAYS,
        **_STARTS,
        "blocked": "needs more than time",
    },
    "blocked": {
        **_ALWAYS,
        **_STARTS,
        "queued": "time may help again",
    },
    "reconfiguring": {
        **_ALWAYS,
        "reconfiguring": "a switch does not answer",
        "preparing": "circuits verified",
    },
    "preparing": {
        **_ALWAYS,
        "reconfiguring": "resized, gets circuits",
        "running": "all workers ready",
    },
    "running": {
        **_ALWAYS,
        "preparing": "resized",
        "paused": "circuits lost",
        "done": "all workers done",
    },
    "paused": {
        **_ALWAYS,
        "running": "circuits back",
        "done": "all workers done",
    },
    "done": {},
    "failed": {"stopped": "its record was lost"},
    "stopped": {},
}


class IllegalMove(RuntimeError):
    """A job or gang cannot go from one state to the other: a bug."""


def check_move(
    who: str,
    moves: Moves,
    before: str,
    after: str,
) -> None:
    """``IllegalMove``, which is logged, unless ``moves`` has this one."""
    if after not in moves[before]:
        error = IllegalMove(f"{who} cannot go from {before} to {after}")
        _log.error("%s", error)
        raise error
