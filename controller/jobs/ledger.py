"""Stores jobs on disk: states, reports, decisions and output, with retention."""

import asyncio
import contextlib
import json
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from patchlight.controller.hosts.agent_client import AgentClient, NotOnServer
from patchlight.controller.jobs.running_job import RunningJob
from patchlight.controller.storage.database import ADD_EVENT, Database, Period, numbered
from patchlight.controller.storage.store import Store
from patchlight.testbed.clock import unix_s
from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobs import JobState, JobStatus
from patchlight.testbed.lab.rules import Discipline
from patchlight.testbed.wire.worker_api import LogPart

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
# Unreadable records are included, so that they are set aside.
_OF_PERIOD = (
    "coalesce(finished_at >= ?, 1) AND CASE WHEN json_valid(record) "
    "THEN json_extract(record, '$.submitted_at') <= ? ELSE 1 END"
)
_REPORTS = 2000
_FORGET_REPORTS = (
    "DELETE FROM iterations WHERE number IN (SELECT number FROM iterations WHERE job = ? LIMIT ?)"
)

_log = logging.getLogger(__name__)

MOST_KEPT_BYTES = 1 << 20
"""Per worker; only the end of a longer output is kept."""

_PATIENCE_S = 15.0
_BEYOND = 2**62  # Larger than any output; the answer ends with its end.

_EVERY_S = 600.0
# Other writers get a turn between two batches.
_PAUSE_S = 0.05


class JobLedger:
    """All jobs on disk, including ended ones; ``on_decision`` are called with each new decision."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.on_decision: list[Callable[[str, Record], None]] = []

    def save(
        self, statuses: Sequence[JobStatus], events: Sequence[tuple[float, str, Record]] = ()
    ) -> None:
        """Insert or replace jobs, with events (time, kind, record), all or none."""
        with self._database.together() as db:
            db.executemany(
                _SAVE,
                [(s.id, s.state, s.as_json, s.spec.name, s.by, s.finished_at) for s in statuses],
            )
            rows = [(at, kind, json.dumps(record)) for at, kind, record in events]
            db.executemany(ADD_EVENT, rows)

    def unfinished(self) -> list[JobStatus]:
        """Every unfinished job, in order of submission."""
        return self._read(f"WHERE state NOT IN ({_ENDED}) ORDER BY rowid")

    def find(self, job_id: str) -> JobStatus | None:
        """One job, or ``None``."""
        return next(iter(self._read("WHERE id = ?", job_id)), None)

    def meant(self, text: str, most: int = 13) -> list[JobStatus]:
        """The jobs of that name, else those whose id starts with it, latest first."""
        order = "ORDER BY rowid DESC LIMIT ?"
        named = self._read(f"WHERE name = ? {order}", text, most)
        # Not LIKE, in which ``_`` and ``%`` are wildcards.
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
        """The ``last`` jobs that match (in the period), oldest first, or the first ones after a job
        (``""``: the first of all). ``known`` ones are not read. May raise ``BadInput``."""
        columns = {"state": state, "owner": owner, "name": name}
        wanted = {column: value for column, value in columns.items() if value}
        which = " AND ".join(["1", *(f"{column} = ?" for column in wanted)])
        values: list[object] = [*wanted.values()]
        if period is not None:
            which, values = f"{which} AND {_OF_PERIOD}", [*values, *period]
        if after is None:
            order = "ORDER BY rowid DESC LIMIT ?"
            return self._known(known, f"WHERE {which} {order}", *values, last)[::-1]
        rows = self._database.rows("SELECT rowid FROM jobs WHERE id = ?", after)
        if after and not rows:
            raise BadInput(f"unknown job {after!r} in 'after'")
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
        """Append reports of a job's workers."""
        rows = [(job_id, json.dumps(record)) for record in records]
        self._database.write_all("INSERT INTO iterations (job, record) VALUES (?, ?)", rows)

    def iterations(
        self, job_id: str, after: int = 0, limit: int = -1
    ) -> tuple[list[dict[str, Any]], int]:
        """At most ``limit`` reports of a job after number ``after``, and the last number."""
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
        """The number of a job's latest report, for ``iterations``; 0 without one."""
        rows = self._database.rows("SELECT max(number) FROM iterations WHERE job = ?", job_id)
        return int(rows[0][0] or 0)

    def history(self, job_id: str) -> list[dict[str, Any]]:
        """The states of a job so far, oldest first: ``at``, ``state`` and ``message``."""
        rows = self._database.rows(
            "SELECT at, substr(kind, 5), json_extract(record, '$.message') FROM events "
            "WHERE job = ? AND kind LIKE 'job-%' AND json_valid(record) ORDER BY number",
            job_id,
        )
        return [{"at": at, "state": state, "message": words or ""} for at, state, words in rows]

    def reports_by_rank(self, job_id: str, attempt: int) -> dict[int, int]:
        """How many reports of each rank of an attempt are stored."""
        sql = (
            "SELECT json_extract(record, '$.rank'), count(*) FROM iterations WHERE job = ? AND "
            "iif(json_valid(record), coalesce(json_extract(record, '$.attempt'), 0), -1) = ? "
            "GROUP BY 1"
        )
        return dict(self._database.rows(sql, job_id, attempt))

    def add_decision(self, job_id: str, at: float, record: Record) -> None:
        """Append a policy's decision about a job."""
        sql = "INSERT INTO decisions (job, at, record) VALUES (?, ?, ?)"
        self._database.write(sql, job_id, at, json.dumps(record))
        for hear in self.on_decision:
            hear(job_id, record)

    def decisions(self, job_id: str) -> list[dict[str, Any]]:
        """The decisions about a job, oldest first, each with its number and time."""
        which = "WHERE job = ? ORDER BY number"
        return self._database.each("decisions", which, numbered, "number", "at", values=(job_id,))

    def forget(self, before: float, keep: int, most: int = 20) -> tuple[list[str], bool]:
        """Delete jobs that ended before then, and all but the latest ``keep`` of the ended ones.

        Their reports, decisions and events are deleted too. Dependencies of unfinished jobs stay.
        Each call deletes a limited number. Returns their ids, and whether there are more.
        """
        with self._database.together() as db:
            found = [row[0] for row in db.execute(_FORGETTABLE, (before, keep, most))]
            gone = []
            for job_id in found:
                if db.execute(_FORGET_REPORTS, (job_id, _REPORTS)).rowcount == _REPORTS:
                    break  # the rest and the job itself: next time
                db.execute("DELETE FROM decisions WHERE job = ?", (job_id,))
                # The last event stays: event numbers must grow.
                last = "(SELECT max(number) FROM events)"
                db.execute(f"DELETE FROM events WHERE job = ? AND number < {last}", (job_id,))
                db.execute("DELETE FROM jobs WHERE id = ?", (job_id,))
                gone.append(job_id)
        return gone, len(gone) < len(found) or len(found) == most


