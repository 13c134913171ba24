"""Runs a job on the servers: workers are prepared, started, watched, paused and deleted."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from patchlight.controller.hosts import agent_client
from patchlight.controller.hosts.fleet import Fleet
from patchlight.controller.jobs.pacing import IterationCounter
from patchlight.controller.jobs.specs import JobFailed, worker_specs
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.jobs import MOST_ITERATIONS, JobSpec
from patchlight.testbed.lab.model import Host, Lab
from patchlight.testbed.tasks import run_all
from patchlight.testbed.wire.worker_api import (
    SlotRequest,
    WorkdirPart,
    WorkerSpec,
    WorkerState,
    WorkerStatus,
)

_PREPARE_DEADLINE_S = 90.0
_MOST_CALLS_AT_END = 10
_POLL_S = 0.2
# The maximum share of time for polling workers, which costs CPU time here and on servers.
_MOST_OF_TIME = 1 / 3
_LAST_HOLD_S = 30.0
_MOST_PAIRS = 3
_MANY_REPORTS = 500
# A lost neighbour's own end may be reported this much later.
_BLAME_S = 5.0


@dataclass(slots=True)
class RankWorker:
    """One rank of a running job, and its agent."""

    spec: WorkerSpec
    host: Host
    agent: agent_client.AgentClient
    status: WorkerStatus
    reports_seen: int = 0
    last_iteration: int = -1
    _begun_anew: int = 0
    _had_many: bool = False

    @property
    def state(self) -> WorkerState:
        """The worker's state in its agent's last report."""
        return self.status.state

    @property
    def progress(self) -> str:
        """How far it is, as text, with what delays it or its machine."""
        overload = self.agent.heartbeat.overload
        keeps = (
            self.status.message,
            overload and f"its agent answers {overload}",
        )
        return "; ".join([self.state, *filter(None, keeps)])

    @property
    def restarts(self) -> int:
        """How often it was restarted, by its agent's count or its reports."""
        return max(self._begun_anew, self.status.restarts)

    @property
    def has_failed(self) -> bool:
        """Whether it ended prematurely."""
        return self.state in (WorkerState.FAILED, WorkerState.STOPPED)

    async def create(self) -> None:
        """Create the worker; ``JobFailed`` if its agent does not."""
        try:
            self.status = await self.agent.create_worker(self.spec)
        except agent_client.AgentCallError as error:
            raise JobFailed(str(error), hosts=[self.host.name]) from error

    async def ship(self, archive: bytes) -> None:
        """Send it the job's working directory; ``JobFailed`` if its agent does not take it."""
        offset = 0
        try:
            while offset < len(archive):
                part = WorkdirPart.of(archive, offset)
                offset = await self.agent.ship(self.spec.id, part)
        except agent_client.AgentCallError as error:
            raise JobFailed(str(error), hosts=[self.host.name]) from error

    async def begin(self) -> None:
        """Let it train; ``JobFailed`` if its NIC is not usable."""
        try:
            await self.agent.start(self.spec.id)
        except agent_client.NicWithoutCarrier as error:
            raise JobFailed(str(error), hosts=[self.host.name]) from error

    async def refresh(self) -> None:
        """Read the worker's state; ``AgentSilent`` if the agent is lost."""
        try:
            self.status = await self.agent.worker(self.spec.id)
        except agent_client.AgentSilent:
            if self.agent.presence is agent_client.Presence.LOST:
                raise

    @property
    def is_silent(self) -> bool:
        """Whether the agent did not answer the last call."""
        return self.agent.heartbeat.silent_since is not None

    async def give_back(self) -> None:
        """End the worker, and keep its last status for the energy used."""
        status = await self.agent.delete(self.spec.id, self.spec.stop_grace_s)
        if status.energy_j is not None:
            self.status = status

    @property
    def may_have_reports(self) -> bool:
        """Whether its agent had unread reports at the last call."""
        if self.is_silent:
            return False
        # An agent reads and counts further reports only when they are requested.
        unread = (
            self._had_many
            or self.status.iterations_done != self.last_iteration + 1
        )
        return self.state.is_final or unread

    async def new_reports(self) -> list[dict[str, Any]]:
        """Its reports since the last call, numbered; repeated iterations mean a restart."""
        seen = self.reports_seen
        answer = await self.agent.reports(self.spec.id, seen)
        self.reports_seen = answer.next
        self._had_many = len(answer.reports) >= _MANY_REPORTS
        for report in answer.reports:
            self._begun_anew += report.index <= self.last_iteration
            self.last_iteration = report.index
        return [
            {**report.model_dump(), "rank": self.spec.rank, "ordinal": ordinal}
            for ordinal, report in enumerate(answer.reports, seen)
        ]


