"""Tasks on a Ray cluster: one that runs already, or one on this machine for as long as it takes."""

import logging
import os
import socket
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from patchlight.emulation.simulator.executors.contract import (
    ATTEMPTS,
    Engine,
    EngineFailure,
    Found,
    Worker,
)

T = TypeVar("T")
R = TypeVar("R")

_KNOCK_S = 5.0

# The worker of the latest run in this Ray process, so that it is unpacked only once.
_kept: tuple[str, Worker[Any, Any]] | None = None


def _do(run: str, boxed: list[Any], task: Any) -> Any:
    """Runs in a process of Ray. ``boxed`` holds a reference, which Ray would else unpack."""
    import ray

    global _kept
    if _kept is None or _kept[0] != run:
        _kept = (run, ray.get(boxed[0]))
    return _kept[1](task)


def run_on_ray(tasks: Sequence[T], worker: Worker[T, R], engine: Engine, found: Found[R]) -> None:
    """Do all tasks; Ray begins those of a process or machine that died again elsewhere.

    ``EngineFailure`` if Ray is not installed or cannot be reached, or a task's processes died
    ``ATTEMPTS`` times.
    """
    with connected(engine) as ray:
        # The rest of the project travels by name: the cluster needs the same version of it.
        remote = ray.remote(_do).options(
            num_cpus=1, max_retries=ATTEMPTS - 1, name="patchlight", retry_exceptions=False
        )
        run, boxed = uuid.uuid4().hex, [ray.put(worker)]
        numbers = {remote.remote(run, boxed, task): number for number, task in enumerate(tasks)}
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
            hint="'ray status' and the log of its processes say more",
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
        raise EngineFailure(
            "engine ray needs the Python package 'ray', which is not installed",
            hint="pip install 'patchlight[ray]'",
        ) from error
    ours = not ray.is_initialized()
    if ours:
        options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
        if engine.address is None:
            # Without an address Ray would join any cluster that it finds a trace of.
            options |= {"address": "local", "num_cpus": engine.count, "include_dashboard": False}
        else:
            options["address"] = engine.address
        try:
            _knock(engine.address)
            ray.init(**options)
        except (OSError, RuntimeError, ValueError) as error:
            raise EngineFailure(
                f"connecting to Ray at {engine.address or 'this machine'}: {error}",
                hint="'ray start --head' starts a cluster; its address is HOST:6379, or "
                "ray://HOST:10001 from outside. A cluster that asks for a token wants the same "
                "RAY_AUTH_TOKEN here as there",
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
        socket.create_connection((host.strip("[]"), int(port)), _KNOCK_S).close()
