"""Many simulations of one trace: every combination of the policies that were named.

Policies that users wrote are guarded: their faults are reported.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from patchlight.controller.policies.contract import PolicyKind
from patchlight.controller.policies.guard import (
    Fault,
    GuardedElasticity,
    GuardedOrder,
    GuardedPartition,
    GuardedPlacement,
    GuardedTopology,
)
from patchlight.controller.policies.registry import DEFAULTS, find, load_policy
from patchlight.emulation.simulator.cluster.cluster import Cluster
from patchlight.emulation.simulator.cluster.jobs import QueueJob, left_open
from patchlight.emulation.simulator.cluster.results import QueueResult, summary_of
from patchlight.emulation.simulator.cluster.scheduling import Tell, simulate
from patchlight.emulation.simulator.cluster.site import Policies
from patchlight.emulation.simulator.cluster.state import Settings
from patchlight.emulation.simulator.executors import Engine, run_all
from patchlight.emulation.simulator.seeds import policy_seed

_SHOWN = 5


@dataclass
class Faults:
    """What policies did wrong: how often, and the first few in words."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def __call__(self, fault: Fault) -> None:
        """One more."""
        self.count += 1
        if len(self.first) < _SHOWN:
            self.first.append(str(fault))


_GUARDS: dict[PolicyKind, Any] = {
    "order": GuardedOrder,
    "placement": GuardedPlacement,
    "topology": GuardedTopology,
    "elasticity": GuardedElasticity,
    "partition": GuardedPartition,
}
AS_ASKED = "as-asked"
"""Instead of a partition policy: jobs get as many GPUs as they want."""


def load_policies(
    order: str,
    placement: str,
    topology: str,
    seed: int,
    faults: Callable[[Fault], None],
    elasticity: str = "rigid",
    partition: str = AS_ASKED,
) -> Policies:
    """The policies of these names; ``faults`` is told of each that they commit.

    What they draw follows from ``seed``, but is not what a simulation of that seed draws.
    """
    seed = policy_seed(seed)
    return Policies(
        _load("order", order, seed, faults),
        _load("placement", placement, seed, faults),
        None if topology == "keep" else _load("topology", topology, seed, faults),
        None if elasticity == "rigid" else _load("elasticity", elasticity, seed, faults),
        None if partition == AS_ASKED else _load("partition", partition, seed, faults),
    )


def check_policies(
    orders: Iterable[str],
    placements: Iterable[str],
    topologies: Iterable[str],
    elasticities: Iterable[str],
    partitions: Iterable[str],
) -> None:
    """``BadInput`` for the first policy that there is not, or that cannot be made."""
    named = orders, placements, topologies, elasticities, partitions
    for kind, names in zip(_GUARDS, named, strict=True):
        for name in names:
            if name != AS_ASKED:
                load_policy(name, kind, seed=0)


def _load(kind: PolicyKind, name: str, seed: int, faults: Callable[[Fault], None]) -> Any:
    recipe = find(name, kind)
    policy = recipe.make(seed=seed)
    if recipe.origin == "built in":
        return policy
    default = load_policy(DEFAULTS[kind], kind, seed=seed)
    # No time limit: a result must not depend on how busy the machine is.
    return _GUARDS[kind](policy, default, recipe.text, faults, math.inf)


class Combination(NamedTuple):
    """Policies by name, the seed of all that is drawn, and whether light moves under jobs."""

    order: str = "fifo"
    placement: str = "first-fit"
    topology: str = "keep"
    seed: int = 0
    defragment: bool = False
    elasticity: str = "rigid"
    partition: str = AS_ASKED

    @property
    def name(self) -> str:
        """Short enough for a table and a file; what does nothing is left out."""
        parts = [self.order, self.placement, *([self.topology] * (self.topology != "keep"))]
        parts += [self.elasticity] * (self.elasticity != "rigid")
        parts += [self.partition] * (self.partition != AS_ASKED)
        parts += ["defragment"] * self.defragment
        return " ".join(part.rpartition("/")[2].replace(":", " ") for part in parts)


@dataclass(frozen=True)
class CombinationResult:
    """What came of one combination, and what its policies did wrong."""

    combination: Combination
    result: QueueResult
    summary: dict[str, Any]
    cpu_s: float
    faults: Faults = field(default_factory=Faults)


@dataclass
class Sweep:
    """A cluster, a trace and settings; called with a combination it runs it."""

    cluster: Cluster
    jobs: Sequence[QueueJob]
    settings: Settings = field(default_factory=Settings)

    def __call__(self, combination: Combination, tell: Tell | None = None) -> CombinationResult:
        """Run one; ``BadInput`` for a policy that there is not."""
        faults = Faults()
        kinds = combination.elasticity, combination.partition
        policies = load_policies(*combination[:4], faults, *kinds)
        jobs = self.jobs if policies.partition is None else [left_open(job) for job in self.jobs]
        began = time.process_time()
        every_s = self.settings.defragment_s if combination.defragment else None
        settings = replace(self.settings, seed=combination.seed, defragment_s=every_s)
        result = simulate(self.cluster, jobs, policies, settings, tell)
        cpu_s = time.process_time() - began
        return CombinationResult(combination, result, summary_of(result), cpu_s, faults)


def combinations(
    orders: Sequence[str],
    placements: Sequence[str],
    topologies: Sequence[str],
    seed: int,
    defragment: Sequence[bool] = (False,),
    elasticities: Sequence[str] = ("rigid",),
    partitions: Sequence[str] = (AS_ASKED,),
) -> list[Combination]:
    """Each with each, every one once."""
    found = (
        Combination(order, placement, topology, seed, moves, elasticity, partition)
        for order, placement, topology, elasticity, partition in itertools.product(
            orders, placements, topologies, elasticities, partitions
        )
        for moves in defragment
    )
    return list(dict.fromkeys(found))


def run_sweep(
    sweep: Sweep, wanted: Sequence[Combination], engine: Engine, tell: Callable[[int, int], None]
) -> list[CombinationResult]:
    """Run them all. ``tell`` hears of jobs that ended where there is one run, else of runs.

    ``Interrupted`` has the results that were there when somebody pressed Ctrl-C.
    """
    if len(wanted) == 1:
        return [sweep(wanted[0], tell)]
    done = itertools.count(1)
    return run_all(wanted, sweep, engine, lambda: tell(next(done), len(wanted)))
