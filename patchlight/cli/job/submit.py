"""``patchlight job`` commands that take in jobs: submit them, check their files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from patchlight.cli.job.flags import job_options, overrides
from patchlight.cli.job.follow import follow_job
from patchlight.console.connection import connect, controller_options, lab_meant
from patchlight.console.rendering import Column, Table, json_option, print_json, say
from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobfile.reader import JobBatch, JobFileError, Overrides, jobs_of, read_jobs
from patchlight.testbed.jobfile.schema import json_schema

if TYPE_CHECKING:
    from patchlight.testbed.wire.rest.jobs import Preview


_PROGRAM = "patchlight.program"
_SUFFIXES = (".yaml", ".yml", ".json")
_ITERATIONS, _GRADIENT, _COMPUTE_S = 10, 553_000_000, 0.5


class _WithProgram(click.Command):
    """A command whose words after ``--`` are a program's, and no options of ours."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            args, ctx.meta[_PROGRAM] = args[:at], tuple(args[at + 1 :])
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- PROGRAM [WORD]…]"]


@click.command(cls=_WithProgram)
@click.argument("job", metavar="NAME|FILE|-")
@job_options
@click.option("--dry-run", is_flag=True, help="Say what would come of it now, and queue nothing.")
@click.option("--follow", is_flag=True, help="Wait for the end and show progress.")
@json_option
@controller_options
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

    What is a file, or ends in .yaml, .yml or .json, is a job file ('patchlight job schema' has
    its keys). Options go before what the file says; a file of several jobs takes none. With a
    PROGRAM, the job runs that in each worker.

    \b
      patchlight job submit vgg.yaml --workers 4
      patchlight job submit vgg --workers 4 --iterations 100
      patchlight job submit real --workers 2 --model resnet18 --batch 16
      patchlight job submit mine --workers 2 -- python train.py --epochs 3
    """
    given = overrides(command=click.get_current_context().meta.get(_PROGRAM, ()), **options)
    if job == "-" or job.endswith(_SUFFIXES) or Path(job).is_file():
        jobs = read_jobs(job, given)
    else:
        jobs = _named(job, given, lab_name, address)
    if follow and len(jobs.specs) > 1:
        raise BadInput("--follow is for one job: 'patchlight job wait' waits for several")
    with connect(lab_name, address) as client:
        if dry_run:
            _print_preview(client.preview(jobs), as_json=as_json)
            return
        statuses = client.submit(jobs)
        if as_json:
            print_json(statuses[0] if len(statuses) == 1 else statuses)
        else:
            say("\n".join(status["id"] for status in statuses))
        if follow:
            follow_job(client, statuses[0]["id"], as_json=as_json)


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
        lab = lab_meant(lab_name, address)
        models = {gpu.model for server in lab.servers for gpu in server.gpus}
        values["compute"] = dict.fromkeys(sorted(models), _COMPUTE_S)
    return jobs_of({"name": name}, Overrides(values, given.sweep, given.array))


def _print_preview(rows: Sequence[Preview], *, as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    table = Table(
        Column("job", whole=True), "now", "circuits", Column("iteration", whole=True, right=True)
    )
    for row in rows:
        now = f"starts on {', '.join(row['hosts'])}"
        if row["waits_for"]:
            now = f"waits: {row['waits_for']}"
        ahead = [f"jobs ahead of it: {row['ahead']}"] if row["ahead"] else []
        seconds = row.get("predicted_iteration_s")
        table.add_row(
            row["job"],
            "; ".join([now, *ahead, *row.get("objections", ())]),
            ", ".join(row.get("circuits", ())),
            "" if seconds is None else f"{seconds:.3f} s",
        )
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
            say(str(error))
            continue
        names = ", ".join(spec.name for spec in jobs.specs[:5])
        more = f" and {len(jobs.specs) - 5} more" if jobs.specs[5:] else ""
        how = "start together" if jobs.together else "are submitted one by one"
        counted = "a job" if len(jobs.specs) == 1 else f"{len(jobs.specs)} jobs that {how}"
        say(f"{file} is good: {counted}: {names}{more}")
    if wrong:
        sys.exit(JobFileError.exit_code)


@click.command()
def schema() -> None:
    """Print the JSON Schema of job files, for editors."""
    print_json(json_schema())
