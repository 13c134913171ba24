"""Random labs and jobs, and policies compared in many of them.

Each choice of policies plays the same labs' jobs to their end. Its figure is the mean completion
time over that of the best of the built-in pairs, lab by lab: which one is best is known only
afterwards, so no single built-in pair does as well.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from patchlight.controller.policies import contract
from patchlight.controller.policies.order import Fifo
from patchlight.controller.policies.registry import load_policy
from patchlight.controller.prediction.network import slowest_nic_bps
from patchlight.emulation.simulator.cluster import (
    LabCluster,
    Policies,
    QueueJob,
    QueueResult,
    Settings,
    simulate,
)
from patchlight.emulation.simulator.cluster.jobs import (
    elastic,
    jobs_of_specs,
    opened,
)
from patchlight.emulation.simulator.cluster.sweep import AS_ASKED
from patchlight.emulation.simulator.executors import Engine, run_all
from patchlight.emulation.simulator.ramp.scenario import Ratio
from patchlight.emulation.simulator.traces.files import (
    LAWS,
    is_drawn,
    read_trace,
)
from patchlight.emulation.simulator.traces.model import TraceJob
from patchlight.testbed.errors import BadInput
from patchlight.testbed.generate.generate import random_lab
from patchlight.testbed.graphs import builtin_graph
from patchlight.testbed.jobs import JobSpec
from patchlight.testbed.lab.model import Lab

_MODELS = ("alexnet", "resnet18", "resnet50", "vgg16", "bert-large", "gpt2")
_SIZES = {
    1: 0.25,
    2: 0.2,
    4: 0.25,
    8: 0.2,
    16: 0.1,
}
_SLOWER = {"fast": 1.0, "slow": 2.0}
_MEDIAN_S = 1144.0
_SPREAD = 1.3
_LAW_JOBS = 20_000  # are drawn of a law; episodes are pieces of them
_MOST_ITERATIONS = (
    10_000_000  # A job has no more; the longest of a trace are cut there.
)


@dataclass(frozen=True)
class Episode:
    """A lab and the jobs that come to it."""

    lab: Lab
    jobs: list[QueueJob]

    def play(
        self,
        placement: contract.PlacementPolicy,
        topology: contract.TopologyPolicy | None = None,
        order: contract.OrderPolicy | None = None,
        elasticity: contract.ElasticityPolicy | None = None,
        partition: contract.PartitionPolicy | None = None,
    ) -> QueueResult:
        """Run all jobs to their end; first in, first out if no order is given."""
        policies = Policies(
            order or Fifo(),
            placement,
            topology,
            elasticity,
            partition,
        )
        return simulate(
            LabCluster(self.lab),
            self.jobs,
            policies,
            Settings(),
        )

    def elastic(self) -> "Episode":
        """The same where jobs of several workers may have half or twice as many while they run."""
        return Episode(self.lab, [elastic(job) for job in self.jobs])

    def opened(self) -> "Episode":
        """The same where a partition policy says how many GPUs jobs get: up to half of the lab's,
        and 16 at most, whatever they wanted.
        """
        most = min(max(_SIZES), len(self.lab.hosts) // 2)
        return Episode(self.lab, [opened(job, most) for job in self.jobs])


def draw_jobs(
    lab: Lab,
    seed: int,
    count: int,
    load: float,
) -> list[QueueJob]:
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
        found += jobs_of_specs(
            lab,
            [spec],
            "",
            at_s,
        )
        at_s += maker.draw.expovariate(1 / gap_s)
    return found


def trace_of(trace: str | Path, largest: int) -> list[TraceJob]:
    """The jobs of a file, or of a law that has this name, for labs of up to ``largest`` GPUs."""
    return (
        LAWS[str(trace)].draw(0, _LAW_JOBS, largest)
        if is_drawn(trace)
        else read_trace(trace)
    )


def traced_jobs(
    lab: Lab,
    trace: Sequence[TraceJob],
    seed: int,
    count: int,
    load: float,
) -> list[QueueJob]:
    """So many jobs of a trace that follow each other, from a place in it that is drawn.

    Arrivals, sizes and durations are the trace's; what jobs compute and move is drawn as for
    others, as traces do not tell. Jobs that want more than half of the lab's GPUs are left out, and
    the others come at the pace at which they make this ``load``. ``BadInput`` for a trace of fewer
    such jobs.
    """
    hosts = len(lab.hosts)
    fitting = [
        job
        for job in trace
        if 1 <= job.gpus <= hosts // 2 and job.duration_s > 0
    ]
    if len(fitting) < count:
        raise BadInput(
            f"the trace has {len(fitting)} jobs of up to {hosts // 2} GPUs: expected {count}",
            hint="use fewer jobs per lab, or a longer trace",
        )
    draw = random.Random(f"trace {seed}")
    first = draw.randint(0, len(fitting) - count)
    jobs = fitting[first : first + count]
    maker = _JobMaker(lab, draw)
    drawn = [maker.make(job.gpus, job.duration_s) for job in jobs]
    span_s = max(1.0, jobs[-1].submitted_s - jobs[0].submitted_s)
    pace = sum(gpu_s for _, gpu_s in drawn) / (load * hosts) / span_s
    found: list[QueueJob] = []
    for job, (spec, _) in zip(jobs, drawn, strict=True):
        found += jobs_of_specs(
            lab,
            [spec],
            "",
            pace * (job.submitted_s - jobs[0].submitted_s),
        )
    return found


class _JobMaker:
    """Draws what jobs of a lab are, and how many seconds of GPUs each takes."""

    def __init__(self, lab: Lab, draw: random.Random) -> None:
        self.draw = draw
        self._nic_bps = slowest_nic_bps(lab)
        self._made = 0
        self._gpu_models = {
            gpu.model for server in lab.servers for gpu in server.gpus
        }
        hosts = len(lab.hosts)
        self._sizes = {
            size: odds for size, odds in _SIZES.items() if size <= hosts // 2
        }

    def make(
        self, workers: int = 0, lasts_s: float = 0.0
    ) -> tuple[JobSpec, float]:
        """A job of so many workers that lasts so long on the fastest GPUs; drawn where 0."""
        draw = self.draw
        graph = draw.choice(_MODELS)
        gradient_bytes = int(builtin_graph(graph).parameter_bytes)
        moving_s = 16 * gradient_bytes / self._nic_bps
        compute_s = min(60.0, moving_s * draw.uniform(1.0, 9.0))
        if not workers:
            lasts_s = min(
                draw.lognormvariate(math.log(_MEDIAN_S), _SPREAD), 86_400.0
            )
            workers = draw.choices(
                list(self._sizes), list(self._sizes.values())
            )[0]
        iterations = max(
            2, min(_MOST_ITERATIONS, round(lasts_s / (compute_s + moving_s)))
        )
        spec = JobSpec(
            f"job{self._made}",
            iterations=iterations,
            gradient_bytes=gradient_bytes,
            compute_s={
                model: compute_s * _SLOWER.get(model, 1.0)
                for model in self._gpu_models
            },
            workers=workers,
            graph=graph if draw.random() < 0.7 else None,
        )
        self._made += 1
        return spec, workers * iterations * (compute_s + moving_s)


SIZES = ((8, 16), (17, 32), (33, 64), (65, 128), (129, 1024))
"""Labs are told apart by how many GPUs they have: from and to."""

_DEFAULTS = ("keep", "fifo", "rigid", AS_ASKED)


class PlayedPolicies(NamedTuple):
    """A placement policy, and the policies of other kinds beside it, by name."""

    placement: str
    topology: str = _DEFAULTS[0]
    order: str = _DEFAULTS[1]
    elasticity: str = _DEFAULTS[2]
    partition: str = _DEFAULTS[3]

    @property
    def name(self) -> str:
        """As one writes it."""
        names = list(self)
        while len(names) > 1 and names[-1] == _DEFAULTS[len(names) - 2]:
            names.pop()
        return "+".join(names)

    def load(self) -> tuple[Any, Any, Any, Any, Any]:
        """New ones, as ``Episode.play`` takes them; none that would change nothing."""
        return (
            load_policy(self.placement, "placement"),
            None
            if self.topology == "keep"
            else load_policy(self.topology, "topology"),
            load_policy(self.order, "order"),
            None
            if self.elasticity == "rigid"
            else load_policy(self.elasticity, "elasticity"),
            None
            if self.partition == AS_ASKED
            else load_policy(self.partition, "partition"),
        )

    @classmethod
    def parse(cls, text: str, order: str = "fifo") -> "PlayedPolicies":
        """``PLACEMENT``, and up to four more with a ``+`` each; this order where it names none."""
        names = text.split("+")
        if len(names) > len(cls._fields) or not all(names):
            raise BadInput(
                f"{text!r} names no policies: expected PLACEMENT, optionally with +TOPOLOGY+ORDER"
                "+ELASTICITY+PARTITION (default: keep, fifo, rigid, as-asked), like "
                "regroup+regroup+srpt"
            )
        found = cls(*names)
        return found if len(names) > 2 else found._replace(order=order)


def built_in(order: str = "fifo") -> tuple[PlayedPolicies, ...]:
    """The built-in pairs of placement and topology that others are measured by, with an order."""
    return tuple(
        PlayedPolicies(placement, topology, order)
        for placement in (
            "consolidated",
            "rack-aware",
            "fragmentation-aware",
            "regroup",
        )
        for topology in ("keep", "regroup")
    )


@dataclass(frozen=True)
class Drawn:
    """Which labs and jobs: ``jobs`` come to each at ``load``, of ``trace`` where there is one.

    ``largest`` is the number of GPUs of the largest lab. ``trace`` is a file, or the name of a law.
    """

    jobs: int = 120
    load: float = 1.1
    largest: int = 128
    trace: Path | None = None

    def episode(self, seed: int) -> Episode:
        """The lab and the jobs of a seed."""
        lab = random_lab(seed, self.largest)
        if self.trace is None:
            return Episode(
                lab,
                draw_jobs(
                    lab,
                    seed,
                    self.jobs,
                    self.load,
                ),
            )
        return Episode(
            lab,
            traced_jobs(
                lab,
                self._traced,
                seed,
                self.jobs,
                self.load,
            ),
        )

    @cached_property
    def _traced(self) -> Sequence[TraceJob]:
        assert self.trace is not None  # Others have no use for it.
        return trace_of(self.trace, self.largest)


class LabResult(NamedTuple):
    """The mean completion time of each choice in one lab, and their 95th percentile, in seconds."""

    seed: int
    gpus: int
    mixed: bool
    jct_s: Mapping[str, float]
    jct_p95_s: Mapping[str, float]


class Comparison(NamedTuple):
    """A choice of policies beside the built-in pairs, in some labs: ratios of completion times.

    ``over_best`` is of means, over the pair that is best in each lab; ``p95_over_best`` of 95th
    percentiles, over the same pair; ``worst`` the highest ratio of means in a lab. ``over_one`` is
    of means over ``one``, the pair that is best in the mean of these labs (geometric means).
    """

    policies: str
    labs: int
    over_best: Ratio
    p95_over_best: Ratio
    one: str
    over_one: Ratio
    worst: float


@dataclass(frozen=True)
class _Player:
    """Plays a lab with all pairs; copied to each process once."""

    drawn: Drawn
    choices: Sequence[PlayedPolicies]

    def __call__(self, seed: int) -> LabResult:
        episode = self.drawn.episode(seed)
        jct_s = {
            each.name: played_jct_s(episode, each) for each in self.choices
        }
        mean_s = {
            name: float(np.mean(times_s)) for name, times_s in jct_s.items()
        }
        p95_s = {
            name: float(np.percentile(times_s, 95))
            for name, times_s in jct_s.items()
        }
        models = {
            gpu.model for server in episode.lab.servers for gpu in server.gpus
        }
        return LabResult(
            seed,
            len(episode.lab.hosts),
            len(models) > 1,
            mean_s,
            p95_s,
        )


def played_jct_s(
    episode: Episode, policies: PlayedPolicies
) -> Sequence[float]:
    """The completion times of an episode's jobs, in seconds.

    Where an elasticity policy decides, jobs of several workers may have other numbers of them,
    where a partition policy does, all jobs.
    """
    if policies.partition != AS_ASKED:
        episode = episode.opened()
    elif policies.elasticity != "rigid":
        episode = episode.elastic()
    times_s: Sequence[float] = episode.play(*policies.load()).jobs["jct_s"]
    return times_s


def compare(
    drawn: Drawn,
    choices: Sequence[PlayedPolicies],
    seeds: Sequence[int],
    engine: Engine,
    tell: Callable[[], None] | None = None,
) -> list[LabResult]:
    """Play the labs of these seeds with each choice."""
    wanted = tuple(dict.fromkeys(choices))
    return run_all(
        seeds,
        _Player(drawn, wanted),
        engine,
        tell,
    )


def by_size(
    results: Sequence[LabResult],
    policies: PlayedPolicies,
    pairs: Sequence[PlayedPolicies],
) -> dict[str, Comparison]:
    """Policies beside these pairs: in all labs, those of each size, of one GPU model and of two."""
    groups: dict[str, list[LabResult]] = {"all": list(results)}
    for least, most in SIZES:
        groups[f"{least} to {most} GPUs"] = [
            r for r in results if least <= r.gpus <= most
        ]
    groups["one GPU model"] = [r for r in results if not r.mixed]
    groups["two GPU models"] = [r for r in results if r.mixed]
    names = [each.name for each in pairs]
    groups = {name: rows for name, rows in groups.items() if len(rows) > 1}
    return {
        name: _compared(rows, policies.name, names)
        for name, rows in groups.items()
    }


def _compared(
    results: Sequence[LabResult],
    name: str,
    pairs: Sequence[str],
) -> Comparison:
    best = [min(pairs, key=result.jct_s.__getitem__) for result in results]

    def over(name: str) -> list[float]:
        ratios = zip(results, best, strict=True)
        return [
            result.jct_s[name] / result.jct_s[least]
            for result, least in ratios
        ]

    one = min(pairs, key=lambda pair: sum(map(math.log, over(pair))))
    tails = [
        r.jct_p95_s[name] / r.jct_p95_s[least]
        for r, least in zip(results, best, strict=True)
    ]
    return Comparison(
        name,
        len(results),
        Ratio.of(over(name)),
        Ratio.of(tails),
        one,
        Ratio.of(
            [result.jct_s[name] / result.jct_s[one] for result in results]
        ),
        max(over(name)),
    )
