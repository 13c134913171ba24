"""Policies decide on a simulated cluster: who is next, where it goes, which circuits are lit."""

import math
import time
from array import array
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from patchlight.controller.policies.contract import (
    ClusterView,
    Frozen,
    JobView,
    OrderPolicy,
    PlacementPolicy,
    TopologyPolicy,
)
from patchlight.controller.policies.defragment import defragment
from patchlight.emulation.simulator.cluster.cluster import Cluster
from patchlight.emulation.simulator.cluster.jobs import QueueJob
from patchlight.emulation.simulator.cluster.results import QueueResult
from patchlight.emulation.simulator.cluster.settings import Settings
from patchlight.emulation.simulator.cluster.simulated_job import Cause, SimulatedJob
from patchlight.emulation.simulator.cluster.simulation import EPSILON_S, Simulation
from patchlight.emulation.simulator.cluster.victims import victims_of
from patchlight.testbed.errors import PatchlightError

Tell = Callable[[int, int], None]
"""Hears how many jobs have ended, of how many."""

# A job that nothing but broken GPUs keeps waiting for so long will not get them any more.
_HOPELESS_S = 365 * 86400.0
_TELL_EVERY = 500


@dataclass(frozen=True)
class Policies:
    """Who decides. Without ``topology`` circuits stay as they are."""

    order: OrderPolicy
    placement: PlacementPolicy
    topology: TopologyPolicy | None = None


class QueueScheduler:
    """Starts waiting jobs of a simulation as its policies say.

    A job's priority is asked for when it begins to wait. Policies whose answer depends on
    more than the job and its progress have to be asked again at each moment; one that does not
    says so with an attribute ``stable`` that is true, and long queues are then quick.
    """

    def __init__(self, simulation: Simulation, policies: Policies) -> None:
        self._simulation, self._policies = simulation, policies
        self._settings = simulation.settings
        # A guard around a policy keeps it as ``policy``.
        order = getattr(policies.order, "policy", policies.order)
        self._stable = bool(getattr(order, "stable", False))
        rises_at = getattr(order, "rises_at", None) if self._stable else None
        self._victims = victims_of(simulation, self._priority, rises_at)
        self._queue: list[tuple[float, int, SimulatedJob]] = []
        self._failed: tuple[int, int] | None = None
        self._in_vain: tuple[int, int] | None = None
        self._again_s = 0.0
        self._look_s, self._seen_ended = 0.0, 0
        self._seen: frozenset[int] = frozenset()
        self.latencies_s = array("d")
        simulation.preview = self._preview

    def decide(self) -> None:
        """Start all that can be started now; then move light under running jobs if that pays."""
        self._start_jobs()
        if self._settings.defragment_s is not None and self._simulation.running:
            self._defragment(self._settings.defragment_s)

    def _defragment(self, every_s: float) -> None:
        simulation = self._simulation
        running = frozenset(simulation.running)
        if running == self._seen:
            return  # Nothing began or ended: less is to be gained now than when it was looked at.
        if simulation.ended == self._seen_ended and simulation.now_s < self._look_s:
            simulation.wake_at(self._look_s)
            return
        self._seen, self._seen_ended = running, simulation.ended
        self._look_s = simulation.now_s + every_s
        # Its ports are barred as they carry running jobs: those are what this is about.
        proposal = defragment(simulation.view()._replace(barred=Frozen()))
        if proposal is not None:
            simulation.rewire(proposal.maps)

    def _start_jobs(self) -> None:
        simulation = self._simulation
        self._join()
        simulation.held_up = False
        while self._queue:
            head = self._queue[0][2]
            if self._try(head):
                del self._queue[0]
            elif not (self._settings.preempt and self._make_room(head)):
                break
        if not self._queue:
            return
        head = self._queue[0][2]
        simulation.held_up = simulation.occupancy.free >= head.workers
        if self._settings.backfill:
            self._backfill(head)
        if self._settings.preempt and simulation.running:
            simulation.wake_at(simulation.now_s + self._settings.quantum_s)

    def give_up(self) -> bool:
        """Nothing will happen any more but jobs wait: block the next one; ``False`` if none do."""
        if not self._queue:
            return False
        head = self._queue.pop(0)[2]
        self._simulation.block(head, Cause.UNPLACEABLE)
        return True

    def drop_hopeless(self) -> None:
        """Where nothing runs or comes, block what could not even be placed on whole GPUs."""
        simulation = self._simulation
        while self._queue and not simulation.running and simulation.all_arrived:
            head = self._queue[0][2]
            waited_s = simulation.now_s - head.waits_since_s
            empty = simulation.view()._replace(occupied=0, broken=0)
            if waited_s < _HOPELESS_S and self._place(empty, head) is not None:
                return
            self.give_up()
            self.decide()

    # -- the queue

    def _join(self) -> None:
        simulation, queue = self._simulation, self._queue
        if self._stable and not simulation.joined:
            return
        joined, simulation.joined = simulation.joined, []
        if not self._stable and queue:
            jobs = [*(job for _, _, job in queue), *joined]
            self._queue = sorted(self._entry(job) for job in jobs)
            return
        for job in joined:
            insort(queue, self._entry(job))

    def _entry(self, job: SimulatedJob) -> tuple[float, int, SimulatedJob]:
        return self._priority(job), job.index, job

    def _priority(self, job: SimulatedJob) -> float:
        simulation = self._simulation
        progress = job.progress(simulation.now_s, self._settings.known)
        return self._policies.order.priority(simulation.view(), job.spec.view, progress)

    # -- starting jobs

    def _try(self, job: SimulatedJob) -> bool:
        """Start a job where the policy puts it; ``False`` if it has to wait."""
        simulation = self._simulation
        if simulation.occupancy.free < job.workers:
            return False
        attempt = (job.index, simulation.released)
        if attempt == self._failed:
            return False  # Nothing has become free since it was tried.
        ring = self._place(simulation.view(), job)
        if ring is not None and self._start(job, ring):
            return True
        self._failed = attempt
        return False

    def _start(self, job: SimulatedJob, ring: Sequence[int]) -> bool:
        simulation, topology = self._simulation, self._policies.topology
        dark_s = 0.0
        if topology is not None and len(ring) > 1:
            try:
                wanted = topology.circuits(simulation.view_with(job, ring), [ring])
            except PatchlightError:
                simulation.accounts.regroups_refused += 1
            else:
                if wanted:
                    dark_s = simulation.rewire(wanted).dark_s
        if not simulation.start(job, ring, dark_s):
            return False
        if self._settings.preempt:
            self._victims.started(job)
        return True

    def _place(self, view: ClusterView, job: SimulatedJob) -> Sequence[int] | None:
        began = time.perf_counter()
        ring = self._policies.placement.place(view, job.spec.view, job.workers)
        self.latencies_s.append(time.perf_counter() - began)
        return ring

    def _preview(self, job: JobView, degree: int) -> int | None:
        """Where the placement policy would put a job of so many GPUs, as a set."""
        if self._simulation.occupancy.free < degree:
            return None
        ring = self._policies.placement.place(self._simulation.view(), job, degree)
        return None if ring is None else sum(1 << gpu for gpu in ring)

    def _backfill(self, head: SimulatedJob) -> None:
        """EASY: jobs behind the first may start if that does not put off when it can.

        When it can is where as many GPUs as it wants are free; their places are not looked at.
        """
        simulation = self._simulation
        now_s, free = simulation.now_s, simulation.occupancy.free
        shadow_s = now_s
        for each in simulation.view().running:
            if free >= head.workers:
                break
            shadow_s, free = each.ends_s, free + each.gpus.bit_count()
        spare = free - head.workers
        number, looked_at = 1, 0
        while number < len(self._queue) and looked_at < self._settings.backfill_depth:
            looked_at += 1
            available = simulation.occupancy.free
            if not available:
                return
            job = self._queue[number][2]
            again_s = 0.0 if math.isnan(job.started_s) else self._settings.restart_s
            ends_s = now_s + again_s + job.progress(now_s, known=True).remaining_s
            early = ends_s <= shadow_s + EPSILON_S
            fits = job.workers <= available and (early or job.workers <= spare)
            ring = self._place(simulation.view(), job) if fits else None
            if ring is None or not self._start(job, ring):
                number += 1
                continue
            del self._queue[number]
            if not early:
                spare -= job.workers

    def _make_room(self, head: SimulatedJob) -> bool:
        """Preempt jobs behind the next one until it finds a place; ``False`` if it finds none."""
        simulation = self._simulation
        attempt = (head.index, simulation.released)
        if attempt == self._in_vain and simulation.now_s < self._again_s:
            return False  # Who runs has not got less important meanwhile, or not by much.
        view = simulation.view()
        occupied, chosen = view.occupied, list[SimulatedJob]()
        free = simulation.occupancy.free
        for job in self._victims.behind(self._priority(head)):
            chosen.append(job)
            occupied &= ~job.gpus
            free += job.workers
            if free < head.workers:
                continue
            ring = self._place(view._replace(occupied=occupied), head)
            if ring is None:
                continue
            taken = sum(1 << gpu for gpu in ring)
            for each in chosen:
                if each.gpus & taken:
                    simulation.preempt(each)
            del self._queue[0]
            if not self._start(head, ring):
                insort(self._queue, self._entry(head))
            # Those who lost their GPUs wait now, behind whoever comes first in order.
            self._join()
            return True
        self._in_vain = attempt
        self._again_s = simulation.now_s + self._settings.quantum_s - EPSILON_S
        return False


