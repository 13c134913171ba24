"""``patchlight experiment architectures``: networks side by side in the flow simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from patchlight.console.options import results_option
from patchlight.console.rendering import (
    Column,
    Table,
    console,
    listing_options,
    print_json,
    progress_bar,
    results_folder,
    say,
    say_written,
)

_QUICK_JOBS, _JOBS = 20, 100


@click.command(context_settings={"show_default": True})
@click.option(
    "--network",
    "networks",
    multiple=True,
    metavar="SPEC",
    help="A network to compare, like fat-tree:k=8,taper=2; give it again for each; all of one "
    "size.  [default: twelve of 128 nodes]",
)
@click.option("--jobs", type=click.IntRange(min=1), help="How many.  [default: 100; quick: 20]")
@click.option("--quick", is_flag=True, help="Fewer jobs.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Of sizes and arrivals.")
@click.option("--placement", default="first-fit", metavar="NAME", help="A placement policy.")
@click.option(
    "--prices",
    type=click.Path(path_type=Path),
    help="A price list (YAML).  [default: the built-in one, which has what is public]",
)
@results_option("results/architectures-<time>")
@listing_options
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

    VGG19, ResNet-50, BERT-Large, GPT-2 and a mixture of experts, on an ideal switch and eleven
    other networks, flows and phases simulated. Prints a table and writes a plot and result.json
    (see docs/network-simulator.md). Needs no root.
    """
    # Not above: importing NumPy takes longer than --help should.
    from patchlight.emulation.experiments.architectures import run
    from patchlight.emulation.results import check_output

    given: dict[str, Any] = {"networks": networks} if networks else {}
    if prices is not None:
        given["prices"] = prices
    count = jobs or (_QUICK_JOBS if quick else _JOBS)
    options = run.ArchitectureOptions(jobs=count, **given, **chosen)
    folder = results_folder(output, "architectures")
    check_output(folder)
    with progress_bar("networks", console(stderr=as_json)) as tell:
        result = run.run_experiment(options, tell)
    files = run.write_report(result, folder)
    if as_json:
        print_json(result)
        return
    _print(result)
    for what, key in (("power", "power_unknown"), ("cost", "cost_unknown")):
        unknown = {
            part: why for row in result["networks"].values() for part, why in row[key].items()
        }
        if unknown:
            said = "; ".join(f"{part} {why}" for part, why in unknown.items())
            say(f"Not in {what}, for want of a public figure: {said}. Give yours with --prices.")
    say_written(files, folder)


def _print(result: dict[str, Any]) -> None:
    def number(heading: str, *, wide: bool = False) -> Column:
        return Column(heading, wide=wide, whole=True, right=True)

    table = Table(
        "network",
        number("iteration"),
        number("JCT"),
        number("p99", wide=True),
        number("links"),
        number("fullest", wide=True),
        number("dark"),
        number("kW"),
        number("k$"),
        title=f"{result['jobs']} jobs on {result['nodes']} nodes (iteration: times ideal switch)",
    )
    for spec, row in result["networks"].items():
        table.add_row(
            spec,
            f"{row['iteration_to_ideal']:.2f} ×",
            f"{row['jct_mean_s']:.0f} s",
            f"{row['jct_p99_s']:.0f} s",
            f"{100 * row['link_use_mean']:.1f} %",
            f"{100 * row['link_use_max']:.1f} %",
            f"{row['dark_s']:.3g} s",
            _sum(row, "power", "power_w", ".2f"),
            _sum(row, "cost", "cost_usd", ".0f"),
        )
    table.print()


def _sum(row: dict[str, Any], what: str, key: str, digits: str) -> str:
    """Thousands, at least so many where parts have no figure; a dash where none has."""
    if row[key] is None:
        return "–"
    return f"{'≥ ' if row[f'{what}_unknown'] else ''}{row[key] / 1e3:{digits}}"
