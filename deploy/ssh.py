"""SSH to the servers of a lab; no host key is accepted that nobody vouched for."""

import base64
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import paramiko
from paramiko.pkey import UnknownKeyType

from patchlight.deploy.host_keys import (
    OnlyVouchedFor,
    OtherKeyOffered,
    other_key,
    read_known_hosts,
)
from patchlight.testbed.errors import PatchlightError, reason
from patchlight.testbed.host_keys import (
    KnownHosts,
    has_key,
    offered_keys,
    prefer_key_types,
    types_of,
)
from patchlight.testbed.lab.model import Server
from patchlight.testbed.legacy_ssh import allow_legacy, explained
from patchlight.testbed.linux.sockets import split_address

_KEEPALIVE_S = 15
_SILENT_S = 60
_PATIENCE_S = 15.0
# A name that no host can have is no OSError.
_BROKEN = (OSError, EOFError, UnicodeError, paramiko.SSHException)
# What goes wrong is in our errors; paramiko would tell it with a traceback once more.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)


class Unreachable(PatchlightError):
    """No SSH server answers where the lab file says that one does."""


class SshLoginRefused(PatchlightError):
    """The server let nobody in with the keys and passwords that there are."""


@dataclass(
    frozen=True,
    slots=True,
)
class Passwords:
    """Passwords that users type and lab files lack: for SSH and for sudo."""

    login: str | None = field(
        default=None,
        repr=False,
    )
    sudo: str | None = field(
        default=None,
        repr=False,
    )


def ssh_place(server: Server) -> tuple[str, int]:
    """Host and port of a server's SSH; ``Unreachable`` where the lab file names no host."""
    if server.ssh.address is not None:
        return server.ssh.address, server.ssh.port
    if server.management is None or server.management.startswith("unix:"):
        raise Unreachable(
            f"{server.name} has no SSH address in the lab file",
            hint=f"Write 'ssh: {{address: HOST}}' at {server.name}.",
        )
    return split_address(server.management)[0], server.ssh.port


@dataclass(
    frozen=True,
    slots=True,
)
class SshHost:
    """A host to log in to, a server or the one before it, with the key that the lab file has."""

    name: str
    host: str
    port: int
    user: str | None
    identity: str | None
    host_key: str | None
    legacy: bool = False
    is_server: bool = True

    @classmethod
    def of(cls, server: Server) -> "SshHost":
        """A server itself; ``Unreachable`` where the lab file names no host."""
        ssh = server.ssh
        login = ssh.user, ssh.identity, ssh.host_key
        return cls(
            server.name,
            *ssh_place(server),
            *login,
            ssh.legacy,
        )

    @classmethod
    def before(cls, server: Server) -> "SshHost | None":
        """The host that connections to a server go through, if there is one."""
        ssh = server.ssh
        jump = server.ssh.jump_host
        if jump is None:
            return None
        user = jump.user or ssh.user
        name = f"jump host {jump.host}"
        login = user, ssh.identity, ssh.jump_host_key
        return cls(
            name,
            jump.host,
            jump.port,
            *login,
            is_server=False,
        )


def openssh_words(server: Server, known_hosts: Path) -> list[str]:
    """How OpenSSH's client logs in to a server; ``known_hosts`` has the key in the lab file."""
    place = SshHost.of(server)
    words = ["ssh", "-t"]
    for option, value in (
        ("-o", place.host_key and f"UserKnownHostsFile={known_hosts}"),
        ("-i", place.identity),
        ("-p", place.port != 22 and str(place.port)),
        ("-J", server.ssh.jump),
    ):
        words += [option, value] if value else []
    return [*words, f"{place.user}@{place.host}" if place.user else place.host]


