"""SSH in front of an emulated device: logins by password, then one shell or subsystem.

paramiko works in threads and on a socket of its own; here its bytes and the session's become
asyncio streams, so that what runs over SSH is served like anything else.
"""

import asyncio
import contextlib
import logging
import os
import socket
import tempfile
import threading
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import paramiko
from paramiko.common import (
    AUTH_FAILED,
    AUTH_SUCCESSFUL,
    OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED,
    OPEN_SUCCEEDED,
)

from patchlight.controller.circuits.protocols.ssh.channel import joined
from patchlight.emulation.optical.emulated_switch import EmulatedSwitch
from patchlight.emulation.optical.protocols.server import ProtocolServer
from patchlight.testbed.linux.files import NoHome, user_folder

log = logging.getLogger("patchlight.optical")
_LOG = "patchlight.optical.ssh"

# A client that hangs up in the middle is nothing to be told with a traceback.
logging.getLogger(_LOG).setLevel(logging.CRITICAL)


class SshServer(ProtocolServer):
    """Serves ``_session`` to whoever logs in.

    ``subsystem`` is what a client must ask for; empty for a shell.
    """

    subsystem: ClassVar[str] = ""

    def __init__(self, device: EmulatedSwitch) -> None:
        super().__init__(device)
        self._key = _host_key()

    @abstractmethod
    async def _session(
        self, user: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """One session of this user; the connection ends when it returns."""

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[paramiko.Channel] = loop.create_future()
        ours, theirs = socket.socketpair()
        transport = paramiko.Transport(theirs)
        transport.set_log_channel(_LOG)
        transport.add_server_key(self._key)
        inner = await asyncio.open_connection(sock=ours)
        tasks = [
            asyncio.create_task(_copy(reader, inner[1])),
            asyncio.create_task(_copy(inner[0], writer)),
            asyncio.create_task(self._once_opened(transport, opened)),
        ]
        door = _Door(self._device, self.subsystem, loop, opened)
        try:
            # With an event it returns at once; the handshake goes on in paramiko's thread.
            transport.start_server(event=threading.Event(), server=door)
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[2].done():
                # What was said last is still on its way through paramiko's threads.
                await asyncio.wait(tasks[1:2], timeout=1)
            transport.close()
            # A device goes on with what it was told, whether or not anybody waits for it.
            if opened.done():
                await tasks[2]
        finally:
            for task in tasks:
                task.cancel()
            transport.close()
            inner[1].close()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _once_opened(
        self, transport: paramiko.Transport, opened: asyncio.Future[paramiko.Channel]
    ) -> None:
        reader, writer = await asyncio.open_connection(sock=joined(await opened))
        try:
            with contextlib.suppress(OSError):
                await self._session(transport.get_username() or "", reader, writer)
        finally:
            writer.close()


@dataclass(eq=False)
class _Door(paramiko.ServerInterface):
    """Lets in who has the password; called in paramiko's thread."""

    device: EmulatedSwitch
    subsystem: str
    loop: asyncio.AbstractEventLoop
    opened: asyncio.Future[paramiko.Channel]
    given: bool = False

    def get_allowed_auths(self, username: str) -> str:
        """Passwords alone."""
        return "password"

    def check_auth_password(self, username: str, password: str) -> int:
        """Whether that is the user's password."""
        return AUTH_SUCCESSFUL if self.device.lets_in(username, password) else AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        """Sessions, nothing else: no forwarding."""
        if kind == "session":
            return OPEN_SUCCEEDED
        return OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED

    def check_channel_pty_request(self, *request: Any, **named: Any) -> bool:
        """A terminal for a shell."""
        return not self.subsystem

    def check_channel_shell_request(self, channel: paramiko.Channel) -> bool:
        """A shell, if that is what the device has."""
        return not self.subsystem and self._give(channel)

    def check_channel_subsystem_request(self, channel: paramiko.Channel, name: str) -> bool:
        """The subsystem that the device has."""
        return bool(self.subsystem) and name == self.subsystem and self._give(channel)

    def _give(self, channel: paramiko.Channel) -> bool:
        if self.given:
            return False
        self.given = True

        def give() -> None:
            if not self.opened.done():
                self.opened.set_result(channel)

        # The loop may have ended while the client was asking.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(give)
        return True


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


def _host_key() -> paramiko.PKey:
    """The key of this machine's emulated devices: made once, so that clients can pin it.

    Where that cannot be written, a key of this process alone.
    """
    try:
        folder = user_folder("XDG_STATE_HOME", ".local/state")
        path = folder / "patchlight" / "emulated_ssh_host_key"
        if not path.exists():
            _make_key(path)
        return paramiko.ECDSAKey(filename=str(path))
    except (OSError, NoHome, paramiko.SSHException) as error:
        log.warning("a new host key for this start only: %s", error)
        return paramiko.ECDSAKey.generate()


def _make_key(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Several devices of a lab start at once: the first whole file stays.
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        beside = Path(folder) / "key"
        paramiko.ECDSAKey.generate().write_private_key_file(str(beside))
        with contextlib.suppress(FileExistsError):
            os.link(beside, path)
