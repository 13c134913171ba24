"""Drivers over HTTPS against their emulated device, where things go wrong."""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from patchlight.controller.circuits.contract import (
    DeviceRefused,
    DeviceUnreachable,
    DirectedPort,
    LoginRefused,
)
from patchlight.controller.circuits.drivers.calient.rest import CalientRest
from patchlight.controller.circuits.drivers.polatis.restconf import PolatisRestconf
from patchlight.controller.circuits.protocols.http.dialects import CALIENT, POLATIS
from patchlight.controller.circuits.registry import open_driver
from patchlight.emulation.optical.crossbar import NoCrossbar
from patchlight.emulation.optical.device import EmulatedOcs, LoopClock
from patchlight.emulation.optical.protocols.certificate import server_context
from patchlight.emulation.optical.protocols.http_server import Request
from patchlight.emulation.optical.switch_matrix import Circuit, Reason, RequestRefused
from patchlight.emulation.optical.vendors.calient_rest import CalientRestServer
from patchlight.testbed.errors import OutcomeUnknown, PatchlightError
from patchlight.testbed.lab import CircuitSwitch
from patchlight.testbed.labfile.reader import read_lab
from patchlight.testbed.portmap import CrossConnect, PortMap
from tests.support.emulated_devices import Running, lab_file, running

DRIVERS = ("calient-rest", "polatis-restconf")
FIRST_MAP = PortMap.duplex([(1, 7)])
SECRET = 'pa:ss"wörd/1'
ENCODED = base64.b64encode(f"admin:{SECRET}".encode()).decode()
CALM: dict[str, Any] = {
    "refuse_ports": [], "fail_ports": [], "read_only": False, "monitors": "both",
    "refuse_next": "", "cut": "", "stall_s": 0.0, "garble": 0, "answer_twice": 0, "flood": 0,
}  # fmt: skip

Act = Callable[[Any], Awaitable[None]]


calient_only = pytest.mark.parametrize("shared", ["calient-rest"], indirect=True)
polatis_only = pytest.mark.parametrize("shared", ["polatis-restconf"], indirect=True)


@pytest.fixture(scope="module", params=DRIVERS)
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("ocs")
    extra = ", password_env: OCS1_PASSWORD"
    lab = lab_file(folder, driver=request.param, ports=96, initial=("1-7",), extra=extra)
    with running(folder, lab, "--no-fabric", OCS1_PASSWORD=SECRET) as device:
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
        driver: Any = open_driver(device.switch, SECRET)
        driver._client._session = replace(driver._client._session, timeout_s=timeout_s)
        await driver.open()
        try:
            await act(driver)
        finally:
            await driver.close()

    asyncio.run(go())


def by_hand(device: Running) -> httpx.Client:
    """A client of the device's interface that is not ours."""
    base = {"calient-rest": "/rest", "polatis-restconf": "/api/data"}[device.switch.driver]
    return httpx.Client(
        base_url=f"https://{device.switch.address}{base}",
        auth=("admin", SECRET),
        verify=False,
        trust_env=False,
    )


def one(text: str) -> CrossConnect:
    inp, _, out = text.partition(">")
    return CrossConnect(int(inp), int(out))


def test_a_locked_port_is_refused_in_the_device_s_own_words(device: Running) -> None:
    device.fault(refuse_ports=[9])
    words = {
        "calient-rest": "409: Failed: port 1.2.1 is locked",
        "polatis-restconf": "409: Port 105 is disabled",
    }[device.switch.driver]

    async def act(driver: Any) -> None:
        for pairs in ([one("3>9")], [one("4>10"), one("3>9"), one("5>1")]):
            outcome = await driver.connect(pairs)
            said = {str(r.cross_connect): r.words for r in outcome.refused}
            assert said["3>9"] == words
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
            assert "fail" in outcome.refused[0].words.lower()
        assert await driver.read_map() == PortMap.of([*FIRST_MAP, (5, 11)])
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
        assert refusal.words == "409: busy saving"

    drive(device, act)


def test_a_user_who_may_only_look(device: Running) -> None:
    device.fault(read_only=True)

    async def act(driver: Any) -> None:
        (refusal,) = (await driver.connect([one("3>9")])).refused
        assert refusal.words == "403: this user may only look"
        (refusal,) = (await driver.disconnect([one("1>7")])).refused
        assert "403: this user may only look" in refusal.words
        assert await driver.read_map() == FIRST_MAP

    drive(device, act)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("many", [False, True])
