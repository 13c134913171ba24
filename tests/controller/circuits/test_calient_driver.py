"""What is particular to Calient: two-way and parked circuits, and TL1's acknowledgements."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
import pytest_asyncio

from patchlight.controller.circuits.contract import CircuitDriver, DirectedPort
from patchlight.controller.circuits.dialect import Session, Timeouts
from patchlight.controller.circuits.drivers.calient import to_aid, to_port
from patchlight.controller.circuits.drivers.calient_rest import CALIENT as REST
from patchlight.controller.circuits.drivers.calient_rest import CalientRest
from patchlight.controller.circuits.drivers.calient_tl1 import CALIENT
from patchlight.controller.circuits.protocols.tl1 import Tl1Client
from patchlight.emulation.optical.matrices import (
    Reason,
    RequestRefused,
    SwitchedCircuit,
)
from patchlight.emulation.optical.protocols.http_server import HttpRequest
from patchlight.emulation.optical.vendors.calient import CalientRestServer
from patchlight.testbed.errors import OutcomeUnknown
from patchlight.testbed.lab.model import CircuitSwitch
from patchlight.testbed.lab.portmap import CrossConnect, PortMap
from tests.support.emulated_devices import Running
from tests.support.ocs_drivers import (
    FIRST_MAP,
    PASSWORD,
    circuit,
    circuits,
    driver_of,
    drivers,
    emulated,
    opened,
)
from tests.support.waiting import PATIENCE_S

THERE, BACK = circuits("17>18", "18>17")
ANSWER_S = 1.5
over_tl1 = drivers("calient-tl1")
over_rest = drivers("calient-rest")


@pytest_asyncio.fixture
async def client(device: Running) -> AsyncIterator[Tl1Client]:
    """Somebody else's TL1 session with the device."""
    session = Session.of(device.switch, PASSWORD, Timeouts(answer_s=ANSWER_S))
    tl1 = Tl1Client(session, CALIENT)
    await tl1.open()
    yield tl1
    await tl1.close()


@pytest_asyncio.fixture
async def rest(device: Running) -> AsyncIterator[httpx.AsyncClient]:
    """Somebody else's HTTP client."""
    async with httpx.AsyncClient(
        base_url=f"https://{device.switch.address}/rest",
        auth=("admin", PASSWORD),
        verify=False,
        trust_env=False,
        timeout=PATIENCE_S,
    ) as http:
        yield http


async def until_held(driver: CircuitDriver, *pairs: CrossConnect) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not set(pairs) <= set(await driver.read_map()):
        assert time.monotonic() < deadline


def test_port_numbers_go_both_ways() -> None:
    assert [to_aid(n) for n in (1, 8, 9, 64, 65, 320)] == [
        "1.1.1",
        "1.1.8",
        "1.2.1",
        "1.8.8",
        "2.1.1",
        "5.8.8",
    ]
    assert all(to_port(to_aid(n)) == n for n in range(1, 2000))
    assert [
        to_port(aid)
        for aid in ("1.9.1", "0.1.1", "1.1", "1.1.1.1", "x", "NONE")
    ] == [None] * 6


@over_tl1
async def test_silence_is_an_unknown_outcome_and_acknowledgements_extend_it(
    device: Running, client: Tl1Client
) -> None:
    enter = {"src": "1.1.3", "dst": "1.2.1", "group": "SYSTEM", "kind": "1WAY"}
    device.fault(stall_s=2 * ANSWER_S)
    with pytest.raises(OutcomeUnknown, match=r"no answer within 1\.5 s"):
        await client.command(CALIENT.enter, enter, changes=True)
    deadline = time.monotonic() + PATIENCE_S
    while "1.1.3>1.2.1" not in "".join(
        (await client.command(CALIENT.retrieve_all)).lines
    ):
        assert time.monotonic() < deadline
    # Its acknowledgements of the first two seconds count.
    device.fault(stall_s=ANSWER_S + 0.5, acknowledge=True)
    delete = {**enter, "connname": "1.1.3>1.2.1"}
    assert (
        await client.command(CALIENT.delete, delete, changes=True)
    ).code == "COMPLD"


@over_tl1
async def test_two_way_circuits_of_others_are_read_and_break_whole(
    driver: CircuitDriver, client: Tl1Client
) -> None:
    await client.command(
        "ENT-CRS::1.3.1,1.3.2:{ctag}::DSTRAUB,2WAY,my lab,,;", changes=True
    )
    await client.command(
        "ACT-CRS::1.3.1,1.3.2:{ctag}::1.3.1-1.3.2,DSTRAUB;", changes=True
    )
    await until_held(driver, THERE, BACK)
    outcome = await driver.disconnect([THERE])
    assert "two-way circuit" in outcome.refused[0].words
    assert (await driver.connect([THERE])).complete
    assert (await driver.disconnect([THERE, BACK])).complete
    assert await driver.read_map() == FIRST_MAP


@over_tl1
async def test_what_others_entered_is_activated_when_it_is_asked_for(
    driver: CircuitDriver, client: Tl1Client
) -> None:
    await client.command(
        "ENT-CRS::1.3.1,1.3.2:{ctag}::DSTRAUB,1WAY,my lab,,;", changes=True
    )
    await client.command(
        "ENT-CRS::1.3.3,1.3.4:{ctag}::DSTRAUB,2WAY,my lab,,;", changes=True
    )
    assert await driver.read_map() == FIRST_MAP
    (refusal,) = (await driver.connect(circuits("21>18"))).refused
    assert "1.3.2 is in use: 1.3.1>1.3.2" in refusal.words
    assert (await driver.connect([THERE])).complete
    # Half of a two-way circuit cannot be activated alone.
    assert not (await driver.connect(circuits("19>20"))).complete
    assert (await driver.connect(circuits("19>20", "20>19"))).complete
    lines = "".join((await client.command(CALIENT.retrieve_all)).lines)
    assert lines.count("GRPNAME=DSTRAUB") == 2
    assert (
        await driver.disconnect([THERE, *circuits("19>20", "20>19")])
    ).complete
    assert await driver.read_map() == FIRST_MAP


