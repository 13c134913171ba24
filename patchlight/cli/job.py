"""``patchlight job``: submit training jobs, follow them, stop them."""

import json
import time
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from patchlight.cli.connection import connect, controller_options, lab_meant
from patchlight.controller.client import ControllerClient
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.jobs import JobSpec, JobState
from patchlight.testbed.units import parse_size, parse_time

_POLL_S = 0.5


@click.group()
def job() -> None:
    """Submit, list, follow and stop training jobs."""


@job.command()
@click.argument("name")
@click.option(
    "--workers",
    metavar="N|auto",
    help="How many GPUs; the placement policy chooses which, and "
    "with auto the partition policy how many.",
)
@click.option("--hosts", metavar="HOST,HOST…", help="Which GPUs, in ring order.")
@click.option("--iterations", type=click.IntRange(min=1), default=10)
@click.option("--gradient", default="553MB", help="Bytes of one gradient.")
@click.option(
    "--compute",
    multiple=True,
    metavar="MODEL=TIME",
    help="Compute time of an iteration on a GPU model, like 'Tesla M40=500ms'; may be "
    "given again. [default: 500ms on every model of the lab]",
)
@click.option(
    "--topology",
    type=click.Choice(["keep", "regroup"]),
    help="Which circuits are lit for it: "
    "as they are, or its GPUs under one packet switch.  [default: the lab's policy]",
)
@click.option("--regroup", is_flag=True, help="The same as --topology regroup.")
@click.option("--seed", type=int, default=0)
@click.option(
    "--dark-limit",
    default="10min",
    metavar="TIME",
    help="How long it may be paused because a NIC has no light, before it fails.",
)
@click.option("--follow", is_flag=True, help="Wait for the end and show progress.")
@controller_options
def submit(
    name: str,
    workers: str | None,
    hosts: str | None,
    iterations: int,
    gradient: str,
    compute: tuple[str, ...],
    topology: str | None,
    regroup: bool,
    seed: int,
    dark_limit: str,
    follow: bool,
    lab_name: str | None,
    address: str | None,
) -> None:
    """Submit the training job NAME."""
    if bool(workers) == bool(hosts):
        raise BadInput("expected either --workers N or --hosts HOST,HOST…")
    if regroup and topology == "keep":
        raise BadInput("--regroup and --topology keep exclude each other")
    models = {g.model for server in lab_meant(lab_name, address).servers for g in server.gpus}
    spec = JobSpec(
        name=name,
        iterations=iterations,
        gradient_bytes=parse_size(gradient),
        compute_s=_compute_times(compute) or dict.fromkeys(sorted(models), 0.5),
        workers=_worker_count(workers) if workers else 0,
        hosts=tuple(h.strip() for h in hosts.split(",")) if hosts else (),
        seed=seed,
        dark_limit_s=parse_time(dark_limit),
    )
    with connect(lab_name, address) as client:
        status = client.submit([spec], "regroup" if regroup else topology)[0]
        click.echo(status["id"])
        if follow:
            _follow(client, status["id"])


def _worker_count(text: str) -> int:
    if text == "auto":
        return 0
    if not text.isdecimal() or int(text) < 1:
        raise BadInput(f"--workers {text}: expected a number of 1 or more, or auto")
    return int(text)


def _compute_times(texts: tuple[str, ...]) -> dict[str, float]:
    times: dict[str, float] = {}
    for text in texts:
        model, sign, value = text.rpartition("=")
        if not sign or not model:
            raise BadInput(f"{text!r}: expected MODEL=TIME, like 'Tesla M40=500ms'")
        times[model] = parse_time(value)
    return times


@job.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@controller_options
def list_jobs(as_json: bool, lab_name: str | None, address: str | None) -> None:
    """Every job and its state."""
    with connect(lab_name, address) as client:
        jobs = client.jobs()
    if as_json:
        click.echo(json.dumps(jobs, indent=2))
        return
    table = Table()
    for heading in ("id", "state", "hosts", "iterations", "time", "message"):
        table.add_column(heading)
    for status in jobs:
        table.add_row(
            status["id"],
            status["state"],
            ", ".join(status["hosts"]),
            f"{status['iterations_done']}/{status['spec']['iterations']}",
            _elapsed(status),
            _words(status),
        )
    Console().print(table)


def _words(status: dict[str, Any]) -> str:
    """The job's message, and how often a policy failed on it."""
    faults = status["policy_faults"]
    marks = [f"policy faults: {faults}, the default decided"] if faults else []
    return "; ".join([*filter(None, [status["message"]]), *marks])


def _elapsed(status: dict[str, Any]) -> str:
    if status["started_at"] is None:
        return ""
    return f"{(status['finished_at'] or time.time()) - status['started_at']:.1f} s"


@job.command()
@click.argument("job_id")
@controller_options
def show(job_id: str, lab_name: str | None, address: str | None) -> None:
    """All that is known of one job, as JSON."""
    with connect(lab_name, address) as client:
        click.echo(json.dumps(client.job(job_id), indent=2))


@job.command()
@click.argument("job_id")
@controller_options
def follow(job_id: str, lab_name: str | None, address: str | None) -> None:
    """Show a job's iterations as they finish, until it ends."""
    with connect(lab_name, address) as client:
        _follow(client, job_id)


def _follow(client: ControllerClient, job_id: str) -> None:
    after = 0
    while True:
        status = client.job(job_id)
        reports, after = client.iterations(job_id, after)
        for r in reports:
            click.echo(
                f"rank {r['rank']} iteration {r['index']}: compute {r['compute_s']:.3f} s, "
                f"communication {r['communication_s']:.3f} s"
            )
        if JobState(status["state"]).is_final:
            break
        time.sleep(_POLL_S)
    if status["state"] != JobState.DONE:
        lines = "".join(f"\n  | {line}" for line in status["last_lines"])
        raise PatchlightError(f"job {job_id} {status['state']}: {status['message']}{lines}")
    click.echo(f"done in {_elapsed(status)}")


@job.command()
@click.argument("job_id")
@click.option("--force", is_flag=True, help="Also a job that another user submitted.")
@controller_options
def stop(job_id: str, force: bool, lab_name: str | None, address: str | None) -> None:
    """Stop a job and those submitted together with it."""
    with connect(lab_name, address) as client:
        click.echo(client.stop(job_id, force=force)["state"])


@job.command()
@click.argument("job_ids", nargs=-1, required=True)
@controller_options
def regroup(job_ids: tuple[str, ...], lab_name: str | None, address: str | None) -> None:
    """Bring running jobs under one packet switch each, without stopping them."""
    from patchlight.cli.ocs.output import print_record

    with connect(lab_name, address) as client:
        print_record(client.regroup(job_ids))
