"""The agents of a lab, over HTTP (a Unix socket or TCP): who answers, and what the GPUs do."""

import asyncio
import itertools
import logging
import ssl
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from patchlight.controller.host_faults import HostFaults, host_faults
from patchlight.testbed.errors import PatchlightError, in_words
from patchlight.testbed.lab import Lab
from patchlight.testbed.mistakes import mistakes_in_words
from patchlight.testbed.worker_api import (
    AgentStatus,
    GpuStatus,
    HoldRequest,
    LogPart,
    Reports,
    StopAtRequest,
    WorkerSpec,
    WorkerStatus,
)

M = TypeVar("M", bound=BaseModel)

_log = logging.getLogger(__name__)

_DEADLINE_S = 30.0
# A call that is lost on the way is made again, after these pauses, as long as it is worth it.
_PAUSES_S = (0.2, 0.5, 1.0, 2.0)
_PATIENCE_S = 10.0
# So many samples in a row have to be lost before an agent counts as silent.
_MISSES = 3
# Shorter than the 5 s after which the agent's server drops an idle connection: a request must
# not race that.
_KEEPALIVE = httpx.Limits(keepalive_expiry=2.0)
# Agents speak HTTP without TLS. Left to itself, each client would read all of the machine's
# certificates, which takes 20 ms, and seconds for hundreds of servers. This one trusts nobody.
_NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class AgentError(PatchlightError):
    """An agent refused or did not answer."""


class NotOnServer(AgentError):
    """An agent's server has no such worker, GPU or NIC."""


class AgentSilent(AgentError):
    """An agent did not answer, also when it was called again."""


class AgentClient:
    """The agent of ``server``; ``management`` is ``unix:/path`` or ``host:port``."""

    def __init__(self, server: str, management: str, token: str | None = None) -> None:
        self.server = server
        self._where = management
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        if management.startswith("unix:"):
            transport = httpx.AsyncHTTPTransport(
                verify=_NO_CERTIFICATES, uds=management.removeprefix("unix:"), limits=_KEEPALIVE
            )
            base = "http://agent"
        else:
            transport = httpx.AsyncHTTPTransport(
                verify=_NO_CERTIFICATES, retries=1, limits=_KEEPALIVE
            )
            base = f"http://{management}"
        self._http = httpx.AsyncClient(
            transport=transport, base_url=base, timeout=_DEADLINE_S, headers=headers
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
    ) -> bytes:
        """The answer; ``AgentError`` after the last attempt. To an agent, twice is once."""
        response = await self._attempt(method, path, body, pauses_s)
        if response.is_success:
            return response.content
        try:
            answer = response.json()
        except ValueError:
            answer = {}
        message = answer.get("error") or answer.get("detail") or response.text
        kind = NotOnServer if response.status_code == 404 else AgentError
        raise kind(f"the agent of {self.server}: {message}", hint=answer.get("hint"))

    async def _attempt(
        self, method: str, path: str, body: Mapping[str, Any] | None, pauses_s: Sequence[float]
    ) -> httpx.Response:
        began = time.monotonic()
        for pause_s in (*pauses_s, None):
            try:
                return await self._http.request(method, f"/v1{path}", json=body)
            except httpx.HTTPError as error:
                if pause_s is None or time.monotonic() - began > _PATIENCE_S:
                    raise AgentSilent(
                        f"the agent of {self.server} at {self._where} did not answer "
                        f"{method} {path}: {error or type(error).__name__}",
                        hint="is it running? start it with 'patchlight agent run' on that server",
                    ) from error
            await asyncio.sleep(pause_s)
        raise AssertionError

    async def _ask(self, answer: type[M], method: str, path: str, **how: Any) -> M:
        try:
            return answer.model_validate_json(await self._call(method, path, **how))
        except ValidationError as error:
            raise AgentError(
                f"the agent of {self.server} answered {method} {path} with what is no "
                f"{answer.__name__}: {mistakes_in_words(error)}",
                hint="is it of the same version as the controller?",
            ) from error

    async def status(self) -> AgentStatus:
        """What the server has and who uses it; asked once."""
        return await self._ask(AgentStatus, "GET", "/status", pauses_s=())

    async def create_worker(self, spec: WorkerSpec) -> WorkerStatus:
        """Lease the GPU and the NIC and start a worker with them."""
        # Only what is not the default: an agent may know fewer optional keys than this controller.
        body = spec.model_dump(mode="json", exclude_defaults=True)
        return await self._ask(WorkerStatus, "POST", "/workers", body=body)

    async def worker(self, worker_id: str) -> WorkerStatus:
        """How a worker is."""
        return await self._ask(WorkerStatus, "GET", f"/workers/{worker_id}")

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

    async def delete(self, worker_id: str) -> WorkerStatus:
        """Stop a worker; its GPU and NIC go back. No error if it is gone already."""
        return await self._ask(WorkerStatus, "DELETE", f"/workers/{worker_id}")


