"""Serves HTTP with limits, on sockets that any user of the machine may reach.

A peer that is silent, slow or sends too much costs one connection for a while; it never blocks
others or fills the log. When there are too many connections, the user with the most loses one.
"""

import asyncio
import json
import logging
import resource
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections import Counter
from collections.abc import Collection, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import urlsplit

import h11
import uvicorn
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from patchlight.testbed.errors import PROBLEM_MEDIA_TYPE, problem
from patchlight.testbed.linux.limited_listener import LimitedListener
from patchlight.testbed.linux.sockets import UNIX_CLIENT, user_of_peer

_READS = ("GET", "HEAD", "OPTIONS")
# Accepted in one batch before any of them is examined.
_ACCEPTED_AT_ONCE = 32
# Backlog in the kernel; without room there a client waits for seconds.
_WAITING = 4096
_AT_WORK = 2
# A read without an answer for so long is a long poll.
_LONG_READ_S = 6.0
# An idle keep-alive peer does not notice that it is closed.
_GOODBYE_S = 1.0
_LOOK_AROUND_S = 1.0
_log = logging.getLogger("patchlight.http")


@dataclass(frozen=True)
class ServerLimits:
    """Limits of one server. Beyond ``connections`` (fewer if few files may be open), one connection
    of the user with the most is closed: first long reads (event streams, long polls), the oldest
    first, then the one that has waited longest for its peer. ``peer_s``: how long a peer may take
    to send a request, or to continue reading a response.

    With ``per_user``, each user has at most so many connections, and half as many new ones a
    second, and so has each address of another machine before it is known whose they are;
    ``trusted`` users of this machine are not limited."""

    connections: int = 256
    per_user: int | None = None
    trusted: frozenset[int] = frozenset()
    peer_s: float = 10.0
    body_bytes: int = 4 << 20


DEFAULT_LIMITS = ServerLimits()


def http_server(
    app: ASGIApp,
    *,
    hosts: Collection[str] = (),
    limits: ServerLimits = DEFAULT_LIMITS,
    tls: ssl.SSLContext | None = None,
    websockets: bool = False,
    **options: Any,
) -> uvicorn.Server:
    """A uvicorn server that leaves signals to the caller; ``options`` are uvicorn's.

    ``hosts``: the accepted host names, in addition to the address of the connection; empty: any.
    With ``tls``, the client of a request is the name in its certificate. The ``state`` of a
    request's scope keeps facts about its connection under ``connection``: the ``uid`` of its peer
    if the kernel tells it, and whether it ``is_closed``. Its owner is ``owner`` there, else its
    local user or address. ``websockets``: whether they are allowed, never from other sites' pages.
    Set ``should_exit`` to stop: uvicorn's signal handlers would end the process before the caller
    can clean up.
    """
    connection = (
        partial(_Encrypted, tls, limits)
        if tls
        else partial(_Connection, limits)
    )
    config = uvicorn.Config(
        _Guard(app, hosts, limits.body_bytes),
        log_level="warning",
        access_log=False,
        http=cast(type[asyncio.Protocol], connection),
        ws="websockets-sansio" if websockets else "none",
        ws_max_size=limits.body_bytes,
        # The connection identifies the client; headers can be forged.
        proxy_headers=False,
        backlog=_ACCEPTED_AT_ONCE,
        **options,
    )
    return _Server(config, limits, is_plain=tls is None)


def _last_answer(
    status: int,
    detail: str,
    hint: str,
    *headers: str,
) -> bytes:
    """A response with problem details, after which the connection is closed."""
    body = json.dumps(problem(status, detail, hint))
    lines = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"Content-Type: {PROBLEM_MEDIA_TYPE}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *headers,
        "",
        body,
    )
    return "\r\n".join(lines).encode()


_REFUSAL = _last_answer(
    429,
    "you have too many connections to this server, or open them too quickly",
    "close some, or use one for several requests; wait a second",
    "Retry-After: 1",
)


class _Server(uvicorn.Server):
    """Checks once a second, and immediately at shutdown: uvicorn checks ten times a second, which
    takes 1.2 ms of CPU instead of 0.2 in each agent of an emulated lab."""

    def __init__(
        self,
        config: uvicorn.Config,
        limits: ServerLimits,
        *,
        is_plain: bool,
    ) -> None:
        self._told_to_end = asyncio.Event()
        self._limits = limits
        self._refusal = _REFUSAL if is_plain else b""
        super().__init__(config)

    @property
    def should_exit(self) -> bool:
        return self._told_to_end.is_set()

    @should_exit.setter
    def should_exit(self, told: bool) -> None:
        if told:
            self._told_to_end.set()

    async def startup(
        self, sockets: list[socket.socket] | None = None
    ) -> None:
        most = self._limits.per_user
        trusted = self._limits.trusted
        if most is not None and sockets is not None:
            sockets = [
                LimitedListener(
                    each,
                    most / 2,
                    trusted,
                    self._refusal,
                )
                for each in sockets
            ]
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(_WAITING)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        tenths = 0
        while not await self.on_tick(tenths):
            tenths += 10
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AROUND_S):
                    await self._told_to_end.wait()


