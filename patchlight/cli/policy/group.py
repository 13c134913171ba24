"""``patchlight policy``: the policies there are, what they are, and how well they do."""

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from patchlight.cli.completion import complete_policy
from patchlight.cli.connection import complete_lab
from patchlight.cli.errors import only_some_finished
from patchlight.cli.folders import profiles_option, results_option
from patchlight.cli.policy.compare import compare
from patchlight.cli.policy.live import COMMANDS
from patchlight.cli.rendering import (
    Column,
    Table,
    console,
    listing_options,
    print_json,
    progress_bar,
    say,
)
from patchlight.cli.results import results_folder
from patchlight.testbed.errors import BadInput, PatchlightError

if TYPE_CHECKING:
    from patchlight.controller.policies.recipe import Recipe

# Options of ``evaluate`` that only partition policies have.
_ONLY_PARTITION = (
    *("laws", "law_instance", "rule", "seeds"),
    *("profiles", "ramp", "arrivals", "mix", "failures", "milliseconds", "remaining_error"),
)
_KINDS = ("partition", "placement", "order", "topology", "elasticity")
# Imported only when they are used: they need PyTorch.
_LATER: Mapping[str, str] = {
    "train": "Train a policy as a configuration says.",
    "study": "Train configurations with several seeds, and compare them.",
    "export": "Write a trained policy as an ONNX file with its card.",
}
_FILE, _COUNT = click.Path(path_type=Path), click.IntRange(1, 1_000_000)
_LATER_MODULE = "patchlight.cli.policy.learn"


