"""Regrouping: each job under one ToR, few NICs moved, nobody left dark without need."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.policies.placement import consolidated
from controller.policies.regroup import CannotRegroup, regroup
from testbed.labfile import builtin_lab, read_lab
from testbed.portmap import PortMap
from testbed.wiring import follow_light

LAB = read_lab(builtin_lab("ofc2022"))
GPUS = [host.name for host in LAB.hosts]
FOUR = ["gpu0", "gpu2", "gpu4", "gpu5"]
TWO = ["gpu1", "gpu3"]


def switches_of(maps, names):
    links = follow_light(LAB, maps)
    return {links.switch_of(LAB, LAB.host(name).endpoint) for name in names}


def test_the_static_lab_spreads_each_job_over_both_tors():
    assert switches_of(LAB.initial_maps, FOUR) == {"tor1", "tor2"}
    assert switches_of(LAB.initial_maps, TWO) == {"tor1", "tor2"}


def test_regroup_brings_each_job_under_one_tor_and_apart():
    maps = regroup(LAB, LAB.initial_maps, [FOUR, TWO])
    (first,), (second,) = switches_of(maps, FOUR), switches_of(maps, TWO)
    assert {first, second} == {"tor1", "tor2"}


def test_regroup_moves_three_nics_and_touches_no_other_circuit():
    # Two of the four and one of the two are in the wrong place.
    change = LAB.initial_maps["ocs1"].diff(regroup(LAB, LAB.initial_maps, [FOUR, TWO])["ocs1"])
    assert len(change.breaks) == len(change.makes) == 6


def test_regroup_of_a_grouped_lab_changes_nothing():
    grouped = regroup(LAB, LAB.initial_maps, [FOUR, TWO])
    assert regroup(LAB, grouped, [FOUR, TWO]) == grouped


def test_all_six_fit_under_one_tor():
    assert len(switches_of(regroup(LAB, LAB.initial_maps, [GPUS]), GPUS)) == 1


def test_two_jobs_too_large_for_the_ports_are_refused():
    small = LAB.with_changes(
        fibres=tuple(f for f in LAB.fibres if f.b.port not in ("10", "11", "12", "16", "17", "18"))
    )
    dark = {"ocs1": PortMap()}
    with pytest.raises(CannotRegroup, match="4, 2 workers"):
        regroup(small, dark, [FOUR, TWO])


def test_a_displaced_nic_moves_aside_instead_of_going_dark():
    # tor1 keeps four OCS ports: bringing four NICs there pushes the stranger over to tor2.
    small = LAB.with_changes(fibres=tuple(f for f in LAB.fibres if f.b.port not in ("11", "12")))
    facing = [f for f in small.fibres if f.b.device == "ocs1" or f.a.device == "ocs1"]
    assert len(facing) == len(LAB.fibres) - 3
    start = {"ocs1": PortMap.duplex([(1, 7), (2, 8), (3, 9), (4, 10), (5, 13), (6, 14)])}
    maps = regroup(small, start, [["gpu0", "gpu1", "gpu2", "gpu4"]])
    links = follow_light(small, maps)
    lit = {h.name: links.switch_of(small, h.endpoint) for h in small.hosts}
    assert {lit[small.host(n).name] for n in ("gpu0", "gpu1", "gpu2", "gpu4")} == {"tor1"}
    assert None not in lit.values()


@given(st.permutations(GPUS), st.integers(1, 5))
def test_any_two_groups_end_up_whole_and_every_nic_stays_lit(order, split):
    groups = [order[:split], order[split:]]
    maps = regroup(LAB, LAB.initial_maps, groups)
    assert all(len(switches_of(maps, group)) == 1 for group in groups)
    assert None not in switches_of(maps, GPUS)


def test_consolidated_placement_prefers_one_switch():
    links = follow_light(LAB, LAB.initial_maps)
    chosen = consolidated(LAB, links, GPUS, 3, {"Tesla M40": 0.5, "Titan V": 0.17})
    assert len({links.switch_of(LAB, LAB.host(n).endpoint) for n in chosen}) == 1
    assert consolidated(LAB, links, GPUS, 3, {"Titan V": 0.17}) is None
    assert consolidated(LAB, links, GPUS[:2], 3, {"Tesla M40": 0.5, "Titan V": 0.17}) is None