class _Connection(H11Protocol):
    def __init__(
        self,
        limits: ServerLimits,
        *arguments: Any,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._limits = limits
        # Each request gets a copy of the outer one.
        self._facts: dict[str, Any] = {}
        self.app_state = {**self.app_state, "connection": self._facts}
        self._uid: int | None = None
        self._waits: asyncio.TimerHandle | None = None
        self._since = self.loop.time()
        self._is_websocket = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        peer: socket.socket = transport.get_extra_info("socket")
        self._know(peer)
        if peer.family == socket.AF_UNIX:
            self.client = (UNIX_CLIENT, self._facts["uid"])
        elif shown := transport.get_extra_info("peercert"):
            names = [
                name
                for kind, name in shown.get("subjectAltName", ())
                if kind == "DNS"
            ]
            self.client = (
                next(iter(names), ""),
                self.client[1] if self.client else 0,
            )
        self._wait_among_others()

    def arrive(self, transport: asyncio.Transport) -> None:
        """Count as a connection before the peer has authenticated."""
        self.transport = transport
        self._know(transport.get_extra_info("socket"))
        self.connections.add(self)
        self._wait_among_others()

    def _know(self, peer: socket.socket) -> None:
        with suppress(LookupError):
            self._facts["uid"] = self._uid = user_of_peer(peer)

    def leave(self) -> None:
        self._rest()
        self.connections.discard(self)

    def _wait_among_others(self) -> None:
        self._judge()
        most = min(
            self._limits.connections,
            resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4,
        )
        if len(self.connections) > most:
            ours = [
                each
                for each in self.connections
                if isinstance(each, _Connection)
            ]
            # Connections with a request in progress are closed last.
            ours = [each for each in ours if each.value < _AT_WORK] or ours
            counts = Counter(each.owner for each in ours)
            min(
                ours,
                key=lambda each: (
                    -counts[each.owner],
                    each.value,
                    each._since,
                ),
            ).give_up()
        self._keep_to_own_share()

    def _keep_to_own_share(self) -> None:
        """Beyond the user's limit, close another of their connections, or this if all work."""
        most = self._limits.per_user
        if most is None or self._uid in self._limits.trusted:
            return
        own = [
            each for each in self.connections if isinstance(each, _Connection)
        ]
        if self._uid is not None:  # for whomever they call
            own = [each for each in own if each._uid == self._uid]
        else:
            own = [each for each in own if each.owner == self.owner]
        if len(own) <= most:
            return
        own.remove(self)
        idle = [each for each in own if each.is_idle]
        if idle:
            min(idle, key=lambda each: (each.value, each._since)).give_up()
        elif self.flow is None:  # no handshake yet
            self.give_up()
        else:
            self.transport.write(_REFUSAL)
            self.transport.close()

    @property
    def owner(self) -> object:
        peer = (
            self.client or self.transport.get_extra_info("peername") or ("",)
        )
        return self._facts.get(
            "owner", peer[0] if self._uid is None else self._uid
        )

    @property
    def is_idle(self) -> bool:
        """Whether no request would be lost with it, but for a stream or a long poll."""
        if self.value == _AT_WORK:
            return False
        lasts = self.loop.time() - self._since > _LONG_READ_S
        return self.value > 0 or self.cycle.response_started or lasts

    @property
    def value(self) -> int:
        """The cost of closing it: lowest for a known user's read, highest for a change."""
        if self._waits is not None or self.scope is None:
            return 1
        known = "owner" in self._facts
        return 0 if known and self.scope["method"] in _READS else _AT_WORK

    def connection_lost(self, exc: Exception | None) -> None:
        self._facts["is_closed"] = True
        self._rest()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._judge()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._is_websocket = True
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        self._rest()
        super().on_response_complete()
        self._judge()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._judge()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._judge()

    def give_up(self) -> None:
        self.leave()
        self.transport.abort()

    def _judge(self) -> None:
        """Start the timer while the peer must act, and stop it otherwise."""
        request = self.cycle
        whole = (
            request is not None
            and not request.more_body
            and not request.response_complete
        )
        if self._is_websocket or (whole and not self.flow.write_paused):
            self._rest()
        elif self._waits is None and not self.transport.is_closing():
            self._waits = self.loop.call_later(
                self._limits.peer_s, self.give_up
            )
            self._since = self.loop.time()

    def _rest(self) -> None:
        if self._waits is not None:
            self._waits.cancel()
            self._since = self.loop.time()
        self._waits = None

    def send_400_response(self, msg: str) -> None:
        """Refuse non-HTTP data with the usual error format."""
        self.transport.write(
            _last_answer(400, msg, "expected an HTTP/1.1 request")
        )
        self.transport.close()


class _Encrypted(SSLProtocol):
    """TLS around a connection. Its handshake counts as part of the first request."""

    max_size = 64 << 10  # the buffer that each connection has

    def __init__(
        self,
        context: ssl.SSLContext,
        limits: ServerLimits,
        **options: Any,
    ) -> None:
        self._connection = _Connection(limits, **options)
        shows = context.verify_mode is ssl.CERT_REQUIRED
        self._missing = "no valid certificate" if shows else "no TLS"
        super().__init__(
            asyncio.get_running_loop(),
            self._connection,
            context,
            None,  # type: ignore[arg-type]  # nobody waits for the handshake
            server_side=True,
            ssl_shutdown_timeout=_GOODBYE_S,
        )

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._peer = str(transport.get_extra_info("peername")[0])
        self._connection.arrive(transport)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connection.leave()
        super().connection_lost(exc)

    def _on_handshake_complete(
        self, handshake_exc: BaseException | None
    ) -> None:
        if handshake_exc is not None:
            # asyncio would drop the alert, so the peer would not learn the reason.
            self._process_outgoing()  # type: ignore[attr-defined]
            if isinstance(handshake_exc, ssl.SSLError):
                why = (
                    getattr(handshake_exc, "verify_message", "")
                    or handshake_exc.reason
                )
                _log.warning(
                    "refused %s, %s: %s",
                    self._peer,
                    self._missing,
                    why,
                )
        super()._on_handshake_complete(handshake_exc)


class _Guard:
    """Refuses requests that are for another host, come from a foreign web page, or are too long."""

    def __init__(
        self,
        app: ASGIApp,
        hosts: Collection[str],
        body_bytes: int,
    ) -> None:
        self._app = app
        self._hosts = frozenset(hosts)
        self._body_bytes = body_bytes

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if scope["type"] == "websocket":
            # A refusal before acceptance becomes a 403.
            if self._refusal(scope, headers):
                await send({"type": "websocket.close"})
            else:
                await self._app(scope, receive, send)
            return
        if refusal := self._refusal(scope, headers):
            # A further request needs a further connection, which costs the peer more than this.
            head = {"Connection": "close"}
            body = problem(*refusal)
            answer = JSONResponse(
                body,
                refusal[0],
                head,
                media_type=PROBLEM_MEDIA_TYPE,
            )
            await answer(scope, receive, send)
            return
        taken = 0

        async def limited() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._body_bytes:
                raise HTTPException(413, self._too_long())
            return message

        await self._app(scope, limited, send)

    def _refusal(
        self, scope: MutableMapping[str, Any], headers: Headers
    ) -> tuple[int, str, str] | None:
        host = headers.get("host", "")
        origin = headers.get("origin")
        known = {*self._hosts, (scope.get("server") or ("",))[0]} - {""}
        called = ""
        with suppress(
            ValueError
        ):  # [::1]:8470 is ::1, localhost:8470 is localhost
            called = urlsplit(f"//{host}").hostname or ""
        if self._hosts and called not in known:
            names = ", ".join(sorted(self._hosts))
            return 421, f"unknown host {host[:80]!r}", f"use one of: {names}"
        scheme = {"ws": "http", "wss": "https"}.get(
            scope["scheme"], scope["scheme"]
        )
        foreign = origin is not None and origin != f"{scheme}://{host}"
        # A websocket may make changes, too.
        if self._hosts and foreign and scope.get("method") not in _READS:
            return (
                403,
                f"web page {str(origin)[:80]} may not make changes",
                "use the CLI",
            )
        length = headers.get("content-length", "0")
        if (
            not length.isdecimal()
            or len(length) > 18
            or int(length) > self._body_bytes
        ):
            return 413, self._too_long(), "split the request"
        return None

    def _too_long(self) -> str:
        return f"the request is longer than {self._body_bytes >> 20} MiB, the limit"
