"""The links of a lab for other schedulers, and ``patchlight lab discover``: what is plugged in."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from patchlight.cli.ocs.names import (
    complete_any_port,
    ports_by_switch,
    read_map_file,
)
from patchlight.console import connection
from patchlight.console import rendering as out
from patchlight.console.options import Quantity
from patchlight.console.shared import address_option
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.wiring import (
    circuits_of,
    parse_map,
    trace_links,
    with_spectra,
)
from patchlight.testbed.labfile.reader import load_lab, read_lab
from patchlight.testbed.units import parse_time

if TYPE_CHECKING:
    from patchlight.client.client import ControllerClient
    from patchlight.testbed.wire.rest.lab import Search, SearchPlan, Wiring

# Events after which links may differ, or the circuits of a switch are known again.
_LINKS_MAY_DIFFER = ("circuits", "drift", "reachable", "skipped")
_RANGE = re.compile(r"(?P<before>.*?)(?P<first>\d{1,6})-(?P<last>\d{1,6})")
_MEANINGS: dict[str, out.Meaning] = {
    "as said": "good",
    "differs": "bad",
    "not told": "caution",
}


def lab_and_maps(
    lab_name: str | None,
    address: str | None,
    file: str | None,
    at_start: bool,
) -> tuple[Lab, dict[str, PortMap], str]:
    """The lab, or else the only one that is up; its maps, and a text on their origin.

    The maps are those in the file; else, of a lab that is up, the present ones; else those of the
    start.
    """
    if address is not None:
        return _as_it_is_now(connection.lab_meant(None, address), address)
    name = lab_name or connection.only_lab(connection.labs_up())
    up = connection.labs_up().get(name)
    lab_read = load_lab(name) if up is None else read_lab(up)
    if up is not None and file is None and not at_start:
        return _as_it_is_now(lab_read, None)
    if file is None:
        return lab_read, lab_read.initial_maps, "initial circuits"
    return *_with_maps(
        lab_read, read_map_file(file, lab_read)
    ), f"circuits of {file}"


def _with_maps(
    lab_read: Lab, given: Mapping[str, Sequence[str]]
) -> tuple[Lab, dict[str, PortMap]]:
    """The lab and its circuits with these maps of optical switches; the others as its file says."""
    maps = {
        name: parse_map(lab_read.optical_switch(name), texts)
        for name, texts in given.items()
    }
    spectra = {
        switch.name: switch.initial for switch in lab_read.wavelength_switches
    }
    now = with_spectra(lab_read, {**spectra, **maps})
    return now, {**lab_read.initial_maps, **circuits_of(maps)}


def _as_it_is_now(
    lab_up: Lab, address: str | None
) -> tuple[Lab, dict[str, PortMap], str]:
    """A lab that is up, with its controller's circuits, or else those of its file."""
    if not any(switch.driver for switch in lab_up.optical_switches):
        return lab_up, {}, "up; it has no circuits"
    try:
        with connection.connect(
            None if address else lab_up.name, address
        ) as client:
            answer = client.circuits()
        switches = [
            switch.name for switch in lab_up.optical_switches if switch.driver
        ]
        if unread := [name for name in switches if answer[name].map is None]:
            raise PatchlightError(f"{unread[0]} does not answer")
        shown, maps = _with_maps(
            lab_up, {name: answer[name].map or () for name in switches}
        )
    except (PatchlightError, KeyError) as error:
        reason = (
            error.message
            if isinstance(error, PatchlightError)
            else f"it has no {error}"
        )
        note = (
            f"lab {lab_up.name} is up, but its circuits are unknown: {reason}"
        )
        out.say(f"note: {note}; shown are the initial circuits", err=True)
        return lab_up, lab_up.initial_maps, "up; initial circuits"
    return shown, maps, "up; present circuits"


