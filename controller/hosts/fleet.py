"""Samples the agents of a lab: which ones answer, and which hosts can be used."""

import asyncio
import logging
import time
from collections import defaultdict, deque
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import httpx
from pydantic import TypeAdapter

from patchlight.controller.hosts.agent_client import (
    INTERVAL_S,
    SUSPECTED_AFTER,
    VERSION,
    AgentCallError,
    AgentClient,
    AgentTls,
    Heartbeat,
    Presence,
)
from patchlight.controller.hosts.on_time import OnTimeClock
from patchlight.controller.storage.store import Store
from patchlight.testbed.errors import in_words
from patchlight.testbed.lab.model import Host, Lab
from patchlight.testbed.lab.wiring import Links
from patchlight.testbed.tasks import run_all
from patchlight.testbed.wire.agent_status import (
    AgentStatus,
    GpuStatus,
    NicStatus,
    PathNodeStatus,
)
from patchlight.testbed.wire.worker_api import Mac


@dataclass(frozen=True)
class HostFaults:
    """By host, as text: its part that is ``gone``, and why its NIC has ``no_carrier``."""

    gone: Mapping[str, str] = field(default_factory=dict)
    no_carrier: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def words(self) -> Mapping[str, str]:
        """All problems, by host."""
        return {**self.no_carrier, **self.gone}

    @cached_property
    def lost(self) -> Mapping[str, str]:
        """Why NICs have no carrier, by host and without its name."""
        return {
            host: why.split(": ", 1)[-1]
            for host, why in self.no_carrier.items()
        }


def host_faults(
    lab: Lab, samples: Mapping[str, Sequence[AgentStatus]]
) -> HostFaults:
    """What all of the latest ``samples`` of a server agree on; at least two, because NICs move."""
    gone: dict[str, str] = {}
    no_carrier: dict[str, str] = {}
    for host in lab.hosts:
        of_server = samples.get(host.server.name, ())
        if len(of_server) < 2:
            continue
        if all(_gpu_problem(host, sample) for sample in of_server):
            assert host.gpu is not None
            gone[host.name] = (
                f"{host.gpu.name} of {host.server.name}: "
                + _gpu_problem(host, of_server[-1])
            )
            continue
        nics = [
            nic
            for sample in of_server
            for nic in sample.nics
            if nic.name == host.nic.name
        ]
        if nics and all(nic.problem for nic in nics):
            words = (
                f"{host.nic.name} of {host.server.name}: {nics[-1].problem}"
            )
            dark = not any(nic.carrier for nic in nics)
            (no_carrier if dark else gone)[host.name] = words
    return HostFaults(gone, no_carrier)


def _gpu_problem(host: Host, sample: AgentStatus) -> str:
    return next(
        (
            g.problem
            for g in sample.gpus
            if host.gpu and g.name == host.gpu.name
        ),
        "",
    )


def unfit_hosts(
    lab: Lab,
    silent: Collection[str],
    faults: HostFaults,
    links: Links | None,
) -> dict[str, str]:
    """The hosts that no job can use now, and why. A NIC without a circuit has no carrier because of
    that: a circuit can be made for it."""
    dark = {
        host.name
        for host in lab.hosts
        if links is None or links.peer(host.endpoint) is None
    }
    no_carrier = {
        name: why
        for name, why in faults.no_carrier.items()
        if name not in dark
    }
    quiet = [host for host in lab.hosts if host.server.name in silent]
    without_agent = {
        host.name: f"the agent of {host.server.name} does not answer"
        for host in quiet
    }
    return {**no_carrier, **faults.gone, **without_agent}


def differences(
    lab: Lab,
    links: Links | None,
    nics: Mapping[str, NicStatus],
) -> list[str]:
    """The MTU, PFC and DSCP settings that differ between NICs of one circuit or switch, as text.
    Ports of packet switches do not report settings."""
    found = []
    for hosts in () if links is None else _set_alike(lab, links):
        settings = {
            host: _settings(host, nics.get(str(host.endpoint)))
            for host in hosts
        }
        for name in ("MTU", "PFC", "DSCP", "DSCP's priorities"):
            by_value: dict[str, list[str]] = defaultdict(list)
            for host, told in settings.items():
                if name in told:
                    by_value[told[name]].append(str(host.endpoint))
            if len(by_value) > 1:
                rows = []
                # The fewest first: they are probably the wrong ones.
                for value, ends in sorted(
                    by_value.items(), key=lambda row: (len(row[1]), row[0])
                ):
                    more = (
                        f" and {len(ends) - 3} more" if len(ends) > 3 else ""
                    )
                    rows.append(f"{value} at {', '.join(ends[:3])}{more}")
                found.append(f"{name} differs: {'; '.join(rows)}")
    return found


