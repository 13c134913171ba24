"""A flow-level network below the job queue: its nodes are GPUs, and its jobs compute and
communicate in phases."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from patchlight.controller.policies.contract import ClusterShape, GpuSite
from patchlight.controller.prediction.network import Demand
from patchlight.emulation.simulator.cluster.cluster import Cluster, Rewiring
from patchlight.emulation.simulator.cluster.simulated_job import SimulatedJob
from patchlight.emulation.simulator.network.contract import (
    Network,
    Round,
    collective,
    ring,
    ring_part,
)
from patchlight.emulation.simulator.network.engine import run
from patchlight.emulation.simulator.network.jobs import (
    ONCE,
    PlacedJob,
    Sessions,
    program_of,
    sessions_of,
)
from patchlight.emulation.simulator.network.sharing import Floats, Ints
from patchlight.emulation.simulator.network.specs import CALM, Trouble
from patchlight.emulation.simulator.outages import Outage
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.portmap import PortMap

# Jobs that share links are played for so many iterations of the slowest each time that one comes
# or goes; until then they have the pace of those after the first few, in which they find a rhythm.
_PLAYED = 24
_UNMEASURED = 8
# Where computing times are drawn, more are needed for a mean.
_DRAWN = 136


@dataclass
class Usage:
    """The bits over each link so far, and for how long jobs' circuits were dark (s)."""

    carried_bits: Floats
    dark_s: float = 0.0


@dataclass(frozen=True)
class NetworkCluster:
    """The nodes of a network, one GPU each. ``usage``, where there is one, is added to.

    ``trouble`` is what goes wrong. A job whose node fails waits in the queue again; one whose
    light or cable fails stands still on its nodes.
    """

    network: Network
    usage: Usage | None = None
    trouble: Trouble = CALM
    lab: None = field(
        default=None,
        init=False,
    )

    @cached_property
    def shape(self) -> ClusterShape:
        """Each node is a server with one GPU; racks are the network's."""
        racks = self.network.racks.tolist()
        return ClusterShape(
            gpus=tuple(
                GpuSite(f"node{n}.gpu", n, rack)
                for n, rack in enumerate(racks)
            ),
            servers=tuple(f"node{n}" for n in range(len(racks))),
            racks=tuple(f"rack{rack}" for rack in range(max(racks) + 1)),
        )

    @property
    def nic_bps(self) -> float:
        """The highest rate at which a node sends."""
        return self.network.nic_bps

    @property
    def edge_bps(self) -> float:
        """Links are all that limits."""
        return float("inf")

    @cached_property
    def capacity_bps(self) -> Mapping[Hashable, float]:
        """The rate of each link, by its number."""
        return dict(enumerate(self.network.capacity_bps.tolist()))

    @property
    def circuits(self) -> Mapping[str, PortMap]:
        """None that a policy could rewire: the network lights its own."""
        return {}

    def demand(self, ring: Sequence[int]) -> Demand:
        """How many edges of the ring are on each link; ``BadInput`` where there is no way."""
        nodes = np.array(ring, np.int64)
        sessions = sessions_of(
            self.network, PlacedJob(nodes, 0.0, _ring_of(len(ring), 1.0))
        )
        counted = zip(
            sessions.links[0].tolist(),
            sessions.weights[0].tolist(),
            strict=True,
        )
        return {link: int(edges) for link, edges in counted}

    def ports_of(self, gpus: int) -> Mapping[str, frozenset[int]]:
        """None."""
        return {}

    def rewire(self, maps: Mapping[str, PortMap]) -> Rewiring:
        """``BadInput``: policies cannot rewire it."""
        raise BadInput(
            f"cannot make circuits of {', '.join(maps)}: {self.network.spec} makes its own",
            hint="choose topology 'keep', or a --lab with an OCS",
        )

    def renewed(self) -> NetworkCluster:
        """Itself: nothing in it changes."""
        return self

    def pacing(self) -> PhasedJobs:
        """Jobs that compute and communicate in turns."""
        return PhasedJobs(self.network, self.usage, self.trouble)


def failures_of(cluster: Cluster) -> list[Outage]:
    """A cluster's failures at known times, in order."""
    if not isinstance(cluster, NetworkCluster):
        return []
    return [
        Outage(
            at_s,
            0 if node < 0 else 1 << node,
            fails,
            link,
        )
        for at_s, node, link, fails in cluster.trouble.changes(cluster.network)
    ]


def _rounds(
    network: Network,
    collectives: Sequence[tuple[str, float]],
    nodes: Ints,
) -> list[Round]:
    """The rounds as the network does them; how many rings it has depends on what else is sent."""
    plain = [
        each
        for name, size in collectives
        for each in collective(name, len(nodes), size)
    ]
    part = ring_part(plain, len(nodes))
    own = [
        network.collective(
            name,
            nodes,
            size,
            part,
        )
        for name, size in collectives
    ]
    return [each for rounds in own for each in rounds]


def _ring_of(members: int, bits: float) -> list[Round]:
    """A ring all-reduce that sends so many bits over each edge of one ring."""
    [edges] = ring(members, 1.0)
    return [
        edges._replace(
            bits=bits,
            reduced_bits=0.0,
        )
    ]


@dataclass
class _Placed:
    """A job on its nodes: its sessions, its links, and how far into an iteration it is (0 to 1)."""

    job: SimulatedJob
    placed: PlacedJob
    sessions: Sessions
    links: Ints
    phase: float = 0.0
    pace_s: float = float("inf")
    counted_units: float = 0.0


