"""``patchlight ocs``: read and change the circuits through the controller."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from testbed.cli.connection import connect, controller_options, running_lab
from testbed.errors import BadInput, OutcomeUnknown, PatchlightError
from testbed.lab import Endpoint, Lab
from testbed.wiring import fibre_ends


@click.group()
def ocs() -> None:
    """Read and change optical circuit switches."""


@ocs.command("list")
@controller_options
def list_switches(lab_name: str | None, address: str | None) -> None:
    """The lab's circuit switches, as the lab file has them."""
    table = Table()
    for heading in ("OCS", "driver", "address", "ports", "switching time", "insertion loss"):
        table.add_column(heading)
    for switch in running_lab(lab_name).circuit_switches:
        table.add_row(
            switch.name, switch.driver, switch.address, str(switch.ports),
            f"{switch.switching_time_s * 1e3:g} ms", f"{switch.insertion_loss_db:g} dB",
        )  # fmt: skip
    Console().print(table)


@ocs.command()
@click.argument("name", metavar="[OCS]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@controller_options
def show(name: str | None, as_json: bool, lab_name: str | None, address: str | None) -> None:
    """The present cross-connects, and which devices they join."""
    lab = running_lab(lab_name)
    with connect(lab_name, address) as client:
        circuits = client.circuits()
    if name is not None:
        circuits = {name: circuits[lab.circuit_switch(name).name]}
    if as_json:
        click.echo(json.dumps(circuits, indent=2))
        return
    ends = fibre_ends(lab)

    def plugged(switch: str, port: str) -> str:
        end = ends.get(Endpoint(switch, port))
        return str(end[0]) if end else ""

    table = Table()
    for heading in ("OCS", "cross-connect", "from", "to"):
        table.add_column(heading)
    for switch, answer in circuits.items():
        for text in answer["map"]:
            inp, out = text.split(">")
            table.add_row(switch, text, plugged(switch, inp), plugged(switch, out))
    Console().print(table)


@ocs.command("connect")
@click.argument("name", metavar="OCS")
@click.argument("pairs", nargs=-1, required=True, metavar="A:B…")
@click.option("--one-way", is_flag=True, help="Only A to B, not back.")
@controller_options
def connect_ports(
    name: str, pairs: tuple[str, ...], one_way: bool, lab_name: str | None, address: str | None
) -> None:
    """Join ports: by number (3:17) or by what is plugged in (server1.nic0:tor1.1)."""
    lab = running_lab(lab_name)
    sign = ">" if one_way else "-"
    texts = [sign.join(str(port) for port in _pair(lab, name, pair)) for pair in pairs]
    with connect(lab_name, address) as client:
        print_record(client.reconfigure({name: texts}, why="patchlight ocs"))


@ocs.command()
@click.argument("name", metavar="OCS")
@click.argument("ports", nargs=-1, required=True, metavar="PORT…")
@controller_options
def disconnect(
    name: str, ports: tuple[str, ...], lab_name: str | None, address: str | None
) -> None:
    """Break every cross-connect of these ports."""
    lab = running_lab(lab_name)
    numbers = sorted({_port(lab, name, port) for port in ports})
    with connect(lab_name, address) as client:
        print_record(client.reconfigure({}, disconnect={name: numbers}, why="patchlight ocs"))


def _pair(lab: Lab, ocs_name: str, text: str) -> tuple[int, int]:
    left, colon, right = text.partition(":")
    if not colon:
        raise BadInput(f"{text!r} is not a pair: expected A:B, like 3:17 or server1.nic0:tor1.1")
    return _port(lab, ocs_name, left), _port(lab, ocs_name, right)


def _port(lab: Lab, ocs_name: str, text: str) -> int:
    """A port number of the OCS, given as such or as the device port plugged into it."""
    switch = lab.circuit_switch(ocs_name)
    if text.isdigit():
        return int(text)
    endpoint = lab.host_names[text].endpoint if text in lab.host_names else Endpoint.parse(text)
    end = fibre_ends(lab).get(endpoint)
    if end is None or end[0].device != switch.name:
        raise BadInput(f"{text} is not plugged into {switch.name}: expected a port number or the "
                       "name of a port that a fibre joins to it")  # fmt: skip
    return int(end[0].port)


def print_record(record: dict[str, Any]) -> None:
    """Say what became of a change; raise where it did not come about."""
    for name, change in record["changes"].items():
        for sign, texts in (("-", change["breaks"]), ("+", change["makes"])):
            for text in texts:
                click.echo(f"{name} {sign} {text}")
    for note in record["notes"]:
        click.echo(f"note: {note}")
    stages = ", ".join(f"{name} {1e3 * spent:.1f} ms" for name, spent in record["stages_s"].items())
    click.echo(f"{record['state']}: {record['message']} ({stages})")
    if record["state"] == "unknown":
        raise OutcomeUnknown(f"change {record['id']} has an unknown outcome")
    if record["state"] != "committed":
        raise PatchlightError(f"change {record['id']} did not come about")
