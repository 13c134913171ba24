"""Host keys of SSH servers: which are known, and why one is refused."""

from collections.abc import Collection, Set
from pathlib import Path

import paramiko

from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.host_keys import KnownHosts, types_of

USER_FILE = Path("~/.ssh/known_hosts")
_SYSTEM_FILE = Path("/etc/ssh/ssh_known_hosts")
_DO_NOT = "If the server was not reinstalled, this may be another machine: do not continue."


class HostKeyRefused(PatchlightError):
    """The server's host key is another than the one that is known, or none is known."""


class OtherKeyOffered(HostKeyRefused):
    """The server has presented another ``key``; it may have the expected one, too."""

    def __init__(self, name: str, key: paramiko.PKey) -> None:
        super().__init__(
            f"{name} presents the {described(key)}, not its earlier one",
            hint=_DO_NOT,
        )
        self.key = key


def read_known_hosts() -> KnownHosts:
    """The keys in the user's and the system's files; may raise ``HostKeyRefused``."""
    try:
        return KnownHosts.read(USER_FILE.expanduser(), _SYSTEM_FILE)
    except OSError as error:
        raise HostKeyRefused(
            f"reading the known host keys in {error.filename}: {error.strerror}",
            hint="Make it readable for your user: ls -l shows its owner.",
        ) from error


class OnlyVouchedFor(paramiko.MissingHostKeyPolicy):
    """Takes a key that is known, or has the expected fingerprint, and no other."""

    def __init__(
        self,
        name: str,
        known: Collection[paramiko.PKey],
        expected: str | None,
        revoked: Set[bytes],
    ) -> None:
        self._name = name
        self._known = known
        self._expected = expected
        self._revoked = revoked

    def missing_host_key(
        self,
        client: paramiko.SSHClient,
        hostname: str,
        key: paramiko.PKey,
    ) -> None:
        """Raise ``HostKeyRefused`` unless the key is an expected one."""
        if key.asbytes() in self._revoked:
            raise HostKeyRefused(
                f"the {described(key)} of {self._name} is revoked in known_hosts",
                hint="It may have leaked: make new host keys on the server before you log in.",
            )
        is_known = any(
            key.asbytes() == known.asbytes() for known in self._known
        )
        if is_known or key.fingerprint == self._expected:
            return
        if self._expected is None and not self._known:
            raise HostKeyRefused(
                f"the {described(key)} of {self._name} is not confirmed",
                hint="Compare the keys that the servers show: patchlight deploy trust LAB",
            )
        raise OtherKeyOffered(self._name, key)


def other_key(
    name: str,
    offered: Collection[paramiko.PKey],
    known: Collection[paramiko.PKey],
    expected: str | None,
) -> HostKeyRefused:
    """The error where a server ``offered`` no key that is ``known``, or ``expected`` by its
    fingerprint."""
    shown = " and the ".join(map(described, offered))
    types = types_of(known)
    if types and not types & types_of(offered):
        return HostKeyRefused(
            f"{name} presents the {shown}; known_hosts has only {', '.join(sorted(types))}: the "
            "types of its keys have changed",
            hint="Compare the keys with the server's console, then confirm them: "
            "patchlight deploy trust LAB --known-hosts --replace SERVER",
        )
    what = (
        f"{expected} from the lab file"
        if expected
        else "the one in known_hosts"
    )
    return HostKeyRefused(
        f"{name} presents the {shown}, not {what}", hint=_DO_NOT
    )


def described(key: paramiko.PKey) -> str:
    """A host key in words, with its fingerprint."""
    return f"host key {key.fingerprint} ({key.get_name()})"
