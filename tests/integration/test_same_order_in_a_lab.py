"""The same lab file and jobs in an emulated lab and in the simulator: the same ones are started and
preempted, in the same order.

What the simulator leaves out, how long workers take to begin and to end, is a second or two for
each job: these come and last so that it changes no order.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from patchlight import EmulatedLab
from patchlight.client.client import ControllerClient
from patchlight.controller.jobs.policy_set import named
from patchlight.controller.policies.registry import load_policy
from patchlight.emulation.simulator.cluster import (
    LabCluster,
    Policies,
    Settings,
    Simulation,
)
from patchlight.emulation.simulator.cluster.jobs import jobs_of_specs
from patchlight.emulation.simulator.cluster.sweep import QueueScheduler
from patchlight.testbed.jobs import JobSpec
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.rules import PolicyChoice
from patchlight.testbed.labfile.reader import builtin_lab, read_lab
from tests.support.lab_jobs import connected
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.ovs]

QUEUE = "queue: {backfill: true, preempt: true, quantum: 1s, users: [{name: ben, share: 2}]}\n"
ITERATION_S = 0.25
CHOICE = PolicyChoice()


class Arrival(NamedTuple):
    """A job, when it comes, whose it is, and for how long it computes.

    In a lab it comes once ``after`` jobs have started: on a busy machine they start late.
    """

    at_s: float
    name: str
    workers: int
    lasts_s: float
    user: str = "carl"
    priority: int = 0
    preemptible: bool = True
    after: int = 0

    @property
    def spec(self) -> JobSpec:
        return JobSpec(
            self.name,
            iterations=round(self.lasts_s / ITERATION_S),
            gradient_bytes=400_000,
            compute_s={"Tesla M40": ITERATION_S, "Titan V": ITERATION_S},
            workers=self.workers,
            priority=self.priority,
            preemptible=self.preemptible,
        )


IN_ORDER = (
    Arrival(0.0, "first", 4, 3.5),
    Arrival(0.3, "all", 6, 1.5),
    Arrival(0.6, "passes", 2, 0.75),
    Arrival(0.9, "too-long-to-pass", 2, 12.0),
    Arrival(1.2, "beside-it", 4, 12.0),
    Arrival(10.0, "urgent", 6, 0.5, priority=5, after=5),
)
IN_SHARES = (
    Arrival(0.0, "anns-first", 6, 2.0, "ann", preemptible=False),
    Arrival(0.3, "anns-second", 6, 0.5, "ann", preemptible=False),
    Arrival(0.6, "bens-first", 6, 0.5, "ben", preemptible=False),
    Arrival(0.9, "bens-second", 6, 0.5, "ben", preemptible=False),
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("queue") / "lab.yaml"
    path.write_text(builtin_lab("ofc2022").read_text() + QUEUE)
    return path


@pytest.fixture(scope="module")
def lab(file: Path) -> Iterator[EmulatedLab]:
    with EmulatedLab.from_file(
        file, scale=1000, name="sameorder", workers="process"
    ) as emulated:
        yield emulated


def simulated(
    lab: Lab, arrivals: Sequence[Arrival], order: str
) -> list[set[tuple[str, str]]]:
    """What is started and preempted at each moment."""
    jobs = [
        job
        for a in arrivals
        for job in jobs_of_specs(lab, [a.spec], a.user, a.at_s)
    ]
    queue = {
        name: getattr(lab.queue, name)
        for name in ("backfill", "preempt", "quantum_s", "users")
    }
    simulation = Simulation(
        LabCluster(lab), jobs, Settings(**queue, restart_s=1.0)
    )
    policy: Any = load_policy(order, "order")
    placement: Any = load_policy(named(CHOICE, "placement"), "placement")
    scheduler = QueueScheduler(simulation, Policies(policy, placement))
    moments = []
    while simulation.advance():
        before = {
            job.name: job.preemptions for job in simulation.running.values()
        }
        scheduler.decide()
        preempted = {
            job.name
            for job in simulation.jobs
            if job.preemptions > before.get(job.name, 99)
        }
        started = {job.name for job in simulation.running.values()} - (
            before.keys() - preempted
        )
        moment = {("queued", name) for name in preempted} | {
            ("preparing", n) for n in started
        }
        moments += [moment] if moment else []
    return moments


def in_the_lab(
    lab: EmulatedLab,
    client: ControllerClient,
    arrivals: Sequence[Arrival],
    count: int,
) -> list[tuple[str, str]]:
    """The same, one after the other, once there are as many."""
    names: dict[str, str] = {}

    def happened() -> list[tuple[str, str]]:
        found = []
        for event in client.events():
            state = event["kind"].removeprefix("job-")
            name = names.get(event.get("job", ""))
            if name and (
                state == "preparing"
                or (state == "queued" and event["message"])
            ):
                found.append((state, name))
        return found

    def wait_for(number: int) -> None:
        wait_until(lambda: len(happened()) >= number)

    began = time.monotonic()
    for arrival in arrivals:
        time.sleep(max(0.0, began + arrival.at_s - time.monotonic()))
        wait_for(arrival.after)
        with ControllerClient(
            lab.lab.controller_api, user=arrival.user
        ) as user:
            names[user.submit([arrival.spec], "keep")[0].id] = arrival.name
    wait_for(count)
    return happened()


BOTH = {"too-long-to-pass", "beside-it"}
TURNS = {
    "fifo": [{"first"}, {"passes"}, {"all"}, BOTH, {"urgent"} | BOTH, BOTH],
    "fair-share": [
        {"anns-first"},
        {"bens-first"},
        {"bens-second"},
        {"anns-second"},
    ],
}


@pytest.mark.parametrize(
    ("order", "arrivals"), [("fifo", IN_ORDER), ("fair-share", IN_SHARES)]
)
def test_the_lab_starts_the_jobs_in_the_order_of_the_simulator(
    lab: EmulatedLab, file: Path, order: str, arrivals: Sequence[Arrival]
) -> None:
    expected = simulated(read_lab(file), arrivals, order)
    assert [{name for _, name in moment} for moment in expected] == TURNS[
        order
    ]
    with connected(lab) as client:
        client.use_policies({"order": order})
        try:
            happened = in_the_lab(
                lab, client, arrivals, sum(map(len, expected))
            )
        finally:
            for job in client.jobs():
                if job.finished_at is None:
                    client.stop(job.id, force=True)  # they are others'
    found = iter(happened)
    assert [{next(found) for _ in moment} for moment in expected] == expected
    assert not list(found)
