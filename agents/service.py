"""The agent of one server: its workers, and which of them has which GPU and NIC."""

import asyncio
import importlib
import math
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from patchlight.agents import path_nodes, tenancy
from patchlight.agents.errors import (
    AgentError,
    BadRequest,
    Conflict,
    GpuError,
    GpuSilent,
    NotHere,
    log,
)
from patchlight.agents.gpus import SILENT_S, GpuBackend, Pairings
from patchlight.agents.leases import CLAIMS, Claims, LeaseBook
from patchlight.agents.nics.backend import NicBackend
from patchlight.agents.nics.cmis import OPTOE
from patchlight.agents.nics.status import nic_of
from patchlight.agents.nics.tuners import EmulatedTuner, cmis_tuner
from patchlight.agents.worker_life import LeasedWorker
from patchlight.agents.workers import contract, keeper, limits
from patchlight.testbed.errors import in_words, reason
from patchlight.testbed.lab.model import Gpu, Lab, Nic, Server
from patchlight.testbed.linux import files
from patchlight.testbed.linux.processes import boot_id
from patchlight.testbed.tasks import run_all
from patchlight.testbed.wire import agent_status, worker_api

_T = TypeVar("_T")

MOST_ENDED = 200
"""So many workers that have ended are remembered if nobody deletes them."""

_LOOK_S = 1.0
# How long a worker waits for its GPU and NIC: less than its controller waits for the answer.
_MOST_WAIT_S = 120.0
# Read from the disk and parsed each time; an agent sends its status every second.
VERSION = version("patchlight")


