"""Plans: the smallest change, and what may ride on the links meanwhile."""

import pytest

from patchlight.controller.changes.planning import plan, wanted_maps
from patchlight.controller.changes.power import Tolerances, expected_powers, judge
from patchlight.testbed.errors import BadInput
from patchlight.testbed.labfile.reader import builtin_lab, read_lab
from patchlight.testbed.portmap import CrossConnect, PortMap
from patchlight.testbed.wiring import trace_links

LAB = read_lab(builtin_lab("ofc2022"))
LOSS_DB = 1.5
START = LAB.initial_maps


def test_a_plan_touches_only_what_differs() -> None:
    wanted = wanted_maps(LAB, START, {"ocs1": PortMap.duplex([(3, 9)])}, {}, only=False)
    steps = plan(LAB, START, wanted)
    assert set(map(str, steps.changes["ocs1"].breaks)) == {"3>15", "15>3"}
    assert set(map(str, steps.changes["ocs1"].makes)) == {"3>9", "9>3"}
    assert {str(e) for e in steps.moved} == {"server2.nic2", "tor2.3", "tor1.3"}
    assert len(steps.links_staying.pairs()) == len(steps.links_before.pairs()) - 1


def test_nothing_to_change_is_an_empty_plan() -> None:
    assert not plan(LAB, START, START)
    assert not plan(LAB, START, {})


def test_only_replaces_the_map_and_dropping_frees_ports() -> None:
    only = wanted_maps(LAB, START, {"ocs1": PortMap.duplex([(1, 7)])}, {}, only=True)
    assert [str(c) for c in only["ocs1"]] == ["1>7", "7>1"]
    dropped = wanted_maps(LAB, START, {}, {"ocs1": [1]}, only=False)["ocs1"]
    assert len(dropped) == len(START["ocs1"]) - 2
    assert 1 not in dropped.out_of
    assert 1 not in dropped.in_of


def test_a_port_outside_the_switch_or_an_unknown_switch_is_bad_input() -> None:
    with pytest.raises(BadInput, match="outside 1–320"):
        plan(LAB, START, {"ocs1": PortMap.of([(1, 321)])})
    with pytest.raises(BadInput, match="no OCS called 'ocs9'"):
        wanted_maps(LAB, START, {"ocs9": PortMap()}, {}, only=False)


def test_expected_power_is_launch_power_less_the_losses_on_the_way() -> None:
    expected = expected_powers(LAB, trace_links(LAB, START))
    out = expected["ocs1", CrossConnect(1, 7)]
    # 0 dBm − 0.3 dB of fibre − 1.5 dB of insertion loss
    assert out.power_dbm == pytest.approx(-1.8)
    assert str(out.source) == "server1.nic0"
    assert str(expected["ocs1", CrossConnect(7, 1)].source) == "tor1.1"


def test_power_says_verified_degraded_unverified_or_failed() -> None:
    made = CrossConnect(1, 7)
    expected = expected_powers(LAB, trace_links(LAB, START))["ocs1", made]
    assert judge(expected, None, made, -0.3, -1.8, LOSS_DB) == ("ok", "")
    assert judge(expected, None, made, -0.3, -1.8 - 3.1, LOSS_DB).kind == "failed"
    assert judge(expected, -1.9, made, -0.3, -1.8 - 1.5, LOSS_DB).kind == "ok"
    degraded = judge(expected, -1.7, made, -0.3, -1.8 - 1.5, LOSS_DB)
    assert degraded.kind == "degraded"
    assert "1.6 dB less than it had before (-1.7 dBm)" in degraded.words
    assert judge(expected, -1.7, made, -0.3, -3.3, LOSS_DB, Tolerances(3.0, 2.0)).kind == "ok"
    assert judge(expected, -1.7, made, -0.3, -3.3, LOSS_DB, Tolerances(1.0, 2.0)).kind == "failed"
    dark = judge(expected, -1.8, made, -0.3, None, LOSS_DB)
    assert dark.kind == "failed"
    assert "no light at out:7" in dark.words
    assert judge(expected, -1.8, made, None, None, LOSS_DB).kind == "unverified"


def test_a_circuit_without_a_budget_is_judged_by_what_it_showed_before() -> None:
    made = CrossConnect(1, 7)
    assert judge(None, None, made, -0.3, -1.8, LOSS_DB).kind == "ok"
    assert judge(None, None, made, -0.3, -1.8 - 3.1, LOSS_DB).kind == "failed"
    assert judge(None, None, made, -0.3, None, LOSS_DB).kind == "failed"
    assert judge(None, None, made, None, None, LOSS_DB).kind == "unverified"
    assert judge(None, None, made, None, -1.8, LOSS_DB).kind == "unverified"
    assert judge(None, None, made, -58.0, -60.0, LOSS_DB).kind == "unverified"
    assert judge(None, -1.9, made, -0.3, -1.8, LOSS_DB).kind == "ok"
    assert judge(None, -1.9, made, -0.3, -4.0, LOSS_DB).kind == "degraded"
    assert judge(None, -1.9, made, -0.3, None, LOSS_DB).kind == "failed"
    assert judge(None, -1.9, made, None, None, LOSS_DB).kind == "unverified"
