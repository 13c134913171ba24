"""Stores jobs on disk: states, reports, decisions and output, with retention."""

import asyncio
import contextlib
import json
import logging
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from typing_extensions import TypedDict

from patchlight.controller.hosts.agent_client import AgentClient, NotOnServer
from patchlight.controller.jobs.reports import ENDED, MOST_REPORTS, JobReports
from patchlight.controller.jobs.running_job import RunningJob
from patchlight.controller.storage.database import (
    ADD_EVENT,
    Database,
    JournalError,
    Period,
    Shape,
    Statement,
    Substitute,
    skip_record,
)
from patchlight.controller.storage.store import UNREADABLE, Store
from patchlight.testbed.clock import unix_s
from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobs import JOB_NAME, JobSpec, JobState, JobStatus
from patchlight.testbed.lab.rules import Discipline
from patchlight.testbed.wire.worker_api import LogPart

Record = Mapping[str, Any]

_COLUMNS = "jobs (id, state, record, name, owner, finished_at) VALUES (?, ?, ?, ?, ?, ?)"
_ADD = f"INSERT OR IGNORE INTO {_COLUMNS}"
_SAVE = (
    f"INSERT INTO {_COLUMNS} ON CONFLICT (id) DO UPDATE SET state = excluded.state, "
    "record = excluded.record, finished_at = excluded.finished_at"
)
_FINAL = {str(state) for state in JobState if state.is_final}
_MESSAGE = "iif(json_valid(record), json_extract(record, '$.message'), '')"
_STATE = "iif(json_valid(record), json_extract(record, '$.state'), NULL)"
_FORGETTABLE = f"""
SELECT id FROM jobs WHERE state IN ({ENDED}) AND (finished_at < ? OR rowid <=
    (SELECT rowid FROM jobs WHERE state IN ({ENDED}) ORDER BY rowid DESC LIMIT 1 OFFSET ?))
AND id NOT IN (SELECT value FROM jobs AS waiting,
    json_each(iif(json_valid(waiting.record), waiting.record, 'null'), '$.spec.after')
    WHERE waiting.state NOT IN ({ENDED}))
AND {_MESSAGE} IS NOT ?
ORDER BY rowid LIMIT ?"""
# Unreadable records are included, so that they are set aside.
_OF_PERIOD = (
    "coalesce(finished_at >= ?, 1) AND CASE WHEN json_valid(record) "
    "THEN json_extract(record, '$.submitted_at') <= ? ELSE 1 END"
)
_REPORTS = 2000
_FORGET_REPORTS = (
    "DELETE FROM iterations WHERE number IN "
    "(SELECT number FROM iterations WHERE job = ? LIMIT ?)"
)

_log = logging.getLogger(__name__)

UNREADABLE_JOB = (
    f"{UNREADABLE}: its workers keep running on their hosts until you stop it"
)
"""The message of an unfinished job whose record was set aside."""

MOST_KEPT_BYTES = 1 << 20
MOST_KEPT_OF_ALL_BYTES = 4 << 30
"""Of a worker, where only the end of a longer output is kept, and of all jobs."""

_PATIENCE_S = 15.0
_BEYOND = 2**62  # Larger than any output; the answer ends with its end.

_EVERY_S = 600.0
# Other writers get a turn between two batches.
_PAUSE_S = 0.05


def _job(
    text: str,
    job_id: str,
    state: str,
    *_: object,
) -> JobStatus:
    status = JobStatus.from_json(text)
    if (status.id, status.state) != (job_id, state):
        raise ValueError(
            f"it belongs to job {status.id}, which is {status.state}"
        )
    return status


