"""Event-driven simulation of jobs that compute, wait and send at the rates that their links allow.

An iteration computes for ``compute_s``; ``starts_s`` after its beginning it begins to communicate,
in rounds that follow each other: a wait (latency, dark time), then a session with its bits. It
ends when both are done, and the next one begins. A flow is a job of one iteration that computes
nothing. Where something goes wrong, links lose their capacity for a time, and jobs whose nodes
fail begin again behind their last checkpoint. Nothing else is in this model: that jobs which share
links fall into a rhythm in which their communication interleaves (Rajasekaran et al., *CASSINI*,
NSDI 2024) comes of itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from patchlight.emulation.simulator.network.sharing import (
    Floats,
    Ints,
    begin,
    compiled,
    drop,
    leave,
    put,
    release,
    reshare,
    resize,
    settled,
    sharing,
)
from patchlight.emulation.simulator.network.specs import (
    Disturbances,
    undisturbed,
)
from patchlight.emulation.simulator.network.turns import (
    end_turn,
    next_turn,
    turns_of,
    wait_turn,
)

# Events that are less than this apart, as a part of the time, are one: so equal flows end as one.
_AT_ONCE = 1e-12


class Order(NamedTuple):
    """Which jobs wait for others: job j for ``needs[j]`` of them.

    ``followers[first[j]:first[j + 1]]`` are those that wait for j. Each begins ``delays_s`` after
    it holds all of its ``lanes`` (one or more), by ``ranks`` (see ``turns``).
    """

    needs: Ints
    first: Ints
    followers: Ints
    delays_s: Floats
    lanes: Sequence[Sequence[int]]
    ranks: Ints


@dataclass(frozen=True)
class Program:
    """A run's input: jobs, the sessions of each in order, and their links.

    ``capacity_bps`` has a value for each link that ``links`` names. Job j has the sessions
    ``rounds[j]`` to ``rounds[j + 1]``; session s uses the links
    ``links[first[s]:first[s + 1]]``, each so often as ``weights`` says and never named twice.
    With an ``order``, a job begins at ``begins_s`` at the earliest.
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
    disturbances: Disturbances | None = None
    order: Order | None = None


@dataclass(frozen=True)
class Outcome:
    """The result, by job but for ``sessions_done``.

    ``ends_s`` is when its last iteration so far ended, ``done`` how many did, and ``marks_s`` when
    the one ended up to which it was not measured. ``communicated_s`` is how long it communicated,
    waits included. ``stuck`` are jobs that have a link without capacity and never go on.
    ``stalled_s`` is how long links without capacity held up what a job sent, ``restarts`` how often
    it began again because a node failed, ``repeated`` how many iterations it did again for that.
    """

    ends_s: Floats
    done: Ints
    marks_s: Floats
    communicated_s: Floats
    sessions_done: Ints
    stuck: Ints
    stalled_s: Floats
    restarts: Ints
    repeated: Ints


class _Running(NamedTuple):
    """The state of all jobs; an item of the heap is a session, a computation, a wait, an event."""

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
    stalled_s: Floats
    restarts: Ints
    repeated: Ints
    broken_nodes: Ints
    broken_since_s: Floats
    needs: Ints
    first_follower: Ints
    followers: Ints
    delays_s: Floats


def run(
    program: Program,
    least: int = 0,
    unmeasured: int = 0,
    watched: int | None = None,
) -> Outcome:
    """Play a program to its end, or until each job has done ``least`` iterations if that is not 0.

    Of several jobs it is enough that the first ``watched`` have. The first ``unmeasured``
    iterations of each job come before its mark.
    """
    jobs = len(program.begins_s)
    sessions = len(program.bits)
    d = program.disturbances or undisturbed(jobs)
    order = program.order
    items = sessions + 2 * jobs + len(d.at_s)

    def zeros(size: int) -> Floats:
        return np.zeros(size)

    def numbers(size: int) -> Ints:
        return np.zeros(size, np.int64)

    r = _Running(
        program.begins_s,
        program.iterations,
        program.compute_s,
        program.starts_s,
        program.rounds,
        program.bits,
        program.waits_s,
        job_of=np.repeat(
            np.arange(jobs, dtype=np.int64), np.diff(program.rounds)
        ),
        current=program.rounds[:-1].copy(),
        computes=numbers(jobs),
        communicates_since_s=zeros(jobs),
        remaining_bits=zeros(sessions),
        since_s=zeros(sessions),
        ended=numbers(sessions + len(d.jobs)),
        keys=zeros(items),
        heap=numbers(items),
        places=np.full(items, -1, np.int64),
        ends_s=program.begins_s.copy(),
        done=numbers(jobs),
        marks_s=program.begins_s.copy(),
        communicated_s=zeros(jobs),
        sessions_done=numbers(sessions),
        stalled_s=zeros(jobs),
        restarts=numbers(jobs),
        repeated=numbers(jobs),
        broken_nodes=numbers(jobs),
        broken_since_s=zeros(jobs),
        needs=numbers(jobs) if order is None else order.needs.copy(),
        first_follower=numbers(jobs + 1) if order is None else order.first,
        followers=numbers(0) if order is None else order.followers,
        delays_s=zeros(jobs) if order is None else order.delays_s,
    )
    lanes = [()] * jobs if order is None else order.lanes
    t = turns_of(lanes, numbers(jobs) if order is None else order.ranks)
    s = sharing(
        program.capacity_bps.copy(),
        program.first,
        program.links,
        program.weights,
    )
    _play(
        r,
        s,
        t,
        d,
        least,
        unmeasured,
        jobs if watched is None else watched,
    )
    wanted = (
        program.iterations
        if least == 0
        else np.minimum(program.iterations, least)
    )
    stuck = np.flatnonzero(r.done < wanted)
    measured = r.ends_s, r.done, r.marks_s, r.communicated_s, r.sessions_done
    return Outcome(
        *measured,
        stuck,
        r.stalled_s,
        r.restarts,
        r.repeated,
    )


