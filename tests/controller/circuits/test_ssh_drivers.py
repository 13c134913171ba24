"""Drivers over SSH where things go wrong: logins, host keys, faults of the device."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from patchlight.controller.circuits.contract import DeviceUnreachable, DirectedPort, LoginRefused
from patchlight.controller.circuits.protocols.ssh.host_keys import HostKeyRefused
from patchlight.controller.circuits.registry import open_driver
from patchlight.testbed.errors import OutcomeUnknown, PatchlightError
from patchlight.testbed.portmap import CrossConnect, PortMap
from tests.support.emulated_devices import Running, lab_file, running

DRIVERS = ("polatis-netconf", "telescent-ssh")
FIRST_MAP = PortMap.duplex([(1, 7)])
CALM: dict[str, Any] = {
    "refuse_ports": [], "fail_ports": [], "drift_db": {}, "read_only": False,
    "refuse_next": "", "cut": "", "stall_s": 0.0, "garble": 0, "answer_twice": 0, "flood": 0,
}  # fmt: skip

Act = Callable[[Any], Awaitable[None]]


@pytest.fixture(scope="module", params=DRIVERS)
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("ocs")
    lab = lab_file(
        folder,
        driver=request.param,
        ports=48,
        initial=("1-7",),
        switching_time="5ms",
        extra=", password_env: SSH_OCS_PW",
    )
    with running(folder, lab, "--no-fabric", SSH_OCS_PW="pw") as device:
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
        if hasattr(driver._dialect, "move_timeout_s"):
            driver._dialect = replace(driver._dialect, move_timeout_s=timeout_s)
        await driver.open()
        try:
            await act(driver)
        finally:
            await driver.close()

    asyncio.run(go())


def one(text: str) -> CrossConnect:
    inp, _, out = text.partition(">")
    return CrossConnect(int(inp), int(out))


async def refused(driver: Any, kind: type[PatchlightError]) -> PatchlightError:
    with pytest.raises(kind) as caught:
        await driver.open()
    await driver.close()
    return caught.value


def test_a_wrong_user_or_password_is_refused_and_told_nowhere(
    device: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = open_driver(device.switch, "hush-hush")
    error = asyncio.run(refused(wrong, LoginRefused))
    assert "as 'admin' was refused" in error.message
    assert "password_env" in str(error.hint)
    assert "hush-hush" not in str(error) + caplog.text
    stranger = open_driver(replace(device.switch, user="nobody"), "pw")
    asyncio.run(refused(stranger, LoginRefused))


def test_the_first_host_key_is_pinned_and_another_one_refused(
    device: Running,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pins = tmp_path / "deep" / "known_hosts"
    monkeypatch.setenv("PATCHLIGHT_KNOWN_HOSTS", str(pins))

    async def reads(driver: Any) -> None:
        assert await driver.read_map() == FIRST_MAP

    drive(device, reads)
    assert "pinned its host key ecdsa-sha2-nistp256 SHA256:" in caplog.text
    first = pins.read_text()
    assert pins.stat().st_mode & 0o077 == 0
    drive(device, reads)
    assert pins.read_text() == first

    # The same address with another key: no password is sent there.
    lab = lab_file(tmp_path, driver=device.switch.driver, initial=("1-7",))
    elsewhere = {"XDG_STATE_HOME": str(tmp_path / "other")}
    with running(tmp_path, lab, "--no-fabric", **elsewhere) as other:
        host, _, port = other.switch.address.rpartition(":")
        old = device.switch.address.rpartition(":")[2]
        pins.write_text(first.replace(f"[{host}]:{old}", f"[{host}]:{port}"))
        error = asyncio.run(refused(open_driver(other.switch, "secret"), HostKeyRefused))
    assert "not the one pinned" in error.message
    assert f"ssh-keygen -R '[{host}]:{port}' -f {pins}" in str(error.hint)


def test_strict_trusts_nothing_on_first_use(
    device: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins = tmp_path / "known_hosts"
    monkeypatch.setenv("PATCHLIGHT_KNOWN_HOSTS", str(pins))
    monkeypatch.setenv("PATCHLIGHT_HOST_KEYS", "strict")
    error = asyncio.run(refused(open_driver(device.switch, "pw"), HostKeyRefused))
    assert "SHA256:" in error.message
    assert "ssh-keyscan" in str(error.hint)
    assert not pins.exists()
    pins.write_text("this is no pin\n" + "[127.0.0.1]:1 ecdsa-sha2-nistp256 nonsense\n")
    asyncio.run(refused(open_driver(device.switch, "pw"), HostKeyRefused))


def test_refusals_come_in_the_device_s_own_words(device: Running) -> None:
    locked, stuck = {
        "polatis-netconf": ("Port 57 is disabled", "has failed"),
        "telescent-ssh": ("ERROR: port 8 is disabled", "ERROR: the robot failed at port 9"),
    }[device.switch.driver]
    device.fault(refuse_ports=[9], fail_ports=[10])

    async def act(driver: Any) -> None:
        outcome = await driver.connect([one("3>9"), one("4>10"), one("5>1"), one("6>6")])
        said = {str(r.cross_connect): r.words for r in outcome.refused}
        assert said["5>1"] == "out:1 is in use on the device: 7>1"
        assert locked in said["3>9"]
        assert stuck in said["4>10"]
        assert outcome.done == (one("6>6"),)
        states = await driver.port_states()
        assert states[DirectedPort("out", 9)].condition == "locked"
        assert states[DirectedPort("out", 10)].condition == "failed"
        device.fault(refuse_next="busy elsewhere")
        (refusal,) = (await driver.connect([one("8>11")])).refused
        assert "busy elsewhere" in refusal.words
        device.fault(read_only=True)
        (refusal,) = (await driver.connect([one("8>11")])).refused
        assert "only look" in refusal.words
        assert not (await driver.disconnect([one("1>7")])).complete
        assert await driver.read_map() == PortMap.of([*FIRST_MAP, (6, 6)])

    drive(device, act)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_lost_connection_is_an_unknown_outcome(device: Running, when: str) -> None:
    async def act(driver: Any) -> None:
        device.fault(cut=when)
        with pytest.raises(OutcomeUnknown) as caught:
            await driver.connect([one("3>9")])
        assert caught.value.exit_code == 3
        # The driver is usable at once, and tells what is so.
        assert (one("3>9") in await driver.read_map()) == (when == "after")
        assert (await driver.connect([one("3>9"), one("4>10")])).complete

    drive(device, act)


def test_silence_is_an_unknown_outcome(device: Running) -> None:
    async def act(driver: Any) -> None:
        device.fault(stall_s=1.5)
        began = time.monotonic()
        with pytest.raises(OutcomeUnknown, match="nothing came back within"):
            await driver.connect([one("3>9")])
        assert time.monotonic() - began < 4
        # The device does it later all the same; no answer to it is mistaken for another's.
        deadline = time.monotonic() + 5
        while one("3>9") not in await driver.read_map():
            assert time.monotonic() < deadline
        assert (await driver.disconnect([one("3>9")])).complete

    drive(device, act, timeout_s=0.8)


def test_garbled_and_doubled_answers_never_make_a_wrong_map(device: Running) -> None:
    async def act(driver: Any) -> None:
        for faults in ({"garble": 1}, {"answer_twice": 2}, {"garble": 1, "answer_twice": 1}):
            n = 20
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
            try:
                assert (await driver.disconnect([CrossConnect(n, n)])).complete
            except (OutcomeUnknown, DeviceUnreachable):
                assert (await driver.disconnect([CrossConnect(n, n)])).complete

    drive(device, act, timeout_s=1.0)


def test_alarms_are_heard_and_bounded(device: Running) -> None:
    async def act(driver: Any) -> None:
        device.fault(flood=3000)
        assert await driver.read_map() == FIRST_MAP
        assert (await driver.connect([one("3>9")])).complete
        alarms = await driver.alarms()
        assert 0 < len(alarms) <= 1000
        assert any("Alarm" in alarm.words for alarm in alarms)
        assert device.fault(report=f"*C EQPT: 7: {'long ' * 1000}")["ok"]
        assert device.fault(report="*C EQPT: 7: PWR below limit")["ok"]
        deadline = time.monotonic() + 5
        while "PWR below limit" not in (await driver.alarms())[-1].words:
            assert time.monotonic() < deadline
            await driver.read_map()
        assert (await driver.alarms())[-1].severity == "critical"
        assert max(len(alarm.words) for alarm in await driver.alarms()) == 500

    drive(device, act)


def test_lost_cross_connects_and_reboots_are_read(device: Running) -> None:
    async def act(driver: Any) -> None:
        assert (await driver.connect([one("3>9")])).complete
        assert device.fault(lose="3>9")["ok"]
        assert await driver.read_map() == FIRST_MAP
        assert device.fault(reboot="keep")["ok"]
        assert await driver.read_map() == FIRST_MAP
        assert device.fault(reboot="forget")["ok"]
        assert await driver.read_map() == PortMap()
        assert (await driver.connect(FIRST_MAP)).complete

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
        # The key is the machine's: it is the same one after the restart.
        with running(tmp_path, lab, *state, listen=first.switch.address):
            assert await driver.read_map() == PortMap.of([*FIRST_MAP, (3, 9)])
            await driver.close()

    asyncio.run(act())


@pytest.mark.parametrize("driver_name", DRIVERS)
def test_what_is_no_ssh_is_unreachable(device: Running, driver_name: str) -> None:
    """Whether it hangs up, says nothing or says too much."""

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def chatter(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x\r\n" * 10000)
        writer.close()

    async def go() -> None:
        for serve in (say_nothing, hang_up, chatter):
            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            there = replace(device.switch, driver=driver_name, address=f"127.0.0.1:{port}")
            driver: Any = open_driver(there, "")
            driver._client._session = replace(driver._client._session, connect_timeout_s=0.5)
            began = time.monotonic()
            with pytest.raises(DeviceUnreachable, match="connecting to ocs1"):
                await driver.open()
            assert time.monotonic() - began < 5
            await driver.close()
            server.close()

    asyncio.run(go())


def test_the_whole_map_is_replaced_and_ports_are_switched_off_and_on(device: Running) -> None:
    async def act(driver: Any) -> None:
        if not driver.capabilities.atomic_replace:
            return
        wanted = PortMap.of([(1, 7), (5, 6)])
        await driver.replace_map(wanted)
        assert await driver.read_map() == wanted
        ports, out = [DirectedPort("in", 1), DirectedPort("out", 40)], DirectedPort("out", 7)
        assert (await driver.power([out]))[out] is not None
        await driver.enable(ports, on=False)
        states = await driver.port_states()
        assert {p for p, state in states.items() if state.condition == "locked"} == set(ports)
        assert (await driver.power([out]))[out] is None
        await driver.enable(ports, on=True)
        assert (await driver.power([out]))[out] is not None
        everywhere = [DirectedPort(side, n) for side in ("in", "out") for n in range(1, 49)]
        found = await driver.power(everywhere)
        assert list(found) == sorted(everywhere)

    drive(device, act)


def test_without_ncclient_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [
        n for n in sys.modules if n.startswith("patchlight.controller.circuits.protocols.netconf")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(
        sys.modules, "patchlight.controller.circuits.drivers.polatis.netconf", raising=False
    )
    monkeypatch.setitem(sys.modules, "ncclient", None)
    from patchlight.testbed.lab import CircuitSwitch

    with pytest.raises(PatchlightError, match="needs the Python package ncclient") as caught:
        open_driver(CircuitSwitch("ocs1", "polatis-netconf", "127.0.0.1:830", 8), "")
    assert "patchlight[netconf]" in str(caught.value.hint)


def test_nothing_is_left_behind(device: Running) -> None:
    """Sessions that came and went hold no descriptors."""

    async def reads(driver: Any) -> None:
        assert await driver.read_map() == FIRST_MAP

    def held() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    drive(device, reads)
    before = held()
    for _ in range(5):
        drive(device, reads)
    deadline = time.monotonic() + 5
    while held() > before:
        assert time.monotonic() < deadline, f"{held()} descriptors, {before} before"
