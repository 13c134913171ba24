"""The emulated Polatis and Glimmerglass as a client by hand sees them, in the test's process."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from patchlight.emulation.optical.protocols.server import server_class
from patchlight.testbed.portmap import PortMap
from tests.support.protocol_session import conversation


async def test_the_captured_scpi_session() -> None:
    async with conversation("polatis-scpi", 16) as (say, device):
        idn = (await say("*IDN?")).split(",")
        assert (idn[0], idn[1], len(idn)) == ("Polatis", "I-OST-16x16-LU1-DMHNS", 4)
        assert await say(":oxc:swit:size?") == "16,16"
        assert await say(":oxc:swit:conn:only (@1,2,3),(@17,18,19);*OPC?") == "1"
        assert await say(":oxc:swit:conn:stat?") == "(@1,2,3),(@17,18,19)"
        assert await say(":OXC:SWITch:CONNect:PORT? 2") == '"18"'
        assert await say(":oxc:swit:conn:port? 18") == '"2"'
        assert await say(":oxc:swit:conn:port? 9") == '""'
        assert await say(":oxc:swit:conn:sub (@1),(@17)") == ""
        assert await say(":oxc:swit:conn:sub (@2),(@)") == ""
        assert await say(":oxc:swit:conn:stat?") == "(@3),(@19)"
        # A new cross-connect takes its ports from those that hold them.
        assert await say(":oxc:swit:conn:add (@3,4),(@18,17)") == ""
        assert device.map == PortMap.of([(3, 2), (4, 1)])
        assert await say(":oxc:swit:port:dis (@4)") == ""
        device.faults.fail_ports = [6]
        await device.faults_changed()
        assert await say(":oxc:swit:port:stat? (@2,4,6)") == "(E,D,F)"
        assert await say(":oxc:swit:disc:all") == ""
        assert await say(":oxc:swit:conn:stat?") == "(@),(@)"
        assert await say(":oxc:swit:port:enab (@4);:oxc:swit:conn:add (@1),(@17)") == ""
        powers = (await say(":pmon:pow? (@1,17,5)")).strip("()").split(",")
        assert powers[0] == "0.00"
        assert -2 < float(powers[1]) < -1
        assert float(powers[2]) < -50
        assert await say(":syst:err:all?") == '0,"No error"'


async def test_scpi_errors_are_queued_and_nothing_of_a_bad_list_is_done() -> None:
    async with conversation("polatis-scpi", 128) as (say, device):
        for command, error in {
            ":oxc:swit:conn:add (@2,3),(@300,301)": '-222,"Data out of range;port 300"',
            ":oxc:swit:conn:add (@2),(@3)": '-222,"Data out of range;port 3"',
            ":oxc:swit:conn:add (@2,2),(@200,201)": '-221,"Settings conflict;port 2 twice"',
            ":oxc:swit:conn:add (@2,3),(@200)": '-108,"Parameter not allowed',
            ":oxc:swit:conn:add (@2),(@x)": '-171,"Invalid expression"',
            ":oxc:swit:conn:port? x": '-104,"Data type error"',
            ":frob:nicate?": '-113,"Undefined header;:frob:nicate?"',
            "(": '-102,"Syntax error"',
            f":pmon:pow? (@{','.join(map(str, range(1, 258)))})": '-223,"Too much data;257 ports',
        }.items():
            assert await say(command) == ""
            assert (await say(":syst:err:all?")).startswith(error), command
        assert device.map == PortMap.of([(1, 7)])
        # What is wrong with the message itself ends it; a refusal does not.
        assert await say(":frob;*OPC?") == ""
        assert await say(":oxc:swit:conn:add (@2),(@3);*OPC?") == "1"
        assert await say(":syst:err?") == '-113,"Undefined header;:frob"'
        assert (await say(":syst:err:all?")).startswith("-222")
        for _ in range(40):
            await say(":frob")
        assert (await say(":syst:err:all?")).endswith('-350,"Queue overflow"')
        await say(":frob")
        assert await say("*CLS;:syst:err:all?") == '0,"No error"'
        device.faults.monitors = "out"
        assert await say(":pmon:pow? (@129,130)") != ""
        assert await say(":pmon:pow? (@1)") == ""
        assert (await say(":syst:err:all?")).startswith('-241,"Hardware missing')


async def test_the_captured_polatis_tl1_session() -> None:
    async with conversation("polatis-tl1", 16) as (say, device):
        assert ",OCS," in await say("RTRV-NETYPE:::123:;")
        assert '"SYSTEM:SIZE=16x16"' in await say('RTRV-EQPT:"OCS1":SYSTEM:5:::PARAMETER=SIZE;')
        assert "SN=" in await say("RTRV-INV::OCS:123:;")
        assert "COMPLD" in await say("ED-EQPT::TIMEOUT:5:::ADMIN=60;")
        assert "COMPLD" in await say('ENT-PATCH:"OCS1":1,17:6:;')
        assert "COMPLD" in await say("ENT-PATCH::2&3&4,18&19&20:123:;")
        patches = await say("RTRV-PATCH:::7:;")
        assert [f'"{i},{i + 16}"' in patches for i in range(1, 6)] == [True] * 4 + [False]
        assert (await say("RTRV-PATCH::3&1:8:;")).count('"') == 4
        assert "COMPLD" in await say("OPR-PORT-SHUTTER::1&2:123:;")
        shutters = await say("RTRV-PORT-SHUTTER::1&&640:9:;")
        assert '"1:CLOSED"' in shutters
        assert '"32:OPEN"' in shutters
        assert '"33:' not in shutters
        assert "COMPLD" in await say("RLS-PORT-SHUTTER::1&2:123:;")
        assert '"1:0.0"' in await say("RTRV-PORT-POWER::1&&640:c1:;")
        assert "COMPLD" in await say("DLT-PATCH::2:a:;")
        assert device.map == PortMap.of([(1, 1), (3, 3), (4, 4)])
        assert "COMPLD" in await say("DLT-PATCH::ALL:a:;")
        for command, words in {
            "ENT-PATCH::1,40:a:;": "No port 40",
            "ENT-PATCH::1,2:a:;": "No port 2",
            "ENT-PATCH::1&2,17:a:;": "different length",
            "ENT-PATCH::x,17:a:;": "Invalid port",
            "DLT-PATCH:::a:;": "Invalid AID",
            "RTRV-EQPT::X:a:::PARAMETER=SIZE;": "Invalid AID X",
        }.items():
            reply = await say(command)
            assert "DENY" in reply
            assert words in reply
        assert device.map == PortMap()


async def test_the_captured_glimmerglass_session() -> None:
    async with conversation("glimmerglass-tl1", 16) as (say, device):
        assert '"GGN:LicensedPortMatrix=16x16"' in await say("rtrv-system-info:::1;")
        assert "PORTID=20016,PORTNAME=OUT16,PORTDIR=output,PORTHEALTH=good" in await say(
            "RTRV-CFG-FIBER::all:2;"
        )
        reply = await say("ent-crs-fiber::10001&10002,20002&20001:3:::opmode=sync;")
        assert "Port 10001 is in a connection already" in reply
        assert device.map == PortMap.of([(1, 7)])
        assert "COMPLD" in await say("dlt-crs-fiber::10001:1;")
        assert "COMPLD" in await say("ent-crs-fiber::10001&10002,20002&20001:3;")
        table = await say("rtrv-crs-fiber::all:4;")
        assert (
            "GGN:IPORTID=10001,IPORTNAME=,OPORTID=20002,OPORTNAME=,CONNID=0,CONNSTATE=steady,"
            "CONNCAUSE=none,INPWR=0.000,OUTPWR=-1." in table
        )
        assert (
            "IPORTID=10002,IPORTNAME=,OPORTID=20001,OPORTNAME=,CONNID=0,CONNSTATE=fault,"
            "CONNCAUSE=initial_connection_timer_expired,INPWR=-49.162" in table
        )
        assert "IPORTID=10003,IPORTNAME=,OPORTID=0,OPORTNAME=,CONNID=0,CONNSTATE=single" in table
        assert table.count("GGN:") == 2 + 14 + 14
        assert (await say("rtrv-crs-fiber::10001&20002:5;")).count("GGN:") == 1
        assert "COMPLD" in await say("DLT-CRS-FIBER::10001&10002,20002&20001:1:::opmode=sync;")
        assert device.map == PortMap()
        for command, words in {
            "ent-crs-fiber::10001,20017:1;": "No port 20017",
            "ent-crs-fiber::20001,10001:1;": "No port 10001",
            "ent-crs-fiber::10001:1;": "Invalid port",
            "dlt-crs-fiber::10001:1;": "No such connection",
        }.items():
            reply = await say(command)
            assert "DENY" in reply
            assert words in reply


PIECES = {
    "polatis-scpi": [
        ":oxc:swit:conn:add (@1,2),(@20,21)\n", ":oxc:swit:conn:only (@1:4),(@17:20)\n", "*OPC?;",
        ":oxc:swit:conn:sub (@1),(@)\n", ":pmon:pow? (@1,99)\n", ":syst:err:all?\n", "(@1:9999999)",
        ":oxc:swit:port:dis (@3)\n", ":oxc:swit:conn:stat?", "\n", '"', "(", ";;", "*IDN?\r\n",
        ":oxc:swit:port:stat? (@1:99999999)\n", "x" * 70_000,
    ],
    "polatis-tl1": [
        "ENT-PATCH::1&2,20&21:1:;", "DLT-PATCH::1&&99999999:2:;", "RTRV-PATCH::&&:3:;", ":::;",
        "RTRV-PORT-POWER::1&&640:4:;", "OPR-PORT-SHUTTER::2:5:;", "DLT-PATCH::,:6:;", '"', ";",
    ],
    "glimmerglass-tl1": [
        "ent-crs-fiber::10001&&10003,20001&&20003:1;", "dlt-crs-fiber::all,all:2;", '"', ";",
        "rtrv-crs-fiber::1&2:3;", "ent-crs-fiber::,:4;", "dlt-crs-fiber::10001&&99999999,2:5;",
    ],
}  # fmt: skip


@pytest.mark.parametrize("driver", PIECES)
async def test_whatever_clients_send_the_device_goes_on(driver: str) -> None:
    async with conversation(driver, 16) as (say, device):
        troubles: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: troubles.append(context))
        protocol = server_class(driver)(device)
        served = asyncio.Semaphore(0)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await protocol.serve(reader, writer)
            served.release()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        rng = random.Random(3)
        for _ in range(150):
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            pieces = [rng.choice(PIECES[driver]).encode() for _ in range(rng.randrange(8))]
            pieces += [rng.randbytes(rng.randrange(30)) for _ in range(3)]
            rng.shuffle(pieces)
            login = b"" if driver.endswith("scpi") else b"ACT-USER::admin:1::pw;"
            writer.write(login + b"".join(pieces))
            writer.close() if rng.random() < 0.5 else writer.transport.abort()
        async with asyncio.timeout(20):
            for _ in range(150):
                await served.acquire()
        assert troubles == []
        server.close()
        assert await say("*IDN?" if driver.endswith("scpi") else "RTRV-HDR:::1;")
