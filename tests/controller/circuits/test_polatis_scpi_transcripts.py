"""Sessions captured from real Polatis units by others, replayed to the SCPI driver."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from patchlight.controller.circuits.contract import DeviceRefused, DirectedPort
from patchlight.controller.circuits.drivers.polatis.scpi import PolatisScpi
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab import CircuitSwitch
from patchlight.testbed.portmap import CrossConnect, PortMap

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


def replay(
    act: Callable[[PolatisScpi], Awaitable[None]],
    captured: dict[str, str],
    *,
    ports: int = 2,
    end: str = "\r\n",
    greeting: str = "",
) -> list[str]:
    """Answer each line with what was captured; what was not is answered with nothing.

    A captured error goes into the error queue instead, as it does in a device.
    """
    heard: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        errors: list[str] = []
        writer.write(greeting.encode())
        while line := (await reader.readline()).decode().strip():
            heard.append(line)
            answer = captured.get(line, "")
            if answer.startswith("-"):
                errors.append(answer)
            elif line == ":syst:err:all?" and errors:
                writer.write(f"{errors.pop()}{end}".encode())
            elif answer:
                writer.write(f"{answer}{end}".encode())
        writer.close()

    async def go() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        switch = CircuitSwitch("ocs1", "polatis-scpi", f"127.0.0.1:{port}", ports)
        driver = PolatisScpi(switch, "")
        try:
            await driver.open()
            await act(driver)
        finally:
            await driver.close()
            server.close()

    asyncio.run(go())
    return heard


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_captured_answers_are_understood(end: str) -> None:
    async def act(driver: PolatisScpi) -> None:
        identity = await driver.identify()
        assert (identity.vendor, identity.model) == ("Polatis", "I-OST-24x24-LU1-DMHNS")
        assert (identity.serial, identity.software) == ("002414", "6.5.2.18")
        assert driver.capabilities.power_in
        assert driver.capabilities.power_out
        assert driver.capabilities.atomic_replace
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

    heard = replay(act, CAPTURED, end=end, greeting="Polatis switch, have a nice day\r\n")
    assert not any("add" in line or "only" in line or "disc" in line for line in heard)


def test_what_is_there_is_not_sent_and_what_is_written_is_read_back() -> None:
    async def act(driver: PolatisScpi) -> None:
        assert (await driver.connect([CrossConnect(2, 2)])).complete

    assert not any("add" in line for line in replay(act, CAPTURED))

    before = {**CAPTURED, ":oxc:swit:conn:stat?": "(@),(@)"}

    async def write(driver: PolatisScpi) -> None:
        # The device says "1" and no error, but its map stays empty: that is no success.
        outcome = await driver.connect([CrossConnect(2, 2)])
        assert not outcome.done
        assert "accepted, but the device does not hold it" in outcome.refused[0].words

    heard = replay(write, before)
    at = heard.index(":oxc:swit:conn:add (@2),(@26);*OPC?")
    assert heard[at - 2 : at + 3] == [
        ":oxc:swit:conn:stat?",
        ":syst:err:all?",
        ":oxc:swit:conn:add (@2),(@26);*OPC?",
        ":syst:err:all?",
        ":oxc:swit:conn:stat?",
    ]


def test_models_without_monitors_and_of_single_fibres() -> None:
    async def nothing(driver: PolatisScpi) -> None:
        assert not driver.capabilities.power_in
        assert driver.capabilities.power_out
        assert await driver.power([DirectedPort("in", 2)]) == {}

    replay(nothing, CAPTURED | {":pmon:pow? (@1)": '-241,"Hardware missing"'})
    for changed, words in (
        ({"*IDN?": "Polatis,N-VST-32xCC-LU1-DMHNS,1,6"}, "any to any"),
        ({":oxc:swit:size?": "1,1"}, "is a switch of 1x1, but the lab file says 2 ports"),
    ):
        with pytest.raises(PatchlightError, match=words):
            replay(nothing, CAPTURED | changed)


@pytest.mark.parametrize(
    "answer", ["(@1,2),(@27)", "(@1),(@2)", "(@1,x),(@27,28)", "(@1,1),(@25,26)"]
)
def test_a_map_that_cannot_be_is_said(answer: str) -> None:
    async def act(driver: PolatisScpi) -> None:
        with pytest.raises(DeviceRefused, match="what cannot be"):
            await driver.read_map()

    replay(act, CAPTURED | {":oxc:swit:conn:stat?": answer})