class AgentService:
    """Everything the agent's API offers. All methods belong to one event loop."""

    def __init__(
        self,
        lab: Lab,
        server: Server,
        runner: contract.Runner,
        gpus: GpuBackend,
        state: Path,
        light: Path | None = None,
        *,
        nics: NicBackend | None = None,
        claims: Path = CLAIMS,
        boot: str | None = None,
    ) -> None:
        """``light`` is the socket at which the NICs' transceivers are tuned, if they can be;
        ``nics`` and ``boot``, the id of its boot, are by default those of this machine, ``claims``
        the folder that all labs on the server share."""
        self._server = server
        self._runner = runner
        self._gpus = gpus
        self.seen_at: dict[tuple[str, str], float] = {}
        """The last time that a GPU or NIC (kind, name) was healthy, on the monotonic clock."""
        self.paths = path_nodes.PathNodes(
            server,
            state / "paths",
            EmulatedTuner(server, light)
            if light
            else cmis_tuner(server, OPTOE),
        )
        self._book = LeaseBook(state / "leases")
        self._pairings = Pairings(server, gpus)
        self.site = tenancy.AgentSite(
            lab=lab,
            server=server,
            runner=runner,
            gpus=gpus,
            nics=nics or NicBackend(),
            pairings=self._pairings,
            book=self._book,
            claims=Claims(lab.name, claims),
            folders=state / "workers",
            paths=self.paths,
            boot=boot or boot_id(),
        )
        self._workers: dict[str, LeasedWorker] = {}
        self._has_workers = asyncio.Event()
        self._unwanted: deque[str] = deque(maxlen=MOST_ENDED)
        self._looking: asyncio.Task[None] | None = None
        self._launches: set[asyncio.Task[Any]] = set()
        self._ends: set[asyncio.Task[Any]] = set()
        self._shared: dict[
            tuple[str, str], asyncio.Task[worker_api.WorkerStatus]
        ] = {}
        self._limits: dict[str, float] = {}
        self._deleted: dict[str, worker_api.WorkerStatus] = {}

    async def open(self) -> None:
        """Take over what an earlier agent left; ``AgentError`` if that was of another lab or
        server."""
        leases = self._book.read()
        for lease in leases:
            if not lease.namespace.startswith(self.site.namespace_of("")):
                raise AgentError(
                    f"worker {lease.spec.id} in the state folder of this agent does not belong "
                    f"to {self._server.name} of this lab: it is in {lease.namespace}",
                    hint="each lab's agent on a server needs its own folder: --state",
                )
        await self._runner.open()
        await self._gpus.open()
        self.paths.open()
        for gpu in self._server.gpus:
            if problem := (await self._gpu_status(gpu)).problem:
                log.warning("no worker gets GPU %s: %s", gpu.name, problem)
            if far := self._pairings.problem(gpu.name):
                log.warning("%s", far)
        await self._runner.sweep(
            {each.handle.container for each in leases if each.handle}
        )
        await asyncio.to_thread(self._remove_unleased_folders)
        for lease in sorted(leases, key=lambda each: each.created_at):
            worker = LeasedWorker(self.site, lease.spec, lease)
            self._add(worker)
            try:
                if lease.handle is None:
                    await self._abandon(worker, "its launch was interrupted")
                else:
                    await worker.adopt()
                    if worker.is_end_requested:
                        self._end_soon(worker)
            except Exception as exc:
                log.error(
                    "taking over worker %s: %s", lease.spec.id, in_words(exc)
                )
        self._looking = asyncio.create_task(self._look_after())
        # A slow processor imports what moves NICs for half a minute: not during the first call.
        _begin(
            asyncio.to_thread(importlib.import_module, "pyroute2"), self._ends
        )

    def _remove_unleased_folders(self) -> None:
        """Remove folders of workers that are forgotten: a power cut brings back what was removed
        shortly before it, and a disk in trouble keeps it."""
        known = self._book.names()
        for folder in self.site.folders.glob("*"):
            if folder.name not in known:
                files.remove_folder(folder)

    async def close(self) -> None:
        """Close everything; the workers go on, and the next agent finds them."""
        if self._looking is not None:
            self._looking.cancel()
        for task in self._ends:  # the next agent continues them
            task.cancel()
        if self._launches or self._ends:
            await asyncio.wait((*self._launches, *self._ends))
        await asyncio.gather(
            *(worker.let_go() for worker in self._workers.values())
        )
        self.paths.close()
        await self._gpus.close()
        await self._runner.close()

    async def drain(self) -> agent_status.AgentStatus:
        """End every worker and forget it; ``AgentError`` names those that could not be ended."""
        results = await asyncio.gather(
            *(self.delete(name) for name in list(self._workers)),
            return_exceptions=True,
        )
        failures = [
            in_words(result)
            for result in results
            if isinstance(result, Exception)
        ]
        if failures:
            raise AgentError(
                f"draining {self._server.name}: {'; '.join(failures)}"
            )
        return await self.status()

    async def create(
        self, spec: worker_api.WorkerSpec
    ) -> tuple[worker_api.WorkerStatus, bool]:
        """Make a worker: its status, and whether it is new. The same spec makes no second one:
        while one is made, it waits for that one, and fails as that one does."""
        if (known := self._workers.get(spec.id)) is not None:
            if known.spec != spec:
                raise Conflict(
                    f"worker {spec.id} already exists, with another spec",
                    hint="delete it first",
                )
            if (making := self._shared.get(("create", spec.id))) is not None:
                await asyncio.shield(making)
            return known.status(), False
        if spec.id in self._unwanted:
            raise Conflict(
                f"worker {spec.id} was deleted before it was created"
            )
        nic = nic_of(self._server, spec.nic)
        if spec.gpu is not None and spec.gpu not in {
            gpu.name for gpu in self._server.gpus
        }:
            raise NotHere(
                f"server {self._server.name} has no GPU {spec.gpu!r}"
            )
        own = next(member for member in spec.ring if member.rank == spec.rank)
        if str(own.address) != str(nic.address):
            raise BadRequest(
                f"rank {spec.rank} is at {own.address} in the ring, but {nic.name} of "
                f"{self._server.name} has {nic.address}"
            )
        limits.permitted(spec, self.site.lab.workers)
        holders = self._holder(nic=spec.nic), self._holder(gpu=spec.gpu)
        await self._until_ended(spec.id, *holders)
        if (
            spec.id in self._workers or spec.id in self._unwanted
        ):  # by another call meanwhile
            return await self.create(spec)
        for kind, name, holder in (
            ("NIC", spec.nic, self._holder(nic=spec.nic)),
            (
                "GPU",
                spec.gpu,
                self._holder(gpu=spec.gpu) if spec.gpu else None,
            ),
        ):
            if holder is not None:
                raise Conflict(f"{kind} {name} is leased to worker {holder}")
        worker = LeasedWorker(self.site, spec)
        # Before others know it: an order to end it comes after its launch, not before.
        await worker.lock.acquire()
        self._add(worker)
        self._deleted.pop(spec.id, None)

        async def launch() -> worker_api.WorkerStatus:
            try:
                await worker.launch(nic)
            except BaseException as exc:
                await self._abandon(worker, reason(exc))
                raise
            finally:
                worker.lock.release()
            return worker.status()

        return await self._once(
            "create",
            spec.id,
            launch,
            self._launches,
        ), True

    async def _once(
        self,
        call: str,
        worker: str,
        make: Callable[[], Coroutine[Any, Any, worker_api.WorkerStatus]],
        tasks: set[asyncio.Task[Any]],
    ) -> worker_api.WorkerStatus:
        """Carry out a call in its own task, as the client may disconnect before it is done; the
        same call meanwhile waits for that task."""
        key = call, worker
        task = self._shared.get(key)
        if (
            task is None or task.done()
        ):  # its callback may come only after the next call
            task = self._shared[key] = _begin(make(), tasks)
            task.add_done_callback(partial(self._is_over, key))
        return await asyncio.shield(task)

    def _is_over(
        self, key: tuple[str, str], task: asyncio.Task[worker_api.WorkerStatus]
    ) -> None:
        if self._shared.get(key) is task:
            del self._shared[key]

    async def _until_ended(self, waiting: str, *holders: str | None) -> None:
        """Wait for those of these workers whose end has been requested. If the caller repeats the
        call meanwhile, because its answer is late, the limit of the first one is that of all."""
        ending = [self._workers[name] for name in holders if name is not None]
        limit = asyncio.get_running_loop().time() + _MOST_WAIT_S
        try:
            async with asyncio.timeout_at(
                self._limits.setdefault(waiting, limit)
            ):
                for worker in ending:
                    if worker.is_end_requested:
                        await worker.end()
        except TimeoutError:
            pass
        finally:
            self._limits.pop(waiting, None)

    async def _abandon(self, worker: LeasedWorker, why: str) -> None:
        if await worker.abandon(why):
            del self._workers[worker.spec.id]

    def known(self, name: str) -> LeasedWorker:
        """The worker of that name; ``NotHere`` if there is none."""
        if name not in self._workers:
            raise NotHere(f"server {self._server.name} has no worker {name!r}")
        return self._workers[name]

    async def end(self, name: str) -> worker_api.WorkerStatus:
        """Stop it and take its NIC and GPU back; what is known of it stays, its output too."""
        worker = self.known(name)

        async def end() -> worker_api.WorkerStatus:
            await worker.end()
            return worker.status()

        return await self._once(
            "end",
            name,
            end,
            self._ends,
        )

    async def delete(self, name: str) -> worker_api.WorkerStatus:
        """Stop it, take its NIC and GPU back and forget it. One not here counts as stopped, and is
        not made later: the request to make it may still be under way."""
        worker = self._workers.get(name)
        if worker is None:
            if (
                status := self._deleted.get(name)
            ) is not None:  # its answer was lost
                return status
            return self._not_here(name)

        async def delete() -> worker_api.WorkerStatus:
            await worker.end()
            if self._workers.get(name) is not worker:  # its launch failed
                return self._not_here(name)
            status = worker.status()
            await self._forget(worker)
            self._deleted[name] = status
            if len(self._deleted) > MOST_ENDED:
                del self._deleted[next(iter(self._deleted))]
            return status

        return await self._once(
            "delete",
            name,
            delete,
            self._ends,
        )

    def _not_here(self, name: str) -> worker_api.WorkerStatus:
        self._unwanted.append(name)
        return worker_api.WorkerStatus(
            id=name,
            state=worker_api.WorkerState.STOPPED,
            message="unknown worker",
        )

    async def _forget(self, worker: LeasedWorker) -> None:
        async with worker.lock:
            if self._workers.get(worker.spec.id) is worker:
                await worker.tenancy.forget()
                del self._workers[worker.spec.id]

    async def status(self) -> agent_status.AgentStatus:
        """The whole server."""
        status = agent_status.AgentStatus(
            server=self._server.name,
            version=VERSION,
            api=agent_status.API_VERSION,
            runner=self._runner.name,
            gpu_access=self._runner.gpu_access,
            worker_user=self._runner.worker_user,
            gpus=await run_all(map(self._gpu_status, self._server.gpus)),
            nics=await asyncio.to_thread(
                lambda: [*map(self._nic_status, self._server.nics)]
            ),
            workers=self.workers(),
            paths=self.paths.status(),
        )
        now = time.monotonic()
        self.seen_at |= {
            ("gpu", gpu.name): now
            for gpu in status.gpus
            if gpu.uuid is not None
        }
        self.seen_at |= {
            ("nic", nic.name): now for nic in status.nics if not nic.problem
        }
        return status

    def workers(self) -> list[worker_api.WorkerStatus]:
        """What is known of each worker."""
        return [worker.status() for worker in self._workers.values()]

    def leases(self) -> dict[str, int]:
        """How many GPUs and NICs workers have."""
        holding = [
            worker.spec
            for worker in self._workers.values()
            if not worker.tenancy.is_over
        ]
        return {
            "gpu": sum(spec.gpu is not None for spec in holding),
            "nic": len(holding),
        }

    async def probe(
        self, request: agent_status.ProbeRequest
    ) -> agent_status.ProbeAnswer:
        """What idle NICs hear on their fibres while all of them send probes."""
        holders = {
            nic.name: self._holder(nic=nic.name) for nic in self._server.nics
        }
        names = {
            f"{self._server.name}.{nic.name}": nic.interface or nic.name
            for nic in self._server.nics
            if holders[nic.name] is None
        }
        ears = await asyncio.to_thread(
            self.site.nics.probe,
            names,
            request.token,
            request.listen_s,
        )
        nics = []
        for name, holder in holders.items():
            if holder is not None:
                nics.append(
                    agent_status.ProbedNic(
                        name=name,
                        problem=f"worker {holder} uses it",
                    )
                )
                continue
            ear = ears[f"{self._server.name}.{name}"]
            probed = agent_status.ProbedNic(
                name=name,
                carrier=ear.carrier,
                problem=ear.problem,
            )
            probed.heard = sorted(ear.heard)
            probed.lldp = sorted(ear.lldp, key=str)
            nics.append(probed)
        return agent_status.ProbeAnswer(nics=nics)

    async def _gpu_status(self, gpu: Gpu) -> agent_status.GpuStatus:
        worker = self._holder(gpu=gpu.name)
        try:
            reading = await self._gpus.read(gpu.name)
        except (
            GpuError
        ) as exc:  # one that has fallen off does not take the others with it
            silent_s = time.monotonic() - self.seen_at.get(
                ("gpu", gpu.name), -math.inf
            )
            is_late = isinstance(exc, GpuSilent) and silent_s < SILENT_S
            return agent_status.GpuStatus(
                name=gpu.name,
                model=gpu.model,
                utilization=None,
                busy_s=0.0,
                worker=worker,
                problem="" if is_late else exc.message,
            )
        pairing = self._pairings.problem(gpu.name)
        return agent_status.GpuStatus(
            **asdict(reading),
            worker=worker,
            pairing=pairing,
        )

    def _nic_status(self, nic: Nic) -> agent_status.NicStatus:
        holder = self._workers.get(self._holder(nic=nic.name) or "")
        if holder is None:
            return self.site.nics.idle_status(nic)
        place = holder.tenancy.place
        problem = holder.nic_problem  # which reads the RDMA device
        rdma = holder.tenancy.rdma
        return self.site.nics.leased_status(
            nic,
            holder.spec.id,
            place,
            rdma,
            problem,
        )

    def _holder(
        self, *, gpu: str | None = None, nic: str | None = None
    ) -> str | None:
        for name, worker in self._workers.items():
            wanted = (gpu and worker.spec.gpu == gpu) or (
                nic and worker.spec.nic == nic
            )
            if wanted and not worker.tenancy.is_over:
                return name
        return None

    def _end_soon(
        self, worker: LeasedWorker, ending: keeper.Ending = keeper.ON_REQUEST
    ) -> None:
        _begin(worker.end(ending), self._ends)

    async def _look_after(self) -> None:
        while True:
            await self._has_workers.wait()
            await asyncio.sleep(_LOOK_S)
            for worker in list(self._workers.values()):
                try:
                    if ending := await worker.look(time.time()):
                        log.warning(
                            "ending worker %s: %s",
                            worker.spec.id,
                            ending.message,
                        )
                        self._end_soon(worker, ending)
                except Exception as exc:
                    log.error(
                        "checking worker %s: %s",
                        worker.spec.id,
                        in_words(exc),
                    )
            ended = [each for each in self._workers.values() if each.is_done]
            for worker in ended[:-MOST_ENDED]:
                try:
                    await self._forget(worker)
                except Exception as exc:
                    log.error(
                        "forgetting worker %s: %s",
                        worker.spec.id,
                        in_words(exc),
                    )
            if not self._workers:
                self._has_workers.clear()

    def _add(self, worker: LeasedWorker) -> None:
        self._workers[worker.spec.id] = worker
        self._has_workers.set()


def _begin(
    coroutine: Coroutine[Any, Any, _T], tasks: set[asyncio.Task[Any]]
) -> asyncio.Task[_T]:
    """Run this in a task, which stays in ``tasks`` until it ends."""
    task = asyncio.create_task(coroutine)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task
