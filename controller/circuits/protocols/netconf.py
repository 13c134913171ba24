"""Keeps a NETCONF session over SSH usable: queries, and edits of the running configuration.

The messages follow RFC 6241, their framing RFC 6242, notifications RFC 5277. For unanswered edits
see ``KeptSession``.
"""

import contextlib
import itertools
import logging
import re
import xml.etree.ElementTree as ET
from collections.abc import Awaitable, Sequence
from functools import partial
from operator import itemgetter

from patchlight.controller.circuits.contract import DeviceRefused, Severity
from patchlight.controller.circuits.dialect import Dialect, Session, shortened
from patchlight.controller.circuits.protocols import tcp
from patchlight.controller.circuits.protocols.session import DeviceSession
from patchlight.controller.circuits.protocols.ssh import connection_over

BASE = "urn:ietf:params:xml:ns:netconf:base:1.0"
_BASE_11 = "urn:ietf:params:netconf:base:1.1"
_NOTIFICATION = "urn:ietf:params:netconf:capability:notification:1.0"
_INTERLEAVE = "urn:ietf:params:netconf:capability:interleave:1.0"
_HELLO = (
    f'<hello xmlns="{BASE}"><capabilities><capability>urn:ietf:params:netconf:base:1.0'
    f"</capability><capability>{_BASE_11}</capability></capabilities></hello>"
)
_SUBSCRIBE = '<create-subscription xmlns="urn:ietf:params:xml:ns:netconf:notification:1.0"/>'
_END = b"]]>]]>"
_CHUNK = re.compile(rb"\n#(?:(?P<size>[1-9]\d{0,9})|#)\n")
_LONGEST_HEAD = len("\n#4294967295\n")
_LOOK_FOR_TAG = 1024  # characters, for a declaration and comments before it


class NetconfFramer:
    """Bytes in, messages out: each ends with ``]]>]]>``, or comes in chunks if ``chunked``.

    ``FramingError`` past ``limit`` bytes of one message.
    """

    def __init__(self, limit: int = tcp.BUFFER_LIMIT) -> None:
        self.chunked = False
        self._limit = limit
        self._buffer = bytearray()
        self._chunks = bytearray()
        self._searched = 0

    @property
    def buffered(self) -> int:
        """Bytes that are not complete yet."""
        return len(self._buffer) + len(self._chunks)

    def feed(self, data: bytes) -> list[str]:
        """Add bytes; returns the messages that they complete."""
        self._buffer += data
        messages = []
        while (message := self._next()) is not None:
            messages.append(message.decode("utf-8", "replace"))
        if (held := self.buffered) > self._limit:
            self._buffer.clear()
            self._chunks.clear()
            raise tcp.FramingError(
                f"{held} bytes came without the end of a message"
            )
        return messages

    def take_telnet_replies(self) -> bytes:
        """None: NETCONF is not telnet."""
        return b""

    def _next(self) -> bytes | None:
        if self.chunked:
            return self._next_of_chunks()
        at = self._buffer.find(_END, self._searched)
        if at < 0:
            self._searched = max(0, len(self._buffer) - len(_END))
            return None
        message = bytes(self._buffer[:at])
        del self._buffer[: at + len(_END)]
        self._searched = 0
        return message

    def _next_of_chunks(self) -> bytes | None:
        while self._buffer:
            head = _CHUNK.match(self._buffer)
            if head is None:
                if len(self._buffer) < _LONGEST_HEAD:
                    return None
                # Whoever reads it finds that it is not XML.
                return self._taken(len(self._buffer))
            if head["size"] is None:
                del self._buffer[: head.end()]
                return self._taken(0)
            end = head.end() + int(head["size"])
            if len(self._buffer) < end:
                return None
            self._chunks += self._buffer[head.end() : end]
            del self._buffer[:end]
        return None

    def _taken(self, more: int) -> bytes:
        """The chunks so far, and that many bytes after them."""
        message = bytes(self._chunks + self._buffer[:more])
        self._chunks.clear()
        del self._buffer[:more]
        return message


