"""``patchlight deploy``: Patchlight on the servers of a lab, over SSH."""

import click

from patchlight.cli.deploy.certificates import certificates
from patchlight.cli.deploy.check import check
from patchlight.cli.deploy.logs import logs
from patchlight.cli.deploy.prometheus import prometheus
from patchlight.cli.deploy.push import bundle, push
from patchlight.cli.deploy.servers import remove, restart, rollback, status, stop
from patchlight.cli.deploy.trust import trust


@click.group()
def deploy() -> None:
    """Put Patchlight on the servers of a lab."""


for command in (
    trust,
    check,
    bundle,
    certificates,
    prometheus,
    push,
    status,
    logs,
    restart,
    stop,
    rollback,
    remove,
):
    deploy.add_command(command)
