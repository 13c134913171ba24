"""Topology policies that see traffic: what they light, in the simulator too."""

from collections.abc import Mapping, Sequence

import pytest

from patchlight.controller.jobs.cluster_view import WiredLab, arguments, seen
from patchlight.controller.policies.contract import (
    ClusterView,
    JobView,
    RingOfJob,
    TopologyPolicy,
)
from patchlight.controller.policies.engineered import Matching, Ring, Totient
from patchlight.controller.policies.engineering.paths import NoLight
from patchlight.controller.policies.guard import Fault, GuardedTopology
from patchlight.controller.policies.order import Fifo
from patchlight.controller.policies.placement import FirstFit
from patchlight.controller.policies.registry import load_policy
from patchlight.controller.policies.topology import Keep
from patchlight.controller.prediction.framing import tcp
from patchlight.controller.prediction.network import Load, Training
from patchlight.emulation.simulator.cluster import (
    LabCluster,
    Policies,
    QueueJob,
    TwoLevel,
    simulate,
)
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.wiring import trace_links
from patchlight.testbed.labfile.reader import load_lab

LAB = load_lab("ring16")
OFC = load_lab("ofc2022")


def view_of(
    lab: Lab, *rings: Sequence[int], maps: Mapping[str, PortMap] = {}
) -> ClusterView:
    wired = WiredLab(lab, {**lab.initial_maps, **maps})
    jobs = {
        f"job{number}": wired.hosts(ring) for number, ring in enumerate(rings)
    }
    return wired.view(0.0, jobs)


def lit(lab: Lab, maps: Mapping[str, PortMap]) -> set[frozenset[str]]:
    """Which devices have light between them over the OCS."""
    pairs = trace_links(lab, {**lab.initial_maps, **maps}).pairs()
    inside = {(f.a, f.b) for f in lab.fibres}
    return {
        frozenset((a.device, b.device))
        for a, b in pairs
        if not {(a, b), (b, a)} & inside
    }


def edges(*names: int) -> set[frozenset[str]]:
    """A ring of NICs, by the numbers of their servers."""
    ends = zip(names, (*names[1:], names[0]), strict=True)
    return {frozenset((f"eswitch{a}", f"eswitch{b}")) for a, b in ends}


@pytest.mark.parametrize("policy", [Ring(), Matching(), Totient(rings=1)])
def test_each_jobs_ring_is_closed_through_the_ocs(
    policy: TopologyPolicy,
) -> None:
    view = view_of(LAB, range(16))
    found = policy.circuits(view, [range(16)])
    assert lit(LAB, found) == edges(*range(1, 17))
    # Eight of the sixteen circuits are there already.
    assert len(LAB.initial_maps["ocs1"].diff(found["ocs1"]).breaks) == 0
    assert (
        policy.circuits(view_of(LAB, range(16), maps=found), [range(16)]) == {}
    )
    rings = [(0, 5, 3), (8, 1, 2, 9), (4, 15)]
    found = policy.circuits(view_of(LAB, *rings), rings)
    wanted = edges(1, 6, 4) | edges(9, 2, 3, 10) | edges(5, 16)
    assert lit(LAB, found) >= wanted


def test_light_of_jobs_that_nobody_asks_about_stays() -> None:
    first = (0, 2, 4, 6)
    maps = Ring().circuits(view_of(LAB, first), [first])
    second = (1, 3, 5)
    view = view_of(LAB, first, second, maps=maps)
    found = Ring().circuits(view, [second])
    assert lit(LAB, {**maps, **found}) >= edges(1, 3, 5, 7) | edges(2, 4, 6)


def test_a_pair_of_nics_is_lit_without_any_packet_switch() -> None:
    found = Ring().circuits(view_of(OFC, (0, 3)), [(0, 3)])
    assert frozenset(("server1", "server2")) in lit(OFC, found)
    cluster = LabCluster(OFC, {**OFC.initial_maps, **found})
    assert cluster.demand([0, 3]) == {
        (0, "up"): 1,
        (0, "down"): 1,
        (3, "up"): 1,
        (3, "down"): 1,
    }
    # Three NICs with one port each are no ring.
    with pytest.raises(NoLight, match="too few usable ports"):
        Ring().circuits(view_of(OFC, (0, 2, 3)), [(0, 2, 3)])
    with pytest.raises(BadInput, match="needs 2 OCS ports of each: one has 1"):
        Totient().circuits(view_of(OFC, (0, 2, 3)), [(0, 2, 3)])


