from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st

from patchlight.controller.packet_switches.openflow.flowtable import (
    FlowTable,
    diff,
    removals_first,
)
from patchlight.controller.packet_switches.openflow.forwarding import (
    TABLE_MISS,
    Forwarding,
    Ways,
    flow_tables,
)
from patchlight.testbed.generate import generate
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
from patchlight.testbed.lab.wiring import Links, trace_links
from tests.support.fake_network import (
    FakeNetwork,
    Packet,
    Walk,
    arp_request,
    make_lab,
    solicitation,
    unicast,
)


@st.composite
def labs(draw: st.DrawFn) -> Lab:
    switches = draw(st.integers(1, 8))
    index = st.integers(0, switches - 1)
    trunks = draw(st.lists(st.tuples(index, index), max_size=16))
    hosts = draw(st.lists(index, min_size=2, max_size=8))
    cut = draw(st.frozensets(st.integers(0, len(trunks) + len(hosts) - 1)))
    lab = make_lab(trunks, hosts, cut)
    if not draw(st.booleans()):
        return lab
    # Addresses in another order than the hosts, and MACs that follow neither.
    places = draw(st.permutations(range(2 * len(hosts))))
    macs = draw(
        st.lists(
            st.integers(0, 63),
            min_size=len(hosts),
            max_size=len(hosts),
            unique=True,
        )
    )
    makers = draw(
        st.lists(
            st.sampled_from(["02:00:00", "0c:42:a1"]), min_size=8, max_size=8
        )
    )
    servers = tuple(
        replace(
            server,
            nics=(
                replace(
                    server.nics[0], address=lab.network[1 + place], mac=mac
                ),
            ),
        )
        for server, place, mac in zip(
            lab.servers,
            places,
            (
                f"{maker}:00:00:{mac:02x}"
                for maker, mac in zip(makers, macs, strict=False)
            ),
            strict=False,
        )
    )
    return lab.with_changes(servers=servers)


def check(lab: Lab, links: Links) -> int:
    """Every pair that light joins reach each other and no one else does; how many such pairs."""
    tables = flow_tables(lab, links)
    network = FakeNetwork(lab, links, tables)
    ways = Ways(lab, links)
    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from(switch.name for switch in lab.packet_switches)
    graph.add_edges_from(
        (a.device, b.device)
        for a, b in links.pairs()
        if a.device in graph and b.device in graph
    )
    reached = 0
    for sender in lab.hosts:
        for receiver in lab.hosts:
            start, end = (
                links.switch_of(lab, h.endpoint) for h in (sender, receiver)
            )
            joined = (
                start
                and end
                and sender != receiver
                and nx.has_path(graph, start, end)
            )
            for packet in (
                unicast(receiver),
                arp_request(receiver),
                solicitation(receiver),
            ):
                walk = network.send(sender, packet)
                assert walk.arrived == ((receiver.endpoint,) if joined else ())
                assert len(set(walk.switches)) == len(walk.switches), (
                    "a switch was met twice"
                )
                if start and end and sender != receiver:
                    told = ways.to_nic(start, receiver, end)
                    assert (told is not None) == joined
                    assert way_of(network, walk, packet) == (told or ())
                if joined and start and end:
                    shortest = nx.bidirectional_shortest_path(
                        graph, start, end
                    )
                    assert len(walk.switches) == len(shortest)
            reached += bool(joined)
        for packet in to_nobody(lab):
            walk = network.send(sender, packet)
            assert walk.arrived == ()
            assert len(set(walk.switches)) == len(walk.switches), (
                "a switch was met twice"
            )
    return reached


def way_of(
    network: FakeNetwork, walk: Walk, packet: Packet
) -> tuple[Endpoint, ...]:
    """The switch ports by which a packet went from its first switch to its last."""
    return tuple(
        Endpoint(switch, str(network.outputs(switch, 0, packet)[0]))
        for switch in walk.switches[:-1]
    )


def to_nobody(lab: Lab) -> Iterator[Packet]:
    """Packets to addresses beside those of the hosts that no host has."""
    addresses = {host.nic.address for host in lab.hosts}
    macs = {host.nic.mac for host in lab.hosts}
    for address in {
        near for a in addresses for near in (a - 1, a + 1)
    } - addresses:
        stranger = Nic("nic0", address, default_mac(address))
        nobody = Host(Server("nobody", None, (), (stranger,)), stranger, None)
        yield arp_request(nobody)
        if stranger.mac not in macs:
            yield unicast(nobody)
        if not any(mac.endswith(stranger.mac[8:]) for mac in macs):
            yield solicitation(nobody)


@given(labs(), st.data())
@settings(max_examples=60, deadline=None)
def test_all_that_light_joins_reach_each_other(
    lab: Lab, data: st.DataObject
) -> None:
    crossings = sorted(lab.initial_maps["ocs"], key=str)
    lit = (
        data.draw(st.lists(st.sampled_from(crossings), unique=True))
        if crossings
        else []
    )
    for maps in (
        {"ocs": lab.initial_maps["ocs"]},
        {"ocs": PortMap.of(lit)},
        {},
    ):
        check(lab, trace_links(lab, maps))


