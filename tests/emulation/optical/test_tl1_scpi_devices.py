"""The emulated TL1 and SCPI devices as a client by hand sees them, in the test's process."""

import asyncio
import random
from typing import Any

import pytest

from patchlight.emulation.optical.protocols.server import server_class
from patchlight.testbed.lab.portmap import PortMap
from tests.support.protocol_session import conversation, expect_denials
from tests.support.waiting import PATIENCE_S


async def test_login() -> None:
    async with conversation("calient-tl1", 320, log_in=False) as (say, _):
        assert "Login Not Active" in await say("RTRV-CRS:::1::ALL;")
        assert "COMPLD" in await say("RTRV-HDR:::1;")
        assert "M  2 DENY\n   PIUI" in await say("ACT-USER::admin:2::wrong;")
        assert "M  3 DENY" in await say("ACT-USER::root:3::pw;")
        reply = await say('act-user::admin:4::"pw";')
        assert reply.startswith("\n\n   OCS1 ")
        assert 'M  4 COMPLD\n   "admin:admin,2"\n   /* NOTICE' in reply
        assert "Already logged in" in await say("ACT-USER::admin:5::pw;")
        assert "M  6 COMPLD" in await say("CANC-USER::admin:6;")


async def test_a_circuit_s_life_in_every_driver_s_syntax() -> None:
    async with conversation("calient-tl1", 320) as (say, device):
        line = (
            '"1.1.1>1.1.7:SRCPORT=1.1.1,DSTPORT=1.1.7,GRPNAME=SYSTEM,CONNNAME=1.1.1>1.1.7,'
            'CONNTYPE=1WAY,AS=IS,OS=IS,OC=OK,PS=UPR,AL=CL"'
        )
        # Without a CTAG the answer carries 0.
        assert f"M  0 COMPLD\n   {line}\n;" in await say("RTRV-CRS:::::ALL;")
        assert "COMPLD" in await say("ENT-CRS::1.1.3,1.1.4:7::,1way;")
        assert "AS=UMA,OS=RDY,OC=OK" in await say(
            "RTRV-CRS::1.1.3,1.1.4:8::1.1.3>1.1.4;"
        )
        assert "COMPLD" in await say(
            "ACT-CRS::1.1.3,1.1.4:9::1.1.3>1.1.4,SYSTEM;"
        )
        assert "AS=IS,OS=IS,OC=OK" in await say(
            "RTRV-CRS::1.1.3,1.1.4:10::1.1.3>1.1.4;"
        )
        assert "in service" in await say(
            "DLT-CRS::1.1.3,1.1.4:11::,SYSTEM,1.1.3>1.1.4;"
        )
        assert "COMPLD" in await say("CANC-CRS::1.1.3,1.1.4:12::1.1.3>1.1.4;")
        assert "COMPLD" in await say(
            "DLT-CRS::1.1.3,1.1.4:13::,SYSTEM,1.1.3>1.1.4;"
        )
        assert "COMPLD" in await say("ENT-CRS::1.1.3,1.1.4:::,2WAY;")
        assert "COMPLD" in await say("ACT-CRS::::1.1.3-1.1.4;")
        two_way = await say("RTRV-CRS::1.1.3,1.1.4:16::1.1.3-1.1.4;")
        assert "CONNTYPE=2WAY,AS=IS,OS=IS,OC=OK" in two_way
        assert device.map == PortMap.of([(1, 7), (3, 4), (4, 3)])
        assert "COMPLD" in await say("canc-crs:::14::1.1.3-1.1.4;")
        assert "COMPLD" in await say("dlt-crs:::15::1.1.3-1.1.4;")
        assert device.map == PortMap.of([(1, 7)])


async def test_denials_have_the_words_that_drivers_look_for() -> None:
    async with conversation("calient-tl1", 320) as (say, device):
        device.faults.refuse_ports = [9]
        await device.faults_changed()
        denials = {
            "ENT-CRS::1.1.1,1.1.8:1::SYSTEM,1WAY;": "Invalid Connection: 1.1.1 is in use by",
            "ENT-CRS::1.1.2,1.1.7:1::SYSTEM,1WAY;": "Invalid Connection: 1.1.7 is in use by",
            "ENT-CRS::1.1.2,9.1.1:1::SYSTEM,1WAY;": "Invalid port 9.1.1",
            "ENT-CRS::1.1.2,1.9.1:1::SYSTEM,1WAY;": "Invalid AID",
            "ENT-CRS::1.1.2,1.2.1:1::SYSTEM,1WAY;": "Failed: port 1.2.1 is locked",
            "ENT-CRS::1.1.2,1.1.3:1::SYSTEM,3WAY;": "Invalid connection type 3WAY",
            "ACT-CRS::1.1.2,1.1.3:1::1.1.2>1.1.3;": "Invalid Connection: no such connection",
            "ACT-CRS::1.1.1,1.1.7:1::1.1.1>1.1.7;": "Failed: 1.1.1>1.1.7 is in service already",
            "RTRV-CRS::1.1.1,1.1.7:1::1.1.1-1.1.7;": "Invalid Connection: no such connection",
            "RTRV-PORT::9:1;": "Invalid AID",
            "FROBNICATE:::1;": "Invalid command FROBNICATE",
            "RTRV-HDR:::toolong;": "M  0 DENY",
            ":::;": "Invalid command",
        }
        await expect_denials(say, denials)


