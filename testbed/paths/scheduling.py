"""What all schedulers of paths do alike: take flows in, hand out paths, take them back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from patchlight.testbed.errors import BadInput
from patchlight.testbed.paths.contract import FlowRequest, PathGrant, PathNetwork, Refusal
from patchlight.testbed.paths.occupancy import Occupancy


class Scheduling(ABC):
    """A ``PathScheduler`` but for which of the waiting flows come next."""

    def __init__(self, network: PathNetwork) -> None:
        self.network = network
        self._occupancy = Occupancy(network)
        self._waiting: dict[int, FlowRequest] = {}

    @property
    def waiting(self) -> list[FlowRequest]:
        """The flows without a path, as they came."""
        return list(self._waiting.values())

    @property
    def granted(self) -> list[PathGrant]:
        """The paths in use, as they were given."""
        return list(self._occupancy.granted.values())

    def has(self, flow: int) -> bool:
        """Whether a flow waits or has a path."""
        return flow in self._waiting or flow in self._occupancy.granted

    def admit(self, flows: Sequence[FlowRequest], now_s: float) -> list[Refusal]:
        """Take flows in to wait, but those that are refused: too late, or no light goes there.

        ``BadInput`` for a flow that makes no sense or whose number is in use; then none is taken.
        """
        fresh = set[int]()
        for flow in flows:
            self.network.check(flow)
            if flow.flow in fresh or self.has(flow.flow):
                raise BadInput(f"there is a flow {flow.flow} already: expected another number")
            fresh.add(flow.flow)
        refused = []
        for flow in flows:
            if refusal := self._occupancy.refusal(flow, now_s):
                refused.append(refusal)
            else:
                self._waiting[flow.flow] = flow
                self._enter(flow)
        return refused

    def grants(self, now_s: float) -> list[PathGrant]:
        """The paths that are given from now on, none of them before."""
        given = []
        for flow in self._chosen():
            del self._waiting[flow.flow]
            given.append(self._occupancy.take(flow, now_s))
        return given

    def release(self, flow: int, now_s: float) -> None:
        """Give a flow's path back, or its place if it waits. ``BadInput`` if there is none."""
        if flow in self._occupancy.granted:
            grant = self._occupancy.granted[flow]
            self._occupancy.give_back(flow)
            self._freed(grant)
        elif flow in self._waiting:
            self._leave(self._waiting.pop(flow))
        else:
            raise BadInput(f"there is no flow {flow}: it was released, or never admitted")

    def _freed(self, grant: PathGrant) -> None:
        """Take note that a path was given back."""
        return

    @abstractmethod
    def _enter(self, flow: FlowRequest) -> None:
        """Line a flow up."""

    @abstractmethod
    def _leave(self, flow: FlowRequest) -> None:
        """Forget a flow that waits."""

    @abstractmethod
    def _chosen(self) -> Iterator[FlowRequest]:
        """Flows that fit, each forgotten here; the caller takes its path before the next one."""
