"""Calls one agent over HTTP: on a Unix socket, or TCP with certificates on both sides."""

import asyncio
import itertools
import logging
import socket
import ssl
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from patchlight.controller.hosts.on_time import OnTimeClock
from patchlight.testbed.errors import (
    BadInput,
    PatchlightError,
    mistakes_in_words,
    reason,
)
from patchlight.testbed.linux import credentials
from patchlight.testbed.linux.sockets import split_address
from patchlight.testbed.wire import agent_status, worker_api

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

_log = logging.getLogger(__name__)

M = TypeVar("M", bound=BaseModel)

VERSION = version("patchlight")

_TRUST_DEADLINE_S = 3.0
_ALERTS = {
    "EXPIRED": "it has expired by that server's clock",
    "UNKNOWN_CA": "another authority issued it, not the agent's",
    "UNSUPPORTED_CERTIFICATE": "it is not a controller's certificate",
}
_DEPLOY = (
    "issue both again with 'patchlight deploy certificates LAB --output DIR'"
)

INTERVAL_S = 3.0
"""An agent should answer once per interval. It is called every second, unless the lab file has a
longer ``poll``."""

SUSPECTED_AFTER = 3
"""After that many silent intervals, nothing new is started with it."""

LOST_AFTER = 10
"""After that many silent intervals, what an agent had is considered lost."""

_STATUS = "/status"
# An answer may come late: an abandoned call must be repeated, which takes a busy machine even
# longer. A server that is gone is detected by its kernel's silence.
_DEADLINE_S = LOST_AFTER * INTERVAL_S
# The pauses before a lost call is repeated; the last one repeatedly.
_PAUSES_S = (0.2, 0.5, 1.0, 2.0)
# An agent that answers other calls may work on one for so long: it ends a worker that was not
# started by then.
_LONGEST_S = 600.0
# More than the agent waits for the worker's NIC and then for its program: it says which failed.
_START_DEADLINE_S = 60.0
# How long output is waited for.
_LOG_PATIENCE_S = 10.0
_SLOW_S = 1.0
"""An agent whose answer takes longer than the time between two calls is on a busy machine."""
_LATEST_ANSWERS = 10
_MOST_SLOWNESS = 6.0
_KEEPALIVE_S = SUSPECTED_AFTER * INTERVAL_S
_PROBES = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, int(INTERVAL_S)),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, int(INTERVAL_S)),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(_KEEPALIVE_S * 1000)),
)
# Shorter than the 60 s after which the agent drops idle connections, to avoid a race.
_KEEPALIVE = httpx.Limits(keepalive_expiry=30.0)
# For Unix sockets, which do not use TLS: httpx would make a slow context.
_NO_TLS = credentials.new_context(server=False)


class Presence(StrEnum):
    """The meaning of an agent's silence."""

    UNHEARD = "not seen yet"
    ANSWERS = "answers"
    SUSPECTED = "suspected"
    LOST = "lost"

    @property
    def is_silent(self) -> bool:
        """Whether nothing new may be started with it."""
        return self in (Presence.SUSPECTED, Presence.LOST)


@dataclass(slots=True)
class Heartbeat:
    """Since when an agent has not answered, by an ``OnTimeClock``. Only calls count: an agent that
    was not called is not silent. ``poll_s``: the time between two calls, of which an interval has
    three or more. ``answers_s``: how long its latest answers took."""

    poll_s: float = 0.0
    silent_since: float | None = None
    heard_at: float | None = None
    answers_s: deque[float] = field(
        default_factory=lambda: deque(maxlen=_LATEST_ANSWERS)
    )

    def answered(self, now: float) -> None:
        """The agent answered."""
        self.silent_since = None
        self.heard_at = now

    def missed(self, called_at: float) -> None:
        """A call made at that time was not answered. Later ones may have been."""
        if self.silent_since is None:
            self.silent_since = max(called_at, self.heard_at or called_at)

    def silence_s(self, now: float) -> float:
        """For how long it has not answered."""
        return 0.0 if self.silent_since is None else now - self.silent_since

    def presence(self, now: float) -> Presence:
        """Whether it answers, is suspected or lost."""
        intervals = self.silence_s(now) / max(INTERVAL_S, 3 * self.poll_s)
        if intervals >= LOST_AFTER * self.slowness:
            return Presence.LOST
        if intervals >= SUSPECTED_AFTER:
            return Presence.SUSPECTED
        return Presence.UNHEARD if self.heard_at is None else Presence.ANSWERS

    @property
    def slowness(self) -> float:
        """The factor for time limits: above 1 if its machine was measured to be overloaded."""
        return min(
            _MOST_SLOWNESS,
            max(1.0, max(self.answers_s, default=0.0) / _SLOW_S),
        )

    @property
    def overload(self) -> str:
        """When its latest answers came, as text, if they were slow; else an empty text."""
        slowest_s = max(self.answers_s, default=0.0)
        if slowest_s <= _SLOW_S:
            return ""
        return f"after {slowest_s:.2g} s: the machine is overloaded"


