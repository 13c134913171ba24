"""``patchlight job``: submit, list, follow and stop training jobs."""

import click

from patchlight.console.commands import LazyGroup, commands_in


@click.group(
    cls=LazyGroup,
    prefix="job ",
    built_in=commands_in(
        "patchlight.cli.job",
        submit="submit check schema",
        listing="list show",
        follow="follow logs wait top stop restart regroup",
    ),
    epilog="JOB is a job's id, the start of one, or its name: of several of that name, the one "
    "that has not ended.",
)
def job() -> None:
    """Submit, list, follow and stop training jobs."""
