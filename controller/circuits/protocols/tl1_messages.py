"""Parses a TL1 element's responses, acknowledgements and autonomous messages (GR-831).

The parser is incremental with a bounded buffer. Between messages, lines that do not begin one are
noise: banners, prompts, echoes. Within a message only an unquoted ``;`` ends it, or ``>`` alone at
the start of a line (more parts follow); quotes and ``/* comments */`` hide both. The result does
not depend on how the bytes are cut.
"""

import re
from dataclasses import dataclass
from functools import cached_property

from patchlight.controller.circuits.contract import Severity
from patchlight.controller.circuits.protocols.tcp import (
    BUFFER_LIMIT,
    TelnetFramer,
)
from patchlight.testbed.errors import BadInput

_BODY_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)"|/\*(.*?)\*/', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_PLAIN_VALUE = re.compile(r"[\w.@%+-]*", re.ASCII)
# Control characters, and the replacement of invalid UTF-8.
_UNQUOTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ufffd]")

# No start of a message is longer; longer lines are noise.
_LINE_LIMIT = 1024
# A prompt may precede the start of a message, and rests of the terminator before it. The branches
# exclude each other, so matching takes linear time.
_LEAD = rb"^(?:[\w.@:~-]*[>#$<;]|\s)*"
_ACK = re.compile(
    _LEAD + rb"(IP|PF|OK|NA|NG|RL)[ \t]+(\w{1,6})[ \t]*[<>]?[ \t]*$"
)
_HEADER = re.compile(rb"[ \t]\d{2,4}-\d\d-\d\d[ \t]+\d\d:\d\d:\d\d[ \t]*$")
_RESPONSE = re.compile(
    _LEAD
    + rb"M[ \t]+(\w{1,6})[ \t]+(COMPLD|DENY|PRTL|DELAY|DELY|RTRV)\b[ \t]*(.*)$"
)
_AUTONOMOUS = re.compile(
    _LEAD + rb"(\*C|\*\*|\*|A)[ \t]+(\d[\d.]*)[ \t]+([A-Z][A-Z0-9 -]*?)[ \t]*$"
)
# The start of nearly all complete messages, as the patterns above would find it line by line.
_USUAL = re.compile(
    rb"[\r\n]*[ \t]{0,8}([\w.-]{1,64})[ \t]\d\d-\d\d-\d\d[ \t]\d\d:\d\d:\d\d[ \t]*[\r\n]+"
    rb"(?:M  (\w{1,6}) (COMPLD|DENY|PRTL|DELAY|DELY|RTRV)"
    rb"|(\*C|\*\*|\*|A)[ ]{1,2}(\d{1,9}) ([A-Z][A-Z0-9-]*(?: [A-Z0-9-]+){0,4}))(?=[\r\n])"
)
_LINE_END = re.compile(rb"[\r\n;]")
_BLANK = re.compile(rb"[\r\n]+")
_MARK = re.compile(rb'["\n;]|/\*')
# Text that needs no second look: whole quoted lines, line ends before something other than a
# prompt, and all else without a mark. Long tables pass here. (Not possessive: CPython 3.11 then
# ends the match inside a failed branch.)
_QUIET = re.compile(
    rb'(?:[^"\n;/]+|"[^"\\]*"|/(?=[^*])|\n[ \t\r]{0,15}(?=[^ \t\r>]))*'
)
_IN_QUOTES = re.compile(rb'["\\]')
_INDENT_LIMIT = 16
_AFTER_NEWLINE = re.compile(rb"[ \t\r]{0,%d}" % _INDENT_LIMIT)
_PROMPT = re.compile(rb"\n[ \t\r]{0,%d}>" % _INDENT_LIMIT)

SEVERITIES: dict[str, Severity] = {
    "*C": "critical",
    "**": "major",
    "*": "minor",
    "A": "notice",
}
"""Alarm code of an autonomous message → severity."""
NOTIFICATIONS: dict[str, Severity] = {
    "CR": "critical",
    "MJ": "major",
    "MN": "minor",
}
"""Notification code in a list of alarms → severity; all others are notices."""


