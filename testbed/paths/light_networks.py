"""Finds a lab's networks of optical paths: which hosts reach which on which channel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Host, Lab
from patchlight.testbed.lab.optical_links import Light
from patchlight.testbed.lab.portmap import AnyMap
from patchlight.testbed.lab.spectrum import Channel
from patchlight.testbed.lab.wavelengths import Transceiver
from patchlight.testbed.lab.wiring import circuits_of, spectra_of
from patchlight.testbed.paths.scheduling import NO_CHANNEL, PathNetwork

_MOST_CHANNELS = 400
_Reach = Mapping[Channel, Mapping[int, frozenset[int]]]
"""Receiving hosts by channel and sending host."""


@dataclass(frozen=True)
class LightNetwork:
    """Hosts with tunable transceivers whose signals reach each other, and no others.

    Node *i* of ``paths`` is host *i*, its channel *k* is ``channels[k]``.
    """

    hosts: tuple[str, ...]
    channels: tuple[Channel, ...]
    paths: PathNetwork

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """The node of each host."""
        return {host: number for number, host in enumerate(self.hosts)}

    def same(self, other: LightNetwork) -> bool:
        """Whether the same hosts have the same channels to each other."""
        if (self.hosts, self.channels) != (other.hosts, other.channels):
            return False
        mine = self.paths.routes
        theirs = other.paths.routes
        if mine is None or theirs is None:
            return mine is theirs
        return np.array_equal(mine, theirs)


def light_networks(lab: Lab, maps: Mapping[str, AnyMap]) -> list[LightNetwork]:
    """A lab's networks under these maps, each of at least two hosts, by their first host.

    Without a map of any wavelength switch they are as in the lab file. If a channel reaches all
    others, as through a coupler, one sender may use it at a time. If it reaches one other, the
    channel determines the destination. Other hosts are in no network.
    """
    hosts = [host for host in lab.hosts if _tunable(host) is not None]
    reach = _reach(lab, hosts, maps)
    groups = _groups(len(hosts), reach)
    found = [
        _network(hosts, members, reach)
        for members in groups
        if len(members) > 1
    ]
    return sorted(
        (each for each in found if each), key=lambda network: network.hosts
    )


def _tunable(host: Host) -> Transceiver | None:
    own = host.nic.transceiver
    return own if own is not None and own.tunable is not None else None


def channels_of(transceiver: Transceiver) -> Iterator[Channel]:
    """The channels that a transceiver can send; on a flexible grid, those 50 GHz apart."""
    band = transceiver.tunable
    if band is None:
        yield transceiver.channel
        return
    spacing_ghz = transceiver.grid.spacing_ghz or 50.0
    apart = int(spacing_ghz / 6.25)
    for steps in range(band.first.steps, band.last.steps + 1, apart):
        channel = band.first._replace(steps=steps)
        try:
            transceiver.check(channel)
        except BadInput:
            continue
        yield channel


def _reach(
    lab: Lab,
    hosts: list[Host],
    maps: Mapping[str, AnyMap],
) -> _Reach:
    able: defaultdict[Channel, list[int]] = defaultdict(list)
    for number, host in enumerate(hosts):
        own = _tunable(host)
        assert own is not None
        for channel in channels_of(own):
            able[channel].append(number)
    if len(able) > _MOST_CHANNELS:
        raise BadInput(
            f"the transceivers of {lab.name} have {len(able)} channels in total: expected "
            f"{_MOST_CHANNELS} at most"
        )
    numbers = {host.endpoint: number for number, host in enumerate(hosts)}
    reach: dict[Channel, dict[int, frozenset[int]]] = {}
    for channel, senders in sorted(able.items()):
        sent = {hosts[number].endpoint: channel for number in senders}
        alone = Light(
            lab,
            circuits_of(maps),
            spectra_of(maps) or None,
            sent,
        ).alone
        reach[channel] = {
            number: frozenset(
                numbers[path.sink]
                for path in alone.get(hosts[number].endpoint, ())
                if path.sink in numbers and path.sink != path.source
            )
            for number in senders
        }
    return reach


def _groups(count: int, reach: _Reach) -> list[list[int]]:
    group = {number: {number} for number in range(count)}
    for senders in reach.values():
        for sender, receivers in senders.items():
            for receiver in receivers - group[sender]:
                if receiver not in group[sender]:
                    group[sender] |= group[receiver]
                    group.update(dict.fromkeys(group[receiver], group[sender]))
    return [
        sorted(members)
        for first, members in group.items()
        if first == min(members)
    ]


def _network(
    hosts: list[Host],
    members: list[int],
    reach: _Reach,
) -> LightNetwork | None:
    everybody = frozenset(members)
    lit = {
        c: {s: r for s, r in by.items() if s in everybody and r}
        for c, by in reach.items()
    }
    lit = {channel: by for channel, by in lit.items() if by}
    shared = [
        c
        for c, by in lit.items()
        if all(by.get(m) == everybody - {m} for m in members)
    ]
    routes = None
    if shared and len(members) > 2:
        channels = tuple(shared)
    elif all(
        len(receivers) == 1 for by in lit.values() for receivers in by.values()
    ):
        channels = tuple(sorted(lit))
        place = {number: at for at, number in enumerate(members)}
        routes = np.full((len(members), len(members)), NO_CHANNEL, np.int64)
        for at, channel in reversed(list(enumerate(channels))):
            for sender, (receiver,) in (
                (s, tuple(r)) for s, r in lit[channel].items()
            ):
                routes[place[sender], place[receiver]] = at
    else:
        return None
    own = [
        transceiver
        for m in members
        if (transceiver := _tunable(hosts[m])) is not None
    ]
    paths = PathNetwork(
        len(members),
        len(channels),
        rate_bps=min(float(hosts[m].nic.rate_bps or "inf") for m in members),
        tuning_s=max(each.tuning_time_s for each in own),
        routes=routes,
    )
    return LightNetwork(tuple(hosts[m].name for m in members), channels, paths)
