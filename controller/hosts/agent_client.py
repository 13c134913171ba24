"""The client of one agent, over HTTP: a Unix socket, or TCP with certificates at both ends."""

import asyncio
import logging
import ssl
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from patchlight.controller.hosts.health import INTERVAL_S, SUSPECTED_AFTER
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.io.issues import mistakes_in_words
from patchlight.testbed.linux.credentials import (
    Credentials,
    agent_name,
    controller_name,
    new_context,
    read_credentials,
    stamp,
)
from patchlight.testbed.wire.agent_status import (
    API_VERSION,
    AgentStatus,
    PathBounds,
    PathNodeStatus,
    ProbeAnswer,
    ProbeRequest,
)
from patchlight.testbed.wire.worker_api import (
    HoldRequest,
    LogPart,
    Reports,
    StopAtRequest,
    WorkerSpec,
    WorkerStatus,
)

_log = logging.getLogger(__name__)

M = TypeVar("M", bound=BaseModel)

VERSION = version("patchlight")
_STATUS = "/status"
_DEADLINE_S = 30.0
_STATUS_DEADLINE_S = SUSPECTED_AFTER * INTERVAL_S
# A call that is lost on the way is made again, after these pauses, as long as it is worth it.
_PAUSES_S = (0.2, 0.5, 1.0, 2.0)
_PATIENCE_S = 10.0
# Shorter than the 5 s after which the agent's server drops an idle connection: a request must
# not race that.
_KEEPALIVE = httpx.Limits(keepalive_expiry=2.0)
# For Unix sockets, over which no TLS is spoken: httpx makes a slow one where it is given none.
_NO_TLS = new_context(server=False)


class AgentTls:
    """What agents are called with: one context for all of them.

    An empty folder is one that a certificate is put into later: until then ``credentials`` is
    ``None``. ``BadInput`` if there is no folder, or if it has what is not for the lab's controller.
    """

    def __init__(self, lab: str, folder: Path) -> None:
        self.lab, self.folder = lab, folder
        self.credentials: Credentials | None = None
        self.context = new_context(server=False)
        self._stamp = stamp(folder)
        if self._stamp or not folder.is_dir():
            self._take()
        else:
            _log.warning("no certificate in %s yet: agents on TCP are not called", folder)

    def agent(self, server: str) -> str:
        """What the agent of a server is called in its certificate."""
        return agent_name(server, self.lab)

    def refresh(self) -> None:
        """Take what was put into the folder since; the log says why if it cannot be taken."""
        if (found := stamp(self.folder)) == self._stamp:
            return
        self._stamp = found
        try:
            self._take()
        except BadInput as error:
            _log.error("%s", error)

    def _take(self) -> None:
        found = read_credentials(self.folder)
        found.check(controller_name(self.lab))
        found.load_into(self.context)
        self.credentials = found
        _log.info("certificate for %s, until %s", found.name, f"{found.not_after:%Y-%m-%d}")


class AgentCallError(PatchlightError):
    """An agent refused or did not answer."""


class NotOnServer(AgentCallError):
    """An agent's server has no such worker, GPU or NIC."""


class NicWithoutCarrier(AgentCallError):
    """A worker's NIC has not come back after its light moved, so the worker cannot go on."""


class AgentSilent(AgentCallError):
    """An agent did not answer, also when it was called again, or what answers is not it."""


class AgentNotTrusted(AgentSilent):
    """Without certificates that both ends take, an agent is not called."""


class AgentIncompatible(AgentSilent):
    """An agent answers, and not in a way that this controller knows."""


