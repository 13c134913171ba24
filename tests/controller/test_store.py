"""What the controller remembers is there after a restart."""

import json
import sqlite3
import stat
from pathlib import Path

import pytest

from patchlight.controller.jobs.ledger import JobLedger
from patchlight.controller.storage.database import SCHEMA_VERSION, SCHEMAS
from patchlight.controller.storage.state_folder import open_store
from patchlight.controller.storage.store import Store
from patchlight.testbed.errors import PatchlightError
from tests.support.full_disk import limit_size


def test_everything_written_is_there_when_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "controller.db"
    store = Store(path)
    number = store.prepared_intent(0, {"why": "test"})()
    store.add_event(12.5, "job-done", {"job": "b"})
    # Not closed: what a kill would leave.
    again = Store(path)
    (change,) = again.reconfigurations()
    assert (change.why, change.id, change.state) == (
        "test",
        number,
        "intent",
    )
    assert again.events() == [
        {"job": "b", "number": 1, "at": 12.5, "kind": "job-done"}
    ]


def test_a_state_file_that_is_none_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "controller.db"
    path.write_bytes(
        b"this is not a database, only some bytes that are long enough" * 20
    )
    with pytest.raises(
        PatchlightError, match="cannot open the controller's state"
    ):
        Store(path)


@pytest.mark.parametrize("beside", ["samples.db", "outputs", ""])
def test_an_empty_file_where_a_controller_ran_is_no_new_lab(
    tmp_path: Path, beside: str
) -> None:
    path = tmp_path / "state" / "controller.db"
    path.parent.mkdir(mode=0o750)
    path.touch(mode=0o600)
    if not beside:  # of a first start that was cut short
        open_store(path.parent).close()
        return
    (path.parent / beside).mkdir()
    with pytest.raises(
        PatchlightError,
        match=rf"is empty, but an earlier controller left {beside}(?s:.)*restore",
    ):
        open_store(path.parent)
    assert path.stat().st_size == 0


def test_a_store_says_in_words_that_it_cannot_be_written(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path / "controller.db")
    limit_size(store)
    with pytest.raises(PatchlightError, match=r"controller\.db: .*full"):
        store.save_map("test", {"words": "x" * 400_000})
    limit_size(store, 100000)
    store.save_map("test", {"maps": {}, "by": "", "why": "", "at": 1.0})
    assert store.saved_maps()["test"].at == 1.0


def test_a_store_that_a_newer_version_wrote_is_refused_and_left_alone(
    tmp_path: Path,
) -> None:
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


def test_a_file_of_the_first_schema_is_brought_up_to_date(
    tmp_path: Path,
) -> None:
    path = tmp_path / "controller.db"
    with sqlite3.connect(path) as db:
        db.executescript(f"{SCHEMAS[0]} PRAGMA user_version = 1;")
        spec = {
            "name": "old",
            "iterations": 2,
            "gradient_bytes": 4,
            "compute_s": {"A100": 0.1},
        }
        record = {
            "id": "old-1",
            "spec": spec,
            "state": "done",
            "by": "ann",
            "finished_at": 5.0,
        }
        db.execute(
            "INSERT INTO jobs VALUES ('old-1', 'done', ?)",
            (json.dumps(record),),
        )
        db.execute("INSERT INTO jobs VALUES ('bad', 'done', 'no JSON')")
    db.close()
    ledger = JobLedger(Store(path))
    (found,) = ledger.meant("old")
    assert (found.id, found.by, found.spec.trainer) == (
        "old-1",
        "ann",
        "synthetic",
    )
    assert ledger.page(10, owner="ann") == [found]
    Store(path).close()  # and again is harmless


