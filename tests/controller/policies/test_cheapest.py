"""One price for a placement and its circuits, and the pair of policies that asks it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from patchlight.controller.jobs.cluster_view import WiredLab
from patchlight.controller.policies.cheapest import (
    CheapestPlacement,
    CheapestTopology,
    Prices,
    placed,
)
from patchlight.controller.policies.contract import (
    ClusterView,
    JobView,
    RingOfJob,
)
from patchlight.controller.policies.order import Fifo
from patchlight.controller.policies.topology import regroup
from patchlight.controller.prediction.framing import tcp
from patchlight.controller.prediction.network import Load, Training
from patchlight.emulation.simulator.cluster import (
    LabCluster,
    Policies,
    QueueJob,
    simulate,
)
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.labfile.reader import load_lab

# Bits on links for each bit of a ring.
WIRE = sum(tcp(1500))
# As VGG16: alone and under one switch 0.5 s of computing and 0.1 s of communicating.
LOAD = Load(100, 0.5, 4e9 / WIRE)


@pytest.fixture(scope="module")
def lab() -> Lab:
    return load_lab("ofc2022")


def slow(lab: Lab, switching_time_s: float) -> Lab:
    (ocs,) = lab.circuit_switches
    return lab.with_changes(
        circuit_switches=(replace(ocs, switching_time_s=switching_time_s),)
    )


def view_of(
    lab: Lab, *jobs: RingOfJob, maps: Mapping[str, PortMap] | None = None
) -> ClusterView:
    wired = WiredLab(lab, lab.initial_maps if maps is None else maps)
    running = {job.name: wired.hosts(job.ring) for job in jobs}
    return wired.view(0.0, running)._replace(rings=jobs)


def job(workers: int, iterations: float = 100) -> JobView:
    training = Training(
        iterations, 4e9 / 8, {"Tesla M40": 0.5, "Titan V": 0.5}
    )
    return JobView("new", workers, training=training)


def test_a_price_is_when_all_jobs_end(lab: Lab) -> None:
    first = RingOfJob("first", (0, 2), LOAD)
    second = RingOfJob("second", (4, 5), LOAD, waits=True)
    prices = Prices(view_of(lab, first, second), lab, [first, second])
    keep = prices.of({})
    # Both share the trunk: 5 Gb/s each.
    assert keep.completions_s == pytest.approx((130.0, 130.0))
    assert (keep.stuck, keep.cross_connects, keep.dark_s) == (0, 0, 0.0)
    assert keep.total_s == pytest.approx(260.0)
    # The second alone under one switch: the first has the trunk to itself, and is not disturbed.
    maps = regroup(
        lab,
        lab.initial_maps,
        [["gpu4", "gpu5"]],
        locked={"ocs1": [1, 3, 7, 15]},
    )
    alone = prices.of(maps)
    assert alone.completions_s == pytest.approx((90.0, 60.025))
    assert (alone.cross_connects, alone.dark_s) == (2, 0.025)
    assert alone < keep
    # The first moved as well: it finishes its iteration of 0.9 s, is dark, and is then quick.
    both = prices.of(
        regroup(lab, lab.initial_maps, [["gpu0", "gpu2"], ["gpu4", "gpu5"]])
    )
    assert both.completions_s[0] == pytest.approx(60.0 + 0.9 + 0.025)


def test_what_is_left_follows_from_an_end_that_is_known(lab: Lab) -> None:
    # 0.9 s an iteration: 50 are left.
    job = RingOfJob("j", (0, 2), LOAD, ends_s=45.0)
    prices = Prices(view_of(lab, job), lab, [job])
    together = regroup(lab, lab.initial_maps, [["gpu0", "gpu2"]])
    assert prices.of({}).total_s == pytest.approx(45.0)
    assert prices.of(together).total_s == pytest.approx(50 * 0.6 + 0.925)
    endless = job._replace(load=LOAD._replace(units=math.inf), ends_s=math.inf)
    prices = Prices(view_of(lab, endless), lab, [endless])
    assert prices.of({}).total_s == pytest.approx(3600.0)
    assert prices.of(together).total_s == pytest.approx(2400.925)


def test_a_ring_without_a_way_costs_more_than_any_time(lab: Lab) -> None:
    maps = {"ocs1": PortMap.parse(["1-7"])}
    job = RingOfJob("j", (0, 2), LOAD, waits=True)
    prices = Prices(view_of(lab, job, maps=maps), lab, [job])
    dark = prices.of({})
    lit = prices.of({"ocs1": PortMap.parse(["1-7", "3-9"])})
    assert (dark.stuck, dark.completions_s) == (1, (math.inf,))
    assert lit < dark


def test_circuits_move_where_that_is_worth_its_dark_time(lab: Lab) -> None:
    ring = [2, 4]
    for switching_time_s, iterations, moves in (
        (0.025, 100, True),
        (40.0, 100, False),
    ):
        there = slow(lab, switching_time_s)
        new = placed(view_of(there), job(2, iterations), ring, 40e9)
        wanted = CheapestTopology().circuits(view_of(there, new), [ring])
        assert bool(wanted) is moves


def test_the_place_and_the_circuits_are_the_cheapest_pair(lab: Lab) -> None:
    # gpu0 and gpu1 of tor1 are taken, so that three GPUs are free under tor2 and one under tor1.
    busy = RingOfJob("busy", (0, 1), LOAD)
    for switching_time_s, alone in ((0.025, True), (1e6, False)):
        there = slow(lab, switching_time_s)
        view = view_of(there, busy)
        ring = CheapestPlacement().place(view, job(4), 4)
        assert ring is not None
        assert sorted(ring) == [2, 3, 4, 5]
        new = placed(view, job(4), ring, 40e9)
        wanted = CheapestTopology().circuits(view_of(there, busy, new), [ring])
        racks = WiredLab(there, {**there.initial_maps, **wanted}).shape.gpus
        assert (len({racks[gpu].rack for gpu in ring}) == 1) is alone
        # Who runs keeps its light.
        assert racks[0].rack == racks[1].rack == 0


def test_jobs_of_which_nothing_is_known_are_regrouped(lab: Lab) -> None:
    view = view_of(lab)
    ring = CheapestPlacement().place(view, JobView("foreign", 3), 3)
    assert ring is not None
    assert CheapestTopology().circuits(view, [[2, 4]])
    assert CheapestTopology().circuits(view, [[2, 3]]) == {}


def test_a_queue_is_served_faster_where_circuits_or_places_are_chosen_too(
    lab: Lab,
) -> None:
    class Places:
        """Spread at first, so that circuits matter."""

        rings: Sequence[list[int]] = ([0, 2], [4, 5], [1, 3])

        def place(
            self, cluster: ClusterView, job: JobView, workers: int
        ) -> list[int]:
            return self.rings[int(job.name)]

    training = Training(200, 4e9 / 8, {"Tesla M40": 0.5, "Titan V": 0.5})
    jobs = [
        QueueJob(
            JobView(str(n), 2, arrived_s=10.0 * n), 1.0, training=training
        )
        for n in range(3)
    ]
    ends = {}
    for name, policies in {
        "keep": Policies(Fifo(), Places()),
        "spread": Policies(Fifo(), Places(), CheapestTopology()),
        "both": Policies(Fifo(), CheapestPlacement(), CheapestTopology()),
    }.items():
        result = simulate(LabCluster(lab), jobs, policies)
        ends[name] = sum(record.ended_s for record in result.records)
    assert ends["both"] <= ends["spread"] < ends["keep"]
