"""What operators ask for: drift told, adopted or repaired; undoing; and power against before."""

import pytest

from patchlight.controller.changes.device_maps import CommittedMaps, Drift
from patchlight.controller.changes.device_watch import power_report
from patchlight.controller.changes.power import PortReading, Tolerances
from patchlight.controller.changes.record import ChangeOptions, Refused
from patchlight.controller.changes.wanted import undoing
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.wire.rest.circuits import ChangeAnswer
from patchlight.testbed.wire.rest.requests import (
    BaselinesRequest,
    RepairRequest,
)
from tests.support.change_bench import START, ChangeBench, CircuitsOf, joined

EVA = ChangeOptions(by="eva")


async def reading(bench: CircuitsOf, text: str) -> PortReading:
    report = await power_report(
        bench.parts, "ocs1", await bench.parts.maps.read()
    )
    return next(
        reading
        for reading in report.readings
        if str(reading.cross_connect) == text
    )


async def test_drift_is_told_and_adopted_or_repaired_only_when_asked(
    bench: ChangeBench,
) -> None:
    await bench.watch.begin()
    assert not bench.store.events()
    await bench.driver.disconnect([*PortMap.duplex([(1, 7)])])
    await bench.driver.connect([*PortMap.of([(50, 51)])])
    again = bench.restarted()
    await again.watch.begin()
    (event,) = bench.store.events()
    assert event["kind"] == "drift"
    assert (event["missing"], event["unknown"]) == (["1>7", "7>1"], ["50>51"])
    # A change of other ports adopts nothing of it.
    await again.change(joined((100, 101)), "test")
    assert (await again.service.drift()).drift["ocs1"].unknown == ["50>51"]
    repaired = await again.service.repair(RepairRequest(), EVA)
    assert isinstance(repaired, ChangeAnswer)
    assert repaired.why == "repairs drift"
    assert await bench.driver.read_map() == START.joined(
        PortMap.duplex([(100, 101)])
    )
    assert (await again.transactions.drift())["ocs1"] == Drift((), ())
    await bench.driver.connect([*PortMap.of([(50, 51)])])
    present = await again.parts.maps.read()
    record = await again.change(
        lambda _: {}, "adopt", ChangeOptions(adopts=present)
    )
    assert (record.state, record.adopted) == ("committed", ["ocs1"])
    assert not (await again.service.drift()).drift["ocs1"].unknown
    # And a third controller finds it adopted.
    assert not (await bench.restarted().service.drift()).drift["ocs1"].unknown


async def test_undoing_a_change_undoes_that_one_and_refuses_where_others_built_on_it(
    bench: ChangeBench,
) -> None:
    first = await bench.change(joined((1, 100)), "first")
    await bench.change(joined((50, 51)), "second")
    decide, adopts = undoing(bench.parts, first.id)
    record = await bench.change(decide, "undo", ChangeOptions(adopts=adopts))
    assert record.state == "committed"
    assert await bench.driver.read_map() == START.joined(
        PortMap.duplex([(50, 51)])
    )
    third = await bench.change(joined((2, 100)), "third")
    await bench.change(joined((100, 120)), "fourth")
    with pytest.raises(Refused, match=r"2>100 is gone"):
        await bench.change(undoing(bench.parts, third.id)[0], "undo")
    with pytest.raises(BadInput, match="unknown change 99"):
        undoing(bench.parts, 99)


async def test_repairing_a_switch_that_was_never_seen_is_refused_in_words(
    bench: ChangeBench,
) -> None:
    assert not CommittedMaps(bench.store).maps
    with pytest.raises(Refused, match="has never read it"):
        await bench.service.repair(RepairRequest(ocs=["ocs1"]), EVA)
    assert not (await bench.service.repair(RepairRequest(), EVA)).changes


async def test_a_circuit_with_less_power_than_before_is_degraded_and_stands(
    bench: ChangeBench,
) -> None:
    assert (await bench.change(joined((1, 9)), "first")).notes == []
    first = await reading(bench, "1>9")
    assert first.baseline_dbm == first.out_dbm
    await bench.change(joined((1, 7)), "away")
    # Two dB are within the budget, and more than the circuit may lose.
    bench.device.fault(drift_db={"9": 2.0})
    record = await bench.change(joined((1, 9)), "again")
    assert record.state == "committed"
    (remark,) = record.notes
    assert "ocs1: 1>9: degraded" in remark
    assert "2.0 dB less than before" in remark
    again = await reading(bench, "1>9")
    assert again.verdict.kind == "degraded"
    # What is degraded is no reading to go by; the one before still is.
    assert again.baseline_dbm == first.baseline_dbm
    tolerant = bench.restarted(tolerances=Tolerances(3.0, 2.5))
    assert (await reading(tolerant, "1>9")).verdict.kind == "ok"
    # An operator who knows why takes it for the baseline.
    accepted = await bench.service.accept_power(BaselinesRequest(), EVA)
    assert accepted.circuits["ocs1"] > 0
    assert (await reading(bench, "1>9")).verdict.kind == "ok"
    event = bench.store.events()[-1]
    assert (event["kind"], event["by"]) == ("baselines", "eva")


async def test_the_baseline_is_the_median_of_the_last_readings_and_outlives_the_controller(
    bench: ChangeBench,
) -> None:
    losses_db = [0.0, 0.2, 1.2, 0.1, 0.3]
    for loss_db in losses_db:
        bench.device.fault(drift_db={"9": loss_db})
        await bench.change(joined((1, 9)), "on")
        await bench.change(joined((1, 7)), "off")
    again = bench.restarted()
    await again.change(joined((1, 9)), "on")
    readings = bench.store.baselines("ocs1")["ocs1", 1, 9, "server1.nic0"]
    assert len(readings) == len(losses_db) + 1
    middle = sorted(readings)[2:4]
    now = await reading(again, "1>9")
    assert now.baseline_dbm == round(middle[0] / 2 + middle[1] / 2, 2)


async def test_a_change_that_was_shown_is_not_planned_again(
    bench: ChangeBench,
) -> None:
    maps = bench.parts.maps
    shown = maps.plan(await maps.read(), joined((1, 100)))
    assert maps.plan(await maps.read(), joined((1, 100))) is shown
    assert (
        maps.plan(await maps.read(), joined((2, 100))).wanted != shown.wanted
    )
    await bench.change(joined((1, 100)), "as shown")
    assert not maps.plan(await maps.read(), joined((1, 100)))
