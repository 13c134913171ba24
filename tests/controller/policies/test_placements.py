"""Placement and order policies: what they choose on small clusters, and that it is free."""

import itertools
import math
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchlight.controller.jobs.cluster_view import WiredLab
from patchlight.controller.policies.contract import (
    ClusterShape,
    ClusterView,
    GpuSite,
    JobView,
    OrderPolicy,
    PlacementPolicy,
    Progress,
)
from patchlight.controller.policies.order import (
    LAST,
    Deadline,
    Fifo,
    LeastAttainedService,
    Srpt,
)
from patchlight.controller.policies.placement import (
    BestFit,
    Consolidated,
    FirstFit,
    FragmentationAware,
    RackAware,
    RegroupPlacement,
)
from patchlight.controller.policies.registry import BUILT_IN, load_policy
from patchlight.controller.policies.sets import joined, lowest, members, pack
from patchlight.controller.policies.topology import Keep, Regroup
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.wiring import trace_links
from patchlight.testbed.labfile.reader import builtin_lab, read_lab


def cluster(
    servers: int = 4,
    gpus: int = 4,
    racks: int = 2,
    busy: set[int] | None = None,
    recent: tuple[JobView, ...] = (),
    models: tuple[str, ...] = ("",),
) -> ClusterView:
    sites = tuple(
        GpuSite(
            f"s{n // gpus}.g{n % gpus}",
            n // gpus,
            n // gpus * racks // servers,
            model,
        )
        for n, model in zip(
            range(servers * gpus), itertools.cycle(models), strict=False
        )
    )
    names = (
        tuple(f"s{n}" for n in range(servers)),
        tuple(f"r{n}" for n in range(racks)),
    )
    return ClusterView(
        0.0, ClusterShape(sites, *names), joined(busy or ()), recent=recent
    )


JOB = JobView("job")


def test_first_fit_takes_the_first() -> None:
    view = cluster(busy={0, 2})
    assert FirstFit().place(view, JOB, 4) == [1, 3, 4, 5]
    assert FirstFit().place(view, JOB, 14) is not None
    assert FirstFit().place(view, JOB, 15) is None


def test_best_fit_takes_the_tightest_server() -> None:
    view = cluster(busy={0, 4, 5, 8, 9, 10})  # 3, 2, 1 and 4 free
    assert BestFit().place(view, JOB, 1) == [11]
    assert BestFit().place(view, JOB, 2) == [6, 7]
    assert BestFit().place(view, JOB, 3) == [1, 2, 3]
    assert BestFit().place(view, JOB, 5) == [12, 13, 14, 15, 11]
    assert BestFit().place(view, JOB, 6) == [12, 13, 14, 15, 6, 7]


def test_consolidated_takes_the_tightest_switch() -> None:
    view = cluster(busy={0, 1, 2, 3, 4})  # 3 under r0, 8 under r1
    assert Consolidated().place(view, JOB, 3) == [5, 6, 7]
    assert Consolidated().place(view, JOB, 4) == [8, 9, 10, 11]
    assert Consolidated().place(view, JOB, 9) == [*range(8, 16), 5]


def test_dark_gpus_come_last() -> None:
    view = cluster(busy={0, 1})
    sites = tuple(
        g._replace(rack=-1) if g.server < 2 else g for g in view.shape.gpus
    )
    dark = view._replace(
        shape=ClusterShape(sites, view.shape.servers, view.shape.racks)
    )
    for policy in (Consolidated(), RackAware()):
        assert set(policy.place(dark, JOB, 9) or ()) == {*range(8, 16), 2}


def test_rack_aware_takes_few_switches_and_under_them_few_servers() -> None:
    # 2 and 3 free under r0, 3 and 4 under r1.
    view = cluster(busy={0, 1, 4, 8})
    assert RackAware().place(view, JOB, 3) == [5, 6, 7]
    assert RackAware().place(view, JOB, 4) == [5, 6, 7, 2]
    assert set(RackAware().place(view, JOB, 4 + 3) or ()) == set(range(9, 16))


def test_fragmentation_aware_keeps_whole_servers_for_jobs_that_want_them() -> (
    None
):
    fours = tuple(JobView(str(n), 4) for n in range(8))
    view = cluster(busy={0, 4, 5}, recent=fours)  # 3, 2, 4 and 4 free
    # All free GPUs of the first two servers are fragments already: there one is lost by nobody.
    assert (FragmentationAware().place(view, JOB, 1) or [99])[0] in range(1, 8)
    ones = tuple(JobView(str(n), 1) for n in range(8))
    # Nothing is a fragment for jobs of one GPU: the fullest server.
    assert FragmentationAware().place(view._replace(recent=ones), JOB, 1) == [
        6
    ]
    assert FragmentationAware().place(view, JOB, 5) == [8, 9, 10, 11, 6]
    # Twos came: to take one of three leaves a usable pair, to take one of two leaves a fragment.
    twos = tuple(JobView(str(n), 2) for n in range(8))
    assert FragmentationAware().place(view._replace(recent=twos), JOB, 1) == [
        1
    ]


