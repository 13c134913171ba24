"""``patchlight ocs --direct``: without a controller."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from patchlight.controller.circuits.registry import device_lock
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.labfile.reader import read_lab
from tests.support.controller_process import DRY_LAB, OcsCommand
from tests.support.emulated_devices import Running, lab_file, running
from tests.support.waiting import closed_port


@dataclass(frozen=True)
class DirectOcs(OcsCommand):
    """``patchlight ocs --direct``, its lab, and the emulated device that is the lab's ocs1."""

    device: Running
    lab: Lab


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[DirectOcs]:
    """A lab of one circuit switch."""
    with running(
        tmp_path, lab_file(tmp_path, initial=("1-2",)), "--no-fabric"
    ) as device:
        path = tmp_path / "lab.yaml"
        text = path.read_text().replace(
            "127.0.0.1:3082", device.switch.address
        )
        path.write_text(text + "controller: {api: '127.0.0.1:1'}\n")
        options = [
            "--direct",
            "--lab",
            str(path),
            "--state",
            str(tmp_path / "state"),
        ]
        yield DirectOcs(options, device, read_lab(path))


@pytest.fixture
def direct(tmp_path: Path, alone: DirectOcs) -> Iterator[DirectOcs]:
    """The same with a second circuit switch, which does not answer."""
    path = tmp_path / "lab.yaml"
    # A device is locked by its address, which no other test has.
    with closed_port() as port:
        address = f"127.0.0.1:{port}"
        second = f"  - {{name: ocs2, driver: calient-tl1, address: '{address}', ports: 16}}\n"
        path.write_text(
            path.read_text().replace("fibres:", f"{second}fibres:")
        )
        yield DirectOcs(alone.options, alone.device, read_lab(path))


def test_direct_talks_to_the_device_and_remembers(alone: DirectOcs) -> None:
    alone("connect", "ocs1", "5:6", "--why", "no controller today")
    assert json.loads(alone("show", "--json"))["ocs1"]["map"] == [
        "1>2",
        "2>1",
        "5>6",
        "6>5",
    ]
    assert "no controller today" in alone("history")
    alone("lock", "ocs1.5", "--why", "keep")
    assert "keep" in alone("disconnect", "ocs1", "5", code=1)
    # The NIC's light arrives, and no more is lost than may be; the others are dark.
    shown = alone("verify")
    assert "-0.3" in shown
    assert "1 circuit verified, 3 unverified, none failed" in shown
    with device_lock([alone.lab.circuit_switch("ocs1")], "somebody"):
        assert "is in use by somebody (pid" in alone("show", code=1)
    alone.device.fault(report="*C EQPT: 1.1.1: mirror stuck")
    assert "ocs1" in alone("show")
    alone.device.kill()
    assert "connecting to ocs1" in alone("show", code=1)


def test_what_a_stranger_made_is_not_broken_unasked(alone: DirectOcs) -> None:
    alone("connect", "ocs1", "3:4")
    alone.device.fault(meddle="5>6,6>5")
    # Reads back differently: the stranger came between.
    alone("connect", "ocs1", "7:8", code=1)
    asked = alone("connect", "ocs1", "5:9", code=1)
    assert "5>6, 6>5 made outside Patchlight" in asked
    assert "not confirmed: nothing was changed" in asked
    assert "5>6" in alone("show", "ocs1")
    assert "committed" in alone("connect", "ocs1", "5:9", "--yes")
    alone.device.fault(meddle="10>11")
    alone("connect", "ocs1", "7:8", code=1)
    alone("verify", code=1)
    alone("verify", "--repair")  # that is what it was told to do
    assert "10>11" not in alone("show", "ocs1")


