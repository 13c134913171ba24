"""Loops over arrays, compiled where Numba is installed (extra ``fast``) and interpreted elsewhere.

The same source both times, and the same results: Numba only makes it quicker.
"""

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, TypeVar

Loop = TypeVar("Loop", bound=Callable[..., Any])

_numba: Any = None
with suppress(ImportError):
    _numba = import_module("numba")

IS_COMPILED = _numba is not None
"""Whether loops are compiled here."""


def compiled(loop: Loop) -> Loop:
    """The loop as machine code, kept on disk for the next process; itself without Numba."""
    if _numba is None:
        return loop
    made: Loop
    try:
        made = _numba.njit(cache=True, error_model="numpy")(loop)
    except RuntimeError:  # Neither the package's folder nor the user's can be written to.
        made = _numba.njit(error_model="numpy")(loop)
    return made