def test_a_policy_that_cannot_is_reported_and_the_circuits_stay() -> None:
    faults: list[Fault] = []
    policy = GuardedTopology(Ring(), Keep(), "ring", faults.append)
    assert (
        policy.circuits(view_of(OFC, (0, 2, 3)), [(0, 2, 3)], ("job0",)) == {}
    )
    assert [(fault.policy, fault.jobs) for fault in faults] == [
        ("ring", ("job0",))
    ]


def test_locked_ports_stay_as_they_are() -> None:
    wired = WiredLab(LAB, LAB.initial_maps)
    view = wired.view(
        0.0, {"job": wired.hosts((0, 1, 2))}, locked={"ocs1": [5, 6]}
    )
    found = Ring().circuits(view, [(0, 1, 2)])
    assert lit(LAB, found) >= edges(1, 2, 3)
    assert not LAB.initial_maps["ocs1"].diff(found["ocs1"]).ports & {5, 6}
    closed = wired.view(
        0.0, {"job": wired.hosts((0, 1, 2))}, locked={"ocs1": [5, 6, 19]}
    )
    with pytest.raises(NoLight):
        Ring().circuits(closed, [(0, 1, 2)])


def test_a_policy_sees_the_traffic_of_rings() -> None:
    load = Load(10, 0.5, 50e9)
    jobs = (
        RingOfJob("known", (0, 1, 2), load),
        RingOfJob("unknown", (3, 4)),
        RingOfJob("one", (5,)),
    )
    view = view_of(LAB)._replace(rings=jobs)
    # 50 Gb in 0.5 s of computing and 0.5 s at the NIC's 100 Gb/s.
    assert view.traffic[0, 1] == pytest.approx(50e9)
    assert {*view.traffic} == {(0, 1), (1, 2), (2, 0), (3, 4), (4, 3)}
    assert view.traffic[3, 4] == pytest.approx(100e9)
    # It is kept with a decision, and seen again.
    counted = view._replace(measured={0: (1e9, 2e9)})
    again, _ = arguments("topology", seen(counted, groups=[(0, 1, 2)]), LAB)
    assert (again.traffic, again.measured) == (view.traffic, {0: (1e9, 2e9)})
    assert "measured" not in seen(view)


def test_what_ports_counted_can_decide() -> None:
    # A ring of four NICs with one port each: two of its edges can have light.
    ring = (0, 2, 4, 5)
    view = view_of(OFC, ring)
    for heavy, wanted in (
        ((2, 5), {(0, 2), (4, 5)}),
        ((4, 0), {(2, 4), (5, 0)}),
    ):
        rates = {gpu: (5e9, 9e9 if gpu in heavy else 1e9) for gpu in ring}
        found = Matching(measured=True).circuits(
            view._replace(measured=rates), [ring]
        )
        names = [
            frozenset(view.shape.gpus[gpu].name.split(".")[0] for gpu in e)
            for e in wanted
        ]
        assert {*names} <= lit(OFC, found)
    assert isinstance(
        load_policy("matching:measured=true", "topology"), Matching
    )
    assert isinstance(load_policy("totient:3", "topology"), Totient)
    with pytest.raises(BadInput, match="0 rings: expected 1 or more"):
        Totient(0)


def test_without_circuit_switches_there_is_nothing_to_engineer() -> None:
    shape = TwoLevel(1, 2, 1).shape
    with pytest.raises(BadInput, match="this cluster has no circuit switches"):
        Ring().circuits(ClusterView(0.0, shape, 0), [(0, 1)])
    bare = LAB.with_changes(fibres=LAB.fibres[:16])
    with pytest.raises(
        BadInput, match=r"no optical path leads to server1\.gpu0"
    ):
        Ring().circuits(view_of(bare, (0, 1)), [(0, 1)])


@pytest.mark.parametrize(
    "policy", [Ring(), Matching(), Matching(measured=True), Totient()]
)
def test_a_simulated_job_runs_at_the_full_rate_on_its_ring(
    policy: TopologyPolicy,
) -> None:
    # 8 workers each: 2·7/8 of 1 GB and headers at 100 Gb/s, and 0.1 s of computing.
    training = Training(10, 1e9, {"Generic": 0.1})
    jobs = [
        QueueJob(JobView(f"job{n}", 8), 1.0, training=training)
        for n in range(2)
    ]
    result = simulate(
        LabCluster(LAB), jobs, Policies(Fifo(), FirstFit(), policy)
    )
    iteration_s = 0.1 + sum(tcp(1500)) * 2 * 7 / 8 * 8e9 / 100e9
    for job in result.records:
        assert job.ended_s - job.started_s == pytest.approx(
            10 * iteration_s + 0.025
        )
