"""``patchlight lab`` commands that check and write lab files."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from patchlight.console.options import Quantity
from patchlight.console.rendering import (
    cannot_write,
    json_option,
    print_document,
    print_json,
    say,
)
from patchlight.console.shared import complete_lab
from patchlight.testbed.errors import BadInput, nearest
from patchlight.testbed.lab.model import FABRICS, Lab
from patchlight.testbed.lab.ocs_drivers import KNOWN_DRIVERS
from patchlight.testbed.lab.packet_drivers import (
    DEFAULT_DRIVER,
    PACKET_DRIVERS,
)
from patchlight.testbed.labfile import reader
from patchlight.testbed.linux.processes import own_program
from patchlight.testbed.units import parse_rate


@click.command()
@click.argument(
    "files",
    metavar="FILE…",
    nargs=-1,
    shell_complete=complete_lab,
)
@click.option(
    "--strict",
    is_flag=True,
    help="Treat warnings as mistakes.",
)
@click.option(
    "--schema",
    type=click.Choice(["lab", "job"]),
    is_flag=False,
    flag_value="lab",
    help="Print the JSON Schema of lab files or job files instead, for editors.",
)
@json_option
def check(
    files: tuple[str, ...],
    strict: bool,
    schema: str | None,
    as_json: bool,
) -> None:
    """Check lab files: print every mistake.

    Each line is file:line:column: message. Probable omissions are warnings: NICs without a fibre,
    switches without a link, servers without a management address, drivers that no emulated device
    speaks, an empty lab. Policies named in the file must exist; they are not run. The exit code is
    2 if there is a mistake.

    \b
    With --json, a list with an object for each file, with these keys:
      file, good  good: it has no mistakes
      lab         its name, null if it could not be read
      counts      how many devices and fibres of each kind, empty if it could not be read
      issues      line, column, kind (mistake | warning), message
    """
    if bool(files) == bool(schema):
        raise BadInput("expected lab files to check, or only --schema")
    if schema:
        from patchlight.testbed.jobfile.schema import (
            json_schema as job_file_schema,
        )
        from patchlight.testbed.labfile.writer import json_schema

        print_json(job_file_schema() if schema == "job" else json_schema())
        return
    checked = [_check(file, strict=strict) for file in files]
    if as_json:
        print_json(checked)
    for found in () if as_json else checked:
        for issue in found["issues"]:
            mark = "warning: " if issue["kind"] == "warning" else ""
            say(
                f"{found['file']}:{issue['line']}:{issue['column']}: {mark}{issue['message']}"
            )
        if found["good"]:
            say(
                f"{found['file']}: lab {found['lab']} is valid: {in_words(found['counts'])}"
            )
    if not all(found["good"] for found in checked):
        sys.exit(reader.LabFileError.exit_code)


def _check(file: str, *, strict: bool) -> dict[str, Any]:
    from patchlight.testbed.labfile import oversights

    try:
        path = reader.find_lab(file)
    except BadInput:
        path = Path(file)
    lab_read = None
    mistaken = strict
    try:
        lab_read = reader.read_lab(path)
        issues = oversights.oversights(path)
        if lab_read.policies.said:
            from patchlight.controller.policies.registry import check_policy

            if wrong := oversights.policy_mistakes(path, check_policy):
                mistaken = True
                issues = wrong
    except reader.LabFileError as error:
        mistaken = True
        issues = error.issues
    kind = "mistake" if mistaken else "warning"
    return {
        "file": str(path),
        "good": not (mistaken and issues),
        "lab": None if lab_read is None else lab_read.name,
        "counts": {} if lab_read is None else counts(lab_read),
        "issues": [
            {
                "line": i.line,
                "column": i.column,
                "kind": kind,
                "message": i.message,
            }
            for i in issues
        ],
    }


def counts(lab_read: Lab) -> dict[str, int]:
    """How many devices and fibres of each kind a lab has."""
    return {
        "server": len(lab_read.servers),
        "GPU": sum(len(server.gpus) for server in lab_read.servers),
        "packet switch": len(lab_read.packet_switches),
        "circuit switch": len(lab_read.circuit_switches),
        **(
            {"wavelength switch": len(wss)}
            if (wss := lab_read.wavelength_switches)
            else {}
        ),
        **(
            {"passive part": len(parts)}
            if (parts := lab_read.passive_parts)
            else {}
        ),
        "fibre": len(lab_read.fibres),
    }


def in_words(counts: dict[str, int]) -> str:
    """``2 servers, 1 packet switch``."""

    def plural(name: str) -> str:
        return f"{name}es" if name.endswith("ch") else f"{name}s"

    return ", ".join(
        f"{n} {name if n == 1 else plural(name)}" for name, n in counts.items()
    )


_rate = click.option(
    "--rate",
    "rate_bps",
    type=Quantity(parse_rate),
    help="Rate of the servers' links, like 10Gbps.  [default: no limit]",
)
_switches = click.option(
    "--switches",
    type=click.Choice(PACKET_DRIVERS),
    default=DEFAULT_DRIVER,
    help="Driver of the packet switches.",
)
_name = click.option(
    "--name", help="The lab's name.  [default: from kind and size]"
)
_output = click.option(
    "--output",
    "-o",
    metavar="FILE",
    help="File to write.  [default: standard output]",
)
_KINDS = ("single", "linear", "tree", "fat-tree")


@click.command()
@click.argument("what", metavar=f"{{{'|'.join(_KINDS)}}}|FILE")
@click.option(
    "--servers",
    "hosts",
    type=click.IntRange(1),
    help="Number of servers.  [needed without FILE]",
)
@click.option(
    "--servers-per-switch",
    "hosts_per_switch",
    type=click.IntRange(1),
    help="For linear and tree: servers on each switch that has any.  [default: 16]",
)
@click.option(
    "--gpus",
    type=click.IntRange(1, 64),
    help="With Slurm: GPUs of each node, each with a NIC.  [default: 1]",
)
@_rate
@click.option(
    "--uplink-rate",
    "uplink_rate_bps",
    type=Quantity(parse_rate),
    help="Rate of the links between switches, like 40Gbps.  [default: no limit]",
)
@click.option(
    "--ocs",
    multiple=True,
    metavar="DRIVER|NAME[=DRIVER]",
    shell_complete=lambda *_: list(KNOWN_DRIVERS),
    help="Put an OCS with this driver behind the NICs; with FILE, the instances or devices of an "
    "InfraGraph that are OCSs.",
)
@click.option(
    "--fabric",
    type=click.Choice(FABRICS),
    help="How an emulation builds packet switches.",
)
@_switches
@_name
@_output
def generate(
    what: str,
    output: str | None,
    switches: str,
    gpus: int | None,
    ocs: tuple[str, ...],
    **options: Any,
) -> None:
    """Write a lab file of a common topology.

    \b
      single    one switch with all servers
      linear    a chain of switches with servers on each
      tree      a root switch, and leaf switches with servers
      fat-tree  three layers of k-port switches, k the smallest even number with
                k³/4 ≥ servers; edge switches are filled in order
      FILE      an InfraGraph infrastructure, a containerlab topology, or
                Slurm's topology.conf or topology.yaml

    With --ocs, every NIC is connected to its switch through an OCS. Servers are h1, h2, … with
    one GPU and one NIC each, from 10.0.0.1 on; switches are s1, s2, ….
    """
    # Not above: importing pydantic takes longer than --help should.
    from patchlight.testbed.generate import generate as shapes
    from patchlight.testbed.labfile.writer import write_lab

    said = {
        name: value for name, value in options.items() if value is not None
    }
    if what not in _KINDS:
        made = _imported(what, gpus, ocs, said)
        _write(write_lab, shapes.with_switches(made, switches), output)
        return
    make: Callable[..., Lab] = {
        "single": shapes.single,
        "linear": shapes.linear,
        "tree": shapes.tree,
        "fat-tree": shapes.fat_tree,
    }[what]
    if "hosts" not in said:
        raise BadInput(f"{what} needs --servers, like --servers 16")
    if gpus is not None:
        raise BadInput("--gpus is for Slurm's nodes: leave it out")
    if len(ocs) > 1 or not set(KNOWN_DRIVERS).issuperset(ocs):
        raise BadInput(
            f"--ocs {' --ocs '.join(ocs)}: {nearest(ocs[0], KNOWN_DRIVERS)}"
        )
    if ocs:
        said["ocs"] = ocs[0]
    if what == "single" and "uplink_rate_bps" in said:
        raise BadInput(
            "a single switch has no uplinks: leave out --uplink-rate"
        )
    if what in ("single", "fat-tree") and "hosts_per_switch" in said:
        raise BadInput(
            f"--servers-per-switch is for linear and tree, not for {what}"
        )
    _write(write_lab, shapes.with_switches(make(**said), switches), output)


def _imported(
    text: str,
    gpus: int | None,
    ocs: tuple[str, ...],
    said: Mapping[str, Any],
) -> Lab:
    """The lab of another program's file; what of it the lab does not have is said."""
    from patchlight.testbed.generate.foreign_files import KINDS, read_plant
    from patchlight.testbed.generate.plant import lab_of

    file = Path(text)
    if not file.exists():
        raise BadInput(
            f"{text!r} is neither a topology ({', '.join(_KINDS)}) nor a file",
            hint=f"give one of these, or a file of {KINDS}",
        )
    for name, option in (
        ("hosts", "--servers"),
        ("hosts_per_switch", "--servers-per-switch"),
        ("uplink_rate_bps", "--uplink-rate"),
    ):
        if name in said:
            raise BadInput(f"{option} needs a topology by name, not a file")
    named = dict(item.partition("=")[::2] for item in ocs)
    for driver in filter(None, named.values()):
        if driver not in KNOWN_DRIVERS:
            raise BadInput(
                f"{driver!r} is not a driver: {nearest(driver, KNOWN_DRIVERS)}"
            )
    plant = read_plant(
        file,
        ocs={name: driver or "calient-tl1" for name, driver in named.items()},
        gpus=gpus,
    )
    made = lab_of(
        plant,
        name=said.get("name"),
        rate_bps=said.get("rate_bps"),
    )
    for what in plant.left_out:
        say(f"left out: {what}", err=True)
    return made.with_changes(fabric=said.get("fabric", made.fabric))


