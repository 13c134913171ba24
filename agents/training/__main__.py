"""Runs one worker: ``python3 -m patchlight.agents.training --task FILE``."""

# A job's workers start at once, and imports dominate their start time: import nothing that a
# synthetic worker can do without, not even argparse.

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial

from .control import ControlServer, Gate, Journal, StoppedAt
from .task import (
    ComputeDevice,
    TrainingError,
    TrainingTask,
    open_device,
    read_task,
)


def main() -> int:
    """Run the worker. Returns 0 if it finished or was stopped, 1 if it failed."""
    if sys.argv[1:] == ["--help"]:
        print(__doc__)
        return 0
    if len(sys.argv) != 3 or sys.argv[1] != "--task":
        print(__doc__, file=sys.stderr)
        return 2
    path = sys.argv[2]
    # Exclude imported modules from garbage collection: scanning them takes 6 ms of each 100.
    gc.disable()
    # Block the signal before other threads exist, so that they inherit the mask.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    directory = os.path.dirname(os.path.realpath(path))
    journal = Journal(directory)
    replying = threading.Lock()
    threading.Thread(
        target=_end_when_told,
        args=(journal, replying),
        daemon=True,
    ).start()
    try:
        task = read_task(path)
        journal.goes_on_at(task.first_iteration)
        gate = Gate(
            task.iterations,
            lambda state, _iteration: journal.state(state),
            first=task.first_iteration,
        )
        ControlServer(directory, gate, replying)
        train = _trainer_of(task, directory)
        gc.enable()
        device = open_device(task)
        try:
            train(
                task,
                device,
                gate,
                journal,
            )
        finally:
            device.close()
            replying.acquire()  # the order that let it end has its reply
    except StoppedAt as told:
        journal.state("stopped", str(told))
        return 0
    except TrainingError as exc:
        journal.state("failed", str(exc), getattr(exc, "lost_rank", None))
        print(
            f"worker failed: {exc}",
            file=sys.stderr,
            flush=True,
        )
        return 1
    except Exception as exc:
        journal.state("failed", f"{type(exc).__name__}: {exc}")
        sys.excepthook(type(exc), exc, exc.__traceback__)
        return 1
    journal.state("done")
    return 0


def _trainer_of(
    task: TrainingTask, directory: str
) -> Callable[
    [
        TrainingTask,
        ComputeDevice,
        Gate,
        Journal,
    ],
    None,
]:
    if task.model is None:
        from . import trainer

        if task.paths:
            from .control import AgentPaths

            return partial(
                trainer.train, path=AgentPaths(directory, task).path
            )
        return trainer.train
    try:
        from . import torch_ddp
    except ImportError as exc:
        raise TrainingError(
            f"training {task.model} needs PyTorch and PyYAML ({exc}): for processes pip install "
            "'patchlight[torch]', for containers deploy/worker-image.sh --torch"
        ) from exc
    return torch_ddp.train


def _end_when_told(journal: Journal, replying: threading.Lock) -> None:
    """End at SIGTERM from any state: no Python handler would run inside PyTorch."""
    signal.sigwait({signal.SIGTERM})
    journal.state("stopped", "stopped on request")
    replying.acquire(timeout=1)
    os._exit(0)


if __name__ == "__main__":
    code = main()
    # Without Python's finalization: threads of Gloo that end late abort the process in it
    # (https://github.com/pytorch/pytorch/issues/190489).
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
