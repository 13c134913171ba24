"""What is simulated: the models, the cluster, who comes when, and what they ask for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from patchlight.controller.policies.contract import JobView
from patchlight.emulation.simulator.outages import Outage, Outages
from patchlight.emulation.simulator.ramp.arrivals import Arrivals, FixedArrivals, Job, draw_jobs
from patchlight.emulation.simulator.ramp.placement import PlacementRule
from patchlight.emulation.simulator.ramp.requirements import RequirementLaw, law
from patchlight.emulation.simulator.ramp.workloads import Workloads
from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs import ComputationGraph

PAC_ML_HORIZON_S = 1e6
PAC_ML_REPLICATION = 201


@dataclass(frozen=True)
class Scenario:
    """An experiment of a loss network; an episode of it is one seed.

    With ``reuse_first_time`` a model at a degree takes, all through an episode, as long as it
    did on the first servers it got, as PAC-ML's simulator has it; else as long as its own
    servers let it. ``replication`` and ``mix``: see ``draw_jobs``.
    """

    workloads: Workloads
    law: RequirementLaw
    rule: PlacementRule
    horizon_s: float = PAC_ML_HORIZON_S
    arrivals: Arrivals = field(default_factory=FixedArrivals)
    replication: int | None = PAC_ML_REPLICATION
    reuse_first_time: bool = True
    mix: tuple[float, ...] | None = None
    failures: Outages | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.horizon_s) and self.horizon_s > 0):
            raise BadInput(f"cannot simulate {self.horizon_s} s: expected more than 0 s")
        if self.replication is not None and self.replication < 1:
            raise BadInput(f"replication is {self.replication}: expected 1 or more")
        if self.mix is not None:
            models = len(self.workloads.names)
            if (
                self.replication is not None
                or len(self.mix) != models
                or not (min(self.mix) >= 0 and 0 < sum(self.mix) < math.inf)
            ):
                raise BadInput(
                    f"the job mix is {self.mix}: expected a share of 0 or more for each of "
                    f"{models} models, not all 0, and no replication"
                )

    def jobs(self, seed: int) -> list[Job]:
        """The jobs of the episode with this seed."""
        return draw_jobs(
            self.workloads,
            self.law,
            self.arrivals,
            self.horizon_s,
            self.replication,
            seed,
            self.mix,
        )

    def views(self, jobs: Sequence[Job]) -> tuple[JobView, ...]:
        """The jobs as policies see them; each is called by its number."""
        graphs, expected = self.workloads.graphs, self.workloads.expected(self.rule)
        return tuple(
            JobView(
                str(number), 0, graphs[graph], arrived_s, alone_s, beta, limit_s, expected[graph]
            )
            for number, graph, beta, alone_s, limit_s, arrived_s in jobs
        )

    def server_events(self, seed: int) -> tuple[Outage, ...]:
        """Which servers break and are mended in the episode with this seed."""
        if self.failures is None:
            return ()
        # Spawned after the three of the jobs, so that failures do not change these.
        rng = np.random.default_rng(np.random.SeedSequence(seed).spawn(4)[3])
        return self.failures.events_until(self.horizon_s, self.workloads.ramp.shape.size, rng)


def pac_ml_scenario(
    graphs: Sequence[ComputationGraph] | Workloads,
    law_name: str = "A",
    rule: PlacementRule | str = PlacementRule.RAMP_FIRST_FIT,
    horizon_s: float = PAC_ML_HORIZON_S,
    law_instance: int | None = 0,
) -> Scenario:
    """PAC-ML's experiment: 32 servers, a job every 1,000 s until ``horizon_s``.

    ``law_instance``: see ``requirements.SkewNormal``.

    ``BadInput`` for an unknown law or rule.
    """
    try:
        rule = PlacementRule(rule)
    except ValueError:
        known = ", ".join(PlacementRule)
        raise BadInput(f"no placement rule {rule!r}: expected one of {known}") from None
    workloads = graphs if isinstance(graphs, Workloads) else Workloads(graphs)
    reuse = rule == PlacementRule.RAMP_FIRST_FIT
    return Scenario(workloads, law(law_name, law_instance), rule, horizon_s, reuse_first_time=reuse)
