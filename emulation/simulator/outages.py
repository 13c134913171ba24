"""Random failures and repairs of GPUs or whole servers."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal, NamedTuple, get_args

import numpy as np

from patchlight.controller.policies.contract import ClusterShape
from patchlight.testbed.errors import BadInput, nearest
from patchlight.testbed.units import parse_time

What = Literal["server", "gpu"]


class Outage(NamedTuple):
    """At ``at_s`` these GPUs, and this link, break (``broken``) or are mended; −1 is no link."""

    at_s: float
    gpus: int
    broken: bool
    link: int = -1


@dataclass(
    frozen=True,
    slots=True,
)
class Outages:
    """Each server (or GPU) by itself works and is broken in turn, for exponential times."""

    what: What
    mean_up_s: float
    mean_down_s: float

    def __post_init__(self) -> None:
        for mean_s in (self.mean_up_s, self.mean_down_s):
            if not (math.isfinite(mean_s) and mean_s > 0):
                raise BadInput(
                    f"a {self.what} cannot work or be in repair for {mean_s} s on average: "
                    f"expected more than 0 s"
                )

    @classmethod
    def parse(cls, text: str) -> Outages:
        """``"server:30d:4h"``: what breaks, mean time that it works, mean time to mend it."""
        parts = text.split(":")
        if len(parts) != 3:
            raise BadInput(
                f"{text!r} is not a failure model: expected WHAT:TIME-TO-FAILURE:TIME-TO-REPAIR, "
                f"like server:30d:4h"
            )
        for what in get_args(What):
            if what == parts[0]:
                return cls(what, parse_time(parts[1]), parse_time(parts[2]))
        raise BadInput(
            f"{parts[0]!r} cannot fail: {nearest(parts[0], get_args(What))}"
        )

    def events(self, shape: ClusterShape, seed: int) -> Iterator[Outage]:
        """All that happens, in order, without end. Each part has random numbers of its own."""
        server_gpus = [gpus for gpus in shape.server_gpus if gpus]
        single_gpus = [1 << gpu for gpu in range(len(shape.gpus))]
        parts = server_gpus if self.what == "server" else single_gpus
        children = np.random.SeedSequence([seed, 0x0FA1]).spawn(len(parts))
        for at_s, part, broken in heapq.merge(
            *(
                self._events_of(part, np.random.default_rng(child))
                for part, child in enumerate(children)
            )
        ):
            yield Outage(at_s, parts[part], broken)

    def events_until(
        self,
        horizon_s: float,
        parts: int,
        rng: np.random.Generator,
    ) -> tuple[Outage, ...]:
        """All that happens to ``parts`` single GPUs until ``horizon_s``, in order."""
        events = (
            event
            for part in range(parts)
            for event in takewhile(
                lambda e: e[0] <= horizon_s, self._events_of(part, rng)
            )
        )
        return tuple(
            Outage(at_s, 1 << part, broken)
            for at_s, part, broken in sorted(events)
        )

    def _events_of(
        self, part: int, rng: np.random.Generator
    ) -> Iterator[tuple[float, int, bool]]:
        at_s = 0.0
        broken = False
        while True:
            at_s += rng.exponential(
                self.mean_down_s if broken else self.mean_up_s
            )
            broken = not broken
            yield at_s, part, broken
