"""``patchlight lab``: check, show, draw and generate lab files."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from patchlight.cli.connection import address_option, connect, labs_up, only_lab, which_lab
from patchlight.cli.lab.discover import discover
from patchlight.cli.lab.generate import generate, init
from patchlight.cli.lab_option import complete_lab
from patchlight.cli.ocs.map_file import read_map_file
from patchlight.cli.rendering import (
    json_option,
    listing_options,
    print_document,
    print_json,
    save_picture,
    say,
)
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.files.issues import FileIssue
from patchlight.testbed.lab import Lab
from patchlight.testbed.labfile.json_schema import json_schema
from patchlight.testbed.labfile.reader import (
    LabFileError,
    find_lab,
    load_lab,
    oversights,
    policy_mistakes,
    read_lab,
)
from patchlight.testbed.labmaps import circuits_of, parse_map, with_spectra
from patchlight.testbed.portmap import PortMap
from patchlight.testbed.wiring import trace_links


@click.group()
def lab() -> None:
    """Check, show, draw and generate lab files, and find out how a lab is wired."""


lab.add_command(discover)
lab.add_command(generate)
lab.add_command(init)


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


def _lab_and_maps(
    lab_name: str | None, file: str | None, at_start: bool
) -> tuple[Lab, dict[str, PortMap], str]:
    """The lab, or else the only one that is up; its maps, and where they are from, in words.

    Those in the file; else, where a lab of that name is up, those of now; else those of the start.
    """
    name = lab_name or only_lab(labs_up())
    up = labs_up().get(name)
    lab_read = load_lab(name) if up is None else read_lab(up)
    if up is not None and file is None and not at_start:
        return _as_it_is_now(lab_read)
    if file is None:
        return lab_read, lab_read.initial_maps, "circuits at the start"
    return *_with_maps(lab_read, read_map_file(file, lab_read)), f"circuits of {file}"


def _with_maps(lab_read: Lab, given: Mapping[str, Sequence[str]]) -> tuple[Lab, dict[str, PortMap]]:
    """The lab and its circuits with these maps of optical switches; the others as its file says."""
    maps = {name: parse_map(lab_read.optical_switch(name), texts) for name, texts in given.items()}
    spectra = {switch.name: switch.initial for switch in lab_read.wavelength_switches}
    now = with_spectra(lab_read, {**spectra, **maps})
    return now, {**lab_read.initial_maps, **circuits_of(maps)}


def _as_it_is_now(lab_up: Lab) -> tuple[Lab, dict[str, PortMap], str]:
    """A lab that is up, with the circuits that its controller has; else those of its file."""
    if not any(switch.driver for switch in lab_up.optical_switches):
        return lab_up, {}, "up; it has no circuits"
    try:
        with connect(lab_up.name, None) as client:
            answer = client.circuits()
        switches = [switch.name for switch in lab_up.optical_switches if switch.driver]
        if unread := [name for name in switches if answer[name]["map"] is None]:
            raise PatchlightError(f"{unread[0]} does not answer")
        shown, maps = _with_maps(lab_up, {name: answer[name]["map"] or () for name in switches})
    except (PatchlightError, KeyError) as error:
        reason = error.message if isinstance(error, PatchlightError) else f"it has no {error}"
        note = f"lab {lab_up.name} is up, but its circuits now are not known: {reason}"
        say(f"note: {note}; these are those of the start", err=True)
        return lab_up, lab_up.initial_maps, "up; circuits at the start"
    return shown, maps, "up; circuits as they are now"


map_option = click.option(
    "--map",
    "map_file",
    metavar="FILE",
    help="Cross-connects to show instead of those that the lab starts with: a map file "
    "('patchlight ocs apply --help'), or what 'patchlight ocs show --json' prints; - reads "
    "standard input.",
)


start_option = click.option(
    "--start", "at_start", is_flag=True, help="The circuits of the lab file, even if the lab is up."
)


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

    lab_read, maps, source = _lab_and_maps(lab, map_file, at_start)
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
    from patchlight.testbed.drawing import draw_lab

    save_picture(output, lambda: draw_lab(*_lab_and_maps(lab, map_file, at_start)[:2]))


@lab.command()
@which_lab
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "slurm", "slurm-conf", "kueue"]),
    default="json",
    show_default=True,
    help="slurm: topology.yaml, from Slurm 25.05 on; slurm-conf: topology.conf, before; kueue: a "
    "Topology and the nodes' labels.",
)
@address_option
@map_option
@start_option
def topology(
    lab: str | None, form: str, address: str | None, map_file: str | None, at_start: bool
) -> None:
    """Print which node is under which packet switch, for other schedulers.

    The name of an emulated lab that is up prints it as it is lit now, and so does --controller for
    any lab; a lab file alone has the circuits that it starts with. A node is a server; one that
    is lit to several packet switches counts to the one that has most of its GPUs.
    """
    from patchlight.testbed.topology import topology_of
    from patchlight.testbed.topology_files import FORMATS

    if address is not None:
        if map_file is not None or at_start:
            raise BadInput("--controller prints circuits of now: leave out --map and --start")
        with connect(lab, address) as client:
            if form == "json":
                print_json(client.topology())
            else:
                print_document(client.topology_file(form))
        return
    lab_read, maps, source = _lab_and_maps(lab, map_file, at_start)
    say(f"lab {lab_read.name}: {source}", err=True)
    found = topology_of(lab_read, trace_links(lab_read, maps))
    if form == "json":
        print_json(found.as_json)
    else:
        print_document(FORMATS[form](found))


@lab.command()
def schema() -> None:
    """Print the JSON Schema of lab files, for editors."""
    print_json(json_schema())
