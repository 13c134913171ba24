"""SSH keys of an emulated lab: one for whoever deploys, one for each server."""

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)


@dataclass(frozen=True, slots=True)
class SshKey:
    """A key pair as OpenSSH's files have it."""

    private: str
    public: str

    @property
    def fingerprint(self) -> str:
        """``SHA256:…``, as ``ssh-keygen -l`` prints it."""
        blob = base64.b64decode(self.public.split()[1])
        digest = base64.b64encode(hashlib.sha256(blob).digest()).decode()
        return f"SHA256:{digest.rstrip('=')}"


def new_key() -> SshKey:
    """A new Ed25519 key."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return SshKey(private.decode(), public.decode())


def write_client_files(
    folder: Path, user: str, identity: SshKey, servers: Mapping[str, tuple[IPv4Address, SshKey]]
) -> None:
    """Write what OpenSSH's client needs: ``identity`` (0600), ``known_hosts`` and ``config``.

    ``servers`` has each server's address and host key. ``ssh -F folder/config SERVER`` logs in.
    """
    folder.mkdir(mode=0o700)
    private = folder / "identity"
    private.touch(mode=0o600)
    private.write_text(identity.private)
    known = [f"{name},{address} {key.public}\n" for name, (address, key) in servers.items()]
    (folder / "known_hosts").write_text("".join(known))
    hosts = [f"Host {name}\n    HostName {address}\n" for name, (address, _) in servers.items()]
    everywhere = (
        f"Host {' '.join(servers)}\n    User {user}\n    IdentityFile {private}\n"
        f"    IdentitiesOnly yes\n    UserKnownHostsFile {folder / 'known_hosts'}\n"
        "    StrictHostKeyChecking yes\n"
    )
    (folder / "config").write_text("".join([*hosts, everywhere]))
