"""How long a job may take: laws of the fraction β of its time on one device.

A job is blocked if it takes longer than β times its time on one device. The four laws named A
to D are those of PAC-ML's experiments, with two decimals between 0.10 and 1.00: A uniform, and
B, C and D skewed normals leaning to strict, to neither, and to lenient requirements.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from patchlight.testbed.errors import BadInput

LEAST, MOST, DECIMALS = 0.1, 1.0, 2
DRAWS, BINS = 50_000, 1000


class RequirementLaw(Protocol):
    """Draws requirements; the same generator state gives the same ones."""

    @property
    def name(self) -> str:
        """As tables show it."""

    def shares(self, rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The fractions β that ``sample`` would now draw from, each in (0, 1], and how likely."""

    def sample(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        """``count`` fractions β, each in (0, 1]."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One of these values, each as likely."""

    name: str
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values or not all(0 < value <= 1 for value in self.values):
            raise BadInput(f"law {self.name!r}: expected values over 0 and up to 1")

    def shares(self, rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Each of the values with the same probability."""
        count = len(self.values)
        return np.array(self.values), np.full(count, 1 / count)

    def sample(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Each of the values with the same probability."""
        return rng.choice(np.array(self.values), size=count)


@dataclass(frozen=True, slots=True)
class SkewNormal:
    """A skewed normal squeezed into [0.1, 1], the way PAC-ML's experiments made theirs.

    Of 50,000 skew-normal numbers the least becomes 0 and the greatest 1; what is below 0.1
    becomes 0.1; jobs draw from a histogram of them. As two extremes decide the scale, each
    ``instance``, the seed of these numbers, is another law: under D some 3 to 10 jobs of 100
    ask for β ≤ 0.5. Instance 0 is, number for number, that of the peer's runs with seed 0;
    ``None`` makes a new one at each call of ``sample``.
    """

    name: str
    skewness: float
    instance: int | None = None

    def shares(self, rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The law's histogram."""
        if self.instance is None:
            return _histogram(self.skewness, int(rng.integers(2**32)))
        return _kept_histogram(self.skewness, self.instance)

    def sample(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Drawn from the law's histogram."""
        values, shares = self.shares(rng)
        return rng.choice(values, size=count, p=shares)


def _histogram(skewness: float, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    # The legacy generator and SciPy's way from two normals to a skew-normal one (Azzalini),
    # because the peer's law depends on each number drawn.
    rng = np.random.RandomState(seed)
    first, second = rng.normal(size=DRAWS), rng.normal(size=DRAWS)
    lean = skewness / math.sqrt(1 + skewness * skewness)
    drawn = np.where(first >= 0, 1, -1) * (lean * first + math.sqrt(1 - lean * lean) * second)
    drawn = (drawn - drawn.min()) / (drawn.max() - drawn.min()) * MOST
    counts, edges = np.histogram(np.maximum(drawn, LEAST), bins=BINS)
    return np.round(edges[1:], DECIMALS), counts / counts.sum()


_kept_histogram = lru_cache(_histogram)


def uniform(name: str, least: float = LEAST, most: float = MOST) -> Choice:
    """All hundredths from ``least`` to ``most``."""
    hundredths = range(round(least * 100), round(most * 100) + 1)
    return Choice(name, tuple(n / 100 for n in hundredths))


_SKEWNESS = {"B": 5.0, "C": 0.0, "D": -5.0}
LAW_NAMES = ("A", *_SKEWNESS)
"""The four laws of PAC-ML's experiments."""


def law(name: str, instance: int | None = None) -> RequirementLaw:
    """The law of this name, or one that is described; ``BadInput`` saying what there is.

    Described are ``uniform:0.2:0.6``, hundredths from the one to the other; ``skewed:-2``, a
    skewed normal like those of B, C and D with another skewness; ``values:0.25/0.5/1``, one of
    these, each as likely. ``instance``: ``SkewNormal``.
    """
    if name in LAW_NAMES:
        return SkewNormal(name, _SKEWNESS[name], instance) if name in _SKEWNESS else uniform(name)
    kind, _, written = name.partition(":")
    try:
        match kind:
            case "uniform":
                least, most = (float(each) for each in written.split(":"))
                if 0 < least <= most <= 1:
                    return uniform(name, least, most)
            case "skewed":
                if math.isfinite(skewness := float(written)):
                    return SkewNormal(name, skewness, instance)
            case "values":
                return Choice(name, tuple(float(each) for each in written.split("/")))
    except ValueError:
        pass
    raise BadInput(
        f"no requirement law {name!r}: expected one of {', '.join(LAW_NAMES)}, or one like "
        "uniform:0.2:0.6, skewed:-2 or values:0.25/0.5/1"
    )


def fixed(values: Sequence[float]) -> Choice:
    """A law of these values, each as likely."""
    return Choice("/".join(f"{value:g}" for value in values), tuple(values))
