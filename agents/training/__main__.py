"""One worker: ``python3 -m patchlight.agents.training --task FILE``; its folder is the task's."""

from __future__ import annotations

import argparse
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType

from .compute import open_device
from .control import ControlServer, Gate, Journal, StoppedAt
from .task import TrainingError, read_task
from .trainer import train


class Stopped(BaseException):
    """The worker was told to stop; not an error, so no ``except Exception`` swallows it."""


def main() -> int:
    """Run the worker; 0 when it is done or was told to stop, 1 when it failed."""
    parser = argparse.ArgumentParser(prog="patchlight.agents.training", description=__doc__)
    parser.add_argument("--task", type=Path, required=True, help="the task file")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _stop)
    directory = arguments.task.resolve().parent
    journal = Journal(directory)
    try:
        task = read_task(arguments.task)
        journal.goes_on_at(task.first_iteration)
        gate = Gate(
            task.iterations,
            lambda state, _iteration: journal.state(state),
            first=task.first_iteration,
        )
        ControlServer(directory, gate)
        device = open_device(task)
        try:
            train(task, device, gate, journal)
        finally:
            device.close()
    except Stopped:
        journal.state("stopped", "told to stop")
        return 0
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


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise Stopped


if __name__ == "__main__":
    sys.exit(main())
