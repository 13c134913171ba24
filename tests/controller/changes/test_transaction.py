"""Changes as transactions, against an emulated Calient: the old map or the new one, known."""

import asyncio
import dataclasses
import json
import signal
import subprocess
import sys
from contextlib import asynccontextmanager

import pytest

from patchlight.controller.changes.transaction import Transactions
from patchlight.controller.circuits.registry import open_driver
from patchlight.controller.openflow.forwarding import flow_tables
from patchlight.controller.policies.regroup import regroup
from patchlight.controller.store import Store
from patchlight.testbed.labfile.reader import builtin_lab, read_lab
from patchlight.testbed.portmap import PortMap
from tests.support.emulated_devices import running

LAB = read_lab(builtin_lab("ofc2022"))
JOBS = [["gpu0", "gpu2", "gpu4", "gpu5"], ["gpu1", "gpu3"]]


class Network:
    """Packet switches and traffic that keep what they were told, in order."""

    def __init__(self):
        self.told = []
        self.tables = {}
        self.jobs = []

    async def follow(self, links):
        self.tables = flow_tables(LAB, links)
        self.told.append(("follow", len(links.pairs())))
        return []

    def jobs_using(self, moved):
        return self.jobs if moved else []

    async def drain(self, moved):
        self.told.append(("drain", {str(end) for end in moved}))
        return []

    async def undrain(self):
        self.told.append(("undrain",))


@dataclasses.dataclass
class Bench:
    device: object
    driver: object
    network: Network
    store: Store
    reconfigurer: Transactions

    async def regroup(self):
        return await self.reconfigurer.change(lambda maps: regroup(LAB, maps, JOBS), "test")


@asynccontextmanager
async def bench(tmp_path, **device_options):
    with running(tmp_path, builtin_lab("ofc2022"), "--no-fabric") as device:
        driver = open_driver(device.switch, "")
        await driver.open()
        network, store = Network(), Store(tmp_path / "controller.db")
        yield Bench(
            device,
            driver,
            network,
            store,
            Transactions(LAB, {"ocs1": driver}, network, network, store),
        )
        await driver.close()


def run(tmp_path, test):
    async def with_bench():
        async with bench(tmp_path) as it:
            await test(it)

    asyncio.run(with_bench())


def test_a_change_drains_switches_verifies_and_lets_go(tmp_path):
    async def test(it):
        record = await it.regroup()
        assert record.state == "committed", record
        assert list(record.stages_s) == [
            "read", "plan", "check", "drain", "break", "make", "verify", "flows",
            "undrain", "commit",
        ]  # fmt: skip
        now = await it.driver.read_map()
        assert now == regroup(LAB, LAB.initial_maps, JOBS)["ocs1"]
        # Seven links before (six NICs and the ToRs' own); four stay while three NICs move.
        assert [told[0] for told in it.network.told] == ["drain", "follow", "follow", "undrain"]
        assert it.network.told[1:3] == [("follow", 4), ("follow", 7)]
        assert it.network.told[0][1] >= {"server2.nic2", "server4.nic5", "server1.nic1"}
        assert not [note for note in record.notes if "unverified" in note]

    run(tmp_path, test)


def test_a_change_to_what_is_there_touches_nothing(tmp_path):
    async def test(it):
        record = await it.reconfigurer.change(lambda maps: maps, "test")
        assert record.state == "committed"
        assert record.changes == {}
        assert not {"drain", "break", "make"} & record.stages_s.keys()

    run(tmp_path, test)


def test_a_refused_cross_connect_rolls_back_and_shows_the_devices_own_words(tmp_path):
    async def test(it):
        before = await it.driver.read_map()
        await it.reconfigurer.conditions.of("ocs1")  # before the port is locked
        it.device.fault(refuse_ports=[9])
        record = await it.regroup()
        assert record.state == "rolled-back"
        assert "ocs1 refused to make" in record.message
        refusal = await it.driver.connect([*PortMap.of([(20, 9)])])
        assert refusal.refused[0].words in record.message
        assert await it.driver.read_map() == before
        assert it.network.told[-1] == ("undrain",)
        assert it.network.told[-2] == ("follow", 7)

    run(tmp_path, test)


