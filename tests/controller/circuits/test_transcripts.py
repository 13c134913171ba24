"""Sessions captured from real units by others, replayed to the driver byte for byte."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

from patchlight.controller.circuits.contract import DirectedPort
from patchlight.controller.circuits.drivers.calient.tl1 import CalientTl1
from patchlight.testbed.lab import CircuitSwitch
from patchlight.testbed.portmap import PortMap

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


def replay(act: Callable[[CalientTl1], Awaitable[None]]) -> list[str]:
    """Answer each command with the captured reply, echoing it as a telnet port does."""
    commands: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\xff\xfb\x01\xff\xfb\x03\r\nWelcome; agent> ")
        try:
            while True:
                command = (await reader.readuntil(b";")).strip()
                text = re.sub(rb"\xff[\xfb-\xfe].", b"", command).decode().strip()
                commands.append(text)
                verb, _, _, ctag, *_ = text.rstrip(";").split(":")
                writer.write(command + b"\r\n")
                writer.write(S162.get(verb, S162["RTRV-HDR"]).replace(b"CTAG", ctag.encode()))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def go() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        switch = CircuitSwitch("s162", "calient-tl1", f"127.0.0.1:{port}", 160, user="zpollock")
        driver = CalientTl1(switch, "hidden")
        await driver.open()
        await act(driver)
        await driver.close()
        server.close()

    asyncio.run(go())
    return commands


def test_the_captured_replies_are_understood() -> None:
    async def act(driver: CalientTl1) -> None:
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

    commands = replay(act)
    assert commands[0].startswith("ACT-USER::zpollock:1::hidden")
    assert commands[-1].startswith("CANC-USER::zpollock:")
