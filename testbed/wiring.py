"""The links between NICs and packet switches that the cross-connects of circuit switches make.

All functions of values. Transmitters and receivers are NIC ports and packet-switch ports; circuit
switches only pass light on. A lightpath is one direction, with a rate (its slowest part) and a
loss (its fibres and the insertion loss of each OCS on the way); two make a link.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from patchlight.testbed.lab import Endpoint, Fibre, Lab, PacketSwitch
from patchlight.testbed.portmap import CrossConnect, PortMap


@dataclass(frozen=True, slots=True)
class LightPath:
    """One direction: what ``source`` sends arrives at ``sink``.

    ``hops`` are the cross-connects on the way, with their OCS; ``rate_bps`` is the slowest
    of the fibres (``None``: none has a limit); ``loss_db`` is the sum of losses.
    """

    source: Endpoint
    sink: Endpoint
    hops: tuple[tuple[str, CrossConnect], ...]
    rate_bps: int | None
    loss_db: float


@dataclass(frozen=True, slots=True)
class Links:
    """The lightpaths by their source; a link is up where they lead both ways."""

    paths: Mapping[Endpoint, LightPath]

    def peer(self, endpoint: Endpoint) -> Endpoint | None:
        """The other end of the link at ``endpoint``; ``None`` if it is down or one-way."""
        path = self.paths.get(endpoint)
        if path is None:
            return None
        back = self.paths.get(path.sink)
        return path.sink if back is not None and back.sink == endpoint else None

    def pairs(self) -> tuple[tuple[Endpoint, Endpoint], ...]:
        """Every link that is up once, its ends in order."""
        peers = ((end, self.peer(end)) for end in self.paths)
        return tuple(sorted({(min(a, b), max(a, b)) for a, b in peers if b is not None}))

    def switch_of(self, lab: Lab, endpoint: Endpoint) -> str | None:
        """The packet switch that a NIC has a link with, or ``None``."""
        peer = self.peer(endpoint)
        if peer is None or not isinstance(lab.device(peer.device), PacketSwitch):
            return None
        return peer.device


def trace_links(lab: Lab, maps: Mapping[str, PortMap], earlier: Links | None = None) -> Links:
    """The lightpaths from every NIC and packet-switch port under these port maps.

    O(fibres + cross-connects). What ends in an unconnected input or an output without a fibre
    is no path. Paths of ``earlier`` whose cross-connects are all still there are taken over as
    the same objects.
    """
    switches = {
        c.name: _Switch(maps[c.name].out_of, c.insertion_loss_db, lab.circuit_fibres[c.name])
        if c.name in maps
        else _Switch({}, c.insertion_loss_db, {})
        for c in lab.circuit_switches
    }
    before = earlier.paths if earlier is not None else {}
    paths: dict[Endpoint, LightPath] = {}
    for source, (arrived, fibre) in lab.fibre_ends.items():
        if source.device in switches:
            continue
        path = before.get(source)
        if path is None or not _still_there(path, switches):
            path = _follow(source, arrived, fibre, switches)
        if path is not None:
            paths[source] = path
    return Links(paths)


class _Switch(NamedTuple):
    """An OCS on a path: where inputs lead, what is lost in it, the fibres at its ports."""

    out_of: Mapping[int, int]
    loss_db: float
    fibres: Mapping[int, tuple[Endpoint, Fibre]]


def _still_there(path: LightPath, switches: Mapping[str, _Switch]) -> bool:
    for ocs, c in path.hops:  # noqa: SIM110 - done for every port of a plan: all() takes longer
        if switches[ocs].out_of.get(c.inp) != c.out:
            return False
    return True


def _follow(
    source: Endpoint, arrived: Endpoint, fibre: Fibre, switches: Mapping[str, _Switch]
) -> LightPath | None:
    hops: list[tuple[str, CrossConnect]] = []
    rate_bps, loss_db = fibre.rate_bps, fibre.loss_db
    # A port map is injective, so light never comes round: the loop ends.
    while (switch := switches.get(arrived.device)) is not None:
        inp = int(arrived.port)
        out = switch.out_of.get(inp)
        if out is None or out not in switch.fibres:
            return None
        hops.append((arrived.device, CrossConnect(inp, out)))
        arrived, fibre = switch.fibres[out]
        loss_db += switch.loss_db + fibre.loss_db
        if fibre.rate_bps is not None:
            rate_bps = fibre.rate_bps if rate_bps is None else min(rate_bps, fibre.rate_bps)
    return LightPath(source, arrived, tuple(hops), rate_bps, loss_db)


def circuit_ports(lab: Lab, endpoints: Iterable[Endpoint]) -> dict[Endpoint, tuple[str, int]]:
    """For each endpoint plugged straight into an OCS: that OCS and its port number."""
    ends, switches = lab.fibre_ends, {c.name for c in lab.circuit_switches}
    ports: dict[Endpoint, tuple[str, int]] = {}
    for endpoint in endpoints:
        if endpoint in ends and ends[endpoint][0].device in switches:
            other = ends[endpoint][0]
            ports[endpoint] = (other.device, int(other.port))
    return ports
