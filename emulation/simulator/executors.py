"""Runs many independent tasks: one after the other, on processes, or on a Ray cluster.

``run_all`` gives the results in the order of the tasks, so they are the same on every engine if a
task's result depends on the task alone.
"""

import atexit
import gc
import logging
import multiprocessing
import os
import signal
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from patchlight.testbed.errors import (
    BadInput,
    PackageMissing,
    PatchlightError,
    nearest,
    reason,
)

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


@dataclass(
    frozen=True,
    slots=True,
)
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
            raise BadInput(
                f"no engine {self.name!r}: {nearest(self.name, ENGINES)}"
            )
        if self.processes < 0:
            raise BadInput(
                f"cannot run on {self.processes} processes: expected 1 or more"
            )
        if self.address is not None and self.name != "ray":
            raise BadInput(f"engine {self.name} has no address: only ray does")

    @property
    def count(self) -> int:
        """How many processes of this machine it uses."""
        if self.name == "serial":
            return 1
        return self.processes or len(os.sched_getaffinity(0))


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


def run_on_processes(
    tasks: Sequence[T],
    worker: Worker[T, R],
    count: int,
    found: Found[R],
) -> None:
    """Do all tasks on ``count`` processes; ``EngineFailure`` if they die ``ATTEMPTS`` times."""
    left = dict(enumerate(tasks))
    for _ in range(ATTEMPTS):
        try:
            for number, result in _in_pool(
                left, worker, min(count, len(left))
            ):
                del left[number]
                found(number, result)
        except BrokenProcessPool:
            continue
        return
    raise EngineFailure(
        f"running {len(tasks)} tasks on {count} processes: processes died {ATTEMPTS} times",
        hint="the kernel may have ended them because memory ran out: try fewer processes",
    )


def _in_pool(
    left: dict[int, T],
    worker: Callable[[T], R],
    count: int,
) -> Iterator[tuple[int, R]]:
    # Spawned, not forked: a fork of a process with threads (a progress bar's) may hang.
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(
        count,
        context,
        _enter,
        (worker,),
    ) as pool:
        futures = {
            pool.submit(_do, task): number for number, task in left.items()
        }
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
            pool.shutdown(
                wait=True,
                cancel_futures=True,
            )


def run_all(
    tasks: Sequence[T],
    worker: Worker[T, R],
    engine: Engine | None = None,
    tell: Callable[[], None] | None = None,
    hear: Found[R] | None = None,
) -> list[R]:
    """Do all tasks; the results in the tasks' order. ``tell`` after each.

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
            run_on_ray(
                tasks,
                worker,
                engine,
                found,
            )
        elif engine.count == 1 or len(tasks) <= 1:
            for number, task in enumerate(tasks):
                found(number, worker(task))
        else:
            run_on_processes(
                tasks,
                worker,
                engine.count,
                found,
            )
    except KeyboardInterrupt:
        raise Interrupted(results) from None
    return [results[number] for number in range(len(tasks))]


_KNOCK_S = 5.0

# The worker of the latest run in this Ray process, so that it is unpacked only once.
_kept: tuple[str, Worker[Any, Any]] | None = None


def _do_on_ray(
    run: str,
    boxed: list[Any],
    task: Any,
) -> Any:
    """Runs in a process of Ray. ``boxed`` holds a reference, which Ray would else unpack."""
    import ray

    global _kept
    if _kept is None or _kept[0] != run:
        _kept = (run, ray.get(boxed[0]))
    return _kept[1](task)


def run_on_ray(
    tasks: Sequence[T],
    worker: Worker[T, R],
    engine: Engine,
    found: Found[R],
) -> None:
    """Do all tasks; Ray begins those of a process or machine that died again elsewhere.

    ``EngineFailure`` if Ray is not installed or cannot be reached, or a task's processes died
    ``ATTEMPTS`` times.
    """
    with connected(engine) as ray:
        # The rest of the project travels by name: the cluster needs the same version of it.
        remote = ray.remote(_do_on_ray).options(
            num_cpus=1,
            max_retries=ATTEMPTS - 1,
            name="patchlight",
            retry_exceptions=False,
        )
        run = uuid.uuid4().hex
        boxed = [ray.put(worker)]
        numbers = {
            remote.remote(run, boxed, task): number
            for number, task in enumerate(tasks)
        }
        waiting = list(numbers)
        try:
            while waiting:
                ready, waiting = ray.wait(waiting, num_returns=1)
                for reference in ready:
                    found(numbers[reference], _result(ray, reference))
        finally:
            for reference in waiting:
                ray.cancel(reference, force=True)


def _result(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        # What the worker raised, as a serial run would raise it.
        if isinstance(error.cause, Exception):
            raise error.cause from None
        raise EngineFailure(f"a task failed on Ray: {error}") from error
    except ray.exceptions.RayError as error:
        raise EngineFailure(
            f"running tasks on Ray: processes died {ATTEMPTS} times, at last with "
            f"{type(error).__name__}: {error}",
            hint="see 'ray status' and the log of its processes",
        ) from error


@contextmanager
def connected(engine: Engine) -> Iterator[Any]:
    """Ray, connected; a local cluster that we started is stopped again."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Spoken to on loopback only, and nobody waits for its colours.
    os.environ.setdefault("RAY_COLOR_PREFIX", "0")
    try:
        import ray
    except ModuleNotFoundError as error:
        raise PackageMissing("engine ray", error) from error
    ours = not ray.is_initialized()
    if ours:
        options: dict[str, Any] = {
            "logging_level": logging.ERROR,
            "log_to_driver": False,
        }
        if engine.address is None:
            # Without an address Ray would join any cluster that it finds a trace of.
            options |= {
                "address": "local",
                "num_cpus": engine.count,
                "include_dashboard": False,
            }
        else:
            options["address"] = engine.address
        try:
            _knock(engine.address)
            ray.init(**options)
        except (OSError, RuntimeError, ValueError) as error:
            raise EngineFailure(
                f"connecting to Ray at {engine.address or 'this machine'}: {reason(error)}",
                hint="'ray start --head' starts a cluster; its address is HOST:6379, or "
                "ray://HOST:10001 from outside. A cluster with a token needs the same "
                "RAY_AUTH_TOKEN here",
            ) from error
    try:
        yield ray
    finally:
        if ours:
            ray.shutdown()


def _knock(address: str | None) -> None:
    """``OSError`` if nobody answers there: Ray itself would try for minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection(
            (host.strip("[]"), int(port)), _KNOCK_S
        ).close()


_TAG = 0x504F4C49


def policy_seed(seed: int) -> int:
    """A seed that follows from the simulation's and is not it."""
    return int(np.random.SeedSequence([seed, _TAG]).generate_state(1)[0])
