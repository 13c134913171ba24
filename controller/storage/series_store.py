"""Stores time series as windows, which are wider the longer they are kept."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from patchlight.controller.storage.database import Database

Sample = tuple[float, float]
"""When (Unix time), and the value."""

WIDTHS_S = (10, 60, 600, 3600)
"""The widths of windows; each is a multiple of the previous one."""

MOST_ROWS = 180_000
"""The maximum rows of each width: about 25 MB (137 bytes each)."""

# Longer reading would delay the next window.
_MOST_READ = 20_000

_TABLES = """
CREATE TABLE windows (
    width_s INTEGER NOT NULL, at INTEGER NOT NULL, job TEXT NOT NULL, gpus INTEGER NOT NULL,
    busy REAL, busy_least REAL, busy_most REAL,
    sent_bps REAL, sent_least_bps REAL, sent_most_bps REAL,
    iterations INTEGER NOT NULL, iteration_s REAL, iteration_least_s REAL, iteration_most_s REAL,
    predicted_s REAL, PRIMARY KEY (width_s, at, job)) WITHOUT ROWID;
"""
# Windows of one width as fewer of another. All have equal weight, except for iterations.
_MERGED = """
SELECT at - at % ?1 AS begins, job, max(gpus), avg(busy), min(busy_least), max(busy_most),
    avg(sent_bps), min(sent_least_bps), max(sent_most_bps), sum(iterations),
    sum(iterations * iteration_s) / sum(iterations), min(iteration_least_s), max(iteration_most_s),
    avg(predicted_s)
FROM windows WHERE width_s = ?2 AND at >= ?3 AND at < ?4"""
_WIDEN = f"INSERT OR REPLACE INTO windows SELECT ?1, * FROM ({_MERGED} GROUP BY begins, job)"
_ADD = f"INSERT OR REPLACE INTO windows VALUES ({', '.join('?' * 15)})"
_FORGET = """
DELETE FROM windows WHERE width_s = ?1 AND at <=
    (SELECT at FROM windows WHERE width_s = ?1 ORDER BY at LIMIT 1 OFFSET ?2)"""


class Spread(NamedTuple):
    """The mean of a value, and its minimum and maximum."""

    mean: float
    least: float
    most: float


class SeriesWindow(NamedTuple):
    """A window that begins ``at`` (Unix time).

    For a job: the mean utilisation of its ``gpus``, the total rate of its hosts (bit/s of the lab),
    and the time of its ``iterations``; ``predicted_s`` is the prediction at the window's end. An
    empty ``job`` means the lab: values per GPU and host, with minimum and maximum.
    """

    at: int
    job: str
    gpus: int
    busy: Spread | None = None
    sent_bps: Spread | None = None
    iterations: int = 0
    iteration_s: Spread | None = None
    predicted_s: float | None = None

    @property
    def as_json(self) -> dict[str, Any]:
        """As in the API, without the job's name."""
        return {
            name: value._asdict() if isinstance(value, Spread) else value
            for name, value in self._asdict().items()
            if name != "job"
        }


class JobThen(NamedTuple):
    """A job that ran in a window: its hosts with their GPUs (or ``""``), since when, and the
    iteration times reported since the last window."""

    hosts: Sequence[tuple[str, str]]
    iterations_s: Sequence[float]
    since: float
    until: float
    predicted_s: float | None


def lab_window(
    at: int,
    busy: Mapping[str, Sequence[Sample]],
    sent: Mapping[str, Sequence[Sample]],
) -> SeriesWindow:
    """The window of all GPUs and hosts, by name."""
    shares, rates = (
        [v for s in each.values() for _, v in s] for each in (busy, sent)
    )
    return SeriesWindow(
        at,
        "",
        len(busy),
        _spread(shares),
        _spread(rates),
    )


def job_window(
    at: int,
    job: str,
    then: JobThen,
    busy: Mapping[str, Sequence[Sample]],
    sent: Mapping[str, Sequence[Sample]],
) -> SeriesWindow:
    """The window of one job, from the samples of all GPUs and hosts."""

    def its(
        all_samples: Mapping[str, Sequence[Sample]], name: str
    ) -> list[Sample]:
        return [
            s
            for s in all_samples.get(name, ())
            if then.since <= s[0] <= then.until
        ]

    gpus = [gpu for _, gpu in then.hosts if gpu]
    share = summed([its(busy, gpu) for gpu in gpus])
    return SeriesWindow(
        at,
        job,
        len(gpus),
        None
        if share is None
        else Spread(*(value / len(gpus) for value in share)),
        summed([its(sent, host) for host, _ in then.hosts]),
        len(then.iterations_s),
        _spread(then.iterations_s),
        then.predicted_s,
    )


