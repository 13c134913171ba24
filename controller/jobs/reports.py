"""Stores the reports of jobs' workers, and thins them out beyond a maximum."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field

from patchlight.controller.storage.database import Database, skip_record
from patchlight.testbed.jobs import JobState
from patchlight.testbed.wire.worker_api import Report

Record = Mapping[str, Any]

ENDED = ", ".join(f"'{state}'" for state in JobState if state.is_final)

MOST_REPORTS = 20_000
MOST_REPORTS_OF_ALL = 500_000
"""The maximum reports of a job, and of all jobs: about 2 and 50 MB (100 bytes each)."""

_LEAST_REPORTS = 1000
_TAIL = 64
_PAIR = 2
_LONGEST_STRIDE = 2**53
# The reports of a job with their place among those of the same worker. Older versions did not store
# it, and stored all reports.
_VALUE = "iif(json_valid(record), json_extract(record, '$.{}'), NULL)"
_PLACED = f"""
SELECT number, attempt, rank, attempt || ' ' || rank AS worker, coalesce(ordinal,
    row_number() OVER (PARTITION BY attempt, rank ORDER BY number) - 1) AS nth,
    row_number() OVER (PARTITION BY attempt, rank ORDER BY number DESC) AS back
FROM (SELECT number, {_VALUE.format("rank")} AS rank, {_VALUE.format("ordinal")} AS ordinal,
    coalesce({_VALUE.format("attempt")}, 0) AS attempt FROM iterations WHERE job = ?1)"""
_THIN = f"""
DELETE FROM iterations WHERE number IN
    (SELECT number FROM ({_PLACED}) WHERE back > ?2 AND nth % ?3 >= {_PAIR})"""
_MANY_REPORTS = f"""
SELECT id, (SELECT count(*) FROM iterations WHERE job = id) AS count FROM jobs
WHERE state IN ({ENDED}) AND count > ? ORDER BY jobs.rowid LIMIT 1"""


class _StoredReport(Report):
    """A report of a rank of an attempt; ``ordinal``: its number among those of the same worker."""

    rank: Annotated[int, Field(ge=0)]
    attempt: Annotated[int, Field(ge=0)] = 0
    ordinal: Annotated[int, Field(ge=0)] | None = None


_DEFAULTS = {
    n: f.default
    for n, f in _StoredReport.model_fields.items()
    if not f.is_required()
}


@dataclass(frozen=True)
class _Counted:
    kept: int
    made: int
    stride: int = _PAIR
    left: int = 0
    """How many the last thinning left."""


def _worker(report: Record) -> tuple[int, int]:
    return report.get("attempt", 0), report["rank"]


class JobReports:
    """The reports of all jobs on disk."""

    def __init__(
        self, database: Database, most_reports: int = MOST_REPORTS
    ) -> None:
        self._database = database
        self._most = most_reports
        # Of jobs that have not ended: stored and reported iterations, and the present stride.
        self._counted: dict[str, _Counted] = {}

    def add_iterations(self, job_id: str, records: Sequence[Record]) -> None:
        """Append reports of a job's workers. Beyond a maximum, older ones are thinned out."""
        counted = self._counted.get(job_id) or _Counted(
            *self.report_counts(job_id)
        )
        latest = Counter[tuple[int, int]]()
        for each in records:
            latest[_worker(each)] = max(
                latest[_worker(each)], each.get("ordinal", 0)
            )
        stored = [
            (
                job_id,
                json.dumps(
                    {k: v for k, v in each.items() if _DEFAULTS.get(k, k) != v}
                ),
            )
            for each in records
            if (ordinal := each.get("ordinal", 0)) % counted.stride < _PAIR
            or ordinal > latest[_worker(each)] - _TAIL
        ]
        self._database.write_all(
            "INSERT INTO iterations (job, record) VALUES (?, ?)", stored
        )
        self._counted[job_id] = counted = replace(
            counted,
            kept=counted.kept + len(stored),
            made=counted.made + len(records),
        )
        most = max(
            _LEAST_REPORTS,
            min(self._most, MOST_REPORTS_OF_ALL // 2 // len(self._counted)),
        )
        aim = most * 3 // 4
        if counted.kept > (most if counted.left <= aim else 2 * counted.left):
            kept, stride = self._thin(job_id, aim)
            self._counted[job_id] = replace(
                counted,
                kept=kept,
                stride=stride,
                left=kept,
            )

    def _thin(self, job_id: str, most: int) -> tuple[int, int]:
        """Delete reports of a job until there are at most so many, if possible. The first and last
        ones of each worker stay, and between them pairs, from which the times of iterations are
        known, at equal distances. Returns how many there are, and this distance."""
        sql = f"SELECT count(*), count(DISTINCT worker) FROM ({_PLACED})"
        kept, workers = self._database.rows(sql, job_id)[0]
        tail = max(_PAIR, min(_TAIL, most // (4 * max(1, workers))))
        stride = _PAIR
        while kept > most and stride < _LONGEST_STRIDE:
            stride *= 2
            with self._database.together() as db:
                kept -= db.execute(_THIN, (job_id, tail, stride)).rowcount
        return kept, stride

    def report_counts(self, job_id: str) -> tuple[int, int]:
        """How many reports of a job are stored, and how many there were."""
        if (counted := self._counted.get(job_id)) is not None:
            return counted.kept, counted.made
        kept = self._database.rows(
            "SELECT count(*) FROM iterations WHERE job = ?", job_id
        )[0][0]
        if kept < _PAIR * _TAIL:  # none was thinned out
            return kept, kept
        sql = f"SELECT max(nth) + 1 FROM ({_PLACED}) GROUP BY worker"
        return kept, sum(row[0] for row in self._database.rows(sql, job_id))

    def bound_reports(self, most: int = MOST_REPORTS_OF_ALL) -> bool:
        """Thin out the reports of the job that ended first and has many of them, if there are too
        many reports; returns whether that may be necessary again."""
        if (
            self._database.rows("SELECT count(*) FROM iterations")[0][0]
            <= most
        ):
            return False
        for least in (_LEAST_REPORTS, 0):
            found = self._database.rows(_MANY_REPORTS, least)
            if found:
                job_id, count = found[0]
                kept, _ = (
                    self._thin(job_id, count // 2) if least else (count, 0)
                )
                if kept > count * 3 // 4:  # these are the first and last ones
                    self._database.write(
                        "DELETE FROM iterations WHERE job = ?", job_id
                    )
                return True
        return False

    def iterations(
        self,
        job_id: str,
        after: int = 0,
        limit: int = -1,
    ) -> tuple[list[dict[str, Any]], int]:
        """At most ``limit`` reports of a job after number ``after``, and the last number."""
        which = "WHERE job = ? AND number > ? ORDER BY number LIMIT ?"
        found = self._reports(
            which,
            job_id,
            after,
            limit,
        )
        return [report for report, _ in found], found[-1][
            1
        ] if found else after

    def latest_iterations(
        self, job_id: str, most: int
    ) -> list[dict[str, Any]]:
        """The latest reports of a job's workers, oldest first."""
        found = self._reports(
            "WHERE job = ? ORDER BY number DESC LIMIT ?", job_id, most
        )
        return [report for report, _ in reversed(found)]

    def _reports(
        self, which: str, *values: object
    ) -> list[tuple[dict[str, Any], int]]:
        def report(text: str, number: int) -> tuple[dict[str, Any], int]:
            return _StoredReport.model_validate_json(text).model_dump(
                exclude={"ordinal"}
            ), number

        return self._database.each(
            "iterations",
            which,
            report,
            "number",
            unreadable=skip_record,
            values=values,
            decode=str,
        )

    def reported(self, job_id: str) -> int:
        """The number of a job's latest report, for ``iterations``; 0 without one."""
        rows = self._database.rows(
            "SELECT max(number) FROM iterations WHERE job = ?", job_id
        )
        return int(rows[0][0] or 0)

    def reports_by_rank(self, job_id: str, attempt: int) -> dict[int, int]:
        """How many reports of each rank of an attempt there were."""
        sql = (
            f"SELECT rank, max(nth) + 1 FROM ({_PLACED}) "
            "WHERE attempt = ? AND rank IS NOT NULL GROUP BY rank"
        )
        return dict(self._database.rows(sql, job_id, attempt))

    def forget_counts(self, job_ids: Iterable[str]) -> None:
        """These jobs have ended: what is counted of them is read again if needed."""
        for job_id in job_ids:
            self._counted.pop(job_id, None)
