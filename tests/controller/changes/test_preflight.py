"""What a change is planned to be, what keeps it from being made, and what halts it."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from patchlight.controller.changes.plan import plan_change
from patchlight.controller.changes.power import (
    Tolerances,
    expected_powers,
    judge,
)
from patchlight.controller.changes.preflight import EmergencyStop, PortLocks
from patchlight.controller.changes.record import (
    ChangeOptions,
    StepFailed,
    fingerprint,
    wanted_maps,
)
from patchlight.controller.circuits.contract import DirectedPort, Outcome
from patchlight.controller.storage.store import Store
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Endpoint
from patchlight.testbed.lab.portmap import CrossConnect, PortMap
from patchlight.testbed.lab.wiring import trace_links
from tests.support.change_bench import LAB, START, ChangeBench, joined

LOSS_DB = 1.5
MAPS = LAB.initial_maps


def test_a_plan_touches_only_what_differs() -> None:
    wanted = wanted_maps(
        LAB, MAPS, {"ocs1": PortMap.duplex([(3, 9)])}, {}, only=False
    )
    steps = plan_change(LAB, MAPS, wanted)
    assert set(map(str, steps.changes["ocs1"].breaks)) == {"3>15", "15>3"}
    assert set(map(str, steps.changes["ocs1"].makes)) == {"3>9", "9>3"}
    assert {str(e) for e in steps.moved} == {
        "server2.nic2",
        "tor2.3",
        "tor1.3",
    }
    assert (
        steps.links_prepared.pairs()
        == steps.links_after.pairs()
        != steps.links_before.pairs()
    )


def test_nothing_to_change_is_an_empty_plan() -> None:
    assert not plan_change(LAB, MAPS, MAPS)
    assert not plan_change(LAB, MAPS, {})


def test_only_replaces_the_map_and_dropping_frees_ports() -> None:
    only = wanted_maps(
        LAB, MAPS, {"ocs1": PortMap.duplex([(1, 7)])}, {}, only=True
    )
    assert [str(c) for c in only["ocs1"]] == ["1>7", "7>1"]
    dropped = wanted_maps(LAB, MAPS, {}, {"ocs1": [1]}, only=False)["ocs1"]
    assert len(dropped) == len(MAPS["ocs1"]) - 2
    assert 1 not in dropped.out_of
    assert 1 not in dropped.in_of


def test_a_port_outside_the_switch_or_an_unknown_switch_is_bad_input() -> None:
    with pytest.raises(BadInput, match="outside 1–320"):
        plan_change(LAB, MAPS, {"ocs1": PortMap.of([(1, 321)])})
    with pytest.raises(BadInput, match="no OCS called 'ocs9'"):
        wanted_maps(LAB, MAPS, {"ocs9": PortMap()}, {}, only=False)


def test_expected_power_is_launch_power_less_the_losses_on_the_way() -> None:
    expected = expected_powers(LAB, trace_links(LAB, MAPS))
    out = expected["ocs1", CrossConnect(1, 7)]
    # 0 dBm − 0.3 dB of fibre − 1.5 dB of insertion loss
    assert out.power_dbm == pytest.approx(-1.8)
    assert str(out.source) == "server1.nic0"
    assert str(expected["ocs1", CrossConnect(7, 1)].source) == "tor1.1"


def test_power_says_verified_degraded_unverified_or_failed() -> None:
    made = CrossConnect(1, 7)
    expected = expected_powers(LAB, trace_links(LAB, MAPS))["ocs1", made]
    assert judge(expected, None, made, -0.3, -1.8, LOSS_DB) == ("ok", "")
    assert (
        judge(expected, None, made, -0.3, -1.8 - 3.1, LOSS_DB).kind == "failed"
    )
    assert judge(expected, -1.9, made, -0.3, -1.8 - 1.5, LOSS_DB).kind == "ok"
    degraded = judge(expected, -1.7, made, -0.3, -1.8 - 1.5, LOSS_DB)
    assert degraded.kind == "degraded"
    assert "1.6 dB less than before (-1.7 dBm)" in degraded.words
    assert (
        judge(
            expected, -1.7, made, -0.3, -3.3, LOSS_DB, Tolerances(3.0, 2.0)
        ).kind
        == "ok"
    )
    assert (
        judge(
            expected, -1.7, made, -0.3, -3.3, LOSS_DB, Tolerances(1.0, 2.0)
        ).kind
        == "failed"
    )
    dark = judge(expected, -1.8, made, -0.3, None, LOSS_DB)
    assert dark.kind == "failed"
    assert "no power at out:7" in dark.words
    assert (
        judge(expected, -1.8, made, None, None, LOSS_DB).kind == "unverified"
    )


def test_a_circuit_without_a_budget_is_judged_by_what_it_showed_before() -> (
    None
):
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


async def test_a_port_that_the_device_says_is_locked_or_failed_is_refused_before_writing(
    bench: ChangeBench,
) -> None:
    bench.device.fault(refuse_ports=[100], fail_ports=[101])
    for port, condition in ((100, "locked"), (101, "failed")):
        record = await bench.change(joined((port, 102)), "test")
        assert record.state == "refused"
        assert f"in:{port} as {condition}" in record.message
    assert await bench.driver.read_map() == START
    assert not bench.network.calls


async def test_a_locked_port_refuses_everybody_and_a_kept_one_others(
    bench: ChangeBench,
) -> None:
    locks = bench.parts.locks
    eva = ChangeOptions(by="eva")
    bob = ChangeOptions(by="bob")
    locks.lock("ocs1", [100], "locked", "eva", "cleaning it")
    locks.lock("ocs1", [110], "kept", "eva", "mine")
    refused = await bench.change(joined((100, 101)), "x", eva)
    assert refused.state == "refused"
    assert "ocs1.100 is locked by eva: cleaning it" in refused.message
    assert (
        await bench.change(joined((110, 111)), "x", bob)
    ).state == "refused"
    done = await bench.change(joined((110, 111)), "x", eva)
    assert done.state == "committed", done.message
    with pytest.raises(BadInput, match=r"ocs1\.100 is locked by eva"):
        locks.lock("ocs1", [100], "locked", "bob", "me too")
    with pytest.raises(BadInput, match="ports 1–320"):
        locks.lock("ocs1", [321], "locked", "bob", "?")
    # Another controller on the same state finds them.
    assert [lock.port for lock in PortLocks(LAB, bench.store).all()] == [
        100,
        110,
    ]
    locks.unlock("ocs1", [100], "bob", "clean")
    assert (await bench.change(joined((100, 101)), "x")).state == "committed"


async def test_power_above_the_ceiling_is_not_switched(
    bench: ChangeBench,
) -> None:
    # NICs launch 0 dBm and lose 0.3 dB on the way to the switch.
    record = await bench.restarted(power_ceiling_dbm=-1.0).change(
        joined((1, 100)), "test"
    )
    assert record.state == "refused"
    assert (
        "-0.3 dBm arrive at ocs1 in:1, above the ceiling of -1 dBm"
        in record.message
    )
    assert await bench.driver.read_map() == START


async def test_a_change_that_was_to_spare_jobs_is_refused_where_one_rides(
    bench: ChangeBench,
) -> None:
    bench.network.jobs = ["train-1"]
    spare = ChangeOptions(spare_jobs=True)
    record = await bench.change(joined((1, 100)), "test", spare)
    assert record.state == "refused"
    assert "train-1" in record.message
    elsewhere = await bench.change(joined((100, 101)), "test", spare)
    assert elsewhere.state == "committed", (
        "nothing of the job's is touched there"
    )


async def test_what_was_shown_must_still_be_true(bench: ChangeBench) -> None:
    plan, objections = await bench.transactions.preview(joined((100, 101)))
    assert [str(c) for c in plan.changes["ocs1"].makes] == [
        "100>101",
        "101>100",
    ]
    assert (plan.changes["ocs1"].breaks, objections) == ((), [])
    await bench.driver.connect([*PortMap.of([(50, 51)])])
    options = ChangeOptions(planned_from=fingerprint(plan.before))
    record = await bench.change(joined((100, 101)), "test", options)
    assert record.state == "refused"
    assert "changed since the preview" in record.message


async def test_the_stop_button_halts_between_steps_and_refuses_until_cleared(
    bench: ChangeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    button = bench.parts.stop
    disconnect = bench.driver.disconnect

    async def pressed_meanwhile(
        pairs: Sequence[CrossConnect],
    ) -> Outcome[CrossConnect]:
        outcome = await disconnect(pairs)
        if not button.pressed:
            button.press("eva", "smoke")
        return outcome

    monkeypatch.setattr(bench.driver, "disconnect", pressed_meanwhile)
    record = await bench.regroup()
    assert record.state == "rolled-back"
    assert "the stop button was pressed by eva: smoke" in record.message
    assert await bench.driver.read_map() == START
    assert (await bench.change(joined((100, 101)), "x")).state == "refused"
    assert (
        await bench.restarted().change(joined((100, 101)), "x")
    ).state == "refused"
    button.clear("bob", "only toast")
    assert (await bench.change(joined((100, 101)), "x")).state == "committed"
    kinds = [event["kind"] for event in bench.store.events()]
    assert kinds == [
        "stopped",
        "circuits",
        "circuits",
        "circuits",
        "stop-cleared",
        "circuits",
    ]


def test_the_stop_button_is_pressed_from_another_process_on_the_same_journal(
    tmp_path: Path,
) -> None:
    here, there = (
        EmergencyStop(Store(tmp_path / "state.db")) for _ in range(2)
    )
    there.press("eva", "smoke")
    with pytest.raises(StepFailed, match="pressed by eva: smoke"):
        here.check()
    there.clear("eva", "")
    here.check()


async def test_input_power_from_another_optical_switch_is_read_again_after_the_change(
    bench: ChangeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = CrossConnect(1, 100)
    wanted = wanted_maps(
        LAB, MAPS, {"ocs1": PortMap.of([made])}, {}, only=False
    )
    plan = plan_change(LAB, MAPS, wanted)
    checks = bench.parts.preflight
    end = Endpoint("ocs1", "1")
    read = (await checks.check(plan, ChangeOptions("bob"))).arriving_dbm[
        "ocs1"
    ]
    assert DirectedPort("in", 1) in read
    fibre = LAB.fibre_ends[end][1]
    ends = {**LAB.fibre_ends, end: (Endpoint("ocs1", "200"), fibre)}
    monkeypatch.setitem(vars(LAB), "fibre_ends", ends)
    read = (await checks.check(plan, ChangeOptions("bob"))).arriving_dbm[
        "ocs1"
    ]
    assert DirectedPort("in", 1) not in read