class AgentTls:
    """The certificate for calls to agents, with one shared TLS context. In an empty folder a
    certificate may appear later; ``BadInput`` for a wrong one."""

    def __init__(self, lab: str, folder: Path) -> None:
        self.lab = lab
        self.folder = folder
        self.credentials: credentials.Credentials | None = None
        self.context = credentials.new_context(server=False)
        self._stamp = credentials.stamp(folder)
        if self._stamp or not folder.is_dir():
            self._take()
        else:
            _log.warning(
                "no certificate in %s yet: agents on TCP are not called",
                folder,
            )

    def agent(self, server: str) -> str:
        """The name of a server's agent in its certificate."""
        return credentials.agent_name(server, self.lab)

    def refresh(self) -> None:
        """Load a changed folder; the log says why if that fails."""
        if (found := credentials.stamp(self.folder)) == self._stamp:
            return
        self._stamp = found
        try:
            self._take()
        except BadInput as error:
            _log.error("%s", error)

    def _take(self) -> None:
        found = credentials.read_credentials(self.folder)
        found.check(credentials.controller_name(self.lab))
        found.load_into(self.context)
        self.credentials = found
        _log.info(
            "certificate for %s, until %s",
            found.name,
            f"{found.not_after:%Y-%m-%d}",
        )


class AgentCallError(PatchlightError):
    """An agent refused or did not answer."""


class NotOnServer(AgentCallError):
    """An agent's server has no such worker, GPU or NIC."""


class NicWithoutCarrier(AgentCallError):
    """A worker's NIC has no carrier after its circuit moved, so the worker cannot go on."""


class AgentSilent(AgentCallError):
    """An agent did not answer repeated calls, or something else answers there."""


class AgentNotTrusted(AgentSilent):
    """One side rejects the other's certificate."""


class AgentIncompatible(AgentSilent):
    """The agent that answers has another server or API version."""


