"""The part of the controller's client that is about what is sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from patchlight.client.calls import Call, Calls, call

if TYPE_CHECKING:
    from patchlight.testbed.wire.rest.lab import GpuSample, PortSample, Samples


class SampleCalls(Calls):
    """What can be asked about samples; ``ControllerClient`` makes the calls."""

    @call
    def ports(self, since: float = 0.0) -> Call[list[PortSample]]:
        """Samples of each host's rates after Unix time ``since``, in bits per second."""
        return list((yield from self._call("GET", "/ports", since=since))["ports"])

    @call
    def samples(
        self,
        since: float = 0.0,
        until: float | None = None,
        points: int = 300,
        jobs: Sequence[str] | None = None,
    ) -> Call[Samples]:
        """What was sampled in any period that the lab keeps, by job and of the whole ``lab``.

        It is thinned to some ``points`` windows; with ``jobs``, of these alone, which may be none.
        """
        asked: dict[str, Any] = {"points": points, "since": since, "until": until}
        asked["job"] = None if jobs is None else list(jobs) or [""]
        given = {name: value for name, value in asked.items() if value is not None}
        return cast("Samples", (yield from self._call("GET", "/samples", **given)))

    @call
    def gpus(self, since: float = 0.0) -> Call[list[GpuSample]]:
        """Samples of each GPU's utilisation after Unix time ``since``."""
        return list((yield from self._call("GET", "/gpus", since=since))["gpus"])
