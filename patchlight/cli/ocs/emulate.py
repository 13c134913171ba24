"""``patchlight ocs emulate``: one emulated switch alone, to develop against."""

from __future__ import annotations

import asyncio
import os
import shlex
from pathlib import Path

import click

from patchlight.emulation.optical.crossbar import NoCrossbar
from patchlight.emulation.optical.device import EmulatedOcs, LoopClock
from patchlight.emulation.optical.serving import serve_until_stopped
from patchlight.emulation.optical.vendors.openflow import DATAPATH_ID
from patchlight.emulation.optical.vendors.registry import PROTOCOL_SERVERS
from patchlight.testbed.emulated import Emulation, OcsUser
from patchlight.testbed.errors import BadInput
from patchlight.testbed.files.issues import nearest
from patchlight.testbed.lab import CircuitSwitch
from patchlight.testbed.labfile.check import MAKE_ROOM, WITHOUT_USERS
from patchlight.testbed.labfile.schema import MOST_CIRCUIT_PORTS
from patchlight.testbed.portmap import PortMap, parse_cross_connects
from patchlight.testbed.units import parse_loss, parse_time

_TL1 = 'printf "ACT-USER::{user}:1::{password};%s" | nc -q 2 {host} {port}'

_HTTPS = 'curl -sk -u "{user}:{password}" "https://{host}:{port}%s"'

# Where each vendor's device listens, and a command line that reads its map by hand.
_DEVICES = {
    "calient-tl1": (3082, _TL1 % "RTRV-CRS:::2::ALL;"),
    "calient-rest": (443, _HTTPS % "/rest/crossconnects/?id=list"),
    "polatis-scpi": (5025, "printf ':oxc:swit:conn:stat?\\n' | nc -q 1 {host} {port}"),
    "polatis-tl1": (3082, _TL1 % "RTRV-PATCH:::2:;"),
    "polatis-restconf": (443, _HTTPS % "/api/data/cross-connects/pair"),
    "glimmerglass-tl1": (10034, _TL1 % "RTRV-CRS-FIBER:::2:;"),
    "polatis-netconf": (830, "ssh -s -p {port} {user}@{host} netconf"),
    "openflow": (6654, ""),  # only a controller can ask it, and it has to come to one
    "telescent-ssh": (9861, "ssh -t -p {port} {user}@{host}, then: switchstate"),
}
_ARRIVING_DBM = 0.0
_NAME = "ocs1"


