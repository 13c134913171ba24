"""Logins of drivers, whom they trust with a password, and who answers but is no switch."""

import asyncio
import base64
import contextlib
import gc
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from patchlight.controller.circuits.contract import (
    CircuitDriver,
    DeviceRefused,
    DeviceUnreachable,
    LoginRefused,
)
from patchlight.controller.circuits.dialect import Session
from patchlight.controller.circuits.protocols.ssh import (
    FILE_VARIABLE,
    DeviceKeyRefused,
    log_in,
)
from patchlight.controller.circuits.registry import open_driver
from patchlight.emulation.optical.crossbar import NoCrossbar
from patchlight.emulation.optical.device import EmulatedOcs
from patchlight.emulation.optical.protocols.http_server import server_context
from patchlight.emulation.optical.protocols.server import (
    ProtocolServer,
    server_class,
)
from patchlight.testbed.errors import OutcomeUnknown, PatchlightError
from patchlight.testbed.lab.model import CircuitSwitch
from patchlight.testbed.lab.portmap import CrossConnect
from tests.support.emulated_devices import Running, lab_file, running
from tests.support.ocs_drivers import (
    FIRST_MAP,
    PASSWORD,
    circuits,
    driver_of,
    drivers,
    listening,
    opened,
)
from tests.support.waiting import PATIENCE_S

HTTP = ("calient-rest", "polatis-restconf", "sonic-ocs")
TL1 = ("calient-tl1", "polatis-tl1", "glimmerglass-tl1")
SSH = ("polatis-netconf", "telescent-ssh", "sonic-ocs-ssh")
ENCODED = base64.b64encode(f"admin:{PASSWORD}".encode()).decode()


async def refused(
    driver: CircuitDriver, kind: type[PatchlightError]
) -> PatchlightError:
    with pytest.raises(kind) as caught:
        await driver.open()
    await driver.close()
    return caught.value


