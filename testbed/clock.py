"""The clocks of this process. Defaults of arguments use these, which look ``time`` up at each call:
``time.time`` itself would stay the real clock where a simulation replaces it."""

import time


def unix_s() -> float:
    """The Unix time in seconds."""
    return time.time()


def monotonic_s() -> float:
    """Seconds on a clock that is never set."""
    return time.monotonic()
