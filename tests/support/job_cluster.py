"""A scheduler over the ofc2022 lab: its OCS and agents are in memory, its policies real.

The agents' workers are what a test says that they are. No process, no network.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from patchlight.controller.changes.parts import CircuitParts, FlowHook
from patchlight.controller.changes.transaction import Transactions
from patchlight.controller.circuits.contract import DeviceUnreachable
from patchlight.controller.circuits.drivers.dry_run import DryRun
from patchlight.controller.hosts.agent_client import (
    AgentCallError,
    AgentClient,
    AgentSilent,
    Heartbeat,
    NicWithoutCarrier,
    NotOnServer,
)
from patchlight.controller.hosts.fleet import Fleet, HostFaults
from patchlight.controller.hosts.on_time import OnTimeClock
from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.jobs.ledger import JobLedger, JobOutputs
from patchlight.controller.jobs.rewiring import JobTraffic
from patchlight.controller.jobs.scheduler import DEFAULT_DISCIPLINE, Scheduler
from patchlight.controller.storage.store import Store
from patchlight.testbed.jobs import JobSpec, JobState
from patchlight.testbed.lab.model import CircuitSwitch, Host, Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.rules import Discipline, PolicyChoice
from patchlight.testbed.lab.wiring import Links, trace_links
from patchlight.testbed.labfile.reader import builtin_lab, read_lab
from patchlight.testbed.wire.agent_status import AgentStatus
from patchlight.testbed.wire.worker_api import (
    LogPart,
    Report,
    Reports,
    WorkerSpec,
    WorkerState,
    WorkerStatus,
)
from tests.support.waiting import PATIENCE_S


class FakeFleet(Fleet):
    """A fleet whose agents answer at once.

    A new worker is in ``first_state``; one that is told to pause does where ``pauses``, except
    for the first ``too_late`` times, and one that is told to end there does where ``stops``.
    ``held_before`` has the iteration that it was told last. ``refusals`` has, for a call such as
    ``"create"``, what the agents answer instead of doing it; ``found`` is what is wrong with hosts,
    and agents of servers in ``quiet`` do not say how their workers are. In ``bugs`` are calls, or
    ``"worker ID"``, that end in an error which nobody foresaw. NICs of workers in ``dark`` do not
    come back when their circuits have moved; every worker misses those at addresses in ``unheard``.
    Workers begin only while ``may_create`` is set, and end
    only while ``may_delete`` is; those that are told to end print ``last_words``. ``heard`` are the
    last samples of agents, by server.
    """

    def __init__(self, lab: Lab) -> None:
        super().__init__(lab.with_changes(servers=()))
        self.clients = {server.name: FakeAgent(server.name, self) for server in lab.servers}
        self.first_state = WorkerState.READY
        self.pauses, self.too_late, self.stops = True, 0, True
        self.held_before: dict[str, int] = {}
        self.refusals: dict[str, str] = {}
        self.bugs: set[str] = set()
        self.found = HostFaults()
        self.quiet: set[str] = set()
        self.heard: dict[str, AgentStatus] = {}
        self.dark: set[str] = set()
        self.unheard: set[str] = set()
        self.calls: list[tuple[str, str]] = []
        self.specs: dict[str, WorkerSpec] = {}
        self.workers: dict[str, WorkerStatus] = {}
        self.written: dict[str, list[Report]] = {}
        self.printed: dict[str, str] = {}
        self.last_words = ""
        self.energy_j: dict[str, float] = {}
        self.may_create, self.may_delete = asyncio.Event(), asyncio.Event()
        self.may_create.set()
        self.may_delete.set()

    def faults(self) -> HostFaults:
        return self.found

    def silent(self) -> frozenset[str]:
        return frozenset(self.quiet)

    def held_for(self, job_ids: Collection[str], hosts: Sequence[Host]) -> dict[str, str]:
        self._samples = {name: deque([status]) for name, status in self.heard.items()}
        return super().held_for(job_ids, hosts)

    def job_workers(self, job_id: str) -> list[str]:
        """The workers that a job has now, in the order of ranks."""
        return sorted(name for name in self.workers if name.startswith(f"{job_id}-"))

    def put(self, job_id: str, state: WorkerState, message: str = "") -> None:
        """All workers of the job are in this state now."""
        for name in self.job_workers(job_id):
            self.put_worker(name, state, message)

    def put_worker(
        self, name: str, state: WorkerState, message: str = "", **more: int | None
    ) -> None:
        """One worker is in this state now; a message is its last line, too."""
        change = {"state": state, "message": message, "last_lines": [message] if message else []}
        known = self.workers[name].model_dump()
        self.workers[name] = WorkerStatus.model_validate(known | change | more)

    def report(self, name: str, index: int, at: float = 0.0) -> None:
        """A worker has finished the iteration of this index then (Unix time)."""
        done = {"iterations_done": index + 1}
        self.workers[name] = self.workers[name].model_copy(update=done)
        self.written.setdefault(name, []).append(report_of(index, at))


def report_of(index: int, at: float) -> Report:
    """An iteration of this index that was finished then (Unix time)."""
    return Report(
        index=index, finished_at=at, compute_s=0.1, communication_s=0.1, sent_bytes=8, check="ok"
    )


class FakeAgent(AgentClient):
    """One server's agent."""

    def __init__(self, server: str, fleet: FakeFleet) -> None:
        self.server, self._fleet = server, fleet
        self.heartbeat = Heartbeat()
        self._clock = OnTimeClock()

    async def close(self) -> None:
        return None

    def _called(self, call: str, worker_id: str) -> None:
        self._fleet.calls.append((call, worker_id))
        self._fail_if_told(call)
        if call in self._fleet.refusals:
            raise AgentCallError(f"the agent of {self.server}: {self._fleet.refusals[call]}")

    async def create_worker(self, spec: WorkerSpec) -> WorkerStatus:
        self._called("create", spec.id)
        await self._fleet.may_create.wait()
        self._fleet.specs[spec.id] = spec
        status = WorkerStatus(id=spec.id, state=self._fleet.first_state)
        self._fleet.workers[spec.id] = status
        return status

    def _fail_if_told(self, call: str) -> None:
        if call in self._fleet.bugs:
            raise ZeroDivisionError(call)

    async def worker(self, worker_id: str) -> WorkerStatus:
        self._fail_if_told(f"worker {worker_id}")
        if self.server in self._fleet.quiet:
            self.heartbeat.missed(time.monotonic())
            raise AgentSilent(f"the agent of {self.server} did not answer")
        self.heartbeat.answered(time.monotonic())
        return self._fleet.workers[worker_id]

    async def reports(self, worker_id: str, after: int) -> Reports:
        reports = self._fleet.written.get(worker_id, [])[after:]
        return Reports(reports=reports, next=after + len(reports))

    async def log(self, worker_id: str, after: int, limit: int) -> LogPart:
        self._called("log", worker_id)
        if worker_id not in self._fleet.workers:
            raise NotOnServer(f"server {self.server} has no worker {worker_id!r}")
        printed = self._fleet.printed.get(worker_id, "")
        offset = min(after, len(printed))
        text = printed[offset : offset + limit]
        return LogPart(offset=offset, text=text, next=offset + len(text))

    async def start(self, worker_id: str) -> None:
        self._called("start", worker_id)
        # A job is running before its workers are told to start: a test may have ended them.
        if not self._fleet.workers[worker_id].state.is_final:
            self._fleet.put_worker(worker_id, WorkerState.RUNNING)

    async def hold(self, worker_id: str, iteration: int) -> None:
        self._called("hold", worker_id)
        self._fleet.held_before[worker_id] = iteration
        if self._fleet.too_late:
            self._fleet.too_late -= 1
            raise AgentCallError(f"iteration {iteration} is past")
        if self._fleet.pauses:
            self._fleet.put_worker(worker_id, WorkerState.HELD)

    async def release(self, worker_id: str) -> None:
        self._called("release", worker_id)
        if worker_id in self._fleet.dark:
            raise NicWithoutCarrier(
                f"worker {worker_id} cannot continue: after 2 s nic0 has no carrier"
            )
        if self._fleet.workers[worker_id].state is WorkerState.HELD:
            self._fleet.put_worker(worker_id, WorkerState.RUNNING)

    async def announce(self, worker_id: str, token: str, wait_s: float) -> list[str]:
        self._called("announce", worker_id)
        if self._fleet.unheard:
            await asyncio.sleep(wait_s)
        return sorted(self._fleet.unheard)

    async def stop_at(self, worker_id: str, iteration: int) -> None:
        self._called("stop-at", worker_id)
        if self._fleet.stops:
            self._fleet.put_worker(worker_id, WorkerState.STOPPED)

    async def end(self, worker_id: str, grace_s: float) -> None:
        self._called("end", worker_id)
        if worker_id not in self._fleet.workers:
            raise NotOnServer(f"server {self.server} has no worker {worker_id!r}")
        printed = self._fleet.printed
        printed[worker_id] = printed.get(worker_id, "") + self._fleet.last_words

    async def delete(self, worker_id: str, grace_s: float) -> WorkerStatus:
        self._called("delete", worker_id)
        await self._fleet.may_delete.wait()
        gone = WorkerStatus(id=worker_id, state=WorkerState.STOPPED)
        known = self._fleet.workers.pop(worker_id, gone)
        return known.model_copy(update={"energy_j": self._fleet.energy_j.get(worker_id)})


