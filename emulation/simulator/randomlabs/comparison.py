"""Policies for labs beside each other: the same random labs, the same jobs.

Each choice of policies plays every lab's jobs to their end. What is told of a choice is its mean
completion time over that of the best of the built-in pairs, lab by lab: which one is best is known
only afterwards, so no single built-in pair does as well.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from patchlight.controller.policies.registry import load_policy
from patchlight.emulation.simulator.cluster.sweep import AS_ASKED
from patchlight.emulation.simulator.executors import Engine, run_all
from patchlight.emulation.simulator.ramp.episode_result import Interval, mean_and_interval
from patchlight.emulation.simulator.randomlabs.episodes import (
    Episode,
    draw_jobs,
    trace_of,
    traced_jobs,
)
from patchlight.emulation.simulator.traces import TraceJob
from patchlight.testbed.errors import BadInput
from patchlight.testbed.generate.generate import random_lab

SIZES = ((8, 16), (17, 32), (33, 64), (65, 128), (129, 1024))
"""Labs are told apart by how many GPUs they have: from and to."""

_DEFAULTS = ("keep", "fifo", "rigid", AS_ASKED)


class Policies(NamedTuple):
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
            None if self.topology == "keep" else load_policy(self.topology, "topology"),
            load_policy(self.order, "order"),
            None if self.elasticity == "rigid" else load_policy(self.elasticity, "elasticity"),
            None if self.partition == AS_ASKED else load_policy(self.partition, "partition"),
        )

    @classmethod
    def parse(cls, text: str, order: str = "fifo") -> "Policies":
        """``PLACEMENT``, and up to four more with a ``+`` each; this order where it names none."""
        names = text.split("+")
        if len(names) > len(cls._fields) or not all(names):
            raise BadInput(
                f"{text!r} names no policies: expected PLACEMENT, and of +TOPOLOGY+ORDER+ELASTICITY"
                "+PARTITION as many as are to be others than keep, fifo, rigid and as-asked, like "
                "regroup+regroup+srpt"
            )
        found = cls(*names)
        return found if len(names) > 2 else found._replace(order=order)


def built_in(order: str = "fifo") -> tuple[Policies, ...]:
    """The built-in pairs of placement and topology that others are measured by, with an order."""
    return tuple(
        Policies(placement, topology, order)
        for placement in ("consolidated", "rack-aware", "fragmentation-aware", "regroup")
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
            return Episode(lab, draw_jobs(lab, seed, self.jobs, self.load))
        return Episode(lab, traced_jobs(lab, self._traced, seed, self.jobs, self.load))

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
    of means over ``one``, the pair that is best in the mean of these labs.
    """

    policies: str
    labs: int
    over_best: Interval
    p95_over_best: Interval
    one: str
    over_one: Interval
    worst: float


@dataclass(frozen=True)
class _Player:
    """Plays a lab with all pairs; copied to each process once."""

    drawn: Drawn
    choices: Sequence[Policies]

    def __call__(self, seed: int) -> LabResult:
        episode = self.drawn.episode(seed)
        jct_s = {each.name: played_jct_s(episode, each) for each in self.choices}
        mean_s = {name: float(np.mean(times_s)) for name, times_s in jct_s.items()}
        p95_s = {name: float(np.percentile(times_s, 95)) for name, times_s in jct_s.items()}
        models = {gpu.model for server in episode.lab.servers for gpu in server.gpus}
        return LabResult(seed, len(episode.lab.hosts), len(models) > 1, mean_s, p95_s)


def played_jct_s(episode: Episode, policies: Policies) -> Sequence[float]:
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
    choices: Sequence[Policies],
    seeds: Sequence[int],
    engine: Engine,
    tell: Callable[[], None] | None = None,
) -> list[LabResult]:
    """Play the labs of these seeds with each choice."""
    wanted = tuple(dict.fromkeys(choices))
    return run_all(seeds, _Player(drawn, wanted), engine, tell)


def by_size(
    results: Sequence[LabResult], policies: Policies, pairs: Sequence[Policies]
) -> dict[str, Comparison]:
    """Policies beside these pairs: in all labs, those of each size, of one GPU model and of two."""
    groups: dict[str, list[LabResult]] = {"all": list(results)}
    for least, most in SIZES:
        groups[f"{least} to {most} GPUs"] = [r for r in results if least <= r.gpus <= most]
    groups["one GPU model"] = [r for r in results if not r.mixed]
    groups["two GPU models"] = [r for r in results if r.mixed]
    names = [each.name for each in pairs]
    groups = {name: rows for name, rows in groups.items() if len(rows) > 1}
    return {name: _compared(rows, policies.name, names) for name, rows in groups.items()}


def _compared(results: Sequence[LabResult], name: str, pairs: Sequence[str]) -> Comparison:
    best = [min(pairs, key=result.jct_s.__getitem__) for result in results]

    def over(name: str) -> list[float]:
        ratios = zip(results, best, strict=True)
        return [result.jct_s[name] / result.jct_s[least] for result, least in ratios]

    one = min(pairs, key=lambda pair: sum(over(pair)))
    tails = [r.jct_p95_s[name] / r.jct_p95_s[least] for r, least in zip(results, best, strict=True)]
    return Comparison(
        name,
        len(results),
        mean_and_interval(over(name)),
        mean_and_interval(tails),
        one,
        mean_and_interval([result.jct_s[name] / result.jct_s[one] for result in results]),
        max(over(name)),
    )
