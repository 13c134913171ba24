"""The links between NICs and packet switches that the maps of optical switches make.

All functions of values. Transmitters and receivers are NIC ports and packet-switch ports; circuit
switches only pass light on. A lightpath is one direction, with a rate (its slowest part) and a
loss (its fibres and the insertion loss of each OCS on the way); two make a link.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from patchlight.testbed.lab.labmaps import circuits_of, spectra_of
from patchlight.testbed.lab.model import Endpoint, Lab, PacketSwitch
from patchlight.testbed.lab.optical_links import Entry, Hop, Light
from patchlight.testbed.lab.optical_links import LightPath as LightPath
from patchlight.testbed.lab.portmap import AnyMap, CrossConnect, PortMap
from patchlight.testbed.lab.spectrum import SpectrumMap

_Across = Mapping[str, Mapping[int, int]]  # by OCS: outputs by input, or inputs by output


class Links:
    """The lightpaths that port maps make; a link is up where they lead both ways.

    Which light goes where is found here and nowhere else, and only when somebody asks. What
    ends in an unconnected input, or at an output without a fibre, is no path; nor is what
    goes round in circuit switches, where nobody sends into it.
    """

    def __init__(
        self,
        lab: Lab,
        maps: Mapping[str, PortMap],
        spectra: Mapping[str, SpectrumMap] | None = None,
    ) -> None:
        self._lab, self._fibres, self._spectra = lab, lab.circuit_fibres, spectra
        self._maps = {ocs: maps[ocs] if ocs in maps else PortMap() for ocs in self._fibres}
        self.light = Light(lab, self._maps, spectra) if lab.coloured else None

    def after(self, maps: Mapping[str, PortMap]) -> tuple[Links, frozenset[Endpoint]]:
        """The links under other maps of circuit switches, and where light begins that then goes
        another way.

        Where wavelengths do not matter, only such light is followed anew.
        """
        links = Links(self._lab, maps, self._spectra)
        ours, theirs = self.paths, links.__dict__
        if self.light is not None:
            ends = ours.keys() | links.paths.keys()
            return links, frozenset(end for end in ends if ours.get(end) != links.paths.get(end))
        moved = set[Endpoint]()
        for ocs, before in self._maps.items():
            if (now := links._maps[ocs]) is not before and (change := before.diff(now)):
                moved.update(self.sources(ocs, change.breaks))
                moved.update(links.sources(ocs, change.makes))
        # What no change touches is as it was: the cached properties begin with that.
        paths, sinks = dict(ours), dict(self._sinks)
        for source in moved:
            paths.pop(source, None)
            sinks.pop(source, None)
            if (path := links.path(source)) is not None:
                paths[source], sinks[source] = path, path.sink
        theirs["paths"], theirs["_sinks"] = paths, sinks
        theirs["_loss_db"] = self._loss_db
        return links, frozenset(moved)

    @cached_property
    def paths(self) -> Mapping[Endpoint, LightPath]:
        """Every lightpath, by its source. O(fibres + cross-connects), once."""
        found = ((source, self.path(source)) for source in self._lab.fibre_ends)
        return {source: path for source, path in found if path is not None}

    def path(self, source: Endpoint) -> LightPath | None:
        """The lightpath that begins at this NIC or packet-switch port, if there is one."""
        if source.device in self._maps or source not in self._lab.fibre_ends:
            return None
        if self.light is not None:
            return self.light.path(source)
        at, fibre = self._lab.fibre_ends[source]
        hops: list[Hop] = []
        lost_db: list[float] = []
        rate_bps, loss_db = fibre.rate_bps, fibre.loss_db
        while (out_of := self._out_of.get(at.device)) is not None:
            ocs, inp = at.device, int(at.port)
            out = out_of.get(inp)
            if out is None or out not in self._fibres[ocs]:
                return None
            hops.append((ocs, CrossConnect(inp, out)))
            at, fibre = self._fibres[ocs][out]
            lost_db.append(loss_db + self._loss_db[ocs])
            loss_db = lost_db[-1] + fibre.loss_db
            if fibre.rate_bps is not None:
                rate_bps = fibre.rate_bps if rate_bps is None else min(rate_bps, fibre.rate_bps)
        passed = tuple(hops)
        return LightPath(source, at, passed, rate_bps, loss_db, tuple(lost_db), passed)

    def passed(self, path: LightPath) -> Iterable[tuple[tuple[str, Entry], float]]:
        """The entries of maps that let this path through, by switch, and what it has lost then."""
        if self.light is None:
            return zip(path.hops, path.lost_db, strict=True)
        return self.light.passed(path)

    def sources(self, ocs: str, cross_connects: Iterable[Entry]) -> Iterator[Endpoint]:
        """Where the lightpaths begin that pass these entries of this switch's map.

        O(what is asked for), however large the lab, where wavelengths do not matter in it.
        """
        if self.light is not None:
            asked = {(ocs, c) for c in cross_connects}
            for source, path in self.paths.items():
                if any(entry in asked for entry, _ in self.passed(path)):
                    yield source
            return
        ends = self._lab.circuit_ends[ocs]
        for c in cross_connects:
            begins = ends.get(c.inp) or self._beyond(ocs, c.inp, self._in_of)
            if begins is not None and (c.out in ends or self._beyond(ocs, c.out, self._out_of)):
                yield begins

    def paths_through(self, ocs: str, cross_connects: Iterable[Entry]) -> Iterator[LightPath]:
        """The lightpaths that pass these entries of this switch's map."""
        return filter(None, map(self.path, self.sources(ocs, cross_connects)))

    def peer(self, endpoint: Endpoint) -> Endpoint | None:
        """The other end of the link at ``endpoint``; ``None`` if it is down or one-way."""
        sink = self._sinks.get(endpoint)
        return sink if sink is not None and self._sinks.get(sink) == endpoint else None

    def peers(self, endpoint: Endpoint) -> tuple[Endpoint, ...]:
        """All who receive what is sent at ``endpoint`` and are received there.

        Several where light is split; no link then, as ``peer`` says.
        """
        if self.light is None:
            peer = self.peer(endpoint)
            return () if peer is None else (peer,)
        arrivals = self.light.arrivals
        sinks = [path.sink for path in arrivals.get(endpoint, ())]
        return tuple(s for s in sinks if any(p.sink == endpoint for p in arrivals.get(s, ())))

    def pairs(self) -> tuple[tuple[Endpoint, Endpoint], ...]:
        """Every link that is up once, its ends in order."""
        peers = ((end, self.peer(end)) for end in self._sinks)
        return tuple(sorted((end, peer) for end, peer in peers if peer is not None and end <= peer))

    def switch_of(self, lab: Lab, endpoint: Endpoint) -> str | None:
        """The packet switch that a NIC has a link with, or ``None``."""
        peer = self.peer(endpoint)
        if peer is None or not isinstance(lab.device(peer.device), PacketSwitch):
            return None
        return peer.device

    @cached_property
    def _sinks(self) -> Mapping[Endpoint, Endpoint]:
        """Where each lightpath ends, by its source."""
        if self.light is not None:
            return {source: path.sink for source, path in self.paths.items()}
        ends = (
            (source, self._end(at, self._out_of))
            for source, (at, _) in self._lab.fibre_ends.items()
            if source.device not in self._maps
        )
        return {source: sink for source, sink in ends if sink is not None}

    @cached_property
    def _out_of(self) -> _Across:
        return {ocs: port_map.out_of for ocs, port_map in self._maps.items()}

    @cached_property
    def _in_of(self) -> _Across:
        return {ocs: port_map.in_of for ocs, port_map in self._maps.items()}

    @cached_property
    def _loss_db(self) -> Mapping[str, float]:
        return {c.name: c.insertion_loss_db for c in self._lab.circuit_switches}

    def _end(self, at: Endpoint, across: _Across) -> Endpoint | None:
        """Who is there when light that is at ``at`` has passed all circuit switches.

        With the inputs of outputs: where it came from. ``None`` if that is nobody.
        """
        begun = at
        while (there := across.get(at.device)) is not None:
            port = there.get(int(at.port))
            fibre = None if port is None else self._fibres[at.device].get(port)
            # A port map is injective: what comes round comes back to where it was first.
            if fibre is None or fibre[0] is begun:
                return None
            at = fibre[0]
        return at

    def _beyond(self, ocs: str, port: int, across: _Across) -> Endpoint | None:
        """``_end`` of the fibre that is plugged in there."""
        fibre = self._fibres[ocs].get(port)
        return None if fibre is None else self._end(fibre[0], across)


def trace_links(
    lab: Lab, maps: Mapping[str, AnyMap], spectra: Mapping[str, SpectrumMap] | None = None
) -> Links:
    """The lightpaths from every NIC and packet-switch port under these maps.

    An OCS that has no map here lets nothing through, nor does a wavelength switch that has none in
    ``spectra``, or among ``maps``; where neither has any they are as the lab file says.
    """
    return Links(lab, circuits_of(maps), (spectra_of(maps) or None) if spectra is None else spectra)


def lab_links(lab: Lab, maps: Mapping[str, AnyMap]) -> Links:
    """The lightpaths under the maps of all optical switches; one without lets nothing through."""
    return Links(lab, circuits_of(maps), spectra_of(maps))


def circuit_ports(lab: Lab, endpoints: Iterable[Endpoint]) -> dict[Endpoint, tuple[str, int]]:
    """For each endpoint plugged straight into an OCS: that OCS and its port number."""
    plugs = lab.circuit_plugs
    return {endpoint: plugs[endpoint] for endpoint in endpoints if endpoint in plugs}
