"""``patchlight job``: its group, and the commands that change what runs: stop, restart, regroup."""

from collections.abc import Mapping
from typing import Any

import click

from patchlight.cli.job.follow import follow, logs, top, wait
from patchlight.cli.job.listing import list_jobs, show
from patchlight.cli.job.submit import check, schema, submit
from patchlight.cli.job.texts import find_job, force_option, job_argument
from patchlight.console.connection import complete_job, connect, controller_options
from patchlight.console.rendering import json_option, print_json, say


@click.command()
@job_argument
@force_option
@json_option
@controller_options
def stop(job: str, force: bool, as_json: bool, lab_name: str | None, address: str | None) -> None:
    """Stop a job and those submitted together with it."""
    with connect(lab_name, address) as client:
        status = client.stop(find_job(client, job), force=force)
    if as_json:
        print_json(status)
    else:
        say(status["state"])


@click.command()
@job_argument
@force_option
@json_option
@controller_options
def restart(
    job: str, force: bool, as_json: bool, lab_name: str | None, address: str | None
) -> None:
    """Begin a job again: one that has ended as a new job, one that runs where it is.

    A synthetic job that runs goes on at its iteration, on whatever GPUs it gets now.
    """
    with connect(lab_name, address) as client:
        status = client.restart(find_job(client, job), force=force)
    if as_json:
        print_json(status)
    else:
        say(f"{status['id']} {status['state']}")


@click.command()
@click.argument("jobs", metavar="[JOB…]", nargs=-1, shell_complete=complete_job)
@click.option("--dry-run", is_flag=True, help="Print what would change, and change nothing.")
@click.option(
    "--detach", is_flag=True, help="Begin it and do not wait: 'patchlight ocs watch ID' follows it."
)
@json_option
@controller_options
def regroup(
    jobs: tuple[str, ...],
    dry_run: bool,
    detach: bool,
    as_json: bool,
    lab_name: str | None,
    address: str | None,
) -> None:
    """Bring running jobs under one packet switch each, without stopping them.

    Without JOB those whose regrouping is predicted to gain the most, if that is more than it costs:
    the iteration that each ends first, and the time without light.
    """
    from patchlight.cli.ocs.options import print_answer

    with connect(lab_name, address) as client:
        ids = [find_job(client, job) for job in jobs]
        if dry_run:
            found = client.preview_regroup(ids) if ids else client.defragmentation()
            _print_proposal(found, as_json=as_json)
            return
        record = client.regroup(ids, detach=detach) if ids else client.defragment(detach=detach)
    if record is not None:
        print_answer(record, as_json=as_json)
    elif as_json:
        print_json(None)
    else:
        say(_NOTHING)


_NOTHING = "No running job gains more by other circuits than they would cost."


def _print_proposal(found: Mapping[str, Any] | None, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    if found is None:
        say(_NOTHING)
        return
    for job, gain_s in found.get("gains_s", {}).items():
        cost_s = found["costs_s"].get(job)
        costs = f", {cost_s:.1f} s of cost counted in" if cost_s is not None else ""
        said = f"ends {gain_s:.1f} s sooner" if gain_s >= 0 else f"ends {-gain_s:.1f} s later"
        say(f"{job} {said}{costs}")
    for ocs, pairs in (found.get("makes") or found.get("maps") or {}).items():
        say(f"{ocs}: {', '.join(pairs)}")
    if not found.get("makes", True):
        say("The circuits are as they would be.")
    for objection in found.get("objections", ()):
        say(f"against it: {objection}")


@click.group(
    epilog="JOB is a job's id, the start of one, or its name: of several of that name, the one "
    "that has not ended."
)
def job() -> None:
    """Submit, list, follow and stop training jobs."""


for command in (
    *(submit, check, schema),
    *(list_jobs, show),
    *(follow, logs, wait),
    top,
    *(stop, restart, regroup),
):
    job.add_command(command)
