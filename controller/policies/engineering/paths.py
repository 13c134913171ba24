"""Which circuits bring wished light paths about, over one OCS or several, with the fewest changes.

An integer program of the ports of sites and the fibres (trunks) between OCSs, solved by HiGHS
(Huangfu and Hall, 2018), decides for all wishes at once which present light paths they keep, and
over which OCSs their new ones go. Within an OCS any two ports can be joined, so the ports are
picked afterwards.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from patchlight.controller.policies.engineering.traffic import (
    CircuitSite,
    Port,
    sites_of,
)
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap

Ports = Mapping[str, Collection[int]]

MOST_OCS = 3
"""A light path goes through so many OCSs at most: each loses power."""

# What the program minimises: circuits made, then circuits broken that nobody wished away, then dB.
_CIRCUIT = 1000.0
_BROKEN = 10.0
_DB = 0.01

_HINT = "use fewer or other hosts, or unlock ports: 'patchlight ocs lock' lists the locks"


@dataclass(
    frozen=True,
    slots=True,
)
class OcsPath:
    """A duplex light path between two sites: its ports in order, two of each OCS.

    One that is ``fixed`` cannot be broken.
    """

    ends: tuple[str, str]
    ports: tuple[Port, ...]
    fixed: bool


@dataclass(frozen=True)
class PresentLight:
    """A lab's light as it is: sites, trunks, present paths, and the ports that can be used."""

    lab: Lab
    maps: Mapping[str, PortMap]
    sites: Mapping[str, CircuitSite]
    locked: Ports
    failed: Ports

    @cached_property
    def site_at(self) -> Mapping[Port, str]:
        """Whose port it is, of those that are a site's."""
        return {
            port: site.name
            for site in self.sites.values()
            for port in site.ports
        }

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
        found = {
            (ocs, port) for ocs, ports in self.locked.items() for port in ports
        }
        for ocs, present in self.maps.items():
            ends = [((ocs, inp), (ocs, out)) for inp, out in present]
            found |= {
                port
                for pair in ends
                if not found.isdisjoint(pair)
                for port in pair
            }
        return frozenset(found)

    @cached_property
    def broken(self) -> frozenset[Port]:
        """The failed ports."""
        return frozenset(
            (ocs, port) for ocs, ports in self.failed.items() for port in ports
        )

    def is_usable(self, port: Port) -> bool:
        """Whether a circuit can be made there."""
        return (
            port[0] in self.maps
            and port not in self.held
            and port not in self.broken
        )

    @cached_property
    def held(self) -> frozenset[Port]:
        """What is fixed, and the rest of the light paths that pass there."""
        return self.fixed.union(
            *(path.ports for path in self.paths if path.fixed)
        )

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
    def paths(self) -> tuple[OcsPath, ...]:
        """The duplex light paths between sites that are there and may stay."""
        found = []
        for start, site in self.site_at.items():
            ports = self._followed(start)
            if not ports or ports[-1] < start:
                continue
            fixed = not self.fixed.isdisjoint(ports)
            if fixed or self.broken.isdisjoint(ports):
                found.append(
                    OcsPath((site, self.site_at[ports[-1]]), ports, fixed)
                )
        return tuple(found)

    def _followed(self, start: Port) -> tuple[Port, ...]:
        ports = list[Port]()
        at = start
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
        inside = sum(
            self.lab.circuit_switch(ocs).insertion_loss_db for ocs in way
        )
        fibres = self.lab.circuit_fibres
        between = sum(
            min(
                fibres[here][port][1].loss_db
                for _, port in self.usable[here, there]
            )
            for here, there in pairwise(way)
        )
        return inside + between


class NoLight(PatchlightError):
    """The ports and trunks do not do for the wished light paths."""


class Wish(NamedTuple):
    """A light path from a site to one of its ``partners``; the same one for those ``together``.

    It may be left dark where it would take more circuits than it is ``worth``.
    """

    site: str
    partners: tuple[str, ...]
    together: int | None = None
    worth: float = math.inf


