"""What carries the light of a coloured lab: interfaces in one namespace, and redirects between.

Each fibre that a device of light is at has an end there, called as its port: ``wss1-3``. A fibre
between two such devices has both; no frame passes it, but it can be cut. What becomes of a
transmitter's frames in all its way is one redirect.
"""

import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from patchlight.emulation.fabric import links
from patchlight.emulation.fabric.plan import switch_port_name
from patchlight.testbed.lab.model import Endpoint, Lab
from patchlight.testbed.lab.optical_links import is_end
from patchlight.testbed.linux import namespaces
from patchlight.testbed.linux.netlink import Netlink, Request

_LINK_EVENTS = 1  # RTMGRP_LINK


@dataclass(frozen=True, slots=True)
class PluggedFibres:
    """How the fibres are, by the ends that are plugged into devices of light.

    ``up``: not cut there. ``receiving``: light that has been sent can come in. ``frames``: how
    many have come in since the fibre was made.
    """

    up: frozenset[Endpoint]
    receiving: frozenset[Endpoint]
    frames: Mapping[Endpoint, int]


class Fibres(Protocol):
    """Carries frames between ends of fibres. All ends are at devices of light."""

    def plugs(self) -> PluggedFibres:
        """How the fibres are now."""

    def lead(self, changes: Mapping[Endpoint, Sequence[Endpoint]]) -> None:
        """What comes in at each of these leaves at all of those from now on, and nowhere else."""

    def hold_dark(self, dark: Iterable[Endpoint], lit: Iterable[Endpoint]) -> None:
        """Whoever is plugged in at ``dark`` has no carrier; at ``lit`` no longer so."""


class KernelFibres:
    """Interfaces of one namespace (needs root). Raises ``KernelRefused``."""

    def __init__(self, lab: Lab, namespace: Path) -> None:
        self._namespace = namespace
        self._netlink = Netlink(namespace)
        here = links.list_links(self._netlink)
        names = {
            switch_port_name(end.device, end.port): end
            for end in lab.fibre_ends
            if not is_end(lab, end.device)
        }
        self._at = {here[name].index: end for name, end in names.items() if name in here}
        self._index = {end: index for index, end in self._at.items()}
        self._name = {end: name for name, end in names.items()}
        self._leads: dict[Endpoint, int] = {}
        ours = sorted(self._at)
        left = [i for i in links.with_ingress(self._netlink) if i in self._at]
        self._netlink.run([links.remove_ingress(index) for index in left])
        self._netlink.run([links.add_ingress(index) for index in ours])

    def close(self) -> None:
        """Let go; frames go on as they do."""
        self._netlink.close()

    def changes(self) -> socket.socket:
        """A socket that can be read from when a fibre may have changed."""
        with namespaces.entered(self._namespace):
            events = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
        events.setblocking(False)
        events.bind((0, _LINK_EVENTS))
        return events

    def plugs(self) -> PluggedFibres:
        """See ``Fibres``."""
        up, receiving, frames = set(), set(), {}
        for link in links.list_links(self._netlink).values():
            end = self._at.get(link.index)
            if end is None:
                continue
            held = link.alias == links.HELD_DARK
            frames[end] = link.rx_packets
            if link.up or held:
                up.add(end)
            # Whether what is held dark would receive light, nothing tells.
            if link.carrier or held:
                receiving.add(end)
        return PluggedFibres(frozenset(up), frozenset(receiving), frames)

    def lead(self, changes: Mapping[Endpoint, Sequence[Endpoint]]) -> None:
        """See ``Fibres``."""
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

    def hold_dark(self, dark: Iterable[Endpoint], lit: Iterable[Endpoint]) -> None:
        """See ``Fibres``."""
        requests = []
        for ends, alias, change in (
            (dark, links.HELD_DARK, links.set_down),
            (lit, "", links.set_up),
        ):
            for end in ends:
                index = self._index[end]
                requests += [links.set_alias(index, alias), change(index, self._name[end])]
        self._netlink.run(requests)
