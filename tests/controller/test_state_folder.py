"""A controller's state folder of which something is missing or damaged: all is true, or refused."""

import contextlib
import itertools
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from patchlight.controller.parts import Controller, ControllerSettings
from patchlight.controller.storage.series_store import (
    SeriesStore,
    SeriesWindow,
)
from patchlight.controller.storage.state_folder import (
    CHECK,
    open_series,
    open_store,
)
from patchlight.controller.storage.store import Store
from patchlight.testbed.errors import PatchlightError
from tests.support.change_bench import LAB

DB = "controller.db"
WAL = "controller.db-wal"
FILES = (DB, WAL, "controller.db-shm", "samples.db", "samples.db-wal", CHECK)
DAMAGES = ("missing", "empty", "truncated", "garbage", "another lab's")


def lock(port: int) -> dict[str, object]:
    told = {"kind": "locked", "by": "ann", "why": "", "at": 1.0, "channel": ""}
    return {"ocs": "o1", "port": port, **told}


def ports(store: Store) -> list[int]:
    return store.locks(
        lambda row, ocs, port, *_: port, unreadable=lambda *_: []
    )


def killed(live: Path, folder: Path) -> None:
    """The state that a controller killed at any moment would leave in ``folder``; some of it only
    in the write-ahead log."""
    store = open_store(live)
    store.save_locks([lock(1)])
    store.close()
    store = open_store(live)
    with closing(open_series(live, store.lab_id)) as series:
        series.add([SeriesWindow(0, "", 2)])
        store.save_locks([lock(2)])
        for number in range(40):
            store.save_map(
                f"map{number}",
                {"maps": {}, "by": "", "why": "x" * 200, "at": 1.0},
            )
        store.set_mark("stop", {"by": "ann", "why": "", "at": 1.0})
        shutil.copytree(live, folder)
    store.close()


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("states")
    for name in ("one", "other"):
        killed(folder / f"{name}-live", folder / name)
    return folder / "one", folder / "other"


