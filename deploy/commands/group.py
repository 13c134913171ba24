"""``patchlight deploy``: Patchlight on the servers of a lab, over SSH."""

import click

from patchlight.deploy.commands.certificates import certificates
from patchlight.deploy.commands.check import check
from patchlight.deploy.commands.logs import logs
from patchlight.deploy.commands.prometheus import prometheus
from patchlight.deploy.commands.push import bundle, push
from patchlight.deploy.commands.servers import remove, restart, rollback, status, stop
from patchlight.deploy.commands.trust import trust


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
