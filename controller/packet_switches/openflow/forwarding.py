"""Computes the flow table of every packet switch from the NICs' connections.

On the switch that a NIC is connected to, it has three entries: frames to its MAC, ARP requests for
its address, and IPv6 neighbour solicitations for addresses that end like its MAC, as those derived
from it do (RFC 4291, 2.7.1 and appendix A). The other switches know *destinations*: NICs
plugged into a packet switch cannot move, so they share blocks of addresses with a mask; a NIC
behind an OCS is a destination of its own. Nothing is flooded: unmatched frames are dropped, so
loops of switches are harmless.
"""

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import (
    Callable,
    Collection,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
)
from functools import lru_cache
from hashlib import blake2b
from ipaddress import IPv4Address
from typing import Any, Generic, NamedTuple, TypeVar

from patchlight.controller.packet_switches.contract import Station
from patchlight.controller.packet_switches.openflow.flowtable import (
    FlowEntry,
    FlowTable,
    Match,
    MatchValue,
)
from patchlight.testbed.lab.model import Endpoint, Host, Lab, default_mac
from patchlight.testbed.lab.wiring import Links

Owner = TypeVar("Owner", bound=Hashable)

ETHERTYPE_ARP = 0x0806
ARP_REQUEST = 1
# A user's application goes above these to take precedence, below to get the rest. The drop entry at
# 0 yields to another application's table-miss entry.
PRIORITY_ARP = 110
PRIORITY_UNICAST = 100
PRIORITY_MISS = 0

TABLE_MISS = FlowEntry.ours(Match(), (), priority=PRIORITY_MISS)

_MAC_BITS = 48
_IPV4_BITS = 32
# A block of MACs is within one maker (OUI): a wider one could include multicast addresses.
_OUI_BITS = 24

# Up to this many switches, each NIC is hashed over equally short links. Beyond, all NICs of a
# switch share one hash to keep tables small.
SWITCHES_WITH_DRAWS_FOR_NICS = 32

# Open vSwitch hashes to so many values at most, or else by a slower method.
_MOST_BUCKETS = 64

Trunk = tuple[int, str]
"""A port of a switch, and the switch that it is connected to."""
Trunks = Mapping[str, list[Trunk]]
"""The trunks of each packet switch, by port."""


def trunks_of(
    names: Iterable[str],
    links: Links,
    down: Collection[Endpoint] = frozenset(),
) -> Trunks:
    """The trunks of these packet switches with these links, without those at ``down`` ports and
    loops to the same switch."""
    trunks: dict[str, list[Trunk]] = {name: [] for name in names}
    for a, b in links.pairs():
        if a.device in trunks and b.device in trunks and a.device != b.device:
            if a in down or b in down:
                continue
            trunks[a.device].append((int(a.port), b.device))
            trunks[b.device].append((int(b.port), a.device))
    return {name: sorted(ports) for name, ports in trunks.items()}


def hops_to(trunks: Trunks, last: str) -> dict[str, int]:
    """The distance in links of each switch from ``last``."""
    hops = {last: 0}
    waiting = deque([last])
    while waiting:
        name = waiting.popleft()
        for _, neighbour in trunks[name]:
            if neighbour not in hops:
                hops[neighbour] = hops[name] + 1
                waiting.append(neighbour)
    return hops


def nearer_ports(trunks: Trunks, last: str) -> dict[str, list[int]]:
    """For each other switch that reaches ``last``: its ports to switches one hop nearer."""
    hops = hops_to(trunks, last)
    return {
        name: [
            port for port, neighbour in trunks[name] if hops[neighbour] < far
        ]
        for name, far in hops.items()
        if far
    }


def buckets_of(
    trunks: Trunks, nearer: Mapping[str, list[int]]
) -> dict[str, tuple[int, ...]]:
    """For each switch with several equally near ports: the buckets of its select group.

    All Open vSwitches have the same hash, and bucket i of n gets those that are i modulo n: after a
    first switch with two ports, a second one would see even or odd hashes only, and use one of its
    two ports (polarisation). So each port there has two buckets in a row, and so on.
    """
    times = dict.fromkeys(nearer, 1)
    found = dict[str, tuple[int, ...]]()
    for name in reversed([*nearer]):  # the most distant first
        ports = nearer[name]
        before = times[name]
        if len(ports) > 1:
            repeats = before if before * len(ports) <= _MOST_BUCKETS else 1
            found[name] = tuple(port for port in ports for _ in range(repeats))
        for port, neighbour in trunks[name]:
            if port in ports and neighbour in times:
                times[neighbour] = max(times[neighbour], before * len(ports))
    return found


