"""What a simulated cluster went through: figures over time, and changes of its circuits."""

from __future__ import annotations

from array import array

from patchlight.emulation.simulator.cluster.cluster import Rewiring
from patchlight.emulation.simulator.cluster.occupancy import Occupancy


class Accounts:
    """``series`` has, for each span of time, its end in seconds, and what was so until then:
    jobs waiting, GPUs held, and the part of the free GPUs that lie in pieces.
    """

    def __init__(self) -> None:
        self.series = tuple(array("d") for _ in range(4))
        self.held_up_s = 0.0
        self.reconfigurations = self.cross_connects = self.regroups_refused = 0
        self.dark_s = self.dark_gpu_s = 0.0

    def span(
        self, length_s: float, end_s: float, waiting: int, occupancy: Occupancy, held_up: bool
    ) -> None:
        """Nothing changed for ``length_s`` seconds, up to ``end_s``."""
        ends, queue, held, pieces = self.series
        ends.append(end_s)
        queue.append(waiting)
        held.append(occupancy.held)
        pieces.append(occupancy.fragmentation)
        if held_up:
            self.held_up_s += length_s

    def rewired(self, change: Rewiring) -> None:
        """Circuits were changed."""
        self.reconfigurations += 1
        self.cross_connects += change.cross_connects
        self.dark_s += change.dark_s
        self.dark_gpu_s += change.dark_s * change.gpus.bit_count()
