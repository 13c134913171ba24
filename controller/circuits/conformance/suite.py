"""Runs the conformance checks on one device, and leaves it as it was."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass

from patchlight.controller.circuits.conformance.checks import (
    CHECKS,
    INITIAL,
    PORTS,
    Check,
    CheckFailed,
)
from patchlight.controller.circuits.contract import CircuitDriver
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.portmap import PortMap

NewDriver = Callable[[], CircuitDriver]
"""Makes a new driver of the device, not yet connected."""


@dataclass(frozen=True)
class CheckResult:
    """How a check ended; ``failure`` is empty if it passed."""

    name: str
    about: str
    failure: str = ""


async def run_check(check: Check, new_driver: NewDriver) -> None:
    """Bring the device's map to ``INITIAL``, then run one check with a fresh driver.

    Rewires the device, whatever it carries. Raises ``CheckFailed``, or what the driver raises.
    """
    await bring_to(INITIAL, new_driver)
    async with _opened(new_driver) as driver:
        await check(driver)


async def run_checks(
    new_driver: NewDriver,
    expected: PortMap = INITIAL,
    *,
    any_map: bool = False,
    longest_s: float = 120.0,
) -> AsyncGenerator[CheckResult, None]:
    """Run all checks one after the other, and put the device's map back in the end.

    A check that is not done after ``longest_s`` has failed. Close the generator if it is left early
    (``contextlib.aclosing``): that is what puts the map back.

    ``BadInput`` before anything is changed where the device carries circuits and they are not
    the ``expected`` ones: they would be interrupted. ``any_map`` interrupts what there is.
    """
    async with _opened(new_driver) as driver:
        before = await driver.read_map()
        ports = driver.ports
    if before and before not in (expected, INITIAL) and not any_map:
        raise BadInput(
            f"the device carries circuits: {', '.join(before.texts)}",
            hint="the checks rewire it; where that harms nobody, name exactly these circuits with "
            "--initial, or say --any-map: they are put back in the end",
        )
    if ports < PORTS or any(max(c.inp, c.out) > ports for c in before):
        raise BadInput(f"the device has {ports} ports: the checks need {PORTS}")
    try:
        for check in CHECKS:
            failure = await _failure(check, new_driver, longest_s)
            yield CheckResult(check.__name__, check.__doc__ or "", failure)
    finally:
        await bring_to(before, new_driver)


async def bring_to(wanted: PortMap, new_driver: NewDriver) -> None:
    """Make the device carry this map and no more; ``PatchlightError`` if it refuses."""
    async with _opened(new_driver) as driver:
        change = (await driver.read_map()).diff(wanted)
        outcomes = [await driver.disconnect(change.breaks), await driver.connect(change.makes)]
        refused = [str(refusal) for outcome in outcomes for refusal in outcome.refused]
    if refused:
        raise PatchlightError(f"bringing the device to its map: {'; '.join(refused)}")


async def _failure(check: Check, new_driver: NewDriver, longest_s: float) -> str:
    try:
        async with asyncio.timeout(longest_s):
            await run_check(check, new_driver)
    except CheckFailed as error:
        return str(error)
    except TimeoutError:
        return f"not done within {longest_s:g} s"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


@contextlib.asynccontextmanager
async def _opened(new_driver: NewDriver) -> AsyncIterator[CircuitDriver]:
    driver = new_driver()
    await driver.open()
    try:
        yield driver
    finally:
        await driver.close()
