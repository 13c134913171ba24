"""The policies that the scheduler asks, each guarded: a fault is an event, the default decides."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TypeVar

from patchlight.controller.policies.contract import ClusterShape, Policy
from patchlight.controller.policies.defragment import LOOKED_AT_EVERY_S, MINIMUM_GAIN_S
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
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.queueing import KINDS, PolicyChoice, PolicyKind

G = TypeVar("G")

DEFAULT_POLICIES = PolicyChoice(
    placement=DEFAULTS["placement"],
    order=DEFAULTS["order"],
    topology=DEFAULTS["topology"],
    elasticity=DEFAULTS["elasticity"],
    deadline_s=DEADLINE_S,
    defragment=False,
    defragment_every_s=LOOKED_AT_EVERY_S,
    minimum_gain_s=MINIMUM_GAIN_S,
)
"""What holds where nobody says anything. Without *partition*, jobs have to say how many workers
they want; *topology* is for jobs that do not say."""


def in_words(choice: PolicyChoice) -> dict[str, str | None]:
    """Which policy decides for each kind, for people and programs; ``None`` is none at all."""
    whole = choice.over(DEFAULT_POLICIES)
    return {kind: whole.of(kind) or None for kind in KINDS}


def named(choice: PolicyChoice, kind: PolicyKind) -> str:
    """The policy of a kind, else the default."""
    found = choice.of(kind)
    return DEFAULTS[kind] if found is None else found


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
        self._report = report
        self._deadline_s = choice.deadline_s or DEADLINE_S
        self._shape, self._lab = shape, lab
        self._topologies: dict[str, GuardedTopology] = {}
        self._placements: dict[str, GuardedPlacement] = {}
        self._processes: list[PolicyProcess] = []
        self.partition: GuardedPartition | None = None
        try:
            self.placement = self.placement_named(named(choice, "placement"))
            self.order = self._guarded(GuardedOrder, "order", named(choice, "order"))
            self.topology(named(choice, "topology"))
            elasticity = named(choice, "elasticity")
            self.elasticity = self._guarded(GuardedElasticity, "elasticity", elasticity)
            if choice.partition:
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
            if self._lab is not None and self._lab.has_trunks:
                # Light over several OCSs is planned with SciPy: imported before a job waits for it.
                import_module("scipy.optimize")
        return self._topologies[name]

    def _guarded(self, guard: Callable[..., G], kind: PolicyKind, name: str) -> G:
        deadline_s = self._deadline_s
        policy: Policy | PolicyProcess
        if is_built_in(name, kind):
            policy = load_policy(name, kind)
        else:
            policy = PolicyProcess(name, kind, deadline_s, self._shape, self._lab)
            self._processes.append(policy)
        default = load_policy(DEFAULTS[kind], kind)
        return guard(policy, default, name, self._report, deadline_s, alone=True)
