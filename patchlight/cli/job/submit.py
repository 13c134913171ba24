"""``patchlight job submit``, whose options are made of the keys of job files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from patchlight.console import connection
from patchlight.console import rendering as out
from patchlight.console.options import complete_policy
from patchlight.testbed.errors import BadInput, PatchlightError, nearest
from patchlight.testbed.io.describe import described, sample
from patchlight.testbed.io.keys import Keys, plain, read
from patchlight.testbed.io.options import value_of
from patchlight.testbed.io.reader import FileIssues
from patchlight.testbed.jobfile.reader import (
    JobBatch,
    JobFileError,
    Overrides,
    jobs_of,
    read_jobs,
)
from patchlight.testbed.jobfile.schema import Defaults, SeveralJobs, Sweep

if TYPE_CHECKING:
    from patchlight.client.client import ControllerClient
    from patchlight.testbed.jobs import JobSpec
    from patchlight.testbed.wire.rest.jobs import Preview

_PROGRAM = "patchlight.program"
_SUFFIXES = (".yaml", ".yml", ".json")
_ITERATIONS = 10
_GRADIENT = 553_000_000
_COMPUTE_S = 0.5
_MEGABYTE_BITS = 8e6
_KEYS = described(Defaults)["properties"]
_SWEPT = described(Sweep)["properties"]
_PAIRS = {"compute": "MODEL=TIME", "environment": "NAME=VALUE"}


def _reads(
    group: type[Keys], key: str
) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """An option's callback that reads a value as in a file, and a list with commas between."""

    def read(
        context: click.Context,
        parameter: click.Parameter,
        given: Any,
    ) -> Any:
        try:
            return value_of(group, key, given) if given else None
        except BadInput as error:
            raise click.BadParameter(
                error.message, context, parameter
            ) from error

    return read


def _sentence(name: str, more: str = "") -> str:
    about = _KEYS[name]["description"]
    return f"{about[0].upper()}{about[1:]}{more}."


def _of_key(
    name: str,
    metavar: str,
    *flags: str,
    default: str = "",
    multiple: bool = False,
    complete: connection.Complete | None = None,
) -> Any:
    shown = default or _KEYS[name].get("shown")
    return click.option(
        *(flags or [f"--{name.replace('_', '-')}"]),
        name,
        callback=None if name in _PAIRS else _reads(Defaults, name),
        multiple=multiple,
        metavar=metavar,
        shell_complete=complete,
        help=_sentence(name, "; may be given again" * multiple)
        + (f"  [default: {shown}]" if shown else ""),
    )


_OPTIONS = (
    _of_key("workers", "N|auto"),
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
    _of_key("image", "IMAGE"),
    _of_key(
        "environment",
        _PAIRS["environment"],
        "--env",
        multiple=True,
    ),
    _of_key(
        "mounts",
        "SOURCE:TARGET[:rw]",
        "--mount",
        multiple=True,
    ),
    _of_key("deadline", "TIME"),
    _of_key("priority", "N"),
    _of_key("after", "JOB,JOB…"),
    _of_key("retries", "N"),
    _of_key("checkpoint", "FOLDER"),
    _of_key("topology", "keep|regroup|POLICY", complete=complete_policy),
    click.option(
        "--regroup",
        is_flag=True,
        help="The same as --topology regroup.",
    ),
    _of_key("placement", "POLICY", complete=complete_policy),
    click.option(
        "--sweep",
        multiple=True,
        metavar="KEY=VALUE,VALUE…",
        help="Submit a job for each value; with several --sweep, for each combination. KEY is "
        f"{', '.join(_SWEPT)}.",
    ),
    click.option(
        "--array",
        callback=_reads(SeveralJobs, "array"),
        metavar="N",
        help="Submit the job N times.",
    ),
    click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help="Any other key of a job file, like hold=freeze or degrees='[2, 4]'; may be given "
        "again.",
    ),
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
            ctx.meta[_PROGRAM] = tuple(args[at + 1 :])
            args = args[:at]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- PROGRAM [WORD]…]"]


