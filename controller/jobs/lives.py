"""The states of jobs, and of gangs in the queue: which may follow each, and why.

``docs/architecture.md`` has their picture.
"""

import logging
from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from patchlight.testbed.jobs import JobState

_log = logging.getLogger(__name__)


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
        return self in (
            GangState.ARRIVING,
            GangState.IN_LINE,
            GangState.REJOINING,
        )


S = TypeVar("S", GangState, JobState)

GANG_MOVES: Mapping[GangState, Mapping[GangState, str]] = {
    GangState.OUT: {
        GangState.ARRIVING: "submitted, or queued again",
        GangState.PLACED: "ran under an earlier controller",
        GangState.LEAVING: "ended while a pass preempted it",
    },
    GangState.ARRIVING: {
        GangState.IN_LINE: "next pass",
        GangState.REJOINING: "queued again while a pass preempted it",
        GangState.OUT: "stopped",
    },
    GangState.IN_LINE: {
        GangState.PLACED: "gets hosts",
        GangState.ARRIVING: "full disk, tried again",
        GangState.LEAVING: "stopped, or refused by a policy",
    },
    GangState.PLACED: {
        GangState.OUT: "hosts released",
        GangState.PREEMPTED: "others get its hosts",
    },
    GangState.PREEMPTED: {GangState.LEAVING: "hosts released"},
    GangState.LEAVING: {
        GangState.OUT: "next pass",
        GangState.REJOINING: "queued again",
    },
    GangState.REJOINING: {
        GangState.IN_LINE: "next pass",
        GangState.LEAVING: "stopped",
    },
}

# From each state of a job that has not ended.
_ALWAYS = {
    JobState.QUEUED: "another attempt",
    JobState.FAILED: "no attempt left",
    JobState.STOPPED: "by its user",
}
_STARTS = {
    JobState.RECONFIGURING: "gets hosts and circuits",
    JobState.PREPARING: "gets hosts",
}

JOB_MOVES: Mapping[JobState, Mapping[JobState, str]] = {
    JobState.QUEUED: {
        **_ALWAYS,
        **_STARTS,
        JobState.BLOCKED: "needs more than time",
    },
    JobState.BLOCKED: {**_ALWAYS, **_STARTS},
    JobState.RECONFIGURING: {
        **_ALWAYS,
        JobState.RECONFIGURING: "a switch does not answer",
        JobState.PREPARING: "circuits verified",
    },
    JobState.PREPARING: {
        **_ALWAYS,
        JobState.RECONFIGURING: "resized, gets circuits",
        JobState.RUNNING: "all workers ready",
    },
    JobState.RUNNING: {
        **_ALWAYS,
        JobState.PREPARING: "resized",
        JobState.PAUSED: "circuits lost",
        JobState.DONE: "all workers done",
    },
    JobState.PAUSED: {
        **_ALWAYS,
        JobState.RUNNING: "circuits back",
        JobState.DONE: "all workers done",
    },
    JobState.DONE: {},
    JobState.FAILED: {JobState.STOPPED: "its record was lost"},
    JobState.STOPPED: {},
}


class IllegalMove(RuntimeError):
    """A job or gang cannot go from one state to the other: a bug."""


def check_move(
    who: str,
    moves: Mapping[S, Mapping[S, str]],
    before: S,
    after: S,
) -> None:
    """``IllegalMove``, which is logged, unless ``moves`` has this one."""
    if after not in moves[before]:
        error = IllegalMove(f"{who} cannot go from {before} to {after}")
        _log.error("%s", error)
        raise error
