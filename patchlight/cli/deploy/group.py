"""``patchlight deploy``: Patchlight on the servers of a lab, over SSH."""

import click

from patchlight.cli.deploy.check import check
from patchlight.cli.deploy.trust import trust


@click.group()
def deploy() -> None:
    """Put Patchlight on the servers of a lab."""


deploy.add_command(check)
deploy.add_command(trust)