@click.command(
    epilog="Without --password-env any password will do. FILE keeps the circuits over a restart. "
    "SOCKET takes faults, a JSON object a line: "
    '{"refuse_next": "busy"}, {"cut": "after"}, {"stall_s": 2}, {"fail_ports": [7]}, '
    '{"lose": "3>9"}, {"reboot": "keep"}.'
)
@click.option(
    "--driver", required=True, metavar="DRIVER", help=f"One of {', '.join(PROTOCOL_SERVERS)}."
)
@click.option(
    "--ports",
    type=click.IntRange(1, MOST_CIRCUIT_PORTS),
    default=32,
    show_default=True,
    metavar="N",
    help="Ports on each side.",
)
@click.option(
    "--listen", metavar="HOST:PORT", help="Port 0: any. [default: 127.0.0.1, the vendor's port]"
)
@click.option("--switching-time", default="25ms", show_default=True, metavar="TIME")
@click.option("--insertion-loss", default="1.5dB", show_default=True, metavar="LOSS")
@click.option("--user", default="admin", show_default=True, help="Who may log in.")
@click.option("--password-env", metavar="VARIABLE", help="Environment variable of the password.")
@click.option(
    "--viewer",
    "viewers",
    multiple=True,
    metavar="USER",
    help="Who may log in and only look; may be given again.",
)
@click.option(
    "--conflict-time",
    metavar="TIME",
    help="A Calient that takes busy ports from their circuits, in such a time.",
)
@click.option("--map", "circuits", metavar="CIRCUITS", help="To begin with: 1-7,2>8.")
@click.option("--state", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE")
@click.option("--control", type=click.Path(path_type=Path, dir_okay=False), metavar="SOCKET")
def emulate(
    driver: str,
    ports: int,
    listen: str | None,
    switching_time: str,
    insertion_loss: str,
    user: str,
    password_env: str | None,
    viewers: tuple[str, ...],
    conflict_time: str | None,
    circuits: str | None,
    state: Path | None,
    control: Path | None,
) -> None:
    """Run one emulated switch alone: no root, no lab; Ctrl-C ends it.

    Light at 0 dBm comes in at every port; no packets are carried. With driver openflow it
    connects to HOST:PORT, again and again, rather than listen there.
    """
    if driver not in PROTOCOL_SERVERS:
        known = nearest(driver, PROTOCOL_SERVERS, "there are")
        raise BadInput(f"no emulated switch speaks {driver!r}: {known}")
    if viewers and driver in WITHOUT_USERS:
        raise BadInput(f"nobody logs in to a {driver}: leave out --viewer")
    if conflict_time is not None and driver not in MAKE_ROOM:
        raise BadInput(f"--conflict-time is for {' and '.join(MAKE_ROOM)}, not for {driver}")
    for folder in (path.parent for path in (state, control) if path is not None):
        if not folder.is_dir():
            raise BadInput(f"{folder} is no directory")
    initial = PortMap.of(
        c
        for text in (circuits or "").split(",")
        if text.strip()
        for c in parse_cross_connects(text)
    )
    initial.check(ports)
    password = _password(password_env)
    address = listen or f"127.0.0.1:{_DEVICES[driver][0]}"
    switch = CircuitSwitch(
        _NAME, driver, address, ports, parse_time(switching_time), parse_loss(insertion_loss),
        user, password_env, initial, DATAPATH_ID if driver == "openflow" else None,
        Emulation(
            users=tuple(OcsUser(name, read_only=True) for name in viewers),
            conflict_time_s=None if conflict_time is None else parse_time(conflict_time),
        ),
    )  # fmt: skip
    asyncio.run(_run(switch, {user: password, **dict.fromkeys(viewers)}, state, control))
    click.echo("ended", err=True)


def _password(variable: str | None) -> str | None:
    if variable is None:
        return None
    if variable not in os.environ:
        raise BadInput(f"{variable} is not set", hint=f"export {variable}=… before starting")
    return os.environ[variable]


async def _run(
    switch: CircuitSwitch,
    users: dict[str, str | None],
    state: Path | None,
    control: Path | None,
) -> None:
    arriving = dict.fromkeys(range(1, switch.ports + 1), _ARRIVING_DBM)
    device = EmulatedOcs(switch, arriving, NoCrossbar(), LoopClock(), state_file=state)

    async def ready(host: str, port: int) -> None:
        _say(switch, host, port, control)

    front = PROTOCOL_SERVERS[switch.driver](device, users)
    await serve_until_stopped(device, front, switch.address, control=control, ready=ready)


def _say(switch: CircuitSwitch, host: str, port: int, control: Path | None) -> None:
    password = f", password_env: {switch.password_env}" if switch.password_env else ""
    shown = f"[{host}]" if ":" in host else host
    where = "and connects to" if switch.driver == "openflow" else "at"
    click.echo(
        f"an emulated switch of {switch.ports} ports speaks {switch.driver} {where} "
        f"{shown}:{port}; Ctrl-C ends it"
    )
    if line := by_hand(switch, host, port):
        click.echo(f"by hand:     {line}")
    more = f", datapath_id: {switch.datapath_id:#x}" if switch.datapath_id else ""
    click.echo(
        f"lab file:    {{name: bench, circuit_switches: [{{name: {switch.name}, "
        f'driver: {switch.driver}, address: "{shown}:{port}", ports: {switch.ports}, '
        f"user: {switch.user}{password}{more}}}]}}"
    )
    click.echo("with it:     patchlight ocs show --lab FILE --direct")
    if control is not None:
        click.echo(
            f"faults:      patchlight ocs fault {shlex.quote(str(control))} "
            '\'{"refuse_next": "busy"}\''
        )


def by_hand(switch: CircuitSwitch, host: str, port: int) -> str:
    """A command line that reads the map of such a switch; empty where none can."""
    password = f"${switch.password_env}" if switch.password_env else "x"
    template = _DEVICES[switch.driver][1]
    return template.format(host=host, port=port, user=switch.user, password=password)