def _unreadable_job(
    job_id: object,
    state: str,
    name: str,
    owner: str,
    record: object,
) -> Substitute[JobStatus]:
    """The job as ended, unless it had ended: without a record it cannot go on. Its workers do, and
    keep their hosts. If columns and record name two jobs, it may be either."""
    of_record = None
    with contextlib.suppress(Exception):
        of_record = JobStatus.from_json(str(record))
    is_over = state in _FINAL and (
        of_record is None or of_record.state.is_final
    )
    ids = dict.fromkeys([job_id, of_record.id if of_record else None])
    spec = JobSpec(name if re.fullmatch(JOB_NAME, str(name)) else "unreadable")
    found = [
        JobStatus(
            each,
            spec,
            JobState(state) if is_over else JobState.FAILED,
            message=UNREADABLE if is_over else UNREADABLE_JOB,
            finished_at=time.time(),
            by=str(owner),
        )
        for each in ids
        if isinstance(each, str) and each
    ]
    stored: list[Statement] = [(_ADD, _row(status)) for status in found]
    for status in () if is_over else found:
        event = {"job": status.id, "message": status.message}
        stored.append(
            (
                ADD_EVENT,
                (time.time(), f"job-{status.state}", json.dumps(event)),
            )
        )
    return Substitute(found, stored)


def _row(s: JobStatus) -> tuple[object, ...]:
    return s.id, s.state, s.as_json, s.spec.name, s.by, s.finished_at


class _LightOfDecision(TypedDict):
    moved_at: float
    reported: int
    predicted_before_s: float
    predicted_after_s: float
    measured_before_s: float | None
    unsettled_before: bool


_LIGHT = Shape(_LightOfDecision)


def _decision(
    row: dict[str, Any],
    number: int,
    at: float,
) -> dict[str, Any]:
    if "light" in row:
        _LIGHT.read(row["light"])
        row = {"policy": "", "reconfiguration": 0, **row}
    return {**row, "number": number, "at": float(at)}


