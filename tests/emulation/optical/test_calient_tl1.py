"""The emulated Calient as a TL1 client by hand sees it, in one process with the test."""

from __future__ import annotations

import asyncio
import random

from patchlight.emulation.optical.vendors.calient import CalientTl1Server
from patchlight.testbed.portmap import PortMap
from tests.support.protocol_session import conversation


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
        assert "AS=UMA,OS=RDY,OC=OK" in await say("RTRV-CRS::1.1.3,1.1.4:8::1.1.3>1.1.4;")
        assert "COMPLD" in await say("ACT-CRS::1.1.3,1.1.4:9::1.1.3>1.1.4,SYSTEM;")
        assert "AS=IS,OS=IS,OC=OK" in await say("RTRV-CRS::1.1.3,1.1.4:10::1.1.3>1.1.4;")
        assert "in service" in await say("DLT-CRS::1.1.3,1.1.4:11::,SYSTEM,1.1.3>1.1.4;")
        assert "COMPLD" in await say("CANC-CRS::1.1.3,1.1.4:12::1.1.3>1.1.4;")
        assert "COMPLD" in await say("DLT-CRS::1.1.3,1.1.4:13::,SYSTEM,1.1.3>1.1.4;")
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
        for command, words in {
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
        }.items():
            reply = await say(command)
            assert "DENY" in reply
            assert words in reply


async def test_bulk_does_what_it_can_and_says_what_it_could_not() -> None:
    async with conversation("calient-tl1", 320) as (say, device):
        assert "M  1 COMPLD" in await say("ENT-CRS-BULK::1.1.2>1.1.2&1.1.3-1.1.4:1;")
        assert len(device.map) == 4
        reply = await say("ENT-CRS-BULK::1.1.5>1.1.5&1.1.1>1.1.6:2;")
        assert "M  2 PRTL" in reply
        assert "1 connections failed: 1.1.1>1.1.6: Invalid Connection" in reply
        assert "M  3 DENY" in await say("DLT-CRS-BULK::1.1.8>1.1.8&1.1.3>1.1.4:3;")
        assert "COMPLD" in await say("DLT-CRS-BULK::1.1.3-1.1.4&1.1.2>1.1.2&1.1.5>1.1.5:4;")
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
        assert '"1.2.2:WX,TRANSIT,TRANSIT:INAS=IS,INOS=OOS,INOC=FAIL,INRS=NPR,' in ports


COMMANDS = [
    b"ACT-USER::admin:1::pw;", b"RTRV-CRS:::2::ALL;", b"ENT-CRS::1.1.2,1.1.3:3::,2WAY,a b,,;",
    b"ACT-CRS::1.1.2,1.1.3:4::1.1.2-1.1.3;", b"DLT-CRS-BULK::1.1.2-1.1.3&&:5;", b"RTRV-PORT::0;",
    b"ENT-CRS-BULK::1.1.4>1.1.4&x&1.1:6;", b"RTRV-PORT-SUM::,:7;", b"CANC-CRS::::;", b"CANC-USER;",
]  # fmt: skip


async def test_whatever_clients_send_the_device_goes_on() -> None:
    async with conversation("calient-tl1", 320) as (say, device):
        troubles: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: troubles.append(context)
        )
        protocol = CalientTl1Server(device)
        server = await asyncio.start_server(protocol.serve, "127.0.0.1", 0)
        rng = random.Random(2)
        for _ in range(300):
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            pieces = [rng.choice(COMMANDS) for _ in range(rng.randrange(6))]
            pieces += [rng.randbytes(rng.randrange(30)) for _ in range(3)]
            rng.shuffle(pieces)
            writer.write(b"".join([COMMANDS[0], *pieces, rng.choice([b"", b'"', b":" * 70_000])]))
            writer.close() if rng.random() < 0.5 else writer.transport.abort()
        async with asyncio.timeout(20):
            while protocol.writers:
                assert "COMPLD" in await say("RTRV-HDR:::2;")
        assert "COMPLD" in await say("RTRV-CRS:::2::ALL;")
        assert troubles == []
        server.close()
