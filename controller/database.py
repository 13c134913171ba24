"""The controller's SQLite file: its tables, what brings an old one up to date, and plain access."""

import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from patchlight.testbed.errors import PatchlightError

_log = logging.getLogger("patchlight.store")

_FIRST = """
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

# Jobs are found by name and owner without their records being read, and what policies decided
# of them is kept.
_SECOND = """
ALTER TABLE jobs ADD COLUMN name TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN finished_at REAL;
UPDATE jobs SET name = coalesce(json_extract(record, '$.spec.name'), ''),
    owner = coalesce(json_extract(record, '$.by'), ''),
    finished_at = json_extract(record, '$.finished_at') WHERE json_valid(record);
CREATE INDEX jobs_by_state ON jobs (state);
CREATE INDEX jobs_by_name ON jobs (name);
CREATE TABLE decisions (
    number INTEGER PRIMARY KEY, job TEXT NOT NULL, at REAL NOT NULL, record TEXT NOT NULL);
CREATE INDEX decisions_by_job ON decisions (job, number);
"""

# The events of a job are found, and forgotten with it, without the others being read.
_THIRD = """
ALTER TABLE events ADD COLUMN job TEXT;
UPDATE events SET job = json_extract(record, '$.job') WHERE json_valid(record);
CREATE INDEX events_by_job ON events (job, number) WHERE job IS NOT NULL;
CREATE INDEX jobs_by_end ON jobs (finished_at) WHERE finished_at IS NOT NULL;
"""

# Who may enter from elsewhere, what was asked for, and answers that may be asked for again.
_FOURTH = """
CREATE TABLE tokens (id TEXT PRIMARY KEY, hash TEXT NOT NULL, record TEXT NOT NULL);
CREATE TABLE audit (number INTEGER PRIMARY KEY, at REAL NOT NULL, who TEXT NOT NULL,
    outcome TEXT NOT NULL, record TEXT NOT NULL);
CREATE TRIGGER audit_stays BEFORE UPDATE ON audit
    BEGIN SELECT RAISE(ABORT, 'the audit log is only added to'); END;
CREATE TRIGGER audit_is_kept BEFORE DELETE ON audit
    BEGIN SELECT RAISE(ABORT, 'the audit log is only added to'); END;
CREATE TABLE answered (
    who TEXT NOT NULL, key TEXT NOT NULL, at REAL NOT NULL, request TEXT NOT NULL, status INTEGER,
    body BLOB, PRIMARY KEY (who, key)) WITHOUT ROWID;
CREATE INDEX answered_by_time ON answered (at);
"""

# One channel of a port can be locked alone.
_FIFTH = """
CREATE TEMP TABLE locks_of_ports AS SELECT ocs, port, record FROM locks;
DROP TABLE locks;
CREATE TABLE locks (ocs TEXT NOT NULL, port INTEGER NOT NULL, channel TEXT NOT NULL,
    record TEXT NOT NULL, PRIMARY KEY (ocs, port, channel));
INSERT INTO locks SELECT ocs, port, '', record FROM locks_of_ports;
DROP TABLE temp.locks_of_ports;
"""

# What happened in a period is found without all that came after it being read.
_SIXTH = """
ALTER TABLE reconfigurations ADD COLUMN started_at REAL;
UPDATE reconfigurations SET started_at = json_extract(record, '$.started_at')
    WHERE json_valid(record);
