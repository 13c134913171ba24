"""An emulated lab that is up: which one is meant, its prompt, its fibres and transceivers."""

import cmd
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from patchlight.console.commands import require_root
from patchlight.console.connection import only_lab
from patchlight.console.rendering import (
    Coloured,
    Column,
    Table,
    listing_options,
    print_json,
    say,
)
from patchlight.console.shared import lab_option
from patchlight.emulation.fabric.lab_state import RUN_ROOT, recorded_labs
from patchlight.emulation.lab.emulated_lab import EmulatedLab
from patchlight.emulation.lab.hosts import EmulatedHost
from patchlight.emulation.lab.network import FibreState
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.model import Endpoint
from patchlight.testbed.lab.spectrum import Channel
from patchlight.testbed.lab.tuning import LightClient
from patchlight.testbed.labfile.reader import read_lab
from patchlight.testbed.units import format_rate, format_time, write_share

_COMMANDS = ("pingall", "iperf", "link", "help")
_HELP = """\
HOST COMMAND …   run a command on a host; names of hosts become addresses: gpu1 ping -c 3 gpu2
pingall          ping from every host to every other
iperf A B        measure the rate of one TCP connection from A to B
link A B         show the fibre between A and B; link A B down cuts it, link A B up restores it
help             show this text
exit             leave; the lab stays up (also Ctrl-D)"""


def attached(lab: str | None) -> EmulatedLab:
    """The lab of that name, or the only one that is up."""
    return EmulatedLab.attach(meant(lab))


def meant(lab: str | None) -> str:
    """The name of the lab meant: one that is here, that of a file, or the only one."""
    if lab is None:
        return only_lab(recorded_labs())
    if lab in recorded_labs():
        return lab
    if Path(lab).is_file():
        return read_lab(lab).name
    if "/" in lab:
        raise BadInput(
            f"no emulated lab and no lab file {lab!r} (see {RUN_ROOT})"
        )
    return lab


def fibre_line(state: FibreState) -> str:
    """A fibre's state on one line."""
    fibre = state.fibre
    impairment = state.impairment
    parts = ["up" if state.up else "down"]
    if impairment.delay_s:
        parts.append(f"delay {format_time(impairment.delay_s)}")
    if impairment.jitter_s:
        parts.append(f"jitter {format_time(impairment.jitter_s)}")
    if impairment.packet_loss:
        parts.append(f"packet loss {write_share(impairment.packet_loss)}")
    return f"{fibre.a} – {fibre.b}  {', '.join(parts)}"


def fibre_row(state: FibreState) -> dict[str, Any]:
    """A fibre's state for JSON; times in seconds, the loss as a share."""
    a = str(state.fibre.a)
    b = str(state.fibre.b)
    return {
        "a": a,
        "b": b,
        "up": state.up,
        **asdict(state.impairment),
    }


def run_attached(host: EmulatedHost, command: Sequence[str]) -> int:
    """Run a command as a host on this terminal; its exit status as a shell would give it."""
    process = host.popen(command)
    # Ctrl-C is for the command; the NIC it borrowed must be given back whatever it does.
    before = {
        number: signal.signal(number, signal.SIG_IGN)
        for number in (signal.SIGINT, signal.SIGQUIT)
    }
    try:
        status = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


