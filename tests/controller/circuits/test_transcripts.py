"""Sessions over TL1 and SCPI captured from real units by others, replayed to the drivers."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from patchlight.controller.circuits.contract import (
    CircuitDriver,
    DeviceRefused,
    DirectedPort,
)
from patchlight.controller.circuits.drivers.polatis import PolatisScpi
from patchlight.controller.circuits.registry import open_driver
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import CircuitSwitch
from patchlight.testbed.lab.portmap import CrossConnect, PortMap
from tests.support.ocs_drivers import listening

# Replies of an S162 with software 6.0-3, command by command; CTAG is what the driver sent.
S162 = {
    "ACT-USER": (
        b"\r\n\n   CALIENT01TS 16-10-31 15:01:34\r\nM  CTAG COMPLD\r\n"
        b'   "zpollock:zpollock,2"\r\n   /* NOTICE This is a private computer system. Unauthorized '
        b"access or use may lead to prosecution.*/\r\n;\r\nagent> "
    ),
    "RTRV-NE": (
        b"\r\n\n   CALIENT01TS 16-10-31 15:03:06\r\nM  CTAG COMPLD\r\n"
        b'   "CALIENT01TS:SERIALNUMBER=C00002227,SWPACKAGE=6.0-3,STATUS=OK,CHASSISTYPE=S162,'
        b'PLATFORM=VERSION2"\r\n;\r\nagent> '
    ),
    "RTRV-CRS": (
        b"\r\n\n   CALIENT01TS 16-11-07 11:20:14\r\nM  CTAG COMPLD\r\n"
        b'   "2.3.6-3.2.5:SRCPORT=2.3.6,DSTPORT=3.2.5,GRPNAME=DSTRAUB,CONNNAME=2.3.6-3.2.5,'
        b'CONNTYPE=2WAY,AS=IS,OS=IS,OC=OK,PS=UPR,AL=CL"\r\n;'
        b"\r\n\n   CALIENT01TS 16-11-07 11:20:14\r\n** 9 REPT ALM EQPT\r\n"
        b'   "1.1.1:MJ,PWR;M  1 DENY"\r\n;'
        b"\r\n\n   CALIENT01TS 16-11-07 11:20:14\r\nM  CTAG COMPLD\r\n"
        b'   "2.8.5>2.3.3:SRCPORT=2.8.5,DSTPORT=2.3.3,GRPNAME=DSTRAUB,CONNNAME=2.8.5>2.3.3,'
        b'CONNTYPE=1WAY,AS=UMA,OS=RDY,OC=FAIL,PS=UPR,AL=CL"\r\n;\r\nagent> '
    ),
    "RTRV-PORT": (
        b"\r\n\n   CALIENT01TS 16-11-07 11:10:16\r\nM  CTAG COMPLD\r\n"
        b'   "1.1.1:WX,NONE,NONE:INAS=OOS-NP,INOS=OOS,INOC=OK,INRS=NPR,OUTAS=OOS-NP,OUTOS=OOS,'
        b'OUTOC=OK,OUTRS=NPR"\r\n'
        b'   "3.1.1:WX,TRANSIT,TRANSIT:INAS=IS,INOS=IS,INOC=OK,INRS=NPR,OUTAS=IS,OUTOS=IS,'
        b'OUTOC=OK,OUTRS=NPR"\r\n;\r\nagent> '
    ),
    "RTRV-PORT-SUM": (
        b"\r\n\n   CALIENT01TS 16-11-04 09:26:57\r\nM  CTAG COMPLD\r\n"
        b'   "1.1.1:ALIAS=NONE,INPWR=-3.25,OUTPWR=NONE,CONNNAME1=1.1.1>1.1.2,CONNSTATE1=ACT,'
        b'CONNNAME2=NONE,CONNSTATE2=NONE"\r\n;\r\nagent> '
    ),
    "RTRV-HDR": b"\r\n\n   CALIENT01TS 16-11-04 09:26:57\r\nM  CTAG COMPLD\r\n;\r\nagent> ",
}


# Quoted lines of each reply, by the command without its CTAG.
POLATIS = {
    "RTRV-NETYPE": ["Polatis,N-OST-16x16-LA1-DMHNS,OCS,6.6.1.7"],
    "RTRV-INV": ["OCS::SN=002414,TYPE=OXC"],
    "RTRV-EQPT": ["SYSTEM:SIZE=16x16"],
    "RTRV-PATCH": ["1,17", "2,20"],
    "RTRV-PORT-SHUTTER": ["1:OPEN", "2:CLOSED", "17:OPEN", "18:OPEN"],
    "RTRV-PORT-POWER": ["1:-29.5", "17:-31.2"],
}
GLIMMERGLASS = {
    "RTRV-SYSTEM-INFO": [
        "GGN:SerialNumber=0123",
        "GGN:SystemType=OXC",
        "GGN:ChassisType=S300",
        "GGN:LicensedPortMatrix=64x64",
        "GGN:SoftwareActiveVersion=3.2.1",
    ],
    "RTRV-CRS-FIBER": [
        "GGN:IPORTID=10001,IPORTNAME=,OPORTID=0,OPORTNAME=,CONNID=0,CONNSTATE=single,"
        "CONNCAUSE=none,INPWR=-49.162,OUTPWR=0.000,PWRLOSS=0.000,CONNLOCK=0,CONNLOCKUSER=",
        "GGN:IPORTID=10002,IPORTNAME=,OPORTID=20015,OPORTNAME=,CONNID=0,CONNSTATE=fault,"
        "CONNCAUSE=initial_connection_timer_expired,INPWR=-48.549,OUTPWR=-49.354,PWRLOSS=0.836,"
        "CONNLOCK=0,CONNLOCKUSER=",
        "GGN:IPORTID=10046,IPORTNAME=,OPORTID=20047,OPORTNAME=,CONNID=0,CONNSTATE=steady,"
        "CONNCAUSE=none,INPWR=-5.873,OUTPWR=-6.762,PWRLOSS=0.889",
    ],
    "RTRV-CFG-FIBER": [
        "GGN:PORTID=10001,PORTNAME=from 5530-stack #4,PORTDIR=input,PORTHEALTH=good,"
        "PORTCAT=nor,PORTPRIV=0x1",
        "GGN:PORTID=20001,PORTNAME=to 5530-stack #4,PORTDIR=output,PORTHEALTH=bad,"
        "PORTCAT=nor,PORTPRIV=0x1",
    ],
}


@asynccontextmanager
async def replaying(
    switch: CircuitSwitch,
    reply: Callable[[str, str], bytes],
    greeting: bytes = b"",
) -> AsyncIterator[tuple[CircuitDriver, list[str]]]:
    """A driver whose device echoes each command, as a telnet port does, and replies.

    ``reply`` gets the verb and the CTAG. With the commands as they come.
    """
    commands: list[str] = []

    async def serve(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(greeting)
        try:
            while True:
                command = (await reader.readuntil(b";")).strip()
                text = (
                    re.sub(rb"\xff[\xfb-\xfe].", b"", command).decode().strip()
                )
                commands.append(text)
                verb, _, _, ctag, *_ = text.rstrip(";").split(":")
                writer.write(command + b"\r\n" + reply(verb.upper(), ctag))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async with listening(serve) as address:
        driver = open_driver(replace(switch, address=address), "hidden")
        await driver.open()
        try:
            yield driver, commands
        finally:
            await driver.close()


def from_captured(
    captured: dict[str, list[str]],
) -> Callable[[str, str], bytes]:
    def reply(verb: str, ctag: str) -> bytes:
        lines = "".join(f'   "{line}"\r\n' for line in captured.get(verb, []))
        head = f"\r\n\n   ( nil ) 05-01-31 17:44:22\r\nM  {ctag} COMPLD\r\n"
        return f"{head}{lines};\r\n< ".encode()

    return reply


async def test_calient() -> None:
    def reply(verb: str, ctag: str) -> bytes:
        return S162.get(verb, S162["RTRV-HDR"]).replace(b"CTAG", ctag.encode())

    switch = CircuitSwitch("s162", "calient-tl1", "", 160, user="zpollock")
    greeting = b"\xff\xfb\x01\xff\xfb\x03\r\nWelcome; agent> "
    async with replaying(switch, reply, greeting) as (driver, commands):
        identity = await driver.identify()
        assert (identity.model, identity.serial) == ("S162", "C00002227")
        assert (identity.software, identity.name) == ("6.0-3", "CALIENT01TS")
        # 2.3.6 is port 86, 3.2.5 is 141; the parked one carries no light.
        assert await driver.read_map() == PortMap.duplex([(86, 141)])
        states = await driver.port_states()
        assert states[DirectedPort("in", 1)].condition == "absent"
        assert states[DirectedPort("out", 129)].condition == "ready"
        asked = [DirectedPort("in", 1), DirectedPort("out", 1)]
        assert await driver.power(asked) == {asked[0]: -3.25, asked[1]: None}
        (alarm,) = await driver.alarms()
        assert (alarm.severity, alarm.subject) == ("major", "1.1.1")
    assert commands[0].startswith("ACT-USER::zpollock:1::hidden")
    assert commands[-1].startswith("CANC-USER::zpollock:")


async def test_polatis() -> None:
    switch = CircuitSwitch("ocs1", "polatis-tl1", "", 16)
    async with replaying(switch, from_captured(POLATIS)) as (driver, commands):
        identity = await driver.identify()
        assert (identity.vendor, identity.model) == (
            "Polatis",
            "N-OST-16x16-LA1-DMHNS",
        )
        assert (identity.serial, identity.software) == ("002414", "6.6.1.7")
        assert await driver.read_map() == PortMap.of([(1, 1), (2, 4)])
        states = await driver.port_states()
        assert {
            str(port): state.condition for port, state in states.items()
        } == {
            "in:1": "ready",
            "in:2": "locked",
            "out:1": "ready",
            "out:2": "ready",
        }
        asked = [
            DirectedPort("in", 1),
            DirectedPort("out", 1),
            DirectedPort("out", 2),
        ]
        assert await driver.power(asked) == {asked[0]: -29.5, asked[1]: -31.2}
        # 16 is no output: nothing may be read into such a line.
        await driver.connect([CrossConnect(5, 6)])
    assert commands[0].startswith("ACT-USER::admin:1::")
    assert any(command.startswith("ENT-PATCH::5,22:") for command in commands)
    assert not any(":ALL:" in command for command in commands)


async def test_glimmerglass() -> None:
    switch = CircuitSwitch("ocs1", "glimmerglass-tl1", "", 64)
    async with replaying(switch, from_captured(GLIMMERGLASS)) as (
        driver,
        commands,
    ):
        identity = await driver.identify()
        assert (identity.model, identity.serial, identity.software) == (
            "S300",
            "0123",
            "3.2.1",
        )
        # The one without light counts: its mirrors stand, and its ports are taken.
        assert await driver.read_map() == PortMap.of([(2, 15), (46, 47)])
        states = await driver.port_states()
        assert states[DirectedPort("in", 1)].condition == "ready"
        assert states[DirectedPort("out", 1)].condition == "failed"
        asked = [
            DirectedPort("in", 46),
            DirectedPort("out", 47),
            DirectedPort("in", 1),
        ]
        assert await driver.power(asked) == {
            asked[0]: -5.873,
            asked[1]: -6.762,
            asked[2]: None,
        }
        outcome = await driver.disconnect([CrossConnect(46, 47)])
        assert "map still has it" in outcome.refused[0].words
        await driver.connect([CrossConnect(5, 6), CrossConnect(6, 5)])
    assert any(c.startswith("dlt-crs-fiber::10046,20047:") for c in commands)
    entered = [c for c in commands if c.startswith("ent-crs-fiber")]
    assert entered[0].startswith("ent-crs-fiber::10005&10006,20006&20005:")
    assert entered[0].endswith(":::opmode=sync;")


# --- SCPI -----------------------------------------------------------------------------------

NO_ERROR = '0,"No error"'
# As captured, but for the numbers of ports that were asked for.
SCPI = {
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
async def scpi_replaying(
    captured: dict[str, str], *, end: str = "\r\n", greeting: str = ""
) -> AsyncIterator[tuple[PolatisScpi, list[str]]]:
    """A driver of two ports whose device answers each line as captured, and else with nothing.

    A captured error goes into the error queue instead, as it does in a device. With the lines
    as they come.
    """
    lines: list[str] = []

    async def serve(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
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
        driver = PolatisScpi(
            CircuitSwitch("ocs1", "polatis-scpi", address, 2), ""
        )
        try:
            await driver.open()
            yield driver, lines
        finally:
            await driver.close()


@pytest.mark.parametrize("end", ["\n", "\r\n"])
async def test_polatis_over_scpi(end: str) -> None:
    greeting = "Polatis switch, have a nice day\r\n"
    async with scpi_replaying(SCPI, end=end, greeting=greeting) as (
        driver,
        lines,
    ):
        identity = await driver.identify()
        assert (identity.vendor, identity.model) == (
            "Polatis",
            "I-OST-24x24-LU1-DMHNS",
        )
        assert (identity.serial, identity.software) == ("002414", "6.5.2.18")
        assert driver.capabilities.power_in
        assert driver.capabilities.power_out
        # 27 is out:3 on a switch with 24 inputs.
        assert await driver.read_map() == PortMap.of([(1, 3), (2, 2), (3, 6)])
        states = await driver.port_states()
        assert {
            str(port): state.condition for port, state in states.items()
        } == {
            "in:1": "locked",
            "in:2": "ready",
            "out:1": "failed",
            "out:2": "ready",
        }
        asked = [DirectedPort("in", 2), DirectedPort("out", 2)]
        assert await driver.power(asked) == {asked[0]: -29.55, asked[1]: None}
        assert await driver.alarms() == ()
    assert not any(
        "add" in line or "only" in line or "disc" in line for line in lines
    )


async def test_what_is_there_is_not_sent_and_what_is_written_is_read_back() -> (
    None
):
    async with scpi_replaying(SCPI) as (driver, lines):
        assert (await driver.connect([CrossConnect(2, 2)])).complete
    assert not any("add" in line for line in lines)

    async with scpi_replaying({**SCPI, ":oxc:swit:conn:stat?": "(@),(@)"}) as (
        driver,
        lines,
    ):
        # The device says "1" and no error, but its map stays empty: that is no success.
        outcome = await driver.connect([CrossConnect(2, 2)])
        assert not outcome.done
        assert "accepted, but the map lacks it" in outcome.refused[0].words
    add = lines.index(":oxc:swit:conn:add (@2),(@26);*OPC?")
    assert lines[add - 2 : add + 3] == [
        ":oxc:swit:conn:stat?",
        ":syst:err:all?",
        ":oxc:swit:conn:add (@2),(@26);*OPC?",
        ":syst:err:all?",
        ":oxc:swit:conn:stat?",
    ]


async def test_a_model_without_monitors() -> None:
    without = SCPI | {":pmon:pow? (@1)": '-241,"Hardware missing"'}
    async with scpi_replaying(without) as (driver, _):
        assert not driver.capabilities.power_in
        assert driver.capabilities.power_out
        assert await driver.power([DirectedPort("in", 2)]) == {}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"*IDN?": "Polatis,N-VST-32xCC-LU1-DMHNS,1,6"}, "any to any"),
        (
            {":oxc:swit:size?": "1,1"},
            "is a switch of 1x1, but the lab file says 2 ports",
        ),
    ],
)
async def test_a_model_of_another_size(
    changed: dict[str, str], words: str
) -> None:
    with pytest.raises(PatchlightError, match=words):
        async with scpi_replaying(SCPI | changed):
            pass


@pytest.mark.parametrize(
    "answer",
    ["(@1,2),(@27)", "(@1),(@2)", "(@1,x),(@27,28)", "(@1,1),(@25,26)"],
)
async def test_a_map_that_cannot_be_is_said(answer: str) -> None:
    async with scpi_replaying(SCPI | {":oxc:swit:conn:stat?": answer}) as (
        driver,
        _,
    ):
        with pytest.raises(DeviceRefused, match="an invalid value"):
            await driver.read_map()