@over_tl1
async def test_alarms_between_replies_are_kept_apart(
    device: Running, driver: CircuitDriver
) -> None:
    for n in range(20):
        device.fault(report=f"*C EQPT: 1.1.{n % 8 + 1}:CR;PWR > limit")
        assert len(await driver.read_map()) == 2
    critical = [
        alarm
        for alarm in await driver.alarms()
        if alarm.severity == "critical"
    ]
    assert len(critical) == 20
    assert critical[0].subject == "1.1.1"
    assert "REPT ALM EQPT: 1.1.1:CR;PWR > limit" in critical[0].words
    assert 0 <= time.time() - critical[0].at < 60


@over_tl1
async def test_a_client_that_goes_leaves_the_map(device: Running) -> None:
    async def connect_and_go() -> None:
        driver = driver_of(device.switch)
        await driver.open()
        assert (await driver.connect(circuits("3>9"))).complete

    # Gone without a word, as a killed controller goes: its event loop ends with the session open.
    await asyncio.to_thread(asyncio.run, connect_and_go())
    async with opened(device.switch) as driver:
        assert circuit("3>9") in await driver.read_map()


@over_rest
async def test_two_way_and_parked_circuits_of_others(
    driver: CircuitDriver, rest: httpx.AsyncClient
) -> None:
    row = {
        "in": "1.3.1",
        "out": "1.3.2",
        "group": "their lab",
        "conn": "a & b",
        "dir": "bi",
    }
    added = await rest.post("/crossconnects/", params={"id": "add"}, json=row)
    added.raise_for_status()
    await until_held(driver, THERE, BACK)
    outcome = await driver.disconnect([THERE, circuit("7>1")])
    assert "two-way circuit" in outcome.refused[0].words
    assert outcome.done == (circuit("7>1"),)
    assert (await driver.connect([THERE])).complete
    named = {
        "id": "deactivate",
        "conn": "1.3.1-1.3.2",
        "group": "their lab",
        "name": "a & b",
    }
    (await rest.post("/crossconnects/", params=named)).raise_for_status()
    # Parked, it carries nothing, and is lit when it is asked for whole.
    assert THERE not in await driver.read_map()
    (refusal,) = (await driver.connect([THERE])).refused
    assert "map lacks it" in refusal.words
    assert (await driver.connect([THERE, BACK])).complete
    listed = (await rest.get("/crossconnects/", params={"id": "list"})).json()
    assert "a & b" in [each["name"] for each in listed]
    assert (await driver.disconnect([THERE, BACK])).complete


@over_rest
async def test_alarms_of_circuits_are_told_as_they_appear(
    device: Running, driver: CircuitDriver, rest: httpx.AsyncClient
) -> None:
    assert await driver.alarms() == ()
    device.fault(fail_ports=[20])
    row = {"in": "1.1.4", "out": "1.3.4", "conn": "theirs", "dir": "uni"}
    (
        await rest.post("/crossconnects/", params={"id": "add"}, json=row)
    ).raise_for_status()
    for _ in range(2):
        (alarm,) = await driver.alarms()
        assert (alarm.severity, alarm.subject) == ("critical", "4>20")
    assert (await driver.disconnect(circuits("4>20"))).complete


class ParkingFront(CalientRestServer):
    """Firmware that leaves dark what is added until it is told to activate it."""

    def _added(self, wanted: Any) -> SwitchedCircuit:
        added = super()._added(wanted)
        self._device.deactivate(added)
        return added

    def _activate(self, request: HttpRequest) -> None:
        if request.query["conn"] == "1.1.5>1.2.3":
            raise RequestRefused(Reason.FAILED, port=5)
        super()._activate(request)


@pytest.mark.parametrize("bulk", [False, True])
async def test_a_unit_that_parks_what_is_added(bulk: bool) -> None:
    pairs = circuits("3>9", "4>10", "5>11")
    switch = CircuitSwitch(
        "ocs1", "calient-rest", "", 16, 0.005, initial=FIRST_MAP
    )
    async with emulated(ParkingFront, switch) as (switch, ocs, _):
        driver = CalientRest(switch, "", replace(REST, bulk=bulk))
        outcome = await driver.connect(pairs)
        assert outcome.done == (pairs[0], pairs[1])
        assert outcome.refused[0].words == "409: Failed: port 1.1.5"
        # What could not be activated was ours: nothing of it is left.
        assert PortMap.of(
            c for held in ocs.matrix for c in held.directions
        ) == (PortMap.of([*FIRST_MAP, *pairs[:2]]))
        assert await driver.read_map() == ocs.map
        await driver.close()


@drivers("calient-rest", "polatis-restconf")
async def test_power_goes_through_a_circuit(driver: CircuitDriver) -> None:
    asked = [
        DirectedPort("in", 1),
        DirectedPort("out", 7),
        DirectedPort("out", 8),
    ]
    deadline = time.monotonic() + PATIENCE_S
    while (powers := await driver.power(asked))[asked[1]] is None:
        assert time.monotonic() < deadline
    arriving = powers[asked[0]]
    leaving = powers[asked[1]]
    assert arriving is not None
    assert leaving is not None
    assert powers[asked[2]] is None
    assert 0.5 < arriving - leaving < 2.5
    assert (await driver.disconnect(circuits("1>7"))).complete
    powers = await driver.power(asked)
    assert powers == {asked[0]: arriving, asked[1]: None, asked[2]: None}
