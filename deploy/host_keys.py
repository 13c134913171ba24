"""Host keys of SSH servers: which are known, and why one is refused."""

import re
from collections.abc import Set
from dataclasses import dataclass, field
from pathlib import Path

import paramiko
from paramiko.hostkeys import HostKeyEntry, InvalidHostKey

from patchlight.testbed.errors import PatchlightError

USER_FILE = Path("~/.ssh/known_hosts")
_SYSTEM_FILE = Path("/etc/ssh/ssh_known_hosts")
_HASHED = re.compile(r"\|1(\|[A-Za-z0-9+/]{27}=){2}")


class HostKeyRefused(PatchlightError):
    """The server's host key is another than the one that is known, or none is known."""


@dataclass(frozen=True)
class KnownHosts:
    """What ``known_hosts`` files vouch for: names with their key, and keys that are revoked."""

    entries: list[tuple[tuple[str, ...], paramiko.PKey]] = field(default_factory=list)
    revoked: set[bytes] = field(default_factory=set)

    @classmethod
    def read(cls, *files: Path) -> "KnownHosts":
        """Of these files, by default the user's and the system's; may be ``HostKeyRefused``."""
        known = cls()
        for file in files or (USER_FILE.expanduser(), _SYSTEM_FILE):
            try:
                lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise HostKeyRefused(
                    f"reading the known host keys in {file}: {error.strerror}",
                    hint="Let yourself read it: ls -l shows whose it is.",
                ) from error
            for line in lines:
                known._add(line.strip())
        return known

    def _add(self, line: str) -> None:
        # What cannot be understood, and certificate authorities, vouch for nothing.
        is_revoked = line.startswith("@revoked")
        if line.startswith("#") or (line.startswith("@") and not is_revoked):
            return
        try:
            entry = HostKeyEntry.from_line(line.removeprefix("@revoked").strip())
        except (InvalidHostKey, paramiko.SSHException):
            return
        if entry is None or entry.key is None or entry.hostnames is None:
            return
        if is_revoked:
            self.revoked.add(entry.key.asbytes())
        else:
            self.entries.append((tuple(entry.hostnames), entry.key))

    def of(self, host: str, port: int) -> list[paramiko.PKey]:
        """The keys that are known of an SSH server, and not revoked."""
        name = known_name(host, port)
        return [
            key
            for names, key in self.entries
            if key.asbytes() not in self.revoked and any(is_named(name, each) for each in names)
        ]


def known_name(host: str, port: int) -> str:
    """What ``known_hosts`` calls an SSH server."""
    return host if port == 22 else f"[{host}]:{port}"


def is_named(name: str, written: str) -> bool:
    """Whether ``written`` stands for that SSH server in ``known_hosts``, plain or hashed."""
    hashed = _HASHED.fullmatch(written)
    return written == (paramiko.HostKeys.hash_host(name, written) if hashed else name)


class OnlyVouchedFor(paramiko.MissingHostKeyPolicy):
    """Takes the key with the expected fingerprint, and no other that is not in ``known_hosts``."""

    def __init__(self, name: str, expected: str | None, revoked: Set[bytes]) -> None:
        self._name, self._expected, self._revoked = name, expected, revoked

    def missing_host_key(
        self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
    ) -> None:
        """Raise ``HostKeyRefused`` unless the key is the expected one."""
        if key.asbytes() in self._revoked:
            raise HostKeyRefused(
                f"the {described(key)} of {self._name} is revoked in known_hosts",
                hint="It may have leaked: make new host keys on the server before you log in.",
            )
        if self._expected is None:
            raise HostKeyRefused(
                f"the {described(key)} of {self._name} is not confirmed",
                hint="Compare the keys that the servers show: patchlight deploy trust LAB",
            )
        if key.fingerprint != self._expected:
            raise other_key(self._name, key, f"{self._expected} of the lab file")


def other_key(name: str, key: paramiko.PKey, expected: str) -> HostKeyRefused:
    """The error where a server shows another key than the one that is ``expected``."""
    return HostKeyRefused(
        f"{name} shows the {described(key)} and not {expected}",
        hint="Was the server reinstalled? If not, it may be another machine: do not go on.",
    )


def described(key: paramiko.PKey) -> str:
    """A host key in words, with its fingerprint."""
    return f"host key {key.fingerprint} ({key.get_name()})"
