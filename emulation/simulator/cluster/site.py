"""A simulated cluster as queue policies see it: they choose the next job and its GPUs."""

import math
import time
from array import array
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass

from patchlight.controller.jobs.discipline.contract import (
    JobFate,
    UserAccounts,
)
from patchlight.controller.jobs.discipline.queue import (
    is_stable,
    iteration_times,
    room_for,
)
from patchlight.controller.policies import contract
from patchlight.controller.policies.options.outlook import Networks
from patchlight.controller.prediction.network import Load
from patchlight.emulation.simulator.cluster.simulated_job import (
    Cause,
    SimulatedJob,
)
from patchlight.emulation.simulator.cluster.simulation import Simulation
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.rules import Waiting, WaitReason

Ring = Sequence[int]

_NO_PLACE = Waiting(
    WaitReason.NO_PLACE, "the placement policy finds no hosts for it"
)
_REFUSED = Waiting(
    WaitReason.UNREACHABLE, "the partition policy refuses it", is_blocked=True
)
_CAUSES = {
    WaitReason.QUOTA: Cause.QUOTA,
    WaitReason.DEPENDENCY: Cause.DEPENDENCY,
    WaitReason.UNREACHABLE: Cause.REFUSED,
}


@dataclass(frozen=True)
class Policies:
    """Who decides.

    Without ``topology`` circuits stay as they are, without ``elasticity`` jobs keep their degree.
    ``partition`` is asked about jobs that leave their degree open; without it there can be none.
    """

    order: contract.OrderPolicy
    placement: contract.PlacementPolicy
    topology: contract.TopologyPolicy | None = None
    elasticity: contract.ElasticityPolicy | None = None
    partition: contract.PartitionPolicy | None = None