async def test_bulk_does_what_it_can_and_says_what_it_could_not() -> None:
    async with conversation("calient-tl1", 320) as (say, device):
        assert "M  1 COMPLD" in await say(
            "ENT-CRS-BULK::1.1.2>1.1.2&1.1.3-1.1.4:1;"
        )
        assert len(device.map) == 4
        reply = await say("ENT-CRS-BULK::1.1.5>1.1.5&1.1.1>1.1.6:2;")
        assert "M  2 PRTL" in reply
        assert "1 connections failed: 1.1.1>1.1.6: Invalid Connection" in reply
        assert "M  3 DENY" in await say(
            "DLT-CRS-BULK::1.1.8>1.1.8&1.1.3>1.1.4:3;"
        )
        assert "COMPLD" in await say(
            "DLT-CRS-BULK::1.1.3-1.1.4&1.1.2>1.1.2&1.1.5>1.1.5:4;"
        )
        assert device.map == PortMap.of([(1, 7)])
        assert "Completed" in await say("RTRV-SAVERECALL:::5;")


async def test_ports_and_power_come_in_pages() -> None:
    async with conversation("calient-tl1", 320) as (say, device):
        device.faults.fail_ports = [10]
        await device.faults_changed()
        reply = await say("RTRV-PORT-SUM::0:1;")
        assert reply.count("M  1 COMPLD") == 5
        assert reply.count("\n>") == 4
        assert (
            '"1.1.1:ALIAS=NONE,INPWR=0.00,OUTPWR=NONE,CONNNAME1=1.1.1>1.1.7,CONNSTATE1=ACT,'
            'CONNNAME2=NONE,CONNSTATE2=NONE"' in reply
        )
        one = await say("RTRV-PORT-SUM::1.1.7:1;")
        assert one.count("ALIAS") == 1
        assert "INPWR=NONE,OUTPWR=-1." in one
        ports = await say("RTRV-PORT::1.2:2;")
        assert ports.count("WX,") == 8
        assert (
            '"1.2.2:WX,TRANSIT,TRANSIT:INAS=IS,INOS=OOS,INOC=FAIL,INRS=NPR,'
            in ports
        )


async def test_the_captured_scpi_session() -> None:
    async with conversation("polatis-scpi", 16) as (say, device):
        idn = (await say("*IDN?")).split(",")
        assert (idn[0], idn[1], len(idn)) == (
            "Polatis",
            "I-OST-16x16-LU1-DMHNS",
            4,
        )
        assert await say(":oxc:swit:size?") == "16,16"
        assert (
            await say(":oxc:swit:conn:only (@1,2,3),(@17,18,19);*OPC?") == "1"
        )
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
        assert (
            await say(":oxc:swit:port:enab (@4);:oxc:swit:conn:add (@1),(@17)")
            == ""
        )
        powers = (await say(":pmon:pow? (@1,17,5)")).strip("()").split(",")
        assert powers[0] == "0.00"
        assert -2 < float(powers[1]) < -1
        assert float(powers[2]) < -50
        assert await say(":syst:err:all?") == '0,"No error"'


async def test_scpi_errors_are_queued_and_nothing_of_a_bad_list_is_done() -> (
    None
):
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
        assert (await say(":syst:err:all?")).startswith(
            '-241,"Hardware missing'
        )


async def test_the_captured_polatis_tl1_session() -> None:
    async with conversation("polatis-tl1", 16) as (say, device):
        assert ",OCS," in await say("RTRV-NETYPE:::123:;")
        assert '"SYSTEM:SIZE=16x16"' in await say(
            'RTRV-EQPT:"OCS1":SYSTEM:5:::PARAMETER=SIZE;'
        )
        assert "SN=" in await say("RTRV-INV::OCS:123:;")
        assert "COMPLD" in await say("ED-EQPT::TIMEOUT:5:::ADMIN=60;")
        assert "COMPLD" in await say('ENT-PATCH:"OCS1":1,17:6:;')
        assert "COMPLD" in await say("ENT-PATCH::2&3&4,18&19&20:123:;")
        patches = await say("RTRV-PATCH:::7:;")
        assert [f'"{i},{i + 16}"' in patches for i in range(1, 6)] == [
            True
        ] * 4 + [False]
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
        denials = {
            "ENT-PATCH::1,40:a:;": "No port 40",
            "ENT-PATCH::1,2:a:;": "No port 2",
            "ENT-PATCH::1&2,17:a:;": "different length",
            "ENT-PATCH::x,17:a:;": "Invalid port",
            "DLT-PATCH:::a:;": "Invalid AID",
            "RTRV-EQPT::X:a:::PARAMETER=SIZE;": "Invalid AID X",
        }
        await expect_denials(say, denials)
        assert device.map == PortMap()


