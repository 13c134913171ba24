"""What the controller remembers is there after a restart."""

import sqlite3
import stat
from pathlib import Path

import pytest

from patchlight.controller.store import SCHEMA_VERSION, Store, open_store
from patchlight.testbed.errors import PatchlightError


def test_everything_written_is_there_when_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "controller.db"
    store = Store(path)
    number = store.prepared_intent(0, {"why": "test"})()
    store.save_job("b", "queued", {"id": "b"})
    store.save_job("a", "queued", {"id": "a"})
    store.save_job("b", "done", {"id": "b", "state": "done"})
    store.add_iterations("a", [{"index": 0}, {"index": 1}])
    store.add_event(12.5, "job-done", {"job": "b"})
    # Not closed: what a kill would leave.
    again = Store(path)
    assert again.reconfigurations() == [{"why": "test", "id": number, "state": "intent"}]
    assert again.jobs(dict) == [{"id": "b", "state": "done"}, {"id": "a"}]
    assert again.events() == [{"job": "b", "number": 1, "at": 12.5, "kind": "job-done"}]


def test_iterations_are_read_on_from_where_one_was(tmp_path: Path) -> None:
    store = Store(tmp_path / "controller.db")
    store.add_iterations("a", [{"index": 0}])
    first, seen = store.iterations("a")
    store.add_iterations("other", [{"index": 9}])
    store.add_iterations("a", [{"index": 1}])
    second, last = store.iterations("a", seen)
    assert (first, second) == ([{"index": 0}], [{"index": 1}])
    assert store.iterations("a", last) == ([], last)


def test_a_state_file_that_is_none_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "controller.db"
    path.write_bytes(b"this is not a database, only some bytes that are long enough" * 20)
    with pytest.raises(PatchlightError, match="cannot open the controller's state"):
        Store(path)


def test_a_store_says_in_words_that_it_cannot_be_written(tmp_path: Path) -> None:
    store = Store(tmp_path / "controller.db")
    store.limit_size()
    with pytest.raises(PatchlightError, match=r"controller\.db: .*full"):
        store.add_events("test", [(1.0, {"words": "x" * 4000})] * 100)
    store.limit_size(100000)
    assert store.add_event(2.0, "test", {}) == 1


def test_a_store_that_a_newer_version_wrote_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "controller.db"
    Store(path).close()
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
        db.execute("DROP TABLE jobs")
    db.close()
    with pytest.raises(PatchlightError, match=f"schema {SCHEMA_VERSION + 1}"):
        Store(path)
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        sqlite3.connect(path).execute("SELECT * FROM jobs")


def test_the_state_is_for_its_owner_alone(tmp_path: Path) -> None:
    state = tmp_path / "state"
    store = open_store(state)
    store.add_event(1.0, "test", {})
    assert stat.S_IMODE(state.stat().st_mode) == 0o750
    assert {stat.S_IMODE(file.stat().st_mode) for file in state.iterdir()} == {0o600}
    store.close()
    (state / "controller.db").chmod(0o644)
    open_store(state).close()
    assert stat.S_IMODE((state / "controller.db").stat().st_mode) == 0o600


def test_a_state_folder_that_others_can_write_in_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(PatchlightError, match="other users can put files into the folder"):
        open_store(shared)
    assert list(shared.iterdir()) == []
