"""The driver ``polatis-scpi``: Polatis (HUBER+SUHNER) switches over SCPI (TCP 5025).

Tested with the emulated device only.
"""

import functools
import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import ClassVar, cast

from patchlight.controller.circuits import contract
from patchlight.controller.circuits.dialect import (
    Bare,
    Pattern,
    PolatisDialect,
    Session,
    Template,
    filled,
    shortened,
)
from patchlight.controller.circuits.drivers.base import (
    Numbering,
    PolatisDriver,
)
from patchlight.controller.circuits.drivers.table import TABLES_KEPT, UP, Row
from patchlight.controller.circuits.protocols import tcp
from patchlight.controller.circuits.protocols.session import DeviceSession
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.portmap import CrossConnect

# The branches exclude each other, so matching takes linear time. (A doubled quote counts as two
# quoted texts. Not possessive: CPython 3.11 handles nested possessive groups wrongly.)
_UNIT = re.compile(r'(?:"[^"]*"?|\([^)]*\)?|[^;"(]+)*')
_CHANNEL = re.compile(r"\s*(\d{1,9})\s*(?::\s*(\d{1,9})\s*)?")
_PLAIN = re.compile(r"[0-9,]+")
_DIGITS = 9
_WORD = re.compile(r"[A-Za-z0-9_.-]+")
_UNQUOTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_CHANNELS_LIMIT = 1 << 16
Errors = list[tuple[str, str]]  # code and words


@dataclass(frozen=True)
class PolatisScpiDialect(PolatisDialect):
    """What a session with a Polatis switch takes.

    ``confirm`` follows a command that changes something, and the device answers it with
    ``confirmed`` when it is done. ``errors`` reads all errors and is sent after every command,
    separated by ``then`` (``;`` would put both in one message): a device does not answer a wrong
    command. Set ``login`` if a unit needs one.

    ``{ins}``, ``{outs}`` and ``{ports}`` are lists of the device's port numbers. Patterns match a
    whole answer and name their groups as below. ``ask_limit`` limits the ports per query.
    """

    FIELDS: ClassVar[frozenset[str]] = frozenset(
        {"user", "password", "ins", "outs", "ports"}
    )

    login: Template = ""
    keep_alive: Template = "*OPC?"
    confirm: Template = ";*OPC?"
    confirmed: Pattern = r"\+?1"
    errors: Template = ":syst:err:all?"
    then: str = "\n"
    error_entry: Pattern = (
        r"\s*(?P<code>[+-]?[0-9]{1,9})\s*,\s*"
        r'"(?P<words>[^"]*(?:""[^"]*)*)"(?!")\s*'
    )
    identity: Template = "*IDN?"
    size: Template = ":oxc:swit:size?"
    connect: Template = ":oxc:swit:conn:add (@{ins}),(@{outs})"
    disconnect: Template = ":oxc:swit:conn:sub (@{ins}),(@{outs})"
    read_map: Template = ":oxc:swit:conn:stat?"
    port_states: Template = ":oxc:swit:port:stat? (@{ports})"
    power: Template = ":pmon:pow? (@{ports})"
    ask_limit: int = 256
    identity_answer: Pattern = (
        r"(?P<vendor>[^,]*),(?P<model>[^,]*),"
        r"(?P<serial>[^,]*),(?P<software>.*)"
    )
    size_answer: Pattern = r"(?P<ins>\d{1,9})\s*,\s*(?P<outs>\d{1,9})"
    map_answer: Pattern = r"\(@(?P<ins>[^()]*)\)\s*,\s*\(@(?P<outs>[^()]*)\)"
    states_answer: Pattern = r"\((?P<states>[^()]*)\)"
    port_ready: Pattern = r"E"
    port_locked: Pattern = r"D"
    power_answer: Pattern = r"\((?P<powers>[^()]*)\)"


POLATIS = PolatisScpiDialect()


def quoted(text: str) -> str:
    """A text in a command: a plain word unchanged, all else in quotes.

    ``BadInput``, without the text (it may be a password), if no command can contain it.
    """
    if _WORD.fullmatch(text):
        return text
    if _UNQUOTABLE.search(text):
        raise BadInput(
            "a SCPI command cannot contain control characters",
            hint="change the user or password that contains them",
        )
    return '"' + text.replace('"', '""') + '"'


def units(line: str) -> Iterator[str]:
    """The answers in one line, separated by ``;``, with quotes and parentheses kept whole."""
    at = 0
    while at <= len(line):
        match = _UNIT.match(line, at)
        end = match.end() if match else len(line)
        if text := line[at:end].strip():
            yield text
        at = end + 1


def channels(text: str) -> list[int]:
    """``1,2,5:7`` → the numbers; ``ValueError`` if it is not a channel list."""
    if _PLAIN.fullmatch(text):  # the usual case, and maps are long
        plain = text.split(",")
        if all(plain) and max(map(len, plain)) <= _DIGITS:
            return list(map(int, plain))
    numbers: list[int] = []
    for part in text.split(",") if text.strip() else ():
        match = _CHANNEL.fullmatch(part)
        if match is None:
            raise ValueError(f"{part!r} is not a channel")
        first = int(match[1])
        last = int(match[2]) if match[2] else first
        if abs(last - first) + len(numbers) > _CHANNELS_LIMIT:
            raise ValueError(f"the range {part!r} is too long")
        numbers += (
            range(first, last + 1)
            if last >= first
            else range(first, last - 1, -1)
        )
    return numbers