def topology(
    lab: str | None,
    form: str,
    output: Path | None,
    follow: bool,
    address: str | None,
    map_file: str | None,
    at_start: bool,
) -> None:
    """Print or write the nodes under each packet switch; the same topology gives the same bytes."""
    from patchlight.testbed.lab.topology import FORMATS, topology_of

    if follow and output is None:
        raise BadInput("--follow needs --output FILE")
    other = map_file is not None or at_start
    if (
        address
        or follow
        or (
            output
            and not other
            and (lab is None or lab in connection.labs_up())
        )
    ):
        if other:
            raise BadInput(
                "--follow needs the present circuits: leave out --map and --start"
            )
        with connection.connect(lab, address) as client:
            _topology_of_now(
                client,
                form,
                output,
                follow,
            )
        return
    lab_read, maps, source = lab_and_maps(
        lab,
        None,
        map_file,
        at_start,
    )
    out.say(f"lab {lab_read.name}: {source}", err=True)
    found = topology_of(lab_read, trace_links(lab_read, maps))
    text = (
        out.json_text(found.as_json)
        if form == "topology"
        else FORMATS[form](found)
    )
    out.print_document(text) if output is None else keep(output, text)


def _topology_of_now(
    client: ControllerClient,
    form: str,
    output: Path | None,
    follow: bool,
) -> None:
    """Print a running lab's topology, or keep it in a file; with ``follow`` until Ctrl-C."""
    events = client.follow_events(client.last_event()) if follow else ()
    for event in chain([{"kind": "circuits"}], events):
        if event["kind"] not in _LINKS_MAY_DIFFER:
            continue
        found = client.topology()
        text = (
            out.json_text(found)
            if form == "topology"
            else client.topology_file(form)
        )
        unread = found.unread or client.topology().unread
        if output is None:
            out.print_document(text)
        elif not unread:
            keep(output, text)
        elif follow:
            out.say(
                f"{output} is unchanged: {', '.join(unread)} did not answer",
                err=True,
            )
        else:
            raise PatchlightError(
                f"{output} is unchanged: {', '.join(unread)} did not answer",
                hint="'patchlight ocs show' shows the reason",
            )


def keep(file: Path, text: str) -> None:
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
        raise out.cannot_write(f"the topology {file}", error) from error
    out.say(f"wrote {file}")