def test_a_lost_connection_is_an_unknown_outcome(device: Running, when: str, many: bool) -> None:
    pairs = [one("3>9"), one("4>10")] if many else [one("3>9")]

    async def act(driver: Any) -> None:
        device.fault(cut=when)
        with pytest.raises(OutcomeUnknown, match="was sent, then") as caught:
            await driver.connect(pairs)
        assert caught.value.exit_code == 3
        # The driver is usable at once, and tells what is so.
        held = set(await driver.read_map())
        assert (set(pairs) <= held) == (when == "after")
        assert (await driver.connect(pairs)).complete
        device.fault(cut=when)
        with pytest.raises(OutcomeUnknown):
            await driver.disconnect(pairs)
        assert (await driver.disconnect(pairs)).complete

    drive(device, act)


def test_silence_is_an_unknown_outcome(device: Running) -> None:
    async def act(driver: Any) -> None:
        device.fault(stall_s=0.6)
        with pytest.raises(OutcomeUnknown, match=r"nothing came back within 0\.3 s"):
            await driver.connect([one("3>9")])
        deadline = time.monotonic() + 5
        while one("3>9") not in await driver.read_map():
            assert time.monotonic() < deadline

    drive(device, act, timeout_s=0.3)


def test_a_garbled_answer_is_nothing_to_believe(device: Running) -> None:
    async def act(driver: Any) -> None:
        # One broken answer to a question: it is asked again.
        device.fault(garble=1)
        assert await driver.read_map() == FIRST_MAP
        device.fault(garble=2)
        with pytest.raises(DeviceUnreachable, match="no reply to GET"):
            await driver.read_map()
        # The question before a change is no change.
        device.fault(garble=2)
        with pytest.raises(DeviceUnreachable):
            await driver.connect([one("3>9")])
        assert await driver.read_map() == FIRST_MAP

    drive(device, act)


def test_an_answer_that_comes_twice_is_nobody_else_s(device: Running) -> None:
    async def act(driver: Any) -> None:
        for n in range(10, 14):
            device.fault(answer_twice=3)
            assert (await driver.connect([CrossConnect(n, n)])).complete
            device.fault(answer_twice=3)
            assert CrossConnect(n, n) in await driver.read_map()
            assert (await driver.disconnect([CrossConnect(n, n)])).complete
            assert await driver.read_map() == FIRST_MAP

    drive(device, act)


def test_a_wrong_password_is_said_without_the_password(
    device: Running, caplog: pytest.LogCaptureFixture
) -> None:
    async def act() -> None:
        driver = open_driver(device.switch, "wrong-secret")
        with pytest.raises(LoginRefused, match="did not let admin in: 401: invalid") as caught:
            await driver.open()
        assert "wrong-secret" not in str(caught.value)
        await driver.close()

    async def right(driver: Any) -> None:
        assert (await driver.connect([one("3>9")])).complete
        device.fault(refuse_next=f"no, {SECRET} or {ENCODED}")
        (refusal,) = (await driver.connect([one("4>10")])).refused
        assert refusal.words == "409: no, **** or ****"
        device.fault(cut="before")
        with pytest.raises(OutcomeUnknown) as caught:
            await driver.connect([one("4>10")])
        assert SECRET not in str(caught.value)

    caplog.set_level(logging.DEBUG)
    asyncio.run(act())
    drive(device, right)
    wrong = base64.b64encode(b"admin:wrong-secret").decode()
    assert "GET /" in caplog.text
    for secret in ("wrong-secret", wrong, SECRET, ENCODED):
        assert secret not in caplog.text


def test_a_device_that_went_is_unreachable_and_its_return_is_noticed(tmp_path: Path) -> None:
    lab = lab_file(tmp_path, driver="polatis-restconf", initial=("1-7",))
    state = ("--state", str(tmp_path / "state"), "--no-fabric")

    async def act() -> None:
        with running(tmp_path, lab, *state) as first:
            driver = open_driver(first.switch, "")
            await driver.open()
            assert (await driver.connect([one("3>9")])).complete
            first.kill()
        with pytest.raises(DeviceUnreachable, match=r"ocs1 at 127\.0\.0\.1"):
            await driver.read_map()
        with pytest.raises(DeviceUnreachable):
            await driver.connect([one("4>10")])
        with running(tmp_path, lab, *state, listen=first.switch.address):
            # The same certificate, and the same circuits.
            assert await driver.read_map() == PortMap.of([(1, 7), (7, 1), (3, 9)])
            await driver.close()

    asyncio.run(act())


