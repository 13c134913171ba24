"""An SSH channel as a socket for asyncio: paramiko works in threads, we do not."""

import asyncio
import contextlib
import functools
import logging
import socket
import threading
from collections.abc import Callable
from typing import TypeVar

import paramiko

from patchlight.controller.circuits.protocols.session import Session
from patchlight.controller.circuits.protocols.ssh.host_keys import check_host_key
from patchlight.testbed.legacy_ssh import allow_legacy, explained

_CHUNK = 65536
_LOG = "patchlight.ssh"
T = TypeVar("T")

# What goes wrong is in our errors; paramiko would tell it with a traceback once more. NETCONF
# over ncclient uses paramiko's own log.
for _name in (f"{_LOG}.transport", "paramiko", "ncclient"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)


async def open_shell(session: Session) -> socket.socket:
    """Log in and open a shell on a terminal wide enough that it wraps no line.

    Raises ``OSError`` (also for all that is not SSH) and ``LoginRefused``.
    """
    channel = await finished(
        functools.partial(_open_shell, session), lambda late: late.get_transport().close()
    )
    try:
        return joined(channel)
    except BaseException:
        channel.get_transport().close()
        raise


async def finished(blocking: Callable[[], T], let_go: Callable[[T], object]) -> T:
    """What ``blocking`` gives, run in a thread; cancelled meanwhile, ``let_go`` takes it."""
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
    """The channel as a socket, whose closing closes the channel and its whole transport."""
    ours, theirs = socket.socketpair()
    threading.Thread(target=_from_channel, args=(channel, theirs), daemon=True).start()
    threading.Thread(target=_to_channel, args=(channel, theirs), daemon=True).start()
    return ours


def _open_shell(session: Session) -> paramiko.Channel:
    wait_s = session.timeouts.connect_s
    transport = paramiko.Transport(socket.create_connection((session.host, session.port), wait_s))
    if session.legacy_ssh:
        allow_legacy(transport, session.name)
    transport.set_log_channel(f"{_LOG}.transport")
    transport.banner_timeout = transport.auth_timeout = wait_s
    try:
        transport.start_client(timeout=wait_s)
        key = transport.get_remote_server_key()
        check_host_key(session.name, session.host, session.port, key)
        transport.auth_password(session.user, session.password)
        channel = transport.open_session(timeout=wait_s)
        channel.settimeout(wait_s)
        channel.get_pty("dumb", width=2000, height=200)
        channel.invoke_shell()
        channel.settimeout(None)
    except paramiko.AuthenticationException as error:
        transport.close()
        raise session.login_refused(str(error)) from error
    except (paramiko.SSHException, EOFError) as error:
        transport.close()
        words = explained(error, "legacy_ssh: true")
        raise ConnectionError(f"{words}: is it an SSH port?") from error
    except BaseException:
        transport.close()
        raise
    return channel


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
    # Both ends are through: the device hung up, or our side closed the streams.
    channel.get_transport().close()
    source.close()
