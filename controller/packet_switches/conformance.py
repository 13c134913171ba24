"""Checks what every driver of a packet switch must do, on one switch.

A check gets an open driver of a switch that carries nothing, and three of its ports. It raises
``CheckFailed`` if the driver violates its contract. Its stations have addresses for documentation
(RFC 5737) and MACs that no NIC has.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address

from patchlight.controller.circuits.conformance import CheckFailed
from patchlight.controller.packet_switches.contract import (
    Applied,
    PacketSwitchDriver,
    Station,
    Wish,
)

__all__ = [
    "CHECKS",
    "MEDDLING_CHECKS",
    "CheckFailed",
    "Ports",
    "run_check",
    "stations",
]

Ports = tuple[int, int, int]
Check = Callable[[PacketSwitchDriver, Ports], Awaitable[None]]
Meddle = Callable[[Station, int], Awaitable[None]]
"""Makes another application's entry in the switch, which leads to a station at a port."""
_READINGS = 20
_FIRST = IPv4Address("198.51.100.1")


def stations(count: int) -> list[Station]:
    """Stations of checks."""
    return [
        Station(f"02:4c:ff:00:{n >> 8:02x}:{n & 255:02x}", _FIRST + n)
        for n in range(count)
    ]


def _wish(
    ports: Ports,
    *at: int,
    port: int | None = None,
) -> Wish:
    """Station n at a port: the one given, or of each station in turn."""
    every = stations(max(at, default=0) + 1)
    return Wish(
        {every[n]: port or ports[n % len(ports)] for n in at}, frozenset(ports)
    )


def _expect(
    what: str,
    value: object,
    expected: object,
) -> None:
    if value != expected:
        raise CheckFailed(f"{what}: expected {expected}, got {value}")


async def _set(
    driver: PacketSwitchDriver,
    wish: Wish,
    changed: int | None = None,
) -> Applied:
    """Set it whole; ``changed`` is how many stations change, in a switch that is driven."""
    applied = await driver.set_forwarding(wish)
    _expect("what it lacks", applied.lacks, ())
    if changed is not None and not getattr(driver, "learns", False):
        # An entry for the MAC, one for the address, and one that drops the rest.
        at_most = 2 * changed + 1
        if not (changed <= applied.changed <= at_most):
            raise CheckFailed(
                f"{changed} stations changed, and 'changed' is {applied.changed}"
            )
    _expect(
        "the forwarding that is read",
        (await driver.read()).places,
        wish.places,
    )
    return applied


async def has_the_contract(driver: PacketSwitchDriver, ports: Ports) -> None:
    """It has all methods, and a name."""
    if not isinstance(driver, PacketSwitchDriver) or not driver.name:
        raise CheckFailed("it lacks methods of PacketSwitchDriver, or a name")


async def sets_and_reads(driver: PacketSwitchDriver, ports: Ports) -> None:
    """What was set is read; setting it again changes nothing."""
    await _set(
        driver,
        _wish(
            ports,
            0,
            1,
            2,
        ),
        changed=3,
    )
    _expect(
        "changed again",
        (
            await _set(
                driver,
                _wish(
                    ports,
                    0,
                    1,
                    2,
                ),
            )
        ).changed,
        0,
    )


async def moves_a_station(driver: PacketSwitchDriver, ports: Ports) -> None:
    """A station that moves is reached at its new port only."""
    for port in (*ports, ports[0]):
        await _set(driver, _wish(ports, 0, port=port), changed=1)


async def removes_what_is_not_wanted(
    driver: PacketSwitchDriver, ports: Ports
) -> None:
    """Stations that have gone are forgotten, the others stay."""
    await _set(
        driver,
        _wish(
            ports,
            0,
            1,
            2,
            3,
        ),
    )
    await _set(driver, _wish(ports, 1, 3), changed=2)
    await _set(
        driver,
        _wish(
            ports,
            0,
            1,
            3,
        ),
        changed=1,
    )
    await _set(driver, _wish(ports), changed=3)


async def sets_many(driver: PacketSwitchDriver, ports: Ports) -> None:
    """Three hundred stations at once, then all at other ports."""
    await _set(driver, _wish(ports, *range(300)))
    await _set(driver, _wish(ports, *range(300), port=ports[1]))


async def says_what_it_lacks(driver: PacketSwitchDriver, ports: Ports) -> None:
    """A station at a port that it has not is a lack with a reason; the others are set."""
    if getattr(driver, "learns", False):
        return
    station, *_ = stations(9)[8:]
    good = _wish(ports, 0, 1)
    bad = Wish({**good.places, station: 60_000}, good.ports)
    applied = await driver.set_forwarding(bad)
    _expect(
        "what it lacks", [lack.station for lack in applied.lacks], [station]
    )
    if not applied.lacks[0].reason:
        raise CheckFailed("a lack has no reason")
    _expect(
        "the forwarding that is read",
        (await driver.read()).places,
        good.places,
    )


