"""The data model of a trace, and the parsing of its times and GPU counts."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from patchlight.testbed.errors import FileError, FileIssue

SHOWN = 20
"""So many mistakes are named; a trace may have a million."""


class TraceJob(NamedTuple):
    """One job of a trace.

    ``submitted_s`` and ``deadline_s`` (NaN where the trace has none, as in total public ones)
    count from the first job's submission; ``duration_s`` is how long it held its ``gpus``.
    ``cluster`` is the virtual cluster it belongs to and ``user`` whose it is, each empty if the
    trace does not say.
    """

    name: str
    submitted_s: float
    duration_s: float
    gpus: int
    cluster: str = ""
    deadline_s: float = math.nan
    user: str = ""


class TraceFileError(FileError):
    """A trace has mistakes. The first ``SHOWN`` are in ``mistakes``, then how many more."""

    def __init__(self, mistakes: Iterable[FileIssue], skippable: bool) -> None:
        super().__init__(mistakes)
        if skippable:
            self.hint = (
                "correct them, or leave such jobs out with --skip-bad (skip_bad=True in Python): "
                "they are counted"
            )


@dataclass(
    frozen=True,
    slots=True,
)
class Trace:
    """The jobs of a trace, by submission.

    ``out_of_order`` is how many stood behind one that was submitted later: they were sorted.
    ``left_out`` counts, by reason, the jobs that were left out because something is wrong with
    them. ``repeated`` are rows without a job's name that are the same as an earlier one.
    """

    file: str
    format: str
    jobs: list[TraceJob]
    out_of_order: int
    left_out: Mapping[str, int]
    repeated: int = 0

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on how it was read, a sentence each."""
        said = []
        if self.format == "swf":
            said.append(f"{self.file}: its processors count as GPUs")
        if self.out_of_order:
            said.append(
                f"{self.file}: {self.out_of_order:,} of {len(self.jobs):,} jobs came after a job "
                f"that was submitted later; all are sorted by submission"
            )
        if self.repeated:
            said.append(
                f"{self.file}: {self.repeated:,} rows repeat an earlier row; they count, because "
                f"these jobs have no names"
            )
        if count := sum(self.left_out.values()):
            reasons = ", ".join(
                f"{why}: {number:,}" for why, number in self.left_out.items()
            )
            said.append(f"{self.file}: jobs left out: {count:,} ({reasons})")
        return tuple(said)


class Wrong(ValueError):
    """A wrong value: the message, and a short form to count it by."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class Gathering:
    """Gathers the jobs of one file and its mistakes while it is read."""

    def __init__(self, file: str, skip_bad: bool) -> None:
        self.file = file
        self.skip_bad = skip_bad
        self._jobs: list[TraceJob] = []
        self.repeated = 0
        self._names: set[str] = set()
        self._mistakes: list[FileIssue] = []
        self._left_out: Counter[str] = Counter()

    def job(self, job: TraceJob) -> None:
        """A job, submitted at any time; ``Wrong`` if another one has its name."""
        if job.name in self._names:
            raise Wrong(f"job {job.name!r} appears twice", "appears twice")
        self._names.add(job.name)
        self._jobs.append(job)

    def wants_place(self) -> bool:
        """Whether the next mistake's place will be shown; finding it may be costly."""
        return len(self._mistakes) < SHOWN

    def bad(
        self,
        line: int,
        column: int,
        wrong: Wrong,
        file: str | None = None,
    ) -> None:
        """A job that cannot be read, and why; ``file`` if it is not the trace's main one."""
        self._left_out[wrong.reason] += 1
        if self.wants_place():
            self._mistakes.append(
                FileIssue(
                    file or self.file,
                    line,
                    column,
                    str(wrong),
                )
            )

    def refuse(self, line: int, message: str) -> TraceFileError:
        """The whole file is not what it should be: the error to raise."""
        return TraceFileError(
            [
                FileIssue(
                    self.file,
                    line,
                    1,
                    message,
                )
            ],
            skippable=False,
        )

    def finish(self, format: str) -> Trace:
        """The trace; ``TraceFileError`` for mistakes that were not to be skipped, or no job."""
        if self._left_out and not (self.skip_bad and self._jobs):
            found = list(self._mistakes)
            if more := sum(self._left_out.values()) - len(found):
                last = found[-1]
                reasons = ", ".join(
                    f"{why}: {n:,}" for why, n in self._left_out.items()
                )
                said = f"and {more:,} more mistakes follow (in all {reasons})"
                found.append(
                    FileIssue(
                        last.file,
                        last.line,
                        last.column,
                        said,
                    )
                )
            raise TraceFileError(found, skippable=bool(self._jobs))
        if not self._jobs:
            raise self.refuse(1, "no jobs: the trace is empty")
        times = [job.submitted_s for job in self._jobs]
        latest = -math.inf
        behind = 0
        for time in times:
            behind += time < latest
            latest = max(latest, time)
        first = min(times)
        jobs = [
            job._replace(submitted_s=job.submitted_s - first)
            for job in self._jobs
        ]
        jobs.sort(key=lambda job: job.submitted_s)
        return Trace(
            self.file,
            format,
            jobs,
            behind,
            dict(self._left_out),
            self.repeated,
        )


