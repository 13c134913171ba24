"""Plain rules for the partition degree: the baselines of PAC-ML's experiments.

Each takes a ``View`` and gives a degree; all keep to the mask, and refuse only when it leaves
nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from emulation.flow.lossnetwork import DegreePolicy, View


def constant(degree: int) -> DegreePolicy:
    """Always this degree, or the largest legal one when it is less (SiP-ML's rule)."""

    def choose(view: View) -> int:
        return min(degree, view.legal[-1])

    return choose


def maximum(view: View) -> int:
    """The largest legal degree (``Para_max``)."""
    return view.legal[-1]


def minimum(view: View) -> int:
    """The smallest legal degree of at least 1/β, else the largest (``Para_min``).

    It takes speed-up for proportional to the degree, so it just misses β = 1/2, 1/4, 1/8.
    """
    wanted = math.ceil(view.job.sequential_s / view.job.limit_s)
    return next((degree for degree in view.legal if degree >= wanted), view.legal[-1])


def sufficient(view: View) -> int:
    """The smallest legal degree above 1/β and of at least 2, else the largest."""
    wanted = max(2, math.floor(view.job.sequential_s / view.job.limit_s) + 1)
    return next((degree for degree in view.legal if degree >= wanted), view.legal[-1])


@dataclass
class RandomDegree:
    """Any legal degree but 0, each as likely; the seed fixes the choices."""

    seed: int = 0
    _rng: np.random.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)

    def __call__(self, view: View) -> int:
        """One of the legal degrees; 0 when nothing else is."""
        if len(view.legal) == 1:
            return 0
        return view.legal[1 + int(self._rng.integers(len(view.legal) - 1))]
