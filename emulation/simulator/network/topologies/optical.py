"""Networks that switch light for jobs: RotorNet, OFC 2022's ToRs, SiP-ML's ring and switch, RAMP,
ODDL."""

from dataclasses import dataclass

import numpy as np

from patchlight.emulation.simulator.network.contract import (
    NO_LINK,
    Network,
    Round,
    Switching,
    all_to_all,
    checked_nodes,
    draw,
    links,
    rows,
)
from patchlight.emulation.simulator.network.sharing import Ints
from patchlight.emulation.simulator.network.topologies.packet import (
    LATENCY,
    RATE,
    Ideal,
    LeafSpine,
    leaf_spine,
)
from patchlight.testbed.errors import BadInput, nearest
from patchlight.testbed.paths.schedulers import SCHEDULERS


@dataclass(
    frozen=True,
    eq=False,
)
class RotorNet(Network):
    """Links: NICs up and down, then ``from_rack · racks + to_rack`` between racks."""

    hosts: int = 0

    def _paths(
        self,
        source: Ints,
        destination: Ints,
        flow: Ints,
        group: Ints,
    ) -> Ints:
        racks = self.nodes // self.hosts
        first = 2 * self.nodes
        here = source // self.hosts
        there = destination // self.hosts
        flows = np.bincount(here * racks + there, minlength=racks**2)
        # Valiant's detour over some rack; over the two themselves it is none. It doubles the load,
        # so it pays only where two racks have several flows, and over twice as many as others.
        most = max(1.0, 2 * (here != there).sum() / (racks * (racks - 1)))
        busy = flows[here * racks + there] > most
        over = np.where(
            busy,
            draw(
                racks,
                source,
                destination,
                flow,
            ),
            there,
        )
        direct = (over == here) | (over == there)
        apart = here != there
        return rows(
            source,
            np.where(
                apart,
                first + here * racks + np.where(direct, there, over),
                NO_LINK,
            ),
            np.where(apart & ~direct, first + over * racks + there, NO_LINK),
            self.nodes + destination,
        )


