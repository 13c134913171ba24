"""Jobs on the nodes of a network, made into a program of sessions; how models are split."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from patchlight.emulation.simulator.network.contract import (
    NO_LINK,
    Network,
    Round,
    Switching,
    all_to_all,
    side_by_side,
)
from patchlight.emulation.simulator.network.engine import Outcome, Program, run
from patchlight.emulation.simulator.network.sharing import Floats, Ints
from patchlight.emulation.simulator.network.specs import (
    CALM,
    Disturbances,
    NetworkChange,
    Trouble,
)
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.paths.schedulers import path_scheduler
from patchlight.testbed.paths.scheduling import FlowRequest, PathNetwork

AHEAD = "collective"
"""The scheduler that is told of all rounds of an iteration at once."""


class Turn(NamedTuple):
    """A round, or the part of it that is sent at one time, and the seconds before it begins.

    ``dark_s`` is for circuits that change, ``control_s`` for asking for them and being told.
    """

    round: Round
    dark_s: float = 0.0
    control_s: float = 0.0


def turns_of(rounds: Sequence[Round], switching: Switching) -> list[Turn]:
    """Rounds in as many turns as circuits make necessary."""
    parts = [part for each in rounds for part in _parts(each, switching)]
    if not switching.dark_s and not switching.control_s:
        return [Turn(part) for part in parts]
    edges = [
        set(zip(p.source.tolist(), p.destination.tolist(), strict=True))
        for p in parts
    ]
    found = []
    for number, part in enumerate(parts):
        # The one before is, for the first, the last of the iteration before.
        changes = not switching.once and edges[number] != edges[number - 1]
        asks = number == 0 or switching.scheduler != AHEAD
        found.append(
            Turn(
                part,
                switching.dark_s if changes else 0.0,
                2 * switching.control_s if asks else 0.0,
            )
        )
    return found


def _parts(each: Round, switching: Switching) -> list[Round]:
    """A round, or parts of it in which nobody has more flows than circuits, one after the other."""
    count = len(each.source)
    channels = switching.channels or count
    sent, received = (
        int(np.bincount(side).max())
        for side in (each.source, each.destination)
    )
    most = switching.fan_out or count
    if max(sent, received) <= most and count <= channels:
        return [each]  # Every scheduler gives a path to all that fit.
    nodes = int(max(each.source.max(), each.destination.max())) + 1
    light = PathNetwork(
        nodes,
        channels,
        transmitters=most,
        receivers=most,
    )
    scheduler = path_scheduler(switching.scheduler, light)
    ends = zip(each.source.tolist(), each.destination.tolist(), strict=True)
    flows = [
        FlowRequest(
            n,
            *pair,
            each.bits / 8,
            collective="",
        )
        for n, pair in enumerate(ends)
    ]
    scheduler.admit(flows, 0.0)
    parts = []
    while grants := scheduler.grants(0.0):
        for grant in grants:
            scheduler.release(grant.flow, 0.0)
        chosen = np.sort([grant.flow for grant in grants])
        parts.append(
            each._replace(
                source=each.source[chosen],
                destination=each.destination[chosen],
            )
        )
    return parts


ONCE = 1 << 40
"""As many iterations as anybody waits for."""


@dataclass(frozen=True)
class PlacedJob:
    """A job on its nodes, in the order of its ranks: what an iteration computes and sends.

    Communication begins ``overlap`` of the computing time before its end. ``messages_s`` is what a
    receiver adds to each message, ``reduce_bps`` how fast it adds up what it receives. It has a
    checkpoint after each ``checkpoint_every`` iterations, and needs ``restart_s`` to begin again.
    """

    nodes: Ints
    compute_s: float
    rounds: Sequence[Round]
    iterations: int = 1
    begins_s: float = 0.0
    overlap: float = 0.0
    messages_s: float = 0.0
    reduce_bps: float = float("inf")
    checkpoint_every: int = 1
    restart_s: float = 0.0

    def __post_init__(self) -> None:
        if not (
            0 <= self.overlap <= 1
            and self.compute_s >= 0
            and self.iterations >= 1
        ):
            raise BadInput(
                f"a job cannot compute for {self.compute_s} s, {self.overlap} of it while it "
                f"communicates, {self.iterations} times: expected 0 or more, 0 to 1, 1 or more"
            )
        if not (
            self.checkpoint_every >= 1 and 0 <= self.restart_s < float("inf")
        ):
            raise BadInput(
                f"a job cannot have a checkpoint after {self.checkpoint_every} iterations and "
                f"restart in {self.restart_s} s: expected 1 or more, 0 or more"
            )
        if not (self.compute_s or self.rounds):
            raise BadInput(
                "a job that neither computes nor communicates has no iteration"
            )


class Sessions(NamedTuple):
    """The sessions of one job: bits and wait of each, its part that is dark, and its links.

    ``starts_dark_s`` is what the job waits for its first circuits.
    """

    bits: list[float]
    waits_s: list[float]
    dark_s: list[float]
    links: list[Ints]
    weights: list[Floats]
    starts_dark_s: float


def sessions_of(network: Network, job: PlacedJob) -> Sessions:
    """A session for each round, in as many turns as a node's circuits make necessary."""
    switching = network.switching
    network = network.lit_for(len(job.nodes), job.rounds)
    turns = turns_of(job.rounds, switching)
    starts_dark_s = switching.dark_s + switching.setup_s if turns else 0.0
    found = Sessions(
        [],
        [],
        [],
        [],
        [],
        starts_dark_s,
    )
    for turn, dark_s, control_s in turns:
        source = job.nodes[turn.source]
        destination = job.nodes[turn.destination]
        loads = network.loads(
            source,
            destination,
            np.arange(len(source)),
            job.nodes,
        )
        there = loads.links != NO_LINK
        uses: Floats = np.bincount(
            loads.links[there], loads.bits[there]
        ).astype(np.float64)
        links = np.flatnonzero(uses)
        message_s = loads.latency_s.max() + job.messages_s
        wait_s = turn.messages * message_s + turn.reduced_bits / job.reduce_bps
        found.bits.append(turn.bits)
        found.waits_s.append(float(wait_s) + dark_s + control_s)
        found.dark_s.append(dark_s)
        found.links.append(links)
        found.weights.append(uses[links])
    return found