def simulate(
    cluster: Cluster,
    jobs: Sequence[QueueJob],
    policies: Policies,
    settings: Settings | None = None,
    tell: Tell | None = None,
) -> QueueResult:
    """Run all jobs to their end. The same input gives the same result, but for the latencies."""
    simulation = Simulation(cluster, jobs, settings or Settings())
    scheduler = QueueScheduler(simulation, policies)
    told = 0
    while simulation.ended < len(jobs):
        if simulation.advance():
            scheduler.decide()
            if not simulation.running and simulation.all_arrived:
                scheduler.drop_hopeless()
        elif simulation.running:
            names = [job.spec.view.name for job in simulation.running.values()]
            raise PatchlightError(
                f"the simulation stands still at {simulation.now_s:.0f} s: "
                f"{', '.join(names[:5])} cannot go on, a NIC of theirs is dark",
                hint="the topology policy took the light of a job that runs",
            )
        elif not scheduler.give_up():
            raise PatchlightError(
                f"the simulation stands still at {simulation.now_s:.0f} s with "
                f"{len(jobs) - simulation.ended} jobs not ended, and none waits"
            )
        else:
            scheduler.decide()
        if tell is not None and simulation.ended - told >= _TELL_EVERY:
            told = simulation.ended
            tell(told, len(jobs))
    if tell is not None:
        tell(simulation.ended, len(jobs))
    return QueueResult.of(simulation, scheduler.latencies_s)
