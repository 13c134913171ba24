"""Whom the drivers over HTTPS give the password to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from patchlight.controller.circuits.contract import DeviceUnreachable
from patchlight.controller.circuits.drivers.calient.rest import CalientRest
from patchlight.controller.circuits.protocols.http.dialects import CALIENT
from patchlight.controller.circuits.protocols.http.trust import (
    PINS_VARIABLE,
    DeviceNotTrusted,
    fingerprint,
    pins_file,
)
from patchlight.emulation.optical.protocols.http_server import certificate
from patchlight.testbed.errors import BadInput
from tests.support.emulated_devices import Running, lab_file, running

SHOWN = fingerprint(certificate().public_bytes(Encoding.DER))


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("ocs")
    with running(folder, lab_file(folder, driver="calient-rest"), "--no-fabric") as running_:
        yield running_


@pytest.fixture
def pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "deep" / "tls-pins"
    monkeypatch.setenv(PINS_VARIABLE, str(file))
    return file


def identify(device: Running, verify: str) -> str:
    async def go() -> str:
        driver = CalientRest(device.switch, "pw", replace(CALIENT, verify=verify))
        try:
            return (await driver.identify()).serial
        finally:
            await driver.close()

    return asyncio.run(go())


def test_the_first_certificate_is_kept_and_asked_for_from_then_on(
    device: Running, pins: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    assert identify(device, "first-use") == "EMU-ocs1"
    assert pins.read_text() == f"{device.switch.address} {SHOWN}\n"
    assert pins.stat().st_mode & 0o777 == 0o600
    assert f"pinned its certificate {SHOWN}" in caplog.text
    for verify in ("first-use", "pinned"):
        assert identify(device, verify) == "EMU-ocs1"
    assert len(pins.read_text().splitlines()) == 1


@pytest.mark.parametrize("verify", ["first-use", "pinned"])
def test_another_certificate_gets_no_password(device: Running, pins: Path, verify: str) -> None:
    pins.parent.mkdir()
    other = "sha256:" + "0" * 64
    pins.write_text(f"# ours\n10.0.0.5:443 {SHOWN}\n{device.switch.address} {other}\n")
    with pytest.raises(DeviceNotTrusted, match=f"shows {SHOWN}, but .* has {other}") as caught:
        identify(device, verify)
    assert isinstance(caught.value, DeviceUnreachable)
    assert "find out who answers there" in str(caught.value)


def test_pinned_takes_no_stranger(device: Running, pins: Path) -> None:
    with pytest.raises(DeviceNotTrusted, match="has no pin of it"):
        identify(device, "pinned")
    assert not pins.exists()


def test_a_pin_that_cannot_be_kept_is_no_trust(device: Running, pins: Path) -> None:
    pins.parent.write_text("in the way")
    with pytest.raises(DeviceNotTrusted, match="pins of certificates"):
        identify(device, "first-use")


def test_authorities_do_not_know_an_emulated_device(device: Running, pins: Path) -> None:
    with pytest.raises(DeviceUnreachable, match="certificate verify failed"):
        identify(device, "ca")
    assert not pins.exists()


def test_nothing_is_checked_only_when_that_is_said(device: Running, pins: Path) -> None:
    assert identify(device, "off") == "EMU-ocs1"
    assert not pins.exists()
    with pytest.raises(BadInput, match="one of first-use, pinned, ca, off"):
        identify(device, "no")


def test_where_the_pins_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(PINS_VARIABLE)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert pins_file() == tmp_path / "patchlight" / "tls-pins"
