"""``patchlight deploy logs``: what agents and controllers on servers write."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from patchlight.console.rendering import say
from patchlight.deploy.commands.outcomes import lab_and_servers, on_servers, server_options

if TYPE_CHECKING:
    from patchlight.deploy.remote import Remote
    from patchlight.deploy.ssh import Passwords
    from patchlight.testbed.lab.model import Server


@click.command()
@server_options
@click.option("-f", "--follow", is_flag=True, help="Go on until Ctrl-C.")
@click.option("--lines", type=click.IntRange(0), default=100, help="So many of the last lines.")
@click.option("--controller", is_flag=True, help="The controller's log, and not the agents'.")
def logs(
    lab_name: str,
    chosen: tuple[str, ...],
    passwords: Passwords,
    follow: bool,
    lines: int,
    controller: bool,
) -> None:
    """Print what the agents on the servers of LAB wrote last, each line with its server.

    Exit code 1 if a server's log could not be read.
    """
    lab, servers = lab_and_servers(lab_name, chosen)
    role = "controller" if controller else "agent"

    def read(server: Server, remote: Remote) -> bool:
        rest = ""
        for piece in remote.logs(role, lines, follow=follow):
            *whole, rest = (rest + piece).split("\n")
            for line in whole:
                say(f"{server.name}: {line}")
        if rest:
            say(f"{server.name}: {rest}")
        return True

    failed = [
        each.error for each in on_servers(lab, servers, read, passwords) if each.error is not None
    ]
    for error in failed:
        say(f"patchlight: {error}", err=True)
    if failed:
        click.get_current_context().exit(1)
