"""Stores all records except jobs: the journal of circuits, locks, marks, events."""

import json
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import TypedDict

from patchlight.controller.storage.database import (
    ADD_EVENT,
    Database,
    Period,
    Shape,
    Statement,
    Substitute,
    decoded,
    skip_record,
)

if TYPE_CHECKING:
    from patchlight.testbed.wire.rest.circuits import (
        ChangeAnswer,
        ClaimAnswer,
        SavedMaps,
    )

_SAVE_COMMITTED = "INSERT OR REPLACE INTO committed VALUES (?, ?)"
_ADD_COMMITTED = "INSERT OR IGNORE INTO committed VALUES (?, ?)"
_SAVE_MAP = "INSERT OR REPLACE INTO saved VALUES (?, ?)"
_SAVE_LOCK = "INSERT OR REPLACE INTO locks VALUES (?, ?, ?, ?)"
_ADD_LOCK = "INSERT OR IGNORE INTO locks VALUES (?, ?, ?, ?)"
_FORGET = (
    "DELETE FROM events WHERE number IN (SELECT number FROM events WHERE at < ? AND job IS NULL "
    "AND number < (SELECT max(number) FROM events) ORDER BY number LIMIT ?)",
    "DELETE FROM reconfigurations WHERE id IN (SELECT id FROM reconfigurations WHERE "
    "state NOT IN ('intent', 'unknown') AND "
    "iif(json_valid(record), json_extract(record, '$.finished_at'), NULL) < ? "
    "AND id < (SELECT max(id) FROM reconfigurations) ORDER BY id LIMIT ?)",
)
_SAVE_CLAIM = "INSERT OR REPLACE INTO claims VALUES (?, ?)"
_SAVE_BASELINE = "INSERT OR REPLACE INTO baselines VALUES (?, ?, ?, ?, ?)"

_RESULTS = ("committed", "refused", "rolled-back", "unknown")

UNREADABLE = "its record could not be read"
"""What lists say where a record was set aside."""


class _CommittedMap(TypedDict):
    map: list[str] | None


_COMMITTED_MAP = Shape(_CommittedMap)

_MARKS = ("stop", "drained", "policies", "usage", "paths", "macs", "discovery")

# In the record of a mark: no user and no NIC has such a name.
_NAME_OF_MARK = "$mark"


# Records of older versions lack some of these.
_NO_CHANGE: Mapping[str, Any] = {
    **dict.fromkeys(("message", "by", "origin"), ""),
    **{
        key: {}
        for key in ("changes", "before", "wanted", "commits", "stages_s")
    },
    **{key: [] for key in ("adopted", "notes")},
    **{
        "started_at": 0.0,
        "finished_at": None,
        "late_until": None,
        "reverts": None,
    },
}

_written = lru_cache(1 << 12)(repr)  # powers have few digits, and repeat

Record = Mapping[str, Any]
T = TypeVar("T")


def read_change(row: Mapping[str, Any]) -> "ChangeAnswer":
    """A change in the form of the API; ``ValueError`` if it is not one."""
    # Importing it takes long, and commands that only know the store's name need none.
    from patchlight.testbed.wire.rest.circuits import ChangeAnswer

    return ChangeAnswer.model_validate({**_NO_CHANGE, **row})


BaselineKey = tuple[str, int, int, str]
"""The OCS, the input, the output, and the transmitter (or ``""``)."""


