"""Where and how a server answers SSH: what ``ssh`` of a server in a lab file says."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SshAccess:
    """Where a server's ``sshd`` answers, whom to log in as, and which host key it has.

    ``address`` is a host's name or address (``None``: the host of the agent's); ``user`` and
    ``identity`` (a private key's file) are left to the SSH client where they are ``None``;
    ``host_key`` is the fingerprint of the server's key (``SHA256:…``), ``None`` where
    ``known_hosts`` has it.
    """

    address: str | None = None
    port: int = 22
    user: str | None = None
    identity: str | None = None
    host_key: str | None = None