LAB = read_lab(builtin_lab("ofc2022"))
COMPUTE = {"Tesla M40": 0.1, "Titan V": 0.1}


class Ocs(DryRun):
    """The OCS in memory; ``away``: it does not answer; ``bug``: its driver has one.

    While ``readable`` is not set, readers wait, so that no job is placed; ``is_read``: one does.
    ``reads`` counts those that do not wait any more.
    """

    away = bug = is_read = False
    reads = 0

    def __init__(self, switch: CircuitSwitch) -> None:
        super().__init__(switch)
        self.readable = asyncio.Event()
        self.readable.set()

    async def read_map(self) -> PortMap:
        self.is_read = True
        await self.readable.wait()
        self.is_read = False
        self.reads += 1
        if self.bug:
            raise ZeroDivisionError("a driver's bug")
        if self.away:
            raise DeviceUnreachable("ocs1 does not answer")
        return await super().read_map()


class Flows(FlowHook):
    """Packet switches in memory; a change waits while ``open`` is not set."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()

    async def follow(self, links: Links) -> list[str]:
        await self.open.wait()
        return []


class Cluster:
    """A scheduler at work, and all that it works with.

    ``before`` is one whose controller was killed: its servers, light and store are taken over.
    """

    def __init__(
        self,
        policies: PolicyChoice,
        before: "Cluster | None" = None,
        discipline: Discipline = DEFAULT_DISCIPLINE,
        outputs: JobOutputs | None = None,
        lab: Lab = LAB,
    ) -> None:
        self.lab = lab
        self.ocs: Ocs = before.ocs if before else Ocs(self.lab.circuit_switch("ocs1"))
        self.fleet: FakeFleet = before.fleet if before else FakeFleet(self.lab)
        self.store: Store = before.store if before else Store(":memory:")
        self.flows = Flows()
        self.table = JobTable(JobLedger(self.store), outputs)
        self.traffic = JobTraffic(self.table, lambda: self.scheduler.reach(), patience_s=0.2)
        self.circuits: CircuitParts = CircuitParts(
            self.lab, {"ocs1": self.ocs}, self.store, self.flows, self.traffic
        )
        self.transactions = Transactions(self.circuits)
        self.scheduler = Scheduler(
            self.lab, self.fleet, self.store, self.table, self.transactions, policies, discipline
        )

    def submit(self, *specs: JobSpec, topology: Any = "keep") -> list[str]:
        """Queue one gang; its jobs' ids."""
        return [status.id for status in self.scheduler.submit(specs, topology)]

    async def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, self.table.page()
            await asyncio.sleep(0.01)

    async def until_state(self, job_id: str, state: JobState) -> None:
        await self.until(lambda: self.table[job_id].state is state)

    def report_all(self, job_id: str, index: int, at: float) -> None:
        """All workers of a job have finished the iteration of this index then (Unix time)."""
        for name in self.fleet.job_workers(job_id):
            self.fleet.report(name, index, at)

    def faults(self) -> list[str]:
        """What policies did wrong."""
        events = self.store.events()
        return [event["message"] for event in events if event["kind"] == "policy-fault"]

    async def switches_of(self, hosts: Sequence[str]) -> set[str | None]:
        """The packet switches that circuits join these hosts to."""
        links = trace_links(self.lab, {"ocs1": await self.ocs.read_map()})
        return {links.switch_of(self.lab, self.lab.host(name).endpoint) for name in hosts}


