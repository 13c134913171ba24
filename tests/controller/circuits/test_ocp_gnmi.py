"""The driver ``ocp-gnmi`` with a switch written from the proto alone, and with the emulated one."""

import asyncio
import contextlib
import json
import logging
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from patchlight.controller.circuits.contract import (
    CircuitDriver,
    DeviceRefused,
    DeviceUnreachable,
    LoginRefused,
)
from patchlight.controller.circuits.drivers.ocp_gnmi import OCP, OcpGnmi
from patchlight.controller.circuits.protocols.http import (
    PINS_VARIABLE,
    DeviceNotTrusted,
)
from patchlight.testbed.errors import BadInput, OutcomeUnknown
from patchlight.testbed.lab.model import CircuitSwitch
from patchlight.testbed.lab.portmap import CrossConnect, PortMap
from tests.support.emulated_devices import ROOT, Running, lab_file, running
from tests.support.made_gnmi import PORTS
from tests.support.ocs_drivers import circuit, circuits
from tests.support.waiting import PATIENCE_S, eventually, wait_until

# eth-8 has the lowest index of the inputs, eth-16 that of the outputs; eth-5 is in:4.
THEIRS = PortMap.of([(5, 8)])
ODD = "4>1"


@contextlib.asynccontextmanager
async def made(
    folder: Path, habit: str, password: str = "pw"
) -> AsyncIterator[OcpGnmi]:
    """A driver of the made switch; it is not open yet."""
    process = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-m", "tests.support.made_gnmi", habit, str(folder)],
        cwd=ROOT,
    )
    try:
        ready = folder / "ready"
        await asyncio.to_thread(
            wait_until, ready.exists, "the switch to be ready"
        )
        switch = CircuitSwitch(
            "ocs1", "ocp-gnmi", ready.read_text(), PORTS, 0.0
        )
        driver = OcpGnmi(switch, password)
        yield driver
        await driver.close()
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def sets(folder: Path) -> list[dict[str, object]]:
    lines = (folder / "sets").read_text().splitlines()
    return [json.loads(line) for line in lines]


async def test_a_call_is_one_set_and_entries_of_others_stay(
    tmp_path: Path,
) -> None:
    async with made(tmp_path, "plain") as driver:
        await driver.open()
        assert await driver.read_map() == THEIRS
        pairs = circuits("1>2", "2>3", "3>4", ODD)
        outcome = await driver.connect([*pairs, circuit("5>5")])
        assert outcome.done == tuple(pairs)
        (busy,) = outcome.refused
        assert busy.words == "in:5 is in use on the device: 5>8"
        (sent,) = sets(tmp_path)
        assert isinstance(sent["update"], dict)
        assert all(name.startswith("patchlight-") for name in sent["update"])
        ports = [each["input-port-name"] for each in sent["update"].values()]
        assert ports == ["eth-8", "eth-7", "eth-6", "eth-5"]
        outcome = await driver.disconnect([*pairs, *THEIRS])
        (stays,) = outcome.refused
        assert (
            stays.words
            == "the entry 'theirs' belongs to another client and stays"
        )
        assert await driver.read_map() == THEIRS
        assert sets(tmp_path)[1] == {"delete": [*sent["update"]], "update": {}}
        states = await driver.port_states()
        assert {state.condition for state in states.values()} == {"ready"}
        assert await driver.alarms() == ()
        identity = await driver.identify()
        assert (identity.vendor, identity.model) == ("OCP", "optical-switch")
        mine = OcpGnmi(driver._switch, "pw", replace(OCP, owner=""))
        assert (await mine.disconnect(THEIRS)).complete
        assert await mine.read_map() == PortMap()
        await mine.close()


@pytest.mark.parametrize(
    ("habit", "words"),
    [
        ("invalid", "INVALID: dust"),
        ("refuses", "ABORTED: eth-5 is dusty"),
        ("fails", "4>1 did not come up: FAILED: dust"),
    ],
)
async def test_one_of_ten_that_cannot_be_is_told_with_its_reason(
    tmp_path: Path, habit: str, words: str
) -> None:
    pairs = circuits("1>2", "2>3", "3>4", ODD, "6>5", "7>6", "8>7")
    async with made(tmp_path, habit) as driver:
        await driver.open()
        outcome = await driver.connect(pairs)
        (refused,) = outcome.refused
        assert (str(refused.cross_connect), refused.words) == (ODD, words)
        wanted = [c for c in pairs if str(c) != ODD]
        assert outcome.done == tuple(wanted)
        assert await driver.read_map() == PortMap.of([*wanted, *THEIRS])