@click.command(cls=_WithProgram)
@click.argument("job", metavar="NAME|FILE|-")
@_job_options
@click.option(
    "--workdir",
    type=click.Path(
        path_type=Path,
        file_okay=False,
        exists=True,
    ),
    metavar="DIR",
    help="Ship this folder's files to the workers, without those in .gitignore, and run there.",
)
@click.option(
    "--compare",
    "picture",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Run it twice, with topology keep and then with regroup on the same hosts, and draw both.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Check the file, print where and when the job would start; queue nothing.",
)
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Show its output or iterations until it ends.",
)
@out.json_option
@connection.controller_options
def submit(
    job: str,
    workdir: Path | None,
    picture: Path | None,
    dry_run: bool,
    follow: bool,
    as_json: bool,
    lab_name: str | None,
    address: str | None,
    **options: Any,
) -> None:
    """Submit the jobs in FILE (-: standard input), or a job called NAME.

    A file, or a name that ends in .yaml, .yml or .json, is a job file (its keys:
    docs/job-file.md). Options override the file; a file with several jobs takes no options. A
    PROGRAM runs in each worker.

    Every mistake in a file is printed on a line of its own, file:line:column, before a controller
    is contacted; the exit code is 2.

    \b
      patchlight job submit vgg.yaml --workers 4
      patchlight job submit vgg --workers 4 --iterations 100
      patchlight job submit real --workers 2 --model resnet18 --batch 16
      patchlight job submit mine --workers 2 -- python train.py --epochs 3
    """
    given = _overrides(
        command=click.get_current_context().meta.get(_PROGRAM, ()),
        **options,
    )
    if job == "-" or job.endswith(_SUFFIXES) or Path(job).is_file():
        jobs = read_jobs(job, given)
    else:
        jobs = _named(
            job,
            given,
            lab_name,
            address,
        )
    if picture is not None and (len(jobs.specs) > 1 or dry_run):
        raise BadInput("--compare is for one job, and not with --dry-run")
    if follow and len(jobs.specs) > 1:
        raise BadInput(
            "--follow takes one job: 'patchlight job show --follow' takes several"
        )
    if dry_run:
        rows = _plan(
            job,
            jobs,
            lab_name,
            address,
        )
        out.print_answer(rows, lambda: _print_preview(rows), as_json=as_json)
        return
    with connection.connect(lab_name, address) as client:
        if own := [s for s in jobs.specs if s.trainer == "command"]:
            _say_scale(client)
        for spec in own if workdir is None else ():
            _say_unshipped(spec)
        if picture is not None:
            _compare(
                client,
                jobs,
                workdir,
                picture,
                as_json=as_json,
            )
            return
        if workdir is not None:
            jobs = _shipped(client, jobs, workdir)
        statuses = client.submit(
            jobs, plan=not as_json and len(jobs.specs) == 1
        )
        if expected := _expected(statuses[0].plan):
            out.say(expected, err=True)
        ids = "\n".join(status.id for status in statuses)
        out.print_answer(
            statuses[0] if len(statuses) == 1 else statuses,
            ids,
            as_json=as_json,
        )
        if follow:
            from patchlight.cli.job.follow import follow_jobs

            follow_jobs(client, [statuses[0].id], as_json=as_json)


def _say_scale(client: ControllerClient) -> None:
    """Say how slow a scaled lab is for programs, whose bytes are not scaled."""
    from patchlight.testbed.labfile.reader import parse_lab

    lab = parse_lab(client.lab_file(), "the controller's lab")
    rates = [
        nic.rate_bps
        for server in lab.servers
        for nic in server.nics
        if nic.rate_bps
    ]
    if lab.scale <= 1 or not rates:
        return
    took_s = _MEGABYTE_BITS * lab.scale / min(rates)
    out.say(
        f"links of this emulated lab are {lab.scale:g} times slower, and your program's bytes are "
        f"not scaled: each MB that a worker sends takes {took_s:.2g} s at least. Predictions and "
        "rates are those of a gradient that much larger; another scale: emulate up --scale N",
        err=True,
    )


def _say_unshipped(spec: JobSpec) -> None:
    here = [w for w in spec.command if "/" not in w and Path(w).is_file()]
    if here and not spec.working_directory:
        out.say(
            f"{here[0]} is a file of this folder, which workers do not see: --workdir . ships it",
            err=True,
        )


def _shipped(
    client: ControllerClient,
    jobs: JobBatch,
    folder: Path,
) -> JobBatch:
    from patchlight.client.workdir import packed

    if others := [s.name for s in jobs.specs if s.trainer != "command"]:
        raise BadInput(
            f"--workdir is for a program of yours, and job {others[0]} has no command"
        )
    workdir = packed(folder)
    for name in workdir.left_out:
        out.say(f"left out: {name} leads out of {folder}", err=True)
    client.ship(workdir)
    specs = (replace(spec, workdir=workdir.digest) for spec in jobs.specs)
    return replace(jobs, specs=tuple(specs))


def _compare(
    client: ControllerClient,
    jobs: JobBatch,
    workdir: Path | None,
    picture: Path,
    *,
    as_json: bool,
) -> None:
    """Run a job with the present circuits, and once more regrouped; print and draw both."""
    from patchlight.cli.job import listing
    from patchlight.cli.job.follow import follow_jobs
    from patchlight.cli.report import iteration_bars

    ran = []
    (spec,) = jobs.specs
    for topology in ("keep", "regroup"):
        given = JobBatch((replace(spec, topology=topology),))
        if workdir is not None:
            # It is removed at the end of each job.
            given = _shipped(client, given, workdir)
        job_id = client.submit(given)[0].id
        out.say(f"{job_id}, topology {topology}", err=True)
        follow_jobs(client, [job_id], as_json=as_json)
        status = client.job(job_id)
        ran.append(status)
        spec = replace(
            spec,
            hosts=tuple(status.hosts),
            workers=0,
        )
    out.print_answer(ran, lambda: listing.print_two(*ran), as_json=as_json)
    out.save_picture(picture, lambda: iteration_bars(ran))


