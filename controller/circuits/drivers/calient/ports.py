"""Calient's port numbers: ``shelf.module.port``, eight ports on a module, eight modules."""

from __future__ import annotations

import functools
import re

from patchlight.testbed.errors import BadInput

PORTS_PER_MODULE = 8
MODULES_PER_SHELF = 8

_AID = re.compile(r"([1-9]\d{0,3})\.([1-8])\.([1-8])")


@functools.lru_cache(maxsize=4096)
def to_aid(port: int) -> str:
    """Canonical port 1, 2, … → ``1.1.1``, ``1.1.2``, …; port 65 is ``2.1.1``."""
    if port < 1:
        raise BadInput(f"{port} is not a port: ports count from 1")
    module, index = divmod(port - 1, PORTS_PER_MODULE)
    shelf, module = divmod(module, MODULES_PER_SHELF)
    return f"{shelf + 1}.{module + 1}.{index + 1}"


@functools.lru_cache(maxsize=4096)
def to_port(aid: str) -> int | None:
    """``2.1.1`` → 65; ``None`` if it is not such a number."""
    match = _AID.fullmatch(aid)
    if match is None:
        return None
    shelf, module, index = (int(part) for part in match.groups())
    return ((shelf - 1) * MODULES_PER_SHELF + module - 1) * PORTS_PER_MODULE + index
