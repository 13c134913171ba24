import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import pytest

from patchlight.controller.circuits.contract import (
    CircuitDriver,
    DirectedPort,
    WavelengthDriver,
)
from patchlight.controller.circuits.dialect import (
    DIRECTORY_VARIABLE,
    Dialect,
    corrected,
)
from patchlight.controller.circuits.drivers import polatis
from patchlight.controller.circuits.drivers.base import SessionDriver
from patchlight.controller.circuits.drivers.calient_tl1 import (
    CALIENT,
    CalientTl1,
)
from patchlight.controller.circuits.drivers.dry_run import DryRun
from patchlight.controller.circuits.drivers.lumentum import LUMENTUM
from patchlight.controller.circuits.drivers.waveshaper import WAVESHAPER
from patchlight.controller.circuits.registry import (
    driver_names,
    open_driver,
    password_of,
)
from patchlight.emulation.optical.protocols.server import (
    emulated_drivers,
    server_class,
)
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.model import CircuitSwitch
from patchlight.testbed.lab.ocs_drivers import OCS_DRIVERS, OcsDriver
from patchlight.testbed.lab.spectrum import SpectrumMap
from patchlight.testbed.lab.wavelengths import WavelengthSwitch
from tests.support.ocs_drivers import SESSION_DRIVERS


def switch(driver: str, password_env: str | None = None) -> CircuitSwitch:
    return CircuitSwitch(
        "ocs1", driver, "127.0.0.1:3082", 8, password_env=password_env
    )


def test_drivers_by_name() -> None:
    assert isinstance(open_driver(switch("calient-tl1"), ""), CalientTl1)
    assert isinstance(open_driver(switch("dry-run"), ""), DryRun)
    with pytest.raises(BadInput, match="did you mean calient-tl1"):
        open_driver(switch("calient-tll"), "")


