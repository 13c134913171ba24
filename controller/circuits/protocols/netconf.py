"""Keeps a NETCONF session over SSH usable: queries, and edits of the running configuration.

ncclient blocks in threads; here it is awaited. For unanswered edits see ``KeptSession``.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import Any, TypeVar

import paramiko

from patchlight.controller.circuits.contract import Alarm, Severity
from patchlight.controller.circuits.dialect import Dialect, Session, shortened
from patchlight.controller.circuits.protocols import tcp
from patchlight.controller.circuits.protocols.session import KeptSession
from patchlight.controller.circuits.protocols.ssh import (
    check_host_key,
    connected,
    finished,
    prepared,
)
from patchlight.testbed.errors import PackageMissing, reason
from patchlight.testbed.legacy_ssh import explained

try:
    from ncclient import NCClientError
    from ncclient.devices.default import DefaultDeviceHandler
    from ncclient.manager import Manager
    from ncclient.operations import RPCError, TimeoutExpiredError
    from ncclient.transport import AuthenticationError, SessionError, SSHSession, TransportError
    from ncclient.transport.session import END_DELIM, MSG_DELIM, NetconfBase
    from ncclient.xml_ import new_ele, to_ele
except ImportError as error:
    raise PackageMissing("NETCONF", error) from error

_LOOK_S = 0.25
_GRACE_S = 1.0  # ncclient's deadline comes first: then nothing waits any longer
T = TypeVar("T")


class NetconfConnection:
    """Made by ``NetconfConnection.open``. ``trouble`` says why it ended, or is empty."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._trouble = ""

    @classmethod
    async def open(cls, session: Session) -> NetconfConnection:
        """Connect, check the host key, log in, exchange hellos.

        Raises ``OSError`` (also for anything that is not NETCONF) and ``LoginRefused``.
        """
        where = (session.host, session.port)
        sock = await finished(
            functools.partial(socket.create_connection, where, session.timeouts.connect_s),
            socket.socket.close,
        )
        try:
            manager = await finished(
                functools.partial(_establish, session, sock), lambda late: late._session.close()
            )
        except BaseException:
            # This ends whatever ncclient is waiting for in its thread.
            sock.close()
            raise
        return cls(manager)

    @property
    def trouble(self) -> str:
        """Why it ended."""
        if not self._trouble and not self._alive:
            self._trouble = "the device closed the session"
        return self._trouble

    @property
    def flooded(self) -> bool:
        """Whether it was closed because of too much data."""
        return bool(self._manager._session.flooded)

    def offers(self, capability: str) -> bool:
        """Whether the device's hello has a capability, like ``:notification``."""
        return capability in self._manager.server_capabilities

    async def ask(self, ask: Callable[[Any], T], timeout_s: float) -> T:
        """The result of ``ask`` with ncclient's manager.

        Raises ``TimeoutError``, ``ConnectionLost``, ``FramingError`` for unreadable data, and
        ncclient's ``RPCError`` if the device answers with an error.
        """
        self._manager.timeout = timeout_s
        self._manager._session.hearing.begin()
        try:
            async with asyncio.timeout(timeout_s + _GRACE_S):
                return await self._answer(functools.partial(ask, self._manager))
        except TimeoutExpiredError as error:
            raise TimeoutError from error
        except RPCError:
            raise
        except (NCClientError, paramiko.SSHException, OSError, EOFError) as error:
            if isinstance(error, TimeoutError):
                raise
            self._trouble = self._trouble or reason(error).split("\n")[0][:200]
            raise tcp.ConnectionLost from error
        except (SyntaxError, ValueError, AttributeError) as error:
            # Invalid XML raises the first; an incomplete reply the others.
            raise tcp.FramingError(f"its answer cannot be read: {reason(error)}") from error
        finally:
            self._manager._session.hearing.end()

    def notifications(self) -> list[str]:
        """The device's notifications since the last call, as XML."""
        found = []
        while (notification := self._manager.take_notification(block=False)) is not None:
            found.append(str(notification.notification_xml))
        return found

    async def close(self) -> None:
        """Close it immediately."""
        self._trouble = self._trouble or "it was closed"
        session = self._manager._session
        # Threads that wait for an answer are told that none will come.
        session._dispatch_error(TransportError(self._trouble))
        await finished(session.close, lambda late: None)

    @property
    def _alive(self) -> bool:
        transport = self._manager._session.transport
        return bool(self._manager.connected and transport and transport.is_active())

    async def _answer(self, ask: Callable[[], T]) -> T:
        """The result of ``ask``; ``ConnectionLost`` as soon as the session is dead.

        ncclient may miss that for a request made at the moment of its end.
        """
        task = asyncio.ensure_future(finished(ask, lambda late: None))
        try:
            while True:
                alive = self._alive
                if (await asyncio.wait({task}, timeout=_LOOK_S))[0]:
                    return task.result()
                if not alive:
                    raise tcp.ConnectionLost
        finally:
            task.cancel()


class _PromptSession(SSHSession):  # type: ignore[misc]  # ncclient has no types
    """Sends immediately, unlike ncclient, which looks for something to send every 0.1 s.

    Received data is limited: ncclient keeps whatever is not read.
    """

    def __init__(self, handler: DefaultDeviceHandler, session: Session) -> None:
        self._device = session
        self._connection: Any = None
        super().__init__(handler)
        self.flooded, self.hearing = False, tcp.Hearing()
        self.hearing.begin()  # for the hellos

    @property
    def _transport(self) -> Any:
        return self._connection

    @_transport.setter
    def _transport(self, made: Any) -> None:
        # ncclient creates and starts it at once: this is the only place in between.
        self._connection = prepared(made, self._device) if made else made

    def _transport_read(self) -> Any:
        data = super()._transport_read()
        try:
            self.hearing.take(len(data))
        except tcp.FramingError as error:
            self.flooded = True
            raise SessionError(str(error)) from error
        return data

    def send(self, message: str) -> None:
        """Send this XML in the agreed framing (RFC 6242)."""
        if not self.connected:
            raise TransportError("not connected to the device")
        data = message.encode()
        if self._base == NetconfBase.BASE_11:
            framed = b"\n#%d\n%b%b" % (len(data), data, END_DELIM)
        else:
            framed = data + MSG_DELIM
        # Requests are made one at a time, so two never mix here.
        self._channel.sendall(framed)


