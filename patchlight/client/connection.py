"""The connection to a controller, its errors, and the logins that this user has saved."""

from __future__ import annotations

import json
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx
from pydantic import TypeAdapter, ValidationError

from patchlight.testbed.errors import (
    BadInput,
    OutcomeUnknown,
    PatchlightError,
    reason,
)
from patchlight.testbed.linux.credentials import new_context
from patchlight.testbed.linux.files import NoHome, private_folder, user_folder
from patchlight.testbed.linux.sockets import (
    UNIX,
    is_beyond_this_machine,
    split_address,
)
from patchlight.testbed.wire import lab_api

T = TypeVar("T")
PAGE = 200
"""Rows of a list per request."""

# Requests that stop something need only the lab's name to match, not the version of its file.
_STOPS = (
    "DELETE /jobs/",
    "DELETE /discovery",
    "POST /stop",
    "POST /drain",
    "POST /shutdown",
)


class ControllerError(PatchlightError):
    """The controller refused, or did not answer."""


class NoAnswer(ControllerError):
    """No controller answers at the address, at least for now."""


class OtherLab(ControllerError):
    """The controller at the address has another lab."""


class ApiConnection:
    """Requests to one controller, one at a time."""

    def __init__(
        self,
        address: str,
        deadline_s: float = 120.0,
        *,
        transport: httpx.BaseTransport | None = None,
        lab: lab_api.LabIdentity | None = None,
        user: str = "",
        uid: int | None = None,
        login: Login | None = None,
    ) -> None:
        """``user`` is the name for the history; ``transport`` replaces the network.

        With ``uid``, root calls for that user of the machine, and in their role.
        """
        self.address = address
        self.is_logged_in = login is not None
        self._lab = lab
        self._known = transport is not None
        socket = (
            address.removeprefix(UNIX) if address.startswith(UNIX) else None
        )
        if socket and os.access(
            own := lab_api.keepers_socket(Path(socket)), os.W_OK
        ):
            socket = str(own)
        if (
            transport is None
            and login is None
            and is_beyond_this_machine(address)
        ):
            raise BadInput(
                f"{address} is not on this machine, and you have not logged in to it",
                hint=f"patchlight login --controller {address} --ca ca.pem",
            )
        # Headers are ASCII; names need not be.
        headers = {
            lab_api.USER_HEADER: user.encode("ascii", "replace").decode()
        }
        if uid is not None:
            headers[lab_api.UID_HEADER] = str(uid)
        if login is not None:
            headers["Authorization"] = f"Bearer {login.token}"
        # Whom a certificate has to be for.
        self._extensions = (
            {} if login is None else {"sni_hostname": login.name}
        )
        scheme = "http" if login is None else "https"
        self._root = f"{scheme}://{'localhost' if socket else address}"
        wire = transport or httpx.HTTPTransport(
            # Without TLS the machine's certificates are not read, which takes some 100 ms.
            verify=False if login is None else login.context,
            # The server drops idle connections after 5 s: a request must not race that.
            limits=httpx.Limits(keepalive_expiry=2.0),
            uds=socket,
        )
        # Proxies are for elsewhere, and so are the passwords in a .netrc: no trust_env.
        self._http = httpx.Client(
            base_url=f"{self._root}/v1",
            transport=wire,
            timeout=deadline_s,
            headers=headers,
            trust_env=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def identity(self) -> lab_api.LabIdentity:
        """Which lab the controller has."""
        response = self._answer("GET", "/lab")
        try:
            return lab_api.LabIdentity(**response.json())
        except (ValueError, TypeError) as error:
            raise self._no_controller("it does not name its lab") from error

    def _call(
        self,
        kind: type[T],
        method: str,
        path: str,
        /,
        body: Any = None,
        prefer: str = "",
        **query: Any,
    ) -> T:
        """The answer to a request, of that kind."""
        if not self._known or (self._lab is not None and method != "GET"):
            self._find_out(
                any_file=method == "GET"
                or f"{method} {path}".startswith(_STOPS)
            )
        answer = self._answer(
            method,
            path,
            body,
            prefer,
            **query,
        )
        try:
            return TypeAdapter(kind).validate_json(answer.content)
        except ValidationError as error:
            raise self._no_controller(
                f"unexpected answer to {method} {path}"
            ) from error

    def _get(self, kind: type[T], path: str, /, **query: Any) -> T:
        return self._call(kind, "GET", path, **query)

    def _find_out(self, *, any_file: bool) -> None:
        """Check that it is a controller, and of this lab."""
        theirs = self.identity()
        ours = self._lab or theirs
        if theirs.name != ours.name:
            raise OtherLab(
                f"the controller at {self.address} has the lab {theirs.name} ({theirs.file}), "
                f"not {ours.name} ({ours.file}): nothing was done",
                hint=f"start one with 'patchlight controller run --lab {ours.file}', or give its "
                f"address: --controller ADDRESS, or controller.api in the lab file",
            )
        if theirs.fingerprint != ours.fingerprint and not any_file:
            raise OtherLab(
                f"the controller at {self.address} has another version of lab {ours.name}: "
                f"devices, ports, addresses or fibres in {ours.file} differ from {theirs.file} "
                f"when the controller started: nothing was done",
                hint="restart the controller with the right file",
            )
        self._known = True

    def _answer(
        self,
        method: str,
        path: str,
        body: Any = None,
        prefer: str = "",
        **query: Any,
    ) -> httpx.Response:
        try:
            headers = {"Prefer": prefer} if prefer else {}
            response = self._http.request(
                method,
                path,
                json=body,
                params=query,
                headers=headers,
                extensions=self._extensions,
            )
        except UnicodeError as error:
            raise BadInput(
                "some of the text is not valid UTF-8; nothing was done",
                hint="is the terminal's character set UTF-8? see: locale",
            ) from error
        except httpx.HTTPError as error:
            why = reason(error)
            never_sent = isinstance(
                error, httpx.ConnectError | httpx.ConnectTimeout
            )
            if (
                method != "GET"
                and not never_sent
                and not (body or {}).get("dry_run")
            ):
                raise OutcomeUnknown(
                    f"the controller at {self.address} got the request, but its result is unknown "
                    f"({why})",
                    hint="it finishes or rolls back unfinished changes when it runs again: see "
                    "'patchlight ocs history'",
                ) from error
            if "Permission denied" in why:
                raise ControllerError(
                    f"you may not use {self.address}: {why}",
                    hint="its group may use it (controller: {access: …} in the lab file; by "
                    "default the group patchlight): sudo usermod -aG patchlight USER",
                ) from error
            raise NoAnswer(
                f"no answer from a controller at {self.address} ({why})",
                hint="start one with 'patchlight emulate up LAB' or 'patchlight controller run', "
                "name another with --controller ADDRESS ('patchlight deploy push' prints how to "
                "reach one on a server); 'patchlight ocs --direct' needs no controller",
            ) from error
        if response.is_success:
            return response
        raise self._problem(response)

    def _problem(self, response: httpx.Response) -> PatchlightError:
        """The error for a request that the controller did not carry out."""
        try:
            answer = dict(response.json())
            words = str(answer["detail"])
            outcome = answer["outcome"]
        except (ValueError, TypeError, KeyError) as error:
            if self._known and response.status_code >= 500:
                failed = (
                    ControllerError
                    if response.request.method == "GET"
                    else OutcomeUnknown
                )
                return failed(
                    f"the controller at {self.address} failed on this request: HTTP "
                    f"{response.status_code} without a reason",
                    hint="its log has the reason; check what was done before you repeat the "
                    "request",
                )
            no_controller = self._no_controller(
                f"it answered with HTTP {response.status_code}"
            )
            no_controller.__cause__ = error
            return no_controller
        kind: type[PatchlightError] = ControllerError
        if outcome == "unknown":
            kind = OutcomeUnknown
        elif response.status_code == 422:
            kind = BadInput
        return kind(words, hint=answer.get("hint"))

    def _no_controller(self, what: str) -> ControllerError:
        return ControllerError(
            f"{self.address} is not a controller of this version of Patchlight: {what}",
            hint="name the controller's address with --controller, or controller.api in the lab "
            "file: 'patchlight controller run' prints it",
        )

    @contextmanager
    def _stream(self, path: str, **query: Any) -> Iterator[Iterator[str]]:
        """The lines of server-sent events; an ``httpx.HTTPError`` where the connection breaks."""
        accept = {"Accept": "text/event-stream"}
        with self._http.stream(
            "GET",
            path,
            params=query,
            headers=accept,
            extensions=self._extensions,
        ) as response:
            if not response.is_success:
                response.read()
                raise self._problem(response)
            yield response.iter_lines()

    def _pages(self, page_after: Callable[[T | None], list[T]]) -> list[T]:
        """Every row of a list in pages, each requested by the last row before it."""
        rows = page = page_after(None)
        while page:
            page = page_after(page[-1])
            rows = rows + page
        return rows


_DEADLINE_S = 10.0


@dataclass(frozen=True)
class Login:
    """A ``token`` for a controller: ``ca`` is its lab's authority (PEM), ``name`` its DNS name."""

    token: str = field(repr=False)
    ca: str = field(repr=False)
    name: str

    @property
    def context(self) -> ssl.SSLContext:
        """For connections to that controller only."""
        context = new_context(server=False)
        context.load_verify_locations(cadata=self.ca)
        return context


def controller_name_at(address: str, ca: str) -> str:
    """The name of the controller at ``host:port`` in its certificate by this authority (PEM).

    ``BadInput`` for an invalid ``ca``, ``PatchlightError`` if no such controller answers.
    """
    context = new_context(server=False)
    context.check_hostname = False
    try:
        context.load_verify_locations(cadata=ca)
    except (ssl.SSLError, ValueError) as error:
        raise BadInput(
            "not a certificate of a CA",
            hint="expected ca.pem, as 'patchlight deploy certificates LAB' made it",
        ) from error
    try:
        with (
            socket.create_connection(
                split_address(address), timeout=_DEADLINE_S
            ) as plain,
            context.wrap_socket(plain) as tls,
        ):
            shown = tls.getpeercert() or {}
    except OSError as error:
        why = (
            getattr(error, "verify_message", "")
            or error.strerror
            or reason(error)
        )
        raise PatchlightError(
            f"no controller of that authority's lab answers at {address}: {why}",
            hint="is the address right, and ca.pem of the same lab?",
        ) from error
    alternatives: tuple[tuple[str, str], ...] = shown.get("subjectAltName", ())  # type: ignore[assignment]
    name = next((value for kind, value in alternatives if kind == "DNS"), "")
    # Agents have certificates of the same authority.
    if not name.startswith("controller."):
        raise PatchlightError(
            f"{address} is {name or 'a server without a name'}, not a controller"
        )
    return name


def _file() -> Path:
    return user_folder("XDG_CONFIG_HOME", ".config") / "patchlight/logins.json"


def logins() -> dict[str, Login]:
    """The logins of ``~/.config/patchlight/logins.json``, by address."""
    try:
        found = json.loads(_file().read_text())
        return {address: Login(**each) for address, each in found.items()}
    except (NoHome, FileNotFoundError, PermissionError):
        return {}  # an unreadable one is another user's, whose HOME is still set
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise PatchlightError(
            f"reading {_file()}: not a file of 'patchlight login'",
            hint="remove the file, and log in again",
        ) from error


def keep_login(address: str, login: Login | None) -> None:
    """Save the login to an address, or remove it."""
    kept = logins()
    kept.pop(address, None)
    if login is not None:
        kept[address] = login
    path = _file()
    new = path.with_suffix(".new")
    try:
        path.parent.parent.mkdir(
            parents=True,
            exist_ok=True,
        )
        private_folder(path.parent, 0o700)
        new.unlink(missing_ok=True)
        new.touch(mode=0o600)
        new.write_text(
            json.dumps({where: asdict(each) for where, each in kept.items()})
        )
        new.replace(path)
    except OSError as error:
        raise PatchlightError(f"writing {path}: {error.strerror}") from error
