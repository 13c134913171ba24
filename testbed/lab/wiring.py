"""Derives the links between NICs and packet switches from the maps of all optical switches.

A lightpath is one direction, with the rate of its slowest fibre and the loss of its fibres and
switches; two make a link.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import (
    Endpoint,
    Lab,
    OpticalSwitch,
    PacketSwitch,
)
from patchlight.testbed.lab.optical_links import Entry, Hop, Light
from patchlight.testbed.lab.optical_links import LightPath as LightPath
from patchlight.testbed.lab.portmap import AnyMap, CrossConnect, PortMap
from patchlight.testbed.lab.spectrum import Channel, SpectrumMap
from patchlight.testbed.lab.wavelengths import WavelengthSwitch

_LONGEST_MAP_NAME = 100
# More ends than this are traced with all others of the lab.
_ALONE = 64


class Place(NamedTuple):
    """Both sides of a port of an optical switch, or of one channel there."""

    port: int
    channel: Channel | None = None

    @classmethod
    def parse(cls, text: str) -> Place:
        """``"3"``, ``"3@193.100"``; else ``BadInput``."""
        port, at, channel = text.partition("@")
        if not (port.isascii() and port.isdigit() and len(port) < 10):
            raise BadInput(
                f"{text!r} is not a port: expected its number, like '3', or a channel at a "
                "wavelength switch, like '3@193.100'"
            )
        return cls(int(port), Channel.parse(channel) if at else None)

    def __str__(self) -> str:
        return (
            f"{self.port}@{self.channel}" if self.channel else str(self.port)
        )

    def holds(self, entry: Any) -> bool:
        """Whether an entry of the switch's map uses the place."""
        if self.port not in (entry.inp, entry.out):
            return False
        return self.channel is None or bool(
            self.channel.overlaps(entry.channel)
        )


def driven(switch: OpticalSwitch) -> str:
    """The name of a switch with a driver; ``BadInput`` if the lab file has none for it."""
    if not switch.driver:
        raise BadInput(
            f"{switch.name} has no driver in the lab file: it cannot be read or changed",
            hint="to control it, give it a 'driver' and an 'address'; without them the lab file "
            "has its map",
        )
    return switch.name


def check_place(switch: OpticalSwitch, place: Place) -> None:
    """``BadInput`` if the switch does not have this port or channel."""
    if not 1 <= place.port <= switch.ports:
        raise BadInput(
            f"{switch.name} has ports 1–{switch.ports}, not {place.port}"
        )
    if place.channel is None:
        return
    if not isinstance(switch, WavelengthSwitch):
        raise BadInput(
            f"{place} names a channel, but {switch.name} is a circuit switch: expected {place.port}"
        )
    switch.grid.check(place.channel)


def places_of(entries: Iterable[Any]) -> list[Place]:
    """The ports that a map's entries use, for wavelength switches with their channels."""
    return in_order(
        Place(port, getattr(entry, "channel", None))
        for entry in entries
        for port in (entry.inp, entry.out)
    )


def in_order(places: Iterable[Place]) -> list[Place]:
    """Each place once, sorted: a whole port before its channels, these by frequency."""
    return sorted(
        set(places), key=lambda place: (place.port, place.channel or ())
    )


def entries_at(
    switch_map: AnyMap, places: Iterable[int | Place]
) -> tuple[Any, ...]:
    """The entries of a map that use these ports, or places."""
    named = [
        Place(place) if isinstance(place, int) else place for place in places
    ]
    ports = {place.port for place in named if place.channel is None}
    channels = [place for place in named if place.channel is not None]
    return tuple(
        entry
        for entry in switch_map
        if entry.inp in ports
        or entry.out in ports
        or any(p.holds(entry) for p in channels)
    )


def parse_map(switch: OpticalSwitch, texts: Iterable[str]) -> AnyMap:
    """This switch's map from text; ``BadInput`` for entries of the other kind."""
    texts = tuple(texts)
    selective = isinstance(switch, WavelengthSwitch)
    for text in texts:
        if selective and "@" not in text:
            raise BadInput(
                f"{text!r} names no channel, but {switch.name} is a wavelength switch: expected "
                "two ports and a channel in THz, like '1-2@193.100'"
            )
        if not selective and "@" in text:
            raise BadInput(
                f"{text!r} names a channel, but {switch.name} is a circuit switch: expected two "
                "ports, like '1-2'"
            )
    return SpectrumMap.parse(texts) if selective else PortMap.parse(texts)