class _Group(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *_LATER]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _LATER:
            return super().get_command(ctx, cmd_name)
        try:
            found = getattr(importlib.import_module(_LATER_MODULE), cmd_name)
        except ModuleNotFoundError as error:
            raise PatchlightError(
                f"patchlight policy {cmd_name} needs the Python package {error.name!r}, which is "
                "not installed",
                hint="install what learning needs: pip install 'patchlight[learn]'",
            ) from error
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        here = [(n, c.get_short_help_str(80)) for n, c in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl([*here, *_LATER.items()])


@click.group(cls=_Group, context_settings={"show_default": True})
def policy() -> None:
    """List, show, test, train and export policies.

    A policy is written NAME, FILE.py:CLASS or FILE.onnx, with parameters after colons, like
    constant:8 or random:seed=3. See docs/policies.md.
    """


for _command in (*COMMANDS, compare):
    policy.add_command(_command)


@policy.command("list")
@click.option("--kind", type=click.Choice(_KINDS), help="Only this kind.")
@listing_options
def list_policies(kind: Any, as_json: bool) -> None:
    """The policies that have a name."""
    from patchlight.controller.policies.registry import DEFAULTS, policies

    rows = []
    for found in policies(kind):
        row: dict[str, Any] = {"kind": found.kind, "name": found.name, "origin": found.origin}
        default = DEFAULTS[found.kind] == found.name
        row |= {"about": "", "parameters": [], "default": default}
        try:
            row["about"] = found.about.replace("``", "")
            row["parameters"] = found.parameters_in_words
        except PatchlightError as error:
            # One that is broken must not hide the others.
            row["about"] = f"cannot be loaded: {error.message}"
        rows.append(row)
    if as_json:
        print_json(rows)
        return
    more = (Column("parameters", wide=True), Column("where from", wide=True))
    table = Table("kind", Column("name", whole=True), "what it does", *more)
    last = None
    for row in rows:
        if last not in (None, row["kind"]):
            table.end_section()
        last = row["kind"]
        name = f"{row['name']} (default)" if row["default"] else row["name"]
        table.add_row(row["kind"], name, row["about"], ", ".join(row["parameters"]), row["origin"])
    table.print()


@policy.command()
@click.argument("name", metavar="POLICY", shell_complete=complete_policy)
@click.option(
    "--lab",
    metavar="LAB",
    shell_complete=complete_lab,
    help="Also what a learned policy of any lab would miss in this one.",
)
@listing_options
def show(name: str, lab: str | None, as_json: bool) -> None:
    """What POLICY does, its parameters, and where it comes from; of a learned one its card.

    With --lab also which inputs of a learned policy the lab would not have, and what of the lab is
    outside the range that it was tested in.
    """
    from patchlight.controller.policies.contract import METHODS
    from patchlight.controller.policies.registry import find

    found = find(name)
    card = getattr(found.factory, "card", None)
    as_data = asdict(card) if card is not None else None
    source = _source(found.factory)
    answer = {
        "kind": found.kind,
        "name": found.name,
        "origin": found.origin,
        "method": METHODS[found.kind],
        "parameters": found.parameters_in_words,
        "given": dict(found.given),
        "documentation": found.documentation,
        "source": source,
        "card": as_data,
    }
    fit = None if lab is None else fit_of(found, lab)
    if fit is not None:
        answer["lab"] = fit
    if as_json:
        print_json(answer)
        return
    say(f"{found.name}: {found.kind} policy, {found.origin}")
    for what, shown in (("parameters", ", ".join(found.parameters_in_words)), ("source", source)):
        if shown:
            say(f"{what}: {shown}")
    if found.documentation:
        say("\n" + found.documentation)
    if as_data is not None:
        say("\ncard:")
        print_json(as_data)
    if fit is not None:
        say_fit(fit)


def _source(factory: Any) -> str | None:
    """File and line of its class."""
    named = factory if inspect.isclass(factory) else type(factory)
    try:
        return f"{inspect.getsourcefile(named)}:{inspect.getsourcelines(named)[1]}"
    except (OSError, TypeError):
        return None


@policy.command()
@click.argument("names", metavar="POLICY…", nargs=-1, required=True, shell_complete=complete_policy)
@click.option(
    "--law",
    "laws",
    multiple=True,
    metavar="LAW",
    help="Law of jobs' requirements, A to D or like uniform:0.2:0.6, skewed:-2, "
    "values:0.25/0.5/1; may be given again.  [default: A]",
)
@click.option(
    "--law-instance",
    type=click.IntRange(min=0),
    metavar="N",
    help="The same law in all episodes, made with seed N.  [default: a new one in each]",
)
@click.option(
    "--rule", default="ramp-block", help="How operations are placed: ramp-block or ramp-first-fit."
)
@click.option("--seeds", type=_COUNT, default=5, help="Episodes of each kind.")
@click.option(
    "--first-seed", type=click.IntRange(min=0), default=0, help="Their seeds count from this one."
)
@profiles_option
@click.option("--ramp", metavar="GxRxS", help="Groups × racks × servers.  [default: 4x4x2]")
@click.option(
    "--arrivals",
    metavar="HOW:SECONDS",
    help="When jobs come, like poisson:800.  [default: fixed:1000]",
)
@click.option(
    "--mix",
    metavar="MODEL=SHARE,…",
    help="Which models, like vgg16=3,gnmt=1.  [default: all alike]",
)
@click.option(
    "--milliseconds",
    is_flag=True,
    help="The profiles' times are milliseconds, not seconds as in the paper's simulator.",
)
@click.option(
    "--remaining-error",
    type=click.FloatRange(0, 3),
    default=0.0,
    metavar="SHARE",
    help="Policies are told remaining times that are off by so much, like 0.3 (log-normal).",
)
@click.option(
    "--failures",
    metavar="UP:DOWN",
    help="Mean times that a server works and is mended, like 30d:4h.",
)
@click.option(
    "--trace",
    type=_FILE,
    metavar="FILE",
    help="The jobs, as simulate takes them; without it partition policies run PAC-ML's.",
)
@click.option(
    "--lab",
    metavar="LAB",
    shell_complete=complete_lab,
    help="With --trace: the cluster is a lab's.  [default: 16x16x8; ofc2022 for topology]",
)
@click.option("--processes", type=_COUNT, help="At a time.  [default: the cores]")
@click.option("--strict", is_flag=True, help="A policy that fails is an error (exit code 1).")
@results_option("results/evaluate-<time>, or simulate-<time>")
@listing_options
def evaluate(
    names: tuple[str, ...],
    seeds: int,
    first_seed: int,
    trace: Path | None,
    lab: str | None,
    processes: int | None,
    strict: bool,
    output: Path | None,
    as_json: bool,
    **of_partitions: Any,
) -> None:
    """How well policies do in the simulator.

    Partition policies run PAC-ML's cluster. All others, and these with --trace, run its jobs,
    as 'patchlight simulate' does, which has more options. Both print a table and write result.json;
    Ctrl-C keeps what is finished.
    """
    from patchlight.cli.policy.evaluation import as_table, faults_of, of_partition, warnings_of
    from patchlight.cli.simulate import refuse_faults, run_simulation
    from patchlight.emulation.output_folder import cannot_write, check_output, write_result

    kinds = {_kind_of(name) for name in names}
    if len(kinds) > 1:
        raise BadInput(f"cannot compare policies of different kinds: {', '.join(sorted(kinds))}")
    kind = kinds.pop()
    if kind != "partition" or trace is not None:
        if trace is None:
            raise BadInput(
                f"{names[0]} is a policy of kind {kind}: expected --trace FILE with jobs"
            )
        _refuse(_ONLY_PARTITION, "is for partition policies on PAC-ML's cluster, without --trace")
        from patchlight.emulation.simulator.cluster import Settings
        from patchlight.emulation.simulator.cluster.trace_simulation import SimulationOptions
        from patchlight.emulation.simulator.executors import Engine

        compared: dict[str, Any] = {
            kind: tuple(dict.fromkeys(name.removeprefix(f"{kind}:") for name in names))
        }
        options = SimulationOptions(
            trace,
            lab=lab or ("ofc2022" if kind == "topology" else None),
            settings=Settings(seed=first_seed),
            engine=Engine("processes", processes or 0),
            **compared,
        )
        run_simulation(options, output, strict, as_json)
        return
    _refuse(("lab",), "is for jobs of a --trace: without one partition policies run PAC-ML's")
    counted = range(first_seed, first_seed + seeds)
    folder = results_folder(output, "evaluate")
    check_output(folder)
    with progress_bar("episodes", console(stderr=as_json)) as tell:
        found = of_partition(names, counted, processes or 0, tell=tell, **of_partitions)
    try:
        written = write_result(found.result, folder)
    except OSError as error:
        raise cannot_write(folder, error) from error
    figures = found.rows
    if as_json:
        print_json(figures)
    else:
        as_table(figures).print()
        for words in (*faults_of(figures), *warnings_of(figures)):
            say(words, err=True)
        say(f"Figures: {written}")
    if found.interrupted:
        only_some_finished(found.episodes_finished, found.episodes_wanted, "episodes")
    if strict:
        refuse_faults(sum(row["faults"]["count"] for row in figures))


def _refuse(options: tuple[str, ...], message: str) -> None:
    """``BadInput`` if one of these options was given, which would mean nothing."""
    context = click.get_current_context()
    for name in options:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise BadInput(
                f"--{'law' if name == 'laws' else name.replace('_', '-')} {message}",
                hint="'patchlight simulate' has the options of a cluster with a queue",
            )


def _kind_of(name: str) -> str:
    """Of a policy by any name; names of PAC-ML's experiment, like constant-8, are partitions."""
    from patchlight.controller.policies.registry import find
    from patchlight.emulation.experiments.pac_ml.episodes import NAMES
    from patchlight.emulation.simulator.cluster.sweep import AS_ASKED

    return "partition" if name == AS_ASKED or name in NAMES else find(name).kind


def fit_of(found: "Recipe", lab_name: str) -> dict[str, Any]:
    """How a learned policy fits a lab; ``BadInput`` if it does not, or is none that could."""
    from patchlight.controller.jobs.cluster_view import WiredLab
    from patchlight.controller.policies.options.lab_range import (
        FROM_JOBS,
        missing_inputs,
        outside_range,
    )
    from patchlight.testbed.labfile.reader import load_lab

    policy: Any = found.factory
    if getattr(policy, "card", None) is None:
        raise BadInput(
            f"{found.name} is not a learned policy: only of those --lab says what a lab lacks",
            hint="leave --lab out",
        )
    lab = load_lab(lab_name)
    policy.check_fits(WiredLab(lab, lab.initial_maps).shape, lab)
    return {
        "lab": lab.name,
        "missing": missing_inputs(lab),
        "outside": outside_range(getattr(policy.card, "tested_range", {}), lab),
        "from_jobs": list(FROM_JOBS),
    }


def say_fit(fit: dict[str, Any]) -> None:
    """The same for people."""
    say(f"\nin lab {fit['lab']}:")
    for what, lines in (("missing", fit["missing"]), ("not tested", fit["outside"])):
        for line in lines or ["nothing"]:
            say(f"  {what}: {line}")
    say("\nwhat it sees of jobs there:")
    for line in fit["from_jobs"]:
        say(f"  {line}")
