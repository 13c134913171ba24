"""Partition policies: plain rules for how many parts a job is split into.

They are the baselines of PAC-ML's experiments (Parsonson et al., arXiv 2301.13799). All keep to
the legal degrees, and refuse only where there is no other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from patchlight.controller.policies.contract import ClusterView, JobView
from patchlight.testbed.errors import BadInput

if TYPE_CHECKING:
    import numpy as np


class Constant:
    """Always this degree, or the largest legal one if that is less."""

    def __init__(self, degree: int) -> None:
        if degree < 1:
            raise BadInput(f"cannot split a job into {degree} parts: expected 1 or more")
        self._wanted = degree

    def __repr__(self) -> str:
        return f"Constant({self._wanted})"

    def degree(self, cluster: ClusterView, job: JobView, legal: tuple[int, ...]) -> int:
        return min(self._wanted, legal[-1])


@dataclass(frozen=True, slots=True)
class Maximum:
    """The largest legal degree: SiP-ML's rule, and PAC-ML's ``Para_max``.

    Khani et al., "SiP-ML: High-Bandwidth Optical Network Interconnects for Machine Learning
    Training", SIGCOMM 2021.
    """

    def degree(self, cluster: ClusterView, job: JobView, legal: tuple[int, ...]) -> int:
        return legal[-1]


@dataclass(frozen=True, slots=True)
class Minimum:
    """The smallest legal degree of at least 1/β, else the largest: PAC-ML's ``Para_min``.

    β is the part of its time on one GPU that a job may take. The rule takes speed-up for
    proportional to the degree, so it just misses β = 1/2, 1/4, 1/8.
    """

    def degree(self, cluster: ClusterView, job: JobView, legal: tuple[int, ...]) -> int:
        return _least(legal, math.ceil(_speed_up(job)))


@dataclass(frozen=True, slots=True)
class Sufficient:
    """The smallest legal degree above 1/β and of at least 2, else the largest."""

    def degree(self, cluster: ClusterView, job: JobView, legal: tuple[int, ...]) -> int:
        return _least(legal, max(2, math.floor(_speed_up(job)) + 1))


@dataclass
class RandomDegree:
    """Any legal degree but 0, each as likely; the seed fixes the choices."""

    seed: int = 0
    _rng: np.random.Generator = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Not above: a controller starts without NumPy.
        import numpy as np

        self._rng = np.random.default_rng(self.seed)

    def degree(self, cluster: ClusterView, job: JobView, legal: tuple[int, ...]) -> int:
        if len(legal) == 1:
            return 0
        return legal[1 + int(self._rng.integers(len(legal) - 1))]


def _speed_up(job: JobView) -> float:
    """How much faster than on one GPU the job has to be: 1/β, 1 where it may take its time."""
    ratio = job.sequential_s / job.limit_s
    return ratio if ratio > 1.0 else 1.0


def _least(legal: tuple[int, ...], wanted: int) -> int:
    for degree in legal:
        if degree >= wanted:
            return degree
    return legal[-1]
