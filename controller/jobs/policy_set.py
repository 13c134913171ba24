"""The policies that the scheduler asks, each guarded: a fault is an event, the default decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from patchlight.controller.policies.contract import (
    KINDS,
    OrderPolicy,
    PartitionPolicy,
    PlacementPolicy,
    PolicyKind,
    TopologyPolicy,
)
from patchlight.controller.policies.guard import (
    DEADLINE_S,
    Fault,
    GuardedOrder,
    GuardedPartition,
    GuardedPlacement,
    GuardedTopology,
)
from patchlight.controller.policies.registry import DEFAULTS, load_policy
from patchlight.testbed.errors import BadInput


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
    """One guarded policy of each kind; ``BadInput`` if one that was chosen cannot be had."""

    def __init__(self, choice: PolicyChoice, report: Callable[[Fault], None]) -> None:
        self.choice = choice
        self.placement = GuardedPlacement(
            cast(PlacementPolicy, load_policy(choice.placement, "placement")),
            cast(PlacementPolicy, load_policy(DEFAULTS["placement"], "placement")),
            choice.placement,
            report,
            choice.deadline_s,
            alone=True,
        )
        self.order = GuardedOrder(
            cast(OrderPolicy, load_policy(choice.order, "order")),
            cast(OrderPolicy, load_policy(DEFAULTS["order"], "order")),
            choice.order,
            report,
            choice.deadline_s,
            alone=True,
        )
        self.topology = GuardedTopology(
            cast(TopologyPolicy, load_policy(choice.topology, "topology")),
            cast(TopologyPolicy, load_policy(DEFAULTS["topology"], "topology")),
            choice.topology,
            report,
            choice.deadline_s,
            alone=True,
        )
        self.partition: GuardedPartition | None = None
        if choice.partition is not None:
            self.partition = GuardedPartition(
                cast(PartitionPolicy, load_policy(choice.partition, "partition")),
                cast(PartitionPolicy, load_policy(DEFAULTS["partition"], "partition")),
                choice.partition,
                report,
                choice.deadline_s,
                alone=True,
            )
