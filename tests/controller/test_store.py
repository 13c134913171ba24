"""What the controller remembers is there after a restart."""

from pathlib import Path

import pytest

from patchlight.controller.store import Store
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
    assert again.jobs() == [{"id": "b", "state": "done"}, {"id": "a"}]
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
