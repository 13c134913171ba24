"""Encodes and decodes OpenFlow 1.3 messages for a switch of cross-connects.

Numbers and layouts are those of the OpenFlow Switch Specification 1.3.5, chapter 7. It supports
only what such a switch has: matches on the input port, and outputs to ports.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

VERSION = 4
HEADER = struct.Struct("!BBHI")

ANY_PORT = 0xFFFFFFFF
IN_PORT = 0xFFFFFFF8
ALL_TABLES = 0xFF
UNCOUNTED = (1 << 64) - 1
"""The value of a counter that is not kept."""

_FLOW_MOD = struct.Struct("!QQBBHHHIIIH2x")
_FLOW_STATS_REQUEST = struct.Struct("!B3xII4xQQ")
_FLOW_STATS = struct.Struct("!HBxIIHHHH4xQQQ")
_MULTIPART = struct.Struct("!HH4x")
_PORT = struct.Struct("!I4x6s2x16s8I")
_FEATURES = struct.Struct("!QIBB2xII")
_DESCRIPTION = struct.Struct("!256s256s256s32s256s")
_MATCH = struct.Struct("!HH")
_OXM_IN_PORT = 0x80000004
_MATCH_IN_PORT = struct.Struct("!HHII4x")
_IN_PORT = struct.Struct("!II")
_ACTIONS = struct.Struct("!HH4x")
_OUTPUT = struct.Struct("!HHIH6x")
_APPLY_ACTIONS = 4
_TO_PORT = 0
_MORE = 1
_ENTRIES_IN_A_PART = 500
_ERROR_BYTES = 64


class Kind(IntEnum):
    """Types of messages."""

    HELLO = 0
    ERROR = 1
    ECHO_REQUEST = 2
    ECHO_REPLY = 3
    EXPERIMENTER = 4
    FEATURES_REQUEST = 5
    FEATURES_REPLY = 6
    GET_CONFIG_REQUEST = 7
    GET_CONFIG_REPLY = 8
    SET_CONFIG = 9
    PORT_STATUS = 12
    FLOW_MOD = 14
    MULTIPART_REQUEST = 18
    MULTIPART_REPLY = 19
    BARRIER_REQUEST = 20
    BARRIER_REPLY = 21


class MultipartKind(IntEnum):
    """Types of multipart messages."""

    DESCRIPTION = 0
    FLOWS = 1
    PORT_DESCRIPTIONS = 13


class FlowModCommand(IntEnum):
    """The commands of a flow-mod."""

    ADD = 0
    MODIFY = 1
    MODIFY_STRICT = 2
    DELETE = 3
    DELETE_STRICT = 4


Fault = tuple[int, int]
"""An error's type and code."""

BAD_TYPE = (1, 1)
BAD_MULTIPART = (1, 2)
BAD_EXPERIMENTER = (1, 3)
BAD_LENGTH = (1, 6)
BAD_ACTION = (2, 0)
BAD_OUT_PORT = (2, 4)
TOO_MANY_ACTIONS = (2, 7)
UNSUPPORTED_INSTRUCTION = (3, 1)
BAD_MATCH_FIELD = (4, 6)
BAD_MATCH_VALUE = (4, 7)
FLOW_MOD_FAILED = (5, 0)
BAD_TABLE = (5, 2)
OVERLAP = (5, 3)
NO_PERMISSION = (5, 4)
BAD_TIMEOUT = (5, 5)
BAD_COMMAND = (5, 6)


class OpenFlowError(Exception):
    """A message that the switch refuses with this error."""

    def __init__(self, fault: Fault) -> None:
        super().__init__("type {}, code {}".format(*fault))
        self.fault = fault


@dataclass(frozen=True)
class OpenFlowMessage:
    """One whole message; ``raw`` is all of its bytes."""

    kind: int
    xid: int
    raw: bytes

    @property
    def body(self) -> bytes:
        """The bytes after the header."""
        return self.raw[HEADER.size :]


