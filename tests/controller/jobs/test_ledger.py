"""Jobs on disk: found again, page by page, and forgotten in time."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from patchlight.controller.jobs import job_table
from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.jobs.ledger import JobLedger
from patchlight.controller.storage.store import Store
from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobs import JobSpec, JobState, JobStatus


def status(
    job_id: str, state: JobState = JobState.QUEUED, by: str = ""
) -> JobStatus:
    name = job_id.rpartition("-")[0]
    return JobStatus(job_id, JobSpec(name, 1, 4, {"A100": 0.1}), state, by=by)


@pytest.fixture
def ledger(tmp_path: Path) -> JobLedger:
    return JobLedger(Store(tmp_path / "controller.db"))


def report(index: int, rank: int = 0, attempt: int = 0) -> dict[str, Any]:
    return {
        "index": index,
        "rank": rank,
        "attempt": attempt,
        "finished_at": float(index),
    }


def ids(statuses: list[JobStatus]) -> list[str]:
    return [each.id for each in statuses]


def test_a_job_that_was_saved_is_there_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "controller.db"
    asked = replace(status("b-1"), gang="g", avoid=("gpu0",), attempt=2)
    JobLedger(Store(path)).save(
        [asked, status("a-1")], [(1.0, "job-queued", {"job": "b-1"})]
    )
    again = Store(path)  # the other was not closed
    assert JobLedger(again).find("b-1") == asked
    assert ids(JobLedger(again).unfinished()) == ["b-1", "a-1"]
    assert [event["kind"] for event in again.events()] == ["job-queued"]


def test_jobs_come_in_pages_and_by_state_user_and_name(
    ledger: JobLedger,
) -> None:
    ledger.save(
        [status(f"job-{n}", by="ann" if n % 2 else "ben") for n in range(6)]
    )
    ledger.save([status("job-2", JobState.DONE, "ben"), status("other-1")])
    assert ids(ledger.page(2)) == ["job-5", "other-1"]
    assert ids(ledger.page(3, "")) == ["job-0", "job-1", "job-2"]
    assert ids(ledger.page(2, "job-2")) == ["job-3", "job-4"]
    assert ids(ledger.page(9, state="done")) == ["job-2"]
    assert ids(ledger.page(9, "job-1", owner="ann")) == ["job-3", "job-5"]
    assert ids(ledger.page(9, name="other")) == ["other-1"]
    assert ledger.counts() == {"done": 1, "queued": 6}
    with pytest.raises(BadInput, match="unknown job 'nobody' in 'after'"):
        ledger.page(2, "nobody")


def test_jobs_of_a_period_waited_or_ran_in_it(ledger: JobLedger) -> None:
    def job(name: str, submitted: float, finished: float | None) -> JobStatus:
        state = JobState.QUEUED if finished is None else JobState.DONE
        return replace(
            status(name, state), submitted_at=submitted, finished_at=finished
        )

    ledger.save(
        [
            job("old-1", 1.0, 5.0),
            job("long-1", 2.0, 30.0),
            job("waits-1", 8.0, None),
        ]
    )
    ledger.save([job("late-1", 40.0, 41.0)])
    assert ids(ledger.page(9, period=(10.0, 20.0))) == ["long-1", "waits-1"]
    assert ids(ledger.page(9, period=(5.0, 5.0))) == ["old-1", "long-1"]
    assert ids(ledger.page(1, "long-1", (10.0, 50.0))) == ["waits-1"]
    assert ids(ledger.page(9, period=(10.0, 50.0), name="late")) == ["late-1"]


def test_a_job_is_meant_by_its_name_or_the_start_of_its_id(
    ledger: JobLedger,
) -> None:
    ledger.save([status("train-a1"), status("train-a2"), status("trainer-b1")])
    assert ids(ledger.meant("train")) == ["train-a2", "train-a1"]
    assert ids(ledger.meant("train-a1")) == ["train-a1"]
    assert ids(ledger.meant("traine")) == ["trainer-b1"]
    assert ledger.meant("t%") == ledger.meant("x") == []


def test_reports_are_read_on_from_where_one_was_and_counted_by_rank(
    ledger: JobLedger,
) -> None:
    ledger.add_iterations("a", [report(0)])
    first, seen = ledger.iterations("a")
    ledger.add_iterations("other", [report(9)])
    ledger.add_iterations("a", [report(n, rank=1, attempt=1) for n in (1, 2)])
    second, last = ledger.iterations("a", seen)
    assert [report["index"] for report in (*first, *second)] == [0, 1, 2]
    assert ledger.iterations("a", last) == ([], last)
    assert ledger.reports_by_rank("a", 0) == {0: 1}
    assert ledger.reports_by_rank("a", 1) == {1: 2}
    assert ledger.reports_by_rank("other", 0) == {0: 1}


def test_old_jobs_are_forgotten_with_all_that_was_kept_of_them(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path / "controller.db")
    ledger = JobLedger(store)
    ended = [
        replace(status(f"j-{n}", JobState.DONE), finished_at=float(n))
        for n in range(5)
    ]
    ledger.save([*ended, status("waits-1")])
    for n in range(5):
        ledger.add_iterations(f"j-{n}", [report(0)])
        ledger.add_decision(f"j-{n}", 1.0, {"policy": "packed"})
        store.add_event(1.0, "job-done", {"job": f"j-{n}"})
    assert ledger.forget(before=1.5, keep=2) == (["j-0", "j-1", "j-2"], False)
    assert ids(ledger.page(9)) == ["j-3", "j-4", "waits-1"]
    assert ledger.iterations("j-1") == ([], 0)
    assert ledger.decisions("j-0") == []
    assert ledger.decisions("j-4")[0]["policy"] == "packed"
    assert [event["job"] for event in store.events()] == ["j-3", "j-4"]
    assert ledger.forget(before=1.5, keep=2) == ([], False)
    assert ledger.forget(before=9.0, keep=2) == (["j-3", "j-4"], False)
    # The number of the last event is not given to another one.
    store.add_event(2.0, "test", {})
    assert store.last_event() == 6


def test_jobs_are_forgotten_a_little_at_a_time(ledger: JobLedger) -> None:
    ledger.save(
        [
            replace(status(f"j-{n}", JobState.DONE), finished_at=1.0)
            for n in range(5)
        ]
    )
    ledger.add_iterations("j-1", [report(n) for n in range(5000)])
    pieces = []
    more = True
    while more:
        gone, more = ledger.forget(before=2.0, keep=9, most=2)
        pieces.append(gone)
    assert pieces == [["j-0"], [], ["j-1", "j-2"], ["j-3", "j-4"], []]
    assert ledger.page(9) == []


def test_a_job_that_others_wait_for_is_not_forgotten(
    ledger: JobLedger,
) -> None:
    first = [
        replace(status(f"{n}-1", JobState.DONE), finished_at=1.0)
        for n in ("a", "b", "c")
    ]
    waits = status("w-1")
    waits = replace(waits, spec=replace(waits.spec, after=("b-1",)))
    ledger.save([*first, waits, status("runs-1", JobState.RUNNING)])
    assert ledger.forget(before=2.0, keep=0) == (["a-1", "c-1"], False)
    ledger.save([replace(waits, state=JobState.DONE, finished_at=3.0)])
    assert ledger.forget(before=2.0, keep=9) == (["b-1"], False)
    assert ids(ledger.page(9)) == ["w-1", "runs-1"]


def test_a_job_of_another_version_and_one_with_half_a_character_are_read(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path / "controller.db")
    odd = replace(status("a-1"), message="half \ud800", gpu_s=1.5)
    ledger = JobLedger(store)
    ledger.save([odd, status("b-1"), status("c-1")])
    newer = {**status("b-1").as_record, "of_a_newer_version": [1]}
    store.write(
        "UPDATE jobs SET record = ? WHERE id = 'b-1'", json.dumps(newer)
    )
    store.write("UPDATE jobs SET record = '{}' WHERE id = 'c-1'")
    first, second, lost = ledger.page(9)
    assert [first, second] == [odd, status("b-1")]
    assert (lost.id, lost.state, lost.by) == ("c-1", JobState.FAILED, "")
    assert store.events()[0]["origin"] == "jobs 3"


def test_a_jobs_history_is_its_own(ledger: JobLedger) -> None:
    for n in range(3):
        words = {"job": f"j-{n}", "message": "why"}
        ledger.save(
            [status(f"j-{n}")],
            [(n + 1.0, "job-queued", words), (9.0, "fault", words)],
        )
    assert ledger.history("j-1") == [
        {"at": 2.0, "state": "queued", "message": "why"}
    ]


def test_the_table_keeps_in_memory_only_what_has_not_ended(
    ledger: JobLedger,
) -> None:
    table = JobTable(ledger)
    table.add([status(f"j-{n}") for n in range(3)])
    table.move("j-0", JobState.PREPARING)
    table.move("j-1", JobState.FAILED, "over")
    assert ids(table.live()) == ["j-0", "j-2"]
    assert table["j-1"].message == "over"
    assert ids(JobTable(ledger).live()) == ["j-0", "j-2"]
    assert ids(JobTable(ledger).recent()) == ["j-0", "j-1", "j-2"]


def test_a_list_of_ended_jobs_is_read_once_and_shows_what_became_of_them(
    ledger: JobLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_table, "_LISTED", 3)
    table = JobTable(ledger)
    table.add([status(f"j-{n}") for n in range(4)])
    for n in range(4):
        table.move(f"j-{n}", JobState.FAILED, "over")
    listed = table.page(3)
    texts = [table.text(each) for each in listed]
    assert [a is b for a, b in zip(table.page(3), listed, strict=True)] == [
        True
    ] * 3
    assert [
        a is b for a, b in zip(map(table.text, listed), texts, strict=True)
    ] == [True] * 3
    # One more than are kept.
    assert ids(table.page(4)) == ["j-0", "j-1", "j-2", "j-3"]
    assert ids(table.page(4)) == ["j-0", "j-1", "j-2", "j-3"]
    stopped = table.move("j-3", JobState.STOPPED, "in the end")
    assert table.page(1) == [stopped]
    assert b'"stopped"' in table.text(stopped)
