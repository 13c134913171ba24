"""Runs tasks one after the other, on processes of this machine, or hands them to Ray."""

import atexit
import gc
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from patchlight.emulation.simulator.executors.contract import (
    ATTEMPTS,
    Engine,
    EngineFailure,
    Found,
    Interrupted,
    Worker,
)

T = TypeVar("T")
R = TypeVar("R")

_worker: Worker[Any, Any] | None = None


def _enter(worker: Worker[Any, Any]) -> None:
    global _worker
    # Ctrl-C reaches all of a terminal's processes: who began the tasks ends them all.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _worker = worker
    # All memory goes with the process: Python need not look for garbage in it at the end.
    atexit.register(gc.freeze)


def _do(task: Any) -> Any:
    assert _worker is not None
    return _worker(task)


def run_on_processes(tasks: Sequence[T], worker: Worker[T, R], count: int, found: Found[R]) -> None:
    """Do all tasks on ``count`` processes; ``EngineFailure`` if they die ``ATTEMPTS`` times."""
    left = dict(enumerate(tasks))
    for _ in range(ATTEMPTS):
        try:
            for number, result in _in_pool(left, worker, min(count, len(left))):
                del left[number]
                found(number, result)
        except BrokenProcessPool:
            continue
        return
    raise EngineFailure(
        f"running {len(tasks)} tasks on {count} processes: processes died {ATTEMPTS} times",
        hint="the kernel may have stopped them for want of memory: try fewer processes",
    )


def _in_pool(left: dict[int, T], worker: Callable[[T], R], count: int) -> Iterator[tuple[int, R]]:
    # Spawned, not forked: a fork of a process with threads (a progress bar's) may hang.
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(count, context, _enter, (worker,)) as pool:
        futures = {pool.submit(_do, task): number for number, task in left.items()}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            # Nobody wants what is under way any more, and it may take long.
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            raise
        finally:
            # Before the with block waits: what has not begun is not wanted any more.
            pool.shutdown(wait=True, cancel_futures=True)


def run_all(
    tasks: Sequence[T],
    worker: Worker[T, R],
    engine: Engine | None = None,
    tell: Callable[[], None] | None = None,
    hear: Found[R] | None = None,
) -> list[R]:
    """Do all tasks; the results in the tasks' order, whoever did them. ``tell`` after each.

    ``hear`` gets each result at once, with its task's number, as they come.

    ``worker`` and tasks must be picklable unless the engine is ``serial``. What a process that
    died leaves undone is done again by others; ``EngineFailure`` if they die too. An error that
    the worker raises ends all, and is raised here; Ctrl-C raises ``Interrupted``, which has the
    results until then.
    """
    engine = engine or Engine()
    results: dict[int, R] = {}

    def found(number: int, result: R) -> None:
        results[number] = result
        if hear is not None:
            hear(number, result)
        if tell is not None:
            tell()

    try:
        if engine.name == "ray" and tasks:
            from patchlight.emulation.simulator.executors.on_ray import run_on_ray

            run_on_ray(tasks, worker, engine, found)
        elif engine.count == 1 or len(tasks) <= 1:
            for number, task in enumerate(tasks):
                found(number, worker(task))
        else:
            run_on_processes(tasks, worker, engine.count, found)
    except KeyboardInterrupt:
        raise Interrupted(results) from None
    return [results[number] for number in range(len(tasks))]
