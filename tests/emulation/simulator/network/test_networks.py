"""Networks of a line of text: what they hold, and what is refused."""

import pickle

import numpy as np
import pytest

from patchlight.controller.prediction.framing import BARE
from patchlight.emulation.simulator.network.contract import NO_LINK
from patchlight.emulation.simulator.network.specs import NETWORKS, network_of

SPECS = [*NETWORKS, "two-tor-ocs", "fat-tree:k=16,taper=2", "torus:dims=3x5"]
SPECS += ["fat-tree:k=4,spread=packets"]


@pytest.mark.parametrize("spec", SPECS)
def test_every_pair_has_a_path_over_links_of_its_own_ends(spec: str) -> None:
    network = network_of(spec)
    nodes = min(network.nodes, 40)
    source, destination = (side.ravel() for side in np.indices((nodes, nodes)))
    apart = source != destination
    number = np.arange(apart.sum())
    paths = network.paths(
        source[apart], destination[apart], number, np.arange(network.nodes)
    )
    there = paths != NO_LINK
    assert there.any(axis=1).all()
    assert (
        0
        <= paths[there].min()
        <= paths[there].max()
        < len(network.capacity_bps)
    )
    assert (network.capacity_bps[paths[there]] > 0).all()
    assert len(network.latency_s) == len(network.capacity_bps)
    # Nothing that two sources send begins on the same link, and nothing ends on it.
    ends = [row[row != NO_LINK] for row in paths]
    first = {
        int(row[0]): int(s) for row, s in zip(ends, source[apart], strict=True)
    }
    assert all(
        first[int(row[0])] == s
        for row, s in zip(ends, source[apart], strict=True)
    )
    again = pickle.loads(pickle.dumps(network))
    assert (
        again.paths(
            source[apart], destination[apart], number, np.arange(network.nodes)
        )
        == paths
    ).all()


def test_sizes_and_rates() -> None:
    assert network_of("fat-tree:k=16").nodes == 1024
    assert network_of("fat-tree:k=64").nodes == 65_536
    assert network_of("ramp:groups=32,racks=32,channels=64").nodes == 65_536
    assert network_of(
        "ramp:groups=32,racks=32,channels=64"
    ).nic_bps == pytest.approx(12.16e12)
    assert network_of("torus:dims=4x4x4").nodes == 64
    assert network_of("lab:ofc2022").nodes == 6
    assert set(
        network_of("fat-tree:k=4,taper=2,rate=10Gbps").capacity_bps.tolist()
    ) == {10e9, 5e9}


def test_headers_and_acknowledgements() -> None:
    """Frames of 1,538 bytes around 1,448, and 90 bytes back for every two of them."""
    there, back = network_of("fat-tree:k=4,mtu=1500").framing
    assert (there, back) == (1538 / 1448, 90 / 2896)
    assert (
        network_of("fat-tree:k=4,mtu=9000,frame=14").framing.there
        == 9014 / 8948
    )
    assert (
        network_of("fat-tree:k=4").framing
        == network_of("lab:ofc2022,mtu=0").framing
        == BARE
    )
    assert (
        network_of("two-tor-ocs").framing
        == network_of("two-tor-ocs:mtu=1500").framing
        == (there, back)
    )
