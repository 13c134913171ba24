"""The twin experiment: what is drawn, what is predicted of it, and both beside packets."""

from typing import Any

import pytest

from patchlight.emulation.experiments.twin import run
from patchlight.emulation.experiments.twin.mixes import (
    Mix,
    Overheads,
    draw_mix,
    predicted_times,
)
from patchlight.testbed.jobs import JobSpec
from patchlight.testbed.labfile.reader import load_lab
from tests.support.figures import for_a_paper

# Loops are compiled once, where nothing is on the disk yet.
pytestmark = pytest.mark.xdist_group("networks")

NOTHING = Overheads(0.0, 0.0, 0.0)


def test_mixes_are_of_the_size_that_is_asked_for_and_the_same_again() -> None:
    for seed in range(20):
        mix = draw_mix(seed, 6)
        assert mix == draw_mix(seed, 6)
        assert 2 <= len(mix.lab.servers) <= 6
        assert 1 <= len(mix.lab.circuit_switches) <= 3
        assert all(
            2 <= job.workers <= len(mix.lab.servers) for job in mix.jobs
        )
        assert len({*mix.policies}) == 2
    assert max(len(draw_mix(seed, 16).lab.servers) for seed in range(20)) > 6


def test_starts_ends_and_wiring_make_jobs_later_and_not_longer() -> None:
    mix = draw_mix(5, 6)
    given = (
        mix.lab.with_changes(scale=1000),
        mix.jobs[:1],
        [0.0],
        ("regroup", "regroup"),
    )
    (bare,) = predicted_times(*given, NOTHING).values()
    (found,) = predicted_times(*given, Overheads(2.0, 1.0, 0.5)).values()
    assert found.hosts == bare.hosts
    assert found.runs_s == pytest.approx(bare.runs_s)
    assert found.ends_s == 1.0
    assert found.starts_s - bare.starts_s in (
        pytest.approx(2.0),
        pytest.approx(2.5),
    )
    assert found.jct_s == pytest.approx(found.starts_s + found.runs_s + 1.0)


def row(seed: int, policies: str, told: float, took: float) -> dict[str, Any]:
    parts = dict.fromkeys(("iteration_s", *run.CAUSES), 1.0)
    parts |= {f"predicted_{name}": 1.1 for name in parts}
    times = {"jct_s": took, "predicted_jct_s": told}
    return {
        "seed": seed,
        "policies": policies,
        "same_hosts": True,
        **parts,
        **times,
    }


def test_errors_and_orders_of_policies_are_counted() -> None:
    rows = [
        # In order.
        row(0, "a", 10.0, 10.0),
        row(0, "b", 12.0, 20.0),
        # The other way about.
        row(1, "a", 12.0, 10.0),
        row(1, "b", 11.0, 20.0),
        # As good as equal.
        row(2, "a", 12.0, 10.0),
        row(2, "b", 11.0, 10.5),
    ]
    found = run.summary_of(rows)
    assert (found["orders_right"], found["orders"]) == (1, 2)
    assert found["runs"]["median"] == pytest.approx(0.1)
    assert found["causes_s"]["waited_s"] == pytest.approx(0.1)
    assert run.summary_of([]) == {"jobs": 0}


@pytest.mark.root
@pytest.mark.ovs
def test_unequal_jobs_that_share_a_link_take_as_long_as_predicted(
    tmp_path: Any,
) -> None:
    lab = load_lab("ofc2022").with_changes(name="twin-test")
    speed = {"Tesla M40": 0.4, "Titan V": 0.4}
    jobs = [
        JobSpec("large", 5, 600_000_000, speed, 3),
        JobSpec("small", 8, 150_000_000, speed, 3),
    ]
    mix = Mix(lab, jobs, [0.0, 0.0], [("first-fit", "keep")])
    rows = list[dict[str, Any]]()
    machine = list[dict[str, Any]]()
    run.run_mix(mix, 0, 1000, rows, machine, [], print)
    assert [each["job"] for each in rows] == ["large", "small"]
    assert all(each["same_hosts"] for each in rows)
    if not machine[0]["too_busy"]:
        for each in rows:
            assert each["predicted_runs_s"] == pytest.approx(
                each["runs_s"], rel=0.15
            )
    result = {"jobs": rows, "labs": machine, "all": run.summary_of(rows)}
    files = run.write_report(result, tmp_path)
    assert {file.name for file in files} >= {
        "result.json",
        "jobs.csv",
        "twin.png",
    }
    assert (tmp_path / "jobs.csv").read_text().count("\n") == 3
    assert "run time, measured (s)" in for_a_paper(tmp_path / "twin.svg")
