"""Crossbars of optical switches in a lab whose light is followed by wavelength: they only tell.

What a switch lets through goes to the lab's emulated light, which knows all devices and fibres.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from patchlight.emulation.optical.channel_crossbar import Arriving, ChannelCrossbar
from patchlight.emulation.optical.crossbar import Crossbar
from patchlight.emulation.optical.switch_matrix import LightChange
from patchlight.testbed.lab.portmap import CrossConnect, PortMap
from patchlight.testbed.lab.spectrum import Channel, SpectrumMap
from patchlight.testbed.lab.tuning import LightClient


class _Light:
    """The emulated light, asked in a thread, as it may be far behind on a busy machine."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._client: LightClient | None = None

    async def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        return await asyncio.to_thread(self._ask, request)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._client is None:
            self._client = LightClient(self._path)
        return self._client.ask(request)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


class LightCrossbar(Crossbar):
    """That of a circuit switch; ``PatchlightError`` if the emulated light does not answer."""

    def __init__(self, path: Path, switch: str) -> None:
        self._light, self._switch = _Light(path), switch
        self._lit: dict[int, CrossConnect] = {}

    async def open(self) -> None:
        """Begin, with every port dark."""
        self._lit.clear()
        await self._tell()

    async def close(self) -> None:
        """Let go; what is lit stays lit."""
        self._light.close()

    async def change(self, change: LightChange) -> None:
        """See ``Crossbar``."""
        for inp in change.dark:
            self._lit.pop(inp, None)
        if change.dark:
            await self._tell()
        if change.light:
            self._lit |= {c.inp: c for c in change.light}
            await self._tell()

    async def receiving(self, ports: Iterable[int]) -> frozenset[int]:
        """Those at whose input any light arrives."""
        answer = await self._light.ask({"arriving": self._switch})
        return frozenset(map(int, answer["arriving"])) & frozenset(ports)

    async def _tell(self) -> None:
        lit = PortMap.of(self._lit.values()).texts
        await self._light.ask({"circuits": self._switch, "lit": lit})


class LightChannelCrossbar(ChannelCrossbar):
    """That of a wavelength switch; raises as ``LightCrossbar``."""

    def __init__(self, path: Path, switch: str) -> None:
        self._light, self._switch = _Light(path), switch

    async def open(self) -> None:
        """Begin, with every port dark."""
        await self.change(SpectrumMap())

    async def close(self) -> None:
        """Let go; what is lit stays lit."""
        self._light.close()

    async def change(self, lit: SpectrumMap) -> None:
        """See ``ChannelCrossbar``."""
        await self._light.ask({"spectrum": self._switch, "lit": lit.one_way_texts})

    async def arriving(self) -> Arriving:
        """The light at the inputs now, as far as it has a channel."""
        answer = await self._light.ask({"arriving": self._switch})
        return {
            int(port): {Channel.parse(text): power_dbm for text, power_dbm in signals if text}
            for port, signals in answer["arriving"].items()
        }
