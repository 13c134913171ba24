"""What the commands of ``patchlight deploy`` share: which servers, and what came of it on each."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from patchlight.console.completion import completer
from patchlight.console.connection import running_lab, user_name
from patchlight.console.lab_option import complete_lab
from patchlight.console.rendering import (
    Coloured,
    Column,
    Table,
    console,
    print_json,
    progress_bar,
    say,
)
from patchlight.deploy.commands.options import ssh_options
from patchlight.testbed.errors import BadInput

if TYPE_CHECKING:
    from patchlight.deploy.everywhere import Outcome
    from patchlight.deploy.installed import Servers
    from patchlight.deploy.remote import Remote
    from patchlight.deploy.ssh import Passwords
    from patchlight.testbed.lab.model import Lab, Server

R = TypeVar("R")
complete_server = completer(lambda lab, *_: [server.name for server in lab.servers])


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command LAB, as ``lab_name``, ``--server``, as ``chosen``, and ``passwords``."""
    command = ssh_options(command)
    command = click.option(
        "--server",
        "chosen",
        multiple=True,
        metavar="SERVER",
        shell_complete=complete_server,
        help="Only this server; may be given again.",
    )(command)
    return click.argument("lab_name", metavar="LAB", shell_complete=complete_lab)(command)


def lab_and_servers(lab_name: str, chosen: Sequence[str]) -> tuple[Lab, list[Server]]:
    """The lab, and the servers of it that are meant."""
    lab = running_lab(lab_name)
    if not lab.servers:
        raise BadInput(f"lab {lab.name} has no servers: expected some in the lab file")
    names = [server.name for server in lab.servers]
    for name in chosen:
        if name not in names:
            raise BadInput(f"lab {lab.name} has no server {name!r}: it has {', '.join(names)}")
    return lab, [server for server in lab.servers if not chosen or server.name in chosen]


def deployer() -> str:
    """Who deploys, for others to read."""
    return f"{user_name()} on {socket.gethostname()}"


def on_servers(
    lab: Lab, servers: Sequence[Server], work: Callable[[Server, Remote], R], passwords: Passwords
) -> list[Outcome[R]]:
    """Do the same on these servers, and show how far it is."""
    from patchlight.deploy.everywhere import everywhere

    with progress_bar("servers", console(stderr=True)) as tell:
        return everywhere(lab, servers, work, tell, passwords)


def servers_of(lab: Lab) -> Servers:
    """What is deployed to a lab, for this user."""
    from patchlight.controller.access.authority import Authority, authority_folder
    from patchlight.deploy.agent_door import AgentDoor
    from patchlight.deploy.installed import Servers
    from patchlight.deploy.push import controller_credentials

    authority = Authority(lab.name, authority_folder(lab.name))
    return Servers(AgentDoor(lab, controller_credentials(authority)), deployer())


def report(
    lab: Lab,
    outcomes: Sequence[Outcome[R]],
    row: Callable[[R], dict[str, Any]],
    in_words: Callable[[R], str],
    *,
    as_json: bool,
) -> None:
    """Print what came of it, what failed first with its remedy; exit code 1 if something failed."""
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    if as_json:
        rows = []
        for outcome in outcomes:
            if outcome.error is not None:
                told = {"error": outcome.error.message, "remedy": outcome.error.hint or ""}
            else:
                assert outcome.result is not None
                told = row(outcome.result)
            rows.append({"server": outcome.server, "ok": outcome.error is None, **told})
        print_json({"lab": lab.name, "ok": not failed, "servers": rows})
    else:
        table = Table(Column("", whole=True), Column("server", whole=True), "what")
        for outcome in failed:
            assert outcome.error is not None
            table.add_row(Coloured("failed", "bad"), outcome.server, outcome.error.message)
        for outcome in outcomes:
            if outcome.result is not None:
                table.add_row(Coloured("ok", "good"), outcome.server, in_words(outcome.result))
        table.print()
        hints = dict.fromkeys(o.error.hint for o in failed if o.error and o.error.hint)
        for hint in hints:
            alike = [o.server for o in failed if o.error and o.error.hint == hint]
            say(f"{', '.join(alike)}: {hint}")
    if failed:
        sys.exit(1)
