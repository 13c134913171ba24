"""What carries the light of an emulated optical switch: the kernel, the lab's light, or nothing.

A ``Crossbar`` is that of an OCS, a ``ChannelCrossbar`` that of a wavelength switch. In a lab whose
light is followed by wavelength, they only tell the lab's emulated light, which knows all devices.

In the OCS's namespace port n is the interface ``p<n>``. A cross-connect ``i>o`` is a filter
on the ingress of ``p<i>`` that sends every frame out of ``p<o>``: any protocol, no learning,
no TTL. An input without one is dark: its frames end there.
"""

import asyncio
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

from patchlight.emulation.fabric import links
from patchlight.emulation.optical.switch_matrix import LightChange
from patchlight.testbed.lab.model import CircuitSwitch, Endpoint, Lab
from patchlight.testbed.lab.optical_links import launch_power_dbm
from patchlight.testbed.lab.portmap import CrossConnect, PortMap
from patchlight.testbed.lab.spectrum import Channel, SpectrumMap
from patchlight.testbed.lab.tuning import LightClient
from patchlight.testbed.lab.wavelengths import PassivePart, WavelengthSwitch
from patchlight.testbed.linux import namespaces
from patchlight.testbed.linux.netlink import F_DUMP, Netlink, Request, attribute, attributes

_OCS_LAUNCH_DBM = 0.0


def arriving_dbm(lab: Lab, switch: CircuitSwitch) -> dict[int, float]:
    """Power in dBm at each plugged input of ``switch`` while its transmitter is on.

    Behind another OCS, wavelength switch or passive part the light depends on what that lets
    through, which this one cannot see: it is counted as 0 dBm less one insertion loss.
    """
    return {
        int(end.port): _launch_dbm(lab, other) - fibre.loss_db
        for end, (other, fibre) in lab.fibre_ends.items()
        if end.device == switch.name and end.port.isdigit()
    }


def _launch_dbm(lab: Lab, source: Endpoint) -> float:
    """What the transmitter (or output of another device) at ``source`` sends, in dBm."""
    device = lab.device(source.device)
    if isinstance(device, CircuitSwitch | WavelengthSwitch):
        return _OCS_LAUNCH_DBM - device.insertion_loss_db
    if isinstance(device, PassivePart):
        return _OCS_LAUNCH_DBM - device.loss_db
    return launch_power_dbm(lab, source)


Ts = TypeVarTuple("Ts")
T = TypeVar("T")


class Crossbar:
    """Carries light between ports. Calls come one at a time."""

    async def open(self) -> None:
        """Begin, with every port dark."""

    async def close(self) -> None:
        """Let go; what is lit stays lit."""

    async def change(self, change: LightChange) -> None:
        """Make inputs dark, then light paths; done when it returns."""

    async def receiving(self, ports: Iterable[int]) -> frozenset[int]:
        """Those of these ports whose transmitter is on."""
        raise NotImplementedError


class NoCrossbar(Crossbar):
    """Carries nothing: for a device without a fabric. Every transmitter is on but ``off``."""

    def __init__(self) -> None:
        self.off: set[int] = set()

    async def receiving(self, ports: Iterable[int]) -> frozenset[int]:
        """All that are not ``off``."""
        return frozenset(ports) - self.off


_NEWLINK, _GETLINK = 16, 18
_LINK_MESSAGE = struct.Struct("=BxHiII")
_INTERFACE_NAME, _EXT_MASK, _SKIP_STATS = 3, 29, 1 << 3
_LOWER_UP = 0x10000
_PORT_NAME = re.compile(r"p([1-9]\d{0,5})")