class AgentClient:
    """The agent of ``server``; ``management`` is ``unix:/path``, or ``host:port`` with ``tls``."""

    def __init__(self, server: str, management: str, tls: AgentTls | None = None) -> None:
        self.server = server
        self._where = management
        unix = management.removeprefix("unix:") if management.startswith("unix:") else None
        self._tls = None if unix else tls
        self._is_unix = unix is not None
        self._refused: AgentIncompatible | None = None
        self._knows_no_users = False
        self._http = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(
                verify=self._tls.context if self._tls else _NO_TLS,
                uds=unix,
                retries=0 if unix else 1,
                limits=_KEEPALIVE,
            ),
            base_url="http://agent" if unix else f"https://{management}",
            timeout=_DEADLINE_S,
        )

    async def close(self) -> None:
        """Drop the connection."""
        await self._http.aclose()

    async def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        pauses_s: Sequence[float] = _PAUSES_S,
        deadline_s: float = _DEADLINE_S,
    ) -> bytes:
        """The answer; ``AgentCallError`` after the last attempt. To an agent, twice is once."""
        if not (self._is_unix or (self._tls and self._tls.credentials)):
            raise AgentNotTrusted(
                f"the agent of {self.server} at {self._where} is called over TLS only, and this "
                "controller has no certificate",
                hint="'patchlight deploy certificates LAB' makes one: name its folder with --tls",
            )
        if self._refused is not None and path != _STATUS:
            raise self._refused
        response = await self._attempt(method, path, body, pauses_s, deadline_s)
        if response.is_success:
            return response.content
        try:
            answer = response.json()
        except ValueError:
            answer = {}
        message = answer.get("error") or answer.get("detail") or response.text
        kind = {404: NotOnServer, 503: NicWithoutCarrier}.get(response.status_code, AgentCallError)
        raise kind(f"the agent of {self.server}: {message}", hint=answer.get("hint"))

    async def _attempt(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        pauses_s: Sequence[float],
        deadline_s: float,
    ) -> httpx.Response:
        # The name that the agent's certificate is compared with, whatever its address.
        name = {"sni_hostname": self._tls.agent(self.server)} if self._tls else {}
        began = time.monotonic()
        for pause_s in (*pauses_s, None):
            try:
                return await self._http.request(
                    method, f"/v1{path}", json=body, timeout=deadline_s, extensions=name
                )
            # The agent's word against our certificate comes as it is.
            except (httpx.HTTPError, ssl.SSLError) as error:
                await self._look_at(error)
                if pause_s is None or time.monotonic() - began > _PATIENCE_S:
                    # A timeout has no text.
                    why = str(error) or f"{type(error).__name__} after {deadline_s:g} s"
                    raise AgentSilent(
                        f"the agent of {self.server} at {self._where} did not answer "
                        f"{method} {path}: {why}",
                        hint="is it running? start it with 'patchlight agent run' on that server",
                    ) from error
            await asyncio.sleep(pause_s)
        raise AssertionError

    async def _look_at(self, error: Exception) -> None:
        """``AgentNotTrusted`` if it is for want of trust that a call failed."""
        own = self._tls.credentials if self._tls else None
        if self._tls is None or own is None or isinstance(error, httpx.TimeoutException):
            return
        # What reads certificates is slow to import, and most controllers have none to read.
        from patchlight.controller.hosts.agent_trust import mistrust

        if found := await mistrust(self._where, self._tls.agent(self.server), own):
            raise AgentNotTrusted(found.words, hint=found.hint) from error

    async def _ask(self, answer: type[M], method: str, path: str, **how: Any) -> M:
        try:
            return answer.model_validate_json(await self._call(method, path, **how))
        except ValidationError as error:
            raise AgentCallError(
                f"the agent of {self.server} answered {method} {path} with what is no "
                f"{answer.__name__}: {mistakes_in_words(error)}",
                hint="is it of the same version as the controller?",
            ) from error

    async def status(self) -> AgentStatus:
        """What the server has and who uses it; asked once.

        ``AgentIncompatible`` if it is another server's agent, or speaks another version of the
        API; until it is asked again, it is not called either.
        """
        how = {"pauses_s": (), "deadline_s": _STATUS_DEADLINE_S}
        status = await self._ask(AgentStatus, "GET", _STATUS, **how)
        self._refused = self._objection(status)
        self._knows_no_users = status.worker_user is None
        if self._refused is not None:
            raise self._refused
        return status

    def _objection(self, status: AgentStatus) -> AgentIncompatible | None:
        if status.server != self.server:
            return AgentIncompatible(
                f"the agent at {self._where} is that of {status.server}, not that of {self.server}",
                hint=f"correct the 'management:' address of {self.server} in the lab file",
            )
        if status.api == API_VERSION:
            return None
        older = "agent" if status.api < API_VERSION else "controller"
        return AgentIncompatible(
            f"the agent of {self.server} (Patchlight {status.version}) speaks version {status.api} "
            f"of the agents' API, and this controller ({VERSION}) version {API_VERSION}",
            hint=f"upgrade the {older}",
        )

    async def probe(self, token: str, listen_s: float) -> ProbeAnswer:
        """What idle NICs hear while all send probes of this token, for so long; asked once."""
        body = ProbeRequest(token=token, listen_s=listen_s).model_dump()
        return await self._ask(ProbeAnswer, "POST", "/probes", body=body, pauses_s=())

    async def create_worker(self, spec: WorkerSpec) -> WorkerStatus:
        """Lease the GPU and the NIC and start a worker with them."""
        # Only what is not the default: an agent may know fewer optional keys than this controller.
        unknown = {"user"} if self._knows_no_users else None
        body = spec.model_dump(mode="json", exclude_defaults=True, exclude=unknown)
        return await self._ask(WorkerStatus, "POST", "/workers", body=body)

    async def worker(self, worker_id: str) -> WorkerStatus:
        """How a worker is."""
        where = f"/workers/{worker_id}"
        return await self._ask(WorkerStatus, "GET", where, deadline_s=_STATUS_DEADLINE_S)

    async def reports(self, worker_id: str, after: int) -> Reports:
        """The iterations a worker finished after number ``after``, and the next ``after``."""
        return await self._ask(Reports, "GET", f"/workers/{worker_id}/reports?after={after}")

    async def log(self, worker_id: str, after: int, limit: int) -> LogPart:
        """What a worker printed after byte ``after``, at most ``limit`` bytes of it."""
        where = f"/workers/{worker_id}/log?after={after}&limit={limit}"
        return await self._ask(LogPart, "GET", where)

    async def start(self, worker_id: str) -> None:
        """Let a ready worker train."""
        await self._call("POST", f"/workers/{worker_id}/start", {})

    async def hold(self, worker_id: str, iteration: int) -> None:
        """Have a worker pause before the all-reduce of ``iteration``."""
        body = HoldRequest(iteration=iteration).model_dump()
        await self._call("POST", f"/workers/{worker_id}/hold", body)

    async def release(self, worker_id: str) -> None:
        """Let a held worker go on."""
        await self._call("POST", f"/workers/{worker_id}/release", {})

    async def stop_at(self, worker_id: str, iteration: int) -> None:
        """Have a worker end, as stopped, before the all-reduce of ``iteration``."""
        body = StopAtRequest(iteration=iteration).model_dump()
        await self._call("POST", f"/workers/{worker_id}/stop-at", body)

    async def bind_paths(self, nic: str, bounds: PathBounds) -> PathNodeStatus:
        """Have a NIC take part in agreeing on paths, within these bounds."""
        body = bounds.model_dump()
        return await self._ask(PathNodeStatus, "PUT", f"/nics/{nic}/paths", body=body)

    async def withdraw_paths(self, nic: str, epoch: int) -> None:
        """Bounds up to this epoch are over for a NIC."""
        await self._call("DELETE", f"/nics/{nic}/paths?epoch={epoch}")

    async def end(self, worker_id: str) -> None:
        """Stop a worker; its GPU and NIC go back, and its output stays until it is deleted."""
        await self._call("POST", f"/workers/{worker_id}/end", {})

    async def delete(self, worker_id: str) -> WorkerStatus:
        """Stop a worker; its GPU and NIC go back. No error if it is gone already."""
        return await self._ask(WorkerStatus, "DELETE", f"/workers/{worker_id}")