class AgentClient:
    """The agent of ``server``; ``management`` is ``unix:/path``, or ``host:port`` with ``tls``.

    ``transport`` carries the requests instead of a socket; ``clock`` judges the agent.
    """

    def __init__(
        self,
        server: str,
        management: str,
        tls: AgentTls | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: OnTimeClock | None = None,
    ) -> None:
        self.server = server
        self._clock = clock or OnTimeClock()
        self._where = management
        unix = (
            management.removeprefix("unix:")
            if management.startswith("unix:")
            else None
        )
        self._tls = None if unix else tls
        self._is_unix = unix is not None or transport is not None
        self._refused: AgentIncompatible | None = None
        self._knows_no_users = False
        self.heartbeat = Heartbeat()
        """By all calls, including those of other parts of the controller."""
        self._http = httpx.AsyncClient(
            transport=transport
            or httpx.AsyncHTTPTransport(
                verify=self._tls.context if self._tls else _NO_TLS,
                uds=unix,
                retries=0 if unix else 1,
                limits=_KEEPALIVE,
                socket_options=None if unix else _PROBES,
            ),
            base_url="http://agent" if unix else f"https://{management}",
            timeout=_DEADLINE_S,
        )

    @property
    def presence(self) -> Presence:
        """Whether it answers, is suspected or lost, by all calls."""
        return self.heartbeat.presence(self._clock.now())

    async def close(self) -> None:
        """Drop the connection."""
        await self._http.aclose()

    async def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        patience_s: float = _LONGEST_S,
        deadline_s: float | None = None,
        grace_s: float = 0.0,
    ) -> bytes:
        """The answer. A lost call is repeated until the agent is lost, or for ``patience_s``: calls
        are idempotent, and an agent does not restart one in progress. ``grace_s``: how much longer
        that is, because a worker has this time to end; an agent that hangs is lost before."""
        began = self._clock.now()
        limit_s = _DEADLINE_S if deadline_s is None else deadline_s
        if not (self._is_unix or (self._tls and self._tls.credentials)):
            self.heartbeat.missed(began)
            raise AgentNotTrusted(
                f"the agent of {self.server} at {self._where} needs TLS, but this controller has "
                "no certificate",
                hint=(
                    "create one with 'patchlight deploy certificates LAB', and pass its folder "
                    "with --tls"
                ),
            )
        if self._refused is not None and path != _STATUS:
            self.heartbeat.missed(began)
            raise self._refused
        # The name expected in the agent's certificate, whatever its address.
        name = (
            {"sni_hostname": self._tls.agent(self.server)} if self._tls else {}
        )
        for pause_s in itertools.chain(
            _PAUSES_S, itertools.repeat(_PAUSES_S[-1])
        ):
            called_at = self._clock.now()
            try:
                response = await self._http.request(
                    method,
                    f"/v1{path}",
                    json=body,
                    timeout=limit_s,
                    extensions=name,
                )
                break
            # The agent's rejection of the certificate is passed on.
            except (httpx.HTTPError, ssl.SSLError) as error:
                self.heartbeat.missed(called_at)
                await self._check_trust(error)
                now = self._clock.now()
                if (
                    self.presence is Presence.LOST
                    or now + pause_s - began > patience_s + grace_s
                ):
                    raise self._silent(
                        f"{method} {path}", error, now - called_at
                    ) from error
            await asyncio.sleep(pause_s)
        if path != _STATUS:
            self.heartbeat.answered(self._clock.now())
        if response.is_success:
            return response.content
        try:
            answer = response.json()
        except ValueError:
            answer = {}
        message = answer.get("error") or answer.get("detail") or response.text
        kind = {404: NotOnServer, 503: NicWithoutCarrier}.get(
            response.status_code, AgentCallError
        )
        raise kind(
            f"the agent of {self.server}: {message}", hint=answer.get("hint")
        )

    def _silent(
        self,
        call: str,
        error: Exception,
        waited_s: float,
    ) -> AgentSilent:
        why = reason(error)
        if isinstance(error, httpx.TimeoutException):
            why = f"{type(error).__name__} after {waited_s:.0f} s"
        if overload := self.heartbeat.overload:
            why += f" ({self.server} answers {overload})"
        return AgentSilent(
            f"the agent of {self.server} at {self._where} did not answer {call}: {why}",
            hint="check that it runs: start it with 'patchlight agent run' on that server",
        )

    async def _check_trust(self, error: Exception) -> None:
        own = self._tls.credentials if self._tls else None
        if (
            self._tls is None
            or own is None
            or isinstance(error, httpx.TimeoutException)
        ):
            return
        try:
            name = self._tls.agent(self.server)
            found = await asyncio.to_thread(
                _mistrust,
                self._where,
                name,
                own,
            )
        except OSError:
            return
        if found is not None:
            raise found from error

    async def _ask(
        self,
        answer: type[M],
        method: str,
        path: str,
        **how: Any,
    ) -> M:
        try:
            return answer.model_validate_json(
                await self._call(method, path, **how)
            )
        except ValidationError as error:
            raise AgentCallError(
                f"the agent of {self.server} answered {method} {path} with an invalid "
                f"{answer.__name__}: {mistakes_in_words(error)}",
                hint="check that it has the controller's version",
            ) from error

    async def status(self) -> agent_status.AgentStatus:
        """What the server has and who uses it; not repeated. After ``AgentIncompatible`` (another
        server or API version) all other calls fail until this call succeeds."""
        called_at = self._clock.now()
        status = await self._ask(
            agent_status.AgentStatus,
            "GET",
            _STATUS,
            patience_s=0,
        )
        self._refused = None
        self._knows_no_users = status.worker_user is None
        if status.server != self.server:
            self._refused = AgentIncompatible(
                f"the agent at {self._where} belongs to {status.server}, not to {self.server}",
                hint=f"correct the 'management:' address of {self.server} in the lab file",
            )
        elif status.api != (api := agent_status.API_VERSION):
            older = "agent" if status.api < api else "controller"
            self._refused = AgentIncompatible(
                f"the agent of {self.server} (Patchlight {status.version}) has version "
                f"{status.api} of the agents' API, but this controller ({VERSION}) has version "
                f"{api}",
                hint=f"upgrade the {older}",
            )
        now = self._clock.now()
        if self._refused is not None:
            self.heartbeat.missed(called_at)
            raise self._refused
        self.heartbeat.answered(now)
        self.heartbeat.answers_s.append(now - called_at)
        return status

    async def probe(
        self, token: str, listen_s: float
    ) -> agent_status.ProbeAnswer:
        """What idle NICs receive while all send probes of this token; not repeated."""
        body = agent_status.ProbeRequest(
            token=token,
            listen_s=listen_s,
        ).model_dump()
        return await self._ask(
            agent_status.ProbeAnswer,
            "POST",
            "/probes",
            body=body,
            patience_s=0,
        )

    async def create_worker(
        self, spec: worker_api.WorkerSpec
    ) -> worker_api.WorkerStatus:
        """Lease the GPU and the NIC and start a worker with them."""
        # Only non-default values: an agent may know fewer optional keys.
        unknown = {"user"} if self._knows_no_users else None
        body = spec.model_dump(
            mode="json",
            exclude_defaults=True,
            exclude=unknown,
        )
        return await self._ask(
            worker_api.WorkerStatus,
            "POST",
            "/workers",
            body=body,
        )

    async def ship(self, worker_id: str, part: worker_api.WorkdirPart) -> int:
        """Send a part of a worker's working directory; returns the offset to continue at."""
        answer = await self._ask(
            worker_api.WorkdirAnswer,
            "PUT",
            f"/workers/{worker_id}/workdir",
            body=part.model_dump(),
        )
        return answer.next

    async def worker(self, worker_id: str) -> worker_api.WorkerStatus:
        """The state of a worker; not repeated."""
        where = f"/workers/{worker_id}"
        return await self._ask(
            worker_api.WorkerStatus,
            "GET",
            where,
            patience_s=0,
        )

    async def reports(self, worker_id: str, after: int) -> worker_api.Reports:
        """The iterations that a worker finished after number ``after``, and the next ``after``; not
        repeated."""
        where = f"/workers/{worker_id}/reports?after={after}"
        return await self._ask(
            worker_api.Reports,
            "GET",
            where,
            patience_s=0,
        )

    async def log(
        self,
        worker_id: str,
        after: int,
        limit: int,
    ) -> worker_api.LogPart:
        """At most ``limit`` bytes of a worker's output after byte ``after``."""
        where = f"/workers/{worker_id}/log?after={after}&limit={limit}"
        return await self._ask(
            worker_api.LogPart,
            "GET",
            where,
            patience_s=_LOG_PATIENCE_S,
        )

    async def start(self, worker_id: str) -> None:
        """Let a ready worker train."""
        where = f"/workers/{worker_id}/start"
        await self._call(
            "POST",
            where,
            {},
            deadline_s=_START_DEADLINE_S,
        )

    async def hold(self, worker_id: str, iteration: int) -> None:
        """Make a worker pause before the all-reduce of ``iteration``."""
        body = worker_api.HoldRequest(iteration=iteration).model_dump()
        await self._call("POST", f"/workers/{worker_id}/hold", body)

    async def slot(self, worker_id: str, slot: worker_api.SlotRequest) -> None:
        """Let a worker begin its all-reduces only then."""
        await self._call(
            "POST", f"/workers/{worker_id}/slot", slot.model_dump()
        )

    async def release(self, worker_id: str) -> None:
        """Resume a held worker."""
        await self._call("POST", f"/workers/{worker_id}/release", {})

    async def announce(
        self,
        worker_id: str,
        token: str,
        wait_s: float,
    ) -> list[str]:
        """Announce a worker's NIC; the addresses of the job's other workers that it did not hear.

        Not repeated.
        """
        body = worker_api.AnnounceRequest(
            token=token,
            wait_s=wait_s,
        ).model_dump()
        how = {
            "body": body,
            "patience_s": 0,
            "deadline_s": wait_s + SUSPECTED_AFTER * INTERVAL_S,
        }
        where = f"/workers/{worker_id}/announce"
        return (
            await self._ask(
                worker_api.AnnounceAnswer,
                "POST",
                where,
                **how,
            )
        ).unheard

    async def stop_at(self, worker_id: str, iteration: int) -> None:
        """Make a worker end, as stopped, before the all-reduce of ``iteration``."""
        body = worker_api.StopAtRequest(iteration=iteration).model_dump()
        await self._call("POST", f"/workers/{worker_id}/stop-at", body)

    async def bind_paths(
        self, nic: str, bounds: agent_status.PathBounds
    ) -> agent_status.PathNodeStatus:
        """Give a NIC bounds for agreeing on paths."""
        body = bounds.model_dump()
        return await self._ask(
            agent_status.PathNodeStatus,
            "PUT",
            f"/nics/{nic}/paths",
            body=body,
        )

    async def withdraw_paths(self, nic: str, epoch: int) -> None:
        """End bounds up to this epoch for a NIC."""
        await self._call("DELETE", f"/nics/{nic}/paths?epoch={epoch}")

    async def end(self, worker_id: str, grace_s: float) -> None:
        """Stop a worker, which has ``grace_s`` to end; its GPU and NIC are freed, and its output
        stays until it is deleted."""
        await self._call(
            "POST",
            f"/workers/{worker_id}/end",
            {},
            grace_s=grace_s,
        )

    async def delete(
        self, worker_id: str, grace_s: float
    ) -> worker_api.WorkerStatus:
        """Delete a worker, which has ``grace_s`` to end, and free its GPU and NIC. Idempotent."""
        where = f"/workers/{worker_id}"
        return await self._ask(
            worker_api.WorkerStatus,
            "DELETE",
            where,
            grace_s=grace_s,
        )


