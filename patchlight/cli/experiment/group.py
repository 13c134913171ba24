"""``patchlight experiment``: a paper's experiment, on an emulated lab or in the simulator."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from patchlight.cli.errors import require_root
from patchlight.cli.experiment.pac_ml import pac_ml
from patchlight.testbed.jobs import JobStatus

_LOG_WIDTH = 130  # where there is no terminal to ask


@click.group(context_settings={"show_default": True})
def experiment() -> None:
    """Run a paper's experiment on an emulated lab, or in the simulator."""


experiment.add_command(pac_ml)


@experiment.command()
@click.option(
    "--iterations",
    type=click.IntRange(min=4),
    default=12,
    help="Iterations of a job of four GPUs; smaller jobs do more.",
)
@click.option(
    "--workers",
    type=click.Choice(["auto", "docker", "process"]),
    default="auto",
    help="Containers, processes, or containers where there can be.",
)
@click.option(
    "--scale",
    type=click.FloatRange(min=1),
    default=1000,
    help="What rates and bytes are divided by; times stay as they are.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the results go.  [default: results/ofc2022-<time>]",
)
@click.option(
    "--engine",
    type=click.Choice(["ryu", "os-ken"]),
    help="OpenFlow engine.  [default: ryu where it is importable]",
)
@click.option("--lab", default="ofc2022", metavar="LAB", help="A lab file or a built-in lab.")
@click.option("--name", help="Call the emulated lab so.  [default: the lab file's name]")
@click.option("--replace", is_flag=True, help="Take down a lab of that name first.")
@click.option("--cases", default="a,b,live", help="Which parts to run, joined by commas.")
def ofc2022(output: Path | None, cases: str, **chosen: Any) -> None:
    """Two training jobs on six GPUs: a static network against one rewired with light.

    Yan, Zhu, Glick, Wu, Bergman, OFC 2022. Prints the paper's figures beside the measured
    ones and writes plots, result.json and report.html.
    """
    require_root(
        "building a lab out of network namespaces", shlex.join(["patchlight", *sys.argv[1:]])
    )
    # Not above: importing NumPy and Matplotlib takes longer than --help should.
    from patchlight.deploy.docker import engine_with_image
    from patchlight.emulation.experiments.ofc2022.report import table_of
    from patchlight.emulation.experiments.ofc2022.run import ExperimentOptions, run_experiment

    parts = [part.strip() for part in cases.split(",") if part.strip()]
    folder = output or Path("results") / time.strftime("ofc2022-%Y%m%d-%H%M%S")
    wishes = ExperimentOptions(output=folder, parts=parts, **chosen)
    # Like Ctrl-C: an error that passes through the lab's with block, so that it is taken down.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console()
    if not console.is_terminal:
        console.width = _LOG_WIDTH
    bars, docker = _Bars(console), chosen["workers"] == "docker"
    with bars.shown(), engine_with_image(bars.say) if docker else nullcontext():
        outcome = run_experiment(wishes, bars.tell, bars.say)
    _give_to_caller([folder, *outcome.files])
    console.print(table_of(outcome.result))
    console.print(f"Report, plots and figures: {folder}/ (open {outcome.files[0]})", soft_wrap=True)


class _Bars:
    """Progress on a terminal: a bar for each job. Elsewhere: a line for each step."""

    def __init__(self, console: Console) -> None:
        self._console = console
        counted = (MofNCompleteColumn(), TextColumn("iterations"), TimeElapsedColumn())
        described = TextColumn("{task.description}")
        self._progress = Progress(described, BarColumn(), *counted, console=console)
        self._tasks: dict[str, TaskID] = {}

    def shown(self) -> AbstractContextManager[object]:
        return self._progress if self._console.is_terminal else nullcontext()

    def say(self, step: str) -> None:
        self._console.print(f"[dim]{time.strftime('%H:%M:%S')}[/dim] {step}", highlight=False)

    def tell(self, case: str, wiring: str, jobs: Sequence[JobStatus]) -> None:
        for job in jobs:
            if job.id not in self._tasks:
                self._tasks[job.id] = self._progress.add_task(
                    f"({case}) {wiring}, {job.spec.workers} GPUs", total=job.spec.iterations
                )
            self._progress.update(self._tasks[job.id], completed=job.iterations_done)


def _give_to_caller(paths: Sequence[Path]) -> None:
    """Under sudo, results belong to who called it, not to root."""
    owner, group = os.environ.get("SUDO_UID"), os.environ.get("SUDO_GID")
    if os.geteuid() == 0 and owner and group:
        for path in {*paths, *(p.parent for p in paths if p.parent.name == "results")}:
            os.chown(path, int(owner), int(group))
