"""What the iterations of a job that runs tell of it, where its spec does not say."""

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple, Self

from patchlight.testbed.errors import BadInput

LAST_ITERATIONS = 20
# Two rates this near are one: what differs between them is chance.
_SAME_RATE = 0.05


class Measured(NamedTuple):
    """Iterations took ``iteration_s`` while an edge of the ring had ``rate_bps``."""

    iteration_s: float
    rate_bps: float

    @classmethod
    def of(cls, durations_s: Sequence[float], rate_bps: float) -> Self:
        """The median of the last twenty iterations, all of them at this rate.

        ``BadInput`` for no iteration, or for what is no time.
        """
        last = list(durations_s[-LAST_ITERATIONS:])
        if not last or not all(0 < each < math.inf for each in last):
            raise BadInput(
                f"iterations cannot have taken {last[:5]} s: expected at least one, of more than 0"
            )
        return cls(median(last), rate_bps)

    def is_at(self, rate_bps: float) -> bool:
        """Whether it was measured at this rate, within 5 %."""
        return math.isclose(self.rate_bps, rate_bps, rel_tol=_SAME_RATE)


def learned_work(
    compute_s: float, bits: float, measured: Sequence[Measured]
) -> tuple[float, float]:
    """Seconds of computing and bits on each edge of an iteration; ``nan`` is what is not known.

    T = C + V/B, solved for what is missing. One measurement, the last, gives C where V is
    known, and V where C is known; the last two at different rates give both. What is known
    already stays as it is.
    """
    if not measured or not (math.isnan(compute_s) or math.isnan(bits)):
        return compute_s, bits
    last = measured[-1]
    if not math.isnan(bits):
        return max(0.0, last.iteration_s - bits / last.rate_bps), bits
    if not math.isnan(compute_s):
        return compute_s, max(0.0, (last.iteration_s - compute_s) * last.rate_bps)
    other = next((each for each in reversed(measured) if not each.is_at(last.rate_bps)), None)
    if other is None:
        return compute_s, bits
    slope = (last.iteration_s - other.iteration_s) / (1 / last.rate_bps - 1 / other.rate_bps)
    bits = min(max(0.0, slope), last.iteration_s * last.rate_bps)
    return last.iteration_s - bits / last.rate_bps, bits
