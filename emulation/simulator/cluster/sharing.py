"""How rings share links: max-min fair, each ring as fast as its slowest edge.

A ring all-reduce moves in step, so all edges of a job's ring go at one rate, and a job that
sends several edges over a link takes as many shares of it. Rates of all jobs rise together
until a link is full; its jobs stay there and the others go on (progressive filling, Bertsekas
and Gallager, *Data Networks*, 1992, §6.5.2, with a job's edges as one session).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence

Demand = Mapping[Hashable, int]
"""For each directed link that a ring uses, how many of its edges are on it."""


def fair_rates(
    demands: Sequence[Demand], capacity_bps: Mapping[Hashable, float], most_bps: float = math.inf
) -> list[float]:
    """The rate in bit/s of an edge of each ring, ``most_bps`` where no link holds it up more."""
    rates = [most_bps] * len(demands)
    settled = [False] * len(demands)
    left = {link: capacity_bps[link] for demand in demands for link in demand}
    weight = dict.fromkeys(left, 0)
    rings_on: dict[Hashable, list[int]] = {link: [] for link in left}
    for ring, demand in enumerate(demands):
        for link, edges in demand.items():
            weight[link] += edges
            rings_on[link].append(ring)
    while weight:
        full = min(weight, key=lambda link: left[link] / weight[link])
        rate = left[full] / weight[full]
        if rate >= most_bps:
            break
        for ring in rings_on[full]:
            if settled[ring]:
                continue
            rates[ring], settled[ring] = rate, True
            for link, edges in demands[ring].items():
                left[link] = max(0.0, left[link] - edges * rate)
                weight[link] -= edges
                if not weight[link]:
                    del weight[link]
    return rates
