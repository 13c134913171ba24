"""Workers that report without end: what is kept is bounded, and what is said of it stays true."""

import itertools
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from patchlight.agents.workers.keeper import ReportReader
from patchlight.cli.job.listing import print_job
from patchlight.controller.jobs.job_table import durations_s
from patchlight.controller.jobs.ledger import JobLedger, JobOutputs
from patchlight.controller.storage.store import Store
from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobs import (
    MOST_ITERATIONS,
    JobSpec,
    JobState,
    JobStatus,
)
from patchlight.testbed.wire.rest.jobs import JobAnswer
from tests.support.job_cluster import Cluster, job, simulated, submit_running

MOST = 2000


def reports(
    numbers: range, rank: int = 0, attempt: int = 0
) -> list[dict[str, Any]]:
    """Iterations of 2 s each, as a controller gets them."""
    told = {
        "rank": rank,
        "attempt": attempt,
        "compute_s": 1.5,
        "communication_s": 0.5,
    }
    return [
        {**told, "index": n, "ordinal": n, "finished_at": 2.0 * n}
        for n in numbers
    ]


def add(
    ledger: JobLedger, job_id: str, count: int, ranks: int = 1, step: int = 100
) -> None:
    for first in range(0, count, step):
        each = [
            reports(range(first, min(count, first + step)), rank)
            for rank in range(ranks)
        ]
        ledger.add_iterations(
            job_id, [report for of_rank in each for report in of_rank]
        )


@pytest.fixture
def store() -> Store:
    return Store(":memory:")


@pytest.mark.parametrize(
    ("count", "ranks"), [(10, 1), (999, 2), (30_000, 1), (9_000, 4)]
)
def test_first_and_last_stay_and_between_them_as_many_everywhere(
    store: Store, count: int, ranks: int
) -> None:
    ledger = JobLedger(store, MOST)
    add(ledger, "j", count, ranks)
    kept, _ = ledger.iterations("j")
    assert ledger.report_counts("j") == (len(kept), count * ranks)
    assert JobLedger(store, MOST).report_counts("j") == (
        len(kept),
        count * ranks,
    )
    assert ledger.reports_by_rank("j", 0) == dict.fromkeys(range(ranks), count)
    if count * ranks <= MOST:
        assert len(kept) == count * ranks
        return
    assert MOST // 4 < len(kept) <= MOST
    for rank in range(ranks):
        indices = [each["index"] for each in kept if each["rank"] == rank]
        assert indices[:2] == [0, 1]
        assert indices[-60:] == [*range(count - 60, count)]
        apart = max(b - a for a, b in itertools.pairwise(indices)) + 1
        assert apart.bit_count() == 1, "a power of two"
        pairs = {n for n in range(count) if n % apart < 2}
        assert pairs <= {*indices}, "pairs at equal distances"
        assert len(pairs) * ranks > MOST // 8
    # The time of an iteration is known everywhere, and right.
    assert set(durations_s(kept, ranks)) == {2.0}
    assert len(durations_s(kept, ranks)) > 100


def test_a_worker_that_floods_does_not_displace_the_reports_of_others(
    store: Store,
) -> None:
    ledger = JobLedger(store, MOST)
    for first in range(0, 50_000, 1000):
        ledger.add_iterations("j", reports(range(first, first + 1000)))
        if first < 5000:
            second = first // 1000
            ledger.add_iterations(
                "j", reports(range(second, second + 1), rank=1)
            )
    kept, _ = ledger.iterations("j")
    assert [each["index"] for each in kept if each["rank"] == 1] == [
        0,
        1,
        2,
        3,
        4,
    ]
    assert ledger.reports_by_rank("j", 0) == {0: 50_000, 1: 5}
    assert len(kept) <= MOST


def test_repeated_and_jumping_indices_are_thinned_like_any_others(
    store: Store,
) -> None:
    ledger = JobLedger(store, MOST)
    for first in range(0, 20_000, 1000):
        told = reports(range(first, first + 1000))
        ledger.add_iterations(
            "j",
            [
                {**each, "index": 2**53 * (n % 2)}
                for n, each in enumerate(told)
            ],
        )
    assert ledger.report_counts("j")[1] == 20_000
    assert ledger.report_counts("j")[0] <= MOST


def test_of_many_attempts_and_workers_the_first_and_last_reports_stay(
    store: Store,
) -> None:
    ledger = JobLedger(store, MOST)
    for attempt in range(3):
        each = [reports(range(50), rank, attempt) for rank in range(300)]
        ledger.add_iterations(
            "j", [report for of_rank in each for report in of_rank]
        )
    kept, _ = ledger.iterations("j")
    assert len(kept) < 10_000
    assert ledger.report_counts("j")[1] == 3 * 300 * 50
    assert ledger.reports_by_rank("j", 2) == dict.fromkeys(range(300), 50)


def test_reports_that_an_older_version_stored_are_counted_and_thinned(
    store: Store,
) -> None:
    rows = [
        ("j", json.dumps({"index": n, "rank": 0, "finished_at": 1.0}))
        for n in range(1500)
    ]
    store.write_all("INSERT INTO iterations (job, record) VALUES (?, ?)", rows)
    ledger = JobLedger(store, 1000)
    assert ledger.reports_by_rank("j", 0) == {0: 1500}
    ledger.add_iterations("j", reports(range(1500, 1600)))
    assert ledger.report_counts("j")[1] == 1600
    assert ledger.report_counts("j")[0] <= 1000
    assert ledger.reports_by_rank("j", 0) == {0: 1600}


