"""What a simulated cluster holds now, and what it went through."""

from array import array
from collections import Counter
from collections.abc import Sequence

from patchlight.controller.policies.contract import ClusterShape
from patchlight.controller.policies.sets import members
from patchlight.emulation.simulator.cluster.cluster import Rewiring


class Occupancy:
    """Held and broken GPUs. A GPU can be broken several times over, by itself and its server."""

    def __init__(self, shape: ClusterShape) -> None:
        self._server = [gpu.server for gpu in shape.gpus]
        # Sets of each server's GPUs would take memory with the square of the servers.
        counted = Counter(self._server)
        self._size_of = [counted[server] for server in range(len(shape.servers))]
        self._taken = [0] * len(self._size_of)
        self._broken_by: dict[int, int] = {}
        self.allocated = self.broken = self.held = 0
        self.free = self._whole = len(self._server)

    @property
    def occupied(self) -> int:
        """Held or broken, as a set."""
        return self.allocated | self.broken

    @property
    def fragmentation(self) -> float:
        """The part of the free GPUs that are on servers of which others are held or broken.

        0 where no GPU is free.
        """
        return 1 - self._whole / self.free if self.free else 0.0

    def take(self, gpus: int, ring: Sequence[int]) -> None:
        """Hold these free GPUs, given as a set and one by one."""
        self.allocated |= gpus
        self.held += len(ring)
        self._cover(ring)

    def give_back(self, gpus: int, ring: Sequence[int]) -> None:
        """Give back GPUs that are held."""
        self.allocated &= ~gpus
        self.held -= len(ring)
        self._uncover(ring)

    def break_down(self, gpus: int) -> None:
        """GPUs that nobody holds break."""
        for gpu in members(gpus):
            self._broken_by[gpu] = self._broken_by.get(gpu, 0) + 1
        fresh = gpus & ~self.broken
        self.broken |= fresh
        self._cover(members(fresh))

    def mend(self, gpus: int) -> None:
        """Broken GPUs are mended as often as they were broken."""
        whole = 0
        for gpu in members(gpus):
            self._broken_by[gpu] -= 1
            if not self._broken_by[gpu]:
                del self._broken_by[gpu]
                whole |= 1 << gpu
        self.broken &= ~whole
        self._uncover(members(whole))

    def _cover(self, each: Sequence[int]) -> None:
        self.free -= len(each)
        for gpu in each:
            server = self._server[gpu]
            if not self._taken[server]:
                self._whole -= self._size_of[server]
            self._taken[server] += 1

    def _uncover(self, each: Sequence[int]) -> None:
        self.free += len(each)
        for gpu in each:
            server = self._server[gpu]
            self._taken[server] -= 1
            if not self._taken[server]:
                self._whole += self._size_of[server]


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
