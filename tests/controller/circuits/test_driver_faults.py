"""Drivers over a session with their emulated device, where things go wrong on the device."""

import re
import time
from dataclasses import replace

import pytest

from patchlight.controller.circuits.contract import CircuitDriver, DirectedPort
from patchlight.controller.circuits.drivers.calient_rest import CALIENT
from patchlight.controller.circuits.drivers.polatis_restconf import POLATIS
from patchlight.controller.circuits.protocols.http import HttpDialect
from patchlight.testbed.lab.portmap import CrossConnect, PortMap
from tests.support.emulated_devices import Running
from tests.support.ocs_drivers import (
    FIRST_MAP,
    PASSWORD,
    SESSION_DRIVERS,
    circuit,
    circuits,
    drivers,
)
from tests.support.waiting import PATIENCE_S

DEACTIVATE = CALIENT.activate.replace("activate", "deactivate")
LISTS = ("polatis-scpi", "polatis-tl1", "glimmerglass-tl1")
HTTP = ("calient-rest", "polatis-restconf", "sonic-ocs")
SSH = ("polatis-netconf", "telescent-ssh")

# What the device says of out:9 if that is locked.
LOCKED = {
    "calient-tl1": "Failed: port 1.2.1 is locked",
    "calient-rest": "^409: Failed: port 1.2.1 is locked$",
    "polatis-scpi": '-221,"Settings conflict;port 105 is disabled"',
    "polatis-tl1": "Port 105 is disabled",
    "polatis-restconf": "^409: Port 105 is disabled$",
    "polatis-netconf": "Port 105 is disabled",
    "glimmerglass-tl1": "Port 20009 is locked",
    "telescent-ssh": "ERROR: port 8 is disabled",
    "sonic-ocs": "^409: port 9 is force_blocked",
    "sonic-ocs-ssh": "^3>9 did not come up: out:9 is force_blocked$",
}
# Whatever the driver: which circuit it is, or which port as the device counts, and that it failed.
STUCK = re.compile(
    r"^4>10 did not come up: .*(OC=FAIL|=mirror_failure|failed,failed)$"
    r"|\b[Pp]ort 106 has failed\b|^ERROR: the robot failed at port 9$"
)


def without(*names: str) -> pytest.MarkDecorator:
    return drivers(*(name for name in SESSION_DRIVERS if name not in names))


# Its robot moves one fibre after the other.
takes_lists = without("telescent-ssh")


async def test_a_locked_port_is_refused_in_the_device_s_own_words(
    device: Running, driver: CircuitDriver
) -> None:
    device.fault(refuse_ports=[9])
    name = device.switch.driver
    pattern = LOCKED.get(device.switch.driver, "locked|disabled")
    for pairs in (circuits("3>9"), circuits("4>10", "3>9", "5>1")):
        outcome = await driver.connect(pairs)
        words = {str(r.cross_connect): r.words for r in outcome.refused}
        assert re.search(pattern, words["3>9"])
    if name == "calient-tl1":
        assert "1.1.1 is in use: 1.1.7>1.1.1" in words["5>1"]
    else:
        assert words["5>1"] == "out:1 is in use on the device: 7>1"
    assert outcome.done == (circuit("4>10"),)
    assert await driver.read_map() == PortMap.of([*FIRST_MAP, (4, 10)])
    if name not in (
        "calient-rest",
        "glimmerglass-tl1",
    ):  # they do not tell of that
        states = await driver.port_states()
        assert {
            p.number
            for p, state in states.items()
            if state.condition == "locked"
        } == {9}


async def test_a_stuck_mirror_is_refused_and_cleared(
    device: Running, driver: CircuitDriver
) -> None:
    device.fault(fail_ports=[10])
    for pairs in (circuits("4>10"), circuits("4>10", "5>11")):
        outcome = await driver.connect(pairs)
        assert [str(r.cross_connect) for r in outcome.refused] == ["4>10"]
        assert STUCK.search(outcome.refused[0].words)
    assert await driver.read_map() == PortMap.of([*FIRST_MAP, (5, 11)])
    if not device.switch.driver.startswith(
        "calient"
    ):  # they tell of that in the circuit only
        states = await driver.port_states()
        assert {
            p.number
            for p, state in states.items()
            if state.condition == "failed"
        } == {10}
    # What failed holds no port.
    assert (await driver.connect(circuits("4>12"))).complete


