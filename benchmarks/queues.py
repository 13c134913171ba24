"""How fast the queue simulator is: the whole Philly trace, and the environments over it.

Each run of the trace is a process of its own, so that its memory is its own; its time is that
of the simulation alone, reading the trace is measured apart. Without the trace
(``PATCHLIGHT_DATA``) there is an error, and the other benchmarks go on.
"""

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import figure
from patchlight.testbed.errors import PatchlightError
from tests.support.data import data_set, without

ROUNDS = 3
STEPS = 20_000
_PROJECT = Path(__file__).resolve().parent.parent
_RUN = """
import json, resource, sys, time
from patchlight.emulation.simulator.cluster import Settings, TwoLevel, queue_jobs
from patchlight.emulation.simulator.cluster.sweep import Combination, Sweep
from patchlight.emulation.simulator.traces.files import read_trace
trace, cluster, oversubscription, communication, speed, preempt, order, placement = sys.argv[1:]
began = time.process_time()
jobs = queue_jobs(read_trace(trace, skip_bad=True), float(communication), float(speed))
read_s = time.process_time() - began
where = TwoLevel.parse(f"{cluster},taper={oversubscription}")
outcome = Sweep(where, jobs, Settings(preempt=preempt == "preempt"))(Combination(order, placement))
print(json.dumps({
    "jobs": len(jobs), "read_s": read_s, "cpu_s": outcome.cpu_s,
    "done": outcome.summary["done"], "queue_max": outcome.summary["queue_max"],
    "latency_p99_s": outcome.summary["decisions"]["latency_p99_s"],
    "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
}))
"""
_STEPPING = """
import sys, time
import gymnasium, numpy as np
import patchlight.emulation.learning.envs
name, steps, count = sys.argv[1], int(sys.argv[2]), 8
envs = gymnasium.make_vec(name, num_envs=count, vectorization_mode="sync")
observation, _ = envs.reset(seed=0)
rng = np.random.default_rng(0)
began = time.process_time()
for _ in range(steps // count):
    # Any allowed action, each as likely.
    chance = rng.random(observation["action_mask"].shape) * observation["action_mask"]
    observation, *_ = envs.step(chance.argmax(axis=1))
print(steps // count * count / (time.process_time() - began))
"""
_CROWDED = "512 GPUs, 4:1 oversubscribed, jobs communicate 25 %, rack aware"
# cluster, oversubscription, communication, speed, preempt, order, placement
_CASES = {
    "2,048 GPUs, FIFO, first fit": "16x16x8 1 0 1 no fifo first-fit",
    "the same, jobs come 20 times as fast": "16x16x8 1 0 20 no fifo first-fit",
    _CROWDED: "8x8x8 4 0.25 4 no fifo rack-aware",
    "512 GPUs, preemptive LAS, jobs come 4 times as fast": "8x8x8 1 0 4 preempt las first-fit",
}


def run() -> list[dict[str, Any]]:
    """The figures; the first case is the one that is asked for."""
    trace = data_set("traces/philly.csv")
    if trace is None:
        raise PatchlightError(without("traces/philly.csv"))
    found: list[dict[str, Any]] = []
    for number, (name, options) in enumerate(_CASES.items()):
        asked = number == 0
        runs = [
            json.loads(_alone(_RUN, str(trace), *options.split()))
            for _ in range(ROUNDS if asked else 1)
        ]
        for each in runs:
            if each["done"] != each["jobs"]:
                raise PatchlightError(
                    f"{name}: {each['done']} of {each['jobs']} jobs were done"
                )
        cpu_s = statistics.median(each["cpu_s"] for each in runs)
        head = f"queue simulator, Philly, {runs[0]['jobs']} jobs, {name}"
        peak_mib = max(each["peak_mib"] for each in runs)
        found.append(
            figure(
                f"{head}: time",
                cpu_s,
                "CPU s",
                "at most 15" if asked else None,
            )
        )
        found.append(
            figure(f"{head}: jobs", runs[0]["jobs"] / cpu_s, "jobs/CPU s")
        )
        found.append(
            figure(f"{head}: peak memory", peak_mib, "MiB", "at most 500")
        )
        if asked:
            read_s = statistics.median(each["read_s"] for each in runs)
            found.append(
                figure(
                    "queue simulator, Philly: reading the trace",
                    read_s,
                    "CPU s",
                )
            )
            late_us = 1e6 * statistics.median(
                each["latency_p99_s"] for each in runs
            )
            found.append(
                figure(
                    f"{head}: 99th percentile of a decision's latency",
                    late_us,
                    "µs",
                )
            )
    for environment in ("patchlight/Placement-v0", "patchlight/Schedule-v0"):
        rate = float(_alone(_STEPPING, environment, str(STEPS)))
        name = f"{environment}: 8 at once, full observations"
        found.append(figure(name, rate, "steps/CPU s", "at least 5000"))
    return found


def _alone(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=_PROJECT
    )
    if done.returncode:
        raise PatchlightError(
            f"a run of the queue simulator failed: {done.stderr.strip()[-500:]}"
        )
    return done.stdout
