"""How fast learned policies decide, how fast *least-delay*, and how fast the environments step.

Each on one core, each decision measured by itself: from the view of the cluster to the answer, the
observation included. Models of partition decide in whole episodes of PAC-ML's size. Processor time
counts, so that what else runs on the machine does not.
"""

import gc
import statistics
import time
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks import figure
from benchmarks.simulator import profiled_graphs
from patchlight.controller.policies.contract import (
    ClusterView,
    JobView,
    Progress,
)
from patchlight.controller.policies.files import shipped_models, weighs_options
from patchlight.controller.policies.learned import load_learned
from patchlight.controller.policies.registry import load_policy
from patchlight.emulation.simulator import randomlabs
from patchlight.emulation.simulator.ramp.lossnetwork import Episode
from patchlight.emulation.simulator.ramp.scenario import pac_ml_scenario
from patchlight.emulation.simulator.ramp.workloads import Workloads
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.generate.generate import RandomLabShape, lab_of

NUM_ENVS = 256
STEPS = 200
ROUNDS = 5
# Labs of 128 and 1,024 GPUs of two models, and how long a decision may take there (CPU ms).
LABS = (
    (
        RandomLabShape(
            8, 4, 4, ocs=2, spare=4, oversubscription=4.0, mixed=True
        ),
        250,
        "at most 5",
    ),
    (
        RandomLabShape(
            16, 8, 8, ocs=4, spare=8, oversubscription=4.0, mixed=True
        ),
        400,
        "at most 50",
    ),
)


class _Timed:
    """Policies whose decisions are timed; places that are not free are no decisions."""

    stable = True

    def __init__(self, name: str) -> None:
        self._placement: Any = load_policy(name, "placement")
        self._topology: Any = load_policy(name, "topology")
        self._order: Any = load_policy(name, "order")
        self.placements_ms: list[float] = []
        self.circuits_ms: list[float] = []
        self.turns_ms: list[float] = []

    def priority(
        self, cluster: ClusterView, job: JobView, progress: Progress
    ) -> float:
        before = time.process_time()
        rank: float = self._order.priority(cluster, job, progress)
        self.turns_ms.append((time.process_time() - before) * 1e3)
        return rank

    def place(self, cluster: ClusterView, job: JobView, workers: int) -> Any:
        before = time.process_time()
        ring = self._placement.place(cluster, job, workers)
        if cluster.free.bit_count() >= workers:
            self.placements_ms.append((time.process_time() - before) * 1e3)
        return ring

    def circuits(self, cluster: ClusterView, groups: Any) -> Any:
        before = time.process_time()
        maps = self._topology.circuits(cluster, groups)
        self.circuits_ms.append((time.process_time() - before) * 1e3)
        return maps


def _in_labs(policy: str) -> list[dict[str, Any]]:
    """Decisions in a lab where jobs come at a load of 0.95."""
    found = []
    for shape, jobs, limit in LABS:
        lab = lab_of(shape, "timed")
        timed = _Timed(policy)
        episode = randomlabs.Episode(
            lab, randomlabs.draw_jobs(lab, 0, jobs, 0.95)
        )
        gc.freeze()  # as a controller does
        episode.play(timed, timed, timed)
        decisions = {
            "placement": timed.placements_ms,
            "topology": timed.circuits_ms,
            "order": timed.turns_ms,
        }
        for what, took in decisions.items():
            head = f"{policy}, {shape.size} GPUs: {what}"
            late = float(np.percentile(took, 99))
            name = f"{head}, 99th percentile of {len(took)}"
            found.append(figure(name, late, "CPU ms", limit))
            found.append(
                figure(f"{head}, median", statistics.median(took), "CPU ms")
            )
    return found


def run() -> list[dict[str, Any]]:
    graphs, source = profiled_graphs()
    workloads = Workloads(graphs)
    models = shipped_models()
    if not models:
        raise PatchlightError("there is no shipped model to measure")
    found = _in_labs("least-delay")
    for name, path in models.items():
        if weighs_options(path):
            continue
        policy = load_learned(path)
        took: list[float] = []
        for law in "AD":
            episode = Episode(
                pac_ml_scenario(workloads, law, policy.card.placement_rule),
                900,
            )
            while episode.job is not None:
                question = episode.question()
                before = time.process_time()
                degree = policy.degree(*question)
                took.append((time.process_time() - before) * 1e3)
                episode.decide(degree)
        head = f"learned policy {name}: a decision"
        late = float(np.percentile(took, 99))
        found.append(
            figure(
                f"{head}, 99th percentile of {len(took)}",
                late,
                "CPU ms",
                "at most 1",
            )
        )
        found.append(
            figure(f"{head}, median", statistics.median(took), "CPU ms")
        )
    if find_spec("gymnasium") is None:
        raise PatchlightError(
            "environments need Gymnasium", hint="deploy/bootstrap.sh --learn"
        )
    from patchlight.emulation.learning.envs.ramp_partition import (
        RampPartitionVectorEnv,
    )

    for rule in ("ramp-first-fit", "ramp-block"):
        scenarios = [pac_ml_scenario(workloads, law, rule) for law in "ABCD"]
        envs = RampPartitionVectorEnv(
            NUM_ENVS, scenario=scenarios, staggered=True
        )
        envs.reset(seed=1000)
        rng = np.random.default_rng(0)
        rates = []
        for _ in range(ROUNDS):
            before = time.process_time()
            for _ in range(STEPS):
                mask = envs.action_masks()
                envs.step((mask * rng.random(mask.shape)).argmax(axis=1))
            rates.append(NUM_ENVS * STEPS / (time.process_time() - before))
        name = f"environment RampPartition, {NUM_ENVS} envs, full observations, {rule} ({source})"
        found.append(
            figure(
                name, statistics.median(rates), "steps/CPU s", "at least 5000"
            )
        )
    return found
