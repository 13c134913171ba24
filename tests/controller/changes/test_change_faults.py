"""What keeps a change from being made, what halts it, and what is remembered of it."""

import asyncio
from dataclasses import replace

import pytest

from patchlight.controller.changes.committed_maps import Drift
from patchlight.controller.changes.locks import Locks, StopButton
from patchlight.controller.changes.record import ChangeOptions, Refused, StepFailed
from patchlight.controller.circuits.registry import open_driver
from patchlight.controller.operations import CircuitOperations
from patchlight.controller.store import Store
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab import CircuitSwitch, Endpoint, Fibre
from patchlight.testbed.labfile.reader import builtin_lab, read_lab
from patchlight.testbed.portmap import PortMap
from tests.controller.changes.test_transaction import LAB, run
from tests.support.ocs_faults import Nobody, campaign

START = LAB.initial_maps["ocs1"]


def duplex(*pairs):
    return lambda maps: {"ocs1": maps["ocs1"].joined(PortMap.duplex(pairs))}


def test_a_port_that_the_device_says_is_locked_or_failed_is_refused_before_writing(tmp_path):
    async def test(it):
        it.device.fault(refuse_ports=[100], fail_ports=[101])
        for port, word in ((100, "locked"), (101, "failed")):
            record = await it.reconfigurer.change(duplex((port, 102)), "test")
            assert record.state == "refused"
            assert f"in:{port} is {word}" in record.message
        assert await it.driver.read_map() == START
        assert not it.network.told

    run(tmp_path, test)


def test_a_locked_port_refuses_everybody_and_a_kept_one_others(tmp_path):
    async def test(it):
        locks = it.reconfigurer.locks
        locks.lock("ocs1", [100], "locked", "eva", "cleaning it")
        locks.lock("ocs1", [110], "kept", "eva", "mine")
        refused = await it.reconfigurer.change(duplex((100, 101)), "x", ChangeOptions(by="eva"))
        assert refused.state == "refused"
        assert "ocs1.100 is locked by eva: cleaning it" in refused.message
        assert (
            await it.reconfigurer.change(duplex((110, 111)), "x", ChangeOptions(by="bob"))
        ).state == ("refused")
        done = await it.reconfigurer.change(duplex((110, 111)), "x", ChangeOptions(by="eva"))
        assert done.state == "committed", done.message
        with pytest.raises(BadInput, match=r"ocs1\.100 is locked by eva"):
            locks.lock("ocs1", [100], "locked", "bob", "me too")
        with pytest.raises(BadInput, match="ports 1–320"):
            locks.lock("ocs1", [321], "locked", "bob", "?")
        # Another controller on the same state finds them.
        assert [lock.port for lock in Locks(LAB, it.store).all()] == [100, 110]
        locks.unlock("ocs1", [100], "bob", "clean")
        assert (await it.reconfigurer.change(duplex((100, 101)), "x")).state == "committed"

    run(tmp_path, test)


def test_light_above_the_ceiling_is_not_switched(tmp_path):
    async def test(it):
        # NICs launch 0 dBm and lose 0.3 dB on the way to the switch.
        careful = CircuitOperations(
            LAB, {"ocs1": it.driver}, it.network, it.network, it.store, -1.0
        )
        record = await careful.reconfigurer.change(duplex((1, 100)), "test")
        assert record.state == "refused"
        assert "-0.3 dBm arrive at ocs1 in:1, more than the ceiling of -1 dBm" in record.message
        assert await it.driver.read_map() == START

    run(tmp_path, test)


def test_a_change_that_was_to_spare_jobs_is_refused_where_one_rides(tmp_path):
    async def test(it):
        it.network.jobs = ["train-1"]
        spare = ChangeOptions(spare_jobs=True)
        record = await it.reconfigurer.change(duplex((1, 100)), "test", spare)
        assert record.state == "refused"
        assert "train-1" in record.message
        assert (await it.reconfigurer.change(duplex((100, 101)), "test", spare)).state == (
            "committed"
        ), "nothing of the job's is touched there"

    run(tmp_path, test)


def test_what_was_shown_must_still_be_true(tmp_path):
    async def test(it):
        plant = CircuitOperations(LAB, {"ocs1": it.driver}, it.network, it.network, it.store)
        shown = plant.preview_as_json(*await plant.reconfigurer.preview(duplex((100, 101))))
        assert shown["changes"]["ocs1"] == {"breaks": [], "makes": ["100>101", "101>100"]}
        terms = ChangeOptions(planned_from=shown["planned_from"])
        await it.driver.connect([*PortMap.of([(50, 51)])])
        record = await plant.reconfigurer.change(duplex((100, 101)), "test", terms)
        assert record.state == "refused"
        assert "changed since the change was shown" in record.message

    run(tmp_path, test)


