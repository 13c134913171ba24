"""What a model that weighs options sees: clusters and graphs of any size, and what would become."""

import math

import numpy as np
import pytest

from patchlight.controller.jobs.cluster_view import WiredLab
from patchlight.controller.policies.cheapest import Prices
from patchlight.controller.policies.contract import (
    ClusterView,
    JobView,
    RingOfJob,
)
from patchlight.controller.policies.files import (
    lab_range,
    missing_inputs,
    outside_range,
)
from patchlight.controller.policies.observation import GraphArrays
from patchlight.controller.policies.options.listing import Listing
from patchlight.controller.policies.options.observation import (
    ARRAYS,
    MOST_OPERATIONS,
    Observer,
    job_graph,
    typical_s,
)
from patchlight.controller.policies.sets import members
from patchlight.controller.policies.topology import regroup
from patchlight.controller.prediction.network import Load, Training
from patchlight.testbed.generate.generate import (
    GPU_MODELS,
    RandomLabShape,
    lab_of,
    random_lab,
    tree,
)
from patchlight.testbed.graphs import (
    ComputationGraph,
    Operation,
    builtin_graph,
)
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.labfile.reader import load_lab

LABS = (
    load_lab("ofc2022"),
    lab_of(RandomLabShape(3, 2, 4, ocs=2, mixed=True), "mixed"),
    tree(20),
)


def view_of_lab(lab: Lab) -> ClusterView:
    return WiredLab(lab, lab.initial_maps).view(0.0, {})


def test_what_is_kept_of_a_lab_is_what_is_found_anew() -> None:
    lab = LABS[1]
    kept = Observer()
    spare = set[float]()
    job = JobView("job", 2)
    maps = dict(lab.initial_maps)
    for first in range(0, len(lab.hosts) - 3, 3):
        cluster = WiredLab(lab, maps).view(0.0, {})
        seen = []
        for observer in (kept, Observer()):
            outlook = observer.outlook(cluster)
            options = Listing().placements(outlook, job, 2, with_circuits=True)
            seen.append(observer.observe("placement", outlook, job, options))
        for name, array in seen[0].items():
            assert np.array_equal(array, seen[1][name]), name
        spare.update(seen[0]["nodes"][:, -1].tolist())
        maps = regroup(
            lab, maps, [[host.name for host in lab.hosts[first : first + 4]]]
        )
    assert len(spare) > 3


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name)
def test_arrays_are_what_the_schema_says_in_any_lab(lab: Lab) -> None:
    cluster = view_of_lab(lab)
    observer = Observer()
    models = {gpu.model for gpu in cluster.shape.gpus}
    job = JobView(
        "job", 4, training=Training(10, 10**8, dict.fromkeys(models, 1.0))
    )
    outlook = observer.outlook(cluster)
    options = Listing().placements(outlook, job, 4, with_circuits=True)
    assert all(len(set(option.gpus)) == 4 for option in options)
    seen = observer.observe("placement", outlook, job, options)
    assert seen.keys() == ARRAYS.keys()
    for name, (kind, columns) in ARRAYS.items():
        assert seen[name].dtype == kind, name
        assert seen[name].shape[1:] == (columns,), name
        assert np.isfinite(seen[name]).all(), name
        if kind == "float32":
            assert np.abs(seen[name]).max() <= 20, name
    nodes = (
        len(cluster.shape.gpus) + len(lab.servers) + len(lab.packet_switches)
    )
    assert len(seen["nodes"]) == nodes + len(lab.circuit_switches)
    assert seen["edges"].max() < len(seen["nodes"])
    assert seen["touched"][:, 0].max() == len(options) - 1
    assert len(seen["links"]) == len(seen["edges"])


def test_the_outlook_is_what_the_price_says_where_links_are_not_shared() -> (
    None
):
    lab = load_lab("ofc2022")
    cluster = view_of_lab(lab)
    observer = Observer()
    load = Load(100, 0.5, 8e9)
    for ring in ((0, 1), (0, 3), (0, 1, 2, 3)):
        job = RingOfJob("job", ring, load, waits=True)
        exact = Prices(cluster, lab, [job]).of({}).completions_s[0]
        assert observer.outlook(cluster).of(
            load, ring
        ).lasts_s == pytest.approx(exact)


