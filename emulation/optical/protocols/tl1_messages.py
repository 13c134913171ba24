"""TL1 as an emulated device reads and writes it: commands, replies, messages of GR-831."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from patchlight.emulation.optical.switch_matrix import Reason, RequestRefused

_PAGE_LINES = 64
_QUIET = re.compile(rb'(?:[^";]+|"(?:[^"\\]|\\.)*")*', re.DOTALL)
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[^"]', re.DOTALL)
_PORTS = re.compile(r"(\d{1,9})(?:&&(\d{1,9}))?")
_RANGE_LIMIT = 1 << 16


@dataclass(frozen=True)
class Command:
    """``VERB:TID:AID:CTAG:GB:payload``; ``params`` is the payload split at commas."""

    verb: str
    aid: str
    ctag: str
    params: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Command:
        """What stands before the ``;``. Missing fields are empty; quotes are taken off."""
        fields = _split(text.strip(), ":")
        fields += [""] * (6 - len(fields))
        # Some drivers put the payload one field early; there is no general block to miss.
        payload = ":".join(fields[5:]).lstrip(":") or fields[4]
        params = tuple(_unquoted(param) for param in _split(payload, ","))
        return cls(fields[0].upper(), _unquoted(fields[2]), fields[3] or "0", params)


@dataclass(frozen=True)
class Answer:
    """What a command came to: a completion code, quoted lines, a comment, an error code.

    ``bye``: the connection ends with it.
    """

    code: str = "COMPLD"
    lines: Sequence[str] = ()
    comment: str = ""
    error: str = ""
    bye: bool = False

    def pages(self, sid: str, ctag: str, *, repeat: bool) -> str:
        """The reply on the wire. ``repeat``: its pages are whole replies one after another."""
        text = ""
        count = max(1, -(-len(self.lines) // _PAGE_LINES))
        for page in range(count):
            last = page == count - 1
            text += f"{_header(sid)}M  {ctag} {self.code}\r\n"
            if last and self.error:
                text += f"   {self.error}\r\n"
            text += _quoted(self.lines[page * _PAGE_LINES : (page + 1) * _PAGE_LINES])
            if last and self.comment:
                text += f"   /* {self.comment.replace('*/', '* /')} */\r\n"
            text += ";" if last or repeat else ">"
        return text


def deny(error: str, comment: str) -> Answer:
    """A denial with a GR-831 error code and the device's words."""
    return Answer("DENY", (), comment, error)


def autonomous(sid: str, alarm_code: str, atag: int, verb: str, lines: Sequence[str]) -> str:
    """A message that nobody asked for."""
    return f"{_header(sid)}{alarm_code:<2} {atag} {verb}\r\n{_quoted(lines)};"


def take_commands(buffer: bytearray) -> Iterator[str]:
    """Take the whole commands out of ``buffer``; a ``;`` in quotes does not end one."""
    while True:
        quiet = _QUIET.match(buffer)
        end = quiet.end() if quiet else 0
        if buffer[end : end + 1] != b";":
            return
        text = bytes(buffer[:end]).decode("utf-8", "replace").strip()
        del buffer[: end + 1]
        yield text


def port_numbers(text: str, known: Callable[[int], bool]) -> list[int]:
    """``1&3&&5`` → 1, 3, 4, 5; ``RequestRefused`` if it is no such list, or a port not ``known``.

    A range may reach beyond the device: ports that are not ``known`` are left out of it.
    """
    numbers: list[int] = []
    for match in (_PORTS.fullmatch(part) for part in re.split(r"(?<!&)&(?!&)", text)):
        if match is None:
            raise RequestRefused(Reason.NO_PORT)
        if match[2] is None:
            numbers.append(int(match[1]))
        elif int(match[2]) - int(match[1]) < _RANGE_LIMIT:
            numbers += filter(known, range(int(match[1]), int(match[2]) + 1))
    for number in numbers:
        if not known(number):
            raise RequestRefused(Reason.NO_PORT, port=number)
    return numbers


def _header(sid: str) -> str:
    return f"\r\n\n   {sid} {time.strftime('%y-%m-%d %H:%M:%S')}\r\n"


def _quoted(lines: Sequence[str]) -> str:
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return "".join(f'   "{line}"\r\n' for line in escaped)


def _split(text: str, separator: str) -> list[str]:
    parts = [""]
    for token in _TOKEN.findall(text):
        if token == separator:
            parts.append("")
        else:
            parts[-1] += token
    return [part.strip() for part in parts]


def _unquoted(text: str) -> str:
    if len(text) >= 2 and text[0] == text[-1] == '"':
        return re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL)
    return text
