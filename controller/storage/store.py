"""Stores all records except jobs: the journal of circuits, locks, marks, events."""

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from patchlight.controller.storage.database import ADD_EVENT, Database, Period, Statement
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.linux.files import private_folder

_SAVE_COMMITTED = "INSERT OR REPLACE INTO committed VALUES (?, ?)"
_SAVE_LOCK = "INSERT OR REPLACE INTO locks VALUES (?, ?, ?, ?)"
_FORGET = (
    "DELETE FROM events WHERE number IN (SELECT number FROM events WHERE at < ? AND job IS NULL "
    "AND number < (SELECT max(number) FROM events) ORDER BY number LIMIT ?)",
    "DELETE FROM reconfigurations WHERE id IN (SELECT id FROM reconfigurations WHERE "
    "state NOT IN ('intent', 'unknown') AND "
    "iif(json_valid(record), json_extract(record, '$.finished_at'), NULL) < ? "
    "AND id < (SELECT max(id) FROM reconfigurations) ORDER BY id LIMIT ?)",
)
_SAVE_BASELINE = "INSERT OR REPLACE INTO baselines VALUES (?, ?, ?, ?, ?)"

_written = lru_cache(1 << 12)(repr)  # powers have few digits, and repeat

Record = Mapping[str, Any]
T = TypeVar("T")

BaselineKey = tuple[str, int, int, str]
"""The OCS, the input, the output, and the transmitter (or ``""``)."""


