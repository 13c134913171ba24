"""A switch that dies in a change while its controller lives, and comes back: the result is known.

Whole new map: committed. Whole old map: rolled back. Else unknown, and the ports stay locked.
"""

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from patchlight.controller.changes import parts
from patchlight.controller.changes.record import ChangeOptions
from patchlight.controller.circuits.contract import DeviceUnreachable, Outcome
from patchlight.controller.circuits.drivers.table import Row
from patchlight.controller.circuits.protocols.http import PINS_VARIABLE
from patchlight.controller.circuits.registry import open_driver
from patchlight.controller.storage.store import Store
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.spectrum import ChannelConnect, SpectrumMap
from patchlight.testbed.lab.wiring import places_of
from patchlight.testbed.labfile.reader import read_lab
from tests.simulation.faults import NEVER_S
from tests.support.change_bench import CircuitsOf
from tests.support.emulated_devices import Running, lab_file, running
from tests.support.job_cluster import Cluster, simulated
from tests.support.ocs_drivers import SESSION_DRIVERS
from tests.support.waiting import eventually, free_ports
from tests.support.wss_bench import LOCAL, START, KeptWss, WssBench

OLD = ("1-9", "2-10", "3-11")
NEW = ("1-10", "2-9", "3-11")
HALF = ("1-10", "3-11")
ENDS = {OLD: "rolled-back", NEW: "committed", HALF: "unknown"}


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(parts, "_PAUSES_S", (0.01,))
    monkeypatch.setenv(PINS_VARIABLE, str(tmp_path / "tls-pins"))


def dying(
    circuits: CircuitsOf,
    device: Running,
    point: str,
    patch: pytest.MonkeyPatch,
) -> None:
    """Kill the device ``before`` or ``after`` the next call of a step of the driver."""
    when, step = point.split()
    driver = circuits.drivers["ocs1"]
    method = getattr(driver, step)

    async def die(*arguments: Any) -> Any:
        patch.setattr(driver, step, method)
        if when == "after":
            await method(*arguments)
        device.kill()
        return await method(*arguments)

    patch.setattr(driver, step, die)


async def ended(circuits: CircuitsOf, state: str) -> None:
    """Wait for this end of change 1; an unknown one is the same after the switch is back."""
    if state == "unknown":
        await eventually(
            lambda: circuits.parts.devices.status()[0]["reachable"]
        )
        step = circuits.watch.looked.step
        circuits.watch.look_soon()
        await eventually(lambda: circuits.watch.looked.step > step)
    await eventually(
        lambda: circuits.store.reconfigurations()[0]["state"] == state
    )


