"""Jobs in time: they compute, wait, move bits at the rates that the links give them, and repeat.

An iteration computes for ``compute_s``; ``starts_s`` after its beginning it begins to communicate,
in rounds that follow each other: a wait (latency, dark time), then a session with its bits. It
ends when both are done, and the next one begins. A flow is a job of one iteration that computes
nothing. Nothing else is in this model: that jobs which share links fall into a rhythm in
which their communication interleaves (Rajasekaran et al., *CASSINI*, NSDI 2024) comes of itself.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from patchlight.emulation.simulator.network.compiled import compiled
from patchlight.emulation.simulator.network.heap import drop, put
from patchlight.emulation.simulator.network.sharing import (
    Floats,
    Ints,
    begin,
    leave,
    release,
    reshare,
    settled,
    sharing,
)

# Events that are less than this apart, as a part of the time, are one: so equal flows end as one.
_AT_ONCE = 1e-12


@dataclass(frozen=True)
class Program:
    """What runs: jobs, the sessions of each one after the other, and the links of those.

    ``capacity_bps`` has a value for each link that ``links`` names. Job j has the sessions
    ``rounds[j]`` to ``rounds[j + 1]``; session s uses the links
    ``links[first[s]:first[s + 1]]``, each so often as ``weights`` says and never named twice.
    """

    capacity_bps: Floats
    begins_s: Floats
    iterations: Ints
    compute_s: Floats
    starts_s: Floats
    rounds: Ints
    bits: Floats
    waits_s: Floats
    first: Ints
    links: Ints
    weights: Floats


@dataclass(frozen=True)
class Outcome:
    """What came of it, by job but for ``sessions_done``.

    ``ends_s`` is when its last iteration so far ended, ``done`` how many did, and ``marks_s`` when
    the one ended up to which it was not measured. ``communicated_s`` is how long it communicated,
    waits included. ``stuck`` are jobs that have a link without capacity and never go on.
    """

    ends_s: Floats
    done: Ints
    marks_s: Floats
    communicated_s: Floats
    sessions_done: Ints
    stuck: Ints


class _Running(NamedTuple):
    """The state of all jobs; an item of the heap is a session, a computation or a wait."""

    begins_s: Floats
    iterations: Ints
    compute_s: Floats
    starts_s: Floats
    rounds: Ints
    bits: Floats
    waits_s: Floats
    job_of: Ints
    current: Ints  # The session that the job waits for or sends; the one after its last: none.
    computes: Ints
    communicates_since_s: Floats
    remaining_bits: Floats
    since_s: Floats
    ended: Ints
    keys: Floats
    heap: Ints
    places: Ints
    ends_s: Floats
    done: Ints
    marks_s: Floats
    communicated_s: Floats
    sessions_done: Ints


def run(
    program: Program, least: int = 0, unmeasured: int = 0, watched: int | None = None
) -> Outcome:
    """Play a program to its end, or until each job has done ``least`` iterations if that is not 0.

    Of several jobs it is enough that the first ``watched`` have. The first ``unmeasured``
    iterations of each job come before its mark.
    """
    jobs, sessions = len(program.begins_s), len(program.bits)
    items = sessions + 2 * jobs

    def zeros(size: int) -> Floats:
        return np.zeros(size)

    def numbers(size: int) -> Ints:
        return np.zeros(size, np.int64)

    r = _Running(
        *(program.begins_s, program.iterations, program.compute_s, program.starts_s),
        *(program.rounds, program.bits, program.waits_s),
        job_of=np.repeat(np.arange(jobs, dtype=np.int64), np.diff(program.rounds)),
        current=program.rounds[:-1].copy(),
        computes=numbers(jobs),
        communicates_since_s=zeros(jobs),
        remaining_bits=zeros(sessions),
        since_s=zeros(sessions),
        ended=numbers(sessions),
        keys=zeros(items),
        heap=numbers(items),
        places=np.full(items, -1, np.int64),
        ends_s=program.begins_s.copy(),
        done=numbers(jobs),
        marks_s=program.begins_s.copy(),
        communicated_s=zeros(jobs),
        sessions_done=numbers(sessions),
    )
    s = sharing(program.capacity_bps, program.first, program.links, program.weights)
    _play(r, s, least, unmeasured, jobs if watched is None else watched)
    wanted = program.iterations if least == 0 else np.minimum(program.iterations, least)
    stuck = np.flatnonzero(r.done < wanted)
    return Outcome(r.ends_s, r.done, r.marks_s, r.communicated_s, r.sessions_done, stuck)


@compiled
def _begin_iteration(r: Any, size: int, job: int, now_s: float) -> int:
    """A job computes, and will communicate; how many items the heap has then."""
    sessions, jobs = len(r.bits), len(r.begins_s)
    r.computes[job] = 1
    size = put(r.keys, r.heap, r.places, size, sessions + job, now_s + r.compute_s[job])
    r.current[job] = r.rounds[job]
    if r.rounds[job] < r.rounds[job + 1]:
        starts_s = now_s + r.starts_s[job]
        r.communicates_since_s[job] = starts_s
        at_s = starts_s + r.waits_s[r.rounds[job]]
        size = put(r.keys, r.heap, r.places, size, sessions + jobs + job, at_s)
    return size


@compiled
def _end_iteration(r: Any, size: int, job: int, now_s: float, unmeasured: int) -> int:
    """Count an iteration and begin the next, if there is one."""
    r.done[job] += 1
    r.ends_s[job] = now_s
    if r.done[job] == unmeasured:
        r.marks_s[job] = now_s
    if r.done[job] < r.iterations[job]:
        size = _begin_iteration(r, size, job, now_s)
    return size


@compiled
def _play(r: Any, s: Any, least: int, unmeasured: int, watched: int) -> None:
    sessions, jobs = len(r.bits), len(r.begins_s)
    size = 0
    for job in range(jobs):
        size = _begin_iteration(r, size, job, r.begins_s[job])
    behind = watched  # Who has not done enough yet.
    while size and (least == 0 or behind):
        now_s = r.keys[r.heap[0]]
        limit_s = now_s + _AT_ONCE * abs(now_s)
        changing = ended = 0
        while size and r.keys[r.heap[0]] <= limit_s:
            item = r.heap[0]
            size = drop(r.keys, r.heap, r.places, size, item)
            if item >= sessions + jobs:  # A wait is over.
                job = item - sessions - jobs
                session = r.current[job]
                r.remaining_bits[session] = r.bits[session]
                r.since_s[session] = now_s
                changing = begin(s, session, changing)
                continue
            if item >= sessions:
                job = item - sessions
                r.computes[job] = 0
            else:
                job = r.job_of[item]
                leave(s, item)
                r.sessions_done[item] += 1
                r.ended[ended] = item
                ended += 1
                r.current[job] = item + 1
                if item + 1 < r.rounds[job + 1]:
                    at_s = now_s + r.waits_s[item + 1]
                    size = put(r.keys, r.heap, r.places, size, sessions + jobs + job, at_s)
                else:
                    r.communicated_s[job] += now_s - r.communicates_since_s[job]
            if not r.computes[job] and r.current[job] == r.rounds[job + 1]:
                size = _end_iteration(r, size, job, now_s, unmeasured)
                enough = r.done[job] == least
                if job < watched and (enough or r.done[job] == r.iterations[job] < least):
                    behind -= 1
        for number in range(ended):
            changing = release(s, r.ended[number], changing)
        changing = reshare(s, changing)
        for number in range(changing):
            session = s.changing[number]
            rate_bps, before_bps = s.rates_bps[session], s.before_bps[session]
            if rate_bps == before_bps:
                continue
            r.remaining_bits[session] -= before_bps * (now_s - r.since_s[session])
            r.since_s[session] = now_s
            if rate_bps > 0:
                at_s = now_s + max(0.0, r.remaining_bits[session]) / rate_bps
                size = put(r.keys, r.heap, r.places, size, session, at_s)
            else:
                size = drop(r.keys, r.heap, r.places, size, session)
        settled(s, changing)