_OWN = 0
_MATTERS = 1
_LEFT_OUT = 2


def _shared(
    capacity_bps: Floats,
    sessions: Sequence[Sessions],
    kept: Sequence[int],
) -> Ints:
    """For each link whether one job uses it, or several; and of these whether it matters.

    Those ``kept`` always do.
    """
    users = np.zeros(len(capacity_bps), np.int64)
    for one in sessions:
        users[
            np.unique(np.concatenate([*one.links, np.zeros(0, np.int64)]))
        ] += 1
    # A number for each link that says who uses it how often, as good as never the same by chance.
    rng = np.random.default_rng(0)
    used_by = np.zeros(len(capacity_bps), np.uint64)
    for one in sessions:
        signs = rng.integers(
            1 << 62,
            size=len(one.links),
            dtype=np.uint64,
        )
        for each, count, sign in zip(
            one.links,
            one.weights,
            signs,
            strict=True,
        ):
            used_by[each] += sign * count.view(np.uint64)
    found = np.where(users > 1, _LEFT_OUT, _OWN)
    tightest_first = np.argsort(capacity_bps, kind="stable")
    tightest_first = tightest_first[users[tightest_first] > 1]
    found[
        tightest_first[
            np.unique(used_by[tightest_first], return_index=True)[1]
        ]
    ] = _MATTERS
    found[list(kept)] = _MATTERS
    return found


def program_of(
    network: Network,
    jobs: Sequence[PlacedJob],
    sessions: Sequence[Sessions],
    trouble: Trouble = CALM,
) -> Program:
    """Jobs and their sessions as arrays.

    Links that could not change a rate are left out. A job's sessions follow each other, so of the
    links that no other job uses only the tightest matters to each: it stands for all of them, as a
    link of the session's own. Of links that the same sessions use equally, the tightest matters.
    Links that fail stay as they are.
    """
    capacity_bps = network.capacity_bps
    changes = trouble.changes(network)
    failing = [change.link for change in changes if change.link >= 0]
    matters = _shared(capacity_bps, sessions, failing)
    own_bps: list[float] = []
    links: list[Ints] = []
    weights: list[Floats] = []
    for one in sessions:
        for each, count in zip(one.links, one.weights, strict=True):
            shared = matters[each] == _MATTERS
            own = matters[each] == _OWN
            links.append(each[shared])
            weights.append(count[shared])
            if own.any():
                links[-1] = np.append(
                    links[-1], len(capacity_bps) + len(own_bps)
                )
                weights[-1] = np.append(weights[-1], 1.0)
                own_bps.append(
                    float((capacity_bps[each[own]] / count[own]).min())
                )
    dark_s = [one.starts_dark_s for one in sessions]
    return Program(
        capacity_bps=np.append(capacity_bps, own_bps),
        begins_s=np.array([job.begins_s for job in jobs]) + np.array(dark_s),
        iterations=np.array([job.iterations for job in jobs], np.int64),
        compute_s=np.array([float(job.compute_s) for job in jobs]),
        starts_s=np.array([job.compute_s * (1 - job.overlap) for job in jobs]),
        rounds=np.cumsum(
            [0, *(len(one.bits) for one in sessions)], dtype=np.int64
        ),
        bits=np.array(
            [bits for one in sessions for bits in one.bits], np.float64
        ),
        waits_s=np.array(
            [wait for one in sessions for wait in one.waits_s], np.float64
        ),
        first=np.cumsum([0, *(len(each) for each in links)], dtype=np.int64),
        links=np.concatenate([*links, np.zeros(0, np.int64)]).astype(np.int64),
        weights=np.concatenate([*weights, np.zeros(0)]),
        disturbances=_disturbances(
            network,
            jobs,
            dark_s,
            trouble,
            changes,
        )
        if trouble.any
        else None,
    )


