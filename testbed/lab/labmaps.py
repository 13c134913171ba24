"""The maps of all optical switches of a lab by name, of whichever kind each is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Lab, OpticalSwitch
from patchlight.testbed.lab.portmap import AnyMap, PortMap
from patchlight.testbed.lab.spectrum import Channel, SpectrumMap
from patchlight.testbed.lab.wavelengths import WavelengthSwitch

_LONGEST_MAP_NAME = 100


class Place(NamedTuple):
    """Both sides of a port of an optical switch; of a wavelength switch maybe one channel there."""

    port: int
    channel: Channel | None = None

    @classmethod
    def parse(cls, text: str) -> Place:
        """``"3"``, ``"3@193.100"``; ``BadInput`` for anything else."""
        port, at, channel = text.partition("@")
        if not (port.isascii() and port.isdigit() and len(port) < 10):
            raise BadInput(
                f"{text!r} is not a port: expected its number, like '3', or of a wavelength switch "
                "one channel there, like '3@193.100'"
            )
        return cls(int(port), Channel.parse(channel) if at else None)

    def __str__(self) -> str:
        return f"{self.port}@{self.channel}" if self.channel else str(self.port)

    def holds(self, entry: Any) -> bool:
        """Whether an entry of the switch's map uses the place."""
        if self.port not in (entry.inp, entry.out):
            return False
        return self.channel is None or bool(self.channel.overlaps(entry.channel))


def driven(switch: OpticalSwitch) -> str:
    """The name of a switch that can be asked; ``BadInput`` where the lab file has no driver."""
    if not switch.driver:
        raise BadInput(
            f"{switch.name} has no driver in the lab file, so nobody can ask it",
            hint="it is taken to be as that file says: give it a 'driver' and an 'address'",
        )
    return switch.name


def check_place(switch: OpticalSwitch, place: Place) -> None:
    """``BadInput`` if the switch has no such place."""
    if not 1 <= place.port <= switch.ports:
        raise BadInput(f"{switch.name} has ports 1–{switch.ports}, not {place.port}")
    if place.channel is None:
        return
    if not isinstance(switch, WavelengthSwitch):
        raise BadInput(
            f"{place} names a channel, and {switch.name} is a circuit switch, which passes all "
            f"light alike: expected {place.port}"
        )
    switch.grid.check(place.channel)


def places_of(entries: Iterable[Any]) -> list[Place]:
    """What entries of one map use: ports, and of a wavelength switch their channels there."""
    return in_order(
        Place(port, getattr(entry, "channel", None))
        for entry in entries
        for port in (entry.inp, entry.out)
    )


def in_order(places: Iterable[Place]) -> list[Place]:
    """Each place once, by port; a whole port before its channels, and these by frequency."""
    return sorted(set(places), key=lambda place: (place.port, place.channel or ()))


def entries_at(switch_map: AnyMap, places: Iterable[int | Place]) -> tuple[Any, ...]:
    """The entries of a map that use these ports, or places."""
    named = [Place(place) if isinstance(place, int) else place for place in places]
    ports = {place.port for place in named if place.channel is None}
    channels = [place for place in named if place.channel is not None]
    return tuple(
        entry
        for entry in switch_map
        if entry.inp in ports or entry.out in ports or any(p.holds(entry) for p in channels)
    )


def parse_map(switch: OpticalSwitch, texts: Iterable[str]) -> AnyMap:
    """The map of this switch that is written so; ``BadInput`` for entries of the other kind."""
    texts, selective = tuple(texts), isinstance(switch, WavelengthSwitch)
    for text in texts:
        if selective and "@" not in text:
            raise BadInput(
                f"{text!r} names no channel, and {switch.name} is a wavelength switch: expected "
                "two ports and a channel in THz, like '1-2@193.100'"
            )
        if not selective and "@" in text:
            raise BadInput(
                f"{text!r} names a channel, and {switch.name} is a circuit switch, which passes "
                "all light alike: expected two ports, like '1-2'"
            )
    return SpectrumMap.parse(texts) if selective else PortMap.parse(texts)


def recorded_map(lab: Lab | None, name: str, texts: Iterable[str]) -> AnyMap:
    """A map that was written down earlier, maybe of a switch that the lab has no more."""
    switches = () if lab is None else lab.optical_switches
    switch = next((switch for switch in switches if switch.name == name), None)
    if switch is not None:
        return parse_map(switch, texts)
    texts = tuple(texts)
    return SpectrumMap.parse(texts) if any("@" in text for text in texts) else PortMap.parse(texts)


def check_map(switch: OpticalSwitch, wanted: AnyMap) -> None:
    """``BadInput`` if the switch cannot have this map."""
    if isinstance(switch, WavelengthSwitch):
        if isinstance(wanted, SpectrumMap):
            wanted.check(switch.inputs, switch.outputs, switch.grid)
            return
    elif isinstance(wanted, PortMap):
        wanted.check(switch.ports)
        return
    kinds = "a SpectrumMap" if isinstance(switch, WavelengthSwitch) else "a PortMap"
    raise BadInput(f"the map of {switch.name} is {kinds}, not {type(wanted).__name__}")


def circuits_of(maps: Mapping[str, AnyMap]) -> dict[str, PortMap]:
    """Those of circuit switches."""
    return {name: each for name, each in maps.items() if isinstance(each, PortMap)}


def spectra_of(maps: Mapping[str, AnyMap]) -> dict[str, SpectrumMap]:
    """Those of wavelength switches."""
    return {name: each for name, each in maps.items() if isinstance(each, SpectrumMap)}


def with_spectra(lab: Lab, maps: Mapping[str, AnyMap]) -> Lab:
    """The lab as if its file gave the wavelength switches these maps; one without lets nothing by.

    So that whoever follows light with the maps of circuit switches alone follows it truly.
    """
    spectra = spectra_of(maps)
    now = tuple(
        replace(switch, initial=spectra.get(switch.name, SpectrumMap()))
        for switch in lab.wavelength_switches
    )
    return lab if now == lab.wavelength_switches else lab.with_changes(wavelength_switches=now)


def check_map_name(name: str) -> None:
    """``BadInput`` unless maps may be saved under this name."""
    if not 0 < len(name) <= _LONGEST_MAP_NAME or not name.isprintable() or "/" in name:
        words = f"expected 1 to {_LONGEST_MAP_NAME} printable characters without '/'"
    elif name in (".", ".."):
        words = "that is a folder"
    else:
        return
    raise BadInput(f"{name!r} cannot be the name of saved maps: {words}")