async def test_an_entry_that_goes_slowly_is_waited_for(tmp_path: Path) -> None:
    async with made(tmp_path, "slow") as driver:
        await driver.open()
        assert (await driver.connect(circuits("1>1"))).complete
        began = time.monotonic()
        assert (await driver.disconnect(circuits("1>1"))).complete
        assert time.monotonic() - began > 0.2
        assert len(sets(tmp_path)) == 2
        assert (await driver.connect(circuits("1>1"))).complete
        first, _, second = (list(each["update"]) for each in sets(tmp_path))  # type: ignore[call-overload]
        assert first != second


async def test_ten_thousand_updates_a_second_are_heard_and_bounded(
    tmp_path: Path,
) -> None:
    async with made(tmp_path, "floods") as driver:
        await driver.open()

        async def heard() -> bool:
            return len(await driver.alarms()) == 1000

        await eventually(heard, "a thousand alarms")
        used = time.process_time()
        began = time.monotonic()
        while time.monotonic() - began < 2.0:
            assert (await driver.connect(circuits("1>1"))).complete
            assert (await driver.disconnect(circuits("1>1"))).complete
            await asyncio.sleep(0.2)  # updates come meanwhile
        # Not as much as it would take to hear them all.
        assert time.process_time() - used < 1.5
        assert len(await driver.alarms()) == 1000
        assert await driver.read_map() == THEIRS


async def test_a_device_without_the_model_is_refused(tmp_path: Path) -> None:
    async with made(tmp_path, "other-model") as driver:
        with pytest.raises(
            DeviceRefused, match="no model ocp-ocs-optical-switch"
        ) as caught:
            await driver.open()
        assert "it offers other-optical-switch" in str(caught.value)


async def test_a_device_that_dies_in_a_set_leaves_the_outcome_unknown(
    tmp_path: Path,
) -> None:
    async with made(tmp_path, "dies") as driver:
        await driver.open()
        with pytest.raises(OutcomeUnknown, match="the connection closed"):
            await driver.connect(circuits("1>1"))
        # It had done it.
        assert len(json.loads((tmp_path / "left").read_text())) == 2
        with pytest.raises(DeviceUnreachable, match="connecting to ocs1"):
            await driver.read_map()


async def test_a_wrong_password_is_told_nowhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with made(tmp_path, "plain", "hush-hush") as driver:
        with pytest.raises(LoginRefused, match="who are you") as caught:
            await driver.open()
    assert "hush-hush" not in caplog.text + str(caught.value)
    with pytest.raises(BadInput, match="printable ASCII"):
        OcpGnmi(driver._switch, "wörd")


@pytest.mark.parametrize("verify", ["first-use", "pinned", "ca"])
async def test_another_certificate_gets_no_password(
    verify: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins = tmp_path / "pins"
    monkeypatch.setenv(PINS_VARIABLE, str(pins))
    async with made(tmp_path, "plain") as trusting:
        await trusting.open()
        (address, pin) = pins.read_text().split()
        driver = OcpGnmi(trusting._switch, "pw", replace(OCP, verify=verify))
        if verify != "ca":
            await driver.open()
            await driver.close()
        pins.write_text(f"{address} sha256:{'0' * 64}\n")
        with pytest.raises(
            DeviceUnreachable if verify == "ca" else DeviceNotTrusted,
            match="certificate",
        ):
            await driver.open()
        await driver.close()
        pins.write_text(f"{address} {pin}\n")


@pytest.mark.parametrize("kind", ["driver", "device"])
def test_without_grpc_it_is_said_what_to_install(kind: str) -> None:
    load = {
        "driver": "from patchlight.controller.circuits.registry import open_driver\n"
        "from patchlight.testbed.lab.model import CircuitSwitch\n"
        "open_driver(CircuitSwitch('ocs1', 'ocp-gnmi', 'x:1', 8))",
        "device": "from patchlight.emulation.optical.protocols.server import server_class\n"
        "server_class('ocp-gnmi')",
    }[kind]
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys\nsys.modules['grpc'] = None\n{load}",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert "gNMI needs the Python package grpcio" in done.stderr
    assert "-m pip install" in done.stderr


# --- the emulated device ------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def emulated(
    folder: Path, *initial: str, ports: int = 24, faults: str = ""
) -> AsyncIterator[tuple[Running, CircuitDriver]]:
    lab = lab_file(
        folder,
        driver="ocp-gnmi",
        ports=ports,
        switching_time="1ms",
        initial=initial,
        extra=faults,
    )
    with running(folder, lab, "--no-fabric") as device:
        driver = OcpGnmi(device.switch, "pw")
        await driver.open()
        yield device, driver
        await driver.close()


