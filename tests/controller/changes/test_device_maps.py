"""Circuit switches that do not answer: the others go on, nothing that works is cut, and back."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from patchlight.client.client import ControllerError
from patchlight.controller.changes.record import Reconfiguration, Refused
from patchlight.controller.circuits.registry import open_driver
from patchlight.controller.packet_switches.openflow.forwarding import (
    flow_tables,
)
from patchlight.controller.storage.store import Store
from patchlight.testbed.lab.model import CircuitSwitch, Endpoint, Fibre
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.wiring import trace_links
from patchlight.testbed.labfile.reader import builtin_lab
from tests.support.change_bench import (
    LAB,
    START,
    CircuitsOf,
    joined,
    kill_a_change,
)
from tests.support.controller_process import ControllerProcess
from tests.support.emulated_devices import Running, lab_file, running
from tests.support.waiting import eventually, free_ports, wait_until


class Door:
    """A way to a device that can be shut: what is open breaks, and nobody gets in."""

    _server: asyncio.Server

    def __init__(self, address: str) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._writers = set[asyncio.StreamWriter]()
        self.port = free_ports(1)[0]

    async def open(self) -> None:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port
        )

    async def shut(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        from_device, to_device = await asyncio.open_connection(
            self._host, self._port
        )
        self._writers |= {writer, to_device}
        with contextlib.suppress(OSError):
            await asyncio.gather(
                self._pass(reader, to_device), self._pass(from_device, writer)
            )

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()


@contextlib.asynccontextmanager
async def circuits_behind(
    door: Door, journal: Path
) -> AsyncIterator[CircuitsOf]:
    """The OFC lab's circuits with its OCS behind a door, begun as a controller begins them."""
    switch = replace(
        LAB.circuit_switch("ocs1"), address=f"127.0.0.1:{door.port}"
    )
    lab = LAB.with_changes(circuit_switches=(switch,))
    store = Store(journal)
    circuits = CircuitsOf(lab, {"ocs1": open_driver(switch)}, store)
    await circuits.parts.devices.open()
    await circuits.watch.begin()
    await circuits.transactions.settle_flows()
    watching = asyncio.create_task(circuits.watch.run())
    yield circuits
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await circuits.drivers["ocs1"].close()
    store.close()


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path, builtin_lab("ofc2022"), "--no-fabric") as started:
        yield started


@pytest.fixture
def door(device: Running) -> Door:
    return Door(device.switch.address)


async def test_flows_over_a_switch_that_does_not_answer_stay_as_committed(
    door: Door, tmp_path: Path
) -> None:
    await door.open()
    async with circuits_behind(door, tmp_path / "state.db") as circuits:
        done = await circuits.change(joined((1, 9)), "test")
        assert done.state == "committed", done.message
        tables = dict(circuits.network.tables)
    await door.shut()
    async with circuits_behind(door, tmp_path / "state.db") as circuits:
        (status,) = circuits.parts.devices.status()
        assert not status["reachable"]
        assert "connecting to ocs1" in status["words"]
        assert circuits.network.tables == tables, "what worked before goes on"
        # For what is decided anew its circuits are down, and nothing may be written to it.
        links = circuits.parts.maps.links(await circuits.parts.maps.read())
        assert not [h for h in LAB.hosts if links.peer(h.endpoint)]
        assert {h.name for h in LAB.hosts} == set(
            circuits.parts.devices.unseen_hosts()
        )
        with pytest.raises(
            Refused, match="the map of ocs1 is unknown: connecting to ocs1"
        ):
            await circuits.change(joined((1, 7)), "test")
        with pytest.raises(Refused):
            await circuits.change(lambda _: {"ocs1": PortMap()}, "clear it")
        assert circuits.network.tables == tables


async def test_a_switch_that_comes_back_is_compared_with_its_committed_map(
    device: Running, door: Door, tmp_path: Path
) -> None:
    await door.open()
    async with circuits_behind(door, tmp_path / "state.db") as circuits:
        tables = dict(circuits.network.tables)
        await door.shut()
        with contextlib.suppress(Refused):
            await circuits.parts.maps.read()
        await eventually(
            lambda: not circuits.parts.devices.status()[0]["reachable"]
        )
        assert circuits.network.tables == tables
        # Somebody else works on it meanwhile.
        other = open_driver(device.switch)
        await other.open()
        await other.disconnect([*PortMap.duplex([(1, 7)])])
        await other.close()
        await door.open()
        kinds = ["unreachable", "reachable", "drift"]
        await eventually(
            lambda: [e["kind"] for e in circuits.store.events()] == kinds
        )
        drift = circuits.store.events()[-1]
        assert (drift["missing"], drift["unknown"]) == (["1>7", "7>1"], [])
        maps = {"ocs1": await circuits.drivers["ocs1"].read_map()}
        after = flow_tables(LAB, trace_links(LAB, maps))
        await eventually(lambda: circuits.network.tables == after)
        assert after != tables
        assert (
            await circuits.change(lambda maps: maps, "x")
        ).state == "committed"


