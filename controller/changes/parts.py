"""What changes of a lab's circuits are made with, and who else they concern: flows and traffic."""

from collections.abc import Collection, Mapping
from typing import Protocol

from patchlight.controller.changes.device_maps import DeviceMonitor, MapCache
from patchlight.controller.changes.executor import PlanExecutor
from patchlight.controller.changes.power import (
    DEFAULT_TOLERANCES,
    POWER_CEILING_DBM,
    Baselines,
    PowerCheck,
    Tolerances,
)
from patchlight.controller.changes.preflight import Locks, PortStates, PreflightChecks, StopButton
from patchlight.controller.changes.record import CommittedMaps
from patchlight.controller.circuits.contract import Drivers
from patchlight.controller.storage.store import Store
from patchlight.testbed.lab.model import Endpoint, Lab
from patchlight.testbed.lab.wiring import Links

Ports = Mapping[str, Collection[int]]
"""Ports by OCS."""


class FlowHook(Protocol):
    """Whoever keeps the packet switches' flow tables in step with the circuits."""

    async def follow(self, links: Links) -> list[str]:
        """Have the switches forward over these links and no others; what failed, in words."""
        return []

    def rates_bps(self) -> Mapping[str, tuple[float, float]]:
        """What each host sent and received lately, by name, where somebody counts that."""
        return {}


class TrafficHook(Protocol):
    """Whoever sends over the network and can be asked to wait."""

    def jobs_using(self, moved: frozenset[Endpoint]) -> list[str]:
        """The running jobs whose traffic uses these ports."""
        return []

    async def drain(self, moved: frozenset[Endpoint]) -> list[str]:
        """Pause the traffic through these ports; who could not be paused, in words."""
        return []

    async def undrain(self) -> None:
        """Let everything that was paused go on."""
        return


class NoHooks(FlowHook, TrafficHook):
    """No packet switches to program and no jobs to pause: both hooks at once."""


NO_HOOKS = NoHooks()


class CircuitParts:
    """The parts that read, check, write and remember the maps of one lab's optical switches.

    The same with a controller and without one; ``flows`` and ``traffic`` say what else a change
    concerns, by default nothing.
    """

    def __init__(
        self,
        lab: Lab,
        drivers: Drivers,
        store: Store,
        flows: FlowHook = NO_HOOKS,
        traffic: TrafficHook = NO_HOOKS,
        power_ceiling_dbm: float = POWER_CEILING_DBM,
        tolerances: Tolerances = DEFAULT_TOLERANCES,
    ) -> None:
        self.lab, self.drivers, self.store = lab, drivers, store
        self.flows, self.traffic = flows, traffic
        self.locks, self.stop = Locks(lab, store), StopButton(store)
        self.committed = CommittedMaps(store, lab)
        self.devices = DeviceMonitor(lab, drivers, self.committed, store)
        self.maps = MapCache(lab, self.devices)
        self.port_states = PortStates(drivers)
        self.power_check = PowerCheck(lab, Baselines(store), tolerances)
        self.preflight = PreflightChecks(
            drivers, self.locks, self.stop, self.port_states, traffic.jobs_using, power_ceiling_dbm
        )
        self.executor = PlanExecutor(lab, drivers, self.power_check, self.stop)

    async def closed_ports(self) -> tuple[Ports, Ports]:
        """The ports whose circuits are to stay (locked by us or on the device), and those that
        the device says can carry none; by OCS, of those that answer."""
        away = self.devices.unread
        staying: dict[str, set[int]] = {}
        failed: dict[str, set[int]] = {}
        circuit_switches = [switch.name for switch in self.lab.circuit_switches]
        for lock in self.locks.all():
            if lock.ocs in circuit_switches:
                staying.setdefault(lock.ocs, set()).add(lock.port)
        for name in circuit_switches:
            known = name in self.drivers and name not in away
            states = await self.port_states.of(name) if known else {}
            for port, state in states.items():
                if state.condition == "locked":
                    staying.setdefault(name, set()).add(port.number)
                elif state.condition != "ready":
                    failed.setdefault(name, set()).add(port.number)
        return staying, failed
