"""Jobs that come to a RAMP, are accepted or blocked, and go."""

import math
from dataclasses import replace

import pytest

from patchlight.controller.policies.contract import (
    ClusterView,
    JobView,
    PartitionPolicy,
)
from patchlight.controller.policies.degrees import (
    Constant,
    Maximum,
    Minimum,
    RandomDegree,
)
from patchlight.emulation.simulator.outages import Outages
from patchlight.emulation.simulator.ramp.lossnetwork import (
    Episode,
    JobOutcome,
    run_episode,
)
from patchlight.emulation.simulator.ramp.ramp import PlacementRule
from patchlight.emulation.simulator.ramp.scenario import (
    FixedArrivals,
    PoissonArrivals,
    Scenario,
    mean_and_interval,
    pac_ml_scenario,
)
from patchlight.emulation.simulator.ramp.workloads import (
    Device,
    Workloads,
    fixed,
)
from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs import (
    ComputationGraph,
    Operation,
    builtin_graph,
)


def one_model(
    step_s: float, beta: float, horizon_s: float, **other: object
) -> Scenario:
    """Jobs of one operation that nothing has to be sent for: 50 steps, linear speed-up."""
    graph = ComputationGraph(
        "one", (Operation("op", "Test", step_s, 0.0, 0, 0),), ()
    )
    scenario = Scenario(
        Workloads([graph]),
        fixed([beta]),
        PlacementRule.RAMP_BLOCK,
        horizon_s,
        replication=None,
    )
    return replace(scenario, **other)  # type: ignore[arg-type]


def test_arrivals_occupy_and_ends_give_back() -> None:
    # 2,500 s on one server.
    episode = Episode(one_model(50.0, 1.0, 10_000.0), seed=1)

    free = []
    while (job := episode.job) is not None:
        assert job.arrived_s == episode.now_s
        free.append(episode.question().cluster.free.bit_count())
        assert episode.decide(1) is JobOutcome.ACCEPTED

    assert free == [32, 31, *[30] * 8]
    result = episode.result()
    assert (result.arrivals, result.decisions) == (11, 10)
    assert (result.completed, result.unfinished) == (8, 2)
    assert result.jct_mean_s == pytest.approx(2500)
    assert result.allocated == pytest.approx(
        (8 * 2500 + 2000 + 1000) / (32 * 10_000)
    )
    assert result.blocking_rate("faithful") == pytest.approx(2 / 11)
    assert result.blocking_rate("corrected") == 0.0


def test_a_job_that_ends_as_another_comes_makes_room_for_it() -> None:
    # 20 s · 50 = 1,000 s on one server; each job takes the whole cluster's only free server.
    episode = Episode(one_model(20.0, 1.0, 5000.0), seed=1)
    episode.busy = (1 << 31) - 1
    while episode.job is not None:
        assert episode.question().cluster.free.bit_count() == 1
        assert episode.decide(1) is JobOutcome.ACCEPTED
    assert episode.result().completed == 5


def test_each_cause_of_blocking() -> None:
    # 50,000 s alone, 15,000 s allowed.
    scenario = one_model(1000.0, 0.3, 20_000.0)
    episode = Episode(scenario, seed=1)
    assert episode.decide(0) is JobOutcome.REFUSED
    assert episode.decide(5) is JobOutcome.ILLEGAL
    assert episode.decide(10) is JobOutcome.ILLEGAL
    assert episode.decide(2) is JobOutcome.LATE
    assert episode.decide(16) is JobOutcome.ACCEPTED
    assert episode.decide(8) is JobOutcome.ACCEPTED
    assert episode.decide(8) is JobOutcome.ACCEPTED
    # After 3,125 s more the 16 are free again …
    assert episode.decide(1) is JobOutcome.ILLEGAL
    assert episode.question().legal == (0, 1, 2, 4, 6, 8, 16)
    while episode.job is not None:
        episode.decide(0)
    blocked = {
        "refused": 13,
        "illegal": 3,
        "no_block": 0,
        "no_memory": 0,
        "late": 1,
    }
    assert episode.result().blocked == blocked


def test_a_legal_degree_may_find_no_block() -> None:
    episode = Episode(one_model(100.0, 1.0, 20_000.0), seed=1)
    episode.busy = (
        0b11  # one server in each half of the cluster: no 4×4×1 is free
    )
    assert 16 in episode.question().legal
    assert episode.decide(16) is JobOutcome.NO_BLOCK


def test_a_job_that_no_servers_memory_holds() -> None:
    operation = Operation("op", "Test", 100.0, 0.0, 100_000_000_000, 0)
    workloads = Workloads(
        [ComputationGraph("large", (operation,), ())], device=Device(60e9)
    )
    scenario = replace(one_model(1.0, 1.0, 5000.0), workloads=workloads)
    episode = Episode(scenario, seed=0)
    assert episode.decide(1) is JobOutcome.NO_MEMORY
    assert episode.decide(2) is JobOutcome.ACCEPTED


