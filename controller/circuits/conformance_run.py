"""Runs the conformance suite with a fresh driver for each check, and restores the device's map."""

import asyncio
import contextlib
import functools
import logging
import traceback
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
)
from dataclasses import dataclass
from typing import Any

from patchlight.controller.circuits import conformance
from patchlight.controller.circuits.conformance_ground import Driver, ground_of
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.spectrum import SpectrumMap


class _Heard(logging.Handler):
    """Keeps log messages of all levels."""

    def __init__(self) -> None:
        super().__init__(logging.NOTSET)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(logging.Formatter().format(record))


@contextlib.contextmanager
def _kept_secret(password: str) -> Iterator[None]:
    """``CheckFailed`` if the password appears in the block's log, or in an error from it."""
    if not password:
        yield
        return
    heard = _Heard()
    root = logging.getLogger()
    level = root.level
    levels = [(handler, handler.level) for handler in root.handlers]
    for handler, least in levels:
        handler.setLevel(max(least, level))
    root.addHandler(heard)
    root.setLevel(logging.DEBUG)
    try:
        yield
    except Exception as error:
        heard.texts.append("".join(traceback.format_exception_only(error)))
        raise
    finally:
        root.removeHandler(heard)
        root.setLevel(level)
        for handler, least in levels:
            handler.setLevel(least)
        if any(password in text for text in heard.texts):
            raise conformance.CheckFailed(
                "the password is in the log or in an error"
            ) from None


NewDriver = Callable[[], Driver]
"""Makes a new driver of the device, not yet connected."""


@dataclass(frozen=True)
class CheckResult:
    """How a check ended; ``failure`` is empty if it passed."""

    name: str
    about: str
    failure: str = ""


async def run_check(
    check: conformance.Check,
    new_driver: NewDriver,
    *,
    password: str = "",
    is_initial: bool = False,
) -> None:
    """Set the device's map to that of its ground, run one check with a fresh driver, and reset it.

    Rewires the device, whatever it carries. Raises ``CheckFailed``, or errors of the driver. With
    ``password`` it also fails if the driver reveals that in a log or an error. ``is_initial``: the
    map is already set, as after a check that passed.
    """
    with _kept_secret(password):
        if not is_initial:
            async with _opened(new_driver) as driver:
                await _bring(driver, ground_of(driver).initial)
        async with _opened(new_driver) as driver:
            await check(driver)
            await _bring(driver, ground_of(driver).initial)


async def run_checks(
    new_driver: NewDriver,
    expected: PortMap | SpectrumMap | None = None,
    *,
    any_map: bool = False,
    longest_s: float = 120.0,
    password: str = "",
    raise_alarm: conformance.RaiseAlarm | None = None,
) -> AsyncGenerator[CheckResult, None]:
    """Run all checks one after the other, and restore the device's map at the end.

    A check fails if it is not done after ``longest_s``, or if the driver reveals the ``password``
    in a log or an error. ``raise_alarm`` adds ``alarms_arrive``. Close the generator if you leave
    it early (``contextlib.aclosing``): that restores the map.

    ``BadInput`` before any change if the device has circuits other than ``expected``, which would
    be interrupted. ``any_map`` allows that.
    """
    async with _opened(new_driver) as driver:
        before = await driver.read_map()
        ground = ground_of(driver)
        of_kind = conformance.checks_of(driver)
    if before and before not in (expected, ground.initial) and not any_map:
        raise BadInput(
            f"the device carries circuits: {', '.join(before.texts)}",
            hint="the checks rewire it; if that is acceptable, name exactly these circuits with "
            "--initial, or use --any-map: they are restored at the end",
        )
    inputs = ground.inputs
    outputs = ground.outputs
    if ground.missing or any(
        c.inp > inputs or c.out > outputs for c in before
    ):
        has = (
            f"{inputs} ports"
            if inputs == outputs
            else f"{inputs} inputs and {outputs} outputs"
        )
        raise BadInput(
            f"the device has {has}: the checks need {ground.missing or 'those in use'}"
        )
    try:
        checks = {check.__name__: (check, check.__doc__) for check in of_kind}
        if raise_alarm is not None:
            arrive = functools.partial(
                conformance.alarms_arrive, raise_alarm=raise_alarm
            )
            checks[conformance.alarms_arrive.__name__] = (
                arrive,
                conformance.alarms_arrive.__doc__,
            )
        failure = "no check has run"
        for name, (check, about) in checks.items():
            run = run_check(
                check,
                new_driver,
                password=password,
                is_initial=not failure,
            )
            failure = await _failure(run, longest_s)
            yield CheckResult(name, about or "", failure)
    finally:
        async with _opened(new_driver) as driver:
            await _bring(driver, before)


async def _bring(driver: Any, target: PortMap | SpectrumMap) -> None:
    change = (await driver.read_map()).diff(target)
    outcomes = [
        await driver.disconnect(change.breaks),
        await driver.connect(change.makes),
    ]
    refused = [
        str(refusal) for outcome in outcomes for refusal in outcome.refused
    ]
    if refused:
        raise PatchlightError(
            f"setting the device's map: {'; '.join(refused)}"
        )


async def _failure(check: Awaitable[None], longest_s: float) -> str:
    try:
        async with asyncio.timeout(longest_s):
            await check
    except conformance.CheckFailed as error:
        return str(error)
    except TimeoutError:
        return f"not done within {longest_s:g} s"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


@contextlib.asynccontextmanager
async def _opened(new_driver: NewDriver) -> AsyncIterator[Driver]:
    driver = new_driver()
    await driver.open()
    try:
        yield driver
    finally:
        await driver.close()
