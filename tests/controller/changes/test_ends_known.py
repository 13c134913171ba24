"""However a change ends, by a bug or a full disk too: the journal says how, flows are right."""

import asyncio
import socket
import threading

import pytest

from patchlight.controller.changes.committed_maps import CommittedMaps
from patchlight.controller.changes.record import Refused
from patchlight.controller.client import ControllerClient, ControllerError
from patchlight.controller.openflow.forwarding import flow_tables
from patchlight.controller.operations import CircuitOperations
from patchlight.controller.store import Store
from patchlight.testbed.errors import OutcomeUnknown, PatchlightError
from patchlight.testbed.portmap import PortMap
from patchlight.testbed.wiring import trace_links
from tests.controller.changes.test_change_faults import duplex
from tests.controller.changes.test_transaction import LAB, run


def full(store):
    """No more pages for this journal: what a full disk does to it."""
    pages = store._rows("PRAGMA page_count")[0][0]
    store._rows(f"PRAGMA max_page_count = {pages}")


def test_a_bug_before_the_first_write_leaves_no_intent_behind(tmp_path):
    async def test(it):
        async def nonsense(*_):
            raise KeyError("no such column")

        it.driver.power = nonsense
        with pytest.raises(KeyError):
            await it.reconfigurer.change(duplex((100, 101)), "test")
        [row] = it.store.reconfigurations()
        assert row["state"] == "refused"
        assert "unexpected KeyError" in row["message"]
        assert not await it.reconfigurer.resume()

    run(tmp_path, test)


def test_a_bug_while_rolling_back_locks_the_ports_and_is_told(tmp_path):
    async def test(it):
        await it.reconfigurer.conditions.of("ocs1")

        async def nonsense(*_):
            raise ValueError("what is this")

        it.driver.connect = it.driver.disconnect = nonsense
        record = await it.reconfigurer.change(duplex((100, 101)), "test")
        assert record.state == "unknown"
        assert "unexpected ValueError: what is this" in record.message
        assert [lock.port for lock in it.reconfigurer.locks.all()] == [100, 101]

    run(tmp_path, test)


def test_a_plan_from_old_maps_that_is_then_refused_leaves_the_flows_as_they_were(tmp_path):
    async def test(it):
        lit = flow_tables(LAB, trace_links(LAB, await it.reconfigurer.read_maps()))
        await it.reconfigurer.settle_flows()
        assert it.network.tables == lit
        # Somebody else takes a port, of which the memory knows nothing yet.
        await it.driver.connect([*PortMap.of([(50, 51)])])

        def decide(maps):
            if 50 in maps["ocs1"].out_of:
                raise Refused("not now")
            return {"ocs1": PortMap()}

        with pytest.raises(Refused):
            await it.reconfigurer.change(decide, "test")
        assert ("follow", 1) in it.network.told
        assert it.network.tables == lit
        assert it.store.reconfigurations()[-1]["state"] == "refused"

    run(tmp_path, test)


def test_a_change_whose_end_the_journal_does_not_take_is_unknown_and_closes_its_switch(tmp_path):
    async def test(it):
        await it.reconfigurer.change(duplex((100, 101)), "test")
        follow, begun = it.network.follow, []

        async def then_full(links):
            begun.append(links)
            if len(begun) == 2:  # after the last write to the device
                full(it.store)
            return await follow(links)

        it.network.follow = then_full
        many = duplex(*((n, n + 100) for n in range(110, 200)))
        with pytest.raises(OutcomeUnknown, match=r"is not in the journal: .* full"):
            await it.reconfigurer.change(many, "test")
        it.network.follow = follow
        it.store._rows("PRAGMA max_page_count = 100000")
        refused = await it.reconfigurer.change(duplex((300, 301)), "test")
        assert refused.state == "refused"
        assert "how change 2 ended is not in the journal" in refused.message
        # A new start finds it whole.
        [ended] = await it.reconfigurer.resume()
        assert (ended.id, ended.state) == (2, "committed")
        assert (await it.reconfigurer.change(duplex((300, 301)), "test")).state == "committed"

    run(tmp_path, test)


def test_nothing_is_written_to_a_device_when_the_journal_takes_nothing(tmp_path):
    async def test(it):
        before = await it.reconfigurer.read_maps()
        full(it.store)
        with pytest.raises(PatchlightError, match="full"):
            await it.reconfigurer.change(duplex(*((n, n + 100) for n in range(100, 200))), "test")
        assert await it.driver.read_map() == before["ocs1"]

    run(tmp_path, test)


def test_repairing_a_switch_that_was_never_seen_is_refused_in_words(tmp_path):
    async def test(it):
        plant = CircuitOperations(LAB, {"ocs1": it.driver}, it.network, it.network, it.store)
        assert not CommittedMaps(it.store).maps
        with pytest.raises(Refused, match="never seen"):
            plant.repairing(["ocs1"])
        assert plant.repairing([]) == {}

    run(tmp_path, test)


def test_a_flood_of_alarms_does_not_fill_the_journal(tmp_path):
    async def test(it):
        plant = CircuitOperations(LAB, {"ocs1": it.driver}, it.network, it.network, it.store)
        it.device.fault(flood=300)
        await it.driver.read_map()
        assert len(await it.driver.alarms()) >= 300
        await plant._listen("ocs1", it.driver)
        told = [event for event in it.store.events() if event["kind"] == "alarm"]
        assert len(told) == 21
        assert "280 more at once" in told[-1]["words"]

    run(tmp_path, test)


def test_a_store_says_in_words_that_it_cannot_be_written(tmp_path):
    store = Store(tmp_path / "controller.db")
    full(store)
    with pytest.raises(PatchlightError, match=r"controller\.db: .*full"):
        store.add_events("test", [(1.0, {"words": "x" * 4000})] * 100)
    store._rows("PRAGMA max_page_count = 100000")
    assert store.add_event(2.0, "test", {}) == 1


def test_a_controller_that_goes_away_after_it_was_asked_leaves_the_outcome_unknown():
    def answer_nothing(listening):
        for _ in range(3):
            connection, _ = listening.accept()
            connection.recv(65536)
            connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=answer_nothing, args=(listening,))
        thread.start()
        with ControllerClient(f"127.0.0.1:{listening.getsockname()[1]}") as client:
            with pytest.raises(OutcomeUnknown, match="did not say what came of it"):
                client.reconfigure({"ocs1": ["1-2"]})
            # These change nothing, whatever became of them.
            with pytest.raises(ControllerError):
                client.reconfigure({"ocs1": ["1-2"]}, dry_run=True)
            with pytest.raises(ControllerError):
                client.circuits()
        thread.join()


def test_an_unknown_outcome_goes_through_the_api_as_one():
    from patchlight.controller.api.circuits import explain

    answer = asyncio.run(explain(None, OutcomeUnknown("was it?")))
    assert b'"outcome":"unknown"' in answer.body
