"""The emulated OpenFlow switch, byte by byte: the test is its controller."""

import asyncio
import struct
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchlight.emulation.optical.device import EmulatedOcs
from patchlight.emulation.optical.protocols import openflow_wire as wire
from patchlight.testbed.lab.model import CircuitSwitch
from patchlight.testbed.lab.portmap import CrossConnect, PortMap
from tests.support.protocol_session import serving
from tests.support.waiting import PATIENCE_S

SWITCH = CircuitSwitch(
    "ocs1",
    "openflow",
    "",
    8,
    0.02,
    initial=PortMap.of([(1, 7)]),
    datapath_id=0x51,
)


class Controller:
    """One connection to the device, as a controller has it."""

    def __init__(
        self,
        device: EmulatedOcs,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.device = device
        self._reader = reader
        self._writer = writer
        self._xid = 0

    async def receive(self) -> wire.OpenFlowMessage:
        async with asyncio.timeout(PATIENCE_S):
            head = await self._reader.readexactly(8)
            _, kind, length, xid = wire.HEADER.unpack(head)
            return wire.OpenFlowMessage(
                kind, xid, head + await self._reader.readexactly(length - 8)
            )

    def send(self, kind: int, body: bytes = b"") -> int:
        self._xid += 1
        length = wire.HEADER.size + len(body)
        self._writer.write(
            wire.HEADER.pack(wire.VERSION, kind, length, self._xid) + body
        )
        return self._xid

    async def ask(self, kind: int, body: bytes = b"") -> wire.OpenFlowMessage:
        xid = self.send(kind, body)
        answer = await self.receive()
        assert answer.xid == xid
        return answer

    async def barrier(self) -> list[tuple[int, int, int]]:
        """The errors until the barrier is answered: request, type, code."""
        xid = self.send(wire.Kind.BARRIER_REQUEST)
        errors = []
        while (answer := await self.receive()).xid != xid:
            assert answer.kind == wire.Kind.ERROR
            errors.append(
                (answer.xid, *struct.unpack_from("!HH", answer.body))
            )
        assert answer.kind == wire.Kind.BARRIER_REPLY
        return errors

    async def flows(self) -> set[tuple[int, int]]:
        """In-port and output of each entry."""
        request = struct.pack("!HH4x", wire.MultipartKind.FLOWS, 0)
        request += struct.pack(
            "!B3xII4xQQ", 0xFF, wire.ANY_PORT, wire.ANY_PORT, 0, 0
        )
        answer = await self.ask(
            wire.Kind.MULTIPART_REQUEST, request + match(None)
        )
        body = answer.body[8:]
        entries = set()
        while body:
            (length,) = struct.unpack_from("!H", body)
            (inp,) = struct.unpack_from("!I", body, 48 + 8)
            (out,) = struct.unpack_from("!I", body, 48 + 16 + 8 + 4)
            entries.add((inp, out))
            body = body[length:]
        return entries


def match(inp: int | None) -> bytes:
    if inp is None:
        return struct.pack("!HH4x", 1, 4)
    return struct.pack("!HHII4x", 1, 12, 0x80000004, inp)


def flow_mod(
    inp: int | None, *outs: int, command: int = 0, table: int = 0, priority: int = 100,
    idle: int = 0, cookie: int = 0, mask: int = 0, out_port: int = wire.ANY_PORT,
) -> bytes:  # fmt: skip
    actions = b"".join(struct.pack("!HHIH6x", 0, 16, out, 0) for out in outs)
    apply = (
        struct.pack("!HH4x", 4, 8 + len(actions)) + actions if outs else b""
    )
    fields = (
        cookie,
        mask,
        table,
        command,
        idle,
        0,
        priority,
        0xFFFFFFFF,
        out_port,
    )
    return (
        struct.pack("!QQBBHHHIIIH2x", *fields, wire.ANY_PORT, 0)
        + match(inp)
        + apply
    )


@pytest.fixture
async def controller() -> AsyncIterator[Controller]:
    async with serving(SWITCH) as (_, device, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        controller = Controller(device, reader, writer)
        assert (await controller.receive()).kind == wire.Kind.HELLO
        yield controller
        writer.close()


async def test_it_says_hello_what_it_is_and_that_it_lives(
    controller: Controller,
) -> None:
    controller.send(wire.Kind.HELLO)
    features = await controller.ask(wire.Kind.FEATURES_REQUEST)
    assert struct.unpack_from("!Q", features.body) == (0x51,)
    assert (
        await controller.ask(wire.Kind.ECHO_REQUEST, b"alive")
    ).body == b"alive"
    ports = await controller.ask(
        wire.Kind.MULTIPART_REQUEST, struct.pack("!HH4x", 13, 0)
    )
    assert len(ports.body) == 8 + 8 * 64
    description = await controller.ask(
        wire.Kind.MULTIPART_REQUEST, struct.pack("!HH4x", 0, 0)
    )
    assert b"emulated OCS of 8 ports" in description.body
    assert await controller.flows() == {(1, 7)}
    for kind, body in (
        (13, b"\0" * 24),
        (4, b"\0" * 8),
        (18, struct.pack("!HH4x", 3, 0)),
    ):
        assert (await controller.ask(kind, body)).kind == wire.Kind.ERROR


async def test_a_barrier_is_answered_when_the_light_is_there(
    controller: Controller,
) -> None:
    controller.send(wire.Kind.FLOW_MOD, flow_mod(3, 5))
    controller.send(wire.Kind.FLOW_MOD, flow_mod(4, wire.IN_PORT))
    assert CrossConnect(3, 5) not in controller.device.map
    assert await controller.barrier() == []
    assert controller.device.map == PortMap.of([(1, 7), (3, 5), (4, 4)])
    assert await controller.flows() == {(1, 7), (3, 5), (4, wire.IN_PORT)}
    # The same match and priority: the new entry takes the old one's place.
    controller.send(wire.Kind.FLOW_MOD, flow_mod(3, 6))
    assert await controller.barrier() == []
    assert controller.device.map == PortMap.of([(1, 7), (3, 6), (4, 4)])


REFUSED = {
    "two outputs": (flow_mod(3, 5, 6), (2, 7)),
    "an output in use": (flow_mod(3, 7), (5, 3)),
    "an input in use": (flow_mod(1, 5, priority=7), (5, 3)),
    "an output that is not there": (flow_mod(3, 9), (2, 4)),
    "an input that is not there": (flow_mod(9, 3), (4, 7)),
    "its own input by number": (flow_mod(3, 3), (2, 4)),
    "any input": (flow_mod(None, 3), (4, 6)),
    "another table": (flow_mod(3, 5, table=1), (5, 2)),
    "a timeout": (flow_mod(3, 5, idle=3), (5, 5)),
    "nothing to do": (flow_mod(3), (1, 6)),
    "a change of an entry": (flow_mod(3, 5, command=1), (5, 6)),
    "another command": (flow_mod(3, 5, command=9), (5, 6)),
    "a locked port": (flow_mod(8, 5), (5, 4)),
    "a stuck mirror": (flow_mod(6, 5), (5, 0)),
    "half a message": (flow_mod(3, 5)[:30], (1, 6)),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_what_it_cannot_do_is_an_error_and_changes_nothing(
    controller: Controller, what: str
) -> None:
    body, error = REFUSED[what]
    controller.device.faults.refuse_ports = [8]
    controller.device.faults.fail_ports = [6]
    controller.device.apply_faults()
    xid = controller.send(wire.Kind.FLOW_MOD, body)
    assert await controller.barrier() == [(xid, *error)]
    assert await controller.flows() == {(1, 7)}


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (flow_mod(None, command=3), set()),
        (flow_mod(3, command=3), {(1, 7), (4, 6)}),
        (flow_mod(3, command=4), {(1, 7), (4, 6)}),
        (flow_mod(3, command=4, priority=7), {(1, 7), (3, 5), (4, 6)}),
        (
            flow_mod(None, command=3, cookie=0x200, mask=0xF00),
            {(1, 7), (3, 5)},
        ),
        (flow_mod(None, command=3, out_port=5), {(1, 7), (4, 6)}),
        (flow_mod(None, command=3, table=0xFF), set()),
        (flow_mod(2, command=3), {(1, 7), (3, 5), (4, 6)}),
    ],
)
async def test_it_removes_what_is_meant_and_no_other(
    controller: Controller, body: bytes, left: set[tuple[int, int]]
) -> None:
    controller.send(wire.Kind.FLOW_MOD, flow_mod(3, 5, cookie=0x100))
    controller.send(wire.Kind.FLOW_MOD, flow_mod(4, 6, cookie=0x201))
    assert await controller.barrier() == []
    controller.send(wire.Kind.FLOW_MOD, body)
    assert await controller.barrier() == []
    assert await controller.flows() == left


@given(st.binary(max_size=300), st.integers(min_value=0, max_value=30))
def test_no_body_is_too_strange_for_it(body: bytes, kind: int) -> None:
    for read in (wire.read_flow_mod, wire.asked_flows, wire.multipart_of):
        try:
            read(body)
        except wire.OpenFlowError:
            continue
    buffer = bytearray(wire.HEADER.pack(4, kind, 8 + len(body), 1) + body)
    assert [m.body for m in wire.messages(buffer)] == [body]
    assert not buffer


def test_a_long_table_comes_in_parts_that_fit() -> None:
    flows = [wire.Flow(n, n + 1, 0, 100).to_bytes(1.5) for n in range(1, 1201)]
    data = bytearray(wire.multipart(wire.MultipartKind.FLOWS, 7, flows))
    parts = list(wire.messages(data))
    assert len(parts) == 3
    assert [struct.unpack_from("!HH", part.body)[1] for part in parts] == [
        1,
        1,
        0,
    ]
    assert b"".join(part.body[8:] for part in parts) == b"".join(flows)
