"""What a lab file declares of an emulated OCS: faults in their time, users, habits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from patchlight.controller.circuits.contract import DeviceRefused, LoginRefused
from patchlight.controller.circuits.drivers.calient.table import read_circuit
from patchlight.controller.circuits.protocols.http.trust import PINS_VARIABLE
from patchlight.controller.circuits.protocols.ssh.host_keys import FILE_VARIABLE
from patchlight.controller.circuits.protocols.tl1.dialects import CALIENT
from patchlight.controller.circuits.registry import open_driver
from patchlight.emulation.optical.faults import Faults
from patchlight.testbed.errors import OutcomeUnknown, PatchlightError
from patchlight.testbed.lab import CircuitSwitch
from patchlight.testbed.labfile.emulated_schema import FAULT, TRIGGERS
from patchlight.testbed.portmap import CrossConnect, PortMap
from tests.support.emulated_devices import lab_file, running

WITH_USERS = {
    "calient-tl1": "this user may only look",
    "calient-rest": "this user may only look",
    "polatis-tl1": "this user may only look",
    "polatis-netconf": "this user may only look",
    "polatis-restconf": "this user may only look",
    "glimmerglass-tl1": "this user may only look",
    "telescent-ssh": "permission denied",
}


@pytest.fixture(autouse=True)
def _own_pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PINS_VARIABLE, str(tmp_path / "tls-pins"))
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "known_hosts"))


def one(text: str) -> CrossConnect:
    inp, _, out = text.partition(">")
    return CrossConnect(int(inp), int(out))


def drive(switch: CircuitSwitch, act: Callable[[Any], Awaitable[None]], password: str = "") -> None:
    async def go() -> None:
        driver = open_driver(switch, password)
        await driver.open()
        try:
            await act(driver)
        finally:
            await driver.close()

    asyncio.run(go())


def test_the_lab_file_s_faults_are_those_of_the_control_socket() -> None:
    written = {key.name for key in FAULT.group.keys} - set(TRIGGERS)
    assert written == {f.name for f in fields(Faults)} | {"report", "lose", "reboot"}


def test_faults_come_in_their_time(tmp_path: Path) -> None:
    declared = (
        ", emulated: {faults: [{refuse_ports: [9]}, {refuse_next: not now, after_changes: 2}, "
        "{cut: before, after_changes: 3}, {lose: '1>7', after: 1500ms}]}"
    )
    lab = lab_file(tmp_path, driver="polatis-scpi", initial=("1-7",), extra=declared)

    async def act(driver: Any) -> None:
        assert await driver.read_map() == PortMap.of([(1, 7), (7, 1)])
        (locked,) = (await driver.connect([one("9>9")])).refused
        assert locked.words
        assert (await driver.connect([one("3>9")])).complete is False
        (now,) = (await driver.connect([one("4>10")])).refused
        assert "not now" in now.words
        with pytest.raises(OutcomeUnknown):
            await driver.connect([one("5>11")])
        assert (await driver.connect([one("5>11")])).complete
        deadline = time.monotonic() + 5
        while one("1>7") in await driver.read_map():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        assert await driver.read_map() == PortMap.of([(7, 1), (5, 11)])

    with running(tmp_path, lab, "--no-fabric") as device:
        drive(device.switch, act)


@pytest.mark.parametrize("driver", WITH_USERS)
def test_a_read_only_user_looks_and_is_refused_to_change(driver: str, tmp_path: Path) -> None:
    declared = (
        ", emulated: {users: [{name: viewer, password_env: VIEWER_PW, read_only: true}, "
        "{name: second}]}"
    )
    lab = lab_file(tmp_path, driver=driver, initial=("1-7",), switching_time="1ms", extra=declared)
    first_map = PortMap.of([(1, 7), (7, 1)])

    async def only_looks(device: Any) -> None:
        assert await device.read_map() == first_map
        await device.port_states()
        for change in (device.connect([one("3>9")]), device.disconnect([one("1>7")])):
            try:
                words = (await change).refused[0].words
            except DeviceRefused as refusal:
                words = refusal.words
            assert WITH_USERS[driver] in words
        assert await device.read_map() == first_map

    async def changes(device: Any) -> None:
        assert (await device.connect([one("3>9")])).complete

    with running(tmp_path, lab, "--no-fabric", VIEWER_PW="s3cret") as device:
        viewer = replace(device.switch, user="viewer")
        drive(viewer, only_looks, "s3cret")
        with pytest.raises(PatchlightError) as wrong:
            drive(viewer, only_looks, "hush")
        assert isinstance(wrong.value, LoginRefused)
        drive(replace(device.switch, user="second"), changes, "anything")


@pytest.mark.parametrize("seconds", [None, 0.5])
def test_a_calient_refuses_a_busy_port_or_makes_room_slowly(
    seconds: float | None, tmp_path: Path
) -> None:
    """Told by hand: our driver never asks a device to make room."""
    declared = "" if seconds is None else f", emulated: {{conflict_time: {seconds:g}s}}"
    lab = lab_file(
        tmp_path,
        driver="calient-tl1",
        initial=("1>7", "2>8"),
        switching_time="200ms",
        extra=declared,
    )

    async def act(driver: Any) -> None:
        tell = driver.client.command
        began = time.monotonic()
        reply = await tell("ENT-CRS-BULK::1.1.1>1.1.8&1.1.5>1.1.6:{ctag};", changes=True)
        assert reply.code == ("COMPLD" if seconds else "PRTL")
        assert seconds or "in use" in reply.words
        lit: dict[CrossConnect, float] = {}
        wanted = {one("5>6")} | ({one("1>8")} if seconds else set())
        while wanted - lit.keys():
            assert time.monotonic() < began + 5
            await asyncio.sleep(0.01)
            lines = (await tell(CALIENT.retrieve_all)).lines
            now = time.monotonic() - began
            for row in (read_circuit(CALIENT, line) for line in lines):
                if row is not None and row.state == "up":
                    lit.update({c: now for c in row.directions if c not in lit})
        assert 0.15 < lit[one("5>6")] < 0.45
        if seconds:
            assert lit[one("1>8")] > 0.45
            assert await driver.read_map() == PortMap.of([(1, 8), (5, 6)])
            # For what cannot be, nothing goes.
            assert device.fault(refuse_ports=[9])["ok"]
            with pytest.raises(DeviceRefused, match="locked"):
                await tell("ENT-CRS::1.1.1,1.2.1:{ctag}::SYSTEM,1WAY;", changes=True)
            assert one("1>8") in await driver.read_map()
        else:
            assert await driver.read_map() == PortMap.of([(1, 7), (2, 8), (5, 6)])
        # Breaking first and making then takes the switching time alone, on either.
        began = time.monotonic()
        assert (await driver.disconnect([one("5>6")])).complete
        assert (await driver.connect([one("5>10")])).complete
        assert time.monotonic() - began < 0.45

    with running(tmp_path, lab, "--no-fabric") as device:
        drive(device.switch, act)


@pytest.mark.parametrize("driver", ["calient-tl1", "polatis-tl1", "glimmerglass-tl1"])
def test_alarms_that_stand_are_told_to_who_comes_later(driver: str, tmp_path: Path) -> None:
    lab = lab_file(tmp_path, driver=driver, extra=", emulated: {faults: [{fail_ports: [3]}]}")

    async def standing(device: Any, wanted: set[str]) -> None:
        deadline = time.monotonic() + 6
        while True:
            alarms = [alarm for alarm in await device.alarms() if alarm.standing]
            if {alarm.words.rpartition(":")[2] for alarm in alarms} == wanted:
                break
            assert time.monotonic() < deadline, alarms
            await asyncio.sleep(0.1)
        assert all(a.severity == "critical" for a in alarms if "mirror stuck" in a.words)

    async def hears_and_asks(device: Any) -> None:
        await standing(device, {"mirror stuck", "hot"})
        assert running_device.fault(report="A EQPT: FAN1: cool again")["ok"]
        assert running_device.fault(report="** EQPT: PSU1: power supply lost")["ok"]
        await standing(device, {"mirror stuck", " power supply lost"})
        words = [alarm.words for alarm in await device.alarms()]
        # It was reported, and it stands: one alarm.
        assert sum("power supply lost" in text for text in words) == 1
        # What stands no more was there all the same.
        assert sum("hot" in text for text in words) == 1

    with running(tmp_path, lab, "--no-fabric") as running_device:
        assert running_device.fault(report="*C EQPT: FAN1: CR,HITEMP,SA,,,,:hot")["ok"]
        drive(running_device.switch, hears_and_asks)
