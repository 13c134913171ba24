"""Small disaggregated labs, drawn by chance: leaves under a spine, and OCSs before the leaves.

What a policy that is to decide in any lab is trained and tested on. Every NIC goes through one of
the OCSs to a leaf switch, and each leaf has a few more ports there than NICs that begin on it, so
light can move. Pure: the same seed gives the same lab.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from itertools import count

from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import (
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
from patchlight.testbed.lab.portmap import PortMap

GPU_MODELS = ("fast", "slow")
_SWITCHING_TIMES_S = (0.005, 0.025, 0.1)
_RATES_BPS = (10_000_000_000, 25_000_000_000, 40_000_000_000, 100_000_000_000)


@dataclass(frozen=True)
class RandomLabShape:
    """What a lab is drawn to be: ``leaves`` × ``servers`` × ``gpus``, each GPU with a NIC.

    The servers' NICs are spread over ``ocs`` OCSs, where each leaf has ``spare`` ports more than
    NICs that begin on it. A leaf's link to the spine (of two leaves, to each other) has the rate of
    all NICs that begin there over ``oversubscription``. ``mixed``: every other server has GPUs of
    the second model. ``BadInput`` for what is no lab.
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
        counts = (self.leaves - 1, self.servers, self.gpus, self.ocs, self.spare + 1)
        if min(counts) < 1 or not self.oversubscription >= 1:
            raise BadInput(
                f"{self} is no lab: expected at least 2 leaves, 1 server, GPU and OCS, and an "
                "oversubscription of 1 or more"
            )

    @property
    def size(self) -> int:
        """All GPUs."""
        return self.leaves * self.servers * self.gpus


def draw_shape(seed: int, largest: int = 128, mixed: float = 0.3) -> RandomLabShape:
    """A lab of 2 to 8 switches with the spine, 8 to ``largest`` GPUs, one to four OCSs.

    With the probability ``mixed`` it has two GPU models.
    """
    draw = random.Random(f"lab {seed}")
    while True:
        leaves = draw.randint(2, 7)
        servers, gpus = draw.randint(1, 8), draw.choice((1, 2, 4, 8))
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


def random_lab(seed: int, largest: int = 128, mixed: float = 0.3) -> Lab:
    """The lab of ``draw_shape``."""
    return lab_of(draw_shape(seed, largest, mixed), f"random{seed}")


def lab_of(shape: RandomLabShape, name: str) -> Lab:
    """A lab of this shape, every NIC lit onto the leaf that its server stands under."""
    servers = tuple(_servers(shape))
    leaves = [f"leaf{number + 1}" for number in range(shape.leaves)]
    used = dict.fromkeys(leaves, 0)
    ports = count(1)
    fibres: list[Fibre] = []
    at_ocs: list[list[Endpoint]] = [[] for _ in range(shape.ocs)]
    begins: list[dict[str, int]] = [dict.fromkeys(leaves, 0) for _ in range(shape.ocs)]
    for number, server in enumerate(servers):
        for nic in server.nics:
            at_ocs[number % shape.ocs].append(Endpoint(server.name, nic.name))
            begins[number % shape.ocs][leaves[number // shape.servers]] += 1
    switches: list[CircuitSwitch] = []
    for number, nics in enumerate(at_ocs):
        ocs, ports = f"ocs{number + 1}", count(1)
        facing: dict[str, Iterator[int]] = {}
        nic_ports = {nic: next(ports) for nic in nics}
        fibres += [
            Fibre(nic, Endpoint(ocs, str(at)), shape.nic_bps) for nic, at in nic_ports.items()
        ]
        for leaf in leaves:
            facing_leaf = []
            for _ in range(begins[number][leaf] + shape.spare):
                used[leaf] += 1
                facing_leaf.append(next(ports))
                end = Endpoint(ocs, str(facing_leaf[-1]))
                fibres.append(Fibre(Endpoint(leaf, str(used[leaf])), end, shape.nic_bps))
            facing[leaf] = iter(facing_leaf)
        home = {server.name: leaves[n // shape.servers] for n, server in enumerate(servers)}
        circuits = [(at, next(facing[home[nic.device]])) for nic, at in nic_ports.items()]
        switches.append(
            CircuitSwitch(
                name=ocs,
                driver="calient-tl1",
                address=f"10.1.0.{number + 1}:3082",
                ports=max(16, 1 << (next(ports) - 2).bit_length()),
                initial=PortMap.duplex(circuits),
                switching_time_s=shape.switching_time_s,
            )
        )
    uplink_bps = int(shape.servers * shape.gpus * shape.nic_bps / shape.oversubscription)
    names = list(leaves)
    if shape.leaves > 2:
        names.append("spine")
        used["spine"] = shape.leaves
        for number, leaf in enumerate(leaves):
            used[leaf] += 1
            up = Endpoint(leaf, str(used[leaf]))
            fibres.append(Fibre(up, Endpoint("spine", str(number + 1)), uplink_bps))
    else:
        ends = []
        for leaf in leaves:
            used[leaf] += 1
            ends.append(Endpoint(leaf, str(used[leaf])))
        fibres.append(Fibre(ends[0], ends[1], uplink_bps))
    return Lab(
        name=name,
        network=IPv4Network("10.0.0.0/16"),
        servers=servers,
        packet_switches=tuple(
            PacketSwitch(switch, n, used[switch]) for n, switch in enumerate(names, start=1)
        ),
        circuit_switches=tuple(switches),
        fibres=tuple(fibres),
    )


def _servers(shape: RandomLabShape) -> Iterator[Server]:
    numbers = count(int(IPv4Address("10.0.0.1")))
    for server in range(shape.leaves * shape.servers):
        model = GPU_MODELS[server % 2 if shape.mixed else 0]
        addresses = [IPv4Address(next(numbers)) for _ in range(shape.gpus)]
        yield Server(
            name=f"server{server + 1}",
            management=f"server{server + 1}:8471",
            gpus=tuple(Gpu(f"gpu{n}", model) for n in range(shape.gpus)),
            nics=tuple(
                Nic(f"nic{n}", address, default_mac(address), shape.nic_bps, gpu=f"gpu{n}")
                for n, address in enumerate(addresses)
            ),
        )
