"""Presents the lab to its queue, and collects the decisions of one pass in a thread. It never waits
or touches a device: the pass's decisions are applied afterwards."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from patchlight.controller.jobs import cluster_view
from patchlight.controller.jobs.discipline.contract import (
    JobFate,
    UserAccounts,
)
from patchlight.controller.jobs.discipline.queue import (
    is_stable,
    iteration_times,
    room_for,
)
from patchlight.controller.jobs.entries import GangEntry
from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.jobs.placement import LabSnapshot, Placed, Placement
from patchlight.controller.jobs.specs import error_text
from patchlight.controller.policies import contract
from patchlight.controller.policies.options.outlook import Networks
from patchlight.controller.policies.registry import DEFAULTS
from patchlight.controller.prediction import completion, network
from patchlight.testbed.jobs import JobState, JobStatus
from patchlight.testbed.lab.rules import Waiting, WaitReason
from patchlight.testbed.lab.wiring import trace_links

# Without degrees in the job, only powers of two are tried in labs with more GPUs.
_FEW = 8
_RELEASING = Waiting(
    WaitReason.NO_GPUS, "it was preempted and is still releasing its hosts"
)


class Hosts(NamedTuple):
    """The placements of a gang's jobs, by job id, and all their GPUs as a set."""

    by_job: Mapping[str, Placed]
    gpus: int


class Started(NamedTuple):
    """A gang that starts there once these others have released their hosts."""

    entry: GangEntry
    hosts: Hosts
    preempted: tuple[GangEntry, ...]


class Resized(NamedTuple):
    """A job that continues on other hosts, and the decisions behind it."""

    entry: GangEntry
    hosts: tuple[str, ...]
    why: str
    decisions: tuple[cluster_view.Decision, ...]


@dataclass
class _Occupancy:
    occupied: int
    broken: int
    everything: int

    @property
    def free(self) -> int:
        return (self.everything & ~self.occupied).bit_count()


