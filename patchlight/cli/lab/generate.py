"""``patchlight lab generate``: write labs of common shapes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from patchlight.testbed import generate as shapes
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab import Lab
from patchlight.testbed.labfile.reader import write_lab
from patchlight.testbed.labfile.schema import FABRICS
from patchlight.testbed.units import parse_rate

F = TypeVar("F", bound=Callable[..., Any])


class _Rate(click.ParamType[int]):
    name = "rate"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_rate(value)
        except BadInput as error:
            self.fail(error.message, param, ctx)


_hosts = click.option("--hosts", type=click.IntRange(1), required=True, help="How many hosts.")
_per_switch = click.option(
    "--hosts-per-switch",
    type=click.IntRange(1),
    default=16,
    show_default=True,
    help="How many hosts each switch with hosts has.",
)
_rate = click.option(
    "--rate",
    "rate_bps",
    type=_Rate(),
    help="Rate of the hosts' links, like 10Gbps.",
    show_default="no limit",
)
_uplink_rate = click.option(
    "--uplink-rate",
    "uplink_rate_bps",
    type=_Rate(),
    show_default="no limit",
    help="Rate of the links between switches, like 40Gbps.",
)


def _common(command: F) -> F:
    """The options that every shape has."""
    options = (
        click.option("--fabric", type=click.Choice(FABRICS), default="openvswitch",
                     show_default=True, help="What an emulation makes the switches of."),
        click.option("--name", help="The lab's name.", show_default="the shape and the hosts"),
        click.option("--output", "-o", metavar="FILE", help="File to write.",
                     show_default="standard output"),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@click.group()
def generate() -> None:
    """Write a lab of a common shape, without an OCS.

    Hosts are h1, h2, … with one GPU and one NIC each, from 10.0.0.1 on; switches s1, s2, ….
    """


@generate.command()
@_hosts
@_rate
@_common
def single(output: str | None, **options: Any) -> None:
    """One switch with all hosts on it."""
    _write(shapes.single(**options), output)


@generate.command()
@_hosts
@_per_switch
@_rate
@_uplink_rate
@_common
def linear(output: str | None, **options: Any) -> None:
    """A chain of switches with hosts on each."""
    _write(shapes.linear(**options), output)


@generate.command()
@_hosts
@_per_switch
@_rate
@_uplink_rate
@_common
def tree(output: str | None, **options: Any) -> None:
    """A root switch, and leaf switches with hosts on each."""
    _write(shapes.tree(**options), output)


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
    _write(shapes.fat_tree(**options), output)


def _write(made: Lab, output: str | None) -> None:
    text = write_lab(made)
    if output is None or output == "-":
        click.echo(text, nl=False)
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        message = f"cannot write the lab to {output}: {error.strerror}"
        raise PatchlightError(message, hint="name a file in a folder you can write to") from error
    hosts, switches = len(made.hosts), len(made.packet_switches)
    click.echo(f"wrote {output}: lab {made.name}, {hosts} hosts, {switches} switches", err=True)
