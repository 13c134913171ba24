"""Models the state of emulated optical switches, without clocks or sockets."""

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
    """The phase of a circuit."""

    PARKED = "entered, not activated"
    SWITCHING = "mirrors turning"
    LIT = "lit"
    FAILED = "failed"


class Reason(Enum):
    """Why the device refuses something; each vendor has its own message."""

    NO_PORT = "no such port"
    BUSY = "port in use"
    LOCKED = "port locked"
    FAILED = "port failed"
    EXISTS = "circuit exists"
    ACTIVE = "circuit is active"
    NOT_FOUND = "no such circuit"


class RequestRefused(Exception):
    """The device refuses: ``reason``, the affected port, the conflicting circuit.

    ``message`` replaces the reason's text if needed.
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
        self.reason = reason
        self.port = port
        self.circuit = circuit
        self.message = message


@dataclass(eq=False)
class SwitchedCircuit:
    """One or two directed cross-connects that are handled together.

    ``switching_time_s`` overrides the device's.
    """

    directions: tuple[CrossConnect, ...]
    name: str = ""
    group: str = ""
    phase: Phase = Phase.PARKED
    turn: int = 0
    switching_time_s: float | None = None

    @property
    def two_way(self) -> bool:
        """Whether it is a two-way circuit between two ports."""
        return len(self.directions) == 2


@dataclass(frozen=True)
class LightChange:
    """Changes for the crossbar: disconnect these inputs, then connect these paths."""

    dark: tuple[int, ...] = ()
    light: tuple[CrossConnect, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.dark or self.light)


@dataclass
class SwitchMatrix:
    """The mirrors of an OCS: ports 1…``ports`` on each side; any input to any output.

    A circuit is entered (its ports are reserved), activated (it passes signals after the switching
    time), deactivated (immediately) and removed. Time is an argument.
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
        """Every circuit once, in order of entry."""
        return iter(dict.fromkeys(self._by_input.values()))

    def find(self, cross_connect: CrossConnect) -> SwitchedCircuit | None:
        """The circuit with this direction."""
        circuit = self._by_input.get(cross_connect.inp)
        return (
            circuit
            if circuit and cross_connect in circuit.directions
            else None
        )

    def at(self, side: Side, port: int) -> SwitchedCircuit | None:
        """The circuit that uses this side of a port."""
        return (self._by_input if side == "in" else self._by_output).get(port)

    def lights(self, output: int) -> int | None:
        """The input connected to ``output`` now, or ``None``."""
        return self._lit.get(output)

    def in_the_way(
        self, directions: Iterable[CrossConnect]
    ) -> list[SwitchedCircuit]:
        """The circuits that conflict with these; empty if these are not possible anyway."""
        holders: list[SwitchedCircuit | None] = []
        for c in directions:
            outside = not (
                1 <= c.inp <= self.ports and 1 <= c.out <= self.ports
            )
            if outside or self.find(c) or self.locked & {c.inp, c.out}:
                return []
            holders += (self._by_input.get(c.inp), self._by_output.get(c.out))
        return [
            circuit
            for circuit in dict.fromkeys(holders)
            if circuit is not None
        ]

    def enter(
        self,
        directions: Iterable[CrossConnect],
        name: str,
        group: str,
    ) -> SwitchedCircuit:
        """Reserve the ports for a new circuit, which stays inactive. Raises ``RequestRefused``."""
        circuit = SwitchedCircuit(tuple(directions), name, group)
        for c in circuit.directions:
            for port in (c.inp, c.out):
                if not 1 <= port <= self.ports:
                    raise RequestRefused(Reason.NO_PORT, port=port)
                if port in self.locked:
                    raise RequestRefused(Reason.LOCKED, port=port)
            if there := self.find(c):
                raise RequestRefused(Reason.EXISTS, circuit=there)
            for port, taken in (
                (c.inp, self._by_input),
                (c.out, self._by_output),
            ):
                if port in taken:
                    raise RequestRefused(
                        Reason.BUSY,
                        port=port,
                        circuit=taken[port],
                    )
        for c in circuit.directions:
            self._by_input[c.inp] = self._by_output[c.out] = circuit
        return circuit

    def activate(self, circuit: SwitchedCircuit, now: float) -> None:
        """Turn the mirrors: active from ``now`` + switching time, or ``RequestRefused``."""
        if circuit.phase in (Phase.SWITCHING, Phase.LIT):
            raise RequestRefused(Reason.ACTIVE, circuit=circuit)
        ports = {port for c in circuit.directions for port in (c.inp, c.out)}
        if locked := ports & self.locked:
            raise RequestRefused(Reason.LOCKED, port=min(locked))
        if ports & self.failed:
            circuit.phase = Phase.FAILED
            return
        circuit.phase = Phase.SWITCHING
        circuit.turn = next(self._turns)
        own = circuit.switching_time_s
        due = now + (self.switching_time_s if own is None else own)
        heapq.heappush(self._turning, (due, circuit.turn, circuit))

    def deactivate(self, circuit: SwitchedCircuit) -> None:
        """Deactivate it immediately; the ports stay reserved."""
        if circuit.phase is Phase.LIT:
            for c in circuit.directions:
                del self._lit[c.out]
                self._dark.append(c.inp)
        circuit.phase = Phase.PARKED
        circuit.turn = 0

    def fail(self, cross_connect: CrossConnect) -> None:
        """This path failed, and so did its circuit."""
        if circuit := self.find(cross_connect):
            self.deactivate(circuit)
            circuit.phase = Phase.FAILED

    def remove(self, circuit: SwitchedCircuit) -> None:
        """Deactivate it immediately and free the ports."""
        self.deactivate(circuit)
        for c in circuit.directions:
            del self._by_input[c.inp], self._by_output[c.out]

    def next_due(self) -> float | None:
        """When the next mirrors come to rest, or ``None``."""
        return self._turning[0][0] if self._turning else None

    def take(self, now: float) -> LightChange:
        """The changes of active paths up to ``now``, since the last call."""
        light: list[CrossConnect] = []
        while self._turning and self._turning[0][0] <= now:
            _, turn, circuit = heapq.heappop(self._turning)
            # A circuit that was deactivated or restarted meanwhile has another turn pending.
            if circuit.phase is not Phase.SWITCHING or circuit.turn != turn:
                continue
            circuit.phase = Phase.LIT
            for c in circuit.directions:
                self._lit[c.out] = c.inp
                light.append(c)
        dark = tuple(self._dark)
        self._dark = []
        return LightChange(dark, tuple(light))


