"""What emulated optical switches let through, as state machines without clock or sockets."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from patchlight.controller.circuits.contract import Side
from patchlight.testbed.lab.portmap import CrossConnect
from patchlight.testbed.lab.spectrum import ChannelConnect, SpectrumMap


class Phase(Enum):
    """How far a circuit is."""

    PARKED = "entered, not activated"
    SWITCHING = "mirrors turning"
    LIT = "lit"
    FAILED = "failed"


class Reason(Enum):
    """Why the device refuses something; each vendor has its own words for it."""

    NO_PORT = "no such port"
    BUSY = "port in use"
    LOCKED = "port locked"
    FAILED = "port failed"
    EXISTS = "circuit exists"
    ACTIVE = "circuit is active"
    NOT_FOUND = "no such circuit"


class RequestRefused(Exception):
    """The device refuses: ``reason``, the port it is about, the circuit in the way.

    ``message``: the words, where the reason's own are not enough.
    """

    def __init__(
        self,
        reason: Reason,
        *,
        port: int | None = None,
        circuit: SwitchedCircuit | None = None,
        message: str = "",
    ) -> None:
        super().__init__(reason.value)
        self.reason, self.port, self.circuit, self.message = reason, port, circuit, message


@dataclass(eq=False)
class SwitchedCircuit:
    """One or two directed cross-connects that come and go together.

    ``switching_time_s``: its own, where it is not the device's.
    """

    directions: tuple[CrossConnect, ...]
    name: str = ""
    group: str = ""
    phase: Phase = Phase.PARKED
    turn: int = 0
    switching_time_s: float | None = None

    @property
    def two_way(self) -> bool:
        """Whether it carries light both ways between two ports."""
        return len(self.directions) == 2


@dataclass(frozen=True)
class LightChange:
    """The work of the crossbar: these inputs go dark, then these paths light up."""

    dark: tuple[int, ...] = ()
    light: tuple[CrossConnect, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.dark or self.light)


@dataclass
class SwitchMatrix:
    """The mirrors of an OCS: ports 1…``ports`` on each side; any input to any output.

    A circuit is entered (its ports are taken), activated (the mirrors turn; light passes after the
    switching time), deactivated (dark at once) and removed. Time is an argument.
    """

    ports: int
    switching_time_s: float
    locked: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._by_input: dict[int, SwitchedCircuit] = {}
        self._by_output: dict[int, SwitchedCircuit] = {}
        self._lit: dict[int, int] = {}  # input by output
        self._turning: list[tuple[float, int, SwitchedCircuit]] = []
        self._dark: list[int] = []
        self._turns = itertools.count(1)

    def __iter__(self) -> Iterator[SwitchedCircuit]:
        """Every circuit once, in the order entered."""
        return iter(dict.fromkeys(self._by_input.values()))

    def find(self, cross_connect: CrossConnect) -> SwitchedCircuit | None:
        """The circuit that has this direction."""
        circuit = self._by_input.get(cross_connect.inp)
        return circuit if circuit and cross_connect in circuit.directions else None

    def at(self, side: Side, port: int) -> SwitchedCircuit | None:
        """The circuit that holds this side of a port."""
        return (self._by_input if side == "in" else self._by_output).get(port)

    def lights(self, output: int) -> int | None:
        """The input whose light leaves at ``output`` now, or ``None``."""
        return self._lit.get(output)

    def in_the_way(self, directions: Iterable[CrossConnect]) -> list[SwitchedCircuit]:
        """The circuits that would have to go for these; none if these cannot be anyway."""
        holders: list[SwitchedCircuit | None] = []
        for c in directions:
            outside = not (1 <= c.inp <= self.ports and 1 <= c.out <= self.ports)
            if outside or self.find(c) or self.locked & {c.inp, c.out}:
                return []
            holders += (self._by_input.get(c.inp), self._by_output.get(c.out))
        return [circuit for circuit in dict.fromkeys(holders) if circuit is not None]

    def enter(self, directions: Iterable[CrossConnect], name: str, group: str) -> SwitchedCircuit:
        """Take the ports for a new circuit; it stays dark. Raises ``RequestRefused``."""
        circuit = SwitchedCircuit(tuple(directions), name, group)
        for c in circuit.directions:
            for port in (c.inp, c.out):
                if not 1 <= port <= self.ports:
                    raise RequestRefused(Reason.NO_PORT, port=port)
                if port in self.locked:
                    raise RequestRefused(Reason.LOCKED, port=port)
            if there := self.find(c):
                raise RequestRefused(Reason.EXISTS, circuit=there)
            for port, taken in ((c.inp, self._by_input), (c.out, self._by_output)):
                if port in taken:
                    raise RequestRefused(Reason.BUSY, port=port, circuit=taken[port])
        for c in circuit.directions:
            self._by_input[c.inp] = self._by_output[c.out] = circuit
        return circuit

    def activate(self, circuit: SwitchedCircuit, now: float) -> None:
        """Turn the mirrors: light passes from ``now`` + switching time, or ``RequestRefused``."""
        if circuit.phase in (Phase.SWITCHING, Phase.LIT):
            raise RequestRefused(Reason.ACTIVE, circuit=circuit)
        ports = {port for c in circuit.directions for port in (c.inp, c.out)}
        if locked := ports & self.locked:
            raise RequestRefused(Reason.LOCKED, port=min(locked))
        if ports & self.failed:
            circuit.phase = Phase.FAILED
            return
        circuit.phase, circuit.turn = Phase.SWITCHING, next(self._turns)
        own = circuit.switching_time_s
        due = now + (self.switching_time_s if own is None else own)
        heapq.heappush(self._turning, (due, circuit.turn, circuit))

    def deactivate(self, circuit: SwitchedCircuit) -> None:
        """Go dark at once; the ports stay taken."""
        if circuit.phase is Phase.LIT:
            for c in circuit.directions:
                del self._lit[c.out]
                self._dark.append(c.inp)
        circuit.phase, circuit.turn = Phase.PARKED, 0

    def fail(self, cross_connect: CrossConnect) -> None:
        """The light of this path did not come up: its circuit has failed."""
        if circuit := self.find(cross_connect):
            self.deactivate(circuit)
            circuit.phase = Phase.FAILED

    def remove(self, circuit: SwitchedCircuit) -> None:
        """Go dark at once and free the ports."""
        self.deactivate(circuit)
        for c in circuit.directions:
            del self._by_input[c.inp], self._by_output[c.out]

    def next_due(self) -> float | None:
        """When the next mirrors come to rest, or ``None`` if none turn."""
        return self._turning[0][0] if self._turning else None

    def take(self, now: float) -> LightChange:
        """What changed for the light up to ``now``, since the last call."""
        light: list[CrossConnect] = []
        while self._turning and self._turning[0][0] <= now:
            _, turn, circuit = heapq.heappop(self._turning)
            # Deactivated, or activated again, while its mirrors turned: another turn counts.
            if circuit.phase is not Phase.SWITCHING or circuit.turn != turn:
                continue
            circuit.phase = Phase.LIT
            for c in circuit.directions:
                self._lit[c.out] = c.inp
                light.append(c)
        dark, self._dark = tuple(self._dark), []
        return LightChange(dark, tuple(light))


@dataclass(frozen=True, slots=True)
class SpectrumEntry:
    """How far an entry is; ``due`` is when it is lit, if it is switching."""

    phase: Phase
    due: float = 0.0


@dataclass
class SpectrumMatrix:
    """A wavelength switch: any channel of inputs 1…``inputs`` to any of outputs 1…``outputs``.

    Light passes an entry once the switching time is over, until it is removed. Time is an argument.
    """

    inputs: int
    outputs: int
    switching_time_s: float
    locked: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.entries: dict[ChannelConnect, SpectrumEntry] = {}
        self._shown = SpectrumMap()

    def __iter__(self) -> Iterator[ChannelConnect]:
        """Every entry, lit or not, in the order made."""
        return iter(tuple(self.entries))

    @property
    def lit(self) -> SpectrumMap:
        """What lets light through now."""
        return SpectrumMap.of(w for w, entry in self.entries.items() if entry.phase is Phase.LIT)

    @property
    def dark(self) -> SpectrumMap:
        """What is in the table and lets none through: it switches, or has failed."""
        return SpectrumMap.of(w for w, e in self.entries.items() if e.phase is not Phase.LIT)

    def make(self, ways: Iterable[ChannelConnect], now: float) -> None:
        """Enter all of these, or none and raise ``RequestRefused``; they are lit in time."""
        ways = tuple(dict.fromkeys(ways))
        entered = list(self.entries)
        for way in ways:
            self._check(way)
            if way in self.entries:
                raise RequestRefused(Reason.EXISTS, port=way.inp, message=f"{way} exists")
            if other := next((other for other in entered if other.clashes(way)), None):
                message = f"channel overlaps that of {other}"
                raise RequestRefused(Reason.BUSY, port=way.out, message=message)
            entered.append(way)
        for way in ways:
            self.entries[way] = self._begun(way, now)

    def remove(self, ways: Iterable[ChannelConnect]) -> None:
        """Go dark at once; what is not there is passed over."""
        for way in ways:
            self.entries.pop(way, None)

    def load(self, wanted: SpectrumMap, now: float) -> None:
        """Have exactly this, or raise ``RequestRefused``. What is the same is not touched.

        An attenuation is set in place: the channel stays lit.
        """
        fresh = {}
        before = {way._replace(attenuation_db=0.0): entry for way, entry in self.entries.items()}
        for way in wanted:
            entry = before.get(way._replace(attenuation_db=0.0))
            if entry is None:
                self._check(way)
                entry = self._begun(way, now)
            fresh[way] = entry
        self.entries = fresh

    def next_due(self) -> float | None:
        """When the next entry is lit, or ``None`` if none switches."""
        switching = (e.due for e in self.entries.values() if e.phase is Phase.SWITCHING)
        return min(switching, default=None)

    def take(self, now: float) -> SpectrumMap | None:
        """What is lit now; ``None`` if that is what the last call said."""
        for way, entry in self.entries.items():
            if entry.phase is Phase.SWITCHING and entry.due <= now:
                self.entries[way] = SpectrumEntry(Phase.LIT)
        lit = self.lit
        if lit == self._shown:
            return None
        self._shown = lit
        return lit

    def _begun(self, way: ChannelConnect, now: float) -> SpectrumEntry:
        if {way.inp, way.out} & self.failed:
            return SpectrumEntry(Phase.FAILED)
        return SpectrumEntry(Phase.SWITCHING, now + self.switching_time_s)

    def _check(self, way: ChannelConnect) -> None:
        for port, count in ((way.inp, self.inputs), (way.out, self.outputs)):
            if not 1 <= port <= count:
                raise RequestRefused(Reason.NO_PORT, port=port)
            if port in self.locked:
                raise RequestRefused(Reason.LOCKED, port=port)
