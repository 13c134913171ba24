"""Runs the event loop of a simulated cluster: jobs arrive, wait, train at the network's rates, and
end.

It decides nothing. ``advance`` goes to the next event; the caller then calls ``start``,
``preempt``, ``rewire`` or ``block``.
"""

import heapq
import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from patchlight.controller.jobs.discipline.contract import (
    EPSILON_S,
    JobFate,
    UserAccounts,
    admission,
)
from patchlight.controller.policies.contract import (
    ClusterView,
    Frozen,
    Preview,
    RingOfJob,
    Running,
    nowhere,
)
from patchlight.controller.prediction.network import Load
from patchlight.emulation.simulator.cluster.cluster import Cluster, Rewiring
from patchlight.emulation.simulator.cluster.jobs import QueueJob, load_of
from patchlight.emulation.simulator.cluster.networkcluster import (
    PhasedJobs,
    failures_of,
)
from patchlight.emulation.simulator.cluster.simulated_job import (
    Cause,
    SimulatedJob,
    State,
)
from patchlight.emulation.simulator.cluster.state import (
    Accounts,
    EventQueue,
    Occupancy,
    Settings,
)
from patchlight.emulation.simulator.outages import Outage
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.portmap import PortMap

_RECENT = 64
_NOTHING: Frozen[str, Any] = Frozen()


