"""Preemptive queues: the policy need not be asked about every running job."""

import random
from collections.abc import Callable
from typing import NamedTuple

import pytest

from patchlight.controller.policies.contract import (
    ClusterView,
    JobView,
    OrderPolicy,
    PlacementPolicy,
    Progress,
)
from patchlight.controller.policies.order import (
    Deadline,
    Fifo,
    LeastAttainedService,
    Srpt,
)
from patchlight.controller.policies.placement import (
    BestFit,
    Consolidated,
    FirstFit,
    RackAware,
    RandomPlacement,
)
from patchlight.emulation.simulator.cluster import (
    Policies,
    QueueJob,
    QueueResult,
    Settings,
    TwoLevel,
    simulate,
)
from patchlight.emulation.simulator.outages import Outages
from patchlight.testbed.errors import BadInput

ORDERS: dict[str, OrderPolicy] = {
    "fifo": Fifo(),
    "srpt": Srpt(),
    "las": LeastAttainedService(),
    "deadline": Deadline(),
}
PLACEMENTS: dict[str, Callable[[], PlacementPolicy]] = {
    "first-fit": FirstFit,
    "best-fit": BestFit,
    "consolidated": Consolidated,
    "rack-aware": RackAware,
    "random": RandomPlacement,
}


class Case(NamedTuple):
    order: str
    placement: str
    cluster: str
    speed: float
    communication: float = 0.0
    oversubscription: float = 1.0
    blind: bool = False
    failures: str = ""


CASES = [
    Case("las", "consolidated", "2x4x8", 4),
    Case("las", "best-fit", "1x2x8", 0.5),
    Case("srpt", "rack-aware", "4x2x4", 1),
    Case("srpt", "random", "2x4x4", 1),
    Case("deadline", "first-fit", "2x2x8", 1),
    Case("srpt", "first-fit", "2x2x8", 1, blind=True),
    Case("las", "first-fit", "2x4x4", 1, failures="server:2d:4h"),
    Case(
        "srpt", "rack-aware", "4x2x4", 2, communication=0.3, oversubscription=8
    ),
    Case(
        "las", "first-fit", "4x2x4", 1, communication=0.25, oversubscription=4
    ),
]


def drawn(speed: float, communication: float) -> list[QueueJob]:
    """Jobs of whole seconds: short ones, and few that are very long."""
    rng = random.Random(7)
    jobs: list[QueueJob] = []
    at_s = 0
    for number in range(600):
        workers = rng.choices((1, 2, 4, 8, 16), (12, 4, 3, 2, 1))[0]
        lasts_s = int(rng.lognormvariate(7.0, 2.0)) + 1
        limit_s = float(lasts_s * rng.randint(2, 40))
        view = JobView(
            f"job{number}",
            workers,
            arrived_s=at_s / speed,
            sequential_s=float(lasts_s * workers),
            limit_s=limit_s,
        )
        jobs.append(
            QueueJob(
                view, float(lasts_s), communication if workers > 1 else 0.0
            )
        )
        at_s += int(rng.expovariate(1 / 900))
    return jobs


def ran(case: Case, order: OrderPolicy | None = None) -> QueueResult:
    policies = Policies(
        order or ORDERS[case.order], PLACEMENTS[case.placement]()
    )
    settings = Settings(
        preempt=True,
        known=not case.blind,
        outages=Outages.parse(case.failures) if case.failures else None,
        seed=3,
    )
    cluster = TwoLevel.parse(f"{case.cluster},taper={case.oversubscription}")
    return simulate(
        cluster, drawn(case.speed, case.communication), policies, settings
    )


class AskedAboutAll:
    """The same order, without saying when it rises."""

    stable = True

    def __init__(self, name: str) -> None:
        self._order = ORDERS[name]

    def priority(
        self, cluster: ClusterView, job: JobView, progress: Progress
    ) -> float:
        return self._order.priority(cluster, job, progress)


@pytest.mark.parametrize("case", CASES)
def test_jobs_run_as_when_the_policy_is_asked_about_all(case: Case) -> None:
    found = ran(case)
    assert found.jobs["ended_s"].max() > 0
    assert found.records == ran(case, AskedAboutAll(case.order)).records


def test_amounts_at_which_a_priority_rises_are_ascending_numbers() -> None:
    class Wrong(Srpt):
        rises_at = (2.0, 1.0)

    class Words(Srpt):
        rises_at = ("soon",)  # type: ignore[assignment]

    for order in (Wrong(), Words()):
        with pytest.raises(BadInput, match="expected GPU-seconds, ascending"):
            ran(CASES[0], order)
    assert LeastAttainedService(queues=3).rises_at == [3600.0, 36000.0]
