"""Keeps a session in a device's shell over SSH, and pins devices' host keys.

The pins are a file in OpenSSH's known_hosts form, ``~/.config/patchlight/known_hosts`` or the one
that ``PATCHLIGHT_KNOWN_HOSTS`` names. A new key is written there with a warning in the log, and a
changed one is refused. To disable trust on first use, set ``PATCHLIGHT_HOST_KEYS=strict`` and fill
the file beforehand: ``ssh-keyscan -p PORT HOST``, after comparing the fingerprint with the one on
the device's console.

A shell has no tags. So the terminal's echo of the command must precede its reply: otherwise the two
sides are out of step, and the session reconnects. For unanswered commands see ``DeviceSession``.
"""

import asyncio
import codecs
import contextlib
import functools
import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import ClassVar, TypeVar, cast

import paramiko
from paramiko.pkey import UnknownKeyType

from patchlight.controller.circuits.contract import (
    Alarm,
    LoginRefused,
    Severity,
)
from patchlight.controller.circuits.dialect import (
    DEFAULT_LINKS,
    DeviceLinks,
    Dialect,
    Pattern,
    Session,
    Template,
    shortened,
)
from patchlight.controller.circuits.protocols import tcp
from patchlight.controller.circuits.protocols.session import DeviceSession
from patchlight.testbed.errors import reason
from patchlight.testbed.host_keys import (
    KnownHosts,
    has_key,
    is_named,
    known_name,
    offered_keys,
    prefer_key_types,
    types_of,
)
from patchlight.testbed.legacy_ssh import allow_legacy, explained
from patchlight.testbed.linux.files import append_line, user_folder

FILE_VARIABLE = "PATCHLIGHT_KNOWN_HOSTS"
POLICY_VARIABLE = "PATCHLIGHT_HOST_KEYS"
STRICT = "strict"

log = logging.getLogger("patchlight.ssh")


class DeviceKeyRefused(LoginRefused):
    """The device's host key is not the pinned one; no password was sent."""


class RetryWithExpectedKey(ConnectionError):
    """The device has the expected key, but presented another: the next login requests it."""


def check_host_key(
    session: Session,
    key: paramiko.PKey,
    connect: Callable[[], paramiko.Transport],
) -> None:
    """``DeviceKeyRefused`` unless ``key`` is pinned, or the first, or has the fingerprint in the
    lab file; ``RetryWithExpectedKey`` if the device has that key, too: log in again to get it.

    Reads and writes a file and may ``connect``: call it in a thread.
    """
    name = session.name
    path = pins_path()
    where = f"[{session.host}]:{session.port}"
    if session.host_key is not None:
        if key.fingerprint == session.host_key:
            return
        offered = offered_keys(connect, key, session.timeouts.connect_s)
        if has_key(offered, session.host_key):
            raise RetryWithExpectedKey
        raise DeviceKeyRefused(
            f"{name} at {where} presents {_listed(offered)}, not {session.host_key} as in the lab "
            "file: this may be a man-in-the-middle attack",
            hint="correct 'host_key' in the lab file if the device is new or was reset",
        )
    known = _pins(session)
    if key.asbytes() in known.revoked:
        raise DeviceKeyRefused(
            f"{name} at {where} presents {_listed([key])}, which is revoked in {path}",
            hint="it may have leaked: generate a new one on the device",
        )
    pinned = known.of(session.host, session.port)
    if any(each.asbytes() == key.asbytes() for each in pinned):
        return
    # From here on, a device is new only if the file has no line for it.
    ports = f"-p {session.port} {session.host}"
    types = known.types(session.host, session.port)
    if types and key.get_name() not in types:
        offered = offered_keys(connect, key, session.timeouts.connect_s)
        scanned = key.get_name().removeprefix("ssh-").split("-")[0]
        sha1 = (
            "; if it supports RSA with SHA-1 only, also set 'legacy_ssh: true'"
            if "ssh-rsa" in types
            else ""
        )
        raise DeviceKeyRefused(
            f"{name} at {where} offers {_listed(offered)}, but the key pinned in {path} has the "
            f"type {', '.join(sorted(types))}: the type of its key has changed",
            hint="compare the fingerprint with the device's console, then pin the key: "
            f"ssh-keyscan -t {scanned} {ports} >> {path}{sha1}",
        )
    if types:
        named = [each for names, _ in known.entries for each in names]
        is_whole = any(is_named(where, each) for each in named)
        raise DeviceKeyRefused(
            f"{name} at {where} presents {_listed([key])}, not the one pinned in {path}: "
            "this may be a man-in-the-middle attack",
            hint="if the device is new or was reset: ssh-keygen -R "
            f"'{where if is_whole else known_name(session.host, session.port)}' -f {path}",
        )
    if os.environ.get(POLICY_VARIABLE) == STRICT:
        raise DeviceKeyRefused(
            f"{name} at {where} presents {_listed([key])}, which is not in {path}",
            hint=f"compare it with the device's console, then: ssh-keyscan {ports} >> {path}",
        )
    try:
        append_line(path, f"{where} {key.get_name()} {key.get_base64()}")
    except OSError as error:
        # A trusted key must be stored, or every key would be trusted.
        raise DeviceKeyRefused(
            f"the host key of {name} cannot be pinned in {path}: {error.strerror}",
            hint=f"set {FILE_VARIABLE} to a writable file",
        ) from error
    shown = f"{key.get_name()} {key.fingerprint}"
    log.warning(
        "%s at %s: pinned its host key %s in %s",
        name,
        where,
        shown,
        path,
    )


