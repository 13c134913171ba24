"""Checks what every driver must do, on one device.

A check gets an open driver of a device whose map is that of its ground (``ground_of``). It raises
``CheckFailed`` if the driver violates its contract.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from patchlight.controller.circuits import contract
from patchlight.controller.circuits.conformance_ground import (
    INITIAL,
    Driver,
    ground_of,
)
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.portmap import CrossConnect, PortMap
from patchlight.testbed.lab.spectrum import ChannelConnect, SpectrumMap
from patchlight.testbed.tasks import run_all

ENTRIES = (CrossConnect, ChannelConnect)

Check = Callable[[Any], Awaitable[None]]
"""Of a driver of the kind that it is for."""


class CheckFailed(AssertionError):
    """A driver violates its contract; the message says how."""


def _expect(
    what: str,
    value: object,
    expected: object,
) -> None:
    if value != expected:
        raise CheckFailed(
            f"{what}: expected {_text(expected)}, got {_text(value)}"
        )


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise CheckFailed(what)


def _text(value: object) -> str:
    if isinstance(
        value, PortMap | SpectrumMap | tuple | list
    ) and not isinstance(value, ENTRIES):
        return f"[{', '.join(map(str, value))}]"
    return str(value)


async def _expect_map(driver: Driver, *added: object) -> None:
    ground = ground_of(driver)
    _expect(
        "the map",
        await driver.read_map(),
        ground.map_of([*ground.initial, *added]),
    )


async def _complete(
    outcome: Awaitable[contract.Outcome[Any]],
) -> contract.Outcome[Any]:
    result = await outcome
    _expect("refused", result.refused, ())
    return result


async def says_who_it_is(driver: Driver) -> None:
    """It has all of its contract, and tells vendor, model, ports and capabilities."""
    whole = isinstance(
        driver, contract.CircuitDriver | contract.WavelengthDriver
    )
    _require(
        whole, "it lacks methods of CircuitDriver, or of WavelengthDriver"
    )
    identity = await driver.identify()
    _require(bool(identity.vendor), "identify() names no vendor")
    _require(bool(identity.model), "identify() names no model")
    ground = ground_of(driver)
    has = (ground.inputs, ground.outputs)
    _require(
        not ground.missing,
        f"it has {has} ports: the checks need {ground.missing}",
    )
    _require(
        isinstance(driver.capabilities, contract.Capabilities),
        "capabilities are not Capabilities",
    )


async def reads_the_map(driver: Driver) -> None:
    """``read_map`` returns the device's map."""
    await _expect_map(driver)


async def connects_one(driver: Any) -> None:
    """An entry is made, and is in the map."""
    entry = ground_of(driver).single[0]
    outcome = await _complete(driver.connect([entry]))
    _expect("done", outcome.done, (entry,))
    _require(outcome.elapsed_s >= 0, f"elapsed_s is {outcome.elapsed_s}")
    await _expect_map(driver, entry)


async def connects_many_at_once(driver: Any) -> None:
    """Up to 16 entries are made in one call, from inputs to outputs of the same number."""
    entries = ground_of(driver).many
    outcome = await driver.connect(entries)
    _expect("done", outcome.done, tuple(entries))
    await _expect_map(driver, *entries)


async def disconnects_one(driver: Any) -> None:
    """An entry is broken; the others stay."""
    ground = ground_of(driver)
    outcome = await driver.disconnect([ground.last])
    _expect("done", outcome.done, (ground.last,))
    _expect(
        "the map",
        await driver.read_map(),
        ground.initial.without([ground.last]),
    )


async def disconnects_all(driver: Any) -> None:
    """All entries are broken in one call."""
    ground = ground_of(driver)
    outcome = await _complete(driver.disconnect(ground.initial))
    _expect("done", sorted(outcome.done), sorted(ground.initial))
    _expect("the map", await driver.read_map(), ground.map_of([]))


async def one_direction_goes_alone(driver: contract.CircuitDriver) -> None:
    """If one of two directions between the same ports is broken, the other stays."""
    await _complete(driver.disconnect([CrossConnect(1, 7)]))
    _expect("the map", await driver.read_map(), PortMap.of([(7, 1), (2, 8)]))


async def what_is_done_already_is_done(driver: Any) -> None:
    """Connecting an existing entry, and disconnecting a missing one, count as done."""
    ground = ground_of(driver)
    there = [ground.last]
    absent = [ground.single[1]]
    new = ground.single[0]
    for _ in range(2):
        await _complete(driver.connect([*there, new]))
    _expect(
        "existing entries that are done",
        (await driver.connect(there)).done,
        tuple(there),
    )
    _expect(
        "missing entries that are done",
        (await driver.disconnect(absent)).done,
        tuple(absent),
    )
    await _complete(driver.disconnect([*absent, *there]))
    left = ground.map_of([*ground.initial.without(there), new])
    _expect("the map", await driver.read_map(), left)


