"""What a lab's fabric is made of: names, limits, loops. No kernel needed."""

from collections import Counter

import pytest

from patchlight.emulation.fabric.plan import (
    check_fabric,
    plan_fabric,
    switch_port_name,
    with_swapped,
)
from patchlight.testbed.errors import BadInput
from patchlight.testbed.generate import generate
from patchlight.testbed.labfile.reader import builtin_lab, load_lab, parse_lab

NIC_ON_SWITCH = """
name: small
network: 10.0.0.0/24
servers:
  - {name: a, gpus: [{name: gpu0, model: M}], nics: [
      {name: nic0, address: 10.0.0.1, rate: 40Gbps, gpu: gpu0},
      {name: nic1, address: 10.0.0.2, rate: 1Gbps}]}
packet_switches: [{name: tor1, datapath_id: 1, ports: 4}, {name: tor2, datapath_id: 2, ports: 4}]
fibres:
  - {ends: [a.nic0, tor1.3], rate: 10Gbps}
  - {ends: [tor1.4, tor2.4], rate: 100Gbps}
"""


def test_every_name_fits_the_kernel_and_no_two_are_the_same() -> None:
    lab = generate.tree(40)
    long = "a-switch-with-a-name-far-too-long-for-an-interface"
    assert len(switch_port_name(long, "300")) <= 15
    assert switch_port_name(long, "1") != switch_port_name(long + "2", "1")
    plan = plan_fabric(lab)
    ends = [end for cable in plan.cables for end in cable]
    assert all(len(end.name) <= 15 for end in ends)
    assert max(Counter((e.namespace, e.name) for e in ends).values()) == 1
    indexes = [(e.namespace, e.index) for e in ends] + [
        (plan.fabric, b.index) for b in plan.bridges
    ]
    assert max(Counter(indexes).values()) == 1


def test_a_link_is_limited_by_its_slowest_part_divided_by_the_scale() -> None:
    plan = plan_fabric(parse_lab(NIC_ON_SWITCH).with_changes(scale=1000.0))
    rates = {end.name: end.rate_bps for cable in plan.cables for end in cable}
    assert rates["nic0"] == rates["tor1-3"] == 10e6
    assert rates["tor1-4"] == rates["tor2-4"] == 100e6


def test_a_nic_without_a_fibre_is_there_and_dark() -> None:
    plan = plan_fabric(parse_lab(NIC_ON_SWITCH))
    (cable,) = [c for c in plan.cables if c[0].name == "nic1"]
    assert cable[0].up
    assert not cable[1].up
    assert cable[1].bridge is None


def test_a_loop_is_refused_where_switches_learn() -> None:
    with pytest.raises(BadInput, match="loop of packet switches"):
        check_fabric(generate.fat_tree(16), controller=False)
    check_fabric(generate.tree(40), controller=False)


def test_bridges_cannot_be_a_lab_with_an_optical_switch() -> None:
    with pytest.raises(BadInput, match="ocs1"):
        check_fabric(
            load_lab("ofc2022").with_changes(fabric="bridge"), controller=True
        )


def test_where_wavelengths_matter_one_namespace_passes_all_light_on() -> None:
    lab = load_lab("oddl4")
    plan = plan_fabric(lab)
    assert plan.namespaces[:2] == ("pl.oddl4.fabric", "pl.oddl4.light")
    assert len(plan.cables) == len(lab.fibres)
    names = [(near.name, far.name, far.namespace) for near, far in plan.cables]
    assert names[0] == ("nic0", "wss1-1", "pl.oddl4.light")
    assert names[4] == ("star1-1", "wss1-2", "pl.oddl4.light")
    with pytest.raises(BadInput, match="cannot be swapped"):
        with_swapped(plan, lab, [("wss1.1", "wss2.1")])


def test_channels_do_not_share_the_rate_of_a_receiver_unless_it_is_slower_than_they_are() -> (
    None
):
    lab = load_lab("oddl4")
    slow = "{ends: [server1.nic0, wss1.1], rate: 10Gbps}"
    text = builtin_lab("oddl4").read_text()
    mixed = text.replace(
        "server[1-4].nic0 - wss[1-4].1",
        f"server[2-4].nic0 - wss[2-4].1\n  - {slow}",
    )
    for chosen, limits in ((lab, {None}), (parse_lab(mixed), {None, 10e9})):
        ends = [end for cable in plan_fabric(chosen).cables for end in cable]
        assert all(end.rate_bps for end in ends if end.name == "nic0")
        assert {end.rate_bps for end in ends if end.name != "nic0"} == limits


@pytest.mark.parametrize("asks", ["delay: 1ms", "rate: 10Gbps"])
def test_a_fibre_that_no_frame_passes_by_itself_can_ask_for_little(
    asks: str,
) -> None:
    text = builtin_lab("oddl4").read_text()
    inner = "star1.[1-4] - wss[1-4].2"
    lab = parse_lab(
        text.replace(inner, f"{{ends: ['star1.[1-4]', 'wss[1-4].2'], {asks}}}")
    )
    with pytest.raises(
        BadInput, match=r"star1\.1 – wss1\.2 between two optical devices"
    ):
        plan_fabric(lab)
    fast = "{ends: ['star1.[1-4]', 'wss[1-4].2'], rate: 100Gbps}"
    plan_fabric(parse_lab(text.replace(inner, fast)))
