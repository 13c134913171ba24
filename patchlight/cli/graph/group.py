"""``patchlight graph``: computation graphs, from files and built in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from patchlight.cli.graph.profile import profile
from patchlight.testbed.errors import BadInput, PatchlightError

if TYPE_CHECKING:
    from rich.table import Table

    from patchlight.testbed.graphs import ComputationGraph

_NAME_HELP = "A graph file (PipeDream's graph.txt or Patchlight's JSON), or a name: see list."


@click.group()
def graph() -> None:
    """Show, measure and fetch computation graphs: what a training step computes and moves."""


graph.add_command(profile)


@graph.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, units in the keys.")
def list_graphs(as_json: bool) -> None:
    """List the graphs that have a name: built in, and PipeDream's profiles in the cache.

    \b
    With --json, a list of objects: name, origin (profiled | computed), device,
    batch, operations, edges, forward_ms, backward_ms, activation_bytes,
    parameter_bytes.
    """
    from patchlight.cli.rendering import console, new_table, print_json

    graphs = {name: _load(name) for name in _names()}
    if as_json:
        print_json([{"name": name, **_totals(loaded)} for name, loaded in graphs.items()])
        return
    table = new_table("name", "from", "operations", "forward", "backward", "weights", "batch")
    for name, loaded in graphs.items():
        table.add_row(
            name,
            _origin(loaded),
            str(len(loaded.operations)),
            _ms(loaded.forward_ms),
            _ms(loaded.backward_ms),
            _size(loaded.parameter_bytes),
            str(loaded.batch or ""),
        )
    console().print(table)


@graph.command(epilog=_NAME_HELP)
@click.argument("name", metavar="FILE|NAME")
@click.option("--json", "as_json", is_flag=True, help="Print it in Patchlight's format (JSON).")
@click.option("--backward", is_flag=True, help="Mirror it: show the training step's totals too.")
@click.option(
    "--draw",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw it instead: a picture to write, .svg, .png or .pdf.",
)
def show(name: str, as_json: bool, backward: bool, draw: Path | None) -> None:
    """Print a graph's operations, who feeds whom, and the totals; or draw it."""
    from rich.markup import escape

    from patchlight.cli.rendering import console
    from patchlight.testbed.graphs import mirror
    from patchlight.testbed.graphs.jsonformat import graph_to_json

    if draw is not None:
        if as_json or backward:
            raise click.UsageError("--draw draws instead: leave out --json and --backward")
        _draw(name, draw)
        return
    loaded = _load(name)
    if as_json:
        click.echo(graph_to_json(loaded), nl=False)
        return
    out = console()
    made = _origin(loaded) + (f" on {loaded.device}" if loaded.device != "unknown" else "")
    batch = f", batch {loaded.batch}" if loaded.batch else ""
    out.print(f"[bold]{escape(loaded.name)}[/bold]: {escape(made)}{batch}")
    if loaded.notes:
        out.print(loaded.notes, markup=False)
    out.print(_operations(loaded))
    out.print(
        f"{_count(len(loaded.operations), 'operation')}, {_count(len(loaded.edges), 'edge')}; "
        f"forward {_ms(loaded.forward_ms)}, backward {_ms(loaded.backward_ms)}; activations "
        f"{_size(loaded.activation_bytes)}, weights {_size(loaded.parameter_bytes)}"
    )
    if backward:
        step = mirror(loaded)
        out.print(
            f"A training step: {2 * step.half} operations, {len(step.edges)} edges, "
            f"{_ms(step.sequential_ms)} on one device"
        )


