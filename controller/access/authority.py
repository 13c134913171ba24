"""Issues certificates of a lab's authority, which identify the controller and the agents by name.

It is a folder on the deploying machine: ``ca.pem`` goes to every program of the lab; ``ca-key.pem``
stays, because its owner can pose as the controller. A renewed certificate keeps its key. If a key
may have leaked, issue new ones; if it is the authority's, remove the folder first.
"""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.linux import credentials
from patchlight.testbed.linux.credentials import Credentials
from patchlight.testbed.linux.files import private_folder, user_folder

CERTIFICATE_LIFETIME = timedelta(days=365)
RENEWED_BEFORE_END = timedelta(days=60)
_AUTHORITY_LIFETIME = timedelta(days=20 * 365)
_AUTHORITY_KEY_FILE = "ca-key.pem"
# For servers with slow clocks.
_CLOCKS_BEHIND = timedelta(days=1)
_CALLS = ExtendedKeyUsageOID.CLIENT_AUTH
_SERVES = ExtendedKeyUsageOID.SERVER_AUTH


def _utc() -> datetime:
    return datetime.now(UTC)


def authority_folder(lab: str) -> Path:
    """This user's folder for a lab's authority."""
    return (
        user_folder("XDG_DATA_HOME", ".local/share")
        / "patchlight/labs"
        / lab
        / "ca"
    )


