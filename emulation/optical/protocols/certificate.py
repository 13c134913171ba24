"""The certificate of emulated devices: signed by itself, as those of switches in labs are.

Its key is no secret, for nothing emulated is, and it is the same for all and at every start:
a client that remembers it finds it again behind whichever port the next emulated lab gets.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import ssl
import tempfile

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

_SEED = hashlib.sha256(b"emulated optical circuit switch").digest()
_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "emulated optical circuit switch")])
_FROM = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
_TO = datetime.datetime(2120, 1, 1, tzinfo=datetime.UTC)


@functools.cache
def certificate() -> x509.Certificate:
    """Always the same bytes: Ed25519 signs without chance."""
    key = _key()
    builder = x509.CertificateBuilder(
        issuer_name=_NAME,
        subject_name=_NAME,
        public_key=key.public_key(),
        serial_number=1,
        not_valid_before=_FROM,
        not_valid_after=_TO,
    )
    return builder.sign(key, None)


def server_context() -> ssl.SSLContext:
    """What a device accepts TLS connections with."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    private = _key().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with tempfile.NamedTemporaryFile() as file:
        file.write(private + certificate().public_bytes(serialization.Encoding.PEM))
        file.flush()
        context.load_cert_chain(file.name)
    return context


def _key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(_SEED)
