"""The conformance suite on every driver of wavelength switches, against its emulated device."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from patchlight.conformance import WAVELENGTH_CHECKS, Check, alarms_arrive, run_checks
from patchlight.controller.circuits.registry import open_driver
from patchlight.testbed.colours import WavelengthSwitch
from patchlight.testbed.ocs_drivers import WSS_DRIVERS
from patchlight.testbed.spectrum import Grid
from tests.support.emulated_devices import Running, running, wss_lab_file
from tests.support.ocs_drivers import PASSWORD

SHAPES: Mapping[str, tuple[str, int, int, str]] = {
    "waveshaper-http 1x4": ("waveshaper-http", 1, 4, "50GHz"),
    "waveshaper-http 9x1 of 100 GHz": ("waveshaper-http", 9, 1, "100GHz"),
    "lumentum-netconf": ("lumentum-netconf", 21, 21, "flexible"),
    "dry-run 4x4": ("dry-run", 4, 4, "flexible"),
}
REPORTS = ("lumentum-netconf",)


def failures_of(name: str, folder: Path) -> Mapping[str, str]:
    """What failed, by check."""
    driver, inputs, outputs, grid = SHAPES[name]
    if not WSS_DRIVERS[driver].device:
        rehearsal = WavelengthSwitch("wss1", inputs, outputs, Grid.parse(grid), driver=driver)
        kept = open_driver(rehearsal)
        return asyncio.run(_run(lambda: kept))
    with_users = WSS_DRIVERS[driver].has_users
    lab = wss_lab_file(
        folder,
        driver=driver,
        inputs=inputs,
        outputs=outputs,
        grid=grid,
        switching_time="5ms",
        extra=", password_env: WSS1_PASSWORD" if with_users else "",
    )
    with running(folder, lab, WSS1_PASSWORD=PASSWORD) as device:
        password = PASSWORD if with_users else ""
        reporting = device if driver in REPORTS else None
        new_driver = lambda: open_driver(device.switch, password)  # noqa: E731
        return asyncio.run(_run(new_driver, password, reporting))


async def _run(new_driver: Any, password: str = "", device: Running | None = None) -> Any:
    async def raise_alarm() -> None:
        assert device is not None
        assert device.fault(report="port 3 is dark")["ok"]

    results = run_checks(new_driver, password=password, raise_alarm=raise_alarm if device else None)
    return {result.name: result.failure async for result in results}


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in SHAPES],
    ids=list(SHAPES),
)
def failures(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, str]:
    """What failed, by check: one run of the suite for each shape of each driver."""
    return failures_of(request.param, tmp_path_factory.mktemp("wss"))


@pytest.mark.parametrize("check", WAVELENGTH_CHECKS, ids=lambda check: check.__name__)
def test_conformance(check: Check, failures: Mapping[str, str]) -> None:
    assert failures[check.__name__] == ""


def test_alarms_arrive(failures: Mapping[str, str]) -> None:
    assert failures.get(alarms_arrive.__name__, "") == ""


def test_every_driver_is_among_them() -> None:
    assert {shape[0] for shape in SHAPES.values()} == set(WSS_DRIVERS)
