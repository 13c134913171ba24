"""``patchlight emulate ocs`` and ``fault``: an emulated switch by itself, and faults to order."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from patchlight.cli.lab import emulated
from patchlight.cli.ocs.names import complete_switch
from patchlight.console.commands import require_root
from patchlight.console.connection import running_lab
from patchlight.console.rendering import json_option, print_answer, say
from patchlight.console.shared import lab_option
from patchlight.testbed.errors import BadInput, FileError, nearest
from patchlight.testbed.lab.model import CircuitSwitch, OpticalSwitch
from patchlight.testbed.lab.ocs_drivers import OCS_DRIVERS, WSS_DRIVERS
from patchlight.testbed.lab.spectrum import Channel, Grid
from patchlight.testbed.labfile.reader import parse_lab
from patchlight.testbed.linux.sockets import is_loopback

if TYPE_CHECKING:
    from patchlight.emulation.lab.emulated_lab import EmulatedLab
    from patchlight.emulation.optical.emulated_switch import EmulatedSwitch
    from patchlight.emulation.optical.protocols.server import ProtocolServer

_ARRIVING_DBM = 0.0
_DRIVERS = {**OCS_DRIVERS, **WSS_DRIVERS}
_EMULATED = [driver for driver in _DRIVERS.values() if driver.device]
_CHANNELS = range(-36, 64)  # of 50 GHz, from 193.1 THz: the C band
_ACTIONS = {
    "report": "the alarm's text",
    "lose": "a cross-connect, like '1>4'",
    "reboot": "keep or forget",
}


@click.command(
    "ocs",
    epilog=f"Drivers: {', '.join(driver.name for driver in _EMULATED)}. Users, passwords and "
    "faults are in a lab file; without --password-env any password is accepted.",
)
@click.argument(
    "name",
    metavar="DRIVER|OCS",
    shell_complete=complete_switch,
)
@click.option(
    "--ports",
    default="32",
    metavar="N",
    help="Number of ports, or INPUTSxOUTPUTS of a WSS.",
)
@click.option(
    "--circuits",
    metavar="CIRCUITS",
    help="Initial circuits: 1-7,2>8; 1-3@193.100.",
)
@click.option(
    "--switching-time",
    metavar="TIME",
    help="[default: 25ms, or 50ms]",
)
@click.option(
    "--insertion-loss",
    metavar="LOSS",
    help="[default: 1.5dB, or 6dB]",
)
@click.option(
    "--password-env",
    metavar="VARIABLE",
    help="Environment variable of the password.",
)
@lab_option("With the name of an OCS: its lab.")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Address; port 0: any free one.  [default: 127.0.0.1, the vendor's port]",
)
@click.option(
    "--save",
    type=click.Path(
        path_type=Path,
        dir_okay=False,
    ),
    metavar="FILE",
    help="File that keeps the circuits over a restart.",
)
@click.option(
    "--control",
    type=click.Path(
        path_type=Path,
        dir_okay=False,
    ),
    metavar="SOCKET",
    help="Socket for 'emulate fault SOCKET'.",
)
def emulate_ocs(
    name: str,
    lab_name: str | None,
    listen: str | None,
    save: Path | None,
    control: Path | None,
    **about: Any,
) -> None:
    """Run one emulated switch by itself, without root, until Ctrl-C.

    \b
      patchlight emulate ocs polatis-scpi --ports 16
      patchlight emulate ocs waveshaper-http --ports 1x4
      patchlight emulate ocs ocs1 --lab my-lab.yaml --listen 127.0.0.1:0

    Every port receives 0 dBm; on a wavelength switch, each 50 GHz channel of the C band does. It
    carries no packets. With driver openflow it connects to HOST:PORT until a controller answers.
    """
    # Imported here: other commands of this group do without an emulated device.
    from patchlight.emulation.optical.protocols import server as serving

    by_lab = lab_name is not None and name not in serving.emulated_drivers()
    switch = (
        running_lab(lab_name).optical_switch(name)
        if by_lab
        else _switch(name, **about)
    )
    server = serving.server_class(switch.driver)
    for folder in (
        path.parent for path in (save, control) if path is not None
    ):
        if not folder.is_dir():
            raise BadInput(f"{folder} is not a folder")
    if (
        switch.password_env is not None
        and switch.password_env not in os.environ
    ):
        raise BadInput(
            f"{switch.password_env} is not set",
            hint=f"run: export {switch.password_env}=…",
        )
    device = _device(switch, save)
    protocol = server(device)

    async def ready(host: str, port: int) -> None:
        known = _DRIVERS.get(switch.driver)
        asks = known is None or known.has_users
        safe = asks and switch.password_env and not switch.emulated.users
        if not (protocol.dials or is_loopback(host) or safe):
            takes = "accepts any password" if asks else "asks for no password"
            say(
                f"warning: it {takes}, and other machines reach it at {host}: listen on 127.0.0.1"
                + (", or give --password-env" if asks else ""),
                err=True,
            )
        _print_how_to_use(
            protocol,
            switch,
            host,
            port,
            control,
        )

    address = listen or switch.address
    asyncio.run(
        serving.serve_until_stopped(
            device,
            protocol,
            address,
            control=control,
            ready=ready,
        )
    )
    say("ended", err=True)


def _switch(
    driver: str,
    ports: str,
    circuits: str | None,
    **texts: str | None,
) -> OpticalSwitch:
    """The switch that a lab file with these values describes."""
    from patchlight.emulation.optical.protocols.server import server_class

    server = server_class(driver)
    known = _DRIVERS.get(driver)
    address = f"127.0.0.1:{known.port if known else server.port}"
    said: dict[str, Any] = {
        "name": "ocs1",
        "driver": driver,
        "address": address,
        "user": "admin",
    }
    said |= {key: text for key, text in texts.items() if text is not None}
    said["cross_connects"] = [
        text for text in (circuits or "").split(",") if text.strip()
    ]
    inputs, by, outputs = (
        int(n) if n.isdecimal() else n for n in ports.partition("x")
    )
    if by or driver in WSS_DRIVERS:
        kind = "wavelength_switches"
        said |= {"inputs": inputs, "outputs": outputs}
    else:
        kind = "circuit_switches"
        said |= {"ports": inputs, "datapath_id": server.datapath_id}
    said = {key: value for key, value in said.items() if value}
    try:
        return parse_lab(
            json.dumps({"name": "bench", kind: [said]})
        ).optical_switches[0]
    except FileError as error:
        raise BadInput(
            "; ".join(issue.message for issue in error.issues)
        ) from error


def _device(switch: OpticalSwitch, save: Path | None) -> EmulatedSwitch:
    from patchlight.emulation.optical.crossbar import (
        NoChannelCrossbar,
        NoCrossbar,
    )
    from patchlight.emulation.optical.device import EmulatedOcs, EmulatedWss

    if isinstance(switch, CircuitSwitch):
        light = dict.fromkeys(range(1, switch.ports + 1), _ARRIVING_DBM)
        return EmulatedOcs(
            switch,
            light,
            NoCrossbar(),
            state_file=save,
        )
    channels = {Channel(8 * n): _ARRIVING_DBM for n in _CHANNELS}
    crossbar = NoChannelCrossbar(
        dict.fromkeys(range(1, switch.inputs + 1), channels)
    )
    return EmulatedWss(switch, crossbar, state_file=save)


def _print_how_to_use(
    protocol: ProtocolServer,
    switch: OpticalSwitch,
    host: str,
    port: int,
    control: Path | None,
) -> None:
    password = (
        f", password_env: {switch.password_env}" if switch.password_env else ""
    )
    shown = f"[{host}]" if ":" in host else host
    where = "and connects to" if protocol.dials else "at"
    say(
        f"an emulated switch of {switch.ports} ports speaks {switch.driver} {where} "
        f"{shown}:{port}; Ctrl-C ends it"
    )
    if protocol.by_hand:
        secret = f"${switch.password_env}" if switch.password_env else "x"
        fields = {
            "host": host,
            "port": port,
            "user": switch.user,
            "password": secret,
        }
        say(f"try it: {protocol.by_hand.format_map(fields)}")
    if isinstance(switch, CircuitSwitch):
        kind = "circuit"
        shape = f"ports: {switch.ports}"
        shape += (
            f", datapath_id: {switch.datapath_id:#x}"
            if switch.datapath_id
            else ""
        )
    else:
        kind = "wavelength"
        shape = f"inputs: {switch.inputs}, outputs: {switch.outputs}"
        shape += "" if switch.grid == Grid() else f", grid: {switch.grid}"
    say(
        f"lab file:    {{name: bench, {kind}_switches: [{{name: {switch.name}, "
        f'driver: {switch.driver}, address: "{shown}:{port}", {shape}, '
        f"user: {switch.user}{password}}}]}}"
    )
    say("with it:     patchlight ocs show --lab FILE --direct")
    if control is not None:
        say(
            f"faults:      patchlight emulate fault {shlex.quote(str(control.absolute()))} "
            "refuse_next busy"
        )


@click.command(
    epilog="What each fault does: docs/ocs-drivers.md, 'A switch to develop against'."
)
@click.argument(
    "name",
    metavar="OCS|SERVER|SOCKET",
    shell_complete=complete_switch,
)
@click.argument("fault", required=False)
@click.argument("value", required=False)
@lab_option()
@json_option
def fault(
    name: str,
    fault: str | None,
    value: str | None,
    lab_name: str | None,
    as_json: bool,
) -> None:
    """Make an emulated device fail; without FAULT, show its faults.

    \b
      patchlight emulate fault ocs1 lose '1>4'
      patchlight emulate fault ocs1 fail_ports 7,8
      patchlight emulate fault ocs1 refuse_next busy
      patchlight emulate fault ocs1 end             all faults
      patchlight emulate fault server1 reboot       with --server-kind ssh, docker or vm

    A reboot ends everything on the server; its disk and its fibres stay. SOCKET is the --control
    of 'emulate ocs'.
    """
    from patchlight.emulation.lab.network import send_fault
    from patchlight.emulation.optical.emulated_switch import EmulatedFaults

    usual = asdict(EmulatedFaults())
    if "/" in name:
        control = Path(name)
    else:
        require_root(f"a fault of {name} of an emulated lab")
        lab = emulated.attached(lab_name)
        if name in {server.name for server in lab.lab.servers}:
            _reboot(lab, name, fault)
            return
        control = (
            lab.run_dir
            / "optical"
            / f"{lab.lab.optical_switch(name).name}.control"
        )
    request = (
        {}
        if fault is None
        else usual
        if fault == "end"
        else _request(fault, value, usual)
    )
    standing = send_fault(control, request)
    lines = [
        f"{name}: {key} {shown}"
        for key, shown in standing.items()
        if shown != usual[key]
    ]
    if fault in _ACTIONS:
        lines.insert(0, f"{name}: {fault} {value}: done")
    print_answer(
        standing, "\n".join(lines) or f"{name}: no faults", as_json=as_json
    )


def _request(
    fault: str,
    value: str | None,
    usual: dict[str, Any],
) -> dict[str, Any]:
    """What the device takes for a fault of that name, whose value is like its usual one."""
    if fault not in (*usual, *_ACTIONS):
        raise BadInput(
            f"no fault {fault!r}: {nearest(fault, ['end', *_ACTIONS, *usual])}"
        )
    like = usual.get(fault, "")
    text = "" if value is None else value
    try:
        match like:
            case bool():
                return {fault: {"": True, "true": True, "false": False}[text]}
            case list():
                return {fault: [int(port) for port in text.split(",")]}
            case dict():
                pairs = (part.partition("=") for part in text.split(","))
                return {
                    fault: {port: float(amount) for port, _, amount in pairs}
                }
            case _:
                if value is None:
                    raise ValueError
                return {fault: type(like)(text)}
    except (KeyError, ValueError):
        like = _ACTIONS.get(fault) or {
            bool: "true or false",
            list: "7,8",
            dict: "7=1.5",
            str: "TEXT",
        }.get(type(like), "N")
        raise BadInput(f"expected a value for {fault}: {like}") from None


def _reboot(
    lab: EmulatedLab,
    server: str,
    fault: str | None,
) -> None:
    from patchlight.emulation.lab.services import reboot

    if fault != "reboot":
        raise BadInput(
            f"a server can only reboot: patchlight emulate fault {server} reboot"
        )
    reboot(
        lab.lab,
        lab.plan,
        server,
        lambda words: say(words, err=True),
    )
    say(f"{server} has booted", err=True)
