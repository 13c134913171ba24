"""What the simulator needs of a cluster, and the plain one: racks of servers of GPUs."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from patchlight.controller.policies.contract import ClusterShape, GpuSite
from patchlight.controller.prediction.sharing import Demand, RingNetwork
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap

MAX_GPUS = 1 << 20


class Rewiring(NamedTuple):
    """A change of circuits: how long it is dark, what changed, and whose NICs were dark.

    ``relit`` are the GPUs whose links may be others now, those among them.
    """

    dark_s: float
    cross_connects: int
    gpus: int
    relit: int


class Pacing(Protocol):
    """Says how fast the running jobs of a cluster go; they are a simulation's own."""

    def route(self, job: Any, demand: Demand | None) -> bool:
        """A job is on these links; whether they are to be shared out anew. Else it has its pace."""

    def remove(self, job: Any) -> bool:
        """A job is gone; whether links are to be shared out anew."""

    def new_paces(self) -> Iterator[tuple[Any, float]]:
        """The jobs whose pace changes, each with its seconds for a unit."""


class Cluster(Protocol):
    """GPUs and the network between them, as wired now."""

    @property
    def shape(self) -> ClusterShape:
        """Which GPUs there are, and where."""

    @property
    def nic_bps(self) -> float:
        """The rate at which a job communicates whose links are its own."""

    @property
    def edge_bps(self) -> float:
        """The most that an edge of a ring can have on any links."""

    @property
    def capacity_bps(self) -> Mapping[Hashable, float]:
        """The rate of each directed link that rings share."""

    @property
    def lab(self) -> Lab | None:
        """The lab behind it, where there is one to rewire."""

    @property
    def circuits(self) -> Mapping[str, PortMap]:
        """The present map of each OCS."""

    def demand(self, ring: Sequence[int]) -> Demand | None:
        """The links that a ring over these GPUs uses; ``None`` if it cannot be closed."""

    def ports_of(self, gpus: int) -> Mapping[str, frozenset[int]]:
        """The OCS ports that carry these GPUs' light."""

    def rewire(self, maps: Mapping[str, PortMap]) -> Rewiring:
        """Light these circuits; those of other OCSs stay as they are."""

    def renewed(self) -> Cluster:
        """The same cluster as it was wired at first."""

    def pacing(self) -> Pacing:
        """What says how fast jobs go on it, none of them begun."""


@dataclass(frozen=True)
class TwoLevel:
    """Racks of servers of GPUs; each GPU has a NIC, each rack one uplink.

    A rack's uplink has the rate of all its NICs divided by ``oversubscription``, each way;
    above the racks nothing is short. Within a rack every NIC has its rate.
    """

    racks: int
    servers: int
    gpus: int
    nic_bps: float = 100e9
    oversubscription: float = 1.0

    def __post_init__(self) -> None:
        size = self.racks * self.servers * self.gpus
        if min(self.racks, self.servers, self.gpus) < 1 or size > MAX_GPUS:
            raise BadInput(
                f"a cluster of {self.racks} racks × {self.servers} servers × {self.gpus} GPUs: "
                f"expected at least 1 of each, and at most {MAX_GPUS} GPUs in all"
            )
        if not (math.isfinite(self.oversubscription) and self.oversubscription >= 1):
            raise BadInput(
                f"racks cannot be oversubscribed {self.oversubscription} times: expected 1 or more"
            )
        if not (math.isfinite(self.nic_bps) and self.nic_bps > 0):
            raise BadInput(f"NICs cannot have {self.nic_bps} bit/s: expected more than 0")

    @classmethod
    def parse(cls, text: str, oversubscription: float = 1.0) -> TwoLevel:
        """``"16x16x8"``: racks × servers in each × GPUs in each; ``BadInput`` otherwise."""
        match = re.fullmatch(r"(\d{1,7})[x×](\d{1,7})[x×](\d{1,7})", text.strip())
        if match is None:
            raise BadInput(
                f"{text!r} is not a cluster: expected racks x servers x GPUs, like 16x16x8"
            )
        racks, servers, gpus = (int(part) for part in match.groups())
        return cls(racks, servers, gpus, oversubscription=oversubscription)

    @cached_property
    def shape(self) -> ClusterShape:
        """Server by server, rack by rack."""
        names = [(r, s) for r in range(self.racks) for s in range(self.servers)]
        return ClusterShape(
            gpus=tuple(
                GpuSite(f"rack{rack + 1}.server{server + 1}.gpu{gpu}", number, rack)
                for number, (rack, server) in enumerate(names)
                for gpu in range(self.gpus)
            ),
            servers=tuple(f"rack{rack + 1}.server{server + 1}" for rack, server in names),
            racks=tuple(f"rack{rack + 1}" for rack in range(self.racks)),
        )

    @property
    def edge_bps(self) -> float:
        """A NIC's rate."""
        return self.nic_bps

    @cached_property
    def capacity_bps(self) -> Mapping[Hashable, float]:
        """Each rack's uplink. A ring leaves a rack as often as it enters it: one way is enough."""
        uplink_bps = self.servers * self.gpus * self.nic_bps / self.oversubscription
        return dict.fromkeys(range(self.racks), uplink_bps)

    @property
    def lab(self) -> None:
        """There is nothing to rewire."""
        return None

    @property
    def circuits(self) -> Mapping[str, PortMap]:
        """There is no OCS."""
        return {}

    def demand(self, ring: Sequence[int]) -> Demand:
        """How often the ring leaves each rack."""
        in_rack = self.servers * self.gpus
        first = rack = ring[0] // in_rack
        found: dict[Hashable, int] = {}
        for gpu in ring[1:]:
            following = gpu // in_rack
            if following != rack:
                found[rack] = found.get(rack, 0) + 1
                rack = following
        if rack != first:
            found[rack] = found.get(rack, 0) + 1
        return found

    def ports_of(self, gpus: int) -> Mapping[str, frozenset[int]]:
        """None."""
        return {}

    def rewire(self, maps: Mapping[str, PortMap]) -> Rewiring:
        """``BadInput``: there are no circuits."""
        raise BadInput(
            f"cannot light circuits of {', '.join(maps)}: this cluster has no OCS",
            hint="choose topology 'keep', or a lab with an OCS",
        )

    def renewed(self) -> TwoLevel:
        """Itself: nothing in it changes."""
        return self

    def pacing(self) -> RingNetwork[Any]:
        """Rings that communicate all the time."""
        return RingNetwork(self)
