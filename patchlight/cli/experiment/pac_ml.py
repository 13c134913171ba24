"""``patchlight experiment pac-ml``: how far to partition jobs, simulated; no root needed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click


def _names(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[str, ...] | None:
    """Names joined by commas, without spaces and empty ones."""
    if value is None:
        return None
    return tuple(part.strip() for part in value.split(",") if part.strip())


_NAMES: dict[str, Any] = {"callback": _names, "metavar": "NAMES"}
_COUNT = click.IntRange(min=1)


@click.command("pac-ml", context_settings={"show_default": True})
@click.option("--seeds", type=_COUNT, help="Episodes of each kind.  [default: 10; quick: 3]")
@click.option(
    "--first-seed",
    type=click.IntRange(min=0),
    default=0,
    help="Seeds count from this one: with another, on episodes that nobody has seen.",
)
@click.option("--quick", is_flag=True, help="Fewer seeds, and a roll-out that looks ahead less.")
@click.option(
    "--profiles",
    type=click.Path(path_type=Path),
    help="Folder with PipeDream's five profiles, or a clone of PipeDream.  [default: the cache, "
    "else the built-in computed ones]",
)
@click.option("--laws", **_NAMES, default="A,B,C,D", help="Laws of what jobs ask for.")
@click.option(
    "--rules",
    **_NAMES,
    default="ramp-first-fit,ramp-block",
    help="How operations are placed: the paper's way, and whole blocks for jobs.",
)
@click.option("--policies", **_NAMES, help="Names joined by commas.  [default: all]")
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
    type=_COUNT,
    help="At a time; results are the same for any number.  [default: one for each core]",
)
@click.option(
    "--engine",
    type=click.Choice(["processes", "ray"]),
    default="processes",
    help="What runs episodes: processes of this machine, or a Ray cluster.",
)
@click.option("--address", metavar="HOST:PORT", help="Of the Ray cluster.  [default: one here]")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the results go.  [default: results/pac-ml-<time>]",
)
def pac_ml(
    processes: int | None, engine: str, address: str | None, output: Path | None, **chosen: Any
) -> None:
    """How far to partition jobs that have to be done in time, on 32 servers of RAMP.

    Parsonson, Shabka, Ottino, Zervas, "Partitioning Distributed Compute Jobs …" (PAC-ML),
    2023. Prints blocking rates beside the published ones and writes plots and result.json
    (see docs/pac-ml.md). Simulated; needs no root.
    """
    # Not above: importing NumPy takes longer than --help should.
    from patchlight.cli.rendering import console, progress_bar
    from patchlight.emulation.experiments.pac_ml import report, run
    from patchlight.emulation.output_folder import check_output
    from patchlight.emulation.simulator.executors import Engine

    options = run.ExperimentOptions(engine=Engine(engine, processes or 0, address), **chosen)
    run.find_profiles(options.profiles)  # Before a folder is made: wrong input leaves nothing.
    folder = output or Path("results") / time.strftime("pac-ml-%Y%m%d-%H%M%S")
    check_output(folder)
    out = console()
    with progress_bar("episodes", out) as tell:
        result = run.run_experiment(options, out.print, tell)
    files = report.write_report(result, folder)
    for table in report.tables_of(result):
        out.print(table)
    for words in report.faults_of(result):
        out.print(words, style="yellow", markup=False)
    if not result["comparable"]:
        out.print(
            "No published figures stand beside: they are for PipeDream's profiles "
            "(patchlight graph fetch pipedream --help)."
        )
    out.print(f"Figures and plots: {folder}/ ({files[0].name} and {len(files) - 1} pictures)")
