"""Why no TLS comes about with what answers at an agent's address, in words."""

import asyncio
import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from patchlight.testbed.linux.credentials import CA_FILE, Credentials, name_in
from patchlight.testbed.linux.sockets import split_address

_DEADLINE_S = 3.0
_ALERTS = {
    "EXPIRED": "it has ended, by that server's clock",
    "UNKNOWN_CA": "it is of another authority than that agent's",
    "UNSUPPORTED_CERTIFICATE": "it is not a controller's",
}
_DEPLOY = "issue both anew with 'patchlight deploy certificates LAB --output DIR'"


@dataclass(frozen=True, slots=True)
class Mistrust:
    """What was seen, and what to do about it."""

    words: str
    hint: str


async def mistrust(address: str, name: str, own: Credentials) -> Mistrust | None:
    """What keeps the holder of ``own`` from the agent called ``name`` at ``host:port``.

    Connects once more, tells nothing, and looks at both certificates. ``None`` if all is well, or
    if nobody takes the connection.
    """
    try:
        return await asyncio.to_thread(_look, address, name, own)
    except OSError:
        return None


def _look(address: str, name: str, own: Credentials) -> Mistrust | None:
    context = own.context(server=False)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(split_address(address), timeout=_DEADLINE_S) as plain:
        try:
            tls = context.wrap_socket(plain)
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return None  # it went away just now
        except ssl.SSLError as error:
            return Mistrust(
                f"what answers at {address} speaks no TLS 1.3 ({_reason(error)})",
                "is it an agent of this lab? Start it with 'patchlight agent run --tls FOLDER'",
            )
        with tls:
            shown = x509.load_der_x509_certificate(tls.getpeercert(binary_form=True) or b"")
            if found := _against(shown, address, name, own):
                return found
            try:
                # An agent that takes our certificate now waits for a request.
                tls.read(1)
            except ssl.SSLError as error:
                why = next(
                    (w for alert, w in _ALERTS.items() if alert in (error.reason or "")), None
                )
                return Mistrust(
                    f"the agent at {address} refuses the certificate in {own.folder}: "
                    f"{why or _reason(error)}",
                    _DEPLOY,
                )
    return None


def _against(shown: x509.Certificate, address: str, name: str, own: Credentials) -> Mistrust | None:
    """What is wrong with the certificate that is shown."""
    server, lab = _server_and_lab(found := name_in(shown))
    if found != name:
        wanted, _ = _server_and_lab(name)
        who = (
            f"the agent at {address} is that of {server} of lab {lab}"
            if server and lab
            else f"what answers at {address} shows a certificate for {found or 'nobody'}"
        )
        return Mistrust(
            f"{who}, not that of {wanted}",
            f"correct the 'management:' address of {wanted} in the lab file, or start that agent "
            "with the folder that was made for it",
        )
    if not _is_issued_by(shown, own):
        return Mistrust(
            f"the agent at {address} shows a certificate that is not of the authority in "
            f"{own.folder}",
            _DEPLOY,
        )
    begin, end = shown.not_valid_before_utc, shown.not_valid_after_utc
    if not begin <= datetime.now(UTC) <= end:
        return Mistrust(
            f"the certificate of the agent at {address} is valid from {begin:%Y-%m-%d} to "
            f"{end:%Y-%m-%d}",
            "renew it with 'patchlight deploy certificates LAB --output DIR'; is this machine's "
            "clock right?",
        )
    return None


def _is_issued_by(shown: x509.Certificate, own: Credentials) -> bool:
    authority = x509.load_pem_x509_certificate((own.folder / CA_FILE).read_bytes())
    try:
        shown.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _server_and_lab(agent: str) -> tuple[str, str]:
    """What an agent's name consists of; two empty texts if it is none."""
    role, _, rest = agent.partition(".")
    server, _, lab = rest.partition(".")
    return (server, lab) if role == "agent" else ("", "")


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()
