"""Traces all signals of one lab again at every change of a laser, map or fibre, and updates the
redirects of transmitters whose paths changed."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Endpoint, Fibre, Lab
from patchlight.testbed.lab.optical_links import Light, is_end, transceiver_of
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.spectrum import Channel, SpectrumMap


@dataclass(
    frozen=True,
    slots=True,
)
class Laser:
    """One transmitter: its channel, whether it is on, and until when it is being tuned."""

    channel: Channel
    on: bool = True
    tuned_at: float | None = None

    @property
    def state(self) -> str:
        """``on``, ``off``, or ``tuning`` (then on)."""
        if not self.on:
            return "off"
        return "on" if self.tuned_at is None else "tuning"


class Lasers:
    """All lasers with a transceiver in the lab file and a fibre to an optical device. Time is an
    argument, in seconds that only increase."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._transceivers = {
            end: one
            for end, (other, _) in lab.fibre_ends.items()
            if is_end(lab, end.device) and not is_end(lab, other.device)
            if (one := transceiver_of(lab, end)) is not None
        }
        self._lasers = {
            end: Laser(one.channel) for end, one in self._transceivers.items()
        }

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self._lasers)

    def __getitem__(self, end: Endpoint) -> Laser:
        """The laser at a NIC's or packet switch's port; ``BadInput`` if there is none."""
        if end in self._lasers:
            return self._lasers[end]
        raise BadInput(
            f"lab {self._lab.name} has no transceiver at {end} with a fibre to an optical device",
            hint=f"transceivers: {', '.join(map(str, self._lasers)) or 'none'}",
        )

    def tune(
        self,
        end: Endpoint,
        channel: Channel | None,
        now: float,
    ) -> float:
        """Make a laser send ``channel``, or nothing; returns the time when it does, off until then.
        ``BadInput`` for a channel that it cannot send."""
        laser = self[end]
        if channel is None:
            self._lasers[end] = replace(laser, on=False)
            return now
        transceiver = self._transceivers[end]
        transceiver.check(channel)
        tuned_at = laser.tuned_at
        if channel != laser.channel:
            tuned_at = now + transceiver.tuning_time_s
        self._lasers[end] = Laser(channel, True, tuned_at)
        return now if tuned_at is None else tuned_at

    def come_to(self, now: float) -> None:
        """Advance the time: lasers that have been tuned by then are on."""
        for end, laser in self._lasers.items():
            if laser.tuned_at is not None and laser.tuned_at <= now:
                self._lasers[end] = replace(laser, tuned_at=None)

    def next_due(self) -> float | None:
        """When the next laser is tuned; ``None`` if none is being tuned."""
        return min(
            (
                x.tuned_at
                for x in self._lasers.values()
                if x.tuned_at is not None
            ),
            default=None,
        )

    @property
    def channels(self) -> Mapping[Endpoint, Channel]:
        """The channel of each laser, on or off."""
        return {end: laser.channel for end, laser in self._lasers.items()}

    @property
    def dark(self) -> frozenset[Endpoint]:
        """The lasers that send nothing now."""
        return frozenset(
            end for end, laser in self._lasers.items() if laser.state != "on"
        )

    def band_of(self, end: Endpoint) -> str:
        """The channels that it can be tuned to, as text."""
        transceiver = self._transceivers[end]
        return str(transceiver.tunable or transceiver.channel)


@dataclass(
    frozen=True,
    slots=True,
)
class FrameFate:
    """Where a transmitter's frames go (NICs, packet-switch ports), and on which fibres, by sending
    end, others destroy them."""

    sinks: tuple[Endpoint, ...] = ()
    met: tuple[Endpoint, ...] = ()


@dataclass(
    frozen=True,
    slots=True,
)
class PluggedFibres:
    """The fibres by their ends at optical devices: not cut (``up``), able to receive, and how many
    ``frames`` have entered since creation."""

    up: frozenset[Endpoint]
    receiving: frozenset[Endpoint]
    frames: Mapping[Endpoint, int]