@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_lost_connection_is_read_again_and_rolled_back(tmp_path, cut):
    async def test(it):
        before = await it.driver.read_map()
        it.device.fault(cut=cut)
        record = await it.regroup()
        assert record.state in ("rolled-back", "refused"), record
        assert await it.driver.read_map() == before

    run(tmp_path, test)


def test_a_mirror_that_does_not_settle_rolls_back(tmp_path):
    async def test(it):
        before = await it.driver.read_map()
        await it.reconfigurer.conditions.of("ocs1")  # before the mirror sticks
        it.device.fault(fail_ports=[9])
        record = await it.regroup()
        assert record.state == "rolled-back", record
        assert await it.driver.read_map() == before

    run(tmp_path, test)


def test_a_map_changed_by_somebody_else_stops_the_change_before_it_writes(tmp_path):
    async def test(it):
        async def meddle(moved):
            await it.driver.connect([*PortMap.of([(100, 101)])])
            return []

        it.network.drain = meddle
        record = await it.regroup()
        assert record.state == "refused"
        assert "100>101 is new" in record.message
        assert await it.driver.read_map() == LAB.initial_maps["ocs1"].joined(
            PortMap.of([(100, 101)])
        )

    run(tmp_path, test)


# Starts a change and is killed at a point of it: what a crash leaves in the journal.
_KILLED = """
import asyncio, json, os, signal, sys
from dataclasses import replace
from patchlight.controller.circuits.registry import open_driver
from patchlight.controller.policies.regroup import regroup
from patchlight.controller.changes.transaction import Transactions
from patchlight.controller.store import Store
from patchlight.testbed.labfile.reader import builtin_lab, read_lab

class Network:
    async def follow(self, links):
        return []
    def jobs_using(self, moved):
        return []
    async def drain(self, moved):
        return []
    async def undrain(self):
        pass

async def main(address, store, point, jobs):
    lab = read_lab(builtin_lab("ofc2022"))
    driver = open_driver(replace(lab.circuit_switch("ocs1"), address=address), "")
    await driver.open()
    network = Network()
    reconfigurer = Transactions(lab, {"ocs1": driver}, network, network, Store(store))
    def dying(method):
        async def die(*args):
            if point.startswith("after"):
                await method(*args)
            os.kill(os.getpid(), signal.SIGKILL)
        return die
    owner, name = {"drain": (network, "drain"), "break": (driver, "disconnect"),
                   "make": (driver, "connect"), "undrain": (network, "undrain")}[point.split()[1]]
    setattr(owner, name, dying(getattr(owner, name)))
    await reconfigurer.change(lambda maps: regroup(lab, maps, json.loads(jobs)), "test")

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("point", "state"),
    [
        ("before drain", "rolled-back"),
        ("before break", "rolled-back"),
        ("after break", "rolled-back"),
        ("before make", "rolled-back"),
        ("after make", "committed"),
        ("before undrain", "committed"),
    ],
)
def test_a_killed_controller_is_resumed_to_the_old_map_or_the_new(tmp_path, point, state):
    async def test(it):
        before = await it.driver.read_map()
        killed = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", _KILLED, it.device.switch.address,
             str(tmp_path / "controller.db"), point, json.dumps(JOBS)],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        ended = await it.reconfigurer.resume()
        assert [record.state for record in ended] == [state]
        wanted = regroup(LAB, {"ocs1": before}, JOBS)["ocs1"]
        assert await it.driver.read_map() == (wanted if state == "committed" else before)
        assert it.store.reconfigurations()[-1]["state"] == state
        assert await it.reconfigurer.resume() == []

    run(tmp_path, test)