async def a_busy_port_is_refused_and_nothing_else(driver: Any) -> None:
    """Nothing is broken to make room; the possible part of a call is done."""
    ground = ground_of(driver)
    possible = ground.single
    busy = ground.busy
    outcome = await driver.connect([possible[0], *busy, possible[1]])
    _expect("done", outcome.done, tuple(possible))
    _expect(
        "refused",
        [refusal.cross_connect for refusal in outcome.refused],
        list(busy),
    )
    _require(
        all(refusal.words for refusal in outcome.refused),
        "a refusal has no message",
    )
    await _expect_map(driver, *possible)


async def one_refused_alone_leaves_the_map(driver: Any) -> None:
    """Nothing of a refused entry remains, and its ports and channel stay free."""
    ground = ground_of(driver)
    outcome = await driver.connect([ground.busy[0]])
    _expect("done", outcome.done, ())
    _require(
        bool(outcome.refused and outcome.refused[0].words),
        "the refusal has no message",
    )
    await _expect_map(driver)
    await _complete(driver.connect([ground.beside]))


async def bad_input_changes_nothing(driver: Any) -> None:
    """A port outside the device, or conflicting entries, are ``BadInput`` before anything is sent.

    So is a channel off the grid.
    """
    ground = ground_of(driver)
    outside = ground.wrong[0]
    fine = ground.single[1]
    calls = [
        ("connect", driver.connect, [fine], wrong) for wrong in ground.wrong
    ]
    for method, call, beside, wrong in [
        *calls,
        ("disconnect", driver.disconnect, [], outside),
    ]:
        try:
            outcome = await call([*beside, *wrong])
        except BadInput:
            continue
        raise CheckFailed(
            f"{method}() with {_text(wrong)}: expected BadInput, got {outcome}"
        )
    for port in ground.wrong_ports:
        try:
            powers = await driver.power([port])
        except BadInput:
            continue
        words = (
            f"power() of port {port.number}: expected BadInput, got {powers}"
        )
        raise CheckFailed(words)
    await _expect_map(driver)


async def nothing_asked_is_nothing_done(driver: Any) -> None:
    """Empty lists are not errors."""
    await _complete(driver.connect([]))
    await _complete(driver.disconnect([]))
    _expect("power", await driver.power([]), {})
    await _expect_map(driver)


async def overlapping_calls_keep_in_order(driver: Any) -> None:
    """Up to six concurrent calls, and a read among them, all finish."""
    entries = ground_of(driver).many[1:7]
    # Even after a failure, nothing continues during the next check.
    calls = (_complete(driver.connect([entry])) for entry in entries)
    await run_all((driver.read_map(), *calls))
    await _expect_map(driver, *entries)


async def another_attenuation_takes_a_break(
    driver: contract.WavelengthDriver,
) -> None:
    """The same channel with another attenuation is refused, and made once the first is broken."""
    ground = ground_of(driver)
    weaker = ground.last._replace(
        attenuation_db=ground.last.attenuation_db + 2
    )
    _expect("done", (await driver.connect([weaker])).done, ())
    await _expect_map(driver)
    change = ground.initial.diff(
        ground.map_of([*ground.initial.without([ground.last]), weaker])
    )
    await _complete(driver.disconnect(change.breaks))
    await _complete(driver.connect(change.makes))
    _expect("the map", await driver.read_map(), ground.initial.apply(change))


async def channels_side_by_side_are_apart(
    driver: contract.WavelengthDriver,
) -> None:
    """The middle one of three neighbouring channels is broken alone, and made again."""
    ground = ground_of(driver)
    first = ground.many[0]
    three = [
        first._replace(channel=other.channel) for other in ground.many[:3]
    ]
    await _complete(driver.connect(three))
    await _expect_map(driver, *three)
    await _complete(driver.disconnect([three[1]]))
    await _expect_map(driver, three[0], three[2])
    await _complete(driver.connect([three[1]]))
    await _expect_map(driver, *three)


async def other_channels_keep_their_power(
    driver: contract.WavelengthDriver,
) -> None:
    """If the device measures channels, a change of one does not affect the others' power."""
    if not isinstance(driver, contract.TellsChannelPowers):
        return
    ground = ground_of(driver)
    ports = {contract.DirectedPort("out", way.out) for way in ground.initial}
    before = await driver.channel_powers(ports)
    await _complete(driver.connect(ground.single[:1]))
    await _complete(driver.disconnect(ground.single[:1]))
    after = await driver.channel_powers(ports)
    for port, channels in before.items():
        for channel, dbm in channels.items():
            now = after[port].get(channel)
            same = now == dbm or (
                dbm is not None and now is not None and abs(now - dbm) < 1.0
            )
            _require(
                same,
                f"channel {channel} at {port} had {dbm} dBm, and now has {now}",
            )