@pytest.fixture
def other_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package that adds a driver and its emulated device."""
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n"
    )
    (info / "entry_points.txt").write_text(
        "[patchlight.ocs_drivers]\ntheirs-x = theirs_x:Driver\nbroken-x = theirs_x:NoDriver\n"
        "[patchlight.emulated_ocs]\ntheirs-x = theirs_x:Device\n"
    )
    (tmp_path / "theirs_x.py").write_text(
        "from patchlight.controller.circuits.drivers.polatis import PolatisScpi\n"
        "from patchlight.emulation.optical.vendors.polatis import PolatisScpiServer\n\n"
        "class Driver(PolatisScpi):\n    pass\n\n"
        "class Device(PolatisScpiServer):\n    port = 5999\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("other_package")
def test_another_package_adds_a_driver_and_its_emulated_device() -> None:
    assert "theirs-x" in driver_names()
    assert type(open_driver(switch("theirs-x"), "")).__module__ == "theirs_x"
    assert "theirs-x" in emulated_drivers()
    assert server_class("theirs-x").port == 5999
    with pytest.raises(PatchlightError, match="loading 'broken-x'"):
        open_driver(switch("broken-x"), "")
    with pytest.raises(BadInput, match="did you mean 'theirs-x'"):
        server_class("their-x")


@pytest.mark.parametrize(
    "driver", OCS_DRIVERS.values(), ids=lambda driver: driver.name
)
def test_every_row_names_a_driver_and_a_device(driver: OcsDriver) -> None:
    described = replace(
        switch(driver.name), datapath_id=0x51 if driver.dials_in else None
    )
    assert isinstance(open_driver(described), CircuitDriver)
    if driver.device:
        server = server_class(driver.name)
        assert server.dials == driver.dials_in
        if match := re.search(r"\d{3,}", driver.transport):
            assert driver.port == int(match[0])


def test_the_password_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert password_of(switch("dry-run")) == ""
    monkeypatch.setenv("OCS_PW", "secret")
    assert password_of(switch("dry-run", "OCS_PW")) == "secret"
    monkeypatch.delenv("OCS_PW")
    with pytest.raises(
        BadInput, match="OCS_PW for the password of ocs1 is not set"
    ):
        password_of(switch("dry-run", "OCS_PW"))


def test_directed_ports_read_and_write() -> None:
    for text in ("in:1", "out:320"):
        assert str(DirectedPort.parse(text)) == text
    for wrong in ("in", "in:", "in:0", "up:3", "out:-1", "out:x", "in:²"):
        with pytest.raises(BadInput, match="not a directed port"):
            DirectedPort.parse(wrong)


def test_a_user_corrects_a_dialect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    assert corrected("calient-tl1", CALIENT) is CALIENT
    table = tmp_path / "calient-tl1.toml"
    table.write_text('delete = "DLT-CRS:::{ctag}::{conn};"\nbulk_limit = 16\n')
    dialect = corrected("calient-tl1", CALIENT)
    assert dialect.delete == "DLT-CRS:::{ctag}::{conn};"
    assert (dialect.bulk_limit, dialect.enter) == (16, CALIENT.enter)


DIALECTS: dict[str, Dialect] = {
    name: cast(type[SessionDriver[Any]], driver).built_in
    for name, driver in SESSION_DRIVERS.items()
} | {"waveshaper-http": WAVESHAPER, "lumentum-netconf": LUMENTUM}


@pytest.mark.parametrize("driver", DIALECTS)
def test_every_built_in_dialect_can_be_written_down_and_read_back(
    driver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    built_in = DIALECTS[driver]
    lines = [
        f"{key} = {json.dumps(value)}"
        for key, value in asdict(built_in).items()
    ]
    (tmp_path / f"{driver}.toml").write_text("\n".join(lines))
    assert corrected(driver, built_in) == built_in
    # What cannot be said in a table is told for every one of them.
    for key, value in asdict(built_in).items():
        if isinstance(value, str) and "{ctag}" in value:
            (tmp_path / f"{driver}.toml").write_text(f'{key} = "{{nonsense}}"')
            with pytest.raises(
                BadInput, match=f"{key}: unknown fields: nonsense"
            ):
                corrected(driver, built_in)


def test_whole_numbers_do_for_powers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    table = tmp_path / "polatis-scpi.toml"
    table.write_text("dark_dbm = -45\nask_limit = 100\n")
    dialect = corrected("polatis-scpi", polatis.POLATIS)
    assert (dialect.dark_dbm, dialect.ask_limit) == (-45, 100)
    table.write_text("ask_limit = -1\ndark_dbm = true\n")
    with pytest.raises(
        BadInput, match=r"expected more than -1\n.*expected a float"
    ):
        corrected("polatis-scpi", polatis.POLATIS)


def test_every_mistake_of_a_dialect_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    (tmp_path / "calient-tl1.toml").write_text(
        'delet = "x"\nbulk = "yes"\nenter = "ENT {port} {nonsense}"\nup = "("\n'
        'power_line = "x"\nbulk_limit = 0\nlogin = "{user"\n'
    )
    with pytest.raises(BadInput) as caught:
        corrected("calient-tl1", CALIENT)
    for words in (
        "did you mean delete?",
        "bulk: expected a bool",
        "unknown fields: nonsense",
        "up: not a pattern",
        "power_line: lacks the groups in, out, port",
        "bulk_limit: expected more than 0",
        "login: expected '}'",
    ):
        assert words in caught.value.message
    (tmp_path / "calient-tl1.toml").write_text("bulk = \n")
    with pytest.raises(BadInput, match="reading the dialect"):
        corrected("calient-tl1", CALIENT)


async def test_a_wavelength_switch_is_driven_through_the_same_contract() -> (
    None
):
    wss = WavelengthSwitch(
        "wss1",
        2,
        3,
        initial=SpectrumMap.parse(["1>2@193.100"]),
        driver="dry-run",
    )
    driver = open_driver(wss)
    assert isinstance(driver, WavelengthDriver)
    assert await driver.read_map() == wss.initial
    beside = SpectrumMap.parse(["1>3@193.150"])
    meeting = SpectrumMap.parse(["2>2@193.100"])
    outcome = await driver.connect([*beside, *meeting])
    assert outcome.done == tuple(beside)
    assert [str(refusal) for refusal in outcome.refused] == [
        "2>2@193.100: its channel is in use on the device: 1>2@193.100"
    ]
    with pytest.raises(BadInput, match="input 3 is outside 1–2"):
        await driver.connect(SpectrumMap.parse(["3>1@193.100"]))
    with pytest.raises(
        BadInput,
        match=r"off the grid of 50 GHz: expected 193\.100 or 193\.150",
    ):
        await driver.connect(SpectrumMap.parse(["1>1@193.125"]))
    # Another attenuation is another entry: broken, then made.
    weaker = SpectrumMap.parse(["1>2@193.100-2dB"])
    assert not (await driver.connect(weaker)).complete
    change = (await driver.read_map()).diff(weaker)
    await driver.disconnect(change.breaks)
    assert (await driver.connect(change.makes)).complete
    assert await driver.read_map() == weaker


def test_a_driver_of_the_other_kind_of_switch_is_said_to_be_that() -> None:
    with pytest.raises(
        BadInput, match="'sonic-ocs': it is for circuit switches"
    ):
        open_driver(WavelengthSwitch("wss1", 2, 3, driver="sonic-ocs"))