def _listed(keys: Sequence[paramiko.PKey]) -> str:
    shown = " and ".join(f"{key.get_name()} {key.fingerprint}" for key in keys)
    return f"the host key{'s' * (len(keys) > 1)} {shown}"


def _pins(session: Session) -> KnownHosts:
    path = pins_path()
    try:
        return KnownHosts.read(path)
    except OSError as error:
        raise DeviceKeyRefused(
            f"the host key of {session.name} at [{session.host}]:{session.port} cannot be checked: "
            f"reading {path}: {error.strerror}",
            hint="correct or remove that file",
        ) from error


def prepared(
    transport: paramiko.Transport, session: Session
) -> paramiko.Transport:
    """A connection before its handshake, which prefers host keys of pinned types."""
    if session.legacy_ssh:
        allow_legacy(transport, session.name)
    if session.host_key is None:
        types = _pins(session).types(session.host, session.port)
    else:
        types = types_of((), session.host_key)
    prefer_key_types(transport, types)
    return transport


def connected(session: Session) -> paramiko.Transport:
    """A prepared connection; may raise ``OSError``."""
    wait_s = session.timeouts.connect_s
    transport = paramiko.Transport(
        socket.create_connection((session.host, session.port), wait_s)
    )
    try:
        prepared(transport, session)
    except BaseException:
        transport.sock.close()
        raise
    transport.set_log_channel(f"{_LOG}.transport")
    transport.banner_timeout = transport.auth_timeout = wait_s
    return transport


def pins_path() -> Path:
    """The file of pins."""
    if named := os.environ.get(FILE_VARIABLE):
        return Path(named)
    return (
        user_folder("XDG_CONFIG_HOME", ".config")
        / "patchlight"
        / "known_hosts"
    )


_CHUNK = 65536
_LOG = "patchlight.ssh"
T = TypeVar("T")

# Errors are raised here; paramiko would log them again.
for _name in (f"{_LOG}.transport", "paramiko"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)


async def connection_over(
    session: Session,
    make: Callable[[], tcp.DeviceConnection[str]],
    links: DeviceLinks = DEFAULT_LINKS,
    subsystem: str = "",
) -> tcp.DeviceConnection[str]:
    """Log in and open a subsystem, or a shell on a terminal wide enough that lines do not wrap.

    Raises ``OSError`` (also for anything that is not SSH) and ``LoginRefused``.
    """
    loop = asyncio.get_running_loop()
    if not links.ssh:
        return (
            await loop.create_connection(make, session.host, session.port)
        )[1]
    channel = await finished(
        functools.partial(_open_channel, session, subsystem),
        lambda late: late.get_transport().close(),
    )
    try:
        return (await loop.create_connection(make, sock=joined(channel)))[1]
    except BaseException:
        channel.get_transport().close()
        raise


async def finished(
    blocking: Callable[[], T], let_go: Callable[[T], object]
) -> T:
    """The result of ``blocking``, run in a thread; if cancelled meanwhile, ``let_go`` gets it."""
    task = asyncio.ensure_future(asyncio.to_thread(blocking))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:

        def too_late(late: asyncio.Future[T]) -> None:
            if not late.cancelled() and late.exception() is None:
                let_go(late.result())

        task.add_done_callback(too_late)
        raise


