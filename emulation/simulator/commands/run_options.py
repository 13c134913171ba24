"""The options of commands that simulate: where results go, and what runs the simulations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from patchlight.console.options import Command
from patchlight.console.rendering import say
from patchlight.console.shared import SharedOption
from patchlight.testbed.errors import PatchlightError

if TYPE_CHECKING:
    from patchlight.emulation.simulator.executors import Engine

_OPTIONS: dict[str, dict[str, Any]] = {
    "--processes": {
        "type": click.IntRange(1, 1_000_000),
        "metavar": "N",
        "help": "Parallel simulations; results do not depend on it.  [default: one per core]",
    },
    "--ray": {
        "metavar": "HOST:PORT|local",
        "help": "Simulate on this Ray cluster, or on one started for the run.",
    },
    "--output": {
        "type": click.Path(
            path_type=Path,
            file_okay=False,
        ),
        "metavar": "DIR",
        "help": "Folder for the results.  [default: results/COMMAND-<time>]",
    },
    "--strict": {
        "is_flag": True,
        "help": "Exit with code 1 if a policy failed, after the results are written.",
    },
}


def run_options(
    *names: str, described: bool = False
) -> Callable[[Command], Command]:
    """Add these options, or all; ``patchlight simulate --help`` has them ``described``."""

    def add(command: Command) -> Command:
        for name in reversed(names or tuple(_OPTIONS)):
            of = None if described else "simulate"
            command = click.option(
                name,
                cls=SharedOption,
                of=of,
                **_OPTIONS[name],
            )(command)
        return command

    return add


def engine_of(processes: int | None, ray: str | None = None) -> Engine:
    """The executor that ``--processes`` and ``--ray`` name."""
    from patchlight.emulation.simulator.executors import Engine

    if ray is None:
        return (
            Engine("serial")
            if processes == 1
            else Engine("processes", processes or 0)
        )
    return Engine("ray", processes or 0, None if ray == "local" else ray)


def refuse_faults(count: int) -> None:
    """``PatchlightError`` if policies failed: the default policy decided in their place."""
    if count:
        raise PatchlightError(
            f"policies failed {count} times, and the default policy decided instead",
            hint="the first failures are shown above; without --strict they are only counted",
        )


def only_some_finished(
    finished: int,
    wanted: int,
    counted: str,
) -> NoReturn:
    """End a command like Ctrl-C does, once the finished part of its work is written."""
    say(
        f"patchlight: only {finished} of {wanted} {counted} are finished and written",
        err=True,
    )
    raise KeyboardInterrupt
