"""``patchlight deploy``: Patchlight on the servers of a lab, over SSH."""

import click

from patchlight.cli.deploy.certificates import certificates
from patchlight.cli.deploy.check import check


@click.group()
def deploy() -> None:
    """Put Patchlight on the servers of a lab."""


deploy.add_command(certificates)
deploy.add_command(check)
