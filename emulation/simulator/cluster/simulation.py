"""The cluster in time: jobs come, wait, run at the pace the network allows, and go.

Nothing here decides. ``advance`` goes on to the next moment at which something happens; who
decides then calls ``start``, ``preempt``, ``rewire`` or ``block``.
"""

from __future__ import annotations

import itertools
import math
from array import array
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any

from patchlight.controller.policies.contract import ClusterView, Frozen, JobView, Preview, Running
from patchlight.emulation.simulator.cluster.cluster import Cluster, Rewiring
from patchlight.emulation.simulator.cluster.jobs import QueueJob, load_of
from patchlight.emulation.simulator.cluster.occupancy import Occupancy
from patchlight.emulation.simulator.cluster.outages import Outage
from patchlight.emulation.simulator.cluster.settings import Settings
from patchlight.emulation.simulator.cluster.sharing import fair_rates
from patchlight.emulation.simulator.cluster.tasks import Cause, SimulatedJob, State
from patchlight.testbed.errors import BadInput
from patchlight.testbed.portmap import PortMap

# Moments nearer than this are one.
EPSILON_S = 1e-7
_RECENT = 64
NOTHING: Frozen[str, Any] = Frozen()


def _nowhere(job: JobView, degree: int) -> int | None:
    return None