# About an hour of samples of 64 GPUs: the memory of the controller stays bounded.
_SAMPLES_KEPT = 3600 * 64


class Fleet:
    """The agents of the servers that the lab file gives a management address."""

    def __init__(self, lab: Lab, token: str | None = None) -> None:
        self.clients = {
            server.name: AgentClient(server.name, server.management, token)
            for server in lab.servers
            if server.management
        }
        self.reachable: dict[str, bool] = dict.fromkeys(self.clients, False)
        self.on_status: Callable[[AgentStatus], Awaitable[None]] | None = None
        self._misses: Counter[str] = Counter()
        self._lab = lab
        self._samples: dict[str, deque[AgentStatus]] = {
            name: deque(maxlen=2) for name in self.clients
        }
        self._gpu_count = sum(len(server.gpus) for server in lab.servers)
        self.gpu_samples: deque[dict[str, Any]] = deque(maxlen=_SAMPLES_KEPT)

    def agent_of(self, server: str) -> AgentClient:
        """The agent of that server; ``AgentError`` if the lab file names none."""
        if server not in self.clients:
            raise AgentError(
                f"server {server} has no agent",
                hint="give it a 'management:' address in the lab file, or bring an emulated lab up "
                "with --agents",
            )
        return self.clients[server]

    def silent(self) -> frozenset[str]:
        """The servers whose agents have not answered of late."""
        return frozenset(s for s, misses in self._misses.items() if misses >= _MISSES)

    def faults(self) -> HostFaults:
        """What is wrong with hosts, as agents said at their last two samples."""
        return host_faults(self._lab, self._samples)

    async def watch(self, period_s: float = 1.0) -> None:
        """Sample every agent once a period, for ever."""
        while True:
            began = time.monotonic()
            await asyncio.gather(*(self._sample(client) for client in self.clients.values()))
            await asyncio.sleep(max(0.0, period_s - (time.monotonic() - began)))

    async def _sample(self, client: AgentClient) -> None:
        try:
            status = await client.status()
        except Exception as error:  # whatever one agent does, the others are asked
            self._misses[client.server] += 1
            if self._misses[client.server] == _MISSES:
                self.reachable[client.server] = False
                _log.warning("the agent of %s is silent: %s", client.server, in_words(error))
            return
        self._samples[client.server].append(status)
        now = time.time()
        for gpu in status.gpus:
            if gpu.utilization is None:  # a GPU that cannot tell, or has fallen off
                continue
            self.gpu_samples.append(
                {
                    "at": now,
                    "gpu": f"{client.server}.{gpu.name}",
                    "utilization": gpu.utilization,
                    "busy_s": gpu.busy_s,
                }
            )
        if self.on_status is not None:
            await self.on_status(status)  # before anybody counts on it again
        self._misses[client.server] = 0
        self.reachable[client.server] = True

    def latest_utilization(self) -> dict[str, float]:
        """The newest sample of each GPU, by its full name (0…1)."""
        newest: dict[str, float] = {}
        for sample in itertools.islice(reversed(self.gpu_samples), 2 * self._gpu_count):
            newest.setdefault(sample["gpu"], sample["utilization"])
        return newest

    def latest_gpus(self) -> dict[str, GpuStatus]:
        """What each GPU was last said to be like, by its full name."""
        return {
            f"{server}.{gpu.name}": gpu
            for server, samples in self._samples.items()
            if samples
            for gpu in samples[-1].gpus
        }

    async def close(self) -> None:
        """Drop every connection; the agents and their workers are left as they are."""
        await asyncio.gather(*(client.close() for client in self.clients.values()))
