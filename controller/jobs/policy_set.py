"""Guards the policies of a lab: after a fault, which is an event, the default decides."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, TypeVar

from pydantic import TypeAdapter

from patchlight.controller.jobs.cluster_view import WiredLab
from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.policies import guard
from patchlight.controller.policies.cheapest import (
    LOOKED_AT_EVERY_S,
    MINIMUM_GAIN_S,
)
from patchlight.controller.policies.contract import ClusterShape, Policy
from patchlight.controller.policies.policy_process import PolicyProcess
from patchlight.controller.policies.registry import (
    DEFAULTS,
    is_built_in,
    load_policy,
)
from patchlight.controller.policies.topology import CannotRegroup
from patchlight.controller.storage.database import JournalError
from patchlight.controller.storage.store import Store
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.rules import (
    ABILITIES,
    KINDS,
    NOTHING_SAID,
    PolicyChoice,
    PolicyKind,
)

G = TypeVar("G")

DEFAULT_POLICIES = PolicyChoice(
    placement=DEFAULTS["placement"],
    order=DEFAULTS["order"],
    topology=DEFAULTS["topology"],
    elasticity=DEFAULTS["elasticity"],
    deadline_s=guard.DEADLINE_S,
    defragment=False,
    defragment_every_s=LOOKED_AT_EVERY_S,
    minimum_gain_s=MINIMUM_GAIN_S,
    interleave=False,
)
"""The defaults. Without *partition*, jobs must give their number of workers; *topology* is for jobs
that name none."""

_log = logging.getLogger(__name__)

_MARK = "policies"
_CHOICE = TypeAdapter(PolicyChoice)


def in_words(choice: PolicyChoice) -> dict[str, str | None]:
    """The name of each kind's policy; ``None`` if there is none."""
    whole = choice.over(DEFAULT_POLICIES)
    return {kind: whole.of(kind) or None for kind in KINDS}


def named(choice: PolicyChoice, kind: PolicyKind) -> str:
    """The policy of a kind, or the default."""
    found = choice.of(kind)
    return DEFAULTS[kind] if found is None else found


class PolicySet:
    """One guarded policy of each kind; close it after use. ``BadInput`` for an unknown or
    unsuitable one. Policies that are not built in run in separate processes."""

    def __init__(
        self,
        choice: PolicyChoice,
        report: Callable[[guard.Fault], None],
        shape: ClusterShape | None = None,
        lab: Lab | None = None,
    ) -> None:
        self._report = report
        self._deadline_s = choice.deadline_s or guard.DEADLINE_S
        self._shape = shape
        self._lab = lab
        self._topologies: dict[str, guard.GuardedTopology] = {}
        self._placements: dict[str, guard.GuardedPlacement] = {}
        self._processes: list[PolicyProcess] = []
        self.partition: guard.GuardedPartition | None = None
        try:
            self.placement = self.placement_named(named(choice, "placement"))
            self.order = self._guarded(
                guard.GuardedOrder, "order", named(choice, "order")
            )
            self.topology(named(choice, "topology"))
            elasticity = named(choice, "elasticity")
            self.elasticity = self._guarded(
                guard.GuardedElasticity, "elasticity", elasticity
            )
            if choice.partition:
                self.partition = self._guarded(
                    guard.GuardedPartition, "partition", choice.partition
                )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the processes of policies."""
        for process in self._processes:
            process.close()

    def placement_named(self, name: str) -> guard.GuardedPlacement:
        """The placement policy of this name: a job may override the lab's."""
        if name not in self._placements:
            self._placements[name] = self._guarded(
                guard.GuardedPlacement, "placement", name
            )
        return self._placements[name]

    def topology(self, name: str) -> guard.GuardedTopology:
        """The topology policy of this name. ``CannotRegroup`` of *regroup* is passed on: it has no
        default."""
        if name not in self._topologies:
            refusals = (CannotRegroup,) if name == "regroup" else ()
            guarded = partial(guard.GuardedTopology, refusals=refusals)
            self._topologies[name] = self._guarded(guarded, "topology", name)
            if self._lab is not None and self._lab.has_trunks:
                # Circuits over several OCSs need SciPy: import it before a job needs it.
                import_module("scipy.optimize")
        return self._topologies[name]

    def _guarded(
        self,
        guarded: Callable[..., G],
        kind: PolicyKind,
        name: str,
    ) -> G:
        deadline_s = self._deadline_s
        policy: Policy | PolicyProcess
        if is_built_in(name, kind):
            policy = load_policy(name, kind)
        else:
            policy = PolicyProcess(
                name,
                kind,
                deadline_s,
                self._shape,
                self._lab,
            )
            self._processes.append(policy)
        default = load_policy(DEFAULTS[kind], kind)
        return guarded(
            policy,
            default,
            name,
            self._report,
            deadline_s,
            alone=True,
        )


