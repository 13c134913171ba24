"""Computes the bounds within which a job's nodes agree on optical paths.

A node grants only its receiver and channel, and nothing for a lease after it gets new bounds. So
all grants of one epoch end before those of the next begin, even if nodes are silent. Time is an
argument, in Unix time.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from patchlight.controller.hosts.agent_client import AgentCallError
from patchlight.controller.hosts.fleet import Fleet
from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.paths.service import PathService
from patchlight.testbed.jobs import JobState
from patchlight.testbed.lab.model import Endpoint, Host, Lab
from patchlight.testbed.paths.light_networks import LightNetwork
from patchlight.testbed.tasks import run_all
from patchlight.testbed.wire.agent_status import PathBounds, PathNodeStatus
from patchlight.testbed.wire.rest.circuits import PathHostShape

_MARGIN_US = 50_000
_LEAST_LEASE_S = 2.0
_LONGEST_LEASE_S = 1800.0

_PERIOD_S = 0.5
_MOST_SAID = 1000
_log = logging.getLogger(__name__)


class PathJob(NamedTuple):
    """A job that uses optical paths: its hosts, and what each sends per iteration."""

    id: str
    hosts: Sequence[Host]
    gradient_bytes: float


class BoundsOrder(NamedTuple):
    """New bounds for a NIC, or (``None``) the end of those up to this epoch."""

    server: str
    nic: str
    bounds: PathBounds | None
    epoch: int


@dataclass(frozen=True)
class _Share:
    """The epoch of a job and its hosts' bounds, unknown if an earlier controller gave them."""

    epoch: int
    hosts: tuple[str, ...]
    bounds: tuple[PathBounds, ...] = ()


class PathShares:
    """The bounds of a lab's jobs, from running jobs and the status of agents."""

    def __init__(self) -> None:
        self._shares: dict[str, _Share] = {}
        self._epoch = 0

    def orders(
        self,
        jobs: Sequence[PathJob],
        networks: Sequence[LightNetwork],
        said: Mapping[str, Mapping[str, PathNodeStatus]],
        now: float,
    ) -> list[BoundsOrder]:
        """The orders for agents that answer, so that each job gets its bounds."""
        self._epoch = max(
            [
                self._epoch,
                *(s.epoch for of in said.values() for s in of.values()),
            ]
        )
        wanted: dict[tuple[str, str], tuple[_Share, int]] = {}
        kept = {}
        for job in jobs:
            share = self._share(
                job,
                networks,
                said,
                now,
            )
            if share is not None:
                kept[job.id] = share
                for number, host in enumerate(job.hosts):
                    wanted[host.server.name, host.nic.name] = share, number
        self._shares = kept
        orders = [
            BoundsOrder(
                server,
                nic,
                None,
                status.epoch,
            )
            for server, nics in said.items()
            for nic, status in nics.items()
            if (server, nic) not in wanted
        ]
        for (server, nic), (share, number) in wanted.items():
            present = said.get(server, {}).get(nic)
            is_new = present is None or present.epoch != share.epoch
            if server in said and share.bounds and is_new:
                orders.append(
                    BoundsOrder(
                        server,
                        nic,
                        share.bounds[number],
                        share.epoch,
                    )
                )
        return orders

    def _share(
        self,
        job: PathJob,
        networks: Sequence[LightNetwork],
        said: Mapping[str, Mapping[str, PathNodeStatus]],
        now: float,
    ) -> _Share | None:
        hosts = tuple(host.name for host in job.hosts)
        if why_no_paths(job, networks):
            return None
        known = self._shares.get(job.id)
        if known is not None and known.hosts == hosts and known.bounds:
            return known
        if not all(host.server.name in said for host in job.hosts):
            return _Share(0, hosts)
        present = [
            said[host.server.name].get(host.nic.name) for host in job.hosts
        ]
        numbers = [
            each.number for each in present if each and each.job == job.id
        ]
        epochs = {each.epoch for each in present if each}
        if numbers == list(range(len(hosts))) and len(epochs) == 1:
            return _Share(epochs.pop(), hosts)
        self._epoch = max(self._epoch + 1, int(now))
        return _Share(self._epoch, hosts, tuple(self._bounds(job, networks)))

    def _bounds(
        self, job: PathJob, networks: Sequence[LightNetwork]
    ) -> Iterator[PathBounds]:
        network = next(n for n in networks if job.hosts[0].name in n.numbers)
        # In the lab's scale, which divides bytes and rates alike.
        sends_s = (
            16
            * job.gradient_bytes
            / min(host.nic.rate_bps or inf for host in job.hosts)
        )
        lease_s = _LEAST_LEASE_S + 2 * network.paths.tuning_s + 4 * sends_s
        common = {
            "epoch": self._epoch,
            "job": job.id,
            "addresses": [_address(host) for host in job.hosts],
            "channels": [_channel(host) for host in job.hosts],
            "lease_us": round(1e6 * min(lease_s, _LONGEST_LEASE_S)),
            "margin_us": _MARGIN_US,
            "key": secrets.token_hex(32),
        }
        for number in range(len(job.hosts)):
            yield PathBounds.model_validate({**common, "number": number})


