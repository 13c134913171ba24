"""Jobs drawn by chance, for learning and for tests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from patchlight.controller.policies.contract import JobView
from patchlight.emulation.simulator.cluster.jobs import QueueJob
from patchlight.testbed.errors import BadInput

# More large jobs than in the Philly trace, where 93 % want one GPU: places matter more here.
_SIZES = MappingProxyType({1: 0.5, 2: 0.15, 4: 0.15, 8: 0.15, 16: 0.05})
_LONGEST_S = 10 * 86400.0


@dataclass(frozen=True)
class SyntheticJobs:
    """Poisson arrivals, log-normal durations, sizes by chance, each by itself.

    ``load`` is the part of the cluster's GPUs that would be held in the mean if no job waited
    or was slowed down. Median and mean duration are the Philly trace's; ten days is the
    longest. ``sizes`` gives the odds of each number of GPUs; sizes that the cluster does not
    have are left out.
    """

    count: int = 200
    load: float = 0.8
    median_s: float = 1144.0
    mean_s: float = 13136.0
    communication: float = 0.25
    sizes: Mapping[int, float] = field(default_factory=lambda: _SIZES)

    def __post_init__(self) -> None:
        if self.count < 1 or not 0 < self.load < math.inf:
            raise BadInput(
                f"cannot draw {self.count} jobs at load {self.load}: expected at least "
                "1, and more than 0"
            )
        if not 0 < self.median_s <= self.mean_s < math.inf:
            raise BadInput(
                f"durations cannot have the median {self.median_s} s and the mean {self.mean_s} "
                "s: expected more than 0, and a mean that is not below the median"
            )
        if not 0 <= self.communication < 1:
            raise BadInput(f"jobs cannot communicate for {self.communication} of their time")

    def draw(self, rng: np.random.Generator, gpus: int) -> list[QueueJob]:
        """The jobs for a cluster of so many GPUs; the first comes at 0 s."""
        sizes = [size for size in self.sizes if 1 <= size <= gpus]
        if not sizes:
            raise BadInput(
                f"none of the sizes {', '.join(map(str, self.sizes))} fits on {gpus} GPUs"
            )
        odds = np.array([float(self.sizes[size]) for size in sizes])
        odds /= odds.sum()
        gap_s = float(odds @ np.array(sizes)) * self.mean_s / (self.load * gpus)
        arrivals = np.concatenate(([0.0], np.cumsum(rng.exponential(gap_s, self.count - 1))))
        spread = math.sqrt(2 * math.log(self.mean_s / self.median_s))
        durations = np.minimum(
            rng.lognormal(math.log(self.median_s), spread, self.count), _LONGEST_S
        )
        workers = rng.choice(sizes, self.count, p=odds)
        return [
            QueueJob(
                JobView(
                    name=str(number), workers=size, arrived_s=at_s, sequential_s=lasts_s * size
                ),
                lasts_s,
                self.communication if size > 1 else 0.0,
            )
            for number, (at_s, lasts_s, size) in enumerate(
                zip(arrivals.tolist(), durations.tolist(), workers.tolist(), strict=True)
            )
        ]
