"""``patchlight lab discover``: what is really plugged into the ports of circuit switches."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from patchlight.cli.ocs.names import complete_any_port, ports_by_switch
from patchlight.console import connection
from patchlight.console import rendering as out
from patchlight.console.options import Quantity, complete_lab
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.units import parse_time

if TYPE_CHECKING:
    from patchlight.client.client import ControllerClient
    from patchlight.testbed.wire.rest.lab import Search, SearchPlan, Wiring


Answer = dict[str, Any]

_RANGE = re.compile(r"(?P<before>.*?)(?P<first>\d{1,6})-(?P<last>\d{1,6})")
_MEANINGS: dict[str, out.Meaning] = {"as said": "good", "differs": "bad", "not told": "caution"}


@click.command()
@click.argument("name", metavar="[LAB]", required=False, shell_complete=complete_lab)
@connection.address_option
@click.option(
    "--ports",
    "texts",
    metavar="PORT,…",
    multiple=True,
    shell_complete=complete_any_port,
    help="Look at these only: ocs1.17, ocs1.7-12, or what is plugged in there. The lab need not be "
    "idle then, but no job's traffic may ride on them. [default: all]",
)
@click.option(
    "--listen",
    "listen_s",
    default="2s",
    type=Quantity(parse_time),
    metavar="TEXT",
    help="How long each round listens: longer than the NICs and switches take for a link to come "
    "up; 35s where others' LLDP is to be heard.",
)
@click.option(
    "--every-port", is_flag=True, help="Go on to unused ports once all of the lab is found."
)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the lab file with its fibres put right.",
)
@click.option("--restore", is_flag=True, help="Put circuits back that were left away.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@out.listing_options
def discover(
    name: str | None,
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
    """Find out what hangs on each port of the circuit switches of LAB.

    In a maintenance window, idle NICs and all ports of packet switches send frames that name them,
    while the circuits are switched through in rounds. All circuits are as before in the end, also
    after Ctrl-C. No job starts meanwhile, and none may run. Ends with 1 where the lab file
    differs.

    \b
    With --json, an object with these keys:
      state        done
      rounds_done, took_s
      wiring       ports (ocs, port, sends and hears: whose transmitter and whose
                   receiver hang there, null if nobody was heard; said: by the
                   lab file; verdict: as said | differs | not told | free; words),
                   differences and doubts in words, silent (why an end was not
                   probed, by its name), fibres (of the corrected lab file)
    """
    ports = ports_by_switch(connection.lab_meant(name, address), _expanded(texts)) if texts else {}
    with connection.connect(name, address) as client:
        if restore:
            client.stop_discovery()
            out.say("all circuits are as before")
            return
        text = (
            client.lab_file()
            if address and not name
            else connection.running_lab_file(name).read_text()
        )
        preview = client.preview_discovery(ports, listen_s=listen_s, every_port=every_port)
        if dry_run:
            out.print_answer(preview, _in_words(preview), as_json=as_json)
            if preview["objections"]:
                raise PatchlightError(f"it would be refused: {'; '.join(preview['objections'])}")
            return
        if not (yes or preview["objections"]):
            out.say(_in_words(preview), err=True)
            if not click.confirm("Go on?", err=True):
                raise PatchlightError("not confirmed: nothing was changed")
        client.discover(ports, listen_s=listen_s, every_port=every_port)
        status = _followed(client)
    wiring = status["wiring"]
    if status["state"] != "done" or wiring is None:
        raise PatchlightError(
            f"the wiring was not found out: {status['message']}", hint=status["hint"]
        )
    out.print_answer(status, lambda: _print_found(status, wiring), as_json=as_json)
    if output is not None:
        _write_corrected(output, text, wiring["fibres"])
    if wiring["differences"]:
        sys.exit(1)


def _expanded(texts: tuple[str, ...]) -> Iterator[str]:
    """``ocs1.7-9`` is three ports; names of ports may have a ``-`` themselves, before the dot."""
    for text in (part.strip() for several in texts for part in several.split(",")):
        found = _RANGE.fullmatch(text)
        if found is None or (found["before"] and not found["before"].endswith(".")):
            yield text
            continue
        first, last = int(found["first"]), int(found["last"])
        if first > last:
            raise BadInput(f"{text!r} is no range of ports: expected the lower number first")
        yield from (f"{found['before']}{number}" for number in range(first, last + 1))


def _followed(client: ControllerClient) -> Search:
    """Wait until the search is over; Ctrl-C stops it."""
    try:
        with out.progress_bar("rounds", out.console(stderr=True)) as tell:
            status = client.discovery()
            while status["state"] in ("looking", "restoring"):
                done = status["rounds_done"]
                tell(done, done + status["rounds_left"])
                status = client.discovery(status["step"], connection.NEWS_WITHIN_S)
            return status
    except KeyboardInterrupt:
        out.say("patchlight: broken off, and the circuits are put back", err=True)
        client.stop_discovery()
        out.say("patchlight: all circuits are as before", err=True)
        raise


def _in_words(preview: SearchPlan) -> str:
    ports = ", ".join(f"{len(numbers)} of {ocs}" for ocs, numbers in preview["ports"].items())
    circuits = sum(map(len, preview["circuits"].values()))
    return (
        f"ports to look at: {ports or 'none'}; {circuits} cross-connects are away meanwhile, for "
        f"about {preview['takes_s']:.0f} s if all is as the lab file says; no job starts"
    )


def _print_found(status: Search, wiring: Wiring) -> None:
    table = out.Table(out.Column("port", whole=True), "fibre goes to", "lab file says", "")
    for row in wiring["ports"]:
        if row["verdict"] != "free":
            meaning = _MEANINGS[row["verdict"]]
            port = f"{row['ocs']}.{row['port']}"
            sends, hears = row["sends"], row["hears"]
            ends = sends or ""
            if hears not in (sends, None):
                ends = f"{hears} (from {sends or 'nobody'})"
            cells = (ends, row["said"] or "", out.Coloured(row["verdict"], meaning))
            table.add_row(port, *cells)
    table.print()
    for words in wiring["differences"]:
        out.say(words, meaning="bad")
    for words in wiring["doubts"]:
        out.say(f"not certain: {words}", meaning="caution")
    for row in wiring["ports"]:
        if row["verdict"] == "not told":
            out.say(f"not told: {row['words']}", meaning="caution")
    count = len(wiring["differences"])
    found = f"{count or 'no'} difference{'' if count == 1 else 's'} from the lab file"
    took = f"{status['rounds_done']} rounds and {status['took_s']:.0f} s"
    out.say(f"{found}, in {took}; all circuits are as before")


def _write_corrected(output: Path, text: str, fibres: Sequence[tuple[str, str]]) -> None:
    from patchlight.testbed.labfile.writer import rewired

    new = rewired(text, [(a, b) for a, b in fibres])
    try:
        output.write_text(new.text)
    except OSError as error:
        raise out.cannot_write(f"the lab file {output}", error) from error
    note = "" if new.keeps_comments else "; without the comments of the old one"
    out.say(f"wrote {output}{note}", err=True)
