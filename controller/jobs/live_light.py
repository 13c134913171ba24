"""Light that moves under running jobs: brought together on request, or where it pays."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from statistics import median
from typing import Any

from patchlight.controller.changes.record import ChangeOptions, ChangePlan, Reconfiguration
from patchlight.controller.changes.transaction import NO_OPTIONS, Transactions
from patchlight.controller.jobs.decisions import Decision, plain_answer, seen
from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.jobs.light_gains import LightGains
from patchlight.controller.jobs.placement import LabView, Look, Placement
from patchlight.controller.jobs.policies_in_use import PoliciesInUse
from patchlight.controller.policies.defragment import MINIMUM_GAIN_S, Proposal, defragment
from patchlight.controller.storage.store import Store
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.portmap import PortMap

DEFRAGMENT = "defragment"
# What jobs wait for in a change, beside the dark time, which is in ``make``.
_STAGES = ("break", "make", "verify", "flows", "undrain")
_CHANGES = 10


class LiveLight:
    """Lights circuits for jobs, and defragments a lab: regroups running jobs by light alone, where
    that gains more than it costs.

    ``look`` looks at the devices, and then gives the lab as of when its answer is called; what all
    jobs together have to gain at least is said by the ``policies``. With ``detach`` the answer is
    the record of a change that has begun.
    """

    def __init__(
        self,
        store: Store,
        table: JobTable,
        transactions: Transactions,
        placement: Placement,
        gains: LightGains,
        look: Look,
        policies: PoliciesInUse,
    ) -> None:
        self._store, self._table, self._transactions = store, table, transactions
        self._placement, self._gains = placement, gains
        self._look, self._policies = look, policies

    async def regroup(
        self, job_ids: Sequence[str], caller: ChangeOptions = NO_OPTIONS, *, detach: bool = False
    ) -> Reconfiguration:
        """Bring running jobs under one packet switch each, while they run."""
        self._check_run(job_ids)
        return await self.rewire("regroup", job_ids, job_ids, caller, detach=detach)

    async def preview_regroup(self, job_ids: Sequence[str]) -> tuple[ChangePlan, list[str]]:
        """What ``regroup`` would change now, and what speaks against it."""
        self._check_run(job_ids)
        groups, running = self._table.hosts_of(job_ids), self._table.hosts_of(self._table.running)
        return await self._placement.preview("regroup", groups, running)

    def _check_run(self, job_ids: Sequence[str]) -> None:
        for job_id in job_ids:
            if job_id not in self._table.running:
                raise BadInput(f"job {job_id} is not running: {self._table[job_id].state}")

    async def rewire(
        self,
        topology: str,
        job_ids: Sequence[str],
        because_of: Sequence[str],
        caller: ChangeOptions = NO_OPTIONS,
        *,
        detach: bool = False,
    ) -> Reconfiguration:
        """Light circuits for these jobs, ``because_of`` some: with those the decision is kept."""
        what = topology if topology == "regroup" else f"{topology} for"
        groups, running = self._table.hosts_of(job_ids), self._table.hosts_of(self._table.running)
        before = self._gains.before(because_of)
        wish = await self._placement.wish(topology, groups, running, because_of)

        def keep(change: Reconfiguration) -> None:
            if wish.decision is not None:
                self._keep(wish.decision, because_of, change, self._gains.kept(before, change))

        make = self._transactions.begin if detach else self._transactions.change
        return await make(wish.decide, f"{what} {', '.join(because_of)}", caller, keep)

    async def proposal(self) -> Proposal | None:
        """The change that gains most; ``None`` where none gains enough."""
        return await asyncio.to_thread(self._decide, (await self._look())())

    def _decide(self, lab: LabView) -> Proposal | None:
        gain_s = self._policies.choice.minimum_gain_s
        least_s = MINIMUM_GAIN_S if gain_s is None else gain_s
        return defragment(lab.view, least_s, self._overhead_s())

    def _overhead_s(self) -> float:
        """How long the latest changes kept jobs waiting, without the dark time: their median.

        0 where there was none yet.
        """
        times_s = []
        for change in self._store.reconfigurations(last=_CHANGES):
            if change["state"] == "committed" and change["changes"]:
                dark_s = sum(
                    switch.switching_time_s
                    for switch in self._transactions.parts.lab.optical_switches
                    if switch.name in change["changes"]
                )
                spent_s = sum(change["stages_s"].get(stage, 0.0) for stage in _STAGES)
                times_s.append(max(0.0, spent_s - dark_s))
        return median(times_s) if times_s else 0.0

    async def defragment(
        self, caller: ChangeOptions = NO_OPTIONS, *, detach: bool = False
    ) -> Reconfiguration | None:
        """Carry it out, at the end of an iteration of each job concerned.

        An event says so, and the decision is kept with each job that runs.
        """
        lab = (await self._look())()
        began = time.perf_counter()
        proposal = await asyncio.to_thread(self._decide, lab)
        if proposal is None:
            return None
        seconds, answer = time.perf_counter() - began, plain_answer(proposal.maps)
        decision = Decision(DEFRAGMENT, DEFRAGMENT, answer, seconds, partial(seen, lab.view))
        circuits, hosts = dict(lab.view.circuits), self._hosts()

        def decide(maps: Mapping[str, PortMap]) -> Mapping[str, PortMap]:
            # Planned on other maps or for other jobs than these, it might gain nothing: then it
            # is left.
            same = all(maps.get(ocs) == circuits.get(ocs) for ocs in proposal.maps)
            return proposal.maps if same and self._hosts() == hosts else {}

        before = self._gains.before(proposal.gains_s)

        def keep(change: Reconfiguration) -> None:
            if change.state == "committed" and not change.changes:
                return  # overtaken: nothing moved
            event = {"reconfiguration": change.id, "state": change.state, **record_of(proposal)}
            self._store.add_event(time.time(), "defragmented", event)
            kept = self._gains.kept(before, change)
            self._keep(decision, kept, change, kept)

        why = f"defragment {', '.join(proposal.jobs)}: {proposal.gain_s:.0f} s gained"
        make = self._transactions.begin if detach else self._transactions.change
        return await make(decide, why, caller, keep)

    def _keep(
        self,
        decision: Decision,
        job_ids: Iterable[str],
        change: Reconfiguration,
        gained: Mapping[str, Mapping[str, Any]],
    ) -> None:
        """Put down why a change was made, with each of these jobs."""
        record = {**decision.record, "reconfiguration": change.id}
        for job_id in job_ids:
            found = {**record, **gained.get(job_id, {})}
            self._table.ledger.add_decision(job_id, time.time(), found)

    def _hosts(self) -> dict[str, tuple[str, ...]]:
        """The hosts of each job that has some."""
        return {
            job_id: tuple(host.name for host in job.hosts)
            for job_id, job in self._table.running.items()
        }


def record_of(proposal: Proposal) -> dict[str, Any]:
    """A proposal for people and programs; circuits as ``ocs: inp>out``."""
    return {
        **asdict(proposal),
        "maps": {ocs: list(wanted.texts) for ocs, wanted in proposal.maps.items()},
        "gain_s": proposal.gain_s,
    }