def _establish(session: Session, sock: socket.socket) -> Any:
    handler = DefaultDeviceHandler()
    connection = _PromptSession(handler, session)
    # Uses Patchlight's pins: ncclient's list is by host only and would restrict algorithms to ones
    # that paramiko has removed.
    connection.load_known_hosts = lambda filename=None: None

    def check(host: str, _: str) -> bool:
        key = connection.transport.get_remote_server_key()
        check_host_key(session, key, functools.partial(connected, session))
        return True

    try:
        connection.connect(
            session.host,
            session.port,
            timeout=session.timeouts.connect_s,
            unknown_host_cb=check,
            username=session.user,
            password=session.password,
            allow_agent=False,
            look_for_keys=False,
            sock=sock,
        )
    except AuthenticationError as error:
        connection.close()
        raise session.login_refused(reason(error)) from error
    except (NCClientError, paramiko.SSHException, EOFError) as error:
        if connection.transport:
            connection.close()
        words = explained(error, "legacy_ssh: true")
        raise ConnectionError(f"{words}: is it a NETCONF port?") from error
    except BaseException:
        if connection.transport:
            connection.close()
        raise
    return Manager(connection, handler, timeout=session.timeouts.answer_s)


class NetconfClient(KeptSession[NetconfConnection, Dialect]):
    """One session with one device. All methods belong to one event loop."""

    protocol = "NETCONF"
    log = logging.getLogger("patchlight.netconf")

    async def get(self, subtree: str) -> ET.Element:
        """The data that a subtree filter selects: the ``data`` element of the reply."""

        def ask(manager: Any) -> str:
            return str(manager.get(filter=("subtree", subtree)).data_xml)

        return _parsed(await self._ask(ask, subtree, changes=False))

    async def edit(self, config: str) -> None:
        """Edit the running configuration; ``config`` is the content of its ``config`` element."""
        base = "urn:ietf:params:xml:ns:netconf:base:1.0"
        wrapped = f'<nc:config xmlns:nc="{base}">{config}</nc:config>'

        def ask(manager: Any) -> None:
            manager.edit_config(target="running", config=wrapped)

        await self._ask(ask, config, changes=True)

    async def tell(self, operation: str) -> None:
        """A vendor operation that changes something."""

        def ask(manager: Any) -> None:
            manager.dispatch(to_ele(operation))

        await self._ask(ask, operation, changes=True)

    async def hear(self) -> tuple[Alarm, ...]:
        """All notifications so far."""
        if self._connection is not None:
            self._take_notifications(self._connection)
        return self.alarms

    async def _connect(self) -> NetconfConnection:
        return await NetconfConnection.open(self._session)

    async def _log_in(self) -> None:
        """Connecting has logged in; here notifications are subscribed to."""
        connection = self._connected()
        # Without interleave a session with a subscription accepts no requests.
        if connection.offers(":notification") and connection.offers(":interleave"):
            try:
                await connection.ask(
                    lambda manager: manager.create_subscription(), self._session.timeouts.answer_s
                )
            except RPCError as error:
                self.log.warning("%s sends no notifications: %s", self._session.name, error)

    async def _log_out(self) -> None:
        connection = self._connected()
        with contextlib.suppress(RPCError):
            await connection.ask(lambda manager: manager.close_session(), 2.0)

    async def _say_something(self) -> None:
        # An empty filter selects nothing (RFC 6241, 6.4.2).
        def ask(manager: Any) -> None:
            manager.get(filter=new_ele("filter", {"type": "subtree"}))

        await self._ask(ask, "get nothing", changes=False)

    async def _ask(self, ask: Callable[[Any], T], request: str, *, changes: bool) -> T:
        shown = shortened(" ".join(request.split()))

        async def exchange(connection: NetconfConnection, timeout_s: float) -> T:
            self._sends(shown)
            try:
                return await connection.ask(ask, timeout_s)
            except RPCError as error:
                words = shortened(self._mask(str(error.message or error.tag or error).strip()))
                raise self._refused(shown, words, str(error.tag or "")) from error
            finally:
                self._take_notifications(connection)

        return await self._run(exchange, lambda: shown, changes=changes)

    def _take_notifications(self, connection: NetconfConnection) -> None:
        for text in connection.notifications():
            try:
                root = ET.fromstring(text)
            except ET.ParseError:
                continue
            for event in root:
                kind = _local(event.tag)
                if kind == "eventTime":
                    continue
                leaves = {_local(leaf.tag): (leaf.text or "").strip() for leaf in event.iter()}
                leaves.pop(kind, None)
                values = ", ".join(f"{name}={value}" for name, value in leaves.items() if value)
                words = f"{kind}: {values}"
                self._alarm(_severity(kind), leaves.get("port-id", ""), words)


def _severity(kind: str) -> Severity:
    if kind.endswith(("-clear", "-notification")):
        return "notice"
    if "warn" in kind:
        return "minor"
    return "critical" if kind == "system-error" else "major"


def _parsed(text: str) -> ET.Element:
    try:
        return ET.fromstring(text.encode())
    except ET.ParseError as error:
        raise tcp.FramingError(f"its answer is not XML: {error}") from error


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]
