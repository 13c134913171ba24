"""What a placed job has to do: units of work, each of some computing and some bits to move."""

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

from patchlight.testbed.errors import BadInput

UNLIMITED_BPS = 1e15
"""The rate of a link for which the lab file sets no limit."""


class Training(NamedTuple):
    """Synchronous data-parallel training, as in the lab's ``JobSpec``.

    ``gradient_bytes`` are those of one gradient, ``compute_s`` the seconds of one iteration by
    GPU model; the slowest GPU of a job sets its pace. Where an iteration's work is ``split`` over
    the workers, n of them compute for an n-th of that each.
    """

    iterations: float
    gradient_bytes: float
    compute_s: Mapping[str, float]
    split: bool = False

    def slowest_s(self, workers: int, models: Collection[str]) -> float:
        """How long so many workers on GPUs of these models compute in an iteration."""
        slowest_s = max(self.compute_s[model] for model in models)
        return slowest_s / workers if self.split else slowest_s


class Load(NamedTuple):
    """A placed job's work: so many units, each of some computing and some bits on each edge."""

    units: float
    compute_s: float
    ring_bits: float

    def unit_s(self, rate_bps: float) -> float:
        """How long a unit takes where an edge of the ring has this rate.

        T = C + V/B, computing and communication one after the other. Infinity at rate 0.
        """
        if not self.ring_bits:
            return self.compute_s
        return self.compute_s + self.ring_bits / rate_bps if rate_bps else math.inf

    def mean_bps(self, rate_bps: float) -> float:
        """What an edge of the ring carries, on the mean over a unit, where it has this rate."""
        return self.ring_bits / self.unit_s(rate_bps) if self.ring_bits else 0.0


def ring_bits(workers: int, gradient_bytes: float) -> float:
    """What a ring all-reduce sends over each edge: V = 2(n−1)/n · 8 · bytes.

    Patarasuk and Yuan, JPDC 2009.
    """
    return 2 * (workers - 1) / workers * 8 * gradient_bytes


def training_load(name: str, training: Training, workers: int, models: Collection[str]) -> Load:
    """The work of a training on so many GPUs, of these models; a unit is an iteration.

    ``BadInput`` if the training does not know a model.
    """
    compute_s = training.compute_s
    unknown = sorted({model for model in models if model not in compute_s})
    if unknown:
        raise BadInput(
            f"job {name} does not know how long an iteration takes on "
            f"{', '.join(unknown)}: it knows {', '.join(compute_s)}"
        )
    slowest_s = training.slowest_s(workers, models)
    if not 0 < slowest_s < math.inf:
        raise BadInput(f"job {name}: an iteration cannot take {slowest_s} s to compute")
    return Load(training.iterations, slowest_s, ring_bits(workers, training.gradient_bytes))
