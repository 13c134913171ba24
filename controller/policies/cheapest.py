"""Placement and circuits as one decision: the pair with the lowest price.

Two policies that belong together. The placement asks for each of a few places what the job and
those that run would cost there, under the circuits as they are and regrouped; the topology then
lights the one that was cheaper for the place that was taken. Both ask ``Prices``, so they agree.
"""

from collections.abc import Iterator, Mapping, Sequence

from patchlight.controller.policies.contract import ClusterView, JobView, RingOfJob
from patchlight.controller.policies.placement import Consolidated, FirstFit, RegroupPlacement
from patchlight.controller.policies.price import Maps, Price, Prices, placed
from patchlight.controller.policies.ring_order import ring_order
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.portmap import PortMap

_KEEP: Maps = {}


def _wirings(groups: Sequence[RingOfJob], prices: Prices) -> Iterator[tuple[Price, Maps]]:
    yield prices.of(_KEEP), _KEEP
    wanted = prices.regrouped(groups)
    if wanted:
        yield prices.of(wanted), wanted


class CheapestPlacement:
    """GPUs where all jobs together end soonest, circuits and their dark time counted.

    Goes with the topology policy *cheapest*. Of the places that *regroup*, *consolidated* and
    *first-fit* would take, the one with the lowest price: the predicted times to the ends of this
    job and of all that run, as the circuits are or with this job under one switch. Circuits of
    running jobs stay. Where nobody knows what the job has to do, it is *regroup*; without a lab
    *consolidated*.
    """

    def __init__(self) -> None:
        self._places = (RegroupPlacement(), Consolidated(), FirstFit())

    def place(self, cluster: ClusterView, job: JobView, workers: int) -> Sequence[int] | None:
        """As the contract says."""
        lab = cluster.lab
        found = [policy.place(cluster, job, workers) for policy in self._places]
        rings = [ring_order(cluster, ring) for ring in found if ring is not None]
        if lab is None or not lab.circuit_switches or not rings:
            return None if not rings else rings[0]
        best: tuple[Price, list[int]] | None = None
        sets: set[frozenset[int]] = set()
        running = Prices(cluster, lab, cluster.rings)
        for ring in rings:
            if frozenset(ring) in sets:
                continue
            sets.add(frozenset(ring))
            here = placed(cluster, job, ring, running.network.nic_bps)
            if here.load is None:
                return rings[0]
            prices = Prices(cluster, lab, [*cluster.rings, here])
            price = min(price for price, _ in _wirings([here], prices))
            if best is None or price < best[0]:
                best = price, ring
        return rings[0] if best is None else best[1]


class CheapestTopology:
    """The circuits as they are, or the new jobs under one packet switch each: what is cheaper.

    Goes with the placement policy *cheapest*. Circuits of running jobs stay. Where nobody knows
    what the jobs have to do, they are regrouped if that can be.
    """

    def circuits(
        self, cluster: ClusterView, groups: Sequence[Sequence[int]]
    ) -> Mapping[str, PortMap]:
        """The maps that change; empty where they are to stay."""
        lab = cluster.lab
        if lab is None:
            raise BadInput("cannot choose circuits: this cluster has no circuit switches")
        known = {job.ring: job for job in cluster.rings}
        asked = [known.get(tuple(ring), RingOfJob("", tuple(ring), waits=True)) for ring in groups]
        new = [job for job in asked if job.waits] or asked
        prices = Prices(cluster, lab, cluster.rings)
        if any(job.load is None for job in new):
            return prices.regrouped(new) or _KEEP
        return min(_wirings(new, prices), key=lambda found: found[0])[1]
