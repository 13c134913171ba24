"""One rank of a running job: its worker, asked through the agent that keeps it."""

import re
import time
from dataclasses import dataclass, field

from patchlight.controller.hosts.agent_client import AgentClient, AgentError, AgentSilent, NicDark
from patchlight.controller.hosts.heartbeats import Heartbeat, Presence
from patchlight.controller.jobs.worker_specs import JobFailed
from patchlight.testbed.lab.model import Host
from patchlight.testbed.wire.worker_api import Report, WorkerSpec, WorkerState, WorkerStatus

_LOST_RANK = re.compile(r"lost rank (\d+) ")


@dataclass(slots=True)
class Worker:
    """One rank of a running job and the agent that keeps it."""

    spec: WorkerSpec
    host: Host
    agent: AgentClient
    status: WorkerStatus
    reports_seen: int = 0
    last_iteration: int = -1
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    _begun_anew: int = 0

    @property
    def state(self) -> WorkerState:
        """The worker's state as its agent last told it."""
        return self.status.state

    @property
    def restarts(self) -> int:
        """How often it was started again, as its agent or its reports say."""
        return max(self._begun_anew, self.status.restarts)

    @property
    def has_failed(self) -> bool:
        """Whether it ended before its time."""
        return self.state in (WorkerState.FAILED, WorkerState.STOPPED)

    @property
    def lost_rank(self) -> int | None:
        """The rank that it failed for want of, if that is why, as the trainer words it."""
        found = _LOST_RANK.match(self.status.message)
        return int(found[1]) if found else None

    async def create(self) -> None:
        """Have the agent make it; ``JobFailed`` if it does not."""
        try:
            self.status = await self.agent.create_worker(self.spec)
        except AgentError as error:
            raise JobFailed(str(error), hosts=[self.host.name]) from error

    async def begin(self) -> None:
        """Have it train; ``JobFailed`` if its NIC cannot be used."""
        try:
            await self.agent.start(self.spec.id)
        except NicDark as error:
            raise JobFailed(str(error), hosts=[self.host.name]) from error

    async def refresh(self) -> None:
        """Ask the agent how the worker is; ``AgentSilent`` if it is lost.

        While the agent is silent for a shorter time, restarted maybe, that is not known.
        """
        asked_at = time.monotonic()
        try:
            self.status = await self.agent.worker(self.spec.id)
        except AgentSilent:
            self.heartbeat.missed(asked_at)
            if self.heartbeat.presence(time.monotonic()) is Presence.LOST:
                raise
        else:
            self.heartbeat.answered()

    @property
    def is_silent(self) -> bool:
        """Whether the agent did not say how it is when it was asked last."""
        return self.heartbeat.silent_since is not None

    async def give_back(self) -> None:
        """Have the agent end it; what it says of it then is the last that is heard of it."""
        status = await self.agent.delete(self.spec.id)
        if status.energy_j is not None:
            self.status = status

    @property
    def may_have_reports(self) -> bool:
        """Whether there can be reports that are not known, as its agent said when it was asked."""
        if self.is_silent:
            return False
        return self.state.is_final or self.status.iterations_done != self.last_iteration + 1

    async def new_reports(self) -> list[Report]:
        """What it reported since the last call, as far as its agent has read it.

        One that begins anew was started again.
        """
        answer = await self.agent.reports(self.spec.id, self.reports_seen)
        self.reports_seen = answer.next
        for report in answer.reports:
            self._begun_anew += report.index <= self.last_iteration
            self.last_iteration = report.index
        return answer.reports
