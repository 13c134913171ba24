"""Under which conditions an iteration is timed, and how long it takes then."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from patchlight.emulation.experiments.oddl.arrivals import Surroundings
from patchlight.emulation.experiments.oddl.workloads import MODELS, Workload, workload
from patchlight.emulation.simulator.network import Network, PlacedJob, network_of
from patchlight.emulation.simulator.network.engine import run
from patchlight.emulation.simulator.network.jobs import ONCE, Sessions, program_of, sessions_of
from patchlight.emulation.simulator.network.sharing import Ints
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.paths.contract import CONTROL_DELAYS

# Of jobs that share links, so many iterations are timed, after those in which they find a rhythm.
_TIMED, _BEFORE = 8, 4
_LATENCY = "500ns"


class Light(NamedTuple):
    """What the experiment is free to say of ODDL and of messages; times in seconds.

    ``tuning_s`` and ``control_s`` are those of ``Switching``; ``message_s`` is what each message
    costs its receiver on every network.
    """

    tuning_s: float = 100e-9
    control_s: float = CONTROL_DELAYS["distributed"].one_way_s
    message_s: float = 5e-6
    scheduler: str = "collective"


class Conditions(NamedTuple):
    """What of the real thing is there: oversubscription, and what else slows a network down.

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
    light: Light = Light()
    seed: int = 0

    @property
    def nodes(self) -> int:
        """Those of the cluster."""
        return self.radix**3 // 4

    def network(self, kind: str, conditions: Conditions) -> Network:
        """``fat_tree``, ``sip_ring``, ``ideal`` or ``oddl``, of the size of the cluster."""
        light, nodes = self.light, self.nodes
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
        tuning_s, control_s = (light.tuning_s, light.control_s) if late else (0.0, 0.0)
        return network_of(
            f"oddl:nodes={nodes},{latency},setup=0ns,scheduler={light.scheduler},"
            f"switching={tuning_s * 1e9:g}ns,control={control_s * 1e9:g}ns"
        )

    def iteration_s(self, kind: str, conditions: Conditions) -> float:
        """Seconds of an iteration of the job, in the mean."""
        network = self.network(kind, conditions)
        members = len(self.surroundings.nodes)
        nodes = self.surroundings.nodes if conditions.placed else np.arange(members)
        job = self._job(workload(self.model), nodes, conditions)
        # On ODDL the wavelength switches keep others out, on an ideal switch there is no link to
        # share but the NIC.
        alone = not conditions.beside or kind in ("ideal", "oddl")
        return mean_iteration_s(network, job, () if alone else self._neighbours(conditions))

    def _neighbours(self, conditions: Conditions) -> list[PlacedJob]:
        """The jobs beside it, of all models by turns, each somewhere in its first iteration."""
        rng = np.random.default_rng(self.seed)
        found = []
        for number, nodes in enumerate(self.surroundings.neighbours):
            model = workload(MODELS[number % len(MODELS)])
            found.append(self._job(model, nodes, conditions, rng.random() * model.compute_s))
        return found

    def _job(
        self, model: Workload, nodes: Ints, conditions: Conditions, begins_s: float = 0.0
    ) -> PlacedJob:
        return PlacedJob(
            nodes,
            model.compute_s if conditions.computes else 0.0,
            model.rounds(len(nodes)),
            ONCE,
            begins_s,
            overlap=model.backward if conditions.overlapped else 0.0,
            messages_s=self.light.message_s if conditions.latency else 0.0,
        )


def mean_iteration_s(
    network: Network, job: PlacedJob, neighbours: Sequence[PlacedJob] = ()
) -> float:
    """Seconds of an iteration of a job beside others; what comes before the first is left out.

    ``PatchlightError`` if it never ends.
    """
    sessions = [sessions_of(network, each) for each in (job, *neighbours)]
    near = _near(network, sessions)
    jobs = [each for each, counts in zip((job, *neighbours), near, strict=True) if counts]
    program = program_of(
        network, jobs, [s for s, counts in zip(sessions, near, strict=True) if counts]
    )
    least, unmeasured = (_BEFORE + _TIMED, _BEFORE) if len(jobs) > 1 else (2, 1)
    outcome = run(program, least, unmeasured, watched=1)
    if 0 in outcome.stuck:
        raise PatchlightError(f"an iteration on {network.spec} never ends")
    return float(outcome.ends_s[0] - outcome.marks_s[0]) / float(outcome.done[0] - unmeasured)


def _near(network: Network, sessions: Sequence[Sessions]) -> list[bool]:
    """Which jobs share links with the first, directly or through others."""
    uses = np.zeros((len(sessions), len(network.capacity_bps)), bool)
    for mine, one in zip(uses, sessions, strict=True):
        mine[np.concatenate([*one.links, np.zeros(0, np.int64)])] = True
    near = np.arange(len(sessions)) == 0
    while (grown := uses[:, uses[near].any(axis=0)].any(axis=1) | near).sum() > near.sum():
        near = grown
    return [bool(each) for each in near]
