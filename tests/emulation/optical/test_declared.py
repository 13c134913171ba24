"""What a lab file declares of an emulated OCS: faults in their time, users, habits."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from pathlib import Path

import pytest

from patchlight.controller.circuits.contract import (
    CircuitDriver,
    DeviceRefused,
    LoginRefused,
)
from patchlight.controller.circuits.protocols.http import PINS_VARIABLE
from patchlight.controller.circuits.protocols.ssh import FILE_VARIABLE
from patchlight.controller.circuits.registry import open_driver
from patchlight.emulation.optical.emulated_switch import EmulatedFaults
from patchlight.testbed.errors import OutcomeUnknown
from patchlight.testbed.lab.model import CircuitSwitch
from patchlight.testbed.lab.ocs_drivers import OCS_DRIVERS
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.labfile.optical_schema import TRIGGERS, FaultKeys
from patchlight.testbed.labfile.reader import read_lab
from tests.support.emulated_devices import lab_file, running
from tests.support.ocs_drivers import circuit
from tests.support.protocol_session import client, serving
from tests.support.waiting import eventually

REFUSES_VIEWERS = {"telescent-ssh": "permission denied"}
WITH_USERS = [
    row.name for row in OCS_DRIVERS.values() if row.device and row.has_users
]


@pytest.fixture(autouse=True)
def _own_pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PINS_VARIABLE, str(tmp_path / "tls-pins"))
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "known_hosts"))


@asynccontextmanager
async def opened(
    switch: CircuitSwitch, password: str = ""
) -> AsyncIterator[CircuitDriver]:
    driver = open_driver(switch, password)
    try:
        await driver.open()
        yield driver
    finally:
        await driver.close()


def test_the_lab_file_s_faults_are_those_of_the_control_socket() -> None:
    written = set(FaultKeys.field_of) - set(TRIGGERS)
    assert written == {f.name for f in fields(EmulatedFaults)} | {
        "report",
        "lose",
        "reboot",
    }


async def test_faults_come_in_their_time(tmp_path: Path) -> None:
    declared = (
        ", emulated: {faults: [{refuse_ports: [9]}, {refuse_next: not now, after_changes: 2}, "
        "{cut: before, after_changes: 3}, {lose: '1>7', after: 5s}]}"
    )
    lab = lab_file(
        tmp_path, driver="polatis-scpi", initial=("1-7",), extra=declared
    )

    with running(tmp_path, lab, "--no-fabric") as device:
        async with opened(device.switch) as driver:
            assert await driver.read_map() == PortMap.of([(1, 7), (7, 1)])
            (locked,) = (await driver.connect([circuit("9>9")])).refused
            assert locked.words
            assert (await driver.connect([circuit("3>9")])).complete is False
            (now,) = (await driver.connect([circuit("4>10")])).refused
            assert "not now" in now.words
            with pytest.raises(OutcomeUnknown):
                await driver.connect([circuit("5>11")])
            assert (await driver.connect([circuit("5>11")])).complete
            wanted = PortMap.of([(7, 1), (5, 11)])

            async def is_lost() -> bool:
                return await driver.read_map() == wanted

            await eventually(is_lost, "the circuit 1>7 to be lost")


@pytest.mark.parametrize("driver", WITH_USERS)
async def test_a_read_only_user_looks_and_is_refused_to_change(
    driver: str, tmp_path: Path
) -> None:
    declared = (
        ", emulated: {users: [{name: viewer, password_env: VIEWER_PW, read_only: true}, "
        "{name: second}]}"
    )
    lab = lab_file(
        tmp_path,
        driver=driver,
        initial=("1-7",),
        switching_time="1ms",
        extra=declared,
    )
    first_map = PortMap.of([(1, 7), (7, 1)])
    with running(tmp_path, lab, "--no-fabric", VIEWER_PW="s3cret") as device:
        viewer = replace(device.switch, user="viewer")
        async with opened(viewer, "s3cret") as looking:
            assert await looking.read_map() == first_map
            await looking.port_states()
            for change in (
                looking.connect([circuit("3>9")]),
                looking.disconnect([circuit("1>7")]),
            ):
                try:
                    words = (await change).refused[0].words
                except DeviceRefused as refusal:
                    words = refusal.words
                assert (
                    REFUSES_VIEWERS.get(driver, "this user may only look")
                    in words
                )
            assert await looking.read_map() == first_map
        with pytest.raises(LoginRefused):
            async with opened(viewer, "hush"):
                pass
        async with opened(
            replace(device.switch, user="second"), "anything"
        ) as changing:
            assert (await changing.connect([circuit("3>9")])).complete


@pytest.mark.parametrize("seconds", [None, 2])
async def test_a_calient_refuses_a_busy_port_or_makes_room_slowly(
    seconds: float | None, tmp_path: Path
) -> None:
    """Told by hand: our driver never asks a device to make room."""
    declared = (
        ""
        if seconds is None
        else f", emulated: {{conflict_time: {seconds:g}s}}"
    )
    lab = lab_file(
        tmp_path,
        initial=("1>7", "2>8"),
        switching_time="200ms",
        extra=declared,
    )
    switch = read_lab(lab).circuit_switch("ocs1")
    async with serving(switch) as (_, device, port), client(port) as say:
        began = time.monotonic()
        reply = await say("ENT-CRS-BULK::1.1.1>1.1.8&1.1.5>1.1.6:3;")
        assert ("M  3 COMPLD" if seconds else "M  3 PRTL") in reply
        assert seconds or "in use" in reply
        lit: dict[str, float] = {}
        entered = ["1.1.5>1.1.6", *(["1.1.1>1.1.8"] if seconds else [])]

        async def all_lit() -> bool:
            for name in entered:
                ports = name.replace(">", ",")
                if "AS=IS,OS=IS,OC=OK" in await say(
                    f"RTRV-CRS::{ports}:4::{name};"
                ):
                    lit.setdefault(name, time.monotonic() - began)
            return len(lit) == len(entered)

        await eventually(all_lit, "all to be lit")
        assert lit["1.1.5>1.1.6"] > 0.15
        if seconds:
            assert list(lit) == entered
            assert lit["1.1.1>1.1.8"] > 1.95
            assert device.map == PortMap.of([(1, 8), (5, 6)])
            # For what cannot be, nothing goes.
            device.faults.refuse_ports = [9]
            await device.faults_changed()
            assert "locked" in await say(
                "ENT-CRS::1.1.1,1.2.1:5::SYSTEM,1WAY;"
            )
            assert circuit("1>8") in device.map
        else:
            assert device.map == PortMap.of([(1, 7), (2, 8), (5, 6)])
        # Our driver breaks first and makes then, on either.
        async with opened(
            replace(switch, address=f"127.0.0.1:{port}"), "pw"
        ) as driver:
            assert await driver.read_map() == device.map
            assert (await driver.disconnect([circuit("5>6")])).complete
            assert (await driver.connect([circuit("5>10")])).complete


@pytest.mark.parametrize(
    "driver", ["calient-tl1", "polatis-tl1", "glimmerglass-tl1"]
)
async def test_alarms_that_stand_are_told_to_who_comes_later(
    driver: str, tmp_path: Path
) -> None:
    lab = lab_file(
        tmp_path,
        driver=driver,
        extra=", emulated: {faults: [{fail_ports: [3]}]}",
    )
    with running(tmp_path, lab, "--no-fabric") as device:
        assert device.fault(report="*C EQPT: FAN1: CR,HITEMP,SA,,,,:hot")["ok"]
        async with opened(device.switch) as listening:
            await _until_standing(listening, {"mirror stuck", "hot"})
            assert device.fault(report="A EQPT: FAN1: cool again")["ok"]
            assert device.fault(report="** EQPT: PSU1: power supply lost")[
                "ok"
            ]
            await _until_standing(
                listening, {"mirror stuck", " power supply lost"}
            )
            words = [alarm.words for alarm in await listening.alarms()]
            # It was reported, and it stands: one alarm.
            assert sum("power supply lost" in text for text in words) == 1
            # What stands no more was there all the same.
            assert sum("hot" in text for text in words) == 1


async def _until_standing(driver: CircuitDriver, expected: set[str]) -> None:
    async def stand() -> bool:
        alarms = [alarm for alarm in await driver.alarms() if alarm.standing]
        assert all(
            a.severity == "critical"
            for a in alarms
            if "mirror stuck" in a.words
        )
        return {alarm.words.rpartition(":")[2] for alarm in alarms} == expected

    await eventually(stand, f"{expected} to stand")
