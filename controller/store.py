"""What the controller must not forget: journal, jobs, events. SQLite with a write-ahead log.

Small synchronous writes from one thread: each is a committed transaction, on disk before the
call returns, so that a change of the network is journalled before a device is touched.
"""

import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from patchlight.testbed.errors import PatchlightError

_log = logging.getLogger("patchlight.store")

SCHEMA_VERSION = 1
"""What is in the tables: one more with each change that an older Patchlight would misread."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS reconfigurations (
    id INTEGER PRIMARY KEY, state TEXT NOT NULL, record TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS jobs (id TEXT PRIMARY KEY, state TEXT NOT NULL, record TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS iterations (
    number INTEGER PRIMARY KEY, job TEXT NOT NULL, record TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS iterations_by_job ON iterations (job, number);
CREATE TABLE IF NOT EXISTS events (
    number INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, record TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS reconfigurations_by_state ON reconfigurations (state);
CREATE TABLE IF NOT EXISTS committed (ocs TEXT PRIMARY KEY, record TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS locks (
    ocs TEXT NOT NULL, port INTEGER NOT NULL, record TEXT NOT NULL, PRIMARY KEY (ocs, port));
CREATE TABLE IF NOT EXISTS saved (name TEXT PRIMARY KEY, record TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS marks (name TEXT PRIMARY KEY, record TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS baselines (
    ocs TEXT NOT NULL, inp INTEGER NOT NULL, out INTEGER NOT NULL, source TEXT NOT NULL,
    readings TEXT NOT NULL, PRIMARY KEY (ocs, inp, out, source)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS set_aside (
    number INTEGER PRIMARY KEY, at REAL NOT NULL, origin TEXT NOT NULL, record TEXT NOT NULL,
    why TEXT NOT NULL);
"""

_ADD_EVENT = "INSERT INTO events (at, kind, record) VALUES (?, ?, ?)"
_SAVE_COMMITTED = "INSERT OR REPLACE INTO committed VALUES (?, ?)"
_SAVE_BASELINE = "INSERT OR REPLACE INTO baselines VALUES (?, ?, ?, ?, ?)"

Record = Mapping[str, Any]
T = TypeVar("T")

BaselineKey = tuple[str, int, int, str]
"""Whose power it is: the OCS, the input, the output, and the transmitter (or ``""``)."""


