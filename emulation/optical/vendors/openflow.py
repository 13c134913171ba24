"""Emulates an OpenFlow 1.3 switch whose cross-connects are flow entries.

Unlike the other devices it connects to its controller, and retries. An entry connects one port to
another; a barrier is answered when the mirrors rest. OpenFlow has no users and no messages: a
refusal is an error's type and code.
"""

import asyncio
import contextlib
import re
import time

from patchlight.controller.packet_switches.openflow.flowtable import (
    FlowEntry,
    Match,
)
from patchlight.emulation.optical.device import EmulatedOcs
from patchlight.emulation.optical.matrices import (
    Phase,
    Reason,
    RequestRefused,
    SwitchedCircuit,
)
from patchlight.emulation.optical.protocols import openflow_wire as wire
from patchlight.emulation.optical.protocols.server import ProtocolServer
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.portmap import CrossConnect

_PRIORITY = 100
_FAULTS = {
    Reason.NO_PORT: wire.BAD_OUT_PORT,
    Reason.BUSY: wire.OVERLAP,
    Reason.EXISTS: wire.OVERLAP,
    Reason.LOCKED: wire.NO_PERMISSION,
}


class OpenFlowServer(ProtocolServer):
    """Serves one device, which has no users.

    Only the controller that it connects to can read its map, so ``by_hand`` is empty.
    """

    dials = True
    datapath_id = 0x51

    _device: EmulatedOcs

    def __init__(self, device: EmulatedOcs) -> None:
        super().__init__(device)
        self._features = wire.features(
            device.switch.datapath_id or self.datapath_id
        )
        self._since = time.monotonic()
        # Requests since the last barrier: their mirrors may still fail.
        self._pending: list[tuple[wire.OpenFlowMessage, SwitchedCircuit]] = []

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        buffer = bytearray()
        writer.write(wire.message(wire.Kind.HELLO, 0))
        with contextlib.suppress(wire.OpenFlowError):
            while data := await reader.read(65536):
                buffer += data
                for message in wire.messages(buffer):
                    await self._do(message, writer)
                await writer.drain()

    def report(self, text: str) -> None:
        """Report the first port named in it: OpenFlow has messages about ports only."""
        number = re.search(r"\d+", text)
        if (
            number is None
            or not 1 <= int(number[0]) <= self._device.switch.ports
        ):
            raise BadInput(
                "OpenFlow has alarms of ports only, like 'port 3 is dark'"
            )
        self._say(wire.Port(int(number[0]), f"p{number[0]}", dark=True))

    def _say(self, port: wire.Port) -> None:
        for writer in tuple(self.writers):
            writer.write(wire.port_modified(port))

    async def _do(
        self, message: wire.OpenFlowMessage, writer: asyncio.StreamWriter
    ) -> None:
        faults = self._device.faults
        for number in range(faults.take_flood()):
            self._say(
                wire.Port(
                    number % self._device.switch.ports + 1, "flood", dark=True
                )
            )
        try:
            answer = await self._answer(message)
        except wire.OpenFlowError as wrong:
            answer = wire.error(wrong.fault, message)
        if answer:
            # Faults do not affect the messages that keep the connection.
            keeping = message.kind in (
                wire.Kind.ECHO_REQUEST,
                wire.Kind.FEATURES_REQUEST,
            )
            writer.write(answer if keeping else faults.spoilt(answer))

    async def _answer(self, message: wire.OpenFlowMessage) -> bytes:
        match message.kind:
            case wire.Kind.ECHO_REQUEST:
                return wire.message(
                    wire.Kind.ECHO_REPLY, message.xid, message.body
                )
            case wire.Kind.FEATURES_REQUEST:
                return wire.message(
                    wire.Kind.FEATURES_REPLY, message.xid, self._features
                )
            case wire.Kind.GET_CONFIG_REQUEST:
                return wire.message(
                    wire.Kind.GET_CONFIG_REPLY, message.xid, b"\0\0\xff\xff"
                )
            case wire.Kind.FLOW_MOD:
                return await self._flow_mod(message)
            case wire.Kind.MULTIPART_REQUEST:
                await self._device.settle()
                return await self._multipart(message)
            case wire.Kind.BARRIER_REQUEST:
                return await self._barrier(message)
            case (
                wire.Kind.HELLO
                | wire.Kind.ERROR
                | wire.Kind.ECHO_REPLY
                | wire.Kind.SET_CONFIG
            ):
                return b""
            case wire.Kind.EXPERIMENTER:
                raise wire.OpenFlowError(wire.BAD_EXPERIMENTER)
        raise wire.OpenFlowError(wire.BAD_TYPE)

    async def _multipart(self, message: wire.OpenFlowMessage) -> bytes:
        part, body = wire.multipart_of(message.body)
        if part == wire.MultipartKind.DESCRIPTION:
            name = self._device.switch.name
            model = f"emulated OCS of {self._device.switch.ports} ports"
            entries = [
                wire.description(
                    "Patchlight",
                    model,
                    "1.3-emulated",
                    f"EMU-{name}",
                    name,
                )
            ]
        elif part == wire.MultipartKind.PORT_DESCRIPTIONS:
            entries = [port.to_bytes() for port in await self._ports()]
        elif part == wire.MultipartKind.FLOWS:
            selection = wire.asked_flows(body)
            age_s = time.monotonic() - self._since
            flows = map(self._flow, self._device.matrix)
            entries = [
                flow.to_bytes(age_s) for flow in flows if selection.takes(flow)
            ]
        else:
            raise wire.OpenFlowError(wire.BAD_MULTIPART)
        return wire.multipart(part, message.xid, entries)

    async def _ports(self) -> list[wire.Port]:
        numbers = range(1, self._device.switch.ports + 1)
        light = await self._device.power(numbers)
        matrix = self._device.matrix
        return [
            wire.Port(
                n,
                f"p{n}",
                n in matrix.locked,
                n in matrix.failed,
                light[n][0] is None,
            )
            for n in numbers
        ]

    async def _barrier(self, message: wire.OpenFlowMessage) -> bytes:
        await self._device.come_to_rest()
        pending = self._pending
        self._pending = []
        answer = b""
        for cause, circuit in pending:
            if circuit.phase is Phase.FAILED:
                self._device.remove(circuit)
                answer += wire.error(wire.FLOW_MOD_FAILED, cause)
        await self._device.settle()
        return answer + wire.message(wire.Kind.BARRIER_REPLY, message.xid)

    async def _flow_mod(self, message: wire.OpenFlowMessage) -> bytes:
        faults = self._device.faults
        matrix = self._device.matrix
        async with faults.around_command(changes=True) as refused:
            if refused or faults.read_only:
                raise wire.OpenFlowError(wire.NO_PERMISSION)
            await self._device.settle()
            selection, flow = wire.read_flow_mod(message.body)
            try:
                if flow is None:
                    self._device.remove_all(
                        c for c in matrix if selection.takes(self._flow(c))
                    )
                else:
                    self._add(message, flow, selection)
            except RequestRefused as refusal:
                at_input = (
                    refusal.reason is Reason.NO_PORT
                    and flow
                    and refusal.port == flow.inp
                )
                fault = _FAULTS.get(refusal.reason, wire.FLOW_MOD_FAILED)
                raise wire.OpenFlowError(
                    wire.BAD_MATCH_VALUE if at_input else fault
                ) from refusal
            await self._device.settle()
        return b""

    def _add(
        self,
        message: wire.OpenFlowMessage,
        flow: wire.Flow,
        same: wire.Selection,
    ) -> None:
        there = self._device.matrix.at("in", flow.inp)
        if there is not None and same.takes(self._flow(there)):
            if self._flow(there) == flow:
                return
            # An entry replaces one with the same match and priority.
            busy = self._device.matrix.at("out", flow.out)
            if busy is not None and busy is not there:
                raise RequestRefused(
                    Reason.BUSY,
                    port=flow.out,
                    circuit=busy,
                )
            self._device.remove(there)
        circuit = self._device.make(
            (CrossConnect(flow.inp, flow.out),),
            f"{flow.cookie:#x}",
            str(flow.priority),
        )
        self._pending.append((message, circuit))

    def _flow(self, circuit: SwitchedCircuit) -> wire.Flow:
        """A circuit as an entry. One made elsewhere looks as if Patchlight had made it."""
        c = circuit.directions[0]
        if circuit.name:
            return wire.Flow(
                c.inp,
                c.out,
                int(circuit.name, 16),
                int(circuit.group),
            )
        back = wire.IN_PORT if c.inp == c.out else c.out
        ours = FlowEntry.ours(
            Match(in_port=c.inp), (back,), priority=_PRIORITY
        )
        return wire.Flow(
            c.inp,
            c.out,
            ours.cookie,
            _PRIORITY,
        )
