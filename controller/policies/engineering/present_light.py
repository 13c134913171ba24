"""The light of a lab as it is: duplex light paths between sites, and where others could go."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from patchlight.controller.policies.engineering.sites import Port, Site
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap

Ports = Mapping[str, Collection[int]]

MOST_OCS = 3
"""A light path goes through so many OCSs at most: each loses power."""


@dataclass(frozen=True, slots=True)
class LightPath:
    """A duplex light path that is there: its ports in order, two of each OCS; who is at its ends.

    One that is ``fixed`` can neither be broken nor made way for.
    """

    ends: tuple[str, str]
    ports: tuple[Port, ...]
    fixed: bool


@dataclass(frozen=True)
class PresentLight:
    """A lab's light as it is: sites, trunks, present paths, and the ports that can be used."""

    lab: Lab
    maps: Mapping[str, PortMap]
    sites: Mapping[str, Site]
    locked: Ports
    failed: Ports

    @cached_property
    def site_at(self) -> Mapping[Port, str]:
        """Whose port it is, of those that are a site's."""
        return {port: site.name for site in self.sites.values() for port in site.ports}

    @cached_property
    def trunk_from(self) -> Mapping[Port, Port]:
        """The other end of each fibre between two OCSs, from either end."""
        fibres = self.lab.circuit_fibres
        return {
            (ocs, number): (end.device, int(end.port))
            for ocs, ends in fibres.items()
            for number, (end, _) in ends.items()
            if end.device in fibres
        }

    @cached_property
    def joined(self) -> Mapping[Port, Port]:
        """For each port of a duplex circuit the other one."""
        found: dict[Port, Port] = {}
        for ocs, present in self.maps.items():
            out_of = present.out_of
            for inp, out in present:
                if inp != out and out_of.get(out) == inp:
                    found[ocs, inp] = (ocs, out)
        return found

    @cached_property
    def fixed(self) -> frozenset[Port]:
        """Locked ports, and what the circuits of these lead to."""
        found = {(ocs, port) for ocs, ports in self.locked.items() for port in ports}
        for ocs, present in self.maps.items():
            ends = [((ocs, inp), (ocs, out)) for inp, out in present]
            found |= {port for pair in ends if not found.isdisjoint(pair) for port in pair}
        return frozenset(found)

    @cached_property
    def broken(self) -> frozenset[Port]:
        """The failed ports."""
        return frozenset((ocs, port) for ocs, ports in self.failed.items() for port in ports)

    def is_usable(self, port: Port) -> bool:
        """Whether a circuit can be made there."""
        return port[0] in self.maps and port not in self.held and port not in self.broken

    @cached_property
    def held(self) -> frozenset[Port]:
        """What is fixed, and the rest of the light paths that pass there."""
        return self.fixed.union(*(path.ports for path in self.paths if path.fixed))

    @cached_property
    def usable(self) -> Mapping[tuple[str, str], tuple[Port, ...]]:
        """The ports for new circuits: by OCS, those of each site and those to each other OCS."""
        found: dict[tuple[str, str], list[Port]] = {}
        for port, site in self.site_at.items():
            if self.is_usable(port):
                found.setdefault((port[0], site), []).append(port)
        for port, other in self.trunk_from.items():
            if self.is_usable(port) and self.is_usable(other):
                found.setdefault((port[0], other[0]), []).append(port)
        return {key: tuple(sorted(ports)) for key, ports in found.items()}

    @cached_property
    def paths(self) -> tuple[LightPath, ...]:
        """The duplex light paths between sites that are there and may stay."""
        found = []
        for start, site in self.site_at.items():
            ports = self._followed(start)
            if not ports or ports[-1] < start:
                continue
            fixed = not self.fixed.isdisjoint(ports)
            if fixed or self.broken.isdisjoint(ports):
                found.append(LightPath((site, self.site_at[ports[-1]]), ports, fixed))
        return tuple(found)

    def _followed(self, start: Port) -> tuple[Port, ...]:
        """The ports of the light path from a site's port; empty if it leads to no site."""
        ports, at = list[Port](), start
        while (out := self.joined.get(at)) is not None:
            ports += [at, out]
            if out in self.site_at:
                return tuple(ports)
            if out not in self.trunk_from or self.trunk_from[out] in ports:
                return ()
            at = self.trunk_from[out]
        return ()

    @cached_property
    def _ways(self) -> dict[tuple[str, str], tuple[tuple[str, ...], ...]]:
        """OCSs in order, from each to each, over trunks that can be used."""
        beside: dict[str, list[str]] = {ocs: [] for ocs in self.maps}
        for ocs, other in self.usable:
            if other in beside:
                beside[ocs].append(other)
        found: dict[tuple[str, str], list[tuple[str, ...]]] = {}
        ways: list[tuple[str, ...]] = [(ocs,) for ocs in beside]
        while ways:
            for way in ways:
                found.setdefault((way[0], way[-1]), []).append(way)
            ways = [
                (*way, following)
                for way in ways
                if len(way) < MOST_OCS
                for following in beside[way[-1]]
                if following not in way
            ]
        return {ends: tuple(each) for ends, each in found.items()}

    def ways(self, site: str, other: str) -> Iterator[tuple[str, ...]]:
        """The OCSs that a new path between two sites can go over, in order."""
        starts = [ocs for ocs in self.maps if (ocs, site) in self.usable]
        lasts = [ocs for ocs in self.maps if (ocs, other) in self.usable]
        for start in starts:
            for last in lasts:
                yield from self._ways.get((start, last), ())

    def loss_db(self, way: Sequence[str]) -> float:
        """What light loses in these OCSs and the fibres between them."""
        inside = sum(self.lab.circuit_switch(ocs).insertion_loss_db for ocs in way)
        fibres = self.lab.circuit_fibres
        between = sum(
            min(fibres[here][port][1].loss_db for _, port in self.usable[here, there])
            for here, there in pairwise(way)
        )
        return inside + between
