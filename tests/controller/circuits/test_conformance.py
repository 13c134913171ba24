"""The conformance suite on every driver that comes along, each against its emulated device."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from patchlight.conformance import CHECKS, INITIAL, Check, run_check
from patchlight.controller.circuits.registry import open_driver
from patchlight.testbed.lab import CircuitSwitch
from patchlight.testbed.labfile.reader import read_lab
from patchlight.testbed.ocs_drivers import OCS_DRIVERS
from tests.support.emulated_devices import lab_file, running


@dataclass(frozen=True)
class Variant:
    """Firmware that does, or a table that says, something else than most."""

    dialect: str = ""
    emulated: str = ""
    faults: dict[str, Any] = field(default_factory=dict)


WITHOUT_BULK = Variant(dialect="bulk = false\n")
IN_PAGES = Variant(faults={"repeat_pages": True})
TAKES_BUSY_PORTS = Variant(emulated=", emulated: {conflict_time: 12ms}")
WITHOUT_MONITORS = Variant(faults={"monitors": "none"})
MONITORS_ON_OUTPUTS = Variant(faults={"monitors": "out"})
VARIANTS = {
    **{name: Variant() for name in OCS_DRIVERS},
    "calient-tl1 without bulk": WITHOUT_BULK,
    "calient-tl1 in pages": IN_PAGES,
    "calient-tl1 that takes busy ports": TAKES_BUSY_PORTS,
    "calient-rest that takes busy ports": TAKES_BUSY_PORTS,
    "calient-rest without bulk": WITHOUT_BULK,
    "polatis-scpi without monitors": WITHOUT_MONITORS,
    "polatis-scpi in one message": Variant(dialect='then = ";"\n'),
    "polatis-tl1 with monitors on outputs": MONITORS_ON_OUTPUTS,
    "polatis-tl1 in pages": IN_PAGES,
    "polatis-restconf with monitors on outputs": MONITORS_ON_OUTPUTS,
    "polatis-restconf on one connection": Variant(dialect="keep_connection = true\n"),
    "polatis-netconf without monitors": WITHOUT_MONITORS,
}


@pytest.fixture(scope="module", params=VARIANTS)
def switch(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CircuitSwitch]:
    variant = VARIANTS[request.param]
    driver = OCS_DRIVERS[request.param.partition(" ")[0]]
    folder: Path = tmp_path_factory.mktemp("ocs")
    lab = lab_file(
        folder,
        driver=driver.name,
        ports=96,
        switching_time="5ms",
        initial=INITIAL.texts,
        extra=variant.emulated + (", datapath_id: 0x51" if driver.dials_in else ""),
    )
    if not driver.device:
        yield read_lab(lab).circuit_switch("ocs1")
        return
    with pytest.MonkeyPatch.context() as patch, running(folder, lab, "--no-fabric") as device:
        if variant.dialect:
            (folder / f"{driver.name}.toml").write_text(variant.dialect)
            patch.setenv("PATCHLIGHT_DIALECTS", str(folder))
        assert device.fault(**variant.faults)["ok"]
        yield device.switch


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conformance(check: Check, switch: CircuitSwitch) -> None:
    asyncio.run(run_check(check, lambda: open_driver(switch, "")))
