"""Sessions captured from real Polatis units by others, replayed to the SCPI driver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from patchlight.controller.circuits.contract import DeviceRefused, DirectedPort
from patchlight.controller.circuits.drivers.polatis.scpi import PolatisScpi
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab import CircuitSwitch
from patchlight.testbed.portmap import CrossConnect, PortMap
from tests.support.ocs_drivers import listening

NO_ERROR = '0,"No error"'
# As captured, but for the numbers of ports that were asked for.
CAPTURED = {
    "*IDN?": "Polatis,I-OST-24x24-LU1-DMHNS,002414,6.5.2.18",
    ":oxc:swit:size?": "24,24",
    ":oxc:swit:conn:stat?": "(@1,2,3),(@27,26,30)",
    ":oxc:swit:port:stat? (@1,2,25,26)": "(D,E,F,E)",
    ":pmon:pow? (@1)": "(-29.55)",
    ":pmon:pow? (@25)": "(-30.05)",
    ":pmon:pow? (@2,26)": "(-29.55,-60.00)",
    ":oxc:swit:conn:add (@2),(@26);*OPC?": "1",
    ":syst:err:all?": NO_ERROR,
}


@asynccontextmanager
async def replaying(
    captured: dict[str, str], *, end: str = "\r\n", greeting: str = ""
) -> AsyncIterator[tuple[PolatisScpi, list[str]]]:
    """A driver of two ports whose device answers each line as captured, and else with nothing.

    A captured error goes into the error queue instead, as it does in a device. With the lines
    as they come.
    """
    lines: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        errors: list[str] = []
        writer.write(greeting.encode())
        while line := (await reader.readline()).decode().strip():
            lines.append(line)
            answer = captured.get(line, "")
            if answer.startswith("-"):
                errors.append(answer)
            elif line == ":syst:err:all?" and errors:
                writer.write(f"{errors.pop()}{end}".encode())
            elif answer:
                writer.write(f"{answer}{end}".encode())
        writer.close()

    async with listening(serve) as address:
        driver = PolatisScpi(CircuitSwitch("ocs1", "polatis-scpi", address, 2), "")
        try:
            await driver.open()
            yield driver, lines
        finally:
            await driver.close()


@pytest.mark.parametrize("end", ["\n", "\r\n"])
async def test_the_captured_answers_are_understood(end: str) -> None:
    greeting = "Polatis switch, have a nice day\r\n"
    async with replaying(CAPTURED, end=end, greeting=greeting) as (driver, lines):
        identity = await driver.identify()
        assert (identity.vendor, identity.model) == ("Polatis", "I-OST-24x24-LU1-DMHNS")
        assert (identity.serial, identity.software) == ("002414", "6.5.2.18")
        assert driver.capabilities.power_in
        assert driver.capabilities.power_out
        # 27 is out:3 on a switch with 24 inputs.
        assert await driver.read_map() == PortMap.of([(1, 3), (2, 2), (3, 6)])
        states = await driver.port_states()
        assert {str(port): state.condition for port, state in states.items()} == {
            "in:1": "locked",
            "in:2": "ready",
            "out:1": "failed",
            "out:2": "ready",
        }
        asked = [DirectedPort("in", 2), DirectedPort("out", 2)]
        assert await driver.power(asked) == {asked[0]: -29.55, asked[1]: None}
        assert await driver.alarms() == ()
    assert not any("add" in line or "only" in line or "disc" in line for line in lines)


async def test_what_is_there_is_not_sent_and_what_is_written_is_read_back() -> None:
    async with replaying(CAPTURED) as (driver, lines):
        assert (await driver.connect([CrossConnect(2, 2)])).complete
    assert not any("add" in line for line in lines)

    async with replaying({**CAPTURED, ":oxc:swit:conn:stat?": "(@),(@)"}) as (driver, lines):
        # The device says "1" and no error, but its map stays empty: that is no success.
        outcome = await driver.connect([CrossConnect(2, 2)])
        assert not outcome.done
        assert "accepted, but the device does not hold it" in outcome.refused[0].words
    add = lines.index(":oxc:swit:conn:add (@2),(@26);*OPC?")
    assert lines[add - 2 : add + 3] == [
        ":oxc:swit:conn:stat?",
        ":syst:err:all?",
        ":oxc:swit:conn:add (@2),(@26);*OPC?",
        ":syst:err:all?",
        ":oxc:swit:conn:stat?",
    ]


async def test_a_model_without_monitors() -> None:
    without = CAPTURED | {":pmon:pow? (@1)": '-241,"Hardware missing"'}
    async with replaying(without) as (driver, _):
        assert not driver.capabilities.power_in
        assert driver.capabilities.power_out
        assert await driver.power([DirectedPort("in", 2)]) == {}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"*IDN?": "Polatis,N-VST-32xCC-LU1-DMHNS,1,6"}, "any to any"),
        ({":oxc:swit:size?": "1,1"}, "is a switch of 1x1, but the lab file says 2 ports"),
    ],
)
async def test_a_model_of_another_size(changed: dict[str, str], words: str) -> None:
    with pytest.raises(PatchlightError, match=words):
        async with replaying(CAPTURED | changed):
            pass


@pytest.mark.parametrize(
    "answer", ["(@1,2),(@27)", "(@1),(@2)", "(@1,x),(@27,28)", "(@1,1),(@25,26)"]
)
async def test_a_map_that_cannot_be_is_said(answer: str) -> None:
    async with replaying(CAPTURED | {":oxc:swit:conn:stat?": answer}) as (driver, _):
        with pytest.raises(DeviceRefused, match="what cannot be"):
            await driver.read_map()