@dataclass(eq=False)
class RunningJob:
    """One ``attempt`` of a job while it has workers, from ``first_iteration`` on; ``on_reports``
    are called with their reports, which are read five times per ``poll_s``. ``next_hosts``: where
    it continues, if set."""

    id: str
    spec: JobSpec
    hosts: tuple[Host, ...]
    on_reports: Callable[["RunningJob", list[dict[str, Any]]], Awaitable[None]]
    attempt: int = 0
    first_iteration: int = 0
    user: str = ""
    poll_s: float = 1.0
    workers: list[RankWorker] = field(default_factory=list)
    dark_since: float = 0.0
    next_hosts: tuple[Host, ...] = ()
    changes_because: str = ""
    counter: IterationCounter = field(default_factory=IterationCounter)
    _given_up: JobFailed | None = None

    def give_up(self, why: str, hosts: Sequence[str] = ()) -> None:
        """Make the job fail for this reason, because of these hosts, at its next poll."""
        self._given_up = JobFailed(why, hosts=hosts)

    def go_on_elsewhere(self, hosts: tuple[Host, ...], why: str) -> None:
        """End ``watch``, so that it continues on these hosts."""
        self.next_hosts = hosts
        self.changes_because = why

    def stay(self) -> None:
        """Cancel ``go_on_elsewhere``."""
        self.next_hosts = ()
        self.changes_because = ""

    @property
    def all_hosts(self) -> tuple[Host, ...]:
        """Its hosts, including those reserved for it."""
        return tuple(dict.fromkeys((*self.hosts, *self.next_hosts)))

    @property
    def restarts(self) -> int:
        """How often its workers were restarted."""
        return sum(worker.restarts for worker in self.workers)

    @property
    def iterations_done(self) -> int:
        """How many iterations all ranks have finished."""
        done = min(
            (worker.last_iteration + 1 for worker in self.workers), default=0
        )
        return max(self.first_iteration, min(done, most_iterations(self.spec)))

    @property
    def silent_servers(self) -> list[str]:
        """The servers whose agents do not answer now."""
        return sorted(
            {w.host.server.name for w in self.workers if w.is_silent}
        )

    def assign(
        self,
        lab: Lab,
        fleet: Fleet,
        reports: Mapping[int, int] | None = None,
    ) -> None:
        """Set its present or future workers; ``reports`` are the known ones of each rank."""
        seen = reports or {}
        specs = worker_specs(
            self.id,
            self.spec,
            self.hosts,
            lab,
            self.attempt,
            self.first_iteration,
            fleet.macs.of,
            self.user,
        )
        self.workers = [
            RankWorker(
                spec,
                host,
                fleet.agent_of(host.server.name),
                WorkerStatus(
                    id=spec.id,
                    state=WorkerState.STARTING,
                ),
                reports_seen=seen.get(spec.rank, 0),
                last_iteration=self.first_iteration
                + seen.get(spec.rank, 0)
                - 1,
            )
            for spec, host in zip(specs, self.hosts, strict=True)
        ]

    def begin_anew(self, attempt: int, first_iteration: int) -> None:
        """Switch to its next hosts, where its workers must be created."""
        self.hosts = self.next_hosts
        self.attempt = attempt
        self.first_iteration = first_iteration
        self.workers = []
        self.stay()

    async def prepare(self) -> None:
        """Create the workers, and wait until the ring is closed."""
        await run_all(worker.create() for worker in self.workers)
        await self._until(WorkerState.READY, _PREPARE_DEADLINE_S)

    async def ship(self, archive: bytes) -> None:
        """Send all workers the job's working directory."""
        await run_all(worker.ship(archive) for worker in self.workers)

    async def _until(self, state: WorkerState, deadline_s: float) -> None:
        since = time.monotonic()
        limit_s = deadline_s
        while True:
            began = time.monotonic()
            await self.refresh()
            waiting = [w for w in self.workers if w.state != state]
            if not waiting:
                return
            # Workers on a busy machine take longer, and the others wait for them.
            slowness = max(
                worker.agent.heartbeat.slowness for worker in self.workers
            )
            limit_s = max(limit_s, deadline_s * slowness)
            if time.monotonic() - since > limit_s:
                names = ", ".join(
                    f"{w.host.name} ({w.progress})" for w in waiting
                )
                raise JobFailed(
                    f"after {limit_s:.0f} s not all workers are {state}: {names}",
                    [line for w in waiting for line in w.status.last_lines],
                    [w.host.name for w in waiting],
                )
            await _rest_since(began, _POLL_S / 2)

    async def start(self) -> None:
        """Let every worker train."""
        await run_all(worker.begin() for worker in self.workers)

    async def refresh(self) -> None:
        """Read every worker's state; ``JobFailed`` when one has failed."""
        if self._given_up is not None:
            raise self._given_up
        try:
            await run_all(worker.refresh() for worker in self.workers)
        except agent_client.AgentSilent as error:
            lost = [w.host.name for w in self.workers if w.is_silent]
            raise JobFailed(str(error), hosts=lost) from error
        if any(worker.has_failed for worker in self.workers):
            raise await self._failure()

    async def _failure(self) -> JobFailed:
        """The failure of the worker that failed first, not of those that lost it in the ring."""
        deadline = time.monotonic() + _BLAME_S
        while True:
            failed = [worker for worker in self.workers if worker.has_failed]
            by_itself = [
                worker for worker in failed if worker.status.lost_rank is None
            ]
            all_told = all(worker.state.is_final for worker in self.workers)
            if by_itself or all_told or time.monotonic() > deadline:
                break
            await asyncio.sleep(_POLL_S / 2)
            with contextlib.suppress(agent_client.AgentSilent):
                await run_all(worker.refresh() for worker in self.workers)
        first = (by_itself or failed)[0]
        why = first.status.message or f"exit code {first.status.exit_code}"
        worker = f"worker {first.spec.rank} on {first.host.name}"
        words = f"{worker} {first.state}: {why}"
        if why.startswith("the worker ended"):
            words = f"{worker} {why.removeprefix('the worker ')}"
        lost = first.status.lost_rank
        blamed = (
            first
            if lost is None or lost >= len(self.workers)
            else self.workers[lost]
        )
        return JobFailed(words, first.status.last_lines, [blamed.host.name])

    async def watch(self) -> bool:
        """Collect reports until all workers are done; ``False`` if it continues elsewhere."""
        while not self.next_hosts:
            began = time.monotonic()
            await self.refresh()
            # An earlier controller may not have started all of them; starting is idempotent.
            idle = [
                worker
                for worker in self.workers
                if worker.state is WorkerState.READY
            ]
            await run_all(worker.begin() for worker in idle)
            done = all(
                worker.state is WorkerState.DONE for worker in self.workers
            )
            await self._collect()
            if done:
                return True
            await _rest_since(began, _POLL_S * self.poll_s)
        return False

    async def _collect(self) -> None:
        asked = [worker for worker in self.workers if worker.may_have_reports]
        for _ in range(_MOST_CALLS_AT_END):
            told: list[dict[str, Any]] = []

            async def ask(
                worker: RankWorker, told: list[dict[str, Any]] = told
            ) -> None:
                with contextlib.suppress(agent_client.AgentSilent):
                    new = await worker.new_reports()
                    told.extend(
                        {**report, "attempt": self.attempt} for report in new
                    )

            try:
                await run_all(ask(worker) for worker in asked)
            finally:
                if told:
                    await self.on_reports(self, told)
            # For a worker that has ended, these may be the last calls.
            asked = (
                [worker for worker in asked if worker.state.is_final]
                if told
                else []
            )
            if not asked:
                return

    async def hold(self, deadline_s: float) -> bool:
        """Pause all ranks before the same all-reduce, or the ring would break; returns whether all
        paused in time. If a rank has passed the chosen iteration, a later one is tried."""
        deadline = time.monotonic() + deadline_s
        while time.monotonic() < deadline:
            await run_all(worker.refresh() for worker in self.workers)
            alive = [
                worker for worker in self.workers if not worker.state.is_final
            ]
            if all(worker.state is WorkerState.HELD for worker in alive):
                return True  # a later iteration would let them pass this one
            target = 1 + max(
                (w.status.iterations_done for w in alive), default=0
            )
            answers = await asyncio.gather(
                *(
                    worker.agent.hold(worker.spec.id, target)
                    for worker in alive
                ),
                return_exceptions=True,
            )
            if not any(
                isinstance(answer, BaseException) for answer in answers
            ):
                break
            await self.release()
            await asyncio.sleep(_POLL_S / 4)
        while time.monotonic() < deadline:
            await run_all(worker.refresh() for worker in self.workers)
            if all(
                w.state is WorkerState.HELD or w.state.is_final
                for w in self.workers
            ):
                return True
            await asyncio.sleep(_POLL_S / 8)
        return False

    async def hold_for_good(self) -> bool:
        """Pause it at one iteration of all ranks; returns whether all are held and reported."""
        if not any(
            w.state in (WorkerState.RUNNING, WorkerState.HELD)
            for w in self.workers
        ):
            return False  # workers that were not started never pause
        with contextlib.suppress(PatchlightError):
            await self.hold(_LAST_HOLD_S)
            await self._collect()
            return all(
                worker.state is WorkerState.HELD for worker in self.workers
            )
        return False

    async def end_held(self) -> None:
        """End held workers where they are, if they answer; they may save first."""
        at = max(
            (worker.status.iterations_done for worker in self.workers),
            default=0,
        )
        deadline = time.monotonic() + _LAST_HOLD_S
        with contextlib.suppress(PatchlightError):
            await run_all(
                worker.agent.stop_at(worker.spec.id, at)
                for worker in self.workers
            )
            while not all(worker.state.is_final for worker in self.workers):
                if time.monotonic() > deadline:
                    return
                await asyncio.sleep(_POLL_S / 8)
                await run_all(worker.refresh() for worker in self.workers)

    async def release(self) -> None:
        """Resume held workers. The job fails if a worker's NIC has not come back."""
        answers = await asyncio.gather(
            *(worker.agent.release(worker.spec.id) for worker in self.workers),
            return_exceptions=True,
        )
        dark = {
            worker.host.name: answer.message
            for worker, answer in zip(self.workers, answers, strict=True)
            if isinstance(answer, agent_client.NicWithoutCarrier)
        }
        if dark:
            self.give_up("; ".join(dark.values()), [*dark])

    async def send_in(self, slot: SlotRequest) -> None:
        """Let its workers begin all-reduces only then; agents that cannot are left out."""
        going = (
            w for w in self.workers if not (w.is_silent or w.state.is_final)
        )
        calls = (worker.agent.slot(worker.spec.id, slot) for worker in going)
        await asyncio.gather(*calls, return_exceptions=True)

    async def announce(self, wait_s: float) -> str:
        """Announce its NICs, and let its workers greet each other for at most ``wait_s``; which
        does not hear which, as text, if any. ``AgentCallError`` if an agent cannot do that."""
        token = secrets.token_hex(8)
        name_of = {str(h.nic.address): h.name for h in self.hosts}
        answers = await asyncio.gather(
            *(
                worker.agent.announce(worker.spec.id, token, wait_s)
                for worker in self.workers
            ),
            return_exceptions=True,
        )
        pairs = []
        for worker, answer in zip(self.workers, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            pairs += [
                (worker.host.name, name_of.get(address, address))
                for address in answer
            ]
        told = [
            f"{one} receives nothing from {other}"
            for one, other in pairs[:_MOST_PAIRS]
        ]
        left = len(pairs) - len(told)
        return "; ".join(
            [*told, *([f"and {left} more pairs"] if left else [])]
        )

    def energy_j(self) -> dict[str, float]:
        """Joules used by its workers' GPUs, by the GPUs' full names, if measured."""
        return {
            f"{worker.host.server.name}.{worker.spec.gpu}": worker.status.energy_j
            for worker in self.workers
            if worker.status.energy_j is not None
        }

    async def end(self) -> None:
        """End the running workers; ``give_back`` retries and reports failures."""
        running = [
            w for w in self.workers if not (w.state.is_final or w.is_silent)
        ]
        ends = (w.agent.end(w.spec.id, w.spec.stop_grace_s) for w in running)
        await asyncio.gather(*ends, return_exceptions=True)

    async def give_back(self) -> list[str]:
        """Stop its workers; returns the messages of failures."""
        answers = await asyncio.gather(
            *(worker.give_back() for worker in self.workers),
            return_exceptions=True,
        )
        return [
            str(answer)
            for answer in answers
            if isinstance(answer, agent_client.AgentCallError)
        ]


def most_iterations(spec: JobSpec) -> int:
    """The maximum iterations of a job, whatever its program reports."""
    return spec.iterations or MOST_ITERATIONS


async def _rest_since(began: float, least_s: float) -> None:
    took_s = time.monotonic() - began
    await asyncio.sleep(max(least_s, took_s * (1 / _MOST_OF_TIME - 1)))