async def die_and_return(
    folder: Path,
    driver: str,
    point: str,
    maps: tuple[str, ...],
    patch: pytest.MonkeyPatch,
) -> CircuitsOf:
    """Change OLD to NEW on a device that dies at this point and comes back with these maps."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    again = folder / "again"
    again.mkdir()
    file = lab_file(
        folder, driver=driver, ports=16, switching_time="2ms", initial=OLD
    )
    with running(folder, file, "--no-fabric", listen=address) as device:
        lab = read_lab(file).with_changes(circuit_switches=(device.switch,))
        circuits = CircuitsOf(
            lab, {"ocs1": open_driver(device.switch)}, Store(":memory:")
        )
        await circuits.parts.devices.open()
        await circuits.watch.begin()
        watching = asyncio.create_task(circuits.watch.run())
        dying(circuits, device, point, patch)
        record = await circuits.change(
            lambda _: {"ocs1": PortMap.parse(NEW)}, "test"
        )
        assert record.state == "unknown", record.message
        assert {
            lock.port: lock.kind for lock in circuits.parts.locks.all()
        } == dict.fromkeys((1, 2, 9, 10), "bad")
    back = lab_file(
        again, driver=driver, ports=16, switching_time="2ms", initial=maps
    )
    try:
        with running(again, back, "--no-fabric", listen=address):
            await ended(circuits, ENDS[maps])
            now = await circuits.drivers["ocs1"].read_map()
            assert now == PortMap.parse(maps), "nothing was written to it"
            follow_up = await circuits.change(
                lambda m: {"ocs1": m["ocs1"].joined(PortMap.parse(["1-9"]))},
                "go on",
            )
            assert (follow_up.state == "refused") == (ENDS[maps] == "unknown")
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await circuits.drivers["ocs1"].close()
    return circuits


@pytest.mark.parametrize(
    ("point", "maps"),
    [
        *(("before disconnect", each) for each in (OLD, HALF)),
        *(("after disconnect", each) for each in (OLD, NEW, HALF)),
        *(("before connect", each) for each in (OLD, HALF)),
        *(("after connect", each) for each in (OLD, NEW, HALF)),
    ],
)
async def test_a_switch_that_comes_back_decides_what_became_of_its_change(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    maps: tuple[str, ...],
) -> None:
    circuits = await die_and_return(
        tmp_path, "calient-tl1", point, maps, monkeypatch
    )
    first = circuits.store.reconfigurations()[0]
    if ENDS[maps] == "unknown":
        assert "rolling back failed too" in first["message"]
        assert len(circuits.parts.locks.all()) == 4
        return
    assert "when its switches answered again" in first["message"]
    assert circuits.parts.locks.all() == []
    (event,) = [
        each for each in circuits.store.events() if each["kind"] == "resumed"
    ]
    assert (event["reconfiguration"], event["state"]) == (1, ENDS[maps])


@pytest.mark.parametrize("driver", SESSION_DRIVERS)
async def test_whatever_its_driver_the_whole_new_map_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str
) -> None:
    circuits = await die_and_return(
        tmp_path, driver, "after connect", NEW, monkeypatch
    )
    assert circuits.store.reconfigurations()[0]["state"] == "committed"


@pytest.mark.parametrize(
    ("stall_s", "state"), [(30.0, "committed"), (NEVER_S, "rolled-back")]
)
@simulated()
async def test_a_command_without_an_answer_may_still_be_carried_out(
    cluster: Cluster, stall_s: float, state: str
) -> None:
    gone = frozenset(PortMap.parse(["1-7"]))
    assert gone < frozenset(cluster.ocs.map)
    await cluster.ocs.fault(stall_s=stall_s)

    def without(maps: Mapping[str, Any]) -> dict[str, PortMap]:
        return {"ocs1": maps["ocs1"].without(gone)}

    record = await cluster.transactions.change(without, "test")
    assert gone < frozenset(cluster.ocs.map)
    assert record.state == "unknown", record.message
    assert "no answer within" in record.message
    locked = {lock.port: lock.kind for lock in cluster.circuits.locks.all()}
    assert locked == {1: "bad", 7: "bad"}
    assert (
        await cluster.transactions.change(without, "again")
    ).state == "refused"
    # Its old map alone does not tell.
    assert not await cluster.transactions.settle()
    await cluster.until(lambda: not cluster.circuits.locks.all())
    row = cluster.store.reconfiguration(record.id)
    assert row is not None
    assert row["state"] == state, row["message"]
    assert gone.isdisjoint(cluster.ocs.map) == (state == "committed")


class Mortal(KeptWss):
    """A wavelength switch that dies ``before`` or ``after`` its next command of this kind."""

    dies = ""
    is_dead = False

    def _check_alive(self) -> None:
        if self.is_dead:
            raise DeviceUnreachable(f"{self.name} does not answer")

    async def _obey(
        self, verb: str, pairs: Iterable[ChannelConnect]
    ) -> Outcome[ChannelConnect]:
        self._check_alive()
        when, _, step = self.dies.partition(" ")
        dies = step == verb
        outcome: Outcome[ChannelConnect] = Outcome((), (), 0.0)
        if not dies or when == "after":
            method = (
                super().connect if verb == "connect" else super().disconnect
            )
            outcome = await method(pairs)
        if dies:
            self.dies = ""
            self.is_dead = True
        self._check_alive()
        return outcome

    async def connect(
        self, pairs: Iterable[ChannelConnect]
    ) -> Outcome[ChannelConnect]:
        return await self._obey("connect", pairs)

    async def disconnect(
        self, pairs: Iterable[ChannelConnect]
    ) -> Outcome[ChannelConnect]:
        return await self._obey("disconnect", pairs)

    async def _table(self) -> Mapping[ChannelConnect, Row]:
        self._check_alive()
        return await super()._table()

    def comes_back(self, entries: SpectrumMap | None = None) -> None:
        if entries is not None:
            self._keep(entries)
        self.is_dead = False


POINTS = [
    f"{when} {verb}"
    for verb in ("disconnect", "connect")
    for when in ("before", "after")
]


def mortals(folder: Path) -> tuple[WssBench, Mortal, Mortal]:
    bench = WssBench(folder, Mortal)
    one = bench.devices["wss1"]
    other = bench.devices["wss2"]
    assert isinstance(one, Mortal)
    assert isinstance(other, Mortal)
    return bench, one, other


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("which", ["wss1", "wss2", "both"])
async def test_several_switches_are_all_waited_for_and_end_in_the_old_maps_or_the_new(
    tmp_path: Path, which: str, point: str
) -> None:
    bench, *devices = mortals(tmp_path)
    dead = [device for device in devices if which in (device.name, "both")]
    dead[0].dies = point
    if which == "both":
        # The second one dies while the first is undone.
        devices[1].dies = (
            "before disconnect" if point.startswith("before d") else point
        )
    record = await bench.turn_inwards()
    assert record.state == "unknown", record.message
    for number, device in enumerate(dead):
        assert await bench.transactions.settle() == [], (
            f"{len(dead) - number} are dead"
        )
        device.comes_back()
    shown = bench.maps()
    await bench.transactions.settle()
    state = bench.store.reconfigurations()[0]["state"]
    whole = all(shown[name] in (START[name], LOCAL) for name in shown)
    assert state == ("unknown" if not whole else "rolled-back"), shown
    assert bool(bench.parts.locks.all()) == (state == "unknown")
    if whole:
        assert bench.maps() == START
        assert (await bench.turn_inwards()).state == "committed"


@pytest.mark.parametrize(
    "maps", [(LOCAL, LOCAL), (START["wss1"], LOCAL), (LOCAL, SpectrumMap())]
)
async def test_a_cascade_is_committed_only_if_every_switch_shows_all_of_it(
    tmp_path: Path, maps: tuple[SpectrumMap, SpectrumMap]
) -> None:
    bench, one, other = mortals(tmp_path)
    one.dies = other.dies = "after connect"
    await bench.turn_inwards()
    one.comes_back(maps[0])
    other.is_dead = True
    assert await bench.transactions.settle() == []
    other.comes_back(maps[1])
    # A controller that starts now finds the same.
    again = WssBench(tmp_path, Mortal)
    await again.transactions.resume()
    state = again.store.reconfigurations()[0]["state"]
    ends = {(LOCAL, LOCAL): "committed", (START["wss1"], LOCAL): "rolled-back"}
    assert state == ends.get(maps, "unknown")
    if state == "rolled-back":
        assert again.maps() == START


async def test_locks_of_users_stand_again(tmp_path: Path) -> None:
    bench, one, _ = mortals(tmp_path)
    (here, *_) = places_of(LOCAL)
    bench.parts.locks.lock("wss1", [here], "kept", "ann", "mine")
    one.dies = "after connect"
    ann = ChangeOptions(by="ann")
    record = await bench.change(
        lambda _: dict.fromkeys(START, LOCAL), "test", ann
    )
    assert record.state == "unknown", record.message
    assert {lock.kind for lock in bench.parts.locks.all()} == {"bad"}
    again = WssBench(tmp_path, Mortal)
    await again.transactions.resume()
    assert again.store.reconfigurations()[0]["state"] == "rolled-back"
    (lock,) = again.parts.locks.all()
    assert (lock.place, lock.kind, lock.by, lock.why) == (
        here,
        "kept",
        "ann",
        "mine",
    )


async def test_ports_that_an_operator_unlocked_are_left_alone(
    tmp_path: Path,
) -> None:
    bench, one, _ = mortals(tmp_path)
    one.dies = "after connect"
    await bench.turn_inwards()
    one.comes_back(LOCAL)
    (lock, *others) = bench.parts.locks.all()
    bench.parts.locks.unlock(lock.ocs, [lock.place], "ann", "")
    assert await bench.transactions.settle() == []
    assert bench.parts.locks.all() == others
    assert bench.devices["wss1"].entries() == LOCAL


async def test_circuits_that_were_committed_meanwhile_stay_so(
    tmp_path: Path,
) -> None:
    bench, one, other = mortals(tmp_path)
    await bench.transactions.resume()  # its first maps are committed
    one.dies = other.dies = "after connect"
    await bench.turn_inwards()
    one.comes_back(LOCAL)
    other.comes_back()
    later = await bench.join(wss1=["4>3@193.300"])
    assert later.state == "committed", later.message
    assert [record.state for record in await bench.transactions.settle()] == [
        "rolled-back"
    ]
    both = START["wss1"].joined(SpectrumMap.parse(["4>3@193.300"]))
    assert bench.parts.committed.maps["wss1"] == bench.maps()["wss1"] == both