class ScpiClient(DeviceSession[str, PolatisScpiDialect]):
    """One connection to one device. All methods belong to one event loop."""

    protocol = "SCPI"
    log = logging.getLogger("patchlight.scpi")

    def __init__(self, session: Session, dialect: PolatisScpiDialect) -> None:
        super().__init__(session, dialect)
        self._entry = re.compile(dialect.error_entry)

    def ask(self, command: str, answer: str) -> Awaitable[str]:
        """Send a query; the answer matches the pattern ``answer``.

        Raises ``DeviceRefused`` with the device's message if it only reports errors.
        """
        return self._command(command, answer, changes=False)

    def tell(self, command: str) -> Awaitable[str]:
        """Change something, and wait until the device confirms it.

        Raises ``DeviceRefused`` with the device's message; an unanswered command raises
        ``OutcomeUnknown``. A refused list may have been done in part.
        """
        confirmed = f"{command}{self._dialect.confirm}"
        return self._command(confirmed, self._dialect.confirmed, changes=True)

    async def hear(self) -> tuple[contract.Alarm, ...]:
        """Alarms so far, after reading its error queue for new ones."""
        errors = self._dialect.errors
        await self._in_step(
            errors,
            self._reported,
            lambda: errors,
            changes=False,
        )
        return self.alarms

    async def _command(
        self,
        command: str,
        answer: str,
        *,
        changes: bool,
    ) -> str:
        def shown() -> str:
            return self._mask(shortened(command))

        def take(lines: Sequence[str]) -> str | None:
            if (told := self._told(command, lines)) is None:
                return None
            answers, errors = told
            if errors and (changes or not answers):
                raise self._refused(shown(), _words(errors), errors[0][0])
            self._note(errors)
            if len(answers) != 1 or re.fullmatch(answer, answers[0]) is None:
                raise tcp.FramingError(
                    f"it answered {self._mask(shortened('; '.join(answers)))!r}"
                )
            return answers[0]

        # The question for errors ends each answer.
        text = f"{command}{self._dialect.then}{self._dialect.errors}"
        return await self._in_step(
            text,
            take,
            shown,
            changes=changes,
        )

    def _framer(self) -> tcp.LineFramer:
        return tcp.LineFramer(protocol=self.protocol)

    async def _log_in(self) -> None:
        session = self._session
        text = self._dialect.errors
        take = self._reported
        if self._dialect.login:
            user = session.user
            password = session.password
            command = filled(
                self._dialect.login,
                quoted,
                user=user,
                password=password,
            )
            text = f"{command}{self._dialect.then}{text}"

            # A banner may precede the first answer: only the errors are read.
            def take(lines: Sequence[str]) -> bool | None:
                told = self._told(command, lines)
                if told and told[1]:
                    raise session.login_refused(_words(told[1]))
                return None if told is None else True

        self._sends(self._mask(text))
        await self._connected().exchange(text, take, session.timeouts.answer_s)

    async def _log_out(self) -> None:
        """SCPI has no logout."""

    async def _say_something(self) -> None:
        await self.ask(self._dialect.keep_alive, r".*")

    def _told(
        self, command: str, lines: Sequence[str]
    ) -> tuple[list[str], Errors] | None:
        """The answers up to the error queue's, and what that holds; ``None`` before it came."""
        answers: list[str] = []
        if sum(map(len, lines)) > tcp.BUFFER_LIMIT:
            raise tcp.FramingError(
                f"the answer is longer than {tcp.BUFFER_LIMIT} bytes"
            )
        for line in lines:
            if line in (command, self._dialect.errors):
                continue  # an echo
            for unit in units(line):
                errors = self._errors(unit)
                if errors is not None:
                    return answers, errors
                answers.append(unit)
        return None

    def _reported(self, lines: Sequence[str]) -> bool | None:
        if (told := self._told("", lines)) is not None:
            self._note(told[1])
        return None if told is None else True

    def _errors(self, text: str) -> Errors | None:
        """The entries in an answer of the error queue (without "no error"), if it is one."""
        entries: Errors = []
        at = 0
        while match := self._entry.match(text, at):
            if int(match["code"]) != 0:
                entries.append(
                    (
                        match["code"],
                        self._mask(match["words"].replace('""', '"')),
                    )
                )
            at = match.end()
            if at == len(text):
                return entries
            if text[at] != ",":
                return None
            at += 1
        return None

    def _note(self, errors: Errors) -> None:
        """Errors that no command explains: events of the device."""
        for code, words in errors:
            self._alarm("minor", "", f"{code},{words}")


def _words(errors: Errors) -> str:
    return "; ".join(f'{code},"{words}"' for code, words in errors)


_PAIRS_KEPT = 1 << 14