def rotornet(
    spec: str,
    racks: int = 8,
    hosts: int = 8,
    uplinks: int = 8,
    slot: float = 100e-6,
    switching: float = 10e-6,
    rate: float = RATE,
    latency: float = LATENCY,
) -> RotorNet:
    """Rotor switches (Mellette et al., SIGCOMM 2017), averaged over their cycle.

    Each of ``uplinks`` circuits of a rack is for a ``slot`` with each other rack in turn and dark
    for ``switching`` in it, so two racks have uplinks · rate · (1 − switching/slot) / (racks − 1)
    on average, and wait half a cycle for it. Flows of busy pairs are spread over other racks
    (Valiant). Flows shorter than a cycle are not well described; Opera's always-on paths for them
    are not in this.
    """
    if racks < 2 or switching >= slot:
        raise BadInput(
            f"{spec}: expected 2 racks or more, and switching < slot"
        )
    nodes = racks * hosts
    checked_nodes(spec, nodes)
    usable = uplinks * rate * (1 - switching / slot) / (racks - 1)
    waits = slot * -(-(racks - 1) // uplinks) / 2
    return RotorNet(
        spec,
        rate,
        np.arange(nodes) // hosts,
        links((2 * nodes, rate), (racks * racks, usable)),
        np.concatenate(
            [
                np.full(2 * nodes, latency),
                np.full(racks * racks, latency + waits),
            ]
        ),
        {
            "switch-port-100g": (nodes + racks * uplinks) * rate / 100e9,
            "transceiver-100g": racks * uplinks * rate / 100e9,
            "copper-100g": nodes * rate / 100e9,
            "ocs-port": racks * uplinks,
        },
        hosts=hosts,
    )


@dataclass(
    frozen=True,
    eq=False,
)
class TorOcs(LeafSpine):
    """A leaf-spine where an OCS connects nodes to leaves, again for each job."""

    def _leaves(self, group: Ints) -> Ints:
        # As many ranks as a leaf has ports are under the leaf of the first of them.
        rank = np.zeros(self.nodes, np.int64)
        rank[group] = np.arange(len(group))
        return self.racks[group[rank // self.hosts * self.hosts]]


def tor_ocs(
    spec: str,
    tors: int = 8,
    hosts: int = 8,
    spines: int = 1,
    taper: float = 4.0,
    switching: float = 25e-3,
    rate: float = RATE,
    latency: float = LATENCY,
) -> TorOcs:
    """Nodes regrouped under ToRs for each job (Yan, Zhu, Glick, Wu, Bergman, OFC 2022).

    The paper has two ToRs, and one link between them. Here each OCS port is joined to any other,
    and jobs never lack free ports at their ToRs.
    """
    tree = leaf_spine(spec, tors, hosts, spines, taper, rate, latency)
    fibres = 2 * tree.nodes * rate / 100e9
    ports = tree.parts["switch-port-100g"]
    between = tree.parts["transceiver-100g"]
    return TorOcs(
        spec,
        rate,
        tree.racks,
        tree.capacity_bps,
        tree.latency_s,
        {
            "switch-port-100g": ports,
            "transceiver-100g": between + fibres,
            "ocs-port": 2 * tree.nodes,
        },
        Switching(switching, once=True),
        hosts=hosts,
        spines=spines,
    )


_MOST_NODES = 4096


@dataclass(
    frozen=True,
    eq=False,
)
class SipRing(Network):
    """Links: what nodes add, what they drop, the segments of the fibre behind each node, and those
    that go the other way, if there are ``directions``."""

    directions: int = 1

    def _paths(
        self,
        source: Ints,
        destination: Ints,
        flow: Ints,
        group: Ints,
    ) -> Ints:
        nodes = self.nodes
        ahead = (destination - source) % nodes
        back = (self.directions == 2) & (2 * ahead > nodes)
        apart = np.where(back, nodes - ahead, ahead)
        hops = np.arange(int(apart.max(initial=0)))
        way = np.where(back, -1, 1)[:, None]
        first = np.where(back, 3, 2)[:, None] * nodes
        segments = first + (source[:, None] + way * hops) % nodes
        inside = np.where(hops < apart[:, None], segments, NO_LINK)
        return np.column_stack([source, inside, nodes + destination])


def sip_ring(
    spec: str,
    nodes: int = 64,
    wavelengths: int = 64,
    microrings: int = 64,
    channel_rate: float = RATE / 64,
    latency: float = LATENCY,
    switching: float = 25e-6,
    directions: int = 1,
    fibres: int = 1,
    slot: float = 0.0,
) -> SipRing:
    """SiP-ML's ring (Khani et al., SIGCOMM 2021); light goes one way round, or both ways.

    A segment carries ``wavelengths``, split evenly over ``fibres`` and ``directions``, and each of
    them again behind the node that drops it; a node adds and drops as many as it has
    ``microrings``. One way round, a ring of neighbours closes all the way: J jobs beside each other
    cross each segment J times. All is dark for ``switching`` in each ``slot``, if one is given.
    """
    checked_nodes(spec, nodes)
    each = (
        wavelengths // fibres // directions if fibres > 0 < directions else 0
    )
    if directions > 2 or not each or 0 < slot <= switching:
        raise BadInput(
            f"{spec}: expected 1 or 2 directions, a wavelength or more for each fibre and "
            "direction, and switching < slot"
        )
    lit = 1 - switching / slot if slot else 1.0
    if nodes > _MOST_NODES:
        # A path has as many links as nodes lie between: memory would grow with the square.
        checked_nodes(f"{spec} (at most {_MOST_NODES})", 0)
    one_way = each * fibres * channel_rate * lit
    mine = min(microrings * channel_rate * lit, directions * one_way)
    segments = directions * nodes
    return SipRing(
        spec,
        mine,
        np.zeros(nodes, np.int64),
        links((2 * nodes, mine), (segments, one_way)),
        np.concatenate([np.full(2 * nodes, latency / 2), np.zeros(segments)]),
        {
            "microring": 2 * nodes * microrings,
            "transceiver-100g": nodes * mine / 100e9,
        },
        Switching(switching, wavelengths),
        directions=directions,
    )


_EXACT = 1024
"""All flows of larger all-reduces on RAMP would be too many."""


@dataclass(
    frozen=True,
    eq=False,
)
class Ramp(Network):
    """Links: a node's transmitter for each group, then a node's receiver for each group."""

    groups: int = 0

    def collective(
        self,
        name: str,
        nodes: Ints,
        nbytes: float,
        ring_part: float = 1.0,
    ) -> list[Round]:
        """An all-reduce is two all-to-alls, reduce-scatter and all-gather, over all transceivers.

        RAMP's own algorithms take as many steps as nodes have digits; the bits are the same. Of
        large jobs one step stands for all: each node sends to one in each group.
        """
        members = len(nodes)
        if name != "ring" or members < 2:
            return super().collective(
                name,
                nodes,
                nbytes,
                ring_part,
            )
        exchange = all_to_all(
            members, nbytes, 0 if members <= _EXACT else self.groups
        )
        if members > _EXACT:
            parts = (members - 1) / self.groups
            steps = -(-(members - 1) // self.groups)
            exchange = [
                exchange[0]._replace(
                    bits=exchange[0].bits * parts,
                    messages=steps,
                )
            ]
        one_way = (members - 1) / members * 8 * nbytes
        return [
            *(each._replace(reduced_bits=one_way) for each in exchange),
            *exchange,
        ]

    def _paths(
        self,
        source: Ints,
        destination: Ints,
        flow: Ints,
        group: Ints,
    ) -> Ints:
        # Neighbouring numbers are in different groups, so that small jobs have all transceivers.
        sending = source * self.groups + destination % self.groups
        receiving = (
            self.nodes + destination
        ) * self.groups + source % self.groups
        return rows(sending, receiving)


def ramp(
    spec: str,
    groups: int = 4,
    racks: int = 4,
    channels: int = 4,
    rate: float = 400e9,
    slot: float = 20e-9,
    switching: float = 1e-9,
    latency: float = 100e-9,
) -> Ramp:
    """RAMP (Ottino, Benjamin, Zervas, 2022): groups × racks × channels nodes, 65,536 at most.

    A node has one transceiver of ``rate`` for each communication group; in a rack each node
    receives on a channel of its own. So two nodes have ``rate`` between them, and a node all
    of its rate only when it talks to all groups at once. Of each time ``slot``, ``switching`` is
    lost to tuning. Racks of a group beyond the number of groups would not be free of contention.
    """
    if racks > groups:
        raise BadInput(
            f"{spec}: {racks} racks in {groups} groups: expected no more racks than groups"
        )
    if switching >= slot:
        raise BadInput(
            f"{spec}: a slot of {slot:g} s leaves no time after tuning: expected switching < slot"
        )
    nodes = groups * racks * channels
    checked_nodes(spec, nodes)
    usable = rate * (1 - switching / slot)
    return Ramp(
        spec,
        usable * groups,
        np.arange(nodes) // (groups * channels) * groups
        + np.arange(nodes) % groups,
        links((2 * nodes * groups, usable)),
        np.full(2 * nodes * groups, latency / 2),
        {
            "tunable-transceiver-100g": nodes * groups * rate / 100e9,
            "coupler-port": 2 * nodes * groups,
        },
        Switching(slot, 0),
        groups=groups,
    )


def sip_ocs(
    spec: str,
    nodes: int = 64,
    ports: int = 8,
    rate: float = RATE,
    latency: float = LATENCY,
    switching: float = 25e-3,
) -> Ideal:
    """GPUs with ``ports`` light ways over as many OCSs (Khani et al., *SiP-ML*, SIGCOMM 2021).

    Whoever talks to one node gives it all its light; circuits of others are dark for ``switching``
    when those that are talked to change. Up to ``ports`` others at a time.
    """
    checked_nodes(spec, nodes)
    return Ideal(
        spec,
        rate,
        np.zeros(nodes, np.int64),
        links((2 * nodes, rate)),
        np.full(2 * nodes, latency / 2),
        {"transceiver-100g": nodes * rate / 100e9, "ocs-port": nodes * ports},
        Switching(switching, ports),
    )


def oddl(
    spec: str,
    nodes: int = 64,
    rate: float = RATE,
    latency: float = LATENCY,
    switching: float = 100e-9,
    channels: int = 0,
    scheduler: str = "collective",
    control: float = 0.0,
    setup: float = 100e-3,
) -> Ideal:
    """Tunable transceivers in a network that the wavelength switches isolate (W. Li et al., 2024).

    Our reading of the abstract: wavelength switches give a job a network of its own in ``setup``
    seconds; in it a node reaches one other at a time, tuning in ``switching``. Light of one channel
    goes to several receivers at a time if the channels are routed; then NICs are all that limits.
    With ``channels`` a job's nodes are joined by a coupler: each channel has one sender at
    a time. ``scheduler`` says whose turn it is, which takes ``control`` there and back.
    """
    checked_nodes(spec, nodes)
    if scheduler not in SCHEDULERS:
        raise BadInput(
            f"{spec}: scheduler={scheduler}: {nearest(scheduler, SCHEDULERS)}"
        )
    return Ideal(
        spec,
        rate,
        np.zeros(nodes, np.int64),
        links((2 * nodes, rate)),
        np.full(2 * nodes, latency / 2),
        {
            "tunable-transceiver-100g": nodes * rate / 100e9,
            "wss-port": 2 * nodes,
        },
        Switching(
            switching,
            1,
            channels=channels,
            scheduler=scheduler,
            control_s=control,
            setup_s=setup,
        ),
    )