class Store(Database):
    """The store of circuits and events. A change is journalled before a device is touched."""

    def prepared_intent(self, number: int, record: Record) -> Callable[[], int]:
        """A function that journals an intent (as ``number``, or 0 for a new one), possibly in
        another thread, and returns its number. Do not modify ``record`` meanwhile."""
        verb = "REPLACE" if number else "INSERT"
        columns, started_at = "(id, state, record, started_at)", record.get("started_at")
        sql = f"{verb} INTO reconfigurations {columns} VALUES (?, 'intent', ?, ?)"
        return lambda: self.write(sql, number or None, json.dumps(record), started_at)

    def update_reconfiguration(
        self,
        number: int,
        state: str,
        record: Record,
        committed: Mapping[str, Record] | None = None,
        baselines: Mapping[BaselineKey, Sequence[float]] | None = None,
    ) -> None:
        """Write the progress of a change; its end is an event too, with the new ``committed_maps``
        and ``baselines`` in one write."""
        with self.together() as db:
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
                db.execute(ADD_EVENT, (at, "circuits", json.dumps(event)))

    def reconfigurations(
        self, last: int | None = None, after: int | None = None
    ) -> list[dict[str, Any]]:
        """The ``last`` changes, oldest first, or the first ones ``after`` that number."""
        most = -1 if last is None else last  # In SQLite a negative limit means none.
        if after is not None:
            return self._changes("WHERE id > ? ORDER BY id LIMIT ?", after, most)
        return self._changes("ORDER BY id DESC LIMIT ?", most)[::-1]

    def past_reconfigurations(self, period: Period, last: int, before: int) -> list[dict[str, Any]]:
        """The ``last`` changes that began in a period, with lower numbers than ``before``."""
        which = "WHERE started_at BETWEEN ? AND ? AND id < ? ORDER BY id DESC LIMIT ?"
        return self._changes(which, *period, before, last)[::-1]

    def reconfiguration(self, number: int) -> dict[str, Any] | None:
        """One change, or ``None``."""
        return next(iter(self._changes("WHERE id = ?", number)), None)

    def undone_by(self, first: int) -> dict[int, int]:
        """The undone changes from this number on, with the latest change that undid each."""
        reverts = "CASE WHEN json_valid(record) THEN json_extract(record, '$.reverts') END"
        which = f"id > ? AND state = 'committed' AND {reverts} IS NOT NULL ORDER BY id"
        rows = self.rows(f"SELECT id, {reverts} FROM reconfigurations WHERE {which}", first)
        undone, of = dict[int, int](), dict[int, int](rows)
        for number, reverted in rows:
            undone[reverted] = number
            undone.pop(of.get(reverted, 0), None)
        return undone

    def unfinished_reconfigurations(self, read: Callable[[dict[str, Any]], T]) -> list[T]:
        """The changes that an earlier controller started; unreadable ones are set aside."""
        return self._changes("WHERE state = 'intent' ORDER BY id", read=read)

    def _changes(
        self, which: str, *values: object, read: Callable[[dict[str, Any]], Any] = dict
    ) -> list[Any]:
        def change(row: dict[str, Any], number: int, state: str) -> Any:
            return read({**row, "id": number, "state": state})

        return self.each("reconfigurations", which, change, "id", "state", values=values)

    def reconfiguration_counts(self) -> dict[str, int]:
        """How many changes there are in each state."""
        return dict(self.rows("SELECT state, count(*) FROM reconfigurations GROUP BY state"))

    def commit_maps(self, maps: Mapping[str, Record]) -> None:
        """Replace the ``committed_maps`` of these OCS."""
        self.write_all(_SAVE_COMMITTED, _committed_rows(maps))

    def committed_maps(self, read: Callable[[str, dict[str, Any]], T]) -> dict[str, T]:
        """The maps last committed for each OCS; unreadable ones are set aside."""
        return dict(self.each("committed", "", lambda row, ocs: (ocs, read(ocs, row)), "ocs"))

    def save_baselines(self, baselines: Mapping[BaselineKey, Sequence[float]]) -> None:
        """Replace the readings of these circuits."""
        self.write_all(_SAVE_BASELINE, _baseline_rows(baselines))

    def baselines(self, ocs: str) -> dict[BaselineKey, tuple[float, ...]]:
        """The readings (dBm, oldest first) of every circuit of one OCS that has any."""
        rows = self.each(
            *("baselines", "WHERE ocs = ?", lambda readings, *key: ((ocs, *key), readings)),
            *("inp", "out", "source"),
            values=(ocs,),
            record="readings",
            at="ocs || ' ' || inp || '>' || out || ' ' || source",
            decode=lambda text: tuple(map(float, text.split())),
        )
        return dict(rows)

    def save_locks(self, records: Sequence[Record], *, soon: bool = False) -> None:
        """Insert or replace locks by place. ``soon``: when the disk has space."""
        rows = [(r["ocs"], r["port"], r["channel"], json.dumps(r)) for r in records]
        if soon:
            self.write_soon(*((_SAVE_LOCK, row) for row in rows), always=True)
        else:
            self.write_all(_SAVE_LOCK, rows)

    def delete_locks(self, places: Sequence[tuple[str, int, str]]) -> None:
        """Delete the locks of these channels of ports; without a channel, of the port."""
        self.write_rest()  # otherwise a lock could be written after its end
        self.write_all("DELETE FROM locks WHERE ocs = ? AND port = ? AND channel = ?", places)

    def locks(self, read: Callable[[dict[str, Any]], T]) -> list[T]:
        """Every lock; unreadable ones are set aside."""
        return self.each("locks", "ORDER BY ocs, port, channel", read)

    def save_map(self, name: str, record: Record) -> None:
        """Insert or replace maps saved under a name."""
        self.write("INSERT OR REPLACE INTO saved VALUES (?, ?)", name, json.dumps(record))

    def delete_map(self, name: str) -> None:
        """Delete the maps of that name."""
        self.write("DELETE FROM saved WHERE name = ?", name)

    def saved_maps(self) -> dict[str, dict[str, Any]]:
        """All saved maps, by name."""
        return dict(self.each("saved", "ORDER BY name", lambda row, name: (name, row), "name"))

    def set_mark(self, name: str, record: Record | None) -> None:
        """Store one record under a name; ``None`` deletes it."""
        sql, values = _mark(name, record)
        self.write(sql, *values)

    def set_mark_soon(self, name: str, record: Record | None, kind: str, event: Record) -> bool:
        """The same, with an event, now or when the disk has space; returns whether it is stored."""
        told = ADD_EVENT, (time.time(), kind, json.dumps(event))
        return self.write_soon(_mark(name, record), told, always=True)

    def mark(
        self, name: str, read: Callable[[dict[str, Any]], T], unreadable: Record | None = None
    ) -> T | None:
        """The record under that name; an unreadable one is replaced by ``unreadable``."""
        if not self.rows("SELECT 1 FROM marks WHERE name = ?", name):
            return None
        found = self.each("marks", "WHERE name = ?", read, values=(name,))
        if not found and unreadable is not None:
            self.write_soon(_mark(name, unreadable), always=True)
            return read(dict(unreadable))
        return next(iter(found), None)

    def add_event(self, at: float, kind: str, record: Record) -> None:
        """Append an event, now or when the disk has space."""
        self.add_events(kind, [(at, record)])

    def add_events(self, kind: str, events: Sequence[tuple[float, Record]]) -> None:
        """Append events of one kind, each with its time, in one write."""
        self.write_soon(*((ADD_EVENT, (at, kind, json.dumps(record))) for at, record in events))

    def events(self, after: int = 0, limit: int = 1000) -> list[dict[str, Any]]:
        """At most ``limit`` events after number ``after``, oldest first."""
        return self._events("WHERE number > ? ORDER BY number LIMIT ?", after, limit)

    def past_events(
        self, period: Period, last: int, before: int, kinds: Collection[str] = ()
    ) -> list[dict[str, Any]]:
        """The ``last`` events in a period (of these kinds), with lower numbers than ``before``."""
        # Times have an index, and grow almost like numbers.
        bounds = self.rows(
            "SELECT min(number), max(number) FROM events WHERE at BETWEEN ? AND ?", *period
        )
        of_kind = f"AND kind IN ({', '.join('?' * len(kinds))})" if kinds else ""
        found = self._events(
            "WHERE number BETWEEN ? AND ? "
            f"AND number < ? AND +at BETWEEN ? AND ? {of_kind} ORDER BY number DESC LIMIT ?",
            *(*bounds[0], before, *period, *kinds, last),
        )
        return found[::-1]

    def _events(self, which: str, *values: object) -> list[dict[str, Any]]:
        def event(row: dict[str, Any], number: int, at: float, kind: str) -> dict[str, Any]:
            return {**row, "number": number, "at": at, "kind": kind}

        return self.each("events", which, event, "number", "at", "kind", values=values)

    def forget(self, before: float, most: int = 500) -> int:
        """Delete some events and changes that ended before then; returns their number. The last
        event, the last change and changes with an unknown result stay."""
        with self.together() as db:
            return sum(db.execute(sql, (before, most)).rowcount for sql in _FORGET)

    def last_event(self) -> int:
        """The number of the latest event, 0 if there is none."""
        return int(self.rows("SELECT coalesce(max(number), 0) FROM events")[0][0])


