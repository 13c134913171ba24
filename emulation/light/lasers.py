"""The transmitters of a coloured lab as a state machine: their channels, and which are dark now.

No clock and no sockets: time is an argument, in seconds that only go forward.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Endpoint, Lab
from patchlight.testbed.lab.optical_links import is_end, transceiver_of
from patchlight.testbed.lab.spectrum import Channel


@dataclass(frozen=True, slots=True)
class Laser:
    """One transmitter: its channel, whether it is to send, and until when it is being tuned."""

    channel: Channel
    on: bool = True
    tuned_at: float | None = None

    @property
    def state(self) -> str:
        """``on``, ``off``, or ``tuning`` where it will be on."""
        if not self.on:
            return "off"
        return "on" if self.tuned_at is None else "tuning"


class Lasers:
    """All that have a transceiver in the lab file, and a fibre to a device that passes light on."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._transceivers = {
            end: one
            for end, (other, _) in lab.fibre_ends.items()
            if is_end(lab, end.device) and not is_end(lab, other.device)
            if (one := transceiver_of(lab, end)) is not None
        }
        self._lasers = {end: Laser(one.channel) for end, one in self._transceivers.items()}

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self._lasers)

    def __getitem__(self, end: Endpoint) -> Laser:
        """The laser at a NIC's or packet switch's port; ``BadInput`` if none is there."""
        if end in self._lasers:
            return self._lasers[end]
        raise BadInput(
            f"lab {self._lab.name} has no transceiver at {end} whose light passes a switch or part",
            hint=f"There are transceivers at: {', '.join(map(str, self._lasers)) or 'no port'}.",
        )

    def tune(self, end: Endpoint, channel: Channel | None, now: float) -> float:
        """Have a laser send ``channel``, or nothing (``None``); when it does so.

        While it is tuned to another channel than it has, it is dark. Raises ``BadInput`` for a
        channel that it cannot send; it goes on as it was then.
        """
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
        """Let the time be ``now``: what has been tuned by then is so."""
        for end, laser in self._lasers.items():
            if laser.tuned_at is not None and laser.tuned_at <= now:
                self._lasers[end] = replace(laser, tuned_at=None)

    def next_due(self) -> float | None:
        """When the next one has been tuned; ``None`` if none is being tuned."""
        return min(
            (x.tuned_at for x in self._lasers.values() if x.tuned_at is not None), default=None
        )

    @property
    def channels(self) -> Mapping[Endpoint, Channel]:
        """The channel of each, dark or not."""
        return {end: laser.channel for end, laser in self._lasers.items()}

    @property
    def dark(self) -> frozenset[Endpoint]:
        """Those that send nothing now."""
        return frozenset(end for end, laser in self._lasers.items() if laser.state != "on")

    def band_of(self, end: Endpoint) -> str:
        """The channels that it can be tuned to, in words."""
        transceiver = self._transceivers[end]
        return str(transceiver.tunable or transceiver.channel)
