"""How fast a learned policy decides, and how fast the environments step; each on one core.

Decisions are those of a shipped model in whole episodes of PAC-ML's size, each measured by itself:
from the view of the cluster to the degree, the observation included. Processor time counts, so that
what else runs on the machine does not.
"""

import statistics
import time
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks import figure
from benchmarks.simulator import profiled_graphs
from patchlight.controller.policies.learned import load_learned
from patchlight.controller.policies.model_files import shipped_models
from patchlight.emulation.simulator.ramp import Episode, Workloads, pac_ml_scenario
from patchlight.testbed.errors import PatchlightError

NUM_ENVS, STEPS, ROUNDS = 256, 200, 5


def run() -> list[dict[str, Any]]:
    graphs, source = profiled_graphs()
    workloads = Workloads(graphs)
    models = shipped_models()
    if not models:
        raise PatchlightError("there is no shipped model to measure")
    found: list[dict[str, Any]] = []
    for name, path in models.items():
        policy = load_learned(path)
        took: list[float] = []
        for law in "AD":
            episode = Episode(pac_ml_scenario(workloads, law, policy.card.placement_rule), 900)
            while episode.job is not None:
                question = episode.question()
                before = time.process_time()
                degree = policy.degree(*question)
                took.append((time.process_time() - before) * 1e3)
                episode.decide(degree)
        head, late = f"learned policy {name}: a decision", float(np.percentile(took, 99))
        found.append(figure(f"{head}, 99th percentile of {len(took)}", late, "CPU ms", "at most 1"))
        found.append(figure(f"{head}, median", statistics.median(took), "CPU ms"))
    if find_spec("gymnasium") is None:
        raise PatchlightError("environments need Gymnasium", hint="deploy/bootstrap.sh --learn")
    from patchlight.emulation.learning.envs.ramp_partition import RampPartitionVectorEnv

    for rule in ("ramp-first-fit", "ramp-block"):
        scenarios = [pac_ml_scenario(workloads, law, rule) for law in "ABCD"]
        envs = RampPartitionVectorEnv(NUM_ENVS, scenario=scenarios, staggered=True)
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
        found.append(figure(name, statistics.median(rates), "steps/CPU s", "at least 5000"))
    return found
