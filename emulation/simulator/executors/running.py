"""The seam between those who have tasks and those who run them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from patchlight.emulation.simulator.executors.contract import Engine, Worker

T = TypeVar("T")
R = TypeVar("R")


def run_all(
    tasks: Sequence[T],
    worker: Worker[T, R],
    engine: Engine | None = None,
    tell: Callable[[], None] | None = None,
) -> list[R]:
    """Do all tasks; the results in the tasks' order, whoever did them. ``tell`` after each.

    ``worker`` and tasks must be picklable unless the engine is ``serial``. What a process that
    died leaves undone is done again by others; ``EngineFailure`` if they die too. An error that
    the worker raises ends all, and is raised here.
    """
    engine = engine or Engine()
    results: dict[int, R] = {}

    def found(number: int, result: R) -> None:
        results[number] = result
        if tell is not None:
            tell()

    if engine.name == "ray" and tasks:
        from patchlight.emulation.simulator.executors.on_ray import run_on_ray

        run_on_ray(tasks, worker, engine, found)
    elif engine.count == 1 or len(tasks) <= 1:
        for number, task in enumerate(tasks):
            found(number, worker(task))
    else:
        from patchlight.emulation.simulator.executors.processes import run_on_processes

        run_on_processes(tasks, worker, engine.count, found)
    return [results[number] for number in range(len(tasks))]