def test_direct_opens_only_the_switches_it_needs(direct: DirectOcs) -> None:
    with device_lock([direct.lab.circuit_switch("ocs2")], "somebody"):
        direct("connect", "ocs1", "5:6")
        assert "5>6" in direct("show", "ocs1")
        direct("rollback", "1")
        direct("save", "monday", "ocs1")
        direct("apply", "monday")
        direct("save", "5", "ocs1")
        direct("apply", "5")
        direct("lock", "ocs1.9", "--why", "x")
        assert "5>6" not in direct("show", "ocs1")
        assert "is in use by somebody" in direct("show", code=1)
        assert "committed" in direct("history")
    shown = direct("show", code=1)
    assert "1>2" in shown
    address = direct.lab.circuit_switch("ocs2").address
    assert f"ocs2 does not answer: connecting to ocs2 at {address}" in shown
    assert "the map of ocs2 is unknown" in direct(
        "connect", "ocs2", "1:2", code=1
    )
    assert "ocs2 does not answer" in direct("verify", code=1)
    found, _ = json.JSONDecoder().raw_decode(direct("show", "--json", code=1))
    assert {name: row["reachable"] for name, row in found.items()} == {
        "ocs1": True,
        "ocs2": False,
    }
    assert found["ocs1"]["identity"]["vendor"]


def test_direct_alarms_and_watch_listen_to_the_devices(
    direct: DirectOcs,
) -> None:
    def later(act: Callable[[], object]) -> threading.Timer:
        timer = threading.Timer(0.8, act)
        timer.start()
        return timer

    def report(words: str) -> None:
        direct.device.fault(report=f"*C EQPT: 1.1.1: {words}")

    timer = later(lambda: report("mirror stuck"))
    assert "mirror stuck" in direct("watch", "ocs1", "--count", "1")
    timer.join()
    direct.device.fault(report="A EQPT: 1.1.1: mirror stuck")  # cleared
    timer = later(lambda: report("fan failed"))
    assert "fan failed" in direct("watch", "ocs1", "--count", "1")
    timer.join()
    direct.device.fault(report="A EQPT: 1.1.1: fan failed")
    # Others work on the devices meanwhile: both the map and the journal tell.
    # One circuit: of two a look at the map may see the first alone. A process of its own: what
    # two commands print in one process cannot be told apart.
    command = [
        sys.executable,
        "-m",
        "patchlight",
        "ocs",
        "connect",
        "ocs1",
        "5:6",
        "--one-way",
    ]
    timer = later(
        lambda: subprocess.run(
            [*command, "--yes", *direct.options], check=True
        )
    )
    printed = direct("watch", "ocs1", "--count", "2", "--json")
    seen = [json.loads(line) for line in printed.splitlines()]
    timer.join()
    assert {event["kind"] for event in seen} == {"map", "circuits"}
    assert all(event["changes"]["ocs1"]["makes"] == ["5>6"] for event in seen)


def test_alarms_that_stand_are_told_apart_from_those_that_have_gone(
    direct: DirectOcs,
) -> None:
    direct.device.fault(fail_ports=[9])
    rows = json.loads(direct("show", "--alarms", "ocs1", "--json"))
    assert [
        row["standing"] for row in rows if "mirror stuck" in row["words"]
    ] == [True]
    shown = direct("show", "--alarms", "ocs1")
    assert "standing" in shown
    assert "yes" in shown
    found, _ = json.JSONDecoder().raw_decode(direct("show", "--json", code=1))
    assert [row["standing_alarms"] for row in found.values()] == [1, None]


def test_a_map_file_that_is_not_there_is_wrong_input(
    direct: DirectOcs, tmp_path: Path
) -> None:
    output = direct("apply", str(tmp_path / "none.yaml"), code=2)
    assert "none.yaml'" in output
    assert "Errno" not in output


def test_direct_imports_neither_a_web_framework_nor_emulated_devices(
    tmp_path: Path,
) -> None:
    lab = tmp_path / "lab.yaml"
    lab.write_text(DRY_LAB.format(api=1, openflow=2))
    words = ["ocs", "connect", "o1", "7:8", "--direct", "--lab", str(lab)]
    words += ["--state", str(tmp_path / "state")]
    program = (
        "import sys; from patchlight.cli.main import cli; cli(sys.argv[1:], standalone_mode=False);"
        "print(sorted({'fastapi', 'starlette', 'patchlight.emulation'} & {*sys.modules}))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.splitlines()[-1] == "[]"
    assert "committed" in ran.stdout