def drawn_port(
    destination: str,
    switch: str,
    ports: list[int],
) -> int:
    """The port to a destination among equally near ones.

    Highest-random-weight hashing (Thaler & Ravishankar, 1998): the highest hash wins, so a removed
    port affects no other destination.
    """
    if len(ports) == 1:
        return ports[0]

    def draw(port: int) -> bytes:
        return blake2b(
            f"{destination}|{switch}|{port}".encode(), digest_size=8
        ).digest()

    return max(ports, key=draw)


def drawn_by(host: Host) -> str:
    """The hash key of a NIC: its address, because its MAC may become known later."""
    return default_mac(host.nic.address)


class Ways:
    """The routes to the NICs of a lab with some links, as in the flow tables."""

    def __init__(
        self,
        lab: Lab,
        links: Links,
        down: Collection[Endpoint] = frozenset(),
    ) -> None:
        self._lab = lab
        self.trunks = trunks_of(
            [switch.name for switch in lab.packet_switches], links, down
        )
        """The links between packet switches that are up in both directions."""
        self._few = len(self.trunks) <= SWITCHES_WITH_DRAWS_FOR_NICS
        self._neighbours = {
            name: dict(ports) for name, ports in self.trunks.items()
        }
        self._nearer: dict[str, dict[str, list[int]]] = {}
        self._found: dict[
            tuple[str, str, str], tuple[Endpoint, ...] | None
        ] = {}

    def to_nic(
        self,
        start: str,
        host: Host,
        last: str,
    ) -> tuple[Endpoint, ...] | None:
        """The switch ports on the route of frames for a host from ``start`` to ``last``, its
        switch.

        In order; empty if both are the same, ``None`` without a route.
        """
        name = drawn_by(host)
        if (
            not self._few
            and self._lab.fibre_ends[host.endpoint][0].device == last
        ):
            name = last  # It is plugged in there: use the route of its block.
        key = (start, last, name)
        if key not in self._found:
            self._found[key] = self._follow(start, last, name)
        return self._found[key]

    def _follow(
        self,
        start: str,
        last: str,
        name: str,
    ) -> tuple[Endpoint, ...] | None:
        if last not in self._nearer:
            self._nearer[last] = nearer_ports(self.trunks, last)
        nearer = self._nearer[last]
        here = start
        way = list[Endpoint]()
        while here != last:
            if here not in nearer:
                return None
            port = drawn_port(name, here, nearer[here])
            way.append(Endpoint(here, str(port)))
            here = self._neighbours[here][port]
        return tuple(way)


class AddressBlock(NamedTuple, Generic[Owner]):
    """All addresses whose first ``length`` bits are those of ``first``, with one owner."""

    first: int
    length: int
    owner: Owner


def address_blocks(
    owner_of: Mapping[int, Owner],
    width: int,
    shortest: int = 0,
) -> Iterator[AddressBlock[Owner]]:
    """The fewest blocks that cover every address, each with addresses of one owner.

    Addresses have ``width`` bits; a block has at least ``shortest`` bits in common. Blocks do not
    overlap, so their order does not matter, and a missing block is never replaced by another. They
    may include unused addresses.
    """
    addresses = sorted(owner_of)
    waiting = [(0, len(addresses))] if addresses else []
    while waiting:
        begin, end = waiting.pop()
        first = addresses[begin]
        last = addresses[end - 1]
        free = (first ^ last).bit_length()
        base = first >> free << free
        owner = owner_of[first]
        alike = all(owner_of[addresses[i]] == owner for i in range(begin, end))
        if alike and width - free >= shortest:
            yield AddressBlock(base, width - free, owner)
            continue
        middle = bisect_left(
            addresses,
            base | 1 << (free - 1),
            begin,
            end,
        )
        waiting += [(middle, end), (begin, middle)]


class _Destination(NamedTuple):
    """Addresses with equal routes everywhere: ``name`` is the hash key."""

    name: str
    matches: tuple[tuple[int, Match], ...]


def assumed_mac(host: Host) -> str:
    """The MAC that the lab file implies for a NIC."""
    return host.nic.mac