async def knows_its_ports(driver: Driver) -> None:
    """``port_states`` has both sides of every port, and healthy ones are ready."""
    states = await driver.port_states()
    ground = ground_of(driver)
    inputs = ground.inputs
    outputs = ground.outputs
    _expect("port states", len(states), inputs + outputs)
    for port in (
        contract.DirectedPort("in", inputs),
        contract.DirectedPort("out", outputs),
    ):
        _expect(f"the state of {port}", states[port].condition, "ready")


async def power_where_there_are_monitors(driver: Driver) -> None:
    """``power`` returns plausible dBm for the ports of the sides with monitors."""
    ground = ground_of(driver)
    counts = zip(contract.SIDES, (ground.inputs, ground.outputs), strict=True)
    ports = [
        contract.DirectedPort(side, n)
        for side, count in counts
        for n in range(1, min(count, 12) + 1)
    ]
    monitored = {
        "in": driver.capabilities.power_in,
        "out": driver.capabilities.power_out,
    }
    for requested in (ports, ports[:1], ports[-2:]):
        powers = await driver.power(requested)
        _expect(
            "ports",
            sorted(powers),
            [port for port in requested if monitored[port.side]],
        )
        for port, dbm in powers.items():
            _require(
                dbm is None or -90 < dbm < 40, f"power at {port} is {dbm} dBm"
            )


async def light_comes_out_where_it_is_led(
    driver: contract.CircuitDriver,
) -> None:
    """If a signal arrives, a new circuit passes it, without adding power.

    Only on devices that measure both sides, and if anything arrives at the first 12 inputs, or at
    the first half if they are fewer.
    """
    if not (driver.capabilities.power_in and driver.capabilities.power_out):
        return
    half = min(12, driver.ports // 2)
    inputs = [contract.DirectedPort("in", n) for n in range(1, half + 1)]
    lit = [
        port.number
        for port, dbm in (await driver.power(inputs)).items()
        if dbm is not None
    ]
    await _complete(driver.disconnect(INITIAL))
    made = [CrossConnect(inp, inp + half) for inp in lit]
    await _complete(driver.connect(made))
    for c in made:
        there = contract.DirectedPort("in", c.inp)
        here = contract.DirectedPort("out", c.out)
        powers = await driver.power([there, here])
        arriving = powers.get(there)
        leaving = powers.get(here)
        if arriving is None:
            continue  # the signal has just gone
        words = f"{c} is made and {arriving} dBm arrive at {there}"
        _require(
            leaving is not None, f"{words}, but no power is reported at {here}"
        )
        # Monitors are accurate to one or two tenths of a dB.
        _require(
            leaving is None or leaving < arriving + 0.5,
            f"{words}: {leaving} dBm at {here}",
        )


async def alarms_can_be_asked_for(driver: Driver) -> None:
    """``alarms`` returns a tuple."""
    alarms: object = await driver.alarms()
    _require(
        isinstance(alarms, tuple), f"alarms() gave a {type(alarms).__name__}"
    )


async def closing_clears_nothing(driver: Any) -> None:
    """The map outlives the connection; closing twice is not an error; it can be reopened."""
    pairs = ground_of(driver).single[:1]
    await _complete(driver.connect(pairs))
    await driver.close()
    await driver.close()
    await driver.open()
    await _expect_map(driver, *pairs)


_SHARED: Sequence[Check] = (
    says_who_it_is,
    reads_the_map,
    connects_one,
    connects_many_at_once,
    disconnects_one,
    disconnects_all,
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
CHECKS = (*_SHARED, one_direction_goes_alone, light_comes_out_where_it_is_led)
"""The checks of every driver of a circuit switch."""
WAVELENGTH_CHECKS: Sequence[Check] = (
    *_SHARED,
    another_attenuation_takes_a_break,
    channels_side_by_side_are_apart,
    other_channels_keep_their_power,
)
"""The checks of every driver of a wavelength switch."""


def checks_of(driver: Driver) -> Sequence[Check]:
    """The checks for its kind."""
    return (
        WAVELENGTH_CHECKS
        if isinstance(driver, contract.WavelengthDriver)
        else CHECKS
    )


RaiseAlarm = Callable[[], Awaitable[None]]
"""Makes the device report something, if possible."""
_ALARM_WITHIN_S = 10.0


async def alarms_arrive(driver: Driver, raise_alarm: RaiseAlarm) -> None:
    """An event of the device is among its alarms, after earlier ones, with its time."""
    before = await driver.alarms()
    began = time.time()
    await raise_alarm()
    deadline = time.monotonic() + _ALARM_WITHIN_S
    while (alarms := await driver.alarms())[: len(before)] == before and len(
        alarms
    ) == len(before):
        _require(
            time.monotonic() < deadline,
            f"no alarm came within {_ALARM_WITHIN_S:g} s",
        )
        await asyncio.sleep(0.05)
    _require(len(alarms) > len(before), "earlier alarms are gone")
    new = alarms[-1]
    _require(
        began - 1 <= new.at <= time.time() + 1, f"the alarm's time is {new.at}"
    )
    _require(bool(new.words), "the alarm has no text")
