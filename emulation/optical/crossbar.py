"""Connects ports of an emulated optical switch: in the kernel, by the lab's light, or not.

A ``Crossbar`` belongs to an OCS, a ``ChannelCrossbar`` to a wavelength switch. In a lab with
wavelengths they only inform the lab's light process, which knows all devices.

In the OCS's namespace port n is the interface ``p<n>``. A cross-connect ``i>o`` is a filter on the
ingress of ``p<i>`` that sends every frame out of ``p<o>``: any protocol, no learning, no TTL.
Frames of an input without a cross-connect are dropped.
"""

import asyncio
import functools
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from patchlight.emulation.fabric import links
from patchlight.emulation.optical.matrices import LightChange
from patchlight.testbed.lab.model import CircuitSwitch, Lab
from patchlight.testbed.lab.optical_links import Light, launch_power_dbm
from patchlight.testbed.lab.portmap import CrossConnect, PortMap
from patchlight.testbed.lab.spectrum import Channel, SpectrumMap
from patchlight.testbed.lab.tuning import LightClient
from patchlight.testbed.lab.wavelengths import PassivePart, WavelengthSwitch
from patchlight.testbed.linux import namespaces
from patchlight.testbed.linux.netlink import Netlink

P = ParamSpec("P")
T = TypeVar("T")


def arriving_dbm(lab: Lab, switch: CircuitSwitch) -> dict[int, float]:
    """Power in dBm at each plugged input of ``switch`` while its transmitter is on.

    Behind another optical device it depends on that device's map. It is the power with the maps in
    the lab file; where these bring no signal, 0 dBm minus one insertion loss is assumed.
    """
    at_first = Light(lab, lab.initial_maps).arriving(switch.name)
    arriving = {}
    for end, (source, fibre) in lab.fibre_ends.items():
        if end.device == switch.name and end.port.isdigit():
            match lab.device(source.device):
                case (
                    CircuitSwitch(insertion_loss_db=db)
                    | WavelengthSwitch(insertion_loss_db=db)
                ):
                    sent_dbm = 0.0 - db
                case PassivePart(loss_db=db):
                    sent_dbm = 0.0 - db
                case _:
                    sent_dbm = launch_power_dbm(lab, source)
            signals = at_first.get(int(end.port), {}).values()
            arriving[int(end.port)] = max(
                signals, default=sent_dbm - fibre.loss_db
            )
    return arriving


class Carrier:
    """What both kinds do. Calls come one at a time."""

    async def open(self) -> None:
        """Start, with every port disconnected."""

    async def close(self) -> None:
        """Release resources; connections stay."""


class Crossbar(Carrier):
    """Connects ports."""

    async def change(self, change: LightChange) -> None:
        """Disconnect inputs, then connect paths; done when it returns."""

    async def receiving(self, ports: Iterable[int]) -> frozenset[int]:
        """Those of these ports whose transmitter is on."""
        raise NotImplementedError


class NoCrossbar(Crossbar):
    """Carries nothing: for a device without a fabric. Every transmitter is on except ``off``."""

    def __init__(self) -> None:
        self.off: set[int] = set()

    async def receiving(self, ports: Iterable[int]) -> frozenset[int]:
        """All except ``off``."""
        return frozenset(ports) - self.off


