"""Plans the rounds of a search for the ends of fibres at circuit switches, and evaluates them.

Pure functions: they yield rounds and receive pairs of sender and receiver. Every end sends frames
with its name in all rounds; a round selects the circuits. Inputs and outputs are independent,
because the two fibres of a pair may be crossed or in different ports. What is heard without
circuits is known before.

1. A ring over the ports that the lab file has an end for, all at once. Its circuits are then made
   again by the bits of their numbers: half of them at a time, then the other half, log₂ times.
   The rounds in which a frame arrives spell the number of its circuit; lost and stray frames spell
   none. If nothing is heard, other rings over all ports follow.
2. A known receiver at an output can be connected to any input, and a known transmitter at an input
   to any output; as many ports at a time as ends are known.
"""

from collections import defaultdict
from collections.abc import (
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple


class OcsPort(NamedTuple):
    """A port of a circuit switch: its input or its output, depending on context."""

    ocs: str
    number: int

    def __str__(self) -> str:
        return f"{self.ocs}.{self.number}"


Light = dict[OcsPort, OcsPort]
"""Which input is connected to which output of the same circuit switch."""

Heard = frozenset[tuple[str, str]]
"""Pairs of the sending and the receiving end."""

LIGHT = "a signal without frames"
"""The sender if a receiver has a carrier only with the circuit, and receives no frame."""


@dataclass(
    frozen=True,
    slots=True,
)
class SearchRound:
    """Cross-connects to make; at most ``left`` rounds follow, ``patience`` multiplies the time."""

    light: Light
    left: int
    patience: int = 1


@dataclass
class Findings:
    """The end at each input and output (``tor1.3``, or a port of another OCS), ``None`` if it was
    silent, and contradictions as text; ``twice`` are ends that seem to be at two ports."""

    inputs: dict[OcsPort, str | None] = field(default_factory=dict)
    outputs: dict[OcsPort, str | None] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)
    twice: set[str] = field(default_factory=set)


Search = Generator[SearchRound, Heard, Findings]
_Rounds = Generator[SearchRound, Heard, None]


def search(
    ports: Mapping[str, Iterable[int]],
    expected: Mapping[OcsPort, str],
    ends: Collection[str],
    elsewhere: Heard,
    *,
    every_port: bool = False,
    mute: Collection[str] = (),
) -> Search:
    """Find the ends at these ``ports``; send it ``Heard`` after each round. Without ``every_port``
    it stops when all participating ``ends`` are found. The ``mute`` ones only hear: both fibres of
    their pair are taken to be at the port that they hear."""
    return _Searching(
        ports,
        expected,
        ends,
        elsewhere,
        mute,
        every_port=every_port,
    ).run()


def likely_rounds(
    ports: Collection[OcsPort], expected: Mapping[OcsPort, str]
) -> int:
    """The number of rounds if all is as expected."""
    return 1 + 2 * _bits(sum(port in expected for port in ports))