class SimulatedSite:
    """Asks the policies about the jobs of a simulation, and does there what a queue says.

    ``latencies_s`` are how long decisions on a job's place took, measured. Whoever lets the queue
    decide says before what ``now_s`` and ``released`` are: they are read too often to be asked for.
    """

    def __init__(self, simulation: Simulation, policies: Policies) -> None:
        self._simulation = simulation
        self._topology = policies.topology
        self._elasticity = policies.elasticity
        self._priority = policies.order.priority
        self._place = policies.placement.place
        self._partition = policies.partition
        self._known = simulation.settings.known
        self._restart_s = simulation.settings.restart_s
        self.joined = simulation.joined
        self.running = simulation.running
        self.occupancy = simulation.occupancy
        self.now_s = simulation.now_s
        self.released = simulation.released
        self.latencies_s = array("d")
        self._networks = Networks()

    @property
    def accounts(self) -> UserAccounts | None:
        """The books of its users."""
        return self._simulation.user_accounts

    @property
    def layout(self) -> int:
        """How often circuits were changed."""
        return self._simulation.layout

    # -- what is known

    def rank(self, job: SimulatedJob) -> float:
        """The order policy's priority of a job now."""
        simulation = self._simulation
        progress = job.progress(simulation.now_s, self._known)
        return self._priority(simulation.view(), job.spec.view, progress)

    def ends(self) -> Sequence[contract.Running]:
        """The ends of running jobs at their present pace, the next first."""
        return self._simulation.view().running

    def out_of_reach(self, job: SimulatedJob) -> None:
        """Outages end."""

    def would_end_s(self, job: SimulatedJob) -> float:
        """When a job would end if it started now, on links of its own."""
        now_s = self._simulation.now_s
        again_s = 0.0 if math.isnan(job.started_s) else self._restart_s
        return now_s + again_s + job.progress(now_s, known=True).remaining_s

    def fate(self, name: str) -> JobFate:
        """The state of the job of that name."""
        return self._simulation.fate(name)

    def free_for(self, job: SimulatedJob) -> int:
        """How many free GPUs are of the job's models."""
        return self._simulation.view().free_for(job.spec.view).bit_count()

    # -- what can be done

    def place(
        self, job: SimulatedJob, occupied: int | None = None
    ) -> Ring | Waiting:
        """Where the placement policy puts a job, once the partition policy said how many GPUs."""
        view = self._simulation.view()
        if occupied is not None:
            view = view._replace(occupied=occupied)
        began = time.perf_counter()
        asked = job.spec.view
        workers = job.workers
        if job.is_open:
            degree = self._degree(view, asked)
            if not degree:
                return _NO_PLACE if degree is None else _REFUSED
            asked = sized(asked, degree)
            workers = degree
        ring = self._place(view, asked, workers)
        self.latencies_s.append(time.perf_counter() - began)
        return _NO_PLACE if ring is None else ring

    def _degree(
        self, view: contract.ClusterView, job: contract.JobView
    ) -> int | None:
        """The partition policy's degree for a job that leaves it open."""
        accounts = self.accounts
        most = math.inf if accounts is None else accounts.room(job.user)
        most = min(most, view.free_for(job).bit_count())
        legal = (0, *(degree for degree in job.degrees if degree <= most))
        if self._partition is None or len(legal) == 1:
            return None
        return self._partition.degree(view, job, legal)

    def is_placeable(self, job: SimulatedJob) -> bool:
        """Whether the policy would find a place if nothing ran and nothing was broken."""
        empty = self._simulation.view()._replace(
            occupied=0,
            broken=0,
        )
        return (
            self._place(empty, sized(job.spec.view, job.workers), job.workers)
            is not None
        )

    def gpus_of(self, ring: Ring) -> int:
        """A ring as a set."""
        return sum(1 << gpu for gpu in ring)

    def can_start(
        self,
        job: SimulatedJob,
        ring: Ring,
        without: Sequence[SimulatedJob],
    ) -> bool:
        """Whether light would join these GPUs, with the circuits that the topology policy wants."""
        cluster = self._simulation.cluster
        if cluster.lab is None or len(ring) == 1:
            return True
        if wanted := self._circuits(job, ring, without):
            cluster = copy(cluster)
            cluster.rewire(wanted)
        return cluster.demand(ring) is not None

    def start(self, job: SimulatedJob, ring: Ring) -> bool:
        """Start a job, with the circuits that the topology policy wants; ``False`` in the dark."""
        simulation = self._simulation
        dark_s = 0.0
        wanted = self._circuits(job, ring)
        if wanted is None:
            simulation.accounts.regroups_refused += 1
        elif wanted:
            dark_s = simulation.rewire(wanted).dark_s
            self.released = simulation.released
        return simulation.start(job, ring, dark_s)

    def _circuits(
        self,
        job: SimulatedJob,
        ring: Ring,
        without: Sequence[SimulatedJob] = (),
    ) -> Mapping[str, PortMap] | None:
        """The maps that the topology policy wants for a job there; ``None`` if it finds none."""
        if self._topology is None or len(ring) == 1:
            return {}
        try:
            return self._topology.circuits(
                self._view_with(job, ring, without), [ring]
            )
        except PatchlightError:
            return None

    def _view_with(
        self,
        job: SimulatedJob,
        ring: Ring,
        without: Sequence[SimulatedJob],
    ) -> contract.ClusterView:
        """The cluster with a waiting job's ring beside those that run, but ``without`` these."""
        simulation = self._simulation
        view = simulation.view()
        load = simulation.load_on(job, ring)
        units = job.remaining if self._known else math.inf
        placed = contract.RingOfJob(
            job.name,
            tuple(ring),
            load._replace(units=units),
            waits=True,
        )
        running = [
            each for each in self.running.values() if each not in without
        ]
        if without:
            gone = [each.running for each in without]
            held = self.occupancy.allocated & ~sum(
                each.gpus for each in without
            )
            view = view._replace(
                occupied=held | view.broken,
                running=tuple(
                    each for each in view.running if each not in gone
                ),
                rings=tuple(each.shown for each in running),
                barred=simulation.cluster.ports_of(held),
            )
        return view._replace(
            rings=(*view.rings, placed),
            measured=_measured(running),
        )

    def preempt(self, job: SimulatedJob) -> None:
        """Take a job's GPUs; it waits again."""
        self._simulation.preempt(job)
        self.released = self._simulation.released

    def refuse(self, job: SimulatedJob, why: Waiting) -> bool:
        """A job of a trace that is blocked never runs: nobody is there who would mend it."""
        self._simulation.block(job, _CAUSES.get(why.reason, Cause.UNPLACEABLE))
        return True

    def wake_at(self, at_s: float) -> None:
        """Be a moment then."""
        self._simulation.wake_at(at_s)

    # -- other numbers of GPUs

    @property
    def is_stable(self) -> bool:
        """Whether the elasticity policy is asked at events only."""
        return is_stable(self._elasticity)

    def elastic(
        self, most: int | None = None
    ) -> list[tuple[SimulatedJob, contract.ElasticJob]]:
        """The first running jobs that may have other numbers of GPUs, with those they can have."""
        simulation = self._simulation
        view = simulation.view()
        now_s = simulation.now_s
        found: list[tuple[SimulatedJob, contract.ElasticJob]] = []
        for job in self.running.values():
            if len(found) == most:
                break
            if len(job.spec.degrees) < 2 or job.resume_s > now_s:
                continue
            shown = contract.ElasticJob(
                job.name,
                len(job.ring),
                contract.Frozen(self._times(job, view)),
                job.left(now_s) if self._known else math.inf,
                self._restart_s,
                job.began_s,
                job.user,
            )
            found.append((job, shown))
        return found

    def _times(
        self, job: SimulatedJob, view: contract.ClusterView
    ) -> Mapping[int, float]:
        """Seconds of a unit by each degree that the job can have now."""
        simulation = self._simulation
        now = len(job.ring)
        models = job.spec.view.gpu_models
        free = (
            view.free_for(job.spec.view).bit_count()
            if models
            else self.occupancy.free
        )
        degrees = [
            degree for degree in job.spec.degrees if degree <= now + free
        ]
        wiring = self._networks.of(view)
        if wiring is None:
            # At the rate that its edges have now.
            communicates_s = job.unit_s - job.load.compute_s
            rate_bps = (
                job.load.ring_bits / communicates_s
                if communicates_s > 0
                else 0.0
            )
            rate_bps = rate_bps or simulation.cluster.nic_bps
            return {
                degree: self._load(job, degree).unit_s(rate_bps)
                for degree in degrees
            }
        options: dict[int, tuple[Ring, Load]] = {}
        for degree in degrees:
            ring = (
                job.ring if degree == now else self._ring_of(job, degree, view)
            )
            if ring is not None:
                same = degree == now
                load = (
                    job.load if same else simulation.load_on(job, ring, degree)
                )
                options[degree] = ring, load
        return iteration_times(
            wiring.network,
            view,
            job.name,
            options,
        )

    def _load(self, job: SimulatedJob, degree: int) -> Load:
        """A job's work on so many GPUs like those that it has; known as long as it has them."""
        if (known := job.loads.get(degree)) is None:
            same = degree == len(job.ring)
            known = (
                job.load
                if same
                else self._simulation.load_on(job, job.ring, degree)
            )
            job.loads[degree] = known
        return known

    def _ring_of(
        self,
        job: SimulatedJob,
        degree: int,
        view: contract.ClusterView,
    ) -> Ring | None:
        room = room_for(
            view,
            job.name,
            job.gpus,
            grows=degree > len(job.ring),
        )
        return self._place(
            room, job.spec.view._replace(workers=degree), degree
        )

    def queued(self, job: SimulatedJob) -> contract.QueuedJob:
        """A job that waits."""
        lasts_s = (
            self.would_end_s(job) - self.now_s if self._known else math.inf
        )
        view = job.spec.view
        return contract.QueuedJob(
            job.name,
            job.workers,
            view.gpu_models,
            lasts_s,
            job.user,
        )

    def ask(
        self,
        jobs: Sequence[contract.ElasticJob],
        queue: Sequence[contract.QueuedJob],
    ) -> Mapping[str, int]:
        """The elasticity policy's answer."""
        assert self._elasticity is not None  # Whoever has none does not ask.
        return self._elasticity.resize(self._simulation.view(), jobs, queue)

    def resize(self, job: SimulatedJob, degree: int) -> None:
        """Run a job on so many GPUs, if the placement policy finds them."""
        ring = self._ring_of(job, degree, self._simulation.view())
        if ring is not None:
            self._simulation.resize(job, ring)
            self.released = self._simulation.released

    def preview(self, job: contract.JobView, degree: int) -> int | None:
        """Where the placement policy would put a job of so many GPUs, as a set."""
        if self.occupancy.free < degree:
            return None
        ring = self._place(self._simulation.view(), job, degree)
        return None if ring is None else self.gpus_of(ring)


def sized(job: contract.JobView, workers: int) -> contract.JobView:
    """A job as one of so many workers, where it leaves their number open."""
    if job.workers:
        return job
    splits = job.training is not None and job.training.split
    expected_s = {workers: job.sequential_s / workers} if splits else {}
    return job._replace(
        workers=workers,
        expected_s=contract.Frozen(expected_s),
    )


def _measured(
    running: Sequence[SimulatedJob],
) -> Mapping[int, tuple[float, float]]:
    """The rates that each GPU's NIC sends and receives now, as a lab's ports would count them."""
    found: dict[int, tuple[float, float]] = {}
    for job in running:
        if len(job.ring) > 1 and job.unit_s < math.inf:
            rate_bps = job.load.ring_bits / job.unit_s
            found |= dict.fromkeys(job.ring, (rate_bps, rate_bps))
    return contract.Frozen(found)