@graph.command()
@click.argument("what", type=click.Choice(["pipedream"]))
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path, file_okay=False),
    help="Copy from a folder with alexnet.txt, … or from a clone of the repository.",
)
@click.option(
    "--url",
    envvar="PATCHLIGHT_PIPEDREAM_URL",
    show_envvar=True,
    help="Download from this mirror of the repository's folder profiler/.",
)
def fetch(what: str, source: Path | None, url: str | None) -> None:
    """Bring PipeDream's five profiles of PAC-ML's experiments into your cache.

    They are downloaded from https://github.com/msr-fiddle/pipedream (MIT licence), or copied
    with --from. Each is checked by its SHA-256; if one is missing or another file, nothing is
    written. They are then found by name (list, show) and by patchlight experiment pac-ml.
    """
    from patchlight.testbed.graphs.profiles import download_profiles, fetch_profiles

    for path in fetch_profiles(source) if source else download_profiles(url):
        click.echo(f"wrote {path}")


def _draw(name: str, file: Path) -> None:
    from patchlight.testbed.graphs.drawing import FORMATS, draw_graph

    suffix = file.suffix.lower().lstrip(".")
    if suffix not in FORMATS:
        expected = ", .".join(FORMATS)
        raise BadInput(f"cannot draw {str(file)!r}: expected a name ending in .{expected}")
    figure = draw_graph(_load(name))
    try:
        figure.savefig(file, format=suffix)
    except OSError as error:
        message = f"cannot write the picture {file}: {error.strerror}"
        raise PatchlightError(message, hint="name a file in a folder you can write to") from error
    click.echo(f"wrote {file}")


def _names() -> list[str]:
    from patchlight.testbed.graphs import BUILTIN_NAMES
    from patchlight.testbed.graphs.profiles import SOURCES, profile_cache, profile_in

    cache = profile_cache()
    kept = [f"pipedream/{name}" for name in SOURCES if profile_in(cache, name)]
    return [*BUILTIN_NAMES, *kept]


def _load(name: str) -> ComputationGraph:
    """A file where there is one by that name, else what has the name."""
    from patchlight.testbed.files.issues import nearest
    from patchlight.testbed.graphs import BUILTIN_NAMES, builtin_graph, read_graph
    from patchlight.testbed.graphs.profiles import profile_cache

    path = Path(name)
    if path.is_file():
        return read_graph(path)
    if name in BUILTIN_NAMES:
        return builtin_graph(name)
    if name in _names():
        return read_graph(profile_cache() / f"{name.removeprefix('pipedream/')}.txt")
    if path.is_dir():
        raise BadInput(f"cannot show {name!r}: it is a folder, expected a graph file in it")
    raise BadInput(
        f"no graph {name!r}: there is no such file, and no graph has that name "
        f"({nearest(name, _names(), 'the names are')})",
        hint="PipeDream's profiles come by: patchlight graph fetch pipedream",
    )


def _operations(loaded: ComputationGraph) -> Table:
    from rich.markup import escape

    from patchlight.cli.rendering import new_table

    table = new_table("operation", "kind", "forward", "backward", "output", "weights", "fed by")
    for operation, parents in zip(loaded.operations, loaded.parents, strict=True):
        table.add_row(
            escape(operation.name),
            escape(operation.kind),
            _ms(operation.forward_ms),
            _ms(operation.backward_ms),
            _size(operation.activation_bytes),
            _size(operation.parameter_bytes),
            escape(", ".join(loaded.operations[parent].name for parent in parents)),
        )
    for column in table.columns[2:6]:
        column.justify, column.no_wrap = "right", True
    return table


def _totals(loaded: ComputationGraph) -> dict[str, Any]:
    return {
        "origin": loaded.origin,
        "device": loaded.device,
        "batch": loaded.batch,
        "operations": len(loaded.operations),
        "edges": len(loaded.edges),
        "forward_ms": loaded.forward_ms,
        "backward_ms": loaded.backward_ms,
        "activation_bytes": loaded.activation_bytes,
        "parameter_bytes": loaded.parameter_bytes,
    }


def _origin(loaded: ComputationGraph) -> str:
    return "measured" if loaded.origin == "profiled" else "computed"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _ms(value: float) -> str:
    return f"{value:.3f} ms"


def _size(value: int) -> str:
    from patchlight.testbed.units import format_size

    return format_size(value)
