"""One emulated OCS as a process: ``python -m emulation.optical --lab FILE --ocs ocs1 …``."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from pathlib import Path

from emulation.fabric.names import namespace_name
from emulation.fabric.namespaces import namespace_path
from emulation.optical.arriving import arriving_dbm
from emulation.optical.clients import Clients
from emulation.optical.crossbar import Crossbar, KernelCrossbar, NoCrossbar
from emulation.optical.device import EmulatedOcs, LoopClock
from emulation.optical.faults import Action, ControlSocket
from emulation.optical.fronts import Front, front_of
from testbed.errors import BadInput, PatchlightError
from testbed.lab import Lab
from testbed.labfile import read_lab
from testbed.portmap import parse_cross_connects


def main(arguments: list[str] | None = None) -> int:
    """Run the device until it is told to stop; the exit code says how it ended."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=options.log_level.upper(), format="%(name)s: %(message)s")
    try:
        lab = read_lab(options.lab)
        asyncio.run(_run(lab, options))
    except PatchlightError as error:
        print(f"emulated OCS {options.ocs}: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m emulation.optical", description=__doc__)
    parser.add_argument("--lab", required=True, type=Path, metavar="FILE")
    parser.add_argument("--ocs", required=True, metavar="NAME")
    parser.add_argument(
        "--netns", metavar="NAME|PATH", help="where the ports are (default: pl.LAB.OCS)"
    )
    parser.add_argument("--no-fabric", action="store_true", help="carry no packets; needs no root")
    parser.add_argument(
        "--listen", metavar="HOST:PORT", help="default: the address in the lab file; port 0: any"
    )
    parser.add_argument(
        "--ready-file", type=Path, metavar="FILE", help="gets HOST:PORT once it answers"
    )
    parser.add_argument("--control", type=Path, metavar="SOCKET", help="takes faults as JSON")
    parser.add_argument("--state", type=Path, metavar="FILE", help="keeps the circuits")
    parser.add_argument(
        "--log-level", default="warning", choices=("debug", "info", "warning", "error")
    )
    return parser


async def _run(lab: Lab, options: argparse.Namespace) -> None:
    switch = lab.circuit_switch(options.ocs)
    crossbar: Crossbar
    if options.no_fabric:
        crossbar = NoCrossbar()
    else:
        where = options.netns or namespace_name(lab.name, switch.name)
        crossbar = KernelCrossbar(Path(where) if "/" in where else namespace_path(where))
    device = EmulatedOcs(
        switch, arriving_dbm(lab, switch), crossbar, LoopClock(), state_file=options.state
    )
    front = front_of(device)
    clients = Clients(front.serve)
    host, port = _address(options.listen or switch.address)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await device.open()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(device.close)
        try:
            server = await asyncio.start_server(clients.serve, host, port)
        except OSError as error:
            raise PatchlightError(
                f"listening on {host}:{port} for {switch.name}: {error.strerror}",
                hint="stop what listens there, or choose another port with --listen",
            ) from error
        stack.callback(server.close)
        if options.control is not None:
            actions = _actions(device, front, clients)
            control = ControlSocket(device.faults, device.faults_changed, actions)
            await control.open(options.control)
            stack.push_async_callback(control.close)
        if options.ready_file is not None:
            bound = server.sockets[0].getsockname()
            await asyncio.to_thread(_announce, options.ready_file, f"{bound[0]}:{bound[1]}\n")
        await stop.wait()


def _actions(device: EmulatedOcs, front: Front, clients: Clients) -> dict[str, Action]:
    def report(text: object) -> None:
        front.report(str(text))

    async def lose(text: object) -> None:
        for c in parse_cross_connects(str(text)):
            await device.lose(c)

    async def reboot(how: object) -> None:
        if how not in ("keep", "forget"):
            raise BadInput(f"reboot cannot be {how!r}: 'keep' or 'forget', meaning the map")
        clients.cut()
        await device.reboot(keep_map=how == "keep")

    return {"report": report, "lose": lose, "reboot": reboot}


def _announce(path: Path, text: str) -> None:
    # Whoever waits for the file must never see it empty.
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".new")
    beside.write_text(text)
    os.replace(beside, path)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise BadInput(f"{text!r} is no address to listen on: expected host:port")
    return host.strip("[]"), int(port)


if __name__ == "__main__":
    sys.exit(main())
