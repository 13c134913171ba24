"""Serves SSH for an emulated device: password logins, then one shell or subsystem; and NETCONF.

paramiko uses threads and its own socket; here both sides become asyncio streams, so what runs over
SSH is served like anything else.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import re
import socket
import tempfile
import threading
import time
import xml.etree.ElementTree as ET
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar
from xml.sax.saxutils import escape, quoteattr

import paramiko
from paramiko import common

from patchlight.controller.circuits.protocols.ssh import joined
from patchlight.emulation.optical.emulated_switch import EmulatedSwitch
from patchlight.emulation.optical.matrices import RequestRefused
from patchlight.emulation.optical.protocols.server import ProtocolServer
from patchlight.testbed.errors import reason
from patchlight.testbed.linux.files import NoHome, user_folder

log = logging.getLogger("patchlight.optical")
_LOG = "patchlight.optical.ssh"

# A client that disconnects early is not worth a traceback.
logging.getLogger(_LOG).setLevel(logging.CRITICAL)


class SshServer(ProtocolServer):
    """Serves ``_session`` to users who log in.

    ``subsystem`` is what a client must request; empty for a shell. Where it ``has_commands``, each
    channel runs one. ``without_ssh``: clients speak no SSH, and are this user; for simulations.
    """

    subsystem: ClassVar[str] = ""
    has_commands: ClassVar[bool] = False
    without_ssh: str | None = None

    def __init__(self, device: EmulatedSwitch) -> None:
        super().__init__(device)
        self._keys = _host_keys()

    @abstractmethod
    async def _session(
        self,
        user: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """One session of this user; the connection ends when it returns."""

    async def _in_channel(
        self, channel: paramiko.Channel, command: str
    ) -> None:
        """Run a command in its channel."""
        raise NotImplementedError

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self.without_ssh is not None:
            await self._session(self.without_ssh, reader, writer)
            return
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[paramiko.Channel] = loop.create_future()
        ours, theirs = socket.socketpair()
        transport = paramiko.Transport(theirs)
        transport.set_log_channel(_LOG)
        for key in self._keys:
            transport.add_server_key(key)
        inner = await asyncio.open_connection(sock=ours)
        tasks = [
            asyncio.create_task(_copy(reader, inner[1])),
            asyncio.create_task(_copy(inner[0], writer)),
            asyncio.create_task(self._once_opened(transport, opened)),
        ]
        commands = set[asyncio.Task[None]]()

        def begin(channel: paramiko.Channel, command: str) -> None:
            task = loop.create_task(self._in_channel(channel, command))
            commands.add(task)
            task.add_done_callback(commands.discard)

        login = _Login(
            self._device,
            self.subsystem,
            loop,
            opened,
            begin if self.has_commands else None,
        )
        try:
            # With an event it returns immediately; the handshake continues in paramiko's thread.
            transport.start_server(
                event=threading.Event(),
                server=login,
            )
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[2].done():
                # The last output is still in paramiko's threads.
                await asyncio.wait(tasks[1:2], timeout=1)
            transport.close()
            # A device completes its commands even if the client has gone.
            if opened.done():
                await tasks[2]
            await asyncio.gather(*commands)
        finally:
            for task in tasks:
                task.cancel()
            transport.close()
            inner[1].close()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _once_opened(
        self,
        transport: paramiko.Transport,
        opened: asyncio.Future[paramiko.Channel],
    ) -> None:
        reader, writer = await asyncio.open_connection(
            sock=joined(await opened)
        )
        try:
            with contextlib.suppress(OSError):
                await self._session(
                    transport.get_username() or "", reader, writer
                )
        finally:
            writer.close()


@dataclass(eq=False)
class _Login(paramiko.ServerInterface):
    device: EmulatedSwitch
    subsystem: str
    loop: asyncio.AbstractEventLoop
    opened: asyncio.Future[paramiko.Channel]
    begin: Callable[[paramiko.Channel, str], None] | None = None
    given: bool = False

    def get_allowed_auths(self, username: str) -> str:
        return "password"

    def check_auth_password(self, username: str, password: str) -> int:
        known = self.device.lets_in(username, password)
        return common.AUTH_SUCCESSFUL if known else common.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        # No forwarding.
        if kind == "session":
            return common.OPEN_SUCCEEDED
        return common.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED

    def check_channel_pty_request(self, *request: Any, **named: Any) -> bool:
        return not self.subsystem

    def check_channel_shell_request(self, channel: paramiko.Channel) -> bool:
        return not self.subsystem and self._give(channel)

    def check_channel_exec_request(
        self, channel: paramiko.Channel, command: bytes
    ) -> bool:
        if self.begin is None:
            return False
        text = command.decode("utf-8", "replace")
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.begin, channel, text)
        return True

    def check_channel_subsystem_request(
        self, channel: paramiko.Channel, name: str
    ) -> bool:
        return (
            bool(self.subsystem)
            and name == self.subsystem
            and self._give(channel)
        )

    def _give(self, channel: paramiko.Channel) -> bool:
        if self.given:
            return False
        self.given = True

        def give() -> None:
            if not self.opened.done():
                self.opened.set_result(channel)

        # The loop may have ended.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(give)
        return True


@dataclass(frozen=True)
class Ran:
    """The result of a command. ``is_whole``: its output has not lost its end."""

    status: int = 0
    output: bytes = b""
    errors: bytes = b""
    is_whole: bool = True


class CommandServer(SshServer):
    """Runs commands, each in a channel of its own or typed into a shell with this ``prompt``."""

    has_commands = True
    prompt = "$ "

    @abstractmethod
    async def _run(self, user: str, command: str) -> Ran:
        """Run a command of this user; ``OSError``: the connection ends."""

    async def _in_channel(
        self, channel: paramiko.Channel, command: str
    ) -> None:
        transport = channel.get_transport()
        try:
            ran = await self._run(transport.get_username() or "", command)
        except OSError:
            transport.close()
            return
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            await asyncio.to_thread(_answer, channel, ran)

    async def _session(
        self,
        user: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        writer.write(self.prompt.encode())
        async for line in typed_lines(reader):
            writer.write(f"{line}\r\n".encode())
            if line.strip() in ("exit", "logout"):
                return
            if line.strip():
                ran = await self._run(user, line)
                shown = (ran.output + ran.errors).replace(b"\n", b"\r\n")
                writer.write(shown)
                if not ran.is_whole:
                    return
            writer.write(self.prompt.encode())
            await writer.drain()

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self.without_ssh is None:
            await super()._converse(reader, writer)
            return
        # A client that dies may send half a line.
        while (line := await reader.readline()).endswith(b"\n"):
            number, command, _ = json.loads(line)
            ran = await self._run(self.without_ssh, command)
            texts = [
                part.decode("utf-8", "replace")
                for part in (ran.output, ran.errors)
            ]
            answer = json.dumps([number, ran.status, *texts]).encode()
            if not ran.is_whole:
                writer.write(answer[: len(answer) // 2])
                return
            writer.write(answer + b"\n")
            await writer.drain()


def _answer(channel: paramiko.Channel, ran: Ran) -> None:
    # Its reply comes after that to the channel's request, which must not come last.
    channel.get_transport().global_request("keepalive@openssh.com", wait=True)
    channel.sendall(ran.output)
    channel.sendall_stderr(ran.errors)
    if ran.is_whole:
        channel.send_exit_status(ran.status)
    channel.close()


_LINE_LIMIT = 4096


async def typed_lines(reader: asyncio.StreamReader) -> AsyncIterator[str]:
    """Lines ended by CR, LF or both. Stops at a line longer than the bound."""
    text = ""
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            text += (
                data.decode("utf-8", "replace")
                .replace("\r\n", "\n")
                .replace("\r", "\n")
            )
            *whole, text = text.split("\n")
            for line in whole:
                yield line
            if len(text) > _LINE_LIMIT:
                return


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


def _host_keys() -> list[paramiko.PKey]:
    """The host key of this machine's emulated devices, created once so that clients can pin it, and
    those of other types that are beside it, like ``emulated_ssh_host_key_rsa``.

    If it cannot be saved, the key is only for this process.
    """
    try:
        path = (
            user_folder("XDG_STATE_HOME", ".local/state")
            / "patchlight/emulated_ssh_host_key"
        )
        if not path.exists():
            path.parent.mkdir(
                parents=True,
                exist_ok=True,
            )
            # Several devices of a lab start at once: the first complete file wins.
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                new = f"{folder}/key"
                paramiko.ECDSAKey.generate().write_private_key_file(new)
                with contextlib.suppress(FileExistsError):
                    os.link(new, path)
        others = sorted(path.parent.glob(f"{path.name}_*"))
        return [
            paramiko.ECDSAKey(filename=str(path)),
            *map(paramiko.PKey.from_path, others),
        ]
    except (OSError, NoHome, paramiko.SSHException) as error:
        log.warning(
            "using a new host key for this start only: %s", reason(error)
        )
        return [paramiko.ECDSAKey.generate()]


# NETCONF (RFC 6241, 6242): framing 1.0 and 1.1, and operations of ``running``.

BASE = "urn:ietf:params:xml:ns:netconf:base:1.0"
_NOTIFICATION = "urn:ietf:params:xml:ns:netconf:notification:1.0"
_CAPABILITIES = (
    "urn:ietf:params:netconf:base:1.0",
    "urn:ietf:params:netconf:base:1.1",
    "urn:ietf:params:netconf:capability:writable-running:1.0",
    "urn:ietf:params:netconf:capability:notification:1.0",
    "urn:ietf:params:netconf:capability:interleave:1.0",
)
_MESSAGE_LIMIT = 1 << 20
_END = b"]]>]]>"
_CHUNK = re.compile(rb"\n#(\d{1,10})\n")


class NetconfError(Exception):
    """The ``rpc-error`` of a reply."""

    def __init__(
        self,
        tag: str,
        message: str,
        kind: str = "application",
    ) -> None:
        super().__init__(message)
        self.xml = (
            f"<rpc-error><error-type>{kind}</error-type><error-tag>{tag}</error-tag>"
            "<error-severity>error</error-severity>"
            f'<error-message xml:lang="en">{escape(message)}</error-message></rpc-error>'
        )


class NetconfServer(SshServer):
    """Serves NETCONF over SSH. A vendor's server adds to ``_operations`` and ``_containers``.

    Operations are keyed by local name, get the element and return XML; ``get`` reads the
    containers, keyed by tag. ``module`` is the capability of the device's YANG module, ``changing``
    names the operations that make changes. The codes of ``refusals`` are error tags.
    """

    subsystem = "netconf"
    module: ClassVar[str]
    changing: ClassVar[tuple[str, ...]] = ("edit-config",)

    def __init__(self, device: EmulatedSwitch) -> None:
        super().__init__(device)
        self._operations: dict[str, Callable[[ET.Element], Awaitable[str]]] = {
            "get": self._get
        }
        self._containers: dict[str, Callable[[], Awaitable[ET.Element]]] = {}
        self._sessions: set[_Session] = set()
        self._ids = itertools.count(1)

    async def _session(
        self,
        user: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        session = _Session(user, writer)
        capabilities = (*_CAPABILITIES, self.module)
        listed = "".join(
            f"<capability>{escape(name)}</capability>" for name in capabilities
        )
        session.send(
            f'<hello xmlns="{BASE}"><capabilities>{listed}</capabilities>'
            f"<session-id>{next(self._ids)}</session-id></hello>"
        )
        self._sessions.add(session)
        try:
            async for message in _messages(reader, session):
                try:
                    root = ET.fromstring(message)
                except ET.ParseError:
                    return
                if not await self._do(session, root):
                    return
        finally:
            self._sessions.discard(session)

    async def _get(self, request: ET.Element) -> str:
        return await self._data(request, self._containers)

    async def _data(
        self,
        request: ET.Element,
        containers: Mapping[str, Callable[[], Awaitable[ET.Element]]],
    ) -> str:
        """What the request's filter selects of these containers, by their tags."""
        asked = request.find(f"{{{BASE}}}filter")
        if asked is None:
            data = [await read() for read in containers.values()]
        elif asked.get("type", "subtree") != "subtree":
            raise NetconfError(
                "operation-not-supported",
                "only subtree filters are supported",
                "protocol",
            )
        else:
            data = []
            for subtree in asked:
                if subtree.tag in containers:
                    kept = selected(await containers[subtree.tag](), subtree)
                    data += [] if kept is None else [kept]
        return f"<data>{''.join(ET.tostring(each, encoding='unicode') for each in data)}</data>"

    def _notify(self, event: str) -> None:
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        for session in tuple(self._sessions):
            if session.subscribed:
                session.send(
                    f'<notification xmlns="{_NOTIFICATION}"><eventTime>{at}</eventTime>'
                    f"{event}</notification>"
                )

    async def _do(self, session: _Session, root: ET.Element) -> bool:
        kind = local(root.tag)
        if kind == "hello":
            offered = {
                (c.text or "").strip()
                for c in root.iter(f"{{{BASE}}}capability")
            }
            session.chunked = _CAPABILITIES[1] in offered
            return True
        if kind != "rpc" or len(root) != 1:
            return False
        verb = local(root[0].tag)
        faults = self._device.faults
        async with faults.around_command(
            changes=verb in self.changing
        ) as refusal:
            try:
                answer = await self._execute(session, root[0], refusal)
            except NetconfError as error:
                answer = error.xml
        for number in range(faults.take_flood()):
            self._notify(
                f"<system-error><message>Alarm {number}</message></system-error>"
            )
        # A reply has the attributes of its request.
        given = "".join(
            f" {name}={quoteattr(value)}"
            for name, value in root.attrib.items()
        )
        reply = (
            f'<rpc-reply xmlns="{BASE}"{given}>{answer or "<ok/>"}</rpc-reply>'
        )
        session.send(reply, faults.spoilt)
        with contextlib.suppress(ConnectionError):
            await session.writer.drain()
        return verb != "close-session"

    async def _execute(
        self,
        session: _Session,
        operation: ET.Element,
        refusal: str,
    ) -> str:
        verb = local(operation.tag)
        if verb in ("close-session", "create-subscription"):
            session.subscribed = (
                session.subscribed or verb == "create-subscription"
            )
            return ""
        if verb in self.changing:
            if refusal:
                raise NetconfError("operation-failed", refusal)
            if not self._device.may_change(session.user):
                raise NetconfError(
                    "access-denied", "this user may only look", "protocol"
                )
        execute = self._operations.get(verb)
        if execute is None:
            raise NetconfError(
                "operation-not-supported", f"no operation {verb}", "protocol"
            )
        await self._device.settle()
        try:
            return await execute(operation)
        except RequestRefused as refusal:
            raise NetconfError(*self._refusal(refusal)) from refusal