@pytest.mark.parametrize(
    ("mode", "kept"),
    [("MAINTAIN", True), ("RESTORE", True), ("REMOVE", False)],
)
async def test_a_power_cut_leaves_what_the_mode_says(
    tmp_path: Path, mode: str, kept: bool
) -> None:
    async with emulated(tmp_path, "1>7") as (device, driver):
        assert isinstance(driver, OcpGnmi)
        await driver.client.change(
            (), {("optical-switch", "config"): {"cold-boot-recovery": mode}}
        )
        assert (await driver.connect(circuits("2>8"))).complete
        before = await driver.read_map()
        assert device.fault(reboot="keep")["ok"]
        assert await driver.read_map() == before
        assert device.fault(reboot="forget")["ok"]
        assert await driver.read_map() == (before if kept else PortMap())
        assert (await driver.connect(before)).complete


@pytest.mark.parametrize(
    ("shape", "joined", "apart"),
    [
        ("any", "1>24", ""),
        ("three", "1>24", "2>3"),
        ("three", "24>23", "9>10"),
        ("fabrics", "7>12", "8>13"),
    ],
)
async def test_only_groups_that_may_be_joined_are(
    tmp_path: Path, shape: str, joined: str, apart: str
) -> None:
    faults = f", emulated: {{faults: [{{groups: {shape}}}]}}"
    async with emulated(tmp_path, faults=faults) as (_, driver):
        assert (await driver.connect(circuits(joined))).complete
        if apart:
            pairs = circuits(apart, "16>16")
            outcome = await driver.connect(pairs)
            words = [str(refused) for refused in outcome.refused]
            assert words[0].startswith(
                f"{apart}: the device cannot connect a port of group"
            )
        assert circuit(joined) in await driver.read_map()


async def test_what_a_device_does_by_itself_is_seen(tmp_path: Path) -> None:
    async with emulated(tmp_path, "1>7", "2>8") as (device, driver):
        assert device.fault(lose="1>7")["ok"]
        assert await driver.read_map() == PortMap.of([(2, 8)])
        assert device.fault(fail_ports=[20])["ok"]
        await until_told(driver, "port-20 is FAILED")
        states = await driver.port_states()
        assert {
            port.number
            for port, state in states.items()
            if state.condition == "failed"
        } == {20}
        assert device.fault(meddle="3>9")["ok"]
        outcome = await driver.connect(circuits("3>10"))
        assert "in use by patchlight-3-9" in outcome.refused[0].words


async def until_told(driver: CircuitDriver, words: str) -> None:
    async def told() -> bool:
        return any(words in alarm.words for alarm in await driver.alarms())

    await eventually(told, words)


async def test_a_port_that_is_disabled_darkens_its_circuit(
    tmp_path: Path,
) -> None:
    async with emulated(tmp_path, "1>7") as (_, driver):
        assert isinstance(driver, OcpGnmi)
        for number in (1, 3):
            port = ("components", ("component", f"port-{number}"))
            await driver.client.change(
                (), {(*port, "ocp-ocs-port", "config"): {"enabled": False}}
            )
        await until_told(driver, "patchlight-1-7: port 1 is disabled")
        states = await driver.port_states()
        locked = [str(p) for p, s in states.items() if s.condition == "locked"]
        assert locked == ["in:1", "in:3"]
        (invalid,) = (await driver.connect(circuits("3>9"))).refused
        assert invalid.words == "INVALID: port 3 is disabled"
        assert (await driver.connect(circuits("4>9"))).complete


async def test_names_of_ports_come_from_the_dialect(tmp_path: Path) -> None:
    async with emulated(tmp_path, ports=8) as (device, _):
        dialect = replace(
            OCP, input_port="port-{port}", output_port="port-1{port}"
        )
        two = replace(device.switch, ports=6)
        driver = OcpGnmi(two, "pw", dialect)
        assert (await driver.connect([CrossConnect(1, 2)])).complete
        plain = OcpGnmi(device.switch, "pw")
        assert await plain.read_map() == PortMap.of([(1, 4)])
        await plain.close()
        await driver.close()