@dataclass(frozen=True)
class Body:
    """The text block of a message: quoted lines, comments, and bare words."""

    text: str

    @cached_property
    def _parts(self) -> tuple[tuple[str, ...], tuple[str, ...], str]:
        text = self.text
        pieces = self.text.split('"')
        comment = "/" in text and "/*" in text
        if len(pieces) % 2 and not comment and "\\" not in text:
            # Only quoted lines and bare words, as in every long table.
            return (
                tuple(pieces[1::2]),
                (),
                " ".join(" ".join(pieces[::2]).split()),
            )
        quoted: list[str] = []
        comments: list[str] = []
        bare: list[str] = []
        end = 0
        for match in _BODY_TOKEN.finditer(self.text):
            bare.append(self.text[end : match.start()])
            end = match.end()
            if match[1] is not None:
                quoted.append(
                    _ESCAPED.sub(r"\1", match[1])
                    if "\\" in match[1]
                    else match[1]
                )
            else:
                comments.append(match[2].strip())
        bare.append(self.text[end:])
        return tuple(quoted), tuple(comments), " ".join(" ".join(bare).split())

    def take_apart(self) -> None:
        """Parse now, rather than at the first access."""
        self._parts  # noqa: B018

    @property
    def quoted(self) -> tuple[str, ...]:
        """The quoted lines without their quotes, unescaped."""
        return self._parts[0]

    @property
    def comments(self) -> tuple[str, ...]:
        """The texts of the comments."""
        return self._parts[1]

    @property
    def bare(self) -> str:
        """Everything else, with single spaces: it contains a denial's error code."""
        return self._parts[2]

    @property
    def words(self) -> str:
        """All of it by importance: bare words, comments, quoted lines."""
        return "; ".join(
            part for part in (self.bare, *self.comments, *self.quoted) if part
        )


@dataclass(frozen=True)
class Acknowledgement:
    """``IP 123``: the reply will take a while (or, for ``NA``/``NG``, will not come)."""

    code: str
    ctag: str


@dataclass(frozen=True)
class Tl1Response:
    """One part of the reply to a command. ``more``: the device announced another part."""

    ctag: str
    code: str
    body: Body
    more: bool = False
    sid: str = ""


@dataclass(frozen=True)
class Autonomous:
    """An unsolicited message of the element, like ``*C 17 REPT ALM EQPT``."""

    alarm_code: str
    atag: str
    verb: str
    body: Body
    more: bool = False
    sid: str = ""


Message = Acknowledgement | Tl1Response | Autonomous


def can_quote(value: str) -> bool:
    """Whether a command can contain exactly this text."""
    return _UNQUOTABLE.search(value) is None


