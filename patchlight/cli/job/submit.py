"""``patchlight job`` commands that take in jobs: submit them, check their files.

The options of ``submit`` are made of the keys of job files.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from patchlight.console import connection
from patchlight.console import rendering as out
from patchlight.console.options import complete_policy
from patchlight.testbed.errors import BadInput, nearest
from patchlight.testbed.io.fields import FieldType, ListOf
from patchlight.testbed.io.forms import MapOf, mapping_of, value_of
from patchlight.testbed.jobfile.reader import JobBatch, JobFileError, Overrides, jobs_of, read_jobs
from patchlight.testbed.jobfile.schema import ARRAY, KEYS, SWEEP

if TYPE_CHECKING:
    from patchlight.testbed.wire.rest.jobs import Preview

_PROGRAM = "patchlight.program"
_SUFFIXES = (".yaml", ".yml", ".json")
_ITERATIONS, _GRADIENT, _COMPUTE_S = 10, 553_000_000, 0.5
_SWEPT = {key.name: key.type for key in SWEEP.keys}
_PAIRS = {"compute": "MODEL=TIME", "environment": "NAME=VALUE"}


def _reads(type: FieldType) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """An option's callback that reads a value as in a file, and a list with commas between."""

    def read(context: click.Context, parameter: click.Parameter, given: Any) -> Any:
        try:
            if isinstance(given, tuple):
                return tuple(value_of(type, text) for text in given)
            return None if given is None else value_of(type, given)
        except BadInput as error:
            raise click.BadParameter(error.message, context, parameter) from error

    return read


def _sentence(name: str, more: str = "") -> str:
    about = KEYS[name].about
    return f"{about[0].upper()}{about[1:]}{more}."


def _of_key(
    name: str,
    metavar: str,
    *flags: str,
    default: str = "",
    multiple: bool = False,
    complete: connection.Complete | None = None,
) -> Any:
    key = KEYS[name]
    type: FieldType = key.type
    if multiple and isinstance(type, ListOf):
        type = type.item
    shown = default or key.default
    return click.option(
        *(flags or [f"--{name.replace('_', '-')}"]),
        name,
        callback=None if isinstance(type, MapOf) else _reads(type),
        multiple=multiple,
        metavar=metavar,
        shell_complete=complete,
        help=_sentence(name, "; may be given again" * multiple)
        + (f"  [default: {shown}]" if shown else ""),
    )


_OPTIONS = (
    _of_key("workers", "N|auto"),
    _of_key("degrees", "N,N…"),
    _of_key("hosts", "HOST,HOST…", complete=connection.complete_hosts),
    _of_key("gpu_models", "MODEL,MODEL…"),
    _of_key("trainer", "synthetic|torch|command"),
    _of_key("model", "NAME"),
    _of_key("batch", "N"),
    _of_key("data", "FOLDER"),
    _of_key("iterations", "N", default="10 without a file"),
    _of_key("gradient", "SIZE", default="553MB without a file"),
    _of_key(
        "compute",
        _PAIRS["compute"],
        multiple=True,
        default="500ms on every model of the lab without a file",
    ),
    _of_key("seed", "N"),
    _of_key("image", "IMAGE"),
    _of_key("environment", _PAIRS["environment"], "--env", multiple=True),
    _of_key("mounts", "SOURCE:TARGET[:rw]", "--mount", multiple=True),
    _of_key("shared_memory", "SIZE"),
    _of_key("memory", "SIZE"),
    _of_key("cpus", "N"),
    _of_key("working_directory", "FOLDER"),
    _of_key("hold", "auto|protocol|freeze"),
    _of_key("graph", "NAME|FILE"),
    _of_key("requirement", "NUMBER"),
    _of_key("deadline", "TIME"),
    _of_key("priority", "N"),
    _of_key("after", "JOB,JOB…"),
    _of_key("retries", "N"),
    _of_key("checkpoint", "FOLDER"),
    _of_key("checkpoint_every", "N"),
    click.option(
        "--preemptible/--no-preemptible",
        default=None,
        help=f"{_sentence('preemptible')}  [default: preemptible]",
    ),
    _of_key("topology", "keep|regroup|POLICY", complete=complete_policy),
    click.option("--regroup", is_flag=True, help="The same as --topology regroup."),
    _of_key("placement", "POLICY", complete=complete_policy),
    _of_key("dark_limit", "TIME"),
    click.option(
        "--sweep",
        multiple=True,
        metavar="KEY=VALUE,VALUE…",
        help="A job for each value, or each combination of values if given again: of "
        f"{', '.join(_SWEPT)}.",
    ),
    click.option("--array", callback=_reads(ARRAY), metavar="N", help="So many of the job."),
)


