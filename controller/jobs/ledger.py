"""The jobs on disk: each as it is now, what its workers reported, and what was decided of it."""

import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from patchlight.controller.storage.database import ADD_EVENT, Database, Period, numbered
from patchlight.testbed.jobs import JobState, JobStatus

Record = Mapping[str, Any]

_SAVE = (
    "INSERT INTO jobs (id, state, record, name, owner, finished_at) VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (id) DO UPDATE SET state = excluded.state, record = excluded.record, "
    "finished_at = excluded.finished_at"
)
_ENDED = ", ".join(f"'{state}'" for state in JobState if state.is_final)
_FORGETTABLE = f"""
SELECT id FROM jobs WHERE state IN ({_ENDED}) AND (finished_at < ? OR rowid <=
    (SELECT rowid FROM jobs WHERE state IN ({_ENDED}) ORDER BY rowid DESC LIMIT 1 OFFSET ?))
AND id NOT IN (SELECT value FROM jobs AS waiting,
    json_each(iif(json_valid(waiting.record), waiting.record, 'null'), '$.spec.after')
    WHERE waiting.state NOT IN ({_ENDED}))
ORDER BY rowid LIMIT ?"""
# A record that cannot be read is read all the same, and set aside.
_OF_PERIOD = (
    "coalesce(finished_at >= ?, 1) AND CASE WHEN json_valid(record) "
    "THEN json_extract(record, '$.submitted_at') <= ? ELSE 1 END"
)
_REPORTS = 2000
_FORGET_REPORTS = (
    "DELETE FROM iterations WHERE number IN (SELECT number FROM iterations WHERE job = ? LIMIT ?)"
)