def messages(buffer: bytearray) -> Iterator[OpenFlowMessage]:
    """Remove the whole messages from ``buffer``. ``OpenFlowError`` for an impossible length."""
    while len(buffer) >= HEADER.size:
        _, kind, length, xid = HEADER.unpack_from(buffer)
        if length < HEADER.size:
            raise OpenFlowError(BAD_LENGTH)
        if len(buffer) < length:
            return
        raw = bytes(buffer[:length])
        del buffer[:length]
        yield OpenFlowMessage(kind, xid, raw)


def message(
    kind: Kind,
    xid: int,
    body: bytes = b"",
) -> bytes:
    """One message as bytes."""
    return (
        HEADER.pack(
            VERSION,
            kind,
            HEADER.size + len(body),
            xid,
        )
        + body
    )


def error(fault: Fault, about: OpenFlowMessage) -> bytes:
    """The error reply to a message, with the start of it."""
    body = struct.pack("!HH", *fault) + about.raw[:_ERROR_BYTES]
    return message(Kind.ERROR, about.xid, body)


def multipart(
    part: int,
    xid: int,
    bodies: Iterable[bytes],
) -> bytes:
    """A reply in as many parts as its entries need."""
    entries = list(bodies)
    reply = b""
    starts = range(0, max(len(entries), 1), _ENTRIES_IN_A_PART)
    for start in starts:
        body = _MULTIPART.pack(part, _MORE if start != starts[-1] else 0)
        body += b"".join(entries[start : start + _ENTRIES_IN_A_PART])
        reply += message(Kind.MULTIPART_REPLY, xid, body)
    return reply


def multipart_of(body: bytes) -> tuple[int, bytes]:
    """A multipart request's type and its own body."""
    return _unpack(_MULTIPART, body)[0], body[_MULTIPART.size :]


def features(datapath_id: int) -> bytes:
    """The body of a features reply: one table, no buffers, flow statistics."""
    return _FEATURES.pack(
        datapath_id,
        0,
        1,
        0,
        1,
        0,
    )


def description(
    vendor: str,
    hardware: str,
    software: str,
    serial: str,
    name: str,
) -> bytes:
    """The body of a description."""
    texts = (vendor, hardware, software, serial, name)
    return _DESCRIPTION.pack(*(text.encode() for text in texts))


@dataclass(frozen=True)
class Port:
    """A port description. ``down``: switched off. ``dark``: no signal arrives."""

    number: int
    name: str
    down: bool = False
    blocked: bool = False
    dark: bool = False

    def to_bytes(self) -> bytes:
        """Encoded as in a port description and a port status."""
        mac = struct.pack("!HI", 0x024F, self.number)
        live = not (self.dark or self.blocked or self.down)
        state = self.dark | self.blocked << 1 | live << 2
        name = self.name.encode()[:15]
        return _PORT.pack(
            self.number,
            mac,
            name,
            int(self.down),
            state,
            *[0] * 6,
        )


def port_modified(port: Port) -> bytes:
    """The message of a switch when a port changes."""
    return message(
        Kind.PORT_STATUS, 0, struct.pack("!B7x", 2) + port.to_bytes()
    )


@dataclass(frozen=True)
class Flow:
    """One entry of the table: from one port to another."""

    inp: int
    out: int
    cookie: int
    priority: int

    def to_bytes(self, age_s: float) -> bytes:
        """Encoded as in flow statistics."""
        match = _MATCH_IN_PORT.pack(
            1,
            12,
            _OXM_IN_PORT,
            self.inp,
        )
        output = IN_PORT if self.inp == self.out else self.out
        action = _OUTPUT.pack(
            _TO_PORT,
            _OUTPUT.size,
            output,
            0,
        )
        rest = (
            match
            + _ACTIONS.pack(_APPLY_ACTIONS, _ACTIONS.size + len(action))
            + action
        )
        head = _FLOW_STATS.pack(
            _FLOW_STATS.size + len(rest), 0, int(age_s), int(age_s % 1 * 1e9), self.priority,
            0, 0, 0, self.cookie, UNCOUNTED, UNCOUNTED,
        )  # fmt: skip
        return head + rest


