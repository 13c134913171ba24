"""Runs a TL1 session over TCP: login, CTAGs, acknowledgements, pages, autonomous messages.

For unanswered commands see ``DeviceSession``.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import ClassVar

from patchlight.controller.circuits.contract import (
    Alarm,
    DeviceRefused,
    Standing,
)
from patchlight.controller.circuits.dialect import (
    Bare,
    Dialect,
    Pattern,
    Session,
    Template,
    filled,
    shortened,
)
from patchlight.controller.circuits.protocols import tcp, tl1_messages
from patchlight.controller.circuits.protocols.session import DeviceSession

_LIST_EVERY_S = 2.0  # the minimum interval between reads of the alarm list
_UNKNOWN_COMMAND = ("ICNV", "IICM", "IIAC", "PIUI")
# Much longer than a line with names; the dialects' patterns are slow on longer ones.
_LINE_LIMIT = 2048
_ACKNOWLEDGED_LIMIT = (
    10  # acknowledgements extend a deadline to at most this multiple
)


@dataclass(frozen=True)
class Tl1Reply:
    """A whole reply, its parts joined. ``code``: COMPLD, or PRTL, DELAY, RTRV."""

    code: str
    lines: tuple[str, ...]
    words: str


@dataclass(frozen=True)
class SessionDialect(Dialect):
    """The commands for logging in and keeping the session, and the list of alarms.

    Templates may name ``{ctag}``, ``{user}`` and ``{password}``. Patterns are searched in a denial,
    ignoring case; ``alarm_line`` matches the start of one quoted line. Without ``alarms`` the
    device has no such list.
    """

    FIELDS: ClassVar[frozenset[str]] = frozenset({"ctag", "user", "password"})

    login: Template = "ACT-USER::{user}:{ctag}::{password};"
    logout: Template = "CANC-USER::{user}:{ctag};"
    keep_alive: Template = "RTRV-HDR:::{ctag};"
    already_logged_in: Pattern = r"already logged in"
    not_logged_in: Pattern = r"login not active|\bPLNA\b"
    alarms: Template = "RTRV-ALM-ALL:::{ctag};"
    alarm_line: Pattern = (
        r"(?P<subject>[^,:]*)(?:,[^:]*)?:"
        r"(?P<severity>CR|MJ|MN|NA|NR)?,?(?P<condition>[^,:]*)"
    )


@dataclass
class _Arriving:
    """The reply to one command as far as it has arrived: ``taken`` messages.

    ``last_ctag``: that of the command, or of the next one, which was sent to see that nothing else
    comes. ``untagged``: a denial that may be the reply. ``waited``: acknowledgements so far.
    """

    connection: tcp.DeviceConnection[tl1_messages.Message]
    template: str
    values: Mapping[str, str]
    timeout_s: float
    paged: bool
    ctag: str
    parts: list[tl1_messages.Tl1Response] = field(default_factory=list)
    untagged: list[tl1_messages.Tl1Response] = field(default_factory=list)
    taken: int = 0
    size: int = 0
    waited: int = 0

    def __post_init__(self) -> None:
        self.last_ctag = self.ctag


class Tl1Client(DeviceSession[tl1_messages.Message, SessionDialect]):
    """One login on one network element. All methods belong to one event loop."""

    protocol = "TL1"
    log = logging.getLogger("patchlight.tl1")

    def __init__(self, session: Session, dialect: SessionDialect) -> None:
        super().__init__(session, dialect)
        self._ctag = 0
        self._lists_alarms = bool(dialect.alarms)
        self._list_again_at = 0.0

    async def command(
        self,
        template: str,
        values: Mapping[str, str] | None = None,
        *,
        changes: bool = False,
        paged: bool = False,
    ) -> Tl1Reply:
        """Send one command and wait for its whole reply.

        ``template`` comes from a dialect; ``values`` fill it, quoted unless they are ``Bare`` (user
        and CTAG are added): ``BadInput`` if one cannot be quoted. With ``changes`` an unanswered
        command raises ``OutcomeUnknown``, else ``DeviceUnreachable``. ``paged``: the device may
        repeat whole replies as pages. A denial raises ``DeviceRefused`` with the device's message.
        """
        values = values or {}
        exchange = partial(
            self._exchange,
            template=template,
            values=values,
            paged=paged,
        )
        return await self._run(
            exchange, partial(self._shown, template, values), changes=changes
        )

    async def hear(self) -> tuple[Alarm, ...]:
        """Its unsolicited messages, and the active alarms on its list (GR-833), if it has one."""
        now = asyncio.get_running_loop().time()
        if self._lists_alarms and now >= self._list_again_at:
            self._list_again_at = now + _LIST_EVERY_S
            try:
                reply = await self.command(self._dialect.alarms, paged=True)
            except DeviceRefused as refusal:
                # An unknown command stays unknown.
                self._lists_alarms = refusal.code not in _UNKNOWN_COMMAND
            else:
                self._alarms.stands(
                    self._standing(line) for line in reply.lines
                )
        return self.alarms

    def _standing(self, line: str) -> Standing:
        match = re.match(self._dialect.alarm_line, line)
        if match is None:
            return Standing("notice", "", self._mask(line))
        severity = tl1_messages.NOTIFICATIONS.get(
            match["severity"] or "", "notice"
        )
        return Standing(
            severity,
            self._mask(match["subject"]),
            self._mask(line),
            match["condition"],
        )

    def _framer(self) -> tl1_messages.Tl1Framer:
        return tl1_messages.Tl1Framer()

    def _unasked(self, message: tl1_messages.Message) -> bool:
        if isinstance(message, tl1_messages.Autonomous):
            self._note(message)
            return True
        return False

    def _wants_login(self, refusal: DeviceRefused) -> bool:
        return self._says(
            self._dialect.not_logged_in, f"{refusal.code} {refusal.words}"
        )

    async def _log_in(self) -> None:
        session = self._session
        values = {"password": session.password}
        login = self._dialect.login
        timeout = session.timeouts.answer_s
        try:
            await self._exchange(
                self._connected(),
                timeout,
                login,
                values,
            )
        except DeviceRefused as refusal:
            if not self._says(self._dialect.already_logged_in, refusal.words):
                raise session.login_refused(refusal.words) from refusal

    async def _log_out(self) -> None:
        await self._exchange(
            self._connected(),
            1.0,
            self._dialect.logout,
            {},
        )

    async def _say_something(self) -> None:
        await self.command(self._dialect.keep_alive)

    def _exchange(
        self,
        connection: tcp.DeviceConnection[tl1_messages.Message],
        timeout_s: float,
        template: str,
        values: Mapping[str, str],
        *,
        paged: bool = False,
    ) -> Awaitable[Tl1Reply]:
        """Send a command; its whole reply. ``DeviceRefused`` if it is denied."""
        ctag = self._send(connection, template, values)
        reply = _Arriving(connection, template, values, timeout_s, paged, ctag)
        return connection.answer(partial(self._take, reply), timeout_s)

    def _take(
        self, reply: _Arriving, messages: Sequence[tl1_messages.Message]
    ) -> Tl1Reply | None:
        """The whole reply once its last part, which has the result, has arrived."""
        while reply.taken < len(messages):
            message = messages[reply.taken]
            reply.taken += 1
            if isinstance(message, tl1_messages.Acknowledgement):
                self._take_acknowledgement(reply, message)
            elif isinstance(message, tl1_messages.Tl1Response) and (
                parts := self._take_part(reply, message)
            ):
                return self._whole(reply, parts)
        return None

    def _take_acknowledgement(
        self, reply: _Arriving, message: tl1_messages.Acknowledgement
    ) -> None:
        if message.code in ("NA", "NG") and message.ctag == reply.ctag:
            raise self._refused(
                self._shown(reply.template, reply.values),
                "not accepted",
                message.code,
            )
        if (
            message.ctag in (reply.ctag, reply.last_ctag)
            and reply.waited < _ACKNOWLEDGED_LIMIT
        ):
            reply.waited += 1
            reply.connection.extend(reply.timeout_s)

    def _take_part(
        self, reply: _Arriving, message: tl1_messages.Tl1Response
    ) -> list[tl1_messages.Tl1Response]:
        """All parts if this message shows that they have arrived, else none."""
        if message.ctag == reply.ctag:
            reply.parts.append(message)
            reply.size += len(message.body.text)
            if reply.size > tcp.BUFFER_LIMIT:
                raise tcp.FramingError(
                    f"the reply is longer than {tcp.BUFFER_LIMIT} bytes"
                )
            if message.more:
                return []
            if message.code == "DENY" or not reply.paged:
                return reply.parts
            # Pages look like whole replies, each ended with ";". The device works in order: when it
            # answers the next command, all pages have arrived.
            self._send_next(reply)
            for part in reply.parts:
                part.body.take_apart()  # meanwhile
        elif message.ctag == reply.last_ctag and not message.more:
            return reply.parts or reply.untagged
        elif (
            message.ctag == "0" and message.code == "DENY" and not reply.waited
        ):
            # Devices answer unreadable commands with CTAG 0: possibly this one, or that of another
            # client. If the next command is answered first, it was this one.
            reply.untagged = [message]
            self._send_next(reply)
        else:
            self.log.debug(
                "%s: stray reply to %s", self._session.name, message.ctag
            )
        return []

    def _send_next(self, reply: _Arriving) -> None:
        """Send one further command, whose answer shows that nothing else comes."""
        if reply.last_ctag == reply.ctag:
            reply.last_ctag = self._send(
                reply.connection, self._dialect.keep_alive, {}
            )
            reply.connection.extend(reply.timeout_s)

    def _whole(
        self,
        reply: _Arriving,
        parts: Sequence[tl1_messages.Tl1Response],
    ) -> Tl1Reply:
        code = parts[-1].code
        body = parts[-1].body
        if code == "DENY":
            words = self._mask(body.words) or "it gave no reason"
            raise self._refused(
                self._shown(reply.template, reply.values),
                words,
                body.bare.partition(" ")[0],
            )
        lines = tuple(chain.from_iterable(part.body.quoted for part in parts))
        if max(map(len, lines), default=0) > _LINE_LIMIT:
            raise tcp.FramingError(
                f"a line of its reply is longer than {_LINE_LIMIT} characters"
            )
        remarks = (
            words
            for part in parts
            for words in (part.body.bare, *part.body.comments)
        )
        return Tl1Reply(
            code, lines, self._mask("; ".join(filter(None, remarks)))
        )

    def _send(
        self,
        connection: tcp.DeviceConnection[tl1_messages.Message],
        template: str,
        values: Mapping[str, str],
    ) -> str:
        self._ctag = self._ctag % 999_999 + 1
        ctag = str(self._ctag)
        if self.log.isEnabledFor(logging.DEBUG):
            self._sends(self._shown(template, {**values, "ctag": ctag}))
        connection.send(self._filled(template, {**values, "ctag": Bare(ctag)}))
        return ctag

    def _note(self, message: tl1_messages.Autonomous) -> None:
        subject, _, _ = (message.body.quoted or ("",))[0].partition(":")
        words = f"{message.verb}: {message.body.words}"
        self._alarm(
            tl1_messages.SEVERITIES[message.alarm_code], subject, words
        )

    def _shown(self, template: str, values: Mapping[str, str]) -> str:
        """The command for logs and errors: no password; long lists are shortened."""
        shown = {"ctag": "", **values, "password": Bare("****")}
        return shortened(self._filled(template, shown))

    def _filled(self, template: str, values: Mapping[str, str]) -> str:
        return filled(
            template,
            tl1_messages.quote,
            **{"user": self._session.user, **values},
        )

    @staticmethod
    def _says(pattern: str, words: str) -> bool:
        return re.search(pattern, words, re.IGNORECASE) is not None
