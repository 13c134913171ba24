"""What this user has logged in to: for each controller elsewhere a token, and whom to take it for.

Kept in a file of the user's alone (``~/.config/patchlight/logins.json``).
"""

import json
import socket
import ssl
from dataclasses import asdict, dataclass, field
from pathlib import Path

from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.linux.credentials import new_context
from patchlight.testbed.linux.files import NoHome, private_folder, user_folder
from patchlight.testbed.linux.sockets import split_address

_DEADLINE_S = 10.0


@dataclass(frozen=True)
class Login:
    """A ``token``, and the controller that it is for.

    ``ca`` is the certificate of its lab's authority (PEM), ``name`` what it is called in its own.
    """

    token: str = field(repr=False)
    ca: str = field(repr=False)
    name: str

    @property
    def context(self) -> ssl.SSLContext:
        """For connections to that controller, and to nobody else."""
        context = new_context(server=False)
        context.load_verify_locations(cadata=self.ca)
        return context


def controller_name_at(address: str, ca: str) -> str:
    """What the controller at ``host:port`` is called, by a certificate of this authority (PEM).

    ``BadInput`` if that is no authority, ``PatchlightError`` if no such controller answers.
    """
    context = new_context(server=False)
    context.check_hostname = False
    try:
        context.load_verify_locations(cadata=ca)
    except (ssl.SSLError, ValueError) as error:
        raise BadInput(
            "that is no certificate of an authority",
            hint="expected ca.pem, as 'patchlight deploy certificates LAB' made it",
        ) from error
    try:
        with (
            socket.create_connection(split_address(address), timeout=_DEADLINE_S) as plain,
            context.wrap_socket(plain) as tls,
        ):
            shown = tls.getpeercert() or {}
    except OSError as error:
        reason = getattr(error, "verify_message", "") or error.strerror or str(error)
        raise PatchlightError(
            f"no controller of that authority's lab answers at {address}: {reason}",
            hint="is the address right, and ca.pem of the same lab?",
        ) from error
    alternatives: tuple[tuple[str, str], ...] = shown.get("subjectAltName", ())  # type: ignore[assignment]
    name = next((value for kind, value in alternatives if kind == "DNS"), "")
    # Agents have certificates of the same authority.
    if not name.startswith("controller."):
        raise PatchlightError(f"what answers at {address} is {name or 'nameless'}, no controller")
    return name


def _file() -> Path:
    return user_folder("XDG_CONFIG_HOME", ".config") / "patchlight/logins.json"


def logins() -> dict[str, Login]:
    """Those that are kept, by address."""
    try:
        found = json.loads(_file().read_text())
        return {address: Login(**each) for address, each in found.items()}
    except (NoHome, FileNotFoundError, PermissionError):
        return {}  # an unreadable one is another user's, whose HOME is still set
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise PatchlightError(
            f"reading {_file()}: it is not what 'patchlight login' writes",
            hint="remove the file, and log in again",
        ) from error


def keep_login(address: str, login: Login | None) -> None:
    """Remember a login, or forget the one to that address."""
    kept = logins()
    kept.pop(address, None)
    if login is not None:
        kept[address] = login
    path = _file()
    new = path.with_suffix(".new")
    try:
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        private_folder(path.parent, 0o700)
        new.unlink(missing_ok=True)
        new.touch(mode=0o600)
        new.write_text(json.dumps({where: asdict(each) for where, each in kept.items()}))
        new.replace(path)
    except OSError as error:
        raise PatchlightError(f"writing {path}: {error.strerror}") from error