class LabShell(cmd.Cmd):
    """The prompt of a lab, with completion of host and command names."""

    def __init__(self, lab: EmulatedLab) -> None:
        super().__init__()
        self._lab = lab
        self.prompt = ""
        if sys.stdin.isatty():
            self.prompt = f"{lab.lab.name}> "
            hosts = len(lab.hosts)
            self.intro = f"lab {lab.lab.name}: {hosts} hosts; type help"

    def run(self) -> None:
        """Read and run lines until ``exit`` or the end of input."""
        while True:
            try:
                self.cmdloop()
            except KeyboardInterrupt:
                say("")
                self.intro = None
            else:
                return

    def onecmd(self, line: str) -> bool:
        """Run a line; whether it was the last."""
        try:
            first, *words = shlex.split(line) or [""]
            if first in ("exit", "quit", "EOF"):
                return True
            if first in _COMMANDS:
                getattr(self, f"_{first}")(words)
            elif first:
                hosts = self._lab.lab.host_names
                words = [
                    str(hosts[word].nic.address) if word in hosts else word
                    for word in words
                ]
                run_attached(self._lab.host(first), words)
        except (PatchlightError, ValueError) as error:
            say(str(error), err=True)
        return False

    def completenames(self, text: str, *_: Any) -> list[str]:
        """Names of commands and hosts; for every word of a line."""
        names = [*sorted(self._lab.lab.host_names), *_COMMANDS, "exit"]
        return [f"{name} " for name in names if name.startswith(text)]

    completedefault = completenames

    def _help(self, words: Sequence[str]) -> None:
        say(_HELP)

    def _pingall(self, words: Sequence[str]) -> None:
        reached = self._lab.pingall()
        for source, target in reached.lost:
            say(f"{source} does not reach {target}")
        say(
            f"{reached.tried - len(reached.lost)} of {reached.tried} pings answered"
        )

    def _iperf(self, hosts: Sequence[str]) -> None:
        if len(hosts) != 2:
            raise BadInput("expected two hosts: iperf A B")
        rate_bps = self._lab.iperf(hosts[0], hosts[1])
        say(f"{hosts[0]} to {hosts[1]}: {format_rate(rate_bps)}")

    def _link(self, words: Sequence[str]) -> None:
        if len(words) not in (2, 3) or words[2:] not in ([], ["up"], ["down"]):
            raise BadInput(
                "expected two ports, hosts or devices: link A B [up|down]"
            )
        wires = self._lab.wires
        fibre = wires.between(words[0], words[1])
        if words[2:]:
            wires.set_up(fibre, up=words[2] == "up")
        say(fibre_line(wires.state(fibre)))


@click.command()
@click.argument("port", required=False)
@click.argument("channel", required=False)
@lab_option()
@listing_options
def tune(
    port: str | None,
    channel: str | None,
    lab_name: str | None,
    as_json: bool,
) -> None:
    """Tune a transceiver, or show transceivers.

    \b
      patchlight emulate tune
      patchlight emulate tune server1 193.200
      patchlight emulate tune server1 off

    PORT is a host or a port. The transceiver is silent while it tunes; the command ends when it
    sends again. Without PORT, show all transceivers and how many frames collisions destroyed on
    each fibre.

    \b
    With --json: transceivers by port, each with channel, state (on, off,
    tuning), band, to (the ports that get its frames) and destroyed_at (fibres,
    by their sending end); destroyed (frames by fibre) and dark (frames by
    the port that sent them).
    """
    require_root("tuning transceivers")
    lab = attached(lab_name)
    with lab.light as light:
        hosts = lab.lab.host_names
        end = None
        if port is not None:
            end = (
                hosts[port].endpoint if port in hosts else Endpoint.parse(port)
            )
        if end is not None and channel == "off":
            light.darken(end)
        elif end is not None and channel is not None:
            light.tune(end, Channel.parse(channel))
        _print(light, end, as_json=as_json)


def _print(
    light: LightClient,
    end: Endpoint | None,
    *,
    as_json: bool,
) -> None:
    transceivers = light.transceivers()
    losses = light.losses()
    if end is not None:
        transceivers = {str(end): transceivers[str(end)]}
    if as_json:
        print_json({"transceivers": transceivers, **losses})
        return
    table = Table(
        *(Column(heading, whole=True) for heading in ("port", "THz", "")),
        Column("band", wide=True),
        "received by",
        "destroyed on",
    )
    for name, found in transceivers.items():
        table.add_row(
            name,
            found["channel"],
            Coloured(
                found["state"], "good" if found["state"] == "on" else "caution"
            ),
            found["band"],
            ", ".join(found["to"]),
            Coloured(", ".join(found["destroyed_at"]), "bad"),
        )
    table.print()
    for at, frames in losses["destroyed"].items():
        say(f"frames destroyed on the fibre at {at}: {frames}")
