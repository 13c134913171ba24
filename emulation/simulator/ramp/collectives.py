"""How long it takes to move bytes on RAMP.

The formulas are those of PAC-ML's simulator, its peculiarities included, because they are what
its published figures rest on: a channel's rate is divided by the number of groups once more in
a collective, racks never contend, and a collective between the servers of one rack is free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RampTiming:
    """Rates and delays of a RAMP network and its GPUs, as in PAC-ML's experiments."""

    groups: int = 4
    channel_bytes_per_s: float = 4e11
    propagation_s: float = 50e-9
    io_s: float = 100e-9
    memory_hz: float = 2e12
    flops: float = 130e12
    bytes_per_number: int = 2

    @property
    def latency_s(self) -> float:
        """Of any transfer: out of the GPU, over the fibre, into the GPU."""
        return self.propagation_s + 2 * self.io_s

    def one_to_one_s(self, size_bytes: float) -> float:
        """One transfer between two servers; nothing takes no time."""
        return self.latency_s + size_bytes / self.channel_bytes_per_s if size_bytes else 0.0

    def all_reduce_s(self, size_bytes: float, groups: int, racks: int, places: int) -> float:
        """An all-reduce over servers in this many groups, racks, and places within racks.

        Reduce-scatter and all-gather go over the groups, the places within the groups, and the
        racks in turn; each step's message is what the step before left.
        """
        steps = (groups, min(groups, places), racks, math.ceil(places / self.groups))
        rate = self.channel_bytes_per_s / self.groups
        message, moving, adding = size_bytes, 0.0, 0.0
        for members in steps:
            message = math.ceil(message / members)
            if members > 1:
                # At least one, also where there are more racks than groups.
                transceivers = max(1, self.groups // (members - 1))
                moving += self.latency_s + message / (rate * transceivers)
                adding += self._adding_s(message * members, members)
        return 2 * moving + adding

    def _adding_s(self, size_bytes: float, members: int) -> float:
        """Adding the members' shares: a roofline of memory and arithmetic."""
        additions = math.ceil(math.log2(members))
        intensity = additions / ((members + 1) * self.bytes_per_number)
        total = additions * (size_bytes / members) / self.bytes_per_number
        return total / min(self.memory_hz * intensity, self.flops)
