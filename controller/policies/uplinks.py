"""Which NIC of a lab can be joined to which packet switch by light, and to which it is now.

What *regroup* sees of a lab and its maps. Pure.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from patchlight.testbed.lab.model import Endpoint, Lab
from patchlight.testbed.lab.portmap import PortMap

Uplinks = tuple[str, str]
"""An OCS and the packet switch that some of its ports lead to."""
_Port = tuple[str, int]  # OCS, port number

Ports = Mapping[str, Collection[int]]
"""Ports by OCS."""
NO_PORTS: Ports = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Site:
    """What the policy sees: which NIC can be joined to which switch, and to which it is now."""

    ports: Mapping[Uplinks, tuple[int, ...]]  # the usable ones of these
    nics: Mapping[Endpoint, _Port]  # a NIC's OCS and its port there
    joined: Mapping[Endpoint, tuple[str, int]]  # a NIC's packet switch, and the OCS port there
    pinned: frozenset[Endpoint]  # NICs whose circuit may be neither broken nor made

    def need(self, group: Sequence[Endpoint]) -> Counter[str]:
        """How many ports the group needs, by OCS; a pinned NIC has the one that it has."""
        return Counter(self.nics[nic][0] for nic in group if nic not in self.pinned)

    def moves(self, group: Sequence[Endpoint], switch: str) -> int:
        """How many NICs of the group are not under ``switch`` yet."""
        return sum(self.joined.get(nic, ("", 0))[0] != switch for nic in group)

    @property
    def room(self) -> Counter[Uplinks]:
        """How many ports are usable."""
        return Counter({uplinks: len(ports) for uplinks, ports in self.ports.items()})

    def takes(self, group: Sequence[Endpoint], switch: str, room: Mapping[Uplinks, int]) -> bool:
        """Whether ``switch`` has the ports that the group needs, and its pinned NICs already."""
        pinned = [nic for nic in group if nic in self.pinned]
        if self.moves(pinned, switch):
            return False
        return all(room.get((ocs, switch), 0) >= n for ocs, n in self.need(group).items())


def survey(lab: Lab, maps: Mapping[str, PortMap], locked: Ports, failed: Ports) -> Site:
    """What there is to see of a lab under these maps, as ``regroup`` has to look at it."""
    broken = {ocs: set(ports) for ocs, ports in failed.items() if ports}
    fixed = with_other_ends(maps, locked)
    none = frozenset[int]()
    closed = {ocs: fixed.get(ocs, none) | broken.get(ocs, none) for ocs in (*fixed, *broken)}
    usable: dict[Uplinks, tuple[int, ...]] = {}
    for ocs, ports_of in lab.facing_ports.items():
        shut = closed.get(ocs, none)
        for switch, ports in ports_of.items():
            usable[ocs, switch] = tuple([port for port in ports if port not in shut])
    nics = lab.host_plugs
    joined: dict[Endpoint, tuple[str, int]] = {}
    pinned: list[Endpoint] = []
    for nic, plug in nics.items():
        ocs, port = plug
        if stays := port in closed.get(ocs, none):
            pinned.append(nic)
        at = lit_onto(lab, maps, plug)
        if at is not None and (stays or at[1] not in broken.get(ocs, none)):
            joined[nic] = at
    return Site(usable, nics, joined, frozenset(pinned))


def lit_onto(lab: Lab, maps: Mapping[str, PortMap], plug: _Port) -> tuple[str, int] | None:
    """The packet switch that a circuit there and back joins to this port, and the port it is at."""
    ocs, port = plug
    out_of = maps[ocs].out_of if ocs in maps else {}
    out = out_of.get(port)
    if out is None or out_of.get(out) != port or (switch := lab.facing[ocs].get(out)) is None:
        return None
    return switch, out


def with_other_ends(maps: Mapping[str, PortMap], locked: Ports) -> dict[str, set[int]]:
    """Locked ports, and the other ends of their circuits: these stay, too."""
    found = {ocs: set(ports) for ocs, ports in locked.items() if ports}
    for ocs, ports in found.items():
        for inp, out in maps.get(ocs, PortMap()):
            if inp in ports or out in ports:
                ports.update((inp, out))
    return found
