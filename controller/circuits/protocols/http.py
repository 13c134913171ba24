"""Exchanges HTTPS requests with a device, one at a time and bounded, and parses JSON.

An exchange that changes something and gets no answer raises ``OutcomeUnknown`` if any of it may
have been sent; a read is repeated once after a lost connection, then raises ``DeviceUnreachable``.
Redirects and proxies are not followed: the password only goes to the address in the lab file, and
never into a log or an error. Over plain HTTP, for devices without TLS (``HttpDialect.tls``), it is
not sent.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import re
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx

from patchlight.controller.circuits import contract
from patchlight.controller.circuits.dialect import (
    DEFAULT_LINKS,
    Dialect,
    Pattern,
    Session,
    shortened,
)
from patchlight.controller.circuits.protocols.session import AlarmLog
from patchlight.controller.circuits.protocols.tcp import BUFFER_LIMIT
from patchlight.testbed.errors import BadInput, reason
from patchlight.testbed.linux.files import append_line, user_folder

log = logging.getLogger("patchlight.ocs.http")

PINS_VARIABLE = "PATCHLIGHT_TLS_PINS"
RULES = ("first-use", "pinned", "ca", "off")


class DeviceNotTrusted(contract.DeviceUnreachable):
    """Another device may be answering; nothing was sent, not even the login."""


def pins_file() -> Path:
    """The file of pins."""
    if named := os.environ.get(PINS_VARIABLE):
        return Path(named)
    return (
        user_folder("XDG_CONFIG_HOME", ".config") / "patchlight" / "tls-pins"
    )


def fingerprint(certificate: bytes) -> str:
    """``sha256:…`` of a certificate in DER."""
    return f"sha256:{hashlib.sha256(certificate).hexdigest()}"


class Trust:
    """The rule for one device. ``refused`` says why the last certificate was rejected."""

    def __init__(
        self,
        address: str,
        rule: str,
        *,
        old_tls: bool = False,
    ) -> None:
        if rule not in RULES:
            raise BadInput(
                f"verify cannot be {rule!r} in a dialect: one of {', '.join(RULES)}"
            )
        self.refused = ""
        self._address = address
        self._rule = rule
        self._old_tls = old_tls

    def context(self) -> ssl.SSLContext:
        """The context of TLS connections."""
        if self._rule == "ca":
            context = ssl.create_default_context()
        else:
            # Without the machine's certificates, which take about 100 ms to load.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self._rule in ("first-use", "pinned"):
            context.sslobject_class = _checking(self._check)
        if self._old_tls:
            context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
            context.set_ciphers("DEFAULT:@SECLEVEL=0")
        return context

    def _check(self, certificate: bytes) -> None:
        """``ssl.SSLError`` ends the handshake before anything is sent."""
        self.refused = ""
        shown = fingerprint(certificate)
        file = pins_file()
        try:
            lines = (
                file.read_text(encoding="utf-8").splitlines()
                if file.exists()
                else []
            )
            pins = (words for line in lines if len(words := line.split()) >= 2)
            known = next(
                (
                    pin.lower()
                    for address, pin, *_ in pins
                    if address == self._address
                ),
                None,
            )
            if known is None and self._rule == "first-use":
                append_line(file, f"{self._address} {shown}")
                known = shown
                log.warning(
                    "%s: pinned its certificate %s in %s",
                    self._address,
                    shown,
                    file,
                )
        except (OSError, UnicodeDecodeError) as error:
            self.refused = (
                f"the pins of certificates in {file}: {reason(error)}"
            )
        else:
            if known is None:
                self.refused = (
                    f"{self._address} has the certificate {shown}, "
                    f"which is not pinned in {file}"
                )
            elif known != shown:
                self.refused = (
                    f"{self._address} has the certificate {shown}, "
                    f"but {file} has {known}"
                )
        if self.refused:
            raise ssl.SSLError(self.refused)


def _checking(check: Callable[[bytes], None]) -> type[ssl.SSLObject]:
    """A TLS connection that checks the peer's certificate at the end of the handshake."""

    class Checked(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            check(self.getpeercert(binary_form=True) or b"")

    return Checked


T = TypeVar("T")

_WORDS_KEPT = 300
_MANY = 8  # changes: a kept connection is as slow to make as several others
_NOTHING_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_TRANSPORT = (httpx.HTTPError, TimeoutError, OSError, ValueError)
# What precedes an exchange that timed out: the device may still work on it.
_GATEWAY = (502, 504)


@dataclass(
    frozen=True,
    slots=True,
)
class HttpReply:
    """An answer; ``body`` is its JSON, ``None`` if it is not JSON. ``etag`` can be sent back."""

    status: int
    reason: str
    text: str
    body: Any
    etag: str
    location: str


def in_json(text: str) -> str:
    """A text within the quotes of a JSON text."""
    return json.dumps(text)[1:-1]


def in_url(text: str) -> str:
    """A text within one part of a path or query."""
    return quote(text, safe="")


@dataclass(frozen=True)
class HttpDialect(Dialect):
    """What every exchange takes.

    ``verify`` is how the device's certificate is checked before the password is sent:
    ``"first-use"``, ``"pinned"``, ``"ca"`` or ``"off"``, see ``trust``. ``old_tls`` allows insecure
    versions, for old units. ``keep_connection`` saves a TLS handshake for each exchange; an
    exchange on a separate connection cannot get another's answer, nor a connection that the device
    has just closed. ``error_words`` is searched in the body of a refusal. Without ``tls`` it is
    plain HTTP, and no password is ever sent.
    """

    base: str = ""
    tls: bool = True
    media_type: str = "application/json"
    verify: str = "first-use"
    old_tls: bool = False
    keep_connection: bool = False
    error_words: Pattern = (
        r'"(?:error-)?message"\s*:\s*(?P<words>"(?:[^"\\]|\\.)*")'
    )


class HttpClient:
    """One device. All methods belong to one event loop.

    ``alarms`` is for the driver's findings: the device sends no events.
    """

    def __init__(self, session: Session, dialect: HttpDialect) -> None:
        self._session = session
        self._dialect = dialect
        host = f"[{session.host}]" if ":" in session.host else session.host
        self._address = f"{host}:{session.port}"
        self._scheme = "https" if dialect.tls else "http"
        self._trust = Trust(
            self._address, dialect.verify, old_tls=dialect.old_tls
        )
        self._lock = asyncio.Lock()
        self.alarms = AlarmLog()
        self.links = DEFAULT_LINKS
        self.connections = 0
        self._client: httpx.AsyncClient | None = None
        self._kept: httpx.AsyncClient | None = None

    async def open(self) -> None:
        """The first exchange connects."""

    async def close(self) -> None:
        """Close the connection. Idempotent; the next exchange reconnects."""
        async with self._lock:
            client = self._client
            self._client = None
            if client is not None:
                await client.aclose()

    async def hear(self) -> tuple[contract.Alarm, ...]:
        """The driver's findings."""
        return self.alarms.all

    @contextlib.asynccontextmanager
    async def series(self, length: int) -> AsyncIterator[None]:
        """If many, the changes in the block share a connection, which saves TLS handshakes.

        For small changes in a row whose result is read after the block: a wrong answer or a closed
        connection is harmless there.
        """
        if length < _MANY:
            yield
            return
        self._kept = kept = self._new_client(keep=True)
        try:
            yield
        finally:
            self._kept = None
            await kept.aclose()

    async def get(self, path: str) -> HttpReply:
        """Read. ``DeviceRefused`` also if the body is neither JSON nor empty."""
        shown = f"GET {path}"
        reply = await self._exchange("GET", path, shown)
        if reply.body is None and reply.text.strip() != "null":
            raise self.nonsense(shown, reply.text or "nothing")
        return reply

    async def get_text(self, path: str) -> str:
        """Read a body that is not JSON."""
        return (await self._exchange("GET", path, f"GET {path}")).text

    async def read(
        self,
        path: str,
        reader: Callable[[Any], T],
        *,
        missing: Any = None,
    ) -> T:
        """The result of ``reader`` for an answer's JSON; ``DeviceRefused`` for its ``ValueError``.

        ``missing`` replaces the JSON of a path that the device does not have, if that is allowed.
        """
        try:
            body = (await self.get(path)).body
        except contract.DeviceRefused as refusal:
            if missing is None or refusal.code != "404":
                raise
            body = missing
        try:
            return reader(body)
        except ValueError as error:
            raise self.nonsense(path, str(error)) from error

    async def change(
        self,
        method: str,
        path: str,
        body: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> HttpReply:
        """Change something; see the module for failures."""
        shown = shortened(f"{method} {path} {body}".rstrip())
        return await self._exchange(
            method,
            path,
            shown,
            body,
            headers,
            changes=True,
        )

    def nonsense(self, command: str, answer: str) -> contract.DeviceRefused:
        """The error for an invalid answer."""
        words = self._mask(answer)[:_WORDS_KEPT]
        return contract.DeviceRefused(
            f"{self._session.name} answered {command} with an invalid value: {words}",
            words=words,
            hint="if its firmware uses another format, correct the driver's dialect",
        )

    async def _exchange(
        self,
        method: str,
        path: str,
        shown: str,
        body: str = "",
        headers: Mapping[str, str] | None = None,
        *,
        changes: bool = False,
    ) -> HttpReply:
        name = self._session.name
        retried = False
        async with self._lock:
            while True:
                log.debug("%s < %s", name, self._mask(shown))
                try:
                    client = self._kept if changes else None
                    if client is None:
                        keep = self._dialect.keep_connection
                        client = self._client = (
                            self._client or self._new_client(keep=keep)
                        )
                    reply = await self._once(
                        client,
                        method,
                        path,
                        body,
                        dict(headers or {}),
                    )
                except _NOTHING_SENT as error:
                    self.connections += 1
                    raise self._unreachable(error) from error
                except _TRANSPORT as error:
                    self.connections += 1
                    reason = self._reason(error)
                    is_late = isinstance(
                        error, (TimeoutError, httpx.TimeoutException)
                    )
                    if changes:
                        raise contract.outcome_unknown(
                            f"{name}: {shown} was sent, then {reason}: the result is unknown",
                            is_late=is_late,
                        ) from error
                    if retried or is_late:
                        raise contract.DeviceUnreachable(
                            f"{name}: no reply to {shown}: {reason}"
                        ) from error
                    retried = True
                else:
                    log.debug(
                        "%s > %d %s",
                        name,
                        reply.status,
                        reply.reason,
                    )
                    self._check(reply, shown, changes=changes)
                    return reply

    async def _once(
        self,
        client: httpx.AsyncClient,
        method: str,
        path: str,
        body: str,
        headers: dict[str, str],
    ) -> HttpReply:
        # The client's timeouts are between bytes; one byte per second must end as well.
        longest_s = (
            self._session.timeouts.answer_s
            + 2 * self._session.timeouts.connect_s
        )
        if body:
            headers["Content-Type"] = self._dialect.media_type
        async with (
            asyncio.timeout(longest_s),
            client.stream(
                method,
                f"{self._scheme}://{self._address}{self._dialect.base}{path}",
                content=body.encode() if body else None,
                headers=headers,
            ) as response,
        ):
            if (
                response.headers.get("Content-Encoding", "identity")
                != "identity"
            ):
                raise ValueError(
                    "the answer is compressed, which was not requested"
                )
            data = bytearray()
            async for chunk in response.aiter_raw():
                data += chunk
                if len(data) > BUFFER_LIMIT:
                    raise ValueError(
                        f"the answer is longer than {BUFFER_LIMIT} bytes"
                    )
            text = data.decode("utf-8", "replace")
        content: Any = [] if response.status_code == 204 else None
        with contextlib.suppress(ValueError, RecursionError):
            content = json.loads(text)
        etag, location = (
            response.headers.get(name, "") for name in ("ETag", "Location")
        )
        etag = etag if etag.isascii() and etag.isprintable() else ""
        status = response.status_code
        reason = response.reason_phrase
        return HttpReply(
            status,
            reason,
            text,
            content,
            etag,
            location,
        )

    def _new_client(self, *, keep: bool) -> httpx.AsyncClient:
        headers = {
            "Accept": self._dialect.media_type,
            "Accept-Encoding": "identity",
        }
        session = self._session
        return httpx.AsyncClient(
            # Over plain HTTP anybody on the network could read it.
            auth=httpx.BasicAuth(session.user, session.password)
            if self._dialect.tls
            else None,
            verify=self._trust.context(),
            transport=self.links.http() if self.links.http else None,
            headers=headers if keep else {**headers, "Connection": "close"},
            timeout=httpx.Timeout(
                session.timeouts.answer_s, connect=session.timeouts.connect_s
            ),
            limits=httpx.Limits(
                max_connections=1,
                max_keepalive_connections=int(keep),
            ),
            follow_redirects=False,
            trust_env=False,
        )

    def _check(
        self,
        reply: HttpReply,
        shown: str,
        *,
        changes: bool,
    ) -> None:
        if 200 <= reply.status < 300:
            return
        name = self._session.name
        words = self._words(reply)
        if reply.status == 401:
            raise contract.LoginRefused(
                f"{name} refused the login of {self._session.user}: {words}",
                words=words,
                hint="check 'user' and 'password_env' of the circuit switch in the lab file",
            )
        if changes and reply.status in _GATEWAY:
            raise contract.outcome_unknown(
                f"{name}: {shown} was sent, then {words}: the result is unknown",
                is_late=True,
            )
        hint = None
        if reply.status == 403:
            hint = (
                f"the user {self._session.user} may only read on that device"
            )
        elif 300 <= reply.status < 400:
            hint = (
                "it redirects to another address, to which no password is sent: "
                "check its address"
            )
        raise contract.DeviceRefused(
            f"{name} refused {shown}: {words}",
            code=str(reply.status),
            words=words,
            hint=hint,
        )

    def _words(self, reply: HttpReply) -> str:
        text = reply.text.strip()
        if match := re.search(self._dialect.error_words, reply.text):
            text = match["words"]
            with contextlib.suppress(ValueError):
                text = str(json.loads(text))
        text = " ".join((text or reply.reason or reply.location).split())
        return self._mask(f"{reply.status}: {text}"[:_WORDS_KEPT])

    def _unreachable(self, error: Exception) -> contract.DeviceUnreachable:
        name = self._session.name
        refused = self._trust.refused
        if refused:
            return DeviceNotTrusted(
                f"nothing was sent to {name}: {refused}",
                hint="if the device has a new certificate, correct its line in that file "
                f"({PINS_VARIABLE}); if not, find out which service answers there",
            )
        reason = (
            str(error)
            or f"no answer in {self._session.timeouts.connect_s:g} s"
        )
        return contract.DeviceUnreachable(
            f"connecting to {name} at {self._address}: {self._mask(reason)}",
            hint=f"check that the device is on and speaks {self._scheme.upper()} there, and its "
            "address in the lab file",
        )

    def _mask(self, text: str) -> str:
        return self._session.masked(text)

    def _reason(self, error: Exception) -> str:
        if isinstance(error, (TimeoutError, httpx.TimeoutException)):
            return f"no answer within {self._session.timeouts.answer_s:g} s"
        return self._mask(str(error)) or "the connection was lost"