class Connections:
    """Connections to a lab's servers; those through one jump host share one, closed at the end."""

    def __init__(self, passwords: Passwords | None = None) -> None:
        self.passwords = passwords or Passwords()
        self._jumps: dict[SshHost, paramiko.Transport | PatchlightError] = {}
        self._lock = threading.Lock()
        self._open = ExitStack()

    def __enter__(self) -> "Connections":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @cached_property
    def _known(self) -> KnownHosts:
        # Read only where the lab file has no fingerprint.
        return read_known_hosts()

    @contextmanager
    def to(self, server: Server) -> Iterator[paramiko.SSHClient]:
        """A connection to a server, as the lab file has it; what it leaves out is the user's own.

        May be called by many threads at once. Raises ``Unreachable``, ``HostKeyRefused`` or
        ``SshLoginRefused``.
        """
        place = SshHost.of(server)
        with paramiko.SSHClient() as client:
            self._connect(
                client,
                place,
                self.passwords.login,
                lambda: self.channel(server),
            )
            yield client

    def channel(self, server: Server) -> paramiko.Channel | None:
        """A way to a server's SSH port through its jump host, if there is one; raises as ``to``."""
        place = SshHost.of(server)
        before = SshHost.before(server)
        if before is None:
            return None
        transport = self._jump(before)
        try:
            target = (place.host, place.port)
            nowhere = ("127.0.0.1", 0)
            return transport.open_channel(
                "direct-tcpip",
                target,
                nowhere,
                timeout=_PATIENCE_S,
            )
        except _BROKEN as error:
            raise Unreachable(
                f"connecting to {place.name} at {place.host} port {place.port} through "
                f"{before.name}: {reason(error)}",
                hint="Check that the server is on, its sshd runs, the jump host can reach the "
                "address in the lab file, and its sshd allows forwarding (AllowTcpForwarding).",
            ) from error

    def known_keys(self, place: SshHost) -> list[paramiko.PKey]:
        """A host's keys in ``known_hosts``, where the lab file has none."""
        return (
            self._known.of(place.host, place.port)
            if place.host_key is None
            else []
        )

    def shown_key(
        self, place: SshHost, server: Server | None = None
    ) -> paramiko.PKey:
        """The key that a host presents, through ``server``'s jump host: a known one, if it has
        any. Without a login."""

        def connect() -> paramiko.Transport:
            return self._asking(place, server and self.channel(server))

        try:
            with connect() as transport:
                transport.start_client(timeout=_PATIENCE_S)
                key = transport.get_remote_server_key()
        except _BROKEN as error:
            raise _unreachable(place, error) from error
        if place.host_key is None or key.fingerprint == place.host_key:
            return key
        keys = offered_keys(connect, key, _PATIENCE_S)
        return next(
            (each for each in keys if each.fingerprint == place.host_key), key
        )

    def _asking(
        self,
        place: SshHost,
        sock: Any = None,
        **options: Any,
    ) -> paramiko.Transport:
        """A connection that prefers keys of known types; may raise ``OSError``."""
        sock = sock or socket.create_connection(
            (place.host, place.port), _PATIENCE_S
        )
        transport = _transport(sock, place, **options)
        transport.banner_timeout = _PATIENCE_S
        prefer_key_types(
            transport, types_of(self.known_keys(place), place.host_key)
        )
        return transport

    def _jump(self, place: SshHost) -> paramiko.Transport:
        with self._lock:
            known = self._jumps.get(place)
            if known is None or (
                isinstance(known, paramiko.Transport) and not known.is_active()
            ):
                client = self._open.enter_context(paramiko.SSHClient())
                try:
                    # Keys alone: the password is the servers', and this host is none of them.
                    self._connect(
                        client,
                        place,
                        None,
                        lambda: None,
                    )
                    transport = client.get_transport()
                    assert transport is not None
                    self._jumps[place] = transport
                except PatchlightError as error:
                    # Whoever comes next need not wait for the same again.
                    self._jumps[place] = error
            known = self._jumps[place]
        if isinstance(known, PatchlightError):
            raise known
        return known

    def _connect(
        self,
        client: paramiko.SSHClient,
        place: SshHost,
        password: str | None,
        channel: Callable[[], paramiko.Channel | None],
    ) -> None:
        known = self.known_keys(place)
        try:
            self._log_in(
                client,
                place,
                password,
                channel(),
            )
            return
        except OtherKeyOffered as other:
            client.close()

            def connect() -> paramiko.Transport:
                return self._asking(place, channel())

            offered = offered_keys(connect, other.key, _PATIENCE_S)
            if place.host_key is None or not has_key(offered, place.host_key):
                raise other_key(
                    place.name,
                    offered,
                    known,
                    place.host_key,
                ) from None
        # Now the type of the key in the lab file is known.
        self._log_in(
            client,
            place,
            password,
            channel(),
        )

    def _log_in(
        self,
        client: paramiko.SSHClient,
        place: SshHost,
        password: str | None,
        sock: paramiko.Channel | None,
    ) -> None:
        known = self.known_keys(place)
        revoked = (
            self._known.revoked if place.host_key is None else set[bytes]()
        )
        only = OnlyVouchedFor(
            place.name,
            known,
            place.host_key,
            revoked,
        )
        client.set_missing_host_key_policy(only)
        try:
            with _own_keys(place) as keys:
                client.connect(
                    place.host,
                    place.port,
                    place.user,
                    password,
                    sock=sock,
                    transport_factory=partial(self._asking, place),
                    timeout=_PATIENCE_S,
                    banner_timeout=_PATIENCE_S,
                    auth_timeout=_PATIENCE_S,
                    **keys,
                )
        except paramiko.AuthenticationException as error:
            raise _refused(
                place, error, may_ask=password is None and place.is_server
            ) from error
        except _BROKEN as error:
            transport = client.get_transport()
            if transport is None or not transport.is_active():
                raise _unreachable(place, error) from error
            if not transport.initial_kex_done:
                slow = TimeoutError(f"no answer within {_PATIENCE_S:g} s")
                raise _unreachable(place, slow) from error
            raise _refused(
                place, error, may_ask=password is None and place.is_server
            ) from error


