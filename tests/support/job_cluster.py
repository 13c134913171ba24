"""A scheduler over the ofc2022 lab: its OCS and its agents are in memory, its policies real."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from patchlight.controller.changes.parts import CircuitParts
from patchlight.controller.changes.transaction import Transactions
from patchlight.controller.circuits.contract import DeviceUnreachable
from patchlight.controller.circuits.drivers.dry_run import DryRun
from patchlight.controller.jobs.job_table import JobTable, JobTraffic
from patchlight.controller.jobs.policy_set import PolicyChoice
from patchlight.controller.jobs.scheduler import Scheduler
from patchlight.controller.store import Store
from patchlight.testbed.jobs import JobSpec, JobState
from patchlight.testbed.labfile.reader import builtin_lab, read_lab
from patchlight.testbed.portmap import PortMap
from patchlight.testbed.wiring import Links, trace_links
from tests.support.fake_agents import FakeFleet

LAB = read_lab(builtin_lab("ofc2022"))
COMPUTE = {"Tesla M40": 0.1, "Titan V": 0.1}


class Ocs(DryRun):
    """The OCS in memory; ``away``: it does not answer."""

    away = False

    async def read_map(self) -> PortMap:
        if self.away:
            raise DeviceUnreachable("ocs1 does not answer")
        return await super().read_map()


class Flows:
    """Packet switches in memory; a change waits while ``open`` is not set."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()

    async def follow(self, links: Links) -> list[str]:
        await self.open.wait()
        return []


class Cluster:
    """A scheduler at work, and all that it works with."""

    def __init__(self, policies: PolicyChoice) -> None:
        self.lab = LAB
        self.ocs = Ocs(self.lab.circuit_switch("ocs1"))
        self.fleet, self.flows, self.store = FakeFleet(self.lab), Flows(), Store(":memory:")
        self.table = JobTable(self.store)
        self.traffic = JobTraffic(self.table, patience_s=0.2)
        self.circuits = CircuitParts(
            self.lab, {"ocs1": self.ocs}, self.store, self.flows, self.traffic
        )
        self.transactions = Transactions(self.circuits)
        self.scheduler = Scheduler(
            self.lab, self.fleet, self.store, self.table, self.transactions, policies
        )

    def submit(self, *specs: JobSpec, topology: Any = "keep") -> list[str]:
        """Queue one gang; its jobs' ids."""
        return [status.id for status in self.scheduler.submit(specs, topology)]

    async def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < deadline, self.scheduler.jobs()
            await asyncio.sleep(0.01)

    async def until_state(self, job_id: str, state: JobState) -> None:
        await self.until(lambda: self.table[job_id].state is state)

    def faults(self) -> list[str]:
        """What policies did wrong."""
        events = self.store.events()
        return [event["message"] for event in events if event["kind"] == "policy-fault"]

    async def switches_of(self, hosts: Sequence[str]) -> set[str | None]:
        """The packet switches that circuits join these hosts to."""
        links = trace_links(self.lab, {"ocs1": await self.ocs.read_map()})
        return {links.switch_of(self.lab, self.lab.host(name).endpoint) for name in hosts}


@contextlib.asynccontextmanager
async def at_work(policies: PolicyChoice) -> AsyncIterator[Cluster]:
    cluster = Cluster(policies)
    task = asyncio.create_task(cluster.scheduler.run())
    try:
        yield cluster
    finally:
        cluster.flows.open.set()
        await cluster.scheduler.close()
        await cluster.transactions.close()
        await cluster.fleet.close()
        task.cancel()
        cluster.store.close()