def joined(channel: paramiko.Channel) -> socket.socket:
    """The channel as a socket; closing it closes the channel and its transport."""
    ours, theirs = socket.socketpair()
    threading.Thread(
        target=_from_channel,
        args=(channel, theirs),
        daemon=True,
    ).start()
    threading.Thread(
        target=_to_channel,
        args=(channel, theirs),
        daemon=True,
    ).start()
    return ours


def _open_channel(session: Session, subsystem: str) -> paramiko.Channel:
    wait_s = session.timeouts.connect_s
    transport = log_in(session)
    try:
        channel = transport.open_session(timeout=wait_s)
        channel.settimeout(wait_s)
        if subsystem:
            channel.invoke_subsystem(subsystem)
        else:
            channel.get_pty(
                "dumb",
                width=2000,
                height=200,
            )
            channel.invoke_shell()
        channel.settimeout(None)
    except (paramiko.SSHException, EOFError) as error:
        transport.close()
        what = f"the subsystem {subsystem}" if subsystem else "shells"
        raise ConnectionError(
            f"{reason(error)}: check that it allows {what}"
        ) from error
    except BaseException:
        transport.close()
        raise
    return channel


def log_in(session: Session) -> paramiko.Transport:
    """Connect and log in, with the key of ``identity`` or else the password; blocks.

    Raises ``OSError`` (also for anything that is not SSH) and ``LoginRefused``.
    """
    try:
        return _log_in(session)
    except RetryWithExpectedKey:
        # Now the type of the key in the lab file is known.
        return _log_in(session)


def _log_in(session: Session) -> paramiko.Transport:
    transport = connected(session)
    try:
        transport.start_client(timeout=session.timeouts.connect_s)
        check_host_key(
            session,
            transport.get_remote_server_key(),
            partial(connected, session),
        )
        if session.identity is None:
            transport.auth_password(session.user, session.password)
        else:
            transport.auth_publickey(session.user, _private_key(session))
    except paramiko.AuthenticationException as error:
        transport.close()
        raise session.login_refused(reason(error)) from error
    except (paramiko.SSHException, EOFError) as error:
        transport.close()
        words = explained(error, "legacy_ssh: true")
        raise ConnectionError(
            f"{words}: check that it is an SSH port"
        ) from error
    except BaseException:
        transport.close()
        raise
    return transport


def _private_key(session: Session) -> paramiko.PKey:
    assert session.identity is not None
    try:
        return paramiko.PKey.from_path(Path(session.identity).expanduser())
    except (
        OSError,
        ValueError,
        TypeError,
        paramiko.SSHException,
        UnknownKeyType,
    ) as error:
        raise session.login_refused(
            f"reading the key {session.identity}: {reason(error)}"
        ) from error


def _from_channel(channel: paramiko.Channel, to: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := channel.recv(_CHUNK):
            to.sendall(data)
    with contextlib.suppress(OSError):
        to.shutdown(socket.SHUT_WR)


def _to_channel(channel: paramiko.Channel, source: socket.socket) -> None:
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
        while data := source.recv(_CHUNK):
            channel.sendall(data)
    # Both directions are closed: by the device or here.
    channel.get_transport().close()
    source.close()


_LOOK_BACK = 512  # characters: earlier text may be the start of a prompt
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])"
)


@dataclass(frozen=True)
class ShellDialect(Dialect):
    """What a session takes.

    ``prompt`` matches the whole last line of a login's output, which is then the prompt. A reply
    with a line that contains ``error_line`` is a refusal. Lines that match ``alarm_line`` are
    unsolicited, not part of a reply.
    """

    FIELDS: ClassVar[frozenset[str]] = frozenset()

    prompt: Pattern = r"[^\r\n]{0,60}[>#$%] ?"
    keep_alive: Template = "switchstate"
    error_line: Pattern = r"ERROR|Exception"
    alarm_line: Pattern = (
        r"(?P<severity>CRITICAL|MAJOR|MINOR|NOTICE): (?P<words>.*)"
    )


