"""Light against what the same circuit showed before: told, and not undone."""

from patchlight.controller.changes.power_budget import Tolerances
from patchlight.controller.operations import CircuitOperations
from patchlight.testbed.portmap import PortMap
from tests.controller.changes.test_transaction import LAB, run


def joined(*pairs):
    return lambda maps: {"ocs1": maps["ocs1"].joined(PortMap.duplex(pairs))}


def only(*pairs):
    return lambda _: {"ocs1": PortMap.duplex(pairs)}


def row(light, text):
    return next(r for r in light["circuits"] if r["cross_connect"] == text)


def test_a_circuit_with_less_light_than_before_is_degraded_and_stands(tmp_path):
    async def test(it):
        plant = CircuitOperations(LAB, {"ocs1": it.driver}, it.network, it.network, it.store)
        change = plant.reconfigurer.change
        assert (await change(joined((1, 9)), "first")).notes == []
        light = await plant.light("ocs1")
        first = row(light, "1>9")
        assert first["baseline_dbm"] == first["out_dbm"]
        await change(joined((1, 7)), "away")
        # Two dB are within the budget, and more than the circuit may lose.
        it.device.fault(drift_db={"9": 2.0})
        record = await change(joined((1, 9)), "again")
        assert record.state == "committed"
        (remark,) = record.notes
        assert "ocs1: 1>9: degraded" in remark
        assert "2.0 dB less than it had before" in remark
        again = row(await plant.light("ocs1"), "1>9")
        assert again["verdict"] == "degraded"
        # What is degraded is no reading to go by; the one before still is.
        assert again["baseline_dbm"] == first["baseline_dbm"]
        tolerant = CircuitOperations(
            LAB, {"ocs1": it.driver}, it.network, it.network, it.store, 13.0, Tolerances(3.0, 2.5)
        )
        assert row(await tolerant.light("ocs1"), "1>9")["verdict"] == "ok"
        # An operator who knows why takes it for the baseline.
        assert (await plant.accept_light([], "eva"))["ocs1"] > 0
        assert row(await plant.light("ocs1"), "1>9")["verdict"] == "ok"
        event = it.store.events()[-1]
        assert (event["kind"], event["by"]) == ("baselines", "eva")

    run(tmp_path, test)


def test_the_baseline_is_the_median_of_the_last_readings_and_outlives_the_controller(tmp_path):
    async def test(it):
        lossy = [0.0, 0.2, 1.2, 0.1, 0.3]
        for loss in lossy:
            it.device.fault(drift_db={"9": loss})
            await it.reconfigurer.change(joined((1, 9)), "on")
            await it.reconfigurer.change(joined((1, 7)), "off")
        again = CircuitOperations(LAB, {"ocs1": it.driver}, it.network, it.network, it.store)
        await again.reconfigurer.change(joined((1, 9)), "on")
        readings = it.store.baselines("ocs1")["ocs1", 1, 9, "server1.nic0"]
        assert len(readings) == len(lossy) + 1
        found = row(await again.light("ocs1"), "1>9")
        assert found["baseline_dbm"] == round(sorted(readings)[2] / 2 + sorted(readings)[3] / 2, 2)

    run(tmp_path, test)


def test_a_change_that_is_rolled_back_leaves_no_readings(tmp_path):
    async def test(it):
        await it.reconfigurer.conditions.of("ocs1")
        it.device.fault(fail_ports=[9])
        assert (await it.reconfigurer.change(only((1, 8), (2, 9)), "x")).state == "rolled-back"
        assert it.store.baselines("ocs1") == {}

    run(tmp_path, test)