class Forwarding:
    """The flow tables of a lab's packet switches for the present links; ``mac_of`` returns MACs.

    Routes to NICs plugged into packet switches are recomputed only when a link between switches
    changes; a NIC that moves costs only its own entries.
    """

    def __init__(
        self, lab: Lab, mac_of: Callable[[Host], str] = assumed_mac
    ) -> None:
        self._lab = lab
        self._mac_of = mac_of
        self._names = {switch.name for switch in lab.packet_switches}
        self._nics: dict[Endpoint, _Destination] = {}
        self._plugged: dict[str, list[Host]] = defaultdict(list)
        self._loose: list[Host] = []
        owner_of_mac: dict[int, str | Endpoint] = {}
        owner_of_address: dict[int, str | Endpoint] = {}
        owner_of_group: dict[int, str | Endpoint] = {}
        for host in lab.hosts:
            if host.endpoint not in lab.fibre_ends:
                continue
            mac = mac_of(host).lower()
            own = [_to_mac(mac), _asking_for(str(host.nic.address))]
            group = solicited_group(mac)
            other = lab.fibre_ends[host.endpoint][0].device
            # A movable NIC is its own owner, so it never shares a block.
            is_plugged = other in self._names
            owner = other if is_plugged else host.endpoint
            owner_of_mac[_number(mac)] = owner
            if (
                _number(group) not in owner_of_group
            ):  # else another maker's MAC ends like it
                owner_of_group[_number(group)] = owner
                own.append(_to_mac(group))
            self._nics[host.endpoint] = _Destination(
                drawn_by(host), tuple(own)
            )
            owner_of_address[int(host.nic.address)] = owner
            (self._plugged[other] if is_plugged else self._loose).append(host)
        matches: dict[str | Endpoint, list[tuple[int, Match]]] = defaultdict(
            list
        )
        ignored = 0
        if len({mac >> _OUI_BITS for mac in owner_of_mac}) == 1:
            # The groups differ from the MACs in the same bits: without these, one block is both.
            first = next(iter(owner_of_mac))
            group_of_first = next(iter(owner_of_group))
            ignored = first ^ group_of_first
            owner_of_group = {}
        for owner_of in (owner_of_mac, owner_of_group):
            for block in address_blocks(owner_of, _MAC_BITS, _OUI_BITS):
                to_block = _to_mac(
                    _masked(
                        block.first,
                        block.length,
                        _MAC_BITS,
                        ignored,
                    )
                )
                matches[block.owner].append(to_block)
        for address in address_blocks(owner_of_address, _IPV4_BITS):
            asked = _masked(address.first, address.length, _IPV4_BITS)
            matches[address.owner].append(_asking_for(asked))
        self._blocks = {
            switch: _Destination(switch, tuple(matches[switch]))
            for switch in self._plugged
        }
        self.down: frozenset[Endpoint] = frozenset()
        """Wired ports without a link."""
        self.equal: defaultdict[str, set[tuple[int, ...]]] = defaultdict(set)
        """Each switch's sets of equal-cost ports to some NICs."""
        self._trunks: Trunks | None = None
        self._fixed: dict[str, list[FlowEntry]] = {}

    def tables(self, links: Links) -> dict[str, FlowTable]:
        """The flow table of each packet switch, by its name, with these links.

        Paths have the fewest hops; destinations are spread over equally short ones, so that a
        failed link affects only those that used it; with the lab's ``ecmp`` flows are. Each hop is
        nearer to the destination, and all switches agree on the destination of an address, so
        frames do not loop. A NIC without a link to a packet switch has no entry.

        O(switches × destinations + switches × links); a destination is a NIC behind an OCS or a
        block. A switch has one block if addresses are assigned in blocks.
        """
        trunks = trunks_of(self._names, links, self.down)
        if trunks != self._trunks:
            self.equal.clear()
            self._trunks = trunks
            self._fixed = self._to_plugged(trunks)
        entries = {name: list(fixed) for name, fixed in self._fixed.items()}
        lit: dict[str, list[tuple[Host, int]]] = defaultdict(list)
        for host in self._loose:
            port = links.peer(host.endpoint)
            if port is not None and port.device in self._names:
                lit[port.device].append((host, int(port.port)))
        for last, hosts in lit.items():
            nearer = nearer_ports(trunks, last)
            buckets = self._buckets(trunks, nearer)
            for host, port_number in hosts:
                destination = self._nics[host.endpoint]
                entries[last] += _entries(destination, (port_number,))
                _spread(
                    destination,
                    nearer,
                    buckets,
                    entries,
                )
        return {name: FlowTable.of(table) for name, table in entries.items()}

    def places(
        self, links: Links, names: Collection[str]
    ) -> dict[str, dict[Station, int]]:
        """Behind which port of each of these switches each NIC is, on the same routes as in
        ``tables``."""
        routes = Ways(self._lab, links, self.down)
        found: dict[str, dict[Station, int]] = {name: {} for name in names}
        for host in self._lab.hosts if names else ():
            peer = links.peer(host.endpoint)
            if peer is None or peer.device not in self._names:
                continue
            station = Station(self._mac_of(host).lower(), host.nic.address)
            for name in names:
                if name == peer.device:
                    found[name][station] = int(peer.port)
                elif ports := routes.to_nic(name, host, peer.device):
                    found[name][station] = int(ports[0].port)
        return found

    def _buckets(
        self, trunks: Trunks, nearer: Mapping[str, list[int]]
    ) -> Mapping[str, tuple[int, ...]]:
        for name, ports in nearer.items():
            if len(ports) > 1:
                self.equal[name].add(tuple(ports))
        return buckets_of(trunks, nearer) if self._lab.ecmp else {}

    def _to_plugged(self, trunks: Trunks) -> dict[str, list[FlowEntry]]:
        """The entries for NICs that cannot move, and the last one of every table."""
        entries: dict[str, list[FlowEntry]] = {
            name: [TABLE_MISS] for name in trunks
        }
        few = len(trunks) <= SWITCHES_WITH_DRAWS_FOR_NICS
        for last, hosts in self._plugged.items():
            nics = [self._nics[host.endpoint] for host in hosts]
            for host, nic in zip(hosts, nics, strict=True):
                port = self._lab.fibre_ends[host.endpoint][0].port
                entries[last] += _entries(nic, (int(port),))
            nearer = nearer_ports(trunks, last)
            buckets = self._buckets(trunks, nearer)
            drawn = few and any(len(ports) > 1 for ports in nearer.values())
            for destination in nics if drawn else [self._blocks[last]]:
                _spread(
                    destination,
                    nearer,
                    buckets,
                    entries,
                )
        return entries


