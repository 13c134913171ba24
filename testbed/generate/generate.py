"""Generates labs by shape (one switch, chain, tree, fat-tree, two ToRs with an OCS) or at random.

In the first four, hosts are servers ``h1``…``hN`` with one GPU ``gpu0`` and one NIC ``nic0`` each,
addressed in order from 10.0.0.1; switches are ``s1``…. The hosts of one switch share a block of
addresses (10.0.0.0/27, 10.0.0.32/27, … for 16 of them), so one match covers them all. With an OCS,
every NIC goes through it to its switch.
"""

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Network
from itertools import count
from typing import TypedDict, Unpack

from patchlight.testbed.errors import BadInput, nearest
from patchlight.testbed.lab.loops import harmful_loops
from patchlight.testbed.lab.model import (
    FABRICS,
    CircuitSwitch,
    Endpoint,
    Fibre,
    Gpu,
    Lab,
    Nic,
    PacketSwitch,
    Server,
    default_mac,
)
from patchlight.testbed.lab.ocs_drivers import OCS_DRIVERS
from patchlight.testbed.lab.packet_drivers import PACKET_DRIVERS
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.wiring import trace_links
from patchlight.testbed.labfile.values import (
    LAB_NAME,
    MODEL,
    MOST_CIRCUIT_PORTS,
    MOST_PACKET_PORTS,
)

_FIRST = int(IPv4Address("10.0.0.0"))
_MOST_HOSTS = 2**24 - 2  # 10.0.0.0/8


class Common(TypedDict, total=False):
    """Options of each shape; ``ocs`` is the driver of an OCS before the hosts."""

    ocs: str | None
    rate_bps: int | None
    uplink_rate_bps: int | None
    fabric: str
    name: str | None


