"""Where the API listens, for whom, and the names that requests may call it by.

At its Unix socket and on loopback the kernel says who asks. Elsewhere TLS and tokens are needed; a
controller that listens there has its Unix socket beside it, where the first token is made.
"""

import grp
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.rules import Access, Role
from patchlight.testbed.linux.credentials import controller_name, new_context, read_credentials
from patchlight.testbed.linux.sockets import bind_unix, is_loopback, listen, split_address
from patchlight.testbed.wire.lab_api import UNIX, keepers_socket, own_socket

_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Front:
    """One socket that the API listens on, what requests may call it, and its TLS, if it has any."""

    socket: socket.socket
    hosts: tuple[str, ...]
    tls: ssl.SSLContext | None = None


@contextmanager
def listening_for_api(lab: Lab, address: str, tls: Path | None) -> Iterator[list[Front]]:
    """Sockets that listen at ``host:port`` or ``unix:/path``; ``tls`` is a certificate's folder.

    Unix sockets are removed afterwards. ``BadInput`` for an address that other machines reach, if
    there is no certificate for the lab's controller; ``PatchlightError`` if it is taken.
    """
    with ExitStack() as stack:
        if address.startswith(UNIX):
            yield _at_unix_sockets(stack, address, lab.access)
            return
        host = _as_one_address(address)
        if is_loopback(host.rpartition(":")[0].strip("[]")):
            called = (*_LOCAL_NAMES, split_address(address)[0].lower())
            yield [Front(stack.enter_context(listen(host)), called)]
            return
        context = _tls_of(lab.name, address, tls)
        local = _at_unix_sockets(stack, own_socket(lab.name), lab.access)
        own_name = controller_name(lab.name).lower()
        names = (own_name, split_address(address)[0].lower(), *_names_of_this_machine())
        yield [Front(stack.enter_context(listen(host)), names, context), *local]


def _at_unix_sockets(stack: ExitStack, address: str, access: Access) -> list[Front]:
    path = Path(address.removeprefix(UNIX))
    group = _group_id(access.group)
    # Whoever may do nothing need not get as far as being told so.
    for_group = group is not None or access.others is Role.NOBODY
    if not path.parent.exists():
        stack.callback(_remove_if_empty, path.parent)
    fronts = []
    for each, mode in ((path, 0o660 if for_group else 0o666), (keepers_socket(path), 0o600)):
        listener = stack.enter_context(bind_unix(each, "controller", mode=mode))
        stack.callback(each.unlink, missing_ok=True)
        # At once: a socket at which nobody listens looks like one that a dead server left.
        listener.listen()
        fronts.append(Front(listener, _LOCAL_NAMES))
    if group is not None:
        os.chown(path, -1, group)
    return fronts


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def _group_id(name: str) -> int | None:
    """The number of a group, if the machine has it and this process may give sockets to it."""
    with suppress(KeyError):
        number = grp.getgrnam(name).gr_gid
        return number if os.geteuid() == 0 or number in os.getgroups() else None
    return None


def _as_one_address(address: str) -> str:
    """``host:port`` with the host as a number; ``BadInput`` if it has none."""
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise BadInput(f"listening for the API at {address}: {error.strerror}") from error
    # One that other machines reach says what is needed.
    numbers = sorted((str(row[4][0]) for row in found), key=is_loopback)
    return f"{numbers[0]}:{port}"


def _tls_of(lab: str, address: str, folder: Path | None) -> ssl.SSLContext:
    if folder is None:
        raise BadInput(
            f"the API cannot listen at {address} without TLS: whoever is on the way could read "
            "tokens, and rewire the lab",
            hint="name the folder of the controller's certificate with --tls ('patchlight deploy "
            "certificates LAB' makes it), or leave --api and the lab file's controller.api out and "
            "go through SSH",
        )
    found = read_credentials(folder)
    found.check(controller_name(lab))
    if not found.serves:
        raise BadInput(
            f"the certificate in {folder} is for calling agents, not for answering users",
            hint="issue it anew with 'patchlight deploy certificates LAB --output DIR'",
        )
    context = new_context(server=True)
    found.load_into(context)
    # Who asks shows a token.
    context.verify_mode = ssl.CERT_NONE
    return context


def _names_of_this_machine() -> tuple[str, ...]:
    return tuple({socket.gethostname().lower(), socket.getfqdn().lower()})
