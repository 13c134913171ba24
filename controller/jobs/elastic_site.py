"""The running jobs of a lab that may get other numbers of workers, and what they would gain."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from patchlight.controller.jobs.cluster_view import training_of
from patchlight.controller.jobs.decisions import Decision, decided, seen
from patchlight.controller.jobs.discipline.queue import is_stable, iteration_times, room_for
from patchlight.controller.jobs.lab_site import GangEntry, LabSite
from patchlight.controller.jobs.placement import LabSnapshot, Placed
from patchlight.controller.policies.contract import ElasticJob, Frozen, QueuedJob
from patchlight.controller.policies.options.outlook import Networks
from patchlight.controller.policies.registry import DEFAULTS
from patchlight.controller.prediction.sharing import Load, training_load
from patchlight.testbed.jobs import JobState, JobStatus

# Of a job that says no degrees, in a lab of more GPUs than these, only powers of two are looked at.
_FEW = 8


class Resized(NamedTuple):
    """A job that goes on elsewhere, and the decisions that led there."""

    entry: GangEntry
    hosts: tuple[str, ...]
    why: str
    decisions: tuple[Decision, ...]


@dataclass
class ElasticLabSite(LabSite):
    """A lab's site that can also resize; ``resized`` is what the last pass decided.

    ``start_s`` says how long it takes to start a job.
    """

    start_s: Callable[[], float] = lambda: 0.0
    resized: list[Resized] = field(default_factory=list)
    networks: Networks = field(default_factory=Networks)

    def look(self, lab: LabSnapshot, now_s: float) -> None:
        """Begin a pass with the lab as it is now."""
        super().look(lab, now_s)
        self.resized.clear()

    @property
    def has_elastic(self) -> bool:
        """Whether there is anything to ask the elasticity policy about."""
        if self.placement.elasticity.name == DEFAULTS["elasticity"]:
            return False
        return any(self.why_rigid(entry) is None for entry in self.running.values())

    @property
    def is_stable(self) -> bool:
        """Whether the elasticity policy is asked only when something comes, starts or ends."""
        return is_stable(self.placement.elasticity)

    def why_rigid(self, entry: GangEntry) -> str | None:
        """Why the number of workers of a running job stays; ``None`` if it may change."""
        status = entry.statuses[0]
        if not status.spec.is_split:
            return "it says its number of workers"
        if len(entry.statuses) > 1:
            return "it started together with others"
        if training_of(status) is None:
            return "it does not say how many iterations it does, how long and with which gradient"
        job = self.table.running.get(status.id)
        workers = () if job is None else job.workers
        if status.spec.trainer != "synthetic" and status.spec.checkpoint is None:
            return "it has no checkpoint folder to go on from"
        by_protocol = all(worker.status.holds_by == "protocol" for worker in workers)
        if status.spec.trainer == "command" and not by_protocol:
            return "its program does not speak the protocol by which it is stopped"
        return None

    def elastic(self) -> list[tuple[GangEntry, ElasticJob]]:
        """The running jobs that may change, with the degrees that they can have."""
        found = []
        for entry in self.running.values():
            status = entry.statuses[0]
            job = self.table.running.get(status.id)
            if job is None or job.next_hosts or self.why_rigid(entry) is not None:
                continue
            times = self._times(entry) if status.state is JobState.RUNNING else {}
            now = len(status.hosts)
            if now in times:
                cost_s, since_s = times[now] + self.start_s(), status.runs_since or 0.0
                left = status.spec.iterations - status.iterations_done
                shown = (Frozen(times), left, cost_s, since_s, status.by)
                found.append((entry, ElasticJob(status.id, now, *shown)))
        return found

    def _times(self, entry: GangEntry) -> Mapping[int, float]:
        """Predicted seconds of an iteration by each degree that there is a place for."""
        status, cluster = entry.statuses[0], self._lab.cluster
        present = tuple(cluster.numbers[name] for name in status.hosts)
        options = {len(present): (present, self._load(status, present))}
        for degree in self._degrees(entry):
            placed = self._placed(entry, degree)
            if placed is not None:
                ring = tuple(cluster.numbers[name] for name in placed.hosts)
                options[degree] = ring, self._load(status, ring)
        view = self._view().view
        wiring = self.networks.of(view)
        assert wiring is not None  # There is a lab behind it.
        return dict(sorted(iteration_times(wiring.network, view, status.id, options).items()))

    def _degrees(self, entry: GangEntry) -> Sequence[int]:
        """Other numbers of workers than now that a job can have."""
        status = entry.statuses[0]
        now = len(status.hosts)
        most = now + self.free_for(entry)
        wanted = status.spec.degrees
        if not wanted:
            powers = (2**power for power in range(most.bit_length()))
            wanted = tuple(range(1, most + 1) if most <= _FEW else powers)
        return sorted({degree for degree in wanted if degree <= most} - {now})

    def _load(self, status: JobStatus, ring: Sequence[int]) -> Load:
        training, sites = training_of(status), self._lab.view.shape.gpus
        assert training is not None  # Whose is not known is rigid.
        models = {sites[gpu].model for gpu in ring}
        if not models <= training.compute_s.keys():
            return Load(training.iterations, math.inf, 0.0)
        return training_load(status.id, training, len(ring), models)

    def _placed(self, entry: GangEntry, degree: int) -> Placed | None:
        status = entry.statuses[0]
        grows = degree > len(status.hosts)
        room = room_for(self._view().view, status.id, entry.gpus, grows=grows)
        found = self.placement.place(
            self._lab._replace(view=room), status, room.occupied, workers=degree
        )
        return found if isinstance(found, Placed) else None

    def queued(self, entry: GangEntry) -> QueuedJob:
        """A gang that waits."""
        models = {frozenset(s.spec.gpu_models or s.spec.compute_s) for s in entry.statuses}
        # Of a gang whose jobs want different ones, all that any of them can run on.
        able = frozenset[str]() if frozenset() in models else frozenset[str]().union(*models)
        lasts_s = self.would_end_s(entry) - self.now_s
        return QueuedJob(entry.name, entry.workers, able, lasts_s, entry.user)

    def ask(self, jobs: Sequence[ElasticJob], queue: Sequence[QueuedJob]) -> Mapping[str, int]:
        """What the elasticity policy answers; the decision is kept for the jobs that change."""
        policy = self.placement.elasticity
        view = self._view().view._replace(running=tuple(self.ends()))
        answer, self._decision = decided(
            "elasticity",
            policy,
            partial(policy.resize, view, jobs, queue),
            partial(seen, view, elastic=jobs, queue=queue),
        )
        return answer

    def resize(self, entry: GangEntry, degree: int) -> None:
        """Note that a job goes on on so many GPUs; those of before are its own until it does."""
        placed = self._placed(entry, degree)
        if placed is None:
            return
        now, policy = len(entry.statuses[0].hosts), self.placement.elasticity.name
        why = f"from {now} to {degree} workers, as {policy} decided"
        decisions = (self._decision, *placed.decisions)
        self.resized.append(Resized(entry, placed.hosts, why, decisions))
        gpus = self._lab.cluster.as_set(placed.hosts)
        self.books.took(entry.user, (gpus & ~entry.gpus).bit_count(), self.now_s)
        entry.gpus |= gpus
        self.occupancy.occupied |= gpus
