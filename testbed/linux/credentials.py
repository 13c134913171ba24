"""Reads secrets in environment variables, and a program's TLS certificates: ``ca.pem`` of the lab's
authority, ``cert.pem`` with the program's name in the lab (not an address), and ``key.pem``."""

import os
import ssl
import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from patchlight.testbed.errors import BadInput

if TYPE_CHECKING:
    from cryptography.x509 import Certificate, ObjectIdentifier


# ``cryptography`` is imported late: agents on Unix sockets only need the names.

CA_FILE = "ca.pem"
CERTIFICATE_FILE = "cert.pem"
KEY_FILE = "key.pem"
_ANEW = "make it with 'patchlight deploy certificates LAB --output DIR'"


def agent_name(server: str, lab: str) -> str:
    """The name in the certificate of a server's agent."""
    return f"agent.{server}.{lab}"


def controller_name(lab: str) -> str:
    """The name in the certificate of a lab's controller."""
    return f"controller.{lab}"


def switch_name(switch: str, lab: str) -> str:
    """The name in the certificate of a packet switch."""
    return f"switch.{switch}.{lab}"


def switches_name(lab: str) -> str:
    """The name for any packet switch of the lab, for a machine with several of them."""
    return f"switches.{lab}"


def prometheus_name(lab: str) -> str:
    """The name of the client that may read only the agents' metrics."""
    return f"prometheus.{lab}"


@dataclass(
    frozen=True,
    slots=True,
)
class Credentials:
    """A folder with a certificate: ``fingerprint`` is its SHA-256 in hex, ``serves`` whether it is
    for a server, else for a client."""

    folder: Path
    name: str
    fingerprint: str
    not_before: datetime
    not_after: datetime
    serves: bool = True

    def check(self, name: str, now: datetime | None = None) -> None:
        """``BadInput`` unless the certificate is for this name and valid now."""
        when = now or datetime.now(UTC)
        if self.name != name:
            raise BadInput(
                f"the certificate in {self.folder} is for {self.name}: expected {name}",
                hint="use the folder of that name's certificate",
            )
        if when > self.not_after:
            raise BadInput(
                f"the certificate in {self.folder} expired on {self.not_after:%Y-%m-%d %H:%M} UTC",
                hint="renew it with 'patchlight deploy certificates LAB --output DIR'",
            )
        if when < self.not_before:
            raise BadInput(
                f"the certificate in {self.folder} is not valid before "
                f"{self.not_before:%Y-%m-%d %H:%M} UTC",
                hint=f"check this machine's clock: it shows {when:%Y-%m-%d %H:%M} UTC",
            )

    def load_into(self, context: ssl.SSLContext) -> None:
        """Make a context's new connections use this certificate and trust this authority."""
        context.load_verify_locations(self.folder / CA_FILE)
        context.load_cert_chain(
            self.folder / CERTIFICATE_FILE, self.folder / KEY_FILE
        )

    def context(self, *, server: bool) -> ssl.SSLContext:
        """A ``new_context`` with this certificate and authority."""
        context = new_context(server=server)
        self.load_into(context)
        return context


def new_context(*, server: bool) -> ssl.SSLContext:
    """TLS 1.3 with certificates on both sides, for the name that a client expects
    (``server_hostname``). It does not trust an authority yet."""
    # The default context takes 20 ms to load the machine's authorities, which are not used.
    context = ssl.SSLContext(
        ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT
    )
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


def stamp(folder: Path) -> tuple[int, ...]:
    """Numbers that change whenever a file of the folder is written; empty without files."""
    files = (folder / name for name in (CA_FILE, CERTIFICATE_FILE, KEY_FILE))
    return tuple(file.stat().st_mtime_ns for file in files if file.exists())


def read_credentials(folder: Path) -> Credentials:
    """The content of the folder, even if expired. ``BadInput`` if a file is missing or invalid,
    others may read the key, or key, certificate and authority do not match."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import (
        load_pem_private_key,
    )
    from cryptography.x509.oid import ExtendedKeyUsageOID

    mode = (
        stat.S_IMODE((folder / KEY_FILE).stat().st_mode)
        if _read(folder, KEY_FILE)
        else 0
    )
    if mode & 0o077:
        raise BadInput(
            f"other users may read or change the key {folder / KEY_FILE} (mode {mode:04o})",
            hint=f"chmod 600 {folder / KEY_FILE}; if others may have seen it, issue a new one: "
            "'patchlight deploy certificates LAB --output DIR --new-keys'",
        )
    own = _certificate(folder, CERTIFICATE_FILE)
    try:
        key = load_pem_private_key(_read(folder, KEY_FILE), None)
    except (ValueError, TypeError) as error:
        raise BadInput(
            f"{folder / KEY_FILE} is not a private key in PEM format",
            hint=_ANEW,
        ) from error
    if key.public_key() != own.public_key():
        raise BadInput(
            f"key and certificate in {folder} do not match", hint=_ANEW
        )
    try:
        own.verify_directly_issued_by(_certificate(folder, CA_FILE))
    except (InvalidSignature, ValueError, TypeError) as error:
        raise BadInput(
            f"the certificate in {folder} was not issued by the authority in its {CA_FILE}",
            hint=_ANEW,
        ) from error
    return Credentials(
        folder,
        name_in(own),
        own.fingerprint(SHA256()).hex(),
        own.not_valid_before_utc,
        own.not_valid_after_utc,
        ExtendedKeyUsageOID.SERVER_AUTH in usages_in(own),
    )


def usages_in(certificate: "Certificate") -> list["ObjectIdentifier"]:
    """What a certificate may be used for; empty if not stated."""
    from cryptography import x509

    try:
        return list(
            certificate.extensions.get_extension_for_class(
                x509.ExtendedKeyUsage
            ).value
        )
    except x509.ExtensionNotFound:
        return []


def name_in(certificate: "Certificate") -> str:
    """The name in a certificate; empty if it has none."""
    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        ).value
    except x509.ExtensionNotFound:
        return ""
    return next(iter(names.get_values_for_type(x509.DNSName)), "")


def _certificate(folder: Path, file: str) -> "Certificate":
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(_read(folder, file))
    except ValueError as error:
        raise BadInput(
            f"{folder / file} is not a certificate in PEM format", hint=_ANEW
        ) from error


def _read(folder: Path, file: str) -> bytes:
    try:
        return (folder / file).read_bytes()
    except OSError as error:
        raise BadInput(
            f"reading {folder / file}: {error.strerror}", hint=_ANEW
        ) from error


def secret_of(variable: str | None, what: str) -> str:
    """The secret in this environment variable, ``""`` without one; ``BadInput`` if not set."""
    if variable is None:
        return ""
    if variable not in os.environ:
        raise BadInput(
            f"the environment variable {variable} for {what} is not set",
            hint=f"export {variable}=… before starting",
        )
    return os.environ[variable]
