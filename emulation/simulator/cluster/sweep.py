"""Many simulations of one trace: every combination of the policies that were named."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, NamedTuple

from patchlight.emulation.simulator.cluster.cluster import Cluster
from patchlight.emulation.simulator.cluster.jobs import QueueJob
from patchlight.emulation.simulator.cluster.metrics import summary_of
from patchlight.emulation.simulator.cluster.policy_loading import load_policies
from patchlight.emulation.simulator.cluster.results import QueueResult
from patchlight.emulation.simulator.cluster.scheduling import Tell, simulate
from patchlight.emulation.simulator.cluster.settings import Settings
from patchlight.emulation.simulator.executors import Engine, run_all


class Combination(NamedTuple):
    """Policies by name, and the seed of all that is drawn."""

    order: str = "fifo"
    placement: str = "first-fit"
    topology: str = "keep"
    seed: int = 0

    @property
    def name(self) -> str:
        """Short enough for a table and a file; the topology where it does something."""
        parts = [self.order, self.placement, *([self.topology] * (self.topology != "keep"))]
        return " ".join(part.rpartition("/")[2].replace(":", " ") for part in parts)


@dataclass(frozen=True)
class CombinationResult:
    """What came of one combination; ``faults`` are what its policies did wrong, the first few."""

    combination: Combination
    result: QueueResult
    summary: dict[str, Any]
    cpu_s: float
    faults: tuple[str, ...] = ()


@dataclass
class Sweep:
    """A cluster, a trace and settings; called with a combination it runs it."""

    cluster: Cluster
    jobs: Sequence[QueueJob]
    settings: Settings = field(default_factory=Settings)

    def __call__(self, combination: Combination, tell: Tell | None = None) -> CombinationResult:
        """Run one; ``BadInput`` for a policy that there is not."""
        faults: list[str] = []
        policies = load_policies(*combination, faults)
        began = time.process_time()
        settings = replace(self.settings, seed=combination.seed)
        result = simulate(self.cluster, self.jobs, policies, settings, tell)
        cpu_s = time.process_time() - began
        return CombinationResult(combination, result, summary_of(result), cpu_s, tuple(faults))


def combinations(
    orders: Sequence[str], placements: Sequence[str], topologies: Sequence[str], seed: int
) -> list[Combination]:
    """Each with each, every one once."""
    found = (Combination(*each, seed) for each in product(orders, placements, topologies))
    return list(dict.fromkeys(found))


def run_sweep(
    sweep: Sweep,
    wanted: Sequence[Combination],
    engine: Engine,
    tell: Callable[[int, int], None],
) -> list[CombinationResult]:
    """Run them all. ``tell`` hears of jobs that ended where there is one run, else of runs."""
    if len(wanted) == 1:
        return [sweep(wanted[0], tell)]
    done = 0

    def one_more() -> None:
        nonlocal done
        done += 1
        tell(done, len(wanted))

    return run_all(wanted, sweep, engine, one_more)
