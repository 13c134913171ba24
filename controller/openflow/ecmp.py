"""The way of frames over packet switches: shortest in switches, one draw among equally short.

``patchlight.controller.openflow.forwarding`` programs these ways; whoever only has to know them
asks ``Ways``.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from hashlib import blake2b

from patchlight.testbed.lab.model import Endpoint, Host, Lab, default_mac
from patchlight.testbed.lab.wiring import Links

# Up to so many switches, each NIC has its own draw among links that are equally short. Beyond,
# all NICs of a switch have one draw, and entries stay few: there are draws enough.
SWITCHES_WITH_DRAWS_FOR_NICS = 32

Trunk = tuple[int, str]
"""A port of a switch, and the switch that it is lit to."""
Trunks = Mapping[str, list[Trunk]]
"""The trunks of each packet switch, by port."""


def trunks_of(names: Iterable[str], links: Links) -> Trunks:
    """The trunks of these packet switches under these links; those that lead back are none."""
    trunks: dict[str, list[Trunk]] = {name: [] for name in names}
    for a, b in links.pairs():
        if a.device in trunks and b.device in trunks and a.device != b.device:
            trunks[a.device].append((int(a.port), b.device))
            trunks[b.device].append((int(b.port), a.device))
    return {name: sorted(ports) for name, ports in trunks.items()}


def nearer_ports(trunks: Trunks, last: str) -> dict[str, list[int]]:
    """For each other switch that reaches ``last``: its ports to switches one hop nearer."""
    distance, waiting = {last: 0}, deque([last])
    nearer: dict[str, list[int]] = {}
    while waiting:
        name = waiting.popleft()
        if name != last:
            # All that are nearer than this one have their distance by now.
            nearer[name] = [
                port
                for port, neighbour in trunks[name]
                if distance.get(neighbour, distance[name]) < distance[name]
            ]
        for _, neighbour in trunks[name]:
            if neighbour not in distance:
                distance[neighbour] = distance[name] + 1
                waiting.append(neighbour)
    return nearer


def drawn_port(destination: str, switch: str, ports: list[int]) -> int:
    """The port to a destination, of several that are equally near.

    Highest-random-weight hashing (Thaler & Ravishankar, 1998): each port draws a number, the
    highest wins, so that taking a port away disturbs no other destination.
    """
    if len(ports) == 1:
        return ports[0]

    def draw(port: int) -> bytes:
        return blake2b(f"{destination}|{switch}|{port}".encode(), digest_size=8).digest()

    return max(ports, key=draw)


def drawn_by(host: Host) -> str:
    """What a NIC's way is drawn by: of its address, for its MAC may be known only later."""
    return default_mac(host.nic.address)


class Ways:
    """The ways to the NICs of a lab under some links, as the flow tables have them."""

    def __init__(self, lab: Lab, links: Links) -> None:
        self._lab = lab
        self._trunks = trunks_of([switch.name for switch in lab.packet_switches], links)
        self._few = len(self._trunks) <= SWITCHES_WITH_DRAWS_FOR_NICS
        self._neighbours = {name: dict(ports) for name, ports in self._trunks.items()}
        self._nearer: dict[str, dict[str, list[int]]] = {}
        self._found: dict[tuple[str, str, str], tuple[Endpoint, ...] | None] = {}

    @property
    def trunks(self) -> Trunks:
        """The links between packet switches that are up both ways."""
        return self._trunks

    def to_nic(self, start: str, host: Host, last: str) -> tuple[Endpoint, ...] | None:
        """The switch ports by which frames for a host go from ``start`` to ``last``, its switch.

        In order; empty where the two are the same, ``None`` if no way leads there.
        """
        name = drawn_by(host)
        if not self._few and self._lab.fibre_ends[host.endpoint][0].device == last:
            name = last  # It is plugged in there: it goes the way of its block.
        key = (start, last, name)
        if key not in self._found:
            self._found[key] = self._follow(start, last, name)
        return self._found[key]

    def _follow(self, start: str, last: str, name: str) -> tuple[Endpoint, ...] | None:
        if last not in self._nearer:
            self._nearer[last] = nearer_ports(self._trunks, last)
        nearer, here, way = self._nearer[last], start, list[Endpoint]()
        while here != last:
            if here not in nearer:
                return None
            port = drawn_port(name, here, nearer[here])
            way.append(Endpoint(here, str(port)))
            here = self._neighbours[here][port]
        return tuple(way)
