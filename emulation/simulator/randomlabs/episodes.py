"""Random jobs for a random lab, as a lab would get them: with a graph, a gradient and a time."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from patchlight.controller.policies.contract import (
    ElasticityPolicy,
    OrderPolicy,
    PartitionPolicy,
    PlacementPolicy,
    TopologyPolicy,
)
from patchlight.controller.policies.order import Fifo
from patchlight.controller.prediction.network import slowest_nic_bps
from patchlight.emulation.simulator.cluster import (
    LabCluster,
    Policies,
    QueueJob,
    QueueResult,
    Settings,
    simulate,
)
from patchlight.emulation.simulator.cluster.jobs import elastic, opened
from patchlight.emulation.simulator.cluster.lab_jobs import jobs_of_specs
from patchlight.emulation.simulator.traces import LAWS, TraceJob, is_drawn, read_trace
from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs import builtin_graph
from patchlight.testbed.jobs import JobSpec
from patchlight.testbed.lab.model import Lab

_MODELS = ("alexnet", "resnet18", "resnet50", "vgg16", "bert-large", "gpt2")
_SIZES = {1: 0.25, 2: 0.2, 4: 0.25, 8: 0.2, 16: 0.1}
_SLOWER = {"fast": 1.0, "slow": 2.0}
_MEDIAN_S, _SPREAD = 1144.0, 1.3
_LAW_JOBS = 20_000  # are drawn of a law; episodes are pieces of them
_MOST_ITERATIONS = 10_000_000  # A job has no more; the longest of a trace are cut there.


@dataclass(frozen=True)
class Episode:
    """A lab and the jobs that come to it."""

    lab: Lab
    jobs: list[QueueJob]

    def play(
        self,
        placement: PlacementPolicy,
        topology: TopologyPolicy | None = None,
        order: OrderPolicy | None = None,
        elasticity: ElasticityPolicy | None = None,
        partition: PartitionPolicy | None = None,
    ) -> QueueResult:
        """Run all jobs to their end; first in, first out if no order is given."""
        policies = Policies(order or Fifo(), placement, topology, elasticity, partition)
        return simulate(LabCluster(self.lab), self.jobs, policies, Settings())

    def elastic(self) -> "Episode":
        """The same where jobs of several workers may have half or twice as many while they run."""
        return Episode(self.lab, [elastic(job) for job in self.jobs])

    def opened(self) -> "Episode":
        """The same where a partition policy says how many GPUs jobs get: up to half of the lab's,
        and 16 at most, whatever they wanted.
        """
        most = min(max(_SIZES), len(self.lab.hosts) // 2)
        return Episode(self.lab, [opened(job, most) for job in self.jobs])


def draw_jobs(lab: Lab, seed: int, count: int, load: float) -> list[QueueJob]:
    """Jobs of built-in models: Poisson arrivals, log-normal durations with Philly's median.

    ``load`` is the part of the lab's GPUs that would be held if no job waited or was slowed down.
    A gradient is the model's, a step is as long as makes a half to nine tenths of it computing
    where the job has its NICs' rate. On a slow GPU it computes for twice as long.
    """
    maker = _JobMaker(lab, random.Random(f"jobs {seed}"))
    drawn = [maker.make() for _ in range(count)]
    gap_s = sum(gpu_s for _, gpu_s in drawn) / count / (load * len(lab.hosts))
    found: list[QueueJob] = []
    at_s = 0.0
    for spec, _ in drawn:
        found += jobs_of_specs(lab, [spec], "", at_s)
        at_s += maker.draw.expovariate(1 / gap_s)
    return found


def trace_of(trace: str | Path, largest: int) -> list[TraceJob]:
    """The jobs of a file, or of a law that has this name, for labs of up to ``largest`` GPUs."""
    return LAWS[str(trace)].draw(0, _LAW_JOBS, largest) if is_drawn(trace) else read_trace(trace)


def traced_jobs(
    lab: Lab, trace: Sequence[TraceJob], seed: int, count: int, load: float
) -> list[QueueJob]:
    """So many jobs of a trace that follow each other, from a place in it that is drawn.

    Arrivals, sizes and durations are the trace's; what jobs compute and move is drawn as for
    others, as traces do not tell. Jobs that want more than half of the lab's GPUs are left out, and
    the others come at the pace at which they make this ``load``. ``BadInput`` for a trace of fewer
    such jobs.
    """
    hosts = len(lab.hosts)
    fitting = [job for job in trace if 1 <= job.gpus <= hosts // 2 and job.duration_s > 0]
    if len(fitting) < count:
        raise BadInput(
            f"the trace has {len(fitting)} jobs of up to {hosts // 2} GPUs: expected {count}",
            hint="take fewer jobs of each lab, or a longer trace",
        )
    draw = random.Random(f"trace {seed}")
    first = draw.randint(0, len(fitting) - count)
    jobs, maker = fitting[first : first + count], _JobMaker(lab, draw)
    drawn = [maker.make(job.gpus, job.duration_s) for job in jobs]
    span_s = max(1.0, jobs[-1].submitted_s - jobs[0].submitted_s)
    pace = sum(gpu_s for _, gpu_s in drawn) / (load * hosts) / span_s
    found: list[QueueJob] = []
    for job, (spec, _) in zip(jobs, drawn, strict=True):
        found += jobs_of_specs(lab, [spec], "", pace * (job.submitted_s - jobs[0].submitted_s))
    return found


class _JobMaker:
    """Draws what jobs of a lab are, and how many seconds of GPUs each takes."""

    def __init__(self, lab: Lab, draw: random.Random) -> None:
        self.draw, self._nic_bps, self._made = draw, slowest_nic_bps(lab), 0
        self._gpu_models = {gpu.model for server in lab.servers for gpu in server.gpus}
        hosts = len(lab.hosts)
        self._sizes = {size: odds for size, odds in _SIZES.items() if size <= hosts // 2}

    def make(self, workers: int = 0, lasts_s: float = 0.0) -> tuple[JobSpec, float]:
        """A job of so many workers that lasts so long on the fastest GPUs; drawn where 0."""
        draw = self.draw
        graph = draw.choice(_MODELS)
        gradient_bytes = int(builtin_graph(graph).parameter_bytes)
        moving_s = 16 * gradient_bytes / self._nic_bps
        compute_s = min(60.0, moving_s * draw.uniform(1.0, 9.0))
        if not workers:
            lasts_s = min(draw.lognormvariate(math.log(_MEDIAN_S), _SPREAD), 86_400.0)
            workers = draw.choices(list(self._sizes), list(self._sizes.values()))[0]
        iterations = max(2, min(_MOST_ITERATIONS, round(lasts_s / (compute_s + moving_s))))
        spec = JobSpec(
            f"job{self._made}",
            iterations=iterations,
            gradient_bytes=gradient_bytes,
            compute_s={model: compute_s * _SLOWER.get(model, 1.0) for model in self._gpu_models},
            workers=workers,
            graph=graph if draw.random() < 0.7 else None,
        )
        self._made += 1
        return spec, workers * iterations * (compute_s + moving_s)
