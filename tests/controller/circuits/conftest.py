from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from patchlight.controller.circuits.contract import CircuitDriver
from patchlight.controller.circuits.protocols.http import PINS_VARIABLE
from patchlight.controller.circuits.protocols.ssh import FILE_VARIABLE
from tests.support.emulated_devices import Running, lab_file, running
from tests.support.ocs_drivers import (
    SESSION_DRIVERS,
    opened,
    password_for,
    restore,
)

CALM: dict[str, Any] = {
    "refuse_ports": [],
    "fail_ports": [],
    "drift_db": {},
    "read_only": False,
    "acknowledge": False,
    "refuse_next": "",
    "cut": "",
    "stall_s": 0.0,
    "garble": 0,
    "answer_twice": 0,
    "truncate": 0,
    "flood": 0,
}


@pytest.fixture(scope="session", autouse=True)
def pins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The pins of emulated devices are no business of this machine's user."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("pins")
        patch.setenv(PINS_VARIABLE, str(folder / "tls-pins"))
        patch.setenv(FILE_VARIABLE, str(folder / "known_hosts"))
        yield


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=pytest.mark.xdist_group(f"faults of {name}"))
        for name in SESSION_DRIVERS
    ],
)
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """An emulated device of 96 ports with a password, for each driver over a session."""
    folder = tmp_path_factory.mktemp("ocs")
    extra = ", password_env: OCS1_PASSWORD"
    lab = lab_file(
        folder, driver=request.param, ports=96, initial=("1-7",), extra=extra
    )
    password = password_for(request.param)
    with running(folder, lab, "--no-fabric", OCS1_PASSWORD=password) as device:
        yield device


@pytest_asyncio.fixture
async def device(shared: Running) -> AsyncIterator[Running]:
    """The shared device with its first map and without faults, before and after."""
    assert shared.fault(**CALM)["ok"]
    async with opened(shared.switch) as driver:
        await restore(driver)
    yield shared
    assert shared.fault(**CALM)["ok"]


@pytest_asyncio.fixture
async def driver(device: Running) -> AsyncIterator[CircuitDriver]:
    """An open driver of that device."""
    async with opened(device.switch) as opened_driver:
        yield opened_driver
