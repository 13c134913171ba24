"""``patchlight deploy check``: whether the servers of a lab are ready."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from patchlight.console.connection import running_lab
from patchlight.console.lab_option import complete_lab
from patchlight.console.rendering import (
    Coloured,
    Column,
    Meaning,
    Table,
    console,
    listing_options,
    print_json,
    progress_bar,
    say,
)
from patchlight.deploy.commands.options import ssh_options
from patchlight.testbed.errors import BadInput

if TYPE_CHECKING:
    from patchlight.deploy.checks.finding import Finding
    from patchlight.deploy.checks.software import Workers
    from patchlight.deploy.ssh import Passwords

_MEANINGS: dict[str, Meaning] = {"wrong": "bad", "unknown": "caution", "ok": "good"}


@click.command()
@click.argument("lab", shell_complete=complete_lab)
@click.option(
    "--workers",
    type=click.Choice(["docker", "process", "auto"]),
    default="auto",
    help="What workers are to be; auto: no Docker engine is no failure.",
)
@ssh_options
@listing_options
def check(lab: str, workers: Workers, passwords: Passwords, as_json: bool) -> None:
    """Look over SSH whether the servers of LAB are ready for Patchlight.

    All servers at once: SSH and its host key, sudo, Python, free disk, the Docker engine and
    NVIDIA's driver and container toolkit; whether the GPUs and NICs are those of the lab file,
    each GPU near its NIC, RDMA devices and kernel modules ready, MTUs equal, the clock right.
    What is wrong comes first, each with its remedy. What the lab file does not claim is never
    wrong. Nothing on the servers changes. Exit code 1 if something is wrong.

    \b
    With --json: lab, ready, and checks, each with server, check, state
    (ok, wrong or unknown), found and remedy.
    """
    from patchlight.deploy.check import check_servers

    meant = running_lab(lab)
    if not meant.servers:
        raise BadInput(f"lab {meant.name} has no servers: expected some in the lab file")
    with progress_bar("servers", console(stderr=True)) as tell:
        findings = check_servers(meant, tell, passwords, workers)
    wrong = [finding for finding in findings if finding.ok is False]
    if as_json:
        keys = ("server", "check", "state", "found", "remedy")
        rows = [
            {key: getattr(f, key) for key in keys if f.ok is False or key != "remedy"}
            for f in findings
        ]
        print_json({"lab": meant.name, "ready": not wrong, "checks": rows})
    else:
        _table(findings).print()
        for name, remedy in dict.fromkeys((f.check, f.remedy) for f in wrong):
            alike = [f.server for f in wrong if (f.check, f.remedy) == (name, remedy)]
            say(f"{name} ({', '.join(alike)}): {remedy}")
        ready = len(meant.servers) - len({finding.server for finding in wrong})
        say(f"{ready} of {len(meant.servers)} servers of lab {meant.name} are ready")
    if wrong:
        sys.exit(1)


def _table(findings: list[Finding]) -> Table:
    """What is wrong, what cannot be told, and then in a line for each server what is good."""
    server = Column("server", whole=True)
    table = Table(Column("", whole=True), server, Column("check", whole=True), "found")
    for state, meaning in _MEANINGS.items():
        for finding in (f for f in findings if f.state == state != "ok"):
            table.add_row(Coloured(state, meaning), finding.server, finding.check, finding.found)
    for name in dict.fromkeys(f.server for f in findings):
        good = [f.check for f in findings if f.ok and f.server == name]
        if good:
            table.add_row(Coloured("ok", "good"), name, f"{len(good)} checks", ", ".join(good))
    return table
