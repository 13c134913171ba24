"""The client that a change over gNMI is compared with does what the change did."""

from pathlib import Path

import pytest

from patchlight.controller.circuits.protocols.http import PINS_VARIABLE
from patchlight.controller.storage.store import Store
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.labfile.reader import read_lab
from tests.support.bare_gnmi import BareGnmi, RecordingDriver
from tests.support.change_bench import CircuitsOf
from tests.support.emulated_devices import lab_file, running

SWITCHING_S = 0.02
MAPS = [
    PortMap.duplex(pairs)
    for pairs in ([(1, 7), (2, 8)], [(1, 8), (2, 9), (3, 7)])
]


async def test_a_bare_client_makes_the_same_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PINS_VARIABLE, str(tmp_path / "tls-pins"))
    file = lab_file(
        tmp_path,
        driver="ocp-gnmi",
        switching_time="20ms",
        initial=MAPS[0].texts,
    )
    with running(tmp_path, file, "--no-fabric") as device:
        driver = RecordingDriver(device.switch, "")
        await driver.open()
        bare = BareGnmi(device.switch.address, tmp_path / "synced")
        circuits = CircuitsOf(
            read_lab(file), {"ocs1": driver}, Store(":memory:")
        )
        sent = []
        for wanted in (MAPS[1], MAPS[0]):
            driver.client.take_sent()
            record = await circuits.change(
                lambda _, wanted=wanted: {"ocs1": wanted},  # type: ignore[misc]
                "test",
            )
            assert record.state == "committed", record.message
            calls = driver.client.take_sent()
            # One that breaks and one that makes.
            assert [method for method, *_ in calls].count("Set") == 2
            sent.append(calls)
        for wanted, calls in zip((MAPS[1], MAPS[0]), sent, strict=True):
            requests = bare.prepared(calls, driver.client.ports)
            bare.replay(requests, b"journal", SWITCHING_S)
            assert await driver.read_map() == wanted
        bare.close()
        await driver.close()
    assert (tmp_path / "synced").read_bytes() == b"journaljournal"
