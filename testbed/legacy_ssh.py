"""Lets allowed devices use SSH with old firmware that only has SHA-1."""

import logging
from hashlib import sha1
from typing import Any, ClassVar

import paramiko
from cryptography.hazmat.primitives import hashes
from paramiko.kex_group14 import KexGroup14SHA256

_log = logging.getLogger("patchlight.ssh")


class _Group14Sha1(KexGroup14SHA256):
    name = "diffie-hellman-group14-sha1"
    hash_algo = sha1


class _Group1Sha1(_Group14Sha1):
    name = "diffie-hellman-group1-sha1"
    P = int(  # RFC 2409, 6.2
        "FFFFFFFFFFFFFFFFC90FDAA22168C234C4C6628B80DC1CD129024E088A67CC74020BBEA63B139B22"
        "514A08798E3404DDEF9519B3CD3A431B302B0A6DF25F14374FE1356D6D51C245E485B576625E7EC6"
        "F44C42E9A637ED6B0BFF5CB6F406B7EDEE386BFB5A899FA5AE9F24117C4B1FE649286651ECE65381"
        "FFFFFFFFFFFFFFFF",
        16,
    )


class _Sha1RsaKey(paramiko.RSAKey):
    # paramiko omits it from the algorithms it verifies.
    HASHES: ClassVar = {**paramiko.RSAKey.HASHES, "ssh-rsa": hashes.SHA1}  # type: ignore[misc]


def allow_legacy(
    transport: paramiko.Transport, name: str
) -> paramiko.Transport:
    """Accept old algorithms too, as the last choice, and log a warning."""
    exchanges = {each.name: each for each in (_Group14Sha1, _Group1Sha1)}
    inner: Any = transport
    inner._key_info = {"ssh-rsa": _Sha1RsaKey, **inner._key_info}
    inner._kex_info = {**exchanges, **inner._kex_info}
    inner._preferred_keys = tuple(
        dict.fromkeys([*inner._preferred_keys, "ssh-rsa"])
    )
    inner._preferred_kex = tuple(
        dict.fromkeys([*inner._preferred_kex, *exchanges])
    )
    _log.warning("%s: the lab file allows insecure SSH algorithms", name)
    return transport


def explained(error: Exception, key: str) -> str:
    """The error as text; if no algorithm is common, it names the ``key`` of the lab file."""
    causes = (error, error.__context__)  # libraries wrap it
    if not any(
        isinstance(cause, paramiko.ssh_exception.IncompatiblePeer)
        for cause in causes
    ):
        return str(error) or "it closed the connection"
    return (
        f"{error}: the device may support only insecure algorithms; update its firmware, or "
        f"allow them with '{key}' in the lab file"
    )
