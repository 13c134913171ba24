"""The client that a change's cost is compared with does what the change did."""

import asyncio
from pathlib import Path

import pytest

from patchlight.controller.circuits.registry import open_driver
from patchlight.controller.storage.store import Store
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.labfile.reader import read_lab
from tests.support.bare_client import ANSWERED, BareClient, RecordingLoop
from tests.support.change_bench import CircuitsOf
from tests.support.emulated_devices import Running, lab_file, running

SWITCHING_S = 0.02
MAPS = [
    PortMap.duplex(pairs)
    for pairs in ([(1, 7), (2, 8)], [(1, 8), (2, 9), (3, 7)])
]


@pytest.mark.parametrize("driver", ANSWERED)
def test_a_bare_client_makes_the_same_changes(
    tmp_path: Path, driver: str
) -> None:
    file = lab_file(
        tmp_path, driver=driver, switching_time="20ms", initial=MAPS[0].texts
    )
    with (
        running(tmp_path, file, "--no-fabric") as device,
        asyncio.Runner(loop_factory=RecordingLoop) as runner,
    ):
        runner.run(
            _there_and_back(read_lab(file), device, tmp_path / "synced")
        )
    assert (tmp_path / "synced").read_bytes() == b"journaljournal"


async def _there_and_back(lab: Lab, device: Running, synced: Path) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, RecordingLoop)
    driver = open_driver(device.switch)
    await driver.open()
    bare = BareClient(
        device.switch.driver,
        device.switch.address,
        loop.take_sent()[:1],
        synced,
    )
    circuits = CircuitsOf(lab, {"ocs1": driver}, Store(":memory:"))
    sent = []
    for wanted in (MAPS[1], MAPS[0]):
        loop.take_sent()
        record = await circuits.change(
            lambda _, wanted=wanted: {"ocs1": wanted},  # type: ignore[misc]
            "test",
        )
        assert record.state == "committed", record.message
        sent.append(loop.take_sent())
    for wanted, commands in zip((MAPS[1], MAPS[0]), sent, strict=True):
        bare.drop_unread()
        bare.replay(commands, b"journal", SWITCHING_S)
        assert await driver.read_map() == wanted
    bare.close()
    await driver.close()
