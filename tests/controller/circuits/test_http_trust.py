"""Whom the drivers over HTTPS give the password to."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from patchlight.controller.circuits.contract import DeviceUnreachable
from patchlight.controller.circuits.drivers.calient_rest import (
    CALIENT,
    CalientRest,
)
from patchlight.controller.circuits.protocols.http import (
    PINS_VARIABLE,
    DeviceNotTrusted,
    fingerprint,
    pins_file,
)
from patchlight.emulation.optical.protocols.http_server import certificate
from patchlight.testbed.errors import BadInput
from tests.support.emulated_devices import Running, lab_file, running

pytestmark = pytest.mark.xdist_group("an OCS with a certificate")

SHOWN = fingerprint(certificate().public_bytes(Encoding.DER))


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("ocs")
    with running(
        folder, lab_file(folder, driver="calient-rest"), "--no-fabric"
    ) as running_:
        yield running_


@pytest.fixture(autouse=True)
def pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PINS_VARIABLE, str(tmp_path / "deep" / "tls-pins"))


async def identify(device: Running, verify: str) -> str:
    driver = CalientRest(device.switch, "pw", replace(CALIENT, verify=verify))
    try:
        return (await driver.identify()).serial
    finally:
        await driver.close()


async def test_the_first_certificate_is_kept_and_asked_for_from_then_on(
    device: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    assert await identify(device, "first-use") == "EMU-ocs1"
    assert pins_file().read_text() == f"{device.switch.address} {SHOWN}\n"
    assert pins_file().stat().st_mode & 0o777 == 0o600
    assert f"pinned its certificate {SHOWN}" in caplog.text
    for verify in ("first-use", "pinned"):
        assert await identify(device, verify) == "EMU-ocs1"
    assert len(pins_file().read_text().splitlines()) == 1


@pytest.mark.parametrize("verify", ["first-use", "pinned"])
async def test_another_certificate_gets_no_password(
    device: Running, verify: str
) -> None:
    pins_file().parent.mkdir()
    other = "sha256:" + "0" * 64
    pins_file().write_text(
        f"# ours\n10.0.0.5:443 {SHOWN}\n{device.switch.address} {other}\n"
    )
    with pytest.raises(
        DeviceNotTrusted,
        match=f"has the certificate {SHOWN}, but .* has {other}",
    ) as caught:
        await identify(device, verify)
    assert isinstance(caught.value, DeviceUnreachable)
    assert "find out which service answers there" in str(caught.value)


async def test_pinned_takes_no_stranger(device: Running) -> None:
    with pytest.raises(DeviceNotTrusted, match="which is not pinned"):
        await identify(device, "pinned")
    assert not pins_file().exists()


async def test_a_pin_that_cannot_be_kept_is_no_trust(device: Running) -> None:
    pins_file().parent.write_text("conflicts with it")
    with pytest.raises(DeviceNotTrusted, match="pins of certificates"):
        await identify(device, "first-use")


async def test_authorities_do_not_know_an_emulated_device(
    device: Running,
) -> None:
    with pytest.raises(DeviceUnreachable, match="certificate verify failed"):
        await identify(device, "ca")
    assert not pins_file().exists()


async def test_nothing_is_checked_only_when_that_is_said(
    device: Running,
) -> None:
    assert await identify(device, "off") == "EMU-ocs1"
    assert not pins_file().exists()
    with pytest.raises(BadInput, match="one of first-use, pinned, ca, off"):
        await identify(device, "no")


def test_where_the_pins_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert pins_file() == tmp_path / "deep" / "tls-pins"
    monkeypatch.delenv(PINS_VARIABLE)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert pins_file() == tmp_path / "patchlight" / "tls-pins"