class _Builder:
    def __init__(self, hosts: int, common: Common) -> None:
        _check_count("hosts", hosts, _MOST_HOSTS)
        self.hosts = hosts
        self.common = common
        self.rate_bps = common.get("rate_bps")
        self.used: list[int] = []  # used ports of s1, s2, …
        self.fibres: list[Fibre] = []
        # For each connected host: its offset from 10.0.0.0.
        self.numbers: list[int] = []
        self.blocks = 0
        self.ocs = common.get("ocs")
        if self.ocs is not None:
            _check_count("hosts of an OCS", hosts, MOST_CIRCUIT_PORTS // 2)
            if common.get("fabric") == "bridge":
                raise BadInput(
                    "an OCS needs OpenFlow switches around it, not bridges",
                    hint="use --fabric openvswitch, or omit --ocs",
                )

    def switch(self) -> int:
        """Add a switch and return its number, from 1."""
        self.used.append(0)
        return len(self.used)

    def port(self, switch: int) -> Endpoint:
        self.used[switch - 1] += 1
        return Endpoint(f"s{switch}", str(self.used[switch - 1]))

    def plug_hosts(self, switch: int, most: int) -> None:
        """Connect up to ``most`` unconnected hosts to this switch."""
        first = self.blocks << most.bit_length()
        self.blocks += 1
        for number in range(1, min(most, self.hosts - len(self.numbers)) + 1):
            self.numbers.append(first + number)
            nic = Endpoint(f"h{len(self.numbers)}", "nic0")
            port = self.port(switch)
            if self.ocs is None:
                self.fibres.append(Fibre(nic, port, self.rate_bps))
            else:
                for end, at in (
                    (nic, len(self.numbers)),
                    (port, self.hosts + len(self.numbers)),
                ):
                    self.fibres.append(
                        Fibre(end, Endpoint("ocs1", str(at)), self.rate_bps)
                    )

    def join(self, lower: int, upper: int) -> None:
        self.fibres.append(
            Fibre(
                self.port(lower),
                self.port(upper),
                self.common.get("uplink_rate_bps"),
            )
        )

    def lab(self, shape: str, ports: int | None = None) -> Lab:
        """The lab; ``ports`` is the port count of each switch (default: as many as are used)."""
        name = self.common.get("name") or f"{shape}{self.hosts}"
        fabric = self.common.get("fabric", FABRICS[0])
        LAB_NAME.take(name)
        if fabric not in FABRICS:
            raise BadInput(
                f"{fabric!r} is not a fabric: {nearest(fabric, FABRICS)}"
            )
        most = max(self.used)
        if most > MOST_PACKET_PORTS:
            raise BadInput(
                f"a switch would need {most} ports: expected at most {MOST_PACKET_PORTS}",
                hint="use fewer hosts, or fewer hosts for each switch",
            )
        return Lab(
            name=name,
            network=_network_for(self.numbers[-1]),
            servers=tuple(
                _server(
                    f"h{n}",
                    f"h{n}",
                    ["Generic"],
                    [IPv4Address(_FIRST + at)],
                    self.rate_bps,
                )
                for n, at in enumerate(self.numbers, start=1)
            ),
            packet_switches=tuple(
                PacketSwitch(
                    name=f"s{n}",
                    datapath_id=n,
                    ports=ports or used,
                )
                for n, used in enumerate(self.used, start=1)
            ),
            circuit_switches=self._circuit_switches(),
            fibres=tuple(self.fibres),
            fabric=fabric,
        )

    def _circuit_switches(self) -> tuple[CircuitSwitch, ...]:
        if self.ocs is None:
            return ()
        initial = PortMap.duplex(
            (n, self.hosts + n) for n in range(1, self.hosts + 1)
        )
        # Datapath ids of the packet switches are 1, 2, …; hosts' addresses are in 10.0.0.0/8.
        return (
            _ocs(
                "ocs1",
                self.ocs,
                "172.16.0.5",
                2 * self.hosts,
                initial,
                len(self.used) + 1,
            ),
        )


def _server(
    name: str,
    host: str,
    models: Sequence[str],
    addresses: Iterable[IPv4Address],
    rate: int | None,
) -> Server:
    nics = tuple(
        Nic(
            f"nic{n}",
            address,
            default_mac(address),
            rate,
            gpu=f"gpu{n}",
        )
        for n, address in zip(range(len(models)), addresses, strict=False)
    )
    gpus = tuple(Gpu(f"gpu{n}", model) for n, model in enumerate(models))
    return Server(
        name,
        f"{host}:8471",
        gpus,
        nics,
    )


def _ocs(
    name: str,
    driver: str,
    host: str,
    ports: int,
    initial: PortMap,
    datapath_id: int,
    number: int = 0,
) -> CircuitSwitch:
    """An OCS; of those that dial in, each has its ``number``'s port here."""
    row = OCS_DRIVERS.get(driver, OCS_DRIVERS["dry-run"])
    return CircuitSwitch(
        name=name,
        driver=driver,
        address=f"127.0.0.1:{row.port + number}"
        if row.dials_in
        else f"{host}:{row.port}",
        ports=max(16, 1 << (ports - 1).bit_length()),
        initial=initial,
        datapath_id=datapath_id if driver == "openflow" else None,
    )


def single(
    hosts: int,
    *,
    rate_bps: int | None = None,
    fabric: str = "openvswitch",
    name: str | None = None,
    ocs: str | None = None,
) -> Lab:
    """One switch with all hosts on it: host *n* on port *n*."""
    build = _Builder(
        hosts,
        {
            "rate_bps": rate_bps,
            "fabric": fabric,
            "name": name,
            "ocs": ocs,
        },
    )
    build.plug_hosts(build.switch(), hosts)
    return build.lab("single")


def linear(
    hosts: int,
    *,
    hosts_per_switch: int = 16,
    **common: Unpack[Common],
) -> Lab:
    """A chain of switches; the last one may have fewer hosts."""
    _check_count("hosts per switch", hosts_per_switch, MOST_PACKET_PORTS)
    build = _Builder(hosts, common)
    while len(build.numbers) < hosts:
        build.plug_hosts(build.switch(), hosts_per_switch)
    for switch in range(1, len(build.used)):
        build.join(switch, switch + 1)
    return build.lab("linear")


def tree(
    hosts: int,
    *,
    hosts_per_switch: int = 16,
    **common: Unpack[Common],
) -> Lab:
    """A root switch ``s1`` and leaf switches below it that have the hosts."""
    _check_count("hosts per switch", hosts_per_switch, MOST_PACKET_PORTS)
    build = _Builder(hosts, common)
    root = build.switch()
    while len(build.numbers) < hosts:
        leaf = build.switch()
        build.plug_hosts(leaf, hosts_per_switch)
        build.join(leaf, root)
    return build.lab("tree")


def fat_tree(hosts: int, **common: Unpack[Common]) -> Lab:
    """A three-layer fat-tree of k-port switches (Al-Fares et al., SIGCOMM 2008).

    k is the smallest even number with k³/4 ≥ ``hosts``. All 5k²/4 switches exist, core first, then
    each pod's aggregation and edge switches; where ``hosts`` is less than k³/4, edge switches are
    filled in order and the last host ports stay free. ``BadInput`` with ``fabric="bridge"``: a
    fat-tree has loops, in which learning bridges flood forever.
    """
    if common.get("fabric") == "bridge":
        raise BadInput(
            "a fat-tree has loops, in which bridges without OpenFlow flood forever",
            hint="use --fabric openvswitch, or a tree, which has no loops",
        )
    build = _Builder(hosts, common)
    k = arity(hosts)
    half = k // 2
    core = [[build.switch() for _ in range(half)] for _ in range(half)]
    for _ in range(k):
        aggregation = [build.switch() for _ in range(half)]
        edge = [build.switch() for _ in range(half)]
        # Ports to lower layers come first on every switch, so hosts are on 1…k/2.
        for switch in edge:
            build.plug_hosts(switch, half)
            build.used[switch - 1] = half
        for upper in aggregation:
            for lower in edge:
                build.join(lower, upper)
        for group, lower in enumerate(aggregation):
            for upper in core[group]:
                build.join(lower, upper)
    return build.lab("fat-tree", ports=k)


def two_tors(
    servers: int,
    *,
    gpus: int = 1,
    gpu_model: str = "Generic",
    rate_bps: int | None = None,
    driver: str = "calient-tl1",
    name: str = "my-lab",
    ocs: int = 1,
    tors: int = 2,
) -> Lab:
    """ToR switches (two) and OCSs (one) between them and the NICs: each NIC can be on any ToR.

    ``servers`` servers ``server1``… have ``gpus`` GPUs with a NIC each. Each OCS has an equal part
    of the servers: their NICs on its first ports, then as many ports of ``tor1``, of ``tor2``, …;
    at the start, equal parts of the servers are on each ToR. The ToRs are linked in a chain at a
    quarter of the NICs' rate, as in the testbed of OFC 2022.
    """
    _check_count("GPUs for each server", gpus, MOST_CIRCUIT_PORTS)
    MODEL.take(gpu_model)
    hosts = servers * gpus
    if servers < ocs:
        raise BadInput(
            f"{ocs} OCSs need as many servers or more, not {servers}"
        )
    _check_count(
        "hosts of an OCS",
        -(-servers // ocs) * gpus,
        MOST_CIRCUIT_PORTS // (1 + tors),
    )
    LAB_NAME.take(name)
    network = IPv4Network(
        "192.168.10.0/24" if hosts < 240 else "192.168.0.0/16"
    )
    addresses = (network[number] for number in count(11))
    agents = IPv4Address("10.0.0.10")
    made = tuple(
        _server(
            f"server{n}",
            str(agents + n),
            [gpu_model] * gpus,
            addresses,
            rate_bps,
        )
        for n in range(1, servers + 1)
    )
    fibres: list[Fibre] = []
    switches: list[CircuitSwitch] = []
    before = 0  # hosts of the OCSs before
    for number in range(ocs):
        its = [n for n in range(servers) if n * ocs // servers == number]
        nics = [
            Endpoint(made[n].name, nic.name)
            for n in its
            for nic in made[n].nics
        ]
        size = len(nics)
        uplinks = [
            Endpoint(f"tor{tor}", str(before + port))
            for tor in range(1, tors + 1)
            for port in range(1, size + 1)
        ]
        box = f"ocs{number + 1}"
        fibres += [
            Fibre(end, Endpoint(box, str(port)))
            for port, end in enumerate([*nics, *uplinks], start=1)
        ]
        tor_of = [n * tors // servers for n in its for _ in range(gpus)]
        circuits = [
            (nic, nic + size * (1 + tor))
            for nic, tor in enumerate(tor_of, start=1)
        ]
        switches.append(
            _ocs(
                box,
                driver,
                f"10.0.0.{5 + number}",
                (1 + tors) * size,
                PortMap.duplex(circuits),
                0x51 + number,
                number,
            )
        )
        before += size
    for tor in range(1, tors):
        up = Endpoint(f"tor{tor}", str(hosts + (1 if tor == 1 else 2)))
        down = Endpoint(f"tor{tor + 1}", str(hosts + 1))
        fibres.append(Fibre(up, down, rate_bps // 4 if rate_bps else None))
    links = [(tor > 1) + (tor < tors) for tor in range(1, tors + 1)]
    packet = tuple(
        PacketSwitch(f"tor{n}", n, hosts + ends)
        for n, ends in enumerate(links, start=1)
    )
    return Lab(
        name,
        network,
        made,
        packet,
        tuple(switches),
        tuple(fibres),
    )


def with_switches(lab: Lab, driver: str) -> Lab:
    """The lab with packet switches that have this driver, at addresses ``s1:22``, …; they run a
    spanning tree where a loop of them would be flooded."""
    row = PACKET_DRIVERS[driver]

    def changed(*, spanning_tree: bool) -> Lab:
        switches = (
            replace(
                switch,
                driver=driver,
                datapath_id=switch.datapath_id
                if "datapath_id" in row.needs
                else None,
                address=f"{switch.name}:22" if "address" in row.needs else "",
                vlan=100 if "vlan" in row.needs else None,
                spanning_tree=spanning_tree,
            )
            for switch in lab.packet_switches
        )
        return lab.with_changes(packet_switches=tuple(switches))

    made = changed(spanning_tree=False)
    links = trace_links(made, made.initial_maps).pairs()
    return changed(spanning_tree=True) if harmful_loops(made, links) else made


def arity(hosts: int) -> int:
    """The ports k of a fat-tree's switches: the smallest even k with k³/4 ≥ ``hosts``."""
    k = 2
    while k**3 // 4 < hosts:
        k += 2
    return k


def _network_for(last: int) -> IPv4Network:
    """10.0.0.0/16, or larger if the last host's address does not fit."""
    prefix = min(16, 32 - (last + 1).bit_length())
    if prefix < 8:
        raise BadInput(
            "10.0.0.0/8 is too small for these hosts with a block of addresses per switch",
            hint="use fewer hosts, or more hosts per switch",
        )
    return IPv4Network((_FIRST, prefix))


def _check_count(
    what: str,
    count: int,
    most: int,
) -> None:
    if not 1 <= count <= most:
        raise BadInput(f"{count} {what}: expected a number from 1 to {most}")


GPU_MODELS = ("fast", "slow")
_SWITCHING_TIMES_S = (0.005, 0.025, 0.1)
_RATES_BPS = (10_000_000_000, 25_000_000_000, 40_000_000_000, 100_000_000_000)


@dataclass(frozen=True)
class RandomLabShape:
    """The shape of a random lab: ``leaves`` × ``servers`` × ``gpus``, each GPU with a NIC.

    The NICs are spread over ``ocs`` OCSs; each leaf has ``spare`` more ports than NICs. A leaf's
    link to the spine (with two leaves, to the other) has the rate of its NICs over
    ``oversubscription``. ``mixed``: servers alternate between two GPU models.
    """

    leaves: int
    servers: int
    gpus: int
    ocs: int = 1
    spare: int = 2
    oversubscription: float = 2.0
    nic_bps: int = 40_000_000_000
    switching_time_s: float = 0.025
    mixed: bool = False

    def __post_init__(self) -> None:
        counts = (
            self.leaves - 1,
            self.servers,
            self.gpus,
            self.ocs,
            self.spare + 1,
        )
        if min(counts) < 1 or not self.oversubscription >= 1:
            raise BadInput(
                f"{self} is not a valid shape: expected at least 2 leaves, 1 server, GPU and "
                "OCS, and an oversubscription of 1 or more"
            )

    @property
    def size(self) -> int:
        """All GPUs."""
        return self.leaves * self.servers * self.gpus


def draw_shape(
    seed: int,
    largest: int = 128,
    mixed: float = 0.3,
) -> RandomLabShape:
    """2 to 8 switches with the spine, 8 to ``largest`` GPUs, 1 to 4 OCSs, one or two GPU models."""
    draw = random.Random(f"lab {seed}")
    while True:
        leaves = draw.randint(2, 7)
        servers = draw.randint(1, 8)
        gpus = draw.choice((1, 2, 4, 8))
        if 8 <= leaves * servers * gpus <= largest:
            return RandomLabShape(
                leaves,
                servers,
                gpus,
                ocs=draw.randint(1, min(4, leaves * servers)),
                spare=draw.randint(0, max(1, servers * gpus // 2)),
                oversubscription=draw.choice((1.0, 2.0, 4.0, 8.0)),
                nic_bps=draw.choice(_RATES_BPS),
                switching_time_s=draw.choice(_SWITCHING_TIMES_S),
                mixed=draw.random() < mixed,
            )


def random_lab(
    seed: int,
    largest: int = 128,
    mixed: float = 0.3,
) -> Lab:
    """The lab of ``draw_shape``."""
    return lab_of(draw_shape(seed, largest, mixed), f"random{seed}")


def lab_of(shape: RandomLabShape, name: str) -> Lab:
    """A lab of this shape; every NIC is connected to its server's leaf."""
    addresses = map(IPv4Address, count(int(IPv4Address("10.0.0.1"))))
    servers = []
    for number in range(shape.leaves * shape.servers):
        host = f"server{number + 1}"
        model = GPU_MODELS[number % 2 if shape.mixed else 0]
        servers.append(
            _server(
                host,
                host,
                [model] * shape.gpus,
                addresses,
                shape.nic_bps,
            )
        )
    leaves = [f"leaf{number + 1}" for number in range(shape.leaves)]
    home = {
        server.name: leaves[n // shape.servers]
        for n, server in enumerate(servers)
    }
    used = dict.fromkeys(leaves, 0)

    def port(switch: str) -> Endpoint:
        used[switch] = used.get(switch, 0) + 1
        return Endpoint(switch, str(used[switch]))

    fibres: list[Fibre] = []
    switches: list[CircuitSwitch] = []
    for number in range(shape.ocs):
        ocs = f"ocs{number + 1}"
        ports = count(1)
        below = servers[number :: shape.ocs]
        nics = {
            Endpoint(s.name, nic.name): next(ports)
            for s in below
            for nic in s.nics
        }
        begin = Counter(home[nic.device] for nic in nics)
        above = {
            leaf: [next(ports) for _ in range(begin[leaf] + shape.spare)]
            for leaf in leaves
        }
        plugs = [
            *nics.items(),
            *((port(leaf), at) for leaf in leaves for at in above[leaf]),
        ]
        fibres += [
            Fibre(end, Endpoint(ocs, str(at)), shape.nic_bps)
            for end, at in plugs
        ]
        free = {leaf: iter(facing) for leaf, facing in above.items()}
        circuits = PortMap.duplex(
            (at, next(free[home[nic.device]])) for nic, at in nics.items()
        )
        made = _ocs(
            ocs,
            "calient-tl1",
            f"10.1.0.{number + 1}",
            next(ports) - 1,
            circuits,
            0,
        )
        switches.append(replace(made, switching_time_s=shape.switching_time_s))
    uplink_bps = int(
        shape.servers * shape.gpus * shape.nic_bps / shape.oversubscription
    )
    ends = (
        [(leaf, "spine") for leaf in leaves]
        if shape.leaves > 2
        else [(leaves[0], leaves[1])]
    )
    fibres += [
        Fibre(port(lower), port(upper), uplink_bps) for lower, upper in ends
    ]
    return Lab(
        name=name,
        network=IPv4Network("10.0.0.0/16"),
        servers=tuple(servers),
        packet_switches=tuple(
            PacketSwitch(switch, n, ports)
            for n, (switch, ports) in enumerate(used.items(), 1)
        ),
        circuit_switches=tuple(switches),
        fibres=tuple(fibres),
    )