def test_all_jobs_together_are_bounded_those_that_ended_first_are_thinned_first(
    store: Store,
) -> None:
    ledger = JobLedger(store)
    spec = JobSpec("j", 1, 4, {"A100": 0.1})
    for number in range(4):
        add(ledger, f"j-{number}", 3000, step=1000)
        ledger.save(
            [
                JobStatus(
                    f"j-{number}",
                    spec,
                    JobState.DONE,
                    finished_at=float(number),
                )
            ]
        )
    while ledger.bound_reports(8000):
        assert ledger.report_counts("j-3") == (3000, 3000)
    counts = [ledger.report_counts(f"j-{number}") for number in range(4)]
    assert sum(kept for kept, _ in counts) <= 8000
    assert {made for _, made in counts} == {3000}
    while ledger.bound_reports(100):
        pass
    assert (
        sum(ledger.report_counts(f"j-{number}")[0] for number in range(4))
        <= 100
    )


def test_the_output_of_all_jobs_is_bounded(tmp_path: Path) -> None:
    outputs = JobOutputs(tmp_path)
    for number in range(4):
        (tmp_path / f"j-{number}").mkdir()
        (tmp_path / f"j-{number}" / "0.0").write_bytes(bytes(1000))
        time.sleep(0.01)  # the next one is younger
    outputs.bound(2500)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["j-2", "j-3"]
    JobOutputs(tmp_path / "none").bound(1)


@simulated()
async def test_a_job_says_how_many_of_its_reports_are_kept(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    (ran,) = await submit_running(cluster, job("ran", "gpu0"))
    more: dict[str, Any] = {
        "light_moves": [],
        "measured_iteration_s": None,
        "holds_by": [],
    }
    shown: Any = {**cluster.table[ran].as_record, **more}
    print_job(JobAnswer(**shown, reports_kept=5, reports_made=5))
    assert "thinned" not in capsys.readouterr().out
    many = JobAnswer(
        **shown,
        reports_kept=20_000,
        reports_made=1_234_567,
    )
    print_job(many)
    assert "20,000 of 1,234,567 reports are kept" in capsys.readouterr().out


@simulated()
async def test_a_worker_whose_agent_has_read_much_is_asked_again(
    cluster: Cluster,
) -> None:
    """An agent stops to read, and to count, at a number of reports that nobody has fetched."""
    (ran,) = await submit_running(cluster, job("ran", "gpu0"))
    (worker,) = cluster.workers_of(ran)
    for index in range(2500):
        worker.prints_report(index)
    await cluster.until(
        lambda: cluster.table.ledger.report_counts(ran)[1] >= 2500
    )


@simulated()
async def test_an_index_far_away_is_no_progress_beyond_the_jobs_end(
    cluster: Cluster,
) -> None:
    known, unknown = await submit_running(
        cluster,
        job("known", "gpu0"),
        replace(
            job("own", "gpu1"), trainer="command", command=("x",), iterations=0
        ),
    )
    for job_id in (known, unknown):
        (worker,) = cluster.workers_of(job_id)
        worker.prints_report(2**53)
    await cluster.until(
        lambda: cluster.table[unknown].iterations_done == MOST_ITERATIONS
    )
    await cluster.until(
        lambda: (
            cluster.table[known].iterations_done
            == cluster.table[known].spec.iterations
        )
    )
    cluster.end(known)
    await cluster.until_state(known, JobState.DONE)


def test_an_agent_reads_a_bounded_part_of_whatever_a_worker_writes(
    tmp_path: Path,
) -> None:
    file = tmp_path / "reports.jsonl"
    file.write_text("\n" * 2**20 + '{"index": 7, "finished_at": 1.0}\n')
    reader = ReportReader(tmp_path, foreign=True)
    began = time.process_time()
    reader.read()
    assert time.process_time() - began < 1.0
    while not (found := reader.after(0)):
        pass
    assert [report.index for report in found] == [7]


def test_an_agent_hands_out_a_thousand_reports_at_a_time_and_catches_up(
    tmp_path: Path,
) -> None:
    lines = [f'{{"index": {n}, "finished_at": 1.0}}\n' for n in range(5000)]
    (tmp_path / "reports.jsonl").write_text("".join(lines))
    reader = ReportReader(tmp_path, foreign=True)
    seen = 0
    while new := reader.after(seen):
        assert len(new) <= 1000
        assert [report.index for report in new] == [
            *range(seen, seen + len(new))
        ]
        seen += len(new)
    assert seen == 5000
    # The next agent is asked by a controller that has seen most of them.
    again = ReportReader(tmp_path, foreign=True)
    assert [report.index for report in again.after(4500)] == [
        *range(4500, 5000)
    ]
    assert again.after(9999) == []


@pytest.mark.parametrize("name", ["", " "])
@simulated()
async def test_an_empty_name_is_no_job(cluster: Cluster, name: str) -> None:
    await submit_running(cluster, job("first", "gpu0"))
    with pytest.raises(BadInput, match="it depends on unknown job"):
        cluster.submit(replace(job("second", "gpu1"), after=(name,)))
    assert cluster.table.meant(name) == []