class Store:
    """The controller's memory in one SQLite file (``:memory:`` for none).

    Every method raises ``PatchlightError`` where the file cannot be read or written.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = path
        try:
            self._db = sqlite3.connect(str(path), isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            # FULL: the journal's intent survives a power cut, not just a crash of the process.
            self._db.execute("PRAGMA synchronous=FULL")
            self._check_version()
            self._db.executescript(f"{_SCHEMA} PRAGMA user_version = {SCHEMA_VERSION};")
        except sqlite3.Error as error:
            raise PatchlightError(
                f"cannot open the controller's state in {path}: {error}",
                hint="give another place with --state, or move the file away",
            ) from error
        self._lock = threading.Lock()

    def _check_version(self) -> None:
        (found,) = self._db.execute("PRAGMA user_version").fetchone()
        if found > SCHEMA_VERSION:
            self._db.close()
            raise PatchlightError(
                f"the controller's state in {self._path} is of schema {found}: this Patchlight "
                f"reads up to {SCHEMA_VERSION}",
                hint="run the newer Patchlight that wrote it, or give another place with --state",
            )

    def limit_size(self, pages: int | None = None) -> None:
        """Let the file grow to so many pages, by default no further: a disk that is full."""
        self._rows(f"PRAGMA max_page_count = {pages or self._rows('PRAGMA page_count')[0][0]}")

    def close(self) -> None:
        """Close the file; nothing is pending, every write was committed."""
        self._db.close()

    @contextmanager
    def _locked(self) -> Iterator[sqlite3.Connection]:
        """One user of the file at a time; what goes wrong with it is an error of ours."""
        with self._lock:
            try:
                yield self._db
            except sqlite3.Error as error:
                raise PatchlightError(
                    f"the controller's journal in {self._path}: {error}",
                    hint="is there room on the disk, and is the file writable?",
                ) from error

    def _write(self, sql: str, *values: object) -> int:
        with self._locked() as db:
            return db.execute(sql, values).lastrowid or 0

    @contextmanager
    def _together(self) -> Iterator[sqlite3.Connection]:
        """All that is written in the block is on disk after it, or none of it."""
        with self._locked() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                # A full disk may have rolled back already.
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    def _write_all(self, sql: str, rows: Sequence[tuple[object, ...]]) -> None:
        with self._together() as db:
            db.executemany(sql, rows)

    def _rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        with self._locked() as db:
            return db.execute(sql, values).fetchall()

    def _each(
        self, table: str, which: str, read: Callable[[dict[str, Any]], T], *columns: str
    ) -> list[T]:
        """What ``read`` makes of each record, with these columns in it.

        One that it can make nothing of is moved to the table ``set_aside``, and an event says so:
        a record that somebody else wrote is no reason not to start.
        """
        found = []
        listed = ", ".join(("rowid", "record", *columns))
        for number, text, *values in self._rows(f"SELECT {listed} FROM {table} {which}"):
            try:
                record = json.loads(text)
                found.append(read({**record, **dict(zip(columns, values, strict=True))}))
            except Exception as error:
                self._set_aside(table, number, text, f"{type(error).__name__}: {error}")
        return found

    def _set_aside(self, table: str, number: int, text: str, why: str) -> None:
        origin = f"{table} {number}"
        _log.error("a record of the state cannot be read and was set aside: %s: %s", origin, why)
        event = {"origin": origin, "message": why}
        with self._together() as db:
            row = (time.time(), origin, text, why)
            db.execute("INSERT INTO set_aside (at, origin, record, why) VALUES (?, ?, ?, ?)", row)
            db.execute(f"DELETE FROM {table} WHERE rowid = ?", (number,))
            db.execute(_ADD_EVENT, (time.time(), "record-set-aside", json.dumps(event)))

    # -- changes of circuits -----------------------------------------------------------------

    def prepared_intent(self, number: int, record: Record) -> Callable[[], int]:
        """What journals an intent when called: by another thread, say. Leave ``record`` alone.

        It gives the number that the change is known by from then on. ``number`` is the one
        that it has already, 0 for a new change.
        """
        verb = "REPLACE" if number else "INSERT"
        sql = f"{verb} INTO reconfigurations (id, state, record) VALUES (?, 'intent', ?)"
        return lambda: self._write(sql, number or None, json.dumps(record))

    def update_reconfiguration(
        self,
        number: int,
        state: str,
        record: Record,
        committed: Mapping[str, Record] | None = None,
        baselines: Mapping[BaselineKey, Sequence[float]] | None = None,
    ) -> None:
        """Write down how far a change has come; if it is over, that is an event as well.

        ``committed`` replaces what ``committed_maps`` gives for these OCS, ``baselines`` the
        readings of these circuits, all in one write.
        """
        with self._together() as db:
            db.execute(
                "UPDATE reconfigurations SET state = ?, record = ? WHERE id = ?",
                (state, json.dumps(record), number),
            )
            db.executemany(_SAVE_COMMITTED, _committed_rows(committed or {}))
            db.executemany(_SAVE_BASELINE, _baseline_rows(baselines or {}))
            if state != "intent":
                kept = ("message", "by", "origin", "why", "changes")
                event = {"id": number, "state": state} | {
                    key: record[key] for key in kept if key in record
                }
                at = record.get("finished_at") or time.time()
                db.execute(_ADD_EVENT, (at, "circuits", json.dumps(event)))

    def reconfigurations(
        self, last: int | None = None, after: int | None = None
    ) -> list[dict[str, Any]]:
        """Every change journalled (or the ``last`` few), oldest first, with number and state.

        With ``after`` it is the first so many after that number.
        """
        most = -1 if last is None else last  # To SQLite a negative limit is none.
        if after is not None:
            return self._changes("WHERE id > ? ORDER BY id LIMIT ?", after, most)
        return self._changes("ORDER BY id DESC LIMIT ?", most)[::-1]

    def reconfiguration(self, number: int) -> dict[str, Any] | None:
        """One change, or ``None``."""
        return next(iter(self._changes("WHERE id = ?", number)), None)

    def unfinished_reconfigurations(self, read: Callable[[dict[str, Any]], T]) -> list[T]:
        """What a controller that ended had begun; what cannot be read is set aside."""
        which = "WHERE state = 'intent' ORDER BY id"
        return self._each("reconfigurations", which, read, "id", "state")

    def _changes(self, which: str, *values: object) -> list[dict[str, Any]]:
        rows = self._rows(f"SELECT id, state, record FROM reconfigurations {which}", *values)
        return [{**json.loads(text), "id": number, "state": state} for number, state, text in rows]

    def reconfiguration_counts(self) -> dict[str, int]:
        """How many changes there are in each state."""
        return dict(self._rows("SELECT state, count(*) FROM reconfigurations GROUP BY state"))

    def commit_maps(self, maps: Mapping[str, Record]) -> None:
        """Replace what ``committed_maps`` gives for these OCS."""
        self._write_all(_SAVE_COMMITTED, _committed_rows(maps))

    def committed_maps(self, read: Callable[[dict[str, Any]], T]) -> dict[str, T]:
        """What was last written down for each OCS by ``commit_maps`` or with a change.

        A record that cannot be read is set aside.
        """
        return dict(self._each("committed", "", lambda row: (row.pop("ocs"), read(row)), "ocs"))

    def save_baselines(self, baselines: Mapping[BaselineKey, Sequence[float]]) -> None:
        """Replace the readings of these circuits."""
        self._write_all(_SAVE_BASELINE, _baseline_rows(baselines))

    def baselines(self, ocs: str) -> dict[BaselineKey, tuple[float, ...]]:
        """The readings (dBm, oldest first) of every circuit of one OCS that has any."""
        rows = self._rows("SELECT inp, out, source, readings FROM baselines WHERE ocs = ?", ocs)
        return {
            (ocs, inp, out, source): tuple(map(float, readings.split()))
            for inp, out, source, readings in rows
        }

    # -- what operators leave ----------------------------------------------------------------

    def save_locks(self, records: Sequence[Record]) -> None:
        """Insert or replace locks, by their ``ocs`` and ``port``."""
        rows = [(record["ocs"], record["port"], json.dumps(record)) for record in records]
        self._write_all("INSERT OR REPLACE INTO locks VALUES (?, ?, ?)", rows)

    def delete_locks(self, ports: Sequence[tuple[str, int]]) -> None:
        """Forget the locks of these ports."""
        self._write_all("DELETE FROM locks WHERE ocs = ? AND port = ?", ports)

    def locks(self, read: Callable[[dict[str, Any]], T]) -> list[T]:
        """Every lock; what cannot be read is set aside."""
        return self._each("locks", "ORDER BY ocs, port", read)

    def save_map(self, name: str, record: Record) -> None:
        """Insert or replace maps saved under a name."""
        self._write("INSERT OR REPLACE INTO saved VALUES (?, ?)", name, json.dumps(record))

    def delete_map(self, name: str) -> None:
        """Forget the maps of that name."""
        self._write("DELETE FROM saved WHERE name = ?", name)

    def saved_maps(self) -> dict[str, dict[str, Any]]:
        """Everything saved, by name."""
        return {n: json.loads(r) for n, r in self._rows("SELECT * FROM saved ORDER BY name")}

    def set_mark(self, name: str, record: Record | None) -> None:
        """Remember one thing under a name; ``None`` forgets it."""
        if record is None:
            self._write("DELETE FROM marks WHERE name = ?", name)
        else:
            self._write("INSERT OR REPLACE INTO marks VALUES (?, ?)", name, json.dumps(record))

    def mark(self, name: str) -> dict[str, Any] | None:
        """What was remembered under that name."""
        rows = self._rows("SELECT record FROM marks WHERE name = ?", name)
        return dict(json.loads(rows[0][0])) if rows else None

    # -- jobs and events ---------------------------------------------------------------------

    def save_job(self, job_id: str, state: str, record: Record) -> None:
        """Insert or replace a job."""
        self._write(
            "INSERT INTO jobs VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE "
            "SET state = excluded.state, record = excluded.record",
            job_id,
            state,
            json.dumps(record),
        )

    def jobs(self, read: Callable[[dict[str, Any]], T]) -> list[T]:
        """Every job, in the order of submission; what cannot be read is set aside."""
        return self._each("jobs", "ORDER BY rowid", read)

    def add_iterations(self, job_id: str, records: Sequence[Record]) -> None:
        """Append what a job's workers reported."""
        rows = [(job_id, json.dumps(record)) for record in records]
        self._write_all("INSERT INTO iterations (job, record) VALUES (?, ?)", rows)

    def iterations(
        self, job_id: str, after: int = 0, limit: int = -1
    ) -> tuple[list[dict[str, Any]], int]:
        """The reports of a job's workers after number ``after``, and the last number.

        At most ``limit`` of them, where that is not negative.
        """
        rows = self._rows(
            "SELECT number, record FROM iterations WHERE job = ? AND number > ? "
            "ORDER BY number LIMIT ?",
            job_id,
            after,
            limit,
        )
        return [json.loads(record) for _, record in rows], rows[-1][0] if rows else after

    def add_event(self, at: float, kind: str, record: Record) -> int:
        """Append an event; its number."""
        return self._write(_ADD_EVENT, at, kind, json.dumps(record))

    def add_events(self, kind: str, events: Sequence[tuple[float, Record]]) -> None:
        """Append events of one kind, each with its time, in one write."""
        self._write_all(_ADD_EVENT, [(at, kind, json.dumps(record)) for at, record in events])

    def events(self, after: int = 0, limit: int = 1000) -> list[dict[str, Any]]:
        """At most ``limit`` events after number ``after``, oldest first."""
        rows = self._rows(
            "SELECT number, at, kind, record FROM events WHERE number > ? ORDER BY number LIMIT ?",
            after,
            limit,
        )
        return [{**json.loads(r), "number": n, "at": at, "kind": kind} for n, at, kind, r in rows]

    def last_event(self) -> int:
        """The number of the latest event, 0 if there is none."""
        return int(self._rows("SELECT coalesce(max(number), 0) FROM events")[0][0])


def _committed_rows(maps: Mapping[str, Record]) -> list[tuple[str, str]]:
    return [(ocs, json.dumps(row)) for ocs, row in maps.items()]


def _baseline_rows(
    baselines: Mapping[BaselineKey, Sequence[float]],
) -> list[tuple[str, int, int, str, str]]:
    return [(*key, " ".join(map(_written, readings))) for key, readings in baselines.items()]


_written = lru_cache(1 << 12)(repr)  # powers have few digits, and come again and again


def open_store(state_dir: Path) -> Store:
    """The journal in a directory, which is made if it is not there; for its owner alone."""
    path = state_dir / "controller.db"
    try:
        state_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        # SQLite gives the files beside it the mode of this one when it makes them.
        for each in (path, *state_dir.glob("controller.db-*")):
            each.chmod(0o600)
    except OSError as error:
        raise PatchlightError(
            f"keeping the journal in {state_dir}: {error.strerror}",
            hint="name another place with --state",
        ) from error
    return Store(path)
