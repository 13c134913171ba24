"""Who else a change of circuits concerns, beside the switches: flow tables, and who sends."""

from __future__ import annotations

from typing import Protocol

from patchlight.testbed.lab import Endpoint
from patchlight.testbed.wiring import Links


class FlowHook(Protocol):
    """Whoever keeps the packet switches' flow tables in step with the circuits."""

    async def follow(self, links: Links) -> list[str]:
        """Have the switches forward over these links and no others; what failed, in words."""


class TrafficHook(Protocol):
    """Whoever sends over the network and can be asked to wait."""

    def jobs_using(self, moved: frozenset[Endpoint]) -> list[str]:
        """The running jobs whose traffic uses these ports."""

    async def drain(self, moved: frozenset[Endpoint]) -> list[str]:
        """Pause the traffic through these ports; who could not be paused, in words."""

    async def undrain(self) -> None:
        """Let everything that was paused go on."""


class NoHooks:
    """No packet switches to program and no jobs to pause: both hooks at once."""

    async def follow(self, links: Links) -> list[str]:
        """Nothing to program, so nothing fails."""
        return []

    def jobs_using(self, moved: frozenset[Endpoint]) -> list[str]:
        """No jobs run."""
        return []

    async def drain(self, moved: frozenset[Endpoint]) -> list[str]:
        """Nobody to pause."""
        return []

    async def undrain(self) -> None:
        """Nobody was paused."""


NO_HOOKS = NoHooks()
