"""Lets packet switches in over TLS: who has a certificate of the lab's authority, and nobody else.

Import only after ``engine.choose``: sockets and contexts here are eventlet's.
"""

import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.linux.credentials import (
    controller_name,
    new_context,
    read_credentials,
    stamp,
    switch_name,
    switches_name,
)

# Also what keeps who says nothing from holding a place for long.
_HANDSHAKE_WITHIN_S = 10.0
_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not good here",
    "WRONG_VERSION_NUMBER": "it speaks no TLS",
    "HTTP_REQUEST": "it speaks no TLS",
    "UNSUPPORTED_PROTOCOL": "it speaks no TLS 1.2 or newer",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not take our certificate: its authority is another",
}


class NotLetIn(PatchlightError):
    """A connection without TLS, or with a certificate that is not one of the lab's."""


class TlsDoor:
    """Shows the controller's certificate in ``folder``, and wants one of the same authority.

    ``switches`` are the names of the lab's packet switches by datapath id. A certificate that is
    put into the folder later is taken for connections from then on. ``BadInput`` if there is none
    that is the controller's and valid.
    """

    def __init__(self, folder: Path, lab: str, switches: Mapping[int, str]) -> None:
        self._folder, self._lab = folder, lab
        self._names = {number: switch_name(name, lab) for number, name in switches.items()}
        self._stamp = stamp(folder)
        self._context = self._new_context()

    def admit(self, connection: Any) -> "TlsConnection":
        """Shake hands; ``NotLetIn`` with what is wrong. The connection is closed then."""
        if (found := stamp(self._folder)) != self._stamp:
            with suppress(BadInput):  # half of it is there: the one that we have is still good
                self._context, self._stamp = self._new_context(), found
        connection.settimeout(_HANDSHAKE_WITHIN_S)
        try:
            return TlsConnection(self._context.wrap_socket(connection, server_side=True))
        except OSError as error:
            connection.close()
            raise NotLetIn(_words(error)) from error

    def is_for(self, connection: "TlsConnection", datapath_id: int) -> bool:
        """Whether the certificate at the other end is that of the switch with this id."""
        good = (self._names.get(datapath_id), switches_name(self._lab))
        return any(name in good for name in connection.names)

    def _new_context(self) -> ssl.SSLContext:
        credentials = read_credentials(self._folder)
        credentials.check(controller_name(self._lab))
        context = new_context(server=True)
        # Switches in the field know no newer one.
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        credentials.load_into(context)
        return context


class TlsConnection:
    """A connection over TLS as the engine uses sockets. ``names`` are the certificate's.

    The engine reads again after any error of TLS, without an end: here such an error ends the
    connection, as it does without TLS.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        shown = connection.getpeercert() or {}
        self.names = [name for kind, name in shown.get("subjectAltName", ()) if kind == "DNS"]
        self._over = False

    def recv(self, size: int) -> bytes:
        """Some bytes, none at the end; ``TimeoutError`` if nothing comes."""
        if self._over:
            return b""
        try:
            return bytes(self._connection.recv(size))
        except ssl.SSLError as error:
            raise ConnectionError(_words(error)) from error

    def sendall(self, data: bytes) -> None:
        """Send all of it."""
        self._connection.sendall(data)

    def shutdown(self, _how: int) -> None:
        """End both ways: after half of a TLS connection the other half cannot be read any more."""
        self._over = True
        # Not ``SSLSocket``'s own, which takes the encryption from under whoever reads just now.
        socket.SocketType.shutdown(self._connection, socket.SHUT_RDWR)

    def setsockopt(self, *arguments: Any) -> None:
        """As of any socket."""
        self._connection.setsockopt(*arguments)

    def settimeout(self, seconds: float) -> None:
        """As of any socket."""
        self._connection.settimeout(seconds)

    def close(self) -> None:
        """As of any socket."""
        self._connection.close()


def _words(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not good here: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or str(error)
        return _REASONS.get(reason, reason.replace("_", " ").lower())
    if isinstance(error, TimeoutError):
        return f"it began no TLS within {_HANDSHAKE_WITHIN_S:g} s"
    return "it went away"