@dataclass(eq=False)
class _Session:
    user: str
    writer: asyncio.StreamWriter
    chunked: bool = False
    subscribed: bool = False

    def send(
        self, text: str, spoilt: Callable[[bytes], bytes] = bytes
    ) -> None:
        """Send one message."""
        data = text.encode()
        framed = (
            b"\n#%d\n%s\n##\n" % (len(data), data)
            if self.chunked
            else data + _END
        )
        self.writer.write(spoilt(framed))


def local(tag: str) -> str:
    """A name without its namespace."""
    return tag.rpartition("}")[2]


def selected(data: ET.Element, subtree: ET.Element) -> ET.Element | None:
    """What a subtree filter selects of ``data`` of the same name (RFC 6241, section 6)."""
    exact = [
        child
        for child in subtree
        if not len(child) and (child.text or "").strip()
    ]
    others = [child for child in subtree if child not in exact]
    for child in exact:
        held = data.find(child.tag)
        if (
            held is None
            or (held.text or "").strip() != (child.text or "").strip()
        ):
            return None
    if not others:
        return data
    kept = ET.Element(data.tag)
    kept.extend(
        held for child in exact if (held := data.find(child.tag)) is not None
    )
    for held in data:
        for child in others:
            if (
                child.tag == held.tag
                and (part := selected(held, child)) is not None
            ):
                kept.append(part)
    return kept if len(kept) > len(exact) else None


async def _messages(
    reader: asyncio.StreamReader, session: _Session
) -> AsyncIterator[bytes]:
    buffer = b""
    whole = b""
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            buffer += data
            while True:
                if not session.chunked:
                    message, end, rest = buffer.partition(_END)
                    if not end:
                        break
                    buffer = rest
                    yield message.strip()
                elif buffer.startswith(b"\n##\n"):
                    message = whole
                    whole = b""
                    buffer = buffer[4:]
                    yield message
                elif chunk := _CHUNK.match(buffer):
                    end_at = chunk.end() + int(chunk[1])
                    if len(buffer) < end_at:
                        break
                    whole = whole + buffer[chunk.end() : end_at]
                    buffer = buffer[end_at:]
                elif len(buffer) >= 16:
                    return
                else:
                    break
            if len(buffer) + len(whole) > _MESSAGE_LIMIT:
                return
