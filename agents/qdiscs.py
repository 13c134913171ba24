"""The rate limit of a NIC as the kernel describes it, read and set without a look inside.

A device that changes its network namespace loses its queueing discipline. A token bucket
(``tbf``) is carried over by handing the kernel's own description of it back to the kernel:
exact at any rate, also above 34 Gb/s, where it has more fields.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from patchlight.agents.errors import NicError

_ERROR, _DONE = 2, 3
_NEWQDISC, _GETQDISC = 36, 38
_REQUEST, _ACK, _DUMP, _CREATE, _REPLACE = 0x1, 0x4, 0x300, 0x400, 0x100
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_TCMSG = struct.Struct("=BxxxiIII")  # family, interface, handle, parent, info
_ATTRIBUTE = struct.Struct("=HH")
_TCA_KIND, _TCA_OPTIONS = 1, 2
_NESTED = 0x8000
_ROOT = 0xFFFFFFFF
_HANDLE = 0x10000
# Qdiscs the kernel chooses by itself: it will choose them again.
_KERNEL_QDISCS = {"mq", "fq", "fq_codel", "pfifo", "pfifo_fast", "noqueue", "noop"}


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """A ``tbf`` at the root; ``options`` are the kernel's own attributes of it, in hex."""

    options: str


def read_token_bucket(interface: str, index: int) -> TokenBucket | None:
    """The root token bucket of an interface, if it has one.

    ``NicError`` for a queueing discipline that would be lost when the NIC moves.
    """
    found = None
    tcmsg = _TCMSG.pack(0, index, 0, 0, 0)
    for body in _ask(_GETQDISC, _DUMP, tcmsg, f"reading the queues of {interface}"):
        _, at, handle, parent, _ = _TCMSG.unpack_from(body)
        attributes = dict(_attributes(body[_TCMSG.size :]))
        kind = attributes[_TCA_KIND].rstrip(b"\0").decode()
        if at != index or handle == 0 or kind in _KERNEL_QDISCS:
            continue
        if kind != "tbf" or parent != _ROOT:
            raise NicError(
                f"{interface} has a {kind} queueing discipline, which would be lost when the "
                f"NIC moves to a worker",
                hint=f"only a tbf at the root can be carried over: tc qdisc show dev {interface}",
            )
        found = TokenBucket(attributes[_TCA_OPTIONS].hex())
    return found


def set_token_bucket(interface: str, index: int, wanted: TokenBucket) -> None:
    """Give an interface this token bucket; ``NicError`` if it has another one afterwards."""
    if read_token_bucket(interface, index) == wanted:
        return
    body = (
        _TCMSG.pack(0, index, _HANDLE, _ROOT, 0)
        + _attribute(_TCA_KIND, b"tbf\0")
        + _attribute(_TCA_OPTIONS | _NESTED, bytes.fromhex(wanted.options))
    )
    doing = f"limiting the rate of {interface}"
    list(_ask(_NEWQDISC, _CREATE | _REPLACE | _ACK, body, doing))
    applied = read_token_bucket(interface, index)
    if applied != wanted:
        raise NicError(f"{doing}: asked for {wanted}, the kernel has {applied}")


def _ask(kind: int, flags: int, body: bytes, doing: str) -> Iterator[bytes]:
    """What this thread's network namespace answers to one request: the messages' bodies."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        netlink.bind((0, 0))
        netlink.send(_HEADER.pack(_HEADER.size + len(body), kind, flags | _REQUEST, 1, 0) + body)
        while True:
            data = netlink.recv(1 << 17)
            while data:
                length, answer, _, _, _ = _HEADER.unpack_from(data)
                content, data = data[_HEADER.size : length], data[(length + 3) & ~3 :]
                if answer == _ERROR:
                    (code,) = struct.unpack_from("=i", content)
                    if code:
                        raise NicError(f"{doing}: {os.strerror(-code)}")
                    return
                if answer == _DONE:
                    return
                yield content


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        yield kind & ~_NESTED, data[_ATTRIBUTE.size : length]
        data = data[(length + 3) & ~3 :]


def _attribute(kind: int, value: bytes) -> bytes:
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + bytes(-length % 4)
