"""``patchlight experiment pac-ml``: how far to partition jobs, simulated; no root needed."""

from __future__ import annotations

import time
from pathlib import Path

import click


def _names(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[str, ...] | None:
    """Names joined by commas, without spaces and empty ones."""
    if value is None:
        return None
    return tuple(part.strip() for part in value.split(",") if part.strip())


@click.command("pac-ml")
@click.option(
    "--seeds", type=click.IntRange(min=1), help="Episodes of each kind.  [default: 10; quick: 3]"
)
@click.option(
    "--first-seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seeds count from this one: with another, on episodes that nobody has seen.",
)
@click.option("--quick", is_flag=True, help="Fewer seeds, and a roll-out that looks ahead less.")
@click.option(
    "--profiles",
    type=click.Path(path_type=Path),
    help="Folder with PipeDream's five profiles, or a clone of PipeDream.  [default: the cache, "
    "else the built-in computed ones]",
)
@click.option(
    "--laws",
    callback=_names,
    metavar="NAMES",
    default="A,B,C,D",
    show_default=True,
    help="Laws of what jobs ask for.",
)
@click.option(
    "--rules",
    callback=_names,
    metavar="NAMES",
    default="ramp-first-fit,ramp-block",
    show_default=True,
    help="How operations are placed: the paper's way, and whole blocks for jobs.",
)
@click.option(
    "--policies", callback=_names, metavar="NAMES", help="Names joined by commas.  [default: all]"
)
@click.option(
    "--policy",
    "added",
    multiple=True,
    metavar="POLICY",
    help="One more, beside the others: FILE.py:CLASS, FILE.onnx, or a name with parameters "
    "(docs/policies.md); may be given again.",
)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    help="At a time; results are the same for any number.  [default: one for each core]",
)
@click.option(
    "--engine",
    type=click.Choice(["processes", "ray"]),
    default="processes",
    show_default=True,
    help="What runs episodes: processes of this machine, or a Ray cluster.",
)
@click.option("--address", metavar="HOST:PORT", help="Of the Ray cluster.  [default: one here]")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the results go.  [default: results/pac-ml-<time>]",
)
def pac_ml(
    seeds: int | None,
    first_seed: int,
    quick: bool,
    profiles: Path | None,
    laws: tuple[str, ...],
    rules: tuple[str, ...],
    policies: tuple[str, ...] | None,
    added: tuple[str, ...],
    processes: int | None,
    engine: str,
    address: str | None,
    output: Path | None,
) -> None:
    """How far to partition jobs that have to be done in time, on 32 servers of RAMP.

    Parsonson, Shabka, Ottino, Zervas, "Partitioning Distributed Compute Jobs …" (PAC-ML),
    2023. Prints blocking rates beside the published ones and writes plots and result.json
    (see docs/pac-ml.md). Simulated; needs no root.
    """
    # Not above: importing NumPy takes longer than --help should.
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from patchlight.cli.rendering import console
    from patchlight.emulation.experiments.pac_ml.report import (
        faults_of,
        tables_of,
        verdicts_of,
        write_report,
    )
    from patchlight.emulation.experiments.pac_ml.run import (
        ExperimentOptions,
        find_profiles,
        run_experiment,
    )
    from patchlight.emulation.output_folder import check_output
    from patchlight.emulation.simulator.executors import Engine

    options = ExperimentOptions(
        seeds=seeds,
        first_seed=first_seed,
        quick=quick,
        profiles=profiles,
        laws=laws,
        rules=rules,
        policies=policies,
        added=added,
        engine=Engine(engine, processes or 0, address),
    )
    find_profiles(profiles)  # Before a folder is made: wrong input leaves nothing behind.
    folder = output or Path("results") / time.strftime("pac-ml-%Y%m%d-%H%M%S")
    check_output(folder)
    out = console()
    with Progress(
        *[BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()],
        console=out,
        disable=not out.is_terminal,
    ) as progress:
        task = progress.add_task("episodes", total=None)

        def tell(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        result = run_experiment(options, progress.console.print, tell)
    files = write_report(result, folder)
    for table in tables_of(result):
        out.print(table)
    for reached, words in verdicts_of(result):
        out.print(words, style="green" if reached else "red")
    for words in faults_of(result):
        out.print(words, style="yellow", markup=False)
    if not result["comparable"]:
        out.print(
            "No published figures stand beside: they are for PipeDream's profiles "
            "(patchlight graph fetch pipedream --help)."
        )
    out.print(f"Figures and plots: {folder}/ ({files[0].name} and {len(files) - 1} pictures)")
