"""A SCPI session over TCP: each command followed by the question for its errors.

SCPI has no tags, and a command in error is answered with nothing. So the error queue's answer
marks the end of every exchange, and anything that is not exactly the answer expected means
that the two sides are out of step: the connection is dropped and made anew. How a session
stays usable, and what an unanswered command becomes: see ``DeviceSession``.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from patchlight.controller.circuits.dialects import (
    AnyPolatisDialect,
    Dialect,
    Pattern,
    Template,
    filled,
)
from patchlight.controller.circuits.protocols.connection import (
    BUFFER_LIMIT,
    DeviceConnection,
    FramingError,
    LineFramer,
)
from patchlight.controller.circuits.protocols.session import DeviceSession, Session, shortened
from patchlight.testbed.errors import BadInput

# No byte fits two branches, so it takes linear time whatever comes. (A doubled quote in quotes
# is two quoted texts here. Not possessive: CPython 3.11 gets nested possessive groups wrong.)
_UNIT = re.compile(r'(?:"[^"]*"?|\([^)]*\)?|[^;"(]+)*')
_CHANNEL = re.compile(r"\s*(\d{1,9})\s*(?::\s*(\d{1,9})\s*)?")
_PLAIN = re.compile(r"[0-9,]+")
_DIGITS = 9
_WORD = re.compile(r"[A-Za-z0-9_.-]+")
_UNQUOTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_CHANNELS_LIMIT = 1 << 16
Errors = list[tuple[str, str]]  # code and words


@dataclass(frozen=True)
class ScpiDialect(Dialect):
    """What a session takes.

    ``confirm`` is put behind a command that changes something, and the device answers it
    with ``confirmed`` when it is done. ``errors`` asks for all errors and is sent after
    every command, with ``then`` between (``;`` would put both in one message): a device
    answers a command in error with nothing at all. Set ``login`` where a unit wants one.
    """

    FIELDS: ClassVar[frozenset[str]] = frozenset({"user", "password"})

    login: Template = ""
    keep_alive: Template = "*OPC?"
    confirm: Template = ";*OPC?"
    confirmed: Pattern = r"\+?1"
    errors: Template = ":syst:err:all?"
    then: str = "\n"
    error_entry: Pattern = (
        r'\s*(?P<code>[+-]?[0-9]{1,9})\s*,\s*"(?P<words>[^"]*(?:""[^"]*)*)"(?!")\s*'
    )


@dataclass(frozen=True)
class PolatisScpiDialect(ScpiDialect, AnyPolatisDialect):
    """What a Polatis switch takes.

    ``{ins}``, ``{outs}`` and ``{ports}`` are lists of the device's port numbers. Patterns
    match a whole answer and name their groups as below. ``ask_limit`` is how many ports one
    question takes.
    """

    FIELDS: ClassVar[frozenset[str]] = ScpiDialect.FIELDS | {"ins", "outs", "ports"}

    identity: Template = "*IDN?"
    size: Template = ":oxc:swit:size?"
    connect: Template = ":oxc:swit:conn:add (@{ins}),(@{outs})"
    disconnect: Template = ":oxc:swit:conn:sub (@{ins}),(@{outs})"
    read_map: Template = ":oxc:swit:conn:stat?"
    port_states: Template = ":oxc:swit:port:stat? (@{ports})"
    power: Template = ":pmon:pow? (@{ports})"
    ask_limit: int = 256
    identity_answer: Pattern = (
        r"(?P<vendor>[^,]*),(?P<model>[^,]*),(?P<serial>[^,]*),(?P<software>.*)"
    )
    size_answer: Pattern = r"(?P<ins>\d{1,9})\s*,\s*(?P<outs>\d{1,9})"
    map_answer: Pattern = r"\(@(?P<ins>[^()]*)\)\s*,\s*\(@(?P<outs>[^()]*)\)"
    states_answer: Pattern = r"\((?P<states>[^()]*)\)"
    port_enabled: Pattern = r"E"
    port_disabled: Pattern = r"D"
    power_answer: Pattern = r"\((?P<powers>[^()]*)\)"


POLATIS = PolatisScpiDialect()


def quoted(text: str) -> str:
    """A text as it may stand in a command: a plain word as it is, all else in quotes.

    ``BadInput``, which does not repeat the text (it may be a password), if no command can hold it.
    """
    if _WORD.fullmatch(text):
        return text
    if _UNQUOTABLE.search(text):
        raise BadInput(
            "a SCPI command cannot hold a text with control characters in it",
            hint="change the user or password that has them",
        )
    return '"' + text.replace('"', '""') + '"'


def units(line: str) -> Iterator[str]:
    """The answers in one line between its ``;``, quotes and parentheses kept whole."""
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
        plain = text.split(",")
        if all(plain) and max(map(len, plain)) <= _DIGITS:
            return list(map(int, plain))
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


class ScpiClient(DeviceSession[str, ScpiDialect]):
    """One connection to one device. All methods belong to one event loop."""

    protocol = "SCPI"
    log = logging.getLogger("patchlight.scpi")

    def __init__(self, session: Session, dialect: ScpiDialect) -> None:
        super().__init__(session, dialect)
        self._entry = re.compile(dialect.error_entry)

    async def ask(self, command: str, answer: str) -> str:
        """Ask something; the answer, which matches the pattern ``answer``.

        Raises ``DeviceRefused`` with the device's words if it answers with errors alone.
        """
        return await self._command(command, answer, changes=False)

    async def tell(self, command: str) -> None:
        """Have something changed, and wait until the device says that it is done.

        Raises ``DeviceRefused`` with the device's words; an unanswered command raises
        ``OutcomeUnknown``. A refused list may have been done in part.
        """
        confirmed = f"{command}{self._dialect.confirm}"
        await self._command(confirmed, self._dialect.confirmed, changes=True)

    async def look(self) -> None:
        """Ask for errors alone: what the device reported meanwhile becomes alarms."""

        async def exchange(connection: DeviceConnection[str], timeout_s: float) -> None:
            self._note((await self._exchange(connection, timeout_s, ""))[1])

        await self._run(exchange, lambda: self._dialect.errors, changes=False)

    async def _command(self, command: str, answer: str, *, changes: bool) -> str:
        def shown() -> str:
            return self._mask(shortened(command))

        async def exchange(connection: DeviceConnection[str], timeout_s: float) -> str:
            answers, errors = await self._exchange(connection, timeout_s, command)
            if errors and (changes or not answers):
                raise self._refused(shown(), _words(errors), errors[0][0])
            self._note(errors)
            if len(answers) != 1 or re.fullmatch(answer, answers[0]) is None:
                raise FramingError(f"it answered {self._mask(shortened('; '.join(answers)))!r}")
            return answers[0]

        return await self._run(exchange, shown, changes=changes)

    def _framer(self) -> LineFramer:
        return LineFramer(protocol=self.protocol)

    async def _log_in(self) -> None:
        session, command = self._session, ""
        if self._dialect.login:
            command = filled(
                self._dialect.login, quoted, user=session.user, password=session.password
            )
        # A banner may stand before the first answer: only the errors are looked at.
        _, errors = await self._exchange(self._connected(), session.timeouts.answer_s, command)
        if command and errors:
            raise session.login_refused(_words(errors))
        self._note(errors)

    async def _log_out(self) -> None:
        """SCPI knows no farewell."""

    async def _say_something(self) -> None:
        await self.ask(self._dialect.keep_alive, r".*")

    async def _exchange(
        self, connection: DeviceConnection[str], timeout_s: float, command: str
    ) -> tuple[list[str], Errors]:
        """Send; the answers up to the error queue's, and what that holds."""
        between = self._dialect.then if command else ""
        async with self._in_step(connection, timeout_s):
            self._sends(self._mask(command) if self._dialect.login else command)
            connection.send(f"{command}{between}{self._dialect.errors}")
            return await self._collect(connection, (command, self._dialect.errors))

    async def _collect(
        self, connection: DeviceConnection[str], sent: Sequence[str]
    ) -> tuple[list[str], Errors]:
        answers: list[str] = []
        size = 0
        while True:
            line = await connection.receive()
            size += len(line)
            if size > BUFFER_LIMIT:
                raise FramingError(f"the answer is longer than {BUFFER_LIMIT} bytes")
            if line in sent:
                continue  # an echo
            for unit in units(line):
                errors = self._errors(unit)
                if errors is not None:
                    return answers, errors
                answers.append(unit)

    def _errors(self, text: str) -> Errors | None:
        """The entries of the error queue's answer (without "no error"), if it is one."""
        entries: Errors = []
        at = 0
        while match := self._entry.match(text, at):
            if int(match["code"]) != 0:
                entries.append((match["code"], self._mask(match["words"].replace('""', '"'))))
            at = match.end()
            if at == len(text):
                return entries
            if text[at] != ",":
                return None
            at += 1
        return None

    def _note(self, errors: Errors) -> None:
        """Errors that no command of ours explains: the device tells of itself."""
        for code, words in errors:
            self._alarm("minor", "", f"{code},{words}")


def _words(errors: Errors) -> str:
    return "; ".join(f'{code},"{words}"' for code, words in errors)
