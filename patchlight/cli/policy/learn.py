"""``patchlight policy train`` and ``export``: learn a partition policy, and keep it as ONNX."""

from pathlib import Path

import click

from patchlight.cli.rendering import say
from patchlight.testbed.errors import PatchlightError


def _needed() -> None:
    """``PatchlightError`` where the packages of the extra ``learn`` are not installed."""
    from importlib.util import find_spec

    missing = [
        name for name in ("torch", "onnx", "gymnasium", "sb3_contrib") if not find_spec(name)
    ]
    if missing:
        raise PatchlightError(
            f"learning needs Python packages that are not installed: {', '.join(missing)}",
            hint="install what learning needs: pip install 'patchlight[learn]'",
        )


@click.command()
@click.argument("config", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the run.  [default: results/learning/NAME]",
)
@click.option("--resume", is_flag=True, help="Go on with the run that is in the folder.")
@click.option(
    "--steps", type=click.IntRange(min=1), help="Decisions to learn from, over the configuration's."
)
@click.option(
    "--profiles",
    type=click.Path(path_type=Path),
    help="Folder with PipeDream's five profiles, or a clone of PipeDream.  [default: the cache, "
    "else the built-in computed ones]",
)
def train(
    config: Path, output: Path | None, resume: bool, steps: int | None, profiles: Path | None
) -> None:
    """Train a partition policy as CONFIG says, and export it.

    CONFIG is a YAML file, or the name of one that comes with Patchlight (docs/learning.md).
    Interrupt it when you like: --resume goes on. The folder then holds NAME.onnx and its card,
    for --policy and 'policy evaluate'.
    """
    _needed()
    import dataclasses

    import torch

    from patchlight.emulation.experiments.pac_ml.run import find_profiles
    from patchlight.emulation.learning.config import find_config, read_config
    from patchlight.emulation.learning.export import export as write_model
    from patchlight.emulation.learning.training import Run

    # One core: small networks lose more to several threads than they gain.
    torch.set_num_threads(1)
    wanted = read_config(find_config(config))
    if steps is not None:
        wanted = dataclasses.replace(wanted, steps=steps)
    found = find_profiles(profiles)
    folder = output or Path("results") / "learning" / wanted.name
    say(f"models: {found.source}")
    say(f"{wanted.steps:,} steps in {folder}")
    run = Run(wanted, found.graphs, folder, say)
    if resume:
        run.resume()
    report = run.learn()
    report.training["profiles"] = "PipeDream" if found.published else found.source
    path = write_model(report.scorer, run.layout, wanted, report.training, folder)
    say(f"{path}: try it with  patchlight policy evaluate {path}")


@click.command()
@click.argument("run", type=click.Path(path_type=Path, file_okay=False))
@click.argument("output", type=click.Path(path_type=Path, file_okay=False))
@click.option("--name", help="Of the model.  [default: the configuration's]")
@click.option("--notes", default="", show_default=False, help="A sentence for its card.")
def export(run: Path, output: Path, name: str | None, notes: str) -> None:
    """Write the policy of the training RUN as an ONNX file with its card into folder OUTPUT.

    RUN is the folder of a run, also of one that was interrupted: its last checkpoint counts.
    """
    _needed()
    from patchlight.emulation.learning.export import export as write_model
    from patchlight.emulation.learning.network import load_run, scorer_of

    config, kept = load_run(run)
    scorer, layout = scorer_of(config, kept)
    training = {"config": config.as_data(), "steps": kept["steps"], "wall_s": kept["wall_s"]}
    path = write_model(scorer, layout, config, training, output, name, notes)
    say(f"{path} and its card {path.with_suffix('.json').name}")