def _mistrust(
    address: str,
    name: str,
    own: credentials.Credentials,
) -> AgentNotTrusted | None:
    """The obstacle between ``own`` and the agent ``name`` at ``host:port``, from both
    certificates."""
    # Slow to import, and most controllers have no certificates.
    from cryptography import x509

    context = own.context(server=False)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection(
        split_address(address), timeout=_TRUST_DEADLINE_S
    ) as plain:
        try:
            tls = context.wrap_socket(plain)
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return None  # it has just disconnected
        except ssl.SSLError as error:
            return AgentNotTrusted(
                f"the service at {address} does not support TLS 1.3 ({_reason(error)})",
                hint="check that it is an agent of this lab, started with 'patchlight agent run "
                "--tls "
                "FOLDER'",
            )
        with tls:
            shown = x509.load_der_x509_certificate(
                tls.getpeercert(binary_form=True) or b""
            )
            if found := _objection(
                shown,
                address,
                name,
                own,
            ):
                return found
            try:
                # An agent that accepts the certificate waits for a request.
                tls.read(1)
            except ssl.SSLError as error:
                why = next(
                    (
                        w
                        for alert, w in _ALERTS.items()
                        if alert in (error.reason or "")
                    ),
                    None,
                )
                return AgentNotTrusted(
                    f"the agent at {address} rejects the certificate in {own.folder}: "
                    f"{why or _reason(error)}",
                    hint=_DEPLOY,
                )
    return None


