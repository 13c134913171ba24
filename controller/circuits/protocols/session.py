"""Keeps a session with a device usable: login, deadlines, reconnecting, keep-alive.

One exchange is in flight at a time. An exchange that changes something and gets no reply raises
``OutcomeUnknown``; a read is repeated once, then raises ``DeviceUnreachable``. The password never
appears in a log or an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import ClassVar, Generic, Protocol, TypeVar

from patchlight.controller.circuits import contract
from patchlight.controller.circuits.dialect import (
    DEFAULT_LINKS,
    Dialect,
    Session,
    shortened,
)
from patchlight.controller.circuits.protocols import tcp
from patchlight.testbed.errors import PatchlightError

_ALARM_WORDS_KEPT = (
    500  # maximum characters of each, so that a flood of long ones is limited
)
_PAUSE_AFTER_LOGIN_REFUSED_S = 300.0  # before an idle session retries
_PAUSE_AFTER_FLOOD_S = 10.0  # before the next connection
_LOGIN_SETTLES_S = (
    0.5  # some units answer "not logged in" for a moment after the login
)


class AnyConnection(Protocol):
    """A session's connection. ``trouble`` says why it ended, or is empty."""

    @property
    def trouble(self) -> str:
        """Why it ended."""

    @property
    def flooded(self) -> bool:
        """Whether it was closed because of too much data."""

    async def close(self) -> None:
        """Close it."""


C = TypeVar("C", bound=AnyConnection)
D = TypeVar("D", bound=Dialect)
M = TypeVar("M")
R = TypeVar("R")


class AlarmLog:
    """The last 1000 alarms of a device, oldest first."""

    def __init__(self) -> None:
        self._log: deque[contract.Alarm] = deque(maxlen=1000)
        self._standing: dict[contract.Standing, contract.Alarm] = {}

    @property
    def all(self) -> tuple[contract.Alarm, ...]:
        """All of them; ``standing`` is set on those in the last read list."""
        stand = {id(alarm) for alarm in self._standing.values()}
        return tuple(
            replace(alarm, standing=True) if id(alarm) in stand else alarm
            for alarm in self._log
        )

    def note(
        self,
        severity: contract.Severity,
        subject: str,
        words: str,
    ) -> None:
        """The device reports something now."""
        self._log.append(
            contract.Alarm(
                time.time(),
                severity,
                subject,
                words,
            )
        )

    def stands(self, found: Iterable[contract.Standing]) -> None:
        """The list of active alarms; new ones count as reported now."""
        kept = {id(alarm) for alarm in self._log}
        standing: dict[contract.Standing, contract.Alarm] = {}
        for one in found:
            alarm = self._standing.get(one)
            if alarm is None or id(alarm) not in kept:
                alarm = self._reported(one)
            if alarm is None:
                self.note(one.severity, one.subject, one.words)
                alarm = self._log[-1]
            standing[one] = alarm
        self._standing = standing

    def _reported(self, one: contract.Standing) -> contract.Alarm | None:
        if not one.reported:
            return None
        same = (a for a in reversed(self._log) if a.subject == one.subject)
        return next((a for a in same if one.reported in a.words), None)


