"""Where and how a server answers SSH: what ``ssh`` of a server in a lab file says."""

import re
from dataclasses import dataclass
from typing import NamedTuple

_JUMP = re.compile(r"(?:(?P<user>[^@]+)@)?(?:\[(?P<v6>[^]]+)\]|(?P<host>[^:]+))(?::(?P<port>\d+))?")


class JumpHost(NamedTuple):
    """A host that connections go through; ``user`` is ``None`` where it is the server's."""

    host: str
    port: int
    user: str | None


@dataclass(frozen=True, slots=True)
class SshAccess:
    """Where a server's ``sshd`` answers, whom to log in as, and which host key it has.

    ``address`` is a host's name or address (``None``: the host of the agent's); ``user`` and
    ``identity`` (a private key's file) are left to the SSH client where they are ``None``;
    ``host_key`` is the fingerprint of the server's key (``SHA256:…``), ``None`` where
    ``known_hosts`` has it; ``legacy`` lets it have old algorithms. ``jump`` is a host to go
    through, ``[user@]host[:port]``, and ``jump_host_key`` the fingerprint of its key.
    """

    address: str | None = None
    port: int = 22
    user: str | None = None
    identity: str | None = None
    host_key: str | None = None
    jump: str | None = None
    jump_host_key: str | None = None
    legacy: bool = False

    @property
    def jump_host(self) -> JumpHost | None:
        """The host to go through, if there is one."""
        match = _JUMP.fullmatch(self.jump or "")
        if match is None:
            return None
        return JumpHost(match["v6"] or match["host"], int(match["port"] or 22), match["user"])