class NetconfClient(DeviceSession[str, Dialect]):
    """One session with one device. All methods belong to one event loop."""

    protocol = "NETCONF"
    log = logging.getLogger("patchlight.netconf")

    def __init__(self, session: Session, dialect: Dialect) -> None:
        super().__init__(session, dialect)
        self._framing = NetconfFramer()
        self._numbers = itertools.count(1)

    async def get(self, subtree: str) -> ET.Element:
        """The data that a subtree filter selects: the ``data`` element of the reply."""
        operation = f'<get><filter type="subtree">{subtree}</filter></get>'
        reply = await self._ask(operation, subtree, changes=False)
        data = reply.find(f"{{{BASE}}}data")
        if data is None:
            raise self._refused(shortened(subtree), "its answer has no data")
        return data

    async def edit(self, config: str) -> None:
        """Edit the running configuration; ``config`` is the content of its ``config`` element."""
        operation = (
            "<edit-config><target><running/></target>"
            f'<config xmlns:nc="{BASE}">{config}</config></edit-config>'
        )
        await self._ask(operation, config, changes=True)

    async def tell(self, operation: str) -> None:
        """A vendor operation that changes something."""
        await self._ask(operation, operation, changes=True)

    def _framer(self) -> NetconfFramer:
        self._framing = NetconfFramer()
        return self._framing

    async def _connect(self) -> tcp.DeviceConnection[str]:
        make = partial(
            tcp.DeviceConnection[str],
            self._framer(),
            self._unasked,
            b"",
        )
        connection = await connection_over(
            self._session,
            make,
            self.links,
            "netconf",
        )
        connection.listen()
        return connection

    async def _log_in(self) -> None:
        """Exchange hellos, and subscribe to notifications."""
        connection = self._connected()
        hello = await connection.answer(
            itemgetter(0), self._session.timeouts.answer_s
        )
        offered = {
            (leaf.text or "").strip()
            for leaf in _parsed(hello).iter(f"{{{BASE}}}capability")
        }
        if not offered:
            raise tcp.FramingError("its first message is not a hello")
        connection.send(_HELLO + _END.decode())
        self._framing.chunked = _BASE_11 in offered
        connection.done()
        # Without interleave a session with a subscription accepts no requests.
        if {_NOTIFICATION, _INTERLEAVE} <= offered:
            try:
                await self._exchange(
                    connection,
                    _SUBSCRIBE,
                    "subscribe",
                    self._session.timeouts.answer_s,
                )
            except DeviceRefused as refusal:
                self.log.warning("%s", refusal.message)

    async def _log_out(self) -> None:
        with contextlib.suppress(DeviceRefused):
            await self._exchange(
                self._connected(),
                "<close-session/>",
                "close",
                2.0,
            )

    async def _say_something(self) -> None:
        # An empty filter selects nothing (RFC 6241, 6.4.2).
        await self._ask(
            '<get><filter type="subtree"/></get>', "get nothing", changes=False
        )

    async def _ask(
        self,
        operation: str,
        request: str,
        *,
        changes: bool,
    ) -> ET.Element:
        shown = shortened(" ".join(request.split()))

        def exchange(
            connection: tcp.DeviceConnection[str], timeout_s: float
        ) -> Awaitable[ET.Element]:
            self._sends(shown)
            return self._exchange(
                connection,
                operation,
                shown,
                timeout_s,
            )

        return await self._run(exchange, lambda: shown, changes=changes)

    def _exchange(
        self,
        connection: tcp.DeviceConnection[str],
        operation: str,
        shown: str,
        timeout_s: float,
    ) -> Awaitable[ET.Element]:
        """Send an operation; the reply. ``DeviceRefused`` if it reports an error."""
        number = str(next(self._numbers))
        text = f'<rpc xmlns="{BASE}" message-id="{number}">{operation}</rpc>'
        if self._framing.chunked:
            text = f"\n#{len(text.encode())}\n{text}\n##\n"
        else:
            text += _END.decode()
        return connection.exchange(
            text, partial(self._take, number, shown), timeout_s
        )

    def _take(
        self,
        number: str,
        shown: str,
        messages: Sequence[str],
    ) -> ET.Element | None:
        for reply in map(_parsed, messages):
            if (
                _local(reply.tag) != "rpc-reply"
                or "message-id" not in reply.attrib
            ):
                raise tcp.FramingError(
                    f"it answered with {_local(reply.tag)[:40]!r}"
                )
            if reply.attrib["message-id"] != number:
                continue  # the answer to an earlier request, once more
            errors = [
                error
                for error in reply.iterfind(f"{{{BASE}}}rpc-error")
                if _text(error, "error-severity") != "warning"
            ]
            if errors:
                tag = _text(errors[0], "error-tag")
                words = "; ".join(
                    _text(error, "error-message") or tag for error in errors
                )
                raise self._refused(shown, shortened(self._mask(words)), tag)
            return reply
        return None

    def _unasked(self, message: str) -> bool:
        """Whether it is a notification, which becomes an alarm."""
        if "notification" not in message[:_LOOK_FOR_TAG]:
            return False
        try:
            root = ET.fromstring(message)
        except ET.ParseError:
            return False
        if _local(root.tag) != "notification":
            return False
        for event in root:
            kind = _local(event.tag)
            if kind == "eventTime":
                continue
            leaves = {
                _local(leaf.tag): (leaf.text or "").strip()
                for leaf in event.iter()
            }
            leaves.pop(kind, None)
            values = ", ".join(
                f"{name}={value}" for name, value in leaves.items() if value
            )
            self._alarm(
                _severity(kind), leaves.get("port-id", ""), f"{kind}: {values}"
            )
        return True


def _severity(kind: str) -> Severity:
    if kind.endswith(("-clear", "-notification")):
        return "notice"
    if "warn" in kind:
        return "minor"
    return "critical" if kind == "system-error" else "major"


def _parsed(text: str) -> ET.Element:
    try:
        return ET.fromstring(text.strip())
    except ET.ParseError as error:
        raise tcp.FramingError(f"its answer is not XML: {error}") from error


def _text(element: ET.Element, leaf: str) -> str:
    return (element.findtext(f"{{{BASE}}}{leaf}") or "").strip()


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]