class Authority:
    """The authority of a lab, created in ``folder`` (0700) if missing.

    ``PatchlightError`` if others can write there, if it cannot be read or written, or if it is
    another lab's. ``clock`` returns the time in UTC.
    """

    def __init__(
        self,
        lab: str,
        folder: Path,
        clock: Callable[[], datetime] = _utc,
    ) -> None:
        self.lab = lab
        self.folder = folder
        self._clock = clock
        subject = x509.Name(
            [x509.NameAttribute(NameOID.COMMON_NAME, f"Patchlight lab {lab}")]
        )
        with _writing(folder), _alone(folder):
            if (folder / credentials.CA_FILE).exists() and not (
                folder / _AUTHORITY_KEY_FILE
            ).exists():
                raise BadInput(
                    f"the authority in {folder} has lost its key {_AUTHORITY_KEY_FILE}",
                    hint=f"restore it; or remove {folder} and issue all certificates again",
                )
            self._key = _key_in(folder / _AUTHORITY_KEY_FILE)
            found = _certificate_in(folder / credentials.CA_FILE)
            if found is not None and found.subject != subject:
                raise BadInput(
                    f"{folder} belongs to another authority ({found.subject.rfc4514_string()}), "
                    f"not to that of lab {lab}",
                    hint="name another folder",
                )
            now = clock()
            if (
                found is None
                or found.not_valid_after_utc - now < 2 * CERTIFICATE_LIFETIME
            ):
                found = self._made(subject, now)
                _put(
                    folder / credentials.CA_FILE,
                    found.public_bytes(serialization.Encoding.PEM),
                )
            self._certificate = found

    def for_agent(
        self,
        server: str,
        folder: Path,
        *,
        anew: bool = False,
    ) -> Credentials:
        """Write the key and certificates of the agent of ``server`` into ``folder``.

        A certificate that is valid for long enough stays, and so does a key unless ``anew``. It can
        be repeated after an interruption. ``PatchlightError`` if the folder cannot be written, or
        if others can write there.
        """
        return self._provide(
            credentials.agent_name(server, self.lab),
            [_SERVES],
            folder,
            anew,
        )

    def for_controller(
        self, folder: Path, *, anew: bool = False
    ) -> Credentials:
        """The same for the lab's controller, which calls agents and answers users."""
        return self._provide(
            credentials.controller_name(self.lab),
            [_CALLS, _SERVES],
            folder,
            anew,
        )

    def for_prometheus(
        self, folder: Path, *, anew: bool = False
    ) -> Credentials:
        """The same for a Prometheus, which may only read the agents' metrics."""
        return self._provide(
            credentials.prometheus_name(self.lab),
            [_CALLS],
            folder,
            anew,
        )

    def for_switch(
        self,
        switch: str,
        folder: Path,
        *,
        anew: bool = False,
    ) -> Credentials:
        """The same for a packet switch that connects to the controller over TLS."""
        return self._provide(
            credentials.switch_name(switch, self.lab),
            [_CALLS],
            folder,
            anew,
        )

    def for_switches(self, folder: Path, *, anew: bool = False) -> Credentials:
        """The same for a machine with several packet switches of the lab."""
        return self._provide(
            credentials.switches_name(self.lab),
            [_CALLS],
            folder,
            anew,
        )

    def _provide(
        self,
        name: str,
        usages: list[x509.ObjectIdentifier],
        folder: Path,
        anew: bool,
    ) -> Credentials:
        with _writing(folder):
            now = self._clock()
            present = _certificate_in(folder / credentials.CERTIFICATE_FILE)
            if (
                present is not None
                and (other := credentials.name_in(present)) != name
            ):
                raise BadInput(
                    f"{folder} has the certificate for {other}: expected an empty folder, or the "
                    f"certificate for {name}",
                    hint="name another folder",
                )
            authority = self._certificate.public_bytes(
                serialization.Encoding.PEM
            )
            if (
                not anew
                and present is not None
                and credentials.usages_in(present) == usages
            ):
                with contextlib.suppress(BadInput):
                    found = credentials.read_credentials(folder)
                    lasts = found.not_after - now > RENEWED_BEFORE_END
                    if lasts and _has(folder / credentials.CA_FILE, authority):
                        return found
            key_file = folder / credentials.KEY_FILE
            key = None if anew or not key_file.exists() else _key_in(key_file)
            # Remove the certificate first, so that a key is never next to a wrong one.
            if key is None or not _has(
                folder / credentials.CA_FILE, authority
            ):
                (folder / credentials.CERTIFICATE_FILE).unlink(missing_ok=True)
            if key is None:
                key_file.unlink(missing_ok=True)
                key = _key_in(key_file)
            _put(folder / credentials.CA_FILE, authority)
            issued = self._issued(
                name,
                usages,
                key.public_key(),
                now,
            )
            _put(
                folder / credentials.CERTIFICATE_FILE,
                issued.public_bytes(serialization.Encoding.PEM),
            )
            return credentials.read_credentials(folder)

    def _made(self, subject: x509.Name, now: datetime) -> x509.Certificate:
        public = self._key.public_key()
        return (
            _begun(
                subject,
                subject,
                public,
                now,
                now + _AUTHORITY_LIFETIME,
            )
            .add_extension(
                x509.BasicConstraints(
                    ca=True,
                    path_length=0,
                ),
                critical=True,
            )
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .sign(self._key, SHA256())
        )

    def _issued(
        self,
        name: str,
        usages: list[x509.ObjectIdentifier],
        public: ec.EllipticCurvePublicKey,
        now: datetime,
    ) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(
            self._key.public_key()
        )
        end = now + CERTIFICATE_LIFETIME
        return (
            _begun(
                subject,
                self._certificate.subject,
                public,
                now,
                end,
            )
            .add_extension(
                x509.SubjectAlternativeName([x509.DNSName(name)]),
                critical=False,
            )
            .add_extension(
                x509.BasicConstraints(
                    ca=False,
                    path_length=None,
                ),
                critical=True,
            )
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(signer, critical=False)
            .sign(self._key, SHA256())
        )


def _begun(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    now: datetime,
    end: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_BEHIND)
        .not_valid_after(end)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(public), critical=False
        )
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _key_in(path: Path) -> ec.EllipticCurvePrivateKey:
    if path.exists():
        if path.stat().st_mode & 0o077:
            raise BadInput(
                f"other users may read or change the key {path}",
                hint=(
                    f"chmod 600 {path}; if others may have seen it, remove it and issue a new one"
                ),
            )
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), None)
        except (ValueError, TypeError):
            key = None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise BadInput(
                f"{path} is not an elliptic curve key in PEM format",
                hint="remove it and issue a new one",
            )
        return key
    key = ec.generate_private_key(ec.SECP256R1())
    _put(
        path,
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
    return key


def _certificate_in(path: Path) -> x509.Certificate | None:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise BadInput(
            f"{path} is not a certificate in PEM format",
            hint="remove it: it is created again",
        ) from error


def _has(path: Path, content: bytes) -> bool:
    return path.exists() and path.read_bytes() == content


def _put(path: Path, content: bytes) -> None:
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        private_folder(folder)
        yield
    except OSError as error:
        raise PatchlightError(
            f"writing certificates to {folder}: {error.strerror}",
            hint="choose a writable folder on a disk with free space",
        ) from error


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    # Two processes must not create two authorities.
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
