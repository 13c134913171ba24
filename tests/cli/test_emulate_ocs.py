"""``patchlight emulate ocs`` as a user runs it: a process of its own, without root."""

import asyncio
import functools
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from patchlight.cli.main import cli
from patchlight.controller.circuits.contract import LoginRefused
from patchlight.controller.circuits.registry import open_driver
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import CircuitSwitch
from patchlight.testbed.lab.portmap import CrossConnect, PortMap
from patchlight.testbed.lab.spectrum import SpectrumMap
from patchlight.testbed.lab.wavelengths import WavelengthSwitch
from patchlight.testbed.labfile.reader import parse_lab
from tests.support.programs import ROOT, patchlight
from tests.support.waiting import PATIENCE_S

emulate = functools.partial(patchlight, "emulate", "ocs")


@contextmanager
def emulated(
    *options: str, **environment: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and what it printed once it answered."""
    process = subprocess.Popen(
        [sys.executable, "-m", "patchlight", "emulate", "ocs", *options],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
    )
    try:
        assert process.stdout is not None
        printed = ""
        while "with it:" not in printed:
            line = process.stdout.readline()
            assert line, f"it ended: {process.communicate()[1]}"
            printed += line
        yield process, printed
    finally:
        process.kill()
        process.communicate()


def address(printed: str) -> str:
    found = re.search(r'address: "([^"]+)"', printed)
    assert found is not None
    return found[1]


def switch_at(driver: str, where: str, ports: int = 32) -> CircuitSwitch:
    datapath_id = 0x51 if driver == "openflow" else None
    return CircuitSwitch("ocs1", driver, where, ports, datapath_id=datapath_id)


@pytest.fixture(autouse=True)
def _own_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATCHLIGHT_KNOWN_HOSTS", str(tmp_path / "known_hosts"))
    monkeypatch.setenv("PATCHLIGHT_TLS_PINS", str(tmp_path / "tls-pins"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))


# One of each transport: the conformance suite has every driver drive its device.
@pytest.mark.parametrize(
    "driver", ["calient-tl1", "telescent-ssh", "polatis-restconf", "openflow"]
)
def test_a_driver_drives_its_device(driver: str) -> None:
    async def drive(where: str) -> None:
        device = open_driver(switch_at(driver, where), "whatever")
        await device.open()
        try:
            assert await device.read_map() == PortMap.of(
                [(1, 7), (7, 1), (2, 8)]
            )
            assert (await device.connect([CrossConnect(3, 9)])).complete
            assert CrossConnect(3, 9) in await device.read_map()
        finally:
            await device.close()

    options = (driver, "--listen", "127.0.0.1:0", "--switching-time", "1ms")
    with emulated(*options, "--circuits", "1-7,2>8") as (process, printed):
        at = "and connects to" if driver == "openflow" else "at"
        assert f"32 ports speaks {driver} {at} {address(printed)}" in printed
        asyncio.run(drive(address(printed)))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, out, err) == (0, "", "ended\n")


def test_a_wavelength_switch_alone() -> None:
    first = SpectrumMap.parse(["1>2@193.100"])

    async def drive(switch: WavelengthSwitch) -> None:
        device = open_driver(switch)
        await device.open()
        try:
            assert await device.read_map() == first
            added = SpectrumMap.parse(["1>3@193.150-2dB"])
            assert (await device.connect(added)).complete
            assert await device.read_map() == first.joined(added)
        finally:
            await device.close()

    shape = ("waveshaper-http", "--ports", "1x4")
    options = (*shape, "--listen", "127.0.0.1:0", "--switching-time", "1ms")
    with emulated(*options, "--circuits", "1>2@193.100") as (_, printed):
        line = re.search("lab file: +(.*)\n", printed)
        assert line is not None
        (switch,) = parse_lab(line[1]).wavelength_switches
        asyncio.run(drive(switch))


@pytest.mark.parametrize(
    ("driver", "answer"),
    [
        ("polatis-scpi", "(@1),(@39)"),
        ("polatis-tl1", '"1,39"'),
        ("calient-tl1", "CONNTYPE=1WAY"),
        ("glimmerglass-tl1", "10001"),
    ],
)
def test_what_it_says_to_do_by_hand_works(driver: str, answer: str) -> None:
    options = (driver, "--listen", "127.0.0.1:0", "--circuits", "1>7")
    with emulated(*options, "--password-env", "PW", PW="se1") as (_, printed):
        line = re.search(
            r"try it: +(printf .*) \| nc -q \d (\S+) (\d+)\n", printed
        )
        assert line is not None
        shell = ("bash", "-c", line[1])
        said = subprocess.run(
            shell, capture_output=True, check=True, env={"PW": "se1"}
        ).stdout
        with socket.create_connection(
            (line[2], int(line[3])), PATIENCE_S
        ) as client:
            client.sendall(said)
            answered = b""
            while answer not in answered.decode():
                data = client.recv(65536)
                assert data, answered
                answered += data


def test_a_taken_port_names_who_has_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = emulate("polatis-scpi", "--listen", f"127.0.0.1:{port}")
    assert ended.returncode == 1
    assert f"(pid {os.getpid()})" in ended.stderr
    assert "another port" in ended.stderr


def test_circuits_outlive_it_and_faults_are_taken(tmp_path: Path) -> None:
    state = tmp_path / "state"
    control = tmp_path / "control"
    options = ("polatis-scpi", "--listen", "127.0.0.1:0", "--ports", "8")
    kept = ("--save", str(state), "--control", str(control))

    async def drive(where: str, wanted: PortMap) -> None:
        device = open_driver(switch_at("polatis-scpi", where, 8), "")
        await device.open()
        assert await device.read_map() == wanted
        await device.connect([CrossConnect(4, 5)])
        await device.close()

    for first_map in (PortMap(), PortMap.of([(4, 5)])):
        with emulated(*options, *kept) as (process, printed):
            asyncio.run(drive(address(printed), first_map))
            assert process.stdout is not None
            said = re.fullmatch(
                r"faults: +patchlight (.*)\n", process.stdout.readline()
            )
            assert said is not None
            words = shlex.split(said[1])
            told = CliRunner().invoke(cli, words)
            assert (told.exit_code, told.output) == (
                0,
                f"{control}: refuse_next busy\n",
            )
            ended = CliRunner().invoke(cli, [*words[:3], "end"])
            assert (ended.exit_code, ended.output) == (
                0,
                f"{control}: no faults\n",
            )
            process.terminate()
            assert process.wait(PATIENCE_S) == 0


def test_a_wrong_password_is_refused() -> None:
    async def drive(where: str) -> None:
        device = open_driver(switch_at("calient-tl1", where), "wrong-one")
        with pytest.raises(LoginRefused):
            await device.open()
        await device.close()

    options = (
        "calient-tl1",
        "--listen",
        "127.0.0.1:0",
        "--password-env",
        "PW",
    )
    with emulated(*options, PW="right") as (_, printed):
        assert "password_env: PW" in printed
        asyncio.run(drive(address(printed)))


def test_a_control_socket_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    ended = emulate("polatis-scpi", "--control", str(tmp_path / ("s" * 120)))
    assert ended.returncode == 1
    assert "choose a path of at most 107 bytes" in ended.stderr


def test_a_viewer_may_only_look(tmp_path: Path) -> None:
    async def drive(where: str, user: str) -> bool:
        switch = CircuitSwitch("ocs1", "calient-tl1", where, 32, user=user)
        device = open_driver(switch, "pw")
        await device.open()
        try:
            return (await device.connect([CrossConnect(3, 9)])).complete
        finally:
            await device.close()

    file = tmp_path / "lab.yaml"
    users = "emulated: {users: [{name: guest, read_only: true}]}"
    switch = f"{{name: ocs1, driver: calient-tl1, address: '127.0.0.1:1', ports: 32, {users}}}"
    file.write_text(f"{{name: bench, circuit_switches: [{switch}]}}")
    with emulated("ocs1", "--lab", str(file), "--listen", "127.0.0.1:0") as (
        _,
        printed,
    ):
        assert not asyncio.run(drive(address(printed), "guest"))
        assert asyncio.run(drive(address(printed), "admin"))


def test_faults_stand_until_they_are_ended_and_wrong_ones_are_refused(
    tmp_path: Path,
) -> None:
    control = tmp_path / "control"
    options = (
        "polatis-scpi",
        "--listen",
        "127.0.0.1:0",
        "--control",
        str(control),
    )
    fault = ["emulate", "fault", str(control)]
    with emulated(*options):
        for wrong, said in (
            (("refuse_nex", "1"), "did you mean 'refuse_next'?"),
            (("stall_s", "long"), "expected a value for stall_s: N"),
            (("fail_ports", "7,x"), "expected a value for fail_ports: 7,8"),
            (("lose",), "expected a value for lose: a cross-connect"),
            (("cut", "never"), "cut cannot be 'never'"),
        ):
            refused = CliRunner().invoke(cli, [*fault, *wrong]).exception
            assert isinstance(refused, BadInput)
            assert said in str(refused)
        for words in (
            ("fail_ports", "7,8"),
            ("drift_db", "9=1.5"),
            ("read_only",),
            ("stall_s", "2"),
        ):
            assert CliRunner().invoke(cli, [*fault, *words]).exit_code == 0
        found = json.loads(CliRunner().invoke(cli, [*fault, "--json"]).output)
        ended = CliRunner().invoke(cli, [*fault, "end"]).output
    assert (found["fail_ports"], found["drift_db"]) == ([7, 8], {"9": 1.5})
    assert (found["read_only"], found["stall_s"]) == (True, 2.0)
    assert ended == f"{control}: no faults\n"
    nobody = CliRunner().invoke(cli, fault)
    assert "no emulated switch answers" in str(nobody.exception)


def test_any_password_for_other_machines_is_warned_of() -> None:
    everywhere = ("--listen", "0.0.0.0:0")
    calient = ("calient-tl1",)
    for options, warning in (
        ((*calient, *everywhere), "accepts any password"),
        (("polatis-scpi", *everywhere), "asks for no password"),
        ((*calient, *everywhere, "--password-env", "PW"), None),
        ((*calient, "--listen", "127.0.0.1:0"), None),
    ):
        with emulated(*options, PW="secret") as (process, _):
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=PATIENCE_S)
        assert (
            (f"warning: it {warning}" in said)
            if warning
            else ("warning" not in said)
        )
