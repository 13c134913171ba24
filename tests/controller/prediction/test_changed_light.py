"""What changes with circuits is followed anew, the rest kept: the same as looking at all of it."""

import random

import pytest

from patchlight.controller.prediction.network import LabNetwork
from patchlight.testbed.generate.generate import random_lab
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.wiring import trace_links
from patchlight.testbed.labfile.reader import load_lab

LABS = [load_lab("ofc2022"), load_lab("four-ocs"), random_lab(4, 16)]


def shuffled(
    maps: dict[str, PortMap], lab: Lab, rng: random.Random
) -> dict[str, PortMap]:
    """Some circuits gone, some inputs lit elsewhere, one way or both."""
    found = dict(maps)
    ocs = rng.choice(lab.circuit_switches).name
    ports = sorted(lab.circuit_fibres[ocs])
    out_of = dict(found.get(ocs, PortMap()).out_of)
    for _ in range(rng.randint(1, 4)):
        out_of.pop(rng.choice(ports), None)
    for _ in range(rng.randint(0, 4)):
        inp, out = rng.sample(ports, 2)
        for pair in [(inp, out), (out, inp)][: rng.randint(1, 2)]:
            out_of = {
                i: o
                for i, o in out_of.items()
                if i != pair[0] and o != pair[1]
            }
            out_of[pair[0]] = pair[1]
    found[ocs] = PortMap.of(out_of.items())
    return found


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name)
def test_links_and_network_after_any_change(lab: Lab) -> None:
    rng = random.Random(1)
    maps = lab.initial_maps
    links = trace_links(lab, maps)
    network = (
        LabNetwork(lab, links) if any(host.gpu for host in lab.hosts) else None
    )
    changed = 0
    for _ in range(40):
        maps = shuffled(maps, lab, rng)
        fresh = trace_links(lab, maps)
        before = links
        links, moved = links.after(maps)
        assert links.paths == fresh.paths
        assert links.pairs() == fresh.pairs()
        ends = before.paths.keys() | fresh.paths.keys()
        assert moved == {
            end
            for end in ends
            if before.paths.get(end) != fresh.paths.get(end)
        }
        changed += len(moved)
        if network is None:
            continue
        network = network.after(links, moved)
        whole = LabNetwork(lab, fresh)
        assert network.capacity_bps == whole.capacity_bps
        assert network.switches == whole.switches
        for _ in range(3):
            ring = rng.sample(
                range(len(network.hosts)), min(3, len(network.hosts))
            )
            assert network.demand(ring) == whole.demand(ring)
    assert changed
