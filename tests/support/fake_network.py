"""Packet switches in memory: does this packet arrive, and where did it pass?"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from patchlight.controller.packet_switches.openflow.flowtable import (
    FlowTable,
    MatchValue,
)
from patchlight.testbed.lab.model import (
    CircuitSwitch,
    Endpoint,
    Fibre,
    Host,
    Lab,
    Nic,
    PacketSwitch,
    Server,
    default_mac,
)
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.wiring import Links

Packet = Mapping[str, int | str]


@dataclass(frozen=True)
class Walk:
    """Where copies of a packet came out, and each switch that one of them entered, in order."""

    arrived: tuple[Endpoint, ...]
    switches: tuple[str, ...]


class FakeNetwork:
    """The lab's links, with these tables in its switches."""

    def __init__(
        self, lab: Lab, links: Links, tables: Mapping[str, FlowTable]
    ) -> None:
        self.links = links
        self.tables = tables
        self.switches = {switch.name for switch in lab.packet_switches}

    def send(self, sender: Host, packet: Packet, flow_hash: int = 0) -> Walk:
        """Follow a packet that leaves the sender's NIC, of a flow with this hash in each switch.

        A storm of 1,000 hops is an error.
        """
        arrived: list[Endpoint] = []
        entered: list[str] = []
        waiting = [self.links.peer(sender.endpoint)]
        while waiting:
            at = waiting.pop()
            if at is None:
                continue
            if at.device not in self.switches:
                arrived.append(at)
                continue
            entered.append(at.device)
            assert len(entered) < 1000, f"a storm: {entered[:20]}"
            for port in self.outputs(
                at.device, int(at.port), packet, flow_hash
            ):
                waiting.append(self.links.peer(Endpoint(at.device, str(port))))
        return Walk(tuple(arrived), tuple(entered))

    def outputs(
        self, switch: str, in_port: int, packet: Packet, flow_hash: int = 0
    ) -> list[int]:
        """What the switch does: the highest matching entry's ports, never back where it came."""
        matching = [
            entry
            for entry in self.tables[switch]
            if all(
                _fits(v, {**packet, "in_port": in_port}.get(k))
                for k, v in entry.match.items()
            )
        ]
        if not matching:
            return []
        best = max(matching, key=lambda entry: entry.priority)
        assert [e.priority for e in matching].count(best.priority) == 1, (
            "ambiguous entries"
        )
        outputs = best.outputs
        if best.spread:
            outputs = (outputs[flow_hash % len(outputs)],)
        return [port for port in outputs if port != in_port]


def _fits(wanted: MatchValue, found: int | str | None) -> bool:
    """Whether a packet's field is what an entry wants: a value, or some bits of an address."""
    if not isinstance(wanted, tuple):
        return found == wanted
    value, mask = (_bits(str(part)) for part in wanted)
    return isinstance(found, str) and _bits(found) & mask == value


def _bits(address: str) -> int:
    return (
        int(address.replace(":", ""), 16)
        if ":" in address
        else int(IPv4Address(address))
    )


def unicast(receiver: Host) -> Packet:
    return {
        "eth_dst": receiver.nic.mac,
        "eth_type": 0x0800,
        "ipv4_dst": str(receiver.nic.address),
    }


def arp_request(receiver: Host) -> Packet:
    return {
        "eth_dst": "ff:ff:ff:ff:ff:ff",
        "eth_type": 0x0806,
        "arp_op": 1,
        "arp_tpa": str(receiver.nic.address),
    }


def solicitation(receiver: Host) -> Packet:
    """An IPv6 neighbour solicitation for the address that is derived from the receiver's MAC."""
    return {"eth_dst": f"33:33:ff{receiver.nic.mac[8:]}", "eth_type": 0x86DD}


def make_lab(
    trunks: Iterable[tuple[int, int]],
    hosts: Iterable[int],
    through_ocs: frozenset[int] = frozenset(),
) -> Lab:
    """Switches ``sw0``… joined by ``trunks`` (pairs, repeats allowed); one host for each switch
    index in ``hosts``. Fibres whose number is in ``through_ocs`` are cut by an OCS in the middle.
    """
    used: dict[int, int] = {}

    def port(switch: int) -> Endpoint:
        used[switch] = used.get(switch, 0) + 1
        return Endpoint(f"sw{switch}", str(used[switch]))

    ends = [(port(a), port(b)) for a, b in trunks]
    servers = []
    for i, switch in enumerate(hosts):
        address = IPv4Address("10.0.0.0") + i + 1
        nic = Nic("nic0", address, default_mac(address))
        servers.append(Server(f"h{i}", None, (), (nic,)))
        ends.append((Endpoint(f"h{i}", "nic0"), port(switch)))
    fibres = []
    pairs = []
    for number, (a, b) in enumerate(ends):
        if number in through_ocs:
            left = 2 * number + 1
            right = 2 * number + 2
            fibres += [
                Fibre(a, Endpoint("ocs", str(left))),
                Fibre(Endpoint("ocs", str(right)), b),
            ]
            pairs.append((left, right))
        else:
            fibres.append(Fibre(a, b))
    ocs = CircuitSwitch(
        "ocs", "none", "", 2 * len(ends), initial=PortMap.duplex(pairs)
    )
    return Lab(
        "test",
        IPv4Network("10.0.0.0/16"),
        tuple(servers),
        tuple(
            PacketSwitch(f"sw{i}", i + 1, n) for i, n in sorted(used.items())
        ),
        (ocs,),
        tuple(fibres),
    )
