"""``patchlight graph``: computation graphs from files, built in, or measured with PyTorch."""

from pathlib import Path

import click

from patchlight.console import rendering as out
from patchlight.testbed import graphs
from patchlight.testbed.errors import BadInput, PackageMissing, nearest
from patchlight.testbed.graphs.files import graph_to_json
from patchlight.testbed.units import format_size

_TOTALS = ("forward_ms", "backward_ms", "activation_bytes", "parameter_bytes")


@click.group()
def graph() -> None:
    """Show and measure computation graphs: what a training step computes and moves."""


def _list(as_json: bool) -> None:
    found = {name: _load(name) for name in graphs.BUILTIN_NAMES}
    counted = out.numbers(
        "operations",
        "forward",
        "backward",
        "weights",
        "batch",
    )
    table = out.Table(out.Column("name", whole=True), "from", *counted)
    for name, loaded in found.items():
        table.add_row(
            name,
            _origin(loaded),
            str(len(loaded.operations)),
            _ms(loaded.forward_ms),
            _ms(loaded.backward_ms),
            format_size(loaded.parameter_bytes),
            str(loaded.batch or ""),
        )
    answer = [
        {
            "name": name,
            **{
                key: getattr(loaded, key)
                for key in ("origin", "device", "batch")
            },
            **{
                key: len(getattr(loaded, key))
                for key in ("operations", "edges")
            },
            **{key: getattr(loaded, key) for key in _TOTALS},
        }
        for name, loaded in found.items()
    ]
    out.print_answer(answer, table, as_json=as_json)


@graph.command()
@click.argument(
    "name",
    metavar="[FILE|NAME]",
    required=False,
)
@out.listing_options
@click.option(
    "--backward",
    is_flag=True,
    help="Add the totals of a training step with its backward pass.",
)
@click.option(
    "--draw",
    type=click.Path(
        path_type=Path,
        dir_okay=False,
    ),
    help="Draw it into this file: .svg, .png or .pdf.",
)
def show(
    name: str | None,
    as_json: bool,
    backward: bool,
    draw: Path | None,
) -> None:
    """List graphs, show one, or draw it.

    The list has the built-in graphs; a FILE may be PipeDream's graph.txt or Patchlight's JSON.
    """
    if name is None:
        if backward or draw is not None:
            raise click.UsageError(
                "--backward and --draw need a graph: name one"
            )
        _list(as_json)
        return
    if draw is not None:
        if as_json or backward:
            raise click.UsageError(
                "--draw draws instead: leave out --json and --backward"
            )
        from patchlight.emulation.simulator.graphs.drawing import draw_graph

        out.save_picture(draw, lambda: draw_graph(_load(name)))
        return
    loaded = _load(name)
    if as_json:
        out.print_document(graph_to_json(loaded))
        return
    made = _origin(loaded) + (
        f" on {loaded.device}" if loaded.device != "unknown" else ""
    )
    batch = f", batch {loaded.batch}" if loaded.batch else ""
    out.say(f"{loaded.name}: {made}{batch}")
    if loaded.notes:
        out.say(loaded.notes)
    _operations(loaded).print()
    out.say(
        f"{_count(len(loaded.operations), 'operation')}, {_count(len(loaded.edges), 'edge')}; "
        f"forward {_ms(loaded.forward_ms)}, backward {_ms(loaded.backward_ms)}; activations "
        f"{format_size(loaded.activation_bytes)}, weights {format_size(loaded.parameter_bytes)}"
    )
    if backward:
        step = graphs.mirror(loaded)
        out.say(
            f"A training step: {2 * step.half} operations, {len(step.edges)} edges, "
            f"{_ms(step.sequential_ms)} on one device"
        )


def _load(name: str) -> graphs.ComputationGraph:
    """The graph in a file of that name, or else of that name."""
    path = Path(name)
    if path.is_file():
        return graphs.read_graph(path)
    if name in graphs.BUILTIN_NAMES:
        return graphs.builtin_graph(name)
    if path.is_dir():
        raise BadInput(
            f"cannot show {name!r}: it is a folder, expected a graph file in it"
        )
    raise BadInput(
        f"no graph {name!r}: no such file or graph "
        f"({nearest(name, graphs.BUILTIN_NAMES, 'the names are')})"
    )


def _operations(loaded: graphs.ComputationGraph) -> out.Table:
    counted = out.numbers(
        "forward",
        "backward",
        "output",
        "weights",
    )
    table = out.Table(
        "operation",
        "kind",
        *counted,
        "fed by",
    )
    for operation, parents in zip(
        loaded.operations, loaded.parents, strict=True
    ):
        table.add_row(
            operation.name,
            operation.kind,
            _ms(operation.forward_ms),
            _ms(operation.backward_ms),
            format_size(operation.activation_bytes),
            format_size(operation.parameter_bytes),
            ", ".join(loaded.operations[parent].name for parent in parents),
        )
    return table


def _origin(loaded: graphs.ComputationGraph) -> str:
    return "measured" if loaded.origin == "profiled" else "computed"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _ms(value: float) -> str:
    return f"{value:.3f} ms"


@graph.command()
@click.argument("model", metavar="MODEL")
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    help="Samples per mini-batch.  [default: the model's own]",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    help="Device for the measurement. [default: cuda if PyTorch finds a GPU]",
)
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    default=10,
    help="Runs of each operation; the graph has the median.",
)
@click.option(
    "--quick",
    is_flag=True,
    help="One run of each operation, after one to warm up: rough, and six times faster.",
)
@click.option(
    "--output",
    type=click.Path(
        path_type=Path,
        dir_okay=False,
    ),
    help="The graph file to write.  [default: standard output]",
)
def profile(
    model: str,
    batch: int | None,
    device: str | None,
    repeat: int,
    quick: bool,
    output: Path | None,
) -> None:
    """Measure a model with PyTorch, and write its graph.

    Each operation is measured; the graph is JSON.

    MODEL is a built-in model ('graph show' lists them) or FILE.py:FUNCTION. The function returns a
    torch.nn.Module and a mini-batch for it, a tensor or a tuple of tensors; --batch sets its
    parameter named batch, if it has one. Needs PyTorch: pip install 'patchlight[learn]'.
    """
    try:
        import torch
    except ImportError as error:
        raise PackageMissing(f"measuring {model!r}", error) from error
    from patchlight.emulation.simulator.graphs.profile import (
        profile as measure,
    )
    from patchlight.testbed.graphs.torch_models import load_model

    there = torch.cuda.is_available()
    if device == "cuda" and not there:
        raise BadInput(
            "cannot measure on cuda: PyTorch finds no GPU",
            hint="use --device cpu, or install a PyTorch built for your GPU and driver",
        )
    if output is not None and not output.parent.is_dir():
        raise BadInput(
            f"cannot write {output}: there is no folder {output.parent}"
        )
    device = device or ("cuda" if there else "cpu")
    loaded = load_model(model, batch, device)
    with out.progress_bar("operations", out.console(stderr=True)) as tell:
        result = measure(
            loaded.model,
            loaded.inputs,
            loaded.name,
            device=device,
            repeats=1 if quick else repeat,
            warm_ups=1 if quick else 3,
            batch=loaded.batch,
            progress=lambda done, total, _: tell(done, total),
        )
    if output is None:
        out.print_document(graph_to_json(result))
        return
    graphs.write_graph(result, output)
    out.say(
        f"wrote {output}: {len(result.operations)} operations, forward {_ms(result.forward_ms)}, "
        f"backward {_ms(result.backward_ms)} on {result.device}, batch {result.batch}"
    )