class Simulation:
    """A cluster and its jobs. Deterministic: the same input and decisions give the same result.

    ``waiting`` are the waiting jobs, by number; ``joined`` those that began to wait since this
    list was last emptied. ``released`` increases when a job without a place may find one: GPUs
    became free, or circuits changed; ``layout`` increases with the latter only. ``user_accounts``,
    if given, counts what users hold and have used.
    """

    def __init__(
        self,
        cluster: Cluster,
        jobs: Sequence[QueueJob],
        settings: Settings,
    ) -> None:
        self.cluster = cluster.renewed()
        self.settings = settings
        outages = settings.outages
        shape = self.cluster.shape
        drawn = (
            iter(())
            if outages is None
            else outages.events(shape, settings.seed)
        )
        self._events = EventQueue(
            [job.view.arrived_s for job in jobs],
            heapq.merge(failures_of(self.cluster), drawn),
        )
        self.jobs = [
            SimulatedJob(number, job) for number, job in enumerate(jobs)
        ]
        self._job_views = tuple(job.spec.view for job in self.jobs)
        self.now_s = 0.0
        self.waiting: dict[int, SimulatedJob] = {}
        self.running: dict[int, SimulatedJob] = {}
        self.joined: list[SimulatedJob] = []
        self.released = self.layout = 0
        self.user_accounts: UserAccounts | None = None
        # Waiting and running jobs by user, if their number is limited.
        self._jobs_of: Counter[str] | None = (
            Counter() if settings.has_quotas else None
        )
        self.ended = 0
        self.held_up = (
            False  # The next job waits although enough GPUs are free.
        )
        self.occupancy = Occupancy(self.cluster.shape)
        self.accounts = Accounts()
        self.preview: Preview = nowhere
        self._by_end: list[Running] = []
        self._rings = self.cluster.pacing()
        self._view: ClusterView | None = None

    # -- time

    def advance(self) -> bool:
        """Go to the next event and apply it; ``False`` if there is none."""
        next_s = self._next_s()
        if next_s == math.inf:
            return False
        if next_s > self.now_s:
            passed_s = next_s - self.now_s
            waiting = len(self.waiting)
            self.accounts.span(
                passed_s,
                next_s,
                waiting,
                self.occupancy,
                self.held_up,
            )
            self._view = None
            self.now_s = next_s
        limit_s = self.now_s + EPSILON_S
        events = self._events
        events.wake_up(limit_s)
        shared = False
        for job in events.ends(limit_s):
            ends_s = job.ends_s
            shared = self._take_off(job, ends_s) or shared
            job.finish(ends_s)
            self.ended += 1
            if self._jobs_of is not None:
                self._jobs_of[job.user] -= 1
        shared = self._break_and_mend(list(events.outages(limit_s))) or shared
        if shared:
            self._share()
        for number in events.arrivals(limit_s):
            job = self.jobs[number]
            if job.workers > self._fitting(job):
                self.block(job, Cause.TOO_LARGE)
            elif self._jobs_of is None or self._is_admitted(job):
                self._wait(job)
            else:
                self.block(job, Cause.QUOTA)
        return True

    def wake_at(self, at_s: float) -> None:
        """Stop at that time, even without an event."""
        self._events.wake_at(at_s)

    @property
    def all_arrived(self) -> bool:
        """Whether the last job has arrived."""
        return self._events.all_arrived

    @property
    def goes_on(self) -> bool:
        """Whether no further event will occur."""
        return self._next_s() < math.inf

    def _next_s(self) -> float:
        # Failures do not matter while no job runs or waits.
        return self._events.next_s(
            bool(self.running or (self.waiting and self.occupancy.broken))
        )

    # -- events

    def _fitting(self, job: SimulatedJob) -> int:
        models = job.spec.view.gpu_models
        gpus = self.cluster.shape.gpus
        return (
            sum(gpu.model in models for gpu in gpus) if models else len(gpus)
        )

    def _is_admitted(self, job: SimulatedJob) -> bool:
        """Whether the user may have one more waiting or running job."""
        jobs_of = self._jobs_of
        user = job.user
        if jobs_of is None:
            return True
        if (
            admission(
                self.settings,
                user,
                job.workers,
                jobs_of[user],
            )
            is not None
        ):
            return False
        jobs_of[user] += 1
        return True

    def _wait(self, job: SimulatedJob) -> None:
        job.wait(self.now_s)
        self.waiting[job.index] = job
        self.joined.append(job)
        self._view = None

    def _break_and_mend(self, outages: Sequence[Outage]) -> bool:
        """Apply failures and repairs of one moment; returns whether a failed job shared links.

        Links are shared again after all of them: lost work counts at the pace that the job had
        before.
        """
        if not outages:
            return False
        broken = 0
        for outage in outages:
            broken |= outage.gpus if outage.broken else 0
        lost = [job for job in self.running.values() if job.gpus & broken]
        shared = [self._take_off(job, self.now_s) for job in lost]
        for job in lost:
            job.lose_work(self.now_s, self.settings.checkpoint_s)
            self._wait(job)
        links_change = False
        for outage in outages:
            if outage.link >= 0 and isinstance(self._rings, PhasedJobs):
                self._rings.change_link(outage.link, outage.broken)
                links_change = True
            elif outage.broken:
                self.occupancy.break_down(outage.gpus)
            else:
                self.occupancy.mend(outage.gpus)
                self.released += 1
        self._view = None
        return links_change or any(shared)

    # -- decisions of the caller

    def start(
        self,
        job: SimulatedJob,
        ring: Sequence[int],
        dark_s: float = 0.0,
    ) -> bool:
        """Run a waiting job on these free GPUs; ``False`` if its ring cannot be closed.

        Its circuits are dark for ``dark_s`` first. ``BadInput`` unless these are as many different
        free GPUs as it wants.
        """
        gpus = self._checked(job, ring)
        demand = self.cluster.demand(ring) if len(ring) > 1 else {}
        if demand is None:
            if job.is_open:
                job.workers = job.least
            return False
        sites = self.cluster.shape.gpus
        load = self.load_on(job, ring)
        settings = self.settings
        job.start(
            self.now_s,
            ring,
            gpus,
            load,
            settings.start_s,
            settings.restart_s,
            dark_s,
        )
        if len(ring) == 1:
            job.servers = job.racks = 1
        else:
            job.servers = len({sites[gpu].server for gpu in ring})
            job.racks = len({sites[gpu].rack for gpu in ring})
        del self.waiting[job.index]
        self.running[job.index] = job
        self.occupancy.take(gpus, ring)
        if self.user_accounts is not None:
            self.user_accounts.took(job.user, len(ring), self.now_s)
        self._view = None
        if self._rings.route(job, demand):
            self._share()
        else:
            self._expect(job)
        return True

    def load_on(
        self,
        job: SimulatedJob,
        ring: Sequence[int],
        workers: int = 0,
    ) -> Load:
        """A job's work on these GPUs, or on so many workers on such GPUs."""
        sites = self.cluster.shape.gpus
        models = (
            [sites[gpu].model for gpu in ring] if job.spec.training else ()
        )
        return load_of(
            job.spec,
            workers or len(ring),
            models,
            self.cluster.nic_bps,
        )

    def _checked(self, job: SimulatedJob, ring: Sequence[int]) -> int:
        gpus = 0
        size = len(self.cluster.shape.gpus)
        for gpu in ring:
            gpus |= 1 << gpu if 0 <= gpu < size else 0
        if job.state is not State.WAITING:
            raise BadInput(
                f"job {job.spec.view.name} cannot be started: it is {job.state}"
            )
        if job.is_open and len(ring) in job.spec.view.degrees:
            job.workers = len(ring)
        different = gpus.bit_count() == len(ring) == job.workers
        if not different or gpus & self.occupancy.occupied:
            raise BadInput(
                f"job {job.spec.view.name} cannot run on GPUs {list(ring)[:20]}: expected "
                f"{job.workers} different free ones of 0 to {size - 1}",
                hint="the placement policy's answer is invalid",
            )
        return gpus

    def resize(self, job: SimulatedJob, ring: Sequence[int]) -> None:
        """Restart a running job there, on another number of GPUs."""
        if self._take_off(job, self.now_s):
            self._share()
        job.wait(self.now_s)
        self.waiting[job.index] = job
        job.workers = len(ring)
        job.resizes = job.resizes + 1
        if not self.start(job, ring):
            self.joined.append(job)

    def preempt(self, job: SimulatedJob) -> None:
        """Take a running job's GPUs; it waits again."""
        job.preemptions += 1
        if self._take_off(job, self.now_s):
            self._share()
        self._wait(job)

    def block(self, job: SimulatedJob, cause: Cause) -> None:
        """Mark a job as never to run."""
        waited = self.waiting.pop(job.index, None)
        if waited is not None and self._jobs_of is not None:
            self._jobs_of[job.user] -= 1
        job.block(self.now_s, cause)
        self.ended += 1
        self._view = None

    def rewire(self, maps: Mapping[str, PortMap]) -> Rewiring:
        """Make these circuits; jobs whose paths change stand still meanwhile."""
        change = self.cluster.rewire(maps)
        if not change.cross_connects:
            return change
        self.accounts.rewired(change)
        change = change._replace(dark_s=change.dark_s + self.settings.wiring_s)
        self.released += 1
        self.layout += 1
        self._view = None
        rerouted = False
        for job in self.running.values():
            if len(job.ring) == 1 or not job.gpus & change.relit:
                continue  # Its paths stay: its pace changes only if other jobs share its links.
            demand = self.cluster.demand(job.ring)
            dark = job.gpus & change.gpus
            if not dark and demand == job.demand:
                continue
            rerouted = True
            job.settle(self.now_s)
            if dark:
                job.resume_s = max(job.resume_s, self.now_s + change.dark_s)
            self._rings.route(job, demand)
            self._expect(job)
        if rerouted:
            self._share()
        return change

    # -- the pace of jobs

    def _take_off(self, job: SimulatedJob, now_s: float) -> bool:
        """Take a job off its GPUs; returns whether it shared links."""
        job.settle(now_s)
        self.occupancy.give_back(job.gpus, job.ring)
        if self.user_accounts is not None:
            self.user_accounts.gave_back(job.user, len(job.ring), now_s)
        self._forget(job)
        del self.running[job.index]
        job.ends_s = math.inf
        self.released += 1
        return self._rings.remove(job)

    def _share(self) -> None:
        """Share the links again, and set new ends of the jobs whose pace changes."""
        for job, unit_s in self._rings.new_paces():
            job.settle(self.now_s)
            job.unit_s = unit_s
            self._expect(job)

    def _expect(self, job: SimulatedJob) -> None:
        """Set the job's end at its present pace."""
        self._forget(job)
        job.reckon_end(self.now_s)
        shown_s = job.ends_s if self.settings.known else math.inf
        job.running = Running(shown_s, job.gpus, job.spec.view.name)
        insort(self._by_end, job.running)
        if self.cluster.lab is not None:
            load = (
                job.load
                if self.settings.known
                else job.load._replace(units=math.inf)
            )
            job.shown = RingOfJob(
                job.spec.view.name,
                job.ring,
                load,
                shown_s,
            )
        if job.ends_s < math.inf:
            self._events.expect_end(job)

    def _forget(self, job: SimulatedJob) -> None:
        if job.running is not None:
            del self._by_end[bisect_left(self._by_end, job.running)]
            job.running = None
        self._view = None

    # -- views

    def fate(self, name: str) -> JobFate:
        """The state of a job; one that the trace does not have is never done."""
        job = self._by_name.get(name)
        if job is None or job.state is State.BLOCKED:
            return JobFate.FAILED
        return JobFate.DONE if job.state is State.DONE else JobFate.PENDING

    @cached_property
    def _by_name(self) -> Mapping[str, SimulatedJob]:
        return {job.name: job for job in self.jobs}

    def view(self) -> ClusterView:
        """The cluster as it is now."""
        if self._view is None:
            cluster = self.cluster
            occupancy = self.occupancy
            arrived = self._events.arrived
            accounts = self.user_accounts
            rewired = cluster.lab is not None
            recent = slice(max(0, arrived - _RECENT), arrived)
            if len(self.waiting) < _RECENT:
                late = sorted(
                    each for each in self.waiting if each >= recent.start
                )
                waiting = [self._job_views[each] for each in late]
            else:
                waiting = [
                    j.spec.view
                    for j in self.jobs[recent]
                    if j.state is State.WAITING
                ]
            self._view = ClusterView(
                self.now_s,
                cluster.shape,
                occupancy.occupied,
                occupancy.broken,
                tuple(self._by_end),
                self._job_views[recent],
                self.preview,
                cluster.lab,
                cluster.circuits if rewired else _NOTHING,
                cluster.ports_of(occupancy.allocated) if rewired else _NOTHING,
                usage=_NOTHING
                if accounts is None
                else Frozen(accounts.shares(self.now_s)),
                rings=tuple([job.shown for job in self.running.values()])
                if rewired
                else (),
                queue=waiting,
            )
        return self._view