def _mark(name: str, record: Record | None) -> Statement:
    if record is None:
        return "DELETE FROM marks WHERE name = ?", (name,)
    return "INSERT OR REPLACE INTO marks VALUES (?, ?)", (name, json.dumps(record))


def _committed_rows(maps: Mapping[str, Record]) -> list[tuple[str, str]]:
    return [(ocs, json.dumps(row)) for ocs, row in maps.items()]


def _baseline_rows(
    baselines: Mapping[BaselineKey, Sequence[float]],
) -> list[tuple[str, int, int, str, str]]:
    return [(*key, " ".join(map(_written, readings))) for key, readings in baselines.items()]


def open_store(state_dir: Path) -> Store:
    """The store in a directory, created if missing, for its owner only. ``PatchlightError`` for an
    empty file where a controller ran: its records are lost."""
    path = state_dir / "controller.db"
    others = ("samples.db", "outputs", "controller.db-wal")
    beside = [name for name in others if (state_dir / name).exists()]
    if beside and path.exists() and not path.stat().st_size:
        raise PatchlightError(
            f"{path} is empty, but an earlier controller left {' and '.join(beside)}: its "
            "journal, committed maps, locks and jobs are gone",
            hint=f"restore {path} from a backup; to start as a new lab, move {state_dir} away",
        )
    return Store(private_file(state_dir, "controller.db"))


def private_file(state_dir: Path, name: str) -> Path:
    """An SQLite file in the state's folder, both created if missing, for their owner only."""
    path = state_dir / name
    try:
        private_folder(state_dir, 0o750)
        path.touch(mode=0o600)
        # SQLite gives its other files the mode of this one.
        for each in (path, *state_dir.glob(f"{name}-*")):
            each.chmod(0o600)
    except OSError as error:
        raise PatchlightError(
            f"keeping the journal in {state_dir}: {error.strerror}",
            hint="use another folder with --state",
        ) from error
    return path
