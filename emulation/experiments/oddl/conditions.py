"""The conditions of a timed iteration: the model, where the job runs, and its neighbours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from patchlight.controller.policies.contract import JobView
from patchlight.emulation.simulator.cluster import (
    NetworkCluster,
    QueueJob,
    Settings,
)
from patchlight.emulation.simulator.cluster.jobs import (
    SyntheticJobs,
    queue_jobs,
)
from patchlight.emulation.simulator.cluster.simulation import Simulation
from patchlight.emulation.simulator.cluster.sweep import (
    QueueScheduler,
    load_policies,
)
from patchlight.emulation.simulator.network import jobs as network_jobs
from patchlight.emulation.simulator.network.contract import Network, Round
from patchlight.emulation.simulator.network.engine import run
from patchlight.emulation.simulator.network.jobs import PlacedJob
from patchlight.emulation.simulator.network.sharing import Ints
from patchlight.emulation.simulator.network.specs import network_of
from patchlight.emulation.simulator.traces.files import read_trace
from patchlight.emulation.simulator.traces.model import TraceJob
from patchlight.testbed.errors import BadInput, PatchlightError, nearest
from patchlight.testbed.graphs import builtin_graph
from patchlight.testbed.graphs.layers import GPUS
from patchlight.testbed.paths.scheduling import CONTROL_DELAYS

MIXTURE = "mixture-of-experts"
MODELS = ("vgg19", "resnet50", "bert-large", "gpt2", MIXTURE)
# 32 images on each GPU are usual in large jobs (Goyal et al., "Accurate, Large Minibatch SGD",
# 2017); the graphs have 128. The others keep the batch of their graph.
_BATCHES: Mapping[str, int] = {"vgg19": 32, "resnet50": 32}
# One expert on each node, as in GShard (Lepikhin et al., 2021); every second of twelve layers.
_EXPERTS = 64
_LAYERS = 6
_WIDTH = 768
_TOKENS = 1024
_NUMBER_BYTES = 2


class Workload(NamedTuple):
    """A model: seconds that a node computes, the part in which gradients come, and bytes."""

    compute_s: float
    backward: float
    gradient_bytes: float
    tokens_bytes: float = 0.0

    def rounds(self, network: Network, nodes: Ints) -> list[Round]:
        """The rounds that nodes send in an iteration, as the network does it best."""
        members = len(nodes)
        gradient = network.collective("ring", nodes, self.gradient_bytes)
        if not self.tokens_bytes:
            return gradient
        # To the experts and back, in the forward pass and again in the backward pass.
        experts = network_jobs.expert_exchange(
            members,
            min(_EXPERTS, members),
            4 * _LAYERS * self.tokens_bytes,
            network.switching.fan_out,
        )
        return [*experts, *gradient]


@cache
def workload(name: str, gpu: str = "a100") -> Workload:
    """One of ``MODELS`` on one of ``GPUS``; ``BadInput`` for another name."""
    if name not in MODELS:
        raise BadInput(f"unknown model {name!r}: {nearest(name, MODELS)}")
    graph = builtin_graph(
        "gpt2" if name == MIXTURE else name, _BATCHES.get(name), GPUS[gpu]
    )
    batch = graph.batch or 1
    computes_s = (graph.forward_ms + graph.backward_ms) / 1e3
    backward = graph.backward_ms / 1e3 / computes_s
    tokens = batch * _TOKENS * _WIDTH * _NUMBER_BYTES if name == MIXTURE else 0
    return Workload(
        computes_s,
        backward,
        float(graph.parameter_bytes),
        float(tokens),
    )


# How many jobs of the Philly trace want so many GPUs; the 90 other ones are left out.
PHILLY_SIZES = {
    1: 76627,
    2: 1818,
    4: 1870,
    8: 1643,
    16: 199,
}
# So many jobs for each node come before: few are then left of how it began.
_LOAD = 0.9
_JOBS_BEFORE = 10
_LOOKED_AT = "looked-at"


class Surroundings(NamedTuple):
    """The nodes of a job in the order of its ranks, and those of each job beside it."""

    nodes: Ints
    neighbours: tuple[Ints, ...]


@dataclass(frozen=True)
class JobArrivals:
    """Jobs of a ``trace`` or a law that would hold 90 % of ``network``; ``seed`` picks them."""

    network: str
    trace: Path | None = None
    placement: str = "first-fit"
    seed: int = 0

    @property
    def source(self) -> str:
        """Where the jobs come from, for people."""
        if self.trace is None:
            return "random, with the Philly trace's sizes, median and mean duration"
        return str(self.trace)

    def around(self, size: int) -> Surroundings:
        """The nodes that a job of this size gets when its turn comes, and the jobs beside it."""
        cluster = NetworkCluster(network_of(self.network))
        jobs = self._jobs(cluster.network.nodes)
        arrives_s = jobs[-1].view.arrived_s
        jobs.append(
            QueueJob(JobView(_LOOKED_AT, size, arrived_s=arrives_s), 1.0)
        )
        simulation = Simulation(cluster, jobs, Settings())
        policies = load_policies(
            "fifo",
            self.placement,
            "keep",
            self.seed,
            _raise,
        )
        scheduler = QueueScheduler(simulation, policies)
        looked_at = simulation.jobs[-1]
        while simulation.advance():
            scheduler.decide()
            if looked_at.ring:
                rings = [
                    job.ring
                    for job in simulation.running.values()
                    if job is not looked_at
                ]
                beside = [
                    np.array(ring, np.int64) for ring in rings if len(ring) > 1
                ]
                return Surroundings(
                    np.array(looked_at.ring, np.int64), tuple(beside)
                )
        raise PatchlightError(
            f"the placement policy {self.placement} finds no {size} nodes in {self.network}",
            hint="choose another with --placement",
        )

    def _jobs(self, nodes: int) -> list[QueueJob]:
        """The jobs that come before the one that is looked at."""
        rng = np.random.default_rng(self.seed)
        if self.trace is None:
            law = SyntheticJobs(
                _JOBS_BEFORE * nodes,
                _LOAD,
                communication=0.0,
                sizes=PHILLY_SIZES,
            )
            return law.draw(rng, nodes)
        known = [job for job in _read(self.trace) if job.gpus <= nodes]
        if not known:
            raise BadInput(f"no job of {self.trace} fits on {nodes} nodes")
        count = min(_JOBS_BEFORE * nodes, len(known))
        first = int(rng.integers(len(known) - count + 1))
        chosen = known[first : first + count]
        lasts_s = max(1.0, chosen[-1].submitted_s - chosen[0].submitted_s)
        held = sum(job.gpus * job.duration_s for job in chosen) / lasts_s
        return queue_jobs(chosen, speed=_LOAD * nodes / held)


@cache
def _read(trace: Path) -> Sequence[TraceJob]:
    return read_trace(trace)


def _raise(fault: object) -> None:
    raise PatchlightError(f"the placement policy failed: {fault}")


# Of jobs that share links, so many iterations are timed, after those in which they find a rhythm.
_TIMED = 8
_BEFORE = 4
_LATENCY = "500ns"


# Sirius measured 3.84 ns from one sender to the next, clock recovery included (Ballani et al.,
# SIGCOMM 2020), with clocks of all nodes in step; 10 ns leave room.
GUARD_S = 10e-9


class LightTimes(NamedTuple):
    """What is free to say of ODDL and messages, in seconds; ``message_s`` is the receiver's.

    ``guard_s`` is dark behind tuning: senders' clocks differ, and receivers find the bits' phase.
    """

    tuning_s: float = 100e-9
    control_s: float = CONTROL_DELAYS["distributed"].one_way_s
    message_s: float = 5e-6
    scheduler: str = "collective"
    guard_s: float = GUARD_S


class Conditions(NamedTuple):
    """Which real effects are modelled: oversubscription, and others that slow a network down.

    ``ecmp``: flows draw a path, else their packets take all. ``placed``: on the nodes that the
    queue finds, else on the first ones. ``latency``: of links, messages, tuning and control.
    ``computes``, of which a part is ``overlapped``; ``beside`` other jobs.
    """

    taper: float = 1.0
    ecmp: bool = False
    placed: bool = False
    latency: bool = False
    computes: bool = False
    overlapped: bool = False
    beside: bool = False


class Scene(NamedTuple):
    """A job of a model in a cluster of k³/4 nodes: where it runs, and who runs beside it."""

    radix: int
    model: str
    surroundings: Surroundings
    light: LightTimes = LightTimes()
    seed: int = 0

    @property
    def nodes(self) -> int:
        """The nodes of the cluster."""
        return self.radix**3 // 4

    def network(
        self,
        kind: str,
        conditions: Conditions,
        channels: int = 0,
    ) -> Network:
        """``fat_tree``, ``sip_ring``, ``ideal`` or ``oddl``, of the size of the cluster.

        ODDL's jobs have so many ``channels`` on a coupler; 0: routed, as many as they need.
        """
        light = self.light
        nodes = self.nodes
        late = conditions.latency
        latency = f"latency={_LATENCY if late else '0ns'}"
        if kind == "fat_tree":
            spread = "flows" if conditions.ecmp else "packets"
            spec = f"fat-tree:k={self.radix},taper={conditions.taper:g},spread={spread}"
            return network_of(f"{spec},{latency}")
        if kind == "sip_ring":
            return network_of(f"sip-ring:nodes={nodes},{latency}")
        if kind == "ideal":
            return network_of(f"ideal:nodes={nodes},{latency}")
        dark_s = light.tuning_s + light.guard_s
        tuning_s, control_s = (dark_s, light.control_s) if late else (0.0, 0.0)
        spec = (
            f"oddl:nodes={nodes},{latency},setup=0ns,scheduler={light.scheduler},"
            f"switching={tuning_s * 1e9:g}ns,control={control_s * 1e9:g}ns"
        )
        return network_of(f"{spec},channels={channels}" if channels else spec)

    def iteration_s(
        self,
        kind: str,
        conditions: Conditions,
        channels: int = 0,
    ) -> float:
        """Seconds of an iteration of the job, in the mean."""
        network = self.network(kind, conditions, channels)
        members = len(self.surroundings.nodes)
        nodes = (
            self.surroundings.nodes
            if conditions.placed
            else np.arange(members)
        )
        job = self._job(
            network,
            workload(self.model),
            nodes,
            conditions,
        )
        # On ODDL the wavelength switches keep others out, on an ideal switch there is no link to
        # share but the NIC.
        alone = not conditions.beside or kind in ("ideal", "oddl")
        return mean_iteration_s(
            network,
            job,
            () if alone else self._neighbours(network, conditions),
        )

    def _neighbours(
        self, network: Network, conditions: Conditions
    ) -> list[PlacedJob]:
        """The jobs beside it, of all models by turns, each somewhere in its first iteration."""
        rng = np.random.default_rng(self.seed)
        found = []
        for number, nodes in enumerate(self.surroundings.neighbours):
            model = workload(MODELS[number % len(MODELS)])
            begins_s = rng.random() * model.compute_s
            found.append(
                self._job(
                    network,
                    model,
                    nodes,
                    conditions,
                    begins_s,
                )
            )
        return found

    def _job(
        self,
        network: Network,
        model: Workload,
        nodes: Ints,
        conditions: Conditions,
        begins_s: float = 0.0,
    ) -> PlacedJob:
        return PlacedJob(
            nodes,
            model.compute_s if conditions.computes else 0.0,
            model.rounds(network, nodes),
            network_jobs.ONCE,
            begins_s,
            overlap=model.backward if conditions.overlapped else 0.0,
            messages_s=self.light.message_s if conditions.latency else 0.0,
        )


def mean_iteration_s(
    network: Network,
    job: PlacedJob,
    neighbours: Sequence[PlacedJob] = (),
) -> float:
    """Seconds of an iteration of a job beside others, without the first; or ``PatchlightError``."""
    sessions = [
        network_jobs.sessions_of(network, each) for each in (job, *neighbours)
    ]
    near = _near(network, sessions)
    jobs = [
        each
        for each, counts in zip((job, *neighbours), near, strict=True)
        if counts
    ]
    program = network_jobs.program_of(
        network,
        jobs,
        [s for s, counts in zip(sessions, near, strict=True) if counts],
    )
    least, unmeasured = (
        (_BEFORE + _TIMED, _BEFORE) if len(jobs) > 1 else (2, 1)
    )
    outcome = run(
        program,
        least,
        unmeasured,
        watched=1,
    )
    if 0 in outcome.stuck:
        raise PatchlightError(f"an iteration on {network.spec} never ends")
    return float(outcome.ends_s[0] - outcome.marks_s[0]) / float(
        outcome.done[0] - unmeasured
    )


def _near(
    network: Network, sessions: Sequence[network_jobs.Sessions]
) -> list[bool]:
    """Which jobs share links with the first, directly or through others."""
    uses = np.zeros((len(sessions), len(network.capacity_bps)), bool)
    for mine, one in zip(uses, sessions, strict=True):
        mine[np.concatenate([*one.links, np.zeros(0, np.int64)])] = True
    near = np.arange(len(sessions)) == 0
    while (
        grown := uses[:, uses[near].any(axis=0)].any(axis=1) | near
    ).sum() > near.sum():
        near = grown
    return [bool(each) for each in near]