def test_after_the_end_there_is_nothing_to_decide() -> None:
    episode = Episode(one_model(1.0, 1.0, 2000.0), seed=0)
    with pytest.raises(BadInput, match="a job waits"):
        episode.result()
    episode.decide(1)
    episode.decide(1)
    assert episode.job is None
    with pytest.raises(BadInput, match="the episode is over"):
        episode.decide(1)
    with pytest.raises(BadInput, match="the episode is over"):
        episode.question()


@pytest.mark.parametrize("rule", PlacementRule)
@pytest.mark.parametrize("law", ["A", "D"])
def test_the_seed_fixes_an_episode(
    rule: PlacementRule, law: str, computed: Workloads
) -> None:
    scenario = pac_ml_scenario(computed, law, rule, horizon_s=1e5)
    once = run_episode(scenario, RandomDegree(7), seed=3)
    again = run_episode(scenario, RandomDegree(7), seed=3)
    fresh = pac_ml_scenario(computed.graphs, law, rule, horizon_s=1e5)
    assert once == again == run_episode(fresh, RandomDegree(7), seed=3)
    assert once != run_episode(scenario, RandomDegree(7), seed=4)


def test_all_policies_see_the_same_jobs(computed: Workloads) -> None:
    scenario = pac_ml_scenario(computed, "B", horizon_s=1e5)
    seen: list[list[JobView]] = [[], []]

    class Watching:
        def __init__(
            self, policy: PartitionPolicy, jobs: list[JobView]
        ) -> None:
            self.policy = policy
            self.jobs = jobs

        def degree(
            self, cluster: ClusterView, job: JobView, legal: tuple[int, ...]
        ) -> int | None:
            self.jobs.append(job)
            assert list(cluster.recent) == self.jobs[:-1][-64:]
            return self.policy.degree(cluster, job, legal)

    run_episode(scenario, Watching(Maximum(), seen[0]), 5)
    run_episode(scenario, Watching(Minimum(), seen[1]), 5)
    assert seen[0] == seen[1]
    assert len(seen[0]) == 100


def test_a_fork_goes_its_own_way(computed: Workloads) -> None:
    scenario = pac_ml_scenario(computed, "A", horizon_s=2e5)
    episode = Episode(scenario, 0)
    for _ in range(50):
        episode.decide(Constant(4).degree(*episode.question()))
    twin = episode.fork()
    before = episode.question()
    while twin.job is not None:
        twin.decide(0)
    assert twin.result().blocked["refused"] >= 150
    now = episode.question()
    assert (now.job, now.legal) == (before.job, before.legal)
    preview = before.cluster.preview
    if_occupied = before.cluster.if_occupied
    assert (
        now.cluster._replace(preview=preview, if_occupied=if_occupied)
        == before.cluster
    )
    while episode.job is not None:
        episode.decide(Constant(4).degree(*episode.question()))
    assert episode.result() == run_episode(scenario, Constant(4), 0)


@pytest.mark.parametrize("rule", PlacementRule)
def test_a_preview_is_where_the_job_comes_to_be(
    rule: PlacementRule, computed: Workloads
) -> None:
    episode = Episode(pac_ml_scenario(computed, "A", rule, horizon_s=3e5), 1)
    policy = Constant(4)
    outcomes = set()
    last = None
    while episode.job is not None:
        cluster, job, _ = question = episode.question()
        degree = policy.degree(*question)
        foreseen = cluster.preview(job, degree)
        outcome = episode.decide(degree)
        running = cluster.running
        outcomes.add(outcome)
        if outcome is JobOutcome.ACCEPTED:
            assert foreseen == episode.accepted[-1].servers
            assert foreseen & cluster.occupied == 0
            # Also later: the view is of its own moment, whatever the episode did since.
            assert cluster.preview(job, degree) == foreseen
        assert (foreseen is None) == (outcome is JobOutcome.NO_BLOCK)
        assert cluster.running == running
        last = job
    assert outcomes >= {JobOutcome.ACCEPTED, JobOutcome.LATE}
    assert last is not None
    assert cluster.preview(last, 3) is None


def test_the_cluster_and_the_jobs_as_policies_see_them(
    computed: Workloads,
) -> None:
    scenario = pac_ml_scenario(computed, "A", horizon_s=1e5)
    cluster, job, legal = Episode(scenario, 0).question()
    shape = cluster.shape
    assert (len(shape.gpus), len(shape.servers), len(shape.racks)) == (
        32,
        32,
        16,
    )
    assert shape.ramp == (4, 4, 2)
    assert shape.gpus[11].name == "group1.rack1.server1.gpu0"
    assert shape.rack_gpus[5] == 0b11 << 10
    assert cluster.free == shape.everything == (1 << 32) - 1
    assert legal == (0, 1, 2, 4, 6, 8, 16)
    drawn = scenario.jobs(0)[0]
    assert (job.name, job.arrived_s, job.limit_s) == ("0", 0.0, drawn.limit_s)
    assert job.graph is computed.graphs[drawn.graph]
    assert list(job.expected_s) == [1, 2, 4, 6, 8, 16]
    assert job.expected_s[1] == pytest.approx(job.sequential_s, rel=1e-6)
    assert job.expected_s[8] < job.sequential_s / 7
    assert 3 not in job.expected_s
    with pytest.raises(BadInput, match="not one of the models: alexnet"):
        cluster.preview(job._replace(graph=builtin_graph("gpt2")), 4)


