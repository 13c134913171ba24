"""The states of jobs, and of gangs in the queue: which may follow each, and why.

``docs/architecture.md`` has their picture.
"""

import logging
from collections.abc import Mapping
from enum import StrEnum

from patchlight.testbed.jobs import JobState

_log = logging.getLogger(__name__)

AT_WORK = (JobState.RUNNING, JobState.PAUSED)
"""The states of a job that has begun and not ended."""

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
        "arriving": "queued",
        "placed": "taken over",
        "leaving": "preempted too late",
    },
    "arriving": {
        "in_line": "pass",
        "rejoining": "preempted too late",
        "out": "stopped",
    },
    "in_line": {
        "placed": "gets hosts",
        "arriving": "disk full",
        "leaving": "stopped, refused",
    },
    "placed": {
        "preempted": "preempted",
        "out": "hosts released",
    },
    "preempted": {"leaving": "hosts released"},
    "leaving": {
        "out": "pass",
        "rejoining": "queued again",
    },
    "rejoining": {
        "in_line": "pass",
        "leaving": "stopped",
    },
}

# From each state of a job that has not ended; special causes replace these.
_ALWAYS = {
    "queued": "another attempt",
    "failed": "attempts used up",
    "stopped": "by user",
}
_STARTS = {
    "reconfiguring": "needs circuits",
    "preparing": "gets hosts",
}

JOB_MOVES: Moves = {
    "queued": {
        **_ALWAYS,
        **_STARTS,
        "blocked": "time cannot help",
    },
    "blocked": {
        **_ALWAYS,
        **_STARTS,
        "queued": "time may help",
    },
    "reconfiguring": {
        **_ALWAYS,
        "reconfiguring": "switch silent",
        "preparing": "circuits verified",
    },
    "preparing": {
        **_ALWAYS,
        "reconfiguring": "resized",
        "running": "workers ready",
    },
    "running": {
        **_ALWAYS,
        "preparing": "resized",
        "paused": "circuits lost",
        "done": "workers done",
    },
    "paused": {
        **_ALWAYS,
        "running": "circuits back",
        "done": "workers done",
    },
    "done": {},
    "failed": {"stopped": "record lost"},
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
