"""The conformance suite on every driver of wavelength switches, against its emulated device."""

import asyncio
from collections.abc import Mapping

import pytest

from patchlight.conformance import (
    WAVELENGTH_CHECKS,
    Check,
    alarms_arrive,
    run_checks,
)
from patchlight.controller.circuits.registry import open_driver
from patchlight.testbed.lab.ocs_drivers import WSS_DRIVERS
from patchlight.testbed.lab.spectrum import Grid
from patchlight.testbed.lab.wavelengths import WavelengthSwitch
from tests.support.emulated_wss import emulated_wss
from tests.support.ocs_drivers import PASSWORD

SHAPES: Mapping[str, tuple[str, int, int, str]] = {
    "waveshaper-http 1x4": ("waveshaper-http", 1, 4, "50GHz"),
    "waveshaper-http 9x1 of 100 GHz": ("waveshaper-http", 9, 1, "100GHz"),
    "lumentum-netconf": ("lumentum-netconf", 21, 21, "flexible"),
    "dry-run 4x4": ("dry-run", 4, 4, "flexible"),
}
REPORTS = ("lumentum-netconf",)


async def failures_of(name: str) -> Mapping[str, str]:
    """What failed, by check."""
    driver, inputs, outputs, grid = SHAPES[name]
    row = WSS_DRIVERS[driver]
    if not row.device:
        rehearsal = WavelengthSwitch(
            "wss1", inputs, outputs, Grid.parse(grid), driver=driver
        )
        kept = open_driver(rehearsal)
        return {
            result.name: result.failure
            async for result in run_checks(lambda: kept)
        }
    password = PASSWORD if row.has_users else ""
    shape = emulated_wss(
        driver, inputs=inputs, outputs=outputs, grid=grid, password=password
    )
    async with shape as bench:

        async def raise_alarm() -> None:
            bench.server.report("port 3 is dark")

        results = run_checks(
            lambda: open_driver(bench.switch, password),
            password=password,
            raise_alarm=raise_alarm if driver in REPORTS else None,
        )
        return {result.name: result.failure async for result in results}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=pytest.mark.xdist_group(name))
        for name in SHAPES
    ],
    ids=list(SHAPES),
)
def failures(request: pytest.FixtureRequest) -> Mapping[str, str]:
    """What failed, by check: one run of the suite for each shape of each driver."""
    return asyncio.run(failures_of(request.param))


@pytest.mark.parametrize(
    "check", WAVELENGTH_CHECKS, ids=lambda check: check.__name__
)
def test_conformance(check: Check, failures: Mapping[str, str]) -> None:
    assert failures[check.__name__] == ""


def test_alarms_arrive(failures: Mapping[str, str]) -> None:
    assert failures.get(alarms_arrive.__name__, "") == ""


def test_every_driver_is_among_them() -> None:
    assert {shape[0] for shape in SHAPES.values()} == set(WSS_DRIVERS)
