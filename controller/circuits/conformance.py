"""What every OCS driver must do, whatever its device, checked on one device.

A check gets a fresh open driver of a device with at least ``PORTS`` ports whose map is ``INITIAL``.
It raises ``CheckFailed`` where the driver does not do as ``CircuitDriver`` says.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from patchlight.controller.circuits.contract import (
    Capabilities,
    CircuitDriver,
    DirectedPort,
    Outcome,
)
from patchlight.testbed.errors import BadInput
from patchlight.testbed.portmap import CrossConnect, PortMap

PORTS = 24
"""How many ports on each side the checks need."""
INITIAL = PortMap.of([(1, 7), (7, 1), (2, 8)])
"""The cross-connects that each check begins with."""

Check = Callable[[CircuitDriver], Awaitable[None]]


class CheckFailed(AssertionError):
    """The driver does not do what every driver must; the message says what it did instead."""


def _expect(what: str, value: object, expected: object) -> None:
    if value != expected:
        raise CheckFailed(f"{what}: expected {_text(expected)}, got {_text(value)}")


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise CheckFailed(what)


def _text(value: object) -> str:
    if isinstance(value, PortMap | tuple | list) and not isinstance(value, CrossConnect):
        return f"[{', '.join(map(str, value))}]"
    return str(value)


def _pairs(*texts: str) -> list[CrossConnect]:
    return list(PortMap.parse(texts))


async def _expect_map(driver: CircuitDriver, *added: CrossConnect) -> None:
    _expect("the map", await driver.read_map(), PortMap.of([*INITIAL, *added]))


async def _complete(outcome: Awaitable[Outcome[CrossConnect]]) -> Outcome[CrossConnect]:
    result = await outcome
    _expect("refused", result.refused, ())
    return result


async def says_who_it_is(driver: CircuitDriver) -> None:
    """It has all of ``CircuitDriver``, and tells vendor, model, ports and capabilities."""
    _require(isinstance(driver, CircuitDriver), "it lacks methods of CircuitDriver")
    identity = await driver.identify()
    _require(bool(identity.vendor), "identify() names no vendor")
    _require(bool(identity.model), "identify() names no model")
    _require(driver.ports >= PORTS, f"ports is {driver.ports}: the checks need {PORTS}")
    _require(isinstance(driver.capabilities, Capabilities), "capabilities are no Capabilities")


async def reads_the_map(driver: CircuitDriver) -> None:
    """``read_map`` is what the device holds."""
    await _expect_map(driver)


async def connects_one(driver: CircuitDriver) -> None:
    """A cross-connect is made, and is in the map."""
    (pair,) = _pairs("3>9")
    outcome = await _complete(driver.connect([pair]))
    _expect("done", outcome.done, (pair,))
    _require(outcome.elapsed_s >= 0, f"elapsed_s is {outcome.elapsed_s}")
    await _expect_map(driver, pair)


async def connects_many_at_once(driver: CircuitDriver) -> None:
    """So are 16 in one call, inputs to outputs of the same number."""
    pairs = [CrossConnect(n, n) for n in range(9, PORTS + 1)]
    outcome = await driver.connect(pairs)
    _expect("done", outcome.done, tuple(pairs))
    await _expect_map(driver, *pairs)


async def disconnects_one(driver: CircuitDriver) -> None:
    """A cross-connect is broken; the others stay."""
    (pair,) = _pairs("2>8")
    outcome = await driver.disconnect([pair])
    _expect("done", outcome.done, (pair,))
    _expect("the map", await driver.read_map(), PortMap.of([(1, 7), (7, 1)]))


async def disconnects_all(driver: CircuitDriver) -> None:
    """All are broken in one call."""
    outcome = await _complete(driver.disconnect(INITIAL))
    _expect("done", sorted(outcome.done), sorted(INITIAL))
    _expect("the map", await driver.read_map(), PortMap())


async def one_direction_goes_alone(driver: CircuitDriver) -> None:
    """Of two directions between the same ports the other one stays."""
    await _complete(driver.disconnect(_pairs("1>7")))
    _expect("the map", await driver.read_map(), PortMap.of([(7, 1), (2, 8)]))


async def what_is_done_already_is_done(driver: CircuitDriver) -> None:
    """Connecting what is there, and disconnecting what is not, counts as done."""
    there, absent = _pairs("2>8"), _pairs("5>6")
    for _ in range(2):
        await _complete(driver.connect([*there, *_pairs("4>4")]))
    _expect("done of what was there", (await driver.connect(there)).done, tuple(there))
    _expect("done of what was not", (await driver.disconnect(absent)).done, tuple(absent))
    await _complete(driver.disconnect([*absent, *there]))
    _expect("the map", await driver.read_map(), PortMap.of([(1, 7), (7, 1), (4, 4)]))


async def a_busy_port_is_refused_and_nothing_else(driver: CircuitDriver) -> None:
    """Nothing is broken to make room; what can be done of the call is done."""
    possible, busy = _pairs("3>9", "5>11"), _pairs("1>10", "4>8")
    outcome = await driver.connect([possible[0], *busy, possible[1]])
    _expect("done", outcome.done, tuple(possible))
    _expect("refused", [refusal.cross_connect for refusal in outcome.refused], busy)
    _require(all(refusal.words for refusal in outcome.refused), "a refusal has no words")
    await _expect_map(driver, *possible)


async def one_refused_alone_leaves_the_map(driver: CircuitDriver) -> None:
    """Nothing of a refused cross-connect is left, and nothing of it holds the ports."""
    outcome = await driver.connect(_pairs("1>10"))
    _expect("done", outcome.done, ())
    _require(bool(outcome.refused and outcome.refused[0].words), "the refusal has no words")
    await _expect_map(driver)
    await _complete(driver.connect(_pairs("3>10")))


async def bad_input_changes_nothing(driver: CircuitDriver) -> None:
    """A port outside the device, or one used twice, is ``BadInput`` before anything is sent."""
    outside = CrossConnect(3, driver.ports + 1)
    no_ports = [CrossConnect(0, 3), CrossConnect(-1, 9), CrossConnect(3, -9)]
    no_ports.append(CrossConnect(True, 9))
    lists = [[outside], *([c] for c in no_ports), [CrossConnect(3, 9), CrossConnect(3, 10)]]
    calls = [("connect", driver.connect, [CrossConnect(6, 6)], wrong) for wrong in lists]
    for method, call, fine, wrong in [*calls, ("disconnect", driver.disconnect, [], [outside])]:
        try:
            outcome = await call([*fine, *wrong])
        except BadInput:
            continue
        raise CheckFailed(f"{method}() with {_text(wrong)}: expected BadInput, got {outcome}")
    for number in (0, -1, True, driver.ports + 1):
        try:
            powers = await driver.power([DirectedPort("in", number)])
        except BadInput:
            continue
        raise CheckFailed(f"power() of port {number}: expected BadInput, got {powers}")
    await _expect_map(driver)


async def nothing_asked_is_nothing_done(driver: CircuitDriver) -> None:
    """Empty lists are no errors."""
    await _complete(driver.connect([]))
    await _complete(driver.disconnect([]))
    _expect("power", await driver.power([]), {})
    await _expect_map(driver)


async def overlapping_calls_keep_in_order(driver: CircuitDriver) -> None:
    """Six calls at once, and a read among them, all come to their end."""
    pairs = [CrossConnect(n, n) for n in range(10, 16)]
    calls = [asyncio.create_task(_complete(driver.connect([pair]))) for pair in pairs]
    try:
        await asyncio.gather(driver.read_map(), *calls)
    finally:
        # Whatever failed, nothing goes on behind the next check's back.
        await asyncio.gather(*calls, return_exceptions=True)
    await _expect_map(driver, *pairs)


async def knows_its_ports(driver: CircuitDriver) -> None:
    """``port_states`` has both sides of every port, and those without trouble are ready."""
    states = await driver.port_states()
    _expect("port states", len(states), 2 * driver.ports)
    _expect("the last input", states[DirectedPort("in", driver.ports)].condition, "ready")


async def power_where_there_are_monitors(driver: CircuitDriver) -> None:
    """``power`` answers for the ports of the sides that have monitors, in believable dBm."""
    ports = [DirectedPort(side, n) for side in ("in", "out") for n in range(1, 13)]
    monitored = {"in": driver.capabilities.power_in, "out": driver.capabilities.power_out}
    for asked in (ports, ports[:1], ports[-2:]):
        powers = await driver.power(asked)
        _expect("ports", sorted(powers), [port for port in asked if monitored[port.side]])
        for port, dbm in powers.items():
            _require(dbm is None or -90 < dbm < 40, f"power at {port} is {dbm} dBm")


async def light_comes_out_where_it_is_led(driver: CircuitDriver) -> None:
    """Where light arrives, a new circuit lets it out, with no more power than came in.

    On devices that measure both, and only where anything arrives at inputs 1 to 12.
    """
    if not (driver.capabilities.power_in and driver.capabilities.power_out):
        return
    inputs = [DirectedPort("in", n) for n in range(1, 13)]
    lit = [port.number for port, dbm in (await driver.power(inputs)).items() if dbm is not None]
    await _complete(driver.disconnect(INITIAL))
    made = [CrossConnect(inp, inp + 12) for inp in lit]
    await _complete(driver.connect(made))
    for c in made:
        there, here = DirectedPort("in", c.inp), DirectedPort("out", c.out)
        powers = await driver.power([there, here])
        arriving, leaving = powers.get(there), powers.get(here)
        if arriving is None:
            continue  # it has just gone
        words = f"{c} is made and {arriving} dBm arrive at {there}"
        _require(leaving is not None, f"{words}, but none is told at {here}")
        # Monitors are exact to a tenth of a dB or two.
        _require(leaving is None or leaving < arriving + 0.5, f"{words}: {leaving} dBm at {here}")


async def alarms_can_be_asked_for(driver: CircuitDriver) -> None:
    """``alarms`` answers with a tuple."""
    alarms: object = await driver.alarms()
    _require(isinstance(alarms, tuple), f"alarms() gave a {type(alarms).__name__}")


async def closing_clears_nothing(driver: CircuitDriver) -> None:
    """Circuits outlive the connection; closing twice is no error; it can be opened again."""
    pairs = _pairs("3>9")
    await _complete(driver.connect(pairs))
    await driver.close()
    await driver.close()
    await driver.open()
    await _expect_map(driver, *pairs)


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
    light_comes_out_where_it_is_led,
    alarms_can_be_asked_for,
    closing_clears_nothing,
)

RaiseAlarm = Callable[[], Awaitable[None]]
"""Has the device report something, if it can be made to."""
_ALARM_WITHIN_S = 10.0


async def alarms_arrive(driver: CircuitDriver, raise_alarm: RaiseAlarm) -> None:
    """What the device reports is among its alarms, after those that it had, and has its time."""
    before = await driver.alarms()
    began = time.time()
    await raise_alarm()
    deadline = time.monotonic() + _ALARM_WITHIN_S
    while (alarms := await driver.alarms())[: len(before)] == before and len(alarms) == len(before):
        _require(time.monotonic() < deadline, f"no alarm came within {_ALARM_WITHIN_S:g} s")
        await asyncio.sleep(0.05)
    _require(len(alarms) > len(before), "alarms that were there before are gone")
    new = alarms[-1]
    _require(began - 1 <= new.at <= time.time() + 1, f"the alarm's time is {new.at}")
    _require(bool(new.words), "the alarm has no words")