def why_no_paths(job: PathJob, networks: Sequence[LightNetwork]) -> str:
    """Why the nodes of a job cannot have bounds, as text; empty if they can."""
    names = {host.name for host in job.hosts}
    network = next((n for n in networks if names <= n.numbers.keys()), None)
    if len(names) < 2:
        return "it has one worker"
    if network is None:
        return "its hosts are not in one optical network"
    if network.paths.routes is not None and len(network.hosts) > 2:
        return "its network has routed wavelengths"
    channels = [_channel(host) for host in job.hosts]
    if len(set(channels)) < len(channels) or not set(channels) <= set(
        map(str, network.channels)
    ):
        return "its transceivers lack a channel each that all others can send"
    if not all(host.server.management for host in job.hosts):
        return "some of its servers have no agent"
    return ""


def _channel(host: Host) -> str:
    return str(host.nic.transceiver.channel) if host.nic.transceiver else ""


def _address(host: Host) -> str:
    # Beside its agent's Unix socket, or at UDP ports from its agent's on.
    management = host.server.management or ""
    nics = host.server.nics
    if management.startswith("unix:"):
        return f"{management}.{host.nic.name}"
    address, _, port = management.rpartition(":")
    return f"{address}:{int(port) + nics.index(host.nic)}"


class BoundsService:
    """Sends bounds of jobs to agents, if nodes agree on paths by themselves. A new controller takes
    nothing from jobs that it has not taken over yet."""

    def __init__(
        self,
        lab: Lab,
        fleet: Fleet,
        jobs: JobTable,
        paths: PathService,
    ) -> None:
        self._lab = lab
        self._fleet = fleet
        self._jobs = jobs
        self._paths = paths
        self._shares = PathShares()
        self._said: dict[str, str] = {}

    async def run(self) -> None:
        """Send agents new orders."""
        while True:
            await self._paths.follow_light()
            if self._paths.knows_light:
                await self._tell()
            await asyncio.sleep(_PERIOD_S)

    def nodes(self) -> list[PathHostShape]:
        """Each host with bounds, by its agent's last status."""
        said = [
            (f"{server}.{status.nic}", status)
            for server, nics in self._fleet.path_nodes().items()
            for status in nics.values()
        ]
        names = {host.endpoint: host.name for host in self._lab.hosts}
        found = [(names[Endpoint.parse(end)], status) for end, status in said]
        hosts = {(s.epoch, s.number): host for host, s in found}
        return [
            PathHostShape(
                host=host,
                job=status.job,
                epoch=status.epoch,
                state=status.state,
                destination=None
                if status.destination is None
                else hosts.get((status.epoch, status.destination)),
                channel=status.channel,
            )
            for host, status in found
        ]

    async def _tell(self) -> None:
        networks = self._paths.book.networks
        jobs = [
            PathJob(
                job.id,
                [*map(self._lab.host, job.hosts)],
                job.spec.gradient_bytes,
            )
            for job in self._jobs.live()
            if job.state in (JobState.RUNNING, JobState.PAUSED)
            and job.spec.trainer == "synthetic"
            and len(job.hosts) > 1
        ]
        for job in jobs:
            if why := why_no_paths(job, networks):
                self._say_once(f"job {job.id} gets no bounds for paths", why)
        orders = self._shares.orders(
            jobs,
            networks,
            self._fleet.path_nodes(),
            time.time(),
        )
        await run_all(map(self._carry_out, orders))

    async def _carry_out(self, order: BoundsOrder) -> None:
        try:
            agent = self._fleet.agent_of(order.server)
            if order.bounds is None:
                await agent.withdraw_paths(order.nic, order.epoch)
            else:
                await agent.bind_paths(order.nic, order.bounds)
        except AgentCallError as error:  # It is sent again.
            self._say_once(
                f"sending {order.server} its bounds for paths", str(error)
            )

    def _say_once(self, of: str, words: str) -> None:
        if self._said.get(of) != words:
            if len(self._said) >= _MOST_SAID:
                self._said.clear()
            self._said[of] = words
            _log.warning("%s: %s", of, words)