def test_the_stop_button_halts_between_steps_and_refuses_until_cleared(tmp_path):
    async def test(it):
        button = it.reconfigurer.stop
        disconnect = it.driver.disconnect

        async def pressed_meanwhile(pairs):
            outcome = await disconnect(pairs)
            if not button.pressed:
                button.press("eva", "smoke")
            return outcome

        it.driver.disconnect = pressed_meanwhile
        record = await it.regroup()
        assert record.state == "rolled-back"
        assert "the stop button was pressed by eva: smoke" in record.message
        assert await it.driver.read_map() == START
        assert (await it.reconfigurer.change(duplex((100, 101)), "x")).state == "refused"
        again = CircuitOperations(LAB, {"ocs1": it.driver}, it.network, it.network, it.store)
        assert (await again.reconfigurer.change(duplex((100, 101)), "x")).state == "refused"
        button.clear("bob", "only toast")
        assert (await it.reconfigurer.change(duplex((100, 101)), "x")).state == "committed"
        kinds = [event["kind"] for event in it.store.events()]
        assert kinds == ["stopped", "circuits", "circuits", "circuits", "stop-cleared", "circuits"]

    run(tmp_path, test)


def test_the_stop_button_is_pressed_from_another_process_on_the_same_journal(tmp_path):
    here, there = (StopButton(Store(tmp_path / "state.db")) for _ in range(2))
    there.press("eva", "smoke")
    with pytest.raises(StepFailed, match="pressed by eva: smoke"):
        here.check()
    there.clear("eva", "")
    here.check()


def test_memory_of_the_map_saves_a_read_and_never_decides(tmp_path):
    async def test(it):
        await it.reconfigurer.change(duplex((100, 101)), "first")
        await it.driver.connect([*PortMap.of([(50, 51)])])
        record = await it.reconfigurer.change(duplex((60, 61)), "second")
        assert record.state == "committed"
        assert "50>51 is new" in "".join(record.notes)
        assert (50, 51) in (await it.driver.read_map()).out_of.items()
        # What is there from memory and lost on the device is made again.
        await it.driver.disconnect([*PortMap.duplex([(60, 61)])])
        record = await it.reconfigurer.change(duplex((60, 61)), "third")
        assert record.changes["ocs1"]["makes"] == ["60>61", "61>60"]

    run(tmp_path, test)


def test_a_cancelled_caller_does_not_cut_a_change_short(tmp_path):
    async def test(it):
        draining = asyncio.Event()
        it.network.follow = lambda links: (
            draining.set() or type(it.network).follow(it.network, links)
        )
        change = asyncio.create_task(it.regroup())
        await draining.wait()
        change.cancel()
        with pytest.raises(asyncio.CancelledError):
            await change
        await it.reconfigurer.close()
        assert it.store.reconfigurations()[-1]["state"] == "committed"
        assert it.network.told[-1] == ("undrain",)

    run(tmp_path, test)


def test_a_change_that_cannot_be_undone_locks_its_ports(tmp_path):
    async def test(it):
        await it.reconfigurer.conditions.of("ocs1")

        async def broken(pairs):
            it.device.kill()
            return await type(it.driver).connect(it.driver, pairs)

        it.driver.connect = broken
        record = await it.reconfigurer.change(duplex((1, 100)), "test")
        assert record.state == "unknown"
        locked = {lock.port: lock.kind for lock in it.reconfigurer.locks.all()}
        assert locked == {1: "bad", 7: "bad", 100: "bad"}
        assert it.store.reconfigurations()[-1]["state"] == "unknown"

    run(tmp_path, test)


