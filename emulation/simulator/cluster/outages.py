"""GPUs or whole servers that break and are mended, drawn as time goes on."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import Literal, NamedTuple

import numpy as np

from patchlight.controller.policies.contract import ClusterShape
from patchlight.testbed.errors import BadInput
from patchlight.testbed.files.issues import nearest

What = Literal["server", "gpu"]
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


class Outage(NamedTuple):
    """At ``at_s`` these GPUs break (``broken``) or are mended."""

    at_s: float
    gpus: int
    broken: bool


@dataclass(frozen=True, slots=True)
class Outages:
    """Each server (or GPU) by itself works and is broken in turn, for exponential times."""

    what: What
    mean_up_s: float
    mean_down_s: float

    def __post_init__(self) -> None:
        for mean_s in (self.mean_up_s, self.mean_down_s):
            if not (math.isfinite(mean_s) and mean_s > 0):
                raise BadInput(
                    f"a {self.what} cannot work or be broken for {mean_s} s in the "
                    "mean: expected more than 0 s"
                )

    @classmethod
    def parse(cls, text: str) -> Outages:
        """``"server:30d:4h"``: what breaks, mean time that it works, mean time to mend it."""
        parts = text.split(":")
        if len(parts) != 3:
            raise BadInput(
                f"{text!r} does not say what breaks: expected what:works:mended, like server:30d:4h"
            )
        if parts[0] == "server":
            return cls("server", _time(parts[1]), _time(parts[2]))
        if parts[0] == "gpu":
            return cls("gpu", _time(parts[1]), _time(parts[2]))
        raise BadInput(f"{parts[0]!r} cannot break: {nearest(parts[0], ('server', 'gpu'))}")

    def events(self, shape: ClusterShape, seed: int) -> Iterator[Outage]:
        """All that happens, in order, without end. Each part has random numbers of its own."""
        sets = (
            shape.server_gpus
            if self.what == "server"
            else [1 << gpu for gpu in range(len(shape.gpus))]
        )
        sets = [gpus for gpus in sets if gpus]
        streams = [
            np.random.default_rng(each)
            for each in np.random.SeedSequence([seed, 0x0FA1]).spawn(len(sets))
        ]
        following = [
            (float(rng.exponential(self.mean_up_s)), part, True) for part, rng in enumerate(streams)
        ]
        heapify(following)
        while following:
            at_s, part, broken = following[0]
            yield Outage(at_s, sets[part], broken)
            mean_s = self.mean_down_s if broken else self.mean_up_s
            heapreplace(following, (at_s + streams[part].exponential(mean_s), part, not broken))


def _time(text: str) -> float:
    """``"30d"``, ``"4h"``, ``"90min"``, ``"10s"`` → seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|min|h|d)", text.strip())
    if match is None:
        raise BadInput(f"{text!r} is not a time: expected a number with s, min, h or d, like 30d")
    return float(match[1]) * _UNITS[match[2]]
