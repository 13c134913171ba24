"""How the simulators grow: graphs of 1,000 and 10,000 operations, 1,024 and 65,536 servers.

Each figure is of a process of its own, so that its memory is its own. Jobs of the queue and of RAMP
come as many in both sizes, the more often the more servers there are.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import figure
from patchlight.testbed.errors import PatchlightError

_PROJECT = Path(__file__).resolve().parent.parent
_HEAD = """
import json, resource, sys, time
def tell(**figures):
    figures["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(figures))
"""
# A ladder: each operation feeds the next and the one after it.
_GRAPH = """
from patchlight.emulation.simulator.ramp.workloads import Workloads
from patchlight.testbed.graphs import ComputationGraph, Operation
count = int(sys.argv[1])
operations = tuple(
    Operation(f"o{n}", "x", 1 + n % 7, 2 + n % 5, 10**6, 10**5) for n in range(count)
)
edges = [(n, n + step) for step in (1, 2) for n in range(count - step)]
began = time.process_time()
workloads = Workloads([ComputationGraph("ladder", operations, tuple(edges))])
made_s = time.process_time() - began
workloads.expected_s(0, 8, "ramp-block")
tell(made_s=made_s, cpu_s=time.process_time() - began)
"""
_RAMP = """
from patchlight.controller.policies.degrees import Constant
from patchlight.emulation.experiments.pac_ml.variation import Variation
from patchlight.emulation.simulator.ramp.lossnetwork import run_episode
from patchlight.emulation.simulator.ramp.ramp import RampShape
from patchlight.emulation.simulator.ramp.workloads import Workloads
from patchlight.emulation.simulator.ramp.scenario import FixedArrivals
from patchlight.testbed.graphs import builtin_graph
shape, jobs = RampShape(*map(int, sys.argv[1].split("x"))), int(sys.argv[2])
began = time.process_time()
workloads = Workloads([builtin_graph("alexnet"), builtin_graph("vgg16")], shape)
made_s = time.process_time() - began
interval_s = 1000 * 32 / shape.size
varied = Variation(arrivals=FixedArrivals(interval_s), horizon_s=jobs * interval_s)
scenario = varied.scenario(workloads, "A", "ramp-block")
began = time.process_time()
result = run_episode(scenario, Constant(8), 0)
tell(made_s=made_s, cpu_s=time.process_time() - began, jobs=result.decisions)
"""
_QUEUE = """
import numpy as np
from patchlight.emulation.simulator.cluster import Settings, TwoLevel
from patchlight.emulation.simulator.cluster.jobs import SyntheticJobs
from patchlight.emulation.simulator.cluster.sweep import Combination, Sweep
cluster, jobs, placement = sys.argv[1], int(sys.argv[2]), sys.argv[3]
where = TwoLevel.parse(cluster)
gpus = len(where.shape.gpus)
drawn = SyntheticJobs(count=jobs, communication=0.0).draw(np.random.default_rng(0), gpus)
found = Sweep(where, drawn, Settings())(Combination("fifo", placement))
tell(cpu_s=found.cpu_s, jobs=jobs)
"""


def _alone(code: str, *arguments: str) -> dict[str, float]:
    command = [sys.executable, "-c", _HEAD + code, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=_PROJECT
    )
    if done.returncode:
        raise PatchlightError(
            f"a simulation failed: {done.stderr.strip()[-500:]}"
        )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def run() -> list[dict[str, Any]]:
    """The figures, and for each pair of sizes how much more time and memory the larger takes."""
    found: list[dict[str, Any]] = []
    found += _pair(
        _GRAPH,
        "RAMP, a step of a model of {} operations at degree 8, partitioned at all degrees",
        {"1,000": ("1000",), "10,000": ("10000",)},
        10,
    )
    found += _pair(
        _RAMP,
        "RAMP of {} servers, 2,000 jobs at degree 8",
        {"1,024": ("8x8x16", "2000"), "65,536": ("32x32x64", "2000")},
        64,
    )
    for placement in (
        "first-fit",
        "consolidated",
        "best-fit",
        "rack-aware",
        "fragmentation-aware",
    ):
        found += _pair(
            _QUEUE,
            f"queue simulator, {{}} servers of one GPU, {placement}, 4,000 jobs",
            {
                "1,024": ("32x32x1", "4000", placement),
                "65,536": ("256x256x1", "4000", placement),
            },
            64,
        )
    return found


def _pair(
    code: str, name: str, sizes: dict[str, tuple[str, ...]], times: int
) -> list[dict[str, Any]]:
    """Time and memory of two sizes; the second is so many ``times`` the first."""
    found = {
        size: _alone(code, *arguments) for size, arguments in sizes.items()
    }
    figures = []
    for size, each in found.items():
        head = name.format(size)
        figures.append(figure(f"{head}: time", each["cpu_s"], "CPU s"))
        figures.append(figure(f"{head}: peak memory", each["peak_mib"], "MiB"))
    small, large = found.values()
    # Linear, with room for memory that is further away and what else runs on the machine.
    limit = f"at most {1.5 * times:g}"
    head = name.format(" and ".join(sizes))
    for key, what in (("cpu_s", "time"), ("peak_mib", "peak memory")):
        figures.append(
            figure(
                f"{head}: times as much {what}",
                large[key] / small[key],
                "",
                limit,
            )
        )
    return figures