@given(
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 2**20 - 1),
    st.integers(1, 12),
    st.sampled_from(sorted(BUILT_IN["placement"])),
    st.booleans(),
)
def test_all_answer_with_free_gpus_or_none(
    servers: int,
    gpus: int,
    racks: int,
    occupied: int,
    workers: int,
    name: str,
    one_model: bool,
) -> None:
    view = cluster(servers, gpus, racks, models=("M40", "V100"))
    view = view._replace(occupied=occupied & view.shape.everything)
    job = JobView(
        "job",
        workers,
        gpu_models=frozenset({"M40"}) if one_model else frozenset(),
    )
    free = view.free_for(job)
    found = cast(PlacementPolicy, load_policy(name, "placement")).place(
        view, job, workers
    )
    if free.bit_count() < workers:
        assert found is None
    else:
        assert found is not None
        assert len(found) == len(set(found)) == workers
        assert joined(found) & ~free == 0


@given(st.integers(0, 2**24 - 1), st.integers(1, 30))
def test_sets(gpus: int, count: int) -> None:
    assert joined(members(gpus)) == gpus
    assert lowest(gpus, count) == members(gpus)[:count]
    parts = [gpus & 0xFF << shift for shift in (0, 8, 16)]
    found = pack(parts, count)
    assert len(set(found)) == len(found) == min(count, gpus.bit_count())
    whole = [part for part in parts if part.bit_count() >= count]
    if whole:
        room = min(part.bit_count() for part in whole)
        assert any(
            joined(found) & ~part == 0 and part.bit_count() == room
            for part in whole
        )


LAB = read_lab(builtin_lab("ofc2022"))


def lab_view(**other: object) -> ClusterView:
    view = WiredLab(LAB, LAB.initial_maps).view(0.0, {})
    return view._replace(**other)  # type: ignore[arg-type]


def test_a_lab_as_policies_see_it() -> None:
    view = lab_view()
    assert [gpu.name for gpu in view.shape.gpus] == [
        host.name for host in LAB.hosts
    ]
    assert view.shape.racks == ("tor1", "tor2")
    assert sorted(gpu.rack for gpu in view.shape.gpus) == [0, 0, 0, 1, 1, 1]
    assert {gpu.model for gpu in view.shape.gpus} == {"Tesla M40", "Titan V"}


def test_regroup_takes_gpus_that_can_be_lit_onto_one_switch_with_few_moves() -> (
    None
):
    view = lab_view()
    racks = view.shape.rack_gpus
    three = RegroupPlacement().place(view, JOB, 3)
    assert three is not None
    assert joined(three) in racks  # No move at all.
    four = RegroupPlacement().place(view, JOB, 4)
    assert four is not None
    # One move, to a switch that has the port.
    assert joined(four) & racks[0] == racks[0]
    maps = Regroup().circuits(view, [four])
    assert len(view.circuits["ocs1"].diff(maps["ocs1"]).breaks) <= 4
    lit = trace_links(LAB, {**view.circuits, **maps})
    hosts = [LAB.host(view.shape.gpus[gpu].name).endpoint for gpu in four]
    assert len({lit.switch_of(LAB, host) for host in hosts}) == 1


def test_regroup_leaves_busy_and_barred_ports_alone() -> None:
    view = lab_view()
    # A job holds all GPUs under tor1 and its ports; what is left is under tor2 or cannot be.
    busy = view.shape.rack_gpus[0]
    found = RegroupPlacement().place(view._replace(occupied=busy), JOB, 3)
    assert found is not None
    assert joined(found) == view.shape.rack_gpus[1]
    everything = frozenset(range(1, LAB.circuit_switch("ocs1").ports + 1))
    fixed = view._replace(barred={"ocs1": everything})
    # Nothing can move: as consolidated.
    four = RegroupPlacement().place(fixed, JOB, 4)
    assert four == Consolidated().place(fixed, JOB, 4)


def test_topologies() -> None:
    view = lab_view()
    assert Keep().circuits(view, [[0, 2, 4]]) == {}
    assert Regroup().circuits(view, [[0]]) == {}
    with pytest.raises(BadInput, match="no circuit switches"):
        Regroup().circuits(cluster(), [[0, 1]])


def test_orders() -> None:
    early = JobView(
        "early", 2, arrived_s=1.0, expected_s={2: 50.0}, limit_s=100.0
    )
    late = JobView(
        "late", 2, arrived_s=2.0, expected_s={2: 40.0}, limit_s=10.0
    )
    unknown = JobView("unknown", 2, arrived_s=0.0)
    view = cluster()
    none = Progress()

    def first(
        policy: OrderPolicy, progress: dict[str, Progress] | None = None
    ) -> list[str]:
        known = progress or {}
        jobs = sorted((unknown, early, late), key=lambda j: j.arrived_s)
        return [
            j.name
            for j in sorted(
                jobs,
                key=lambda j: policy.priority(
                    view, j, known.get(j.name, none)
                ),
            )
        ]

    assert first(Fifo()) == ["unknown", "early", "late"]
    assert first(Srpt()) == ["late", "early", "unknown"]
    assert first(Srpt(), {"early": Progress(0.0, 5.0)}) == [
        "early",
        "late",
        "unknown",
    ]
    assert first(Deadline()) == ["late", "early", "unknown"]
    assert first(LeastAttainedService()) == ["unknown", "early", "late"]
    served = {"unknown": Progress(1e6), "early": Progress(3600.0)}
    assert first(LeastAttainedService(), served) == [
        "late",
        "unknown",
        "early",
    ]
    assert first(LeastAttainedService(queues=3), served) == [
        "late",
        "early",
        "unknown",
    ]
    assert math.isfinite(LAST)
    with pytest.raises(BadInput, match="cannot have 0 queues"):
        LeastAttainedService(queues=0)
