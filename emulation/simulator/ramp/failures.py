"""Servers that break and are mended, drawn before an episode begins."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from patchlight.testbed.errors import BadInput


class ServerEvent(NamedTuple):
    """At ``at_s`` a server breaks (``broken``) or is mended."""

    at_s: float
    server: int
    broken: bool


@dataclass(frozen=True, slots=True)
class Failures:
    """Each server by itself works and is broken in turn, both for exponential times.

    A job on a server that breaks is lost; the server takes none until it is mended.
    """

    mean_up_s: float
    mean_down_s: float

    def __post_init__(self) -> None:
        for mean_s in (self.mean_up_s, self.mean_down_s):
            if not (math.isfinite(mean_s) and mean_s > 0):
                raise BadInput(
                    f"servers cannot work or be broken for {mean_s} s in the mean: "
                    "expected more than 0 s"
                )

    def events(
        self, rng: np.random.Generator, servers: int, horizon_s: float
    ) -> tuple[ServerEvent, ...]:
        """All that happens to ``servers`` servers until ``horizon_s``, in order."""
        found: list[ServerEvent] = []
        for server in range(servers):
            now, broken = 0.0, False
            while True:
                now += rng.exponential(self.mean_down_s if broken else self.mean_up_s)
                broken = not broken
                if now > horizon_s:
                    break
                found.append(ServerEvent(now, server, broken))
        return tuple(sorted(found))
