"""One worker: ``python3 -m patchlight.agents.training --task FILE``; its folder is the task's."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from . import trainer
from .compute import Device, open_device
from .control import ControlServer, Gate, Journal, StoppedAt
from .task import TrainingError, TrainingTask, read_task


def main() -> int:
    """Run the worker; 0 when it is done or was told to stop, 1 when it failed."""
    parser = argparse.ArgumentParser(prog="patchlight.agents.training", description=__doc__)
    parser.add_argument("--task", type=Path, required=True, help="the task file")
    arguments = parser.parse_args()
    # Before there is any other thread: they all inherit it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    directory = arguments.task.resolve().parent
    journal = Journal(directory)
    threading.Thread(target=_end_when_told, args=(journal,), daemon=True).start()
    try:
        task = read_task(arguments.task)
        journal.goes_on_at(task.first_iteration)
        gate = Gate(
            task.iterations,
            lambda state, _iteration: journal.state(state),
            first=task.first_iteration,
        )
        ControlServer(directory, gate)
        train = _trainer_of(task)
        device = open_device(task)
        try:
            train(task, device, gate, journal)
        finally:
            device.close()
    except StoppedAt as told:
        journal.state("stopped", str(told))
        return 0
    except TrainingError as exc:
        journal.state("failed", str(exc))
        print(f"worker failed: {exc}", file=sys.stderr, flush=True)
        return 1
    except Exception as exc:
        journal.state("failed", f"{type(exc).__name__}: {exc}")
        traceback.print_exc()
        return 1
    journal.state("done")
    return 0


def _trainer_of(task: TrainingTask) -> Callable[[TrainingTask, Device, Gate, Journal], None]:
    if task.model is None:
        return trainer.train
    try:
        from . import torch_ddp
    except ImportError as exc:
        raise TrainingError(
            f"training {task.model} needs PyTorch, and this worker lacks it ({exc}): for processes "
            "pip install 'patchlight[torch]', for containers deploy/worker-image.sh --torch"
        ) from exc
    return torch_ddp.train


def _end_when_told(journal: Journal) -> None:
    """End at SIGTERM, whatever the training waits for: inside PyTorch, no handler would run."""
    signal.sigwait({signal.SIGTERM})
    journal.state("stopped", "told to stop")
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