@drivers(*TL1, *HTTP, *SSH)
async def test_a_wrong_user_or_password_is_refused_and_told_nowhere(
    device: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    name = device.switch.driver
    error = await refused(
        driver_of(device.switch, "wrong-secret"), LoginRefused
    )
    assert "password_env" in str(error.hint)
    if name in HTTP:
        assert "refused the login of admin: 401: invalid" in error.message
        assert "GET /" in caplog.text
    else:
        assert "as 'admin' was refused" in error.message
    if name == "calient-tl1":
        assert "invalid user or password" in error.message
    if name in TL1:
        assert "ACT-USER::admin:1::****;" in caplog.text
    encoded = base64.b64encode(b"admin:wrong-secret").decode()
    for secret in ("wrong-secret", encoded):
        assert secret not in str(error) + caplog.text
    await refused(
        driver_of(replace(device.switch, user="nobody")), LoginRefused
    )


@drivers("calient-tl1", "polatis-netconf")
async def test_whoever_is_cancelled_while_a_session_closes_is_cancelled(
    device: Running,
) -> None:
    async with opened(device.switch) as driver:
        await driver.read_map()
        closing = asyncio.create_task(driver.close())
        # It waits for the end of what keeps the session alive.
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled()


@drivers(*HTTP)
async def test_a_right_password_is_told_nowhere(
    device: Running, driver: CircuitDriver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    assert (await driver.connect(circuits("3>9"))).complete
    device.fault(refuse_next=f"no, {PASSWORD} or {ENCODED}")
    (refusal,) = (await driver.connect(circuits("4>10"))).refused
    assert refusal.words == "409: no, **** or ****"
    device.fault(cut="before")
    with pytest.raises(OutcomeUnknown) as caught:
        await driver.connect(circuits("4>10"))
    assert PASSWORD not in str(caught.value)
    assert "GET /" in caplog.text
    for secret in (PASSWORD, ENCODED):
        assert secret not in caplog.text


async def test_a_password_of_a_corrected_dialect_is_in_no_log_and_no_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A unit with a login over SCPI, as a corrected dialect says."""
    (tmp_path / "polatis-scpi.toml").write_text(
        'login = ":syst:login {user},{password}"\n'
    )
    monkeypatch.setenv("PATCHLIGHT_DIALECTS", str(tmp_path))
    lab = lab_file(tmp_path, driver="polatis-scpi")
    caplog.set_level(logging.DEBUG)
    with running(tmp_path, lab, "--no-fabric") as device:
        error = await refused(
            open_driver(device.switch, "hush-hush"), LoginRefused
        )
    assert isinstance(error, LoginRefused)
    assert "Undefined header" in error.message
    assert "hush-hush" not in str(error) + error.words + caplog.text
    assert ":syst:login admin,****" in caplog.text


# --- who answers but is no switch -----------------------------------------------------------


@pytest.mark.parametrize("name", [*TL1, "polatis-scpi"])
async def test_what_answers_but_speaks_something_else(name: str) -> None:
    async def chatter(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
        except ConnectionError:
            writer.close()

    words = "end of a line" if name == "polatis-scpi" else "end of a message"
    async with listening(chatter) as address:
        error = await refused(
            driver_of(CircuitSwitch("ocs1", name, address, 16)),
            DeviceUnreachable,
        )
    assert f"came without the {words}" in error.message


@pytest.mark.parametrize("name", HTTP)
@pytest.mark.parametrize(
    "noise", ["bytes", "body", "silence", "drip", "redirect", "html"]
)
async def test_what_answers_over_tls_but_is_no_switch(
    noise: str, name: str
) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"

    async def chatter(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            if noise == "redirect":
                writer.write(
                    b"HTTP/1.1 302 Found\r\nLocation: https://192.0.2.1/\r\n"
                )
                writer.write(b"Content-Length: 0\r\n\r\n")
            elif noise == "html":
                writer.write(head + b"<html>It works!</html>")
            elif noise == "body":
                writer.write(head)
            while noise in ("bytes", "body", "silence", "drip"):
                writer.write(
                    {"silence": b"", "drip": b"H"}.get(noise, b"x" * 65536)
                )
                await writer.drain()
                # A drip comes slowly; the others as fast as they are read.
                await asyncio.sleep(
                    0.05 if noise in ("silence", "drip") else 0
                )
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    async with listening(chatter, server_context()) as address:
        switch = CircuitSwitch("ocs1", name, address, 16)
        began = time.monotonic()
        # What says something whole is heard out, also if this machine is slow to hear it.
        whole = noise in ("redirect", "html")
        driver = (
            driver_of(switch)
            if whole
            else driver_of(switch, answer_s=0.2, connect_s=0.3)
        )
        error = await refused(driver, PatchlightError)
        assert isinstance(error, (DeviceUnreachable, DeviceRefused))
        assert ("password" in str(error)) == (noise == "redirect")
        assert time.monotonic() - began < 20


@pytest.mark.parametrize("name", SSH)
@pytest.mark.parametrize("noise", ["nothing", "hang-up", "chatter"])
async def test_what_is_no_ssh_is_unreachable(name: str, noise: str) -> None:
    async def serve(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if noise == "nothing":
            await reader.read()
        elif noise == "chatter":
            writer.write(b"x\r\n" * 10000)
        writer.close()

    async with listening(serve) as address:
        driver = driver_of(
            CircuitSwitch("ocs1", name, address, 16), connect_s=0.5
        )
        began = time.monotonic()
        error = await refused(driver, DeviceUnreachable)
        assert "connecting to ocs1" in error.message
        assert time.monotonic() - began < 20


# --- SSH ------------------------------------------------------------------------------------


@drivers(*SSH)
async def test_the_first_host_key_is_pinned_and_another_one_refused(
    device: Running,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pins = tmp_path / "deep" / "known_hosts"
    monkeypatch.setenv("PATCHLIGHT_KNOWN_HOSTS", str(pins))
    async with opened(device.switch) as driver:
        assert await driver.read_map() == FIRST_MAP
    assert "pinned its host key ecdsa-sha2-nistp256 SHA256:" in caplog.text
    first = pins.read_text()
    assert pins.stat().st_mode & 0o077 == 0
    async with opened(device.switch) as driver:
        assert await driver.read_map() == FIRST_MAP
    assert pins.read_text() == first

    # The same address with another key: no password is sent there.
    lab = lab_file(tmp_path, driver=device.switch.driver, initial=("1-7",))
    elsewhere = {"XDG_STATE_HOME": str(tmp_path / "other")}
    with running(tmp_path, lab, "--no-fabric", **elsewhere) as other:
        host, _, port = other.switch.address.rpartition(":")
        old = device.switch.address.rpartition(":")[2]
        pins.write_text(first.replace(f"[{host}]:{old}", f"[{host}]:{port}"))
        error = await refused(driver_of(other.switch), DeviceKeyRefused)
    assert "not the one pinned" in error.message
    assert f"ssh-keygen -R '[{host}]:{port}' -f {pins}" in str(error.hint)


@drivers(*SSH)
async def test_strict_trusts_nothing_on_first_use(
    device: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins = tmp_path / "known_hosts"
    monkeypatch.setenv("PATCHLIGHT_KNOWN_HOSTS", str(pins))
    monkeypatch.setenv("PATCHLIGHT_HOST_KEYS", "strict")
    error = await refused(driver_of(device.switch), DeviceKeyRefused)
    assert "SHA256:" in error.message
    assert "ssh-keyscan" in str(error.hint)
    assert not pins.exists()
    pins.write_text(
        "this is no pin\n" + "[127.0.0.1]:1 ecdsa-sha2-nistp256 nonsense\n"
    )
    await refused(driver_of(device.switch), DeviceKeyRefused)


@drivers(*SSH)
async def test_a_pin_does_not_join_a_last_line_without_its_end(
    device: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins = tmp_path / "known_hosts"
    pins.write_text("# written by hand")
    monkeypatch.setenv("PATCHLIGHT_KNOWN_HOSTS", str(pins))
    for _ in range(2):
        async with opened(device.switch) as driver:
            assert await driver.read_map() == FIRST_MAP
    by_hand, pin = pins.read_text().splitlines()
    assert by_hand == "# written by hand"
    assert pin.startswith("[127.0.0.1]:")


# A device with keys of several types, and what is pinned of them.
RSA = paramiko.RSAKey.generate(2048)
OTHER_RSA = paramiko.RSAKey.generate(1024)
ED25519 = (
    Ed25519PrivateKey.generate()
    .public_key()
    .public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
).decode()


def line_of(key: paramiko.PKey) -> str:
    return f"{key.get_name()} {key.get_base64()}"


@pytest.fixture(params=SSH)
def two_keys(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Running]:
    """A device that has an ECDSA key, which paramiko asks for first, and an RSA key."""
    state = tmp_path / "state/patchlight"
    state.mkdir(parents=True)
    RSA.write_private_key_file(str(state / "emulated_ssh_host_key_rsa"))
    extra = ", password_env: OCS1_PASSWORD"
    lab = lab_file(
        tmp_path, driver=request.param, ports=96, initial=("1-7",), extra=extra
    )
    variables = {
        "OCS1_PASSWORD": PASSWORD,
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    with running(tmp_path, lab, "--no-fabric", **variables) as device:
        yield device


@pytest.mark.parametrize(
    "lines",
    [
        "{at} {rsa}",
        "{hashed} {rsa}",
        "{at} {ed25519}\n{at} {rsa}",
        "{at} {other}\n{at} {rsa}",
        "@cert-authority {at} {other}\n@revoked {at} {other}\n{at} {rsa}",
        "{at} ecdsa-sha2-nistp521 damaged\n{at} {rsa}",
    ],
)
async def test_a_key_of_a_pinned_type_is_asked_for_first(
    two_keys: Running,
    lines: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pins = tmp_path / "known_hosts"
    monkeypatch.setenv(FILE_VARIABLE, str(pins))
    at = "[{}]:{}".format(*two_keys.switch.address.rsplit(":", 1))
    text = lines.format(
        at=at,
        hashed=paramiko.HostKeys.hash_host(at),
        rsa=line_of(RSA),
        other=line_of(OTHER_RSA),
        ed25519=ED25519,
    )
    pins.write_text(text)
    async with opened(two_keys.switch) as driver:
        assert await driver.read_map() == FIRST_MAP
    assert pins.read_text() == text


@pytest.mark.parametrize(
    ("line", "said", "hint"),
    [
        (
            ED25519,
            "pinned in {pins} has the type ssh-ed25519: the type",
            "-t ecdsa",
        ),
        (
            "ssh-dss AAAA",
            "pinned in {pins} has the type ssh-dss: the type of its key has changed",
            "-t ecdsa",
        ),
        (
            line_of(OTHER_RSA),
            "not the one pinned in {pins}: this may",
            "ssh-keygen -R",
        ),
        (
            f"{line_of(RSA)}\n@revoked * {line_of(RSA)}",
            "which is revoked in {pins}",
            "leaked",
        ),
        (
            "ssh-rsa damaged",
            "not the one pinned in {pins}: this may",
            "ssh-keygen -R",
        ),
    ],
    # Keys are new in each process, and names of tests must not be.
    ids=["other type", "unsupported type", "other key", "revoked", "damaged"],
)
async def test_another_type_of_key_is_not_called_an_attack_and_another_key_is(
    two_keys: Running,
    line: str,
    said: str,
    hint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pins = tmp_path / "known_hosts"
    monkeypatch.setenv(FILE_VARIABLE, str(pins))
    at = "[{}]:{}".format(*two_keys.switch.address.rsplit(":", 1))
    pins.write_text(f"{at} {line}\n")
    error = await refused(driver_of(two_keys.switch), DeviceKeyRefused)
    assert said.format(pins=pins) in error.message
    assert hint in str(error.hint)
    if "type" in said:
        # Which keys it offers.
        assert "ecdsa-sha2-nistp256 SHA256:" in error.message
        assert f"ssh-rsa {RSA.fingerprint}" in error.message
        assert "man-in-the-middle" not in error.message
    assert pins.read_text() == f"{at} {line}\n"


@pytest.mark.parametrize("key", [RSA, OTHER_RSA])
async def test_the_key_in_the_lab_file_is_found_among_several(
    two_keys: Running, key: paramiko.PKey
) -> None:
    session = Session.of(two_keys.switch, PASSWORD)
    session = replace(session, host_key=key.fingerprint)
    if key is RSA:
        (await asyncio.to_thread(log_in, session)).close()
        return
    with pytest.raises(DeviceKeyRefused, match="man-in-the-middle") as caught:
        await asyncio.to_thread(log_in, session)
    assert f"ssh-rsa {RSA.fingerprint}" in caught.value.message


@drivers(*SSH)
async def test_nothing_is_left_behind(device: Running) -> None:
    """Sessions that came and went hold no descriptors."""

    async def session() -> int:
        async with opened(device.switch) as driver:
            assert await driver.read_map() == FIRST_MAP
        return held()

    def held() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    await session()
    before = await session()
    for _ in range(5):
        await session()
    deadline = time.monotonic() + PATIENCE_S
    while held() > before:
        assert time.monotonic() < deadline, (
            f"{held()} descriptors, {before} before"
        )
        await asyncio.sleep(0.02)  # the pause between two looks


@pytest.mark.parametrize(
    "name",
    [
        "polatis-scpi",
        "polatis-tl1",
        "polatis-netconf",
        "polatis-restconf",
        "glimmerglass-tl1",
    ],
)
async def test_the_ports_of_a_device_that_took_the_place_of_another_are_its_own(
    name: str,
) -> None:
    switch = CircuitSwitch(
        "ocs1", name, "", ports=16, initial=FIRST_MAP, switching_time_s=0.0
    )
    served: list[ProtocolServer] = []

    async def serve(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if served:
            await served[-1].serve(reader, writer)
        else:
            writer.transport.abort()

    async with contextlib.AsyncExitStack() as stack:
        first, second = (
            EmulatedOcs(replace(switch, ports=ports), {}, NoCrossbar())
            for ports in (32, 25)
        )
        for device in (first, second):
            await device.open()
            stack.push_async_callback(device.close)
        served.append(server_class(name)(first))
        address = await stack.enter_async_context(
            listening(serve, served[0].tls)
        )
        driver = open_driver(replace(switch, address=address))
        await driver.open()
        stack.push_async_callback(driver.close)
        assert await driver.read_map() == FIRST_MAP
        served.pop().cut()
        with pytest.raises(DeviceUnreachable):
            await driver.read_map()
        served.append(server_class(name)(second))
        assert await driver.read_map() == FIRST_MAP
        assert (await driver.connect([CrossConnect(3, 4)])).complete
        assert CrossConnect(3, 4) in second.map
