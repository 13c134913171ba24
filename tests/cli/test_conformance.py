"""``python -m patchlight.conformance`` as the author of a driver uses it."""

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.emulated_devices import Running, lab_file, running
from tests.support.programs import python

SCPI = "patchlight.controller.circuits.drivers.polatis:PolatisScpi"
# A driver that makes room where it must refuse, hangs when asked for alarms, tells its password,
# takes anything for a port, and sees more light leave than come in.
RUDE_DRIVER = """
import asyncio
import logging
from patchlight.controller.circuits.drivers.polatis import PolatisScpi
from patchlight.testbed.lab.portmap import CrossConnect

class Rude(PolatisScpi):
    async def connect(self, pairs):
        pairs = list(pairs)
        ends = {(c.inp, c.out) for c in pairs}
        busy = [
            c for c in await self.read_map()
            if any((c.inp == i) != (c.out == o) for i, o in ends)
        ]
        await self.disconnect(busy)
        return await super().connect(pairs)

    async def alarms(self):
        await asyncio.sleep(3600)  # it never answers

    async def disconnect(self, pairs):
        return await super().disconnect(c for c in pairs if c.inp > 0 and c.out > 0)

    async def power(self, ports):
        known = [p for p in ports if type(p.number) is int and 1 <= p.number <= self.ports]
        powers = await super().power(known)
        return {p: 3.0 if p.side == "out" and dbm else dbm for p, dbm in powers.items()}

    async def port_states(self):
        logging.getLogger("rude").debug("logged in with hush-hush")
        return await super().port_states()
"""


run = functools.partial(python, "-m", "patchlight.conformance")


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Running]:
    lab = lab_file(
        tmp_path,
        driver="polatis-scpi",
        switching_time="1ms",
        initial=("5-6", "9>30"),
    )
    with running(tmp_path, lab, "--no-fabric") as running_device:
        yield running_device


def circuits(device: Running) -> str:
    """What the device itself says that it carries."""
    refused = run("polatis-scpi", "--device", device.switch.address)
    assert refused.returncode == 2, refused.stderr
    return refused.stderr.partition("carries circuits: ")[2].splitlines()[0]


def test_a_device_in_use_is_left_alone_unless_told_and_is_put_back(
    device: Running,
) -> None:
    address = device.switch.address
    refused = run(SCPI, "--device", address)
    assert refused.returncode == 2
    assert "the device carries circuits: 5-6, 9>30" in refused.stderr
    assert (
        run(SCPI, "--device", address, "--initial", "5-6,9>31").returncode == 2
    )
    for consent in (("--initial", "5-6,9>30"), ("--any-map",)):
        ended = run(SCPI, "--device", address, *consent)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert "18 of 18 checks passed" in ended.stdout
        assert circuits(device) == "5-6, 9>30"


def test_a_driver_that_does_otherwise_is_told_what(
    device: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rude.py").write_text(RUDE_DRIVER)
    options = [
        "--device",
        device.switch.address,
        "--any-map",
        "--check-timeout",
        "6s",
    ]
    options += [
        "--password-env",
        "RUDE_PASSWORD",
        "--control",
        str(device.control),
    ]
    monkeypatch.setenv("RUDE_PASSWORD", "hush-hush")
    monkeypatch.setenv("COLUMNS", "300")
    ended = run("rude:Rude", *options, cwd=tmp_path)
    assert ended.returncode == 1, ended.stderr
    failed = {
        line.split("failed")[0].strip(): line.split("failed", 1)[1].strip()
        for line in ended.stdout.splitlines()
        if " failed " in line
    }
    assert (
        "expected [3>4, 5>6]"
        in failed["a busy port is refused and nothing else"]
    )
    assert "not done within 6 s" in failed["alarms can be asked for"]
    assert "not done within 6 s" in failed["alarms arrive"]
    assert "the password is in the log" in failed["knows its ports"]
    assert (
        "power() of port 0: expected BadInput"
        in failed["bad input changes nothing"]
    )
    assert "3.0 dBm at out:13" in failed["light comes out where it is led"]
    assert "connects one" not in failed
    assert circuits(device) == "5-6, 9>30"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("no_such_module:Driver", "--device", "h:1"),
            "loading the driver no_such_module:Driver",
        ),
        (("polatis-scip", "--device", "h:1"), "did you mean polatis-scpi?"),
        (("dry-run", "--device", "h:1", "--ports", "4"), "4"),
        (("dry-run",), "--device"),
        (
            ("builtins:dict", "--histories", "1"),
            "derives from no built-in driver",
        ),
        (
            (SCPI, "--device", "nothing", "--histories", "1"),
            "no emulated switch for driver",
        ),
    ],
)
def test_wrong_input_is_told(arguments: tuple[str, ...], message: str) -> None:
    ended = run(*arguments)
    assert ended.returncode == 2
    assert message in ended.stderr


def test_a_driver_is_used_in_histories(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from patchlight.controller.circuits.drivers.polatis import PolatisScpi\n"
        "class Mine(PolatisScpi):\n"
        "    pass\n"
    )
    ended = run("mine:Mine", "--histories", "1", cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "histories of seeds 1 to 1" in ended.stdout
    assert "driver-under-test" in ended.stdout
