"""The policies that decide in a lab now, and what they did wrong."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from patchlight.controller.jobs.cluster_view import WiredLab
from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.jobs.policy_set import DEFAULT_POLICIES, PolicyChoice, PolicySet
from patchlight.controller.policies.guard import Fault
from patchlight.controller.store import Store
from patchlight.testbed.lab import Lab

_log = logging.getLogger(__name__)

_MARK = "policies"


class PoliciesInUse:
    """One set of policies, until ``take_next`` puts another in its place.

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
        self.choice = self._kept(given)
        self.now = self._made(self.choice)
        self._next: PolicySet | None = None

    def _made(self, choice: PolicyChoice) -> PolicySet:
        shape = WiredLab(self._lab, self._lab.initial_maps).shape
        return PolicySet(choice, self._on_fault, shape, self._lab)

    def _kept(self, given: PolicyChoice) -> PolicyChoice:
        """What ``use`` chose in an earlier life, if the controller is given the same as then."""
        kept = self._store.mark(_MARK)
        # An older controller knew fewer kinds of policies: their defaults held.
        if kept is None or {**DEFAULT_POLICIES.words, **kept["given"]} != given.words:
            self._store.set_mark(_MARK, {"given": given.words, "used": given.words})
            return given
        return replace(given, **kept["used"])

    async def use(self, choice: PolicyChoice) -> None:
        """Have others decide from the next pass of the queue on; ``BadInput`` if one is not there.

        What runs is left as it is. The choice outlives the controller, until it is started with
        others.
        """
        policies = await asyncio.to_thread(self._made, choice)
        if self._next is not None:
            self._next.close()
        self._next, self.choice = policies, choice
        kept = self._store.mark(_MARK) or {"given": choice.words}
        self._store.set_mark(_MARK, {**kept, "used": choice.words})
        self._store.add_event(time.time(), "policies", {"policies": choice.words})
        self._wanted()

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
