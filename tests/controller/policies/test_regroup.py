"""Regrouping: each job under one ToR, few NICs moved, nobody left dark without need."""

from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchlight.controller.jobs.cluster_view import WiredLab
from patchlight.controller.policies.guard import Fault, GuardedTopology
from patchlight.controller.policies.topology import (
    CannotRegroup,
    Keep,
    Regroup,
    regroup,
)
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.wiring import trace_links
from patchlight.testbed.labfile.reader import builtin_lab, read_lab

Maps = Mapping[str, PortMap]
LAB = read_lab(builtin_lab("ofc2022"))
GPUS = [host.name for host in LAB.hosts]
FOUR = ["gpu0", "gpu2", "gpu4", "gpu5"]
TWO = ["gpu1", "gpu3"]


def switches_of(maps: Maps, names: Iterable[str]) -> set[str | None]:
    links = trace_links(LAB, maps)
    return {links.switch_of(LAB, LAB.host(name).endpoint) for name in names}


def test_the_static_lab_spreads_each_job_over_both_tors() -> None:
    assert switches_of(LAB.initial_maps, FOUR) == {"tor1", "tor2"}
    assert switches_of(LAB.initial_maps, TWO) == {"tor1", "tor2"}


def test_regroup_brings_each_job_under_one_tor_and_apart() -> None:
    maps = regroup(LAB, LAB.initial_maps, [FOUR, TWO])
    (first,) = switches_of(maps, FOUR)
    (second,) = switches_of(maps, TWO)
    assert {first, second} == {"tor1", "tor2"}


def test_regroup_moves_three_nics_and_touches_no_other_circuit() -> None:
    # Two of the four and one of the two are in the wrong place.
    change = LAB.initial_maps["ocs1"].diff(
        regroup(LAB, LAB.initial_maps, [FOUR, TWO])["ocs1"]
    )
    assert len(change.breaks) == len(change.makes) == 6


def test_regroup_of_a_grouped_lab_changes_nothing() -> None:
    grouped = regroup(LAB, LAB.initial_maps, [FOUR, TWO])
    assert regroup(LAB, grouped, [FOUR, TWO]) == grouped


def test_all_six_fit_under_one_tor() -> None:
    assert len(switches_of(regroup(LAB, LAB.initial_maps, [GPUS]), GPUS)) == 1


def test_two_jobs_too_large_for_the_ports_are_refused() -> None:
    small = LAB.with_changes(
        fibres=tuple(
            f
            for f in LAB.fibres
            if f.b.port not in ("10", "11", "12", "16", "17", "18")
        )
    )
    dark = {"ocs1": PortMap()}
    with pytest.raises(CannotRegroup, match="4, 2 workers"):
        regroup(small, dark, [FOUR, TWO])


def test_a_displaced_nic_moves_aside_instead_of_going_dark() -> None:
    # tor1 keeps four OCS ports: bringing four NICs there pushes the stranger over to tor2.
    small = LAB.with_changes(
        fibres=tuple(f for f in LAB.fibres if f.b.port not in ("11", "12"))
    )
    facing = [
        f for f in small.fibres if f.b.device == "ocs1" or f.a.device == "ocs1"
    ]
    assert len(facing) == len(LAB.fibres) - 3
    start = {
        "ocs1": PortMap.duplex(
            [(1, 7), (2, 8), (3, 9), (4, 10), (5, 13), (6, 14)]
        )
    }
    maps = regroup(small, start, [["gpu0", "gpu1", "gpu2", "gpu4"]])
    links = trace_links(small, maps)
    lit = {h.name: links.switch_of(small, h.endpoint) for h in small.hosts}
    assert {
        lit[small.host(n).name] for n in ("gpu0", "gpu1", "gpu2", "gpu4")
    } == {"tor1"}
    assert None not in lit.values()


def ports_of(*names: str) -> dict[str, list[int]]:
    """The OCS ports that these hosts are plugged into."""
    return {
        "ocs1": [
            int(LAB.fibre_ends[LAB.host(name).endpoint][0].port)
            for name in names
        ]
    }


def changed_ports(maps: Maps) -> frozenset[int]:
    return LAB.initial_maps["ocs1"].diff(maps["ocs1"]).ports