class _New(NamedTuple):
    site: str
    partner: str
    way: tuple[str, ...]

    @property
    def bundles(self) -> list[tuple[str, str]]:
        """Of which ports it takes one each: (OCS, site or other OCS)."""
        steps = pairwise(self.way)
        trunks = [
            bundle
            for here, there in steps
            for bundle in ((here, there), (there, here))
        ]
        return [
            (self.way[0], self.site),
            *trunks,
            (self.way[-1], self.partner),
        ]


class _Program:
    def __init__(self) -> None:
        self.costs: list[float] = []
        self._entries: list[tuple[int, int, float]] = []
        self._bounds: list[tuple[float, float]] = []
        self._impossible = False

    def column(self, cost: float) -> int:
        self.costs.append(cost)
        return len(self.costs) - 1

    def row(
        self,
        entries: Mapping[int, float],
        least: float,
        most: float,
    ) -> None:
        if not entries:
            self._impossible |= least > 0
            return
        self._entries += [
            (len(self._bounds), column, value)
            for column, value in entries.items()
        ]
        self._bounds.append((least, most))

    def solved(self) -> list[bool] | None:
        if self._impossible:
            return None
        if not self.costs:
            return []
        # Not above: it takes longer than all else that a list of the policies imports.
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        rows, columns, values = zip(*self._entries, strict=True)
        shape = (len(self._bounds), len(self.costs))
        least, most = zip(*self._bounds, strict=True)
        found = milp(
            np.asarray(self.costs),
            integrality=np.ones(len(self.costs), np.int64),
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(
                csr_array((values, (rows, columns)), shape), least, most
            ),
        )
        return (
            None
            if found.x is None
            else [bool(value > 0.5) for value in found.x]
        )


def plan_paths(
    lab: Lab,
    maps: Mapping[str, PortMap],
    wishes: Sequence[Wish],
    *,
    locked: Ports,
    failed: Ports,
    sites: Sequence[CircuitSite] | None = None,
) -> dict[str, PortMap]:
    """The maps that change for the wished light paths to be there, both ways each.

    As few circuits as possible are made, then as few present light paths broken, then as little
    light lost. Circuits of ``locked`` ports stay; ``failed`` ports get none, OCSs without a map
    neither. ``sites``: others than ``sites_of``. ``NoLight`` where it cannot be.
    """
    known = sites_of(lab) if sites is None else sites
    light = PresentLight(
        lab,
        maps,
        {site.name: site for site in known},
        locked,
        failed,
    )
    return _maps(light, *_chosen(light, wishes))


def _chosen(
    light: PresentLight, wishes: Sequence[Wish]
) -> tuple[list[OcsPath], list[_New]]:
    """The present paths that stay, and the new ones by OCSs."""
    program = _Program()
    kept_by: dict[OcsPath, list[int]] = {path: [] for path in light.paths}
    news: dict[int, _New] = {}
    room: dict[tuple[str, str], dict[int, float]] = {}
    together: dict[tuple[int, str], int] = {}
    for wish in wishes:
        options: dict[int, str | None] = {}
        for path, partner in _present(light, wish):
            options[column := program.column(0.0)] = partner
            kept_by[path].append(column)
        for partner in wish.partners:
            for way in light.ways(wish.site, partner):
                cost = _CIRCUIT * len(way) + _DB * light.loss_db(way)
                options[column := program.column(cost)] = partner
                news[column] = found = _New(wish.site, partner, way)
                for bundle in found.bundles:
                    each = room.setdefault(bundle, {})
                    each[column] = each.get(column, 0.0) + 1.0
        if wish.worth < math.inf:
            options[program.column(_CIRCUIT * wish.worth)] = None
        program.row(dict.fromkeys(options, 1.0), 1, 1)
        if wish.together is not None:
            for partner in wish.partners:
                key = wish.together, partner
                if key not in together:
                    together[key] = program.column(0.0)
                taken = {
                    column: 1.0
                    for column, to in options.items()
                    if to == partner
                }
                program.row({**taken, together[key]: -1.0}, 0, 0)
    stays: dict[int, OcsPath] = {}
    for path, columns in kept_by.items():
        # Whether it stays, wished or not; what is fixed stays at no cost of ports.
        column = program.column(-_BROKEN * len(path.ports))
        stays[column] = path
        program.row({**dict.fromkeys(columns, 1.0), column: -1.0}, -1, 0)
        for port in () if path.fixed else path.ports:
            site = light.site_at.get(port)
            each = room.setdefault(
                (port[0], site or light.trunk_from[port][0]), {}
            )
            each[column] = each.get(column, 0.0) + 1.0
    for bundle, entries in room.items():
        program.row(entries, 0, len(light.usable.get(bundle, ())))
    taken_columns = program.solved()
    if taken_columns is None:
        raise NoLight(_why_not(light, wishes), hint=_HINT)
    return (
        [path for column, path in stays.items() if taken_columns[column]],
        [new for column, new in news.items() if taken_columns[column]],
    )