@dataclass(
    frozen=True,
    slots=True,
)
class SpectrumEntry:
    """The phase of an entry; ``due`` is when it becomes active, if it is switching."""

    phase: Phase
    due: float = 0.0


@dataclass
class SpectrumMatrix:
    """A wavelength switch: any channel of inputs 1…``inputs`` to any of outputs 1…``outputs``.

    An entry is active after the switching time, until it is removed. Time is an argument.
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
        """Every entry, active or not, in order of entry."""
        return iter(tuple(self.entries))

    @property
    def lit(self) -> SpectrumMap:
        """The active entries."""
        return SpectrumMap.of(
            w for w, entry in self.entries.items() if entry.phase is Phase.LIT
        )

    @property
    def dark(self) -> SpectrumMap:
        """The inactive entries: switching, or failed."""
        return SpectrumMap.of(
            w for w, e in self.entries.items() if e.phase is not Phase.LIT
        )

    def make(self, ways: Iterable[ChannelConnect], now: float) -> None:
        """Add all of these, or none and raise ``RequestRefused``; they become active later."""
        ways = tuple(dict.fromkeys(ways))
        entered = list(self.entries)
        for way in ways:
            self._check(way)
            if way in self.entries:
                raise RequestRefused(
                    Reason.EXISTS,
                    port=way.inp,
                    message=f"{way} exists",
                )
            if other := next(
                (other for other in entered if other.clashes(way)), None
            ):
                message = f"channel overlaps that of {other}"
                raise RequestRefused(
                    Reason.BUSY,
                    port=way.out,
                    message=message,
                )
            entered.append(way)
        for way in ways:
            self.entries[way] = self._begun(way, now)

    def remove(self, ways: Iterable[ChannelConnect]) -> None:
        """Remove these immediately; missing ones are skipped."""
        for way in ways:
            self.entries.pop(way, None)

    def load(self, wanted: SpectrumMap, now: float) -> None:
        """Set exactly this map, or raise ``RequestRefused``. Unchanged entries are not touched.

        An attenuation changes in place, without an outage.
        """
        fresh = {}
        before = {
            way._replace(attenuation_db=0.0): entry
            for way, entry in self.entries.items()
        }
        for way in wanted:
            entry = before.get(way._replace(attenuation_db=0.0))
            if entry is None:
                self._check(way)
                entry = self._begun(way, now)
            fresh[way] = entry
        self.entries = fresh

    def next_due(self) -> float | None:
        """When the next entry becomes active, or ``None``."""
        switching = (
            e.due for e in self.entries.values() if e.phase is Phase.SWITCHING
        )
        return min(switching, default=None)

    def take(self, now: float) -> SpectrumMap | None:
        """The active entries; ``None`` if unchanged since the last call."""
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
