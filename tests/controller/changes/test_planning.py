"""Plans over random labs and maps, against light that is followed step by step."""

import random
from ipaddress import IPv4Address

from hypothesis import given
from hypothesis import strategies as st

from patchlight.controller.changes.plan import plan_change
from patchlight.controller.changes.power import expected_powers
from patchlight.testbed.lab.model import (
    CircuitSwitch,
    Endpoint,
    Fibre,
    Lab,
    Nic,
    PacketSwitch,
    Server,
    default_mac,
)
from patchlight.testbed.lab.optical_links import Light
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.wiring import LightPath, trace_links

PORTS = 8
OCSES = ("o1", "o2", "o3")
NUMBERS = range(1, PORTS + 1)


def random_lab(rng: random.Random) -> Lab:
    """Three OCSs; fibres from anywhere to anywhere, also from an OCS to itself or another."""
    addresses = [IPv4Address("10.0.0.1") + n for n in range(8)]
    servers = [
        Server(f"s{n}", None, (), (Nic("n", address, default_mac(address)),))
        for n, address in enumerate(addresses)
    ]
    outer = [Endpoint(server.name, "n") for server in servers]
    outer += [Endpoint("t", str(number)) for number in NUMBERS]
    inner = [Endpoint(ocs, str(number)) for ocs in OCSES for number in NUMBERS]
    rng.shuffle(inner)
    ends = [*outer, *inner[:16]]
    rng.shuffle(ends)
    ends += inner[16:]
    pairs = list(zip(ends[::2], ends[1::2], strict=True))
    return Lab(
        name="random",
        servers=tuple(servers),
        packet_switches=(PacketSwitch("t", 1, PORTS),),
        circuit_switches=tuple(
            CircuitSwitch(name, "dry-run", "h:1", PORTS) for name in OCSES
        ),
        fibres=tuple(
            Fibre(a, b, rng.choice([None, 10, 25]), rng.choice([0.1, 0.3]))
            for a, b in rng.sample(pairs, rng.randint(12, len(pairs)))
        ),
    )


def random_map(rng: random.Random) -> PortMap:
    size = rng.randint(PORTS // 2, PORTS)
    if rng.random() < 0.5:
        pairs = iter(rng.sample(NUMBERS, PORTS - 2))
        return PortMap.duplex(zip(pairs, pairs, strict=True))
    return PortMap.of(
        zip(rng.sample(NUMBERS, size), rng.sample(NUMBERS, size), strict=True)
    )


def followed(lab: Lab, maps: dict[str, PortMap]) -> dict[Endpoint, LightPath]:
    """Every lightpath, one fibre and one cross-connect after the other."""
    paths = {}
    loss_db = {
        switch.name: switch.insertion_loss_db
        for switch in lab.circuit_switches
    }
    for source in lab.fibre_ends:
        if source.device in OCSES:
            continue
        at, fibre = lab.fibre_ends[source]
        fibres = [fibre]
        hops = []
        while at.device in OCSES:
            here = [c for c in maps[at.device] if c.inp == int(at.port)]
            if not here:
                break
            leaves = Endpoint(at.device, str(here[0].out))
            if leaves not in lab.fibre_ends:
                break
            hops.append((at.device, here[0]))
            at, fibre = lab.fibre_ends[leaves]
            fibres.append(fibre)
        else:
            lost_db = fibres[0].loss_db
            leaving_db = []
            for (ocs, _), each in zip(hops, fibres[1:], strict=True):
                leaving_db.append(lost_db + loss_db[ocs])
                lost_db = leaving_db[-1] + each.loss_db
            rate_bps = min(
                (f.rate_bps for f in fibres if f.rate_bps), default=None
            )
            passed = tuple(hops)
            path = LightPath(
                source,
                at,
                passed,
                rate_bps,
                lost_db,
                tuple(leaving_db),
                passed,
            )
            paths[source] = path
    return paths


@given(st.integers(0, 1 << 32))
def test_a_plan_knows_whose_light_moves_and_whose_stays(seed: int) -> None:
    rng = random.Random(seed)
    lab = random_lab(rng)
    before = {name: random_map(rng) for name in OCSES}
    wanted = {
        name: rng.choice(
            [
                random_map(rng),
                before[name].joined(PortMap.of([*random_map(rng)][:2])),
            ]
        )
        for name in rng.sample(OCSES, rng.randint(0, 3))
    }
    after = {**before, **wanted}
    steps = plan_change(lab, before, wanted)
    old = followed(lab, before)
    new = followed(lab, after)
    light = Light(lab, before)
    ends = (end for end in lab.fibre_ends if end.device not in OCSES)
    assert {
        end: path for end in ends if (path := light.path(end)) is not None
    } == old
    assert light.meetings == ()
    assert steps.links_before.paths == old
    assert steps.links_after.paths == new
    staying = {end: path for end, path in old.items() if new.get(end) == path}
    # Before their circuit is there, switches know of new NICs only where no frame can loop: their
    # port leads to no switch until then. On the way, everything breaks before anything is made.
    kept = {
        name: before[name].without(steps.changes[name].breaks)
        if name in steps.changes
        else before[name]
        for name in OCSES
    }
    half = {
        name: kept[name].joined(PortMap.of([*steps.changes[name].makes][:1]))
        if name in steps.changes
        else kept[name]
        for name in OCSES
    }
    for state in (kept, half):
        there = followed(lab, state)
        assert there.items() <= old.items() | new.items()
    leads = {e for e, p in old.items() if p.sink.device == "t"}
    early = {
        source: path
        for source, path in new.items()
        if path.sink in new
        and new[path.sink].sink == source
        and not leads
        & {end for end in (source, path.sink) if end.device == "t"}
        and (source.device == "t") != (path.sink.device == "t")
    }
    assert steps.links_prepared.paths == staying | early
    assert steps.moved == (old.keys() | new.keys()) - staying.keys()
    assert steps.changes == {
        n: d for n in OCSES if (d := before[n].diff(after[n]))
    }
    for links, paths in ((steps.links_before, old), (steps.links_after, new)):
        sinks = {source: path.sink for source, path in paths.items()}
        peers = {a: b for a, b in sinks.items() if sinks.get(b) == a}
        assert {
            end: links.peer(end) for end in lab.fibre_ends
        } == dict.fromkeys(lab.fibre_ends) | peers
        assert links.pairs() == tuple(
            sorted({(min(e), max(e)) for e in peers.items()})
        )
    whole = expected_powers(lab, steps.links_after)
    for name, change in steps.changes.items():
        made = expected_powers(lab, steps.links_after, (name, change.makes))
        for c in change.makes:
            assert made.get((name, c)) == whole.get((name, c))


def test_light_that_nobody_sends_goes_round_and_ends_nowhere() -> None:
    ring = Lab(
        name="ring",
        circuit_switches=(CircuitSwitch("o1", "dry-run", "h:1", PORTS),),
        fibres=(Fibre(Endpoint("o1", "1"), Endpoint("o1", "2")),),
    )
    for circuits in ([(1, 2)], [(2, 1)], [(1, 1), (2, 2)], [(1, 2), (2, 1)]):
        wanted = {"o1": PortMap.of(circuits)}
        assert (
            plan_change(ring, {"o1": PortMap()}, wanted).moved == frozenset()
        )
        assert trace_links(ring, wanted).pairs() == ()