@given(labs(), st.data())
@settings(max_examples=50, deadline=None)
def test_tables_that_follow_the_light_are_those_worked_out_anew(
    lab: Lab, data: st.DataObject
) -> None:
    crossings = sorted(lab.initial_maps["ocs"], key=str)
    forwarding = Forwarding(lab)
    for _ in range(4):
        lit = (
            data.draw(st.lists(st.sampled_from(crossings), unique=True))
            if crossings
            else []
        )
        links = trace_links(lab, {"ocs": PortMap.of(lit)})
        assert forwarding.tables(links) == flow_tables(lab, links)


def test_other_switches_need_two_entries_for_all_hosts_of_a_switch() -> None:
    lab = generate.tree(1024)
    tables = flow_tables(lab, trace_links(lab, {}))
    leaves = len(lab.packet_switches) - 1
    assert len(tables["s1"]) == 1 + 2 * leaves
    assert {len(tables[s.name]) for s in lab.packet_switches[1:]} == {
        1 + 3 * 16 + 2 * (leaves - 1)
    }


def test_of_macs_that_end_alike_the_first_hears_solicitations() -> None:
    lab = make_lab([(0, 1)], [0, 0, 1])
    macs = dict(
        zip(
            lab.hosts,
            ("b8:59:9f:00:00:01", "0c:42:a1:00:00:01", "02:00:00:00:00:03"),
            strict=True,
        )
    )
    links = trace_links(lab, {})
    tables = Forwarding(lab, lambda host: macs[host]).tables(links)
    network = FakeNetwork(lab, links, tables)
    first, second, far = lab.hosts
    for host in (first, second):
        packet: Packet = {"eth_dst": macs[host], "eth_type": 0x86DD}
        assert network.send(far, packet).arrived == (host.endpoint,)
    asked: Packet = {"eth_dst": "33:33:ff:00:00:01", "eth_type": 0x86DD}
    assert network.send(far, asked).arrived == (first.endpoint,)


def test_in_a_large_lab_with_many_ways_destinations_are_switches() -> None:
    lab = generate.fat_tree(128)  # 80 switches, four hosts on each of 32
    tables = flow_tables(lab, trace_links(lab, {}))
    assert max(map(len, tables.values())) <= 1 + 2 * 32 + 3 * 4
    links = trace_links(lab, {})
    network = FakeNetwork(lab, links, tables)
    ways = Ways(lab, links)
    first = lab.hosts[0]
    start = links.switch_of(lab, first.endpoint)
    assert start is not None
    for receiver in lab.hosts[1:]:
        last = links.switch_of(lab, receiver.endpoint)
        assert last is not None
        for packet in (
            unicast(receiver),
            arp_request(receiver),
            solicitation(receiver),
        ):
            walk = network.send(first, packet)
            assert walk.arrived == (receiver.endpoint,)
            assert way_of(network, walk, packet) == ways.to_nic(
                start, receiver, last
            )
    up = [
        e.outputs
        for e in tables["s21"]
        if isinstance(e.match.get("eth_dst"), tuple)
    ]
    assert set(up) == {(5,), (6,), (7,), (8,)}, "every uplink is some switch's"


def fat_tree(k: int) -> Lab:
    """The k-ary fat tree of Al-Fares et al. (2008): k³/4 hosts, 5k²/4 switches."""
    half = k // 2
    core = half * half
    trunks = []
    edges = []
    for pod in range(k):
        base = core + pod * k
        for i in range(half):
            edges.append(base + half + i)
            trunks += [(base + i, i * half + j) for j in range(half)]
            trunks += [(base + half + i, base + j) for j in range(half)]
    return make_lab(trunks, [edge for edge in edges for _ in range(half)])


def test_a_fat_tree_with_its_many_loops() -> None:
    lab = fat_tree(4)
    assert (len(lab.hosts), len(lab.packet_switches)) == (16, 20)
    assert check(lab, trace_links(lab, {})) == 16 * 15


def test_destinations_are_spread_over_equal_links_and_stay_there() -> None:
    lab = make_lab([(0, 1)] * 4, [0] + [1] * 40)
    table = flow_tables(lab, trace_links(lab, {}))["sw0"]
    ports = {
        e.match["eth_dst"]: e.outputs[0] for e in table if "eth_dst" in e.match
    }
    towards = [ports[host.nic.mac] for host in lab.hosts[1:]]
    assert all(towards.count(port) >= 4 for port in (1, 2, 3, 4))
    # A link less: only what went over it moves.
    fewer = lab.with_changes(
        fibres=tuple(f for f in lab.fibres if str(f.a) != "sw0.2")
    )
    table = flow_tables(fewer, trace_links(fewer, {}))["sw0"]
    later = {
        e.match["eth_dst"]: e.outputs[0] for e in table if "eth_dst" in e.match
    }
    assert {mac for mac in ports if later[mac] != ports[mac]} == {
        mac for mac, port in ports.items() if port == 2
    }


