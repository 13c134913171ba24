"""``patchlight experiment pac-ml-load``: blocking over load, a line for each policy."""

from pathlib import Path
from typing import Any

import click

from patchlight.console.commands import only_some_finished
from patchlight.console.options import profiles_option, results_option
from patchlight.console.rendering import (
    Column,
    Table,
    console,
    progress_bar,
    results_folder,
    say_written,
)
from patchlight.testbed.errors import BadInput


@click.command("pac-ml-load")
@click.argument("names", metavar="POLICY…", nargs=-1, required=True)
@click.option(
    "--intervals",
    default="800,900,1000,1150,1300,1500",
    metavar="SECONDS,…",
    help="Between two jobs.",
)
@click.option("--poisson", is_flag=True, help="Jobs come at random, so far apart in the mean.")
@click.option("--law", default="A", help="Law of jobs' requirements.")
@click.option("--rule", default="ramp-first-fit", help="How operations are placed: or ramp-block.")
@click.option("--mix", metavar="MODEL=SHARE,…", help="Which models.  [default: all alike]")
@click.option("--seeds", type=click.IntRange(min=1), default=10, help="Episodes of each kind.")
@click.option("--first-seed", type=click.IntRange(min=0), default=0, help="Seeds count from it.")
@profiles_option
@click.option("--processes", type=click.IntRange(min=1), help="At a time.  [default: the cores]")
@results_option("results/pac-ml-load-<time>")
def pac_ml_load(
    names: tuple[str, ...], processes: int | None, output: Path | None, **chosen: Any
) -> None:
    """How many jobs policies block on PAC-ML's cluster when they come more or less often.

    An episode has 1,001 jobs at every load. Prints a table, and writes a plot and result.json.
    """
    from patchlight.emulation.experiments.pac_ml import load
    from patchlight.emulation.output_folder import check_output
    from patchlight.emulation.simulator.executors import Engine

    try:
        intervals_s = [float(each) for each in chosen.pop("intervals").split(",")]
    except ValueError:
        raise BadInput("--intervals are seconds joined by commas, like 800,1000,1300") from None
    folder = results_folder(output, "pac-ml-load")
    check_output(folder)
    options = load.LoadOptions(
        names, tuple(intervals_s), engine=Engine("processes", processes or 0), **chosen
    )
    with progress_bar("episodes", console()) as tell:
        result = load.run_loads(options, tell)
    files = load.write_loads(result, folder)
    _table(result).print()
    say_written(files, folder)
    if result["interrupted"]:
        finished, wanted = result["loads_finished"], len(intervals_s)
        only_some_finished(finished, wanted, "loads")


def _table(result: dict[str, Any]) -> Table:
    kind = "in the mean" if result["poisson"] else "apart"
    title = f"Blocking rate (%), law {result['law']}, {result['rule']}, jobs SECONDS {kind}"
    columns = [
        Column(f"{each['interval_s']:g}", whole=True, right=True) for each in result["loads"]
    ]
    table = Table("policy", *columns, title=title)
    for name in result["policies"]:
        cells = []
        for each in result["loads"]:
            figures = each["policies"][name]
            spread = figures["ci95"]
            shown = f"{100 * figures['blocking_rate']:.2f}"
            cells.append(shown if spread is None else f"{shown} ±{100 * spread:.2f}")
        table.add_row(name.rpartition("/")[2], *cells)
    return table
