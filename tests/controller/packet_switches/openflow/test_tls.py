"""OpenFlow over TLS: a switch gets in with its own certificate, and with nothing else."""

import asyncio
import ssl
import struct
from pathlib import Path

import pytest

from patchlight.controller.access.authority import Authority
from patchlight.controller.packet_switches.openflow.client import (
    Speaker,
    SpeakerFailed,
)
from patchlight.controller.packet_switches.openflow.flow_sync import FlowSync
from patchlight.controller.packet_switches.openflow.flowtable import (
    FlowTable,
    SpeakerOptions,
    SwitchTls,
)
from patchlight.controller.packet_switches.openflow.forwarding import (
    TABLE_MISS,
)
from tests.support.openflow_bench import OpenFlowBench, Recorder
from tests.support.waiting import eventually

LAB = "of"
SWITCHES = ("tor1", "tor2")
_FEATURES_REPLY = 6
_ECHO_REQUEST = 2
_ECHO_REPLY = 3
_MULTIPART_REQUEST = 18
_MULTIPART = 19


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of certificates for each who may come."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = Authority(LAB, folder / "ca")
    authority.for_controller(folder / "controller")
    for switch in SWITCHES:
        authority.for_switch(switch, folder / switch)
    authority.for_switches(folder / "all")
    authority.for_prometheus(folder / "prometheus")
    authority.for_agent("server1", folder / "server1")
    Authority(LAB, folder / "other-ca").for_switch("tor1", folder / "stranger")
    return folder


def client(folder: Path, authority: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority / "ca.pem")
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


async def be_a_switch(
    address: str, datapath_id: int, tls: ssl.SSLContext | None
) -> None:
    """Speak as much OpenFlow 1.3 as a switch without ports has to, until the other side ends it."""
    host, _, port = address.rpartition(":")
    name = f"controller.{LAB}" if tls else None
    try:
        reader, writer = await asyncio.open_connection(
            host, int(port), ssl=tls, server_hostname=name
        )
    except OSError:
        return
    features = struct.pack("!QIBBxxII", datapath_id, 0, 254, 0, 0, 0)

    def say(kind: int, xid: int, body: bytes = b"") -> None:
        writer.write(struct.pack("!BBHI", 4, kind, 8 + len(body), xid) + body)

    try:
        say(0, 1)
        say(_FEATURES_REPLY, 2, features)
        while True:
            _, kind, length, xid = struct.unpack(
                "!BBHI", await reader.readexactly(8)
            )
            body = await reader.readexactly(length - 8)
            if kind == _ECHO_REQUEST:
                say(_ECHO_REPLY, xid, body)
            elif kind == _MULTIPART_REQUEST:
                say(_MULTIPART, xid, body[:2] + bytes(6))
    except (OSError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def test_only_the_switch_itself_gets_in(
    engine: str, tmp_path: Path, certificates: Path
) -> None:
    tls = SwitchTls(certificates / "controller", LAB, SWITCHES)
    options = SpeakerOptions(
        tmp_path / "speaker.sock",
        (1, 2),
        "127.0.0.1:0",
        engine=engine,
        tls=tls,
    )
    speaker = Speaker(options)
    events = Recorder(speaker)
    async with speaker, asyncio.TaskGroup() as switches:
        address = (await speaker.request("hello"))["listen"]

        def come(datapath_id: int, folder: str | None) -> "asyncio.Task[None]":
            shown = (
                client(certificates / folder, certificates / "controller")
                if folder
                else None
            )
            return switches.create_task(
                be_a_switch(address, datapath_id, shown)
            )

        # Another switch's certificate, before that switch is there; it is not told anything.
        impostor = come(1, "tor2")
        refused = await events.wait("refused-switch", datapath_id=1)
        assert refused["why"] == "its certificate is for switch.tor2.of"
        one = come(1, "tor1")
        await events.wait("switch-up", datapath_id=1)
        two = come(2, "all")
        await events.wait("switch-up", datapath_id=2)
        # The same certificate is no way in while the first one answers.
        copy = come(1, "tor1")
        second = await events.wait("second-switch", datapath_id=1)
        await copy
        # Who reads metrics is of the same authority, and no switch.
        reader = come(2, "prometheus")
        refused = await events.wait("refused-switch", datapath_id=2)
        assert refused["why"] == "its certificate is for prometheus.of"
        # At the door, and told once a minute for each host.
        for wrong in (None, "stranger", "server1"):
            await come(1, wrong)
        assert [
            row["datapath_id"] for row in await speaker.request("switches")
        ] == [1, 2]
        ups = [
            (e["datapath_id"], e["address"]) for e in events.of("switch-up")
        ]
        assert [number for number, _ in ups] == [1, 2]
        assert second["address"] not in dict(ups).values()
        door = [
            e for e in events.of("refused-switch") if "datapath_id" not in e
        ]
        assert [e["why"] for e in door] == ["it does not use TLS"]
        # The speaker tells of all that once a second.
        after = len(events.events)
        told = await events.wait("traffic", after=after)
        assert told["refused"] == {"certificate": 2, "second": 1, "tls": 3}
        first, _ = told["switches"]
        assert (first["connections"], first["errors"], first["waiting"]) == (
            1,
            0,
            0,
        )
        # It was asked whether it is there when the second one came.
        assert first["echo_s"] > 0
        assert min(first["sent"], first["received"]) > 0
        for task in (impostor, one, two, reader):
            task.cancel()


async def test_without_a_good_certificate_the_speaker_does_not_start(
    tmp_path: Path, certificates: Path
) -> None:
    tls = SwitchTls(certificates / "tor1", LAB, SWITCHES)
    options = SpeakerOptions(
        tmp_path / "speaker.sock", (1, 2), "127.0.0.1:0", tls=tls
    )
    with pytest.raises(
        SpeakerFailed,
        match=r"is for switch\.tor1\.of: expected controller\.of",
    ):
        await Speaker(options).start()


@pytest.mark.root
@pytest.mark.ovs
async def test_open_vswitch_over_tls(
    bench: OpenFlowBench, certificates: Path
) -> None:
    tls = SwitchTls(certificates / "controller", LAB, SWITCHES)
    async with bench.speaker(1, 2, tls=tls) as (speaker, events):
        bench.bridge(2, certificates / "tor1")
        why = (await events.wait("refused-switch", datapath_id=2))["why"]
        assert why == "its certificate is for switch.tor1.of"
        name = bench.bridge(1, certificates / "tor1")
        await events.wait("switch-up", datapath_id=1)
        assert (
            await FlowSync(speaker).set_table(1, FlowTable.of([TABLE_MISS]))
        ).ok
        await eventually(lambda: bench.ovs.flows(name), "the table-miss entry")
        # Over TCP, and with the certificate of another authority, there is no way in.
        bench.bridge(2)
        refused = await events.wait(
            "refused-switch", why="it does not use TLS"
        )
        assert refused["address"].startswith("127.0.0.1:")
        assert not events.of("switch-up", datapath_id=2)