def test_poisson_arrivals(computed: Workloads) -> None:
    base = pac_ml_scenario(computed, "A", "ramp-block", horizon_s=2e5)
    scenario = replace(base, arrivals=PoissonArrivals(500.0))
    result = run_episode(scenario, Constant(4), 1)
    assert result.arrivals == result.decisions == pytest.approx(400, abs=80)


def test_shares_of_models_can_be_given(computed: Workloads) -> None:
    base = pac_ml_scenario(computed, "A", "ramp-block", horizon_s=1e6)
    scenario = replace(base, replication=None, mix=(3.0, 0.0, 0.0, 1.0, 0.0))
    graphs = [job.graph for job in scenario.jobs(0)]
    assert set(graphs) == {0, 3}
    assert graphs.count(0) / len(graphs) == pytest.approx(0.75, abs=0.05)
    for wrong in ((1.0,), (0.0,) * 5, (1.0, 1.0, 1.0, 1.0, -1.0)):
        with pytest.raises(BadInput, match="the job mix"):
            replace(scenario, mix=wrong)


def test_a_broken_server_loses_its_job_and_takes_none_until_mended() -> None:
    broken = Outages("server", mean_up_s=20_000.0, mean_down_s=5_000.0)
    # 5,000 s on one server.
    scenario = one_model(100.0, 1.0, 200_000.0, failures=broken)
    episode = Episode(scenario, seed=1)
    times = scenario.server_events(1)
    down_most = 0
    while episode.job is not None:
        view = episode.question().cluster
        busy = 0
        for _, servers, _ in view.running:
            busy |= servers
        assert busy & view.broken == 0
        assert view.occupied == busy | view.broken
        happened = [event for event in times if event.at_s <= view.now_s]
        down = sum(1 if event.broken else -1 for event in happened)
        assert view.broken.bit_count() == down
        down_most = max(down_most, down)
        episode.decide(1)
    result = episode.result()
    assert down_most > 3
    # A job of 5,000 s meets a failure of its server, 20,000 s apart, with 1 − e^(−1/4) = 22 %.
    accepted = result.completed + result.lost + result.unfinished
    assert result.lost / accepted == pytest.approx(0.22, abs=0.08)
    assert result.blocking_rate("corrected") == pytest.approx(
        result.lost / 200
    )
    assert result == run_episode(scenario, Constant(1), 1)
    calm = replace(scenario, failures=None)
    assert scenario.jobs(1) == calm.jobs(1)
    assert run_episode(calm, Constant(1), 1).lost == 0


def test_no_jobs_at_all(computed: Workloads) -> None:
    base = pac_ml_scenario(computed, "A", "ramp-block", horizon_s=1.0)
    result = run_episode(
        replace(base, arrivals=PoissonArrivals(1e9)), Constant(4), 1
    )
    assert result.arrivals == 0
    assert math.isnan(result.blocking_rate())
    assert math.isnan(result.blocking_rate("corrected"))


def test_scenarios_that_make_no_sense(computed: Workloads) -> None:
    with pytest.raises(BadInput, match="no placement rule 'best-fit'"):
        pac_ml_scenario(computed, "A", "best-fit")
    with pytest.raises(BadInput, match="expected one of A, B, C, D"):
        pac_ml_scenario(computed, "Z")
    with pytest.raises(BadInput, match="more than 0 s"):
        pac_ml_scenario(computed, "A", horizon_s=-1.0)
    with pytest.raises(BadInput, match="more than 0 s"):
        FixedArrivals(0.0)
    with pytest.raises(BadInput, match="expected more than 0 s"):
        Outages("server", 1.0, 0.0)
    with pytest.raises(BadInput, match="no computation graphs"):
        Workloads([])


def test_the_interval_is_students() -> None:
    mean, half = mean_and_interval([1.0, 2.0, 3.0, 4.0])
    assert mean == 2.5
    assert half == pytest.approx(3.182 * math.sqrt(5 / 3) / 2, rel=1e-3)
    assert mean_and_interval([0.5] * 40) == (0.5, 0.0)
    assert mean_and_interval([0.5]).half_width == math.inf
    with pytest.raises(BadInput, match="no values"):
        mean_and_interval([])
