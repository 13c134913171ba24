"""The channels of an emulated wavelength switch as a state machine: no clock, no sockets.

An entry is made (light passes after the switching time) and removed (dark at once). What an
entry does never touches another one. Time comes in as an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from patchlight.emulation.optical.switch_matrix import Phase, Reason, RequestRefused
from patchlight.testbed.lab.spectrum import ChannelConnect, SpectrumMap


@dataclass(frozen=True, slots=True)
class Entry:
    """How far an entry is; ``due`` is when it is lit, if it is switching."""

    phase: Phase
    due: float = 0.0


@dataclass
class SpectrumMatrix:
    """Inputs 1…``inputs`` and outputs 1…``outputs``; any channel of any input to any output."""

    inputs: int
    outputs: int
    switching_time_s: float
    locked: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._entries: dict[ChannelConnect, Entry] = {}
        self._shown = SpectrumMap()

    def __iter__(self) -> Iterator[ChannelConnect]:
        """Every entry, lit or not, in the order made."""
        return iter(tuple(self._entries))

    @property
    def entries(self) -> Mapping[ChannelConnect, Entry]:
        """How far each is."""
        return self._entries

    @property
    def lit(self) -> SpectrumMap:
        """What lets light through now."""
        return SpectrumMap.of(w for w, entry in self._entries.items() if entry.phase is Phase.LIT)

    @property
    def dark(self) -> SpectrumMap:
        """What is in the table and lets none through: it switches, or has failed."""
        return SpectrumMap.of(w for w, e in self._entries.items() if e.phase is not Phase.LIT)

    def make(self, ways: Iterable[ChannelConnect], now: float) -> None:
        """Enter all of these, or none and raise ``RequestRefused``; they are lit in time."""
        ways = tuple(dict.fromkeys(ways))
        entered = list(self._entries)
        for way in ways:
            self._check(way)
            if way in self._entries:
                raise RequestRefused(Reason.EXISTS, port=way.inp, message=f"{way} exists")
            if other := next((other for other in entered if other.clashes(way)), None):
                message = f"channel overlaps that of {other}"
                raise RequestRefused(Reason.BUSY, port=way.out, message=message)
            entered.append(way)
        for way in ways:
            self._entries[way] = self._begun(way, now)

    def remove(self, ways: Iterable[ChannelConnect]) -> None:
        """Go dark at once; what is not there is passed over."""
        for way in ways:
            self._entries.pop(way, None)

    def load(self, wanted: SpectrumMap, now: float) -> None:
        """Have exactly this, or raise ``RequestRefused``. What is the same is not touched.

        An attenuation is set in place: the channel stays lit.
        """
        fresh = {}
        before = {way._replace(attenuation_db=0.0): entry for way, entry in self._entries.items()}
        for way in wanted:
            entry = before.get(way._replace(attenuation_db=0.0))
            if entry is None:
                self._check(way)
                entry = self._begun(way, now)
            fresh[way] = entry
        self._entries = fresh

    def next_due(self) -> float | None:
        """When the next entry is lit, or ``None`` if none switches."""
        switching = (e.due for e in self._entries.values() if e.phase is Phase.SWITCHING)
        return min(switching, default=None)

    def take(self, now: float) -> SpectrumMap | None:
        """What is lit now; ``None`` if that is what the last call said."""
        for way, entry in self._entries.items():
            if entry.phase is Phase.SWITCHING and entry.due <= now:
                self._entries[way] = Entry(Phase.LIT)
        lit = self.lit
        if lit == self._shown:
            return None
        self._shown = lit
        return lit

    def _begun(self, way: ChannelConnect, now: float) -> Entry:
        if {way.inp, way.out} & self.failed:
            return Entry(Phase.FAILED)
        return Entry(Phase.SWITCHING, now + self.switching_time_s)

    def _check(self, way: ChannelConnect) -> None:
        for port, count in ((way.inp, self.inputs), (way.out, self.outputs)):
            if not 1 <= port <= count:
                raise RequestRefused(Reason.NO_PORT, port=port)
            if port in self.locked:
                raise RequestRefused(Reason.LOCKED, port=port)
