"""The policies that decide in a lab now, and what they did wrong."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from patchlight.controller.jobs.cluster_view import WiredLab
from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.jobs.policy_set import DEFAULT_POLICIES, PolicySet, in_words
from patchlight.controller.policies.guard import Fault
from patchlight.controller.storage.database import JournalError
from patchlight.controller.storage.store import Store
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.queueing import NOTHING_SAID, PolicyChoice

_log = logging.getLogger(__name__)

_MARK = "policies"


class PoliciesInUse:
    """One set of policies, until ``take_next`` puts another in its place.

    What was said with ``use`` comes before what is ``given`` with the controller's start, that
    before what the lab file says, and that before the defaults. Given others than the last time,
    what was used is forgotten. ``choice`` is all of it, as of the next pass of the queue;
    ``faults`` counts those of each kind and policy; ``wanted`` is told when others are to decide.
    """

    def __init__(
        self,
        lab: Lab,
        store: Store,
        table: JobTable,
        given: PolicyChoice,
        wanted: Callable[[], None],
    ) -> None:
        """``BadInput`` if a policy of ``given`` cannot be had."""
        self._lab, self._store, self._table, self._wanted = lab, store, table, wanted
        self._loop: asyncio.AbstractEventLoop | None = None
        self.faults: Counter[tuple[str, str]] = Counter()
        self._given = given
        self._used = self._kept()
        self.choice = self._whole(self._used)
        self.now = self._made(self.choice)
        self._next: PolicySet | None = None

    def _made(self, choice: PolicyChoice) -> PolicySet:
        shape = WiredLab(self._lab, self._lab.initial_maps).shape
        return PolicySet(choice, self._on_fault, shape, self._lab)

    def _whole(self, used: PolicyChoice) -> PolicyChoice:
        return used.over(self._given).over(self._lab.policies).over(DEFAULT_POLICIES)

    def _kept(self) -> PolicyChoice:
        """What ``use`` chose in an earlier life, if the controller is given the same as then."""
        kept = self._store.mark(_MARK, lambda row: (row["given"], PolicyChoice(**row["used"])))
        if kept is None or kept[0] != self._given.said:
            self._keep(NOTHING_SAID)
            return NOTHING_SAID
        return kept[1]

    def _keep(self, used: PolicyChoice) -> None:
        self._store.set_mark(_MARK, {"given": self._given.said, "used": used.said})

    async def use(self, choice: PolicyChoice) -> None:
        """Have these decide from the next pass of the queue on; ``BadInput`` if one is not there.

        What is not said stays, and so does what runs. The choice outlives the controller, until it
        is started with others.
        """
        used = choice.over(self._used)
        whole = self._whole(used)
        policies = await asyncio.to_thread(self._made, whole)
        try:
            self._keep(used)
        except JournalError:
            policies.close()
            raise
        if self._next is not None:
            self._next.close()
        self._next, self._used, self.choice = policies, used, whole
        self._store.add_event(time.time(), "policies", {"policies": self.words})
        self._wanted()

    @property
    def words(self) -> dict[str, Any]:
        """What decides now, for people and programs: policies by kind, and ``defragment``."""
        return {**in_words(self.choice), "defragment": bool(self.choice.defragment)}

    def take_next(self) -> bool:
        """Have those decide that are to be used, if there are any; whether there were."""
        if self._next is None:
            return False
        self.now.close()
        self.now, self._next = self._next, None
        return True

    def close(self) -> None:
        """End the processes of policies."""
        self.now.close()
        if self._next is not None:
            self._next.close()

    def note_faults(self) -> None:
        """Write down from now on, in the running event loop, what policies do wrong."""
        self._loop = asyncio.get_running_loop()

    def _on_fault(self, fault: Fault) -> None:
        """A policy failed. Called in the thread in which it was asked."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._note, fault)

    def _note(self, fault: Fault) -> None:
        _log.warning("%s", fault)
        self.faults[fault.kind, fault.policy] += 1
        for job_id in fault.jobs:
            if (status := self._table.find(job_id)) is not None:
                self._table.keep(replace(status, policy_faults=status.policy_faults + 1))
        record = {
            "policy": fault.policy,
            "policy_kind": fault.kind,
            "job": ", ".join(fault.jobs),
            "message": str(fault),
        }
        self._store.add_event(time.time(), "policy-fault", record)
