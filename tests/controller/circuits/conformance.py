"""What every OCS driver must do, whatever its device: run each check against a fresh driver.

A check gets an open driver of a device with at least 24 ports whose map is ``INITIAL``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from patchlight.controller.circuits.contract import Capabilities, CircuitDriver, DirectedPort
from patchlight.testbed.errors import BadInput
from patchlight.testbed.portmap import CrossConnect, PortMap

INITIAL = PortMap.of([(1, 7), (7, 1), (2, 8)])

Check = Callable[[CircuitDriver], Awaitable[None]]


def pairs(*texts: str) -> list[CrossConnect]:
    return [CrossConnect(*(int(part) for part in text.split(">"))) for text in texts]


async def says_who_it_is(driver: CircuitDriver) -> None:
    assert isinstance(driver, CircuitDriver)
    identity = await driver.identify()
    assert identity.vendor
    assert identity.model
    assert driver.ports >= 24
    assert isinstance(driver.capabilities, Capabilities)


async def reads_the_map(driver: CircuitDriver) -> None:
    assert await driver.read_map() == INITIAL


async def connects_one(driver: CircuitDriver) -> None:
    (wanted,) = pairs("3>9")
    outcome = await driver.connect([wanted])
    assert outcome.complete
    assert outcome.done == (wanted,)
    assert outcome.elapsed_s >= 0
    assert await driver.read_map() == PortMap.of([*INITIAL, wanted])


async def connects_many_at_once(driver: CircuitDriver) -> None:
    wanted = [CrossConnect(n, n) for n in range(9, 25)]
    outcome = await driver.connect(wanted)
    assert outcome.done == tuple(wanted)
    assert await driver.read_map() == PortMap.of([*INITIAL, *wanted])


async def disconnects_one(driver: CircuitDriver) -> None:
    (going,) = pairs("2>8")
    outcome = await driver.disconnect([going])
    assert outcome.done == (going,)
    assert await driver.read_map() == PortMap.of([(1, 7), (7, 1)])


async def disconnects_all(driver: CircuitDriver) -> None:
    outcome = await driver.disconnect(INITIAL)
    assert outcome.complete
    assert set(outcome.done) == set(INITIAL)
    assert await driver.read_map() == PortMap()


async def one_direction_goes_alone(driver: CircuitDriver) -> None:
    assert (await driver.disconnect(pairs("1>7"))).complete
    assert await driver.read_map() == PortMap.of([(7, 1), (2, 8)])


async def what_is_done_already_is_done(driver: CircuitDriver) -> None:
    there, absent = pairs("2>8"), pairs("5>6")
    for _ in range(2):
        assert (await driver.connect([*there, *pairs("4>4")])).complete
    assert (await driver.connect(there)).done == tuple(there)
    assert (await driver.disconnect(absent)).done == tuple(absent)
    assert (await driver.disconnect([*absent, *there])).complete
    assert await driver.read_map() == PortMap.of([(1, 7), (7, 1), (4, 4)])


async def a_busy_port_is_refused_and_nothing_else(driver: CircuitDriver) -> None:
    outcome = await driver.connect(pairs("3>9", "1>10", "4>8", "5>11"))
    assert outcome.done == tuple(pairs("3>9", "5>11"))
    assert [r.cross_connect for r in outcome.refused] == pairs("1>10", "4>8")
    assert all(r.words for r in outcome.refused)
    assert await driver.read_map() == PortMap.of([*INITIAL, *pairs("3>9", "5>11")])


async def one_refused_alone_leaves_the_map(driver: CircuitDriver) -> None:
    outcome = await driver.connect(pairs("1>10"))
    assert not outcome.done
    assert outcome.refused[0].words
    assert await driver.read_map() == INITIAL
    # Nothing of it holds the port.
    assert (await driver.connect(pairs("3>10"))).complete


async def bad_input_changes_nothing(driver: CircuitDriver) -> None:
    for wrong in (pairs(f"3>{driver.ports + 1}"), [CrossConnect(0, 3)], pairs("3>9", "3>10")):
        with pytest.raises(BadInput):
            await driver.connect([*pairs("6>6"), *wrong])
    with pytest.raises(BadInput):
        await driver.disconnect([CrossConnect(1, driver.ports + 1)])
    assert await driver.read_map() == INITIAL


async def nothing_asked_is_nothing_done(driver: CircuitDriver) -> None:
    assert (await driver.connect([])).complete
    assert (await driver.disconnect([])).complete
    assert await driver.power([]) == {}
    assert await driver.read_map() == INITIAL


async def overlapping_calls_keep_in_order(driver: CircuitDriver) -> None:
    wanted = [pairs(f"{n}>{n}") for n in range(10, 16)]
    outcomes = await asyncio.gather(*(driver.connect(one) for one in wanted), driver.read_map())
    assert all(outcome.complete for outcome in outcomes[:-1])
    assert len(await driver.read_map()) == len(INITIAL) + 6


async def knows_its_ports(driver: CircuitDriver) -> None:
    states = await driver.port_states()
    assert len(states) == 2 * driver.ports
    assert states[DirectedPort("in", driver.ports)].condition == "ready"


async def power_where_there_are_monitors(driver: CircuitDriver) -> None:
    asked = [DirectedPort(side, n) for side in ("in", "out") for n in range(1, 13)]
    for some in (asked, asked[:1], asked[-2:]):
        found = await driver.power(some)
        sides = {"in": driver.capabilities.power_in, "out": driver.capabilities.power_out}
        assert set(found) == {port for port in some if sides[port.side]}
        assert all(dbm is None or -90 < dbm < 40 for dbm in found.values())


async def alarms_can_be_asked_for(driver: CircuitDriver) -> None:
    assert isinstance(await driver.alarms(), tuple)


async def closing_clears_nothing(driver: CircuitDriver) -> None:
    await driver.connect(pairs("3>9"))
    await driver.close()
    await driver.close()
    await driver.open()
    assert await driver.read_map() == PortMap.of([*INITIAL, *pairs("3>9")])


CHECKS: Sequence[Check] = (
    says_who_it_is,
    reads_the_map,
    connects_one,
    connects_many_at_once,
    disconnects_one,
    disconnects_all,
    one_direction_goes_alone,
    what_is_done_already_is_done,
    a_busy_port_is_refused_and_nothing_else,
    one_refused_alone_leaves_the_map,
    bad_input_changes_nothing,
    nothing_asked_is_nothing_done,
    overlapping_calls_keep_in_order,
    knows_its_ports,
    power_where_there_are_monitors,
    alarms_can_be_asked_for,
    closing_clears_nothing,
)


async def run(check: Check, driver: CircuitDriver) -> None:
    """Open the driver, run one check, close it."""
    await driver.open()
    try:
        await check(driver)
    finally:
        await driver.close()


async def restore(driver: CircuitDriver) -> None:
    """Bring the device's map back to ``INITIAL``."""
    await driver.open()
    try:
        change = (await driver.read_map()).diff(INITIAL)
        assert (await driver.disconnect(change.breaks)).complete
        assert (await driver.connect(change.makes)).complete
    finally:
        await driver.close()
