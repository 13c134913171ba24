"""``patchlight lab topology``: a lab as it is lit, for other schedulers."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from patchlight.cli.ocs.names import read_map_file
from patchlight.console.connection import address_option, connect, labs_up, only_lab, which_lab
from patchlight.console.rendering import cannot_write, json_text, print_document, say
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.wiring import circuits_of, parse_map, trace_links, with_spectra
from patchlight.testbed.labfile.reader import load_lab, read_lab

if TYPE_CHECKING:
    from patchlight.client.client import ControllerClient

# Events after which nodes may be lit otherwise, or the circuits of a switch are known again.
_LIGHT_MAY_DIFFER = ("circuits", "drift", "reachable", "skipped")

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


def lab_and_maps(
    lab_name: str | None, file: str | None, at_start: bool
) -> tuple[Lab, dict[str, PortMap], str]:
    """The lab, or else the only one that is up; its maps, and a text on their origin.

    The maps are those in the file; else, where a lab of that name is up, those of now; else those
    of the start.
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
    """A lab that is up, with its controller's circuits, or else those of its file."""
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


@click.command()
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
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write it to this file, and only if that changes the file. Prints a line if it did.",
)
@click.option("--follow", is_flag=True, help="With --output: again after each change of circuits.")
@address_option
@map_option
@start_option
def topology(
    lab: str | None,
    form: str,
    output: Path | None,
    follow: bool,
    address: str | None,
    map_file: str | None,
    at_start: bool,
) -> None:
    """Print which node is under which packet switch, for other schedulers.

    The name of an emulated lab that is up prints it as it is lit now, and so does --controller for
    any lab; a lab file alone has the circuits that it starts with. A node is a server; one that
    is lit to several packet switches counts to the one that has most of its GPUs.

    The same topology gives the same bytes. While a circuit switch does not answer, part of the
    topology is unknown: --output then leaves the file as it is.
    """
    from patchlight.testbed.lab.topology import FORMATS, topology_of

    if follow and output is None:
        raise BadInput("--follow needs a file to keep up to date: add --output FILE")
    other = map_file is not None or at_start
    if address or follow or (output and not other and (lab is None or lab in labs_up())):
        if other:
            raise BadInput("this needs the circuits of now: leave out --map and --start")
        with connect(lab, address) as client:
            _topology_of_now(client, form, output, follow)
        return
    lab_read, maps, source = lab_and_maps(lab, map_file, at_start)
    say(f"lab {lab_read.name}: {source}", err=True)
    found = topology_of(lab_read, trace_links(lab_read, maps))
    text = json_text(found.as_json) if form == "json" else FORMATS[form](found)
    print_document(text) if output is None else _keep(output, text)


def _topology_of_now(
    client: ControllerClient, form: str, output: Path | None, follow: bool
) -> None:
    """Print a running lab's topology, or keep it in a file; with ``follow`` until Ctrl-C."""
    events = client.follow_events(client.last_event()) if follow else ()
    for event in chain([{"kind": "circuits"}], events):
        if event["kind"] not in _LIGHT_MAY_DIFFER:
            continue
        found = client.topology()
        text = json_text(found) if form == "json" else client.topology_file(form)
        unread = found["unread"] or client.topology()["unread"]
        if output is None:
            print_document(text)
        elif not unread:
            _keep(output, text)
        elif follow:
            say(f"{output} is left as it is: {', '.join(unread)} did not answer", err=True)
        else:
            raise PatchlightError(
                f"{output} is left as it is: {', '.join(unread)} did not answer",
                hint="'patchlight ocs list' says why",
            )


def _keep(file: Path, text: str) -> None:
    """Have ``text`` in a file, whole at any time, with the mode and owner that the file has."""
    there = file.resolve()
    part = there.with_name(f".{there.name}.part")
    try:
        if there.exists() and there.read_bytes() == text.encode():
            return
        part.unlink(missing_ok=True)
        with part.open("x", encoding="utf-8") as written:
            written.write(text)
        if there.exists():
            shutil.copymode(there, part)
            os.chown(part, there.stat().st_uid, there.stat().st_gid)
        part.replace(there)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise cannot_write(f"the topology {file}", error) from error
    say(f"wrote {file}")
