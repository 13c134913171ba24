"""``patchlight ocs emulate`` and ``fault``: one emulated switch alone, for development."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from patchlight.console.rendering import print_json, say
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.model import CircuitSwitch, OpticalSwitch
from patchlight.testbed.lab.ocs_drivers import OCS_DRIVERS, WSS_DRIVERS, check_shape
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.spectrum import Channel, Grid, SpectrumMap
from patchlight.testbed.lab.wavelengths import Emulation, OcsUser, WavelengthSwitch
from patchlight.testbed.labfile.optical_schema import MOST_PORTS
from patchlight.testbed.labfile.values import MOST_CIRCUIT_PORTS
from patchlight.testbed.linux.sockets import is_loopback
from patchlight.testbed.units import parse_loss, parse_time

if TYPE_CHECKING:
    from patchlight.emulation.optical.device import EmulatedOcs, EmulatedWss
    from patchlight.emulation.optical.protocols.server import ProtocolServer

_ARRIVING_DBM = 0.0
_ANSWERS_WITHIN_S = 10.0
_FAULTS = (
    '{"refuse_next": "busy"}, {"cut": "after"}, {"stall_s": 2}, {"fail_ports": [7]}, '
    '{"lose": "3>9"}, {"reboot": "keep"}'
)
_DRIVERS = {**OCS_DRIVERS, **WSS_DRIVERS}
_EMULATED = [driver for driver in _DRIVERS.values() if driver.device]
_CHANNELS = range(-36, 64)  # of 50 GHz, from 193.1 THz: the C band


@click.command(
    epilog="Without --password-env any password will do. FILE keeps the circuits over a restart. "
    f"SOCKET takes faults, a JSON object a line: {_FAULTS}."
)
@click.option(
    "--driver",
    required=True,
    metavar="DRIVER",
    help=f"One of {', '.join(driver.name for driver in _EMULATED)}.",
)
@click.option(
    "--ports",
    type=click.IntRange(1, MOST_CIRCUIT_PORTS),
    default=32,
    metavar="N",
    help="Ports on each side.",
)
@click.option("--inputs", type=click.IntRange(1, MOST_PORTS), help="Of a wavelength switch.")
@click.option("--outputs", type=click.IntRange(1, MOST_PORTS), help="Of a wavelength switch.")
@click.option("--grid", default="50GHz", metavar="GRID", help="Of a wavelength switch.")
@click.option(
    "--listen", metavar="HOST:PORT", help="Port 0: any. [default: 127.0.0.1, the vendor's port]"
)
@click.option("--switching-time", metavar="TIME", help="[default: 25ms, or 50ms]")
@click.option("--insertion-loss", metavar="LOSS", help="[default: 1.5dB, or 6dB]")
@click.option("--user", default="admin", help="Who may log in.")
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
@click.option("--map", "circuits", metavar="CIRCUITS", help="To begin with: 1-7,2>8; 1-3@193.100.")
@click.option("--state", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE")
@click.option("--control", type=click.Path(path_type=Path, dir_okay=False), metavar="SOCKET")
def emulate(
    driver: str,
    ports: int,
    inputs: int | None,
    outputs: int | None,
    grid: str,
    listen: str | None,
    switching_time: str | None,
    insertion_loss: str | None,
    user: str,
    password_env: str | None,
    viewers: tuple[str, ...],
    conflict_time: str | None,
    circuits: str | None,
    state: Path | None,
    control: Path | None,
) -> None:
    """Run one emulated switch alone: no root, no lab; Ctrl-C ends it.

    Light at 0 dBm comes in at every port, of a wavelength switch on each channel of 50 GHz in the C
    band; no packets are carried. With driver openflow it connects to HOST:PORT, again and again,
    rather than listen there.
    """
    # Imported here: other commands of this group do without an emulated device.
    from patchlight.emulation.optical.protocols.server import serve_until_stopped, server_class

    server = server_class(driver)
    known = _DRIVERS.get(driver)
    if viewers and known is not None and not known.has_users:
        raise BadInput(f"nobody logs in to a {driver}: leave out --viewer")
    if conflict_time is not None and not (known and known.makes_room):
        names = " and ".join(d.name for d in _EMULATED if d.makes_room)
        raise BadInput(f"--conflict-time is for {names}, not for {driver}")
    for folder in (path.parent for path in (state, control) if path is not None):
        if not folder.is_dir():
            raise BadInput(f"{folder} is no directory")
    if password_env is not None and password_env not in os.environ:
        hint = f"export {password_env}=… before starting"
        raise BadInput(f"{password_env} is not set", hint=hint)
    about: dict[str, Any] = {
        "driver": driver,
        "address": listen or f"127.0.0.1:{known.port if known else server.port}",
        "user": user,
        "password_env": password_env,
        "emulated": Emulation(
            users=tuple(OcsUser(name, read_only=True) for name in viewers),
            conflict_time_s=None if conflict_time is None else parse_time(conflict_time),
        ),
    }
    if switching_time is not None:
        about["switching_time_s"] = parse_time(switching_time)
    if insertion_loss is not None:
        about["insertion_loss_db"] = parse_loss(insertion_loss)
    texts = [text for text in (circuits or "").split(",") if text.strip()]
    device: EmulatedOcs | EmulatedWss
    if driver in WSS_DRIVERS or inputs is not None or outputs is not None:
        device = _wss(about, inputs, outputs, Grid.parse(grid), texts, state)
    else:
        device = _ocs(about, ports, server.datapath_id, texts, state)
    protocol = server(device)

    async def ready(host: str, port: int) -> None:
        asks = known is None or known.has_users
        if not (protocol.dials or is_loopback(host) or (asks and password_env and not viewers)):
            takes = "takes any password" if asks else "asks for no password"
            say(
                f"warning: it {takes}, and other machines reach it at {host}: listen on 127.0.0.1"
                + (", or give --password-env and no --viewer" if asks else ""),
                err=True,
            )
        _print_how_to_use(protocol, device.switch, host, port, control)

    address = device.switch.address
    asyncio.run(serve_until_stopped(device, protocol, address, control=control, ready=ready))
    say("ended", err=True)


def _ocs(
    about: dict[str, Any], ports: int, datapath_id: int | None, texts: list[str], state: Path | None
) -> EmulatedOcs:
    from patchlight.emulation.optical.crossbar import NoCrossbar
    from patchlight.emulation.optical.device import EmulatedOcs

    initial = PortMap.parse(texts)
    initial.check(ports)
    switch = CircuitSwitch("ocs1", ports=ports, initial=initial, datapath_id=datapath_id, **about)
    light = dict.fromkeys(range(1, ports + 1), _ARRIVING_DBM)
    return EmulatedOcs(switch, light, NoCrossbar(), state_file=state)


def _wss(
    about: dict[str, Any],
    inputs: int | None,
    outputs: int | None,
    grid: Grid,
    texts: list[str],
    state: Path | None,
) -> EmulatedWss:
    from patchlight.emulation.optical.crossbar import NoChannelCrossbar
    from patchlight.emulation.optical.device import EmulatedWss

    if inputs is None or outputs is None:
        raise BadInput(f"a {about['driver']} has --inputs and --outputs: say both, one may be 1")
    initial = SpectrumMap.parse(texts)
    initial.check(inputs, outputs, grid)
    switch = WavelengthSwitch("wss1", inputs, outputs, grid, initial=initial, **about)
    check_shape(switch)
    light = {Channel(8 * n): _ARRIVING_DBM for n in _CHANNELS}
    crossbar = NoChannelCrossbar(dict.fromkeys(range(1, inputs + 1), light))
    return EmulatedWss(switch, crossbar, state_file=state)


def _print_how_to_use(
    protocol: ProtocolServer, switch: OpticalSwitch, host: str, port: int, control: Path | None
) -> None:
    password = f", password_env: {switch.password_env}" if switch.password_env else ""
    shown = f"[{host}]" if ":" in host else host
    where = "and connects to" if protocol.dials else "at"
    say(
        f"an emulated switch of {switch.ports} ports speaks {switch.driver} {where} "
        f"{shown}:{port}; Ctrl-C ends it"
    )
    if protocol.by_hand:
        secret = f"${switch.password_env}" if switch.password_env else "x"
        fields = {"host": host, "port": port, "user": switch.user, "password": secret}
        say(f"by hand:     {protocol.by_hand.format_map(fields)}")
    if isinstance(switch, CircuitSwitch):
        kind, shape = "circuit", f"ports: {switch.ports}"
        shape += f", datapath_id: {switch.datapath_id:#x}" if switch.datapath_id else ""
    else:
        kind, shape = "wavelength", f"inputs: {switch.inputs}, outputs: {switch.outputs}"
        shape += "" if switch.grid == Grid() else f", grid: {switch.grid}"
    say(
        f"lab file:    {{name: bench, {kind}_switches: [{{name: {switch.name}, "
        f'driver: {switch.driver}, address: "{shown}:{port}", {shape}, '
        f"user: {switch.user}{password}}}]}}"
    )
    say("with it:     patchlight ocs show --lab FILE --direct")
    if control is not None:
        say(
            f"faults:      patchlight ocs fault {shlex.quote(str(control))} "
            '\'{"refuse_next": "busy"}\''
        )


@click.command(epilog=f"FAULT is a JSON object: {_FAULTS}. An empty one, {{}}, changes nothing.")
@click.argument("control", metavar="SOCKET", type=click.Path(path_type=Path))
@click.argument("fault", metavar="FAULT")
def fault(control: Path, fault: str) -> None:
    """Tell an emulated switch, at its --control SOCKET, what is to go wrong.

    Prints the faults that stand then.
    """
    try:
        request = json.loads(fault)
    except ValueError as error:
        raise BadInput(f"{fault!r} is not JSON: {error}") from error
    answer = send_fault(control, request)
    if not answer["ok"]:
        raise BadInput(f"the emulated switch does not know that fault: {answer['error']}")
    print_json(answer["faults"], one_line=True)


def send_fault(control: Path, request: object) -> dict[str, object]:
    """The answer of the emulated switch at that socket; ``PatchlightError`` without one."""
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(_ANSWERS_WITHIN_S)
            line.connect(str(control))
            line.sendall(json.dumps(request).encode() + b"\n")
            with line.makefile() as reply:
                answer: dict[str, object] = json.loads(reply.readline())
                return answer
    except (OSError, ValueError) as error:
        raise PatchlightError(
            f"no emulated switch answers at {control}: {error}",
            hint="start one with 'patchlight ocs emulate … --control SOCKET'",
        ) from error
