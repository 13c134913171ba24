"""Jobs that take turns: a lane runs one job at a time, and of those that wait the lowest ``rank``.

A job may need several lanes at once, as a collective needs one of each of its members. It begins
when all of them are free and it is the first at each. The lowest rank that waits is the first
everywhere, so jobs never block each other for good.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from patchlight.emulation.simulator.network.sharing import (
    Floats,
    Ints,
    compiled,
    drop,
    put,
)


class LaneTurns(NamedTuple):
    """The jobs of each lane, and who waits there.

    Lane l has the slots ``begins[l]:begins[l + 1]``, by the rank of ``jobs``; job j has the slots
    ``slots[first[j]:first[j + 1]]``. ``changed[:changes[0]]`` are lanes at which one may begin.
    """

    begins: Ints
    jobs: Ints
    lanes: Ints
    first: Ints
    slots: Ints
    keys: Floats
    heap: Ints
    places: Ints
    waiting: Ints
    busy: Ints
    changed: Ints
    changes: Ints
    listed: Ints


def turns_of(lanes: Sequence[Sequence[int]], ranks: Ints) -> LaneTurns:
    """LaneTurns of jobs that need these lanes, numbered from 0; of equal ranks, the first job's."""
    first: Ints = np.cumsum([0, *map(len, lanes)], dtype=np.int64)
    lane_of: Ints = np.array(
        [lane for each in lanes for lane in each], np.int64
    )
    jobs = np.repeat(np.arange(len(lanes), dtype=np.int64), np.diff(first))
    by_lane = np.lexsort((jobs, ranks[jobs], lane_of))
    slots: Ints = np.empty(len(lane_of), np.int64)
    slots[by_lane] = np.arange(len(lane_of))
    count = int(lane_of.max(initial=-1)) + 1
    sizes = np.bincount(lane_of, minlength=count)

    def zeros() -> Ints:
        return np.zeros(count, np.int64)

    return LaneTurns(
        begins=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        jobs=jobs[by_lane],
        lanes=lane_of[by_lane],
        first=first,
        slots=slots,
        keys=np.zeros(len(lane_of)),
        heap=np.zeros(len(lane_of), np.int64),
        places=np.full(len(lane_of), -1, np.int64),
        waiting=zeros(),
        busy=zeros(),
        changed=zeros(),
        changes=np.zeros(1, np.int64),
        listed=zeros(),
    )


@compiled
def _list(t: Any, lane: int) -> None:
    if not t.listed[lane]:
        t.listed[lane] = 1
        t.changed[t.changes[0]] = lane
        t.changes[0] += 1


@compiled
def wait_turn(t: Any, job: int) -> None:
    """A job is ready: let it wait at each of its lanes."""
    for number in range(t.first[job], t.first[job + 1]):
        slot = t.slots[number]
        lane = t.lanes[slot]
        low = t.begins[lane]
        high = t.begins[lane + 1]
        heap = t.heap[low:high]
        places = t.places[low:high]
        place = slot - low
        t.waiting[lane] = put(
            t.keys[low:high],
            heap,
            places,
            t.waiting[lane],
            place,
            float(place),
        )
        _list(t, lane)


@compiled
def end_turn(t: Any, job: int) -> None:
    """A job is done: its lanes are free."""
    for number in range(t.first[job], t.first[job + 1]):
        lane = t.lanes[t.slots[number]]
        t.busy[lane] = 0
        _list(t, lane)


@compiled
def _may_begin(t: Any, job: int) -> bool:
    for number in range(t.first[job], t.first[job + 1]):
        slot = t.slots[number]
        lane = t.lanes[slot]
        low = t.begins[lane]
        if t.busy[lane] or t.heap[low] != slot - low:
            return False
    return True


@compiled
def next_turn(t: Any) -> int:
    """A job whose turn it is: its lanes are taken now. −1 if there is none."""
    while t.changes[0]:
        t.changes[0] -= 1
        lane = t.changed[t.changes[0]]
        t.listed[lane] = 0
        low = t.begins[lane]
        if t.busy[lane] or not t.waiting[lane]:
            continue
        job = t.jobs[low + t.heap[low]]
        if not _may_begin(t, job):
            continue
        for number in range(t.first[job], t.first[job + 1]):
            slot = t.slots[number]
            lane = t.lanes[slot]
            low = t.begins[lane]
            high = t.begins[lane + 1]
            heap = t.heap[low:high]
            places = t.places[low:high]
            t.waiting[lane] = drop(
                t.keys[low:high],
                heap,
                places,
                t.waiting[lane],
                slot - low,
            )
            t.busy[lane] = 1
        return int(job)
    return -1