def _objection(
    shown: "Certificate",
    address: str,
    name: str,
    own: credentials.Credentials,
) -> AgentNotTrusted | None:
    """What is wrong with the agent's certificate, if anything."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    if (found := credentials.name_in(shown)) != name:
        server, lab = _server_and_lab(found)
        wanted, _ = _server_and_lab(name)
        who = (
            f"the certificate of the agent at {address} is for {server} of lab {lab}"
            if server and lab
            else f"the certificate at {address} is for {found or 'nobody'}"
        )
        return AgentNotTrusted(
            f"{who}, not for {wanted}",
            hint=f"correct the 'management:' address of {wanted} in the lab file, or start that "
            "agent with its own certificate folder",
        )
    try:
        authority = (own.folder / credentials.CA_FILE).read_bytes()
        shown.verify_directly_issued_by(
            x509.load_pem_x509_certificate(authority)
        )
    except (InvalidSignature, ValueError, TypeError):
        return AgentNotTrusted(
            f"the certificate of the agent at {address} was not issued by the authority in "
            f"{own.folder}",
            hint=_DEPLOY,
        )
    begin = shown.not_valid_before_utc
    end = shown.not_valid_after_utc
    if not begin <= datetime.now(UTC) <= end:
        return AgentNotTrusted(
            f"the certificate of the agent at {address} is valid from {begin:%Y-%m-%d} to "
            f"{end:%Y-%m-%d}",
            hint="renew it with 'patchlight deploy certificates LAB --output DIR', or correct "
            "this machine's clock",
        )
    return None


def _server_and_lab(agent: str) -> tuple[str, str]:
    role, _, rest = agent.partition(".")
    server, _, lab = rest.partition(".")
    return (server, lab) if role == "agent" else ("", "")


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()