def _job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


class _WithProgram(click.Command):
    """A command in which the words after ``--`` are a program's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            args, ctx.meta[_PROGRAM] = args[:at], tuple(args[at + 1 :])
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- PROGRAM [WORD]…]"]


@click.command(cls=_WithProgram)
@click.argument("job", metavar="NAME|FILE|-")
@_job_options
@click.option(
    "--dry-run", is_flag=True, help="Print where and when it would start, and queue nothing."
)
@click.option("--follow", is_flag=True, help="Show its output or iterations until it ends.")
@out.json_option
@connection.controller_options
def submit(
    job: str,
    dry_run: bool,
    follow: bool,
    as_json: bool,
    lab_name: str | None,
    address: str | None,
    **options: Any,
) -> None:
    """Submit the jobs of FILE (- reads standard input), or a job called NAME.

    A file, or a name that ends in .yaml, .yml or .json, is a job file ('patchlight lab schema job'
    prints its keys). Options override the file; a file of several jobs takes none. A PROGRAM runs
    in each worker.

    \b
      patchlight job submit vgg.yaml --workers 4
      patchlight job submit vgg --workers 4 --iterations 100
      patchlight job submit real --workers 2 --model resnet18 --batch 16
      patchlight job submit mine --workers 2 -- python train.py --epochs 3
    """
    given = _overrides(command=click.get_current_context().meta.get(_PROGRAM, ()), **options)
    if job == "-" or job.endswith(_SUFFIXES) or Path(job).is_file():
        jobs = read_jobs(job, given)
    else:
        jobs = _named(job, given, lab_name, address)
    if follow and len(jobs.specs) > 1:
        raise BadInput("--follow is for one job: 'patchlight job follow' waits for several")
    with connection.connect(lab_name, address) as client:
        if dry_run:
            rows = client.preview(jobs)
            out.print_answer(rows, lambda: _print_preview(rows), as_json=as_json)
            return
        if not as_json and len(jobs.specs) == 1:
            (row,) = client.preview(jobs)
            if expected := _expected(row):
                out.say(expected, err=True)
        statuses = client.submit(jobs)
        ids = "\n".join(status["id"] for status in statuses)
        out.print_answer(statuses[0] if len(statuses) == 1 else statuses, ids, as_json=as_json)
        if follow:
            from patchlight.cli.job.follow import follow_jobs

            follow_jobs(client, [statuses[0]["id"]], as_json=as_json)


def _named(name: str, given: Overrides, lab_name: str | None, address: str | None) -> JobBatch:
    """A job that there is no file of; what a synthetic one needs has defaults."""
    sizes = {"workers", "hosts", "degrees"} & {*given.values, *given.sweep}
    if not sizes or {"workers", "hosts"} <= sizes:
        raise BadInput(
            "expected either --workers N or --hosts HOST,HOST…",
            hint=f"{name!r} is no file: a job file's name ends in {', '.join(_SUFFIXES)}",
        )
    if "command" in given.values:
        return jobs_of({"name": name}, given)
    if "model" in given.values or given.values.get("trainer") == "torch":
        return jobs_of({"name": name, "iterations": _ITERATIONS}, given)
    values = {"iterations": _ITERATIONS, "gradient": _GRADIENT, **given.values}
    if "compute" not in values:
        lab = connection.lab_meant(lab_name, address)
        models = {gpu.model for server in lab.servers for gpu in server.gpus}
        values["compute"] = dict.fromkeys(sorted(models), _COMPUTE_S)
    return jobs_of({"name": name}, Overrides(values, given.sweep, given.array))


def _expected(row: Preview) -> str:
    """What a job waits for, or how long it would take as predicted, and what limits it."""
    if row["waits_for"]:
        return f"waits: {row['waits_for']}"
    iteration_s, all_s = row.get("predicted_iteration_s"), row.get("predicted_completion_s")
    if iteration_s is None or all_s is None:
        return row.get("bottleneck", "")
    whole = f"{all_s:.1f} s" if all_s < 120 else f"{all_s / 60:.0f} min"
    limit = row.get("bottleneck", "")
    return f"predicted to take {whole}, {iteration_s:.3f} s an iteration, {limit}"


def _print_preview(rows: Sequence[Preview]) -> None:
    table = out.Table(out.Column("job", whole=True), "now", "circuits")
    for row in rows:
        now = [f"starts on {', '.join(row['hosts'])}"] if row["hosts"] else []
        ahead = [f"jobs ahead of it: {row['ahead']}"] if row["ahead"] else []
        now += filter(None, [_expected(row), *ahead, *row.get("objections", ())])
        table.add_row(row["job"], "; ".join(now), ", ".join(row.get("circuits", ())))
    table.print()


@click.command()
@click.argument("files", metavar="FILE…", nargs=-1, required=True, type=click.Path(allow_dash=True))
def check(files: tuple[str, ...]) -> None:
    """Print every mistake in job files, one on a line: file:line:column: what is wrong.

    It needs no controller: whether a lab has such GPUs, 'job submit --dry-run' says. Exit code 2
    if there is a mistake.
    """
    wrong = False
    for file in files:
        try:
            jobs = read_jobs(file)
        except JobFileError as error:
            wrong = True
            out.say(str(error))
            continue
        names = ", ".join(spec.name for spec in jobs.specs[:5])
        more = f" and {len(jobs.specs) - 5} more" if jobs.specs[5:] else ""
        how = "start together" if jobs.together else "are submitted one by one"
        counted = "a job" if len(jobs.specs) == 1 else f"{len(jobs.specs)} jobs that {how}"
        out.say(f"{file} is good: {counted}: {names}{more}")
    if wrong:
        sys.exit(JobFileError.exit_code)


def _overrides(
    *, regroup: bool, sweep: Sequence[str], array: int | None, command: Sequence[str], **keys: Any
) -> Overrides:
    if regroup and keys["topology"] == "keep":
        raise BadInput("--regroup and --topology keep exclude each other")
    if regroup:
        keys["topology"] = "regroup"
    for key, metavar in _PAIRS.items():
        keys[key] = _pairs(key, metavar, keys[key])
    if keys["graph"] is not None and Path(keys["graph"]).is_file():
        # The graph that a job file names is looked for beside that file.
        keys["graph"] = str(Path(keys["graph"]).absolute())
    keys["command"] = tuple(command)
    values = {key: value for key, value in keys.items() if value is not None and value != ()}
    return Overrides({key: v for key, v in values.items() if v != {}}, _sweep(sweep), array)


def _pairs(key: str, metavar: str, texts: Sequence[str]) -> Any:
    pairs: dict[str, str] = {}
    for text in texts:
        # A model's name may have a sign of its own, and so may a variable's value.
        name, sign, value = text.rpartition("=") if key == "compute" else text.partition("=")
        if not sign or not name:
            raise BadInput(f"{text!r}: expected {metavar}, like {KEYS[key].sample.strip('{}')}")
        pairs[name] = value
    type = KEYS[key].type
    assert isinstance(type, MapOf)
    return mapping_of(type, pairs)


def _sweep(texts: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for text in texts:
        key, sign, listed = text.partition("=")
        if not sign or key not in _SWEPT:
            raise BadInput(f"--sweep {text}: no number {key!r} of a job: {nearest(key, _SWEPT)}")
        try:
            values[key] = value_of(_SWEPT[key], listed)
        except BadInput as error:
            raise BadInput(f"--sweep {text}: {error.message}") from error
    return values
