"""Decides which switches may connect, with TLS if required, and tracks connections and events.

Import it only after an engine was chosen: sockets and TLS contexts are eventlet's.
"""

import logging
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import eventlet
from ryu.ofproto import ofproto_v1_3_parser as parser

from patchlight.controller.packet_switches.openflow.flowtable import (
    COOKIE_MARK,
    COOKIE_MASK,
    Message,
    SwitchTls,
)
from patchlight.controller.packet_switches.openflow.speaker.switch import (
    Switch,
    SwitchGone,
    Traffic,
)
from patchlight.testbed.errors import BadInput, PatchlightError, reason
from patchlight.testbed.linux import credentials

LOG = logging.getLogger(__name__)

_PERIOD_S = 1.0
# Reading flow counters costs about 50 µs per entry: limit its share of the time.
_SHARE_FOR_FLOWS = 0.1
_COUNTERS_DEADLINE_S = 10.0
# A live switch answers an echo within this, even while it installs entries.
_FIRST_ANSWERS_S = 5.0
_TELL_EVERY_S = 60.0
_TOLD_KEPT = 256
# Also limits how long a silent connection holds a place.
_HANDSHAKE_WITHIN_S = 10.0
_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not valid here",
    "WRONG_VERSION_NUMBER": "it does not use TLS",
    "HTTP_REQUEST": "it does not use TLS",
    "UNSUPPORTED_PROTOCOL": "it does not support TLS 1.2 or newer",
    "TLSV1_ALERT_UNKNOWN_CA": "it rejects the controller's certificate: its authority differs",
}


class NotLetIn(PatchlightError):
    """A connection without TLS, or without a certificate of the lab."""


class TlsAuth:
    """Uses the controller's certificate, and requires one of the same authority.

    A new certificate in the folder is used for later connections. ``BadInput`` if the folder has no
    valid one of the controller.
    """

    def __init__(self, tls: SwitchTls, datapath_ids: tuple[int, ...]) -> None:
        self._folder = tls.folder
        self._lab = tls.lab
        names = [
            credentials.switch_name(name, tls.lab) for name in tls.switches
        ]
        self._names = dict(zip(datapath_ids, names, strict=True))
        self._stamp = credentials.stamp(tls.folder)
        self._context = self._new_context()

    def admit(self, connection: Any) -> "TlsConnection":
        """Do the handshake; ``NotLetIn`` with the problem closes the connection."""
        if (found := credentials.stamp(self._folder)) != self._stamp:
            with suppress(
                BadInput
            ):  # the new certificate is incomplete: keep the present one
                self._context = self._new_context()
                self._stamp = found
        connection.settimeout(_HANDSHAKE_WITHIN_S)
        try:
            return TlsConnection(
                self._context.wrap_socket(connection, server_side=True)
            )
        except OSError as error:
            connection.close()
            raise NotLetIn(_words(error)) from error

    def is_for(self, connection: "TlsConnection", datapath_id: int) -> bool:
        """Whether the peer's certificate belongs to the switch with this id."""
        good = (
            self._names.get(datapath_id),
            credentials.switches_name(self._lab),
        )
        return any(name in good for name in connection.names)

    def _new_context(self) -> ssl.SSLContext:
        own = credentials.read_credentials(self._folder)
        own.check(credentials.controller_name(self._lab))
        context = credentials.new_context(server=True)
        # Switches in the field support no newer version.
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        own.load_into(context)
        return context


