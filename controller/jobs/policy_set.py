"""The policies that the scheduler asks, each guarded: a fault is an event, the default decides."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, cast

from patchlight.controller.policies.contract import KINDS, ClusterShape, Policy, PolicyKind
from patchlight.controller.policies.guard import (
    DEADLINE_S,
    Fault,
    GuardedElasticity,
    GuardedOrder,
    GuardedPartition,
    GuardedPlacement,
    GuardedTopology,
)
from patchlight.controller.policies.policy_process import PolicyProcess
from patchlight.controller.policies.registry import DEFAULTS, is_built_in, load_policy
from patchlight.controller.policies.topology import CannotRegroup
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab import Lab

G = TypeVar("G")


@dataclass(frozen=True)
class PolicyChoice:
    """The policies of a lab, as ``patchlight.controller.policies.registry.find`` reads them.

    Without ``partition``, jobs have to say how many workers they want. ``topology`` is for
    jobs that do not say. One that has not answered after ``deadline_s`` is passed over.
    """

    placement: str = DEFAULTS["placement"]
    order: str = DEFAULTS["order"]
    topology: str = DEFAULTS["topology"]
    partition: str | None = None
    elasticity: str = DEFAULTS["elasticity"]
    deadline_s: float = DEADLINE_S

    def __post_init__(self) -> None:
        if not 0 < self.deadline_s < float("inf"):
            raise BadInput(f"a policy's deadline is {self.deadline_s} s: expected more than 0 s")

    def of(self, kind: PolicyKind) -> str | None:
        """The one of a kind."""
        return cast(str | None, getattr(self, kind))

    @property
    def words(self) -> dict[str, str | None]:
        """All, for people and programs."""
        return {kind: self.of(kind) for kind in KINDS}


DEFAULT_POLICIES = PolicyChoice()


class PolicySet:
    """One guarded policy of each kind; to be closed.

    ``BadInput`` if one that was chosen cannot be had, or does not fit a cluster of ``shape``.
    Those that are not ours run in processes of their own.
    """

    def __init__(
        self,
        choice: PolicyChoice,
        report: Callable[[Fault], None],
        shape: ClusterShape | None = None,
        lab: Lab | None = None,
    ) -> None:
        self.choice, self._report = choice, report
        self._shape, self._lab = shape, lab
        self._topologies: dict[str, GuardedTopology] = {}
        self._placements: dict[str, GuardedPlacement] = {}
        self._processes: list[PolicyProcess] = []
        self.partition: GuardedPartition | None = None
        try:
            self.placement = self.placement_named(choice.placement)
            self.order = self._guarded(GuardedOrder, "order", choice.order)
            self.topology(choice.topology)
            self.elasticity = self._guarded(GuardedElasticity, "elasticity", choice.elasticity)
            if choice.partition is not None:
                self.partition = self._guarded(GuardedPartition, "partition", choice.partition)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the processes of policies."""
        for process in self._processes:
            process.close()

    def placement_named(self, name: str) -> GuardedPlacement:
        """The placement policy of this name: a job may ask for another than the lab's."""
        if name not in self._placements:
            self._placements[name] = self._guarded(GuardedPlacement, "placement", name)
        return self._placements[name]

    def topology(self, name: str) -> GuardedTopology:
        """The topology policy of this name: a job may ask for another than the lab's.

        Who asks *regroup* for what cannot be regrouped is told so (``CannotRegroup``): nothing
        else is decided in its place.
        """
        if name not in self._topologies:
            refusals = (CannotRegroup,) if name == "regroup" else ()
            guard = partial(GuardedTopology, refusals=refusals)
            self._topologies[name] = self._guarded(guard, "topology", name)
        return self._topologies[name]

    def _guarded(self, guard: Callable[..., G], kind: PolicyKind, name: str) -> G:
        deadline_s = self.choice.deadline_s
        policy: Policy | PolicyProcess
        if is_built_in(name, kind):
            policy = load_policy(name, kind)
        else:
            policy = PolicyProcess(name, kind, deadline_s, self._shape, self._lab)
            self._processes.append(policy)
        default = load_policy(DEFAULTS[kind], kind)
        return guard(policy, default, name, self._report, deadline_s, alone=True)
