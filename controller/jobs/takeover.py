"""What a controller takes over from the one before, and from whoever left workers behind."""

import contextlib
import logging
import time

from patchlight.controller.hosts.agent_client import AgentClient, AgentError
from patchlight.controller.hosts.fleet import Fleet
from patchlight.controller.jobs.gangs import Gang, Gangs, gangs_of
from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.jobs.worker_specs import worker_id
from patchlight.controller.storage.store import Store
from patchlight.testbed.jobs import JobState
from patchlight.testbed.wire.agent_status import AgentStatus
from patchlight.testbed.wire.worker_api import WorkerStatus

_log = logging.getLogger(__name__)


class Takeover:
    """Makes a new controller's jobs true to the servers, and the servers true to its jobs."""

    def __init__(self, fleet: Fleet, store: Store, table: JobTable, gangs: Gangs) -> None:
        self._fleet, self._store, self._table, self._gangs = fleet, store, table, gangs
        self.done = False

    async def run(self) -> list[Gang]:
        """Follow the jobs that ran; the gangs that are queued.

        Jobs that were just being started are queued again: none of their workers had begun.
        """
        queued: list[Gang] = []
        for gang in gangs_of(self._table.live()):
            begun = [s for s in gang if s.state in (JobState.RUNNING, JobState.PAUSED)]
            for status in begun:
                if status.id not in self._table.running:
                    await self._gangs.take_over(Gang((status.id,), status.topology))
            rest = [status for status in gang if status not in begun]
            for status in rest:
                if not status.state.is_waiting:
                    await self._gangs.undo_start(status)
            if rest:
                queued.append(Gang(tuple(status.id for status in rest), rest[0].topology))
        self.done = True
        return queued

    async def sweep(self, agent: AgentStatus) -> None:
        """End the workers of an agent that are of no attempt which runs."""
        ours = {w.spec.id for job in self._table.running.values() for w in job.workers}
        for worker in agent.workers:
            if worker.id in ours:
                continue
            client = self._fleet.agent_of(agent.server)
            try:
                with contextlib.suppress(AgentError, OSError):
                    await self._keep_output(client, worker)
                await client.delete(worker.id)
            except AgentError as error:
                _log.warning("worker %s, which is nobody's: %s", worker.id, error)
            else:
                about = f"{worker.id} on {agent.server} was of no job that runs, and was ended"
                self._store.add_event(time.time(), "worker-swept", {"message": about})

    async def _keep_output(self, agent: AgentClient, worker: WorkerStatus) -> None:
        """End a worker and keep what it printed, if it is of the last attempt of a job."""
        job, outputs = self._table.find(worker.job), self._table.outputs
        if outputs and job and worker.id == worker_id(job.id, job.attempt, worker.rank):
            await agent.end(worker.id)
            await outputs.fetch(agent, worker.id, job.id, worker.rank)
