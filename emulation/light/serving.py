"""Runs the light of one lab: takes requests on a Unix socket, and watches the fibres."""

import asyncio
import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from patchlight.emulation.json_lines import answer_lines
from patchlight.emulation.light.emulated_light import EmulatedLight
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.model import Endpoint
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.spectrum import Channel, SpectrumMap
from patchlight.testbed.linux.sockets import bind_unix

_READ_BYTES = 1 << 16


class LightRequests:
    """Takes one JSON object a line and answers each with one, in order on each connection.

    ``tune`` (a port; ``channel``, ``null`` for dark; ``wait`` until it is tuned), ``circuits``
    and ``spectrum`` (a switch; ``lit``: all that it lets through now), ``arriving`` (a device),
    ``look``.
    """

    def __init__(self, light: EmulatedLight) -> None:
        self._light = light

    async def listen(self, path: Path) -> asyncio.Server:
        """Take requests there, in place of one that has ended."""
        return await asyncio.start_unix_server(self._serve, sock=bind_unix(path, "emulated light"))

    def watch(self, changes: socket.socket) -> None:
        """Look at the fibres whenever this socket can be read from."""

        def changed() -> None:
            try:
                while changes.recv(_READ_BYTES):
                    pass
            except BlockingIOError:
                pass
            except OSError:
                # Too many at once for the socket: all fibres are looked at in any case.
                pass
            self._light.fibres_changed()

        asyncio.get_running_loop().add_reader(changes, changed)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer_lines(reader, writer, self._answer)

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise BadInput("expected a JSON object")
            return {"ok": True, **await self._take(request)}
        except PatchlightError as error:
            return {"ok": False, "error": error.message, "hint": error.hint}
        except (ValueError, TypeError, KeyError) as error:
            return {"ok": False, "error": f"expected another request: {error!r}"}

    async def _take(self, request: Mapping[str, Any]) -> dict[str, Any]:
        light = self._light
        match request:
            case {"tune": str(port), "channel": None}:
                light.tune(Endpoint.parse(port), None)
            case {"tune": str(port), "channel": str(channel)}:
                await self._tune(Endpoint.parse(port), Channel.parse(channel), request)
            case {"circuits": str(switch), "lit": list(lit)}:
                light.set_circuits(switch, PortMap.parse(lit))
            case {"spectrum": str(switch), "lit": list(lit)}:
                light.set_spectrum(switch, SpectrumMap.parse(lit))
            case {"arriving": str(device)}:
                return {"arriving": light.arriving(device)}
            case {"look": True}:
                return {"transceivers": light.transceivers(), **light.losses()}
            case _:
                raise BadInput("expected tune, circuits, spectrum, arriving or look")
        return {}

    async def _tune(self, port: Endpoint, channel: Channel, request: Mapping[str, Any]) -> None:
        self._light.tune(port, channel)
        while request.get("wait"):
            laser = self._light.lasers[port]
            if laser.channel != channel or not laser.on:
                raise BadInput(f"{port} was tuned elsewhere while it was tuned to {channel}")
            if laser.tuned_at is None:
                return
            await asyncio.sleep(max(laser.tuned_at - asyncio.get_running_loop().time(), 0.0))