class Simulation:
    """A cluster and the jobs that come to it. Deterministic: same input and decisions, same end.

    ``waiting`` are the jobs that wait, by their number; ``joined`` those that began to since
    this list was last emptied. ``released`` rises whenever a job that found no place may find
    one: GPUs became free, or the light goes another way.
    """

    def __init__(self, cluster: Cluster, jobs: Sequence[QueueJob], settings: Settings) -> None:
        self.cluster, self.settings = cluster.renewed(), settings
        arrivals = [job.view.arrived_s for job in jobs]
        if any(later < earlier for earlier, later in itertools.pairwise(arrivals)):
            raise BadInput("the jobs do not come in the order of their arrival times")
        self.tasks = [SimulatedJob(number, job) for number, job in enumerate(jobs)]
        self._views = tuple(job.view for job in jobs)
        self._arrived = 0
        self.now_s = 0.0
        self.waiting: dict[int, SimulatedJob] = {}
        self.running: dict[int, SimulatedJob] = {}
        self.joined: list[SimulatedJob] = []
        self.released = 0
        self.ended = 0
        self.held_up = False  # The next job waits though as many GPUs are free as it wants.
        self.occupancy = Occupancy(self.cluster.shape)
        self.preview: Preview = _nowhere
        self._by_end: list[Running] = []
        self._ends: list[tuple[float, int]] = []
        self._sharing: dict[int, SimulatedJob] = {}
        self._wake_s = math.inf
        self._seen: ClusterView | None = None
        self.reconfigurations = self.cross_connects = self.regroups_refused = 0
        self.dark_s = self.dark_gpu_s = 0.0
        self._outages: Iterator[Outage] = iter(())
        if settings.outages is not None:
            self._outages = settings.outages.events(self.cluster.shape, settings.seed)
        self._outage = next(self._outages, None)
        # What was so until each moment: time, jobs waiting, GPUs held, free GPUs in pieces.
        self.series = tuple(array("d") for _ in range(4))
        self.held_up_s = 0.0

    # -- time

    def advance(self) -> bool:
        """Go to the next moment and do what happens by itself; ``False`` if nothing more does."""
        next_s = self._next_s()
        if next_s == math.inf:
            return False
        self._go_to(max(next_s, self.now_s))
        limit_s = self.now_s + EPSILON_S
        self._wake_s = math.inf if self._wake_s <= limit_s else self._wake_s
        self._end_jobs(limit_s)
        while self._outage is not None and self._outage.at_s <= limit_s:
            self._break_or_mend(self._outage)
            self._outage = next(self._outages, None)
        tasks = self.tasks
        while self._arrived < len(tasks) and (self._views[self._arrived].arrived_s <= limit_s):
            task = tasks[self._arrived]
            self._arrived += 1
            if task.workers > self._fitting(task):
                self.block(task, Cause.TOO_LARGE)
            else:
                self._wait(task)
        return True

    def wake_at(self, at_s: float) -> None:
        """Be a moment then, whatever happens."""
        self._wake_s = min(self._wake_s, at_s)

    @property
    def all_come(self) -> bool:
        """Whether the last job has come."""
        return self._arrived == len(self.tasks)

    @property
    def goes_on(self) -> bool:
        """Whether anything happens by itself any more."""
        return self._next_s() < math.inf

    def _next_s(self) -> float:
        while self._ends:
            ends_s, number = self._ends[0]
            if self.tasks[number].ends_s == ends_s:
                break
            heappop(self._ends)
        next_s = min(self._ends[0][0] if self._ends else math.inf, self._wake_s)
        if not self.all_come:
            next_s = min(next_s, self._views[self._arrived].arrived_s)
        # Nothing that breaks matters to a cluster that nobody uses or waits for.
        if self._outage is not None and (
            next_s < math.inf or self.running or (self.waiting and self.occupancy.broken)
        ):
            next_s = min(next_s, self._outage.at_s)
        return next_s

    def _go_to(self, now_s: float) -> None:
        passed_s = now_s - self.now_s
        if passed_s > 0:
            moments, queue, held, pieces = self.series
            moments.append(now_s)
            queue.append(len(self.waiting))
            held.append(self.occupancy.held)
            pieces.append(self.occupancy.fragmentation)
            if self.held_up:
                self.held_up_s += passed_s
            self._seen = None
        self.now_s = now_s

    # -- what happens by itself

    def _fitting(self, task: SimulatedJob) -> int:
        models = task.job.view.gpu_models
        gpus = self.cluster.shape.gpus
        return sum(gpu.model in models for gpu in gpus) if models else len(gpus)

    def _wait(self, task: SimulatedJob) -> None:
        task.state, task.waits_since_s = State.WAITING, self.now_s
        self.waiting[task.index] = task
        self.joined.append(task)
        self._seen = None

    def _end_jobs(self, limit_s: float) -> None:
        ends = self._ends
        shared = False
        while ends and ends[0][0] <= limit_s:
            ends_s, number = heappop(ends)
            task = self.tasks[number]
            if task.ends_s != ends_s:
                continue
            task.settle(ends_s)
            shared = self._take_off(task) or shared
            task.remaining = 0.0
            task.state, task.ended_s = State.DONE, ends_s
            self.ended += 1
        if shared:
            self._share()

    def _break_or_mend(self, outage: Outage) -> None:
        if outage.broken:
            lost = [task for task in self.running.values() if task.gpus & outage.gpus]
            for task in lost:
                self.preempt(task, lost=True)
            self.occupancy.break_down(outage.gpus)
        else:
            self.occupancy.mend(outage.gpus)
            self.released += 1
        self._seen = None

    # -- what others decide

    def start(self, task: SimulatedJob, ring: Sequence[int], dark_s: float = 0.0) -> bool:
        """Run a waiting job on these free GPUs; ``False`` if its ring cannot be closed.

        ``dark_s`` is for how long its circuits are dark first. ``BadInput`` if these are not as
        many different free GPUs as it wants.
        """
        gpus = self._checked(task, ring)
        demand = self.cluster.demand(ring) if len(ring) > 1 else {}
        if demand is None:
            return False
        now_s, sites = self.now_s, self.cluster.shape.gpus
        task.waited_s += now_s - task.waits_since_s
        again_s = 0.0 if math.isnan(task.started_s) else self.settings.restart_s
        if math.isnan(task.started_s):
            task.started_s = now_s
        task.state, task.ring, task.gpus, task.demand = State.RUNNING, tuple(ring), gpus, demand
        if len(ring) == 1:
            task.servers = task.racks = 1
        else:
            task.servers = len({sites[gpu].server for gpu in ring})
            task.racks = len({sites[gpu].rack for gpu in ring})
        models = [sites[gpu].model for gpu in ring] if task.job.training else ()
        task.load = load_of(task.job, len(ring), models, self.cluster.nic_bps)
        task.began_s = task.since_s = now_s
        task.resume_s = now_s + again_s + dark_s
        task.began_remaining = task.remaining
        task.unit_s = task.load.unit_s(self.cluster.edge_bps)
        del self.waiting[task.index]
        self.running[task.index] = task
        self.occupancy.take(gpus, ring)
        self._seen = None
        if demand and task.load.ring_bits:
            task.unit_s = math.inf  # Until the links are shared out anew.
            self._sharing[task.index] = task
            self._share()
        else:
            self._expect(task)
        return True

    def _checked(self, task: SimulatedJob, ring: Sequence[int]) -> int:
        gpus = 0
        size = len(self.cluster.shape.gpus)
        for gpu in ring:
            gpus |= 1 << gpu if 0 <= gpu < size else 0
        if task.state is not State.WAITING:
            raise BadInput(f"job {task.job.view.name} cannot be started: it is {task.state}")
        if (
            gpus.bit_count() != len(ring)
            or len(ring) != task.workers
            or (gpus & self.occupancy.occupied)
        ):
            raise BadInput(
                f"job {task.job.view.name} cannot run on GPUs {list(ring)[:20]}: expected "
                f"{task.workers} different free ones of 0 to {size - 1}",
                hint="the placement policy answered what it may not",
            )
        return gpus

    def preempt(self, task: SimulatedJob, lost: bool = False) -> None:
        """Take a running job's GPUs; it waits again. ``lost``: since its last checkpoint."""
        task.settle(self.now_s)
        if lost:
            task.lose_work(self.now_s, self.settings.checkpoint_s)
            task.losses += 1
        else:
            task.preemptions += 1
        if self._take_off(task):
            self._share()
        self._wait(task)

    def block(self, task: SimulatedJob, cause: Cause) -> None:
        """A job that has come will never run."""
        if task.state is State.WAITING:
            task.waited_s += self.now_s - task.waits_since_s
            del self.waiting[task.index]
        task.state, task.cause, task.ended_s = State.BLOCKED, cause, self.now_s
        self.ended += 1
        self._seen = None

    def rewire(self, maps: Mapping[str, PortMap]) -> Rewiring:
        """Light these circuits; jobs whose light moves stand still for the switching time."""
        change = self.cluster.rewire(maps)
        if not change.cross_connects:
            return change
        self.reconfigurations += 1
        self.cross_connects += change.cross_connects
        self.dark_s += change.dark_s
        self.dark_gpu_s += change.dark_s * change.gpus.bit_count()
        self.released += 1
        self._seen = None
        for task in self.running.values():
            if len(task.ring) == 1:
                continue
            task.settle(self.now_s)
            if task.gpus & change.gpus:
                task.resume_s = max(task.resume_s, self.now_s + change.dark_s)
            demand = self.cluster.demand(task.ring)
            self._sharing.pop(task.index, None)
            task.demand = demand or {}
            assert task.load is not None
            if demand is None:
                task.unit_s = math.inf  # Dark: it stands still until it is lit again.
            elif demand and task.load.ring_bits:
                self._sharing[task.index] = task
            else:
                task.unit_s = task.load.unit_s(self.cluster.edge_bps)
            self._expect(task)
        self._share()
        return change

    # -- the pace of jobs

    def _take_off(self, task: SimulatedJob) -> bool:
        """Give back its GPUs; whether it shared links with others."""
        self.occupancy.give_back(task.gpus, task.ring)
        self._forget(task)
        del self.running[task.index]
        task.ends_s = math.inf
        self.released += 1
        self._seen = None
        return self._sharing.pop(task.index, None) is not None

    def _share(self) -> None:
        """Share out the links anew; those whose pace changes end at another time."""
        tasks = list(self._sharing.values())
        cluster = self.cluster
        rates = fair_rates([task.demand for task in tasks], cluster.capacity_bps, cluster.edge_bps)
        for task, rate_bps in zip(tasks, rates, strict=True):
            assert task.load is not None
            unit_s = task.load.unit_s(rate_bps)
            if unit_s != task.unit_s:
                task.settle(self.now_s)
                task.unit_s = unit_s
                self._expect(task)

    def _expect(self, task: SimulatedJob) -> None:
        """Write down when it ends at its present pace."""
        self._forget(task)
        begins_s = max(self.now_s, task.resume_s)
        left = task.remaining
        task.ends_s = begins_s + left * task.unit_s if left else begins_s
        shown_s = task.ends_s if self.settings.known else math.inf
        task.running = Running(shown_s, task.gpus, task.job.view.name)
        insort(self._by_end, task.running)
        if task.ends_s < math.inf:
            heappush(self._ends, (task.ends_s, task.index))

    def _forget(self, task: SimulatedJob) -> None:
        if task.running is not None:
            del self._by_end[bisect_left(self._by_end, task.running)]
            task.running = None
        self._seen = None

    # -- what policies see

    def view(self) -> ClusterView:
        """The cluster as it is now."""
        if self._seen is None:
            cluster, occupancy = self.cluster, self.occupancy
            self._seen = ClusterView(
                self.now_s,
                cluster.shape,
                occupancy.occupied,
                occupancy.broken,
                tuple(self._by_end),
                self._views[max(0, self._arrived - _RECENT) : self._arrived],
                self.preview,
                cluster.lab,
                NOTHING if cluster.lab is None else Frozen(cluster.circuits),
                NOTHING if cluster.lab is None else Frozen(cluster.ports_of(occupancy.allocated)),
            )
        return self._seen