def test_drift_is_told_and_adopted_or_repaired_only_when_asked(tmp_path):
    async def test(it):
        plant = CircuitOperations(LAB, {"ocs1": it.driver}, it.network, it.network, it.store)
        await plant.begin()
        assert not it.store.events()
        await it.driver.disconnect([*PortMap.duplex([(1, 7)])])
        await it.driver.connect([*PortMap.of([(50, 51)])])
        again = CircuitOperations(LAB, {"ocs1": it.driver}, it.network, it.network, it.store)
        await again.begin()
        (event,) = it.store.events()
        assert (event["kind"], event["missing"], event["unknown"]) == (
            "drift",
            ["1>7", "7>1"],
            ["50>51"],
        )
        # A change of other ports adopts nothing of it.
        await again.reconfigurer.change(duplex((100, 101)), "test")
        assert (await again.drift())["ocs1"]["unknown"] == ["50>51"]
        committed = again.repairing([])
        await again.reconfigurer.change(
            lambda _: committed, "repair", ChangeOptions(adopts=committed)
        )
        assert await it.driver.read_map() == START.joined(PortMap.duplex([(100, 101)]))
        assert (await again.reconfigurer.drift())["ocs1"] == Drift((), ())
        await it.driver.connect([*PortMap.of([(50, 51)])])
        present = await again.reconfigurer.read_maps()
        record = await again.reconfigurer.change(
            lambda _: {}, "adopt", ChangeOptions(adopts=present)
        )
        assert (record.state, record.adopted) == ("committed", ["ocs1"])
        assert not (await again.drift())["ocs1"]["unknown"]
        # And a third controller finds it adopted.
        third = CircuitOperations(LAB, {"ocs1": it.driver}, it.network, it.network, it.store)
        assert not (await third.drift())["ocs1"]["unknown"]

    run(tmp_path, test)


def test_undoing_a_change_undoes_that_one_and_refuses_where_others_built_on_it(tmp_path):
    async def test(it):
        plant = CircuitOperations(LAB, {"ocs1": it.driver}, it.network, it.network, it.store)
        first = await plant.reconfigurer.change(duplex((1, 100)), "first")
        await plant.reconfigurer.change(duplex((50, 51)), "second")
        decide, adopts = plant.undoing(first.id)
        record = await plant.reconfigurer.change(decide, "undo", ChangeOptions(adopts=adopts))
        assert record.state == "committed"
        assert await it.driver.read_map() == START.joined(PortMap.duplex([(50, 51)]))
        third = await plant.reconfigurer.change(duplex((2, 100)), "third")
        await plant.reconfigurer.change(duplex((100, 120)), "fourth")
        with pytest.raises(Refused, match=r"2>100 is gone"):
            await plant.reconfigurer.change(plant.undoing(third.id)[0], "undo")
        with pytest.raises(BadInput, match="no change 99"):
            plant.undoing(99)

    run(tmp_path, test)


def two_switches():
    """server1.nic0 – o1.1, o1.2 – o2.1, o2.2 – tor1.1: light passes two devices."""
    lab = read_lab(builtin_lab("ofc2022"))
    switches = tuple(CircuitSwitch(name, "dry-run", "127.0.0.1:1", 8) for name in ("o1", "o2"))
    ends = [("server1.nic0", "o1.1"), ("o1.2", "o2.1"), ("o2.2", "tor1.1")]
    fibres = tuple(Fibre(Endpoint.parse(a), Endpoint.parse(b)) for a, b in ends)
    return replace(lab, circuit_switches=switches, fibres=fibres)


def test_several_devices_change_one_after_the_other_and_go_back_together(tmp_path):
    lab, order = two_switches(), []

    class Told:
        def __init__(self, driver, fails):
            self._driver, self._fails = driver, fails

        def __getattr__(self, name):
            return getattr(self._driver, name)

        async def connect(self, pairs):
            order.append(self.name)
            if self._fails:
                raise PatchlightError("o2 is on fire")
            return await self._driver.connect(pairs)

    async def test(*, fails):
        order.clear()
        drivers = {c.name: open_driver(c) for c in lab.circuit_switches}
        drivers = {n: Told(d, fails and n == "o2") for n, d in drivers.items()}
        plant = CircuitOperations(lab, drivers, Nobody(), Nobody(), Store(":memory:"))
        wanted = {n: PortMap.duplex([(1, 2)]) for n in drivers}
        record = await plant.reconfigurer.change(lambda _: wanted, "test")
        return record, await plant.reconfigurer.links(), await plant.reconfigurer.read_maps()

    record, links, _ = asyncio.run(test(fails=False))
    assert record.state == "committed"
    assert order == ["o1", "o2"]
    assert [(str(a), str(b)) for a, b in links.pairs()] == [("server1.nic0", "tor1.1")]
    record, links, maps = asyncio.run(test(fails=True))
    assert record.state == "rolled-back"
    assert "on fire" in record.message
    assert not links.pairs()
    assert maps == {"o1": PortMap(), "o2": PortMap()}


@pytest.mark.parametrize("seed", [1, 2])
def test_random_changes_with_faults_and_kills_end_in_the_old_map_or_the_new(tmp_path, seed):
    ended = campaign(tmp_path, 20, seed)
    assert sum(ended.values()) == 20
    assert any(kind.startswith("killed") for kind in ended), ended
