"""Serves HTTP for an emulated device, with Basic authentication."""

import asyncio
import base64
import binascii
import contextlib
import datetime
import functools
import hashlib
import json
import ssl
import tempfile
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

import h11
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from patchlight.emulation.optical.emulated_switch import EmulatedSwitch, HungUp
from patchlight.emulation.optical.matrices import RequestRefused
from patchlight.emulation.optical.protocols.server import ProtocolServer

_BODY_LIMIT = 1 << 20
_READING = ("GET", "HEAD", "OPTIONS")
_SUBJECT = "emulated optical circuit switch"


@dataclass(frozen=True)
class HttpRequest:
    """``query`` has the last value of each name; ``body`` is the JSON, ``None`` without."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True)
class HttpResponse:
    """``body`` is sent as JSON; if it is ``None``, ``text`` is sent unchanged."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    text: str = ""


class HttpServer(ProtocolServer):
    """Serves HTTP over TLS with Basic authentication, or without both if not ``secure``.

    The codes of ``refusals`` are HTTP's.
    """

    media_type = "application/json"
    secure: ClassVar[bool] = True

    def __init__(self, device: EmulatedSwitch) -> None:
        super().__init__(device)
        self.tls = server_context() if self.secure else None

    @staticmethod
    def curl(path: str) -> str:
        """A shell command that gets ``path``; see ``ProtocolServer.by_hand``."""
        return f'curl -sk -u "{{user}}:{{password}}" "https://{{host}}:{{port}}{path}"'

    @abstractmethod
    async def _answer(self, request: HttpRequest) -> HttpResponse:
        """Handle a request; raises ``RequestRefused``."""

    @abstractmethod
    def _problem(self, status: int, message: str) -> HttpResponse:
        """An error in the vendor's format."""

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        connection = h11.Connection(h11.SERVER)
        # A device closes the connection on anything else than HTTP.
        with contextlib.suppress(h11.ProtocolError):
            while await self._exchange(connection, reader, writer):
                connection.start_next_cycle()

    async def _exchange(
        self,
        connection: h11.Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        head, data = await _receive(connection, reader)
        if head is None:
            return False
        faults = self._device.faults
        try:
            changes = head.method.decode() not in _READING
            async with faults.around_command(changes=changes) as refusal:
                response = await self._respond(head, data, refusal)
        except HungUp:
            writer.transport.abort()
            return False
        body = (
            response.text
            if response.body is None
            else json.dumps(response.body)
        ).encode()
        headers = {
            "Content-Type": self.media_type,
            "Content-Length": str(len(body)),
        }
        headers |= response.headers
        # A status without a body has no length either.
        if response.status in (204, 304):
            body = b""
            headers = response.headers
        events: list[h11.Event] = [
            h11.Response(
                status_code=response.status,
                headers=list(headers.items()),
            ),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ]
        answer = b"".join(connection.send(event) or b"" for event in events)
        writer.write(faults.spoilt(answer))
        await writer.drain()
        return (
            connection.our_state is h11.DONE
            and connection.their_state is h11.DONE
        )

    async def _respond(
        self,
        head: h11.Request,
        data: bytes,
        refusal: str,
    ) -> HttpResponse:
        headers = {
            name.decode(): value.decode("latin-1")
            for name, value in head.headers
        }
        method = head.method.decode()
        target = urlsplit(head.target.decode())
        user = (
            self._known(headers.get("authorization", ""))
            if self.secure
            else ""
        )
        if user is None:
            denied = self._problem(401, "invalid user or password")
            return HttpResponse(
                401, denied.body, {"WWW-Authenticate": 'Basic realm="switch"'}
            )
        if method not in _READING and not self._device.may_change(user):
            return self._problem(403, "this user may only look")
        if refusal:
            return self._problem(409, refusal)
        try:
            body = json.loads(data) if data else None
        except ValueError:
            return self._problem(400, "the body is not JSON")
        query = {
            name: values[-1] for name, values in parse_qs(target.query).items()
        }
        request = HttpRequest(
            method,
            unquote(target.path),
            query,
            headers,
            body,
        )
        await self._device.settle()
        try:
            response = await self._answer(request)
        except RequestRefused as refused:
            response = self._problem(*self._refusal(refused))
        await self._device.settle()
        return response

    def _known(self, authorization: str) -> str | None:
        scheme, _, encoded = authorization.partition(" ")
        try:
            user, _, password = (
                base64.b64decode(encoded, validate=True)
                .decode()
                .partition(":")
            )
        except (binascii.Error, UnicodeDecodeError):
            return None
        known = scheme.lower() == "basic" and self._device.lets_in(
            user, password
        )
        return user if known else None


async def _receive(
    connection: h11.Connection, reader: asyncio.StreamReader
) -> tuple[h11.Request | None, bytes]:
    head = None
    data = b""
    while len(data) <= _BODY_LIMIT:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(65536))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            data += event.data
        elif isinstance(event, h11.EndOfMessage):
            return head, data
        else:
            break
    return None, b""


@functools.cache
def certificate() -> x509.Certificate:
    """The self-signed certificate of emulated devices, like those of real ones.

    Its key is public, and equal for all devices and starts (Ed25519 signs deterministically), so
    clients that pinned it accept every emulated lab.
    """
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _SUBJECT)])
    return x509.CertificateBuilder(
        issuer_name=name,
        subject_name=name,
        public_key=_key().public_key(),
        serial_number=1,
        not_valid_before=datetime.datetime(
            2020,
            1,
            1,
            tzinfo=datetime.UTC,
        ),
        not_valid_after=datetime.datetime(
            2120,
            1,
            1,
            tzinfo=datetime.UTC,
        ),
    ).sign(_key(), None)


def server_context() -> ssl.SSLContext:
    """The TLS settings of a device."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    private = _key().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    with tempfile.NamedTemporaryFile() as file:
        file.write(
            private + certificate().public_bytes(serialization.Encoding.PEM)
        )
        file.flush()
        context.load_cert_chain(file.name)
    return context


def _key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(
        hashlib.sha256(_SUBJECT.encode()).digest()
    )
