"""``patchlight job``: hand in training jobs, look at them, follow them, stop them."""

import click

from patchlight.cli.job import control, follow, listing, submit, top


@click.group(
    epilog="JOB is a job's id, the start of one, or its name: of several of that name, the one "
    "that has not ended."
)
def job() -> None:
    """Submit, list, follow and stop training jobs."""


for module in (submit, listing, follow, top, control):
    for command in module.COMMANDS:
        job.add_command(command)