def _set_alike(lab: Lab, links: Links) -> Iterator[Sequence[Host]]:
    """Groups of hosts whose NICs need equal settings: both ends of a circuit, or one switch."""
    hosts = {host.endpoint: host for host in lab.hosts}
    at_switch: dict[str, list[Host]] = defaultdict(list)
    for endpoint, host in hosts.items():
        peer = links.peer(endpoint)
        if peer is None:
            continue
        if peer not in hosts:
            at_switch[peer.device].append(host)
        elif endpoint < peer:
            yield host, hosts[peer]
    yield from at_switch.values()


def _settings(host: Host, told: NicStatus | None) -> dict[str, str]:
    settings = {
        "DSCP": "none" if host.nic.dscp is None else str(host.nic.dscp)
    }
    if told is None:
        return settings
    if told.mtu is not None:
        settings["MTU"] = str(told.mtu)
    if told.pfc is not None:
        settings["PFC"] = ", ".join(map(str, told.pfc)) or "off"
    if told.dscp_priorities is not None:
        pairs = sorted(told.dscp_priorities.items())
        settings["DSCP's priorities"] = (
            ", ".join(f"{d} is {p}" for d, p in pairs) or "none"
        )
    return settings


_log = logging.getLogger(__name__)

_MARK = "macs"
_MACS = TypeAdapter(dict[str, Mac])


class NicMacs:
    """The MACs of NICs as agents report them. They are stored so that a new controller can program
    the switches before it has called the agents."""

    def __init__(self, lab: Lab, store: Store | None = None) -> None:
        self._store = store
        self._assumed = {
            str(host.endpoint): host.nic.mac for host in lab.hosts
        }
        self._unsure = {
            str(host.endpoint) for host in lab.hosts if host.nic.keeps_mac
        }
        # Without a readable record agents are polled before a job starts.
        kept = (
            store.mark(_MARK, _MACS.validate_python, unreadable=None)
            if store
            else None
        )
        self._said = {
            name: mac
            for name, mac in (kept or {}).items()
            if name in self._unsure
        }
        self._owners = {
            mac: name for name, mac in {**self._assumed, **self._said}.items()
        }

    def of(self, host: Host) -> str:
        """The MAC to which frames for a host are sent, if known."""
        return self._said.get(str(host.endpoint), host.nic.mac)

    def unknown(self, hosts: Iterable[Host]) -> set[str]:
        """The servers of those hosts whose NICs' own MACs are not known yet."""
        return {
            host.server.name
            for host in hosts
            if str(host.endpoint) in self._unsure
            and str(host.endpoint) not in self._said
        }

    def hear(self, status: AgentStatus) -> bool:
        """Store an agent's report; returns whether a MAC changed. A MAC that another NIC has is
        ignored: frames for one would reach the other."""
        changed = False
        for nic in status.nics:
            name = f"{status.server}.{nic.name}"
            if nic.mac is None or name not in self._unsure:
                continue
            mac = nic.mac.lower()
            before = self._said.get(name, self._assumed[name])
            taken = self._owners.get(mac, name)
            if taken != name:
                message = "%s reports the MAC %s, which %s has: set 'mac: lab' for one of them"
                _log.error(
                    message,
                    name,
                    mac,
                    taken,
                )
                continue
            self._owners.pop(before, None)
            self._said[name] = mac
            self._owners[mac] = name
            changed = changed or mac != before
        if changed and self._store is not None:
            differing = {
                n: m for n, m in self._said.items() if m != self._assumed[n]
            }
            self._store.keep_mark(_MARK, differing)
        return changed


# One sample per second; older ones are in the time series on disk.
SAMPLES_KEPT_S = 600