def _plan(
    job: str,
    jobs: JobBatch,
    lab_name: str | None,
    address: str | None,
) -> Sequence[Preview]:
    from patchlight.client.connection import NoAnswer

    try:
        with connection.connect(lab_name, address) as client:
            return client.preview(jobs)
    except (connection.NoLabUp, NoAnswer) as error:
        names = ", ".join(
            [spec.name for spec in jobs.specs[:5]]
            + ["…"] * (len(jobs.specs) > 5)
        )
        raise PatchlightError(
            f"{job} is valid ({out.counted(len(jobs.specs), 'job')}: {names}), but no controller "
            f"says where it would start: {error.message}",
            hint=error.hint,
        ) from error


def _named(
    name: str,
    given: Overrides,
    lab_name: str | None,
    address: str | None,
) -> JobBatch:
    """A job without a file; a synthetic one has defaults for what it needs."""
    sizes = {"workers", "hosts", "degrees"} & {*given.values, *given.sweep}
    if not sizes or {"workers", "hosts"} <= sizes:
        raise BadInput(
            "expected either --workers N or --hosts HOST,HOST…",
            hint=f"{name!r} is not a file: a job file's name ends in {', '.join(_SUFFIXES)}",
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


def _expected(row: Preview | None) -> str:
    """What a job waits for, or how long it would take as predicted, and what limits it."""
    if row is None:
        return ""
    if row.waits_for:
        return f"waits: {row.waits_for}"
    iteration_s = row.predicted_iteration_s
    all_s = row.predicted_completion_s
    if iteration_s is None or all_s is None:
        return row.bottleneck or ""
    whole = f"{all_s:.1f} s" if all_s < 120 else f"{all_s / 60:.0f} min"
    if row.start_s is not None:
        whole += f", {row.start_s:.1f} s of it to start its workers"
    limit = row.bottleneck or ""
    return (
        f"predicted to take {whole}; {iteration_s:.3f} s an iteration, {limit}"
    )


def _print_preview(rows: Sequence[Preview]) -> None:
    table = out.Table(out.Column("job", whole=True), "now", "circuits")
    for row in rows:
        now = [f"starts on {', '.join(row.hosts)}"] if row.hosts else []
        ahead = [f"jobs ahead of it: {row.ahead}"] if row.ahead else []
        now += filter(None, [_expected(row), *ahead, *(row.objections or ())])
        table.add_row(row.job, "; ".join(now), ", ".join(row.circuits or ()))
    table.print()


def _overrides(
    *,
    regroup: bool,
    sweep: Sequence[str],
    array: int | None,
    settings: Sequence[str],
    command: Sequence[str],
    **keys: Any,
) -> Overrides:
    if regroup and keys["topology"] == "keep":
        raise BadInput("--regroup and --topology keep exclude each other")
    if regroup:
        keys["topology"] = "regroup"
    for key, metavar in _PAIRS.items():
        keys[key] = _pairs(key, metavar, keys[key])
    keys["command"] = tuple(command)
    values = {
        key: value
        for key, value in keys.items()
        if value not in (None, (), {})
    }
    given = _settings(settings)
    if twice := values.keys() & given.keys():
        raise BadInput(
            f"{min(twice)} is given twice: as an option and with --set"
        )
    if Path(given.get("graph", "")).is_file():
        # The graph that a job file names is looked for beside that file.
        given["graph"] = str(Path(given["graph"]).absolute())
    return Overrides({**values, **given}, _sweep(sweep), array)


def _settings(texts: Sequence[str]) -> dict[str, Any]:
    """What ``--set`` gives, read as the lines of a job file: its n-th is line n in messages."""
    if not texts:
        return {}
    if wrong := next((text for text in texts if "=" not in text), None):
        raise BadInput(f"--set {wrong}: expected KEY=VALUE, like hold=freeze")
    issues = FileIssues("--set", JobFileError)
    lines = "\n".join(text.replace("=", ": ", 1) for text in texts)
    settings = read(Defaults, lines, issues)
    issues.raise_if_any()
    return {key: plain(each.value) for key, each in settings.there.items()}


def _pairs(
    key: str,
    metavar: str,
    texts: Sequence[str],
) -> Any:
    pairs: dict[str, str] = {}
    for text in texts:
        # A model's name may have a sign of its own, and so may a variable's value.
        name, sign, value = (
            text.rpartition("=") if key == "compute" else text.partition("=")
        )
        if not sign or not name:
            raise BadInput(
                f"{text!r}: expected {metavar}, like {sample(_KEYS[key]).strip('{}')}"
            )
        pairs[name] = value
    return value_of(Defaults, key, pairs) if pairs else {}


def _sweep(texts: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for text in texts:
        key, sign, listed = text.partition("=")
        if not sign or key not in _SWEPT:
            raise BadInput(
                f"--sweep {text}: no number {key!r} of a job: {nearest(key, _SWEPT)}"
            )
        try:
            values[key] = value_of(Sweep, key, listed)
        except BadInput as error:
            raise BadInput(f"--sweep {text}: {error.message}") from error
    return values
