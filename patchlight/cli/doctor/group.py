"""``patchlight doctor``: what this machine lacks, and the command that brings it."""

from __future__ import annotations

import sys

import click

from patchlight.cli.doctor.host_checks import DEMO, Check, examine
from patchlight.cli.rendering import console, new_table, print_json

_COLOURS = {"ok": "green", "missing": "red", "untested": "yellow"}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(as_json: bool) -> None:
    """Say what this machine has and lacks, and how to install what is missing.

    Exit code 1 if something is missing that `make demo` needs. Nothing on the machine changes.
    """
    checks = list(examine())
    lacking = [check for check in checks if check.ok is False and check.needed_for == DEMO]
    if as_json:
        print_json({"ready_for_demo": not lacking, "checks": [_plain(check) for check in checks]})
    else:
        _print(checks, lacking)
    if lacking:
        sys.exit(1)


def _plain(check: Check) -> dict[str, object]:
    return {
        "name": check.name,
        "state": check.state,
        "found": check.found,
        "needed_for": check.needed_for,
        "install": check.install or None,
    }


def _print(checks: list[Check], lacking: list[Check]) -> None:
    from rich.markup import escape

    out = console()
    table = new_table("", "what", "found", "needed for")
    for check in checks:
        colour = _COLOURS[check.state]
        state = f"[{colour}]{check.state}[/{colour}]"
        table.add_row(state, check.name, escape(check.found), check.needed_for)
    out.print(table)
    wanted = [check for check in checks if check.ok is not True and check.install]
    if wanted:
        out.print("To install or try what is missing:")
        for command in dict.fromkeys(check.install for check in wanted):
            names = ", ".join(check.name for check in wanted if check.install == command)
            out.print(f"  {escape(command)}    [dim]# {escape(names)}[/dim]", soft_wrap=True)
    if lacking:
        out.print(f"\n`{DEMO}` cannot run yet: {', '.join(check.name for check in lacking)}.")
    else:
        out.print(f"\nAll that `{DEMO}` needs is here.")