@takes_lists
async def test_a_whole_list_refused_is_tried_singly(
    device: Running, driver: CircuitDriver
) -> None:
    pairs = circuits("3>9", "4>10")
    device.fault(refuse_next="Failed: busy saving")
    assert (await driver.connect(pairs)).complete
    assert len(await driver.read_map()) == 4
    device.fault(refuse_next="Failed: busy saving")
    assert (await driver.disconnect(pairs)).complete
    assert await driver.read_map() == FIRST_MAP


async def test_a_single_refusal_is_told(
    device: Running, driver: CircuitDriver
) -> None:
    device.fault(refuse_next="busy saving")
    (refusal,) = (await driver.connect(circuits("3>9"))).refused
    assert "busy saving" in refusal.words
    if device.switch.driver in HTTP:
        assert refusal.words == "409: busy saving"
    assert await driver.read_map() == FIRST_MAP


async def test_a_user_who_may_only_look(
    device: Running, driver: CircuitDriver
) -> None:
    device.fault(read_only=True)
    (made,) = (await driver.connect(circuits("3>9"))).refused
    (broken,) = (await driver.disconnect(circuits("1>7"))).refused
    if device.switch.driver in HTTP:
        assert made.words == "403: this user may only look"
        assert made.words in broken.words
    assert "protected" in made.words or "only look" in made.words
    assert await driver.read_map() == FIRST_MAP


@drivers(*LISTS, *SSH)
async def test_a_flood_of_alarms_is_heard_and_bounded(
    device: Running, driver: CircuitDriver
) -> None:
    device.fault(flood=3000)
    assert await driver.read_map() == FIRST_MAP
    assert (await driver.connect(circuits("3>9"))).complete
    alarms = await driver.alarms()
    assert 0 < len(alarms) <= 1000
    assert any("FLOOD" in a.words or "Alarm" in a.words for a in alarms)
    assert device.fault(report=f"*C EQPT: 7: {'long ' * 1000}")["ok"]
    assert device.fault(report="*C EQPT: 7: PWR below limit")["ok"]
    deadline = time.monotonic() + PATIENCE_S
    while "PWR below limit" not in (await driver.alarms())[-1].words:
        assert time.monotonic() < deadline
        await driver.read_map()
    assert (
        device.switch.driver in LISTS
        or (await driver.alarms())[-1].severity == "critical"
    )
    assert max(len(alarm.words) for alarm in await driver.alarms()) == 500


@drivers(*LISTS)
async def test_power_drifts(device: Running, driver: CircuitDriver) -> None:
    out = DirectedPort("out", 7)
    before = (await driver.power([out]))[out]
    assert before is not None
    device.fault(drift_db={"7": 4.5})
    assert (await driver.power([out]))[out] == pytest.approx(
        before - 4.5, abs=0.11
    )


@takes_lists
async def test_many_ports_are_asked_for_within_the_device_s_limits(
    driver: CircuitDriver,
) -> None:
    ports = [
        DirectedPort(side, n) for side in ("in", "out") for n in range(1, 97)
    ]
    powers = await driver.power([*ports, *ports])
    lit = {str(port) for port, dbm in powers.items() if dbm is not None}
    if driver.capabilities.power_out:
        assert list(powers) == sorted(ports)
        assert lit == {"in:1", "out:7"}
    else:
        assert powers == {}
    assert len(await driver.port_states()) == 192
    pairs = [CrossConnect(n, 97 - n) for n in range(8, 89)]
    assert (await driver.connect(pairs)).complete
    assert (await driver.disconnect(pairs)).complete


@pytest.mark.parametrize(
    ("shared", "dialect"),
    [
        (
            "polatis-restconf",
            replace(
                POLATIS,
                guard=False,
                list_limit=2,
                system_alarms="/data/nothing",
            ),
        ),
        (
            "calient-rest",
            replace(CALIENT, bulk_limit=2, deactivate=DEACTIVATE),
        ),
    ],
    indirect=["shared"],
)
async def test_a_unit_that_takes_short_lists_and_differs_otherwise(
    device: Running, dialect: HttpDialect
) -> None:
    driver = SESSION_DRIVERS[device.switch.driver](
        device.switch, PASSWORD, dialect
    )
    await driver.open()
    pairs = [CrossConnect(n, n) for n in range(10, 15)]
    assert (await driver.connect(pairs)).complete
    assert (await driver.disconnect(pairs)).complete
    assert await driver.read_map() == FIRST_MAP
    assert await driver.alarms() == ()
    await driver.close()