class ShellFramer:
    """Bytes in, the text before each prompt out. ``FramingError`` past ``limit`` bytes."""

    def __init__(self, prompt: str, limit: int = tcp.BUFFER_LIMIT) -> None:
        self._first = re.compile(rf"(?:^|\n)({prompt})$")
        self._next: re.Pattern[str] | None = None
        self._text = ""
        self._limit = limit
        # A character may arrive in two pieces.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def buffered(self) -> int:
        """Characters held of what is not yet complete."""
        return len(self._text)

    def feed(self, data: bytes) -> list[str]:
        """Add bytes; returns the texts that they complete."""
        added = self._decoder.decode(data).replace("\r", "")
        # Only the end of the buffer can combine with the new text.
        at = max(0, len(self._text) - _LOOK_BACK)
        at = at if (escape := self._text.find("\x1b", 0, at)) < 0 else escape
        self._text = self._text[:at] + _ESCAPES.sub(
            "", self._text[at:] + added
        )
        if self._next is None and (
            prompt := self._first.search(self._text, at)
        ):
            self._next = re.compile(rf"(?:^|\n){re.escape(prompt[1])}")
            at = 0
        whole: list[str] = []
        if self._next is not None and self._next.search(self._text, at):
            *whole, self._text = self._next.split(self._text)
        if len(self._text) > self._limit:
            raise tcp.FramingError(
                f"{len(self._text)} bytes came without the end of a reply"
            )
        return whole

    def take_telnet_replies(self) -> bytes:
        """None: SSH does not negotiate in the text."""
        return b""


class ShellClient(DeviceSession[str, ShellDialect]):
    """One connection to one device. All methods belong to one event loop."""

    protocol = "SSH"
    log = logging.getLogger("patchlight.ssh")

    def __init__(self, session: Session, dialect: ShellDialect) -> None:
        super().__init__(session, dialect)
        self._error = re.compile(dialect.error_line)
        self._alarm_line = re.compile(dialect.alarm_line)

    async def command(
        self,
        command: str,
        *,
        changes: bool = False,
        timeout_s: float | None = None,
    ) -> list[str]:
        """Run a command; returns the lines of its reply.

        Raises ``DeviceRefused`` with the device's message if it reports an error. One that
        ``changes`` something and is not answered raises ``OutcomeUnknown``.
        """
        take = partial(self._take, command)
        shown = partial(shortened, command)
        return await self._in_step(
            command,
            take,
            shown,
            timeout_s,
            changes=changes,
        )

    async def hear(self) -> tuple[Alarm, ...]:
        """Unsolicited lines, after a poll of its state so that they arrive."""
        await self.command(self._dialect.keep_alive)
        return self.alarms

    def _framer(self) -> ShellFramer:
        return ShellFramer(self._dialect.prompt)

    def _unasked(self, message: str) -> bool:
        """Some devices print the prompt again after unsolicited lines."""
        lines = [line.strip() for line in message.split("\n") if line.strip()]
        if not lines or not all(map(self._alarm_line.fullmatch, lines)):
            return False
        self._without_alarms(message)
        return True

    async def _connect(self) -> tcp.DeviceConnection[str]:
        make = partial(
            tcp.DeviceConnection[str],
            self._framer(),
            self._unasked,
            b"\n",
        )
        connection = await connection_over(self._session, make, self.links)
        # The login's text and the first prompt precede any command.
        connection.listen()
        return connection

    async def _log_in(self) -> None:
        greeting = await self._connected().answer(
            itemgetter(0), self._session.timeouts.answer_s
        )
        self._without_alarms(greeting)

    async def _log_out(self) -> None:
        """Closing the channel is the logout."""

    async def _say_something(self) -> None:
        await self.command(self._dialect.keep_alive)

    def _take(self, command: str, texts: Sequence[str]) -> list[str]:
        lines = self._without_alarms(texts[0])
        if not lines or lines[0].strip() != command:
            echoed = self._mask(shortened(lines[0])) if lines else ""
            raise tcp.FramingError(
                f"it echoed {echoed!r} for {shortened(command)!r}"
            )
        errors = [
            self._mask(line.strip())
            for line in lines[1:]
            if self._error.search(line)
        ]
        if errors:
            raise self._refused(
                shortened(command), shortened("; ".join(errors))
            )
        return lines[1:]

    def _without_alarms(self, text: str) -> list[str]:
        """The non-blank lines of a reply; unsolicited ones become alarms."""
        lines = []
        for line in text.split("\n"):
            if alarm := self._alarm_line.fullmatch(line.strip()):
                severity = cast(Severity, alarm["severity"].lower())
                self._alarm(severity, "", alarm["words"])
            elif line.strip():
                lines.append(line)
        return lines
