"""``patchlight experiment``: a paper's experiment, on an emulated lab or in the simulator."""

import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich import progress
from rich.console import Console

from patchlight.console import rendering as out
from patchlight.console.commands import Dashboard, require_root
from patchlight.console.shared import LazyGroup, lab_option
from patchlight.emulation.experiments.commands.oddl import oddl
from patchlight.emulation.experiments.commands.pac_ml import pac_ml
from patchlight.emulation.simulator.commands.run_options import (
    only_some_finished,
    run_options,
)
from patchlight.testbed.jobs import JobStatus


@click.group(
    cls=LazyGroup,
    prefix="experiment ",
    context_settings={"show_default": True},
)
def experiment() -> None:
    """Run a paper's experiment on an emulated lab or in a simulator."""


@experiment.command()
@click.option(
    "--iterations",
    type=click.IntRange(min=4),
    default=12,
    help="Iterations of a job with four GPUs; smaller jobs run more.",
)
@click.option(
    "--worker-kind",
    type=click.Choice(["auto", "docker", "process"]),
    default="auto",
    help="Run workers in containers or as processes; auto: containers if Docker is available.",
)
@click.option(
    "--scale",
    type=click.FloatRange(min=1),
    help="Divide rates and bytes by this; times stay the same.  [default: 1000; vm: 10000]",
)
@click.option(
    "--engine",
    type=click.Choice(["ryu", "os-ken"]),
    help="OpenFlow engine. [default: ryu if it is installed]",
)
@lab_option("The lab: a lab file or a built-in lab.", "lab", default="ofc2022")
@click.option(
    "--name", help="Name of the emulated lab.  [default: the lab file's]"
)
@click.option(
    "--replace",
    is_flag=True,
    help="Take down a lab of that name first.",
)
@click.option(
    "--cases",
    help="Parts to run, joined by commas. [default: a,b,live; with --trainer torch: a]",
)
@click.option(
    "--trainer",
    type=click.Choice(["synthetic", "torch"]),
    default="synthetic",
    help="torch: run case (a) again with a real model, trained by PyTorch.",
)
@click.option(
    "--mismatch",
    "mismatch_percent",
    type=click.FloatRange(min=0),
    default=0,
    metavar="PERCENT",
    help="Lengthen the second job's computation by this percentage, so that the jobs drift apart.",
)
@click.option(
    "--server-kind",
    "servers",
    type=click.Choice(["namespace", "vm"]),
    default="namespace",
    help="vm: servers are virtual machines with soft RoCE.",
)
@click.option(
    "--transport",
    type=click.Choice(["tcp", "rdma"]),
    default="tcp",
    help="Transport of the gradients; rdma (RoCE v2) needs --server-kind vm.",
)
@click.option(
    "--dashboard",
    is_flag=True,
    help="Show the lab in a browser during the run.",
)
@run_options("--output")
@out.wide_option
def ofc2022(
    output: Path | None,
    cases: str | None,
    dashboard: bool,
    **chosen: Any,
) -> None:
    """Compare a static network with a rewired one.

    S. Yan, Zhu, Glick, Wu, Bergman, OFC 2022. Prints the paper's figures beside the measured
    ones and writes plots, result.json and report.html. Needs root.
    """
    require_root("building a lab from network namespaces")
    # Not above: importing NumPy and Matplotlib takes longer than --help should.
    from patchlight.deploy.docker import engine_with_image
    from patchlight.emulation.experiments.ofc2022.run import (
        Ofc2022Options,
        run_experiment,
    )
    from patchlight.emulation.simulator.results import (
        give_to_caller,
        results_folder,
    )

    real = chosen["trainer"] == "torch"
    if cases is None:
        cases = "a" if real else "a,b,live"
    parts = [part.strip() for part in cases.split(",") if part.strip()]
    folder = results_folder(output, "ofc2022")
    wishes = Ofc2022Options(
        output=folder,
        parts=parts,
        **chosen,
    )
    # Like Ctrl-C: an error that passes through the lab's with block, so that it is taken down.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    terminal = out.console()
    bars = _Bars(terminal)
    docker = chosen["worker_kind"] == "docker"
    engine = (
        engine_with_image(bars.say, torch=real) if docker else nullcontext()
    )
    beside = (
        partial(_running_dashboard, say=bars.say) if dashboard else nullcontext
    )
    with bars.shown(), engine:
        outcome = run_experiment(
            wishes,
            bars.tell,
            bars.say,
            beside,
        )
    give_to_caller([folder, *outcome.files])
    print_ofc2022(outcome.result)
    out.say(f"Report, plots and figures: {folder}/ (open {outcome.files[0]})")


@contextmanager
def _running_dashboard(
    controller: str, say: Callable[[str], None]
) -> Iterator[None]:
    """A dashboard while the block runs, from when it answers on; ``say`` gets its address."""
    child = Dashboard(controller, stdout=subprocess.PIPE)
    assert child.process.stdout is not None
    try:
        where = child.process.stdout.readline().strip()
        say(where or "the dashboard did not start: see above")
        yield
    finally:
        child.close()
        child.process.stdout.close()


