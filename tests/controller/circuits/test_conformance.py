"""The conformance suite on every driver that comes along, each against its emulated device."""

import asyncio
import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from patchlight.conformance import (
    CHECKS,
    INITIAL,
    Check,
    alarms_arrive,
    run_check,
    run_checks,
)
from patchlight.controller.circuits.drivers.sonic_ssh import GENERATED
from patchlight.controller.circuits.registry import open_driver
from patchlight.testbed.lab.model import CircuitSwitch
from patchlight.testbed.lab.ocs_drivers import OCS_DRIVERS
from patchlight.testbed.labfile.reader import read_lab
from tests.support.emulated_devices import Running, lab_file, running
from tests.support.ocs_drivers import password_for

# The first test of a driver waits for all checks of it.


@dataclass(frozen=True)
class Variant:
    """Firmware that does, or a table that says, something else than most."""

    dialect: str = ""
    emulated: str = ""
    ports: int = 96
    faults: dict[str, Any] = field(default_factory=dict)


WITHOUT_BULK = Variant(dialect="bulk = false\n")
IN_PAGES = Variant(faults={"repeat_pages": True})
TAKES_BUSY_PORTS = Variant(emulated=", emulated: {conflict_time: 12ms}")
RUDE = Variant(
    faults={
        "names": 'x;DLT-CRS-BULK::1.1.1>1.1.7:7; "[b]", (\n\u2028',
        "strays": 10**6,
    }
)
EARLIER_MODEL = """
states = "/data/sonic-ocs:sonic-ocs/OCS_CROSS_CONNECT_TABLE"
state_keys = "status"
up = "enabled"
port_states = "/data/sonic-ocs:sonic-ocs/OCS_PORT_TABLE"
port_state_key = "oper_status"
"""
GENERATED_COMMANDS = "\n".join(
    f"{key} = {json.dumps(value)}" for key, value in asdict(GENERATED).items()
)
WITHOUT_MONITORS = Variant(faults={"monitors": "none"})
MONITORS_ON_OUTPUTS = Variant(faults={"monitors": "out"})
VARIANTS = {
    **{name: Variant() for name in OCS_DRIVERS},
    "calient-tl1 without bulk": WITHOUT_BULK,
    "calient-tl1 in pages": IN_PAGES,
    "calient-tl1 without manners": RUDE,
    "calient-rest without manners": RUDE,
    "polatis-tl1 without manners": RUDE,
    "glimmerglass-tl1 without manners": RUDE,
    "calient-tl1 that takes busy ports": TAKES_BUSY_PORTS,
    "calient-rest that takes busy ports": TAKES_BUSY_PORTS,
    "calient-rest without bulk": WITHOUT_BULK,
    "polatis-scpi of 8 ports": Variant(ports=8),
    "calient-tl1 of 8 ports": Variant(ports=8),
    "polatis-scpi without monitors": WITHOUT_MONITORS,
    "polatis-scpi in one message": Variant(dialect='then = ";"\n'),
    "polatis-tl1 with monitors on outputs": MONITORS_ON_OUTPUTS,
    "polatis-tl1 in pages": IN_PAGES,
    "polatis-restconf with monitors on outputs": MONITORS_ON_OUTPUTS,
    "polatis-restconf on one connection": Variant(
        dialect="keep_connection = true\n"
    ),
    "polatis-netconf without monitors": WITHOUT_MONITORS,
    "ocp-gnmi of ports any to any": Variant(faults={"groups": "any"}),
    "ocp-gnmi without monitors": WITHOUT_MONITORS,
    "sonic-ocs of the earlier model": Variant(dialect=EARLIER_MODEL),
    "sonic-ocs-ssh with generated commands": Variant(
        dialect=GENERATED_COMMANDS
    ),
}


@contextlib.contextmanager
def switch_of(
    name: str, folder: Path
) -> Iterator[tuple[CircuitSwitch, Running | None]]:
    """The switch, and the emulated device where there is one."""
    variant = VARIANTS[name]
    driver = OCS_DRIVERS[name.partition(" ")[0]]
    lab = lab_file(
        folder,
        driver=driver.name,
        ports=variant.ports,
        switching_time="5ms",
        initial=INITIAL.texts,
        extra=variant.emulated
        + (", datapath_id: 0x51" if driver.dials_in else "")
        + (", password_env: OCS1_PASSWORD" if driver.has_users else ""),
    )
    if not driver.device:
        yield read_lab(lab).circuit_switch("ocs1"), None
        return
    with (
        pytest.MonkeyPatch.context() as patch,
        running(
            folder,
            lab,
            "--no-fabric",
            OCS1_PASSWORD=password_for(driver.name),
        ) as device,
    ):
        if variant.dialect:
            (folder / f"{driver.name}.toml").write_text(variant.dialect)
            patch.setenv("PATCHLIGHT_DIALECTS", str(folder))
        assert device.fault(**variant.faults)["ok"]
        yield device.switch, device


async def failures_of(
    switch: CircuitSwitch, device: Running | None
) -> Mapping[str, str]:
    async def raise_alarm() -> None:
        assert device is not None
        assert device.fault(report="*C EQPT: port 3: mirror stuck")["ok"]

    password = (
        password_for(switch.driver)
        if OCS_DRIVERS[switch.driver].has_users
        else ""
    )
    reports = device is not None and switch.driver not in (
        "calient-rest",
        "sonic-ocs",
        "sonic-ocs-ssh",
    )
    results = run_checks(
        lambda: open_driver(switch, password),
        password=password,
        raise_alarm=raise_alarm if reports else None,
    )
    return {result.name: result.failure async for result in results}


@pytest.fixture(
    scope="module",
    # One process runs all checks of a driver: they are one run of the suite.
    params=[
        pytest.param(name, marks=pytest.mark.xdist_group(name))
        for name in VARIANTS
    ],
    ids=list(VARIANTS),
)
def failures(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, str]:
    """What failed, by check."""
    with switch_of(request.param, tmp_path_factory.mktemp("ocs")) as (
        switch,
        device,
    ):
        return asyncio.run(failures_of(switch, device))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conformance(check: Check, failures: Mapping[str, str]) -> None:
    assert failures[check.__name__] == ""


def test_alarms_arrive(failures: Mapping[str, str]) -> None:
    if alarms_arrive.__name__ not in failures:
        pytest.skip("it reports nothing")
    assert failures[alarms_arrive.__name__] == ""


@pytest.fixture(scope="module")
def polatis(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[CircuitSwitch]:
    with switch_of("polatis-scpi", tmp_path_factory.mktemp("polatis")) as (
        switch,
        _,
    ):
        yield switch


@pytest.mark.xdist_group("checks one by one")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_a_test_of_each_check(
    check: Check, polatis: CircuitSwitch
) -> None:
    """As the author of a driver has them, who begins with whatever map there is."""
    await run_check(check, lambda: open_driver(polatis, ""))
