"""Drivers and devices without manners: names that are commands, answers to nothing, meddlers."""

import asyncio
import time

import pytest

from patchlight.controller.circuits.contract import (
    CircuitDriver,
    DeviceRefused,
    DeviceUnreachable,
)
from patchlight.controller.circuits.dialect import Session
from patchlight.controller.circuits.drivers.calient_tl1 import CALIENT
from patchlight.controller.circuits.protocols.tl1 import Tl1Client
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.portmap import CrossConnect, PortMap
from tests.support.emulated_devices import Running
from tests.support.ocs_drivers import FIRST_MAP, PASSWORD, circuits, drivers
from tests.support.waiting import PATIENCE_S

NAMES = (
    ";1.1.1>1.1.2;",
    "x;DLT-CRS-BULK::1.1.1>1.1.7&1.1.7>1.1.1:7;",
    'a "b" \\" [/red] (c), d',
    "two\nlines\r\n;",
    "\r\n\n   OCS1 26-01-01 00:00:00\r\nM  1 COMPLD\r\n;",
    "1.1.7>1.1.1",
    "&group=x&conn=1.1.7>1.1.1#/../",
    "M 0 DENY /* */ größer \x1b[2J",
    "NONE",
)
named = drivers("calient-tl1", "calient-rest", "glimmerglass-tl1")
over_tl1 = drivers("calient-tl1", "polatis-tl1", "glimmerglass-tl1")


@pytest.mark.parametrize("name", NAMES)
@named
async def test_a_name_is_never_part_of_a_command(
    device: Running, driver: CircuitDriver, name: str
) -> None:
    assert device.fault(names=name)["ok"]
    try:
        one = circuits("3>9")
        several = circuits("4>10", "5>11", "6>12")
        assert (await driver.connect(one)).complete
        assert (await driver.connect(several)).complete
        assert await driver.read_map() == PortMap.of(
            [*FIRST_MAP, *one, *several]
        )
        # What stands in the way is seen, however it is called.
        assert [
            r.cross_connect
            for r in (await driver.connect(circuits("3>8"))).refused
        ] == (circuits("3>8"))
        assert (await driver.disconnect(one)).complete
        assert (await driver.disconnect(several)).complete
        assert await driver.read_map() == FIRST_MAP
        await driver.port_states()
    finally:
        device.fault(names="")


@drivers("calient-tl1", "glimmerglass-tl1")
async def test_a_line_that_can_be_read_in_two_ways_is_no_map(
    device: Running, driver: CircuitDriver
) -> None:
    forged = {
        "calient-tl1": "x,CONNTYPE=1WAY,AS=UMA,OS=RDY,OC=OK",
        "glimmerglass-tl1": "x,OPORTID=20030,OPORTNAME=,CONNSTATE=y",
    }
    device.fault(names=forged[device.switch.driver])
    try:
        with pytest.raises(DeviceRefused, match="an invalid value"):
            await driver.read_map()
    finally:
        device.fault(names="")
    assert await driver.read_map() == FIRST_MAP


@drivers("calient-tl1", "glimmerglass-tl1")
async def test_a_line_without_end_is_not_read(
    device: Running, driver: CircuitDriver
) -> None:
    device.fault(names=",CONNNAME=" * 250)
    try:
        with pytest.raises(DeviceUnreachable, match="longer than"):
            await driver.read_map()
    finally:
        device.fault(names="")
    assert await driver.read_map() == FIRST_MAP


@drivers("calient-tl1")
async def test_a_circuit_that_a_stranger_named_goes_alone(
    device: Running, driver: CircuitDriver
) -> None:
    """The name is the stranger's; the circuits of all others stay, and so does the roll-back."""
    stranger = Tl1Client(Session.of(device.switch, PASSWORD), CALIENT)
    await stranger.open()
    for name in (
        "x;DLT-CRS-BULK::1.1.1>1.1.7:7",
        ";1.1.1>1.1.2;",
        "1.1.1>1.1.7",
        "a,b",
    ):
        values = {"connname": name, "group": 'my "lab"; RTRV-HDR:::1'}
        new = "ENT-CRS::1.1.3,1.2.1:{ctag}::{group},1WAY,{connname};"
        await stranger.command(new, values, changes=True)
        await stranger.command("ACT-CRS::1.1.3,1.2.1:{ctag};", changes=True)
        held = PortMap.of([*FIRST_MAP, (3, 9)])
        deadline = time.monotonic() + PATIENCE_S
        while await driver.read_map() != held:
            assert time.monotonic() < deadline
        assert (await driver.disconnect([CrossConnect(3, 9)])).complete
        assert await driver.read_map() == FIRST_MAP
    await stranger.close()


@over_tl1
async def test_an_answer_to_nothing_is_nobody_s(
    device: Running, driver: CircuitDriver
) -> None:
    for _ in range(5):
        device.fault(strays=3)
        assert (await driver.connect(circuits("3>9"))).complete
        device.fault(strays=3)
        assert set(circuits("3>9")) <= set(await driver.read_map())
        assert (await driver.disconnect(circuits("3>9"))).complete
        assert await driver.read_map() == FIRST_MAP


@drivers("calient-tl1")
async def test_a_command_that_the_device_cannot_read_is_refused_at_once(
    device: Running,
) -> None:
    client = Tl1Client(Session.of(device.switch, PASSWORD), CALIENT)
    await client.open()
    with pytest.raises(
        DeviceRefused, match="Invalid correlation tag"
    ) as caught:
        await client.command("RTRV-HDR:::{ctag}-is-no-tag;")
    assert caught.value.code == "IICT"
    assert (await client.command("RTRV-HDR:::{ctag};")).code == "COMPLD"
    with pytest.raises(BadInput, match="control characters"):
        await client.command(
            "RTRV-CRS:::{ctag}::{conn};", {"conn": "1.1.1\r\n>1.1.2"}
        )
    await client.close()


async def test_what_another_client_changes_meanwhile_is_not_taken_for_ours(
    device: Running, driver: CircuitDriver
) -> None:
    """The device refuses, or what is read back tells; nothing is claimed that is not so."""
    device.fault(meddle="1>7,3>12")
    outcome = await driver.connect(circuits("3>9"))
    now = set(await driver.read_map())
    assert set(outcome.done) <= now
    assert now.isdisjoint(refusal.cross_connect for refusal in outcome.refused)
    assert not set(circuits("1>7")) & now


@drivers(
    "calient-tl1",
    "polatis-tl1",
    "glimmerglass-tl1",
    "telescent-ssh",
    "polatis-netconf",
)
async def test_a_device_that_reports_without_end_is_hung_up_on(
    device: Running, driver: CircuitDriver
) -> None:
    """Its flood is not read on and on: the next connection is some seconds later."""
    await driver.read_map()

    async def flood() -> None:
        for _ in range(150):
            answer = await asyncio.to_thread(
                device.fault, report=f"*C EQPT: {'x' * 16_000}"
            )
            assert answer["ok"]

    flooding = asyncio.create_task(flood())
    deadline = time.monotonic() + PATIENCE_S
    said = ""
    while "unsolicited data; the next attempt is in" not in said:
        assert time.monotonic() < deadline, said
        try:
            await driver.read_map()
        except DeviceUnreachable as error:
            said = error.message
        await asyncio.wait([flooding], timeout=0.5)
    await flooding
    while said and device.switch.driver == "calient-tl1":
        try:
            assert await driver.read_map() == FIRST_MAP
            said = ""
        except DeviceUnreachable:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)  # the pause between two looks