CREATE INDEX reconfigurations_by_start ON reconfigurations (started_at);
CREATE INDEX events_by_time ON events (at);
"""

SCHEMAS = (_FIRST, _SECOND, _THIRD, _FOURTH, _FIFTH, _SIXTH)
"""What makes each version of the tables of the one before, beginning with an empty file."""

SCHEMA_VERSION = len(SCHEMAS)

ADD_EVENT = (
    "INSERT INTO events (at, kind, record, job) VALUES (?1, ?2, ?3, json_extract(?3, '$.job'))"
)

Period = tuple[float, float]
"""From when until when (Unix time)."""

T = TypeVar("T")


class JournalError(PatchlightError):
    """The file cannot be read or written just now: its disk may be full."""


class Database:
    """One SQLite file (``:memory:`` for none), with a write-ahead log.

    Small synchronous writes from one thread: each is a committed transaction, on disk before the
    call returns; where it ``is_durable`` not, the latest may be lost with the machine's power.

    Every method raises ``JournalError`` where the file cannot be read or written.
    """

    schemas: ClassVar[Sequence[str]] = SCHEMAS
    is_durable: ClassVar[bool] = True

    def __init__(self, path: Path | str) -> None:
        self._path = path
        try:
            self._db = sqlite3.connect(str(path), isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            # FULL: the journal's intent survives a power cut, not just a crash of the process.
            self._db.execute(f"PRAGMA synchronous={'FULL' if self.is_durable else 'NORMAL'}")
            self._bring_up_to_date()
        except sqlite3.Error as error:
            raise PatchlightError(
                f"cannot open the controller's state in {path}: {error}",
                hint="give another place with --state, or move the file away",
            ) from error
        self._lock = threading.Lock()

    def _bring_up_to_date(self) -> None:
        (found,) = self._db.execute("PRAGMA user_version").fetchone()
        if found > len(self.schemas):
            self._db.close()
            raise PatchlightError(
                f"the controller's state in {self._path} is of schema {found}: this Patchlight "
                f"reads up to {len(self.schemas)}",
                hint="run the newer Patchlight that wrote it, or give another place with --state",
            )
        for version, script in enumerate(self.schemas[found:], start=found + 1):
            self._db.executescript(f"BEGIN; {script} PRAGMA user_version = {version}; COMMIT;")

    def limit_size(self, pages: int | None = None) -> None:
        """Let the file grow to so many pages, by default no further: a disk that is full."""
        self.rows(f"PRAGMA max_page_count = {pages or self.rows('PRAGMA page_count')[0][0]}")

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
                raise JournalError(
                    f"the controller's journal in {self._path}: {error}",
                    hint="is there room on the disk, and is the file writable?",
                ) from error

    def write(self, sql: str, *values: object) -> int:
        """One statement, on disk on return; the number of the row that it inserted."""
        with self._locked() as db:
            return db.execute(sql, values).lastrowid or 0

    @contextmanager
    def together(self) -> Iterator[sqlite3.Connection]:
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

    def write_all(self, sql: str, rows: Sequence[tuple[object, ...]]) -> None:
        """The same statement for each of these rows, in one write."""
        with self.together() as db:
            db.executemany(sql, rows)

    def rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """What a query finds."""
        with self._locked() as db:
            return db.execute(sql, values).fetchall()

    def each(
        self,
        table: str,
        which: str,
        read: Callable[..., T],
        *columns: str,
        values: Sequence[object] = (),
    ) -> list[T]:
        """What ``read`` makes of each record, as text, and of these columns beside it.

        One that it can make nothing of is moved to the table ``set_aside``, and an event says so:
        a record that somebody else wrote is no reason not to start.
        """
        found = []
        listed = ", ".join(("rowid", "record", *columns))
        for number, text, *more in self.rows(f"SELECT {listed} FROM {table} {which}", *values):
            try:
                found.append(read(text, *more))
            except Exception as error:
                self._set_aside(table, number, text, f"{type(error).__name__}: {error}")
        return found

    def _set_aside(self, table: str, number: int, text: str, why: str) -> None:
        origin = f"{table} {number}"
        _log.error("a record of the state cannot be read and was set aside: %s: %s", origin, why)
        event = {"origin": origin, "message": why}
        with self.together() as db:
            row = (time.time(), origin, text, why)
            db.execute("INSERT INTO set_aside (at, origin, record, why) VALUES (?, ?, ?, ?)", row)
            db.execute(f"DELETE FROM {table} WHERE rowid = ?", (number,))
            db.execute(ADD_EVENT, (time.time(), "record-set-aside", json.dumps(event)))