class JobLedger(JobReports):
    """All jobs on disk, including ended ones; ``on_decision`` are called with each new decision."""

    def __init__(
        self, database: Database, most_reports: int = MOST_REPORTS
    ) -> None:
        super().__init__(database, most_reports)
        self.on_decision: list[Callable[[str, Record], None]] = []

    def save(
        self,
        statuses: Sequence[JobStatus],
        events: Sequence[tuple[float, str, Record]] = (),
    ) -> None:
        """Insert or replace jobs, with events (time, kind, record), all or none."""
        with self._database.together() as db:
            db.executemany(_SAVE, [_row(status) for status in statuses])
            rows = [
                (at, kind, json.dumps(record)) for at, kind, record in events
            ]
            db.executemany(ADD_EVENT, rows)
        self.forget_counts(
            status.id for status in statuses if status.state.is_final
        )

    def unfinished(self) -> list[JobStatus]:
        """Every unfinished job, in order of submission."""
        found = self._read(f"WHERE state NOT IN ({ENDED}) ORDER BY rowid")
        return [status for status in found if not status.state.is_final]

    def unreadable(self) -> set[str]:
        """The jobs whose records were set aside before they had ended, and that nobody stopped."""
        # Sets them aside.
        self._read(f"WHERE state IN ({ENDED}) AND {_STATE} NOT IN ({ENDED})")
        sql = f"SELECT id FROM jobs WHERE state = ? AND {_MESSAGE} = ?"
        aside = {
            job_id
            for (job_id,) in self._database.rows(
                sql, JobState.FAILED, UNREADABLE_JOB
            )
        }
        # On a full disk, none is set aside yet.
        others = self._read(f"WHERE state NOT IN ({ENDED})")
        return aside | {
            status.id for status in others if status.state.is_final
        }

    def find(self, job_id: str) -> JobStatus | None:
        """One job, or ``None``."""
        return next(iter(self._read("WHERE id = ?", job_id)), None)

    def meant(self, text: str, most: int = 13) -> list[JobStatus]:
        """The jobs of that name, else those whose id starts with it, latest first."""
        if not text:
            return []
        order = "ORDER BY rowid DESC LIMIT ?"
        named = self._read(f"WHERE name = ? {order}", text, most)
        # Not LIKE, in which ``_`` and ``%`` are wildcards.
        return named or self._read(
            f"WHERE substr(id, 1, ?) = ? {order}",
            len(text),
            text,
            most,
        )

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
            which = f"{which} AND {_OF_PERIOD}"
            values = [*values, *period]
        if after is None:
            order = "ORDER BY rowid DESC LIMIT ?"
            return self._known(
                known,
                f"WHERE {which} {order}",
                *values,
                last,
            )[::-1]
        rows = self._database.rows(
            "SELECT rowid FROM jobs WHERE id = ?", after
        )
        if after and not rows:
            raise BadInput(f"unknown job {after!r} in 'after'")
        begin = rows[0][0] if rows else 0
        order = "AND rowid > ? ORDER BY rowid LIMIT ?"
        return self._known(
            known,
            f"WHERE {which} {order}",
            *values,
            begin,
            last,
        )

    def counts(self) -> dict[str, int]:
        """How many jobs there are in each state."""
        return dict(
            self._database.rows(
                "SELECT state, count(*) FROM jobs GROUP BY state"
            )
        )

    def _known(
        self,
        known: Mapping[str, JobStatus],
        which: str,
        *values: object,
    ) -> list[JobStatus]:
        ids = [
            job_id
            for (job_id,) in self._database.rows(
                f"SELECT id FROM jobs {which}", *values
            )
        ]
        others = [job_id for job_id in ids if job_id not in known]
        each = ", ".join("?" * len(others))
        read = self._read(f"WHERE id IN ({each})", *others) if others else ()
        found = {status.id: status for status in read}
        return [
            s
            for job_id in ids
            if (s := known.get(job_id) or found.get(job_id)) is not None
        ]

    def _read(self, which: str, *values: object) -> list[JobStatus]:
        return self._database.each(
            "jobs",
            which,
            _job,
            "id",
            "state",
            "name",
            "owner",
            "record",
            unreadable=_unreadable_job,
            values=values,
            decode=str,
        )

    def history(self, job_id: str) -> list[dict[str, Any]]:
        """The states of a job so far, oldest first: ``at``, ``state`` and ``message``."""
        rows = self._database.rows(
            "SELECT at, substr(kind, 5), json_extract(record, '$.message') FROM events "
            "WHERE job = ? AND kind LIKE 'job-%' AND json_valid(record) ORDER BY number",
            job_id,
        )
        return [
            {"at": at, "state": state, "message": words or ""}
            for at, state, words in rows
            if isinstance(at, float) and isinstance(words, str | None)
        ]

    def add_decision(
        self,
        job_id: str,
        at: float,
        record: Record,
    ) -> None:
        """Append a policy's decision about a job."""
        sql = "INSERT INTO decisions (job, at, record) VALUES (?, ?, ?)"
        self._database.write(
            sql,
            job_id,
            at,
            json.dumps(record),
        )
        for hear in self.on_decision:
            hear(job_id, record)

    def decisions(self, job_id: str) -> list[dict[str, Any]]:
        """The decisions about a job, oldest first, each with its number and time."""
        which = "WHERE job = ? ORDER BY number"
        return self._database.each(
            "decisions",
            which,
            _decision,
            "number",
            "at",
            unreadable=skip_record,
            values=(job_id,),
        )

    def forget(
        self,
        before: float,
        keep: int,
        most: int = 20,
    ) -> tuple[list[str], bool]:
        """Delete jobs that ended before then, and all but the latest ``keep`` of the ended ones.

        Their reports, decisions and events are deleted too. Dependencies of unfinished jobs stay,
        and ``unreadable`` jobs, so that they can be stopped. Each call deletes a limited number.
        Returns their ids, and whether there are more.
        """
        with self._database.together() as db:
            found = [
                row[0]
                for row in db.execute(
                    _FORGETTABLE, (before, keep, UNREADABLE_JOB, most)
                )
            ]
            gone = []
            for job_id in found:
                if (
                    db.execute(_FORGET_REPORTS, (job_id, _REPORTS)).rowcount
                    == _REPORTS
                ):
                    break  # the rest and the job itself: next time
                db.execute("DELETE FROM decisions WHERE job = ?", (job_id,))
                # The last event stays: event numbers must grow.
                last = "(SELECT max(number) FROM events)"
                db.execute(
                    f"DELETE FROM events WHERE job = ? AND number < {last}",
                    (job_id,),
                )
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
        fetches = (
            self.fetch(
                w.agent,
                w.spec.id,
                job.id,
                w.spec.rank,
            )
            for w in asked
        )
        answers = await asyncio.gather(*fetches, return_exceptions=True)
        # Some workers may never have been created.
        if lost := [
            each
            for each in answers
            if each and not isinstance(each, NotOnServer)
        ]:
            why = str(lost[0]) or f"no answer within {_PATIENCE_S:g} s"
            message = "job %s: the output of %d workers could not be kept: %s"
            _log.warning(
                message,
                job.id,
                len(lost),
                why,
            )

    async def fetch(
        self,
        agent: AgentClient,
        worker: str,
        job_id: str,
        rank: int,
    ) -> None:
        """Store the output of one worker; ``PatchlightError`` or ``OSError`` if that fails."""
        async with asyncio.timeout(_PATIENCE_S):
            end = (await agent.log(worker, _BEYOND, 4)).next
            first = max(0, end - MOST_KEPT_BYTES)
            part = await agent.log(worker, first, MOST_KEPT_BYTES)
        if part.text:
            await asyncio.to_thread(
                self._write,
                job_id,
                rank,
                part,
            )

    def _write(
        self,
        job_id: str,
        rank: int,
        part: LogPart,
    ) -> None:
        folder = self._of(job_id)
        folder.mkdir(
            mode=0o700,
            parents=True,
            exist_ok=True,
        )
        before = self._file(job_id, rank)
        file = folder / f"{rank}.{part.offset}"
        file.write_bytes(part.text.encode("utf-8", "replace"))
        if before is not None and before != file:
            before.unlink()

    def _file(self, job_id: str, rank: int) -> Path | None:
        return next(self._of(job_id).glob(f"{rank}.*"), None)

    def _of(self, job_id: str) -> Path:
        return self._folder / job_id

    def read(
        self,
        job_id: str,
        rank: int,
        after: int,
        limit: int,
    ) -> LogPart | None:
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
        return LogPart(
            offset=offset,
            text=text,
            next=offset + whole,
        )

    def bound(self, most: int = MOST_KEPT_OF_ALL_BYTES) -> None:
        """Delete the output of the jobs that ended first, if all output exceeds ``most`` bytes."""
        folders = [each for each in self._folder.glob("*") if each.is_dir()]
        left = 0
        for folder in sorted(
            folders,
            key=lambda each: each.stat().st_mtime,
            reverse=True,
        ):
            left += sum(file.stat().st_size for file in folder.iterdir())
            if left > most:
                self.forget(folder.name)

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
        self._store = store
        self._ledger = ledger
        self._outputs = outputs
        self._settings = settings
        self._clock = clock

    async def run(self) -> None:
        """Delete now, and again every ten minutes."""
        while True:
            try:
                more = await asyncio.to_thread(self.forget_some)
            except JournalError as error:
                _log.warning("old records stay for now: %s", error)
                more = False
            await asyncio.sleep(_PAUSE_S if more else _EVERY_S)

    def forget_some(self) -> bool:
        """Delete some; returns whether there are more."""
        keep_for_s = self._settings.keep_for_s
        before = None if keep_for_s is None else self._clock() - keep_for_s
        gone, more = self._ledger.forget(
            before or 0.0, self._settings.keep_jobs
        )
        for job_id in gone:
            self._outputs.forget(job_id)
        old = before is not None and self._store.forget(before)
        more = self._ledger.bound_reports() or bool(old) or more
        if not more:
            self._outputs.bound()
        return more
