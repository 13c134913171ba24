"""The Calient driver against the emulated device, where things go wrong."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from patchlight.controller.circuits.contract import DeviceUnreachable, LoginRefused
from patchlight.controller.circuits.drivers.calient.ports import to_aid, to_port
from patchlight.controller.circuits.drivers.calient.tl1 import CalientTl1
from patchlight.controller.circuits.protocols.session import Session
from patchlight.controller.circuits.protocols.tl1.client import Tl1Client
from patchlight.controller.circuits.protocols.tl1.dialects import CALIENT
from patchlight.testbed.errors import OutcomeUnknown
from patchlight.testbed.portmap import CrossConnect, PortMap
from tests.support.emulated_devices import Running, lab_file, running

SECRET = 'pa;ss"word:1'


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("ocs")
    lab = lab_file(folder, ports=96, initial=("1-7",), extra=", password_env: OCS1_PASSWORD")
    with running(folder, lab, "--no-fabric", OCS1_PASSWORD=SECRET) as device:
        yield device


@pytest.fixture
def device(shared: Running) -> Iterator[Running]:
    """The shared device with its first map and without faults, before and after."""
    calm = {"refuse_ports": [], "fail_ports": [], "refuse_next": "", "cut": "", "stall_s": 0.0}
    shared.fault(**calm, acknowledge=False)

    async def first_map(driver: CalientTl1) -> None:
        change = (await driver.read_map()).diff(PortMap.duplex([(1, 7)]))
        assert (await driver.disconnect(change.breaks)).complete
        assert (await driver.connect(change.makes)).complete

    drive(shared, first_map)
    yield shared
    shared.fault(**calm, acknowledge=False)


def drive(device: Running, act: Callable[[CalientTl1], Awaitable[None]]) -> None:
    async def go() -> None:
        driver = CalientTl1(device.switch, SECRET)
        await driver.open()
        try:
            await act(driver)
        finally:
            await driver.close()

    asyncio.run(go())


def drive_client(
    device: Running, act: Callable[[Tl1Client], Awaitable[None]], timeout_s: float = 5.0
) -> None:
    async def go() -> None:
        host, _, port = device.switch.address.rpartition(":")
        session = Session("ocs1", host, int(port), "admin", SECRET, timeout_s=timeout_s)
        client = Tl1Client(session, CALIENT)
        await client.open()
        try:
            await act(client)
        finally:
            await client.close()

    asyncio.run(go())


def one(text: str) -> CrossConnect:
    inp, _, out = text.partition(">")
    return CrossConnect(int(inp), int(out))


def test_port_numbers_go_both_ways() -> None:
    assert [to_aid(n) for n in (1, 8, 9, 64, 65, 320)] == [
        *("1.1.1", "1.1.8", "1.2.1", "1.8.8", "2.1.1", "5.8.8")
    ]
    assert all(to_port(to_aid(n)) == n for n in range(1, 2000))
    assert [to_port(aid) for aid in ("1.9.1", "0.1.1", "1.1", "1.1.1.1", "x", "NONE")] == [None] * 6


def test_a_refusal_is_in_the_device_s_own_words(device: Running) -> None:
    device.fault(refuse_ports=[9])

    async def act(driver: CalientTl1) -> None:
        for pairs in ([one("3>9")], [one("3>9"), one("4>10"), one("5>1")]):
            outcome = await driver.connect(pairs)
            words = {str(r.cross_connect): r.words for r in outcome.refused}
            assert "Failed: port 1.2.1 is locked" in words["3>9"]
        assert "1.1.1 is in use: 1.1.7>1.1.1" in words["5>1"]
        assert outcome.done == (one("4>10"),)
        assert await driver.read_map() == PortMap.of([(1, 7), (7, 1), (4, 10)])
        states = await driver.port_states()
        assert {p.number for p, state in states.items() if state.condition == "locked"} == {9}

    drive(device, act)


def test_a_stuck_mirror_is_refused_and_cleared(device: Running) -> None:
    device.fault(fail_ports=[10])

    async def act(driver: CalientTl1) -> None:
        for pairs in ([one("4>10")], [one("4>10"), one("5>11")]):
            outcome = await driver.connect(pairs)
            assert [str(r.cross_connect) for r in outcome.refused] == ["4>10"]
            assert "OC=FAIL" in outcome.refused[0].words
        assert await driver.read_map() == PortMap.of([(1, 7), (7, 1), (5, 11)])
        # What failed holds no port.
        assert (await driver.connect([one("4>12")])).complete

    drive(device, act)


def test_a_whole_list_refused_is_tried_singly(device: Running) -> None:
    device.fault(refuse_next="Failed: busy saving")

    async def act(driver: CalientTl1) -> None:
        outcome = await driver.connect([one("3>9"), one("4>10")])
        assert outcome.complete
        assert len(await driver.read_map()) == 4

    drive(device, act)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_lost_connection_is_an_unknown_outcome(device: Running, when: str) -> None:
    device.fault(cut=when)

    async def act(driver: CalientTl1) -> None:
        with pytest.raises(OutcomeUnknown, match=r"ENT-CRS::1\.1\.3,1\.2\.1.*closed") as caught:
            await driver.connect([one("3>9")])
        assert caught.value.exit_code == 3
        # The driver is usable at once: it logs in again, and tells what is so.
        assert one("3>9") not in await driver.read_map()
        assert (await driver.connect([one("3>9")])).complete

    drive(device, act)


def test_losing_the_connection_after_a_bulk_was_done(device: Running) -> None:
    device.fault(cut="after")

    async def act(driver: CalientTl1) -> None:
        pairs = [one("3>9"), one("4>10")]
        with pytest.raises(OutcomeUnknown):
            await driver.connect(pairs)
        assert (await driver.connect(pairs)).complete
        assert set(pairs) <= set(await driver.read_map())

    drive(device, act)


def test_silence_is_an_unknown_outcome_and_acknowledgements_extend_it(device: Running) -> None:
    enter = {"src": "1.1.3", "dst": "1.2.1", "group": "SYSTEM", "kind": "1WAY"}

    async def act(client: Tl1Client) -> None:
        device.fault(stall_s=0.6)
        with pytest.raises(OutcomeUnknown, match=r"nothing came back within 0\.4 s"):
            await client.command(CALIENT.enter, enter, changes=True)
        deadline = time.monotonic() + 5
        while "1.1.3>1.2.1" not in "".join((await client.command(CALIENT.retrieve_all)).lines):
            assert time.monotonic() < deadline
        device.fault(stall_s=0.6, acknowledge=True)
        delete = {**enter, "connname": "1.1.3>1.2.1"}
        assert (await client.command(CALIENT.delete, delete, changes=True)).code == "COMPLD"

    drive_client(device, act, timeout_s=0.4)


def test_a_device_that_went_is_unreachable_and_its_return_is_noticed(tmp_path: Path) -> None:
    lab = lab_file(tmp_path, initial=("1-7",))
    state = ("--state", str(tmp_path / "state"), "--no-fabric")

    async def act() -> None:
        with running(tmp_path, lab, *state) as first:
            driver = CalientTl1(first.switch, "")
            await driver.open()
            assert (await driver.connect([one("3>9")])).complete
            first.kill()
        with pytest.raises(DeviceUnreachable, match=r"ocs1 at 127\.0\.0\.1"):
            await driver.read_map()
        with pytest.raises(DeviceUnreachable):
            await driver.connect([one("4>10")])
        with running(tmp_path, lab, *state, listen=first.switch.address):
            # It kept its circuits over its own restart, too.
            assert await driver.read_map() == PortMap.of([(1, 7), (7, 1), (3, 9)])
            await driver.close()

    asyncio.run(act())


def test_a_wrong_password_is_said_without_the_password(
    device: Running, caplog: pytest.LogCaptureFixture
) -> None:
    async def act() -> None:
        driver = CalientTl1(device.switch, "wrong-secret")
        with pytest.raises(LoginRefused, match="invalid user or password") as caught:
            await driver.open()
        assert "wrong-secret" not in str(caught.value)
        await driver.close()

    caplog.set_level(logging.DEBUG)
    asyncio.run(act())
    assert "ACT-USER::admin:1::****;" in caplog.text
    assert "wrong-secret" not in caplog.text


def test_two_way_circuits_of_others_are_read_and_break_whole(device: Running) -> None:
    async def by_hand(client: Tl1Client) -> None:
        await client.command("ENT-CRS::1.3.1,1.3.2:{ctag}::DSTRAUB,2WAY,my lab,,;", changes=True)
        await client.command("ACT-CRS::1.3.1,1.3.2:{ctag}::1.3.1-1.3.2,DSTRAUB;", changes=True)

    async def act(driver: CalientTl1) -> None:
        there, back = one("17>18"), one("18>17")
        deadline = time.monotonic() + 5
        while not {there, back} <= set(await driver.read_map()):
            assert time.monotonic() < deadline
        outcome = await driver.disconnect([there])
        assert "two-way circuit" in outcome.refused[0].words
        assert (await driver.connect([there])).complete
        assert (await driver.disconnect([there, back])).complete
        assert await driver.read_map() == PortMap.duplex([(1, 7)])

    drive_client(device, by_hand)
    drive(device, act)


def test_alarms_between_replies_are_kept_apart(device: Running) -> None:
    async def act(driver: CalientTl1) -> None:
        for n in range(20):
            device.fault(report=f"*C EQPT: 1.1.{n % 8 + 1}:CR;PWR > limit")
            assert len(await driver.read_map()) == 2
        found = [alarm for alarm in await driver.alarms() if alarm.severity == "critical"]
        assert len(found) == 20
        assert found[0].subject == "1.1.1"
        assert "REPT ALM EQPT: 1.1.1:CR;PWR > limit" in found[0].words
        assert 0 <= time.time() - found[0].at < 60

    drive(device, act)


def test_a_client_that_goes_leaves_the_map(device: Running) -> None:
    async def act(driver: CalientTl1) -> None:
        assert (await driver.connect([one("3>9")])).complete
        # Gone without a word, as a killed controller goes.
        connection = driver._client._connection
        assert connection is not None
        connection._writer.transport.abort()

    async def again(driver: CalientTl1) -> None:
        assert one("3>9") in await driver.read_map()

    drive(device, act)
    drive(device, again)


def test_what_answers_but_speaks_no_tl1(device: Running) -> None:
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
        driver = CalientTl1(replace(device.switch, address=f"127.0.0.1:{port}"), SECRET)
        with pytest.raises(DeviceUnreachable, match="without the end of a message"):
            await driver.open()
        await driver.close()
        server.close()

    asyncio.run(go())