def _present(light: PresentLight, wish: Wish) -> Iterator[tuple[OcsPath, str]]:
    """The present paths from the site to one of its partners, and which partner."""
    for path in light.paths:
        if wish.site in path.ends:
            partner = path.ends[path.ends[0] == wish.site]
            if partner in wish.partners:
                yield path, partner


def _why_not(light: PresentLight, wishes: Sequence[Wish]) -> str:
    unknown = [wish.site for wish in wishes if wish.site not in light.sites]
    if unknown:
        return f"no optical path from {unknown[0]}: it has no fibre to a circuit switch"
    for wish in wishes:
        ways = [
            way
            for partner in wish.partners
            for way in light.ways(wish.site, partner)
        ]
        kept = [path for path in light.paths if wish.site in path.ends]
        if not (ways or kept):
            partners = " or ".join(wish.partners)
            return f"no optical path from {wish.site} to {partners}: no usable ports or trunks"
    return (
        f"there are too few usable ports, or trunks between circuit switches, for these "
        f"{len(wishes)} optical paths"
    )


def _maps(
    light: PresentLight,
    kept: Sequence[OcsPath],
    new: Sequence[_New],
) -> dict[str, PortMap]:
    """The maps that change, with a port picked for each step of the new paths."""
    taken = {port for path in kept for port in path.ports}
    dropped = [path for path in light.paths if path not in kept]
    made: dict[str, list[tuple[int, int]]] = {}

    def pick(
        bundle: tuple[str, str],
        wanted: Port | None,
        onward: Collection[Port] = (),
    ) -> Port:
        """A free port: the wanted one, one whose trunk has a circuit ``onward``, or a dark one."""
        free = [port for port in light.usable[bundle] if port not in taken]
        free = [p for p in free if light.trunk_from.get(p) not in taken]

        def is_of_less_use(port: Port) -> tuple[bool, bool, Port]:
            far_end = light.trunk_from.get(port)
            leads_on = (
                far_end is not None and light.joined.get(far_end) in onward
            )
            return not leads_on, port in light.joined, port

        port = wanted if wanted in free else min(free, key=is_of_less_use)
        taken.add(port)
        return port

    # The longest first: they have the most to gain from circuits that are there already.
    for each in sorted(new, key=lambda path: -len(path.way)):
        bundles = each.bundles
        at = pick(bundles[0], _leading(light, bundles[:2], taken))
        for step, ocs in enumerate(each.way):
            beyond = bundles[2 * step + 3 : 2 * step + 4]
            onward = {
                port for bundle in beyond for port in light.usable[bundle]
            } - taken
            out = pick(bundles[2 * step + 1], light.joined.get(at), onward)
            made.setdefault(ocs, []).append((at[1], out[1]))
            if step + 1 < len(each.way):
                at = light.trunk_from[out]
                taken.add(at)
    found = {}
    for ocs, present in light.maps.items():
        gone = {
            port for path in dropped for port in path.ports if port[0] == ocs
        }
        left = PortMap.of(
            c for c in present if not {(ocs, c.inp), (ocs, c.out)} & gone
        )
        wanted = left.joined(PortMap.duplex(made.get(ocs, ())))
        if wanted != present:
            found[ocs] = wanted
    return found


def _leading(
    light: PresentLight,
    bundles: Sequence[tuple[str, str]],
    taken: Collection[Port],
) -> Port | None:
    """A free port of the first bundle with a circuit to a free one of the second, if there is."""
    first, second = (
        set(light.usable[bundle]).difference(taken) for bundle in bundles
    )
    return min(
        (port for port in first if light.joined.get(port) in second),
        default=None,
    )