def damage(folder: Path, other: Path, file: str, how: str) -> None:
    path = folder / file
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "another lab's":
        shutil.copyfile(other / file, path)
    else:
        changed = {
            "empty": b"",
            "truncated": data[: len(data) // 2],
            "garbage": os.urandom(9000),
        }
        path.write_bytes(changed[how])


def contents(folder: Path) -> dict[str, bytes]:
    return {
        name: (folder / name).read_bytes()
        for name in (DB, WAL)
        if (folder / name).exists()
    }


def cases() -> list[tuple[tuple[str, str], ...]]:
    subsets = itertools.chain.from_iterable(
        itertools.combinations(FILES, n) for n in range(1, 7)
    )
    gone = [tuple((file, "missing") for file in files) for files in subsets]
    single = [((file, how),) for file in FILES for how in DAMAGES]
    pairs = [
        ((one, how), (two, also))
        for one, two in itertools.combinations(FILES, 2)
        for how, also in itertools.product(DAMAGES, DAMAGES)
    ]
    return [*dict.fromkeys([*gone, *single, *pairs])]


def refusal(folder: Path) -> str:
    """Why the folder is refused, with what to do; empty if it starts with all that was written."""
    try:
        store = open_store(folder)
    except PatchlightError as error:
        return f"{error.message}: {error.hint}"
    with contextlib.ExitStack() as stack:
        stack.callback(store.close)
        assert ports(store) == [1, 2]
        assert store.mark("stop", dict, unreadable=None)
        try:
            open_series(folder, store.lab_id).close()
        except PatchlightError as error:
            return f"{error.message}: {error.hint}"
    return ""


@pytest.mark.parametrize("part", range(4))
def test_whatever_is_missing_or_damaged_it_starts_whole_or_says_what_to_do(
    states: tuple[Path, Path], tmp_path: Path, part: int
) -> None:
    one, other = states
    started = []
    for number, damages in enumerate(cases()[part::4]):
        if (CHECK, "empty") in damages or len(
            [how for _, how in damages if how == "missing"]
        ) == 6:
            continue  # accepted as it is; a new lab
        folder = tmp_path / str(number)
        shutil.copytree(one, folder)
        for file, how in damages:
            damage(folder, other, file, how)
        before = contents(folder)
        why = refusal(folder)
        if why:
            assert "restore a backup" in why or "move" in why, damages
            assert "samples.db" in why or contents(folder) == before, damages
        else:
            started.append(damages)
        shutil.rmtree(folder)
    assert started, "not all is refused"


def test_what_is_lost_without_its_log_is_named_and_can_be_accepted(
    states: tuple[Path, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "state"
    shutil.copytree(states[0], folder)
    for name in (WAL, "controller.db-shm"):
        (folder / name).unlink()
    with pytest.raises(
        PatchlightError, match=r"lacks the last 42 writes.*-wal is missing"
    ) as told:
        open_store(folder)
    assert f"empty {folder / CHECK}" in str(told.value.hint)
    (folder / CHECK).write_bytes(b"")
    with closing(open_store(folder)) as store:
        assert ports(store) == [1]
        store.save_locks([lock(3)])
    with closing(open_store(folder)) as store:
        assert ports(store) == [1, 3]


def test_a_controller_that_does_not_start_leaves_no_file_open(
    states: tuple[Path, Path], tmp_path: Path
) -> None:
    one, other = states
    folder = tmp_path / "state"
    shutil.copytree(one, folder)
    for name in ("samples.db", "samples.db-wal"):
        shutil.copyfile(other / name, folder / name)
    with pytest.raises(
        PatchlightError, match="the time series of another lab's"
    ):
        Controller(
            LAB, ControllerSettings(folder, "127.0.0.1:0", "127.0.0.1:0")
        )
    files = [
        Path(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")
    ]
    assert not [file for file in files if folder in file.resolve().parents]
    assert not (folder / WAL).exists(), "all is in the file"


@pytest.mark.parametrize("alone", [(DB,), (DB, "samples.db"), (DB, WAL)])
def test_a_copy_of_some_files_is_no_backup(
    states: tuple[Path, Path], tmp_path: Path, alone: tuple[str, ...]
) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    for name in alone:
        shutil.copyfile(states[0] / name, folder / name)
    with pytest.raises(PatchlightError, match="a copy of some files") as told:
        open_store(folder)
    assert "restore a backup" in str(told.value.hint)


@pytest.mark.parametrize("beside", ["", "samples.db"])
def test_a_database_without_tables_is_no_new_lab(
    tmp_path: Path, beside: str
) -> None:
    """As an older version left it: all is in the log, which is gone."""
    path = tmp_path / "state" / DB
    path.parent.mkdir(mode=0o750)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("CREATE TABLE locks (ocs TEXT)")
        shutil.copyfile(path, path.with_name("copied"))
    path.with_name("copied").replace(path)
    assert path.stat().st_size == 4096
    if beside:
        SeriesStore(path.with_name(beside)).close()
    for _ in range(2):
        with pytest.raises(
            PatchlightError, match="has no tables: they were in"
        ):
            open_store(path.parent)


def test_all_is_in_the_file_after_an_orderly_end_and_at_the_first_start(
    tmp_path: Path,
) -> None:
    state = tmp_path / "state"
    copy = tmp_path / "copy.db"
    store = open_store(state)
    shutil.copyfile(state / DB, copy)
    assert ports(Store(copy)) == []
    store.save_locks([lock(7)])
    with closing(
        sqlite3.connect(state / DB)
    ) as reader:  # so that SQLite keeps the log
        reader.execute("SELECT * FROM locks").fetchall()
        store.close()
        shutil.copyfile(state / DB, tmp_path / "after.db")
    assert ports(Store(tmp_path / "after.db")) == [7]


def test_a_file_that_another_program_read_after_a_crash_is_whole(
    states: tuple[Path, Path], tmp_path: Path
) -> None:
    shutil.copytree(states[0], tmp_path / "state")
    with closing(sqlite3.connect(tmp_path / "state" / DB)) as db:
        assert db.execute("SELECT count(*) FROM locks").fetchone() == (2,)
    assert not (tmp_path / "state" / WAL).exists()
    with closing(open_store(tmp_path / "state")) as store:
        assert ports(store) == [1, 2]


@pytest.mark.parametrize(
    "name", [CHECK, DB, WAL, "samples.db", "samples.db-wal"]
)
@pytest.mark.parametrize(
    "kind", ["fifo", "directory", "link to a fifo", "link"]
)
def test_what_is_no_file_is_refused_at_once(
    states: tuple[Path, Path], tmp_path: Path, name: str, kind: str
) -> None:
    folder = tmp_path / "state"
    path = tmp_path / "state" / name
    shutil.copytree(states[0], folder)
    moved = path.rename(tmp_path / "moved")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(moved if kind == "link" else fifo)
    code = (
        "import sys; from pathlib import Path; "
        "from tests.controller.test_state_folder import *\n"
    )
    command = [
        sys.executable,
        "-c",
        f"{code}print(refusal(Path(sys.argv[1])))",
        str(folder),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True
    )
    if kind == "link" and name != CHECK:
        return  # where an SQLite file is does not matter
    assert f"{path} is not a file" in done.stdout
    assert path.is_symlink() or not path.is_file(), "it stays"


@pytest.mark.parametrize(
    ("table", "sql"),
    [
        (
            "reconfigurations",
            "CREATE TABLE other AS SELECT * FROM reconfigurations",
        ),
        (
            "jobs",
            "CREATE TABLE other (id, state, record, name, owner, finished_at)",
        ),
        ("audit", "DROP TRIGGER audit_stays"),
        ("locks", "DROP TABLE locks"),
        ("marks", "ALTER TABLE marks DROP COLUMN record"),
    ],
)
def test_tables_that_another_program_made_are_refused(
    tmp_path: Path, table: str, sql: str
) -> None:
    state = tmp_path / "state"
    open_store(state).close()
    with closing(sqlite3.connect(state / DB)) as db:
        db.execute(sql)
        if "other" in sql:
            db.execute(f"DROP TABLE {table}")
            db.execute(f"ALTER TABLE other RENAME TO {table}")
        db.commit()
    with pytest.raises(
        PatchlightError, match=f"by another program: {table} of it"
    ) as told:
        open_store(state)
    assert "restore a backup" in str(told.value.hint)


def test_a_dump_that_was_read_again_is_the_same_lab(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with closing(open_store(state)) as store:
        store.save_locks([lock(7)])
    with closing(sqlite3.connect(state / DB)) as db:
        dump = "\n".join(db.iterdump())
        (version,) = db.execute("PRAGMA user_version").fetchone()
    (state / DB).unlink()
    with closing(sqlite3.connect(state / DB)) as db:
        db.executescript(f"{dump} PRAGMA user_version = {version};")
    with closing(open_store(state)) as store:
        assert ports(store) == [7]


def test_a_start_removes_what_a_killed_first_start_left(
    tmp_path: Path,
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    left = [tmp_path / f"{DB}.new-{ended}{more}" for more in ("", "-wal")]
    others = tmp_path / f"{DB}.new-{os.getppid()}"
    for path in (*left, others):
        path.touch()

    open_store(tmp_path).close()

    assert [path for path in left if path.exists()] == []
    assert others.exists()
