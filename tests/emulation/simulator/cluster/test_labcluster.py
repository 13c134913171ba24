"""The lab of OFC 2022 as a flow model, beside what the emulation of it measured."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from patchlight.controller.policies.contract import ClusterView, JobView
from patchlight.controller.policies.order import Fifo
from patchlight.controller.policies.placement import FirstFit
from patchlight.controller.policies.topology import Keep, Regroup
from patchlight.controller.prediction.framing import tcp
from patchlight.controller.prediction.network import Training
from patchlight.emulation.experiments.ofc2022.results import jobs_of
from patchlight.emulation.simulator.cluster import (
    LabCluster,
    Policies,
    QueueJob,
    QueueResult,
    Settings,
    simulate,
)
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.labfile.reader import load_lab
from tests.support.flow_model import flow_ends_s

# Completion of the first job in seconds, static and optical, as measured by the emulation with
# packets (12 iterations, Docker workers, 2 cores).
MEASURED = {"a": (30.11, 8.21), "b": (28.12, 10.66)}


@pytest.fixture(scope="module")
def lab() -> Lab:
    return load_lab("ofc2022")


class AsAsked:
    """The hosts that the experiment names."""

    def __init__(
        self, cluster: LabCluster, rings: Mapping[str, Sequence[str]]
    ) -> None:
        names = [host.name for host in cluster.hosts]
        self._rings = {
            job: [names.index(host) for host in ring]
            for job, ring in rings.items()
        }

    def place(
        self, cluster: ClusterView, job: JobView, workers: int
    ) -> list[int]:
        return self._rings[job.name]


def experiment(lab: Lab, case: str, topology: Keep | Regroup) -> QueueResult:
    specs = jobs_of(case, lab, 12)
    trainings = [
        Training(s.iterations, s.gradient_bytes, s.compute_s) for s in specs
    ]
    jobs = [
        QueueJob(JobView(spec.name, spec.workers), 1.0, training=training)
        for spec, training in zip(specs, trainings, strict=True)
    ]
    cluster = LabCluster(lab)
    placement = AsAsked(cluster, {spec.name: spec.hosts for spec in specs})
    return simulate(cluster, jobs, Policies(Fifo(), placement, topology))


@pytest.mark.parametrize("case", ["a", "b"])
def test_the_flow_model_comes_near_to_the_emulation_with_packets(
    lab: Lab, case: str
) -> None:
    emulated = lab.with_changes(scale=1000)
    results = [
        experiment(emulated, case, topology)
        for topology in (Keep(), Regroup())
    ]
    modelled = [result.records[0].jct_s for result in results]
    for ours, measured in zip(modelled, MEASURED[case], strict=True):
        assert ours == pytest.approx(measured, rel=0.05)
    reduction = 1 - modelled[1] / modelled[0]
    assert reduction == pytest.approx(
        1 - MEASURED[case][1] / MEASURED[case][0], abs=0.01
    )


def test_the_static_case_is_as_in_the_network_simulator(lab: Lab) -> None:
    emulated = lab.with_changes(scale=1000)
    static = experiment(emulated, "a", Keep())
    ends_s = flow_ends_s(emulated, lab.initial_maps, jobs_of("a", lab, 12))
    assert [job.jct_s for job in static.records] == pytest.approx(
        ends_s, rel=0.02
    )
    assert (static.reconfigurations, static.dark_s) == (0, 0)


def test_regrouping_is_counted_and_costs_its_dark_time(lab: Lab) -> None:
    optical = experiment(lab, "a", Regroup())
    bits = 138.36e6 * 32
    first = optical.records[0]
    assert first.jct_s == pytest.approx(
        0.025 + 12 * (0.5 + sum(tcp(1500)) * 1.5 * bits / 40e9)
    )
    assert first.racks == 1
    assert optical.reconfigurations >= 1
    assert optical.dark_s == pytest.approx(0.025 * optical.reconfigurations)
    assert optical.cross_connects >= 4


def test_racks_follow_the_light_and_dark_gpus_have_none(lab: Lab) -> None:
    cluster = LabCluster(lab)
    racks = [cluster.shape.racks[gpu.rack] for gpu in cluster.shape.gpus]
    assert racks == ["tor1", "tor1", "tor2", "tor2", "tor1", "tor2"]
    moved = cluster.rewire({"ocs1": PortMap.parse(["1-13", "2-8"])})
    assert (moved.dark_s, moved.gpus) == (0.025, 0b111101)
    assert [gpu.rack for gpu in cluster.shape.gpus] == [1, 0, -1, -1, -1, -1]
    there = [(0, "up"), ("tor2", "tor1"), (1, "down")]
    back = [(1, "up"), ("tor1", "tor2"), (0, "down")]
    assert cluster.demand([0, 1]) == dict.fromkeys(there + back, 1)
    assert cluster.demand([0, 2]) is None
    assert cluster.renewed().circuits == lab.initial_maps
    assert cluster.ports_of(0b1) == {"ocs1": frozenset({1, 13})}


def test_running_jobs_stand_still_while_their_light_moves_and_dark_ones_for_ever(
    lab: Lab,
) -> None:
    class Takes:
        """Lights the second job; the first is dark for good, or only while circuits switch."""

        def __init__(self, wanted: PortMap) -> None:
            self.wanted = wanted
            self.asked = 0

        def circuits(
            self, cluster: ClusterView, groups: Sequence[Sequence[int]]
        ) -> Mapping[str, PortMap]:
            self.asked += 1
            return {"ocs1": self.wanted} if self.asked == 2 else {}

    jobs = [
        QueueJob(JobView("first", 2), 100.0, 0.25),
        QueueJob(JobView("second", 2, arrived_s=10.0), 50.0, 0.25),
    ]
    cluster = LabCluster(lab)
    names = [host.name for host in cluster.hosts]
    rings = {"first": [names[0], names[1]], "second": [names[2], names[3]]}
    moved = PortMap.parse(["1-9", "2-8", "3-15", "4-16", "5-11", "6-18"])
    policies = Policies(Fifo(), AsAsked(cluster, rings), Takes(moved))
    records = simulate(cluster, jobs, policies).records
    assert [record.ended_s for record in records] == pytest.approx(
        [100.025, 60.025]
    )
    dark = PortMap.parse(["3-15", "4-16"])
    policies = Policies(Fifo(), AsAsked(cluster, rings), Takes(dark))
    with pytest.raises(
        PatchlightError, match="first cannot continue: a NIC is dark"
    ):
        simulate(cluster, jobs, policies)


@pytest.mark.parametrize(
    ("topology", "preempted"),
    [(None, "long"), (Keep(), "long"), (Regroup(), "single")],
)
def test_nobody_is_preempted_for_a_job_that_light_would_not_join_there(
    lab: Lab, topology: Keep | Regroup | None, preempted: str
) -> None:
    (ocs,) = lab.circuit_switches
    # All NICs but the last.
    lit = PortMap.of(each for each in ocs.initial if 6 not in each)
    dim = lab.with_changes(circuit_switches=(replace(ocs, initial=lit),))
    jobs = [
        QueueJob(JobView("first", 2), 5000.0, 0.25, priority=2),
        QueueJob(JobView("long", 2), 2000.0, 0.25),
        QueueJob(JobView("single", 1), 2000.0),
        QueueJob(
            JobView("urgent", 2, arrived_s=400.0), 100.0, 0.25, priority=1
        ),
    ]
    settings = Settings(
        preempt=True, backfill=True, quantum_s=300.0, restart_s=10.0
    )
    policies = Policies(Fifo(), FirstFit(), topology)
    found = simulate(LabCluster(dim), jobs, policies, settings).records
    # The last two GPUs are free or the single job's: the urgent one needs light there.
    assert {
        each.name: each.preemptions for each in found if each.preemptions
    } == {preempted: 1}
    assert found[3].started_s == 400


def test_labs_without_gpus_or_with_another_ocs(lab: Lab) -> None:
    with pytest.raises(BadInput, match="has no GPU with a NIC"):
        LabCluster(lab.with_changes(servers=()))
    with pytest.raises(BadInput, match="no OCS called 'ocs9'"):
        LabCluster(lab).rewire({"ocs9": PortMap()})