class _Bars:
    """Progress on a terminal: a bar for each job. Elsewhere: a line for each step."""

    def __init__(self, terminal: Console) -> None:
        self._out = terminal
        columns = (
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("iterations"),
            progress.TimeElapsedColumn(),
        )
        self._progress = progress.Progress(*columns, console=terminal)
        self._tasks: dict[str, progress.TaskID] = {}

    def shown(self) -> AbstractContextManager[object]:
        return self._progress if self._out.is_terminal else nullcontext()

    def say(self, step: str) -> None:
        self._out.print(
            f"{time.strftime('%H:%M:%S')} {out.harmless(step)}", soft_wrap=True
        )

    def tell(
        self,
        case: str,
        wiring: str,
        jobs: Sequence[JobStatus],
    ) -> None:
        for job in jobs:
            if job.id not in self._tasks:
                self._tasks[job.id] = self._progress.add_task(
                    f"({case}) {wiring}, {job.spec.workers} GPUs",
                    total=job.spec.iterations,
                )
            self._progress.update(
                self._tasks[job.id], completed=job.iterations_done
            )


experiment.add_command(oddl)
experiment.add_command(pac_ml)


def print_ofc2022(result: dict[str, Any]) -> None:
    """The paper's figures beside the measured ones."""
    from patchlight.emulation.experiments.ofc2022.report import (
        COLUMNS,
        differences,
        disturbed,
        is_void,
        rows_of,
    )

    title = "OFC 2022: static network → rewired network"
    if percent := result["mismatch_percent"]:
        title += f", second job computing {percent:g} % longer"
    case, job, paper, measured, difference = COLUMNS
    kept = (out.Column(name, whole=True) for name in (measured, difference))
    table = out.Table(
        out.Column(case, whole=True),
        out.Column(job, whole=True),
        paper,
        *kept,
        title=title,
    )
    previous = None
    for row in rows_of(result):
        if previous is not None and row[0] != previous:
            table.end_section()
        previous = row[0]
        table.add_row(*row)
    table.print()
    for line in (result["headline"], *differences(result)):
        out.console().print(line, highlight=False)
    if words := disturbed(result):
        out.say(words, meaning="caution" if is_void(result) else None)


_QUICK_JOBS = 20
_JOBS = 100


@experiment.command()
@click.option(
    "--labs",
    type=click.IntRange(min=1),
    help="Number of labs. [default: 50; quick: 3]",
)
@click.option(
    "--quick",
    is_flag=True,
    help="Three labs of up to 6 servers, in a few minutes.",
)
@click.option(
    "--servers",
    type=click.IntRange(min=2),
    default=16,
    help="Servers of the largest lab.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    help="Seed of the first lab.",
)
@click.option(
    "--scale",
    type=click.FloatRange(min=1),
    default=1000,
    help="Divide rates and bytes by this.",
)
@run_options("--output")
@out.listing_options
def twin(
    labs: int | None,
    quick: bool,
    servers: int,
    seed: int,
    scale: float,
    output: Path | None,
    as_json: bool,
) -> None:
    """Compare the simulator's predictions with packets, in random labs.

    Each lab runs random training jobs under two pairs of policies, with packets and in the
    simulator. Prints the errors and writes result.json, jobs.csv and a scatter plot. Needs root.
    """
    require_root("building a lab from network namespaces")
    # Not above: importing NumPy and Matplotlib takes longer than --help should.
    from patchlight.emulation.experiments.twin import run
    from patchlight.emulation.simulator.results import (
        give_to_caller,
        results_folder,
    )

    folder = results_folder(output, "twin")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    terminal = out.console(stderr=as_json)

    def say(step: str) -> None:
        terminal.print(
            f"{time.strftime('%H:%M:%S')} {out.harmless(step)}", soft_wrap=True
        )

    most = min(servers, 6) if quick else servers
    result = run.run_experiment(
        labs or (3 if quick else 50),
        seed,
        most,
        scale,
        say,
    )
    files = run.write_report(result, folder)
    give_to_caller([folder, *files])
    if as_json:
        out.print_json(result)
    else:
        _print_twin(result)
        out.say_written(files, folder)
    if result["interrupted"]:
        only_some_finished(
            len(result["labs"]), 2 * (labs or (3 if quick else 50)), "runs"
        )


