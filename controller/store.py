"""What the controller must not forget: journal, jobs, events. SQLite with a write-ahead log.

Small synchronous writes from one thread: each is a committed transaction, on disk before the
call returns, so that a change of the network is journalled before a device is touched.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.errors import PatchlightError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS reconfigurations (
    id INTEGER PRIMARY KEY, state TEXT NOT NULL, record TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS jobs (id TEXT PRIMARY KEY, state TEXT NOT NULL, record TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS iterations (
    number INTEGER PRIMARY KEY, job TEXT NOT NULL, record TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS iterations_by_job ON iterations (job, number);
CREATE TABLE IF NOT EXISTS events (
    number INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, record TEXT NOT NULL);
"""

Record = Mapping[str, Any]


class Store:
    """The controller's memory in one SQLite file (``:memory:`` for none)."""

    def __init__(self, path: Path | str) -> None:
        try:
            self._db = sqlite3.connect(str(path), isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            # FULL: the journal's intent survives a power cut, not just a crash of the process.
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise PatchlightError(
                f"cannot open the controller's state in {path}: {error}",
                hint="give another place with --state, or move the file away",
            ) from error
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the file; nothing is pending, every write was committed."""
        self._db.close()

    def _write(self, sql: str, *values: object) -> int:
        with self._lock:
            return self._db.execute(sql, values).lastrowid or 0

    def _rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._db.execute(sql, values).fetchall()

    def begin_reconfiguration(self, record: Record) -> int:
        """Journal an intent; the number it is known by from now on."""
        return self._write(
            "INSERT INTO reconfigurations (state, record) VALUES ('intent', ?)", json.dumps(record)
        )

    def update_reconfiguration(self, number: int, state: str, record: Record) -> None:
        """Write down how far a change has come."""
        self._write(
            "UPDATE reconfigurations SET state = ?, record = ? WHERE id = ?",
            state, json.dumps(record), number,
        )  # fmt: skip

    def reconfigurations(self) -> list[dict[str, Any]]:
        """Every change journalled, oldest first, with its number and state."""
        rows = self._rows("SELECT id, state, record FROM reconfigurations ORDER BY id")
        return [{**json.loads(record), "id": n, "state": state} for n, state, record in rows]

    def save_job(self, job_id: str, state: str, record: Record) -> None:
        """Insert or replace a job."""
        self._write(
            "INSERT INTO jobs VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE "
            "SET state = excluded.state, record = excluded.record",
            job_id, state, json.dumps(record),
        )  # fmt: skip

    def jobs(self) -> list[dict[str, Any]]:
        """Every job, in the order of submission."""
        return [json.loads(r) for (r,) in self._rows("SELECT record FROM jobs ORDER BY rowid")]

    def add_iterations(self, job_id: str, records: Sequence[Record]) -> None:
        """Append what a job's workers reported."""
        with self._lock:
            self._db.execute("BEGIN")
            self._db.executemany(
                "INSERT INTO iterations (job, record) VALUES (?, ?)",
                [(job_id, json.dumps(record)) for record in records],
            )
            self._db.execute("COMMIT")

    def iterations(self, job_id: str, after: int = 0) -> tuple[list[dict[str, Any]], int]:
        """The reports of a job's workers after number ``after``, and the last number."""
        rows = self._rows(
            "SELECT number, record FROM iterations WHERE job = ? AND number > ? ORDER BY number",
            job_id, after,
        )  # fmt: skip
        return [json.loads(record) for _, record in rows], rows[-1][0] if rows else after

    def add_event(self, at: float, kind: str, record: Record) -> int:
        """Append an event; its number."""
        return self._write("INSERT INTO events (at, kind, record) VALUES (?, ?, ?)",
                           at, kind, json.dumps(record))  # fmt: skip

    def events(self, after: int = 0, limit: int = 1000) -> list[dict[str, Any]]:
        """At most ``limit`` events after number ``after``, oldest first."""
        rows = self._rows(
            "SELECT number, at, kind, record FROM events WHERE number > ? ORDER BY number LIMIT ?",
            after, limit,
        )  # fmt: skip
        return [{**json.loads(r), "number": n, "at": at, "kind": kind} for n, at, kind, r in rows]