async def test_the_captured_glimmerglass_session() -> None:
    async with conversation("glimmerglass-tl1", 16) as (say, device):
        assert '"GGN:LicensedPortMatrix=16x16"' in await say(
            "rtrv-system-info:::1;"
        )
        assert (
            "PORTID=20016,PORTNAME=OUT16,PORTDIR=output,PORTHEALTH=good"
            in await say("RTRV-CFG-FIBER::all:2;")
        )
        reply = await say(
            "ent-crs-fiber::10001&10002,20002&20001:3:::opmode=sync;"
        )
        assert "Port 10001 is in a connection already" in reply
        assert device.map == PortMap.of([(1, 7)])
        assert "COMPLD" in await say("dlt-crs-fiber::10001:1;")
        assert "COMPLD" in await say(
            "ent-crs-fiber::10001&10002,20002&20001:3;"
        )
        table = await say("rtrv-crs-fiber::all:4;")
        assert (
            "GGN:IPORTID=10001,IPORTNAME=,OPORTID=20002,OPORTNAME=,CONNID=0,CONNSTATE=steady,"
            "CONNCAUSE=none,INPWR=0.000,OUTPWR=-1." in table
        )
        assert (
            "IPORTID=10002,IPORTNAME=,OPORTID=20001,OPORTNAME=,CONNID=0,CONNSTATE=fault,"
            "CONNCAUSE=initial_connection_timer_expired,INPWR=-49.162" in table
        )
        assert (
            "IPORTID=10003,IPORTNAME=,OPORTID=0,OPORTNAME=,CONNID=0,CONNSTATE=single"
            in table
        )
        assert table.count("GGN:") == 2 + 14 + 14
        assert (await say("rtrv-crs-fiber::10001&20002:5;")).count("GGN:") == 1
        assert "COMPLD" in await say(
            "DLT-CRS-FIBER::10001&10002,20002&20001:1:::opmode=sync;"
        )
        assert device.map == PortMap()
        denials = {
            "ent-crs-fiber::10001,20017:1;": "No port 20017",
            "ent-crs-fiber::20001,10001:1;": "No port 10001",
            "ent-crs-fiber::10001:1;": "Invalid port",
            "dlt-crs-fiber::10001:1;": "No such connection",
        }
        await expect_denials(say, denials)


PIECES = {
    "calient-tl1": [
        "RTRV-CRS:::2::ALL;", "ENT-CRS::1.1.2,1.1.3:3::,2WAY,a b,,;", "RTRV-PORT::0;", ":" * 70_000,
        "ACT-CRS::1.1.2,1.1.3:4::1.1.2-1.1.3;", "DLT-CRS-BULK::1.1.2-1.1.3&&:5;", "CANC-CRS::::;",
        "ENT-CRS-BULK::1.1.4>1.1.4&x&1.1:6;", "RTRV-PORT-SUM::,:7;", "CANC-USER;", '"',
    ],
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
READ = {
    "calient-tl1": "RTRV-CRS:::2::ALL;",
    "polatis-scpi": "*IDN?",
    "polatis-tl1": "RTRV-PATCH:::2:;",
    "glimmerglass-tl1": "RTRV-CRS-FIBER::all:2;",
}


@pytest.mark.parametrize("driver", PIECES)
async def test_whatever_clients_send_the_device_goes_on(driver: str) -> None:
    scpi = driver.endswith("scpi")
    async with conversation(
        driver, 320 if driver.startswith("calient") else 16
    ) as (say, device):
        troubles: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: troubles.append(context))
        protocol = server_class(driver)(device)
        served = asyncio.Semaphore(0)

        async def serve(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            await protocol.serve(reader, writer)
            served.release()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        rng = random.Random(3)
        for _ in range(300):
            _, writer = await asyncio.open_connection(
                *server.sockets[0].getsockname()
            )
            pieces = [
                rng.choice(PIECES[driver]).encode()
                for _ in range(rng.randrange(8))
            ]
            pieces += [rng.randbytes(rng.randrange(30)) for _ in range(3)]
            rng.shuffle(pieces)
            login = b"" if scpi else b"ACT-USER::admin:1::pw;"
            writer.write(login + b"".join(pieces))
            writer.close() if rng.random() < 0.5 else writer.transport.abort()
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(300):
                await served.acquire()
                assert ("Polatis" if scpi else "COMPLD") in await say(
                    READ[driver]
                )
        assert troubles == []
        server.close()