class Store(Database):
    """The store of circuits and events. A change is journalled before a device is touched."""

    lab_id = ""
    """A text that only the files of this lab's controller have."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._replace_nameless_marks()
        self._reopen_intents()

    def _replace_nameless_marks(self) -> None:
        """A mark whose name is not one of ``_MARKS``, or not that of its record, may be any of
        them: each missing one becomes an unreadable record, for which its reader has a safe
        substitute."""

        def read(record: dict[str, Any]) -> None:
            raise ValueError("its name is wrong or unreadable")

        missing = [
            ("INSERT OR IGNORE INTO marks VALUES (?, '')", (name,))
            for name in _MARKS
        ]
        known = ", ".join(f"'{name}'" for name in _MARKS)
        named = f"iif(json_valid(record), json_extract(record, '$.\"{_NAME_OF_MARK}\"'), NULL)"
        self.each(
            "marks",
            f"WHERE typeof(name) <> 'text' OR name NOT IN ({known}) OR {named} <> name",
            read,
            unreadable=lambda: Substitute((), missing),
        )

    def _reopen_intents(self) -> None:
        """A change that is an intent by its record has not ended, whatever its column says."""
        state = (
            "iif(json_valid(record), json_extract(record, '$.state'), NULL)"
        )
        found = self.rows(
            f"SELECT id FROM reconfigurations WHERE state <> 'intent' AND {state} = 'intent'"
        )
        if found:
            self.write_all(
                "UPDATE reconfigurations SET state = 'intent' WHERE id = ?",
                found,
            )

    def prepared_intent(
        self, number: int, record: Record
    ) -> Callable[[], int]:
        """A function that journals an intent (as ``number``, or 0 for a new one), possibly in
        another thread, and returns its number. Do not modify ``record`` meanwhile."""
        verb = "REPLACE" if number else "INSERT"
        columns = "(id, state, record, started_at)"
        started_at = record.get("started_at")
        sql = f"{verb} INTO reconfigurations {columns} VALUES (?, 'intent', ?, ?)"
        return lambda: self.write(
            sql,
            number or None,
            json.dumps(record),
            started_at,
        )

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
    ) -> "list[ChangeAnswer]":
        """The ``last`` changes, oldest first, or the first ones ``after`` that number."""
        # In SQLite a negative limit means none.
        most = -1 if last is None else last
        if after is not None:
            return self._changes(
                "WHERE id > ? ORDER BY id LIMIT ?", after, most
            )
        return self._changes("ORDER BY id DESC LIMIT ?", most)[::-1]

    def past_reconfigurations(
        self,
        period: Period,
        last: int,
        before: int,
    ) -> "list[ChangeAnswer]":
        """The ``last`` changes that began in a period, with lower numbers than ``before``."""
        which = "WHERE started_at BETWEEN ? AND ? AND id < ? ORDER BY id DESC LIMIT ?"
        return self._changes(
            which,
            *period,
            before,
            last,
        )[::-1]

    def reconfiguration(self, number: int) -> "ChangeAnswer | None":
        """One change, or ``None``."""
        return next(iter(self._changes("WHERE id = ?", number)), None)

    def undone_by(self, first: int) -> dict[int, int]:
        """The undone changes from this number on, with the latest change that undid each."""
        reverts = "CASE WHEN json_valid(record) THEN json_extract(record, '$.reverts') END"
        which = f"id > ? AND state = 'committed' AND {reverts} IS NOT NULL ORDER BY id"
        rows = self.rows(
            f"SELECT id, {reverts} FROM reconfigurations WHERE {which}", first
        )
        undone = dict[int, int]()
        of = dict[int, int](rows)
        for number, reverted in rows:
            undone[reverted] = number
            undone.pop(of.get(reverted, 0), None)
        return undone

    def unfinished_reconfigurations(
        self,
        read: Callable[[dict[str, Any]], T],
        unreadable: Callable[[int, dict[str, Any]], Record],
    ) -> list[T]:
        """The changes that an earlier controller started. Those that cannot be read have an unknown
        result: ``unreadable`` gets the number and what can be read, and returns the record."""

        def substitute(number: int, record: object) -> Substitute[T]:
            row = json.dumps(unreadable(number, _as_far_as_readable(record)))
            sql = "INSERT INTO reconfigurations VALUES (?, 'unknown', ?, ?)"
            return Substitute((), [(sql, (number, row, time.time()))])

        return self.each(
            "reconfigurations",
            f"WHERE state NOT IN {_RESULTS} ORDER BY id",
            lambda row, number, _: read(
                {**row, "id": number, "state": "intent"}
            ),
            "id",
            "record",
            unreadable=substitute,
        )

    def unknown_reconfigurations(
        self, read: Callable[[dict[str, Any]], T]
    ) -> list[T]:
        """The changes whose result is not known."""
        return self._changes("WHERE state = 'unknown' ORDER BY id", read=read)

    def _changes(
        self,
        which: str,
        *values: object,
        read: Callable[[dict[str, Any]], Any] = read_change,
    ) -> list[Any]:
        def change(
            row: dict[str, Any],
            number: int,
            state: str,
            *_: object,
        ) -> Any:
            return read({**row, "id": number, "state": state})

        def substitute(
            number: int,
            state: str,
            at: object,
        ) -> Substitute[Any]:
            # The row stays: its number must not be used again.
            began = {"started_at": at if isinstance(at, float) else 0.0}
            record = {
                **_NO_CHANGE,
                **began,
                "why": "",
                "message": UNREADABLE,
            }
            if (
                state not in _RESULTS
            ):  # ``unfinished_reconfigurations`` decides
                return Substitute(
                    [change(record, number, "intent")], stays=True
                )
            row = number, state, json.dumps(record), record["started_at"]
            sql = "INSERT INTO reconfigurations VALUES (?, ?, ?, ?)"
            return Substitute([change(record, number, state)], [(sql, row)])

        return self.each(
            "reconfigurations",
            which,
            change,
            "id",
            "state",
            "started_at",
            unreadable=substitute,
            values=values,
        )

    def reconfiguration_counts(self) -> dict[str, int]:
        """How many changes there are in each state."""
        return dict(
            self.rows(
                "SELECT state, count(*) FROM reconfigurations GROUP BY state"
            )
        )

    def commit_maps(self, maps: Mapping[str, Record]) -> None:
        """Replace the ``committed_maps`` of these OCS."""
        self.write_all(_SAVE_COMMITTED, _committed_rows(maps))

    def committed_maps(
        self, read: Callable[[str, dict[str, Any]], T]
    ) -> dict[str, T]:
        """The maps last committed for each OCS; ``map`` is ``None`` for unreadable ones: of each
        OCS that such a record names."""
        replaced = dict[str, T]()

        def committed(
            row: dict[str, Any],
            ocs: str,
            *_: object,
        ) -> tuple[str, T]:
            if not isinstance(ocs, str) or row.get("ocs", ocs) != ocs:
                raise ValueError(f"it belongs to {row.get('ocs')}")
            _COMMITTED_MAP.read(row)
            return ocs, read(ocs, row)

        def substitute(
            ocs: object, record: object
        ) -> Substitute[tuple[str, T]]:
            named = (ocs, _as_far_as_readable(record).get("ocs"))
            row = {"map": None, "reconfiguration": None, "at": time.time()}
            lost = {name: row for name in named if isinstance(name, str)}
            replaced.update((name, read(name, row)) for name in lost)
            return Substitute(
                (),
                [(_ADD_COMMITTED, values) for values in _committed_rows(lost)],
            )

        found = self.each(
            "committed",
            "",
            committed,
            "ocs",
            "record",
            unreadable=substitute,
        )
        return {**replaced, **dict(found)}

    def save_baselines(
        self, baselines: Mapping[BaselineKey, Sequence[float]]
    ) -> None:
        """Replace the readings of these circuits."""
        self.write_all(_SAVE_BASELINE, _baseline_rows(baselines))

    def baselines(self, ocs: str) -> dict[BaselineKey, tuple[float, ...]]:
        """The readings (dBm, oldest first) of every circuit of one OCS that has any."""
        rows = self.each(
            "baselines",
            "WHERE ocs = ?",
            lambda readings, *key: ((ocs, *key), readings),
            "inp",
            "out",
            "source",
            values=(ocs,),
            record="readings",
            at="ocs || ' ' || inp || '>' || out || ' ' || source",
            decode=_readings,
            # Such a circuit is judged by its loss budget, like a new one.
            unreadable=skip_record,
        )
        return dict(rows)

    def save_locks(
        self, records: Sequence[Record], *, soon: bool = False
    ) -> None:
        """Insert or replace locks by place. ``soon``: when the disk has space."""
        rows = _lock_rows(records)
        if soon:
            self.write_soon(*((_SAVE_LOCK, row) for row in rows), always=True)
        else:
            self.write_all(_SAVE_LOCK, rows)

    def delete_locks(self, places: Sequence[tuple[str, int, str]]) -> None:
        """Delete the locks of these channels of ports; without a channel, of the port."""
        self.write_rest()  # otherwise a lock could be written after its end
        self.write_all(
            "DELETE FROM locks WHERE ocs = ? AND port = ? AND channel = ?",
            places,
        )

    def locks(
        self,
        read: Callable[
            [
                dict[str, Any],
                str,
                int,
                str,
            ],
            T,
        ],
        unreadable: Callable[
            [
                object,
                object,
                object,
                Record,
            ],
            Sequence[Record],
        ],
    ) -> list[T]:
        """Every lock, by ``read`` of its record and place; ``unreadable`` returns the records that
        replace an unreadable one, by its place and what can be read of it. These come first; those
        of places that have a lock are not stored."""
        replaced = list[T]()

        def lock(
            row: dict[str, Any],
            ocs: str,
            port: int,
            channel: str,
            *_: object,
        ) -> T:
            return read(
                row,
                ocs,
                port,
                channel,
            )

        def substitute(
            ocs: object,
            port: object,
            channel: object,
            record: object,
        ) -> Substitute[T]:
            records = unreadable(
                ocs,
                port,
                channel,
                _as_far_as_readable(record),
            )
            replaced.extend(
                read(
                    dict(r),
                    r["ocs"],
                    r["port"],
                    r["channel"],
                )
                for r in records
            )
            return Substitute(
                (), [(_ADD_LOCK, row) for row in _lock_rows(records)]
            )

        which = "ORDER BY ocs, port, channel"
        columns = ("ocs", "port", "channel", "record")
        found = self.each(
            "locks",
            which,
            lock,
            *columns,
            unreadable=substitute,
        )
        return [*replaced, *found]

    def save_claim(self, claim: "ClaimAnswer", at: float) -> None:
        """Insert or replace a claim, with an event."""
        with self.together() as db:
            db.execute(_SAVE_CLAIM, (claim.name, claim.model_dump_json()))
            event = {
                "claim": claim.name,
                "state": claim.state,
                "message": claim.words,
            }
            db.execute(ADD_EVENT, (at, "claim", json.dumps(event)))

    def delete_claim(self, name: str) -> None:
        """Delete a claim."""
        self.write("DELETE FROM claims WHERE name = ?", name)

    def claims(self) -> "list[ClaimAnswer]":
        """All claims; an unreadable one counts as held: its ports have locks until its release."""
        from patchlight.testbed.wire.rest.circuits import ClaimAnswer

        def read(row: dict[str, Any], name: str) -> ClaimAnswer:
            claim = ClaimAnswer.model_validate(row)
            if claim.name != name:
                raise ValueError(f"it belongs to {claim.name}")
            return claim

        def substitute(kept: str | bytes) -> Substitute[ClaimAnswer]:
            now = time.time()
            claim = ClaimAnswer(
                name=kept if isinstance(kept, str) else kept.hex(),
                number=0,
                state="held",
                words=UNREADABLE,
                hosts=[],
                ports={},
                shape="switch",
                time_limit_s=None,
                hold_s=0.0,
                by="",
                why="",
                owned={},
                circuits={},
                reconfiguration=None,
                made_at=now,
                held_at=now,
                until=None,
                ended_at=None,
            )
            row = claim.name, claim.model_dump_json()
            return Substitute([claim], [(_SAVE_CLAIM, row)])

        return self.each(
            "claims",
            "ORDER BY name",
            read,
            "name",
            unreadable=substitute,
        )

    def save_map(self, name: str, record: Record) -> None:
        """Insert or replace maps saved under a name."""
        self.write(_SAVE_MAP, name, json.dumps({**record, "name": name}))

    def delete_map(self, name: str) -> None:
        """Delete the maps of that name."""
        self.write("DELETE FROM saved WHERE name = ?", name)

    def saved_maps(self) -> "dict[str, SavedMaps]":
        """All saved maps, by name; unreadable ones have none."""
        from patchlight.testbed.wire.rest.circuits import SavedMaps

        def saved(row: dict[str, Any], name: str) -> tuple[str, SavedMaps]:
            if row.get("name", name) != name:
                raise ValueError(f"it belongs to {row['name']}")
            return name, SavedMaps.model_validate({**row, "name": name})

        def substitute(
            kept: str | bytes | None,
        ) -> Substitute[tuple[str, SavedMaps]]:
            name = kept if isinstance(kept, str) else (kept or b"").hex()
            row = SavedMaps(
                name=name,
                maps={},
                by="",
                why=UNREADABLE,
                at=0.0,
            )
            record = json.dumps(dict(row))
            return Substitute([(name, row)], [(_SAVE_MAP, (name, record))])

        return dict(
            self.each(
                "saved",
                "ORDER BY name",
                saved,
                "name",
                unreadable=substitute,
            )
        )

    def set_mark(self, name: str, record: Record | None) -> None:
        """Store one record under a name; ``None`` deletes it."""
        sql, values = _mark(name, record)
        self.write(sql, *values)

    def keep_mark(self, name: str, record: Record) -> None:
        """Store one record under a name, now or when the disk has space."""
        self.write_soon(_mark(name, record))

    def set_mark_soon(
        self,
        name: str,
        record: Record | None,
        kind: str,
        event: Record,
    ) -> bool:
        """The same, with an event, now or when the disk has space; returns whether it is stored."""
        told = ADD_EVENT, (time.time(), kind, json.dumps(event))
        return self.write_soon(_mark(name, record), told, always=True)

    def mark(
        self,
        name: str,
        read: Callable[[dict[str, Any]], T],
        unreadable: Callable[[], Record] | None,
    ) -> T | None:
        """The record under that name. An unreadable one is replaced by ``unreadable``, which must
        be as safe as it can have been; ``None``: there is none."""

        def substitute() -> Substitute[T]:
            if unreadable is None:
                return Substitute()
            record = unreadable()
            return Substitute([read(dict(record))], [_mark(name, record)])

        def marked(row: dict[str, Any]) -> T:
            if row.pop(_NAME_OF_MARK, name) != name:
                raise ValueError("it belongs to another mark")
            return read(row)

        found = self.each(
            "marks",
            "WHERE name = ?",
            marked,
            values=(name,),
            unreadable=substitute,
        )
        return next(iter(found), None)

    def add_event(
        self,
        at: float,
        kind: str,
        record: Record,
    ) -> None:
        """Append an event, now or when the disk has space."""
        self.add_events(kind, [(at, record)])

    def add_events(
        self, kind: str, events: Sequence[tuple[float, Record]]
    ) -> None:
        """Append events of one kind, each with its time, in one write."""
        self.write_soon(
            *(
                (ADD_EVENT, (at, kind, json.dumps(record)))
                for at, record in events
            )
        )

    def events(
        self, after: int = 0, limit: int = 1000
    ) -> list[dict[str, Any]]:
        """At most ``limit`` events after number ``after``, oldest first."""
        return self._events(
            "WHERE number > ? ORDER BY number LIMIT ?", after, limit
        )

    def past_events(
        self,
        period: Period,
        last: int,
        before: int,
        kinds: Collection[str] = (),
    ) -> list[dict[str, Any]]:
        """The ``last`` events in a period (of these kinds), with lower numbers than ``before``."""
        # Times have an index, and grow almost like numbers.
        bounds = self.rows(
            "SELECT min(number), max(number) FROM events WHERE at BETWEEN ? AND ?",
            *period,
        )
        of_kind = (
            f"AND kind IN ({', '.join('?' * len(kinds))})" if kinds else ""
        )
        found = self._events(
            "WHERE number BETWEEN ? AND ? "
            f"AND number < ? AND +at BETWEEN ? AND ? {of_kind} ORDER BY number DESC LIMIT ?",
            *bounds[0],
            before,
            *period,
            *kinds,
            last,
        )
        return found[::-1]

    def _events(self, which: str, *values: object) -> list[dict[str, Any]]:
        def event(
            row: dict[str, Any],
            number: int,
            at: float,
            kind: str,
        ) -> dict[str, Any]:
            if not isinstance(kind, str):
                raise ValueError("its kind is not text")
            return {
                **row,
                "number": number,
                "at": float(at),
                "kind": kind,
            }

        columns = ("number", "at", "kind")
        return self.each(
            "events",
            which,
            event,
            *columns,
            values=values,
            unreadable=skip_record,
        )

    def forget(self, before: float, most: int = 500) -> int:
        """Delete some events and changes that ended before then; returns their number. The last
        event, the last change and changes with an unknown result stay."""
        with self.together() as db:
            return sum(
                db.execute(sql, (before, most)).rowcount for sql in _FORGET
            )

    def last_event(self) -> int:
        """The number of the latest event, 0 if there is none."""
        return int(
            self.rows("SELECT coalesce(max(number), 0) FROM events")[0][0]
        )


def _as_far_as_readable(record: object) -> dict[str, Any]:
    try:
        return decoded(record)
    except Exception:
        return {}


def _mark(name: str, record: Record | None) -> Statement:
    if record is None:
        return "DELETE FROM marks WHERE name = ?", (name,)
    named = {**record, _NAME_OF_MARK: name}
    return "INSERT OR REPLACE INTO marks VALUES (?, ?)", (
        name,
        json.dumps(named),
    )


def _readings(text: str) -> tuple[float, ...]:
    found = tuple(map(float, text.split()))
    if not found or not all(map(math.isfinite, found)):
        raise ValueError(f"expected powers, found {text[:40]!r}")
    return found


def _lock_rows(records: Sequence[Record]) -> list[tuple[Any, ...]]:
    return [
        (r["ocs"], r["port"], r["channel"], json.dumps(r)) for r in records
    ]


def _committed_rows(maps: Mapping[str, Record]) -> list[tuple[str, str]]:
    return [
        (ocs, json.dumps({**row, "ocs": ocs})) for ocs, row in maps.items()
    ]


def _baseline_rows(
    baselines: Mapping[BaselineKey, Sequence[float]],
) -> list[tuple[str, int, int, str, str]]:
    return [
        (*key, " ".join(map(_written, readings)))
        for key, readings in baselines.items()
    ]
