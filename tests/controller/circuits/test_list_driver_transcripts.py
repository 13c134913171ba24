"""Sessions with Polatis and Glimmerglass over TL1, as others captured them, replayed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from patchlight.controller.circuits.contract import CircuitDriver, DirectedPort
from patchlight.controller.circuits.registry import open_driver
from patchlight.testbed.lab import CircuitSwitch
from patchlight.testbed.portmap import CrossConnect, PortMap

Act = Callable[[CircuitDriver], Awaitable[None]]

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


def replay(driver_name: str, captured: dict[str, list[str]], ports: int, act: Act) -> list[str]:
    commands: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                text = (await reader.readuntil(b";")).decode().strip()
                commands.append(text)
                verb, _, _, ctag, *_ = text.rstrip(";").split(":")
                lines = "".join(f'   "{line}"\r\n' for line in captured.get(verb.upper(), []))
                head = f"\r\n\n   ( nil ) 05-01-31 17:44:22\r\nM  {ctag} COMPLD\r\n"
                writer.write(f"{text}\r\n{head}{lines};\r\n< ".encode())
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def go() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        switch = CircuitSwitch("ocs1", driver_name, f"127.0.0.1:{port}", ports)
        driver = open_driver(switch, "")
        try:
            await driver.open()
            await act(driver)
        finally:
            await driver.close()
            server.close()

    asyncio.run(go())
    return commands


def test_polatis() -> None:
    async def act(driver: CircuitDriver) -> None:
        identity = await driver.identify()
        assert (identity.vendor, identity.model) == ("Polatis", "N-OST-16x16-LA1-DMHNS")
        assert (identity.serial, identity.software) == ("002414", "6.6.1.7")
        assert await driver.read_map() == PortMap.of([(1, 1), (2, 4)])
        states = await driver.port_states()
        assert {str(port): state.condition for port, state in states.items()} == {
            "in:1": "ready",
            "in:2": "locked",
            "out:1": "ready",
            "out:2": "ready",
        }
        asked = [DirectedPort("in", 1), DirectedPort("out", 1), DirectedPort("out", 2)]
        assert await driver.power(asked) == {asked[0]: -29.5, asked[1]: -31.2}
        # 16 is no output: nothing may be read into such a line.
        await driver.connect([CrossConnect(5, 6)])

    commands = replay("polatis-tl1", POLATIS, 16, act)
    assert commands[0].startswith("ACT-USER::admin:1::")
    assert any(command.startswith("ENT-PATCH::5,22:") for command in commands)
    assert not any(":ALL:" in command for command in commands)


def test_glimmerglass() -> None:
    async def act(driver: CircuitDriver) -> None:
        identity = await driver.identify()
        assert (identity.model, identity.serial, identity.software) == ("S300", "0123", "3.2.1")
        # The one without light counts: its mirrors stand, and its ports are taken.
        assert await driver.read_map() == PortMap.of([(2, 15), (46, 47)])
        states = await driver.port_states()
        assert states[DirectedPort("in", 1)].condition == "ready"
        assert states[DirectedPort("out", 1)].condition == "failed"
        asked = [DirectedPort("in", 46), DirectedPort("out", 47), DirectedPort("in", 1)]
        assert await driver.power(asked) == {asked[0]: -5.873, asked[1]: -6.762, asked[2]: None}
        outcome = await driver.disconnect([CrossConnect(46, 47)])
        assert "holds it still" in outcome.refused[0].words
        await driver.connect([CrossConnect(5, 6), CrossConnect(6, 5)])

    commands = replay("glimmerglass-tl1", GLIMMERGLASS, 64, act)
    assert any(c.startswith("dlt-crs-fiber::10046,20047:") for c in commands)
    entered = [c for c in commands if c.startswith("ent-crs-fiber")]
    assert entered[0].startswith("ent-crs-fiber::10005&10006,20006&20005:")
    assert entered[0].endswith(":::opmode=sync;")
