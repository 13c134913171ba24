"""From who is lit where to the flow table of every packet switch.

Each NIC gets two entries on every switch that can reach it: frames to its MAC, and ARP
requests for its address, both towards the switch port that its light now ends on. Nothing
is flooded: whatever no entry matches is dropped, so a loop of switches carries no storm.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from hashlib import blake2b

from patchlight.controller.openflow.flowtable import FlowEntry, FlowTable, Match
from patchlight.testbed.lab import Host, Lab
from patchlight.testbed.wiring import Links

ETHERTYPE_ARP = 0x0806
ARP_REQUEST = 1
# A user's application goes above these to take precedence, below to get the rest. Ours at 0
# (drop) gives way to another application's table-miss entry.
PRIORITY_ARP = 110
PRIORITY_UNICAST = 100
PRIORITY_MISS = 0

TABLE_MISS = FlowEntry.ours(Match(), (), priority=PRIORITY_MISS)


# A port of a switch, and the switch that it is lit to.
_Trunk = tuple[int, str]


def flow_tables(lab: Lab, links: Links) -> dict[str, FlowTable]:
    """The flow table of each packet switch, by its name, under these links.

    Paths are shortest in switches; destinations are spread over equally short ones by a
    hash of MAC and port, so a link that goes away moves only the destinations that used it.
    Each hop brings a frame one switch nearer to its port: no frame meets a switch twice. A
    NIC that is dark, or lit to no packet switch, gets no entry.

    O(switches × NICs + switches × links).
    """
    trunks = _trunks(lab, links)
    lit: dict[str, list[tuple[Host, int]]] = {}
    for host in lab.hosts:
        port = links.peer(host.endpoint)
        if port is not None and port.device in trunks:
            lit.setdefault(port.device, []).append((host, int(port.port)))

    entries: dict[str, list[FlowEntry]] = {name: [TABLE_MISS] for name in trunks}
    for last, hosts in lit.items():
        distance = _distances(trunks, last)
        for host, port_number in hosts:
            entries[last].extend(_entries(host, port_number))
            for name in distance.keys() - {last}:
                towards = _next_port(host.nic.mac, name, trunks[name], distance)
                entries[name].extend(_entries(host, towards))
    return {name: FlowTable.of(table) for name, table in entries.items()}


def entry_to(mac: str, port: int) -> FlowEntry:
    """The entry that sends frames for ``mac`` out of ``port``: its bytes are the NIC's."""
    return FlowEntry.ours(Match(eth_dst=mac.lower()), (port,), priority=PRIORITY_UNICAST)


def _entries(host: Host, port: int) -> Iterator[FlowEntry]:
    yield entry_to(host.nic.mac, port)
    asks = Match(eth_type=ETHERTYPE_ARP, arp_op=ARP_REQUEST, arp_tpa=str(host.nic.address))
    yield FlowEntry.ours(asks, (port,), priority=PRIORITY_ARP)


def _trunks(lab: Lab, links: Links) -> dict[str, list[_Trunk]]:
    trunks: dict[str, list[_Trunk]] = {switch.name: [] for switch in lab.packet_switches}
    for a, b in links.pairs():
        if a.device in trunks and b.device in trunks and a.device != b.device:
            trunks[a.device].append((int(a.port), b.device))
            trunks[b.device].append((int(b.port), a.device))
    return {name: sorted(ports) for name, ports in trunks.items()}


def _distances(trunks: Mapping[str, list[_Trunk]], last: str) -> dict[str, int]:
    """How many switch-to-switch hops each reachable switch is away from ``last``."""
    distance, waiting = {last: 0}, deque([last])
    while waiting:
        name = waiting.popleft()
        for _, neighbour in trunks[name]:
            if neighbour not in distance:
                distance[neighbour] = distance[name] + 1
                waiting.append(neighbour)
    return distance


def _next_port(mac: str, switch: str, trunks: list[_Trunk], distance: Mapping[str, int]) -> int:
    nearer = [port for port, neighbour in trunks if distance[neighbour] < distance[switch]]
    if len(nearer) == 1:
        return nearer[0]

    # Highest-random-weight hashing (Thaler & Ravishankar, 1998): each port draws a number,
    # the highest wins, so that taking a port away disturbs no other destination.
    def draw(port: int) -> bytes:
        return blake2b(f"{mac}|{switch}|{port}".encode(), digest_size=8).digest()

    return max(nearer, key=draw)
