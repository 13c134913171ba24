"""Bounds for paths on a running lab: agents are told them, and that they are over."""

import asyncio
import logging
import time
from typing import Any

from patchlight.controller.hosts.agent_client import AgentError
from patchlight.controller.hosts.fleet import Fleet
from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.paths.bounds import Order, PathJob, PathShares, why_no_paths
from patchlight.controller.paths.service import PathService
from patchlight.testbed.jobs import JobState, JobStatus
from patchlight.testbed.lab.model import Endpoint, Lab

_PERIOD_S = 0.5
_MOST_SAID = 1000
_log = logging.getLogger(__name__)


class BoundsService:
    """Keeps the agents' nodes in step with the jobs that run, where nodes give the lab's paths.

    Jobs are those on record, so that a controller that has just begun takes nothing from those
    that it has not taken over yet.
    """

    def __init__(self, lab: Lab, fleet: Fleet, jobs: JobTable, paths: PathService) -> None:
        self._lab, self._fleet, self._jobs, self._paths = lab, fleet, jobs, paths
        self._shares = PathShares()
        self._said: dict[str, str] = {}

    async def run(self) -> None:
        """Tell agents what is new, for as long as this runs."""
        while True:
            await self._paths.follow_light()
            if self._paths.knows_light:
                await self._tell()
            await asyncio.sleep(_PERIOD_S)

    def nodes(self) -> list[dict[str, Any]]:
        """Each host that has bounds, as its agent said last."""
        said = [
            (f"{server}.{status.nic}", status)
            for server, nics in self._fleet.path_nodes().items()
            for status in nics.values()
        ]
        names = {host.endpoint: host.name for host in self._lab.hosts}
        found = [(names[Endpoint.parse(end)], status) for end, status in said]
        hosts = {(s.epoch, s.number): host for host, s in found}
        return [
            {
                "host": host,
                **status.model_dump(include={"job", "epoch", "state", "channel"}),
                "destination": None
                if status.destination is None
                else hosts.get((status.epoch, status.destination)),
            }
            for host, status in found
        ]

    async def _tell(self) -> None:
        networks, jobs = self._paths.book.networks, list(map(self._path_job, self._running()))
        for job in jobs:
            if why := why_no_paths(job, networks):
                self._say_once(f"job {job.id} gets no bounds for paths", why)
        orders = self._shares.orders(jobs, networks, self._fleet.path_nodes(), time.time())
        await asyncio.gather(*map(self._carry_out, orders))

    async def _carry_out(self, order: Order) -> None:
        try:
            agent = self._fleet.agent_of(order.server)
            if order.bounds is None:
                await agent.withdraw_paths(order.nic, order.epoch)
            else:
                await agent.bind_paths(order.nic, order.bounds)
        except AgentError as error:  # It is told again.
            self._say_once(f"telling {order.server} of its bounds for paths", str(error))

    def _say_once(self, of: str, words: str) -> None:
        """Log what is so again and again, once."""
        if self._said.get(of) != words:
            if len(self._said) >= _MOST_SAID:
                self._said.clear()
            self._said[of] = words
            _log.warning("%s: %s", of, words)

    def _running(self) -> list[JobStatus]:
        return [
            job
            for job in self._jobs.live()
            if job.state in (JobState.RUNNING, JobState.PAUSED)
            and job.spec.trainer == "synthetic"
            and len(job.hosts) > 1
        ]

    def _path_job(self, status: JobStatus) -> PathJob:
        hosts = [self._lab.host(name) for name in status.hosts]
        return PathJob(status.id, hosts, status.spec.gradient_bytes)
