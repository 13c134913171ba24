"""``patchlight lab``: lab files, and the labs that they describe."""

import click

from patchlight.console.commands import LazyGroup, commands_in


@click.group(
    cls=LazyGroup,
    prefix="lab ",
    built_in=commands_in(
        "patchlight.cli.lab",
        files="check schema generate init",
        show="show graph",
        topology="topology",
        discover="discover",
    ),
)
def lab() -> None:
    """Check, show, draw and generate lab files, and find out how a lab is wired."""