class _Searching:
    def __init__(
        self,
        ports: Mapping[str, Iterable[int]],
        expected: Mapping[OcsPort, str],
        ends: Collection[str],
        elsewhere: Heard,
        mute: Collection[str],
        *,
        every_port: bool,
    ) -> None:
        self._mute = set(mute)
        self._expected = expected
        self._ends = set(ends)
        self._every_port = every_port
        self._elsewhere = elsewhere
        self._away = {end for pair in elsewhere for end in pair}
        # First those that should have a fibre.
        self._ports = sorted(
            (
                OcsPort(ocs, number)
                for ocs, numbers in ports.items()
                for number in numbers
            ),
            key=lambda port: (expected.get(port) not in self._ends, port),
        )
        self._found = Findings()

    def run(self) -> Search:
        found = self._found
        for ring in self._rings():
            heard = yield SearchRound(dict(ring), 2 * _bits(len(ring)))
            # A carrier may change too slowly to spell a number.
            named = frozenset(
                pair for pair in heard - self._elsewhere if pair[0] != LIGHT
            )
            if named:
                yield from self._spell(ring, named)
        inputs = [port for port in self._ports if port not in found.inputs]
        outputs = [port for port in self._ports if port not in found.outputs]
        yield from self._sweep(inputs, outputs, 1)
        # Repeat with more time if something should have been heard.
        yield from self._sweep(
            self._missed(found.inputs), self._missed(found.outputs), 2
        )
        yield from self._trunks()
        return found

    def _rings(self) -> Iterator[list[tuple[OcsPort, OcsPort]]]:
        """Circuits from each port to another of its OCS: first the likely ports, then all ports, at
        each distance, of OCSs without a known end."""
        likely = [
            port
            for port in self._ports
            if self._expected.get(port) in self._ends
        ]
        if ring := _ring(likely, 1):
            yield ring
        longest = max(
            (len(ports) for ports in _by_ocs(self._ports).values()), default=0
        )
        for distance in range(1, longest):
            begun = {port.ocs for port in self._found.inputs}
            ring = _ring(
                (port for port in self._ports if port.ocs not in begun),
                distance,
            )
            if not ring or self._all_found():
                return
            yield ring

    def _spell(
        self, ring: Sequence[tuple[OcsPort, OcsPort]], heard: Heard
    ) -> _Rounds:
        numbers: dict[tuple[str, str], int | None] = dict.fromkeys(heard, 0)
        for bit in range(bits := _bits(len(ring))):
            came: list[Heard] = []
            for value in (1, 0):
                light = {
                    a: b
                    for n, (a, b) in enumerate(ring)
                    if n >> bit & 1 == value
                }
                came.append(
                    (yield SearchRound(light, 2 * (bits - bit) - 2 + value))
                )
            for pair, number in numbers.items():
                in_ones = pair in came[0]
                in_zeros = pair in came[1]
                if number is None or in_ones == in_zeros:
                    numbers[pair] = (
                        None  # lost, or it passed two cross-connects
                    )
                else:
                    numbers[pair] = number | in_ones << bit
        spelt = defaultdict[int, list[tuple[str, str]]](list)
        for pair, number in numbers.items():
            if number is not None and number < len(ring):
                spelt[number].append(pair)
        for number, pairs in spelt.items():
            source = self._only({source for source, _ in pairs})
            receiver = self._only({receiver for _, receiver in pairs})
            if source is not None and receiver is not None:
                self._place(
                    self._found.inputs,
                    ring[number][0],
                    source,
                    "sends into",
                )
                self._place(
                    self._found.outputs,
                    ring[number][1],
                    receiver,
                    "hears",
                )

    def _sweep(
        self,
        inputs: list[OcsPort],
        outputs: list[OcsPort],
        patience: int,
    ) -> _Rounds:
        """Test each of these once; found ends allow more ports in the next round."""
        while (inputs or outputs) and not self._all_found():
            heard_at, sent_to = self._lit(inputs, outputs)
            if not heard_at and not sent_to:
                return  # no end is known behind these circuit switches
            inputs = [port for port in inputs if port not in heard_at]
            outputs = [port for port in outputs if port not in sent_to]
            each = max(len(heard_at), len(sent_to))
            left = ceil(max(len(inputs), len(outputs)) / each)
            yield from self._ask(
                heard_at,
                sent_to,
                left,
                patience,
            )

    def _trunks(self) -> _Rounds:
        """Find fibres between circuit switches: with known ends at both, one of them sends."""
        among = {str(port) for port in self._ports}
        if len({port.ocs for port in self._ports}) < 2:
            return
        likely = [
            p
            for p in self._ports
            if self._every_port or self._expected.get(p) in among
        ]
        outputs = [
            port for port in likely if self._found.outputs.get(port) is None
        ]
        while outputs:
            inputs = [
                port for port in likely if self._found.inputs.get(port) is None
            ]
            _, sent_to = self._lit([], outputs)
            if not sent_to:
                return
            outputs = [port for port in outputs if port not in sent_to]
            while inputs:
                heard_at, _ = self._lit(inputs, [])
                if not heard_at:
                    break
                inputs = [port for port in inputs if port not in heard_at]
                each = len(heard_at), len(sent_to)
                left = ceil(len(inputs) / each[0]) * (
                    1 + ceil(len(outputs) / each[1])
                )
                yield from self._ask(
                    heard_at,
                    sent_to,
                    left,
                    1,
                )

    def _lit(
        self, inputs: Iterable[OcsPort], outputs: Iterable[OcsPort]
    ) -> tuple[Light, Light]:
        """As many of these as fit into one round: inputs with the output of a listening receiver,
        outputs with the input of a transmitter."""
        receivers = _by_ocs(
            p for p, end in self._found.outputs.items() if end in self._ends
        )
        senders = self._ends - self._mute
        sources = _by_ocs(
            p for p, end in self._found.inputs.items() if end in senders
        )
        heard_at = Light()
        sent_to = Light()
        for ocs, ports in _by_ocs(inputs).items():
            heard_at |= zip(ports, receivers[ocs], strict=False)
        for ocs, ports in _by_ocs(outputs).items():
            sent_to |= zip(ports, sources[ocs], strict=False)
        return heard_at, sent_to

    def _ask(
        self,
        heard_at: Light,
        sent_to: Light,
        left: int,
        patience: int,
    ) -> _Rounds:
        light = heard_at | {
            source: output for output, source in sent_to.items()
        }
        heard = (yield SearchRound(light, left, patience)) - self._elsewhere
        inputs = self._found.inputs
        outputs = self._found.outputs
        output_of = {
            inputs[source]: output for output, source in sent_to.items()
        }
        listening = {outputs[at] for at in heard_at.values()}
        for port, at in heard_at.items():
            source = self._only(
                {who for who, by in heard if by == outputs[at]}, port
            )
            if source in output_of:
                inputs[port] = str(output_of[source])
                outputs[output_of[source]] = str(port)
            else:
                self._place(
                    inputs,
                    port,
                    source,
                    "sends into",
                )
        for port, at in sent_to.items():
            reached = {
                by
                for who, by in heard
                if who == inputs[at] and by not in listening
            }
            if outputs.get(port) is None:
                self._place(
                    outputs,
                    port,
                    self._only(reached, port),
                    "hears",
                )

    def _only(
        self, names: set[str], port: OcsPort | None = None
    ) -> str | None:
        """The one end with these names: a probing device may send LLDP, too."""
        known = sorted(names & self._ends or names - {LIGHT} or names)
        if len(known) > 1 and port is not None:
            self._found.doubts.append(
                f"{port}: {' and '.join(known)} at the same time"
            )
        return known[0] if len(known) == 1 else None

    def _place(
        self,
        side: dict[OcsPort, str | None],
        port: OcsPort,
        name: str | None,
        verb: str,
    ) -> None:
        once = name is not None and name != LIGHT
        others = [
            p for p, n in side.items() if once and n == name and p != port
        ]
        if others:
            self._found.doubts.append(f"{name} {verb} {others[0]} and {port}")
            self._found.twice.add(str(name))
        side[port] = None if others else name
        if side is self._found.outputs and name in self._mute:
            self._found.inputs[port] = side[port]

    def _missed(self, side: Mapping[OcsPort, str | None]) -> list[OcsPort]:
        missing = self._ends - {
            end for end in side.values() if end is not None
        }
        silent = (
            port for port in self._ports if port in side and side[port] is None
        )
        return [port for port in silent if self._expected.get(port) in missing]

    def _all_found(self) -> bool:
        sides = (self._found.inputs, self._found.outputs)
        found = all(
            self._ends - self._away <= set(side.values()) for side in sides
        )
        return found and not self._every_port


def _ring(
    ports: Iterable[OcsPort], distance: int
) -> list[tuple[OcsPort, OcsPort]]:
    return [
        (port, same[(at + distance) % len(same)])
        for same in _by_ocs(ports).values()
        if len(same) > distance
        for at, port in enumerate(same)
    ]


def _by_ocs(ports: Iterable[OcsPort]) -> defaultdict[str, list[OcsPort]]:
    found = defaultdict[str, list[OcsPort]](list)
    for port in ports:
        found[port.ocs].append(port)
    return found


def _bits(count: int) -> int:
    return max(1, (count - 1).bit_length())
