"""The maps as last read, and the light through them: what to plan from, never what to write on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from controller.planning import Plan, plan
from controller.reach import Maps, Reach
from testbed.lab import Lab
from testbed.portmap import PortMap
from testbed.wiring import Links, follow_light

Decide = Callable[[Mapping[str, PortMap]], Mapping[str, PortMap]]
"""Makes wanted maps, those that should change, of the present ones."""


class LastSeen:
    """Remembers so that not every plan begins with a question to every device.

    Before a device is written to, its map is read. ``maps`` is ``None`` after ``forget``:
    then the devices are to be asked first.
    """

    def __init__(self, lab: Lab, reach: Reach) -> None:
        self._lab, self._reach = lab, reach
        self.maps: Maps | None = None
        self._links: Links | None = None
        self._lit_by: Mapping[str, PortMap] = {}

    async def read(self) -> Maps:
        """The present map of every circuit switch that answers, asked of the devices at once."""
        self.maps = await self._reach.read_maps()
        return self.maps

    def light(self, maps: Mapping[str, PortMap]) -> Links:
        """The links of these maps."""
        return follow_light(self._lab, maps, self._links)

    def plan(self, maps: Maps, decide: Decide) -> Plan:
        """The plan that turns these maps into what ``decide`` makes of them.

        ``Refused`` if it is to change one that is not known; an error of ``decide`` is raised.
        """
        wanted = decide(maps)
        for name in wanted.keys() & maps.unread.keys():
            maps[name]  # refuses, and says why
        before = maps.everywhere
        lit = self._links if before == self._lit_by else None
        steps = plan(self._lab, before, wanted, self._links, lit=lit)
        self._links, self._lit_by = steps.links_before, before
        return steps

    def done(self, steps: Plan, now: Maps) -> None:
        """The plan was carried out; ``now`` are the maps as read before its first write."""
        self.maps = now.after(steps.wanted)
        self._links, self._lit_by = steps.links_after, self.maps.everywhere

    def forget(self) -> None:
        """Something went wrong on a device: ask before the next plan."""
        self.maps = None
