"""Emulates a lab's optical signals: ``python -m patchlight.emulation.light --lab LAB …``."""

import argparse
import asyncio
import json
import logging
import signal
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from patchlight.emulation.fabric import links
from patchlight.emulation.fabric.plan import light_namespace, switch_port_name
from patchlight.emulation.json_lines import answer_lines
from patchlight.emulation.light.emulated_light import (
    EmulatedLight,
    PluggedFibres,
)
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.model import Endpoint, Lab
from patchlight.testbed.lab.optical_links import is_end
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.spectrum import Channel, SpectrumMap
from patchlight.testbed.labfile.reader import read_lab
from patchlight.testbed.linux import namespaces
from patchlight.testbed.linux.netlink import Netlink, Request
from patchlight.testbed.linux.sockets import bind_unix

_LINK_EVENTS = 1  # RTMGRP_LINK
_READ_BYTES = 1 << 16


def main() -> int:
    """Run it until a signal ends it; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m patchlight.emulation.light",
        description=__doc__,
    )
    parser.add_argument(
        "--lab",
        required=True,
        type=Path,
        metavar="FILE",
    )
    parser.add_argument(
        "--socket",
        required=True,
        type=Path,
        metavar="PATH",
    )
    options = parser.parse_args()
    logging.basicConfig(
        level=logging.WARNING,
        format="%(name)s: %(message)s",
    )
    try:
        asyncio.run(_run(read_lab(options.lab), options.socket))
    except PatchlightError as error:
        print(f"emulated light: {error}", file=sys.stderr)
        return error.exit_code
    return 0


async def _run(lab: Lab, path: Path) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    fibres = _KernelFibres(
        lab, namespaces.namespace_path(light_namespace(lab.name))
    )
    # Opened before the first reading, so that no change is missed.
    changes = fibres.changes()
    requests = LightRequests(EmulatedLight(lab, fibres))
    requests.watch(changes)
    server = await requests.listen(path)
    await stop.wait()
    server.close()
    fibres.close()


class _KernelFibres:
    """Interfaces of one namespace, named after ports (``wss1-3``): an end of each fibre of an
    optical device. A fibre between two such devices has both; frames skip it, but it can be cut.
    The path of a transmitter's frames is one redirect. Needs root; raises ``KernelRefused``."""

    def __init__(self, lab: Lab, namespace: Path) -> None:
        self._namespace = namespace
        self._netlink = Netlink(namespace)
        here = links.list_links(self._netlink)
        names = {
            switch_port_name(end.device, end.port): end
            for end in lab.fibre_ends
            if not is_end(lab, end.device)
        }
        self._at = {
            here[name].index: end
            for name, end in names.items()
            if name in here
        }
        self._index = {end: index for index, end in self._at.items()}
        self._name = {end: name for name, end in names.items()}
        self._leads: dict[Endpoint, int] = {}
        links.ready_ingress(self._netlink, self._at)

    def close(self) -> None:
        self._netlink.close()

    def changes(self) -> socket.socket:
        with namespaces.entered(self._namespace):
            events = socket.socket(
                socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0
            )
        events.setblocking(False)
        events.bind((0, _LINK_EVENTS))
        return events

    def plugs(self) -> PluggedFibres:
        up = set()
        receiving = set()
        frames = {}
        for link in links.list_links(self._netlink).values():
            end = self._at.get(link.index)
            if end is None:
                continue
            held = link.alias == links.HELD_DARK
            frames[end] = link.rx_packets
            if link.up or held:
                up.add(end)
            # An interface that is held down does not show whether it could receive.
            if link.carrier or held:
                receiving.add(end)
        return PluggedFibres(frozenset(up), frozenset(receiving), frames)

    def lead(self, changes: Mapping[Endpoint, Sequence[Endpoint]]) -> None:
        darken: list[Request] = []
        light: list[Request] = []
        for end, to in changes.items():
            if before := self._leads.pop(end, 0):
                darken += links.undirect(str(end), self._index[end], before)
            if to:
                self._leads[end] = len(to)
                outs = [self._index[out] for out in to]
                light += links.redirect(str(end), self._index[end], outs)
        self._netlink.run(darken)
        self._netlink.run(light)

    def hold_dark(
        self, dark: Iterable[Endpoint], lit: Iterable[Endpoint]
    ) -> None:
        requests = []
        for ends, alias in ((dark, links.HELD_DARK), (lit, "")):
            for end in ends:
                index = self._index[end]
                name = self._name[end]
                requests += [
                    links.set_alias(index, alias),
                    links.set_up(index, name, up=not alias),
                ]
        self._netlink.run(requests)


class LightRequests:
    """Answers JSON lines: ``tune`` (a port; ``channel``, ``null`` for off; ``wait`` until it is
    tuned), ``circuits`` and ``spectrum`` (a switch; ``lit``: all that it passes), ``arriving``,
    ``look``."""

    def __init__(self, light: EmulatedLight) -> None:
        self._light = light

    async def listen(self, path: Path) -> asyncio.Server:
        """Listen there, replacing a dead process's socket."""
        serve = partial(answer_lines, answer=self._answer)
        return await asyncio.start_unix_server(
            serve, sock=bind_unix(path, "emulated light")
        )

    def watch(self, changes: socket.socket) -> None:
        """Check the fibres whenever this socket is readable."""

        def changed() -> None:
            # Nothing left to read, or too many changes for the socket's buffer.
            with suppress(OSError):
                while changes.recv(_READ_BYTES):
                    pass
            self._light.fibres_changed()

        asyncio.get_running_loop().add_reader(changes, changed)

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise BadInput("expected a JSON object")
            return {"ok": True, **await self._take(request)}
        except PatchlightError as error:
            return {"ok": False, "error": error.message, "hint": error.hint}
        except (ValueError, TypeError, KeyError) as error:
            return {
                "ok": False,
                "error": f"expected another request: {error!r}",
            }

    async def _take(self, request: Mapping[str, Any]) -> dict[str, Any]:
        light = self._light
        match request:
            case {"tune": str(port), "channel": None}:
                light.tune(Endpoint.parse(port), None)
            case {"tune": str(port), "channel": str(channel)}:
                await self._tune(
                    Endpoint.parse(port), Channel.parse(channel), request
                )
            case {"circuits": str(switch), "lit": list(lit)}:
                light.set_circuits(switch, PortMap.parse(lit))
            case {"spectrum": str(switch), "lit": list(lit)}:
                light.set_spectrum(switch, SpectrumMap.parse(lit))
            case {"arriving": str(device)}:
                return {"arriving": light.arriving(device)}
            case {"look": True}:
                return {"transceivers": light.transceivers(), **light.losses()}
            case _:
                raise BadInput(
                    "expected tune, circuits, spectrum, arriving or look"
                )
        return {}

    async def _tune(
        self,
        port: Endpoint,
        channel: Channel,
        request: Mapping[str, Any],
    ) -> None:
        self._light.tune(port, channel)
        while request.get("wait"):
            laser = self._light.lasers[port]
            if laser.channel != channel or not laser.on:
                raise BadInput(
                    f"{port} was tuned by another request while it was tuned to {channel}"
                )
            if laser.tuned_at is None:
                return
            await asyncio.sleep(
                max(laser.tuned_at - asyncio.get_running_loop().time(), 0.0)
            )


if __name__ == "__main__":
    sys.exit(main())