@compiled
def _begin_iteration(
    r: Any,
    d: Any,
    size: int,
    job: int,
    now_s: float,
) -> int:
    """A job computes, and will communicate; how many items the heap has then."""
    sessions = len(r.bits)
    jobs = len(r.begins_s)
    first = d.first_factor[job]
    factor = d.factors[first + r.done[job] % (d.first_factor[job + 1] - first)]
    r.computes[job] = 1
    at_s = now_s + factor * r.compute_s[job]
    size = put(
        r.keys,
        r.heap,
        r.places,
        size,
        sessions + job,
        at_s,
    )
    r.current[job] = r.rounds[job]
    if r.rounds[job] < r.rounds[job + 1]:
        starts_s = now_s + factor * r.starts_s[job]
        r.communicates_since_s[job] = starts_s
        at_s = starts_s + r.waits_s[r.rounds[job]]
        size = put(
            r.keys,
            r.heap,
            r.places,
            size,
            sessions + jobs + job,
            at_s,
        )
    return size


@compiled
def _begin_turns(
    r: Any,
    t: Any,
    d: Any,
    size: int,
    now_s: float,
) -> int:
    """Begin the jobs whose turn it is, once all that ends now has ended; how many items then."""
    job = next_turn(t)
    while job >= 0:
        at_s = max(now_s, r.begins_s[job]) + r.delays_s[job]
        size = _begin_iteration(
            r,
            d,
            size,
            job,
            at_s,
        )
        job = next_turn(t)
    return size


@compiled
def _end_iteration(
    r: Any,
    d: Any,
    size: int,
    job: int,
    now_s: float,
    unmeasured: int,
) -> int:
    """Count an iteration and begin the next; how many items then."""
    r.done[job] += 1
    r.ends_s[job] = now_s
    if r.done[job] == unmeasured:
        r.marks_s[job] = now_s
    if r.done[job] < r.iterations[job]:
        return _begin_iteration(
            r,
            d,
            size,
            job,
            now_s,
        )
    return size


@compiled
def _end_job(
    r: Any,
    t: Any,
    job: int,
) -> None:
    """Free a job's lanes, and let those wait for theirs that waited for it."""
    end_turn(t, job)
    for number in range(r.first_follower[job], r.first_follower[job + 1]):
        follower = r.followers[number]
        r.needs[follower] -= 1
        if r.needs[follower] == 0:
            wait_turn(t, follower)


@compiled
def _halt(
    r: Any,
    s: Any,
    d: Any,
    size: int,
    job: int,
    now_s: float,
) -> tuple[int, int]:
    """Let a job stop, and forget what it did behind its checkpoint.

    How many items the heap has then, and the session that left its links, −1 if none did.
    """
    sessions = len(r.bits)
    jobs = len(r.begins_s)
    left = -1
    session = r.current[job]
    if r.places[sessions + jobs + job] < 0 and session < r.rounds[job + 1]:
        if s.rates_bps[session] == 0.0:
            r.stalled_s[job] += now_s - r.since_s[session]
        leave(s, session)
        size = drop(
            r.keys,
            r.heap,
            r.places,
            size,
            session,
        )
        left = session
    size = drop(
        r.keys,
        r.heap,
        r.places,
        size,
        sessions + job,
    )
    size = drop(
        r.keys,
        r.heap,
        r.places,
        size,
        sessions + jobs + job,
    )
    r.broken_since_s[job] = now_s
    if now_s >= r.begins_s[job]:
        repeated = r.done[job] % d.checkpoints[job]
        r.restarts[job] += 1
        r.repeated[job] += repeated
        r.done[job] -= repeated
    return size, left