@pytest.mark.parametrize("noise", ["bytes", "body", "silence", "drip", "redirect", "html"])
def test_what_answers_but_is_no_switch(noise: str, tmp_path: Path) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"

    async def chatter(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            if noise == "redirect":
                writer.write(b"HTTP/1.1 302 Found\r\nLocation: https://192.0.2.1/\r\n")
                writer.write(b"Content-Length: 0\r\n\r\n")
            elif noise == "html":
                writer.write(head + b"<html>It works!</html>")
            elif noise == "body":
                writer.write(head)
            while noise in ("bytes", "body", "silence", "drip"):
                writer.write({"silence": b"", "drip": b"H"}.get(noise, b"x" * 65536))
                await writer.drain()
                await asyncio.sleep(0.05 if noise in ("silence", "drip") else 0)
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    async def go() -> None:
        server = await asyncio.start_server(chatter, "127.0.0.1", 0, ssl=server_context())
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for name in DRIVERS:
            lab = lab_file(tmp_path, driver=name)
            switch = replace(read_lab(lab).circuit_switch("ocs1"), address=address)
            driver: Any = open_driver(switch, SECRET)
            session = replace(driver._client._session, timeout_s=0.2, connect_timeout_s=0.3)
            driver._client._session = session
            began = time.monotonic()
            with pytest.raises(PatchlightError) as caught:
                await driver.open()
            assert isinstance(caught.value, (DeviceUnreachable, DeviceRefused))
            assert ("password" in str(caught.value)) == (noise == "redirect")
            assert time.monotonic() - began < 3
            await driver.close()
        server.close()

    asyncio.run(go())


@calient_only
def test_two_way_and_parked_circuits_of_others(device: Running) -> None:
    there, back = one("17>18"), one("18>17")
    row = {"in": "1.3.1", "out": "1.3.2", "group": "their lab", "conn": "a & b", "dir": "bi"}
    with by_hand(device) as client:
        client.post("/crossconnects/", params={"id": "add"}, json=row).raise_for_status()

    async def act(driver: CalientRest) -> None:
        deadline = time.monotonic() + 5
        while not {there, back} <= set(await driver.read_map()):
            assert time.monotonic() < deadline
        outcome = await driver.disconnect([there, one("7>1")])
        assert "two-way circuit" in outcome.refused[0].words
        assert outcome.done == (one("7>1"),)
        assert (await driver.connect([there])).complete
        named = {"id": "deactivate", "conn": "1.3.1-1.3.2", "group": "their lab", "name": "a & b"}
        with by_hand(device) as client:
            client.post("/crossconnects/", params=named).raise_for_status()
        # Parked, it carries nothing, and is lit when it is asked for whole.
        assert there not in await driver.read_map()
        (refusal,) = (await driver.connect([there])).refused
        assert "device does not hold it" in refusal.words
        assert (await driver.connect([there, back])).complete
        (found,) = [c for c in await driver._circuits() if there in c.directions]
        assert found.name == "a & b"
        assert (await driver.disconnect([there, back])).complete

    drive(device, act)


class ParkingServer(CalientRestServer):
    """Firmware that leaves dark what is added until it is told to activate it."""

    def _added(self, wanted: Any) -> Circuit:
        circuit = super()._added(wanted)
        self._device.deactivate(circuit)
        return circuit

    async def _activate(self, request: Request) -> dict[str, str]:
        if request.query["conn"] == "1.1.5>1.2.3":
            raise RequestRefused(Reason.FAILED, port=5)
        return await super()._activate(request)


@pytest.mark.parametrize("bulk", [False, True])
def test_a_unit_that_parks_what_is_added(bulk: bool) -> None:
    pairs = [one("3>9"), one("4>10"), one("5>11")]

    async def go() -> None:
        switch = CircuitSwitch("ocs1", "calient-rest", "", 16, 0.005, initial=FIRST_MAP)
        emulated = EmulatedOcs(switch, {1: 0.0}, NoCrossbar(), LoopClock())
        await emulated.open()
        front = ParkingServer(emulated, {"admin": None})
        server = await asyncio.start_server(front.serve, "127.0.0.1", 0, ssl=front.tls)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        driver = CalientRest(replace(switch, address=address), "", replace(CALIENT, bulk=bulk))
        outcome = await driver.connect(pairs)
        assert outcome.done == (pairs[0], pairs[1])
        assert outcome.refused[0].words == "409: Failed: port 1.1.5"
        # What could not be activated was ours: nothing of it is left.
        assert PortMap.of(c for circuit in emulated.matrix for c in circuit.directions) == (
            PortMap.of([*FIRST_MAP, *pairs[:2]])
        )
        assert await driver.read_map() == emulated.map
        await driver.close()
        server.close()
        await emulated.close()

    asyncio.run(go())


@polatis_only
def test_a_map_that_changed_meanwhile_is_left_alone(device: Running) -> None:
    async def act(driver: PolatisRestconf) -> None:
        await driver._table()
        with by_hand(device) as client:
            body = {"pair": [{"ingress": 3, "egress": 96 + 20}]}
            client.patch("/cross-connects/pair", json=body).raise_for_status()
        with pytest.raises(DeviceRefused, match="412: The cross-connects have changed"):
            await driver._make([one("3>9")])
        with pytest.raises(DeviceRefused, match="412"):
            await driver._break([one("1>7")])
        assert set(await driver.read_map()) == {*FIRST_MAP, one("3>20")}
        # It has been read now, and what is in use is not taken.
        with pytest.raises(DeviceRefused, match=r"in:3 is in use on the device: 3>20"):
            await driver._make([one("3>9")])
        (refusal,) = (await driver.connect([one("3>9")])).refused
        assert "in use" in refusal.words
        assert (await driver.disconnect([one("3>20"), one("1>7")])).complete

    drive(device, act)


@polatis_only
def test_ports_are_switched_off_and_on(device: Running) -> None:
    port = DirectedPort("out", 9)

    async def act(driver: PolatisRestconf) -> None:
        await driver.enable([port], on=False)
        assert (await driver.port_states())[port].words == "DISABLED"
        (refusal,) = (await driver.connect([one("3>9")])).refused
        assert refusal.words == "409: Port 105 is disabled"
        await driver.enable([port])
        assert (await driver.connect([one("3>9")])).complete

    drive(device, act)


def test_alarms_are_told_as_they_appear(device: Running) -> None:
    async def polatis(driver: PolatisRestconf) -> None:
        before = len(await driver.alarms())
        for _ in range(2):
            device.fault(report="critical: fan 2 stands still")
            await driver.read_map()
        alarms = (await driver.alarms())[before:]
        assert [alarm.severity for alarm in alarms] == ["critical", "critical"]
        assert "fan 2 stands still" in alarms[0].words
        assert len(await driver.alarms()) == before + 2

    async def calient(driver: CalientRest) -> None:
        assert await driver.alarms() == ()
        device.fault(fail_ports=[20])
        row = {"in": "1.1.4", "out": "1.3.4", "conn": "theirs", "dir": "uni"}
        with by_hand(device) as client:
            client.post("/crossconnects/", params={"id": "add"}, json=row).raise_for_status()
        for _ in range(2):
            (alarm,) = await driver.alarms()
            assert (alarm.severity, alarm.subject) == ("critical", "4>20")
        assert (await driver.disconnect([one("4>20")])).complete

    drive(device, calient if device.switch.driver == "calient-rest" else polatis)


def test_power_goes_through_a_circuit(device: Running) -> None:
    asked = [DirectedPort("in", 1), DirectedPort("out", 7), DirectedPort("out", 8)]

    async def act(driver: Any) -> None:
        deadline = time.monotonic() + 5
        while (found := await driver.power(asked))[asked[1]] is None:
            assert time.monotonic() < deadline
        arriving = found[asked[0]]
        assert found[asked[2]] is None
        assert 0.5 < arriving - found[asked[1]] < 2.5
        assert (await driver.disconnect([one("1>7")])).complete
        found = await driver.power(asked)
        assert found == {asked[0]: arriving, asked[1]: None, asked[2]: None}

    drive(device, act)


def test_dialects_of_other_firmware(device: Running) -> None:
    async def act() -> None:
        driver: Any
        if device.switch.driver == "calient-rest":
            deactivate = CALIENT.activate.replace("activate", "deactivate")
            dialect = replace(CALIENT, deactivate=deactivate, bulk_limit=2)
            driver = CalientRest(device.switch, SECRET, dialect)
        else:
            polatis = replace(POLATIS, guard=False, list_limit=2, system_alarms="/data/nothing")
            driver = PolatisRestconf(device.switch, SECRET, polatis)
        await driver.open()
        pairs = [CrossConnect(n, n) for n in range(10, 15)]
        assert (await driver.connect(pairs)).complete
        assert (await driver.disconnect(pairs)).complete
        assert await driver.read_map() == FIRST_MAP
        assert await driver.alarms() == ()
        await driver.close()

    asyncio.run(act())
