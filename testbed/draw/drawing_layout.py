"""Computes the layout of a lab's picture: boxes in rows, and a point for each port."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from patchlight.testbed.lab.model import Endpoint, Lab

_MOST_IN_DETAIL = 24  # hosts; beyond this, hosts have no label


@dataclass(
    frozen=True,
    slots=True,
)
class Box:
    """A device: its lower left corner and size."""

    name: str
    x: float
    y: float
    width: float
    height: float

    @property
    def centre(self) -> float:
        """The horizontal centre of the box."""
        return self.x + self.width / 2


@dataclass(
    frozen=True,
    slots=True,
)
class _Sizes:
    slot: float
    port: float
    gap: float
    server: float
    circuit: float
    packet: float
    row: float


_DETAILED = _Sizes(
    slot=1.5,
    port=0.42,
    gap=0.4,
    server=1.0,
    circuit=1.7,
    packet=0.55,
    row=0.9,
)
_SMALL = _Sizes(
    slot=0.22,
    port=0.06,
    gap=0.08,
    server=0.22,
    circuit=1.6,
    packet=0.35,
    row=1.3,
)


class DrawingLayout:
    """All boxes by device, all points by port, and the picture's size. Circuits do not affect them.

    Servers are the lowest row, circuit switches the next, with other optical devices of hosts; then
    all others by their distance from the hosts. Lengths are inches of the picture.
    """

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.detailed = len(lab.hosts) <= _MOST_IN_DETAIL
        self.sizes = _DETAILED if self.detailed else _SMALL
        self.slot = self.sizes.slot
        self.other_end = {
            end: other for end, (other, _) in lab.fibre_ends.items()
        }
        self.by_device: dict[str, list[Endpoint]] = {}
        for end in self.other_end:
            self.by_device.setdefault(end.device, []).append(end)
        for ends in self.by_device.values():
            ends.sort(key=lambda end: (len(end.port), end.port))
        self.row_of = _rows(lab, self.by_device, self.other_end)
        self.boxes: dict[str, Box] = {}
        self.points: dict[Endpoint, tuple[float, float]] = {}
        rows: dict[int, list[str]] = {}
        for name, row in self.row_of.items():
            rows.setdefault(row, []).append(name)
        widths = {name: self._width(name) for name in self.row_of}
        self.width = max(
            (
                sum(widths[n] + self.sizes.gap for n in names)
                for names in rows.values()
            ),
            default=1.0,
        )
        y = 0.0
        for row in sorted(rows):
            names = (
                rows[row] if row == 0 else sorted(rows[row], key=self._pull)
            )
            height = {0: self.sizes.server, 1: self.sizes.circuit}.get(
                row, self.sizes.packet
            )
            self._place_row(
                names,
                widths,
                y,
                height,
                fill=row == 1,
            )
            y += height + self.sizes.row
        self.height = y - self.sizes.row if rows else 1.0
        # Ports of circuit switches are placed near what they lead to, so they come last.
        for name, row in self.row_of.items():
            if row == 1:
                self._place_circuit_ports(
                    self.boxes[name], self.by_device.get(name, [])
                )

    def _width(self, name: str) -> float:
        ends = self.by_device.get(name, [])
        if self.row_of[name] == 0:
            nics = len(
                next(s.nics for s in self.lab.servers if s.name == name)
            )
            return max(1, nics) * self.slot
        below, above = self._sides(name, ends)
        smallest = 2.4 if self.row_of[name] == 1 else 3 * self.sizes.port
        return max(
            smallest, (max(len(below), len(above)) + 1) * self.sizes.port
        )

    def _sides(
        self, name: str, ends: Iterable[Endpoint]
    ) -> tuple[list[Endpoint], list[Endpoint]]:
        below = list[Endpoint]()
        above = list[Endpoint]()
        for end in ends:
            is_below = (
                self.row_of[self.other_end[end].device] < self.row_of[name]
            )
            (below if is_below else above).append(end)
        return below, above

    def _pull(self, name: str) -> float:
        near = [
            self.other_end[end].device for end in self.by_device.get(name, [])
        ]
        placed = [
            self.boxes[other].centre for other in near if other in self.boxes
        ]
        return sum(placed) / len(placed) if placed else 0.0

    def _place_row(
        self,
        names: list[str],
        widths: Mapping[str, float],
        y: float,
        height: float,
        *,
        fill: bool,
    ) -> None:
        share = (self.width - sum(widths[name] for name in names)) / max(
            1, len(names)
        )
        x = 0.0
        for name in names:
            width = (
                widths[name] + share - self.sizes.gap if fill else widths[name]
            )
            box = Box(
                name,
                x + (widths[name] + share - width) / 2,
                y,
                width,
                height,
            )
            self.boxes[name] = box
            x += widths[name] + share
            if self.row_of[name] == 0:
                nics = next(s.nics for s in self.lab.servers if s.name == name)
                self._spread(
                    box, [Endpoint(name, nic.name) for nic in nics], y + height
                )
            elif not fill:
                below, above = self._sides(name, self.by_device.get(name, []))
                self._spread(box, below, y)
                self._spread(box, above, y + height)

    def _spread(
        self,
        box: Box,
        ends: list[Endpoint],
        y: float,
    ) -> None:
        for n, end in enumerate(ends):
            self.points[end] = (box.x + box.width * (n + 0.5) / len(ends), y)

    def _place_circuit_ports(self, box: Box, ends: list[Endpoint]) -> None:
        below, above = self._sides(box.name, ends)
        for side, y in ((below, box.y), (above, box.y + box.height)):
            x_of = {
                end: self.points.get(self.other_end[end], (box.centre, 0.0))[0]
                for end in side
            }
            # One OCS can have its ports straight above its fibres; several cannot.
            if list(self.row_of.values()).count(1) == 1 and len(
                set(x_of.values())
            ) == len(side):
                self.points.update({end: (x, y) for end, x in x_of.items()})
            else:
                self._spread(
                    box,
                    sorted(side, key=lambda end, x=x_of: x[end]),  # type: ignore[misc]
                    y,
                )


def _rows(
    lab: Lab,
    by_device: Mapping[str, list[Endpoint]],
    other_end: Mapping[Endpoint, Endpoint],
) -> dict[str, int]:
    """The row of each device: servers 0, OCSes 1, others by distance from hosts.

    Wavelength devices are in row 1 too if hosts are plugged into them, or into none of their kind.
    """
    row_of = {server.name: 0 for server in lab.servers}
    row_of |= {ocs.name: 1 for ocs in lab.circuit_switches}
    sorting = {device.name for device in lab.sorting}
    near = {
        end.device
        for end, other in other_end.items()
        if row_of.get(other.device) == 0
    }
    row_of |= {
        name: 1 for name in sorting if name in near or not near & sorting
    }
    above = [
        d.name
        for d in (*lab.packet_switches, *lab.sorting)
        if d.name not in row_of
    ]
    waiting = set(above)
    row = 1
    reached = set(row_of)
    while waiting:
        row += 1
        now = {
            name
            for name in waiting
            if any(
                other_end[end].device in reached
                for end in by_device.get(name, [])
            )
        }
        # Devices that no host can reach by fibre are in the top row.
        now = now or set(waiting)
        row_of |= {name: row for name in above if name in now}
        reached |= now
        waiting -= now
    return row_of
