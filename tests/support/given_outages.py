"""Outages that a test draws in whole seconds, in place of those that chance makes."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from hypothesis import strategies as st

from patchlight.controller.policies.contract import ClusterShape
from patchlight.emulation.simulator.outages import Outage, Outages

LATEST_S = 60


@dataclass(frozen=True)
class GivenOutages(Outages):
    """For each part that breaks its GPUs, and from when to when it is broken, in whole seconds."""

    what: str = "gpu"  # type: ignore[assignment]
    mean_up_s: float = 1.0
    mean_down_s: float = 1.0
    parts: tuple[tuple[frozenset[int], tuple[tuple[int, int], ...]], ...] = ()

    def events(self, shape: ClusterShape, seed: int) -> Iterator[Outage]:
        found = []
        for gpus, spans in self.parts:
            bits = sum(1 << gpu for gpu in gpus)
            for broken_s, mended_s in spans:
                found += [Outage(broken_s, bits, True), Outage(mended_s, bits, False)]
        return iter(sorted(found))

    def broken_at(self, second: Fraction | int) -> frozenset[int]:
        """The GPUs that are broken then."""
        return frozenset().union(
            *(gpus for gpus, spans in self.parts if any(a <= second < b for a, b in spans))
        )


def _spans(moments: set[int]) -> tuple[tuple[int, int], ...]:
    ordered = sorted(moments)
    return tuple(pairwise(ordered))[::2]


_SPANS = st.sets(st.integers(1, LATEST_S), max_size=4).map(_spans)


def outages_of(parts: list[frozenset[int]]) -> st.SearchStrategy[GivenOutages]:
    """Each part breaks twice at most, and is mended."""
    return st.tuples(*(_SPANS for _ in parts)).map(
        lambda spans: GivenOutages(parts=tuple(zip(parts, spans, strict=True)))
    )


def gpu_outages(gpus: int) -> st.SearchStrategy[GivenOutages]:
    """Of single GPUs."""
    return outages_of([frozenset([gpu]) for gpu in range(gpus)])