class Fleet:
    """The agents of the servers that have a management address in the lab file."""

    def __init__(
        self,
        lab: Lab,
        tls: AgentTls | None = None,
        macs: NicMacs | None = None,
        transport_to: Callable[
            [str], httpx.AsyncBaseTransport | None
        ] = lambda server: None,
    ) -> None:
        """``macs`` is updated with reports of NICs; by default nothing is stored.
        ``transport_to`` an agent replaces its socket."""
        self._clock = OnTimeClock()
        self.clients = {
            server.name: AgentClient(
                server.name,
                server.management,
                tls,
                transport_to(server.name),
                self._clock,
            )
            for server in lab.servers
            if server.management
        }
        self.on_status: Callable[[AgentStatus], Awaitable[None]] | None = None
        self.macs = macs or NicMacs(lab)
        self.on_macs: Callable[[], Awaitable[None]] | None = None
        self.on_carrier: Callable[[], None] | None = None
        self.on_counters: Callable[[AgentStatus], None] | None = None
        self._macs_changed = False
        # By samples alone: what they say must be known before the next job is placed there.
        self._heartbeats = {
            name: Heartbeat(
                lab.controller_poll_s, answers_s=client.heartbeat.answers_s
            )
            for name, client in self.clients.items()
        }
        self._said: dict[str, Presence] = {}
        self._troubles: dict[str, str] = {}
        self._versions: dict[str, str] = {}
        self._lab = lab
        self._tls = tls
        self._samples: dict[str, deque[AgentStatus]] = {
            name: deque(maxlen=2) for name in self.clients
        }
        self._faults: HostFaults | None = (
            None  # not computed since the last sample
        )
        self.gpu_samples: deque[dict[str, Any]] = deque(
            maxlen=SAMPLES_KEPT_S
            * sum(len(server.gpus) for server in lab.servers)
        )

    def agent_of(self, server: str) -> AgentClient:
        """The agent of that server; ``AgentCallError`` if the lab file has none."""
        if server not in self.clients:
            raise AgentCallError(
                f"server {server} has no agent",
                hint="give it a 'management:' address in the lab file, or bring an emulated lab up "
                "with --agents",
            )
        return self.clients[server]

    def presence(self, server: str) -> Presence:
        """Whether the agent of a server answers, is suspected or lost."""
        return self._heartbeats[server].presence(self._clock.now())

    def silent(self) -> frozenset[str]:
        """The servers with suspected or lost agents: nothing new is started there."""
        return frozenset(
            name for name in self._heartbeats if self.presence(name).is_silent
        )

    def status(self) -> list[dict[str, Any]]:
        """The state of each agent; ``words``: why it does not answer, ``problems``: other
        faults."""
        now = self._clock.now()
        faults = self.faults().words
        answer = []
        for name, heartbeat in self._heartbeats.items():
            hosts = (
                host.name
                for host in self._lab.hosts
                if host.server.name == name
            )
            problems = [faults[host] for host in hosts if host in faults]
            agent_version = self._versions.get(name)
            if agent_version not in (None, VERSION):
                problems.append(
                    f"its version is {agent_version}, the controller's {VERSION}"
                )
            if name in self.with_root_workers():
                problems.append("its workers run as root")
            if overload := self.clients[name].heartbeat.overload:
                problems.append(f"it answers {overload}")
            answer.append(
                {
                    "server": name,
                    "reachable": heartbeat.presence(now) is Presence.ANSWERS,
                    "presence": heartbeat.presence(now),
                    "silence_s": heartbeat.silence_s(now),
                    "words": self._troubles.get(name, ""),
                    "version": agent_version,
                    "workers": self.kind_of_workers(name),
                    "problems": problems,
                }
            )
        return answer

    def kind_of_workers(self, server: str) -> str | None:
        """What a server's agent runs workers as, like ``docker``; ``None`` before it answers."""
        told = self._samples.get(server)
        return told[-1].runner if told else None

    def with_root_workers(self) -> set[str]:
        """The servers where, by their agents' last samples, workers run as root."""
        return {
            n
            for n, told in self._samples.items()
            if told and told[-1].worker_user == "root"
        }

    def faults(self) -> HostFaults:
        """The problems of hosts in their agents' last two samples."""
        if self._faults is None:
            self._faults = host_faults(self._lab, self._samples)
        return self._faults

    def held_for(
        self, job_ids: Collection[str], hosts: Sequence[Host]
    ) -> dict[str, str]:
        """Which of these hosts the workers of these jobs hold, and why. Those of agents that have
        not answered yet count as held."""
        found: dict[str, str] = {}
        for host in hosts if job_ids else ():
            samples = self._samples.get(host.server.name)
            if samples is None:
                continue
            if not samples:
                found[host.name] = (
                    f"the agent of {host.server.name} has not answered yet"
                )
            for worker in samples[-1].workers if samples else ():
                gpu = host.gpu.name if host.gpu else None
                on_host = worker.nic == host.nic.name or (
                    gpu is not None and worker.gpu == gpu
                )
                if (
                    worker.job in job_ids
                    and on_host
                    and not worker.state.is_final
                ):
                    found[host.name] = f"a worker of job {worker.job} is on it"
        return found

    def nics(self) -> dict[str, NicStatus]:
        """Each NIC in its agent's last sample, by ``server.nic``."""
        latest = (
            of_server[-1] for of_server in self._samples.values() if of_server
        )
        return {
            f"{each.server}.{nic.name}": nic
            for each in latest
            for nic in each.nics
        }

    def latest_gpus(self) -> dict[str, GpuStatus]:
        """Each GPU of the servers whose agents answer, by its full name."""
        return {
            f"{each.server}.{g.name}": g
            for each in self._answering()
            for g in each.gpus
        }

    def path_nodes(self) -> dict[str, dict[str, PathNodeStatus]]:
        """NICs with bounds for paths, by server whose agent answers."""
        return {
            each.server: {node.nic: node for node in each.paths}
            for each in self._answering()
        }

    def _answering(self) -> Iterator[AgentStatus]:
        for server, samples in self._samples.items():
            if samples and self.presence(server) is Presence.ANSWERS:
                yield samples[-1]

    async def watch(self, period_s: float | None = None) -> None:
        """Poll every agent once per period (``None``: the lab's); none waits for another."""
        period_s = period_s or self._lab.controller_poll_s
        try:
            async with asyncio.TaskGroup() as watching:
                watching.create_task(self._clock.run())
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
            await asyncio.sleep(
                max(0.0, period_s - (time.monotonic() - began))
            )

    async def sample(self, servers: Iterable[str]) -> None:
        """Poll the agents of these servers now."""
        called = sorted({*servers} & self.clients.keys())
        await run_all(self._sample(self.clients[server]) for server in called)
        await self._tell_of_macs()

    async def know_macs(self, hosts: Iterable[Host]) -> None:
        """Call the agents of hosts with unknown MACs; report new ones."""
        await self.sample(self.macs.unknown(hosts))

    async def _tell_of_macs(self) -> None:
        if self._macs_changed and self.on_macs is not None:
            self._macs_changed = False
            await self.on_macs()

    async def _sample(self, client: AgentClient) -> None:
        name = client.server
        called_at = self._clock.now()
        # From now on, not from when the call is given up: an answer may take that long.
        self._heartbeats[name].missed(called_at)
        after_s = SUSPECTED_AFTER * INTERVAL_S
        late = f"no answer after {after_s:.0f} s"
        timer = asyncio.get_running_loop().call_later(
            after_s,
            self._doubt,
            name,
            late,
        )
        try:
            status = await client.status()
        except Exception as error:  # a failing agent is called again
            self._doubt(name, in_words(error))
            return
        finally:
            timer.cancel()
        if status.version not in (VERSION, self._versions.get(name)):
            _log.warning(
                "the agent of %s has version %s, this controller %s",
                name,
                status.version,
                VERSION,
            )
        self._versions[name] = status.version
        told = self._samples[name]
        carriers = [
            {nic.name: nic.carrier for nic in each.nics}
            for each in (*told, status)
        ]
        told.append(status)
        if self.on_carrier is not None and carriers[-2:-1] not in (
            [],
            carriers[-1:],
        ):
            self.on_carrier()
        if self.on_counters is not None:
            self.on_counters(status)
        self._faults = None
        self._macs_changed = self.macs.hear(status) or self._macs_changed
        now = time.time()
        for gpu in status.gpus:
            if (
                gpu.utilization is not None
            ):  # otherwise it does not report it, or has fallen off the bus
                sample = {"utilization": gpu.utilization, "busy_s": gpu.busy_s}
                self.gpu_samples.append(
                    {"at": now, "gpu": f"{name}.{gpu.name}", **sample}
                )
        if self.on_status is not None:
            await self.on_status(status)  # before it is used again
        self._heartbeats[name].answered(self._clock.now())
        self._troubles.pop(name, None)
        self._said.pop(name, None)

    def _doubt(self, name: str, why: str) -> None:
        self._troubles[name] = why
        presence = self.presence(name)
        if presence.is_silent and presence is not self._said.get(name):
            self._said[name] = presence
            _log.warning(
                "the agent of %s is %s: %s",
                name,
                presence,
                why,
            )

    async def close(self) -> None:
        """Close every connection; agents and workers are unaffected."""
        await run_all(client.close() for client in self.clients.values())
