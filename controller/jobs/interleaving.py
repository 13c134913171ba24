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
from patchlight.testbed.tasks import run_all
from patchlight.testbed.wire.worker_api import SlotRequest

# Workers forget a slot that is not renewed: a controller that ends leaves no job with one.
_LOOK_EVERY_S = 2.0
_LASTS_S = 30.0
# What an iteration takes alone is the median of so many in the slot; at most so many times what the
# model says. Slots are found again when it has changed by less, or more, than this.
_MEASURED = 8
_MOST_STRETCH = 1.25
_DIFFERS = (0.95, 1.01)


@dataclass(
    slots=True,
    eq=False,
)
class _Timed:
    """An attempt of a job: when it sends, how much longer than modelled its iterations take, and
    the computing and sending times of the latest, by rank."""

    job: RunningJob
    slot: SlotRequest | None = None
    stretch: float = 1.0
    iterations: dict[int, list[tuple[float, float]]] = field(
        default_factory=dict
    )

    def note(self, report: Mapping[str, Any]) -> None:
        """Keep an iteration of a rank."""
        times = report["compute_s"], report["communication_s"]
        self.iterations.setdefault(report["index"], []).append(times)
        if len(self.iterations) > 2 * _MEASURED:
            del self.iterations[min(self.iterations)]

    def stretched(self, run: PhasedJob, rate_bps: float) -> PhasedJob:
        """A job as the model has it, stretched to what was measured in the slot."""
        known = list(self.iterations.values())
        ranks = len(self.job.hosts)  # Others write meanwhile.
        whole = [each for each in known if len(each) == ranks]
        if self.slot is not None and len(whole) >= _MEASURED:
            # The slowest rank computes, the last one to begin sends.
            took_s = median(
                max(c for c, _ in each) + min(s for _, s in each)
                for each in whole
            )
            stretch = took_s / (run.compute_s + run.bits / rate_bps)
            self.stretch = min(max(stretch, 1 / _MOST_STRETCH), _MOST_STRETCH)
        run.compute_s = run.compute_s * self.stretch
        run.bits = run.bits * self.stretch
        return run


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
        self._lab = lab
        self._store = store
        self._table = table
        self._links = links
        self._policies = policies
        self._timed: dict[tuple[str, int], _Timed] = {}
        # By a group's jobs and links: the bits of each, stretched, when slots were found.
        self._found: dict[Hashable, list[float]] = {}
        table.on_reports.append(self._hear)

    def _hear(
        self, job: RunningJob, reports: Sequence[Mapping[str, Any]]
    ) -> None:
        if (timed := self._timed.get((job.id, job.attempt))) is not None:
            for report in reports:
                timed.note(report)

    async def run(self) -> None:
        """Watch which jobs share links, and how they keep their slots."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            links = self._links()
            if self._policies.choice.interleave and links is not None:
                table = self._table
                known = self._timed
                jobs = [
                    j
                    for j in table.running.values()
                    if table[j.id].state is JobState.RUNNING
                ]
                keys = {(job.id, job.attempt): job for job in jobs}
                self._timed = {
                    key: known.get(key, _Timed(job))
                    for key, job in keys.items()
                }
                for event in await asyncio.to_thread(self._find, links):
                    self._store.add_event(time.time(), "interleaved", event)
                slots = [
                    (t.job, t.slot)
                    for t in self._timed.values()
                    if t.slot is not None
                ]
                await run_all(job.send_in(slot) for job, slot in slots)

    def _find(self, links: Links) -> list[dict[str, Any]]:
        """Give slots to the groups that have changed, or take them away; what to say of it."""
        said = []
        network = LabNetwork(self._lab, links)
        before = self._found
        self._found = {}
        of = {
            run: t
            for t in self._timed.values()
            if (run := self._run_of(network, t)) is not None
        }
        for group, capacities in groups(list(of), network.capacity_bps):
            key = tuple(
                (of[run].job.id, of[run].job.attempt, tuple(run.demand))
                for run in group
            )
            then = before.get(key, [])
            now = [run.bits for run in group]
            least, most = _DIFFERS
            if not then or not all(
                least < b / a < most for a, b in zip(then, now, strict=True)
            ):
                set_slots_of(group, capacities)
                said += self._give([(of[run], run.slot) for run in group])
                then = now
            self._found[key] = then
        return said

    def _run_of(self, network: LabNetwork, timed: _Timed) -> PhasedJob | None:
        """A job on its links; ``None`` if it shares none, or its work is not known."""
        job = timed.job
        training = training_of(self._table[timed.job.id])
        hosts = tuple(host.name for host in job.hosts)
        if training is None:
            return None
        run = run_of(
            network,
            PredictedJob(job.id, hosts, training),
            [*map(network.number, hosts)],
        )
        if run is None or not run.bits or not run.is_known:
            return None
        return timed.stretched(
            run, fair_rates([run.demand], network.capacity_bps)[0]
        )

    @staticmethod
    def _give(
        group: Sequence[tuple[_Timed, Slot | None]],
    ) -> list[dict[str, Any]]:
        now = base = time.time()
        slotted = [(timed, slot) for timed, slot in group if slot is not None]
        for timed, slot in slotted:
            if timed.slot is not None:  # It keeps its turn.
                base = (
                    now
                    - (now - timed.slot.at) % timed.slot.period_s
                    - slot.offset_s
                )
                break
        for timed, _ in group:
            timed.slot = None
            timed.iterations = {}
        for timed, (period_s, offset_s, late_s) in slotted:
            timed.slot = SlotRequest(
                at=base + offset_s,
                period_s=period_s,
                late_s=late_s,
                lasts_s=_LASTS_S,
            )
        period_s = max((slot.period_s for _, slot in slotted), default=0.0)
        jobs = [timed.job.id for timed, _ in slotted]
        return (
            [{"jobs": jobs, "period_s": round(period_s, 3)}]
            if jobs and base == now
            else []
        )
