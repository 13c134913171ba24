"""The schedulers of paths by name, and what they do with flows in time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.paths.contract import FlowRequest, PathGrant, PathNetwork
from patchlight.testbed.paths.greedy import (
    Greedy,
    deadline_first,
    first_come,
    rounds_first,
    shortest_first,
)
from patchlight.testbed.paths.matching import Matching
from patchlight.testbed.paths.scheduling import Scheduling

SCHEDULERS: dict[str, Callable[[PathNetwork], Scheduling]] = {
    "first-come": partial(Greedy, turn=first_come),
    "shortest-first": partial(Greedy, turn=shortest_first),
    "deadline-first": partial(Greedy, turn=deadline_first),
    "matching": Matching,
    "collective": partial(Greedy, turn=rounds_first, by_collective=True),
}
# Paths that end less than this apart, as a part of the time, end together.
_AT_ONCE = 1e-12


def path_scheduler(name: str, network: PathNetwork) -> Scheduling:
    """An empty scheduler for a network; ``BadInput`` for a name that there is not."""
    if name not in SCHEDULERS:
        raise BadInput(f"there is no path scheduler {name!r}: expected {', '.join(SCHEDULERS)}")
    return SCHEDULERS[name](network)


def in_time(
    scheduler: Scheduling, arrivals: Iterable[tuple[float, FlowRequest]], control_s: float = 0.0
) -> Iterator[PathGrant]:
    """The paths of flows that come at given seconds, each released when it is sent, in order.

    A request takes ``control_s`` to get to the scheduler, as do a grant back and a release.
    ``PatchlightError`` for a flow that is refused.
    """
    requests = sorted(arrivals, key=lambda arrival: arrival[0])
    ending: list[tuple[float, int]] = []
    at = 0
    while at < len(requests) or ending:
        now_s = min(
            *([requests[at][0] + control_s] if at < len(requests) else []),
            *([ending[0][0]] if ending else []),
            float("inf"),
        )
        limit_s = now_s + _AT_ONCE * abs(now_s)
        while ending and ending[0][0] <= limit_s:
            scheduler.release(heapq.heappop(ending)[1], now_s)
        fresh = []
        while at < len(requests) and requests[at][0] + control_s <= limit_s:
            fresh.append(requests[at][1])
            at += 1
        if refused := scheduler.admit(fresh, now_s):
            raise PatchlightError(f"flow {refused[0].flow}: {refused[0].reason}")
        for grant in scheduler.grants(now_s):
            told = grant._replace(
                starts_s=grant.starts_s + control_s, ends_s=grant.ends_s + control_s
            )
            heapq.heappush(ending, (told.ends_s + control_s, told.flow))
            yield told