class PoliciesInUse:
    """One set of policies, until ``take_next`` replaces it.

    Policies of ``use`` take precedence over those ``given`` at the controller's start, these over
    the lab file's, and these over the defaults. If others are given than the last time, those of
    ``use`` are dropped. ``choice`` is the whole choice as of the queue's next pass; ``faults``
    counts by kind and policy; ``on_use`` are called after ``use``.
    """

    def __init__(
        self,
        lab: Lab,
        store: Store,
        table: JobTable,
        given: PolicyChoice,
    ) -> None:
        """``BadInput`` for an unknown policy in ``given``."""
        self._lab = lab
        self._store = store
        self._table = table
        self.on_use: list[Callable[[], None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self.faults: Counter[tuple[str, str]] = Counter()
        self.last_faults: dict[tuple[str, str], str] = {}
        self._given = given
        # An earlier controller's ``use`` counts if that was given the same.
        # Without a readable record no circuit moves, and no job waits, without a user's choice.
        cautious = {"defragment": False, "interleave": False}
        kept = store.mark(
            _MARK,
            lambda row: (row["given"], _CHOICE.validate_python(row["used"])),
            unreadable=lambda: {"given": given.said, "used": cautious},
        )
        self._used = (
            NOTHING_SAID if kept is None or kept[0] != given.said else kept[1]
        )
        if self._used is NOTHING_SAID:
            self._keep(NOTHING_SAID)
        self.choice = self._whole(self._used)
        self.now = self._made(self.choice)
        self._next: PolicySet | None = None

    def _made(self, choice: PolicyChoice) -> PolicySet:
        shape = WiredLab(self._lab, self._lab.initial_maps).shape
        return PolicySet(
            choice,
            self._on_fault,
            shape,
            self._lab,
        )

    def _whole(self, used: PolicyChoice) -> PolicyChoice:
        return (
            used.over(self._given)
            .over(self._lab.policies)
            .over(DEFAULT_POLICIES)
        )

    def _keep(self, used: PolicyChoice) -> None:
        self._store.set_mark(
            _MARK, {"given": self._given.said, "used": used.said}
        )

    async def use(self, choice: PolicyChoice) -> None:
        """Use these from the queue's next pass on; ``BadInput`` for an unknown one. The choice
        survives the controller, until one is started with others."""
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
        self._next = policies
        self._used = used
        self.choice = whole
        self._store.add_event(
            time.time(), "policies", {"policies": self.words}
        )
        for hear in self.on_use:
            hear()

    @property
    def words(self) -> dict[str, Any]:
        """The present choice: policies by kind, and which of ``ABILITIES`` are on."""
        on = {name: bool(getattr(self.choice, name)) for name in ABILITIES}
        return {**in_words(self.choice), **on}

    def take_next(self) -> bool:
        """Replace the policies by those of ``use``, if any; returns whether there were any."""
        if self._next is None:
            return False
        self.now.close()
        self.now = self._next
        self._next = None
        in_use = {(kind, self.choice.of(kind)) for kind in KINDS}
        for replaced in self.faults.keys() - in_use:
            del self.faults[replaced]
            del self.last_faults[replaced]
        return True

    def close(self) -> None:
        """End the processes of policies."""
        self.now.close()
        if self._next is not None:
            self._next.close()

    def note_faults(self) -> None:
        """Record faults of policies from now on, in the running event loop."""
        self._loop = asyncio.get_running_loop()

    def _on_fault(self, fault: guard.Fault) -> None:
        # In the thread of the policy's call.
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._note, fault)

    def _note(self, fault: guard.Fault) -> None:
        statuses = [
            s
            for job_id in fault.jobs
            if (s := self._table.find(job_id)) is not None
        ]
        if fault.jobs and not statuses:
            return  # a preview: these jobs were not submitted
        _log.warning("%s", fault)
        self.faults[fault.kind, fault.policy] += 1
        self.last_faults[fault.kind, fault.policy] = fault.reason
        for status in statuses:
            self._table.keep(
                replace(status, policy_faults=status.policy_faults + 1)
            )
        record = {
            "policy": fault.policy,
            "policy_kind": fault.kind,
            "job": ", ".join(fault.jobs),
            "message": str(fault),
        }
        self._store.add_event(time.time(), "policy-fault", record)
