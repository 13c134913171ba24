"""``patchlight experiment oddl``: ODDL beside other networks, in the flow simulator."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from patchlight.cli.rendering import (
    Column,
    Table,
    console,
    listing_options,
    print_json,
    progress_bar,
    say,
)
from patchlight.testbed.errors import BadInput
from patchlight.testbed.units import parse_time

_COUNT = click.IntRange(min=1)


def _whole(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[int, ...] | None:
    """Whole numbers joined by commas."""
    if value is None:
        return None
    parts = [part.strip() for part in value.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise click.BadParameter(f"{value!r}: expected whole numbers joined by commas")
    return tuple(int(part) for part in parts)


@click.command(context_settings={"show_default": True})
@click.option("--flows", is_flag=True, help="In the flow simulator: the only form there is yet.")
@click.option("--quick", is_flag=True, help="128 nodes instead of 1,024, and one draw.")
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="NAME",
    help="vgg19, resnet50, bert-large, gpt2 or mixture-of-experts; give it again for each.  "
    "[default: all]",
)
@click.option(
    "--nodes",
    callback=_whole,
    metavar="N,N…",
    help="Sizes of the job that is looked at.  [default: 16,64,256,512,1024; quick: 16,64,128]",
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    help="The jobs that come and go beside it, like the Philly trace.  [default: drawn by a law "
    "with that trace's statistics]",
)
@click.option("--placement", default="first-fit", metavar="NAME", help="A placement policy.")
@click.option("--draws", type=_COUNT, help="Of jobs beside it.  [default: 3; quick: 1]")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Of the first draw.")
@click.option(
    "--control-delay",
    metavar="TIME",
    help="From a node to whoever grants paths, and as much back.  [default: as nodes among "
    "themselves took, 100us]",
)
@click.option("--tuning-time", default="100ns", metavar="TIME", help="Of a transceiver.")
@click.option("--processes", type=_COUNT, help="At a time.  [default: one for each core]")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the results go.  [default: results/oddl-<time>]",
)
@listing_options
def oddl(
    flows: bool,
    quick: bool,
    models: tuple[str, ...],
    nodes: tuple[int, ...] | None,
    draws: int | None,
    control_delay: str | None,
    tuning_time: str,
    processes: int | None,
    output: Path | None,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Training with ODDL's tunable transceivers beside a fat-tree, SiP-Ring, an ideal switch.

    Li et al., "ODDL", 2024. Prints speedups beside the published ones, what they are made of, and
    with which computing times the published ones come out; writes plots and result.json (see
    docs/oddl.md). Needs no root; quicker with the extra 'fast'.
    """
    if not flows:
        raise BadInput(
            "the experiment with packets is not there yet: say --flows for the flow simulator",
            hint="patchlight experiment oddl --flows",
        )
    # Not above: importing NumPy takes longer than --help should.
    from patchlight.emulation.experiments.oddl import figures, run
    from patchlight.emulation.experiments.oddl.conditions import Light
    from patchlight.emulation.output_folder import check_output
    from patchlight.emulation.simulator.executors import Engine

    given: dict[str, Any] = {"models": models} if models else {}
    if quick:
        given |= {"radix": 8, "nodes": (16, 64, 128), "draws": 1}
    if nodes is not None:
        given["nodes"] = nodes
    if draws is not None:
        given["draws"] = draws
    given["light"] = light = Light(parse_time(tuning_time))
    if control_delay is not None:
        given["light"] = light._replace(control_s=parse_time(control_delay))
    options = run.FlowOptions(engine=Engine("processes", processes or 0), **given, **chosen)
    folder = output or Path("results") / time.strftime("oddl-%Y%m%d-%H%M%S")
    check_output(folder)
    with progress_bar("parts", console(stderr=as_json)) as tell:
        result = run.run_flows(options, tell)
    files = figures.write_report(result, folder)
    if as_json:
        print_json(result)
        return
    _print_speedups(result)
    _print_scenarios(result)
    say(f"Jobs beside it: {result['arrivals']}; drawn {options.draws} ×, {options.placement}.")
    pictures = ", ".join(file.name for file in files if file.suffix == ".png")
    say(f"Plots ({pictures}, also as PDF and SVG) and result.json: {folder}/")


def _number(heading: str, *, wide: bool = False) -> Column:
    return Column(heading, wide=wide, whole=True, right=True)


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} ×"


def _print_speedups(result: dict[str, Any]) -> None:
    table = Table(
        "model",
        _number("nodes"),
        _number("fat-tree"),
        _number("paper"),
        _number("2:1"),
        _number("SiP-Ring"),
        _number("paper"),
        _number("ideal"),
        title=f"How many times as fast ODDL trains, in a cluster of {result['cluster_nodes']}",
    )
    for model, by_nodes in result["speedups"].items():
        for nodes, row in by_nodes.items():
            paper = result["paper"].get(model, {}).get(nodes, {})
            table.add_row(
                model,
                nodes,
                _times(row["fat_tree"]),
                _times(paper.get("fat_tree")),
                _times(row["fat_tree_2_1"]),
                _times(row["sip_ring"]),
                _times(paper.get("sip_ring")),
                _times(row["ideal"]),
            )
    table.print()


def _print_scenarios(result: dict[str, Any]) -> None:
    model = result["scenarios_model"]
    compute_ms = 1e3 * result["models"][model]["compute_s"]
    table = Table(
        Column("over"),
        Column("communication"),
        _number("f"),
        _number("speedup"),
        _number("paper"),
        _number("if C is"),
        title=f"{model}, {result['cluster_nodes']} nodes; speedup if C is {compute_ms:.0f} ms",
    )
    names = {"fat_tree": "fat-tree", "sip_ring": "SiP-Ring"}
    for row in result["scenarios"]:
        needed_s = row["compute_for_paper_s"]
        nowhere = "" if row["paper"] is None else "never"
        table.add_row(
            names[row["compared"]],
            row["words"],
            f"{row['f']:.2f}",
            _times(row["speedup"]),
            _times(row["paper"]),
            nowhere if needed_s is None else f"{1e3 * needed_s:.0f} ms",
        )
    table.print()