@click.command()
@click.option(
    "--servers",
    type=click.IntRange(1),
    default=4,
    help="Number of servers.",
)
@click.option(
    "--gpus",
    type=click.IntRange(1),
    default=1,
    help="GPUs in each server, each with a NIC.",
)
@click.option(
    "--gpu-model",
    default="Generic",
    help="Model of the GPUs, like 'Tesla M40'.",
)
@click.option(
    "--rate",
    "rate_bps",
    type=Quantity(parse_rate),
    default="40Gbps",
    help="Rate of the NICs; the link between the ToRs has a quarter of it.",
)
@click.option(
    "--driver",
    type=click.Choice(KNOWN_DRIVERS),
    default="calient-tl1",
    help="Driver of the OCSs.",
)
@click.option(
    "--ocs",
    type=click.IntRange(1, 5),
    default=1,
    help="Number of OCSs, each with an equal part of the servers.",
)
@click.option(
    "--tors",
    type=click.IntRange(1),
    default=2,
    help="Number of ToR switches.",
)
@_switches
@click.option(
    "--name",
    default="my-lab",
    help="The lab's name.",
)
@_output
@click.option(
    "--force",
    is_flag=True,
    help="Overwrite an existing file.",
)
def init(
    output: str | None,
    force: bool,
    switches: str,
    **options: Any,
) -> None:
    """Write a first lab file, with every key explained.

    It has servers, ToR switches and OCSs between; optional keys are commented out. Edit it to match
    your lab, then run patchlight lab check and patchlight lab show.
    """
    if output not in (None, "-") and Path(output).exists() and not force:
        raise BadInput(f"{output} exists", hint="overwrite it with --force")
    from patchlight.testbed.generate import generate as shapes
    from patchlight.testbed.labfile.writer import write_commented_lab

    made = shapes.with_switches(shapes.two_tors(**options), switches)
    _write(write_commented_lab, made, output)
    file = "FILE" if output in (None, "-") else output
    up = f"sudo {own_program()} emulate up {file}"
    say(f"next: patchlight lab check {file}; then {up}", err=True)


def _write(
    write: Callable[[Lab], str],
    made: Lab,
    output: str | None,
) -> None:
    text = write(made)
    if output is None or output == "-":
        print_document(text)
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise cannot_write(f"the lab to {output}", error) from error
    hosts = len(made.hosts)
    switches = len(made.packet_switches)
    say(
        f"wrote {output}: lab {made.name}, {hosts} hosts, {switches} switches",
        err=True,
    )