def _print_twin(result: dict[str, Any]) -> None:
    table = out.Table(
        "of",
        out.number("number"),
        "predicted ÷ measured − 1",
        "median",
        "95 %",
    )
    for which in ("quiet", "all"):
        found = result[which]
        for name, words in (
            ("runs", "at work"),
            ("iteration", "iteration"),
            ("jct", "completion"),
        ):
            if found.get(name):
                median, p95 = (
                    f"± {100 * found[name][key]:.1f} %"
                    for key in ("median", "p95")
                )
                shown = "machine quiet" if which == "quiet" else "all"
                table.add_row(
                    shown,
                    str(found["jobs"]),
                    words,
                    median,
                    p95,
                )
    if changes := result["outages"]:
        table.add_row(
            "all",
            str(len(result["changes"])),
            "change of circuits",
            f"± {100 * changes['median']:.1f} %",
            f"± {100 * changes['p95']:.1f} %",
        )
    table.print()
    found = result["all"]
    parts = ", ".join(
        f"{name[:-2]} {s:.2f} s" for name, s in found["causes_s"].items()
    )
    out.say(f"Median error of each part of a completion time: {parts}.")
    out.say(
        f"Better policy predicted in {found['orders_right']} of {found['orders']} labs where they "
        "differ by 10 %."
    )
    if busy := [lab["too_busy"] for lab in result["labs"] if lab["too_busy"]]:
        said = f"The machine was too busy in {len(busy)} of {len(result['labs'])} runs"
        out.say(f"{said}, as in: {busy[0]}.", meaning="caution")


@experiment.command()
@click.option(
    "--network",
    "networks",
    multiple=True,
    metavar="SPEC",
    help="A network to compare, like fat-tree:k=8,taper=2; repeatable; all of one size.  "
    "[default: fourteen networks of 128 nodes]",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help="Number of jobs.  [default: 100; quick: 20]",
)
@click.option(
    "--quick",
    is_flag=True,
    help="Fewer jobs.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    help="Seed of sizes and arrivals.",
)
@click.option(
    "--placement",
    default="first-fit",
    metavar="POLICY",
    help="Placement policy.",
)
@click.option(
    "--prices",
    type=click.Path(path_type=Path),
    help="Price list (YAML).  [default: built-in public prices]",
)
@run_options("--output")
@out.listing_options
def architectures(
    networks: tuple[str, ...],
    jobs: int | None,
    quick: bool,
    prices: Path | None,
    output: Path | None,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Compare network architectures under one mix of training jobs.

    Trains VGG19, ResNet-50, BERT-Large, GPT-2 and a mixture of experts on an ideal switch and
    eleven other networks, simulated flow by flow. Prints a table and writes a plot and result.json
    (see docs/network-simulator.md). Needs no root.
    """
    # Not above: importing NumPy takes longer than --help should.
    from patchlight.emulation.experiments.architectures import run
    from patchlight.emulation.simulator.results import results_folder

    given: dict[str, Any] = {"networks": networks} if networks else {}
    if prices is not None:
        given["prices"] = prices
    count = jobs or (_QUICK_JOBS if quick else _JOBS)
    options = run.ArchitectureOptions(
        jobs=count,
        **given,
        **chosen,
    )
    folder = results_folder(output, "architectures")
    with out.progress_bar("networks", out.console(stderr=as_json)) as tell:
        result = run.run_experiment(options, tell)
    files = run.write_report(result, folder)
    if as_json:
        out.print_json(result)
        return
    _print_architectures(result)
    for what, key in (("power", "power_unknown"), ("cost", "cost_unknown")):
        unknown = {
            part: why
            for row in result["networks"].values()
            for part, why in row[key].items()
        }
        if unknown:
            said = "; ".join(f"{part} {why}" for part, why in unknown.items())
            out.say(
                f"No public figure, so no {what}: {said}. Add your own with --prices."
            )
    out.say_written(files, folder)


def _print_architectures(result: dict[str, Any]) -> None:
    from patchlight.emulation.experiments.architectures import run

    rows = result["networks"].values()
    sums = [
        (label, key)
        for label, key in (("kW", "power_w"), ("k$", "cost_usd"))
        if any(run.complete(row, key) is not None for row in rows)
    ]
    table = out.Table(
        "network",
        out.number("iteration"),
        out.number("JCT"),
        out.number("p99", wide=True),
        out.number("fullest", wide=True),
        out.number("dark", wide=True),
        *(out.number(label) for label, _ in sums),
        out.number("all-reduce"),
        out.Column("best"),
        out.number("all-to-all"),
        title=f"{result['jobs']} jobs on {result['nodes']} nodes (iteration: times ideal switch; "
        "collectives: times the lower bound)",
    )
    for spec, row in result["networks"].items():
        values = [run.complete(row, key) for _, key in sums]
        alone = row["collectives"]
        table.add_row(
            spec,
            f"{row['iteration_to_ideal']:.2f} ×",
            f"{row['jct_mean_s']:.0f} s",
            f"{row['jct_p99_s']:.0f} s",
            f"{100 * row['link_use_max']:.1f} %",
            f"{row['dark_s']:.3g} s",
            *("–" if value is None else run.shown(value) for value in values),
            f"{alone['all_reduce'][alone['best']]:.2f}",
            alone["best"],
            f"{alone['all_to_all']:.2f}",
        )
    table.print()
