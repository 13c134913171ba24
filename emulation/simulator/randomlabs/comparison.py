"""Placements with their circuits beside each other: the same random labs, the same jobs.

Each pair of policies plays every lab's jobs to their end, first in, first out. What is told of a
pair is its mean completion time over that of the best of the built-in pairs, lab by lab: which one
is best is known only afterwards, so no single built-in pair does as well.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from patchlight.controller.policies.registry import load_policy
from patchlight.emulation.simulator.executors import Engine, run_all
from patchlight.emulation.simulator.ramp.episode_result import Interval, mean_and_interval
from patchlight.emulation.simulator.randomlabs.episodes import (
    Episode,
    draw_jobs,
    trace_of,
    traced_jobs,
)
from patchlight.emulation.simulator.traces import TraceJob
from patchlight.testbed.random_lab import random_lab

SIZES = ((8, 16), (17, 32), (33, 64), (65, 128), (129, 1024))
"""Labs are told apart by how many GPUs they have: from and to."""


class Pair(NamedTuple):
    """A placement policy and the topology policy beside it, by name."""

    placement: str
    topology: str = "keep"

    @property
    def name(self) -> str:
        """As one writes it."""
        return self.placement if self.topology == "keep" else f"{self.placement}+{self.topology}"

    @classmethod
    def parse(cls, text: str) -> "Pair":
        """``PLACEMENT`` or ``PLACEMENT+TOPOLOGY``."""
        placement, _, topology = text.partition("+")
        return cls(placement, topology or "keep")


BUILT_IN = tuple(
    Pair(placement, topology)
    for placement in ("consolidated", "rack-aware", "fragmentation-aware", "regroup")
    for topology in ("keep", "regroup")
)
"""The built-in pairs that others are measured by."""


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
    """The mean completion time of each pair in one lab, in seconds."""

    seed: int
    gpus: int
    mixed: bool
    jct_s: Mapping[str, float]


class Comparison(NamedTuple):
    """A pair beside the best built-in one, in some labs: ratios of mean completion times.

    ``over_best`` is over the best of each lab, ``over_one`` over ``one``, the built-in pair that
    is best in the mean of these labs; ``worst`` is the highest ratio to the best of a lab.
    """

    pair: str
    labs: int
    over_best: Interval
    one: str
    over_one: Interval
    worst: float


@dataclass(frozen=True)
class _Player:
    """Plays a lab with all pairs; copied to each process once."""

    drawn: Drawn
    pairs: Sequence[Pair]

    def __call__(self, seed: int) -> LabResult:
        episode = self.drawn.episode(seed)
        jct_s = {pair.name: played_jct_s(episode, pair) for pair in self.pairs}
        models = {gpu.model for server in episode.lab.servers for gpu in server.gpus}
        return LabResult(seed, len(episode.lab.hosts), len(models) > 1, jct_s)


def played_jct_s(episode: Episode, pair: Pair) -> float:
    """The mean completion time of an episode's jobs."""
    placement: Any = load_policy(pair.placement, "placement")
    topology: Any = None
    if pair.topology != "keep":
        topology = load_policy(pair.topology, "topology")
    return float(np.mean(episode.play(placement, topology).jobs["jct_s"]))


def compare(
    drawn: Drawn,
    pairs: Sequence[Pair],
    seeds: Sequence[int],
    engine: Engine,
    tell: Callable[[], None] | None = None,
) -> list[LabResult]:
    """Play the labs of these seeds with all built-in pairs and with ``pairs``."""
    wanted = tuple(dict.fromkeys((*BUILT_IN, *pairs)))
    return run_all(seeds, _Player(drawn, wanted), engine, tell)


def by_size(results: Sequence[LabResult], pair: Pair) -> dict[str, Comparison]:
    """A pair beside the built-in ones: all labs, those of each size, and those of mixed GPUs."""
    groups: dict[str, list[LabResult]] = {"all": list(results)}
    for least, most in SIZES:
        groups[f"{least} to {most} GPUs"] = [r for r in results if least <= r.gpus <= most]
    groups["one GPU model"] = [r for r in results if not r.mixed]
    groups["two GPU models"] = [r for r in results if r.mixed]
    return {name: _compared(rows, pair) for name, rows in groups.items() if len(rows) > 1}


def _compared(results: Sequence[LabResult], pair: Pair) -> Comparison:
    names = [each.name for each in BUILT_IN]
    best = [min(result.jct_s[name] for name in names) for result in results]

    def over(name: str) -> list[float]:
        ratios = zip(results, best, strict=True)
        return [result.jct_s[name] / least_s for result, least_s in ratios]

    one = min(names, key=lambda name: sum(over(name)))
    ratios = over(pair.name)
    over_one = [result.jct_s[pair.name] / result.jct_s[one] for result in results]
    return Comparison(
        pair.name,
        len(results),
        mean_and_interval(ratios),
        one,
        mean_and_interval(over_one),
        max(ratios),
    )