def test_locked_ports_are_planned_around() -> None:
    # The ToR ports that the plan would take are locked: it takes others.
    taken = changed_ports(regroup(LAB, LAB.initial_maps, [FOUR, TWO])) & set(
        range(7, 19)
    )
    free = [p for p in taken if p not in LAB.initial_maps["ocs1"].out_of]
    assert free
    maps = regroup(LAB, LAB.initial_maps, [FOUR, TWO], locked={"ocs1": free})
    assert not changed_ports(maps) & set(free)
    for group in (FOUR, TWO):
        assert len(switches_of(maps, group)) == 1


def test_a_nic_that_is_locked_stays_and_its_job_comes_to_it() -> None:
    for name in FOUR:
        (where,) = switches_of(LAB.initial_maps, [name])
        maps = regroup(
            LAB, LAB.initial_maps, [FOUR, TWO], locked=ports_of(name)
        )
        assert switches_of(maps, FOUR) == {where}
        assert not changed_ports(maps) & set(ports_of(name)["ocs1"])


def test_a_job_whose_locked_nics_are_under_different_switches_cannot_be_regrouped() -> (
    None
):
    apart = {
        min(n for n in FOUR if switches_of(LAB.initial_maps, [n]) == {t})
        for t in ("tor1", "tor2")
    }
    with pytest.raises(
        CannotRegroup, match="locked or failed ports cannot move"
    ):
        regroup(LAB, LAB.initial_maps, [FOUR], locked=ports_of(*apart))
    with pytest.raises(
        CannotRegroup,
        match=r"gpu0: ocs1\.\d+, of its NIC, is",
    ):
        regroup(LAB, {"ocs1": PortMap()}, [FOUR], locked=ports_of("gpu0"))


def test_a_nic_lit_through_a_failed_port_moves_to_another_of_the_same_switch() -> (
    None
):
    grouped = regroup(LAB, LAB.initial_maps, [FOUR, TWO])
    (port,) = ports_of("gpu0")["ocs1"]
    bad = grouped["ocs1"].out_of[port]
    maps = regroup(LAB, grouped, [FOUR, TWO], failed={"ocs1": [bad]})
    assert maps["ocs1"].out_of[port] != bad
    assert switches_of(maps, FOUR) == switches_of(grouped, FOUR)
    assert len(grouped["ocs1"].diff(maps["ocs1"]).makes) == 2


def test_the_guarded_policy_leads_a_circuit_away_from_a_failed_port_and_none_to_it() -> (
    None
):
    faults: list[Fault] = []
    policy = GuardedTopology(Regroup(), Keep(), "regroup", faults.append)
    grouped = regroup(LAB, LAB.initial_maps, [FOUR, TWO])
    (port,) = ports_of("gpu0")["ocs1"]
    bad = grouped["ocs1"].out_of[port]
    cluster = WiredLab(LAB, grouped)
    gpus = [
        [cluster.numbers[LAB.host(name).name] for name in group]
        for group in (FOUR, TWO)
    ]
    view = cluster.view(0.0, {}, failed={"ocs1": [bad]})
    maps = policy.circuits(view, gpus)
    assert maps == regroup(LAB, grouped, [FOUR, TWO], failed={"ocs1": [bad]})
    assert maps["ocs1"].out_of[port] != bad
    assert faults == []
    # Locked as well, it stays: nothing may be broken there.
    locked = cluster.view(
        0.0, {}, locked={"ocs1": [bad]}, failed={"ocs1": [bad]}
    )
    assert policy.circuits(locked, gpus) == {}
    assert faults == []


def test_a_nic_behind_a_circuit_switch_that_does_not_answer_is_named() -> None:
    with pytest.raises(CannotRegroup, match="the map of ocs1, of its NIC"):
        regroup(LAB, {}, [FOUR])


@given(
    st.permutations(GPUS),
    st.sets(st.integers(1, 18), max_size=6),
    st.integers(1, 5),
)
def test_whatever_is_locked_no_circuit_of_it_changes(
    order: list[str], locked: set[int], split: int
) -> None:
    groups = [order[:split], order[split:]]
    try:
        maps = regroup(LAB, LAB.initial_maps, groups, locked={"ocs1": locked})
    except CannotRegroup:
        return
    assert not changed_ports(maps) & locked
    assert all(len(switches_of(maps, group)) == 1 for group in groups)


@given(st.permutations(GPUS), st.integers(1, 5))
def test_any_two_groups_end_up_whole_and_every_nic_stays_lit(
    order: list[str], split: int
) -> None:
    groups = [order[:split], order[split:]]
    maps = regroup(LAB, LAB.initial_maps, groups)
    assert all(len(switches_of(maps, group)) == 1 for group in groups)
    assert None not in switches_of(maps, GPUS)
