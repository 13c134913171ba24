"""Predicts when jobs end that compute and communicate in turns over links that they share.

Each job computes, then sends its ring's bits, and repeats. While several send at once, links are
shared max-min fair (``network.fair_rates``); the rates change whenever one begins or ends to send.
The network simulator (``patchlight.emulation.simulator.network``) is the same model for any
collective. Jobs with few iterations left are played to their ends; of longer ones a few iterations
are, until one of them ends at that pace.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from patchlight.controller.prediction.network import (
    MACHINE,
    UNLIMITED_BPS,
    Demand,
    LabNetwork,
    Load,
    Training,
    fair_rates,
    ring_bits,
)
from patchlight.testbed.units import format_rate

# A group of jobs with no more iterations left is played to its end.
_EXACT = 400
# Otherwise each job's pace is that of so many iterations, after the first few: jobs fall into a
# rhythm. Large groups do with fewer.
_PLAYED = 24
_LEAST = 6
_UNMEASURED = 3
# A group is played for so many events at most, divided by its jobs.
_EVENTS = 6_000
# Events that are less than this apart, as a part of the time, are one.
_AT_ONCE = 1e-12
# Fewer iterations are too few for a mean of their times.
_FEW = 3


class PredictedJob(NamedTuple):
    """A running or planned job: its ring in order, by name, and the rest of its training, which
    begins in ``begins_s``."""

    name: str
    hosts: tuple[str, ...]
    training: Training
    begins_s: float = 0.0


class Prediction(NamedTuple):
    """The times of a job, ``None`` if unknown: an iteration's while all jobs run as now, and the
    end considering the ends of other jobs. ``bottleneck`` names the limiting link."""

    job: str
    iteration_s: float | None
    completion_s: float | None
    bottleneck: str


class RingWork(NamedTuple):
    """The work left on these GPUs, by number, in ring order, after ``dark_s``."""

    ring: Sequence[int]
    load: Load
    dark_s: float = 0.0


class Slot(NamedTuple):
    """A job begins to send ``offset_s`` after each multiple of ``period_s``; if it is later than
    that by more than ``late_s``, it waits for the next one."""

    period_s: float
    offset_s: float
    late_s: float

    def wait_s(self, now_s: float) -> float:
        """How long a job that is ready now waits."""
        late_s = (now_s - self.offset_s) % self.period_s
        rest_s = self.period_s - late_s
        return (
            rest_s
            if late_s > self.late_s and rest_s > _AT_ONCE * now_s
            else 0.0
        )


@dataclass(
    eq=False,
    slots=True,
)
class PhasedJob:
    """A job on its links: what an iteration computes and sends, and how many are left.

    A job whose computing time is unknown (``nan``) sends all the time; one with a ``slot`` only
    begins to send there. ``play`` sets ``pace_s``, the seconds of an iteration, and ``ends_s``.
    """

    demand: Demand
    compute_s: float
    bits: float
    left: float
    begins_s: float = 0.0
    pace_s: float = math.inf
    ends_s: float = math.inf
    slot: Slot | None = None

    @property
    def is_known(self) -> bool:
        """Whether its computing time is known."""
        return not math.isnan(self.compute_s)

    def end_s(self, now_s: float) -> float:
        """Its end at its pace."""
        return max(now_s, self.begins_s) + (
            self.left * self.pace_s if self.left else 0.0
        )


Pacing = Callable[[Sequence[PhasedJob], Mapping[Hashable, float]], None]
"""Finds the paces of one of the ``groups``, like ``set_paces_of``; it may give jobs slots."""


def set_paces(
    jobs: Sequence[PhasedJob],
    capacity_bps: Mapping[Hashable, float],
    pacing: Pacing | None = None,
) -> None:
    """Find the paces of jobs that all run now."""
    for group, capacities in groups(jobs, capacity_bps):
        (pacing or set_paces_of)(group, capacities)


def set_ends(
    jobs: Sequence[PhasedJob],
    capacity_bps: Mapping[Hashable, float],
    pacing: Pacing | None = None,
) -> None:
    """Find the ends of jobs that all run now; infinity for one that never ends."""
    stages: list[tuple[float, Sequence[PhasedJob]]] = [(0.0, jobs)]
    while stages:
        now_s, running = stages.pop()
        for group, capacities in groups(running, capacity_bps):
            is_exact = (
                len(group) > 1 and sum(job.left for job in group) <= _EXACT
            )
            if pacing or not is_exact:
                (pacing or set_paces_of)(group, capacities)
            if is_exact:
                _play(
                    group,
                    capacities,
                    now_s,
                    math.inf,
                )
                continue
            until_s = min(job.end_s(now_s) for job in group)
            if not until_s < math.inf:
                continue
            others = []
            for job in group:
                if job.end_s(now_s) <= until_s:
                    job.left = 0.0
                    job.ends_s = until_s
                    continue
                if job.pace_s > 0:
                    at_work_s = max(0.0, until_s - max(now_s, job.begins_s))
                    job.left = max(0.0, job.left - at_work_s / job.pace_s)
                others.append(job)
            if others:
                stages.append((until_s, others))


def groups(
    jobs: Sequence[PhasedJob], capacity_bps: Mapping[Hashable, float]
) -> Iterator[tuple[list[PhasedJob], dict[Hashable, float]]]:
    """Jobs that share links, directly or through others, with the capacities of those."""
    on_link: dict[Hashable, list[int]] = {}
    for number, job in enumerate(jobs):
        for link in job.demand if job.bits else ():
            on_link.setdefault(link, []).append(number)
    leader = list(range(len(jobs)))

    def lead(number: int) -> int:
        while leader[number] != number:
            leader[number] = number = leader[leader[number]]
        return number

    for users in on_link.values():
        for number in users[1:]:
            leader[lead(number)] = lead(users[0])
    groups: dict[int, list[PhasedJob]] = {}
    for number, job in enumerate(jobs):
        groups.setdefault(lead(number), []).append(job)
    for group in groups.values():
        links = {link for job in group if job.bits for link in job.demand}
        yield group, {link: capacity_bps[link] for link in links}


def set_paces_of(
    group: Sequence[PhasedJob], capacity_bps: Mapping[Hashable, float]
) -> None:
    """Find the paces of one of the ``groups``."""
    if len(group) == 1:
        [job] = group
        rate_bps = fair_rates(
            [job.demand if job.bits else {}], capacity_bps, UNLIMITED_BPS
        )[0]
        job.pace_s = _steady_s(job, rate_bps)
    else:
        _play(
            group,
            capacity_bps,
            0.0,
            max(_LEAST, min(_PLAYED, _EXACT // len(group))),
        )


def _tightest(
    group: Sequence[PhasedJob], capacity_bps: Mapping[Hashable, float]
) -> tuple[list[dict[Hashable, int]], dict[Hashable, float]]:
    """The links that can limit these jobs: of those that the same jobs use equally, one."""
    users: dict[Hashable, list[tuple[int, int]]] = {}
    for number, job in enumerate(group):
        for link, edges in job.demand.items() if job.bits else ():
            users.setdefault(link, []).append((number, edges))
    capacities: dict[Hashable, float] = {}
    for link, shares in users.items():
        edges = 1
        if (
            len(shares) == 1
        ):  # The job's own links are one, whatever its edges on each.
            [(number, edges)] = shares
            shares = [(number, 1)]
        key: Hashable = tuple(shares)
        capacities[key] = min(
            capacities.get(key, math.inf), capacity_bps[link] / edges
        )
    demands: list[dict[Hashable, int]] = [{} for _ in group]
    for key in capacities:
        assert isinstance(key, tuple)
        for number, edges in key:
            demands[number][key] = edges
    return demands, capacities


def _play(
    group: Sequence[PhasedJob],
    capacity_bps: Mapping[Hashable, float],
    now_s: float,
    least: float,
) -> None:
    """Play jobs from a moment on: to their ends, or until each has done ``least`` iterations.

    Of each job's first iteration only a part is left if ``left`` is not a whole number.
    """
    demands, capacities = _tightest(group, capacity_bps)
    finite = least == math.inf
    count = len(group)
    compute_s = [job.compute_s if job.is_known else 0.0 for job in group]
    bits = [job.bits if job.is_known else math.inf for job in group]
    wanted = [
        float(math.ceil(job.left)) if finite else math.inf for job in group
    ]
    parts = [
        job.left % 1 or 1.0 if job.left < math.inf else 1.0 for job in group
    ]
    begins_s = [max(now_s, job.begins_s) if finite else 0.0 for job in group]
    at_s = [
        b + p * c
        for b, p, c in zip(
            begins_s,
            parts,
            compute_s,
            strict=True,
        )
    ]
    sends = [False] * count
    left = [p * b for p, b in zip(parts, bits, strict=True)]
    rates_bps = [0.0] * count
    since_s = [0.0] * count
    done = [0] * count
    marks_s = begins_s.copy()
    ends_s = begins_s.copy()
    sent_s = [0.0] * count
    unmeasured = 0 if finite else max(1, int(least) // _UNMEASURED)
    behind = 0
    for number, job in enumerate(group):
        if not job.left or not (compute_s[number] or bits[number]):
            at_s[number] = math.inf  # It has nothing to do.
        elif job.is_known:
            behind += 1
    events = math.inf if finite else _EVENTS // count
    while behind and events > 0:
        now_s = min(at_s)
        if now_s == math.inf:
            break
        limit_s = now_s + _AT_ONCE * now_s
        changes = False
        for number in range(count):
            if at_s[number] > limit_s:
                continue
            events -= 1
            if not sends[number] and left[number]:
                slot = group[number].slot
                if slot is not None and (wait_s := slot.wait_s(now_s)):
                    at_s[number] = now_s + wait_s
                    continue
                sends[number] = changes = True
                rates_bps[number] = 0.0
                since_s[number] = now_s
                sent_s[number] = sent_s[number] - now_s
                continue
            if sends[number]:
                sends[number] = False
                changes = True
                sent_s[number] += now_s
            done[number] += 1
            ends_s[number] = now_s
            if done[number] == unmeasured:
                marks_s[number] = now_s
            behind -= done[number] == min(least, wanted[number])
            at_s[number] = (
                now_s + compute_s[number]
                if done[number] < wanted[number]
                else math.inf
            )
            left[number] = bits[number]
        if not changes:
            continue
        senders = [number for number in range(count) if sends[number]]
        found = fair_rates(
            [demands[n] for n in senders], capacities, UNLIMITED_BPS
        )
        for number, rate_bps in zip(senders, found, strict=True):
            if rate_bps != rates_bps[number]:
                left[number] -= rates_bps[number] * (now_s - since_s[number])
                rates_bps[number] = rate_bps
                since_s[number] = now_s
                rest = max(0.0, left[number])
                at_s[number] = (
                    now_s + rest / rate_bps if rate_bps else math.inf
                )
    if finite:
        for job, end_s, number in zip(
            group,
            ends_s,
            done,
            strict=True,
        ):
            if job.is_known and number == math.ceil(job.left):
                job.ends_s = end_s
        return
    steady = fair_rates(demands, capacities, UNLIMITED_BPS)
    for number, job in enumerate(group):
        measured = done[number] - unmeasured
        rate_bps = steady[number]
        if measured > _FEW:
            job.pace_s = (ends_s[number] - marks_s[number]) / measured
            continue
        # Of a job with very long iterations, its mean rate while it sent.
        sent_bits = (done[number] + parts[number]) * bits[number] - left[
            number
        ]
        if sends[number]:
            sent_s[number] += now_s
            sent_bits += rates_bps[number] * (now_s - since_s[number])
        if job.is_known and sent_s[number] > 0:
            rate_bps = sent_bits / sent_s[number]
        job.pace_s = _steady_s(job, rate_bps)


def _steady_s(job: PhasedJob, rate_bps: float) -> float:
    unit_s = Load(job.left, job.compute_s, job.bits).unit_s(rate_bps)
    return unit_s if job.is_known else math.inf


def predict(
    network: LabNetwork,
    jobs: Sequence[PredictedJob],
    pacing: Pacing | None = None,
) -> list[Prediction]:
    """The times of these jobs, all of which run now.

    Rates and bytes are the lab's: its scale divides both. ``BadInput`` for a host that the lab does
    not have, or that has no GPU.
    """
    rings = [[network.number(name) for name in job.hosts] for job in jobs]
    runs = [
        run_of(network, job, ring)
        for job, ring in zip(jobs, rings, strict=True)
    ]
    going = [run for run in runs if run is not None]
    set_paces(going, network.capacity_bps, pacing)
    iterations_s = [
        None if run is None or not run.is_known else run.pace_s for run in runs
    ]
    set_ends(going, network.capacity_bps, pacing)
    return [
        Prediction(
            job.name,
            iteration_s,
            None if run is None or run.ends_s == math.inf else run.ends_s,
            _no_route(network, ring)
            if run is None
            else _bottleneck(network, run, going),
        )
        for job, ring, run, iteration_s in zip(
            jobs,
            rings,
            runs,
            iterations_s,
            strict=True,
        )
    ]


def completions_s(
    network: LabNetwork, works: Sequence[RingWork]
) -> list[float]:
    """The end of each of these, all running now; infinity if it never ends."""
    jobs = [_phased(network, work) for work in works]
    set_ends([job for job in jobs if job is not None], network.capacity_bps)
    return [math.inf if job is None else job.ends_s for job in jobs]


def units_s(network: LabNetwork, works: Sequence[RingWork]) -> list[float]:
    """Seconds of a unit of each while all run; infinity without a route."""
    jobs = [_phased(network, work) for work in works]
    set_paces([job for job in jobs if job is not None], network.capacity_bps)
    return [math.inf if job is None else job.pace_s for job in jobs]


def _phased(network: LabNetwork, work: RingWork) -> PhasedJob | None:
    demand = network.demand(work.ring)
    load = work.load
    if demand is None:
        return None
    bits = load.ring_bits * network.wire
    return PhasedJob(
        demand,
        load.compute_s,
        bits,
        float(load.units),
        work.dark_s,
    )


def run_of(
    network: LabNetwork,
    job: PredictedJob,
    ring: Sequence[int],
) -> PhasedJob | None:
    """A job on its links; ``None`` without a route."""
    training = job.training
    workers = len(ring)
    models = {
        gpu.model
        for number in ring
        if (gpu := network.hosts[number].gpu) is not None
    }
    known = models <= training.compute_s.keys()
    compute_s = training.slowest_s(workers, models) if known else math.nan
    bits = ring_bits(workers, training.gradient_bytes) if workers > 1 else 0.0
    load = Load(training.iterations, compute_s, bits)
    run = _phased(network, RingWork(ring, load, job.begins_s))
    if run is not None and run.demand and MACHINE in network.capacity_bps:
        # Each edge passes one packet switch less than it has links.
        run.demand = {
            **run.demand,
            MACHINE: sum(run.demand.values()) - workers,
        }
    return run


def _no_route(network: LabNetwork, ring: Sequence[int]) -> str:
    loose = [
        network.hosts[n].name for n in ring if network.switches[n] is None
    ]
    why = (
        f"{', '.join(loose)} without a link"
        if loose
        else "none between its packet switches"
    )
    return f"no route: {why}"


def _bottleneck(
    network: LabNetwork,
    run: PhasedJob,
    going: Sequence[PhasedJob],
) -> str:
    """The link that is fullest while all of these send."""
    if not run.bits or not run.demand:
        return "it uses no link"
    senders = [each for each in going if each.bits]
    rates = fair_rates([each.demand for each in senders], network.capacity_bps)

    def part_used(link: Hashable) -> float:
        shares = zip(senders, rates, strict=True)
        return (
            sum(s.demand.get(link, 0) * rate for s, rate in shares)
            / network.capacity_bps[link]
        )

    link = max(run.demand, key=part_used)
    if link == MACHINE:
        return f"bound by this machine: {format_rate(network.lab.machine_rate_bps)}"
    if network.capacity_bps[link] >= UNLIMITED_BPS:
        return "no link has a limit"
    edges = [each.demand[link] for each in senders if link in each.demand]
    rate = format_rate(round(network.capacity_bps[link]))
    users = "it alone"
    if sum(edges) > 1:
        jobs = "this job" if len(edges) == 1 else f"{len(edges)} jobs"
        users = f"{sum(edges)} edges of {jobs}"
    return f"limited by {network.words(link)}, {rate}, used by {users}"