@click.command()
@connection.which_lab
@address_option
@click.option(
    "--ports",
    "texts",
    metavar="PORT,…",
    multiple=True,
    shell_complete=complete_any_port,
    help="Only these ports: ocs1.17, ocs1.7-12, or the port at the fibre's other end. Jobs whose "
    "traffic avoids them may run.  [default: all]",
)
@click.option(
    "--for",
    "listen_s",
    default="2s",
    type=Quantity(parse_time),
    metavar="TIME",
    help="How long each round listens: longer than your links take to come up; 35s to receive "
    "LLDP of other devices.",
)
@click.option(
    "--every-port",
    is_flag=True,
    help="Probe unused ports, too, after the lab's own.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(
        path_type=Path,
        dir_okay=False,
    ),
    metavar="FILE",
    help="Write the lab file with its fibres corrected.",
)
@click.option(
    "--restore",
    is_flag=True,
    help="Restore the circuits of a discovery that was interrupted.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show the plan, and do nothing.",
)
@click.option(
    "-y",
    "--yes",
    is_flag=True,
    help="Do not ask for confirmation.",
)
@out.listing_options
def discover(
    lab: str | None,
    address: str | None,
    texts: tuple[str, ...],
    listen_s: float,
    every_port: bool,
    output: Path | None,
    restore: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Find what is plugged into each OCS port.

    NICs and the ports of packet switches send frames with their names, while circuits connect them
    in rounds. It needs a maintenance window: no job may run or start. The circuits are restored at
    the end, also after Ctrl-C. The exit code is 1 if the lab file differs.

    \b
    With --json, an object with these keys:
      state        done
      rounds_done, took_s
      wiring       ports (ocs, port, sends and hears: whose transmitter and whose
                   receiver are plugged in, null if none was found; said: by the
                   lab file; verdict: as said | differs | not told | free; words),
                   differences and doubts as text, silent (why an end was not
                   probed, by name), fibres (of the corrected lab file)
    """
    ports = (
        ports_by_switch(connection.lab_meant(lab, address), _expanded(texts))
        if texts
        else {}
    )
    with connection.connect(lab, address) as client:
        if restore:
            client.stop_discovery()
            out.say("all circuits are restored")
            return
        text = (
            client.lab_file()
            if address
            else connection.running_lab_file(lab).read_text()
        )
        preview = client.preview_discovery(
            ports,
            listen_s=listen_s,
            every_port=every_port,
        )
        if dry_run:
            out.print_answer(preview, _in_words(preview), as_json=as_json)
            if preview.objections:
                raise PatchlightError(
                    f"it would be refused: {'; '.join(preview.objections)}"
                )
            return
        if not (yes or preview.objections):
            out.say(_in_words(preview), err=True)
            if not click.confirm("Go on?", err=True):
                raise PatchlightError("not confirmed: nothing was changed")
        try:
            client.discover(
                ports,
                listen_s=listen_s,
                every_port=every_port,
            )
            status = _followed(client)
        except KeyboardInterrupt:
            out.say(
                "patchlight: interrupted, restoring the circuits", err=True
            )
            client.stop_discovery()
            out.say("patchlight: all circuits are restored", err=True)
            raise
    wiring = status.wiring
    if status.state != "done" or wiring is None:
        raise PatchlightError(
            f"the wiring could not be discovered: {status.message}",
            hint=status.hint,
        )
    out.print_answer(
        status, lambda: _print_found(status, wiring), as_json=as_json
    )
    if output is not None:
        _write_corrected(output, text, wiring.fibres)
    if wiring.differences:
        sys.exit(1)


def _expanded(texts: tuple[str, ...]) -> Iterator[str]:
    """``ocs1.7-9`` is three ports; names of ports may have a ``-`` themselves, before the dot."""
    for text in (
        part.strip() for several in texts for part in several.split(",")
    ):
        found = _RANGE.fullmatch(text)
        if found is None or (
            found["before"] and not found["before"].endswith(".")
        ):
            yield text
            continue
        first = int(found["first"])
        last = int(found["last"])
        if first > last:
            raise BadInput(
                f"{text!r} is not a range of ports: expected the lower number first"
            )
        yield from (
            f"{found['before']}{number}" for number in range(first, last + 1)
        )


def _followed(client: ControllerClient) -> Search:
    """Wait until the search is over."""
    with out.progress_bar("rounds", out.console(stderr=True)) as tell:
        status = client.discovery()
        while status.state in ("looking", "restoring"):
            done = status.rounds_done
            tell(done, done + status.rounds_left)
            status = client.discovery(status.step, connection.NEWS_WITHIN_S)
        return status


def _in_words(preview: SearchPlan) -> str:
    ports = ", ".join(
        f"{len(numbers)} of {ocs}" for ocs, numbers in preview.ports.items()
    )
    circuits = sum(map(len, preview.circuits.values()))
    return (
        f"ports to probe: {ports or 'none'}; {circuits} cross-connects are removed for about "
        f"{preview.takes_s:.0f} s if the lab file is right; no job starts meanwhile"
    )


def _print_found(status: Search, wiring: Wiring) -> None:
    table = out.Table(
        out.Column("port", whole=True),
        "fibre goes to",
        "lab file says",
        "",
    )
    for row in wiring.ports:
        if row.verdict != "free":
            meaning = _MEANINGS[row.verdict]
            port = f"{row.ocs}.{row.port}"
            sends = row.sends
            hears = row.hears
            ends = sends or ""
            if hears not in (sends, None):
                ends = f"{hears} (from {sends or 'none'})"
            cells = (
                ends,
                row.said or "",
                out.Coloured(row.verdict, meaning),
            )
            table.add_row(port, *cells)
    table.print()
    for words in wiring.differences:
        out.say(words, meaning="bad")
    for words in wiring.doubts:
        out.say(f"not certain: {words}", meaning="caution")
    for row in wiring.ports:
        if row.verdict == "not told":
            out.say(f"not found: {row.words}", meaning="caution")
    count = len(wiring.differences)
    found = f"{count or 'no'} difference{'' if count == 1 else 's'} from the lab file"
    took = f"{status.rounds_done} rounds and {status.took_s:.0f} s"
    out.say(f"{found}, in {took}; all circuits are restored")


def _write_corrected(
    output: Path,
    text: str,
    fibres: Sequence[tuple[str, str]],
) -> None:
    from patchlight.testbed.labfile.writer import rewired

    new = rewired(text, [(a, b) for a, b in fibres])
    try:
        output.write_text(new.text)
    except OSError as error:
        raise out.cannot_write(f"the lab file {output}", error) from error
    note = "" if new.keeps_comments else "; the old file's comments are lost"
    out.say(f"wrote {output}{note}", err=True)
