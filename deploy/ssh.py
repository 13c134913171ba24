"""SSH to the servers of a lab; no host key is accepted that nobody vouched for."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import paramiko

from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab import Server
from patchlight.testbed.linux.sockets import split_address

_PATIENCE_S = 15.0
_SYSTEM_KNOWN_HOSTS = Path("/etc/ssh/ssh_known_hosts")
# What goes wrong is in our errors; paramiko would tell it with a traceback once more.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)


class Unreachable(PatchlightError):
    """No SSH server answers where the lab file says that one does."""


class HostKeyRefused(PatchlightError):
    """The server's host key is another than the one that is known, or none is known."""


class LoginRefused(PatchlightError):
    """The server let nobody in with the keys that there are."""


def ssh_place(server: Server) -> tuple[str, int]:
    """Host and port of a server's SSH; ``Unreachable`` where the lab file names no host."""
    if server.ssh.address is not None:
        return server.ssh.address, server.ssh.port
    if server.management is None or server.management.startswith("unix:"):
        raise Unreachable(
            f"the lab file does not say where {server.name} answers SSH",
            hint=f"Write 'ssh: {{address: {server.name}}}' at the server.",
        )
    return split_address(server.management)[0], server.ssh.port


@contextmanager
def logged_in(server: Server) -> Iterator[paramiko.SSHClient]:
    """A connection to a server, as the lab file has it; what it leaves out is the user's own.

    Raises ``Unreachable``, ``HostKeyRefused`` or ``LoginRefused``.
    """
    host, port = ssh_place(server)
    identity = server.ssh.identity
    if identity is not None:
        _check_readable(Path(identity).expanduser(), server)
    with paramiko.SSHClient() as client:
        if server.ssh.host_key is None:
            client.load_system_host_keys()
            with suppress(FileNotFoundError):
                client.load_system_host_keys(str(_SYSTEM_KNOWN_HOSTS))
        client.set_missing_host_key_policy(_OnlyKnown(server))
        try:
            client.connect(
                host,
                port,
                server.ssh.user,
                key_filename=identity and str(Path(identity).expanduser()),
                allow_agent=identity is None,
                look_for_keys=identity is None,
                timeout=_PATIENCE_S,
                banner_timeout=_PATIENCE_S,
                auth_timeout=_PATIENCE_S,
            )
        except paramiko.BadHostKeyException as error:
            raise _other_key(server, error.key, "the one in known_hosts") from error
        except paramiko.AuthenticationException as error:
            raise LoginRefused(
                f"logging in to {server.name} as {server.ssh.user or 'yourself'}: {error}",
                hint="Give user and identity under 'ssh' of the server in the lab file, and put "
                "the public key into the user's ~/.ssh/authorized_keys there.",
            ) from error
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise Unreachable(
                f"connecting to {server.name} at {host} port {port}: {error or 'it hung up'}",
                hint="Is the server on, its sshd running, and the address in the lab file right?",
            ) from error
        yield client


def _check_readable(identity: Path, server: Server) -> None:
    try:
        identity.open("rb").close()
    except OSError as error:
        raise LoginRefused(
            f"reading the key {identity} for {server.name}: {error.strerror}",
            hint="Run the command as who owns the key (with sudo, for an emulated lab), or name "
            "another one as 'identity' in the lab file.",
        ) from error


class _OnlyKnown(paramiko.MissingHostKeyPolicy):
    """Takes the key with the lab file's fingerprint, and no other that is not in known_hosts."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def missing_host_key(
        self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
    ) -> None:
        expected = self._server.ssh.host_key
        if expected is None:
            raise HostKeyRefused(
                f"nobody has vouched for the {_described(key)} of {self._server.name}",
                hint="Compare it with what 'ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub' "
                "prints at the server, and write it as 'host_key' into the lab file.",
            )
        if key.fingerprint != expected:
            raise _other_key(self._server, key, f"{expected} of the lab file")


def _other_key(server: Server, key: paramiko.PKey, expected: str) -> HostKeyRefused:
    return HostKeyRefused(
        f"{server.name} shows the {_described(key)} and not {expected}",
        hint="Was the server installed anew? If not, somebody stands between: do not go on.",
    )


def _described(key: paramiko.PKey) -> str:
    return f"host key {key.fingerprint} ({key.get_name()})"
