"""``patchlight lab``: check, show, draw and generate lab files."""

import sys
from pathlib import Path

import click

from patchlight.cli.lab.generate import generate, init
from patchlight.cli.rendering import console, print_json, save_picture
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab import Lab
from patchlight.testbed.labfile.reader import LabFileError, find_lab, load_lab, oversights, read_lab
from patchlight.testbed.labfile.schema import json_schema
from patchlight.testbed.portmap import PortMap


@click.group()
def lab() -> None:
    """Check, show, draw and generate lab files."""


lab.add_command(generate)
lab.add_command(init)


@lab.command()
@click.argument("files", metavar="FILE…", nargs=-1, required=True)
@click.option("--strict", is_flag=True, help="Warnings are mistakes.")
def check(files: tuple[str, ...], strict: bool) -> None:
    """Print every mistake in lab files, one on a line: file:line:column: what is wrong.

    What is likely forgotten is a warning: NICs without a fibre, switches that nothing joins,
    servers without a management address, drivers that no emulated device speaks, a lab with
    nothing but a name. Exit code 2 if there is a mistake.
    """
    wrong = False
    for file in files:
        try:
            path = find_lab(file)
        except BadInput:
            path = Path(file)
        try:
            lab_read = read_lab(path)
            warnings = oversights(path)
        except LabFileError as error:
            wrong = True
            click.echo(str(error))
        else:
            for warning in warnings:
                where = f"{warning.file}:{warning.line}:{warning.column}"
                click.echo(f"{where}: {'' if strict else 'warning: '}{warning.message}")
            if strict and warnings:
                wrong = True
                continue
            click.echo(f"{path}: lab {lab_read.name} is good: {_counted(lab_read)}")
    if wrong:
        sys.exit(LabFileError.exit_code)


def _counted(lab_read: Lab) -> str:
    gpus = sum(len(server.gpus) for server in lab_read.servers)
    counts = {
        "server": len(lab_read.servers),
        "GPU": gpus,
        "packet switch": len(lab_read.packet_switches),
        "circuit switch": len(lab_read.circuit_switches),
        "fibre": len(lab_read.fibres),
    }
    return ", ".join(f"{count} {_plural(name, count)}" for name, count in counts.items())


def _plural(name: str, count: int) -> str:
    return name if count == 1 else f"{name}es" if name.endswith("ch") else f"{name}s"


def _lab_and_maps(name: str, file: str | None) -> tuple[Lab, dict[str, PortMap]]:
    """The lab, and its maps at the start but for those in the file."""
    from patchlight.cli.lab.view import parse_maps

    lab_read = load_lab(name)
    if file is None:
        return lab_read, lab_read.initial_maps
    try:
        with click.open_file(file, encoding="utf-8") as stream:
            text = stream.read()
    except (OSError, UnicodeError) as error:
        raise BadInput(f"the maps in {file} cannot be read: {error}") from error
    return lab_read, {**lab_read.initial_maps, **parse_maps(text, lab_read, file)}


map_option = click.option(
    "--map",
    "map_file",
    metavar="FILE",
    help='Cross-connects to show instead of those that the lab starts with: JSON like {"ocs1": '
    '["1-7", "2>8"]}, or what the controller answers; - reads standard input.',
)


@lab.command()
@click.argument("name", metavar="LAB")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, units in the keys.")
@map_option
def show(name: str, as_json: bool, map_file: str | None) -> None:
    """Print a lab's devices, and who lights up whom.

    \b
    With --json, an object with these keys (rates in bits per second, null
    without a limit; times in seconds; losses in decibels):
      lab, network, fabric, scale
      devices   name, kind (server | packet-switch | circuit-switch), ports,
                fibres, and what is particular to the kind
      hosts     name, server, gpu, model, nic, address, mac, rate_bps; and,
                null or empty while dark: peer, switch, link_rate_bps,
                loss_db, via (a list of ocs, inp, out)
      links     two-way links: a, b, rate_bps, loss_db, via (from a on)
      circuits  cross-connects by OCS: a-b both ways, a>b one way
      dark      NICs, and switch ports with a fibre, without a two-way link
    """
    from patchlight.cli.lab.view import dark_line, describe_lab, tables

    lab_read, maps = _lab_and_maps(name, map_file)
    if as_json:
        print_json(describe_lab(lab_read, maps))
        return
    out = console()
    network = f", network {lab_read.network}" if lab_read.hosts else ""
    out.print(f"[bold]{lab_read.name}[/bold]{network}: {_counted(lab_read)}\n")
    for table in tables(lab_read, maps):
        out.print(table)
    out.print(dark_line(lab_read, maps))


@lab.command()
@click.argument("name", metavar="LAB")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="Picture to write: .svg, .png or .pdf.",
)
@map_option
def graph(name: str, output: Path, map_file: str | None) -> None:
    """Draw a lab: servers, circuit switches, packet switches, and the lit circuits."""
    from patchlight.testbed.drawing import draw_lab

    save_picture(output, lambda: draw_lab(*_lab_and_maps(name, map_file)))


@lab.command()
def schema() -> None:
    """Print the JSON Schema of lab files, for editors."""
    print_json(json_schema())
