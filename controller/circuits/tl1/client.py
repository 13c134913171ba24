"""A TL1 session over TCP that stays usable: login, CTAGs, deadlines, reconnecting.

One command is in flight at a time. A command that changes something and whose reply did not
come raises ``OutcomeUnknown``; one that only reads is tried once more, then raises
``DeviceUnreachable``. The password never reaches a log or an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections import deque
from dataclasses import dataclass

from controller.circuits.contract import (
    Alarm,
    DeviceRefused,
    DeviceUnreachable,
    LoginRefused,
)
from controller.circuits.tl1.connection import Connection, ConnectionLost
from controller.circuits.tl1.dialects import SessionDialect
from controller.circuits.tl1.framing import BUFFER_LIMIT, FramingError
from controller.circuits.tl1.messages import (
    SEVERITIES,
    Acknowledgement,
    Autonomous,
    Body,
    Response,
    quote,
)
from testbed.errors import OutcomeUnknown, PatchlightError

log = logging.getLogger("patchlight.tl1")

_ALARMS_KEPT = 1000
_ACKNOWLEDGED_LIMIT = 10  # acknowledgements extend a deadline to at most so many times itself
_LOGIN_SETTLES_S = 0.5  # some units answer "not logged in" for a moment after the login


@dataclass(frozen=True)
class Session:
    """Whom to log in where, and how long to wait (seconds)."""

    name: str
    host: str
    port: int
    user: str
    password: str
    timeout_s: float = 10.0
    connect_timeout_s: float = 5.0
    keep_alive_s: float = 60.0


@dataclass(frozen=True)
class Reply:
    """A whole reply, its parts joined. ``code``: COMPLD, or PRTL, DELAY, RTRV."""

    code: str
    lines: tuple[str, ...]
    words: str


class Tl1Client:
    """One login on one network element. All methods belong to one event loop."""

    def __init__(self, session: Session, dialect: SessionDialect) -> None:
        self._session = session
        self._dialect = dialect
        self._lock = asyncio.Lock()
        self._connection: Connection | None = None
        self._keep_alive_task: asyncio.Task[None] | None = None
        self._ctag = 0
        self._last_used = 0.0
        self._logged_in_at = 0.0
        self._alarms: deque[Alarm] = deque(maxlen=_ALARMS_KEPT)

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """The last autonomous messages, oldest first."""
        return tuple(self._alarms)

    async def open(self) -> None:
        """Connect and log in, and keep the session alive until ``close``."""
        async with self._lock:
            await self._ensure_session()
        if self._keep_alive_task is None:
            self._keep_alive_task = asyncio.create_task(self._keep_alive())

    async def close(self) -> None:
        """Log out (if the device still listens) and drop the connection."""
        if self._keep_alive_task is not None:
            self._keep_alive_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keep_alive_task
            self._keep_alive_task = None
        async with self._lock:
            if self._connection is not None:
                with contextlib.suppress(PatchlightError, ConnectionLost, TimeoutError):
                    await self._exchange(self._dialect.logout, {}, 1.0, paged=False)
            await self._disconnect()

    async def command(
        self,
        template: str,
        values: dict[str, str] | None = None,
        *,
        changes: bool = False,
        paged: bool = False,
        timeout_s: float | None = None,
    ) -> Reply:
        """Send one command and wait for its whole reply.

        ``template`` comes from a dialect; ``values`` fill it (the CTAG is added). With
        ``changes`` an unanswered command raises ``OutcomeUnknown``, else
        ``DeviceUnreachable``. ``paged``: the device may repeat whole replies as pages. A
        denial raises ``DeviceRefused`` with the device's words.
        """
        timeout = self._session.timeout_s if timeout_s is None else timeout_s
        values = values or {}
        async with self._lock:
            logged_in_again = retried = False
            while True:
                await self._ensure_session()
                try:
                    return await self._exchange(template, values, timeout, paged=paged)
                except (ConnectionLost, TimeoutError, FramingError) as error:
                    reason = self._reason(error, timeout)
                    await self._disconnect()
                    what = self._shown(template, values)
                    if changes:
                        raise OutcomeUnknown(
                            f"{self._session.name}: {what} was sent, then {reason}: whether it "
                            "was done is unknown",
                            hint="read the device's map before anything else",
                        ) from error
                    if retried or isinstance(error, TimeoutError):
                        raise DeviceUnreachable(
                            f"{self._session.name}: no reply to {what}: {reason}"
                        ) from error
                    retried = True
                except DeviceRefused as refusal:
                    said = f"{refusal.code} {refusal.words}"
                    if logged_in_again or not self._says(self._dialect.not_logged_in, said):
                        raise
                    # It was refused for want of a login, so nothing of it was done.
                    logged_in_again = True
                    if asyncio.get_running_loop().time() - self._logged_in_at < 1:
                        await asyncio.sleep(_LOGIN_SETTLES_S)
                    else:
                        await self._disconnect()

    # --- the session ---------------------------------------------------------------------

    async def _ensure_session(self) -> None:
        if self._connection is not None and not self._connection.trouble:
            return
        await self._disconnect()
        host, port, wait_s = self._session.host, self._session.port, self._session.connect_timeout_s
        try:
            async with asyncio.timeout(wait_s):
                self._connection = await Connection.open(host, port, self._note)
        except (OSError, TimeoutError) as error:
            raise DeviceUnreachable(
                f"connecting to {self._session.name} at {host}:{port}: "
                f"{str(error) or f'no answer in {wait_s:g} s'}",
                hint="check that the device is on, and its address in the lab file",
            ) from error
        try:
            await self._login()
        except (ConnectionLost, TimeoutError, FramingError) as error:
            reason = self._reason(error, self._session.timeout_s)
            await self._disconnect()
            raise DeviceUnreachable(
                f"logging in to {self._session.name} at {host}:{port}: {reason}",
                hint="is it a TL1 port?",
            ) from error
        except BaseException:
            await self._disconnect()
            raise

    async def _login(self) -> None:
        user = self._session.user
        values = {"user": quote(user), "password": quote(self._session.password)}
        try:
            await self._exchange(self._dialect.login, values, self._session.timeout_s, paged=False)
        except DeviceRefused as refusal:
            if not self._says(self._dialect.already_logged_in, refusal.words):
                raise LoginRefused(
                    f"logging in to {self._session.name} as {user!r} was refused: {refusal.words}",
                    words=refusal.words,
                    hint="check user and password_env of the circuit switch in the lab file",
                ) from refusal
        self._logged_in_at = asyncio.get_running_loop().time()

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _keep_alive(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            idle = loop.time() - self._last_used
            if idle < self._session.keep_alive_s:
                await asyncio.sleep(self._session.keep_alive_s - idle)
                continue
            self._last_used = loop.time()
            try:
                await self.command(self._dialect.keep_alive)
            except PatchlightError as error:
                log.warning("%s: keep-alive: %s", self._session.name, error.message)

    # --- one command ---------------------------------------------------------------------

    async def _exchange(
        self, template: str, values: dict[str, str], timeout: float, *, paged: bool
    ) -> Reply:
        connection = self._connection
        if connection is None:
            raise ConnectionLost
        try:
            parts = await self._collect(connection, template, values, timeout, paged=paged)
        finally:
            connection.done()
        code, body = parts[-1].code, parts[-1].body
        if code == "DENY":
            words = self._mask(body.words) or "it gave no reason"
            raise self._refused(template, values, body.bare.partition(" ")[0], words)
        return Reply(
            code,
            tuple(line for part in parts for line in part.body.quoted),
            self._mask("; ".join(r for part in parts if (r := _remarks(part.body)))),
        )

    async def _collect(
        self,
        connection: Connection,
        template: str,
        values: dict[str, str],
        timeout: float,
        *,
        paged: bool,
    ) -> list[Response]:
        """Send, then gather the parts of the reply: the last one tells how it ended."""
        now = asyncio.get_running_loop().time
        deadline = now() + timeout
        async with asyncio.timeout_at(deadline):
            ctag = last_ctag = await self._send(connection, template, values)
        parts: list[Response] = []
        waited = size = 0
        while True:
            async with asyncio.timeout_at(deadline):
                message = await connection.receive()
            if isinstance(message, Acknowledgement):
                if message.code in ("NA", "NG") and message.ctag == ctag:
                    raise self._refused(template, values, message.code, "not accepted")
                if message.ctag in (ctag, last_ctag) and waited < _ACKNOWLEDGED_LIMIT:
                    waited += 1
                    deadline = now() + timeout
                continue
            # Elements answer a command that they could not read with CTAG 0.
            if message.ctag in (ctag, "0"):
                parts.append(message)
                size += len(message.body.text)
                if size > BUFFER_LIMIT:
                    raise FramingError(f"the reply is longer than {BUFFER_LIMIT} bytes")
                if message.more:
                    continue
                if message.code == "DENY" or not paged:
                    return parts
                if last_ctag == ctag:
                    # Pages look like whole replies, each ended with ";". The element works
                    # in order: when it answers the next command, all pages are here.
                    last_ctag = await self._send(connection, self._dialect.keep_alive, {})
                    deadline = now() + timeout
            elif message.ctag == last_ctag and not message.more:
                return parts
            else:
                log.debug("%s: stray reply to %s", self._session.name, message.ctag)

    async def _send(self, connection: Connection, template: str, values: dict[str, str]) -> str:
        self._ctag = self._ctag % 999_999 + 1
        ctag = str(self._ctag)
        log.debug("%s < %s", self._session.name, self._shown(template, {**values, "ctag": ctag}))
        self._last_used = asyncio.get_running_loop().time()
        user = quote(self._session.user)
        await connection.send(template.format(**{"user": user, **values, "ctag": ctag}))
        return ctag

    def _note(self, message: Autonomous) -> None:
        severity = SEVERITIES[message.alarm_code]
        subject, _, _ = (message.body.quoted or ("",))[0].partition(":")
        words = self._mask(f"{message.verb}: {message.body.words}")
        self._alarms.append(Alarm(time.time(), severity, subject, words))
        level = logging.DEBUG if severity == "notice" else logging.WARNING
        log.log(level, "%s > %s %s", self._session.name, severity, words)

    # --- words ---------------------------------------------------------------------------

    def _refused(
        self, template: str, values: dict[str, str], code: str, words: str
    ) -> DeviceRefused:
        return DeviceRefused(
            f"{self._session.name} refused {self._shown(template, values)}: {words}",
            code=code,
            words=words,
        )

    def _shown(self, template: str, values: dict[str, str]) -> str:
        """The command as logs and errors may have it: no password; long lists cut."""
        shown = {"user": quote(self._session.user), "ctag": "", **values, "password": "****"}
        text = template.format(**shown)
        return text if len(text) <= 200 else text[:197] + "..."

    def _mask(self, text: str) -> str:
        secret = self._session.password
        return text.replace(secret, "****") if secret else text

    def _reason(self, error: Exception, timeout_s: float) -> str:
        if isinstance(error, TimeoutError):
            return f"nothing came back within {timeout_s:g} s"
        trouble = self._connection.trouble if self._connection else ""
        return self._mask(str(error) or trouble or "the connection was lost")

    @staticmethod
    def _says(pattern: str, words: str) -> bool:
        return re.search(pattern, words, re.IGNORECASE) is not None


def _remarks(body: Body) -> str:
    return "; ".join(part for part in (body.bare, *body.comments) if part)
