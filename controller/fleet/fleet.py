"""All the agents of a lab: who answers, what the GPUs do, where a host's agent is."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from typing import Any

from patchlight.controller.fleet.agent_client import AgentClient, AgentError
from patchlight.testbed.lab import Lab

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
        self._gpu_count = sum(len(server.gpus) for server in lab.servers)
        self.gpu_samples: deque[dict[str, Any]] = deque(maxlen=_SAMPLES_KEPT)

    def agent_of(self, server: str) -> AgentClient:
        """The agent of that server; ``AgentError`` if the lab file names none."""
        if server not in self.clients:
            raise AgentError(
                f"server {server} has no agent",
                hint="give it a 'management:' address in the lab file",
            )
        return self.clients[server]

    async def watch(self, period_s: float = 1.0) -> None:
        """Sample every agent once a period, for ever."""
        while True:
            began = time.monotonic()
            await asyncio.gather(*(self._sample(client) for client in self.clients.values()))
            await asyncio.sleep(max(0.0, period_s - (time.monotonic() - began)))

    async def _sample(self, client: AgentClient) -> None:
        try:
            status = await client.status()
        except AgentError:
            self.reachable[client.server] = False
            return
        self.reachable[client.server] = True
        now = time.time()
        for gpu in status.gpus:
            self.gpu_samples.append(
                {
                    "at": now,
                    "gpu": f"{client.server}.{gpu.name}",
                    "utilization": gpu.utilization,
                    "busy_s": gpu.busy_s,
                }
            )

    def latest_utilization(self) -> dict[str, float]:
        """The newest sample of each GPU, by its full name (0…1)."""
        newest: dict[str, float] = {}
        for sample in itertools.islice(reversed(self.gpu_samples), 2 * self._gpu_count):
            newest.setdefault(sample["gpu"], sample["utilization"])
        return newest

    async def close(self) -> None:
        """Drop every connection; the agents and their workers are left as they are."""
        await asyncio.gather(*(client.close() for client in self.clients.values()))
