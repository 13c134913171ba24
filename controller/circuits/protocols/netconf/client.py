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
from patchlight.controller.circuits.protocols.netconf.connection import NetconfLine, RPCError
from patchlight.controller.circuits.protocols.session import KeptSession, shortened

T = TypeVar("T")


class NetconfClient(KeptSession[NetconfLine]):
    """One session with one device. All methods belong to one event loop."""

    protocol = "NETCONF"
    log = logging.getLogger("patchlight.netconf")

    async def get(self, subtree: str, *, timeout_s: float | None = None) -> ET.Element:
        """The data that a subtree filter selects: the ``data`` element of the reply."""

        def ask(manager: Any) -> str:
            return str(manager.get(filter=("subtree", subtree)).data_xml)

        return _parsed(await self._ask(ask, subtree, timeout_s, changes=False))

    async def edit(self, config: str, *, timeout_s: float | None = None) -> None:
        """Edit the running configuration; ``config`` is what stands in its ``config`` element."""
        base = "urn:ietf:params:xml:ns:netconf:base:1.0"
        wrapped = f'<nc:config xmlns:nc="{base}">{config}</nc:config>'

        def ask(manager: Any) -> None:
            manager.edit_config(target="running", config=wrapped)

        await self._ask(ask, config, timeout_s, changes=True)

    async def rpc(self, request: str, *, timeout_s: float | None = None) -> None:
        """Have an operation of the device's own done, which changes something."""

        def ask(manager: Any) -> None:
            from ncclient.xml_ import to_ele

            manager.dispatch(to_ele(request))

        await self._ask(ask, request, timeout_s, changes=True)

    def hear(self) -> tuple[Alarm, ...]:
        """All notifications so far."""
        if self._connection is not None:
            self._take_notifications(self._connection)
        return self.alarms

    # --- the session ------------------------------------------------------------------------

    async def _connect(self) -> NetconfLine:
        return await NetconfLine.open(self._session)

    async def _log_in(self) -> None:
        """The login was part of connecting; here notifications are subscribed to."""
        line = self._connected()
        # Without interleave a session with a subscription takes no requests any more.
        if line.offers(":notification") and line.offers(":interleave"):
            try:
                await line.ask(
                    lambda manager: manager.create_subscription(), self._session.timeout_s
                )
            except RPCError as error:
                self.log.warning("%s sends no notifications: %s", self._session.name, error)

    async def _log_out(self) -> None:
        line = self._connected()
        with contextlib.suppress(RPCError):
            await line.ask(lambda manager: manager.close_session(), 2.0)

    async def _say_something(self) -> None:
        await self.get("")

    async def _ask(
        self,
        ask: Callable[[Any], T],
        what: str,
        timeout_s: float | None,
        *,
        changes: bool,
    ) -> T:
        timeout = self._session.timeout_s if timeout_s is None else timeout_s
        shown = shortened(" ".join(what.split()))

        async def exchange(line: NetconfLine) -> T:
            self.log.debug("%s < %s", self._session.name, shown)
            try:
                return await line.ask(ask, timeout)
            except RPCError as error:
                words = shortened(self._mask(str(error.message or error.tag or error).strip()))
                self.log.info("%s > %s", self._session.name, words)
                raise DeviceRefused(
                    f"{self._session.name} refused {shown}: {words}",
                    code=str(error.tag or ""),
                    words=words,
                ) from error
            finally:
                self._take_notifications(line)

        return await self._run(exchange, shown, timeout, changes=changes)

    def _take_notifications(self, line: NetconfLine) -> None:
        for text in line.notifications():
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
                said = ", ".join(f"{name}={value}" for name, value in leaves.items() if value)
                words = f"{kind}: {said}"
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