class PolatisScpi(PolatisDriver):
    """A Polatis OCS. See ``CircuitDriver`` for the methods."""

    built_in = POLATIS
    client_class = ScpiClient
    client: ScpiClient
    _dialect: PolatisScpiDialect
    _understood: (
        tuple[Numbering, Callable[[str], Mapping[CrossConnect, Row]]] | None
    ) = None

    async def identify(self) -> contract.Identity:
        """From ``*IDN?``."""
        answer = await self._ask(
            self._dialect.identity, self._dialect.identity_answer
        )
        vendor = answer["vendor"].strip().strip('"') or self._dialect.vendor
        rest = (
            answer[part].strip().strip('"')
            for part in ("model", "serial", "software")
        )
        return contract.Identity(vendor, *rest)

    async def _rows(self, numbering: Numbering) -> Mapping[CrossConnect, Row]:
        dialect = self._dialect
        answer = await self.client.ask(dialect.read_map, dialect.map_answer)
        if self._understood is None or self._understood[0] is not numbering:
            self._understood = numbering, self._understanding(numbering)
        return self._understood[1](answer)

    def _understanding(
        self, numbering: Numbering
    ) -> Callable[[str], Mapping[CrossConnect, Row]]:
        """The table of an answer. A map is read several times per change, and few pairs are new."""
        to_cross_connect = functools.lru_cache(_PAIRS_KEPT)(
            numbering.to_cross_connect
        )

        def understand(answer: str) -> Mapping[CrossConnect, Row]:
            match = re.fullmatch(self._dialect.map_answer, answer)
            assert match is not None  # the client has matched it
            try:
                pairs = list(
                    zip(
                        channels(match["ins"]),
                        channels(match["outs"]),
                        strict=True,
                    )
                )
            except ValueError as error:
                raise self._nonsense(self._dialect.read_map, answer) from error
            table = dict.fromkeys(starmap(to_cross_connect, pairs), UP)
            if None in table:
                one, other = next(
                    pair for pair in pairs if to_cross_connect(*pair) is None
                )
                raise self._nonsense(self._dialect.read_map, f"{one},{other}")
            return cast(Mapping[CrossConnect, Row], table)

        return functools.lru_cache(TABLES_KEPT)(understand)

    async def _make(self, pairs: Sequence[CrossConnect]) -> None:
        await self.client.tell(
            await self._filled(self._dialect.connect, pairs)
        )

    async def _break(
        self, pairs: Sequence[CrossConnect], table: Mapping[CrossConnect, Row]
    ) -> None:
        await self.client.tell(
            await self._filled(self._dialect.disconnect, pairs)
        )

    async def _size(self, model: str) -> tuple[int, int]:
        size = await self._ask(self._dialect.size, self._dialect.size_answer)
        return int(size["ins"]), int(size["outs"])

    async def _monitored_sides(
        self, numbering: Numbering
    ) -> list[contract.Side]:
        return [
            side
            for side in contract.SIDES
            if await self._has_monitor(numbering.to_number(side, 1))
        ]

    async def _states(self) -> dict[contract.DirectedPort, str]:
        dialect = self._dialect
        requested = self._all_ports()
        template = dialect.port_states
        return await self._per_port(
            requested,
            template,
            dialect.states_answer,
            "states",
        )

    async def _powers(
        self, ports: Sequence[contract.DirectedPort]
    ) -> dict[contract.DirectedPort, str]:
        dialect = self._dialect
        return await self._per_port(
            ports,
            dialect.power,
            dialect.power_answer,
            "powers",
        )

    async def _has_monitor(self, number: int) -> bool:
        command = filled(self._dialect.power, quoted, ports=number)
        try:
            await self.client.ask(command, self._dialect.power_answer)
        except contract.DeviceRefused:
            return False
        return True

    async def _ask(self, command: str, answer: str) -> re.Match[str]:
        match = re.fullmatch(answer, await self.client.ask(command, answer))
        assert match is not None  # the client has matched it
        return match

    async def _per_port(
        self,
        ports: Sequence[contract.DirectedPort],
        template: str,
        answer: str,
        group: str,
    ) -> dict[contract.DirectedPort, str]:
        """One value per port, queried in lists as long as the device accepts."""
        per_port: dict[contract.DirectedPort, str] = {}
        numbering = await self._numbering()
        limit = self._dialect.ask_limit
        for start in range(0, len(ports), limit):
            chunk = ports[start : start + limit]
            numbers = ",".join(map(str, numbering.to_numbers(chunk)))
            match = await self._ask(
                filled(template, quoted, ports=Bare(numbers)), answer
            )
            values = [value.strip() for value in match[group].split(",")]
            if len(values) != len(chunk):
                raise self._nonsense(
                    template, f"{len(values)} values for {len(chunk)} ports"
                )
            per_port.update(zip(chunk, values, strict=True))
        return per_port

    async def _filled(
        self, template: str, pairs: Sequence[CrossConnect]
    ) -> str:
        ins, outs = zip(*await self._numbers(pairs), strict=True)
        lists = (Bare(",".join(map(str, numbers))) for numbers in (ins, outs))
        return filled(
            template, quoted, **dict(zip(("ins", "outs"), lists, strict=True))
        )
