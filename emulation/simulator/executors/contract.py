"""Which engine runs tasks, and what it is to do."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.io.issues import nearest

T = TypeVar("T")
R = TypeVar("R")

ENGINES = ("serial", "processes", "ray")
ATTEMPTS = 3
"""A task whose process died is begun again so often, the first time included."""

Worker = Callable[[T], R]
"""Does one task. It is copied to every process once, and may keep what it computed."""

Found = Callable[[int, R], None]
"""Hears of each result as it comes, with its task's number."""


class EngineFailure(PatchlightError):
    """The processes or machines that were to do the tasks died, or cannot be reached."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while tasks were done. ``results`` has those that were finished, by number."""

    def __init__(self, results: Mapping[int, Any]) -> None:
        super().__init__()
        self.results = results


@dataclass(frozen=True, slots=True)
class Engine:
    """How tasks are run. ``processes`` 0 is one for each core; Ray then uses all it has.

    ``address`` is that of a Ray cluster; without one, one is started on this machine and
    stopped at the end.
    """

    name: str = "processes"
    processes: int = 0
    address: str | None = None

    def __post_init__(self) -> None:
        if self.name not in ENGINES:
            raise BadInput(f"no engine {self.name!r}: {nearest(self.name, ENGINES)}")
        if self.processes < 0:
            raise BadInput(f"cannot run on {self.processes} processes: expected 1 or more")
        if self.address is not None and self.name != "ray":
            raise BadInput(f"engine {self.name} has no address: only ray does")

    @property
    def count(self) -> int:
        """How many processes of this machine it uses."""
        if self.name == "serial":
            return 1
        return self.processes or len(os.sched_getaffinity(0))