class PhasedJobs:
    """How fast jobs go that share links only while they communicate.

    Those that share links, directly or through others, are played together whenever one of them
    comes or goes. They begin where they were in their iterations, so jobs that have found a rhythm
    keep it.
    """

    def __init__(
        self,
        network: Network,
        usage: Usage | None,
        trouble: Trouble = CALM,
    ) -> None:
        self._network = network
        self._usage = usage
        self._slow = replace(trouble, failures=())
        self._failed: set[int] = set()
        self._placed: dict[int, _Placed] = {}
        self._together: set[frozenset[int]] = set()

    def route(self, job: SimulatedJob, demand: Demand | None) -> bool:
        """A job is on its nodes; whether it may share links."""
        self._placed.pop(job.index, None)
        job.demand = demand or {}
        network = self._network
        members = len(job.ring)
        nodes = np.array(job.ring, np.int64)
        job.unit_s = job.load.compute_s * float(
            self._slow.factors(nodes).mean()
        )
        if not demand or not job.load.ring_bits:
            return False
        nbytes = job.load.ring_bits / 16 * members / (members - 1)
        collectives = job.spec.collectives or (("ring", nbytes),)
        rounds = _rounds(network, collectives, nodes)
        placed = PlacedJob(
            nodes,
            job.load.compute_s,
            rounds,
            ONCE,
            overlap=job.spec.overlap,
        )
        sessions = sessions_of(network, placed)
        links = np.unique(np.concatenate(sessions.links))
        done = job.units - job.remaining
        self._placed[job.index] = _Placed(
            job,
            placed,
            sessions,
            links,
            counted_units=done,
        )
        job.resume_s += sessions.starts_dark_s
        if self._usage is not None:
            self._usage.dark_s += sessions.starts_dark_s
        job.unit_s = float("inf")
        return True

    def remove(self, job: SimulatedJob) -> bool:
        """A job has left its nodes; whether it may have shared links."""
        gone = self._placed.pop(job.index, None)
        if gone is None:
            return False
        if self._usage is not None:
            units = job.units - job.remaining - gone.counted_units
            for links, weights, bits in zip(
                *gone.sessions[3:5], gone.sessions.bits, strict=True
            ):
                self._usage.carried_bits[links] += units * bits * weights
            self._usage.dark_s += units * sum(gone.sessions.dark_s)
        self._together = {
            each for each in self._together if job.index not in each
        }
        return True

    def change_link(self, link: int, fails: bool) -> None:
        """A link fails, or works again: jobs that use it stand still meanwhile."""
        if fails:
            self._failed.add(link)
        else:
            self._failed.discard(link)

    def new_paces(self) -> Iterator[tuple[SimulatedJob, float]]:
        """The jobs whose pace changes, each with its seconds for a unit."""
        groups = self._groups()
        known = self._together
        self._together = {frozenset(group) for group in groups}
        for group in groups:
            if frozenset(group) not in known:
                self._play([self._placed[index] for index in group])
        for each in self._placed.values():
            if self._stands_still(each):
                each.pace_s = float("inf")
        for each in self._placed.values():
            if each.pace_s != each.job.unit_s:
                yield each.job, each.pace_s

    def _groups(self) -> list[list[int]]:
        """Jobs that share links, directly or through others, each group by itself.

        Those that stand still are in none.
        """
        going = {
            i: each
            for i, each in self._placed.items()
            if not self._stands_still(each)
        }
        leader = {index: index for index in going}

        def lead(index: int) -> int:
            while leader[index] != index:
                leader[index] = leader[leader[index]]
                index = leader[index]
            return index

        on_link: dict[int, int] = {}
        for index, each in going.items():
            for link in each.links.tolist():
                other = on_link.setdefault(link, index)
                if other != index:
                    leader[lead(index)] = lead(other)
        groups: dict[int, list[int]] = {}
        for index in going:
            groups.setdefault(lead(index), []).append(index)
        return list(groups.values())

    def _stands_still(self, each: _Placed) -> bool:
        return bool(self._failed) and not self._failed.isdisjoint(
            each.links.tolist()
        )

    def _play(self, group: list[_Placed]) -> None:
        """Find the paces of jobs that share links."""
        lasting_s = [
            0.0 if each.pace_s == float("inf") else each.pace_s
            for each in group
        ]
        rests = [
            (1 - each.phase) % 1 * s
            for each, s in zip(group, lasting_s, strict=True)
        ]
        jobs = [each.placed for each in group]
        sessions = [each.sessions for each in group]
        program = program_of(
            self._network,
            jobs,
            sessions,
            self._slow,
        )
        program.begins_s[:] = rests
        alone = len(group) == 1
        drawn = self._slow.is_drawn
        least = _DRAWN if drawn else 1 if alone else _PLAYED
        unmeasured = _UNMEASURED
        if least == 1:
            unmeasured = 0
        outcome = run(program, least, unmeasured)
        now_s = float(outcome.ends_s.max())
        measured = np.maximum(outcome.done - unmeasured, 1)
        paces_s = (outcome.ends_s - outcome.marks_s) / measured
        paces_s[outcome.stuck] = np.inf
        for each, pace_s, ended_s in zip(
            group,
            paces_s.tolist(),
            outcome.ends_s.tolist(),
            strict=True,
        ):
            each.pace_s = pace_s
            each.phase = 0.0 if alone else min(1.0, (now_s - ended_s) / pace_s)