@dataclass(frozen=True)
class Selection:
    """The selection of a request: entries with this cookie, input, output and priority."""

    cookie: int
    mask: int
    out: int
    inp: int | None
    priority: int | None = None

    def takes(self, flow: Flow) -> bool:
        """Whether it selects this entry."""
        return (
            flow.cookie & self.mask == self.cookie & self.mask
            and self.out in (ANY_PORT, flow.out)
            and self.inp in (None, flow.inp)
            and self.priority in (None, flow.priority)
        )


def asked_flows(body: bytes) -> Selection:
    """The selection of a request for flow statistics."""
    table, out, _group, cookie, mask = _unpack(_FLOW_STATS_REQUEST, body)
    inp, _ = _read_match(body[_FLOW_STATS_REQUEST.size :])
    # There is only one table.
    return Selection(
        cookie,
        mask,
        0 if table not in (0, ALL_TABLES) else out,
        inp,
    )


def read_flow_mod(body: bytes) -> tuple[Selection, Flow | None]:
    """A flow-mod's selection, and the entry to add (``None``: it deletes).

    ``OpenFlowError`` if it is not possible.
    """
    fields = _unpack(_FLOW_MOD, body)
    (
        cookie,
        mask,
        table,
        command,
        idle,
        hard,
        priority,
        _buffer,
        out,
        _group,
        _flags,
    ) = fields
    inp, rest = _read_match(body[_FLOW_MOD.size :])
    if command > FlowModCommand.DELETE_STRICT:
        raise OpenFlowError(BAD_COMMAND)
    if table != 0 and (command == FlowModCommand.ADD or table != ALL_TABLES):
        raise OpenFlowError(BAD_TABLE)
    if command in (FlowModCommand.DELETE, FlowModCommand.DELETE_STRICT):
        strict = priority if command == FlowModCommand.DELETE_STRICT else None
        return Selection(
            cookie,
            mask,
            out,
            inp,
            strict,
        ), None
    if command != FlowModCommand.ADD:
        raise OpenFlowError(BAD_COMMAND)
    if idle or hard:
        raise OpenFlowError(BAD_TIMEOUT)
    if inp is None:
        # An optical switch sees no headers: entries match by input port only.
        raise OpenFlowError(BAD_MATCH_FIELD)
    kind, length = _unpack(_ACTIONS, rest)
    if kind != _APPLY_ACTIONS or length != len(rest):
        raise OpenFlowError(UNSUPPORTED_INSTRUCTION)
    actions = rest[_ACTIONS.size :]
    if len(actions) > _OUTPUT.size:
        raise OpenFlowError(TOO_MANY_ACTIONS)
    action, _, target, _ = _unpack(_OUTPUT, actions)
    if action != _TO_PORT:
        raise OpenFlowError(BAD_ACTION)
    flow = Flow(
        inp,
        inp if target == IN_PORT else target,
        cookie,
        priority,
    )
    if target == inp:
        raise OpenFlowError(BAD_OUT_PORT)
    return Selection(
        0,
        0,
        ANY_PORT,
        inp,
        priority,
    ), flow


def _read_match(body: bytes) -> tuple[int | None, bytes]:
    _, length = _unpack(_MATCH, body)
    fields = body[_MATCH.size : length]
    rest = body[-(-length // 8) * 8 :]
    if not fields:
        return None, rest
    if len(fields) != _IN_PORT.size or not fields.startswith(
        struct.pack("!I", _OXM_IN_PORT)
    ):
        raise OpenFlowError(BAD_MATCH_FIELD)
    return _IN_PORT.unpack(fields)[1], rest


def _unpack(layout: struct.Struct, body: bytes) -> tuple[int, ...]:
    if len(body) < layout.size:
        raise OpenFlowError(BAD_LENGTH)
    return layout.unpack_from(body)
