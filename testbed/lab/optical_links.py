"""Traces signals channel by channel: where each goes, and where signals collide."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from patchlight.testbed.lab.model import (
    CircuitSwitch,
    Endpoint,
    Fibre,
    Lab,
    PacketSwitch,
    Server,
)
from patchlight.testbed.lab.portmap import CrossConnect, PortMap
from patchlight.testbed.lab.spectrum import (
    Channel,
    ChannelConnect,
    SpectrumMap,
)
from patchlight.testbed.lab.wavelengths import (
    PassivePart,
    Transceiver,
    WavelengthSwitch,
)

Hop = tuple[str, CrossConnect]
Entry = CrossConnect | ChannelConnect
"""Entries that pass light, in a map of either kind."""


class LightPath(NamedTuple):
    """One direction of a link: what ``source`` sends arrives at ``sink``.

    ``hops`` are the cross-connects of circuit switches on it; ``through`` has those of other
    devices too, each with the loss so far in ``lost_db``. ``rate_bps`` ``None``: no limit.
    ``channel`` ``None``: the transmitter has no transceiver in the lab file.
    """

    source: Endpoint
    sink: Endpoint
    hops: tuple[Hop, ...]
    rate_bps: int | None
    loss_db: float
    lost_db: tuple[float, ...] = ()
    through: tuple[Hop, ...] = ()
    channel: Channel | None = None


class Signal(NamedTuple):
    """The signal of one transmitter."""

    source: Endpoint
    channel: Channel | None

    def __str__(self) -> str:
        return (
            f"{self.source} ({self.channel})"
            if self.channel
            else str(self.source)
        )

    @property
    def edges(self) -> tuple[float, float]:
        """The band that it occupies; without a channel it may be anywhere."""
        return (
            (-math.inf, math.inf)
            if self.channel is None
            else self.channel.edges
        )


class Meeting(NamedTuple):
    """Two signals of one channel that collide on the fibre from ``at``."""

    at: Endpoint
    one: Signal
    other: Signal

    def __str__(self) -> str:
        both = f"{self.one} and {self.other}"
        return f"two signals of one channel meet on the fibre at {self.at}, {both}"


@dataclass
class _Found:
    fibres: list[Endpoint] = field(default_factory=list)
    lost_db: list[float] = field(default_factory=list)
    arrivals: list[tuple[LightPath, tuple[Endpoint, ...]]] = field(
        default_factory=list
    )


class _Ray(NamedTuple):
    at: Endpoint
    fibres: tuple[Endpoint, ...]
    hops: tuple[Hop, ...]
    through: tuple[Hop, ...]
    lost_db: tuple[float, ...]
    loss_db: float
    rate_bps: int | None


class Light:
    """All signals of a lab, with these channels of tunable transmitters, without ``off`` ones."""

    def __init__(
        self,
        lab: Lab,
        maps: Mapping[str, PortMap],
        spectra: Mapping[str, SpectrumMap] | None = None,
        channels: Mapping[Endpoint, Channel] | None = None,
        off: Collection[Endpoint] = (),
    ) -> None:
        self._lab = lab
        self._out_of = {
            name: port_map.out_of for name, port_map in maps.items()
        }
        initial = {
            switch.name: switch.initial for switch in lab.wavelength_switches
        }
        self._spectra = initial if spectra is None else spectra
        self._channels = channels or {}
        self._off = off
        self._followed: dict[Signal, _Found] = {}

    def retuned(
        self, channels: Mapping[Endpoint, Channel], off: Collection[Endpoint]
    ) -> Light:
        """The signals with other channels and transmitters off; the rest is not traced again."""
        light = Light(
            self._lab,
            {},
            self._spectra,
            channels,
            off,
        )
        light._out_of = self._out_of
        light._followed = self._followed
        return light

    @cached_property
    def signals(self) -> tuple[Signal, ...]:
        """What each NIC and packet-switch port with a fibre sends."""
        ends = self._lab.fibre_ends
        return tuple(
            Signal(end, self._channel(end))
            for end in ends
            if is_end(self._lab, end.device) and end not in self._off
        )

    def arriving(self, device: str) -> dict[int, dict[Signal, float]]:
        """The signals that enter each port of a device, with their power there in dBm."""
        arriving: dict[int, dict[Signal, float]] = {}
        for signal, found in self._found.items():
            for end, lost_db in zip(found.fibres, found.lost_db, strict=True):
                at = self._lab.fibre_ends[end][0]
                if at.device == device:
                    power_dbm = (
                        launch_power_dbm(self._lab, signal.source) - lost_db
                    )
                    arriving.setdefault(int(at.port), {})[signal] = power_dbm
        return arriving

    @cached_property
    def meetings(self) -> tuple[Meeting, ...]:
        """Where signals of one channel collide: each pair once, at the first place."""
        first: dict[tuple[Signal, Signal], Meeting] = {}
        for found in self._found.values():
            for fibre in found.fibres:
                for one, other in self._meeting_at.get(fibre, ()):
                    first.setdefault((one, other), Meeting(fibre, one, other))
        return tuple(first.values())

    @cached_property
    def arrivals(self) -> Mapping[Endpoint, tuple[LightPath, ...]]:
        """By transmitter, the receivers that get its signal undisturbed and strong enough."""
        return {
            signal.source: tuple(
                path
                for path, fibres in found.arrivals
                if self._destroyed_at(signal, fibres) is None
                and not self._too_weak(path)
            )
            for signal, found in self._found.items()
        }

    @cached_property
    def destroyed(self) -> Mapping[Endpoint, tuple[Endpoint, ...]]:
        """By transmitter, the fibres (by sending end) on which its signal is lost."""
        met = {
            signal.source: dict.fromkeys(
                self._destroyed_at(signal, fibres)
                for _, fibres in found.arrivals
            )
            for signal, found in self._found.items()
        }
        return {
            source: tuple(at for at in ends if at is not None)
            for source, ends in met.items()
        }

    def _destroyed_at(
        self, signal: Signal, fibres: tuple[Endpoint, ...]
    ) -> Endpoint | None:
        return next(
            (at for at in fibres if signal in self._lost.get(at, ())), None
        )

    @cached_property
    def _lost(self) -> Mapping[Endpoint, set[Signal]]:
        return {
            fibre: {signal for pair in pairs for signal in pair}
            for fibre, pairs in self._meeting_at.items()
        }

    @cached_property
    def signals_on(self) -> Mapping[Endpoint, list[Signal]]:
        """The signals on each fibre, by its sending end."""
        by_fibre: dict[Endpoint, list[Signal]] = {}
        for signal, found in self._found.items():
            for fibre in found.fibres:
                by_fibre.setdefault(fibre, []).append(signal)
        return by_fibre

    @cached_property
    def _meeting_at(self) -> Mapping[Endpoint, list[tuple[Signal, Signal]]]:
        """By the sending end of a fibre, its signals that disturb each other."""
        meeting = {
            fibre: list(_overlapping(signals))
            for fibre, signals in self.signals_on.items()
        }
        return {fibre: pairs for fibre, pairs in meeting.items() if pairs}

    @property
    def alone(self) -> Mapping[Endpoint, tuple[LightPath, ...]]:
        """By transmitter, the receivers that would get its signal if no other sent."""
        return {
            signal.source: tuple(
                path for path, _ in found.arrivals if not self._too_weak(path)
            )
            for signal, found in self._found.items()
        }

    @property
    def weak(self) -> Iterator[tuple[LightPath, float]]:
        """Paths too weak for their receiver, with the power there in dBm."""
        for found in self._found.values():
            for path, _ in found.arrivals:
                if self._too_weak(path):
                    yield path, self._power_dbm(path)

    def path(self, source: Endpoint) -> LightPath | None:
        """The path that begins there; of several, that to the receiver whose turn it is."""
        paths = self.arrivals.get(source, ())
        if len(paths) > 1:
            paths = tuple(
                p
                for p in paths
                if any(b.sink == source for b in self.arrivals.get(p.sink, ()))
            )
        return paths[0] if len(paths) == 1 else None

    def passed(
        self, path: LightPath
    ) -> Iterator[tuple[tuple[str, Entry], float]]:
        """The entries of maps that pass this path, by switch, and the loss until there."""
        for (name, ports), lost_db in zip(
            path.through, path.lost_db, strict=True
        ):
            if name in self._out_of:
                yield (name, ports), lost_db
            elif name in self._spectra and path.channel is not None:
                way = self._spectra[name].way_of(ports.inp, path.channel)
                if way is not None:
                    yield (name, way), lost_db

    @cached_property
    def _found(self) -> dict[Signal, _Found]:
        for signal in self.signals:
            if signal not in self._followed:
                self._followed[signal] = self._follow(signal)
        return {signal: self._followed[signal] for signal in self.signals}

    def _channel(self, end: Endpoint) -> Channel | None:
        own = transceiver_of(self._lab, end)
        return None if own is None else self._channels.get(end, own.channel)

    def _power_dbm(self, path: LightPath) -> float:
        return launch_power_dbm(self._lab, path.source) - path.loss_db

    def _too_weak(self, path: LightPath) -> bool:
        receiver = transceiver_of(self._lab, path.sink)
        if receiver is None or receiver.sensitivity_dbm is None:
            return False
        return self._power_dbm(path) < receiver.sensitivity_dbm

    def _follow(self, signal: Signal) -> _Found:
        found = _Found()
        seen = set[Endpoint]()
        first, fibre = self._lab.fibre_ends[signal.source]
        rays = deque(
            [
                _Ray(
                    first,
                    (signal.source,),
                    (),
                    (),
                    (),
                    fibre.loss_db,
                    fibre.rate_bps,
                )
            ]
        )
        found.fibres.append(signal.source)
        found.lost_db.append(fibre.loss_db)
        while rays:
            ray = rays.popleft()
            # Loops and parallel branches to one place are traced once.
            if ray.at in seen:
                continue
            seen.add(ray.at)
            if is_end(self._lab, ray.at.device):
                path = LightPath(
                    signal.source,
                    ray.at,
                    ray.hops,
                    ray.rate_bps,
                    ray.loss_db,
                    ray.lost_db,
                    ray.through,
                    signal.channel,
                )
                found.arrivals.append((path, ray.fibres))
                continue
            for out, loss_db in self._outputs(ray.at, signal.channel):
                left = Endpoint(ray.at.device, str(out))
                if left in self._lab.fibre_ends:
                    rays.append(self._onward(ray, left, loss_db))
                    found.fibres.append(left)
                    found.lost_db.append(rays[-1].loss_db)
        return found

    def _onward(
        self,
        ray: _Ray,
        left: Endpoint,
        lost_db: float,
    ) -> _Ray:
        at, fibre = self._lab.fibre_ends[left]
        hop = (left.device, CrossConnect(int(ray.at.port), int(left.port)))
        loss_db = ray.loss_db + lost_db
        is_circuit = left.device in self._lab.circuit_fibres
        return _Ray(
            at,
            (*ray.fibres, left),
            (*ray.hops, hop) if is_circuit else ray.hops,
            (*ray.through, hop),
            (*ray.lost_db, loss_db),
            loss_db + fibre.loss_db,
            _slower(ray.rate_bps, fibre),
        )

    def _outputs(
        self, at: Endpoint, channel: Channel | None
    ) -> Iterator[tuple[int, float]]:
        """Where a signal that enters there leaves its device, and the loss inside."""
        device = self._lab.device(at.device)
        inp = int(at.port)
        match device:
            case CircuitSwitch():
                out = self._out_of.get(device.name, {}).get(inp)
                if out is not None:
                    yield out, device.insertion_loss_db
            case WavelengthSwitch():
                ways = self._spectra.get(device.name, SpectrumMap())
                way = None if channel is None else ways.way_of(inp, channel)
                if way is not None:
                    yield (
                        way.out,
                        device.insertion_loss_db + way.attenuation_db,
                    )
            case PassivePart():
                yield from (
                    (out, device.loss_db)
                    for out in device.outputs_of(inp, channel)
                )


def transceiver_of(lab: Lab, end: Endpoint) -> Transceiver | None:
    """The transceiver of a NIC or packet-switch port, if the lab has one there."""
    device = lab.device(end.device)
    if isinstance(device, Server):
        return next(
            (nic.transceiver for nic in device.nics if nic.name == end.port),
            None,
        )
    if isinstance(device, PacketSwitch):
        return next(
            (
                one
                for port, one in device.transceivers
                if str(port) == end.port
            ),
            None,
        )
    return None


def launch_power_dbm(lab: Lab, source: Endpoint) -> float:
    """The power of the transmitter at ``source``, a NIC or a packet-switch port."""
    own = transceiver_of(lab, source)
    device = lab.device(source.device)
    if own is not None and own.launch_power_dbm is not None:
        return own.launch_power_dbm
    if isinstance(device, Server):
        return next(
            nic.launch_power_dbm
            for nic in device.nics
            if nic.name == source.port
        )
    assert isinstance(device, PacketSwitch)
    return device.launch_power_dbm


def _slower(rate_bps: int | None, fibre: Fibre) -> int | None:
    if fibre.rate_bps is None or rate_bps is None:
        return rate_bps if fibre.rate_bps is None else fibre.rate_bps
    return min(rate_bps, fibre.rate_bps)


def is_end(lab: Lab, name: str) -> bool:
    """Whether paths begin and end at this device: all others forward them."""
    return isinstance(lab.device(name), Server | PacketSwitch)


def _overlapping(signals: list[Signal]) -> Iterator[tuple[Signal, Signal]]:
    """All pairs that share a frequency, in the order given. O(n log n + pairs)."""
    place = {signal: n for n, signal in enumerate(signals)}
    begun: list[Signal] = []
    for signal in sorted(signals, key=lambda signal: signal.edges):
        begun = [other for other in begun if other.edges[1] > signal.edges[0]]
        for other in begun:
            yield (
                (other, signal)
                if place[other] < place[signal]
                else (signal, other)
            )
        begun.append(signal)