@dataclass
class LabSite:
    """The lab during passes, and the decisions of the last one; ``look`` begins each."""

    table: JobTable
    placement: Placement
    accounts: UserAccounts
    joined: list[GangEntry] = field(default_factory=list)
    running: dict[int, GangEntry] = field(default_factory=dict)
    started: list[Started] = field(default_factory=list)
    preempted: list[GangEntry] = field(default_factory=list)
    refused: dict[GangEntry, Exception] = field(default_factory=dict)
    resized: list[Resized] = field(default_factory=list)
    networks: Networks = field(default_factory=Networks)
    now_s: float = 0.0
    released: int = 0
    layout: int = 0
    wake_s: float = math.inf
    _shown: object = None
    _network: tuple[int, network.LabNetwork] | None = None

    def look(
        self,
        lab: LabSnapshot,
        now_s: float,
        start_s: float = 0.0,
        releasing: Collection[GangEntry] = (),
    ) -> None:
        """Begin a pass with the lab's present state. A job takes ``start_s`` to start; gangs that
        are ``releasing`` their hosts, after a preemption, cannot start yet."""
        view = lab.view._replace(
            usage=contract.Frozen(self.accounts.shares(now_s))
        )
        shown = (
            view.broken,
            dict(view.circuits),
            view.failed,
            lab.reach.without_link,
        )
        if shown != self._shown:
            self.layout += 1
            self.released += 1
        self._shown = shown
        self._lab = lab._replace(view=view)
        self.now_s = now_s
        self._start_s = start_s
        self._releasing = {*releasing}
        self.wake_s = math.inf
        for decided_last in (
            self.started,
            self.preempted,
            self.refused,
            self.resized,
        ):
            decided_last.clear()
        self._failures: dict[GangEntry, Exception] = {}
        self._freed: list[tuple[int, GangEntry]] = []
        self.occupancy = _Occupancy(
            view.occupied, view.broken, view.shape.everything
        )

    def rank(self, entry: GangEntry) -> float:
        """The order policy's value of a gang: the minimum of its jobs'."""
        view = self._view().view
        order = self.placement.policies.now.order
        ranks = []
        for status in entry.statuses:
            left_s = cluster_view.alone_s(status, entry.nic_bps)
            progress = contract.Progress(
                status.gpu_seconds(self.now_s), left_s
            )
            ranks.append(
                order.priority(view, cluster_view.view_of(status), progress)
            )
        return min(ranks)

    def ends(self) -> Sequence[contract.Running]:
        """The ends of running jobs at their present pace. Those whose end is recorded, and whose
        workers are still ending, end now."""
        cluster = self._lab.cluster
        hosts = {
            job: at.hosts
            for each in self.started
            for job, at in each.hosts.by_job.items()
        }
        rings = {
            entry: [
                cluster.ring(status.id, held, status)
                for status in entry.statuses
                if (held := hosts.get(status.id, status.hosts))
                and not status.state.is_final
            ]
            for entry in self.running.values()
        }
        works = {
            ring.name: completion.RingWork(ring.ring, ring.load)
            for each in rings.values()
            for ring in each
            if ring.load is not None
        }
        if self._network is None or self._network[0] != self.layout:
            links = trace_links(cluster.lab, cluster.maps)
            self._network = self.layout, network.LabNetwork(cluster.lab, links)
        paces = completion.units_s(self._network[1], list(works.values()))
        unit_s = dict(zip(works, paces, strict=True))
        return sorted(
            contract.Running(
                max(
                    (self._end_s(ring, entry, unit_s) for ring in each),
                    default=self.now_s,
                ),
                entry.gpus,
                entry.name,
            )
            for entry, each in rings.items()
        )

    def _end_s(
        self,
        ring: contract.RingOfJob,
        entry: GangEntry,
        unit_s: Mapping[str, float],
    ) -> float:
        """The end of a running job; without circuits yet, as on links of its own."""
        if ring.load is None:
            return math.inf
        pace_s = unit_s[ring.name]
        pace_s = (
            ring.load.unit_s(entry.nic_bps) if pace_s == math.inf else pace_s
        )
        return self.now_s + max(0.0, ring.load.units) * pace_s

    def would_end_s(self, entry: GangEntry) -> float:
        """The end of a waiting gang if it started now, on links of its own."""
        left_s = entry.progress(self.now_s, known=True).remaining_s
        return math.inf if math.isnan(left_s) else self.now_s + left_s

    def fate(self, name: str) -> JobFate:
        """The state of a job, by its id."""
        status = self.table.find(name)
        if status is None or status.state in (
            JobState.FAILED,
            JobState.STOPPED,
        ):
            return JobFate.FAILED
        return (
            JobFate.DONE if status.state is JobState.DONE else JobFate.PENDING
        )

    def free_for(self, entry: GangEntry) -> int:
        """How many free GPUs the gang can run on."""
        return self.placement.free_for(self._view(), entry.statuses)

    def out_of_reach(self, entry: GangEntry) -> Waiting | None:
        """Why too few hosts for the gang can be reached, if so."""
        return self.placement.out_of_reach(self._lab, entry.statuses)

    def _view(self) -> LabSnapshot:
        view = self._lab.view._replace(occupied=self.occupancy.occupied)
        return self._lab._replace(view=view)

    def place(
        self, entry: GangEntry, occupied: int | None = None
    ) -> Hosts | Waiting:
        """The policies' placements of the gang, or why there are none."""
        if entry in self._releasing:
            return _RELEASING
        taken = self.occupancy.occupied if occupied is None else occupied
        by_job: dict[str, Placed] = {}
        gpus = 0
        room = self.accounts.room(entry.user) - entry.workers
        named = self.placement.gpus_named(self._lab, entry.statuses)
        try:
            for status in entry.statuses:
                # Hosts that another job of the gang names are not available.
                busy = taken | gpus
                for job_id, others in named.items():
                    busy |= others if job_id != status.id else 0
                # Leave the other jobs of the gang their minimum.
                most = room + status.spec.least_workers
                found = self.placement.place(
                    self._lab,
                    status,
                    busy,
                    most=most,
                )
                if isinstance(found, Waiting):
                    return found
                room = most - len(found.hosts)
                by_job[status.id] = found
                gpus |= self._lab.cluster.as_set(found.hosts)
        except Exception as error:
            self._failures[entry] = error
            return Waiting(
                WaitReason.UNREACHABLE, error_text(error), is_blocked=True
            )
        return Hosts(by_job, gpus)

    def gpus_of(self, placement: Hosts) -> int:
        """The GPUs of a placement, as a set."""
        return placement.gpus

    def can_start(
        self,
        entry: GangEntry,
        placement: Hosts,
        without: Sequence[GangEntry],
    ) -> bool:
        """In a lab any start can be noted."""
        return True

    def start(self, entry: GangEntry, placement: Hosts) -> bool:
        """Note that a gang starts there."""
        preempted = [
            each for gpus, each in self._freed if gpus & placement.gpus
        ]
        self.started.append(Started(entry, placement, tuple(preempted)))
        entry.gpus = placement.gpus
        entry.began_s = self.now_s
        self.running[entry.index] = entry
        self.occupancy.occupied |= placement.gpus
        self.accounts.took(entry.user, placement.gpus.bit_count(), self.now_s)
        return True

    def preempt(self, entry: GangEntry) -> None:
        """Note that a gang must release its hosts; it then waits again."""
        self.preempted.append(entry)
        self.occupancy.occupied &= ~entry.gpus
        self._freed.append((entry.gpus, entry))
        self.gone(entry, self.now_s, entry.gpus)
        self._releasing.add(entry)
        self.joined.append(entry)

    def refuse(self, entry: GangEntry, why: Waiting) -> bool:
        """Whether a gang has left the queue."""
        if entry in self._failures:
            self.refused[entry] = self._failures[entry]
        return entry in self._failures

    def wake_at(self, at_s: float) -> None:
        """Request a pass by that time."""
        self.wake_s = min(self.wake_s, at_s)

    def gone(
        self,
        entry: GangEntry,
        now_s: float,
        gpus: int,
    ) -> None:
        """Jobs of a gang have released these GPUs."""
        back = entry.gpus & gpus
        if entry.index in self.running and back:
            entry.gpus &= ~back
            self.accounts.gave_back(entry.user, back.bit_count(), now_s)
            self.released += 1
            if not entry.gpus:
                del self.running[entry.index]

    @property
    def has_elastic(self) -> bool:
        """Whether the elasticity policy has anything to decide."""
        if (
            self.placement.policies.now.elasticity.name
            == DEFAULTS["elasticity"]
        ):
            return False
        return any(
            self.why_rigid(entry) is None for entry in self.running.values()
        )

    @property
    def is_stable(self) -> bool:
        """Whether the elasticity policy is only called when a job arrives, starts or ends."""
        return is_stable(self.placement.policies.now.elasticity)

    def why_rigid(self, entry: GangEntry) -> str | None:
        """Why a running job's number of workers is fixed; ``None`` if it may change."""
        status = entry.statuses[0]
        if not status.spec.is_split:
            return "its number of workers is fixed"
        if len(entry.statuses) > 1:
            return "it started together with other jobs"
        if cluster_view.training_of(status) is None:
            return "its iterations, compute time or gradient are unknown"
        job = self.table.running.get(status.id)
        workers = () if job is None else job.workers
        if (
            status.spec.trainer != "synthetic"
            and status.spec.checkpoint is None
        ):
            return "it has no checkpoint folder to resume from"
        by_protocol = all(
            worker.status.holds_by == "protocol" for worker in workers
        )
        if status.spec.trainer == "command" and not by_protocol:
            return "its program does not support the hold protocol"
        return None

    def elastic(self) -> list[tuple[GangEntry, contract.ElasticJob]]:
        """The running jobs that can be resized, with their possible degrees."""
        found = []
        for entry in self.running.values():
            status = entry.statuses[0]
            job = self.table.running.get(status.id)
            if (
                job is None
                or job.next_hosts
                or self.why_rigid(entry) is not None
            ):
                continue
            times = (
                self._times(entry) if status.state is JobState.RUNNING else {}
            )
            now = len(status.hosts)
            if now in times:
                cost_s = times[now] + self._start_s
                since_s = status.runs_since or 0.0
                left = status.spec.iterations - status.iterations_done
                shown = (
                    contract.Frozen(times),
                    left,
                    cost_s,
                    since_s,
                    status.by,
                )
                found.append(
                    (entry, contract.ElasticJob(status.id, now, *shown))
                )
        return found

    def _times(self, entry: GangEntry) -> Mapping[int, float]:
        status = entry.statuses[0]
        cluster = self._lab.cluster
        present = tuple(cluster.numbers[name] for name in status.hosts)
        options = {len(present): (present, self._load(status, present))}
        most = len(present) + self.free_for(entry)
        degrees: Sequence[int] = status.spec.degrees or range(1, most + 1)
        if not status.spec.degrees and most > _FEW:
            degrees = [2**power for power in range(most.bit_length())]
        for degree in sorted(
            {each for each in degrees if each <= most} - {len(present)}
        ):
            placed = self._placed(entry, degree)
            if placed is not None:
                ring = tuple(cluster.numbers[name] for name in placed.hosts)
                options[degree] = ring, self._load(status, ring)
        view = self._view().view
        wiring = self.networks.of(view)
        assert wiring is not None  # The cluster view is of a lab.
        return dict(
            sorted(
                iteration_times(
                    wiring.network,
                    view,
                    status.id,
                    options,
                ).items()
            )
        )

    def _load(self, status: JobStatus, ring: Sequence[int]) -> network.Load:
        training = cluster_view.training_of(status)
        sites = self._lab.view.shape.gpus
        assert training is not None  # otherwise it is rigid
        models = {sites[gpu].model for gpu in ring}
        if not models <= training.compute_s.keys():
            return network.Load(training.iterations, math.inf, 0.0)
        return network.training_load(
            status.id,
            training,
            len(ring),
            models,
        )

    def _placed(self, entry: GangEntry, degree: int) -> Placed | None:
        status = entry.statuses[0]
        grows = degree > len(status.hosts)
        room = room_for(
            self._view().view,
            status.id,
            entry.gpus,
            grows=grows,
        )
        found = self.placement.place(
            self._lab._replace(view=room),
            status,
            room.occupied,
            workers=degree,
        )
        return found if isinstance(found, Placed) else None

    def queued(self, entry: GangEntry) -> contract.QueuedJob:
        """A gang that waits."""
        models = {
            frozenset(s.spec.gpu_models or s.spec.compute_s)
            for s in entry.statuses
        }
        # If the jobs of a gang want different models, all that any of them can use.
        able = (
            frozenset[str]()
            if frozenset() in models
            else frozenset[str]().union(*models)
        )
        lasts_s = self.would_end_s(entry) - self.now_s
        return contract.QueuedJob(
            entry.name,
            entry.workers,
            able,
            lasts_s,
            entry.user,
        )

    def ask(
        self,
        jobs: Sequence[contract.ElasticJob],
        queue: Sequence[contract.QueuedJob],
    ) -> Mapping[str, int]:
        """The elasticity policy's answer; the decision is kept for resized jobs."""
        policy = self.placement.policies.now.elasticity
        view = self._view().view._replace(running=tuple(self.ends()))
        answer, self._decision = cluster_view.decided(
            "elasticity",
            policy,
            partial(
                policy.resize,
                view,
                jobs,
                queue,
            ),
            partial(
                cluster_view.seen,
                view,
                elastic=jobs,
                queue=queue,
            ),
        )
        return answer

    def resize(self, entry: GangEntry, degree: int) -> None:
        """Note that a job continues with that many GPUs; it keeps its present ones until then."""
        placed = self._placed(entry, degree)
        if placed is None:
            return
        now = len(entry.statuses[0].hosts)
        policy = self.placement.policies.now.elasticity.name
        why = f"from {now} to {degree} workers, decided by {policy}"
        decisions = (self._decision, *placed.decisions)
        self.resized.append(
            Resized(
                entry,
                placed.hosts,
                why,
                decisions,
            )
        )
        gpus = self._lab.cluster.as_set(placed.hosts)
        self.accounts.took(
            entry.user, (gpus & ~entry.gpus).bit_count(), self.now_s
        )
        entry.gpus |= gpus
        self.occupancy.occupied |= gpus
