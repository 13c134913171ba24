"""Lets running jobs that share links send in turns, by slots that their workers keep."""

import asyncio
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from patchlight.controller.jobs.cluster_view import training_of
from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.jobs.policy_set import PoliciesInUse
from patchlight.controller.jobs.running_job import RunningJob
from patchlight.controller.prediction.completion import (
    PhasedJob,
    PredictedJob,
    Slot,
    groups,
    run_of,
)
from patchlight.controller.prediction.interleaving import set_slots_of
from patchlight.controller.prediction.network import LabNetwork, fair_rates
from patchlight.controller.storage.store import Store
from patchlight.testbed.jobs import JobState
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.wiring import Links
from patchlight.testbed.wire.worker_api import SlotRequest

# Workers get their slot each few seconds, and forget it when it is not renewed: a controller that
# ends leaves no job with a slot.
_LOOK_EVERY_S, _RENEW_S, _LASTS_S = 1.0, 5.0, 15.0
# What an iteration takes alone is the median of so many in the slot; at most so many times what the
# model says. Slots are found again when it has changed by less, or more, than this.
_MEASURED, _MOST_STRETCH, _DIFFERS = 8, 1.25, (0.95, 1.01)


@dataclass(slots=True, eq=False)
class _Timed:
    """An attempt of a job: when it sends, how much longer than modelled its iterations take, and
    the computing and sending times of the latest, by rank."""

    slot: SlotRequest | None = None
    told_at: float = 0.0
    stretch: float = 1.0
    iterations: dict[int, list[tuple[float, float]]] = field(default_factory=dict)

    def measured_s(self, ranks: int) -> float | None:
        """The computing time of the slowest rank, and what the last one needed for sending."""
        whole = [each for each in self.iterations.values() if len(each) == ranks]
        if self.slot is None or len(whole) < _MEASURED:
            return None
        return median(max(c for c, _ in each) + min(s for _, s in each) for each in whole)


class Interleaving:
    """Gives slots to jobs that share links, while the lab's policies say ``interleave``."""

    def __init__(
        self,
        lab: Lab,
        store: Store,
        table: JobTable,
        links: Callable[[], Links | None],
        policies: PoliciesInUse,
    ) -> None:
        self._lab, self._store, self._table = lab, store, table
        self._links, self._policies = links, policies
        self._timed: dict[tuple[RunningJob, int], _Timed] = {}
        # By a group's jobs and links: the bits of each, stretched, when slots were found.
        self._found: dict[Hashable, list[float]] = {}
        table.on_reports.append(self._hear)

    def _hear(self, job: RunningJob, reports: Sequence[Mapping[str, Any]]) -> None:
        if (timed := self._timed.get((job, job.attempt))) is not None:
            for report in reports:
                times = report["compute_s"], report["communication_s"]
                timed.iterations.setdefault(report["index"], []).append(times)
            while len(timed.iterations) > 2 * _MEASURED:
                del timed.iterations[min(timed.iterations)]

    async def run(self) -> None:
        """Watch which jobs share links, and how they keep their slots."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            if self._policies.choice.interleave:
                await self._look()

    async def _look(self) -> None:
        table, known, links = self._table, self._timed, self._links()
        jobs = [j for j in table.running.values() if table[j.id].state is JobState.RUNNING]
        self._timed = {key: known.get(key, _Timed()) for j in jobs if (key := (j, j.attempt))}
        if links is not None:
            for group in await asyncio.to_thread(self._changed, links, jobs):
                self._give(group)
        now = time.time()
        for (job, _), timed in self._timed.items():
            if timed.slot is not None and now - timed.told_at > _RENEW_S:
                timed.told_at = now
                await job.send_in(timed.slot)

    def _changed(
        self, links: Links, jobs: Sequence[RunningJob]
    ) -> list[list[tuple[_Timed, RunningJob, Slot | None]]]:
        """The groups that get other slots than before, or none any more."""
        network = LabNetwork(self._lab, links)
        of = {run: job for job in jobs if (run := self._run_of(network, job)) is not None}
        before, self._found, changed = self._found, {}, []
        for group, capacities in groups(list(of), network.capacity_bps):
            key = tuple((of[run].id, of[run].attempt, tuple(run.demand)) for run in group)
            then, now = before.get(key, []), [run.bits for run in group]
            least, most = _DIFFERS
            if not then or not all(least < b / a < most for a, b in zip(then, now, strict=True)):
                set_slots_of(group, capacities)
                found = [(of[run], run.slot) for run in group]
                changed.append([(self._timed[job, job.attempt], job, slot) for job, slot in found])
                then = now
            self._found[key] = then
        return changed

    def _run_of(self, network: LabNetwork, job: RunningJob) -> PhasedJob | None:
        """A job on its links, stretched to what was measured; ``None`` if it shares none."""
        training, hosts = training_of(self._table[job.id]), tuple(host.name for host in job.hosts)
        if training is None:
            return None
        run = run_of(network, PredictedJob(job.id, hosts, training), [*map(network.number, hosts)])
        if run is None or not run.bits or not run.is_known:
            return None
        timed = self._timed[job, job.attempt]
        if (measured_s := timed.measured_s(len(hosts))) is not None:
            [rate_bps] = fair_rates([run.demand], network.capacity_bps)
            stretch = measured_s / (run.compute_s + run.bits / rate_bps)
            timed.stretch = min(max(stretch, 1 / _MOST_STRETCH), _MOST_STRETCH)
        run.compute_s, run.bits = run.compute_s * timed.stretch, run.bits * timed.stretch
        return run

    def _give(self, group: Sequence[tuple[_Timed, RunningJob, Slot | None]]) -> None:
        now = base = time.time()
        is_new = True
        for timed, _, slot in group:
            if is_new and timed.slot is not None and slot is not None:  # It keeps its turn.
                base -= (now - timed.slot.at) % timed.slot.period_s + slot.offset_s
                is_new = False
            timed.slot, timed.told_at, timed.iterations = None, 0.0, {}
        for timed, _, slot in group:
            if slot is not None:
                at, (period_s, _, late_s) = base + slot.offset_s, slot
                timed.slot = SlotRequest(at=at, period_s=period_s, late_s=late_s, lasts_s=_LASTS_S)
        periods_s = [slot.period_s for _, _, slot in group if slot]
        if is_new and periods_s:
            event = {"jobs": [job.id for _, job, _ in group], "period_s": round(max(periods_s), 3)}
            self._store.add_event(now, "interleaved", event)
