"""Changes circuits for running jobs, and pauses jobs while their circuits change."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from statistics import median
from typing import Any

from patchlight.controller.changes.device_maps import MapCache
from patchlight.controller.changes.parts import Unreached
from patchlight.controller.changes.plan import ChangePlan
from patchlight.controller.changes.record import ChangeOptions, Reconfiguration
from patchlight.controller.changes.transaction import NO_OPTIONS, Transactions
from patchlight.controller.jobs.cluster_view import Decision, plain, seen
from patchlight.controller.jobs.job_table import IterationTimes, JobTable
from patchlight.controller.jobs.lives import AT_WORK
from patchlight.controller.jobs.placement import (
    LabReach,
    LabSnapshot,
    Placement,
)
from patchlight.controller.jobs.policy_set import PoliciesInUse
from patchlight.controller.jobs.running_job import RunningJob
from patchlight.controller.policies.cheapest import (
    MINIMUM_GAIN_S,
    Proposal,
    defragment,
)
from patchlight.controller.storage.store import Store
from patchlight.testbed.errors import BadInput, PatchlightError, in_words
from patchlight.testbed.jobs import JobState
from patchlight.testbed.lab.model import Endpoint
from patchlight.testbed.lab.ocs_drivers import outage_s
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.reach import Reach, as_text
from patchlight.testbed.tasks import run_all

DEFRAGMENT = "defragment"
DRAINED = "drained"
"""Marks that a controller starts no jobs, and changes no circuits for them."""
# The stages of a change during which jobs wait; the outage is part of ``make``.
_STAGES = ("break", "make", "verify", "flows", "announce", "undrain")
_CHANGES = 10

_log = logging.getLogger(__name__)

_STARTING = (JobState.RECONFIGURING, JobState.PREPARING)
# Wait for jobs that are being started: their circuits may then change as well.
_LOOK_AGAIN_S = 0.2
_LOOKS = 50

_LOOK_EVERY_S = 0.5
# The least time that a job has to pause.
_PATIENCE_S = 10.0
# For a job that lost its circuits without notice: its ranks wait in an all-reduce.
_HOLD_IN_THE_DARK_S = 2.0
# Of the workers of a job with each other; the caller repeats it.
_GREET_S = 1.0
# A switch that was late is checked again after 30 s, by a look each 30 s.
_SETTLED_WITHIN_S = 90.0


def is_drained(store: Store) -> bool:
    """Whether no jobs are started."""
    return store.mark(DRAINED, dict[str, Any], unreadable=dict) is not None


class JobRewiring:
    """Makes circuits for jobs, and defragments a lab: rewires running jobs if that pays.

    ``policies`` have the minimum total gain, and whether the lab is defragmented automatically:
    never while the controller is drained, the stop button is pressed, or a change is in progress.
    With ``detach`` the result is the record of the started change.
    """

    def __init__(
        self,
        store: Store,
        table: JobTable,
        transactions: Transactions,
        placement: Placement,
        policies: PoliciesInUse,
        gains: IterationTimes,
    ) -> None:
        self._store = store
        self._table = table
        self._transactions = transactions
        self._placement = placement
        self._policies = policies
        self._gains = gains
        self._wanted = asyncio.Event()
        self._ended: list[str] = []
        self._words = "not checked yet"
        self._looked_at: float | None = None

    async def regroup(
        self,
        job_ids: Sequence[str],
        caller: ChangeOptions = NO_OPTIONS,
        *,
        detach: bool = False,
    ) -> Reconfiguration:
        """Bring running jobs under one packet switch each, while they run."""
        self._check_run(job_ids)
        return await self.rewire(
            "regroup",
            job_ids,
            job_ids,
            caller,
            detach=detach,
        )

    async def preview_regroup(
        self, job_ids: Sequence[str]
    ) -> tuple[ChangePlan, list[str]]:
        """What ``regroup`` would change now, and the objections."""
        self._check_run(job_ids)
        running = self._table.hosts
        groups = {job_id: running[job_id] for job_id in job_ids}
        return await self._placement.preview("regroup", groups, running)

    def _check_run(self, job_ids: Sequence[str]) -> None:
        for job_id in job_ids:
            if job_id not in self._table.running:
                raise BadInput(
                    f"job {job_id} is not running: {self._table[job_id].state}"
                )

    async def rewire(
        self,
        topology: str,
        job_ids: Sequence[str],
        because_of: Sequence[str],
        caller: ChangeOptions = NO_OPTIONS,
        *,
        detach: bool = False,
    ) -> Reconfiguration:
        """Make circuits for these jobs; the decision is stored with those in ``because_of``."""
        what = topology if topology == "regroup" else f"{topology} for"
        running = self._table.hosts
        groups = {job_id: running[job_id] for job_id in job_ids}
        before = self._gains.before(because_of)
        wish = await self._placement.wish(
            topology,
            groups,
            running,
            because_of,
        )

        def keep(change: Reconfiguration) -> None:
            if wish.decision is not None:
                self._keep(
                    wish.decision,
                    because_of,
                    change,
                    self._gains.kept(before, change),
                )

        make = (
            self._transactions.begin if detach else self._transactions.change
        )
        return await make(
            wish.decide,
            f"{what} {', '.join(because_of)}",
            caller,
            keep,
        )

    async def when_settled(self, change: Reconfiguration) -> Reconfiguration:
        """A change of unknown result, once its switches answer again or a minute later."""
        return await self._transactions.when_settled(change, _SETTLED_WITHIN_S)

    async def proposal(self) -> Proposal | None:
        """The most profitable change; ``None`` if none gains enough."""
        return await asyncio.to_thread(
            self._decide, (await self._placement.look())()
        )

    def _decide(self, lab: LabSnapshot) -> Proposal | None:
        gain_s = self._policies.choice.minimum_gain_s
        least_s = MINIMUM_GAIN_S if gain_s is None else gain_s
        # How long the latest changes kept jobs waiting, without the outage.
        times_s = []
        circuits = self._transactions.parts.lab
        known = {switch.name for switch in circuits.optical_switches}
        for change in self._store.reconfigurations(last=_CHANGES):
            if change.state == "committed" and change.changes:
                makes = {
                    name: len(each.makes)
                    for name, each in change.changes.items()
                    if name in known
                }
                dark_s = outage_s(circuits, makes)
                spent_s = sum(
                    change.stages_s.get(stage, 0.0) for stage in _STAGES
                )
                times_s.append(max(0.0, spent_s - dark_s))
        return defragment(
            lab.view, least_s, median(times_s) if times_s else 0.0
        )

    async def defragment(
        self, caller: ChangeOptions = NO_OPTIONS, *, detach: bool = False
    ) -> Reconfiguration | None:
        """Apply the proposal at the end of an iteration of each affected job."""
        lab = (await self._placement.look())()
        began = time.perf_counter()
        proposal = await asyncio.to_thread(self._decide, lab)
        if proposal is None:
            return None
        seconds = time.perf_counter() - began
        answer = plain(proposal.maps)
        decision = Decision(
            DEFRAGMENT,
            DEFRAGMENT,
            answer,
            seconds,
            partial(seen, lab.view),
        )
        circuits = dict(lab.view.circuits)
        hosts = self._table.hosts

        def decide(maps: Mapping[str, PortMap]) -> Mapping[str, PortMap]:
            # With other maps or jobs than planned it might gain nothing.
            same = all(
                maps.get(ocs) == circuits.get(ocs) for ocs in proposal.maps
            )
            return proposal.maps if same and self._table.hosts == hosts else {}

        before = self._gains.before(proposal.gains_s)

        def keep(change: Reconfiguration) -> None:
            if change.state == "committed" and not change.changes:
                return  # overtaken: no circuit changed
            event = {
                "reconfiguration": change.id,
                "state": change.state,
                **record_of(proposal),
            }
            self._store.add_event(time.time(), "defragmented", event)
            kept = self._gains.kept(before, change)
            self._keep(
                decision,
                kept,
                change,
                kept,
            )

        why = f"defragment {', '.join(proposal.jobs)}: {proposal.gain_s:.0f} s gained"
        make = (
            self._transactions.begin if detach else self._transactions.change
        )
        return await make(
            decide,
            why,
            caller,
            keep,
        )

    def _keep(
        self,
        decision: Decision,
        job_ids: Iterable[str],
        change: Reconfiguration,
        gained: Mapping[str, Mapping[str, Any]],
    ) -> None:
        record = {**decision.record, "reconfiguration": change.id}
        for job_id in job_ids:
            found = {**record, **gained.get(job_id, {})}
            self._table.ledger.add_decision(job_id, time.time(), found)

    def ended(self, job_id: str) -> None:
        """A job or its attempt has ended; the queue now assigns its hosts."""
        self._ended.append(job_id)

    def queue_passed(self) -> None:
        """The queue has assigned the hosts of ended jobs."""
        if self._ended:
            self._wanted.set()

    def look_soon(self) -> None:
        """Check soon whether a change pays."""
        self._wanted.set()

    def status(self) -> dict[str, Any]:
        """Whether circuits are rewired automatically, and the result of the last attempt."""
        on = bool(self._policies.choice.defragment)
        words = self._words if on else "circuits stay until the next change"
        return {"defragment": on, "looked_at": self._looked_at, "words": words}

    async def run(self) -> None:
        """Watch for profitable changes."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(
                    self._policies.choice.defragment_every_s
                ):
                    await self._wanted.wait()
            self._wanted.clear()
            while self._ended:
                self._gains.note(self._ended.pop(0))
            if self._policies.choice.defragment:
                self._words = await self._follow()
                self._looked_at = time.time()

    async def _follow(self) -> str:
        for _ in range(_LOOKS):
            live = self._table.live()
            if not (
                self._transactions.busy
                or any(s.state in _STARTING for s in live)
            ):
                break
            await asyncio.sleep(_LOOK_AGAIN_S)
        if is_drained(self._store):
            return "the controller is drained"
        if stopped := self._transactions.parts.preflight.stop.message:
            return stopped
        if self._transactions.busy:
            self._wanted.set()
            return "a change of circuits is in progress"
        try:
            change = await self.defragment()
        except PatchlightError as error:
            # a device does not answer, say: the next attempt may succeed
            _log.warning("automatic rewiring failed: %s", error)
            return error.message
        if change is None:
            return "no rewiring gains enough"
        return f"{change.why} ({change.state})"