def two_tors() -> Lab:
    """Two NICs behind an OCS (ports 1, 2), which leads to tor1 (11, 12) and tor2 (13)."""
    nics = [
        Server(f"h{i}", None, (), (Nic("nic0", a, default_mac(a)),))
        for i, a in enumerate(
            [IPv4Address("10.0.0.1"), IPv4Address("10.0.0.2")]
        )
    ]
    fibres = [
        Fibre(Endpoint("h0", "nic0"), Endpoint("ocs", "1")),
        Fibre(Endpoint("h1", "nic0"), Endpoint("ocs", "2")),
        Fibre(Endpoint("ocs", "11"), Endpoint("tor1", "1")),
        Fibre(Endpoint("ocs", "12"), Endpoint("tor1", "2")),
        Fibre(Endpoint("ocs", "13"), Endpoint("tor2", "1")),
        Fibre(Endpoint("tor1", "9"), Endpoint("tor2", "9")),
    ]
    switches = (PacketSwitch("tor1", 1, 9), PacketSwitch("tor2", 2, 9))
    ocs = CircuitSwitch("ocs", "none", "", 16)
    return Lab(
        "test",
        IPv4Network("10.0.0.0/24"),
        tuple(nics),
        switches,
        (ocs,),
        tuple(fibres),
    )


def tables_with(
    lab: Lab, pairs: list[tuple[int, int]]
) -> dict[str, FlowTable]:
    return flow_tables(lab, trace_links(lab, {"ocs": PortMap.duplex(pairs)}))


def outputs(
    tables: dict[str, FlowTable], switch: str, host: Host
) -> tuple[int, ...]:
    return next(
        e.outputs
        for e in tables[switch]
        if e.match.get("eth_dst") == host.nic.mac
    )


def test_flows_follow_the_light() -> None:
    lab = two_tors()
    h1 = lab.host("h1")
    apart = tables_with(lab, [(1, 11), (2, 13)])
    assert outputs(apart, "tor1", h1) == (9,)
    assert outputs(apart, "tor2", h1) == (1,)
    together = tables_with(lab, [(1, 11), (2, 12)])
    assert outputs(together, "tor1", h1) == (2,)
    assert outputs(together, "tor2", h1) == (9,)


def test_what_is_dark_or_lit_one_way_has_no_entry() -> None:
    lab = two_tors()
    dark = tables_with(lab, [(1, 11)])
    one_way = flow_tables(
        lab, trace_links(lab, {"ocs": PortMap.of([(1, 11), (11, 1), (2, 13)])})
    )
    assert dark == one_way
    assert len(dark["tor1"]) == len(dark["tor2"]) == 4
    assert all(TABLE_MISS in table for table in dark.values())
    # NIC to NIC, no packet switch between: nothing for a packet switch to do.
    assert set(tables_with(lab, [(1, 2)])["tor1"]) == {TABLE_MISS}


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_no_packet_meets_a_switch_twice_while_flows_change(
    data: st.DataObject,
) -> None:
    """At any moment of going from one wiring to another, whichever messages have arrived."""
    size = data.draw(st.integers(3, 5))
    # A ring, cut in another place: frames between the two cuts go the other way. Its links are
    # double, for over a single one a switch never sends back what came from there.
    trunks = [(i // 2, (i // 2 + 1) % size) for i in range(2 * size)]
    lab = make_lab(trunks, range(size), frozenset(range(2 * size)))
    lit = [(2 * i + 1, 2 * i + 2) for i in range(2 * size)]
    cuts = [data.draw(st.integers(0, size - 1)) for _ in range(2)]
    old, new = (
        flow_tables(
            lab,
            trace_links(
                lab,
                {"ocs": PortMap.duplex(lit[: 2 * cut] + lit[2 * cut + 2 :])},
            ),
        )
        for cut in cuts
    )
    links = trace_links(lab, lab.initial_maps)
    names = dict(enumerate(old))
    have = {i: old[name] for i, name in names.items()}
    changes = {i: diff(have[i], new[name]) for i, name in names.items()}
    first = removals_first(have, changes)
    adding = data.draw(st.booleans())
    luck = data.draw(st.randoms(use_true_random=False))
    now = {}
    for i, name in names.items():
        entries = have[i].by_key()
        for gone in first.get(i, ()):
            if adding or luck.random() < 0.5:
                del entries[gone.key]
        for entry in changes[i].adds:
            if adding and luck.random() < 0.5:
                entries[entry.key] = entry
        now[name] = FlowTable.of(entries.values())
    network = FakeNetwork(lab, links, now)
    for sender in lab.hosts:
        for receiver in lab.hosts:
            walk = network.send(sender, unicast(receiver))
            assert len(set(walk.switches)) == len(walk.switches)
