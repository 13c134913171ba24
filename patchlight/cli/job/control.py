"""``patchlight job`` commands that change what runs: stop, restart, regroup."""

import click

from patchlight.cli.connection import connect, controller_options
from patchlight.cli.job.find import find_job, force_option, job_argument, jobs_argument
from patchlight.cli.rendering import json_option, print_json, say


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
@jobs_argument
@json_option
@controller_options
def regroup(
    jobs: tuple[str, ...], as_json: bool, lab_name: str | None, address: str | None
) -> None:
    """Bring running jobs under one packet switch each, without stopping them."""
    from patchlight.cli.ocs.output import print_record

    with connect(lab_name, address) as client:
        record = client.regroup([find_job(client, job) for job in jobs])
    print_record(record, as_json=as_json)


COMMANDS = (stop, restart, regroup)
