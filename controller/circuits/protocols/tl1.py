"""Runs a TL1 session over TCP: login, CTAGs, acknowledgements, pages, autonomous messages.

For unanswered commands see ``DeviceSession``.
"""

import asyncio
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
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

    async def _exchange(
        self,
        connection: tcp.DeviceConnection[tl1_messages.Message],
        timeout: float,
        template: str,
        values: Mapping[str, str],
        *,
        paged: bool = False,
    ) -> Tl1Reply:
        try:
            parts = await self._collect(
                connection,
                timeout,
                template,
                values,
                paged=paged,
            )
        finally:
            connection.done()
        code = parts[-1].code
        body = parts[-1].body
        if code == "DENY":
            words = self._mask(body.words) or "it gave no reason"
            raise self._refused(
                self._shown(template, values),
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

    async def _collect(
        self,
        connection: tcp.DeviceConnection[tl1_messages.Message],
        timeout: float,
        template: str,
        values: Mapping[str, str],
        *,
        paged: bool,
    ) -> list[tl1_messages.Tl1Response]:
        """Send, then collect the parts of the reply: the last one has the result."""
        ctag = last_ctag = self._send(connection, template, values)
        parts: list[tl1_messages.Tl1Response] = []
        untagged: list[tl1_messages.Tl1Response] = []
        waited = size = 0
        now = asyncio.get_running_loop().time
        async with asyncio.timeout_at(now() + timeout) as deadline:
            while True:
                for message in await connection.receive():
                    if isinstance(message, tl1_messages.Acknowledgement):
                        if (
                            message.code in ("NA", "NG")
                            and message.ctag == ctag
                        ):
                            shown = self._shown(template, values)
                            raise self._refused(
                                shown, "not accepted", message.code
                            )
                        if (
                            message.ctag in (ctag, last_ctag)
                            and waited < _ACKNOWLEDGED_LIMIT
                        ):
                            waited += 1
                            deadline.reschedule(now() + timeout)
                        continue
                    if isinstance(message, tl1_messages.Autonomous):
                        continue
                    if message.ctag == ctag:
                        parts.append(message)
                        size += len(message.body.text)
                        if size > tcp.BUFFER_LIMIT:
                            raise tcp.FramingError(
                                f"the reply is longer than {tcp.BUFFER_LIMIT} bytes"
                            )
                        if message.more:
                            continue
                        if message.code == "DENY" or not paged:
                            return parts
                        if last_ctag == ctag:
                            # Pages look like whole replies, each ended with ";". The device works
                            # in order: when it answers the next command, all pages have arrived.
                            last_ctag = self._send(
                                connection, self._dialect.keep_alive, {}
                            )
                            deadline.reschedule(now() + timeout)
                            for part in parts:
                                part.body.take_apart()  # meanwhile
                    elif message.ctag == last_ctag and not message.more:
                        return parts or untagged
                    elif (
                        message.ctag == "0"
                        and message.code == "DENY"
                        and not waited
                    ):
                        # Devices answer unreadable commands with CTAG 0: possibly this one, or
                        # another client's. If the next command is answered first, it was this one.
                        untagged = [message]
                        if last_ctag == ctag:
                            last_ctag = self._send(
                                connection, self._dialect.keep_alive, {}
                            )
                            deadline.reschedule(now() + timeout)
                    else:
                        self.log.debug(
                            "%s: stray reply to %s",
                            self._session.name,
                            message.ctag,
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
