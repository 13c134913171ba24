"""Drivers of devices that make a cross-connect in one step, where things go wrong."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from patchlight.controller.circuits.contract import DeviceUnreachable, DirectedPort, LoginRefused
from patchlight.controller.circuits.drivers.polatis.scpi import PolatisScpi
from patchlight.controller.circuits.registry import open_driver
from patchlight.testbed.errors import OutcomeUnknown
from patchlight.testbed.portmap import CrossConnect, PortMap
from tests.support.emulated_devices import Running, lab_file, running

DRIVERS = ("polatis-scpi", "polatis-tl1", "glimmerglass-tl1")
FIRST_MAP = PortMap.duplex([(1, 7)])
CALM: dict[str, Any] = {
    "refuse_ports": [], "fail_ports": [], "drift_db": {}, "read_only": False, "acknowledge": False,
    "refuse_next": "", "cut": "", "stall_s": 0.0, "garble": 0, "answer_twice": 0, "flood": 0,
}  # fmt: skip

Act = Callable[[Any], Awaitable[None]]


@pytest.fixture(scope="module", params=DRIVERS)
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("ocs")
    lab = lab_file(folder, driver=request.param, ports=96, initial=("1-7",))
    with running(folder, lab, "--no-fabric") as device:
        yield device


@pytest.fixture
def device(shared: Running) -> Iterator[Running]:
    """The shared device with its first map and without faults, before and after."""

    async def first_map(driver: Any) -> None:
        change = (await driver.read_map()).diff(FIRST_MAP)
        assert (await driver.disconnect(change.breaks)).complete
        assert (await driver.connect(change.makes)).complete

    assert shared.fault(**CALM)["ok"]
    drive(shared, first_map)
    yield shared
    assert shared.fault(**CALM)["ok"]


def drive(device: Running, act: Act, timeout_s: float = 5.0) -> None:
    async def go() -> None:
        driver: Any = open_driver(device.switch, "pw")
        driver._client._session = replace(driver._client._session, timeout_s=timeout_s)
        await driver.open()
        try:
            await act(driver)
        finally:
            await driver.close()

    asyncio.run(go())


def one(text: str) -> CrossConnect:
    inp, _, out = text.partition(">")
    return CrossConnect(int(inp), int(out))


def test_a_locked_port_is_refused_in_the_device_s_own_words(device: Running) -> None:
    device.fault(refuse_ports=[9])
    words = {
        "polatis-scpi": '-221,"Settings conflict;port 105 is disabled"',
        "polatis-tl1": "Port 105 is disabled",
        "glimmerglass-tl1": "Port 20009 is locked",
    }[device.switch.driver]

    async def act(driver: Any) -> None:
        for pairs in ([one("3>9")], [one("4>10"), one("3>9"), one("5>1")]):
            outcome = await driver.connect(pairs)
            said = {str(r.cross_connect): r.words for r in outcome.refused}
            assert words in said["3>9"]
        assert said["5>1"] == "out:1 is in use on the device: 7>1"
        assert outcome.done == (one("4>10"),)
        assert await driver.read_map() == PortMap.of([*FIRST_MAP, (4, 10)])

    drive(device, act)


def test_a_stuck_mirror_is_refused_and_cleared(device: Running) -> None:
    device.fault(fail_ports=[10])

    async def act(driver: Any) -> None:
        for pairs in ([one("4>10")], [one("4>10"), one("5>11")]):
            outcome = await driver.connect(pairs)
            assert [str(r.cross_connect) for r in outcome.refused] == ["4>10"]
            assert "fail" in outcome.refused[0].words
        assert await driver.read_map() == PortMap.of([*FIRST_MAP, (5, 11)])
        states = await driver.port_states()
        assert {p.number for p, state in states.items() if state.condition == "failed"} == {10}
        # What failed holds no port.
        assert (await driver.connect([one("4>12")])).complete

    drive(device, act)


def test_a_whole_list_refused_is_tried_singly(device: Running) -> None:
    async def act(driver: Any) -> None:
        device.fault(refuse_next="busy saving")
        assert (await driver.connect([one("3>9"), one("4>10")])).complete
        device.fault(refuse_next="busy saving")
        assert (await driver.disconnect([one("3>9"), one("4>10")])).complete
        assert await driver.read_map() == FIRST_MAP
        device.fault(refuse_next="busy saving")
        (refusal,) = (await driver.connect([one("3>9")])).refused
        assert "busy saving" in refusal.words

    drive(device, act)


def test_a_user_who_may_only_look(device: Running) -> None:
    device.fault(read_only=True)

    async def act(driver: Any) -> None:
        (refusal,) = (await driver.connect([one("3>9")])).refused
        assert "protected" in refusal.words or "only look" in refusal.words
        assert not (await driver.disconnect([one("1>7")])).complete
        assert await driver.read_map() == FIRST_MAP

    drive(device, act)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_lost_connection_is_an_unknown_outcome(device: Running, when: str) -> None:
    async def act(driver: Any) -> None:
        device.fault(cut=when)
        with pytest.raises(OutcomeUnknown, match="closed") as caught:
            await driver.connect([one("3>9"), one("4>10")])
        assert caught.value.exit_code == 3
        # The driver is usable at once, and tells what is so.
        assert (one("3>9") in await driver.read_map()) == (when == "after")
        assert (await driver.connect([one("3>9"), one("4>10")])).complete
        device.fault(cut=when)
        with pytest.raises(OutcomeUnknown):
            await driver.disconnect([one("3>9")])
        assert (one("3>9") in await driver.read_map()) == (when == "before")

    drive(device, act)


def test_silence_is_an_unknown_outcome(device: Running) -> None:
    async def act(driver: Any) -> None:
        device.fault(stall_s=0.6)
        began = time.monotonic()
        with pytest.raises(OutcomeUnknown, match=r"nothing came back within 0\.3 s"):
            await driver.connect([one("3>9")])
        assert time.monotonic() - began < 2
        # The device does it later all the same; no answer to it is mistaken for another's.
        deadline = time.monotonic() + 5
        while one("3>9") not in await driver.read_map():
            assert time.monotonic() < deadline
        assert (await driver.disconnect([one("3>9")])).complete

    drive(device, act, timeout_s=0.3)


def test_garbled_and_doubled_answers_never_make_a_wrong_map(device: Running) -> None:
    async def act(driver: Any) -> None:
        for faults in ({"garble": 1}, {"answer_twice": 2}, {"garble": 1, "answer_twice": 1}):
            for n in (20, 21):
                device.fault(**faults)
                known = True
                try:
                    assert (await driver.connect([CrossConnect(n, n)])).complete
                except (OutcomeUnknown, DeviceUnreachable):
                    known = False
                device.fault(**CALM)
                try:
                    now = await driver.read_map()
                except DeviceUnreachable:
                    now = await driver.read_map()
                assert now in (FIRST_MAP, PortMap.of([*FIRST_MAP, (n, n)]))
                if known:
                    assert CrossConnect(n, n) in now
                assert (await driver.disconnect([CrossConnect(n, n)])).complete

    drive(device, act, timeout_s=0.3)


def test_a_flood_of_alarms_is_heard_and_bounded(device: Running) -> None:
    async def act(driver: Any) -> None:
        device.fault(flood=3000)
        assert await driver.read_map() == FIRST_MAP
        assert (await driver.connect([one("3>9")])).complete
        alarms = await driver.alarms()
        assert 0 < len(alarms) <= 1000
        assert any("FLOOD" in a.words or "Alarm" in a.words for a in alarms)
        assert device.fault(report=f"*C EQPT: 7: {'long ' * 1000}")["ok"]
        assert device.fault(report="*C EQPT: 7: PWR below limit")["ok"]
        deadline = time.monotonic() + 5
        while "PWR below limit" not in (await driver.alarms())[-1].words:
            assert time.monotonic() < deadline
            await driver.read_map()
        assert max(len(alarm.words) for alarm in await driver.alarms()) == 500

    drive(device, act)


def test_a_lost_cross_connect_and_reboots_are_read(device: Running) -> None:
    async def act(driver: Any) -> None:
        assert (await driver.connect([one("3>9")])).complete
        assert device.fault(lose="3>9")["ok"]
        assert await driver.read_map() == FIRST_MAP
        assert device.fault(reboot="keep")["ok"]
        assert await driver.read_map() == FIRST_MAP
        assert device.fault(reboot="forget")["ok"]
        assert await driver.read_map() == PortMap()
        assert not device.fault(reboot="perhaps")["ok"]
        assert (await driver.connect(FIRST_MAP)).complete

    drive(device, act)


def test_power_drifts(device: Running) -> None:
    async def act(driver: Any) -> None:
        out = DirectedPort("out", 7)
        before = (await driver.power([out]))[out]
        assert before is not None
        device.fault(drift_db={"7": 4.5})
        assert (await driver.power([out]))[out] == pytest.approx(before - 4.5, abs=0.11)

    drive(device, act)


def test_many_ports_are_asked_for_within_the_device_s_limits(device: Running) -> None:
    async def act(driver: Any) -> None:
        ports = [DirectedPort(side, n) for side in ("in", "out") for n in range(1, 97)]
        found = await driver.power([*ports, *ports])
        assert list(found) == sorted(ports)
        lit = {str(port) for port, dbm in found.items() if dbm is not None}
        assert lit == {"in:1", "out:7"}
        assert len(await driver.port_states()) == 192
        wanted = [CrossConnect(n, 97 - n) for n in range(8, 89)]
        assert (await driver.connect(wanted)).complete
        assert (await driver.disconnect(wanted)).complete

    drive(device, act)


def test_a_device_that_went_is_unreachable_and_its_return_is_noticed(
    device: Running, tmp_path: Path
) -> None:
    lab = lab_file(tmp_path, driver=device.switch.driver, initial=("1-7",))
    state = ("--state", str(tmp_path / "state"), "--no-fabric")

    async def act() -> None:
        with running(tmp_path, lab, *state) as first:
            driver: Any = open_driver(first.switch, "")
            await driver.open()
            assert (await driver.connect([one("3>9")])).complete
            first.kill()
        with pytest.raises(DeviceUnreachable, match=r"ocs1 at 127\.0\.0\.1"):
            await driver.read_map()
        with pytest.raises(DeviceUnreachable):
            await driver.connect([one("4>10")])
        with running(tmp_path, lab, *state, listen=first.switch.address):
            assert await driver.read_map() == PortMap.of([*FIRST_MAP, (3, 9)])
            await driver.close()

    asyncio.run(act())


def test_what_answers_but_speaks_something_else(device: Running) -> None:
    async def chatter(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
        except ConnectionError:
            writer.close()

    async def go() -> None:
        server = await asyncio.start_server(chatter, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        driver = open_driver(replace(device.switch, address=f"127.0.0.1:{port}"), "")
        with pytest.raises(DeviceUnreachable, match="came without the end of a"):
            await driver.open()
        await driver.close()
        server.close()

    asyncio.run(go())


def test_ports_are_switched_off_and_on(device: Running) -> None:
    async def act(driver: Any) -> None:
        if not driver.capabilities.port_enable:
            return
        ports = [DirectedPort("in", 1), DirectedPort("out", 40)]
        out = DirectedPort("out", 7)
        await driver.enable(ports, on=False)
        states = await driver.port_states()
        assert {p for p, state in states.items() if state.condition == "locked"} == set(ports)
        assert (await driver.power([out]))[out] is None
        assert not (await driver.connect([one("4>40")])).complete
        await driver.enable(ports, on=True)
        assert (await driver.power([out]))[out] is not None
        assert (await driver.connect([one("4>40")])).complete

    drive(device, act)


def test_the_whole_map_is_replaced_only_when_asked_for(device: Running) -> None:
    async def act(driver: Any) -> None:
        if not isinstance(driver, PolatisScpi):
            assert not driver.capabilities.atomic_replace
            return
        wanted = PortMap.of([(1, 7), (4, 5)])
        await driver.replace_map(wanted)
        assert await driver.read_map() == wanted

    drive(device, act)


def test_a_password_is_in_no_log_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A unit with a login over SCPI, as a corrected dialect says."""
    (tmp_path / "polatis-scpi.toml").write_text('login = ":syst:login {user},{password}"\n')
    monkeypatch.setenv("PATCHLIGHT_DIALECTS", str(tmp_path))
    lab = lab_file(tmp_path, driver="polatis-scpi")

    async def act(device: Running) -> None:
        driver = open_driver(device.switch, "hush-hush")
        with pytest.raises(LoginRefused, match="Undefined header") as caught:
            await driver.open()
        assert "hush-hush" not in str(caught.value)
        assert "hush-hush" not in caught.value.words
        await driver.close()

    caplog.set_level(logging.DEBUG)
    with running(tmp_path, lab, "--no-fabric") as device:
        asyncio.run(act(device))
    assert ":syst:login admin,****" in caplog.text
    assert "hush-hush" not in caplog.text
