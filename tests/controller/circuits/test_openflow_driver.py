"""The driver ``openflow`` against the emulated device, with what goes wrong on the way."""

import asyncio
import os
import signal
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from patchlight.controller.circuits.contract import (
    DeviceUnreachable,
    DirectedPort,
)
from patchlight.controller.circuits.registry import open_driver
from patchlight.controller.packet_switches.openflow.circuit_switch import (
    OpenFlowConnection,
    OpenFlowDialect,
    OpenFlowSwitch,
    hold,
    sweep_folders,
)
from patchlight.testbed.errors import BadInput, OutcomeUnknown
from patchlight.testbed.lab.model import CircuitSwitch
from patchlight.testbed.lab.portmap import PortMap
from tests.support.emulated_devices import Running, lab_file, running
from tests.support.ocs_drivers import FIRST_MAP, circuit, circuits, restore
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.xdist_group("an OCS that dials in")

SOON = OpenFlowDialect(timeout_s=4.0, connect_timeout_s=60.0)


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("openflow")
    lab = lab_file(
        folder,
        driver="openflow",
        initial=("1-7",),
        switching_time="5ms",
        extra=", datapath_id: 0x51",
    )
    with running(folder, lab, "--no-fabric") as running_device:
        yield running_device


@pytest_asyncio.fixture
async def driver(device: Running) -> AsyncIterator[OpenFlowSwitch]:
    opened = OpenFlowSwitch(device.switch, dialect=SOON)
    await opened.open()
    try:
        await restore(opened)  # whatever an earlier test left there
        yield opened
    finally:
        await opened.close()


async def test_it_says_who_it_is_and_its_refusals_are_openflow_s(
    device: Running, driver: OpenFlowSwitch
) -> None:
    said = await driver.identify()
    assert (said.vendor, said.serial, said.name) == (
        "Patchlight",
        "EMU-ocs1",
        "ocs1",
    )
    assert device.fault(refuse_ports=[5], fail_ports=[6])["ok"]
    outcome = await driver.connect(circuits("5>10", "6>11", "8>12", "3>1"))
    words = {str(r.cross_connect): r.words for r in outcome.refused}
    assert "OFPFMFC_EPERM" in words["5>10"]
    assert "OFPFMFC_UNKNOWN" in words["6>11"]
    assert "in use" in words["3>1"]
    assert outcome.done == (circuit("8>12"),)
    assert await driver.read_map() == PortMap.of([*FIRST_MAP, circuit("8>12")])
    states = await driver.port_states()
    assert states[DirectedPort("in", 5)].condition == "locked"
    assert states[DirectedPort("out", 6)].condition == "failed"
    assert states[DirectedPort("in", 8)].condition == "ready"
    standing = {
        a.subject: a.words for a in await driver.alarms() if a.standing
    }
    assert standing.keys() == {"in:5", "out:5", "in:6", "out:6"}
    assert device.fault(refuse_ports=[], fail_ports=[])["ok"]
    assert device.fault(refuse_next="busy")["ok"]
    (refusal,) = (await driver.connect(circuits("9>9"))).refused
    assert "OFPFMFC_EPERM" in refusal.words
    assert (await driver.connect(circuits("9>9"))).complete
    assert circuit("9>9") in await driver.read_map()


async def test_a_cut_or_stalled_change_is_an_unknown_outcome_and_read_again(
    device: Running, driver: OpenFlowSwitch
) -> None:
    for cut, there in (("after", True), ("before", False)):
        assert device.fault(cut=cut)["ok"]
        with pytest.raises(OutcomeUnknown, match="got a command"):
            await driver.connect(circuits("3>9"))
        # It connects again by itself, and its map says what became of it.
        assert (circuit("3>9") in await driver.read_map()) is there
        assert (await driver.disconnect(circuits("3>9"))).complete
    assert device.fault(stall_s=6.0)["ok"]
    with pytest.raises(OutcomeUnknown):
        await driver.connect(circuits("3>9"))
    assert (await driver.connect(circuits("4>10"))).complete
    assert await driver.read_map() == PortMap.of(
        [*FIRST_MAP, circuit("3>9"), circuit("4>10")]
    )


async def test_circuits_that_go_by_themselves_and_reboots_show_in_the_map(
    device: Running, driver: OpenFlowSwitch
) -> None:
    assert device.fault(lose="1>7")["ok"]
    assert await driver.read_map() == PortMap.of([(7, 1)])
    assert device.fault(reboot="keep")["ok"]
    assert await driver.read_map() == PortMap.of([(7, 1)])
    assert device.fault(flood=30, report="port 3 is dark")["ok"]
    await driver.read_map()
    alarms = [alarm.words for alarm in await driver.alarms()]
    assert "the connection ended" in alarms
    assert sum("link down" in words for words in alarms) == 31
    assert device.fault(reboot="forget")["ok"]
    assert await driver.read_map() == PortMap()


async def test_a_speaker_that_dies_takes_no_circuit_with_it(
    driver: OpenFlowSwitch,
) -> None:
    speaker = driver.client.speaker
    assert speaker is not None
    assert speaker.pid is not None
    os.kill(speaker.pid, signal.SIGKILL)
    await eventually(
        lambda: speaker.restarts == 1, "the speaker to be started again"
    )
    assert (await driver.connect(circuits("3>9"))).complete
    assert await driver.read_map() == PortMap.of([*FIRST_MAP, circuit("3>9")])


