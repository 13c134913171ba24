"""What keeps a change from being made, and what halts it."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from patchlight.controller.changes.locks import Locks, StopButton
from patchlight.controller.changes.record import ChangeOptions, StepFailed, fingerprint
from patchlight.controller.circuits.contract import Outcome
from patchlight.controller.store import Store
from patchlight.testbed.errors import BadInput
from patchlight.testbed.portmap import CrossConnect, PortMap
from tests.support.change_bench import LAB, START, ChangeBench, joined


async def test_a_port_that_the_device_says_is_locked_or_failed_is_refused_before_writing(
    bench: ChangeBench,
) -> None:
    bench.device.fault(refuse_ports=[100], fail_ports=[101])
    for port, condition in ((100, "locked"), (101, "failed")):
        record = await bench.change(joined((port, 102)), "test")
        assert record.state == "refused"
        assert f"in:{port} is {condition}" in record.message
    assert await bench.driver.read_map() == START
    assert not bench.network.calls


async def test_a_locked_port_refuses_everybody_and_a_kept_one_others(bench: ChangeBench) -> None:
    locks, eva, bob = bench.parts.locks, ChangeOptions(by="eva"), ChangeOptions(by="bob")
    locks.lock("ocs1", [100], "locked", "eva", "cleaning it")
    locks.lock("ocs1", [110], "kept", "eva", "mine")
    refused = await bench.change(joined((100, 101)), "x", eva)
    assert refused.state == "refused"
    assert "ocs1.100 is locked by eva: cleaning it" in refused.message
    assert (await bench.change(joined((110, 111)), "x", bob)).state == "refused"
    done = await bench.change(joined((110, 111)), "x", eva)
    assert done.state == "committed", done.message
    with pytest.raises(BadInput, match=r"ocs1\.100 is locked by eva"):
        locks.lock("ocs1", [100], "locked", "bob", "me too")
    with pytest.raises(BadInput, match="ports 1–320"):
        locks.lock("ocs1", [321], "locked", "bob", "?")
    # Another controller on the same state finds them.
    assert [lock.port for lock in Locks(LAB, bench.store).all()] == [100, 110]
    locks.unlock("ocs1", [100], "bob", "clean")
    assert (await bench.change(joined((100, 101)), "x")).state == "committed"


async def test_power_above_the_ceiling_is_not_switched(bench: ChangeBench) -> None:
    # NICs launch 0 dBm and lose 0.3 dB on the way to the switch.
    record = await bench.restarted(power_ceiling_dbm=-1.0).change(joined((1, 100)), "test")
    assert record.state == "refused"
    assert "-0.3 dBm arrive at ocs1 in:1, more than the ceiling of -1 dBm" in record.message
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
    assert elsewhere.state == "committed", "nothing of the job's is touched there"


async def test_what_was_shown_must_still_be_true(bench: ChangeBench) -> None:
    plan, objections = await bench.transactions.preview(joined((100, 101)))
    assert [str(c) for c in plan.changes["ocs1"].makes] == ["100>101", "101>100"]
    assert (plan.changes["ocs1"].breaks, objections) == ((), [])
    await bench.driver.connect([*PortMap.of([(50, 51)])])
    options = ChangeOptions(planned_from=fingerprint(plan.before))
    record = await bench.change(joined((100, 101)), "test", options)
    assert record.state == "refused"
    assert "changed since the change was shown" in record.message


async def test_the_stop_button_halts_between_steps_and_refuses_until_cleared(
    bench: ChangeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    button, disconnect = bench.parts.stop, bench.driver.disconnect

    async def pressed_meanwhile(pairs: Sequence[CrossConnect]) -> Outcome:
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
    assert (await bench.restarted().change(joined((100, 101)), "x")).state == "refused"
    button.clear("bob", "only toast")
    assert (await bench.change(joined((100, 101)), "x")).state == "committed"
    kinds = [event["kind"] for event in bench.store.events()]
    assert kinds == ["stopped", "circuits", "circuits", "circuits", "stop-cleared", "circuits"]


def test_the_stop_button_is_pressed_from_another_process_on_the_same_journal(
    tmp_path: Path,
) -> None:
    here, there = (StopButton(Store(tmp_path / "state.db")) for _ in range(2))
    there.press("eva", "smoke")
    with pytest.raises(StepFailed, match="pressed by eva: smoke"):
        here.check()
    there.clear("eva", "")
    here.check()
