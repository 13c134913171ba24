"""``patchlight lab`` commands on lab files: check them, generate them, print their schema."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from patchlight.console.commands import complete_lab
from patchlight.console.options import Quantity
from patchlight.console.rendering import cannot_write, json_option, print_document, print_json, say
from patchlight.testbed.errors import BadInput
from patchlight.testbed.generate import generate as shapes
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.labfile import oversights, reader
from patchlight.testbed.labfile.schema import FABRICS
from patchlight.testbed.labfile.values import KNOWN_DRIVERS
from patchlight.testbed.labfile.writer import json_schema, write_commented_lab, write_lab
from patchlight.testbed.linux.processes import own_program
from patchlight.testbed.units import parse_rate

F = TypeVar("F", bound=Callable[..., Any])


@click.command()
@click.argument("files", metavar="FILE…", nargs=-1, required=True, shell_complete=complete_lab)
@click.option("--strict", is_flag=True, help="Warnings are mistakes.")
@json_option
def check(files: tuple[str, ...], strict: bool, as_json: bool) -> None:
    """Print every mistake in lab files, one on a line: file:line:column: what is wrong.

    What is likely forgotten is a warning: NICs without a fibre, switches that nothing joins,
    servers without a management address, drivers that no emulated device speaks, a lab with
    nothing but a name. Policies that the file names have to be there; the program of one in a file
    is not run. Exit code 2 if there is a mistake.

    \b
    With --json, a list with an object for each file, with these keys:
      file, good  good: there is no mistake in it
      lab         its name, null if it could not be read
      counts      how many devices and fibres of each kind, empty if it could not be read
      issues      line, column, kind (mistake | warning), message
    """
    checked = [_check(file, strict=strict) for file in files]
    if as_json:
        print_json(checked)
    for found in () if as_json else checked:
        for issue in found["issues"]:
            mark = "warning: " if issue["kind"] == "warning" else ""
            say(f"{found['file']}:{issue['line']}:{issue['column']}: {mark}{issue['message']}")
        if found["good"]:
            say(f"{found['file']}: lab {found['lab']} is good: {in_words(found['counts'])}")
    if not all(found["good"] for found in checked):
        sys.exit(reader.LabFileError.exit_code)


def _check(file: str, *, strict: bool) -> dict[str, Any]:
    try:
        path = reader.find_lab(file)
    except BadInput:
        path = Path(file)
    lab_read, mistaken = None, strict
    try:
        lab_read, issues = reader.read_lab(path), oversights.oversights(path)
        if lab_read.policies.said:
            from patchlight.controller.policies.registry import check_policy

            if wrong := oversights.policy_mistakes(path, check_policy):
                mistaken, issues = True, wrong
    except reader.LabFileError as error:
        mistaken, issues = True, error.issues
    kind = "mistake" if mistaken else "warning"
    return {
        "file": str(path),
        "good": not (mistaken and issues),
        "lab": None if lab_read is None else lab_read.name,
        "counts": {} if lab_read is None else counts(lab_read),
        "issues": [
            {"line": i.line, "column": i.column, "kind": kind, "message": i.message} for i in issues
        ],
    }


def counts(lab_read: Lab) -> dict[str, int]:
    """How many devices and fibres of each kind a lab has."""
    return {
        "server": len(lab_read.servers),
        "GPU": sum(len(server.gpus) for server in lab_read.servers),
        "packet switch": len(lab_read.packet_switches),
        "circuit switch": len(lab_read.circuit_switches),
        **({"wavelength switch": len(wss)} if (wss := lab_read.wavelength_switches) else {}),
        **({"passive part": len(parts)} if (parts := lab_read.passive_parts) else {}),
        "fibre": len(lab_read.fibres),
    }


def in_words(counts: dict[str, int]) -> str:
    """``2 servers, 1 packet switch``."""

    def plural(name: str) -> str:
        return f"{name}es" if name.endswith("ch") else f"{name}s"

    return ", ".join(f"{n} {name if n == 1 else plural(name)}" for name, n in counts.items())


@click.command()
def schema() -> None:
    """Print the JSON Schema of lab files, for editors."""
    print_json(json_schema())


_hosts = click.option("--hosts", type=click.IntRange(1), required=True, help="How many hosts.")
_per_switch = click.option(
    "--hosts-per-switch",
    type=click.IntRange(1),
    default=16,
    help="How many hosts each switch with hosts has.",
)
_rate = click.option(
    "--rate",
    "rate_bps",
    type=Quantity(parse_rate),
    help="Rate of the hosts' links, like 10Gbps.",
    show_default="no limit",
)
_uplink_rate = click.option(
    "--uplink-rate",
    "uplink_rate_bps",
    type=Quantity(parse_rate),
    show_default="no limit",
    help="Rate of the links between switches, like 40Gbps.",
)

_fabric = click.option(
    "--fabric",
    type=click.Choice(FABRICS),
    default="openvswitch",
    help="What an emulation makes the switches of.",
)
_name = click.option("--name", help="The lab's name.", show_default="the shape and the hosts")
_ocs = click.option(
    "--ocs",
    type=click.Choice(KNOWN_DRIVERS),
    help="Put an OCS with this driver between the NICs and their switches.",
    show_default="no OCS",
)
_output = click.option(
    "--output", "-o", metavar="FILE", help="File to write.", show_default="standard output"
)


def _common(command: F) -> F:
    """The options that every shape has."""
    return _ocs(_fabric(_name(_output(command))))


@click.group()
def generate() -> None:
    """Write a lab of a common shape.

    With --ocs, every NIC goes through an OCS to its switch, and the circuits at the start reach
    everything. Hosts are h1, h2, … with one GPU and one NIC each, from 10.0.0.1 on; switches s1,
    s2, ….
    """


@generate.command()
@_hosts
@_rate
@_common
def single(output: str | None, **options: Any) -> None:
    """One switch with all hosts on it."""
    _write(write_lab, shapes.single(**options), output)


@generate.command()
@_hosts
@_per_switch
@_rate
@_uplink_rate
@_common
def linear(output: str | None, **options: Any) -> None:
    """A chain of switches with hosts on each."""
    _write(write_lab, shapes.linear(**options), output)


@generate.command()
@_hosts
@_per_switch
@_rate
@_uplink_rate
@_common
def tree(output: str | None, **options: Any) -> None:
    """A root switch, and leaf switches with hosts on each."""
    _write(write_lab, shapes.tree(**options), output)


@generate.command("fat-tree")
@_hosts
@_rate
@_uplink_rate
@_common
def fat_tree(output: str | None, **options: Any) -> None:
    """A fat-tree of k-port switches, k the smallest even number with k³/4 ≥ hosts.

    Where k³/4 is more than the hosts, edge switches are filled in order and the last host
    ports stay free.
    """
    _write(write_lab, shapes.fat_tree(**options), output)


@click.command()
@click.option("--servers", type=click.IntRange(1), default=4, help="How many servers.")
@click.option(
    "--gpus", type=click.IntRange(1), default=1, help="GPUs of each server, with a NIC for each."
)
@click.option("--gpu-model", default="Generic", help="Model of the GPUs, like 'Tesla M40'.")
@click.option(
    "--rate",
    "rate_bps",
    type=Quantity(parse_rate),
    default="40Gbps",
    help="Rate of the NICs; the link between the ToRs has a quarter of it.",
)
@click.option(
    "--driver", type=click.Choice(KNOWN_DRIVERS), default="calient-tl1", help="Driver of the OCS."
)
@click.option("--name", default="my-lab", help="The lab's name.")
@_output
@click.option("--force", is_flag=True, help="Write over a file that is there.")
def init(output: str | None, force: bool, **options: Any) -> None:
    """Write a first lab file: servers, two ToR switches and an OCS, every key explained.

    What may be left out is there behind a #. Change it to the lab you have, then look at it with
    patchlight lab check and patchlight lab show.
    """
    if output not in (None, "-") and Path(output).exists() and not force:
        raise BadInput(f"{output} is there already", hint="write over it with --force")
    _write(write_commented_lab, shapes.two_tors(**options), output)
    file = "FILE" if output in (None, "-") else output
    up = f"sudo {own_program()} emulate up {file}"
    say(f"next: patchlight lab check {file}; then {up}", err=True)


def _write(write: Callable[[Lab], str], made: Lab, output: str | None) -> None:
    text = write(made)
    if output is None or output == "-":
        print_document(text)
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise cannot_write(f"the lab to {output}", error) from error
    hosts, switches = len(made.hosts), len(made.packet_switches)
    say(f"wrote {output}: lab {made.name}, {hosts} hosts, {switches} switches", err=True)