class Fibres(Protocol):
    """Carries frames between ends of fibres at optical devices."""

    def plugs(self) -> PluggedFibres:
        """The present state of the fibres."""

    def lead(self, changes: Mapping[Endpoint, Sequence[Endpoint]]) -> None:
        """Send what enters at each of these ends to all of those, and nowhere else."""

    def hold_dark(
        self, dark: Iterable[Endpoint], lit: Iterable[Endpoint]
    ) -> None:
        """Take the carrier away from what is plugged in at ``dark``, and return it at ``lit``."""


class EmulatedLight:
    """The signals of a lab, carried by ``fibres``. Circuit switches pass nothing until
    ``set_circuits``; wavelength switches start as in the lab file until ``set_spectrum``."""

    def __init__(self, lab: Lab, fibres: Fibres) -> None:
        self._lab = lab
        self._fibres = fibres
        self.lasers = Lasers(lab)
        self._maps: dict[str, PortMap] = {
            c.name: PortMap() for c in lab.circuit_switches
        }
        self._spectra = {
            switch.name: switch.initial for switch in lab.wavelength_switches
        }
        # The other end of its fibre, at an optical device, carries a transmitter's frames.
        self._far = {
            end: far
            for end, (far, _) in lab.fibre_ends.items()
            if is_end(lab, end.device) and not is_end(lab, far.device)
        }
        # Receivers that notice a missing signal.
        self._hears = frozenset(
            end
            for end in self._far
            if (receiver := transceiver_of(lab, end))
            and receiver.sensitivity_dbm is not None
        )
        self._plugs = fibres.plugs()
        self._cut: frozenset[Fibre] = frozenset()
        self._light: Light | None = None
        self._fates: dict[Endpoint, FrameFate] = dict.fromkeys(
            self._far, FrameFate()
        )
        self._held: frozenset[Endpoint] = frozenset()
        self._sent: dict[Endpoint, int] = {}
        self._destroyed: Counter[Endpoint] = Counter()
        self._lost: Counter[Endpoint] = Counter()
        self._tuning: asyncio.TimerHandle | None = None
        self._count()
        self._lost.clear()
        self._follow()

    # --- changes: done when they return ------------------------------------------------------

    def tune(self, end: Endpoint, channel: Channel | None) -> float:
        """See ``Lasers.tune``; returns the seconds until it sends. Needs a running event loop."""
        now = asyncio.get_running_loop().time()
        due = self.lasers.tune(end, channel, now)
        self.lasers.come_to(now)
        self._follow()
        self._await_tuned()
        return due - now

    def set_circuits(self, switch: str, lit: PortMap) -> None:
        """Make exactly these cross-connects of an OCS pass signals."""
        if switch not in self._maps:
            raise BadInput(
                f"lab {self._lab.name} has no circuit switch {switch!r}"
            )
        lit.check(self._lab.circuit_switch(switch).ports)
        self._maps[switch] = lit
        self._light = None
        self._follow()

    def set_spectrum(self, switch: str, lit: SpectrumMap) -> None:
        """Make exactly these cross-connects of a wavelength switch pass signals."""
        device = next(
            (w for w in self._lab.wavelength_switches if w.name == switch),
            None,
        )
        if device is None:
            raise BadInput(
                f"lab {self._lab.name} has no wavelength switch {switch!r}"
            )
        lit.check(device.inputs, device.outputs, device.grid)
        self._spectra[switch] = lit
        self._light = None
        self._follow()

    def fibres_changed(self) -> None:
        """Check whether fibres were cut or spliced, or their interfaces went up or down."""
        before = self._plugs
        self._plugs = self._fibres.plugs()
        if (before.up, before.receiving) != (
            self._plugs.up,
            self._plugs.receiving,
        ):
            self._follow()

    def _await_tuned(self) -> None:
        if self._tuning is not None:
            self._tuning.cancel()
            self._tuning = None
        due = self.lasers.next_due()
        if due is not None:
            self._tuning = asyncio.get_running_loop().call_at(due, self._tuned)

    def _tuned(self) -> None:
        self._tuning = None
        # Within its clock's resolution, the loop may call early.
        self.lasers.come_to(
            max(
                asyncio.get_running_loop().time(),
                self.lasers.next_due() or 0.0,
            )
        )
        self._follow()
        self._await_tuned()

    # --- readings ----------------------------------------------------------------------------

    def transceivers(self) -> dict[str, dict[str, object]]:
        """The channel, state and destinations of each transceiver, by port."""
        return {
            str(end): {
                "channel": str(laser.channel),
                "state": laser.state,
                "band": self.lasers.band_of(end),
                "to": [str(sink) for sink in self._fates[end].sinks],
                "destroyed_at": [str(at) for at in self._fates[end].met],
            }
            for end in self.lasers
            if (laser := self.lasers[end])
        }

    def losses(self) -> dict[str, dict[str, int]]:
        """Frames ``destroyed`` by fibre (on all where they collided; by sending end), and lost in
        the ``dark`` by transmitter."""
        self._count()
        return {
            name: {
                str(end): count
                for end, count in sorted(counter.items())
                if count
            }
            for name, counter in (
                ("destroyed", self._destroyed),
                ("dark", self._lost),
            )
        }

    def arriving(self, device: str) -> dict[int, list[tuple[str, float]]]:
        """By port of a device, the arriving channels (``""``: none), with their power in dBm."""
        self._lab.device(device)
        return {
            port: [
                (str(s.channel or ""), round(dbm, 3))
                for s, dbm in signals.items()
            ]
            for port, signals in self._followed().arriving(device).items()
        }

    # --- following ---------------------------------------------------------------------------

    def _follow(self) -> None:
        light = self._followed()
        fates = {
            end: FrameFate(
                tuple(path.sink for path in light.arrivals.get(end, ())),
                light.destroyed.get(end, ()),
            )
            for end in self._far
        }
        changed = {
            end: fate
            for end, fate in fates.items()
            if fate != self._fates[end]
        }
        if changed:
            self._count()
            self._fibres.lead(
                {
                    self._far[end]: [self._far[sink] for sink in fate.sinks]
                    for end, fate in changed.items()
                    if fate.sinks != self._fates[end].sinks
                }
            )
            self._fates = fates
        dark = self._hears - {
            sink for fate in fates.values() for sink in fate.sinks
        }
        if dark != self._held:
            new = dark - self._held
            gone = self._held - dark
            self._fibres.hold_dark(
                [self._far[end] for end in new],
                [self._far[end] for end in gone],
            )
            self._held = dark

    def _followed(self) -> Light:
        """All present signals; not traced again if only lasers have changed."""
        cut = frozenset(
            fibre
            for fibre in self._lab.fibres
            for end in (fibre.a, fibre.b)
            if not is_end(self._lab, end.device) and end not in self._plugs.up
        )
        off = self.lasers.dark | {
            end
            for end, far in self._far.items()
            if far not in self._plugs.receiving
        }
        if self._light is None or cut != self._cut:
            whole = tuple(
                fibre for fibre in self._lab.fibres if fibre not in cut
            )
            lab = self._lab.with_changes(fibres=whole)
            self._light = Light(
                lab,
                self._maps,
                self._spectra,
                self.lasers.channels,
                off,
            )
        else:
            self._light = self._light.retuned(self.lasers.channels, off)
        self._cut = cut
        return self._light

    def _count(self) -> None:
        """Count the frames that transmitters sent since the last count, by their fate."""
        frames = self._fibres.plugs().frames
        for end, fate in self._fates.items():
            now = frames.get(self._far[end], 0)
            sent = now - self._sent.get(end, 0)
            self._sent[end] = now
            for at in fate.met:
                self._destroyed[at] += sent
            if not fate.sinks and not fate.met:
                self._lost[end] += sent
