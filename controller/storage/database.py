"""Opens the controller's SQLite file: its tables, upgrades, and plain access."""

import asyncio
import json
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from patchlight.testbed.errors import PatchlightError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

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

# Jobs are found by name and owner without reading their records; decisions are stored.
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

# The events of a job are found, and deleted with it, without reading others.
_THIRD = """
ALTER TABLE events ADD COLUMN job TEXT;
UPDATE events SET job = json_extract(record, '$.job') WHERE json_valid(record);
CREATE INDEX events_by_job ON events (job, number) WHERE job IS NOT NULL;
CREATE INDEX jobs_by_end ON jobs (finished_at) WHERE finished_at IS NOT NULL;
"""

# Tokens, the audit log, and responses to repeated requests.
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

# One channel of a port can be locked separately.
_FIFTH = """
CREATE TEMP TABLE locks_of_ports AS SELECT ocs, port, record FROM locks;
DROP TABLE locks;
CREATE TABLE locks (ocs TEXT NOT NULL, port INTEGER NOT NULL, channel TEXT NOT NULL,
    record TEXT NOT NULL, PRIMARY KEY (ocs, port, channel));
INSERT INTO locks SELECT ocs, port, '', record FROM locks_of_ports;
DROP TABLE temp.locks_of_ports;
"""

# The records of a period are found without reading later ones.
_SIXTH = """
ALTER TABLE reconfigurations ADD COLUMN started_at REAL;
UPDATE reconfigurations SET started_at = json_extract(record, '$.started_at')
    WHERE json_valid(record);
CREATE INDEX reconfigurations_by_start ON reconfigurations (started_at);
CREATE INDEX events_by_time ON events (at);
"""

_SEVENTH = "CREATE TABLE claims (name TEXT PRIMARY KEY, record TEXT NOT NULL);"

SCHEMAS = (_FIRST, _SECOND, _THIRD, _FOURTH, _FIFTH, _SIXTH, _SEVENTH)
"""Upgrades each version of the tables to the next, starting with an empty file."""

SCHEMA_VERSION = len(SCHEMAS)

ADD_EVENT = (
    "INSERT INTO events (at, kind, record, job) "
    "VALUES (?1, ?2, ?3, json_extract(?3, '$.job'))"
)

_COUNT_WRITE = "UPDATE state SET writes = writes + 1 RETURNING writes"

Period = tuple[float, float]
"""From when until when (Unix time)."""

Statement = tuple[str, Sequence[Any]]
"""SQL, and the values in it."""

T = TypeVar("T")

# Errors that may disappear with the same statement later.
_MAY_PASS = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_NOMEM,
)
_MOST_UNWRITTEN = 1000


class JournalError(PatchlightError):
    """The file cannot be read or written: a full disk, say. ``may_pass``: a retry may succeed."""

    may_pass = False


@dataclass(frozen=True)
class Substitute(Generic[T]):
    """What replaces an unreadable record, and the statements that store it."""

    found: Sequence[T] = ()
    stored: Sequence[Statement] = ()
    stays: bool = False
    """The record is not set aside yet."""


Unreadable = Callable[..., Substitute[T]]
"""What replaces an unreadable record, made of the row's other columns. It must be as safe as the
record could have been: what was locked, stopped or in use stays so."""


def skip_record(*_: object) -> Substitute[Any]:
    """Only for tables on which nothing depends: an unreadable record is missing in lists."""
    return Substitute()


def decoded(text: object) -> dict[str, Any]:
    """A stored record; ``ValueError`` if it is not a JSON object."""
    if not isinstance(text, str):
        raise ValueError(f"expected text, found {type(text).__name__}")
    found = json.loads(text, parse_constant=lambda _: None)  # NaN is not JSON
    if "\\ud" in text:  # unpaired surrogates, which older versions accepted
        whole = json.dumps(found, ensure_ascii=False).encode(
            "utf-8", "replace"
        )
        found = json.loads(whole)
    if not isinstance(found, dict):
        raise ValueError(f"expected a JSON object, found {text[:40]}")
    return found


class Shape(Generic[T]):
    """Checks records by a ``TypedDict``; a newer version may have added keys."""

    def __init__(self, shape: type[T]) -> None:
        self._shape = shape
        self._keys = frozenset(shape.__annotations__)

    @cached_property
    def _adapter(self) -> "TypeAdapter[T]":
        from pydantic import (
            TypeAdapter,  # slow to import, and commands that read no state need none
        )

        return TypeAdapter(self._shape)

    def read(self, row: Mapping[str, Any]) -> T:
        """The record; ``ValueError`` if a key is missing or has another type."""
        known = {key: value for key, value in row.items() if key in self._keys}
        return self._adapter.validate_python(known)