_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(
    1970,
    1,
    1,
    tzinfo=UTC,
)
_NOTHING = frozenset(
    {"", "none", "nan", "null", "na", "nat", "n/a", "unknown"}
)
_GPUS_AT_MOST = 1_000_000


def is_nothing(text: str) -> bool:
    """Whether a table says by this that it has no value here."""
    return text.strip().lower() in _NOTHING


def moment(text: str, what: str) -> float:
    """Seconds since some fixed day, from a date and time or from a number of seconds.

    A date without a zone is taken as it stands, as if in UTC.
    """
    try:
        # Without dashes, eight digits would be taken for a date.
        date = datetime.fromisoformat(text) if text[4:5] == "-" else None
    except ValueError:
        date = None
    if date is None:
        return _seconds(
            text, what, "a date and time, like 2017-10-09 07:01:55, or seconds"
        )
    return (
        date - (_EPOCH if date.tzinfo is None else _EPOCH_UTC)
    ).total_seconds()


def duration(text: str, what: str) -> float:
    """Seconds, more than none."""
    return lasting(_seconds(text, what, "seconds"), what)


def lasting(seconds: float, what: str) -> float:
    """A duration as it is, unless it is none or less."""
    if seconds <= 0:
        raise Wrong(
            f"{what} is {seconds:g} s: expected more than 0",
            f"{what} not above 0 s",
        )
    return seconds


def share(text: str, what: str) -> float:
    """A number of GPUs or instances that may be a fraction, 0 or more; no value is 0."""
    return (
        0.0
        if is_nothing(text)
        else _seconds(
            text,
            what,
            "a number, 0 or more",
            least=0.0,
        )
    )


def gpus(text: str, what: str) -> int:
    """A whole number of GPUs, 1 or more."""
    try:
        count: float = int(text)
    except ValueError:
        count = _seconds(text, what, "a whole number of GPUs, 1 or more")
    if count != int(count):
        raise Wrong(
            f"{what} is {text!r}: expected a whole number", f"{what} not whole"
        )
    return some_gpus(int(count), what)


def some_gpus(count: int, what: str) -> int:
    """A number of GPUs as it is, unless it is none or a size of nonsense."""
    if count == 0:
        raise Wrong(f"{what} is 0: a job without a GPU", "no GPU")
    if not 0 < count <= _GPUS_AT_MOST:
        raise Wrong(
            f"{what} is {count}: expected 1 to {_GPUS_AT_MOST:,}",
            f"{what} out of range",
        )
    return count


def _seconds(
    text: str,
    what: str,
    expected: str,
    least: float = -math.inf,
) -> float:
    if is_nothing(text):
        raise Wrong(
            f"{what} is missing: expected {expected}", f"{what} missing"
        )
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= least):
        raise Wrong(
            f"{what} is {text!r}: expected {expected}", f"{what} unreadable"
        )
    return value