def _disturbances(
    network: Network,
    jobs: Sequence[PlacedJob],
    dark_s: Sequence[float],
    trouble: Trouble,
    changes: Sequence[NetworkChange],
) -> Disturbances:
    """Failures and slow nodes for these jobs. A job that restarts waits for circuits, too."""
    factors = [trouble.factors(job.nodes) for job in jobs]
    on_node: dict[int, list[int]] = {}
    for number, job in enumerate(jobs):
        for node in job.nodes.tolist():
            on_node.setdefault(node, []).append(number)
    halted = [on_node.get(change.node, []) for change in changes]
    restarts_s = [
        job.restart_s + dark for job, dark in zip(jobs, dark_s, strict=True)
    ]
    works_bps = [
        0.0 if c.fails else float(network.capacity_bps[c.link])
        for c in changes
    ]
    return Disturbances(
        factors=np.concatenate([*factors, np.zeros(0)]),
        first_factor=np.cumsum([0, *map(len, factors)], dtype=np.int64),
        checkpoints=np.array([job.checkpoint_every for job in jobs], np.int64),
        restarts_s=np.array(restarts_s, np.float64),
        at_s=np.array([change.at_s for change in changes], np.float64),
        links=np.array([change.link for change in changes], np.int64),
        capacity_bps=np.array(works_bps, np.float64),
        fails=np.array([change.fails for change in changes], np.int64),
        first_job=np.cumsum([0, *map(len, halted)], dtype=np.int64),
        jobs=np.array([job for each in halted for job in each], np.int64),
    )


def run_jobs(
    network: Network,
    jobs: Sequence[PlacedJob],
    trouble: Trouble = CALM,
) -> Outcome:
    """Run jobs that share a network to their ends, whatever goes wrong on the way.

    ``BadInput`` for trouble with unknown nodes or links; ``PatchlightError`` if a job
    cannot go on.
    """
    sessions = [sessions_of(network, job) for job in jobs]
    outcome = run(
        program_of(
            network,
            jobs,
            sessions,
            trouble.checked(network),
        )
    )
    if len(outcome.stuck):
        raise PatchlightError(
            f"job {outcome.stuck[0]} never ends: one of its links has no capacity",
            hint=f"check the links of {network.spec}",
        )
    return outcome


class Flows(NamedTuple):
    """Flows as arrays: nodes, bytes, and when each begins in seconds."""

    source: Ints
    destination: Ints
    nbytes: Floats
    starts_s: Floats


def completions(network: Network, flows: Flows) -> Floats:
    """When each flow is complete, in seconds: its latency, and its bytes at max-min fair rates.

    ``BadInput`` for flows of no bytes, to their own node, of unknown nodes, or whose arrays
    differ in length; ``PatchlightError`` if a flow never ends.
    """
    count = len(flows.source)
    if any(len(each) != count for each in flows):
        raise BadInput(
            f"flows are arrays of one length: these have {[len(e) for e in flows]}"
        )
    if count and not (
        np.isfinite(flows.nbytes).all() and flows.nbytes.min() > 0
    ):
        raise BadInput(
            "flows have more than 0 bytes each, and not infinitely many"
        )
    if count and not np.isfinite(flows.starts_s).all():
        raise BadInput("a flow has no start time")
    number = np.arange(count)
    group = np.arange(network.nodes)
    loads = network.loads(
        flows.source,
        flows.destination,
        number,
        group,
    )
    there = loads.links != NO_LINK
    program = Program(
        capacity_bps=network.capacity_bps,
        begins_s=flows.starts_s.astype(np.float64),
        iterations=np.ones(count, np.int64),
        compute_s=np.zeros(count),
        starts_s=np.zeros(count),
        rounds=np.arange(count + 1),
        bits=8.0 * flows.nbytes,
        waits_s=loads.latency_s + network.switching.dark_s,
        first=np.concatenate([[0], np.cumsum(there.sum(axis=1))]).astype(
            np.int64
        ),
        links=loads.links[there],
        weights=loads.bits[there],
    )
    outcome = run(program)
    if len(outcome.stuck):
        raise PatchlightError(
            f"flow {outcome.stuck[0]} never ends: a link has no capacity"
        )
    return outcome.ends_s


def expert_exchange(
    members: int,
    experts: int,
    nbytes: float,
    at_a_time: int = 1,
) -> list[Round]:
    """All-to-alls of ``nbytes`` of each member, in groups of as many members as there are experts.

    ``at_a_time`` as in ``all_to_all``.

    ``BadInput`` if the members cannot be split into such groups.
    """
    if experts < 1 or members % experts:
        raise BadInput(
            f"{members} nodes cannot be split into groups of {experts} experts: expected a "
            "divisor of their number"
        )
    groups: Ints = np.arange(members).reshape(-1, experts)
    return side_by_side(all_to_all(experts, nbytes, at_a_time), groups)
