"""In which order a job's GPUs form its ring, and to which packet switch each NIC can be connected.

A ring that visits each packet switch once crosses two links for each switch, the fewest possible.
From four switches on, their order matters.
"""

import itertools
import math
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from patchlight.controller.openflow.forwarding import Trunks, trunks_of
from patchlight.controller.policies.contract import ClusterView
from patchlight.testbed.lab.model import Endpoint, Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.wiring import trace_links

# Up to so many switches the shortest round is found by trying; beyond, one along a tree is taken.
_TRIED_RACKS = 8
_KEPT, _MOST_ROUNDS = 4, 10_000

Uplinks = tuple[str, str]
"""An OCS and the packet switch that some of its ports lead to."""
_Port = tuple[str, int]  # OCS, port number

Ports = Mapping[str, Collection[int]]
"""Ports by OCS."""
NO_PORTS: Ports = MappingProxyType({})


class _Rounds(NamedTuple):
    """A lab under some circuits, and the rounds through its packet switches that were found."""

    lab: Lab
    circuits: Mapping[str, PortMap]
    trunks: Trunks
    found: dict[tuple[int, ...], list[int]]


_rounds: list[_Rounds] = []  # The last few: placements ask for many rings of one moment.


def ring_order(cluster: ClusterView, gpus: Sequence[int]) -> list[int]:
    """These GPUs as a ring that crosses as few links between packet switches as possible.

    Those under one switch stay together, in the order that they came in; dark ones come last.
    Between four and eight switches it is the shortest round of all, on trees also beyond: each
    link of the tree is then crossed once each way. Without a lab racks are all equally far apart.
    """
    if len(gpus) < 3:
        return list(gpus)  # There is only one such ring.
    under: dict[int, list[int]] = {}
    for gpu in gpus:
        under.setdefault(cluster.shape.gpus[gpu].rack, []).append(gpu)
    dark = under.pop(-1, [])
    racks = list(under)
    if len(racks) > 3 and cluster.lab is not None:
        racks = _round(cluster, cluster.lab, racks)
    return [gpu for rack in racks for gpu in under[rack]] + dark


def _round(cluster: ClusterView, lab: Lab, racks: Sequence[int]) -> list[int]:
    """These racks in the order of a short round."""
    global _rounds
    circuits = dict(cluster.circuits)
    known = next((r for r in _rounds if r.lab is lab and r.circuits == circuits), None)
    if known is None:
        trunks = trunks_of(cluster.shape.racks, trace_links(lab, circuits))
        known = _Rounds(lab, circuits, trunks, {})
        _rounds = [known, *_rounds[: _KEPT - 1]]
    key = tuple(racks)
    if len(known.found) >= _MOST_ROUNDS:
        known.found.clear()
    if key not in known.found:
        names = [cluster.shape.racks[rack] for rack in racks]
        round_trip = _shortest if len(names) <= _TRIED_RACKS else _along_a_tree
        known.found[key] = [racks[names.index(name)] for name in round_trip(names, known.trunks)]
    return known.found[key]


def _hops(start: str, trunks: Trunks) -> dict[str, int]:
    """How many links away each packet switch is."""
    found, waiting = {start: 0}, deque([start])
    while waiting:
        here = waiting.popleft()
        for _, neighbour in trunks[here]:
            if neighbour not in found:
                found[neighbour] = found[here] + 1
                waiting.append(neighbour)
    return found


def _shortest(names: Sequence[str], trunks: Trunks) -> list[str]:
    """The shortest round from the first through all (Held and Karp, 1962); of equals the first."""
    hops = [[_hops(a, trunks).get(b, math.inf) for b in names] for a in names]
    others = range(1, len(names))
    # By the set of those visited and the last of them: how far it is, and in which order.
    best: Mapping[tuple[frozenset[int], int], tuple[float, tuple[int, ...]]]
    best = {(frozenset([each]), each): (hops[0][each], (each,)) for each in others}
    for _ in others[1:]:
        longer: dict[tuple[frozenset[int], int], tuple[float, tuple[int, ...]]] = {}
        for ((visited, last), (far, way)), following in itertools.product(best.items(), others):
            if following in visited:
                continue
            key = visited | {following}, following
            found = far + hops[last][following], (*way, following)
            longer[key] = min(longer.get(key, found), found)
        best = longer
    _, way = min((far + hops[last][0], way) for (_, last), (far, way) in best.items())
    return [names[number] for number in (0, *way)]


def _along_a_tree(names: Sequence[str], trunks: Trunks) -> list[str]:
    """All in the order in which a walk around a tree of shortest ways from the first meets them."""
    found: list[str] = []
    seen = set(names[:1])
    children: dict[str, list[str]] = {}
    waiting = deque(names[:1])
    while waiting:
        here = waiting.popleft()
        for _, neighbour in trunks[here]:
            if neighbour not in seen:
                seen.add(neighbour)
                children.setdefault(here, []).append(neighbour)
                waiting.append(neighbour)
    stack = list(names[:1])
    while stack:
        here = stack.pop()
        found.append(here)
        stack += reversed(children.get(here, []))
    wanted = set(names)
    met = [name for name in found if name in wanted]
    return [*met, *(name for name in names if name not in seen)]


@dataclass(frozen=True, slots=True)
class SwitchUplinks:
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


def survey(lab: Lab, maps: Mapping[str, PortMap], locked: Ports, failed: Ports) -> SwitchUplinks:
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
    return SwitchUplinks(usable, nics, joined, frozenset(pinned))


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
