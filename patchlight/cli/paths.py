"""``patchlight paths``: who sends to whom on which channel, and who waits."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from patchlight.console.connection import connect, controller_options
from patchlight.console.rendering import Coloured, Table, listing_options, print_json, say, span

if TYPE_CHECKING:
    from patchlight.testbed.wire.rest.circuits import PathsShape


@click.command()
@click.option("--networks", is_flag=True, help="Show the networks of light and their channels.")
@listing_options
@controller_options
def paths(lab_name: str | None, address: str | None, networks: bool, as_json: bool) -> None:
    """Who sends to whom on which channel, and who waits for a path.

    Programs ask for paths through the API; see docs/oddl.md.
    """
    with connect(lab_name, address) as client:
        found = client.paths()
    if as_json:
        print_json(found)
    elif networks:
        _networks(found)
    else:
        _paths(found)


def _paths(found: PathsShape) -> None:
    if not found["networks"]:
        say("No host of this lab has a tunable transceiver whose light reaches another's.")
        return
    if found["nodes"]:
        _nodes(found)
    if not found["paths"]:
        say("The controller has given no path, and nobody waits for one.")
        return
    table = Table("path", "from", "to", "THz", "state", "for", "bytes", "user")
    now = time.time()
    # Those that send come before those that wait.
    for path in sorted(found["paths"], key=lambda path: path["state"]):
        is_granted = path["state"] == "granted"
        began_at = path["starts_at"] if is_granted else None
        since = path["wanted_at"] if began_at is None else began_at
        table.add_row(
            str(path["id"]),
            path["source"],
            path["destination"],
            path["channel"] or "",
            Coloured(path["state"], "good" if is_granted else "quiet"),
            span(max(0.0, now - since)),
            f"{path['bytes']:.3g}",
            path["by"],
        )
    table.print()


def _nodes(found: PathsShape) -> None:
    table = Table("host", "job", "state", "to", "THz", title="Hosts that agree among themselves")
    for node in found["nodes"]:
        table.add_row(
            node["host"],
            node["job"],
            Coloured(node["state"], "good" if node["state"] == "sends" else "quiet"),
            node["destination"] or "",
            node["channel"] or "",
        )
    table.print()


def _networks(found: PathsShape) -> None:
    table = Table("network", "hosts", "channels", "a channel is for", "tuned in")
    for number, network in enumerate(found["networks"], 1):
        channels = network["channels"]
        table.add_row(
            str(number),
            f"{network['hosts'][0]} … {network['hosts'][-1]} ({len(network['hosts'])})",
            f"{channels[0]}-{channels[-1]} ({len(channels)})",
            "one destination" if network["routed"] else "one sender at a time",
            f"{network['tuning_s'] * 1e3:g} ms",
        )
    table.print()
