"""Logs to standard error, with a limit that network clients cannot exceed.

Libraries log what they receive, sometimes with a traceback, so the limit is in the handler.
"""

import asyncio
import logging
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from patchlight.testbed.clock import monotonic_s
from patchlight.testbed.errors import harmless

_MOST = 10
_PERIOD_S = 60.0


def log_to_stderr(level: int | str, form: str) -> None:
    """Log to standard error from this level on, rate-limited, in ``form`` (as in ``logging``)."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(Sparing())
    handler.setFormatter(_Harmless(form))
    logging.basicConfig(
        level=level,
        handlers=[handler],
    )


class _Harmless(logging.Formatter):
    """Shows the control characters in what devices, workers and clients sent."""

    def format(self, record: logging.LogRecord) -> str:
        return harmless(super().format(record), keep="\n\t")


class Sparing(logging.Filter):
    """Passes ten messages a minute of each line of code, and counts the others.

    ``clock`` returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = monotonic_s) -> None:
        super().__init__()
        self._clock = clock
        self._began = clock()
        self._seen: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._left_out: dict[tuple[str, int], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the message passes; it may get a remark."""
        if self._clock() - self._began > _PERIOD_S:
            self._began = self._clock()
            for kind, count in self._seen.items():
                if count > _MOST:
                    self._left_out[kind] = (
                        self._left_out.get(kind, 0) + count - _MOST
                    )
            self._seen.clear()
        kind = record.pathname, record.lineno
        self._seen[kind] += 1
        if missing := self._left_out.pop(kind, 0):
            record.msg = (
                f"{record.msg} ({missing} similar messages were suppressed)"
            )
        if self._seen[kind] == _MOST:
            record.msg = (
                f"{record.msg} (similar messages are suppressed for a minute)"
            )
        return self._seen[kind] <= _MOST


def log_trouble(
    loop: asyncio.AbstractEventLoop, context: dict[str, Any]
) -> None:
    """An event loop's exception handler that ignores a harmless error of anyio.

    A read from a Unix socket that is woken and cancelled in one turn raises ``InvalidStateError``.
    """
    woken = getattr(
        getattr(context.get("handle"), "_callback", None), "__self__", None
    )
    is_late = isinstance(woken, asyncio.Future) and woken.cancelled()
    if not (
        is_late
        and isinstance(context.get("exception"), asyncio.InvalidStateError)
    ):
        loop.default_exception_handler(context)
