"""Drivers over a session with their emulated device, where things go wrong on the device."""

import contextlib
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from patchlight.controller.circuits.contract import (
    CircuitDriver,
    DeviceUnreachable,
    DirectedPort,
)
from patchlight.controller.circuits.drivers.calient_rest import CALIENT
from patchlight.controller.circuits.drivers.polatis_restconf import POLATIS
from patchlight.controller.circuits.protocols.http import HttpDialect
from patchlight.testbed.errors import OutcomeUnknown
from patchlight.testbed.lab.portmap import CrossConnect, PortMap
from tests.support.emulated_devices import Running, lab_file, running
from tests.support.ocs_drivers import (
    FIRST_MAP,
    PASSWORD,
    SESSION_DRIVERS,
    circuit,
    circuits,
    driver_of,
    drivers,
    opened,
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


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "texts", [("3>9",), ("3>9", "4>10")], ids=["one", "list"]
)
async def test_a_lost_connection_is_an_unknown_outcome(
    device: Running, driver: CircuitDriver, when: str, texts: tuple[str, ...]
) -> None:
    name = device.switch.driver
    pairs = circuits(*texts)
    pattern = (
        "was sent, then" if name in HTTP else "." if name in SSH else "closed"
    )
    if name == "calient-tl1" and len(pairs) == 1:
        pattern = r"ENT-CRS::1\.1\.3,1\.2\.1.*closed"
    device.fault(cut=when)
    with pytest.raises(OutcomeUnknown, match=pattern) as caught:
        await driver.connect(pairs)
    assert caught.value.exit_code == 3
    # The driver is usable at once: it logs in again, and tells what is so.
    held = set(await driver.read_map())
    if name == "calient-tl1" and len(pairs) == 1:
        assert not held & set(pairs)  # entered it may be, activated it is not
    elif name != "calient-tl1":  # a list may still be on its way
        assert (
            set(pairs[:1] if name == "telescent-ssh" else pairs) <= held
        ) == (when == "after")
    assert (await driver.connect(pairs)).complete
    assert set(pairs) <= set(await driver.read_map())
    device.fault(cut=when)
    with pytest.raises(OutcomeUnknown):
        await driver.disconnect(pairs)
    if name in LISTS:
        assert (pairs[0] in await driver.read_map()) == (when == "before")
    assert (await driver.disconnect(pairs)).complete


@without("calient-tl1")
async def test_silence_is_an_unknown_outcome(device: Running) -> None:
    # Long enough for a device that is held up, and for one process that is to see both times.
    stall_s = 3.5
    answer_s = 1.5
    pattern = "no answer within" + (
        "" if device.switch.driver in SSH else r" 1\.5 s"
    )
    async with opened(device.switch, answer_s=answer_s) as driver:
        device.fault(stall_s=stall_s)
        with pytest.raises(OutcomeUnknown, match=pattern):
            await driver.connect(circuits("3>9"))
        # The device does it later all the same; no answer to it is mistaken for another's.
        deadline = time.monotonic() + PATIENCE_S
        while circuit("3>9") not in await driver.read_map():
            assert time.monotonic() < deadline
        assert (await driver.disconnect(circuits("3>9"))).complete


@drivers(*LISTS, *SSH)
@pytest.mark.parametrize(
    "faults",
    [
        {"garble": 1},
        {"answer_twice": 2},
        {"garble": 1, "answer_twice": 1},
        {"truncate": 1},
    ],
    ids=["garbled", "twice", "both", "half"],
)
async def test_garbled_and_doubled_answers_never_make_a_wrong_map(
    device: Running, faults: dict[str, Any]
) -> None:
    ssh = device.switch.driver in SSH
    lost = (OutcomeUnknown, DeviceUnreachable)
    async with opened(device.switch, answer_s=1.0) as driver:
        for n in (20, 21):
            pair = CrossConnect(n, n)
            known = False
            device.fault(**faults)
            with contextlib.suppress(*lost):
                assert (await driver.connect([pair])).complete
                known = True
            device.fault(garble=0, answer_twice=0, truncate=0)
            try:
                now = await driver.read_map()
            except DeviceUnreachable:
                now = await driver.read_map()
            assert now in (FIRST_MAP, PortMap.of([*FIRST_MAP, (n, n)]))
            assert not known or pair in now
            with contextlib.suppress(*lost if ssh else ()):
                assert (await driver.disconnect([pair])).complete
                continue
            assert (await driver.disconnect([pair])).complete


@drivers(*HTTP)
async def test_a_garbled_answer_is_nothing_to_believe(
    device: Running, driver: CircuitDriver
) -> None:
    # One broken answer to a question: it is asked again.
    device.fault(garble=1)
    assert await driver.read_map() == FIRST_MAP
    device.fault(garble=2)
    with pytest.raises(DeviceUnreachable, match="no reply to GET"):
        await driver.read_map()
    # The question before a change is no change.
    device.fault(garble=2)
    with pytest.raises(DeviceUnreachable):
        await driver.connect(circuits("3>9"))
    assert await driver.read_map() == FIRST_MAP


@drivers(*HTTP)
async def test_an_answer_that_comes_twice_is_nobody_else_s(
    device: Running, driver: CircuitDriver
) -> None:
    for n in range(10, 14):
        device.fault(answer_twice=3)
        assert (await driver.connect([CrossConnect(n, n)])).complete
        device.fault(answer_twice=3)
        assert CrossConnect(n, n) in await driver.read_map()
        assert (await driver.disconnect([CrossConnect(n, n)])).complete
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


async def test_a_lost_cross_connect_and_reboots_are_read(
    device: Running, driver: CircuitDriver
) -> None:
    assert (await driver.connect(circuits("3>9"))).complete
    assert device.fault(lose="3>9")["ok"]
    assert await driver.read_map() == FIRST_MAP
    assert device.fault(reboot="keep")["ok"]
    assert await driver.read_map() == FIRST_MAP
    assert device.fault(reboot="forget")["ok"]
    assert await driver.read_map() == PortMap()
    assert not device.fault(reboot="perhaps")["ok"]
    assert (await driver.connect(FIRST_MAP)).complete


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


@pytest.mark.parametrize("name", SESSION_DRIVERS)
async def test_a_device_that_went_is_unreachable_and_its_return_is_noticed(
    name: str, tmp_path: Path
) -> None:
    lab = lab_file(tmp_path, driver=name, initial=("1-7",))
    state = ("--state", str(tmp_path / "state"), "--no-fabric")
    with running(tmp_path, lab, *state) as first:
        driver = driver_of(first.switch, "")
        await driver.open()
        assert (await driver.connect(circuits("3>9"))).complete
        first.kill()
    with pytest.raises(DeviceUnreachable, match=r"ocs1 at 127\.0\.0\.1"):
        await driver.read_map()
    with pytest.raises(DeviceUnreachable):
        await driver.connect(circuits("4>10"))
    with running(tmp_path, lab, *state, listen=first.switch.address):
        # It kept its circuits, its certificate and its host key over its own restart.
        assert await driver.read_map() == PortMap.of([*FIRST_MAP, (3, 9)])
        await driver.close()
