"""What changes of a lab's circuits are made with, put together in one place."""

from __future__ import annotations

from collections.abc import Mapping

from patchlight.controller.changes.committed_maps import CommittedMaps
from patchlight.controller.changes.device_maps import DeviceMonitor, MapCache
from patchlight.controller.changes.executor import PlanExecutor
from patchlight.controller.changes.hooks import NO_HOOKS, FlowHook, TrafficHook
from patchlight.controller.changes.locks import Locks, StopButton
from patchlight.controller.changes.power_budget import (
    DEFAULT_TOLERANCES,
    POWER_CEILING_DBM,
    Tolerances,
)
from patchlight.controller.changes.power_check import Baselines, PowerCheck
from patchlight.controller.changes.preflight import PortStates, PreflightChecks
from patchlight.controller.circuits.contract import CircuitDriver
from patchlight.controller.store import Store
from patchlight.testbed.lab import Lab


class CircuitParts:
    """The parts that read, check, write and remember the circuits of one lab.

    The same with a controller and without one; ``flows`` and ``traffic`` say what else a change
    concerns, by default nothing.
    """

    def __init__(
        self,
        lab: Lab,
        drivers: Mapping[str, CircuitDriver],
        store: Store,
        flows: FlowHook = NO_HOOKS,
        traffic: TrafficHook = NO_HOOKS,
        power_ceiling_dbm: float = POWER_CEILING_DBM,
        tolerances: Tolerances = DEFAULT_TOLERANCES,
    ) -> None:
        self.lab, self.drivers, self.store = lab, drivers, store
        self.flows, self.traffic = flows, traffic
        self.locks, self.stop = Locks(lab, store), StopButton(store)
        self.committed = CommittedMaps(store)
        self.devices = DeviceMonitor(lab, drivers, self.committed, store)
        self.maps = MapCache(lab, self.devices)
        self.port_states = PortStates(drivers)
        self.power_check = PowerCheck(lab, Baselines(store), tolerances)
        self.preflight = PreflightChecks(
            drivers, self.locks, self.stop, self.port_states, traffic.jobs_using, power_ceiling_dbm
        )
        self.executor = PlanExecutor(lab, drivers, self.power_check, self.stop)