def test_the_outlook_knows_who_delays_whom() -> None:
    lab = load_lab("ofc2022")
    free = view_of_lab(lab)
    here, there = (members(rack) for rack in free.shape.rack_gpus[:2])
    load = Load(100, 0.5, 8e9)
    other = RingOfJob("other", (here[0], there[0]), load)
    outlook = Observer().outlook(free._replace(rings=(other,)))
    crossing = outlook.of(load, (here[1], there[1]))
    within = outlook.of(load, here[1:3])
    assert crossing.delays_s > 0
    assert crossing.lasts_s > within.lasts_s
    assert within.delays_s == 0
    alone = Observer().outlook(free).of(load, other.ring)
    assert outlook.left_by_job["other"] == pytest.approx(alone.lasts_s)


def test_times_count_in_those_that_recent_jobs_last() -> None:
    whole, split = (
        Training(100, 1.0, {"Titan V": 2.0}, split=each)
        for each in (False, True)
    )
    for training, lasts_s in ((None, 50.0), (whole, 200.0), (split, 50.0)):
        job = JobView("job", 4, sequential_s=200.0, training=training)
        assert (
            typical_s(view_of_lab(LABS[0])._replace(recent=(job,)), ())
            == lasts_s
        )


def test_large_graphs_are_pooled_and_never_refused() -> None:
    nodes, edges = job_graph(builtin_graph("bert-large"))
    assert len(nodes) == MOST_OPERATIONS
    assert nodes[:, :4].sum(0) == pytest.approx([1, 1, 1, 1], rel=1e-5)
    assert edges.max() < MOST_OPERATIONS
    small = builtin_graph("alexnet")
    nodes, edges = job_graph(small)
    assert (len(nodes), len(edges)) == (
        len(small.operations),
        len(small.edges),
    )
    many = tuple(
        Operation(f"op{n}", "add", 1.0, 1.0, 1, 1) for n in range(10_000)
    )
    chain = ComputationGraph(
        "chain", many, tuple((n, n + 1) for n in range(9_999))
    )
    nodes, edges = job_graph(chain)
    assert sorted(map(tuple, edges.tolist())) == [
        (n, n + 1) for n in range(MOST_OPERATIONS - 1)
    ]
    alone, loops = job_graph(ComputationGraph("one", many[:1], ()))
    assert (alone.shape, loops.tolist()) == ((1, 6), [[0, 0]])
    kept = GraphArrays(job_graph)
    assert kept.of(small)[0] is kept.of(small)[0]


def test_random_labs_are_those_that_they_are_to_be() -> None:
    for seed in range(40):
        lab = random_lab(seed)
        assert lab == random_lab(seed)
        assert 8 <= len(lab.hosts) <= 128
        assert 2 <= len(lab.packet_switches) <= 8
        assert 1 <= len(lab.circuit_switches) <= 4
        shape = WiredLab(lab, lab.initial_maps).shape
        assert all(gpu.rack >= 0 for gpu in shape.gpus)
        assert {gpu.model for gpu in shape.gpus} <= set(GPU_MODELS)
        assert (
            lab_range(lab).get(
                "NICs' rate relative to links between switches", 1
            )
            <= 8
        )


def test_what_a_lab_lacks_and_what_was_not_tested_is_said() -> None:
    lab = tree(200)
    assert outside_range({"gpus": (8, 64), "servers": (1, 300)}, lab) == [
        "gpus: 200 here, tested with 8 to 64"
    ]
    missing = "\n".join(missing_inputs(lab))
    assert "the rate of 200 of 200 NICs" in missing
    assert "no circuit switch" in missing
    assert not outside_range({"gpus": (200, 200)}, lab)
    assert "not tested" in outside_range({}, lab)[0]
    assert math.isfinite(sum(lab_range(lab).values()))