@contextlib.asynccontextmanager
async def at_work(
    policies: PolicyChoice,
    before: Cluster | None = None,
    discipline: Discipline = DEFAULT_DISCIPLINE,
    outputs: JobOutputs | None = None,
    lab: Lab = LAB,
) -> AsyncIterator[Cluster]:
    """A controller's scheduler until the block ends, as it would by a kill: workers go on."""
    cluster = Cluster(policies, before, discipline, outputs, lab)
    tasks = [asyncio.create_task(cluster.scheduler.run())]
    tasks.append(asyncio.create_task(cluster.traffic.watch()))
    tasks.append(asyncio.create_task(cluster.scheduler.rewiring.run()))
    try:
        yield cluster
    finally:
        cluster.flows.open.set()
        cluster.ocs.readable.set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await cluster.scheduler.close()
        await cluster.transactions.close()


def job(name: str, *hosts: str, workers: int = 0, **more: Any) -> JobSpec:
    return replace(JobSpec(name, 5, 4_000_000, COMPUTE, workers=workers, hosts=hosts), **more)


async def submit_running(cluster: Cluster, *specs: JobSpec, topology: str = "keep") -> list[str]:
    job_ids = cluster.submit(*specs, topology=topology)
    for job_id in job_ids:
        await cluster.until_state(job_id, JobState.RUNNING)
    return job_ids


async def finish(cluster: Cluster, job_id: str, state: WorkerState = WorkerState.DONE) -> None:
    """All workers of a job end so, and the job with them."""
    cluster.fleet.put(job_id, state)
    await cluster.until(lambda: cluster.table[job_id].state.is_final)
