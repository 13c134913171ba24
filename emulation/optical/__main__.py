"""Runs one emulated optical switch: ``python -m patchlight.emulation.optical --ocs ocs1 …``.

A circuit switch, or a wavelength switch with a driver.
"""

import argparse
import asyncio
import os
import sys
from pathlib import Path

from patchlight.emulation.fabric.plan import namespace_name
from patchlight.emulation.optical import crossbar
from patchlight.emulation.optical.device import EmulatedOcs, EmulatedWss
from patchlight.emulation.optical.emulated_switch import EmulatedSwitch
from patchlight.emulation.optical.protocols.server import (
    serve_until_stopped,
    server_class,
)
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.optical_links import Light
from patchlight.testbed.labfile.reader import read_lab
from patchlight.testbed.linux.namespaces import namespace_path
from patchlight.testbed.linux.sockets import joined_address
from patchlight.testbed.logs import log_to_stderr


def main(arguments: list[str] | None = None) -> int:
    """Run the device until a signal ends it; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m patchlight.emulation.optical",
        description=__doc__,
    )
    argument = parser.add_argument
    argument(
        "--lab",
        required=True,
        type=Path,
        metavar="FILE",
    )
    argument(
        "--ocs",
        required=True,
        metavar="NAME",
    )
    argument(
        "--netns",
        metavar="NAME|PATH",
        help="namespace of the ports (default: pl.LAB.OCS)",
    )
    argument(
        "--light",
        type=Path,
        metavar="SOCKET",
        help="socket of the lab's wavelength emulation",
    )
    argument(
        "--no-fabric",
        action="store_true",
        help="carry no packets; needs no root",
    )
    listen_help = "default: the address in the lab file; port 0: any free one"
    argument(
        "--listen",
        metavar="HOST:PORT",
        help=listen_help,
    )
    argument(
        "--ready-file",
        type=Path,
        metavar="FILE",
        help="file that gets HOST:PORT once it answers",
    )
    argument(
        "--control",
        type=Path,
        metavar="SOCKET",
        help="socket that accepts faults as JSON",
    )
    argument(
        "--state",
        type=Path,
        metavar="FILE",
        help="file that saves the circuits",
    )
    argument(
        "--log-level",
        default="warning",
        choices=("debug", "info", "warning", "error"),
    )
    options = parser.parse_args(arguments)
    log_to_stderr(options.log_level.upper(), "%(name)s: %(message)s")
    try:
        asyncio.run(_run(_device(read_lab(options.lab), options), options))
    except PatchlightError as error:
        print(f"emulated OCS {options.ocs}: {error}", file=sys.stderr)
        return error.exit_code
    return 0


async def _run(device: EmulatedSwitch, options: argparse.Namespace) -> None:
    async def ready(host: str, port: int) -> None:
        if (path := options.ready_file) is not None:
            path.parent.mkdir(
                parents=True,
                exist_ok=True,
            )
            # A program that waits for the file must never see it empty.
            new = path.with_name(path.name + ".new")
            new.write_text(f"{joined_address(host, port)}\n")
            os.replace(new, path)

    switch = device.switch
    protocol = server_class(switch.driver)(device)
    address = options.listen or switch.address
    await serve_until_stopped(
        device,
        protocol,
        address,
        control=options.control,
        ready=ready,
    )


def _device(lab: Lab, options: argparse.Namespace) -> EmulatedSwitch:
    wss = next(
        (w for w in lab.wavelength_switches if w.name == options.ocs), None
    )
    if wss is not None:
        channels: crossbar.ChannelCrossbar
        if options.light is not None:
            channels = crossbar.LightChannelCrossbar(options.light, wss.name)
        else:
            arriving = Light(lab, lab.initial_maps).arriving(wss.name)
            channels = crossbar.NoChannelCrossbar(
                {
                    inp: {
                        signal.channel: dbm
                        for signal, dbm in light.items()
                        if signal.channel
                    }
                    for inp, light in arriving.items()
                }
            )
        return EmulatedWss(wss, channels, state_file=options.state)
    ocs = lab.circuit_switch(options.ocs)
    carrier: crossbar.Crossbar
    if options.light is not None:
        carrier = crossbar.LightCrossbar(options.light, ocs.name)
    elif options.no_fabric:
        carrier = crossbar.NoCrossbar()
    else:
        where = options.netns or namespace_name(lab.name, ocs.name)
        carrier = crossbar.KernelCrossbar(
            Path(where) if "/" in where else namespace_path(where)
        )
    arriving_dbm = crossbar.arriving_dbm(lab, ocs)
    return EmulatedOcs(
        ocs,
        arriving_dbm,
        carrier,
        state_file=options.state,
    )


if __name__ == "__main__":
    sys.exit(main())
