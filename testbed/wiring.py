"""Where each fibre ends, and where the light goes: through cross-connects to a receiver.

All functions of values. Transmitters and receivers are NIC ports and packet-switch ports;
circuit switches only pass light on. A light path has a rate (its slowest part) and a loss
(its fibres and the insertion loss of each OCS on the way).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from testbed.lab import CircuitSwitch, Endpoint, Fibre, Lab, PacketSwitch
from testbed.portmap import CrossConnect, PortMap


@dataclass(frozen=True, slots=True)
class LightPath:
    """One direction: light sent at ``source`` arrives at ``sink``.

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
    """The links that are lit both ways, as seen from either end."""

    paths: Mapping[Endpoint, LightPath]

    def peer(self, endpoint: Endpoint) -> Endpoint | None:
        """Who ``endpoint`` has a two-way link with, or ``None`` if it is dark or one-way."""
        path = self.paths.get(endpoint)
        if path is None:
            return None
        back = self.paths.get(path.sink)
        return path.sink if back is not None and back.sink == endpoint else None

    def pairs(self) -> tuple[tuple[Endpoint, Endpoint], ...]:
        """Every two-way link once, ends in order."""
        peers = ((end, self.peer(end)) for end in self.paths)
        return tuple(sorted({(min(a, b), max(a, b)) for a, b in peers if b is not None}))

    def switch_of(self, lab: Lab, endpoint: Endpoint) -> str | None:
        """The packet switch that a NIC is lit onto, or ``None``."""
        peer = self.peer(endpoint)
        if peer is None or not isinstance(lab.device(peer.device), PacketSwitch):
            return None
        return peer.device


def fibre_ends(lab: Lab) -> Mapping[Endpoint, tuple[Endpoint, Fibre]]:
    """For each end of each fibre: the other end, and the fibre."""
    return lab.fibre_ends


def follow_light(lab: Lab, maps: Mapping[str, PortMap], earlier: Links | None = None) -> Links:
    """Where the light of every NIC and packet-switch port goes under these port maps.

    O(fibres + cross-connects). Light that ends in an unconnected input or an output
    without a fibre arrives nowhere and gives no path. Paths of ``earlier`` whose
    cross-connects are all still there are taken over as the same objects.
    """
    ends = fibre_ends(lab)
    switches = {c.name: c for c in lab.circuit_switches}
    out_of = {name: maps[name].out_of for name in switches if name in maps}
    before = earlier.paths if earlier is not None else {}
    paths: dict[Endpoint, LightPath] = {}
    for source in ends:
        if source.device in switches:
            continue
        path = before.get(source)
        if path is None or any(out_of[ocs].get(c.inp) != c.out for ocs, c in path.hops):
            path = _follow(source, ends, switches, out_of)
        if path is not None:
            paths[source] = path
    return Links(paths)


def _follow(
    source: Endpoint,
    ends: Mapping[Endpoint, tuple[Endpoint, Fibre]],
    switches: Mapping[str, CircuitSwitch],
    out_of: Mapping[str, Mapping[int, int]],
) -> LightPath | None:
    hops: list[tuple[str, CrossConnect]] = []
    rates: list[int] = []
    at, loss_db = source, 0.0
    while True:
        if at not in ends:
            return None
        arrived, fibre = ends[at]
        loss_db += fibre.loss_db
        if fibre.rate_bps is not None:
            rates.append(fibre.rate_bps)
        switch = switches.get(arrived.device)
        if switch is None:
            return LightPath(source, arrived, tuple(hops), min(rates, default=None), loss_db)
        inp = int(arrived.port)
        out = out_of.get(switch.name, {}).get(inp)
        # A port map is injective, so light never comes round: the loop ends.
        if out is None:
            return None
        hops.append((switch.name, CrossConnect(inp, out)))
        loss_db += switch.insertion_loss_db
        at = Endpoint(switch.name, str(out))


def circuit_ports(lab: Lab, endpoints: Iterable[Endpoint]) -> dict[Endpoint, tuple[str, int]]:
    """For each endpoint plugged straight into an OCS: that OCS and its port number."""
    ends, switches = fibre_ends(lab), {c.name for c in lab.circuit_switches}
    found: dict[Endpoint, tuple[str, int]] = {}
    for endpoint in endpoints:
        if endpoint in ends and ends[endpoint][0].device in switches:
            other = ends[endpoint][0]
            found[endpoint] = (other.device, int(other.port))
    return found
