"""Agents in memory: their workers are what a test says that they are. No process, no network."""

from __future__ import annotations

from patchlight.controller.fleet import AgentClient, AgentError, Fleet
from patchlight.testbed.lab import Lab
from patchlight.testbed.worker_api import Report, Reports, WorkerSpec, WorkerState, WorkerStatus


class FakeFleet(Fleet):
    """A fleet whose agents answer at once.

    A new worker is in ``first_state``; one that is told to pause does where ``pauses``, except
    for the first ``too_late`` times. ``held_before`` has the iteration that it was told last.
    ``refusals`` has, for a call such as ``"create"``, what the agents answer instead of doing it.
    """

    def __init__(self, lab: Lab) -> None:
        super().__init__(lab.with_changes(servers=()))
        self.clients = {server.name: FakeAgent(server.name, self) for server in lab.servers}
        self.first_state = WorkerState.READY
        self.pauses, self.too_late = True, 0
        self.held_before: dict[str, int] = {}
        self.refusals: dict[str, str] = {}
        self.calls: list[tuple[str, str]] = []
        self.specs: dict[str, WorkerSpec] = {}
        self.workers: dict[str, WorkerStatus] = {}
        self.written: dict[str, list[Report]] = {}

    def job_workers(self, job_id: str) -> list[str]:
        """The workers that a job has now, in the order of ranks."""
        return sorted(name for name in self.workers if name.startswith(f"{job_id}-"))

    def put(self, job_id: str, state: WorkerState, message: str = "") -> None:
        """All workers of the job are in this state now."""
        for name in self.job_workers(job_id):
            self.put_worker(name, state, message)

    def put_worker(self, name: str, state: WorkerState, message: str = "") -> None:
        """One worker is in this state now; a message is its last line, too."""
        change = {"state": state, "message": message, "last_lines": [message] if message else []}
        self.workers[name] = self.workers[name].model_copy(update=change)

    def report(self, name: str, index: int) -> None:
        """A worker has finished the iteration of this index."""
        done = {"iterations_done": index + 1}
        self.workers[name] = self.workers[name].model_copy(update=done)
        self.written.setdefault(name, []).append(
            Report(
                index=index,
                finished_at=0.0,
                compute_s=0.1,
                communication_s=0.1,
                sent_bytes=8,
                check="ok",
            )
        )


class FakeAgent(AgentClient):
    """One server's agent."""

    def __init__(self, server: str, fleet: FakeFleet) -> None:
        self.server, self._fleet = server, fleet

    async def close(self) -> None:
        return None

    def _called(self, call: str, worker_id: str) -> None:
        self._fleet.calls.append((call, worker_id))
        if call in self._fleet.refusals:
            raise AgentError(f"the agent of {self.server}: {self._fleet.refusals[call]}")

    async def create_worker(self, spec: WorkerSpec) -> WorkerStatus:
        self._called("create", spec.id)
        self._fleet.specs[spec.id] = spec
        status = WorkerStatus(id=spec.id, state=self._fleet.first_state)
        self._fleet.workers[spec.id] = status
        return status

    async def worker(self, worker_id: str) -> WorkerStatus:
        return self._fleet.workers[worker_id]

    async def reports(self, worker_id: str, after: int) -> Reports:
        reports = self._fleet.written.get(worker_id, [])[after:]
        return Reports(reports=reports, next=after + len(reports))

    async def start(self, worker_id: str) -> None:
        self._called("start", worker_id)
        self._fleet.put_worker(worker_id, WorkerState.RUNNING)

    async def hold(self, worker_id: str, iteration: int) -> None:
        self._called("hold", worker_id)
        self._fleet.held_before[worker_id] = iteration
        if self._fleet.too_late:
            self._fleet.too_late -= 1
            raise AgentError(f"iteration {iteration} is past")
        if self._fleet.pauses:
            self._fleet.put_worker(worker_id, WorkerState.HELD)

    async def release(self, worker_id: str) -> None:
        self._called("release", worker_id)
        self._fleet.put_worker(worker_id, WorkerState.RUNNING)

    async def delete(self, worker_id: str) -> None:
        self._called("delete", worker_id)
        self._fleet.workers.pop(worker_id, None)
