"""Runs commands on a device over SSH, each in a channel of one kept connection."""

import asyncio
import functools
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import paramiko

from patchlight.controller.circuits import contract
from patchlight.controller.circuits.dialect import Dialect, Session, shortened
from patchlight.controller.circuits.protocols import ssh, tcp
from patchlight.controller.circuits.protocols.session import (
    AnyConnection,
    KeptSession,
)
from patchlight.testbed.errors import reason

_WORDS_KEPT = 500  # characters of an invalid answer
_MOST_OUTPUT = 16 << 20  # bytes; a table of 100,000 entries has some 12 MB


@dataclass(frozen=True)
class CommandDialect(Dialect):
    """``keep_alive`` is what an idle session runs."""

    keep_alive: str = "true"


class AnyCommandConnection(AnyConnection, Protocol):
    """A login, in which commands run one after the other; see ``CommandConnection``."""

    async def run(
        self,
        command: str,
        text: str,
        timeout_s: float,
    ) -> tuple[int, str, str]:
        """The command's exit status, output and errors, with ``text`` as its input."""


Login = Callable[[Session], Awaitable[AnyCommandConnection]]


class CommandConnection:
    """A login over SSH."""

    flooded = False

    def __init__(self, transport: paramiko.Transport) -> None:
        self._transport = transport

    @classmethod
    async def log_in(cls, session: Session) -> "CommandConnection":
        """Connect and log in; raises ``OSError`` and ``LoginRefused``."""
        work = functools.partial(ssh.log_in, session)
        return cls(await ssh.finished(work, lambda late: late.close()))

    @property
    def trouble(self) -> str:
        """Why it ended."""
        return "" if self._transport.is_active() else "the connection was lost"

    async def close(self) -> None:
        """Close it."""
        await asyncio.to_thread(self._transport.close)

    async def run(
        self,
        command: str,
        text: str,
        timeout_s: float,
    ) -> tuple[int, str, str]:
        """The command's exit status, output and errors, with ``text`` as its input.

        ``ConnectionLost`` if the connection ends before; ``TimeoutError``.
        """
        work = functools.partial(
            self._run,
            command,
            text,
            timeout_s,
        )
        return await ssh.finished(work, lambda _: None)

    def _run(
        self,
        command: str,
        text: str,
        timeout_s: float,
    ) -> tuple[int, str, str]:
        try:
            channel = self._transport.open_session(timeout=timeout_s)
            channel.settimeout(timeout_s)
            channel.exec_command(command)
            channel.sendall(text.encode())
            channel.shutdown_write()
            output = channel.makefile("rb").read(_MOST_OUTPUT)
            errors = channel.makefile_stderr("rb").read(_MOST_OUTPUT)
            status = channel.recv_exit_status()
            channel.close()
        except (paramiko.SSHException, EOFError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise tcp.ConnectionLost(reason(error)) from error
        if status < 0:
            raise tcp.ConnectionLost("the command ended without a status")
        return (
            status,
            output.decode("utf-8", "replace"),
            errors.decode("utf-8", "replace"),
        )


class CommandClient(KeptSession[AnyCommandConnection, CommandDialect]):
    """One login on one device. All methods belong to one event loop."""

    protocol = "SSH"
    log = logging.getLogger("patchlight.ssh")

    def __init__(
        self,
        session: Session,
        dialect: CommandDialect,
        login: Login = CommandConnection.log_in,
    ) -> None:
        super().__init__(session, dialect)
        self._login = login

    async def run(
        self,
        command: str,
        text: str = "",
        *,
        changes: bool = False,
        expected: str = "",
        timeout_s: float | None = None,
    ) -> tuple[str, str]:
        """Output and errors of a command, with ``text`` as its input.

        ``DeviceRefused`` with its last error if its exit status is not 0, or its output lacks the
        ``expected`` pattern. One that ``changes`` something and whose end is not known raises
        ``OutcomeUnknown``.
        """
        shown = functools.partial(shortened, command)

        async def exchange(
            connection: AnyCommandConnection, timeout_s: float
        ) -> tuple[str, str]:
            self._sends(command)
            async with asyncio.timeout(timeout_s):
                status, output, errors = await connection.run(
                    command, text, timeout_s
                )
            if status or not re.search(expected, output):
                lines = (
                    errors.strip() or output.strip() or f"status {status}"
                ).splitlines()
                raise self._refused(
                    shown(), self._mask(lines[-1]), str(status)
                )
            return output, errors

        return await self._run(
            exchange,
            shown,
            timeout_s,
            changes=changes,
        )

    def nonsense(self, command: str, answer: str) -> contract.DeviceRefused:
        """The error for an invalid answer."""
        words = self._mask(answer)[:_WORDS_KEPT]
        return contract.DeviceRefused(
            f"{self._session.name} answered {command} with an invalid value: {words}",
            words=words,
            hint="if its software has another format, correct the driver's dialect",
        )

    async def _connect(self) -> AnyCommandConnection:
        login = self.links.log_in or self._login
        connection: AnyCommandConnection = await login(self._session)
        return connection

    async def _log_in(self) -> None:
        """The connection is logged in."""

    async def _log_out(self) -> None:
        """Closing the connection is the logout."""

    async def _say_something(self) -> None:
        await self.run(self._dialect.keep_alive)