class JobOutputs:
    """The output of the last attempt's workers: a folder per job with files RANK.OFFSET, with the
    number of the first stored byte."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def keep(self, job: RunningJob) -> None:
        """Fetch the output of a job's workers before they are deleted."""
        asked = [w for w in job.workers if not w.is_silent]
        fetches = (self.fetch(w.agent, w.spec.id, job.id, w.spec.rank) for w in asked)
        answers = await asyncio.gather(*fetches, return_exceptions=True)
        # Some workers may never have been created.
        if lost := [each for each in answers if each and not isinstance(each, NotOnServer)]:
            why = str(lost[0]) or f"no answer within {_PATIENCE_S:g} s"
            message = "job %s: the output of %d workers could not be kept: %s"
            _log.warning(message, job.id, len(lost), why)

    async def fetch(self, agent: AgentClient, worker: str, job_id: str, rank: int) -> None:
        """Store the output of one worker; ``PatchlightError`` or ``OSError`` if that fails."""
        async with asyncio.timeout(_PATIENCE_S):
            end = (await agent.log(worker, _BEYOND, 4)).next
            first = max(0, end - MOST_KEPT_BYTES)
            part = await agent.log(worker, first, MOST_KEPT_BYTES)
        if part.text:
            await asyncio.to_thread(self._write, job_id, rank, part)

    def _write(self, job_id: str, rank: int, part: LogPart) -> None:
        folder = self._of(job_id)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        before = self._file(job_id, rank)
        file = folder / f"{rank}.{part.offset}"
        file.write_bytes(part.text.encode("utf-8", "replace"))
        if before is not None and before != file:
            before.unlink()

    def _file(self, job_id: str, rank: int) -> Path | None:
        return next(self._of(job_id).glob(f"{rank}.*"), None)

    def _of(self, job_id: str) -> Path:
        return self._folder / job_id

    def read(self, job_id: str, rank: int, after: int, limit: int) -> LogPart | None:
        """A worker's output after byte ``after``; ``None`` if it is not stored."""
        file = self._file(job_id, rank)
        if file is None:
            return None
        first = int(file.suffix[1:])
        offset = max(after, first)
        with file.open("rb") as opened:
            opened.seek(offset - first)
            data = opened.read(limit)
        # A character that is cut in two goes into the next part.
        text = data.decode("utf-8", "ignore")
        whole = len(text.encode()) or len(data)
        if offset > after:
            text = f"[{offset - after} bytes of output were dropped]\n{text}"
        return LogPart(offset=offset, text=text, next=offset + whole)

    def forget(self, job_id: str) -> None:
        """Delete the output of a job."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._of(job_id))


class Retention:
    """Deletes records that exceed the lab's retention settings, a few at a time."""

    def __init__(
        self,
        store: Store,
        ledger: JobLedger,
        outputs: JobOutputs,
        settings: Discipline,
        clock: Callable[[], float] = unix_s,
    ) -> None:
        self._store, self._ledger, self._outputs = store, ledger, outputs
        self._settings, self._clock = settings, clock

    async def run(self) -> None:
        """Delete now, and again every ten minutes."""
        while True:
            more = await asyncio.to_thread(self.forget_some)
            await asyncio.sleep(_PAUSE_S if more else _EVERY_S)

    def forget_some(self) -> bool:
        """Delete some; returns whether there are more."""
        keep_for_s = self._settings.keep_for_s
        before = None if keep_for_s is None else self._clock() - keep_for_s
        gone, more = self._ledger.forget(before or 0.0, self._settings.keep_jobs)
        for job_id in gone:
            self._outputs.forget(job_id)
        old = before is not None and self._store.forget(before)
        return bool(old) or more