def recorded_map(
    lab: Lab | None,
    name: str,
    texts: Iterable[str],
) -> AnyMap:
    """A map recorded earlier, perhaps of a switch that the lab no longer has."""
    switches = () if lab is None else lab.optical_switches
    switch = next((switch for switch in switches if switch.name == name), None)
    if switch is not None:
        return parse_map(switch, texts)
    texts = tuple(texts)
    return (
        SpectrumMap.parse(texts)
        if any("@" in text for text in texts)
        else PortMap.parse(texts)
    )


def check_map(switch: OpticalSwitch, wanted: AnyMap) -> None:
    """``BadInput`` if the switch cannot have this map."""
    kind = SpectrumMap if isinstance(switch, WavelengthSwitch) else PortMap
    if not isinstance(wanted, kind):
        words = f"the map of {switch.name} is a {kind.__name__}, not {type(wanted).__name__}"
        raise BadInput(words)
    if isinstance(switch, WavelengthSwitch) and isinstance(
        wanted, SpectrumMap
    ):
        wanted.check(switch.inputs, switch.outputs, switch.grid)
    elif isinstance(wanted, PortMap):
        wanted.check(switch.ports)


def circuits_of(maps: Mapping[str, AnyMap]) -> dict[str, PortMap]:
    """Maps of circuit switches."""
    return {
        name: each for name, each in maps.items() if isinstance(each, PortMap)
    }


def spectra_of(maps: Mapping[str, AnyMap]) -> dict[str, SpectrumMap]:
    """Maps of wavelength switches."""
    return {
        name: each
        for name, each in maps.items()
        if isinstance(each, SpectrumMap)
    }


def with_spectra(lab: Lab, maps: Mapping[str, AnyMap]) -> Lab:
    """The lab with these initial maps of wavelength switches, empty by default."""
    spectra = spectra_of(maps)
    now = tuple(
        replace(switch, initial=spectra.get(switch.name, SpectrumMap()))
        for switch in lab.wavelength_switches
    )
    return (
        lab
        if now == lab.wavelength_switches
        else lab.with_changes(wavelength_switches=now)
    )


def check_map_name(name: str, of: str = "saved maps") -> None:
    """``BadInput`` unless maps can be saved under this name."""
    if (
        not 0 < len(name) <= _LONGEST_MAP_NAME
        or not name.isprintable()
        or "/" in name
    ):
        words = f"expected 1 to {_LONGEST_MAP_NAME} printable characters without '/'"
    elif name in (".", ".."):
        words = "that is a folder"
    else:
        return
    raise BadInput(f"invalid name for {of} {name!r}: {words}")


# By OCS: outputs by input, or inputs by output.
_Across = Mapping[str, Mapping[int, int]]


