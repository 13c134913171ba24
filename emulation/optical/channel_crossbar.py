"""What carries the light of an emulated wavelength switch: nothing, or a fabric's own."""

from collections.abc import Mapping

from patchlight.testbed.lab.spectrum import Channel, SpectrumMap

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