def _transport(
    sock: Any,
    place: SshHost,
    **options: Any,
) -> paramiko.Transport:
    """paramiko's, with the ciphers first that processors compute fastest: AES-GCM needs no hash."""
    transport = paramiko.Transport(sock, **options)
    if place.legacy:
        allow_legacy(transport, place.name)
    # A server that loses its power says no more, and nothing may be on the way to it.
    transport.set_keepalive(_KEEPALIVE_S)
    if isinstance(sock, socket.socket):
        sock.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _SILENT_S
        )
    security = transport.get_security_options()
    security.ciphers = sorted(
        security.ciphers, key=lambda cipher: "-gcm@" not in cipher
    )
    return transport


@contextmanager
def logged_in(
    server: Server, passwords: Passwords | None = None
) -> Iterator[paramiko.SSHClient]:
    """A connection to one server; see ``Connections.to``."""
    with (
        Connections(passwords) as connections,
        connections.to(server) as client,
    ):
        yield client


def _unreachable(place: SshHost, error: Exception) -> Unreachable:
    return Unreachable(
        f"connecting to {place.name} at {place.host} port {place.port}: "
        + explained(error, "ssh: {legacy: true}"),
        hint="Check that the server is on, its sshd runs, and the address in the lab file is "
        "right." + _unread(),
    )


def _unread() -> str:
    """Settings of OpenSSH that are not read here: the lab file is for all users of a lab."""
    if not Path("~/.ssh/config").expanduser().exists():
        return ""
    return " ~/.ssh/config is not read: its settings belong under 'ssh' of the server."


def _refused(
    place: SshHost,
    error: Exception,
    *,
    may_ask: bool,
) -> SshLoginRefused:
    hint = (
        "Give user and identity under 'ssh' of the server in the lab file, and put "
        "the public key into the user's ~/.ssh/authorized_keys there."
    )
    if may_ask and "password" in getattr(error, "allowed_types", ["password"]):
        hint += " Or use a password: --ask-password."
    hint += _unread()
    return SshLoginRefused(
        f"logging in to {place.name} as {place.user or 'yourself'}: {error}",
        hint=hint,
    )


@contextmanager
def _own_keys(place: SshHost) -> Iterator[dict[str, Any]]:
    """The keys to log in with, as arguments of ``connect``: those named, or whatever there is."""
    if place.identity is None:
        yield {"allow_agent": True, "look_for_keys": True}
        return
    alone = {"allow_agent": False, "look_for_keys": False}
    identity = Path(place.identity).expanduser()
    agent = paramiko.Agent()
    try:
        public = _public_part(identity)
        held = next(
            (key for key in agent.get_keys() if key.asbytes() == public), None
        )
        yield {**alone, "pkey": held or _private_key(identity, place)}
    finally:
        agent.close()


def _public_part(identity: Path) -> bytes | None:
    """The public key that lies beside a private one."""
    try:
        text = identity.with_name(f"{identity.name}.pub").read_text(
            encoding="utf-8"
        )
        return base64.b64decode(text.split()[1], validate=True)
    except (OSError, ValueError, IndexError):
        return None


def _private_key(identity: Path, place: SshHost) -> paramiko.PKey:
    def failed(reason: str, hint: str) -> SshLoginRefused:
        return SshLoginRefused(
            f"reading the key {identity} for {place.name}: {reason}", hint=hint
        )

    other = "name another key as 'identity' in the lab file."
    try:
        return paramiko.PKey.from_path(identity)
    except OSError as error:
        hint = "Run the command as the key's owner (with sudo, for an emulated lab), or "
        raise failed(error.strerror or reason(error), hint + other) from error
    except (TypeError, paramiko.PasswordRequiredException) as error:
        hint = f"Add it to your SSH agent, with {identity}.pub beside it: ssh-add {identity}"
        raise failed("it has a passphrase", hint) from error
    except (ValueError, paramiko.SSHException, UnknownKeyType) as error:
        raise failed(
            "it is not a private key", f"Make one with ssh-keygen, or {other}"
        ) from error