def quote(value: str) -> str:
    """A parameter value in a command: quoted unless it is a single word.

    ``BadInput``, without the text (it may be a password), if no command can contain it.
    """
    if _PLAIN_VALUE.fullmatch(value):
        return value
    if not can_quote(value):
        raise BadInput(
            "a TL1 command cannot contain control characters",
            hint="change the user, password or name that contains them",
        )
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class Tl1Framer(TelnetFramer):
    """Feed it data; it returns complete messages."""

    def __init__(self, limit: int = BUFFER_LIMIT) -> None:
        super().__init__(limit)
        self._scan = 0
        self._mode = "noise"  # noise | text | quotes | comment
        self._begun: (
            tuple[type[Tl1Response] | type[Autonomous], tuple[str, ...]] | None
        ) = None
        self._sid = ""

    def feed(self, data: bytes) -> list[Message]:
        """Add bytes; returns the messages that they complete. ``FramingError`` past the limit."""
        messages: list[Message] = []
        # In slices, so that the limit holds for any amount.
        for start in range(0, len(data), 65536):
            self._buffer += self._telnet.filter(data[start : start + 65536])
            while self._step(messages):
                pass
            self._check_limit(len(self._buffer), "TL1", "message")
        return messages

    def _step(self, messages: list[Message]) -> bool:
        """One step of the state machine; ``False`` when it needs more bytes."""
        if self._mode == "noise":
            return self._step_noise(messages)
        if self._mode == "quotes":
            return self._step_quotes()
        if self._mode == "comment":
            end = self._buffer.find(b"*/", self._scan)
            if end < 0:
                self._scan = max(self._scan, len(self._buffer) - 1)
                return False
            self._mode = "text"
            self._scan = end + 2
            return True
        return self._step_text(messages)

    def _step_noise(self, messages: list[Message]) -> bool:
        if self._scan == 0:
            if usual := _USUAL.match(self._buffer):
                self._begin_usual(usual)
                return True
            if blank := _BLANK.match(self._buffer):
                del self._buffer[: blank.end()]
        end = _LINE_END.search(self._buffer, self._scan)
        if end is None:
            self._scan = len(self._buffer)
            return False
        line = bytes(self._buffer[: end.start()])
        terminator = end.group()
        del self._buffer[: end.end()]
        self._scan = 0
        if len(line) > _LINE_LIMIT or not line.strip():
            return True
        if match := _ACK.match(line):
            messages.append(Acknowledgement(_text(match[1]), _text(match[2])))
        elif match := _RESPONSE.match(line):
            self._begin(
                Tl1Response,
                (_text(match[1]), _text(match[2])),
                match[3],
                terminator,
            )
        elif match := _AUTONOMOUS.match(line):
            fields = (_text(match[1]), _text(match[2]), _text(match[3]))
            self._begin(
                Autonomous,
                fields,
                b"",
                terminator,
            )
        elif match := _HEADER.search(line):
            self._sid = _text(line[: match.start()].lstrip(b"<>; \t")).strip()
        return True

    def _begin_usual(self, usual: re.Match[bytes]) -> None:
        self._sid, ctag, code, *reported = (
            _text(group or b"") for group in usual.groups()
        )
        self._begun = (
            (Tl1Response, (ctag, code))
            if ctag
            else (Autonomous, tuple(reported))
        )
        del self._buffer[: usual.end()]
        self._mode = "text"

    def _begin(
        self,
        kind: type[Tl1Response] | type[Autonomous],
        fields: tuple[str, ...],
        rest: bytes,
        terminator: bytes,
    ) -> None:
        # The rest of the code's line belongs to the body: put it back, with its end.
        self._begun = (kind, fields)
        self._buffer[:0] = rest + terminator
        self._mode = "text"
        self._scan = 0

    def _step_quotes(self) -> bool:
        mark = _IN_QUOTES.search(self._buffer, self._scan)
        if mark is None:
            self._scan = len(self._buffer)
            return False
        if mark.group() == b'"':
            self._mode = "text"
            self._scan = mark.end()
            return True
        # A backslash escapes the next byte: wait for it.
        self._scan = mark.start()
        if mark.end() == len(self._buffer):
            return False
        self._scan += 2
        return True

    def _step_text(self, messages: list[Message]) -> bool:
        # Once per message, so that it is never slow.
        if self._scan == 0 and (end := self._plain_end()):
            self._finish(
                messages,
                end,
                end + 1,
                more=self._buffer[end : end + 1] == b">",
            )
            return True
        if quiet := _QUIET.match(self._buffer, self._scan):
            self._scan = quiet.end()
        mark = _MARK.search(self._buffer, self._scan)
        if mark is None:
            # The last byte may be the first half of "/*".
            self._scan = max(self._scan, len(self._buffer) - 1)
            return False
        what = mark.group()
        if what == b'"':
            self._mode = "quotes"
            self._scan = mark.end()
        elif what == b"/*":
            self._mode = "comment"
            self._scan = mark.end()
        elif what == b";":
            self._finish(
                messages,
                mark.start(),
                mark.end(),
                more=False,
            )
        else:
            blank = _AFTER_NEWLINE.match(self._buffer, mark.end())
            first = blank.end() if blank else mark.end()
            if (
                first == len(self._buffer)
                and first - mark.end() < _INDENT_LIMIT
            ):
                self._scan = mark.start()
                return False
            self._scan = first
            if self._buffer[first : first + 1] == b">":
                self._finish(
                    messages,
                    first,
                    first + 1,
                    more=True,
                )
        return True

    def _plain_end(self) -> int:
        """The end of the message, if it is complete and consists only of quoted lines and bare
        words, as nearly all do. Else 0."""
        end = self._buffer.find(b";")
        if prompt := _PROMPT.search(
            self._buffer, 0, len(self._buffer) if end < 0 else end
        ):
            end = prompt.end() - 1
        if end < 0 or self._buffer.count(b'"', 0, end) % 2:
            return 0
        # Searching for one byte is much faster than for two.
        comment = (
            self._buffer.find(b"/", 0, end) >= 0
            and self._buffer.find(b"/*", 0, end) >= 0
        )
        return 0 if comment or self._buffer.find(b"\\", 0, end) >= 0 else end

    def _finish(
        self,
        messages: list[Message],
        end: int,
        past: int,
        *,
        more: bool,
    ) -> None:
        body = Body(
            self._buffer[:end]
            .decode("utf-8", "replace")
            .replace("\r", "")
            .strip()
        )
        del self._buffer[:past]
        self._mode = "noise"
        self._scan = 0
        assert self._begun is not None
        kind, fields = self._begun
        sid = self._sid
        self._sid = ""
        self._begun = None
        if kind is Tl1Response:
            messages.append(
                Tl1Response(
                    fields[0],
                    fields[1],
                    body,
                    more,
                    sid,
                )
            )
        else:
            messages.append(
                Autonomous(
                    fields[0],
                    fields[1],
                    fields[2],
                    body,
                    more,
                    sid,
                )
            )


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