class KeptSession(ABC, Generic[C, D]):
    """One login on one device, over any connection. All methods belong to one event loop."""

    protocol: ClassVar[str]
    log: ClassVar[logging.Logger]

    def __init__(self, session: Session, dialect: D) -> None:
        self._session = session
        self._dialect = dialect
        self.links = DEFAULT_LINKS
        self.connections = 0
        self._lock = asyncio.Lock()
        self._connection: C | None = None
        self._keep_alive_task: asyncio.Task[None] | None = None
        self._last_used = 0.0
        self._logged_in_at = self._quiet_until = 0.0
        self._asking = 0
        self._alarms = AlarmLog()

    # --- what a protocol adds ---------------------------------------------------------------

    @abstractmethod
    async def _connect(self) -> C:
        """Connect to the device; raises ``OSError``, or ``LoginRefused`` if that comes first."""

    @abstractmethod
    async def _log_in(self) -> None:
        """Log in over the new connection; raises ``LoginRefused``."""

    @abstractmethod
    async def _log_out(self) -> None:
        """Log out over the connection, which may be broken."""

    @abstractmethod
    async def _say_something(self) -> None:
        """What keeps an idle session alive."""

    def _wants_login(self, refusal: contract.DeviceRefused) -> bool:
        """Whether that was refused because the session is not logged in."""
        return False

    @property
    def alarms(self) -> tuple[contract.Alarm, ...]:
        """The device's reports, oldest first (the last 1000)."""
        return self._alarms.all

    async def hear(self) -> tuple[contract.Alarm, ...]:
        """The same; a device without events is polled first."""
        return self.alarms

    def _alarm(
        self,
        severity: contract.Severity,
        subject: str,
        words: str,
    ) -> None:
        words, subject = (
            self._mask(text)[:_ALARM_WORDS_KEPT] for text in (words, subject)
        )
        self._alarms.note(severity, subject, words)
        level = logging.DEBUG if severity == "notice" else logging.INFO
        self.log.log(
            level,
            "%s > %s %s",
            self._session.name,
            severity,
            words,
        )

    async def open(self) -> None:
        """Connect and log in, and keep the session alive until ``close``."""
        async with self._lock:
            if self._connection is None or self._connection.trouble:
                await self._new_session()
            self._last_used = asyncio.get_running_loop().time()
        if self._keep_alive_task is None:
            self._keep_alive_task = asyncio.create_task(self._keep_alive())

    async def close(self) -> None:
        """Log out if possible, and close the connection."""
        if self._keep_alive_task is not None:
            self._keep_alive_task.cancel()
            await asyncio.wait([self._keep_alive_task])
            self._keep_alive_task = None
        async with self._lock:
            if self._connection is not None:
                with contextlib.suppress(
                    PatchlightError, tcp.ConnectionLost, TimeoutError
                ):
                    await self._log_out()
            await self._disconnect()

    async def _run(
        self,
        exchange: Callable[[C, float], Awaitable[R]],
        shown: Callable[[], str],
        timeout_s: float | None = None,
        *,
        changes: bool,
    ) -> R:
        """Do one exchange on a live session; see the module for failures.

        ``exchange`` is called with the connection and its timeout in seconds: the session's without
        ``timeout_s``. ``shown`` returns the command for errors.
        """
        self._asking += 1
        try:
            async with self._lock:
                answer = await self._with_repeats(
                    exchange, shown, timeout_s, changes=changes
                )
        finally:
            self._asking -= 1
        if self._asking:
            # The next command is sent before this answer is used.
            await asyncio.sleep(0)
        return answer

    async def _with_repeats(
        self,
        exchange: Callable[[C, float], Awaitable[R]],
        shown: Callable[[], str],
        timeout_s: float | None,
        *,
        changes: bool,
    ) -> R:
        timeout_s = (
            self._session.timeouts.answer_s if timeout_s is None else timeout_s
        )
        loop = asyncio.get_running_loop()
        logged_in_again = retried = False
        while True:
            connection = self._connection
            if connection is None or connection.trouble:
                connection = await self._new_session()
            self._last_used = loop.time()
            try:
                return await exchange(connection, timeout_s)
            except (
                tcp.ConnectionLost,
                TimeoutError,
                tcp.FramingError,
            ) as error:
                reason = self._reason(error, timeout_s)
                await self._disconnect()
                if changes:
                    raise contract.outcome_unknown(
                        f"{self._session.name}: {shown()} was sent, then {reason}: the "
                        "result is unknown",
                        is_late=isinstance(error, TimeoutError),
                    ) from error
                if retried or isinstance(error, TimeoutError):
                    raise contract.DeviceUnreachable(
                        f"{self._session.name}: no reply to {shown()}: {reason}"
                    ) from error
                retried = True
            except contract.DeviceRefused as refusal:
                level = logging.INFO if changes else logging.DEBUG
                self.log.log(
                    level,
                    "%s > %s",
                    self._session.name,
                    shortened(refusal.words),
                )
                if logged_in_again or not self._wants_login(refusal):
                    raise
                # It was refused because the session is not logged in, so nothing was done.
                logged_in_again = True
                if loop.time() - self._logged_in_at < 1:
                    await asyncio.sleep(_LOGIN_SETTLES_S)
                else:
                    await self._disconnect()

    async def _new_session(self) -> C:
        """Connect and log in again."""
        await self._disconnect()
        host = self._session.host
        port = self._session.port
        wait_s = self._session.timeouts.connect_s
        pause_s = self._quiet_until - asyncio.get_running_loop().time()
        if pause_s > 0:
            raise contract.DeviceUnreachable(
                f"{self._session.name} at {host}:{port} was disconnected: it sent too much "
                f"unsolicited data; the next attempt is in {pause_s:.0f} s",
                hint="check what the device reports so often",
            )
        try:
            async with asyncio.timeout(wait_s):
                self._connection = await self._connect()
        except (OSError, TimeoutError) as error:
            raise contract.DeviceUnreachable(
                f"connecting to {self._session.name} at {host}:{port}: "
                f"{str(error) or f'no answer in {wait_s:g} s'}",
                hint="check that the device is on, and its address in the lab file",
            ) from error
        try:
            await self._log_in()
        except (tcp.ConnectionLost, TimeoutError, tcp.FramingError) as error:
            reason = self._reason(error, self._session.timeouts.answer_s)
            await self._disconnect()
            raise contract.DeviceUnreachable(
                f"logging in to {self._session.name} at {host}:{port}: {reason}",
                hint=f"is it a {self.protocol} port?",
            ) from error
        except BaseException:
            await self._disconnect()
            raise
        self.connections += 1
        self._logged_in_at = asyncio.get_running_loop().time()
        return self._connection

    def _connected(self) -> C:
        if self._connection is None:
            raise tcp.ConnectionLost
        return self._connection

    async def _disconnect(self) -> None:
        connection = self._connection
        self._connection = None
        if connection is not None:
            if connection.flooded:
                now = asyncio.get_running_loop().time()
                self._quiet_until = now + _PAUSE_AFTER_FLOOD_S
            await connection.close()

    async def _keep_alive(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            idle = loop.time() - self._last_used
            if idle < self._session.timeouts.keep_alive_s:
                await asyncio.sleep(self._session.timeouts.keep_alive_s - idle)
                continue
            self._last_used = loop.time()
            try:
                await self._say_something()
            except PatchlightError as error:
                if isinstance(error, contract.LoginRefused):
                    # Some units lock an account after a few wrong passwords.
                    self._last_used += _PAUSE_AFTER_LOGIN_REFUSED_S
                self.log.warning(
                    "%s: keep-alive: %s", self._session.name, error.message
                )

    def _mask(self, text: str) -> str:
        return self._session.masked(text)

    def _sends(self, shown: str) -> None:
        """Log a command in its form for logs."""
        self.log.debug("%s < %s", self._session.name, shortened(shown))

    def _refused(
        self,
        shown: str,
        words: str,
        code: str = "",
    ) -> contract.DeviceRefused:
        message = f"{self._session.name} refused {shown}: {words}"
        return contract.DeviceRefused(
            message,
            code=code,
            words=words,
        )

    def _reason(self, error: Exception, timeout_s: float) -> str:
        if isinstance(error, TimeoutError):
            return f"no answer within {timeout_s:g} s"
        trouble = self._connection.trouble if self._connection else ""
        return self._mask(str(error) or trouble or "the connection was lost")


class DeviceSession(KeptSession[tcp.DeviceConnection[M], D], Generic[M, D]):
    """A session over a connection of messages: TCP, unless ``_connect`` is overridden.

    ``_unasked`` handles an unsolicited message; it is ``False`` if that may be an answer.
    """

    _unasked: Callable[[M], bool] | None = None

    @abstractmethod
    def _framer(self) -> tcp.Framer[M]:
        """A new parser for a new connection."""

    @property
    def buffered(self) -> int:
        """Bytes of a message that is not complete yet."""
        return 0 if self._connection is None else self._connection.buffered

    async def _in_step(
        self,
        text: str,
        take: tcp.Take[M, R],
        shown: Callable[[], str],
        timeout_s: float | None = None,
        *,
        changes: bool,
    ) -> R:
        """Send a command without a tag; what its answer says. For the rest see ``_run``."""

        def exchange(
            connection: tcp.DeviceConnection[M], timeout_s: float
        ) -> Awaitable[R]:
            if self.log.isEnabledFor(logging.DEBUG):
                self._sends(shown())
            return connection.exchange(text, take, timeout_s)

        return await self._run(
            exchange,
            shown,
            timeout_s,
            changes=changes,
        )

    async def _connect(self) -> tcp.DeviceConnection[M]:
        host = self._session.host
        port = self._session.port
        return await tcp.DeviceConnection.open(
            host,
            port,
            self._framer(),
            self._unasked,
        )
