"""``patchlight lab``: check, show, draw and generate lab files."""

import sys
from pathlib import Path
from typing import Any

import click

from patchlight.cli.lab.discover import discover
from patchlight.cli.lab.generate import generate, init
from patchlight.cli.lab.topology import lab_and_maps, map_option, start_option, topology
from patchlight.console.connection import which_lab
from patchlight.console.options import complete_lab
from patchlight.console.rendering import json_option, listing_options, print_json, save_picture, say
from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.issues import FileIssue
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.labfile.reader import (
    LabFileError,
    find_lab,
    oversights,
    policy_mistakes,
    read_lab,
)
from patchlight.testbed.labfile.writer import json_schema


@click.group()
def lab() -> None:
    """Check, show, draw and generate lab files, and find out how a lab is wired."""


lab.add_command(discover)
lab.add_command(generate)
lab.add_command(init)
lab.add_command(topology)


@lab.command()
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
    else:
        for found in checked:
            _print_check(found)
    if not all(found["good"] for found in checked):
        sys.exit(LabFileError.exit_code)


def _check(file: str, *, strict: bool) -> dict[str, Any]:
    try:
        path = find_lab(file)
    except BadInput:
        path = Path(file)
    lab_read, mistaken = None, strict
    try:
        lab_read, issues = read_lab(path), oversights(path)
        if lab_read.policies.said and (wrong := _policy_mistakes(path)):
            mistaken, issues = True, wrong
    except LabFileError as error:
        mistaken, issues = True, error.issues
    kind = "mistake" if mistaken else "warning"
    return {
        "file": str(path),
        "good": not (mistaken and issues),
        "lab": None if lab_read is None else lab_read.name,
        "counts": {} if lab_read is None else _counts(lab_read),
        "issues": [
            {"line": i.line, "column": i.column, "kind": kind, "message": i.message} for i in issues
        ],
    }


def _policy_mistakes(path: Path) -> tuple[FileIssue, ...]:
    """Policies that a good lab file names and that there are not."""
    from patchlight.controller.policies.registry import check_policy

    return policy_mistakes(path, check_policy)


def _print_check(found: dict[str, Any]) -> None:
    for issue in found["issues"]:
        mark = "warning: " if issue["kind"] == "warning" else ""
        say(f"{found['file']}:{issue['line']}:{issue['column']}: {mark}{issue['message']}")
    if found["good"]:
        say(f"{found['file']}: lab {found['lab']} is good: {_in_words(found['counts'])}")


def _counts(lab_read: Lab) -> dict[str, int]:
    return {
        "server": len(lab_read.servers),
        "GPU": sum(len(server.gpus) for server in lab_read.servers),
        "packet switch": len(lab_read.packet_switches),
        "circuit switch": len(lab_read.circuit_switches),
        **({"wavelength switch": len(wss)} if (wss := lab_read.wavelength_switches) else {}),
        **({"passive part": len(parts)} if (parts := lab_read.passive_parts) else {}),
        "fibre": len(lab_read.fibres),
    }


def _in_words(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {_plural(name, count)}" for name, count in counts.items())


def _plural(name: str, count: int) -> str:
    return name if count == 1 else f"{name}es" if name.endswith("ch") else f"{name}s"


@lab.command()
@which_lab
@listing_options
@map_option
@start_option
def show(lab: str | None, as_json: bool, map_file: str | None, at_start: bool) -> None:
    """Print a lab's devices, and who lights up whom.

    The name of an emulated lab that is up shows its circuits and dark NICs of now.

    \b
    With --json, an object with these keys (rates in bits per second, null
    without a limit; times in seconds; losses in decibels):
      lab, network, fabric, scale
      devices   name, kind (server | packet-switch | circuit-switch |
                wavelength-switch | coupler | awg | multiplexer), ports,
                fibres, and what is particular to the kind
      hosts     name, server, gpu, model, nic, address, mac, rate_bps; and,
                null or empty while dark: peer, peers (several where
                light is split; then there is no peer), switch, link_rate_bps,
                loss_db, channel (THz), via (a list of ocs, inp, out: all
                devices that the light passes)
      links     two-way links: a, b, rate_bps, loss_db, channel, via (from a on)
      circuits  cross-connects by OCS: a-b both ways, a>b one way
      spectra   ways of channels by wavelength switch, as the lab starts
      dark      NICs, and switch ports with a fibre, without a two-way link
    """
    from patchlight.cli.lab.view import dark_line, describe_lab, tables

    lab_read, maps, source = lab_and_maps(lab, map_file, at_start)
    if as_json:
        print_json(describe_lab(lab_read, maps))
        return
    network = f", network {lab_read.network}" if lab_read.hosts else ""
    say(f"{lab_read.name}{network}: {_in_words(_counts(lab_read))}; {source}\n")
    for table in tables(lab_read, maps):
        table.print()
        say("")
    say(dark_line(lab_read, maps))


@lab.command()
@which_lab
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="Picture to write: .svg, .png or .pdf.",
)
@map_option
@start_option
def graph(lab: str | None, output: Path, map_file: str | None, at_start: bool) -> None:
    """Draw a lab: servers, circuit switches, packet switches, and the lit circuits.

    The name of an emulated lab that is up draws its circuits of now.
    """
    from patchlight.testbed.draw.drawing import draw_lab

    save_picture(output, lambda: draw_lab(*lab_and_maps(lab, map_file, at_start)[:2]))


@lab.command()
def schema() -> None:
    """Print the JSON Schema of lab files, for editors."""
    print_json(json_schema())
