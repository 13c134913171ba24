"""Runs many independent tasks: one after the other, on processes, or on a Ray cluster.

``run_all`` gives the results in the tasks' order whoever made them, so they are the same on
every engine if a task's result depends on nothing but the task.
"""

from patchlight.emulation.simulator.executors.contract import (
    ENGINES,
    Engine,
    EngineFailure,
    Interrupted,
)
from patchlight.emulation.simulator.executors.running import run_all

__all__ = ["ENGINES", "Engine", "EngineFailure", "Interrupted", "run_all"]
