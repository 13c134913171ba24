"""Bytes in, lines of SCPI out, and the parts of a line: a parser with a bounded buffer.

Lines end with ``\\n`` or ``\\r\\n`` (IEEE 488.2 over a raw socket). One line may hold several
answers, joined with ``;``; quotes and parentheses hide one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from patchlight.controller.circuits.protocols.connection import BUFFER_LIMIT, FramingError
from patchlight.controller.circuits.protocols.tl1.telnet import TelnetFilter

# No byte fits two branches, so it takes linear time whatever comes. (A doubled quote in quotes
# is two quoted texts here. Not possessive: CPython 3.11 gets nested possessive groups wrong.)
_UNIT = re.compile(r'(?:"[^"]*"?|\([^)]*\)?|[^;"(]+)*')
_CHANNEL = re.compile(r"\s*(\d{1,9})\s*(?::\s*(\d{1,9})\s*)?")
_PLAIN = re.compile(r"[0-9]{1,9}(?:,[0-9]{1,9})*")
_CHANNELS_LIMIT = 1 << 16


class LineFramer:
    """Feed it what arrives; it hands back the lines that are complete, without their ends.

    After a ``FramingError`` the stream is lost: close the connection.
    """

    def __init__(self, limit: int = BUFFER_LIMIT) -> None:
        self._limit = limit
        self._telnet = TelnetFilter()
        self._buffer = bytearray()

    @property
    def buffered(self) -> int:
        """Bytes held of what is not yet complete; never more than the limit."""
        return len(self._buffer)

    def take_telnet_replies(self) -> bytes:
        """What to send back to a telnet server that tried to negotiate (refusing it all)."""
        return self._telnet.take_replies()

    def feed(self, data: bytes) -> list[str]:
        """Add bytes; returns the lines they complete. ``FramingError`` past the bound."""
        lines: list[str] = []
        # In slices, so that the bound holds however much is fed at once.
        for start in range(0, len(data), 65536):
            *whole, rest = self._telnet.filter(data[start : start + 65536]).split(b"\n")
            for piece in whole:
                self._hold(piece)
                text = self._buffer.decode("utf-8", "replace").strip()
                self._buffer.clear()
                if text:
                    lines.append(text)
            self._hold(rest)
        return lines

    def _hold(self, piece: bytes) -> None:
        held = len(self._buffer) + len(piece)
        if held > self._limit:
            self._buffer.clear()
            raise FramingError(
                f"reading SCPI: {held} bytes came without the end of a line",
                hint="the device (or what listens there) does not speak SCPI; "
                "check the address and port",
            )
        self._buffer += piece


def units(line: str) -> Iterator[str]:
    """The parts of a line between its ``;``, quotes and parentheses kept whole."""
    at = 0
    while at <= len(line):
        match = _UNIT.match(line, at)
        end = match.end() if match else len(line)
        if text := line[at:end].strip():
            yield text
        at = end + 1


def channels(text: str) -> list[int]:
    """``1,2,5:7`` → the numbers; raises ``ValueError`` if it is no channel list."""
    if _PLAIN.fullmatch(text):  # nearly always, and a map is long
        return [int(number) for number in text.split(",")]
    numbers: list[int] = []
    for part in text.split(",") if text.strip() else ():
        match = _CHANNEL.fullmatch(part)
        if match is None:
            raise ValueError(f"{part!r} is no channel")
        first = int(match[1])
        last = int(match[2]) if match[2] else first
        if abs(last - first) + len(numbers) > _CHANNELS_LIMIT:
            raise ValueError(f"{part!r} is too long a range")
        numbers += range(first, last + 1) if last >= first else range(first, last - 1, -1)
    return numbers
