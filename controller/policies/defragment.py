"""Which running jobs are worth bringing under one packet switch, by light alone.

Jobs that came to be spread over the switches stay so after others have ended and made room. Their
GPUs stay; their light moves, at an iteration's end, where what that gains is more than it costs.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from patchlight.controller.policies.cheapest import Maps, Prices, WiringPrice
from patchlight.controller.policies.contract import ClusterView, RingOfJob

LOOKED_AT_EVERY_S = 600.0
"""How often light is looked at, beside each end of a job."""

MINIMUM_GAIN_S = 10.0
"""Less, over all jobs together, is left alone: a prediction is not that exact."""

# Of up to so many spread jobs every set is looked at; of more, each alone, all, and all but one.
_EVERY_SET_OF = 4


@dataclass(frozen=True)
class Proposal:
    """A change of circuits under running jobs.

    ``jobs`` are those that are regrouped. ``gains_s`` says for every job how much sooner it is
    predicted to end, less than 0 for later; each regrouped job's cost, ``costs_s``, is counted in
    already: the iteration that it ends first, its dark time, and what else a change takes.
    """

    maps: Maps
    jobs: tuple[str, ...]
    gains_s: Mapping[str, float]
    costs_s: Mapping[str, float]
    cross_connects: int
    dark_s: float

    @property
    def gain_s(self) -> float:
        """What all jobs together gain."""
        return sum(self.gains_s.values())


def defragment(
    cluster: ClusterView, minimum_gain_s: float = MINIMUM_GAIN_S, overhead_s: float = 0.0
) -> Proposal | None:
    """The set of running jobs whose regrouping gains most; ``None`` where it gains too little.

    Of jobs whose loads are not known nothing can be gained, and their light stays. Circuits of
    ``cluster.barred`` ports stay, too. A change is taken to keep jobs waiting for ``overhead_s``
    beside the dark time of its circuits.
    """
    lab = cluster.lab
    if lab is None:
        return None
    running = [job for job in cluster.rings if not job.waits]
    prices = Prices(cluster, lab, cluster.rings, overhead_s)
    spread = [job for job in prices.jobs if job in running and _is_spread(cluster, job)]
    if not spread:
        return None
    keep = prices.of({})
    best: tuple[float, Proposal] | None = None
    for groups in _sets(spread):
        maps = prices.regrouped(groups)
        if not maps:
            continue
        proposal = _proposal(prices, groups, maps, keep, prices.of(maps))
        if proposal is not None and (best is None or proposal.gain_s > best[0]):
            best = proposal.gain_s, proposal
    return best[1] if best is not None and best[0] > minimum_gain_s else None


def _is_spread(cluster: ClusterView, job: RingOfJob) -> bool:
    return len({cluster.shape.gpus[gpu].rack for gpu in job.ring}) > 1


def _sets(jobs: Sequence[RingOfJob]) -> Iterator[tuple[RingOfJob, ...]]:
    if len(jobs) <= _EVERY_SET_OF:
        sizes: Sequence[int] = range(1, len(jobs) + 1)
    else:
        sizes = (1, len(jobs) - 1, len(jobs))
    for size in sizes:
        yield from itertools.combinations(jobs, size)


def _proposal(
    prices: Prices, groups: Sequence[RingOfJob], maps: Maps, keep: WiringPrice, price: WiringPrice
) -> Proposal | None:
    """``None`` where another ring would have no way; one that has none yet gains nothing here."""
    if price.stuck > keep.stuck:
        return None
    ends = zip(prices.jobs, keep.completions_s, price.completions_s, strict=True)
    gains_s = {
        job.name: before_s - after_s
        for job, before_s, after_s in ends
        if before_s < math.inf and after_s < math.inf
    }
    return Proposal(
        maps=maps,
        jobs=tuple(job.name for job in groups),
        gains_s=gains_s,
        costs_s={job.name: prices.pause_s(job, price.dark_s) for job in groups},
        cross_connects=price.cross_connects,
        dark_s=price.dark_s,
    )