async def knows_its_ports(driver: PacketSwitchDriver, ports: Ports) -> None:
    """Bytes of the lab's ports do not decrease; a switch that is not driven may have none."""
    await _set(driver, _wish(ports, 0))
    before = (await driver.read()).ports
    after = (await driver.read()).ports
    if not getattr(driver, "learns", False):
        _expect("ports without counters", set(ports) - before.keys(), set())
    for port, state in before.items():
        later = after[port]
        if later.rx_bytes < state.rx_bytes or later.tx_bytes < state.tx_bytes:
            raise CheckFailed(
                f"the bytes of port {port} decrease: {state}, then {later}"
            )


async def reports_only_its_ports(
    driver: PacketSwitchDriver, ports: Ports
) -> None:
    """A port of the wish that the switch lacks is not reported; the others are."""
    wish = Wish(_wish(ports, 0, 1).places, frozenset({*ports, 60_000}))
    await _set(driver, wish)
    if not getattr(driver, "learns", False):
        _expect(
            "its ports",
            wish.ports & (await driver.read()).ports.keys(),
            frozenset(ports),
        )


async def closing_changes_nothing(
    driver: PacketSwitchDriver, ports: Ports
) -> None:
    """The forwarding outlives the connection; closing twice is not an error."""
    await _set(driver, _wish(ports, 0, 1))
    await driver.close()
    await driver.close()
    await driver.open()
    _expect(
        "changed after closing",
        (await _set(driver, _wish(ports, 0, 1))).changed,
        0,
    )


async def releases_everything(
    driver: PacketSwitchDriver, ports: Ports
) -> None:
    """After a release nothing is left; releasing twice is not an error."""
    await _set(
        driver,
        _wish(
            ports,
            0,
            1,
            2,
        ),
    )
    await driver.release()
    await driver.release()
    _expect("the forwarding that is read", (await driver.read()).places, {})
    await _set(
        driver,
        _wish(
            ports,
            0,
            1,
            2,
        ),
        changed=3,
    )


CHECKS: Sequence[Check] = (
    has_the_contract,
    sets_and_reads,
    moves_a_station,
    removes_what_is_not_wanted,
    sets_many,
    says_what_it_lacks,
    knows_its_ports,
    reports_only_its_ports,
    closing_changes_nothing,
    releases_everything,
)
"""The checks of every driver."""


async def leaves_what_others_set(
    driver: PacketSwitchDriver,
    ports: Ports,
    meddle: Meddle,
    undo: Meddle,
) -> None:
    """Another's entry that takes precedence is reported and stays; without it nothing lacks."""
    wish = _wish(ports, 0, 1)
    station = stations(1)[0]
    await meddle(station, ports[2])
    try:
        applied = await driver.set_forwarding(wish)
        if not applied.foreign:
            raise CheckFailed("another's entry is not reported")
        if (await driver.read()).foreign != applied.foreign:
            raise CheckFailed("another's entry is gone, or is not read")
    finally:
        await undo(station, ports[2])
    await _set(driver, wish)
    _expect("entries of others", (await driver.read()).foreign, ())


async def notices_a_missing_port(
    driver: PacketSwitchDriver,
    ports: Ports,
    remove: Callable[[int], Awaitable[None]],
    restore: Callable[[int], Awaitable[None]],
) -> None:
    """A missing port is reported with its station, the others are served; then it is back."""
    wish = _wish(ports, 0, 1)
    station = stations(1)[0]
    await _set(driver, wish)
    await remove(ports[0])
    try:
        await _until_it_has(driver, {*ports[1:]}, wish)
        applied = await driver.set_forwarding(wish)
        _expect(
            "what it lacks",
            [lack.station for lack in applied.lacks],
            [station],
        )
        if f"port {ports[0]}" not in applied.lacks[0].reason:
            raise CheckFailed(
                f"the reason does not name port {ports[0]}: {applied.lacks[0].reason}"
            )
    finally:
        await restore(ports[0])
    await _until_it_has(driver, {*ports}, wish)
    await _set(driver, wish)


async def _until_it_has(
    driver: PacketSwitchDriver,
    ports: set[int],
    wish: Wish,
) -> None:
    for _ in range(_READINGS):
        if (there := wish.ports & (await driver.read()).ports.keys()) == ports:
            return
        await asyncio.sleep(getattr(driver, "period_s", 1.0) / 2)
    raise CheckFailed(f"its ports: expected {ports}, got {there}")


MEDDLING_CHECKS = (leaves_what_others_set, notices_a_missing_port)
"""The checks of drivers whose switch others can change meanwhile."""


async def run_check(
    check: Check,
    new_driver: Callable[[], PacketSwitchDriver],
    ports: Ports,
    within_s: float = 120,
) -> None:
    """Run one check with a new driver, and release the switch after it.

    ``CheckFailed``, ``TimeoutError``, or errors of the driver.
    """
    driver = new_driver()
    await driver.open()
    try:
        async with asyncio.timeout(within_s):
            await driver.release()
            await check(driver, ports)
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await driver.release()
        await driver.close()
