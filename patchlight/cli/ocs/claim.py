"""``patchlight ocs claim``: circuits for the job of another scheduler."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from patchlight.cli import ocs
from patchlight.cli.ocs import names
from patchlight.console.connection import NEWS_WITHIN_S, patiently
from patchlight.console.options import Quantity
from patchlight.console.rendering import (
    Column,
    Table,
    print_answer,
    print_json,
    say,
    when,
)
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.units import parse_time

if TYPE_CHECKING:
    from patchlight.client.client import ControllerClient
    from patchlight.testbed.wire.rest.circuits import ClaimAnswer

_TIME = Quantity(parse_time)
_STILL_WAITING = 3


@click.command()
@click.argument("name", required=False)
@click.option(
    "--nodes",
    metavar="NODES",
    help="Servers or hosts: server[1-3],server7.",
)
@click.option(
    "--gpus",
    metavar="GPUS",
    help="Single GPUs of servers: server8.gpu[0-1].",
)
@click.option(
    "--ports",
    metavar="PORTS",
    help="Further ports of OCSs, left as connected: ocs1.17,tor1.3.",
)
@click.option(
    "--shape",
    type=click.Choice(["switch", "ring", "open"]),
    default="switch",
    help="One packet switch, a ring, or little oversubscription.",
)
@click.option(
    "--time-limit",
    type=_TIME,
    metavar="TIME",
    help="How long the claim lasts.  [default: until released]",
)
@click.option(
    "--hold",
    type=_TIME,
    metavar="TIME",
    default="30s",
    help="How much longer it keeps its ports.",
)
@click.option(
    "--wait",
    type=_TIME,
    metavar="TIME",
    default="300s",
    help="How long to wait for the circuits.",
)
@click.option(
    "--release",
    is_flag=True,
    help="End the claim; circuits stay.",
)
@ocs.why_option
@ocs.target_options
def claim(
    name: str | None,
    nodes: str | None,
    gpus: str | None,
    ports: str | None,
    shape: str,
    time_limit: float | None,
    hold: float,
    wait: float,
    release: bool,
    why: str,
    target: ocs.Target,
    as_json: bool,
) -> None:
    """Claim circuits for another scheduler's job.

    \b
      patchlight ocs claim slurm-17 --nodes "server[1-3]" --time-limit 1h
      patchlight ocs claim slurm-17 --release

    Until its release nobody else changes its ports, and Patchlight's own jobs do not get its GPUs.
    The same request again renews the time limit. With NAME alone, show the claim; without, list
    those that wait or are held.

    Exit codes: 0 its circuits are verified and held; 3 it still waits after --wait, and stays in
    line; 1 refused or failed.
    """
    wants = bool(nodes or gpus or ports)
    if target.direct:
        raise BadInput(
            "--direct excludes claims: a controller holds them",
            hint="leave out --direct",
        )
    if (wants or release) and name is None:
        raise BadInput("name the claim: patchlight ocs claim NAME --nodes …")
    if wants and release:
        raise BadInput(
            "--release ends the claim NAME: leave out nodes and ports"
        )
    with target.client() as client:
        if name is None:
            _print_all(client.claims(), as_json=as_json)
        elif release:
            _release(client, name, as_json=as_json)
        elif not wants:
            _print_one(client.claim_now(name), as_json=as_json)
        else:
            found = client.claim(
                name,
                _listed(nodes),
                gpus=_listed(gpus),
                ports=names.ports_by_switch(target.lab, _listed(ports))
                if ports
                else {},
                shape=shape,
                time_limit_s=time_limit,
                hold_s=hold,
                why=why,
            )
            found = _served(client, found, wait)
            _print_one(found, as_json=as_json)
            _exit(found)


def _listed(text: str | None) -> list[str]:
    return names.node_names(text) if text else []


def _served(
    client: ControllerClient,
    found: ClaimAnswer,
    wait_s: float,
) -> ClaimAnswer:
    """The claim after its turn, or after so many seconds."""
    ends = time.monotonic() + wait_s
    while found.state == "waiting" and time.monotonic() < ends:
        left_s = min(NEWS_WITHIN_S, max(0.0, ends - time.monotonic()))
        found = patiently(lambda: client.claim_now(found.name, left_s))  # noqa: B023
    return found


def _exit(found: ClaimAnswer) -> None:
    if found.state == "waiting":
        sys.exit(_STILL_WAITING)
    if found.state not in ("held", "overdue"):
        raise PatchlightError(f"claim {found.name} is not held")


def _release(
    client: ControllerClient,
    name: str,
    *,
    as_json: bool,
) -> None:
    found = client.release_claim(name)
    text = "\n".join(map(_line, found)) or f"no claim is called {name}"
    print_answer(found, text, as_json=as_json)


def _print_one(found: ClaimAnswer, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        say(_line(found))


def _line(found: ClaimAnswer) -> str:
    has = f": {', '.join(found.hosts)}" if found.state == "held" else ""
    until = f", until {when(found.until)}" if has and found.until else ""
    words = f": {found.words}" if found.words else ""
    return f"claim {found.name} is {found.state}{has}{until}{words}"


def _print_all(found: list[ClaimAnswer], *, as_json: bool) -> None:
    rows: list[tuple[Any, ...]] = [
        (
            each.name,
            each.state,
            ", ".join(each.hosts),
            each.shape,
            each.by,
            when(each.until) if each.until else "",
            each.words or each.why,
        )
        for each in found
        if each.state in ("waiting", "held", "overdue")
    ]
    table = Table(
        Column("claim", whole=True),
        "state",
        "hosts",
        "shape",
        "by",
        "until",
        "about",
        rows=rows,
        empty="no claims",
    )
    print_answer(found, table, as_json=as_json)