def summed(series: Iterable[Sequence[Sample]]) -> Spread | None:
    """The mean and the limits of the sum of several series; each has its last sample's value, or
    before the first, that one's."""
    told = [samples for samples in series if samples]
    if not told:
        return None
    now = [samples[0][1] for samples in told]
    total = least = most = sum(now)
    last_at: float | None = None
    for at, number, value in sorted(
        (at, n, v) for n, s in enumerate(told) for at, v in s
    ):
        # Samples of one time change the sum once.
        if last_at is not None and at > last_at:
            least = min(least, total)
            most = max(most, total)
        last_at = at
        total = total + value - now[number]
        now[number] = value
    least = min(least, total)
    most = max(most, total)
    mean = sum(fmean(value for _, value in samples) for samples in told)
    return Spread(mean, min(least, mean), max(most, mean))


def _spread(values: Sequence[float]) -> Spread | None:
    return Spread(fmean(values), min(values), max(values)) if values else None


class SeriesStore(Database):
    """Windows of time, in a separate file that may be lost."""

    schemas = (_TABLES,)
    is_durable = False

    def __init__(self, path: Path | str, most_rows: int = MOST_ROWS) -> None:
        super().__init__(path)
        self._most_rows = most_rows
        self._counts = dict.fromkeys(WIDTHS_S, 0)
        self._counts |= dict(
            self.rows("SELECT width_s, count(*) FROM windows GROUP BY width_s")
        )

    def add(
        self, windows: Iterable[SeriesWindow], before: float = 0.0
    ) -> None:
        """Append windows of one time and the least width; wider ones follow when full. Those that
        began ``before`` and the oldest beyond the maximum are deleted."""
        windows = list(windows)
        rows = [(WIDTHS_S[0], *_row(window)) for window in windows]
        until = max((window.at for window in windows), default=0) + WIDTHS_S[0]
        with self.together() as db:
            self._counts[WIDTHS_S[0]] += db.executemany(_ADD, rows).rowcount
            for width, wide in pairwise(WIDTHS_S):
                first = "SELECT max(at) + ?1 FROM windows WHERE width_s = ?1"
                since = db.execute(first, (wide,)).fetchone()[0] or 0
                full = until - until % wide
                if since < full:
                    self._counts[wide] += db.execute(
                        _WIDEN, (wide, width, since, full)
                    ).rowcount
            for width, count in self._counts.items():
                old = "DELETE FROM windows WHERE width_s = ? AND at < ?"
                count -= (
                    db.execute(old, (width, before)).rowcount if before else 0
                )
                if (excess := count - self._most_rows) > 0:
                    count -= db.execute(_FORGET, (width, excess - 1)).rowcount
                self._counts[width] = count

    def read(
        self,
        since: float,
        until: float,
        points: int = 300,
        jobs: Collection[str] | None = None,
    ) -> tuple[int, list[SeriesWindow]]:
        """The width and the windows of a period, about ``points`` of each job (``""``: the lab),
        oldest first. The width is the finest that reaches back far enough, or a multiple."""
        width = self._width(since, until)
        begins = max(since, 0.0)
        ends = max(until, 0.0)
        found = self.rows(
            "SELECT min(at), max(at) FROM windows WHERE width_s = ? AND at > ? AND at < ?",
            width,
            begins - width,
            ends,
        )
        first, last = found[0]
        if first is None:
            return width, []
        # Gaps need no thinning.
        span = min(ends, last + width) - max(begins, first)
        wide = width * max(1, math.ceil(span / points / width))
        named = (
            ""
            if jobs is None
            else f" AND job IN ({', '.join('?' * len(jobs))})"
        )
        sql = f"{_MERGED}{named} GROUP BY begins, job ORDER BY begins, job"
        rows = self.rows(
            sql,
            wide,
            width,
            first,
            last + 1,
            *(jobs or ()),
        )
        return wide, [_window(row) for row in rows]

    def _width(self, since: float, until: float) -> int:
        """The least width that reaches back as far as any, or to ``since``, and is fast to read."""
        first = "SELECT min(at) FROM windows WHERE width_s = ?"  # quick: from the index
        firsts = {width: self.rows(first, width)[0][0] for width in WIDTHS_S}
        begins = {width: at for width, at in firsts.items() if at is not None}
        sql = "SELECT count(*) FROM (SELECT 1 FROM windows WHERE width_s = ? AND at >= ? AND at < ?"
        for width, begin in begins.items():
            if begin > since and any(
                begin >= other + wide
                for wide, other in begins.items()
                if wide > width
            ):
                continue
            rows = self.rows(
                f"{sql} LIMIT {_MOST_READ + 1})",
                width,
                since,
                until,
            )
            if rows[0][0] <= _MOST_READ:
                return width
        return max(begins, default=WIDTHS_S[0])


def _row(window: SeriesWindow) -> tuple[object, ...]:
    spreads = (window.busy, window.sent_bps, window.iteration_s)
    busy, sent, took = (spread or (None, None, None) for spread in spreads)
    begins = (window.at, window.job, window.gpus)
    return *begins, *busy, *sent, window.iterations, *took, window.predicted_s


def _window(row: Sequence[Any]) -> SeriesWindow:
    at, job, gpus, *values = row
    busy, sent, took = (
        None if values[first] is None else Spread(*values[first : first + 3])
        for first in (0, 3, 7)
    )
    return SeriesWindow(
        at,
        job,
        gpus,
        busy,
        sent,
        values[6],
        took,
        values[10],
    )
