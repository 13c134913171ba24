"""Keeps which hosts of a lab reach each other now."""

from patchlight.controller.changes.parts import FlowHook
from patchlight.controller.hosts.fleet import Fleet
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.reach import Reach
from patchlight.testbed.lab.wiring import Links


class LabReach:
    """Which hosts reach each other, by agents' reports and by the flow entries that packet switches
    refused."""

    def __init__(
        self,
        lab: Lab,
        fleet: Fleet,
        flows: FlowHook,
    ) -> None:
        self._lab = lab
        self._fleet = fleet
        self._flows = flows
        self._of: tuple[object, ...] = ()
        self._reach = Reach(lab, None)

    def over(self, links: Links | None) -> Reach:
        """Over these links; computed again when anything has changed."""
        lost = {**self._flows.unserved(), **self._fleet.faults().lost}
        down = self._flows.trunks_down()
        if (links, lost, down) != self._of:
            self._of = links, lost, down
            self._reach = Reach(
                self._lab,
                links,
                lost,
                down,
            )
        return self._reach
