"""A NETCONF session that stays usable: questions, edits of the running configuration, alarms.

What an unanswered edit becomes: see ``KeptSession``.
"""

from __future__ import annotations

import contextlib
import logging
import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import Any, TypeVar

from patchlight.controller.circuits.contract import Alarm, DeviceRefused, Severity
from patchlight.controller.circuits.protocols.connection import FramingError
from patchlight.controller.circuits.protocols.netconf.connection import NetconfConnection, RPCError
from patchlight.controller.circuits.protocols.session import KeptSession, shortened

T = TypeVar("T")


class NetconfClient(KeptSession[NetconfConnection]):
    """One session with one device. All methods belong to one event loop."""

    protocol = "NETCONF"
    log = logging.getLogger("patchlight.netconf")

    async def get(self, subtree: str) -> ET.Element:
        """The data that a subtree filter selects: the ``data`` element of the reply."""

        def ask(manager: Any) -> str:
            return str(manager.get(filter=("subtree", subtree)).data_xml)

        return _parsed(await self._ask(ask, subtree, changes=False))

    async def edit(self, config: str) -> None:
        """Edit the running configuration; ``config`` is what stands in its ``config`` element."""
        base = "urn:ietf:params:xml:ns:netconf:base:1.0"
        wrapped = f'<nc:config xmlns:nc="{base}">{config}</nc:config>'

        def ask(manager: Any) -> None:
            manager.edit_config(target="running", config=wrapped)

        await self._ask(ask, config, changes=True)

    def hear(self) -> tuple[Alarm, ...]:
        """All notifications so far."""
        if self._connection is not None:
            self._take_notifications(self._connection)
        return self.alarms

    # --- the session ------------------------------------------------------------------------

    async def _connect(self) -> NetconfConnection:
        return await NetconfConnection.open(self._session)

    async def _log_in(self) -> None:
        """The login was part of connecting; here notifications are subscribed to."""
        connection = self._connected()
        # Without interleave a session with a subscription takes no requests any more.
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
        await self.get("")

    async def _ask(
        self,
        ask: Callable[[Any], T],
        request: str,
        *,
        changes: bool,
    ) -> T:
        timeout_s = self._session.timeouts.answer_s
        shown = shortened(" ".join(request.split()))

        async def exchange(connection: NetconfConnection) -> T:
            self.log.debug("%s < %s", self._session.name, shown)
            try:
                return await connection.ask(ask, timeout_s)
            except RPCError as error:
                words = shortened(self._mask(str(error.message or error.tag or error).strip()))
                self.log.info("%s > %s", self._session.name, words)
                raise DeviceRefused(
                    f"{self._session.name} refused {shown}: {words}",
                    code=str(error.tag or ""),
                    words=words,
                ) from error
            finally:
                self._take_notifications(connection)

        return await self._run(exchange, shown, timeout_s, changes=changes)

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
        raise FramingError(f"its answer is no XML: {error}") from error


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]