class TlsConnection:
    """A TLS connection for the engine. ``names`` are the certificate's.

    The engine would retry forever after TLS errors: here they end the connection.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        shown = connection.getpeercert() or {}
        self.names = [
            name
            for kind, name in shown.get("subjectAltName", ())
            if kind == "DNS"
        ]
        self._over = False

    def recv(self, size: int) -> bytes:
        """Some bytes, none at the end; ``TimeoutError`` on silence."""
        if self._over:
            return b""
        try:
            return bytes(self._connection.recv(size))
        except ssl.SSLError as error:
            raise ConnectionError(_words(error)) from error

    def shutdown(self, _how: int) -> None:
        """Close both directions: TLS cannot be half-closed."""
        self._over = True
        # ``SSLSocket``'s own method removes the encryption under a concurrent reader.
        socket.SocketType.shutdown(self._connection, socket.SHUT_RDWR)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def _words(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid here: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or str(error)
        return _REASONS.get(reason, reason.replace("_", " ").lower())
    if isinstance(error, TimeoutError):
        return f"it did not start TLS within {_HANDSHAKE_WITHIN_S:g} s"
    return "it disconnected"


class SwitchRegistry:
    """Every connected switch of the lab; ``count``: read their counters each second."""

    def __init__(
        self,
        declared: frozenset[int],
        publish: Callable[[Message], None],
        *,
        count: bool = True,
        tls: TlsAuth | None = None,
    ) -> None:
        self.declared = declared
        self._counting = count
        self._tls = tls
        self._traffic = Traffic(declared)
        self._publish = publish
        self._switches: dict[int, Switch] = {}
        self._counters: dict[int, Message] = {}
        self._told: dict[tuple[str, int | str], float] = {}

    def switch(self, datapath_id: int) -> Switch:
        """The connected switch of that id, or ``SwitchGone``."""
        if datapath_id in self._switches:
            return self._switches[datapath_id]
        if datapath_id not in self.declared:
            raise PatchlightError(
                f"datapath id {datapath_id:#x} is not one of the lab's packet switches",
                hint="add it to the lab file and restart the controller",
            )
        raise SwitchGone(
            f"switch {datapath_id:#x} is not connected",
            hint="check its controller address and that it is running",
        )

    def of(self, datapath: Any) -> Switch | None:
        """The switch of this connection, if it is the accepted one."""
        switch = self._switches.get(datapath.id)
        return (
            switch
            if switch is not None and switch.datapath is datapath
            else None
        )

    def may_be_told(self, datapath: Any) -> bool:
        """Whether a connection may be used beyond the handshake: it is a switch of the lab, with
        its certificate if required, and not connected twice."""
        switch = self._switches.get(datapath.id)
        return self._is_of_the_lab(datapath) and (
            switch is None or switch.datapath is datapath
        )

    def _is_of_the_lab(self, datapath: Any) -> bool:
        return datapath.id in self.declared and (
            self._tls is None or self._tls.is_for(datapath.socket, datapath.id)
        )

    def switches(self) -> list[Message]:
        """Every connected switch with its ports."""
        return [_describe(switch) for switch in self._switches.values()]

    def counters(self) -> list[Message]:
        """The last counters of each connected switch."""
        return list(self._counters.values())

    # -- what the application tells us ----------------------------------------------------

    def let_in(self, connection: Any, address: Any) -> Any:
        """The connection to use, with TLS if required; ``None`` if it is refused."""
        if self._tls is None:
            return connection
        try:
            return self._tls.admit(connection)
        except NotLetIn as error:
            self._traffic.refused["tls"] += 1
            host = address[0]
            where = "{}:{}".format(*address[:2])
            if self._is_news("refused-switch", host):
                self._publish(
                    {
                        "event": "refused-switch",
                        "address": where,
                        "why": error.message,
                    }
                )
                LOG.warning(
                    "connection from %s refused: %s", where, error.message
                )
            return None

    def features(self, datapath: Any, datapath_id: int) -> None:
        """A connection reported its switch; nothing else has been sent to it yet."""
        if datapath_id not in self.declared:
            self._traffic.refused["unknown"] += 1
            self._leave_alone(
                "unknown-switch",
                datapath,
                "the lab has no switch with that id",
            )
        elif not self._is_of_the_lab(datapath):
            shown = ", ".join(datapath.socket.names) or "nobody"
            why = f"its certificate is for {shown}"
            self._traffic.refused["certificate"] += 1
            self._leave_alone("refused-switch", datapath, why)
        elif not self.may_be_told(datapath):
            # The request that the engine would send next, which was blocked.
            ports = parser.OFPPortDescStatsRequest(datapath, 0)
            eventlet.spawn_n(
                self._second, datapath, lambda: datapath.send_msg(ports)
            )

    def _second(self, datapath: Any, go_on: Callable[[], None]) -> None:
        """A second connection has a connected switch's id: check whether the first is dead."""
        first = self._switches.get(datapath.id)
        if first is not None and first.answers(_FIRST_ANSWERS_S):
            words = f"that switch is already connected from {first.address}"
            self._traffic.refused["second"] += 1
            self._leave_alone("second-switch", datapath, words)
            datapath.close()
            return
        if first is not None and self.of(first.datapath) is first:
            LOG.warning(
                "switch %#x reconnected from %s",
                datapath.id,
                datapath.address[0],
            )
            first.datapath.close()
            self.down(first.datapath)
        if self.may_be_told(datapath) and datapath.is_active:
            go_on()

    def _leave_alone(
        self,
        event: str,
        datapath: Any,
        why: str,
    ) -> None:
        """Report it, once a minute per id: such switches may retry forever."""
        news = self._is_news(event, datapath.id)
        address = "{}:{}".format(*datapath.address[:2])
        if (
            event == "unknown-switch" or news
        ):  # the controller counts unknown ones
            message = {
                "event": event,
                "datapath_id": datapath.id,
                "address": address,
                "why": why,
            }
            self._publish(message)
        if news:
            words = "a switch with datapath id %#x connected from %s: %s; it is ignored"
            LOG.warning(
                words,
                datapath.id,
                address,
                why,
            )

    def _is_news(self, event: str, who: int | str) -> bool:
        now = time.monotonic()
        key = (event, who)
        if now - self._told.get(key, -_TELL_EVERY_S) < _TELL_EVERY_S:
            return False
        if len(self._told) >= _TOLD_KEPT:
            self._told.clear()
        self._told[key] = now
        return True

    def up(self, datapath: Any) -> None:
        """A switch of the lab finished its handshake."""
        if not self._is_of_the_lab(datapath):
            return  # it disconnected, and nobody answers
        if not self.may_be_told(datapath):
            # Another connection was faster.
            eventlet.spawn_n(self._second, datapath, lambda: self.up(datapath))
            return
        switch = self._switches[datapath.id] = Switch(datapath)
        self._traffic.connected(switch.id)
        if self._counting:
            eventlet.spawn_n(self._count, switch)
        self._publish({"event": "switch-up", **_describe(switch)})

    def down(self, datapath: Any) -> None:
        """A connection ended."""
        switch = self.of(datapath)
        if switch is not None:
            del self._switches[switch.id]
            self._counters.pop(switch.id, None)
            self._traffic.gone(switch.id)
            switch.on_gone()
            self._publish({"event": "switch-down", "datapath_id": switch.id})

    def port(
        self,
        datapath: Any,
        port: dict[str, Any],
        change: str,
    ) -> None:
        """A port was added, removed (``change``) or changed."""
        if self.of(datapath) is not None:
            self._publish(
                {
                    "event": "port",
                    "datapath_id": datapath.id,
                    "change": change,
                    **port,
                }
            )

    def frame(
        self,
        datapath: Any,
        port: int,
        cookie: int,
        frame: bytes,
    ) -> None:
        """A frame arrived at a port, and an entry with this cookie sent it here."""
        if (
            self.of(datapath) is not None
            and cookie & COOKIE_MASK == COOKIE_MARK
        ):
            message = {
                "event": "frame",
                "datapath_id": datapath.id,
                "port": port,
            }
            self._publish({**message, "frame": frame.hex()})

    # -- what goes to and fro -----------------------------------------------------------------

    def said(self, datapath: Any, data: bytes) -> None:
        """The engine sends a message; counted for switches of the lab."""
        if self.of(datapath) is not None:
            self._traffic.said(datapath.id, bytes(data), time.monotonic())

    def heard(self, message: Any) -> None:
        """The engine read a message; counted for switches of the lab."""
        if self.of(message.datapath) is not None:
            kind = message.msg_type
            number = message.datapath.id
            self._traffic.heard(
                number,
                kind,
                message.xid,
                time.monotonic(),
            )

    def tell_traffic(self) -> None:
        """Report the counts once a second."""
        while True:
            queues = {
                number: s.datapath.send_q
                for number, s in self._switches.items()
            }
            waiting = {
                number: queue.qsize()
                for number, queue in queues.items()
                if queue
            }
            self._publish(self._traffic.message(waiting))
            eventlet.sleep(_PERIOD_S)

    # -- counters ---------------------------------------------------------------------------

    def _count(self, switch: Switch) -> None:
        next_at = flows_at = time.monotonic()
        while self.of(switch.datapath) is switch:
            try:
                with eventlet.Timeout(_COUNTERS_DEADLINE_S):
                    message = self._read(
                        switch, with_flows=time.monotonic() >= flows_at
                    )
                if "flows" in message:
                    flows_at = (
                        time.monotonic()
                        + message["read_s"] / _SHARE_FOR_FLOWS
                        - _PERIOD_S
                    )
            except SwitchGone:
                return
            except (eventlet.Timeout, PatchlightError) as error:
                LOG.warning(
                    "switch %#x: no counters: %s", switch.id, reason(error)
                )
            else:
                self._counters[switch.id] = message
                self._publish(message)
            next_at = max(next_at + _PERIOD_S, time.monotonic())
            eventlet.sleep(next_at - time.monotonic())

    @staticmethod
    def _read(switch: Switch, with_flows: bool) -> Message:
        begun = time.monotonic()
        counted = ("rx_bytes", "tx_bytes", "rx_packets", "tx_packets")
        ports = [
            {
                "port": stats.port_no,
                **{name: getattr(stats, name) for name in counted},
            }
            for stats in switch.port_stats()
        ]
        message: Message = {
            "event": "counters",
            "datapath_id": switch.id,
            "at": time.time(),
        }
        message["ports"] = ports
        if with_flows:
            message["flows"] = [
                {
                    "cookie": s.cookie,
                    "bytes": s.byte_count,
                    "packets": s.packet_count,
                }
                for s in switch.flow_stats()
            ]
        message["read_s"] = time.monotonic() - begun
        return message


def _describe(switch: Switch) -> Message:
    return {
        "datapath_id": switch.id,
        "address": switch.address,
        "ports": switch.ports(),
    }
