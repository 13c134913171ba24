"""Sends rtnetlink requests in batches: one ``sendmsg`` carries many requests, and the kernel
reports failures and the last one, so a batch costs two system calls."""

import errno
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple, Self

from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.linux import namespaces

F_REQUEST = 0x1
F_ACK = 0x4
F_DUMP = 0x300
F_CREATE = 0x400
F_EXCL = 0x200
F_REPLACE = 0x100
_NOOP = 1
_ERROR = 2
_DONE = 3
_SOL_NETLINK = 270
_CAP_ACK = 10
_EXT_ACK = 11
_F_ACK_TLVS = 0x200
_ATTR_MESSAGE = 1
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
# The kernel takes far more at once, but handles all before it reports failures.
_BATCH = 128


class KernelRefused(PatchlightError):
    """The kernel refused to create, change or show a network object; ``code`` is its errno."""

    def __init__(
        self,
        doing: str,
        code: int,
        explanation: str = "",
    ) -> None:
        text = os.strerror(code) + (f" ({explanation})" if explanation else "")
        super().__init__(
            f"{doing}: the kernel answered: {text}", hint=_HINTS.get(code)
        )
        self.code = code


_HINTS = {
    errno.EPERM: "This needs root: run the command with sudo.",
    errno.EEXIST: "An object of that name already exists; remove it, or use another name.",
}


class Request(NamedTuple):
    """One message, and its purpose for error messages."""

    type: int
    flags: int
    body: bytes
    doing: str


class Netlink:
    """An rtnetlink socket of a namespace (path or descriptor). Raises ``KernelRefused``."""

    def __init__(
        self, namespace: Path | str | int | None = None, *, family: int = 0
    ) -> None:
        if namespace is None:
            self._socket = self._open(family)
        else:
            with namespaces.entered(namespace):
                self._socket = self._open(family)
        self._sequence = 0

    @staticmethod
    def _open(family: int) -> socket.socket:
        netlink = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, family
        )
        netlink.setsockopt(_SOL_NETLINK, _CAP_ACK, 1)
        netlink.setsockopt(_SOL_NETLINK, _EXT_ACK, 1)
        netlink.bind((0, 0))
        netlink.settimeout(30)
        return netlink

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket; an open socket keeps its namespace alive."""
        self._socket.close()

    def run(self, requests: Sequence[Request]) -> None:
        """Send all requests in order; raise for the first failure. Others were still tried."""
        for start in range(0, len(requests), _BATCH):
            self._run_batch(requests[start : start + _BATCH])

    def _run_batch(self, batch: Sequence[Request]) -> None:
        first = self._sequence + 1
        self._sequence += len(batch)
        parts = []
        for sequence, request in enumerate(batch, first):
            flags = (
                request.flags
                | F_REQUEST
                | (F_ACK if sequence == self._sequence else 0)
            )
            parts.append(
                _pack(
                    request.type,
                    flags,
                    sequence,
                    request.body,
                )
            )
        self._socket.send(b"".join(parts))
        failure: KernelRefused | None = None
        for kind, flags, sequence, payload in self._answers(
            first, batch[-1].doing
        ):
            if kind == _ERROR:
                code, explanation = _error(flags, payload)
                if code and failure is None:
                    failure = KernelRefused(
                        batch[sequence - first].doing, code, explanation
                    )
                if sequence == self._sequence:
                    break
        if failure:
            raise failure

    def ask(self, request: Request) -> list[tuple[int, bytes]]:
        """The kernel's answers to one query, as (message type, body); also for dumps."""
        self._sequence += 1
        dump = request.flags & F_DUMP == F_DUMP
        flags = request.flags | F_REQUEST | (0 if dump else F_ACK)
        self._socket.send(
            _pack(
                request.type,
                flags,
                self._sequence,
                request.body,
            )
        )
        answers: list[tuple[int, bytes]] = []
        for kind, flags, _, payload in self._answers(
            self._sequence, request.doing
        ):
            if kind in (_DONE, _ERROR):
                code, explanation = (
                    _error(flags, payload) if kind == _ERROR else (0, "")
                )
                if code:
                    raise KernelRefused(request.doing, code, explanation)
                break
            answers.append((kind, payload))
        return answers

    def _answers(
        self, first: int, doing: str
    ) -> Iterator[tuple[int, int, int, bytes]]:
        """The kernel's answers to the requests numbered ``first`` and above, in order."""
        while True:
            try:
                data = self._socket.recv(1 << 18)
            except OSError as error:
                timed_out = isinstance(error, TimeoutError)
                code = (
                    errno.ETIMEDOUT if timed_out else error.errno or errno.EIO
                )
                raise KernelRefused(doing, code) from error
            for message in _messages(data):
                if first <= message[2] <= self._sequence:
                    yield message


def _pack(
    kind: int,
    flags: int,
    sequence: int,
    body: bytes,
) -> bytes:
    padding = -len(body) % 4
    header = _HEADER.pack(
        _HEADER.size + len(body),
        kind,
        flags,
        sequence,
        0,
    )
    return header + body + b"\0" * padding


def _messages(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, flags, sequence, _ = _HEADER.unpack_from(data, offset)
        if length < _HEADER.size:
            return
        if kind != _NOOP:
            yield (
                kind,
                flags,
                sequence,
                data[offset + _HEADER.size : offset + length],
            )
        offset += (length + 3) & ~3


def _error(flags: int, payload: bytes) -> tuple[int, str]:
    (code,) = struct.unpack_from("=i", payload)
    explanation = ""
    if flags & _F_ACK_TLVS:
        # With CAP_ACK only the failed request's header precedes the attributes.
        text = dict(attributes(payload[4 + _HEADER.size :])).get(
            _ATTR_MESSAGE, b""
        )
        explanation = text.rstrip(b"\0").decode(errors="replace")
    return -code, explanation


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The attributes in ``data``, as (type, payload)."""
    offset = 0
    while offset + 4 <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < 4:
            return
        yield kind & 0x3FFF, data[offset + 4 : offset + length]
        offset += (length + 3) & ~3


def attribute(kind: int, payload: bytes | Iterable[bytes]) -> bytes:
    """One attribute; several payloads are the attributes nested in it."""
    inner = payload if isinstance(payload, bytes) else b"".join(payload)
    header = _ATTRIBUTE.pack(4 + len(inner), kind)
    return header + inner + b"\0" * (-len(inner) % 4)


_NEWNEIGH = 28
_NDMSG = struct.Struct("=BxxxiHBB")
_PERMANENT = 0x80
_NDA_DST = 1
_NDA_LLADDR = 2


def set_neighbours(
    netlink: Netlink,
    index: int,
    name: str,
    neighbours: Iterable[tuple[str, str]],
) -> None:
    """Give an interface these static neighbours, (IP address, MAC), or raise."""
    family = {4: socket.AF_INET, 6: socket.AF_INET6}
    netlink.run(
        [
            Request(
                _NEWNEIGH,
                F_CREATE | F_REPLACE,
                _NDMSG.pack(
                    family[ip_address(address).version],
                    index,
                    _PERMANENT,
                    0,
                    0,
                )
                + attribute(_NDA_DST, ip_address(address).packed)
                + attribute(_NDA_LLADDR, bytes.fromhex(mac.replace(":", ""))),
                f"adding {address} as a neighbour of {name}",
            )
            for address, mac in neighbours
        ]
    )
