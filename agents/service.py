"""The agent of one server: gives a worker its GPU and NIC, watches it, takes them back."""

import asyncio
import logging
import shutil
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from patchlight.agents import nics
from patchlight.agents.errors import BadRequest, Conflict, NicError, NotHere
from patchlight.agents.gpus import GpuBackend
from patchlight.agents.leases import Holders, Lease, LeaseBook
from patchlight.agents.worker_folder import LastReport, ReportReader, final_report, read_state, tell
from patchlight.agents.workers.contract import ExitInfo, Runner, RunningWorker, WorkerLaunch
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab import Lab, Nic, Server
from patchlight.testbed.linux import namespaces
from patchlight.testbed.worker_api import (
    AgentStatus,
    GpuStatus,
    NicStatus,
    Report,
    WorkerSpec,
    WorkerState,
    WorkerStatus,
)

_GRACE_S = 2.0
_log = logging.getLogger("patchlight.agent")


@dataclass
class _Worker:
    """One worker that the agent knows of, alive or ended."""

    spec: WorkerSpec
    directory: Path
    reports: ReportReader
    running: RunningWorker | None = None
    watching: asyncio.Task[None] | None = None
    stopping: bool = False
    exit_info: ExitInfo | None = None
    final: LastReport | None = None
    lease: Lease | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class AgentService:
    """Everything the agent's API offers. All methods belong to one event loop."""

    def __init__(
        self, lab: Lab, server: Server, runner: Runner, gpus: GpuBackend, state: Path
    ) -> None:
        self._lab, self._server = lab, server
        self._runner, self._gpus = runner, gpus
        self._home = namespaces.process_namespace()
        self._state = state
        self._book = LeaseBook(state / "leases")
        self._holders = Holders()
        self._workers: dict[str, _Worker] = {}

    async def open(self) -> None:
        """Put right what an earlier agent left, then be ready for work."""
        await self._runner.open()
        await self._gpus.open()
        for lease in self._book.read():
            await self._recover(lease)
        await self._runner.sweep()

    async def close(self) -> None:
        """Stop every worker and take every NIC back."""
        results = await asyncio.gather(
            *(self.delete(name) for name in list(self._workers)), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                _log.error("stopping a worker: %s", result)
        await self._gpus.close()
        await self._runner.close()

    async def create(self, spec: WorkerSpec) -> WorkerStatus:
        """Lease, launch, move the NIC in. On an error nothing of it is left."""
        nic = self._nic(spec.nic)
        if spec.gpu is not None and spec.gpu not in {gpu.name for gpu in self._server.gpus}:
            raise NotHere(f"server {self._server.name} has no GPU {spec.gpu!r}")
        own = next(member for member in spec.ring if member.rank == spec.rank)
        if str(own.address) != str(nic.address):
            raise BadRequest(
                f"rank {spec.rank} is at {own.address} in the ring, but {nic.name} of "
                f"{self._server.name} has {nic.address}"
            )
        if spec.id in self._workers:
            raise Conflict(f"there is a worker {spec.id} already", hint="delete it first")
        self._holders.claim(spec.id, spec.gpu, spec.nic)
        directory = self._state / "workers" / spec.id
        worker = _Worker(spec, directory, ReportReader(directory))
        self._workers[spec.id] = worker
        async with worker.lock:
            try:
                await self._launch(worker, nic)
            except BaseException as exc:
                await self._abandon(worker, exc)
                raise
            worker.watching = asyncio.create_task(self._watch(worker))
        return self.worker(spec.id)

    def worker(self, name: str) -> WorkerStatus:
        """What is known of a worker."""
        worker = self._known(name)
        last = worker.final or read_state(worker.directory)
        # Until its NIC and GPU are back, the worker is not over.
        if worker.final is None and last.state.is_final:
            last = replace(last, state=WorkerState.RUNNING, message="ending")
        exit_info = worker.exit_info
        return WorkerStatus(
            id=worker.spec.id,
            job=worker.spec.job,
            rank=worker.spec.rank,
            state=last.state,
            exit_code=exit_info.exit_code if exit_info else None,
            message=last.message,
            last_lines=list(exit_info.last_lines) if exit_info else [],
            iterations_done=last.iterations_done,
            gpu=worker.spec.gpu,
            nic=worker.spec.nic,
            restarts=last.starts - 1,
        )

    def reports(self, name: str, after: int) -> list[Report]:
        """The worker's reports after the first ``after``."""
        return self._known(name).reports.after(after)

    async def start(self, name: str) -> int:
        """Let a ready worker train."""
        return await self._tell(name, {"op": "start"}, starting_is_fine=False)

    async def hold(self, name: str, iteration: int) -> int:
        """Hold it just before the all-reduce of ``iteration``."""
        return await self._tell(name, {"op": "hold", "iteration": iteration})

    async def release(self, name: str) -> int:
        """Let it go on."""
        return await self._tell(name, {"op": "release"})

    async def delete(self, name: str) -> WorkerStatus:
        """Stop it, take its NIC and GPU back and forget it. A worker not here is stopped."""
        worker = self._workers.get(name)
        if worker is None:
            return WorkerStatus(
                id=name, state=WorkerState.STOPPED, message="there is no such worker here"
            )
        worker.stopping = True
        async with worker.lock:
            if worker.final is None and worker.running is not None:
                await worker.running.stop(_GRACE_S)
            if worker.watching is not None:
                await worker.watching
            if worker.lease is not None:  # its NIC did not come back: try once more
                await self._end(worker)
            if name in self._workers:
                status = self.worker(name)
                self._forget(worker)
                return status
        return WorkerStatus(id=name, state=WorkerState.STOPPED)

    async def status(self) -> AgentStatus:
        """The whole server."""
        readings = await asyncio.gather(*(self._gpus.read(gpu.name) for gpu in self._server.gpus))
        return AgentStatus(
            server=self._server.name,
            version=version("patchlight"),
            runner=self._runner.name,
            gpus=[
                GpuStatus(**asdict(reading), worker=self._holders.gpu(reading.name))
                for reading in readings
            ],
            nics=[self._nic_status(nic) for nic in self._server.nics],
            workers=[self.worker(name) for name in self._workers],
        )

    def _nic_status(self, nic: Nic) -> NicStatus:
        worker = self._holders.nic(nic.name)
        state: Literal["leased", "idle"] = "leased" if worker else "idle"
        return NicStatus(name=nic.name, address=str(nic.address), state=state, worker=worker)

    async def _launch(self, worker: _Worker, nic: Nic) -> None:
        spec = worker.spec
        interface = nic.interface or nic.name
        namespace = f"pl.{self._lab.name}.{self._server.name}.w-{spec.id}"
        before = await asyncio.to_thread(
            namespaces.inside, self._home, lambda: nics.read_nic(interface)
        )
        worker.lease = Lease(spec, namespace, before, self._runner.name)
        self._book.write(worker.lease)
        shutil.rmtree(worker.directory, ignore_errors=True)
        worker.directory.mkdir(mode=0o700, parents=True)
        task = {
            "id": spec.id,
            "job": spec.job,
            "rank": spec.rank,
            "ring": [member.model_dump(mode="json") for member in spec.ring],
            **spec.task.model_dump(mode="json"),
        }
        launch = WorkerLaunch(
            lab=self._lab.name,
            server=self._server.name,
            worker=spec.id,
            job=spec.job,
            directory=worker.directory,
            namespace=namespace,
            task=task,
            gpu_socket=self._gpus.socket_of(spec.gpu) if spec.gpu else None,
            gpu_uuid=self._gpus.uuid_of(spec.gpu) if spec.gpu else None,
        )
        worker.running = await self._runner.launch(launch)
        worker.lease = replace(worker.lease, handle=worker.running.handle)
        self._book.write(worker.lease)

        def give() -> None:
            nics.give_nic(
                interface,
                namespaces.namespace_path(namespace),
                before,
                address=str(nic.address),
                prefix=self._lab.network.prefixlen,
                mac=nic.mac,
                neighbours=[(str(n.address), n.mac) for n in spec.neighbours],
            )

        await asyncio.to_thread(namespaces.inside, self._home, give)

    async def _watch(self, worker: _Worker) -> None:
        """Wait for the worker's end, however it comes, and clear up after it."""
        assert worker.running is not None
        last = LastReport(WorkerState.FAILED)
        try:
            worker.exit_info = await worker.running.ended()
            last = final_report(read_state(worker.directory), worker.exit_info, worker.stopping)
            await self._end(worker)
        except Exception as exc:
            # The NIC stays leased: nobody else may get it in the state it is in.
            last = replace(last, state=WorkerState.FAILED, message=f"{last.message}; {exc}")
            _log.error("worker %s: %s", worker.spec.id, exc)
        worker.final = last

    async def _abandon(self, worker: _Worker, why: BaseException) -> None:
        """Clear up after a launch that failed; what cannot be cleared up stays on show."""
        try:
            await self._end(worker)
        except Exception as exc:
            worker.final = LastReport(WorkerState.FAILED, 0, f"{why}; {exc}")
            _log.error("worker %s: %s", worker.spec.id, exc)
        self._forget(worker)

    async def _end(self, worker: _Worker) -> None:
        """Take back all that a worker had; it is dead, or dies now."""
        try:
            if worker.running is not None:
                if worker.exit_info is None:
                    await worker.running.stop(0)
                await worker.running.dispose()
        finally:  # a container that will not go is no reason to leave it the NIC
            if worker.lease is not None:
                await asyncio.to_thread(self._take_back, worker.lease)
                worker.lease = None
            self._holders.release(worker.spec.id)

    def _take_back(self, lease: Lease) -> None:
        namespace = namespaces.namespace_path(lease.namespace)
        try:
            nics.take_nic_back(lease.nic_state, namespace, self._home)
        except NicError:
            # A namespace that still has the NIC is kept: a virtual one would die with it.
            if not nics.is_in(namespace, lease.nic_state.interface):
                namespaces.delete(lease.namespace)
            raise
        namespaces.delete(lease.namespace)
        self._book.end(lease.spec.id)

    async def _recover(self, lease: Lease) -> None:
        """A worker of an agent that died: end it, and take back what it had."""
        directory = self._state / "workers" / lease.spec.id
        worker = _Worker(lease.spec, directory, ReportReader(directory))
        self._workers[lease.spec.id] = worker
        if lease.handle is not None:
            await self._runner.end_leftover(lease.handle)
        last = read_state(directory)
        message = "the agent was started again, and ended the worker"
        worker.final = LastReport(WorkerState.FAILED, last.iterations_done, message)
        try:
            await asyncio.to_thread(self._take_back, lease)
        except PatchlightError as exc:
            worker.lease = lease
            self._holders.claim(lease.spec.id, lease.spec.gpu, lease.spec.nic)
            worker.final = LastReport(WorkerState.FAILED, last.iterations_done, f"{message}; {exc}")
            _log.error("recovering worker %s: %s", lease.spec.id, exc)

    def _forget(self, worker: _Worker) -> None:
        if worker.lease is None:
            self._workers.pop(worker.spec.id, None)
            shutil.rmtree(worker.directory, ignore_errors=True)

    async def _tell(
        self, name: str, request: dict[str, object], *, starting_is_fine: bool = True
    ) -> int:
        status = self.worker(name)
        if status.state.is_final:
            raise Conflict(
                f"worker {name} is {status.state}: {status.message or 'nothing more to do'}",
                iteration=status.iterations_done,
            )
        if status.state is WorkerState.STARTING and not starting_is_fine:
            raise Conflict(f"worker {name} is not ready yet", hint="wait until it is ready")
        return await tell(self._known(name).directory, request)

    def _known(self, name: str) -> _Worker:
        if name not in self._workers:
            raise NotHere(f"server {self._server.name} has no worker {name!r}")
        return self._workers[name]

    def _nic(self, name: str) -> Nic:
        if (nic := next((n for n in self._server.nics if n.name == name), None)) is not None:
            return nic
        raise NotHere(f"server {self._server.name} has no NIC {name!r}")
