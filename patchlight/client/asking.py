"""How the controller is asked, whoever carries it out: addresses, its lab, refusals in words."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, cast

import httpx
from pydantic_core import from_json

from patchlight.client.access_calls import AccessCalls
from patchlight.client.calls import Answer, Asked, Call, call
from patchlight.client.circuit_calls import CircuitCalls
from patchlight.client.discovery_calls import DiscoveryCalls
from patchlight.client.event_calls import EventCalls
from patchlight.client.job_calls import JobCalls
from patchlight.client.login import Login
from patchlight.client.path_calls import PathCalls
from patchlight.client.sample_calls import SampleCalls
from patchlight.testbed.errors import BadInput, OutcomeUnknown, PatchlightError
from patchlight.testbed.wire.lab_api import (
    UID_HEADER,
    UNIX,
    USER_HEADER,
    LabIdentity,
    is_beyond_this_machine,
    keepers_socket,
)

if TYPE_CHECKING:
    from patchlight.testbed.wire.rest.circuits import OcsMap
    from patchlight.testbed.wire.rest.lab import Link, Status, TopologyShape


# What stops things goes to the lab of that name, whichever version of its file is at hand.
_STOPS = ("DELETE /jobs/", "DELETE /discovery", "POST /stop", "POST /drain", "POST /shutdown")


class ControllerError(PatchlightError):
    """The controller refused, or did not answer."""


class NoAnswer(ControllerError):
    """No controller answers there, just now maybe."""


class OtherLab(ControllerError):
    """The controller at the address has another lab than the one that was meant."""


class Who(TypedDict, total=False):
    """Who asks, by name, user id or log-in, and of the controller of which lab."""

    lab: LabIdentity | None
    user: str
    uid: int | None
    login: Login | None


class Asking(
    CircuitCalls, JobCalls, DiscoveryCalls, AccessCalls, EventCalls, PathCalls, SampleCalls
):
    """All calls of a running controller, by the address of its API."""

    def __init__(
        self,
        address: str,
        deadline_s: float = 120.0,
        *,
        lab: LabIdentity | None = None,
        user: str = "",
        uid: int | None = None,
        login: Login | None = None,
        is_in_process: bool = False,
    ) -> None:
        """``user`` is the name that the history gets; ``is_in_process``: without a network.

        With ``uid``, root asks for that user of the machine, in whose role it is done.
        """
        self.address = address
        self._lab, self._known = lab, is_in_process
        socket = address.removeprefix(UNIX) if address.startswith(UNIX) else None
        if socket and os.access(own := keepers_socket(Path(socket)), os.W_OK):
            socket = str(own)
        if not is_in_process and login is None and is_beyond_this_machine(address):
            raise BadInput(
                f"{address} is not on this machine, and you have not logged in to it",
                hint=f"patchlight login --controller {address} --ca ca.pem",
            )
        # Headers are ASCII; names need not be.
        headers = {USER_HEADER: user.encode("ascii", "replace").decode()}
        if uid is not None:
            headers[UID_HEADER] = str(uid)
        if login is not None:
            headers["Authorization"] = f"Bearer {login.token}"
        self.is_logged_in = login is not None
        # Whom a certificate has to be for.
        self._extensions = {} if login is None else {"sni_hostname": login.name}
        scheme = "http" if login is None else "https"
        self._root = f"{scheme}://{'localhost' if socket else address}"
        self.settings: dict[str, Any] = {
            "base_url": f"{self._root}/v1",
            "timeout": deadline_s,
            "headers": headers,
            # Proxies are for elsewhere, and so are the passwords in a .netrc.
            "trust_env": False,
        }
        """What an HTTP client of the controller is made with."""
        self.wire: dict[str, Any] = {
            # Without TLS the machine's certificates are not read, which takes some 100 ms.
            "verify": False if login is None else login.context,
            # The server drops idle connections after 5 s: a request must not race that.
            "limits": httpx.Limits(keepalive_expiry=2.0),
            "uds": socket,
        }
        """What its transport is made with."""

    def options(self, asked: Asked) -> dict[str, Any]:
        """How that is sent."""
        sent = {"json": asked.body, "params": asked.query, "headers": asked.headers}
        return {**sent, "extensions": self._extensions}

    def _call(
        self, method: str, path: str, body: Any = None, prefer: str = "", **query: Any
    ) -> Call[Answer]:
        if not self._known or (self._lab is not None and method != "GET"):
            yield from self._find_out(
                any_file=method == "GET" or f"{method} {path}".startswith(_STOPS)
            )
        answer = yield from self._answer(method, path, body, prefer, **query)
        return dict(from_json(answer.content))  # of long lists, in two thirds of the time

    def _find_out(self, *, any_file: bool) -> Call[None]:
        """Compare the controller's lab with the one that is meant; or that it is a controller."""
        theirs = yield from self._identity()
        ours = self._lab or theirs
        if theirs.name != ours.name:
            raise OtherLab(
                f"the controller at {self.address} has the lab {theirs.name} ({theirs.file}), "
                f"not {ours.name} ({ours.file}): nothing was done",
                hint=f"start one with 'patchlight controller run --lab {ours.file}', or say where "
                "it is: --controller ADDRESS, or controller.api in the lab file",
            )
        if theirs.fingerprint != ours.fingerprint and not any_file:
            raise OtherLab(
                f"the controller at {self.address} has another version of the lab {ours.name}: "
                f"{theirs.file} as it was when the controller started, and not what {ours.file} "
                "says of devices, ports, addresses and fibres: nothing was done",
                hint="start the controller again with the file that is right",
            )
        self._known = True

    def _answer(
        self, method: str, path: str, body: Any = None, prefer: str = "", **query: Any
    ) -> Call[httpx.Response]:
        try:
            headers = {"Prefer": prefer} if prefer else {}
            response = yield Asked(method, path, body, query, headers)
        except UnicodeError as error:
            raise BadInput(
                "some of the text is not valid UTF-8, and nothing was done",
                hint="is the terminal's character set UTF-8? see: locale",
            ) from error
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            never_sent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            if method != "GET" and not never_sent and not (body or {}).get("dry_run"):
                raise OutcomeUnknown(
                    f"the controller at {self.address} was asked, and did not say what came of "
                    f"it ({reason})",
                    hint="once it runs, it finishes or undoes what it had begun: "
                    "'patchlight ocs history' says which",
                ) from error
            if "Permission denied" in reason:
                raise ControllerError(
                    f"{self.address} is not for this user: {reason}",
                    hint="its group may use it (controller: {access: …} in the lab file; by itself "
                    "the group patchlight): sudo usermod -aG patchlight USER",
                ) from error
            raise NoAnswer(
                f"no answer from a controller at {self.address} ({reason})",
                hint="start one with 'patchlight emulate up LAB' or 'patchlight controller run', "
                "name another with --controller ADDRESS ('patchlight deploy push' prints how to "
                "reach one on a server); 'patchlight ocs --direct' does without",
            ) from error
        if response.is_success:
            return response
        raise self.problem(response)

    def problem(self, response: httpx.Response) -> PatchlightError:
        """What the controller says of a request that it did not carry out."""
        try:
            answer = dict(response.json())
            words, outcome = str(answer["detail"]), answer["outcome"]
        except (ValueError, TypeError, KeyError) as error:
            if self._known and response.status_code >= 500:
                failed = ControllerError if response.request.method == "GET" else OutcomeUnknown
                return failed(
                    f"the controller at {self.address} failed at this request: it answered with "
                    f"HTTP {response.status_code} and nothing else",
                    hint="its log says why; see what was done before you ask again",
                )
            no_controller = self._no_controller(f"it answered with HTTP {response.status_code}")
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
            f"what runs at {self.address} is no controller of this version of Patchlight: {what}",
            hint="name the controller's address with --controller, or controller.api in the lab "
            "file: 'patchlight controller run' prints it",
        )

    @call
    def identity(self) -> Call[LabIdentity]:
        """Which lab the controller has."""
        return (yield from self._identity())

    def _identity(self) -> Call[LabIdentity]:
        response = yield from self._answer("GET", "/lab")
        try:
            return LabIdentity(**response.json())
        except (ValueError, TypeError) as error:
            raise self._no_controller("it does not say which lab it has") from error

    @call
    def lab_file(self) -> Call[str]:
        """The controller's lab, as the text of a lab file."""
        return (yield from self._answer("GET", "/lab.yaml")).text

    @call
    def status(self) -> Call[Status]:
        """The controller's ``lab``, ``version``, ``engine`` and ``policies``, and who is there.

        ``switches`` say whether they are ``connected``, ``circuit_switches`` and ``agents``
        whether they are ``reachable``; circuit switches that are not, ``since`` when and why.
        """
        return cast("Status", (yield from self._call("GET", "/status")))

    @call
    def metrics(self) -> Call[str]:
        """The controller's metrics, as Prometheus reads them."""
        if not self._known:
            yield from self._find_out(any_file=True)
        return (yield from self._answer("GET", f"{self._root}/metrics")).text

    @call
    def links(self) -> Call[list[Link]]:
        """The links that the present cross-connects make: ``a``, ``b``, ``rate_bps``, ``via``."""
        return list((yield from self._call("GET", "/links"))["links"])

    @call
    def circuits(self) -> Call[dict[str, OcsMap]]:
        """The map of each OCS, as ``{"ocs1": {"map": ["1>7", …]}}``."""
        return (yield from self._call("GET", "/circuits"))

    @call
    def topology(self) -> Call[TopologyShape]:
        """Nodes, packet switches and trunks as they are lit: see ``testbed.topology``."""
        return cast("TopologyShape", (yield from self._call("GET", "/topology")))

    @call
    def topology_file(self, format: str) -> Call[str]:
        """The same as a file for another scheduler: ``slurm``, ``slurm-conf`` or ``kueue``."""
        return (yield from self._answer("GET", "/topology", format=format)).text

    @call
    def shut_down(self) -> Call[dict[str, int]]:
        """End the controller; how many jobs there are in each state that is not an end.

        They go on, and the next controller follows them.
        """
        return dict((yield from self._call("POST", "/shutdown"))["jobs"])