class JobLedger:
    """What is known of jobs, also of those that ended long ago; nothing is kept in memory.

    ``on_decision`` hear of each decision that is kept, with the id of the job that it is about.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.on_decision: list[Callable[[str, Record], None]] = []

    def save(
        self, statuses: Sequence[JobStatus], events: Sequence[tuple[float, str, Record]] = ()
    ) -> None:
        """Insert or replace jobs, with events (time, kind, record): on disk on return, or none."""
        with self._database.together() as db:
            db.executemany(_SAVE, [_row(status) for status in statuses])
            db.executemany(
                ADD_EVENT, [(at, kind, json.dumps(record)) for at, kind, record in events]
            )

    def unfinished(self) -> list[JobStatus]:
        """Every job that has not ended, in the order of submission.

        What cannot be read is set aside.
        """
        return self._read(f"WHERE state NOT IN ({_ENDED}) ORDER BY rowid")

    def find(self, job_id: str) -> JobStatus | None:
        """One job, or ``None``."""
        return next(iter(self._read("WHERE id = ?", job_id)), None)

    def meant(self, text: str, most: int = 13) -> list[JobStatus]:
        """The jobs of that name, else those whose id begins so, the latest first."""
        order = "ORDER BY rowid DESC LIMIT ?"
        named = self._read(f"WHERE name = ? {order}", text, most)
        # Ids are compared as they are written: ``_`` and ``%`` mean nothing else.
        return named or self._read(f"WHERE substr(id, 1, ?) = ? {order}", len(text), text, most)

    def page(
        self,
        last: int,
        after: str | None = None,
        period: Period | None = None,
        *,
        state: str = "",
        owner: str = "",
        name: str = "",
        known: Mapping[str, JobStatus] = MappingProxyType({}),
    ) -> list[JobStatus]:
        """The ``last`` jobs of those meant, oldest first, or the first so many after one.

        With a ``period``, of those that waited or ran in it. Those that are ``known``, by id, are
        not read. ``KeyError`` if there is no job ``after``; an empty one begins with the first
        job.
        """
        wanted = [(column, value) for column, value in _columns(state, owner, name) if value]
        which = " AND ".join(["1", *(f"{column} = ?" for column, _ in wanted)])
        values: list[object] = [value for _, value in wanted]
        if period is not None:
            which, values = f"{which} AND {_OF_PERIOD}", [*values, *period]
        if after is None:
            order = "ORDER BY rowid DESC LIMIT ?"
            return self._known(known, f"WHERE {which} {order}", *values, last)[::-1]
        rows = self._database.rows("SELECT rowid FROM jobs WHERE id = ?", after)
        if after and not rows:
            raise KeyError(after)
        begin = rows[0][0] if rows else 0
        order = "AND rowid > ? ORDER BY rowid LIMIT ?"
        return self._known(known, f"WHERE {which} {order}", *values, begin, last)

    def counts(self) -> dict[str, int]:
        """How many jobs there are in each state."""
        return dict(self._database.rows("SELECT state, count(*) FROM jobs GROUP BY state"))

    def _known(
        self, known: Mapping[str, JobStatus], which: str, *values: object
    ) -> list[JobStatus]:
        ids = [job_id for (job_id,) in self._database.rows(f"SELECT id FROM jobs {which}", *values)]
        others = [job_id for job_id in ids if job_id not in known]
        each = ", ".join("?" * len(others))
        read = self._read(f"WHERE id IN ({each})", *others) if others else ()
        found = {status.id: status for status in read}
        return [s for job_id in ids if (s := known.get(job_id) or found.get(job_id)) is not None]

    def _read(self, which: str, *values: object) -> list[JobStatus]:
        return self._database.each("jobs", which, JobStatus.from_json, values=values, decode=str)

    def add_iterations(self, job_id: str, records: Sequence[Record]) -> None:
        """Append what a job's workers reported."""
        rows = [(job_id, json.dumps(record)) for record in records]
        self._database.write_all("INSERT INTO iterations (job, record) VALUES (?, ?)", rows)

    def iterations(
        self, job_id: str, after: int = 0, limit: int = -1
    ) -> tuple[list[dict[str, Any]], int]:
        """The reports of a job's workers after number ``after``, and the last number.

        At most ``limit`` of them, where that is not negative.
        """
        which = "WHERE job = ? AND number > ? ORDER BY number LIMIT ?"
        found = self._reports(which, job_id, after, limit)
        return [report for report, _ in found], found[-1][1] if found else after

    def latest_iterations(self, job_id: str, most: int) -> list[dict[str, Any]]:
        """The latest reports of a job's workers, oldest first."""
        found = self._reports("WHERE job = ? ORDER BY number DESC LIMIT ?", job_id, most)
        return [report for report, _ in reversed(found)]

    def _reports(self, which: str, *values: object) -> list[tuple[dict[str, Any], int]]:
        return self._database.each(
            "iterations", which, lambda row, number: (row, number), "number", values=values
        )

    def reported(self, job_id: str) -> int:
        """The number of a job's latest report, for ``iterations`` to go on after; 0 without one."""
        rows = self._database.rows("SELECT max(number) FROM iterations WHERE job = ?", job_id)
        return int(rows[0][0] or 0)

    def history(self, job_id: str) -> list[dict[str, Any]]:
        """The states that a job came to, oldest first: ``at``, ``state`` and ``message``."""
        rows = self._database.rows(
            "SELECT at, substr(kind, 5), json_extract(record, '$.message') FROM events "
            "WHERE job = ? AND kind LIKE 'job-%' AND json_valid(record) ORDER BY number",
            job_id,
        )
        return [{"at": at, "state": state, "message": words or ""} for at, state, words in rows]

    def reports_by_rank(self, job_id: str, attempt: int) -> dict[int, int]:
        """How many reports of each rank of an attempt are kept."""
        return dict(
            self._database.rows(
                "SELECT json_extract(record, '$.rank'), count(*) FROM iterations WHERE job = ? "
                "AND iif(json_valid(record), coalesce(json_extract(record, '$.attempt'), 0), -1) "
                "= ? GROUP BY 1",
                job_id,
                attempt,
            )
        )

    def add_decision(self, job_id: str, at: float, record: Record) -> None:
        """Append what a policy decided of a job."""
        self._database.write(
            "INSERT INTO decisions (job, at, record) VALUES (?, ?, ?)",
            job_id,
            at,
            json.dumps(record),
        )
        for hear in self.on_decision:
            hear(job_id, record)

    def decisions(self, job_id: str) -> list[dict[str, Any]]:
        """What policies decided of a job, oldest first, each with its number and time."""
        which = "WHERE job = ? ORDER BY number"
        return self._database.each("decisions", which, numbered, "number", "at", values=(job_id,))

    def forget(self, before: float, keep: int, most: int = 20) -> tuple[list[str], bool]:
        """Drop jobs that ended before then, and of the rest all but the latest ``keep`` ended ones.

        Their reports, decisions and events go too. A job that an unfinished one comes after stays.
        At most so many jobs go at once, and some thousand reports, lest anybody waits: the ids of
        those that are gone, and whether there is more to do.
        """
        with self._database.together() as db:
            found = [row[0] for row in db.execute(_FORGETTABLE, (before, keep, most))]
            gone = []
            for job_id in found:
                if db.execute(_FORGET_REPORTS, (job_id, _REPORTS)).rowcount == _REPORTS:
                    break  # the rest of them, and the job, next time
                db.execute("DELETE FROM decisions WHERE job = ?", (job_id,))
                # The last event stays: the next one's number has to be higher.
                last = "(SELECT max(number) FROM events)"
                db.execute(f"DELETE FROM events WHERE job = ? AND number < {last}", (job_id,))
                db.execute("DELETE FROM jobs WHERE id = ?", (job_id,))
                gone.append(job_id)
        return gone, len(gone) < len(found) or len(found) == most


def _columns(state: str, owner: str, name: str) -> tuple[tuple[str, str], ...]:
    return ("state", state), ("owner", owner), ("name", name)


def _row(status: JobStatus) -> tuple[object, ...]:
    return (
        status.id,
        status.state,
        status.as_json,
        status.spec.name,
        status.by,
        status.finished_at,
    )