class KernelCrossbar(Crossbar):
    """Redirects between the interfaces of one namespace, set by netlink (needs root).

    Ports without an interface have nothing plugged in: their cross-connects carry nothing.
    """

    def __init__(self, namespace: Path) -> None:
        self._namespace = namespace
        # One thread: it keeps the order of changes, and enters the namespace alone.
        self._thread = ThreadPoolExecutor(1, "crossbar")
        self._netlink: Netlink | None = None
        self._index: dict[int, int] = {}
        self._redirected: set[int] = set()

    async def open(self) -> None:
        """Find the ports and make them all dark, whatever an earlier process left."""
        await self._do(self._open)

    async def close(self) -> None:
        """Close the socket; the redirects stay until the namespace goes."""
        await self._do(self._close)
        self._thread.shutdown(wait=False)

    async def change(self, change: LightChange) -> None:
        """See ``Crossbar``. Raises ``KernelRefused``."""
        await self._do(self._change, change)

    async def receiving(self, ports: Iterable[int]) -> frozenset[int]:
        """Those whose interface has carrier: the interface at the fibre's other end is up."""
        return await self._do(self._receiving) & frozenset(ports)

    async def _do(self, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, function, *arguments)

    def _open(self) -> None:
        with namespaces.entered(self._namespace):
            # A dark port must be silent: no router solicitations of the kernel's own.
            for which in ("all", "default"):
                namespaces.set_sysctl(f"ipv6/conf/{which}/disable_ipv6", 1)
        self._netlink = Netlink(self._namespace)
        for index, _, answer in self._links():
            names = (value for kind, value in attributes(answer) if kind == _INTERFACE_NAME)
            if match := _PORT_NAME.fullmatch(next(names, b"").rstrip(b"\0").decode()):
                self._index[int(match[1])] = index
        ours = set(self._index.values())
        left = [index for index in links.with_ingress(self._netlink) if index in ours]
        self._netlink.run([links.remove_ingress(index) for index in left])
        self._netlink.run([links.add_ingress(index) for index in sorted(ours)])
        self._redirected.clear()

    def _close(self) -> None:
        if self._netlink is not None:
            self._netlink.close()
            self._netlink = None

    def _change(self, change: LightChange) -> None:
        assert self._netlink is not None
        dark = [inp for inp in change.dark if inp in self._redirected]
        self._netlink.run(
            [r for inp in dark for r in links.undirect(f"in:{inp}", self._index[inp])]
        )
        self._redirected.difference_update(dark)
        requests = []
        for c in change.light:
            if c.inp in self._index and c.out in self._index:
                requests += links.redirect(str(c), self._index[c.inp], [self._index[c.out]])
                self._redirected.add(c.inp)
        self._netlink.run(requests)

    def _receiving(self) -> frozenset[int]:
        up = {index for index, flags, _ in self._links() if flags & _LOWER_UP}
        return frozenset(port for port, index in self._index.items() if index in up)

    def _links(self) -> list[tuple[int, int, bytes]]:
        """Index, flags and attributes of each interface."""
        assert self._netlink is not None
        mask = attribute(_EXT_MASK, struct.pack("=I", _SKIP_STATS))
        body = _LINK_MESSAGE.pack(0, 0, 0, 0, 0) + mask
        links = []
        for kind, answer in self._netlink.ask(Request(_GETLINK, F_DUMP, body, "listing ports")):
            if kind == _NEWLINK:
                _, _, index, flags, _ = _LINK_MESSAGE.unpack_from(answer)
                links.append((index, flags, answer[_LINK_MESSAGE.size :]))
        return links


Arriving = Mapping[int, Mapping[Channel, float]]
"""Power in dBm of each channel that arrives at an input, by its number."""


class ChannelCrossbar:
    """Carries channels between ports. Calls come one at a time."""

    async def open(self) -> None:
        """Begin, with every port dark."""

    async def close(self) -> None:
        """Let go; what is lit stays lit."""

    async def change(self, lit: SpectrumMap) -> None:
        """From now on let through this and nothing else; done when it returns.

        Called with the whole map whenever any of it goes dark or lights up, and only then. What
        moves, or is not up yet, is not in it.
        """

    async def arriving(self) -> Arriving:
        """The light at the inputs now."""
        raise NotImplementedError


class NoChannelCrossbar(ChannelCrossbar):
    """Carries nothing: for a device without a fabric. The light at its inputs is what is said."""

    def __init__(self, arriving: Arriving) -> None:
        self.light = {inp: dict(channels) for inp, channels in arriving.items()}

    async def arriving(self) -> Arriving:
        """What was said."""
        return self.light


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