@compiled
def _fail_or_mend(
    r: Any,
    s: Any,
    d: Any,
    size: int,
    event: int,
    now_s: float,
) -> tuple[int, int, int]:
    """Carry out an event: items in the heap, sessions that change, sessions that left."""
    changing = ended = 0
    if d.links[event] >= 0:
        changing = resize(
            s,
            d.links[event],
            d.capacity_bps[event],
            changing,
        )
    for number in range(d.first_job[event], d.first_job[event + 1]):
        job = d.jobs[number]
        if r.done[job] == r.iterations[job]:
            continue
        if d.fails[event]:
            r.broken_nodes[job] += 1
            if r.broken_nodes[job] == 1:
                size, left = _halt(
                    r,
                    s,
                    d,
                    size,
                    job,
                    now_s,
                )
                if left >= 0:
                    r.ended[ended] = left
                    ended += 1
            continue
        r.broken_nodes[job] -= 1
        if r.broken_nodes[job] == 0:
            at_s = max(now_s, r.begins_s[job])
            if r.broken_since_s[job] >= r.begins_s[job]:
                at_s = now_s + d.restarts_s[job]
            size = _begin_iteration(
                r,
                d,
                size,
                job,
                at_s,
            )
    return size, changing, ended


@compiled
def _start(r: Any, t: Any, d: Any) -> int:
    """Let jobs that wait for none begin, and put all events in; how many items then."""
    sessions = len(r.bits)
    jobs = len(r.begins_s)
    size = 0
    in_order = len(t.jobs) > 0
    for job in range(jobs):
        if r.needs[job] == 0 and in_order:
            wait_turn(t, job)
        elif r.needs[job] == 0:
            size = _begin_iteration(
                r,
                d,
                size,
                job,
                r.begins_s[job],
            )
    size = _begin_turns(
        r,
        t,
        d,
        size,
        0.0,
    )
    events = sessions + 2 * jobs
    for event in range(len(d.at_s)):
        size = put(
            r.keys,
            r.heap,
            r.places,
            size,
            events + event,
            d.at_s[event],
        )
    return size


@compiled
def _play(
    r: Any,
    s: Any,
    t: Any,
    d: Any,
    least: int,
    unmeasured: int,
    watched: int,
) -> None:
    sessions = len(r.bits)
    jobs = len(r.begins_s)
    # State is passed by value, so calls cost time: those for an order are made where there is one,
    # and what happens at each event stays in this loop.
    in_order = len(t.jobs) > 0
    events = sessions + 2 * jobs
    size = _start(r, t, d)
    behind = watched  # Who has not done enough yet.
    while size and (least == 0 or behind):
        now_s = r.keys[r.heap[0]]
        limit_s = now_s + _AT_ONCE * abs(now_s)
        changing = ended = 0
        # An event comes by itself: a session that has just begun or changed is not to leave.
        alone = False
        while (
            size
            and r.keys[r.heap[0]] <= limit_s
            and not alone
            and (r.heap[0] < events or not (changing or ended))
        ):
            item = r.heap[0]
            size = drop(
                r.keys,
                r.heap,
                r.places,
                size,
                item,
            )
            if item >= events:
                size, changing, ended = _fail_or_mend(
                    r,
                    s,
                    d,
                    size,
                    item - events,
                    now_s,
                )
                alone = changing > 0 or ended > 0
                continue
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
                    size = put(
                        r.keys,
                        r.heap,
                        r.places,
                        size,
                        sessions + jobs + job,
                        at_s,
                    )
                else:
                    r.communicated_s[job] += (
                        now_s - r.communicates_since_s[job]
                    )
            if not r.computes[job] and r.current[job] == r.rounds[job + 1]:
                size = _end_iteration(
                    r,
                    d,
                    size,
                    job,
                    now_s,
                    unmeasured,
                )
                if in_order and r.done[job] == r.iterations[job]:
                    _end_job(r, t, job)
                enough = r.done[job] == least
                behind -= int(
                    job < watched
                    and (enough or r.done[job] == r.iterations[job] < least)
                )
        if in_order:
            size = _begin_turns(
                r,
                t,
                d,
                size,
                now_s,
            )
        for number in range(ended):
            changing = release(s, r.ended[number], changing)
        changing = reshare(s, changing)
        for number in range(changing):
            session = s.changing[number]
            rate_bps = s.rates_bps[session]
            before_bps = s.before_bps[session]
            if rate_bps == before_bps:
                continue
            lasted_s = now_s - r.since_s[session]
            if before_bps == 0.0:
                r.stalled_s[r.job_of[session]] += lasted_s
            r.remaining_bits[session] -= before_bps * lasted_s
            r.since_s[session] = now_s
            if rate_bps > 0:
                at_s = now_s + max(0.0, r.remaining_bits[session]) / rate_bps
                size = put(
                    r.keys,
                    r.heap,
                    r.places,
                    size,
                    session,
                    at_s,
                )
            else:
                size = drop(
                    r.keys,
                    r.heap,
                    r.places,
                    size,
                    session,
                )
        settled(s, changing)
