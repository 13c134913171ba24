"""Changes that wait for their turn: halted, kept when a device comes back, refused at a restart."""

import asyncio
from pathlib import Path

from patchlight.controller.changes.record import ChangeOptions
from patchlight.controller.circuits.drivers.dry_run import DryRun
from patchlight.controller.storage.store import Store
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.labfile.reader import parse_lab
from patchlight.testbed.wire.rest.requests import LockRequest
from tests.support.change_bench import CircuitsOf
from tests.support.controller_process import DRY_LAB

LAB = parse_lab(DRY_LAB.format(api=1, openflow=2), "dry")
WANTED = {"o1": PortMap.duplex([(7, 8)])}


def circuits(path: Path | str) -> CircuitsOf:
    return CircuitsOf(
        LAB, {"o1": DryRun(LAB.circuit_switch("o1"))}, Store(path)
    )


async def test_a_change_that_waits_is_no_leftover_until_its_controller_ends(
    tmp_path: Path,
) -> None:
    bench = circuits(tmp_path / "db")
    drained = asyncio.Event()
    going_on = asyncio.Event()

    async def drain(moved: object) -> list[str]:
        drained.set()
        await going_on.wait()
        return []

    bench.network.drain = drain  # type: ignore[method-assign]
    first = asyncio.create_task(bench.change(lambda maps: WANTED, "first"))
    await drained.wait()
    second = await bench.transactions.begin(lambda maps: {}, "second")
    third = await bench.transactions.begin(lambda maps: {}, "third")
    bench.transactions.cancel(third.id, "ann", "")
    assert second.progress.stage == "waiting"
    # A device comes back meanwhile: what an earlier controller left is looked for.
    leftovers = asyncio.create_task(bench.transactions.resume())
    killed = circuits(tmp_path / "db")
    going_on.set()
    assert (await first).state == "committed"
    assert await leftovers == []
    await bench.transactions.close()
    rows = {row.why: row.state for row in bench.store.reconfigurations()}
    assert rows == {
        "first": "committed",
        "second": "committed",
        "third": "refused",
    }
    # The same journal as it was when a controller is killed just then.
    with killed.store.together() as db:
        db.execute(
            "UPDATE reconfigurations SET state = 'intent' WHERE id = ?",
            (third.id,),
        )
    (ended,) = await killed.transactions.resume()
    assert (ended.id, ended.state) == (third.id, "refused")
    assert "it was waiting when the controller ended" in ended.message


async def test_a_lock_stops_the_change_of_its_port_that_is_under_way() -> None:
    for port, state in ((7, "rolled-back"), (12, "committed")):
        bench = circuits(":memory:")
        before = await bench.drivers["o1"].read_map()
        request = LockRequest(ocs="o1", ports=[port], why="mine")

        async def drain(
            moved: object,
            bench: CircuitsOf = bench,
            request: LockRequest = request,
        ) -> list[str]:
            await bench.service.lock(request, ChangeOptions(by="ann"))
            return []

        bench.network.drain = drain  # type: ignore[method-assign]
        change = await bench.change(lambda maps: WANTED, "first")
        assert change.state == state
        assert ("o1.7 is locked by ann: mine" in change.message) is (port == 7)
        assert (await bench.drivers["o1"].read_map() == before) is (port == 7)


async def test_what_cannot_be_planned_is_refused_on_record() -> None:
    bench = circuits(":memory:")
    begun = await bench.transactions.begin(
        lambda maps: {"o9": maps["o9"]}, "no such switch"
    )
    await bench.transactions.close()
    row = bench.store.reconfiguration(begun.id)
    assert row is not None
    assert (row.state, "nothing was changed" in row.message) == (
        "refused",
        True,
    )