def _shapes(db: sqlite3.Connection) -> dict[str, list[tuple[Any, ...]]]:
    """By table: its columns, each with whether it may be missing and its place in the primary key,
    and its triggers."""
    names = [
        name
        for (name,) in db.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
        )
    ]
    shapes = {
        name: db.execute(
            'SELECT name, type, "notnull", pk FROM pragma_table_info(?)',
            (name,),
        )
        for name in names
    }
    triggers = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ? ORDER BY 1"
    return {
        name: [*columns.fetchall(), *db.execute(triggers, (name,))]
        for name, columns in shapes.items()
    }


class Database:
    """One SQLite file (``:memory:`` for none), with a write-ahead log.

    Small synchronous writes from one thread: each is a committed transaction, on disk when the call
    returns. Without ``is_durable`` a power cut may lose the latest.

    Every method raises ``JournalError`` if the file cannot be read or written.
    """

    schemas: ClassVar[Sequence[str]] = SCHEMAS
    is_durable: ClassVar[bool] = True

    def __init__(
        self,
        path: Path | str,
        note: Callable[[int], None] | None = None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        """``note`` is called with the number of each write, which the table ``state`` counts."""
        self._path = path
        self._note = note
        self._on_close = on_close
        try:
            self._db = sqlite3.connect(
                str(path),
                isolation_level=None,
                check_same_thread=False,
            )
            # Bytes that are not UTF-8 make one record unreadable, not the whole table.
            self._db.text_factory = lambda data: data.decode(
                "utf-8", "backslashreplace"
            )
            self._db.execute("PRAGMA journal_mode=WAL")
            # FULL: the journal's intent survives a power cut, not just a crash.
            self._db.execute(
                f"PRAGMA synchronous={'FULL' if self.is_durable else 'NORMAL'}"
            )
            self._upgrade()
        except sqlite3.Error as error:
            raise PatchlightError(
                f"cannot open the controller's state in {path}: {error}",
                hint="use another folder with --state, or move the file away",
            ) from error
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._unwritten: deque[Sequence[Statement]] = deque()
        self.unwritten_because = ""
        """Why some records are not on disk yet; empty if all are."""
        self._lost = 0
        self._not_moved: set[str] = set()

    def _upgrade(self) -> None:
        (found,) = self._db.execute("PRAGMA user_version").fetchone()
        if found > len(self.schemas):
            self._db.close()
            raise PatchlightError(
                f"the controller's state in {self._path} is of schema {found}: this Patchlight "
                f"reads up to {len(self.schemas)}",
                hint="use the newer Patchlight that wrote it, or another folder with --state",
            )
        for version, script in enumerate(
            self.schemas[found:], start=found + 1
        ):
            self._db.executescript(
                f"BEGIN; {script} PRAGMA user_version = {version}; COMMIT;"
            )
        if found and (wrong := self._other_tables()):
            self._db.close()
            raise PatchlightError(
                f"{self._path} was changed by another program: {', '.join(wrong)} of it lack "
                "columns, keys or triggers that records depend on",
                hint="restore a backup: patchlight controller restore",
            )
        if found < len(self.schemas):
            self._gather()

    def _other_tables(self) -> list[str]:
        """Tables that are not as the schemas make them."""
        with closing(sqlite3.connect(":memory:")) as fresh:
            fresh.executescript("".join(self.schemas))
            wanted = _shapes(fresh)
        found = _shapes(self._db)
        return [
            name for name, shape in wanted.items() if found.get(name) != shape
        ]

    def _gather(self) -> None:
        """Move all from the write-ahead log into the file, if no other process reads it now."""
        with suppress(sqlite3.Error):  # a full disk: it stays in the log
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def script(self, sql: str) -> None:
        """Several statements, all or none."""
        with self._locked() as db:
            db.executescript(f"BEGIN IMMEDIATE; {sql}; COMMIT;")

    def close(self) -> None:
        """Close the file; ``JournalError`` if something could not be written."""
        self.write_rest()
        self._gather()
        self._db.close()
        self._on_close()
        if self._unwritten:
            raise JournalError(
                f"{len(self._unwritten)} records (the stop button, events) were not written: "
                f"{self.unwritten_because}",
                hint="free disk space, and press the stop button again if it was pressed",
            )

    @contextmanager
    def _locked(self) -> Iterator[sqlite3.Connection]:
        """One user of the file at a time; errors become ``JournalError``."""
        with self._lock:
            try:
                yield self._db
            except sqlite3.Error as error:
                failed = JournalError(
                    f"the controller's journal in {self._path}: {error}",
                    hint="check that the disk has room and the file is writable",
                )
                failed.may_pass = (
                    getattr(error, "sqlite_errorcode", 0) & 0xFF in _MAY_PASS
                )
                raise failed from error

    def write(self, sql: str, *values: object) -> int:
        """One statement, on disk on return; returns the number of the inserted row."""
        with self.together() as db:
            return db.execute(sql, values).lastrowid or 0

    @contextmanager
    def together(self) -> Iterator[sqlite3.Connection]:
        """All that the block writes is on disk after it, or nothing."""
        with self._locked() as db:
            db.execute("BEGIN IMMEDIATE")
            before = db.total_changes
            number = None
            try:
                yield db
                if self._note is not None and db.total_changes > before:
                    number = db.execute(_COUNT_WRITE).fetchone()
                db.execute("COMMIT")
            except BaseException:
                # A full disk may have rolled back already.
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            if self._note is not None and number is not None:
                self._note(number[0])

    def write_all(self, sql: str, rows: Sequence[tuple[object, ...]]) -> None:
        """The same statement for each of these rows, in one write."""
        if rows:
            with self.together() as db:
                db.executemany(sql, rows)

    def write_soon(self, *statements: Statement, always: bool = False) -> bool:
        """Write these facts together, now or when the disk has space; returns whether all is on
        disk. On a full disk a thousand such writes are kept in memory, and all ``always`` ones."""
        if len(self._unwritten) < _MOST_UNWRITTEN or always:
            self._unwritten.append(statements)
        else:
            self._lost += 1
        return self.write_rest()

    def write_rest(self) -> bool:
        """Write what could not be written before; returns whether all is on disk now."""
        with self._writing:
            while self._unwritten:
                try:
                    with self.together() as db:
                        for sql, values in self._unwritten[0]:
                            db.execute(sql, values)
                except JournalError as error:
                    if error.may_pass:
                        if not self.unwritten_because:
                            _log.error(
                                "a record will be written later: %s",
                                error.message,
                            )
                        self.unwritten_because = error.message
                        return False
                    self._lost += 1
                    _log.error("a record was lost: %s", error.message)
                self._unwritten.popleft()
            self.unwritten_because = ""
            return True

    async def keep_writing(self, every_s: float = 1.0) -> None:
        """Write what could not be written before when the disk has space."""
        while True:
            await asyncio.sleep(every_s)
            if self._unwritten:
                await asyncio.to_thread(self.write_rest)

    def troubles(self) -> dict[str, float]:
        """How many records are unreadable, waiting to be written, or lost."""
        aside = self.rows("SELECT count(*) FROM set_aside")[0][0] + len(
            self._not_moved
        )
        return {
            "set_aside": aside,
            "unwritten": len(self._unwritten),
            "lost": self._lost,
        }

    def rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        with self._locked() as db:
            return db.execute(sql, values).fetchall()

    def each(
        self,
        table: str,
        which: str,
        read: Callable[..., T],
        *columns: str,
        unreadable: Unreadable[T],
        values: Sequence[object] = (),
        record: str = "record",
        at: str = "rowid",
        decode: Callable[[Any], Any] = decoded,
    ) -> list[T]:
        """The result of ``read`` for each record, with these columns as further arguments. A record
        for which it fails is moved to ``set_aside``, with an event; ``unreadable`` of the columns
        takes its place."""
        found = list[T]()
        listed = ", ".join((at, record, *columns))
        for number, text, *more in self.rows(
            f"SELECT {listed} FROM {table} {which}", *values
        ):
            try:
                found.append(read(decode(text), *more))
            except Exception as error:
                substitute = unreadable(*more)
                why = f"{type(error).__name__}: {error}"
                if not substitute.stays:
                    self._set_aside(
                        table,
                        at,
                        number,
                        text,
                        why,
                        substitute.stored,
                    )
                found += substitute.found
        return found

    def _set_aside(
        self,
        table: str,
        at: str,
        number: object,
        record: object,
        why: str,
        stored: Sequence[Statement],
    ) -> None:
        origin = f"{table} {number}"
        if origin in self._not_moved:
            return
        _log.error("an unreadable record was set aside: %s: %s", origin, why)
        event = {"origin": origin, "message": why}
        try:
            with self.together() as db:
                sql = "INSERT INTO set_aside (at, origin, record, why) VALUES (?, ?, ?, ?)"
                db.execute(
                    sql,
                    (
                        time.time(),
                        origin,
                        "" if record is None else record,
                        why,
                    ),
                )
                # Before an event itself is deleted: its number must not be used again.
                db.execute(
                    ADD_EVENT,
                    (time.time(), "record-set-aside", json.dumps(event)),
                )
                db.execute(f"DELETE FROM {table} WHERE {at} = ?", (number,))
                for sql, values in stored:
                    db.execute(sql, values)
        except (
            JournalError
        ):  # a full disk, or the audit log, which cannot be deleted from
            self._not_moved.add(origin)
