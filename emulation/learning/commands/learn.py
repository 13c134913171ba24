"""``patchlight policy train``, ``study`` and ``export``: learn policies, and keep them as ONNX."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from patchlight.console.options import profiles_option, results_option
from patchlight.console.rendering import Coloured, Column, Table, listing_options, print_json, say
from patchlight.testbed.errors import BadInput, PatchlightError

if TYPE_CHECKING:
    from patchlight.emulation.simulator.executors import Engine


_FOLDER = click.Path(path_type=Path, file_okay=False)


def _load_torch() -> None:
    """Load PyTorch for one core; ``PatchlightError`` without the packages of the extra ``learn``.

    Small networks lose more to several threads than they gain, and a fit gives other weights then.
    """
    from importlib.util import find_spec

    missing = [name for name in ("torch", "onnx", "gymnasium") if not find_spec(name)]
    if missing:
        raise PatchlightError(
            f"learning needs Python packages that are not installed: {', '.join(missing)}",
            hint="install what learning needs: pip install 'patchlight[learn]'",
        )
    import torch

    torch.set_num_threads(1)


@click.command()
@click.argument("config", type=click.Path(path_type=Path, dir_okay=False))
@results_option("results/learning/NAME", "Folder of the run.")
@click.option("--resume", is_flag=True, help="Go on with the run that is in the folder.")
@click.option(
    "--steps", type=click.IntRange(min=1), help="Decisions to learn from, over the configuration's."
)
@click.option(
    "--seed", type=click.IntRange(0, 2**31), help="Of the weights and of what is drawn, likewise."
)
@click.option(
    "--condition",
    "conditions",
    multiple=True,
    metavar="CONDITION",
    help="When jobs come, how far off remaining times are and of which models jobs are, instead of "
    "what the configuration says, like 'poisson:1000 error:0.3 gnmt=1'. May be given again.",
)
@click.option(
    "--start",
    metavar="RUN",
    type=_FOLDER,
    help="Begin with the weights of an earlier run, by its folder.",
)
@profiles_option
@click.option(
    "--engine",
    type=click.Choice(["serial", "processes", "ray"]),
    default="serial",
    help="For labs: who looks at decisions: this process, processes of this machine, or Ray.",
)
@click.option("--address", help="Of a Ray cluster.  [default: one of our own, here]")
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    help="How many of these.  [default: one for each core]",
)
def train(
    config: Path,
    output: Path | None,
    resume: bool,
    steps: int | None,
    seed: int | None,
    conditions: tuple[str, ...],
    start: Path | None,
    profiles: Path | None,
    engine: str,
    address: str | None,
    processes: int | None,
) -> None:
    """Train a policy as CONFIG says, and export it.

    CONFIG is a YAML file, or the name of one that comes with Patchlight (docs/learning.md), like
    small for a partition policy of a RAMP, or lab-partition for one of any lab. Interrupt it when
    you like: --resume goes on. The folder then holds NAME.onnx and its card, for 'policy evaluate'
    and for labs, and progress.csv; with the package tensorboard installed also its files.
    """
    _load_torch()
    import dataclasses

    from patchlight.emulation.experiments.pac_ml.run import find_profiles
    from patchlight.emulation.learning.config import (
        ConfigError,
        find_config,
        parse_config,
        with_conditions,
        with_start,
    )
    from patchlight.emulation.learning.export import export as write_model
    from patchlight.emulation.learning.labs.network import is_for_labs
    from patchlight.emulation.learning.network import OptionScorer
    from patchlight.emulation.learning.training import TrainingRun
    from patchlight.emulation.simulator.executors import Engine
    from patchlight.testbed.io.reader import read_text

    if processes is not None and engine == "serial":
        raise BadInput("--processes is for --engine processes or ray: else this process plays")
    played_by = Engine(engine, processes or 0, address)
    given = {"steps": steps, "seed": seed}
    changed: dict[str, Any] = {key: each for key, each in given.items() if each is not None}
    file = find_config(config)
    text = read_text(file, ConfigError)
    if is_for_labs(text):
        if profiles is not None:
            raise BadInput(
                "--profiles is for partition policies of RAMPs: labs have built-in models"
            )
        if conditions:
            raise BadInput("--condition is for partition policies of RAMPs: labs have 'labs'")
        if start is not None:
            raise BadInput("--start is for partition policies of RAMPs: for labs there is none")
        _train_for_labs(file, text, output, resume, changed, played_by)
        return
    if engine != "serial":
        raise BadInput(
            f"--engine {engine} is for labs: partition policies of RAMPs learn in one process"
        )
    wanted = dataclasses.replace(parse_config(text, str(file)), **changed)
    if conditions:
        wanted = with_conditions(wanted, conditions)
    if start is not None:
        wanted = with_start(wanted, str(start))
    found = find_profiles(profiles)
    folder = output or Path("results") / "learning" / wanted.name
    say(f"models: {found.source}")
    say(f"{wanted.steps:,} steps in {folder}")
    run = TrainingRun(wanted, found.graphs, folder, say)
    if resume:
        run.resume()
    report = run.learn()
    report.training["profiles"] = "PipeDream" if found.published else found.source
    if not isinstance(report.scorer, OptionScorer):
        say(f"{folder} has no model: PAC-ML's observation is for studies only")
        return
    path = write_model(report.scorer, run.layout, wanted, report.training, folder)
    rule = wanted.environment.rule
    say(f"{path}: try it with  patchlight policy evaluate {path} --rule {rule}")


def _train_for_labs(
    file: Path,
    text: str,
    output: Path | None,
    resume: bool,
    changed: dict[str, Any],
    engine: "Engine",
) -> None:
    """Train a policy that weighs options in any lab."""
    import dataclasses

    from patchlight.emulation.learning.labs.network import export_lab_model, parse_lab_config
    from patchlight.emulation.learning.labs.run import LabRun

    wanted = dataclasses.replace(parse_lab_config(text, str(file)), **changed)
    folder = output or Path("results") / "learning" / wanted.name
    say(f"{wanted.steps:,} decisions in {folder}")
    run = LabRun(wanted, folder, say, engine)
    if resume:
        run.resume()
    report = run.learn()
    for line in report.tested.words:
        say(line)
    path = export_lab_model(report.network, wanted, report.training, folder)
    say(f"{path}: try it with  patchlight simulate --trace FILE --lab LAB --partition {path}")


@click.command()
@click.argument("configs", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--training-seeds", type=click.IntRange(1, 1000), default=5, help="How often each is trained."
)
@click.option(
    "--episodes", type=click.IntRange(2, 900), default=40, help="Test episodes of each scenario."
)
@click.option(
    "--first-seed", type=click.IntRange(min=0), default=0, help="Their seeds count from this one."
)
@click.option("--steps", type=click.IntRange(min=1), help="Of each, over the configurations'.")
@profiles_option
@click.option(
    "--output", type=_FOLDER, default=Path("results/learning/study"), help="Folder of the study."
)
@listing_options
def study(
    configs: tuple[Path, ...],
    training_seeds: int,
    episodes: int,
    first_seed: int,
    steps: int | None,
    profiles: Path | None,
    output: Path,
    as_json: bool,
) -> None:
    """Train each of CONFIGS with several seeds, test all on the same episodes, compare them.

    For each configuration and scenario the table has the mean blocking rate over the training
    seeds with its interval, the worst of them, and what that blocks less the best constant degree
    or plain rule in the same episodes; and what the networks of all seeds block when the mean of
    their scores decides, which is the model in the configuration's folder. Run again with the same
    folder it goes on where it was; study.json and all models are there in the end.
    """
    _load_torch()
    import dataclasses

    from patchlight.emulation.experiments.pac_ml.run import find_profiles
    from patchlight.emulation.learning.config import find_config, read_config
    from patchlight.emulation.learning.study import Study

    wanted = [read_config(find_config(config)) for config in configs]
    if steps is not None:
        wanted = [dataclasses.replace(config, steps=steps) for config in wanted]
    found = find_profiles(profiles)
    tested = range(first_seed, first_seed + episodes)

    def tell(line: str) -> None:
        say(line, err=as_json)

    seeds = range(training_seeds)
    result = Study(wanted, seeds, tested, found.graphs, output, tell).run()
    if as_json:
        print_json(result)
        return
    _study_table(result).print()
    say("* significant: the 95 % interval, paired episode by episode, leaves zero out")
    say(f"Figures and models: {output}/")


def _study_table(result: dict[str, Any]) -> Table:
    first, last = result["episodes"]
    seeds = len(result["training_seeds"])
    title = f"Blocking rate (%), {seeds} training seeds, episodes {first} to {last}"
    columns = ("mean", "worst", "less best rule", "together")
    numbers = [Column(name, whole=True, right=True) for name in columns]
    more = [Column(name, wide=True, right=True) for name in ("steps", "less maximum")]
    table = Table("config", "scenario", *numbers, "rule", *more, title=title)
    for row in result["rows"]:
        spread = row["ci95_over_training_seeds"]
        less, around = 100 * row["less_best"], 100 * row["less_best_ci95"]
        both = row["together"]
        shown = f"{less:+.2f} ±{around:.2f}".replace("-", "−")
        marked = Coloured(f"{shown}*", "good" if less < 0 else "bad")
        table.add_row(
            row["config"],
            row["scenario"],
            f"{100 * row['mean']:.2f}" + ("" if spread is None else f" ±{100 * spread:.2f}"),
            f"{100 * row['worst']:.2f} ±{100 * row['worst_ci95_over_episodes']:.2f}",
            marked if abs(less) > around else f"{shown} ",
            f"{100 * both['mean']:.2f} ±{100 * both['ci95_over_episodes']:.2f}" if both else "",
            f"{row['best_rule']} {100 * row['best_rule_rate']:.2f}",
            f"{row['steps']:,}",
            f"{100 * row['less_maximum']:.1f} %",
        )
    return table


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=_FOLDER)
@click.argument("output", type=_FOLDER)
@click.option("--name", help="Of the model.  [default: the configuration's]")
@click.option("--notes", default="", show_default=False, help="A sentence for its card.")
def export(runs: tuple[Path, ...], output: Path, name: str | None, notes: str) -> None:
    """Write the policy of the training RUN as an ONNX file with its card into folder OUTPUT.

    RUN is the folder of a run, also of one that was interrupted: its last checkpoint counts.
    Several runs that differ in their seeds make one policy: the mean of their scores decides.
    """
    _load_torch()
    from patchlight.emulation.learning.export import export as write_model
    from patchlight.emulation.learning.export import of_runs
    from patchlight.emulation.learning.labs.network import export_lab_model, is_for_labs
    from patchlight.emulation.learning.run_folder import CONFIG

    run, *others = runs
    described = run / CONFIG
    if described.is_file() and is_for_labs(described.read_text()):
        if others:
            raise BadInput("several runs make one policy of a RAMP: those for labs are of one run")
        from patchlight.emulation.learning.labs.run import load_lab_run

        path = export_lab_model(*load_lab_run(run), output, name, notes)
        say(f"{path} and its card {path.with_suffix('.json').name}")
        return
    path = write_model(*of_runs(runs), output, name, notes)
    say(f"{path} and its card {path.with_suffix('.json').name}")
