"""Pairs of policies on random labs: what is played, and what is told of it."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from patchlight.cli.main import cli
from patchlight.emulation.simulator.cluster.jobs import elastic as make_elastic
from patchlight.emulation.simulator.cluster.jobs import load_of
from patchlight.emulation.simulator.randomlabs import (
    Drawn,
    LabResult,
    PlayedPolicies,
    built_in,
    by_size,
    played_jct_s,
    traced_jobs,
)
from patchlight.emulation.simulator.traces.model import TraceJob
from patchlight.testbed.errors import BadInput
from patchlight.testbed.generate.generate import RandomLabShape, lab_of

MINE = PlayedPolicies("mine", "light")


def result(seed: int, gpus: int, mine_s: float, best: str) -> LabResult:
    """All built-in pairs take 200 s, but for the best one, which takes 100; late jobs take twice
    as long, with mine four times.
    """
    jct_s = {
        pair.name: 100.0 if pair.name == best else 200.0 for pair in built_in()
    }
    late_s = {name: 2 * seconds for name, seconds in jct_s.items()}
    jct_s[MINE.name] = mine_s
    late_s[MINE.name] = 4 * mine_s
    return LabResult(seed, gpus, gpus > 16, jct_s, late_s)


def test_each_lab_is_compared_with_its_best_pair() -> None:
    results = [
        result(0, 8, 90.0, "consolidated"),
        result(1, 16, 110.0, "consolidated"),
        result(2, 32, 50.0, "regroup+regroup"),
        result(3, 32, 50.0, "regroup+regroup"),
        result(4, 128, 70.0, "regroup+regroup"),
    ]
    found = by_size(results, MINE, built_in())
    assert set(found) == {
        "all",
        "8 to 16 GPUs",
        "17 to 32 GPUs",
        "one GPU model",
        "two GPU models",
    }
    over = found["all"].over_best
    assert over.mean == pytest.approx((0.9 * 1.1 * 0.5 * 0.5 * 0.7) ** 0.2)
    assert over.low < over.mean < over.high
    assert over.mean / over.low == pytest.approx(over.high / over.mean)
    assert over.worse == 0.2  # 1.1 in one of five labs
    assert found["all"].one == "regroup+regroup"
    assert found["all"].over_one.mean == pytest.approx(
        (0.45 * 0.55 * 0.5 * 0.5 * 0.7) ** 0.2
    )
    assert found["all"].worst == pytest.approx(1.1)
    assert found["all"].p95_over_best.mean == pytest.approx(
        2 * found["all"].over_best.mean
    )
    assert found["17 to 32 GPUs"].over_best[:3] == pytest.approx(
        (0.5, 0.5, 0.5)
    )


def test_pieces_of_a_trace_come_at_the_load() -> None:
    lab = lab_of(RandomLabShape(2, 2, 2), "small")
    trace = [TraceJob(str(n), 10.0 * n, 100.0, 1 + n % 8) for n in range(60)]
    jobs = traced_jobs(lab, trace, 3, 20, 0.5)
    assert jobs == traced_jobs(lab, trace, 3, 20, 0.5)
    assert max(job.view.workers for job in jobs) <= 4
    assert [job.view.arrived_s for job in jobs] == sorted(
        job.view.arrived_s for job in jobs
    )
    # Iterations are whole, so a job lasts a little more or less than in the trace.
    work_s = sum(job.duration_s * job.view.workers for job in jobs)
    assert work_s / (8 * jobs[-1].view.arrived_s) == pytest.approx(
        0.5, rel=0.3
    )
    years = [job._replace(duration_s=3e8) for job in trace]
    # No job has so many iterations.
    assert traced_jobs(lab, years, 3, 2, 0.5)[0].duration_s < 3e8
    with pytest.raises(BadInput, match="expected 50"):
        traced_jobs(lab, trace, 0, 50, 0.5)


def test_a_pair_is_compared_by_one_command(tmp_path: Path) -> None:
    arguments = [
        "policy",
        "compare",
        "least-delay+least-delay",
        "first-fit",
        "--labs",
        "2",
    ]
    arguments += [
        "--jobs",
        "5",
        "--largest",
        "8",
        "--processes",
        "1",
        "--output",
        str(tmp_path),
    ]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    assert "least-delay+least-delay: mean JCT" in done.output
    written = json.loads((tmp_path / "result.json").read_text())
    assert written["drawn"]["jobs"] == 5
    assert [len(lab["jct_s"]) for lab in written["labs"]] == [10, 10]
    one = [*arguments, "--over", "first-fit+keep", "--over", "rack-aware"]
    done = CliRunner().invoke(cli, one)
    assert done.exit_code == 0, done.output
    written = json.loads((tmp_path / "result.json").read_text())
    assert written["over"] == ["first-fit", "rack-aware"]
    assert {*written["labs"][0]["jct_s"]} >= {"first-fit", "rack-aware"}
    assert "consolidated" not in written["labs"][0]["jct_s"]
    assert all(
        row["best_of_all"] in written["over"] for row in written["rows"]
    )
    again = Drawn(5, 1.1, 8).episode(written["labs"][0]["seed"])
    assert len(again.jobs) == 5


def test_policies_are_written_with_their_order_or_get_one() -> None:
    assert PlayedPolicies.parse("regroup") == PlayedPolicies(
        "regroup", "keep", "fifo", "rigid", "as-asked"
    )
    assert PlayedPolicies.parse("regroup+regroup", "srpt") == PlayedPolicies(
        "regroup", "regroup", "srpt"
    )
    assert PlayedPolicies.parse("a+b+las", "srpt").name == "a+b+las"
    assert PlayedPolicies.parse("a+keep+fifo+rigid").name == "a"
    assert PlayedPolicies.parse("a+keep+fifo+d", "srpt") == PlayedPolicies(
        "a", "keep", "fifo", "d"
    )
    assert PlayedPolicies.parse("a+keep+fifo+d").name == "a+keep+fifo+d"
    assert (
        PlayedPolicies.parse("a+keep+fifo+rigid+e").name
        == "a+keep+fifo+rigid+e"
    )
    for wrong in ("", "a+", "a+b+c+d+e+f"):
        with pytest.raises(BadInput, match="names no policies"):
            PlayedPolicies.parse(wrong)


def test_jobs_may_have_half_or_twice_as_many_workers() -> None:
    episode = Drawn(12, 1.1, 8).episode(3)
    elastic = episode.elastic()
    assert {job.view.workers: job.degrees for job in elastic.jobs} == {
        1: (),
        2: (1, 2, 4),
        4: (2, 4, 8),
    }
    models = {
        gpu.model for server in episode.lab.servers for gpu in server.gpus
    }
    for job, as_drawn in zip(elastic.jobs, episode.jobs, strict=True):
        wanted = job.view.workers
        assert job.training == job.view.training
        assert job.view.sequential_s == wanted * as_drawn.view.sequential_s
        assert load_of(job, wanted, models, 1e9) == load_of(
            as_drawn, wanted, models, 1e9
        )
        for workers in job.degrees:
            load, of_drawn = (
                load_of(one, workers, models, 1e9) for one in (job, as_drawn)
            )
            assert load.ring_bits == of_drawn.ring_bits
            assert load.compute_s == pytest.approx(
                of_drawn.compute_s * wanted / workers
            )
    choices = [
        PlayedPolicies("first-fit"),
        PlayedPolicies("first-fit", elasticity="give-and-take"),
    ]
    kept, resized = (played_jct_s(episode, each) for each in choices)
    assert list(played_jct_s(elastic, choices[0])) == list(kept)
    assert np.mean(resized) < np.mean(kept)
    with pytest.raises(BadInput, match="has no compute time"):
        make_elastic(episode.jobs[0]._replace(training=None))


def test_orders_and_elasticities_are_compared_too(tmp_path: Path) -> None:
    arguments = [
        "policy",
        "compare",
        "first-fit",
        "first-fit+keep+least-delay",
        "--order",
        "srpt",
    ]
    arguments += ["first-fit+keep+srpt+least-delay"]
    arguments += [
        "--labs",
        "2",
        "--jobs",
        "12",
        "--largest",
        "8",
        "--load",
        "4",
    ]
    arguments += ["--processes", "1", "--output", str(tmp_path), "--json"]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    (lab, _) = json.loads((tmp_path / "result.json").read_text())["labs"]
    assert set(lab["jct_s"]) >= {
        "first-fit+keep+srpt",
        "first-fit+keep+least-delay",
    }
    assert (
        lab["jct_s"]["first-fit+keep+srpt+least-delay"]
        < lab["jct_s"]["first-fit+keep+srpt"]
    )
    assert "consolidated" not in lab["jct_s"]
    assert (
        lab["jct_p95_s"]["first-fit+keep+srpt"]
        >= lab["jct_s"]["first-fit+keep+srpt"]
    )