class Links:
    """The lightpaths of port maps; a link is up if it has one in each direction.

    Each is traced when first used. Signals that end at an unconnected input, at an output without a
    fibre, or in a loop of circuit switches make no lightpath.
    """

    def __init__(
        self,
        lab: Lab,
        maps: Mapping[str, PortMap],
        spectra: Mapping[str, SpectrumMap] | None = None,
    ) -> None:
        self._lab = lab
        self._fibres = lab.circuit_fibres
        self._spectra = spectra
        self.maps = {
            ocs: maps[ocs] if ocs in maps else PortMap()
            for ocs in self._fibres
        }
        self.light = Light(lab, self.maps, spectra) if lab.coloured else None
        self._traced: dict[Endpoint, Endpoint | None] = {}

    def after(
        self, maps: Mapping[str, PortMap]
    ) -> tuple[Links, frozenset[Endpoint]]:
        """The links with other maps of circuit switches, and the sources of changed lightpaths.

        Without wavelength channels, only these are traced again.
        """
        links = Links(self._lab, maps, self._spectra)
        ours = self.paths
        theirs = links.__dict__
        if self.light is not None:
            ends = ours.keys() | links.paths.keys()
            return links, frozenset(
                end for end in ends if ours.get(end) != links.paths.get(end)
            )
        moved = set[Endpoint]()
        for ocs, before in self.maps.items():
            if (now := links.maps[ocs]) is not before and (
                change := before.diff(now)
            ):
                moved.update(self.sources(ocs, change.breaks))
                moved.update(links.sources(ocs, change.makes))
        # Unchanged paths are copied into the cached properties.
        paths = dict(ours)
        sinks = dict(self._sinks)
        for source in moved:
            paths.pop(source, None)
            sinks.pop(source, None)
            if (path := links.path(source)) is not None:
                paths[source] = path
                sinks[source] = path.sink
        theirs["paths"] = paths
        theirs["_sinks"] = sinks
        theirs["_loss_db"] = self._loss_db
        return links, frozenset(moved)

    @cached_property
    def paths(self) -> Mapping[Endpoint, LightPath]:
        """Every lightpath, by its source. O(fibres + cross-connects), once."""
        found = (
            (source, self.path(source)) for source in self._lab.fibre_ends
        )
        return {source: path for source, path in found if path is not None}

    def path(self, source: Endpoint) -> LightPath | None:
        """The lightpath from this NIC or packet-switch port, if any."""
        if source.device in self.maps or source not in self._lab.fibre_ends:
            return None
        if self.light is not None:
            return self.light.path(source)
        at, fibre = self._lab.fibre_ends[source]
        hops: list[Hop] = []
        lost_db: list[float] = []
        rate_bps = fibre.rate_bps
        loss_db = fibre.loss_db
        while (out_of := self._out_of.get(at.device)) is not None:
            ocs = at.device
            inp = int(at.port)
            out = out_of.get(inp)
            if out is None or out not in self._fibres[ocs]:
                return None
            hops.append((ocs, CrossConnect(inp, out)))
            at, fibre = self._fibres[ocs][out]
            lost_db.append(loss_db + self._loss_db[ocs])
            loss_db = lost_db[-1] + fibre.loss_db
            if fibre.rate_bps is not None:
                rate_bps = (
                    fibre.rate_bps
                    if rate_bps is None
                    else min(rate_bps, fibre.rate_bps)
                )
        passed = tuple(hops)
        return LightPath(
            source,
            at,
            passed,
            rate_bps,
            loss_db,
            tuple(lost_db),
            passed,
        )

    def passed(
        self, path: LightPath
    ) -> Iterable[tuple[tuple[str, Entry], float]]:
        """The entries of maps that pass this path, by switch, and the loss until there."""
        if self.light is None:
            return zip(path.hops, path.lost_db, strict=True)
        return self.light.passed(path)

    def sources(
        self, ocs: str, cross_connects: Iterable[Entry]
    ) -> Iterator[Endpoint]:
        """The sources of the lightpaths through these entries of this switch's map.

        Without wavelength channels O(entries), not O(lab).
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
            if begins is not None and (
                c.out in ends or self._beyond(ocs, c.out, self._out_of)
            ):
                yield begins

    def paths_through(
        self, ocs: str, cross_connects: Iterable[Entry]
    ) -> Iterator[LightPath]:
        """The lightpaths through these entries of this switch's map."""
        return filter(None, map(self.path, self.sources(ocs, cross_connects)))

    def peer(self, endpoint: Endpoint) -> Endpoint | None:
        """The other end of the link at ``endpoint``; ``None`` if it is down or one-way."""
        alone = "_sinks" not in self.__dict__ and len(self._traced) < _ALONE
        sink_of = self._sink if alone else self._sinks.get
        sink = sink_of(endpoint)
        return sink if sink is not None and sink_of(sink) == endpoint else None

    def peers(self, endpoint: Endpoint) -> tuple[Endpoint, ...]:
        """All ends with lightpaths both ways to ``endpoint``: several behind a coupler."""
        if self.light is None:
            peer = self.peer(endpoint)
            return () if peer is None else (peer,)
        arrivals = self.light.arrivals
        sinks = [path.sink for path in arrivals.get(endpoint, ())]
        return tuple(
            s
            for s in sinks
            if any(p.sink == endpoint for p in arrivals.get(s, ()))
        )

    def pairs(self) -> tuple[tuple[Endpoint, Endpoint], ...]:
        """Every link that is up, once, with sorted ends."""
        peers = ((end, self.peer(end)) for end in self._sinks)
        return tuple(
            sorted(
                (end, peer)
                for end, peer in peers
                if peer is not None and end <= peer
            )
        )

    def switch_of(self, lab: Lab, endpoint: Endpoint) -> str | None:
        """The packet switch that a NIC has a link to, or ``None``."""
        peer = self.peer(endpoint)
        if peer is None or not isinstance(
            lab.device(peer.device), PacketSwitch
        ):
            return None
        return peer.device

    def _sink(self, source: Endpoint) -> Endpoint | None:
        """Where the signal of this NIC or packet-switch port ends; it is traced alone."""
        if self.light is not None:
            return self._sinks.get(source)
        if source not in self._traced:
            self._traced[source] = self._traced_from(source)
        return self._traced[source]

    @cached_property
    def _sinks(self) -> Mapping[Endpoint, Endpoint]:
        if self.light is not None:
            return {source: path.sink for source, path in self.paths.items()}
        ends = (
            (source, self._traced_from(source))
            for source in self._lab.fibre_ends
        )
        return {source: sink for source, sink in ends if sink is not None}

    def _traced_from(self, source: Endpoint) -> Endpoint | None:
        if source.device in self.maps:
            return None
        plug = self._lab.circuit_plugs.get(source)
        if plug is None:
            fibre = self._lab.fibre_ends.get(source)
            return None if fibre is None else fibre[0]
        ocs, port = plug
        out = self._out_of[ocs].get(port)
        if out is None:
            return None
        # Mostly what is plugged in there is no other circuit switch.
        return self._lab.circuit_ends[ocs].get(out) or self._beyond(
            ocs, out, self._out_of
        )

    @cached_property
    def _out_of(self) -> _Across:
        return {ocs: port_map.out_of for ocs, port_map in self.maps.items()}

    @cached_property
    def _in_of(self) -> _Across:
        return {ocs: port_map.in_of for ocs, port_map in self.maps.items()}

    @cached_property
    def _loss_db(self) -> Mapping[str, float]:
        return {
            c.name: c.insertion_loss_db for c in self._lab.circuit_switches
        }

    def _end(self, at: Endpoint, across: _Across) -> Endpoint | None:
        """The end that a signal at ``at`` reaches through all circuit switches (or came from)."""
        begun = at
        while (there := across.get(at.device)) is not None:
            port = there.get(int(at.port))
            fibre = None if port is None else self._fibres[at.device].get(port)
            # A port map is injective, so a loop returns to its start.
            if fibre is None or fibre[0] is begun:
                return None
            at = fibre[0]
        return at

    def _beyond(
        self,
        ocs: str,
        port: int,
        across: _Across,
    ) -> Endpoint | None:
        fibre = self._fibres[ocs].get(port)
        return None if fibre is None else self._end(fibre[0], across)


def trace_links(
    lab: Lab,
    maps: Mapping[str, AnyMap],
    spectra: Mapping[str, SpectrumMap] | None = None,
) -> Links:
    """The lightpaths of these maps; a switch without a map passes nothing.

    Without any map of a wavelength switch, these are as in the lab file.
    """
    return Links(
        lab,
        circuits_of(maps),
        (spectra_of(maps) or None) if spectra is None else spectra,
    )


def lab_links(lab: Lab, maps: Mapping[str, AnyMap]) -> Links:
    """The lightpaths of the maps of all optical switches; one without a map passes nothing."""
    return Links(lab, circuits_of(maps), spectra_of(maps))


def circuit_ports(
    lab: Lab, endpoints: Iterable[Endpoint]
) -> dict[Endpoint, tuple[str, int]]:
    """For each endpoint with a fibre to an OCS: that OCS and its port number."""
    plugs = lab.circuit_plugs
    return {
        endpoint: plugs[endpoint]
        for endpoint in endpoints
        if endpoint in plugs
    }