async def test_a_second_switch_with_the_same_datapath_id_takes_nothing_over(
    tmp_path: Path, device: Running, driver: OpenFlowSwitch
) -> None:
    """Whoever comes while the switch answers is told nothing, and reported."""
    lab = lab_file(
        tmp_path,
        driver="openflow",
        initial=("2-8",),
        extra=", datapath_id: 0x51",
    )
    with running(tmp_path, lab, "--no-fabric", listen=device.switch.address):
        deadline = time.monotonic() + PATIENCE_S
        while not any(
            "is ignored" in alarm.words for alarm in await driver.alarms()
        ):
            assert time.monotonic() < deadline
            assert await driver.read_map() == FIRST_MAP
        assert (await driver.connect(circuits("3>9"))).complete
        assert await driver.read_map() == PortMap.of(
            [*FIRST_MAP, circuit("3>9")]
        )
        (alarm,) = [
            a for a in await driver.alarms() if "is ignored" in a.words
        ]
        assert alarm.severity == "major"
        # The switch itself comes and goes as before.
        assert device.fault(cut="before")["ok"]
        with pytest.raises(OutcomeUnknown):
            await driver.disconnect(circuits("3>9"))


async def test_a_switch_whose_first_connection_is_dead_comes_back(
    tmp_path: Path,
) -> None:
    """The machine was cut off, not the switch: nobody said that the first connection ended."""
    lab = lab_file(
        tmp_path,
        driver="openflow",
        initial=("1-7",),
        extra=", datapath_id: 0x51",
    )
    with running(tmp_path, lab, "--no-fabric") as device:
        driver = OpenFlowSwitch(device.switch, dialect=SOON)
        await driver.open()
        try:
            assert await driver.read_map() == FIRST_MAP
            os.kill(device.process.pid, signal.SIGSTOP)
            again = tmp_path / "again"
            again.mkdir()
            lab = lab_file(
                again,
                driver="openflow",
                initial=("1-7",),
                extra=", datapath_id: 0x51",
            )
            with running(
                again, lab, "--no-fabric", listen=device.switch.address
            ):
                deadline = time.monotonic() + PATIENCE_S
                while True:
                    try:
                        assert await driver.read_map() == FIRST_MAP
                        break
                    except DeviceUnreachable:
                        assert time.monotonic() < deadline
        finally:
            os.kill(device.process.pid, signal.SIGCONT)
            await driver.close()


async def test_ports_may_be_numbered_apart(
    device: Running, driver: OpenFlowSwitch
) -> None:
    """Inputs from 1, outputs from 17 on, as some vendors count: 16 ports of the 32."""
    await driver.close()
    switch = replace(device.switch, ports=16)
    apart = OpenFlowSwitch(switch, dialect=replace(SOON, out_base=16))
    await apart.open()
    try:
        # 1>7 and 7>1 lead from inputs to inputs here: no cross-connects of such a switch.
        assert await apart.read_map() == PortMap()
        assert (await apart.connect(circuits("3>3"))).complete
        assert await apart.read_map() == PortMap.of([(3, 3)])
        # What is no cross-connect keeps its ports.
        (refusal,) = (await apart.connect(circuits("1>5"))).refused
        assert "another application" in refusal.words
    finally:
        await apart.close()
    await driver.open()
    assert await driver.read_map() == PortMap.of([*FIRST_MAP, (3, 19)])


async def test_who_does_not_come_is_told_of_with_what_to_do(
    device: Running,
) -> None:
    async def refused(driver: OpenFlowSwitch) -> DeviceUnreachable:
        with pytest.raises(DeviceUnreachable) as caught:
            await driver.open()
        await driver.close()
        return caught.value

    quick = OpenFlowDialect(connect_timeout_s=1.0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        switch = replace(device.switch, address=address)
        error = await refused(OpenFlowSwitch(switch, dialect=quick))
        assert f"(pid {os.getpid()})" in error.message
    error = await refused(OpenFlowSwitch(switch, dialect=quick))
    assert f"did not connect to {address} within 1 s" in error.message
    assert f"tcp:{address}" in str(error.hint)
    other = replace(device.switch, datapath_id=0x52)
    # The device comes sooner or later, on a busy machine later.
    for wait_s in (3.0, 10.0, 30.0):
        dialect = OpenFlowDialect(connect_timeout_s=wait_s)
        error = await refused(OpenFlowSwitch(other, dialect=dialect))
        if "datapath id 0x51 connected instead of 0x52" in error.message:
            break
    else:
        pytest.fail(error.message)
    with pytest.raises(BadInput, match="needs the switch's datapath id"):
        open_driver(replace(device.switch, datapath_id=None))


def test_folders_that_killed_processes_left_are_swept_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, held, young, foreign = (
        tmp_path / name
        for name in (
            "patchlight-of-left",
            "patchlight-of-held",
            "patchlight-of-young",
            "other",
        )
    )
    for folder in (left, held, young, foreign):
        folder.mkdir()
        (folder / "speaker.sock").touch()
    for folder in (left, held, foreign):
        os.utime(folder, (1, 1))
    descriptor = hold(held)
    sweep_folders(Path(tempfile.gettempdir()))
    assert sorted(tmp_path.iterdir()) == sorted([held, young, foreign])
    os.close(descriptor)
    sweep_folders(Path(tempfile.gettempdir()))
    assert sorted(tmp_path.iterdir()) == sorted([young, foreign])


async def test_closing_does_not_wait_for_a_switch_that_does_not_come() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    switch = CircuitSwitch("ocs1", "openflow", address, 32, datapath_id=0x51)
    connection = OpenFlowConnection(switch, SOON, lambda event: None)
    opening = asyncio.create_task(connection.open())
    deadline = time.monotonic() + PATIENCE_S
    while connection.speaker is None:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)  # the pause between two looks
    await connection.close()
    with pytest.raises(DeviceUnreachable, match="being closed"):
        await opening
    assert time.monotonic() < deadline
