"""The agents of a lab: who answers, and what the GPUs do."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from patchlight.controller.hosts.agent_client import VERSION, AgentCallError, AgentClient, AgentTls
from patchlight.controller.hosts.health import Heartbeat, HostFaults, Presence, host_faults
from patchlight.controller.hosts.nics import NicMacs
from patchlight.testbed.errors import in_words
from patchlight.testbed.lab.model import Host, Lab
from patchlight.testbed.wire.agent_status import AgentStatus, GpuStatus, NicStatus, PathNodeStatus

_log = logging.getLogger(__name__)

# In memory, one a second; the time series on disk have what was before.
SAMPLES_KEPT_S = 600


class Fleet:
    """The agents of the servers that the lab file gives a management address."""

    def __init__(self, lab: Lab, tls: AgentTls | None = None, macs: NicMacs | None = None) -> None:
        """``macs`` hears what the agents say of their NICs; without, one that keeps nothing."""
        self.clients = {
            server.name: AgentClient(server.name, server.management, tls)
            for server in lab.servers
            if server.management
        }
        self.on_status: Callable[[AgentStatus], Awaitable[None]] | None = None
        self.macs = macs or NicMacs(lab)
        self.on_macs: Callable[[], Awaitable[None]] | None = None
        self._macs_changed = False
        self._heartbeats = {name: Heartbeat() for name in self.clients}
        self._said: dict[str, Presence] = {}
        self._troubles: dict[str, str] = {}
        self._versions: dict[str, str] = {}
        self._lab, self._tls = lab, tls
        self._samples: dict[str, deque[AgentStatus]] = {
            name: deque(maxlen=2) for name in self.clients
        }
        self._faults: HostFaults | None = None  # not worked out since the last sample
        self.gpu_samples: deque[dict[str, Any]] = deque(
            maxlen=SAMPLES_KEPT_S * sum(len(server.gpus) for server in lab.servers)
        )

    def agent_of(self, server: str) -> AgentClient:
        """The agent of that server; ``AgentCallError`` if the lab file names none."""
        if server not in self.clients:
            raise AgentCallError(
                f"server {server} has no agent",
                hint="give it a 'management:' address in the lab file, or bring an emulated lab up "
                "with --agents",
            )
        return self.clients[server]

    def presence(self, server: str) -> Presence:
        """Whether the agent of a server answers, is suspected or lost."""
        return self._heartbeats[server].presence(time.monotonic())

    @property
    def reachable(self) -> dict[str, bool]:
        """By server, whether its agent answers."""
        return {name: self.presence(name) is Presence.ANSWERS for name in self._heartbeats}

    def silent(self) -> frozenset[str]:
        """The servers whose agents are suspected or lost: nothing new is begun there."""
        return frozenset(name for name in self._heartbeats if self.presence(name).is_silent)

    def status(self) -> list[dict[str, Any]]:
        """How each agent is: ``words`` say why one is silent, ``problems`` what else is wrong."""
        now, faults = time.monotonic(), self.faults().words
        answer = []
        for name, heartbeat in self._heartbeats.items():
            hosts = [host.name for host in self._lab.hosts if host.server.name == name]
            problems = [faults[host] for host in hosts if host in faults]
            agent_version = self._versions.get(name)
            if agent_version not in (None, VERSION):
                problems.append(f"its version is {agent_version}, the controller's {VERSION}")
            if name in self.with_root_workers():
                problems.append("its workers run as root")
            answer.append(
                {
                    "server": name,
                    "reachable": heartbeat.presence(now) is Presence.ANSWERS,
                    "presence": heartbeat.presence(now),
                    "silence_s": heartbeat.silence_s(now),
                    "words": self._troubles.get(name, ""),
                    "version": agent_version,
                    "problems": problems,
                }
            )
        return answer

    def with_root_workers(self) -> set[str]:
        """The servers where, by their agents' last samples, workers run as root."""
        return {n for n, told in self._samples.items() if told and told[-1].worker_user == "root"}

    def faults(self) -> HostFaults:
        """What is wrong with hosts, as agents said at their last two samples."""
        if self._faults is None:
            self._faults = host_faults(self._lab, self._samples)
        return self._faults

    def nics(self) -> dict[str, NicStatus]:
        """Each NIC as its agent said last, by ``server.nic``."""
        latest = (of_server[-1] for of_server in self._samples.values() if of_server)
        return {f"{each.server}.{nic.name}": nic for each in latest for nic in each.nics}

    def path_nodes(self) -> dict[str, dict[str, PathNodeStatus]]:
        """By server whose agent answers, the NICs that have bounds for paths, as it said last."""
        return {
            server: {node.nic: node for node in samples[-1].paths}
            for server, samples in self._samples.items()
            if samples and self.presence(server) is Presence.ANSWERS
        }

    async def watch(self, period_s: float = 1.0) -> None:
        """Sample every agent once a period, for ever; none waits for another."""
        try:
            async with asyncio.TaskGroup() as watching:
                for client in self.clients.values():
                    watching.create_task(self._watch(client, period_s))
                while True:  # also without an agent
                    await asyncio.sleep(period_s)
                    if self._tls is not None:
                        self._tls.refresh()
        except* Exception as faults:
            raise faults.exceptions[0] from faults

    async def _watch(self, client: AgentClient, period_s: float) -> None:
        while True:
            began = time.monotonic()
            await self._sample(client)
            await self._tell_of_macs()
            await asyncio.sleep(max(0.0, period_s - (time.monotonic() - began)))

    async def know_macs(self, hosts: Iterable[Host]) -> None:
        """Ask the agents of hosts whose MACs they have not said yet; tell of what is new."""
        servers = sorted(self.macs.unknown(hosts) & self.clients.keys())
        await asyncio.gather(*(self._sample(self.clients[server]) for server in servers))
        await self._tell_of_macs()

    async def _tell_of_macs(self) -> None:
        if self._macs_changed and self.on_macs is not None:
            self._macs_changed = False
            await self.on_macs()

    async def _sample(self, client: AgentClient) -> None:
        name, asked_at = client.server, time.monotonic()
        try:
            status = await client.status()
        except Exception as error:  # whatever one agent does, it is asked again
            self._heartbeats[name].missed(asked_at)
            self._troubles[name] = in_words(error)
            presence = self.presence(name)
            if presence.is_silent and presence is not self._said.get(name):
                self._said[name] = presence
                _log.warning("the agent of %s is %s: %s", name, presence, in_words(error))
            return
        if status.version not in (VERSION, self._versions.get(name)):
            _log.warning(
                "the agent of %s has version %s, this controller %s", name, status.version, VERSION
            )
        self._versions[name] = status.version
        self._samples[name].append(status)
        self._faults = None
        self._macs_changed = self.macs.hear(status) or self._macs_changed
        now = time.time()
        for gpu in status.gpus:
            if gpu.utilization is None:  # a GPU that cannot tell, or has fallen off
                continue
            self.gpu_samples.append(
                {
                    "at": now,
                    "gpu": f"{name}.{gpu.name}",
                    "utilization": gpu.utilization,
                    "busy_s": gpu.busy_s,
                }
            )
        if self.on_status is not None:
            await self.on_status(status)  # before anybody counts on it again
        self._heartbeats[name].answered()
        self._troubles.pop(name, None)
        self._said.pop(name, None)

    def latest_gpus(self) -> dict[str, GpuStatus]:
        """What each GPU of the servers whose agents answer is like, by its full name."""
        return {
            f"{server}.{gpu.name}": gpu
            for server, samples in self._samples.items()
            if samples and self.presence(server) is Presence.ANSWERS
            for gpu in samples[-1].gpus
        }

    async def close(self) -> None:
        """Drop every connection; the agents and their workers are left as they are."""
        await asyncio.gather(*(client.close() for client in self.clients.values()))