def _in_thread(
    method: Callable[Concatenate["KernelCrossbar", P], T],
) -> Callable[Concatenate["KernelCrossbar", P], Coroutine[Any, Any, T]]:
    @functools.wraps(method)
    async def run(
        self: "KernelCrossbar", /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        call = functools.partial(
            method,
            self,
            *args,
            **kwargs,
        )
        return await asyncio.get_running_loop().run_in_executor(
            self.thread, call
        )

    return run


class KernelCrossbar(Crossbar):
    """Redirects between the interfaces of one namespace, set by netlink (needs root).

    Ports without an interface have no fibre; their cross-connects have no effect.
    """

    def __init__(self, namespace: Path) -> None:
        self._namespace = namespace
        # A single thread keeps the order of changes and is in the namespace.
        self.thread = ThreadPoolExecutor(1, "crossbar")
        self._netlink: Netlink | None = None
        self._index: dict[int, int] = {}
        self._redirected: set[int] = set()

    @_in_thread
    def open(self) -> None:
        """Find the ports and disconnect them all, including those of an earlier process."""
        with namespaces.entered(self._namespace):
            # A disconnected port must be silent: no router solicitations of the kernel.
            for which in ("all", "default"):
                namespaces.set_sysctl(f"ipv6/conf/{which}/disable_ipv6", 1)
        self._netlink = Netlink(self._namespace)
        for link in links.list_links(self._netlink).values():
            if match := re.fullmatch(r"p([1-9]\d{0,5})", link.name):
                self._index[int(match[1])] = link.index
        links.ready_ingress(self._netlink, set(self._index.values()))
        self._redirected.clear()

    async def close(self) -> None:
        """Close the socket; redirects stay until the namespace is deleted."""
        await asyncio.to_thread(self.thread.shutdown)
        if self._netlink is not None:
            self._netlink.close()

    @_in_thread
    def change(self, change: LightChange) -> None:
        """See ``Crossbar``. Raises ``KernelRefused``."""
        assert self._netlink is not None
        dark = [inp for inp in change.dark if inp in self._redirected]
        self._netlink.run(
            [
                r
                for inp in dark
                for r in links.undirect(f"in:{inp}", self._index[inp])
            ]
        )
        self._redirected.difference_update(dark)
        requests = []
        for c in change.light:
            if c.inp in self._index and c.out in self._index:
                requests += links.redirect(
                    str(c), self._index[c.inp], [self._index[c.out]]
                )
                self._redirected.add(c.inp)
        self._netlink.run(requests)

    @_in_thread
    def receiving(self, ports: Iterable[int]) -> frozenset[int]:
        """Those whose interface has a carrier: the fibre's other end is up."""
        assert self._netlink is not None
        up = {
            link.index
            for link in links.list_links(self._netlink).values()
            if link.carrier
        }
        return frozenset(port for port in ports if self._index.get(port) in up)


Arriving = Mapping[int, Mapping[Channel, float]]
"""Power in dBm of each channel that arrives at an input, by its number."""


class ChannelCrossbar(Carrier):
    """Connects channels between ports."""

    async def change(self, lit: SpectrumMap) -> None:
        """Pass exactly these channels; done when it returns.

        Called with the whole map, without switching entries, whenever it changes.
        """

    async def arriving(self) -> Arriving:
        """The power of the channels at the inputs now."""
        raise NotImplementedError


class NoChannelCrossbar(ChannelCrossbar):
    """Carries nothing: for a device without a fabric. The power at its inputs is given."""

    def __init__(self, arriving: Arriving) -> None:
        self.light = {
            inp: dict(channels) for inp, channels in arriving.items()
        }

    async def arriving(self) -> Arriving:
        """The given power."""
        return self.light


class _LabLight:
    """A client of the lab's light process for one switch.

    It waits in a thread, because the process may lag on a busy machine. ``PatchlightError`` if the
    process does not answer.
    """

    def __init__(self, path: Path, switch: str) -> None:
        self._path = path
        self._switch = switch
        self._client: LightClient | None = None

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        def ask() -> dict[str, Any]:
            self._client = self._client or LightClient(self._path)
            return self._client.ask(request)

        return await asyncio.to_thread(ask)

    async def close(self) -> None:
        """Close the connection; paths stay."""
        if self._client is not None:
            self._client.close()


class LightCrossbar(_LabLight, Crossbar):
    """The crossbar of a circuit switch."""

    def __init__(self, path: Path, switch: str) -> None:
        super().__init__(path, switch)
        self._lit: dict[int, CrossConnect] = {}

    async def open(self) -> None:
        """Start, with every port disconnected."""
        self._lit.clear()
        await self._show()

    async def change(self, change: LightChange) -> None:
        """See ``Crossbar``."""
        for inp in change.dark:
            self._lit.pop(inp, None)
        if change.dark:
            await self._show()
        if change.light:
            self._lit |= {c.inp: c for c in change.light}
            await self._show()

    async def receiving(self, ports: Iterable[int]) -> frozenset[int]:
        """Inputs where any signal arrives."""
        answer = await self._ask({"arriving": self._switch})
        return frozenset(map(int, answer["arriving"])) & frozenset(ports)

    async def _show(self) -> None:
        lit = PortMap.of(self._lit.values()).texts
        await self._ask({"circuits": self._switch, "lit": lit})


class LightChannelCrossbar(_LabLight, ChannelCrossbar):
    """The crossbar of a wavelength switch."""

    async def open(self) -> None:
        """Start, with every port disconnected."""
        await self.change(SpectrumMap())

    async def change(self, lit: SpectrumMap) -> None:
        """See ``ChannelCrossbar``."""
        await self._ask({"spectrum": self._switch, "lit": lit.one_way_texts})

    async def arriving(self) -> Arriving:
        """The power of channels at the inputs now; signals without a channel are not included."""
        answer = await self._ask({"arriving": self._switch})
        return {
            int(port): {
                Channel.parse(text): power_dbm
                for text, power_dbm in signals
                if text
            }
            for port, signals in answer["arriving"].items()
        }
