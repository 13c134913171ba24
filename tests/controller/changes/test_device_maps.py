"""Circuit switches that do not answer: the others go on, nothing that works is cut, and back."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from patchlight.controller.changes.record import Refused
from patchlight.controller.circuits.registry import open_driver
from patchlight.controller.client import ControllerError
from patchlight.controller.openflow.forwarding import flow_tables
from patchlight.controller.operations import CircuitOperations
from patchlight.controller.store import Store
from patchlight.testbed.lab import CircuitSwitch, Endpoint, Fibre
from patchlight.testbed.labfile.reader import builtin_lab, read_lab
from patchlight.testbed.portmap import PortMap
from patchlight.testbed.wiring import trace_links
from tests.controller.changes.test_transaction import _KILLED, JOBS, LAB, Network
from tests.controller.test_service import Running, free_port
from tests.support.emulated_devices import lab_file
from tests.support.emulated_devices import running as running_device
from tests.support.ocs_faults import Nobody


class Door:
    """A way to a device that can be shut: what is open breaks, and nobody gets in."""

    def __init__(self, address):
        self._host, _, port = address.rpartition(":")
        self._port, self._open, self._server = int(port), set(), None
        self.port = free_port()

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    async def open(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def shut(self):
        self._server.close()
        for writer in self._open:
            writer.transport.abort()

    async def _serve(self, reader, writer):
        there = await asyncio.open_connection(self._host, self._port)
        self._open |= {writer, there[1]}
        with contextlib.suppress(OSError):
            await asyncio.gather(self._pass(reader, there[1]), self._pass(there[0], writer))

    async def _pass(self, reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()


async def until(condition, deadline_s=20.0):
    deadline = time.monotonic() + deadline_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come about in time"
        await asyncio.sleep(0.02)
    return found


@contextlib.asynccontextmanager
async def plant_behind(door, state, network=None):
    """A plant of the OFC lab whose OCS is behind a door, begun as a controller begins it."""
    lab = LAB.with_changes(
        circuit_switches=(replace(LAB.circuit_switch("ocs1"), address=door.address),)
    )
    network, store = network or Network(), Store(state)
    plant = CircuitOperations(
        lab, {"ocs1": open_driver(lab.circuit_switch("ocs1"))}, network, network, store
    )
    await plant.reach.open()
    await plant.begin()
    await plant.reconfigurer.settle_flows()
    watching = asyncio.create_task(plant.watch())
    yield plant, network
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await plant.drivers["ocs1"].close()
    store.close()


def run(tmp_path, test):
    async def with_device():
        with running_device(tmp_path, builtin_lab("ofc2022"), "--no-fabric") as device:
            door = Door(device.switch.address)
            await test(device, door)

    asyncio.run(with_device())


def test_flows_over_a_switch_that_does_not_answer_stay_as_committed(tmp_path):
    state = tmp_path / "state.db"

    async def test(device, door):
        await door.open()
        async with plant_behind(door, state) as (plant, network):
            done = await plant.reconfigurer.change(
                lambda maps: {"ocs1": maps["ocs1"].joined(PortMap.duplex([(1, 9)]))}, "test"
            )
            assert done.state == "committed", done.message
            lit = dict(network.tables)
        await door.shut()
        async with plant_behind(door, state) as (plant, network):
            (status,) = plant.reach.status()
            assert not status["reachable"]
            assert "connecting to ocs1" in status["words"]
            assert network.tables == lit, "what worked before goes on"
            # For what is decided anew it is dark, and nothing may be written to it.
            links = await plant.reconfigurer.links()
            assert not [h for h in LAB.hosts if links.peer(h.endpoint)]
            assert {h.name for h in LAB.hosts} == set(plant.reconfigurer.unseen_hosts())
            with pytest.raises(Refused, match="the map of ocs1 is not known: connecting to ocs1"):
                await plant.reconfigurer.change(
                    lambda maps: {"ocs1": maps["ocs1"].joined(PortMap.duplex([(1, 7)]))}, "test"
                )
            with pytest.raises(Refused):
                await plant.reconfigurer.change(lambda _: {"ocs1": PortMap()}, "clear it")
            assert network.tables == lit

    run(tmp_path, test)


def test_a_switch_that_comes_back_is_compared_with_its_committed_map(tmp_path):
    async def test(device, door):
        await door.open()
        async with plant_behind(door, tmp_path / "state.db") as (plant, network):
            lit = dict(network.tables)
            await door.shut()
            with contextlib.suppress(Refused):
                await plant.reconfigurer.read_maps()
            await until(lambda: not plant.reach.status()[0]["reachable"])
            assert network.tables == lit
            # Somebody else works on it meanwhile.
            other = open_driver(device.switch)
            await other.open()
            await other.disconnect([*PortMap.duplex([(1, 7)])])
            await other.close()
            await door.open()
            kinds = ["unreachable", "reachable", "drift"]
            await until(lambda: [e["kind"] for e in plant.store.events()] == kinds)
            drift = plant.store.events()[-1]
            assert (drift["missing"], drift["unknown"]) == (["1>7", "7>1"], [])
            maps = {"ocs1": await plant.drivers["ocs1"].read_map()}
            tables = flow_tables(LAB, trace_links(LAB, maps))
            await until(lambda: network.tables == tables)
            assert tables != lit
            assert (await plant.reconfigurer.change(lambda maps: maps, "x")).state == "committed"

    run(tmp_path, test)


def test_a_change_cut_short_waits_for_its_switch_and_is_then_ended(tmp_path):
    state = tmp_path / "controller.db"

    async def test(device, door):
        killed = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", _KILLED, device.switch.address, str(state), "after break",
             json.dumps(JOBS)],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        async with plant_behind(door, state) as (plant, _):
            (record,) = plant.store.reconfigurations()
            assert record["state"] == "intent"
            assert "waits for ocs1" in record["message"]
            await door.open()
            await until(lambda: plant.store.reconfigurations()[0]["state"] == "rolled-back")
            assert await plant.drivers["ocs1"].read_map() == LAB.initial_maps["ocs1"]

    run(tmp_path, test)


def test_an_unfinished_change_closes_its_other_switches_until_it_is_ended(tmp_path):
    """Of a change of two switches one does not answer: the other is left as it is."""
    lab = read_lab(builtin_lab("ofc2022"))
    switches = tuple(CircuitSwitch(name, "dry-run", "127.0.0.1:1", 8) for name in ("o1", "o2"))
    fibres = (Fibre(Endpoint("server1", "nic0"), Endpoint("o1", "1")),)
    lab = replace(lab, circuit_switches=switches, fibres=fibres)
    store = Store(tmp_path / "state.db")
    both = {"o1": ["1>2"], "o2": ["3>4"]}
    store.begin_reconfiguration(
        {
            "why": "x",
            "started_at": 1.0,
            "changes": {n: {"breaks": [], "makes": t} for n, t in both.items()},
            "before": {"o1": [], "o2": []},
            "wanted": both,
        }
    )

    async def go():
        one = {"o1": open_driver(switches[0])}
        plant = CircuitOperations(lab, one, Nobody(), Nobody(), store)
        await plant.begin()
        record = await plant.reconfigurer.change(lambda _: {"o1": PortMap.parse(["5>6"])}, "x")
        assert record.state == "refused"
        assert "change 1 is unfinished: it waits for o2" in record.message
        plant = CircuitOperations(
            lab, one | {"o2": open_driver(switches[1])}, Nobody(), Nobody(), store
        )
        await plant.begin()
        record = await plant.reconfigurer.change(lambda _: {"o1": PortMap.parse(["5>6"])}, "x")
        assert record.state == "committed", record.message

    asyncio.run(go())
    assert [r["state"] for r in store.reconfigurations()] == ["rolled-back", "refused", "committed"]


def test_a_controller_starts_without_a_switch_and_takes_it_in_when_it_is_there(tmp_path):
    folder = tmp_path / "device"
    folder.mkdir()
    address = f"127.0.0.1:{free_port()}"
    controller = Running(tmp_path)
    second = f"  - {{name: ocs1, driver: calient-tl1, address: '{address}', ports: 16}}\nfibres:\n"
    controller.lab.write_text(controller.lab.read_text().replace("fibres:\n", second))
    controller.start()
    client = controller.client
    try:
        first, silent = client.status()["circuit_switches"]
        assert (first["name"], first["reachable"]) == ("o1", True)
        assert (silent["name"], silent["reachable"]) == ("ocs1", False)
        assert "connecting to ocs1" in silent["words"]
        assert f"ocs1 does not answer: connecting to ocs1 at {address}" in (
            controller.log.read_text()
        )
        assert client.reconfigure({"o1": ["7-8"]})["state"] == "committed"
        with pytest.raises(ControllerError, match="the map of ocs1 is not known"):
            client.reconfigure({"ocs1": ["7-8"]})
        assert client.circuits()["ocs1"]["map"] is None
        assert client.links()
        assert client.drift()["ocs1"]["unreachable"]
        with running_device(folder, lab_file(folder, ports=16), "--no-fabric", listen=address):
            deadline = time.monotonic() + 40
            while not client.status()["circuit_switches"][1]["reachable"]:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert client.reconfigure({"ocs1": ["7-8"]})["state"] == "committed"
            assert [e["kind"] for e in client.events() if e.get("ocs") == "ocs1"] == [
                "unreachable",
                "reachable",
            ]
    finally:
        controller.stop()
