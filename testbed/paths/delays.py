"""How long it takes to agree on a path, as measured; what simulations of ODDL take for control."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class ControlDelay(NamedTuple):
    """From asking for a path to having it, where nobody else has it, and where that is from."""

    round_trip_s: float
    source: str

    @property
    def one_way_s(self) -> float:
        """Half of it: what a request, a grant or a release takes."""
        return self.round_trip_s / 2


CONTROL_DELAYS: Mapping[str, ControlDelay] = {
    "central": ControlDelay(
        15.7e-3,
        "POST /v1/paths, one client, median of 100 on loopback (benchmarks.paths), on 2 cores that "
        "had other work at a load of 13; the controller's processor had 4.3 ms of it",
    ),
    "distributed": ControlDelay(
        0.20e-3,
        "ask and give over UDP on loopback, one sender, median of 300 (benchmarks.paths), on 2 "
        "cores that had other work at a load of 13; both nodes' processors had 0.28 ms of it",
    ),
}
"""By who is in control: the controller, or the nodes among themselves."""
