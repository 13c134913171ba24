"""Reads pinned SSH host keys, and requests keys of the pinned types from servers.

A server with keys of several types presents one, of the type that the client prefers.
"""

import re
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import paramiko
from paramiko.hostkeys import HostKeyEntry, InvalidHostKey

from patchlight.testbed.errors import PatchlightError

_HASHED = re.compile(r"\|1(\|[A-Za-z0-9+/]{27}=){2}")
# A key of this type may sign by several algorithms (RFC 8332); ``ssh-rsa`` is the one with SHA-1.
_ALGORITHMS = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256", "ssh-rsa")}
_MOST_KEYS = 8
# The types of keys that lab files have the fingerprints of, as far as servers have presented them.
_type_of: dict[str, str] = {}


@dataclass(frozen=True)
class KnownHosts:
    """What ``known_hosts`` files vouch for: names with their key, and keys that are revoked.

    ``unread`` has names with the type of a key that cannot be read or used here.
    """

    entries: list[tuple[tuple[str, ...], paramiko.PKey]] = field(
        default_factory=list
    )
    revoked: set[bytes] = field(default_factory=set)
    unread: list[tuple[tuple[str, ...], str]] = field(default_factory=list)

    @classmethod
    def read(cls, *files: Path) -> "KnownHosts":
        """Of these files, as far as they exist; may raise ``OSError``."""
        known = cls()
        for file in files:
            with suppress(FileNotFoundError):
                for line in file.read_text(
                    encoding="utf-8",
                    errors="replace",
                ).splitlines():
                    known._add(line.strip())
        return known

    def _add(self, line: str) -> None:
        # Certificate authorities vouch for nothing.
        is_revoked = line.startswith("@revoked")
        if line.startswith("#") or (line.startswith("@") and not is_revoked):
            return
        line = " ".join(line.removeprefix("@revoked").split())
        try:
            entry = HostKeyEntry.from_line(line)
        except (InvalidHostKey, paramiko.SSHException):
            entry = None
        if entry is None or entry.key is None or entry.hostnames is None:
            names, *rest = line.split() or [""]
            if rest and not is_revoked:
                self.unread.append((tuple(names.split(",")), rest[0]))
        elif is_revoked:
            self.revoked.add(entry.key.asbytes())
        else:
            self.entries.append((tuple(entry.hostnames), entry.key))

    def of(self, host: str, port: int) -> list[paramiko.PKey]:
        """The keys that are known of an SSH server, and not revoked."""
        return [
            key
            for key in self._all(host, port)
            if key.asbytes() not in self.revoked
        ]

    def types(self, host: str, port: int) -> set[str]:
        """The types of all its keys, also of those that are revoked or cannot be read here."""
        unread = {
            kind
            for written, kind in self.unread
            if _is_of(host, port, written)
        }
        return types_of(self._all(host, port)) | unread

    def _all(self, host: str, port: int) -> list[paramiko.PKey]:
        return [
            key for written, key in self.entries if _is_of(host, port, written)
        ]


def _is_of(
    host: str,
    port: int,
    written: Iterable[str],
) -> bool:
    # OpenSSH omits the port if it is the default; Patchlight's own pins have it.
    names = {known_name(host, port), f"[{host}]:{port}"}
    is_there = False
    for each in written:
        if any(_fits(name, each.removeprefix("!")) for name in names):
            if each.startswith("!"):
                return False
            is_there = True
    return is_there


def _fits(name: str, written: str) -> bool:
    """Whether this is the name, or a pattern with ``*`` or ``?`` that it fits."""
    pattern = re.escape(written).replace(r"\*", ".*").replace(r"\?", ".")
    return is_named(name, written) or bool(
        re.fullmatch(pattern, name, re.IGNORECASE)
    )


def known_name(host: str, port: int) -> str:
    """What ``known_hosts`` calls an SSH server."""
    return host if port == 22 else f"[{host}]:{port}"


def is_named(name: str, written: str) -> bool:
    """Whether ``written`` stands for that SSH server in ``known_hosts``, plain or hashed."""
    if _HASHED.fullmatch(written):
        hashed = (
            paramiko.HostKeys.hash_host(each, written)
            for each in {name, name.lower()}
        )
        return written in hashed
    return written.lower() == name.lower()


def types_of(
    keys: Iterable[paramiko.PKey], fingerprint: str | None = None
) -> set[str]:
    """The types of these keys, and that of the key with this fingerprint, if it was seen."""
    types = {key.get_name() for key in keys}
    return (
        types | {_type_of[fingerprint]} if fingerprint in _type_of else types
    )


def prefer_key_types(
    transport: paramiko.Transport, types: Iterable[str]
) -> None:
    """Prefer host keys of these types in the handshake, which has not begun."""
    first = _algorithms(types)
    options = transport.get_security_options()
    options.key_types = sorted(
        options.key_types, key=lambda algorithm: algorithm not in first
    )


def has_key(keys: Collection[paramiko.PKey], fingerprint: str) -> bool:
    """Whether one of a server's keys has this fingerprint: from then on ``types_of`` knows it."""
    _type_of.update((key.fingerprint, key.get_name()) for key in keys)
    return any(key.fingerprint == fingerprint for key in keys)


def offered_keys(
    connect: Callable[[], paramiko.Transport],
    shown: paramiko.PKey,
    within_s: float,
) -> list[paramiko.PKey]:
    """All host keys of a server that has ``shown`` one of them, as far as it answers: it presents
    one in each new connection."""
    keys = [shown]
    with suppress(
        OSError,
        EOFError,
        paramiko.SSHException,
        PatchlightError,
    ):
        while len(keys) < _MOST_KEYS:
            with connect() as transport:
                seen = _algorithms(types_of(keys))
                options = transport.get_security_options()
                left = [each for each in options.key_types if each not in seen]
                if not left:
                    break
                options.key_types = left
                transport.start_client(timeout=within_s)
                keys.append(transport.get_remote_server_key())
    return keys


def _algorithms(types: Iterable[str]) -> set[str]:
    return {
        algorithm
        for each in types
        for algorithm in _ALGORITHMS.get(each, (each,))
    }
