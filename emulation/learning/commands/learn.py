"""``patchlight policy train``: train policies, and keep them as ONNX files."""

import dataclasses
from pathlib import Path
from typing import Any

import click

from patchlight.console.rendering import say
from patchlight.emulation.experiments.commands.pac_ml import profiles_option
from patchlight.emulation.simulator.commands.run_options import (
    engine_of,
    run_options,
)
from patchlight.testbed.errors import BadInput, require_packages


def _load_torch() -> None:
    """Load PyTorch for one core; ``PatchlightError`` without the packages of the extra ``learn``.

    Small networks lose more to several threads than they gain, and a fit gives other weights then.
    """
    require_packages(
        "learning",
        "torch",
        "onnx",
        "gymnasium",
    )
    import torch

    torch.set_num_threads(1)


@click.command(context_settings={"show_default": True})
@click.argument(
    "config",
    type=click.Path(
        path_type=Path,
        dir_okay=False,
    ),
)
@click.option(
    "--output",
    type=click.Path(
        path_type=Path,
        file_okay=False,
    ),
    help="Folder of the run.  [default: results/learning/NAME]",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Continue the run in that folder.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    help="Number of decisions to learn from, instead of CONFIG's.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**31),
    help="Random seed, instead of the one in CONFIG.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 1000),
    default=1,
    help="Train with the seeds 0 to N-1, one after the other. The model uses the mean of their "
    "scores.",
)
@click.option(
    "--condition",
    "conditions",
    multiple=True,
    metavar="CONDITION",
    help="Arrivals, error of remaining times and mix of models, instead of CONFIG's: "
    "'poisson:1000 error:0.3 gnmt=1'; repeatable.",
)
@click.option(
    "--start",
    metavar="RUN",
    type=click.Path(
        path_type=Path,
        file_okay=False,
    ),
    help="Start with the weights of the run in this folder.",
)
@profiles_option
@run_options("--processes", "--ray")
def train(
    config: Path,
    output: Path | None,
    resume: bool,
    steps: int | None,
    seed: int | None,
    seeds: int,
    conditions: tuple[str, ...],
    start: Path | None,
    profiles: Path | None,
    processes: int | None,
    ray: str | None,
) -> None:
    """Train a policy with CONFIG, and write it as an ONNX file with its card.

    CONFIG is a YAML file or a built-in configuration (docs/learning.md), like small for a
    partition policy of a RAMP, or lab-partition for one of any lab. After Ctrl-C, --resume
    continues; with no more --steps than already done, it only writes the model. The folder also
    has progress.csv and, with the package tensorboard installed, its files. --processes and --ray
    are for labs.
    """
    _load_torch()
    from patchlight.emulation.learning.config import (
        ConfigError,
        find_config,
        parse_config,
    )
    from patchlight.emulation.learning.labs.network import is_for_labs
    from patchlight.testbed.io.reader import read_text

    if seeds > 1 and seed is not None:
        raise BadInput(
            "--seed and --seeds exclude each other: --seeds trains with 0, 1, …"
        )
    given = {"steps": steps, "seed": seed}
    changed: dict[str, Any] = {
        key: each for key, each in given.items() if each is not None
    }
    file = find_config(config)
    text = read_text(file, ConfigError)
    of_ramps = {
        "profiles": profiles,
        "condition": conditions,
        "start": start,
        "seeds": seeds > 1,
    }
    of_labs = {"processes": processes, "ray": ray}
    for_labs = is_for_labs(text)
    if wrong := [
        name
        for name, value in (of_ramps if for_labs else of_labs).items()
        if value
    ]:
        its = (
            "policies of a RAMP, and this one is for labs"
            if for_labs
            else "policies of labs"
        )
        raise BadInput(f"--{wrong[0]} is for partition {its}")
    say("loading PyTorch")
    if for_labs:
        from patchlight.emulation.learning.labs.network import (
            export_lab_model,
            parse_lab_config,
        )
        from patchlight.emulation.learning.labs.run import LabRun

        of_lab = dataclasses.replace(
            parse_lab_config(text, str(file)), **changed
        )
        folder = output or Path("results") / "learning" / of_lab.name
        say(f"{of_lab.steps:,} decisions in {folder}")
        asked = processes is not None or ray is not None
        run = LabRun(
            of_lab,
            folder,
            say,
            engine_of(processes, ray) if asked else None,
        )
        if resume:
            run.resume()
        report = run.learn()
        if report is None:
            say(
                f"{folder} has no model: the result is not significantly better than the rule "
                f"least-delay; train with more --steps, or use --partition least-delay"
            )
            return
        for line in report.tested.words:
            say(line)
        path = export_lab_model(
            report.network,
            of_lab,
            report.training,
            folder,
        )
        say(
            f"{path}: try it with  patchlight simulate --trace FILE --lab LAB --partition {path}"
        )
        return
    from patchlight.emulation.experiments.pac_ml.run import find_profiles
    from patchlight.emulation.learning.config import (
        with_conditions,
        with_start,
    )
    from patchlight.emulation.learning.training import train_with_seeds

    wanted = dataclasses.replace(parse_config(text, str(file)), **changed)
    if conditions:
        wanted = with_conditions(wanted, conditions)
    if start is not None:
        wanted = with_start(wanted, str(start))
    found = find_profiles(profiles)
    folder = output or Path("results") / "learning" / wanted.name
    say(f"models: {found.source}")
    say(
        f"{wanted.steps:,} steps in {folder}"
        + (f", with each of {seeds} seeds" * (seeds > 1))
    )
    source = "PipeDream" if found.published else found.source
    model = train_with_seeds(
        wanted,
        seeds,
        found.graphs,
        source,
        folder,
        resume,
        say,
    )
    if model is None:
        say(
            f"{folder} has no model: networks with PAC-ML's observation are for comparison only"
        )
        return
    say(
        f"{model}: try it with  patchlight experiment pac-ml --policies all,{model} "
        f"--rules {wanted.environment.rule}"
    )
