"""``patchlight deploy``: its group, and the commands on what servers have."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from patchlight.console import rendering as out
from patchlight.console.commands import say_what_stays
from patchlight.console.connection import running_lab
from patchlight.console.shared import LazyGroup
from patchlight.deploy.commands import options
from patchlight.deploy.commands.push import bundle, push
from patchlight.deploy.commands.trust import certificates, trust

if TYPE_CHECKING:
    from patchlight.deploy.check import Installed
    from patchlight.deploy.remote import Remote, ServerResult
    from patchlight.deploy.ssh import Passwords
    from patchlight.testbed.lab.model import Server


@click.command()
@options.server_options
@out.listing_options
def status(
    lab_name: str,
    chosen: tuple[str, ...],
    passwords: Passwords,
    as_json: bool,
) -> None:
    """Show what is deployed on the servers of LAB, and whether it is healthy.

    Exit code 1 if a server is not healthy.

    \b
    With --json: lab, ok, and servers, each with server, ok, release, previous,
    pushed_at and since (Unix times), pushed_by, version, restarts, workers,
    controller (whether it runs; null: none is deployed) and problem.
    """
    lab, servers = options.lab_and_servers(lab_name, chosen)
    outcomes = options.on_servers(
        lab,
        servers,
        options.servers_of(lab).status,
        passwords,
    )
    rows = [
        {"server": o.server, "ok": not o.result.problem, **asdict(o.result)}
        if o.result
        else {
            "server": o.server,
            "ok": False,
            "problem": o.error and o.error.message,
        }
        for o in outcomes
    ]
    healthy = all(row["ok"] for row in rows)
    if as_json:
        out.print_json({"lab": lab.name, "ok": healthy, "servers": rows})
    else:
        _table(outcomes).print()
        for hint in dict.fromkeys(
            o.error.hint for o in outcomes if o.error and o.error.hint
        ):
            out.say(hint)
    if not healthy:
        click.get_current_context().exit(1)


def _table(outcomes: list[ServerResult[Installed]]) -> out.Table:
    table = out.Table(
        out.Column("server", whole=True),
        out.Column("release", whole=True),
        out.Column("agent", whole=True),
        out.Column("since", whole=True),
        out.Column(
            "workers",
            whole=True,
            right=True,
        ),
        "state",
        out.Column("pushed", wide=True),
        out.Column(
            "before",
            whole=True,
            wide=True,
        ),
    )
    for outcome in outcomes:
        found = outcome.result
        if found is None:
            assert outcome.error is not None
            failed = out.Coloured(outcome.error.message, "bad")
            cells: list[out.Cell] = [
                *[""] * 4,
                failed,
                "",
                "",
            ]
        else:
            again = (
                f", restarted {found.restarts} times" if found.restarts else ""
            )
            words = (found.problem or "healthy") + again
            state: out.Cell = out.Coloured(
                words, "bad" if found.problem else "good"
            )
            cells = [
                found.release or "",
                found.version or "",
                _ago(found.since),
                str(found.workers) if found.version else "",
                state,
                f"{out.when(found.pushed_at)} by {found.pushed_by}"
                if found.pushed_at
                else "",
                found.previous or "",
            ]
        table.add_row(outcome.server, *cells)
    return table


def _ago(since: float | None) -> str:
    if since is None:
        return ""
    seconds = max(0.0, time.time() - since)
    for unit, length_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def _acting(
    action: str,
    done: str,
    words: str,
) -> click.Command:
    @click.command(action, help=words)
    @options.server_options
    @out.json_option
    def command(
        lab_name: str,
        chosen: tuple[str, ...],
        passwords: Passwords,
        as_json: bool,
    ) -> None:
        options.act_on_servers(
            lab_name,
            chosen,
            passwords,
            lambda on, server, remote: on.act(action, server, remote),
            "done",
            lambda roles: f"{roles} {done}",
            as_json=as_json,
        )

    return command


_JSON = "\n\n\b\nWith --json: lab, ok, and servers, each with server, ok, and either\n"
restart = _acting(
    "restart",
    "restarted",
    "Restart agents and controller on the servers of LAB; workers keep running."
    + _JSON
    + "done, or error "
    "and remedy.",
)
stop = _acting(
    "stop",
    "stopped",
    "Stop agents and controller on the servers of LAB; workers keep running."
    + _JSON
    + "done, or error and remedy.",
)


@click.command()
@options.server_options
@out.json_option
def rollback(
    lab_name: str,
    chosen: tuple[str, ...],
    passwords: Passwords,
    as_json: bool,
) -> None:
    """Return to the previous release on the servers of LAB; workers keep running.

    Two releases are kept, so a second rollback undoes the first. Lab file and certificates of the
    last push stay.

    \b
    With --json: lab, ok, and servers, each with server, ok, and either
    release, or error and remedy.
    """
    options.act_on_servers(
        lab_name,
        chosen,
        passwords,
        lambda on, server, remote: on.roll_back(server, remote),
        "release",
        lambda release: f"release {release} runs",
        as_json=as_json,
    )


@click.command()
@options.server_options
@click.option(
    "--end-workers",
    is_flag=True,
    help="End running workers.",
)
@out.json_option
def remove(
    lab_name: str,
    chosen: tuple[str, ...],
    passwords: Passwords,
    end_workers: bool,
    as_json: bool,
) -> None:
    """Uninstall Patchlight from the servers of LAB.

    The servers return to their previous state; NICs and GPUs are released. A server with running
    workers is refused without --end-workers, which waits for the stop_grace of their jobs.
    Certificates and wheels on this machine stay.

    \b
    With --json: lab, ok, and servers, each with server, ok, and either
    removed (false: nothing was installed), or error and remedy.
    """
    options.act_on_servers(
        lab_name,
        chosen,
        passwords,
        lambda on, server, remote: on.remove(
            server, remote, end_workers=end_workers
        ),
        "removed",
        lambda removed: "removed" if removed else "nothing is installed",
        as_json=as_json,
    )
    say_what_stays(running_lab(lab_name).name)


@click.command()
@options.server_options
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Continue until Ctrl-C.",
)
@click.option(
    "--lines",
    type=click.IntRange(0),
    default=100,
    help="Number of last lines.",
)
@click.option(
    "--controller",
    is_flag=True,
    help="Show the controller's log instead.",
)
def logs(
    lab_name: str,
    chosen: tuple[str, ...],
    passwords: Passwords,
    follow: bool,
    lines: int,
    controller: bool,
) -> None:
    """Print the agents' logs from the servers of LAB, each line with its server.

    Exit code 1 if a server's log could not be read.
    """
    lab, servers = options.lab_and_servers(lab_name, chosen)
    role = "controller" if controller else "agent"

    def read(server: Server, remote: Remote) -> bool:
        rest = ""
        for piece in remote.logs(role, lines, follow=follow):
            *whole, rest = (rest + piece).split("\n")
            for line in whole:
                out.say(f"{server.name}: {line}")
        if rest:
            out.say(f"{server.name}: {rest}")
        return True

    failed = [
        each.error
        for each in options.on_servers(
            lab,
            servers,
            read,
            passwords,
        )
        if each.error
    ]
    for error in failed:
        out.say(f"patchlight: {error}", err=True)
    if failed:
        click.get_current_context().exit(1)


@click.group(
    cls=LazyGroup,
    prefix="deploy ",
)
def deploy() -> None:
    """Install Patchlight on the servers of a lab."""


for command in (trust, bundle, certificates, options.prometheus, push):
    deploy.add_command(command)
for command in (status, logs, restart, stop, rollback, remove):
    deploy.add_command(command)