def record_of(proposal: Proposal) -> dict[str, Any]:
    """A proposal as JSON; circuits as ``inp>out`` by OCS."""
    return {
        **asdict(proposal),
        "maps": {
            ocs: list(wanted.texts) for ocs, wanted in proposal.maps.items()
        },
        "gain_s": proposal.gain_s,
    }


class JobTraffic:
    """Pauses jobs between two iterations, and resumes them.

    Jobs that use affected ports pause while circuits change; each has the time of three of its
    iterations to pause, at least 10 s. Jobs whose hosts do not reach each other pause
    until they do, or fail at their ``dark_limit_s``.
    """

    def __init__(
        self,
        table: JobTable,
        reach: LabReach,
    ) -> None:
        self._table = table
        self._reach = reach
        self._drained: list[RunningJob] = []

    def jobs_using(self, moved: frozenset[Endpoint]) -> list[str]:
        """The jobs that use these ports, or will once they have started, by id."""
        return [job.id for job in self._using(moved)]

    def _using(self, moved: frozenset[Endpoint]) -> list[RunningJob]:
        return [
            job
            for job in self._table.running.values()
            if any(host.endpoint in moved for host in job.all_hosts)
        ]

    def _state(self, job: RunningJob) -> JobState:
        return self._table[job.id].state

    async def drain(self, moved: frozenset[Endpoint]) -> list[str]:
        """Pause the jobs that use these ports; returns messages about those that did not."""
        self._drained = [
            job for job in self._using(moved) if self._state(job) in AT_WORK
        ]
        jobs = [
            job
            for job in self._drained
            if self._state(job) is JobState.RUNNING
        ]
        # None may be held once the others are released, after the failure of one.
        paused = await run_all(job.hold(self._deadline_s(job)) for job in jobs)
        return [
            f"job {job.id} did not pause in time: its packets wait for the circuits"
            for job, in_time in zip(jobs, paused, strict=True)
            if not in_time
        ]

    def _deadline_s(self, job: RunningJob) -> float:
        status = self._table[job.id]
        if not status.iterations_done or status.started_at is None:
            # The time of an iteration is not known yet.
            return 3 * _PATIENCE_S
        return max(
            _PATIENCE_S,
            3 * (time.time() - status.started_at) / status.iterations_done,
        )

    async def announce(
        self, moved: frozenset[Endpoint] | None, reach: Reach
    ) -> Unreached:
        """Announce the NICs of the jobs that use these ports (``None``: of all jobs), and let the
        workers of each job greet each other. Without a path between them, nothing is expected."""
        jobs = (
            self._table.running.values()
            if moved is None
            else self._using(moved)
        )
        jobs = [job for job in jobs if self._state(job) in AT_WORK]
        answers = await asyncio.gather(
            *(job.announce(_GREET_S) for job in jobs), return_exceptions=True
        )
        silent = list[str]()
        unknown = list[str]()
        for job, answer in zip(jobs, answers, strict=True):
            if self._state(job) not in AT_WORK:
                continue  # it has ended meanwhile
            if isinstance(answer, PatchlightError):
                unknown.append(
                    f"job {job.id} was not probed with packets: {answer.message}"
                )
            elif isinstance(answer, BaseException):
                raise answer
            elif answer and not reach.apart(job.hosts):
                silent.append(f"job {job.id}: {answer}")
        return Unreached(tuple(silent), tuple(unknown))

    async def undrain(self, maps: MapCache) -> None:
        """Resume the paused jobs; those without a circuit by these maps stay paused."""
        jobs = self._drained
        self._drained = []
        for job in jobs:
            job.counter.moved = True
        await run_all(self._settle(job, maps) for job in jobs)

    async def watch(self, maps: MapCache) -> None:
        """Pause jobs that lose their circuits, and resume those that have them again."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            jobs = [
                job
                for job in self._table.running.values()
                if job not in self._drained
            ]
            if not jobs:
                continue
            answers = await asyncio.gather(
                *(self._settle(job, maps, hold=True) for job in jobs),
                return_exceptions=True,
            )
            for job, answer in zip(jobs, answers, strict=True):
                if isinstance(answer, Exception):
                    _log.warning(
                        "job %s and its circuits: %s", job.id, in_words(answer)
                    )

    async def _settle(
        self,
        job: RunningJob,
        maps: MapCache,
        *,
        hold: bool = False,
    ) -> None:
        """Pause a job during an outage, resume it after. ``hold``: pause its workers, too."""
        state = self._state(job)
        reach = self._reach.over(maps.present_links())
        if state not in AT_WORK or job.next_hosts:
            return  # a job that moves to other hosts is held for that
        dark = reach.apart(job.hosts)
        if dark and state is JobState.RUNNING:
            job.dark_since = time.monotonic()
            self._table.move(job.id, JobState.PAUSED, as_text(dark))
            if hold:
                await job.hold(_HOLD_IN_THE_DARK_S)
                if self._state(job) is not JobState.PAUSED:
                    # A change restored the circuit meanwhile.
                    await job.release()
        elif dark:
            limit_s = job.spec.dark_limit_s
            if time.monotonic() - job.dark_since > limit_s:
                why = f"no link for more than {limit_s:g} s, the job's limit: {as_text(dark)}"
                job.give_up(why, [*dark])
        elif state is JobState.RUNNING:
            if not hold:
                await job.release()
        elif reach.is_known:
            await job.release()
            # It may have ended meanwhile.
            if self._state(job) is JobState.PAUSED:
                self._table.move(job.id, JobState.RUNNING)