def test_locks_of_an_older_file_are_those_of_whole_ports(
    tmp_path: Path,
) -> None:
    path = tmp_path / "controller.db"
    lock = {
        "ocs": "ocs1",
        "port": 3,
        "kind": "locked",
        "by": "ann",
        "why": "",
        "at": 1.0,
    }
    with sqlite3.connect(path) as db:
        db.executescript(f"{''.join(SCHEMAS[:4])} PRAGMA user_version = 4;")
        db.execute(
            "INSERT INTO locks VALUES ('ocs1', 3, ?)", (json.dumps(lock),)
        )
    db.close()
    store = Store(path)
    store.save_locks(
        [
            {**lock, "ocs": "wss1", "channel": channel}
            for channel in ("", "193.100")
        ]
    )
    read = store.locks(
        lambda row, ocs, port, channel: (ocs, channel),
        unreadable=lambda *_: [],
    )
    assert read == [("ocs1", ""), ("wss1", ""), ("wss1", "193.100")]
    store.delete_locks([("ocs1", 3, ""), ("wss1", 3, "193.100")])
    assert store.locks(lambda row, ocs, *_: ocs, unreadable=lambda *_: []) == [
        "wss1"
    ]


def test_the_state_is_for_its_owner_alone(tmp_path: Path) -> None:
    state = tmp_path / "state"
    store = open_store(state)
    store.add_event(1.0, "test", {})
    assert stat.S_IMODE(state.stat().st_mode) == 0o750
    assert {stat.S_IMODE(file.stat().st_mode) for file in state.iterdir()} == {
        0o600
    }
    store.close()
    (state / "controller.db").chmod(0o644)
    open_store(state).close()
    assert stat.S_IMODE((state / "controller.db").stat().st_mode) == 0o600


def test_a_state_folder_that_others_can_write_in_is_refused(
    tmp_path: Path,
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(
        PatchlightError, match="other users can put files into the folder"
    ):
        open_store(shared)
    assert list(shared.iterdir()) == []


def test_a_period_is_found_page_by_page_the_latest_first(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path / "controller.db")
    for at in range(10):
        store.add_event(
            float(at), "alarm" if at % 2 else "drift", {"words": str(at)}
        )
        store.prepared_intent(0, {"why": str(at), "started_at": float(at)})()

    def events(
        last: int, before: int = 99, kinds: tuple[str, ...] = ()
    ) -> list[float]:
        return [
            row["at"]
            for row in store.past_events((2.0, 8.0), last, before, kinds)
        ]

    assert events(3) == [6.0, 7.0, 8.0]
    # The event of second 6 is number 7.
    assert events(3, before=7) == [
        3.0,
        4.0,
        5.0,
    ]
    assert events(9, before=4) == [2.0]
    assert events(9, kinds=("alarm",)) == [3.0, 5.0, 7.0]
    assert store.past_events((20.0, 30.0), 3, 99) == []
    assert [c.why for c in store.past_reconfigurations((2.0, 8.0), 2, 99)] == [
        "7",
        "8",
    ]
    assert [c.why for c in store.past_reconfigurations((2.0, 8.0), 9, 4)] == [
        "2"
    ]


def test_changes_of_an_older_file_are_found_by_their_time(
    tmp_path: Path,
) -> None:
    path = tmp_path / "controller.db"
    with sqlite3.connect(path) as db:
        db.executescript(f"{''.join(SCHEMAS[:5])} PRAGMA user_version = 5;")
        insert = "INSERT INTO reconfigurations (state, record) VALUES ('committed', ?)"
        db.execute(insert, (json.dumps({"why": "", "started_at": 7.0}),))
        db.execute(insert, ("no JSON",))
    db.close()
    (found,) = Store(path).past_reconfigurations((6.0, 8.0), 9, 9)
    assert (found.started_at, found.id, found.state) == (
        7.0,
        1,
        "committed",
    )


def test_a_baseline_that_is_no_number_is_set_aside(tmp_path: Path) -> None:
    store = Store(tmp_path / "controller.db")
    store.save_baselines({("o1", 1, 2, ""): [-3.5], ("o1", 3, 4, ""): [-4.0]})
    store.write("UPDATE baselines SET readings = 'x' WHERE inp = 3")
    assert store.baselines("o1") == {("o1", 1, 2, ""): (-3.5,)}
    assert store.troubles()["set_aside"] == 1
