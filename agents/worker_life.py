"""Runs one worker's life, which outlives the agent: lease and folder are all the next one needs."""

import asyncio
import contextlib
import os
import time
from base64 import b64decode
from dataclasses import asdict, replace

from patchlight.agents.errors import AgentError, Conflict, GpuError, log
from patchlight.agents.gpus import Pulse
from patchlight.agents.leases import Ended, Lease
from patchlight.agents.nics.status import GONE, NicProblem
from patchlight.agents.tenancy import AgentSite, Tenancy
from patchlight.agents.workers import keeper, workdir
from patchlight.agents.workers.contract import ExitInfo, RunningWorker
from patchlight.testbed.errors import in_words
from patchlight.testbed.jobs import CommandTask
from patchlight.testbed.lab.model import Nic
from patchlight.testbed.tasks import EndRequested, run_unless
from patchlight.testbed.wire.worker_api import (
    AnnounceAnswer,
    AnnounceRequest,
    LogPart,
    SlotRequest,
    WorkdirPart,
    WorkerSpec,
    WorkerState,
    WorkerStatus,
)

UNSTARTED_S = 600.0
"""A worker that is not started in this time is ended: its controller has disappeared."""

START_S = 30.0
"""How long a program may take to begin: it may be late on a busy machine."""


class LeasedWorker:
    """One worker of the agent, running or ended. Hold ``lock`` while changing it."""

    def __init__(
        self,
        site: AgentSite,
        spec: WorkerSpec,
        lease: Lease | None = None,
    ) -> None:
        self.spec = spec
        self.lock = asyncio.Lock()
        self.tenancy = Tenancy(site, spec, lease)
        self._folder = self.tenancy.folder
        self._command = (
            spec.task if isinstance(spec.task, CommandTask) else None
        )
        self.reports = keeper.ReportReader(
            self._folder, foreign=self._command is not None
        )
        self._runner = site.runner
        self._gpus = site.gpus
        self._paths = site.paths
        self._nics = site.nics
        self._boot = site.boot
        self._pulse = Pulse()
        self._is_silent = self._is_leaving = False
        self._archive: bytearray | None = bytearray()
        self._running: RunningWorker | None = None
        self._watching: asyncio.Task[None] | None = None
        self._ending = lease.ending if lease else None
        self._may_not_wait = asyncio.Event()
        self._ended: Ended | None = lease.ended if lease else None

    async def launch(self, nic: Nic) -> None:
        """Give the worker what it needs, launch it and watch it."""
        self._running = await self.tenancy.begin(nic)
        self._watching = asyncio.create_task(self._watch())

    async def abandon(self, why: str) -> bool:
        """Clean up after a failed launch; returns whether all is back. Errors stay in the
        status."""
        returned = False
        try:
            await self.tenancy.end(None)
            returned = True
            await self.tenancy.forget()
        except Exception as exc:
            if (
                not self.tenancy.has_lease
            ):  # the next agent ends what may be on the disk
                log.error("worker %s: %s", self.spec.id, in_words(exc))
                return True
            last = keeper.LastReport(
                WorkerState.FAILED, 0, f"{why}; {in_words(exc)}"
            )
            self._conclude(last, returned=returned)
        return self.tenancy.is_forgotten

    async def adopt(self) -> None:
        """Take over the worker of an earlier agent: watch it, or find out how it ended."""
        lease = self.tenancy.lease
        if lease.handle is None:
            raise ValueError(
                f"worker {self.spec.id} was never launched: abandon it"
            )
        if lease.ended is not None:
            if not lease.returned:
                await self._give_back()
        elif lease.runner != self._runner.name:
            self._ending = keeper.Ending(
                WorkerState.FAILED,
                f"the agent was restarted with --worker-kind {self._runner.name}, and ended this "
                f"{lease.runner} worker",
            )
            await self._follow(ExitInfo(137))
        else:
            rebooted = lease.handle.boot not in (None, self._boot)
            if rebooted:
                self._ending = keeper.Ending(
                    WorkerState.FAILED, "its server was restarted"
                )
            else:
                await self.tenancy.claim_again()
            self._running = await self._runner.adopt(
                lease.handle, lease.namespace, self._folder
            )
            self._watching = asyncio.create_task(self._watch())
            if (
                lease.frozen and not rebooted
            ):  # the agent may have died halfway
                await self._freeze(self._running)
            await self._paths.serve(self.spec, self._folder)
            if self._is_leaving:  # it ended meanwhile
                self._paths.serve_no_more(self.spec)

    @property
    def nic_problem(self) -> NicProblem | None:
        """The problem of its NIC, if any; ``None`` while the NIC moves home."""
        problem = self.tenancy.nic_problem
        is_going_home = self._is_leaving and self._ended is None
        return None if is_going_home else problem

    @property
    def is_done(self) -> bool:
        """Whether it has ended and given everything back."""
        return self._ended is not None and self.tenancy.is_over

    def status(self) -> WorkerStatus:
        """Its present status."""
        ended = self._ended
        if ended is None:
            last = self._last_report()
            if not self.tenancy.is_launched:
                last = replace(last, state=WorkerState.STARTING)
            elif self._is_silent:
                last = replace(last, state=WorkerState.HELD)
            elif (
                last.state.is_final
            ):  # The worker is over only when its NIC and GPU are back.
                last = replace(
                    last,
                    state=WorkerState.RUNNING,
                    message="ending",
                )
            ended = replace(self._summed_up(last), lost_rank=None)
        return WorkerStatus(
            id=self.spec.id,
            job=self.spec.job,
            rank=self.spec.rank,
            gpu=self.spec.gpu,
            nic=self.spec.nic,
            **asdict(ended),
            holds_by="freeze" if self._freezes else "protocol",
            gid=self.tenancy.rdma.gid if self.tenancy.rdma else None,
            stop_grace_s=self.spec.stop_grace_s,
        )

    def _summed_up(
        self, last: keeper.LastReport, exit_info: ExitInfo | None = None
    ) -> Ended:
        code, lines = (
            (exit_info.exit_code, exit_info.last_lines)
            if exit_info
            else (None, ())
        )
        restarts = last.starts - 1
        energy_j = self.tenancy.energy_j
        said = last.state, last.iterations_done, last.message
        return Ended(
            *said,
            code,
            lines,
            restarts,
            energy_j,
            last.lost_rank,
        )

    def _last_report(self) -> keeper.LastReport:
        last = keeper.read_state(self._folder)
        if self._command is None:
            return last
        self.reports.read()
        done = max(last.iterations_done, self.reports.iterations_done)
        state = last.state
        # Before the start only the keeper can have failed.
        if (
            state is not WorkerState.FAILED
            and not (self._folder / keeper.STARTED).exists()
        ):
            state = WorkerState.READY
        elif state in (WorkerState.STARTING, WorkerState.READY):
            state = WorkerState.RUNNING
        return replace(
            last,
            iterations_done=done,
            state=state,
        )

    def log(self, after: int, limit: int) -> LogPart:
        """Part of its output."""
        return keeper.read_output(self._folder / keeper.OUTPUT, after, limit)

    async def take_workdir(self, part: WorkdirPart) -> int:
        """Take a part of its working directory before it starts; returns where to continue."""
        digest = self._command and self._command.workdir
        if not digest or self._alive().state is not WorkerState.READY:
            raise Conflict(
                f"worker {self.spec.id} takes no working directory now"
            )
        async with self.lock:
            if self._archive is None:
                return part.size
            if part.offset == len(self._archive):
                self._archive += b64decode(part.data)
            had = len(self._archive)
            if had >= part.size:
                archive = bytes(self._archive)
                self._archive = None
                await asyncio.to_thread(
                    workdir.unpack,
                    archive,
                    digest,
                    self._folder / workdir.WORKDIR,
                )
            return had

    async def start(self) -> int:
        """Start training. Idempotent. Returns the present iteration."""
        status = self._alive()
        if status.state is WorkerState.STARTING:
            raise Conflict(
                f"worker {self.spec.id} is not ready yet",
                hint="wait until it is ready",
            )
        await self.tenancy.until_lit()
        if self._command is None:
            return await keeper.tell(self._folder, {"op": "start"}, START_S)
        if self.tenancy.lease.frozen:
            raise Conflict(
                f"worker {self.spec.id} is held", hint="release it first"
            )
        deadline = time.monotonic() + START_S
        while not keeper.open_gate(self._folder):
            self._alive()
            if time.monotonic() > deadline:
                raise AgentError(
                    f"worker {self.spec.id} does not start: its program does not wait for the "
                    f"start"
                )
            await asyncio.sleep(0.01)
        return status.iterations_done

    async def hold(self, iteration: int) -> int:
        """Hold it before the all-reduce of ``iteration``; freeze foreign programs immediately."""
        status = self._alive()
        if not self._freezes:
            return await keeper.tell(
                self._folder, {"op": "hold", "iteration": iteration}
            )
        async with self.lock:
            self._alive()
            if self._running is None:
                raise Conflict(f"worker {self.spec.id} is not up yet")
            self.tenancy.record(frozen=True)
            await self._freeze(self._running)
        return status.iterations_done

    async def release(self) -> int:
        """Let it continue once its NIC is usable."""
        status = self._alive()
        await self.tenancy.until_lit()
        if not self.tenancy.lease.frozen:
            return (
                0
                if self._freezes
                else await keeper.tell(self._folder, {"op": "release"})
            )
        async with self.lock:
            self._alive()
            self._is_silent = False
            if self._running is not None:
                await asyncio.to_thread(
                    self._nics.unblock_egress, self.tenancy.lease.namespace
                )
                await self._running.thaw()
            self.tenancy.note(frozen=False)
        return status.iterations_done

    async def announce(self, request: AnnounceRequest) -> AnnounceAnswer:
        """Announce its NIC, and greet the job's other workers."""
        self._alive()
        return AnnounceAnswer(
            unheard=await self.tenancy.announce(request.token, request.wait_s)
        )

    async def slot(self, request: SlotRequest) -> int:
        """Set when its all-reduces begin."""
        self._check_control(
            "let the lab's jobs send at any time: policy use --interleave off"
        )
        return await keeper.tell(
            self._folder, {"op": "slot", **request.model_dump()}
        )

    async def stop_at(self, iteration: int) -> int:
        """Make it end, as stopped, just before the all-reduce of ``iteration``."""
        self._check_control("delete it, and continue from its last checkpoint")
        return await keeper.tell(
            self._folder, {"op": "stop-at", "iteration": iteration}
        )

    def _check_control(self, hint: str) -> None:
        self._alive()
        if self._freezes:
            words = (
                f"worker {self.spec.id} does not speak the control protocol"
            )
            raise Conflict(words, hint=hint)

    async def _freeze(self, running: RunningWorker) -> None:
        await running.freeze()
        lease = self.tenancy.lease
        interface = lease.nic_state.interface
        await asyncio.to_thread(
            self._nics.block_egress, lease.namespace, interface
        )
        self._is_silent = True

    @property
    def _freezes(self) -> bool:
        if self._command is None or self._command.hold == "protocol":
            return False
        return self._command.hold == "freeze" or not keeper.has_control(
            self._folder
        )

    def _alive(self) -> WorkerStatus:
        status = self.status()
        if status.state.is_final:
            raise Conflict(
                f"worker {self.spec.id} is {status.state}: {status.message or 'no action needed'}",
                iteration=status.iterations_done,
            )
        return status

    async def look(self, now: float) -> keeper.Ending | None:
        """Why it must be ended, if it must; ``now`` in Unix time."""
        if self._ended is not None or not self.tenancy.is_launched:
            return None
        if self.lock.locked():
            if self._ending is not None:
                filled = await asyncio.to_thread(self._bound_files)
                if filled:
                    log.warning("killing worker %s: %s", self.spec.id, filled)
                    self._may_not_wait.set()
            return None
        lease = self.tenancy.lease
        unstarted = self.status().state in (
            WorkerState.STARTING,
            WorkerState.READY,
        )
        if unstarted and now - lease.created_at > UNSTARTED_S:
            return keeper.Ending(
                WorkerState.FAILED,
                f"it was not started within {UNSTARTED_S:g} s: its controller has disappeared",
            )

        problem, filled = await asyncio.to_thread(
            lambda: (self.nic_problem, self._bound_files())
        )
        if self._is_leaving:  # it is already ending
            return None
        if problem is not None and problem.words == GONE.format(
            lease.nic_state.interface
        ):
            return keeper.Ending(WorkerState.FAILED, problem.words)
        if filled:
            return keeper.Ending(WorkerState.FAILED, filled)
        if self.spec.gpu is None:
            return None
        try:
            await self._gpus.read(self.spec.gpu)
        except GpuError as exc:
            if self._pulse.is_gone(exc, time.monotonic()):
                return keeper.Ending(
                    WorkerState.FAILED, f"its GPU failed: {exc.message}"
                )
        else:
            self._pulse = Pulse()
            await self.tenancy.count_energy()
        return None

    def _bound_files(self) -> str:
        """Cut its output if that is too long; why it fills the disk, if it does."""
        with contextlib.suppress(
            OSError
        ):  # the worker may have put something else there
            keeper.bound_output(self._folder / keeper.OUTPUT)
        return keeper.fills_disk(self._folder)

    @property
    def is_end_requested(self) -> bool:
        """Whether its end was requested, and it has not ended."""
        return self._ending is not None and self._ended is None

    async def end(self, ending: keeper.Ending = keeper.ON_REQUEST) -> None:
        """End it and take its NIC and GPU back; an error if that fails. If this is interrupted, the
        next agent kills it at the same time as this one would have."""
        self._ending = self._ending or ending
        async with self.lock:
            if self._running is not None and self._ended is None:
                now = time.time()
                lease = self.tenancy.lease
                since = lease.ending_since if lease.ending is not None else now
                self.tenancy.note(
                    ending=self._ending,
                    ending_since=since,
                )
                # The clock may have been set back meanwhile.
                grace_s = min(
                    self.spec.stop_grace_s,
                    since + self.spec.stop_grace_s - now,
                )
                stop = self._running.stop
                try:
                    await run_unless(
                        self._may_not_wait, lambda: stop(max(0.0, grace_s))
                    )
                except EndRequested:
                    await stop(0.0)
            if self._watching is not None:
                # Which goes on if this is interrupted.
                await asyncio.wait({self._watching})
                self._watching.result()
            if (
                self.tenancy.has_lease and not self.tenancy.is_over
            ):  # retry once
                await self._give_back()

    async def _give_back(self) -> None:
        await self.tenancy.end(self._running)
        self.tenancy.note(returned=True)

    async def let_go(self) -> None:
        """Stop watching it when the agent ends; the worker continues."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})

    async def _watch(self) -> None:
        assert self._running is not None
        await self._follow(await self._running.ended())

    async def _follow(self, exit_info: ExitInfo) -> None:
        self._is_leaving = True
        self._paths.serve_no_more(self.spec)
        await self.tenancy.count_energy()
        foreign = self._command is not None
        last = keeper.final_report(
            self._last_report(),
            exit_info,
            self._ending,
            foreign=foreign,
        )
        if last.state is WorkerState.FAILED:
            with contextlib.suppress(OSError):
                if (
                    os.statvfs(self._folder).f_bavail == 0
                ):  # The worker cannot report a full disk.
                    full = f"{last.message}; no space left on the disk of its folder"
                    last = replace(last, message=full)
        try:
            lost = await self.tenancy.end(self._running)
        except Exception as exc:
            message = f"{last.message}; {in_words(exc)}".removeprefix("; ")
            last = replace(
                last,
                state=WorkerState.FAILED,
                message=message,
            )
            self._conclude(last, exit_info)
            return
        if lost and lost not in last.message:
            last = replace(
                last, message=f"{last.message}; {lost}".removeprefix("; ")
            )
        self._conclude(last, exit_info, returned=True)

    def _conclude(
        self,
        last: keeper.LastReport,
        exit_info: ExitInfo | None = None,
        *,
        returned: bool = False,
    ) -> None:
        if not returned:
            log.error("worker %s: %s", self.spec.id, last.message)
        self._ended = self._summed_up(last, exit_info)
        self.tenancy.note(
            ended=self._ended,
            returned=returned,
            frozen=False,
        )
