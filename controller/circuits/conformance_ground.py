"""Defines which entries the conformance checks use, by the kind of switch."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from patchlight.controller.circuits.contract import (
    CircuitDriver,
    DirectedPort,
    WavelengthDriver,
)
from patchlight.testbed.lab.portmap import CrossConnect, PortMap
from patchlight.testbed.lab.spectrum import (
    Channel,
    ChannelConnect,
    Grid,
    SpectrumMap,
)

PORTS = 8
"""How many ports on each side the checks need of a circuit switch."""
BRANCHES = 4
"""How many inputs or outputs (the larger number) they need of a wavelength switch."""
INITIAL = PortMap.of([(1, 7), (7, 1), (2, 8)])
"""The initial cross-connects of each check of a circuit switch."""
# From 193.1 THz: 22 channels of 200 GHz and less are in the C band.
_FIRST_CHANNEL = -8

Driver = CircuitDriver | WavelengthDriver


@dataclass(frozen=True)
class Ground:
    """Entries of one kind of switch.

    ``missing``: what this switch lacks for the checks; empty if nothing. ``initial``: the initial
    map of each check. ``many``: up to 16 that are possible in addition. ``single``: two such.
    ``busy``: two that conflict with ``initial``. ``beside``: one that conflicts only with the first
    of these. ``wrong``: lists that are ``BadInput``, alone or with the last ``single``; the first
    of them for a port outside.
    """

    inputs: int
    outputs: int
    missing: str
    initial: Any
    many: Sequence[Any]
    single: Sequence[Any]
    busy: Sequence[Any]
    beside: Any
    wrong: Sequence[Sequence[Any]]
    wrong_ports: Sequence[DirectedPort]
    map_of: Callable[[Iterable[Any]], Any]

    @property
    def last(self) -> Any:
        """An entry of ``initial`` without a reverse direction."""
        return tuple(self.initial)[-1]


def ground_of(driver: Driver) -> Ground:
    """The entries for a device of this driver."""
    if isinstance(driver, WavelengthDriver):
        return _spectrum(driver.inputs, driver.outputs, driver.grid)
    return _circuits(driver.ports)


def _circuits(ports: int) -> Ground:
    no_ports = [
        (3, ports + 1),
        (0, 3),
        (-1, 4),
        (3, -4),
        (True, 4),
    ]
    free = [*range(3, 7), *range(9, ports + 1)]
    return Ground(
        inputs=ports,
        outputs=ports,
        missing="" if ports >= PORTS else f"{PORTS} ports",
        initial=INITIAL,
        many=[CrossConnect(n, n) for n in free[:16]],
        single=[CrossConnect(3, 4), CrossConnect(5, 6)],
        busy=[CrossConnect(1, 3), CrossConnect(4, 8)],
        beside=CrossConnect(3, 3),
        wrong=[
            *([CrossConnect(*pair)] for pair in no_ports),
            [CrossConnect(3, 4), CrossConnect(3, 3)],
        ],
        wrong_ports=[DirectedPort("in", n) for n in (0, -1, True, ports + 1)],
        map_of=PortMap.of,
    )


def _spectrum(
    inputs: int,
    outputs: int,
    grid: Grid,
) -> Ground:
    """Only channels from and to port 1, which every wavelength switch supports."""
    spacing_ghz = grid.spacing_ghz or 50.0
    apart = int(spacing_ghz / 6.25)
    slots = int(spacing_ghz / 12.5)
    channels = [
        Channel((_FIRST_CHANNEL + n) * apart, slots) for n in range(22)
    ]

    def way(
        branch: int,
        number: int,
        less_db: float = 0.0,
    ) -> ChannelConnect:
        # In a switch with a line at port 1, every second one returns to it.
        both = inputs > 1 and outputs > 1
        count = max(inputs, outputs) - both
        other = 1 + branch % count + both
        to_line = outputs == 1 or (both and branch % 2 == 1)
        ports = (other, 1) if to_line else (1, other)
        return ChannelConnect(*ports, channels[number], less_db)

    first = way(0, 0)
    second = way(1, 1)
    elsewhere = way(2, 0)
    other_channel = Channel(apart // 2, slots) if grid.spacing_ghz else None
    return Ground(
        inputs=inputs,
        outputs=outputs,
        missing=""
        if max(inputs, outputs) >= BRANCHES
        else f"{BRANCHES} inputs or outputs",
        initial=SpectrumMap.of([first, second, way(2, 2, 2.5)]),
        many=[way(n, n, 1.5 * (n % 3)) for n in range(3, 19)],
        single=[way(19, 19), way(20, 20, 0.5)],
        busy=[elsewhere, second._replace(attenuation_db=3.0)],
        beside=elsewhere._replace(channel=channels[3]),
        wrong=[
            [
                first._replace(
                    inp=inputs + 1,
                    channel=channels[21],
                )
            ],
            [
                first._replace(
                    out=outputs + 1,
                    channel=channels[21],
                )
            ],
            [
                first._replace(
                    inp=0,
                    channel=channels[21],
                )
            ],
            [way(0, 21), way(2, 21)],
            [way(0, 21), way(0, 21, 1.0)],
            [way(0, 21, -1.0)],
            *(
                [[first._replace(channel=other_channel)]]
                if other_channel
                else []
            ),
        ],
        wrong_ports=[
            DirectedPort("in", inputs + 1),
            DirectedPort("out", outputs + 1),
        ]
        + [DirectedPort("out", n) for n in (0, -1, True)],
        map_of=SpectrumMap.of,
    )