async def test_a_change_cut_short_waits_for_its_switch_and_is_then_ended(
    device: Running, door: Door, tmp_path: Path
) -> None:
    await kill_a_change(device, tmp_path / "state.db", "after break")
    async with circuits_behind(door, tmp_path / "state.db") as circuits:
        (record,) = circuits.store.reconfigurations()
        assert record.state == "intent"
        assert "waits for ocs1" in record.message
        await door.open()
        await eventually(
            lambda: circuits.store.reconfigurations()[0].state == "rolled-back"
        )
        assert await circuits.drivers["ocs1"].read_map() == START


async def test_an_unfinished_change_closes_its_other_switches_until_it_is_ended(
    tmp_path: Path,
) -> None:
    """Of a change of two switches one does not answer: the other is left as it is."""
    switches = tuple(
        CircuitSwitch(name, "dry-run", "127.0.0.1:1", 8)
        for name in ("o1", "o2")
    )
    fibres = (Fibre(Endpoint("server1", "nic0"), Endpoint("o1", "1")),)
    lab = replace(LAB, circuit_switches=switches, fibres=fibres)
    store = Store(tmp_path / "state.db")
    both = {"o1": ["1>2"], "o2": ["3>4"]}
    changes = {
        name: {"breaks": [], "makes": texts} for name, texts in both.items()
    }
    record = Reconfiguration(
        "x", 1.0, changes=changes, before={"o1": [], "o2": []}, wanted=both
    )
    store.prepared_intent(0, record.as_row)()
    only_o1 = CircuitsOf(lab, {"o1": open_driver(switches[0])}, store)
    await only_o1.watch.begin()
    record = await only_o1.change(
        lambda _: {"o1": PortMap.parse(["5>6"])}, "x"
    )
    assert record.state == "refused"
    assert "change 1 is unfinished: it waits for o2" in record.message
    with_o2 = CircuitsOf(
        lab, {**only_o1.drivers, "o2": open_driver(switches[1])}, store
    )
    await with_o2.watch.begin()
    record = await with_o2.change(
        lambda _: {"o1": PortMap.parse(["5>6"])}, "x"
    )
    assert record.state == "committed", record.message
    assert [r.state for r in store.reconfigurations()] == [
        "rolled-back",
        "refused",
        "committed",
    ]


def test_a_controller_starts_without_a_switch_and_takes_it_in_when_it_is_there(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "device"
    folder.mkdir()
    address = f"127.0.0.1:{free_ports(1)[0]}"
    controller = ControllerProcess(tmp_path)
    second = f"  - {{name: ocs1, driver: calient-tl1, address: '{address}', ports: 16}}\nfibres:\n"
    controller.lab.write_text(
        controller.lab.read_text().replace("fibres:\n", second)
    )
    controller.start()
    client = controller.client
    try:
        first, silent = client.status().circuit_switches
        assert (first.name, first.reachable) == ("o1", True)
        assert (silent.name, silent.reachable) == ("ocs1", False)
        assert "connecting to ocs1" in silent.words
        message = f"ocs1 does not answer: connecting to ocs1 at {address}"
        assert message in controller.log.read_text()
        assert client.reconfigure({"o1": ["7-8"]}).state == "committed"
        with pytest.raises(
            ControllerError, match="the map of ocs1 is unknown"
        ):
            client.reconfigure({"ocs1": ["7-8"]})
        assert client.circuits()["ocs1"].map is None
        assert client.links()
        assert client.drift()["ocs1"].unreachable
        with running(
            folder, lab_file(folder, ports=16), "--no-fabric", listen=address
        ):
            wait_until(lambda: client.status().circuit_switches[1].reachable)
            assert client.reconfigure({"ocs1": ["7-8"]}).state == "committed"
            events = [
                e["kind"] for e in client.events() if e.get("ocs") == "ocs1"
            ]
            assert events == ["unreachable", "reachable"]
    finally:
        controller.stop()