def flow_tables(lab: Lab, links: Links) -> dict[str, FlowTable]:
    """The flow table of each packet switch with these links: see ``Forwarding.tables``."""
    return Forwarding(lab).tables(links)


def entry_to(mac: str, port: int) -> FlowEntry:
    """The entry that sends frames for ``mac`` out of ``port``: its bytes are the NIC's."""
    return _entry(*_to_mac(mac.lower()), (port,))


def entries_of(
    mac: str,
    address: IPv4Address,
    port: int,
) -> tuple[FlowEntry, FlowEntry]:
    """The two entries of a NIC on its switch."""
    return entry_to(mac, port), _entry(*_asking_for(str(address)), (port,))


def solicited_group(mac: str) -> str:
    """The Ethernet address of neighbour solicitations for addresses that end like a MAC."""
    return f"33:33:ff{mac[8:]}"


def leads_to(
    match: Match,
    mac: str,
    address: IPv4Address,
) -> bool:
    """Whether a frame for this NIC, or an ARP request for its address, matches."""

    for field, own in (("eth_dst", mac), ("arp_tpa", str(address))):
        if (wanted := match.get(field)) is not None:
            value, mask = (
                wanted if isinstance(wanted, tuple) else (wanted, None)
            )
            bits = -1 if mask is None else _number(mask)
            return _number(value) & bits == _number(own) & bits
    return False


def _number(text: Any) -> int:
    return (
        int(text.replace(":", ""), 16)
        if ":" in text
        else int(IPv4Address(text))
    )


@lru_cache(maxsize=1 << 16)
def _entry(
    priority: int,
    match: Match,
    ports: tuple[int, ...],
    fixed: int = 0,
) -> FlowEntry:
    # Cached: leaves of a tree have equal entries, and cookies are slow to compute.
    return FlowEntry.ours(
        match,
        ports,
        priority=priority,
        fixed=fixed,
    )


def _entries(
    destination: _Destination,
    ports: tuple[int, ...],
    fixed: int = 0,
) -> Iterator[FlowEntry]:
    return (
        _entry(
            priority,
            match,
            ports,
            fixed,
        )
        for priority, match in destination.matches
    )


def _to_mac(mac: MatchValue) -> tuple[int, Match]:
    return PRIORITY_UNICAST, Match(eth_dst=mac)


def _asking_for(address: MatchValue) -> tuple[int, Match]:
    match = Match(
        eth_type=ETHERTYPE_ARP,
        arp_op=ARP_REQUEST,
        arp_tpa=address,
    )
    return PRIORITY_ARP, match


def _masked(
    first: int,
    length: int,
    bits: int,
    ignored: int = 0,
) -> MatchValue:
    mask = ((1 << bits) - (1 << (bits - length))) & ~ignored
    numbers = first & mask, mask
    if bits == _IPV4_BITS:
        address, masked = (str(IPv4Address(number)) for number in numbers)
    else:
        address, masked = (
            number.to_bytes(bits // 8, "big").hex(":") for number in numbers
        )
    return address if length == bits and not ignored else (address, masked)


def _spread(
    destination: _Destination,
    nearer: Mapping[str, list[int]],
    buckets: Mapping[str, tuple[int, ...]],
    entries: Mapping[str, list[FlowEntry]],
) -> None:
    for switch, ports in nearer.items():
        port = drawn_port(destination.name, switch, ports)
        equal = buckets.get(switch)
        entries[switch] += _entries(
            destination, equal or (port,), port if equal else 0
        )
