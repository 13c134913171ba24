"""Simulate a trace of jobs that communicate, placed close together and spread out.

$ python examples/simulate_trace.py
Consolidated  mean JCT 1334 s, busy 57%
Spread        mean JCT 1731 s, busy 51%
"""

import csv
import random
import tempfile
from pathlib import Path

from spread import Spread

from patchlight import Policies, TwoLevel, queue_jobs, read_trace, simulate
from patchlight.controller.policies.order import Fifo
from patchlight.controller.policies.placement import Consolidated
from patchlight.emulation.simulator.cluster.results import summary_of

draw = random.Random(0)
with tempfile.TemporaryDirectory() as folder:
    trace = Path(folder) / "jobs.csv"  # in the format of Philly's
    with trace.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["timestamp", "duration", "num_gpus", "gpu_time", "cluster"])
        for minute in range(60):
            gpus, seconds = draw.choice([1, 2, 4, 8]), draw.randint(60, 1200)
            rows.writerow([f"2017-10-09 07:{minute:02}:00", seconds, gpus, gpus * seconds, "a"])
    jobs = queue_jobs(read_trace(trace), communication=0.3)

cluster = TwoLevel(racks=2, servers=4, gpus=4, oversubscription=4)
for placement in (Consolidated(), Spread()):
    summary = summary_of(simulate(cluster, jobs, Policies(Fifo(), placement)))
    name = type(placement).__name__
    print(f"{name:12}  mean JCT {summary['jct_s']['mean']:.0f} s, busy {summary['busy']:.0%}")
