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


@dataclass(
    eq=False,
    slots=True,
)
class _Player:
    """A job that is played: its iterations so far, and the one that it is in.

    ``part`` is how much of its first iteration is left, ``wanted`` how many iterations it does.
    """

    job: PhasedJob
    demand: Demand
    begins_s: float
    wanted: float
    part: float
    compute_s: float
    bits: float
    left_bits: float = 0.0
    rate_bps: float = 0.0
    since_s: float = 0.0
    sends: bool = False
    sent_s: float = 0.0
    done: int = 0
    mark_s: float = 0.0
    end_s: float = 0.0

    @classmethod
    def of(
        cls, job: PhasedJob, demand: Demand, begins_s: float, ends: bool
    ) -> "_Player":
        """A job from ``begins_s`` on; one that is not played to where it ``ends`` goes on."""
        player = cls(
            job=job,
            demand=demand,
            begins_s=begins_s,
            wanted=float(math.ceil(job.left)) if ends else math.inf,
            part=job.left % 1 or 1.0 if job.left < math.inf else 1.0,
            compute_s=job.compute_s if job.is_known else 0.0,
            bits=job.bits if job.is_known else math.inf,
        )
        player.left_bits = player.part * player.bits
        player.mark_s = begins_s
        player.end_s = begins_s
        return player

    @property
    def has_work(self) -> bool:
        """Whether it has anything to do."""
        return bool(self.job.left and (self.compute_s or self.bits))

    def send(self, now_s: float) -> float:
        """Begin to send, unless its slot is later: how long it waits for that."""
        slot = self.job.slot
        if slot is not None and (wait_s := slot.wait_s(now_s)):
            return wait_s
        self.sends = True
        self.rate_bps = 0.0
        self.since_s = now_s
        self.sent_s -= now_s
        return 0.0

    def end_iteration(self, now_s: float, unmeasured: int) -> None:
        """End an iteration; the times of the first ``unmeasured`` do not count."""
        if self.sends:
            self.sends = False
            self.sent_s += now_s
        self.done += 1
        self.end_s = now_s
        if self.done == unmeasured:
            self.mark_s = now_s
        self.left_bits = self.bits

    def sent_at_s(self, now_s: float, rate_bps: float) -> float:
        """When it has sent all if it sends at this rate from now on."""
        self.left_bits -= self.rate_bps * (now_s - self.since_s)
        self.rate_bps = rate_bps
        self.since_s = now_s
        rest = max(0.0, self.left_bits)
        return now_s + rest / rate_bps if rate_bps else math.inf

    def pace_s(self, now_s: float, unmeasured: int, rate_bps: float) -> float:
        """Seconds of an iteration; ``rate_bps`` is its rate if all jobs send all the time."""
        measured = self.done - unmeasured
        if measured > _FEW:
            return (self.end_s - self.mark_s) / measured
        # Of a job with very long iterations, its mean rate while it sent.
        sent_bits = (self.done + self.part) * self.bits - self.left_bits
        if self.sends:
            self.sent_s += now_s
            sent_bits += self.rate_bps * (now_s - self.since_s)
        if self.job.is_known and self.sent_s > 0:
            rate_bps = sent_bits / self.sent_s
        return _steady_s(self.job, rate_bps)


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
    players = [
        _Player.of(
            job, demand, max(now_s, job.begins_s) if finite else 0.0, finite
        )
        for job, demand in zip(group, demands, strict=True)
    ]
    unmeasured = 0 if finite else max(1, int(least) // _UNMEASURED)
    now_s = _run(players, capacities, least, unmeasured)
    if finite:
        for player in players:
            job = player.job
            if job.is_known and player.done == math.ceil(job.left):
                job.ends_s = player.end_s
        return
    steady = fair_rates(demands, capacities, UNLIMITED_BPS)
    for player, rate_bps in zip(players, steady, strict=True):
        player.job.pace_s = player.pace_s(now_s, unmeasured, rate_bps)


def _run(
    players: Sequence[_Player],
    capacity_bps: Mapping[Hashable, float],
    least: float,
    unmeasured: int,
) -> float:
    """Play until all with a known computing time have done enough; the time of the last event."""
    # What each does next: it has computed, waited or sent.
    at_s = [
        player.begins_s + player.part * player.compute_s
        if player.has_work
        else math.inf
        for player in players
    ]
    behind = sum(player.has_work and player.job.is_known for player in players)
    events = math.inf if least == math.inf else _EVENTS // len(players)
    now_s = 0.0
    while behind and events > 0:
        now_s = min(at_s)
        if now_s == math.inf:
            break
        limit_s = now_s + _AT_ONCE * now_s
        changes = False
        for number, player in enumerate(players):
            if at_s[number] > limit_s:
                continue
            events -= 1
            if not player.sends and player.left_bits:
                if wait_s := player.send(now_s):
                    at_s[number] = now_s + wait_s
                else:
                    changes = True
                continue
            changes = changes or player.sends
            player.end_iteration(now_s, unmeasured)
            behind -= player.done == min(least, player.wanted)
            at_s[number] = (
                now_s + player.compute_s
                if player.done < player.wanted
                else math.inf
            )
        if changes:
            _share(players, capacity_bps, at_s, now_s)
    return now_s


def _share(
    players: Sequence[_Player],
    capacity_bps: Mapping[Hashable, float],
    at_s: list[float],
    now_s: float,
) -> None:
    """Give those that send their fair rates, and say when each has sent all."""
    senders = [number for number, each in enumerate(players) if each.sends]
    found = fair_rates(
        [players[number].demand for number in senders],
        capacity_bps,
        UNLIMITED_BPS,
    )
    for number, rate_bps in zip(senders, found, strict=True):
        player = players[number]
        if rate_bps != player.rate_bps:
            at_s[number] = player.sent_at_s(now_s, rate_bps)


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
        else "no route between its packet switches"
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
