"""``patchlight graph profile``: measure a model with PyTorch."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import click

from patchlight.testbed.errors import BadInput, PatchlightError


@click.command()
@click.argument("model", metavar="MODEL")
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    help="Samples in the mini-batch.  [default: the model's own]",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    help="Where to measure.  [default: cuda where there is a GPU]",
)
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Runs of each operation; the median counts.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The graph file to write.  [default: standard output]",
)
def profile(
    model: str, batch: int | None, device: str | None, repeat: int, output: Path | None
) -> None:
    """Measure a model with PyTorch, operation by operation, and write its graph (JSON).

    MODEL is a built-in model (see list) or FILE.py:FUNCTION. The function returns the model, a
    torch.nn.Module, and a mini-batch for it, a tensor or a tuple of tensors; if it takes a
    parameter named batch, --batch sets it. The file is run as it is.

    Needs PyTorch: pip install 'patchlight[learn]'.
    """
    try:
        import torch
    except ImportError as error:
        raise PatchlightError(
            f"measuring {model!r} needs PyTorch, which cannot be imported: {error}",
            hint="install it with: pip install 'patchlight[learn]'",
        ) from error
    from patchlight.testbed.graphs.files import write_graph
    from patchlight.testbed.graphs.jsonformat import graph_to_json
    from patchlight.testbed.graphs.profiling.profile import profile as measure
    from patchlight.testbed.graphs.profiling.user_models import load_model

    there = torch.cuda.is_available()
    if device == "cuda" and not there:
        raise BadInput(
            "cannot measure on cuda: PyTorch sees no GPU here",
            hint="take --device cpu, or install a PyTorch built for your GPU and driver",
        )
    if output is not None and not output.parent.is_dir():
        raise BadInput(f"cannot write {output}: there is no folder {output.parent}")
    device = device or ("cuda" if there else "cpu")
    loaded = load_model(model, batch, device)
    with _Bar(loaded.name) as bar:
        result = measure(
            loaded.model,
            loaded.inputs,
            loaded.name,
            device=device,
            repeats=repeat,
            batch=loaded.batch,
            progress=bar,
        )
    if output is None:
        click.echo(graph_to_json(result), nl=False)
        return
    write_graph(result, output)
    click.echo(
        f"wrote {output}: {len(result.operations)} operations, forward {result.forward_ms:.3f} ms, "
        f"backward {result.backward_ms:.3f} ms on {result.device}, batch {result.batch}"
    )


class _Bar:
    """How far it is, on a terminal's standard error."""

    def __init__(self, name: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("measuring {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._name = name
        self._task = self._progress.add_task(name, total=None)

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def __call__(self, done: int, total: int, what: str) -> None:
        described = f"{self._name} {what}".replace("[", r"\[")
        self._progress.update(self._task, completed=done, total=total, description=described)
