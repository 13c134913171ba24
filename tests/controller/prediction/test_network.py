"""Which links a ring uses in a lab, and their rates."""

from patchlight.controller.packet_switches.openflow.forwarding import Ways
from patchlight.controller.prediction.network import (
    LabNetwork,
    slowest_nic_bps,
)
from patchlight.testbed.generate.builder import LabBuilder
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.wiring import trace_links


def parallel(fibres: int, rates: tuple[str, ...] = ("10Gbps",)) -> Lab:
    """Two switches joined by so many fibres, eight hosts with a GPU at each."""
    build = LabBuilder("parallel")
    for switch in ("tor1", "tor2"):
        build.switch(switch)
        for number in range(8):
            host = build.server(
                f"{switch}-{number}", gpus=["A100"], rate="40Gbps"
            )
            build.fibre(host, switch, rate="40Gbps")
    for number in range(fibres):
        build.fibre("tor1", "tor2", rate=rates[number % len(rates)])
    return build.lab()


def test_a_ring_over_parallel_fibres_uses_those_that_its_frames_are_sent_by() -> (
    None
):
    lab = parallel(3, ("10Gbps", "20Gbps", "30Gbps"))
    links = trace_links(lab, {})
    network = LabNetwork(lab, links)
    ways = Ways(lab, links)
    rates = {
        key: rate
        for key, rate in network.capacity_bps.items()
        if key[0] == "tor1"  # type: ignore[index]
    }
    assert sorted(rates.values()) == [10e9, 20e9, 30e9]
    used = set()
    for receiver in range(8, 16):
        (end,) = ways.to_nic("tor1", network.hosts[receiver], "tor2") or ()
        there = ("tor1", "tor2", int(end.port))
        demand = network.demand([0, receiver])
        assert demand is not None
        assert demand[there] == 1
        assert not (rates.keys() - {there}) & demand.keys()
        used.add(there)
    assert len(used) > 1


def test_a_single_fibre_is_the_link_between_its_switches() -> None:
    lab = parallel(1)
    network = LabNetwork(lab, trace_links(lab, {}))
    assert (
        network.capacity_bps["tor1", "tor2"]
        == network.capacity_bps["tor2", "tor1"]
        == 10e9
    )
    demand = network.demand([0, 8, 1, 9])
    assert demand is not None
    assert (demand["tor1", "tor2"], demand["tor2", "tor1"]) == (2, 2)
    assert all(
        demand[gpu, way] == 1 for gpu in (0, 8, 1, 9) for way in ("up", "down")
    )
    assert network.demand([3]) == {}
    apart = parallel(0)
    assert LabNetwork(apart, trace_links(apart, {})).demand([0, 8]) is None


def test_a_nic_without_a_rate_is_as_fast_as_its_fibre() -> None:
    build = LabBuilder("plain")
    build.switch("tor1")
    for number, rate in enumerate(("40Gbps", "25Gbps")):
        host = build.server(f"server{number}", gpus=["A100"])
        build.fibre(host, "tor1", rate=rate)
    lab = build.lab()
    assert {host.nic.rate_bps for host in lab.hosts} == {None}
    assert slowest_nic_bps(lab) == 25e9
