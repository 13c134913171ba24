"""Reads the values of a trace: moments, durations, numbers of GPUs. Each raises ``Wrong``."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from patchlight.emulation.simulator.traces.model import Wrong

_EPOCH, _EPOCH_UTC = datetime(1970, 1, 1), datetime(1970, 1, 1, tzinfo=UTC)
_NOTHING = frozenset({"", "none", "nan", "null", "na", "nat"})
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
        return _seconds(text, what, "a date and time, like 2017-10-09 07:01:55, or seconds")
    return (date - (_EPOCH if date.tzinfo is None else _EPOCH_UTC)).total_seconds()


def duration(text: str, what: str) -> float:
    """Seconds, more than none."""
    return lasting(_seconds(text, what, "seconds"), what)


def lasting(seconds: float, what: str) -> float:
    """A duration as it is, unless it is none or less."""
    if seconds <= 0:
        raise Wrong(f"{what} is {seconds:g} s: expected more than 0", f"{what} not above 0 s")
    return seconds


def share(text: str, what: str) -> float:
    """A number of GPUs or instances that may be a fraction, 0 or more; no value is 0."""
    return 0.0 if is_nothing(text) else _seconds(text, what, "a number, 0 or more", least=0.0)


def gpus(text: str, what: str) -> int:
    """A whole number of GPUs, 1 or more."""
    try:
        count: float = int(text)
    except ValueError:
        count = _seconds(text, what, "a whole number of GPUs, 1 or more")
    if count != int(count):
        raise Wrong(f"{what} is {text!r}: expected a whole number", f"{what} not whole")
    return some_gpus(int(count), what)


def some_gpus(count: int, what: str) -> int:
    """A number of GPUs as it is, unless it is none or a size of nonsense."""
    if count == 0:
        raise Wrong(f"{what} is 0: a job without a GPU", "no GPU")
    if not 0 < count <= _GPUS_AT_MOST:
        raise Wrong(f"{what} is {count}: expected 1 to {_GPUS_AT_MOST:,}", f"{what} out of range")
    return count


def _seconds(text: str, what: str, expected: str, least: float = -math.inf) -> float:
    if is_nothing(text):
        raise Wrong(f"{what} is missing: expected {expected}", f"{what} missing")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= least):
        raise Wrong(f"{what} is {text!r}: expected {expected}", f"{what} unreadable")
    return value
