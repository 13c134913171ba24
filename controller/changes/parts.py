"""Assembles what changes of circuits need: devices, checks, flow tables and jobs."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from patchlight.controller.changes import power, preflight
from patchlight.controller.changes.claims import ClaimBook
from patchlight.controller.changes.device_maps import (
    CommittedMaps,
    DeviceMonitor,
    MapCache,
)
from patchlight.controller.changes.record import ChangeOptions, Reconfiguration
from patchlight.controller.circuits import contract
from patchlight.controller.storage.store import Store
from patchlight.testbed.lab.model import Endpoint, Lab
from patchlight.testbed.lab.portmap import AnyMap
from patchlight.testbed.lab.reach import Reach
from patchlight.testbed.lab.wiring import Links

ANYBODY = ChangeOptions()
PortsByOcs = Mapping[str, Collection[int]]


class FlowHook(Protocol):
    """Keeps the packet switches' flow tables in step with the circuits."""

    async def follow(self, links: Links) -> list[str]:
        """Make the switches forward over these links only; returns failures as text."""
        return []

    def unserved(self) -> Mapping[str, str]:
        """Hosts to which a packet switch does not forward, by name, and the reason."""
        return {}

    def missing_ports(self) -> Mapping[Endpoint, str]:
        """The lab's ports that packet switches lack, and why, as text that follows "tor1 has"."""
        return {}

    def trunks_down(self) -> Collection[Endpoint]:
        """Ports of packet switches to others that have no link, or are missing."""
        return ()

    def rates_bps(self) -> Mapping[str, tuple[float, float]]:
        """The recent rates of each host, by name, if they are counted."""
        return {}


@dataclass(frozen=True)
class Unreached:
    """Workers that do not hear others of their job although there is a path (``silent``), and jobs
    that could not be checked (``unknown``), as texts."""

    silent: Sequence[str] = ()
    unknown: Sequence[str] = ()


class TrafficHook(Protocol):
    """Pauses the traffic of jobs."""

    def jobs_using(self, moved: frozenset[Endpoint]) -> list[str]:
        """The running jobs whose traffic uses these ports."""
        return []

    async def drain(self, moved: frozenset[Endpoint]) -> list[str]:
        """Pause the traffic through these ports; returns failures as text."""
        return []

    async def announce(
        self, moved: frozenset[Endpoint] | None, reach: Reach
    ) -> Unreached:
        """Announce the NICs of the jobs that use these ports (``None``: of all jobs), and check for
        a second, with packets, that the workers of each job hear each other."""
        return Unreached()

    async def undrain(self, maps: MapCache) -> None:
        """Resume what was paused and has a path by these maps."""
        return


class NoHooks(FlowHook, TrafficHook):
    """A lab without packet switches to program, and without jobs."""


NO_HOOKS = NoHooks()


class CircuitParts:
    """What reads, checks, writes and stores the maps of a lab, with or without a controller."""

    def __init__(
        self,
        lab: Lab,
        drivers: contract.Drivers,
        store: Store,
        flows: FlowHook = NO_HOOKS,
        traffic: TrafficHook = NO_HOOKS,
        power_ceiling_dbm: float = power.POWER_CEILING_DBM,
        tolerances: power.Tolerances = power.DEFAULT_TOLERANCES,
    ) -> None:
        self.lab = lab
        self.drivers = drivers
        self.store = store
        self.flows = flows
        self.traffic = traffic
        self.locks = preflight.PortLocks(lab, store)
        self.claims = ClaimBook(lab, store, self.locks)
        self.stop = preflight.EmergencyStop(store)
        self.committed = CommittedMaps(store, lab)
        self.devices = DeviceMonitor(
            lab,
            drivers,
            self.committed,
            store,
        )
        self.maps = MapCache(lab, self.devices)
        self.port_states = preflight.PortStates(drivers)
        self.power_check = power.PowerCheck(
            lab, power.PowerBaselines(store), tolerances
        )
        self.preflight = preflight.PreflightChecks(
            lab,
            drivers,
            self.locks,
            self.stop,
            self.port_states,
            traffic.jobs_using,
            power_ceiling_dbm,
        )

    async def closed_ports(
        self, who: ChangeOptions = ANYBODY
    ) -> tuple[PortsByOcs, PortsByOcs]:
        """Ports whose circuits stay (locked here or on the device), and failed ports, by OCS: of
        the device, or with a fibre to a port that a packet switch lacks."""
        away = self.devices.unread
        staying: dict[str, set[int]] = {}
        failed: dict[str, set[int]] = {}
        circuit_switches = [
            switch.name for switch in self.lab.circuit_switches
        ]
        for lock in self.locks.all():
            is_closed = not lock.claim or lock.stops(who)
            if lock.ocs in circuit_switches and is_closed:
                staying.setdefault(lock.ocs, set()).add(lock.port)
        for name in circuit_switches:
            known = name in self.drivers and name not in away
            states = await self.port_states.of(name) if known else {}
            for port, state in states.items():
                if state.condition == "locked":
                    staying.setdefault(name, set()).add(port.number)
                elif state.condition != "ready":
                    failed.setdefault(name, set()).add(port.number)
        missing = self.flows.missing_ports()
        for name, fibres in self.lab.circuit_fibres.items():
            gone = {
                number for number, (end, _) in fibres.items() if end in missing
            }
            if gone:
                failed.setdefault(name, set()).update(gone)
        return staying, failed

    def journal_end(
        self,
        record: Reconfiguration,
        committed: Mapping[str, AnyMap],
        readings: power.Readings,
    ) -> None:
        """Store how a change ended, with the maps and powers to keep if it is committed."""
        record.finished_at = record.finished_at or time.time()
        if record.state != "committed":
            committed = {}
            readings = {}
        record.enter("commit")
        origin = {"reconfiguration": record.id, "at": record.finished_at}
        maps = {
            name: {"map": [*m.one_way_texts], **origin}
            for name, m in committed.items()
        }
        self.store.update_reconfiguration(
            record.id,
            record.state,
            record.as_row,
            maps,
            readings,
        )
        self.committed.take(committed)
        self.power_check.baselines.take(readings)
        record.enter("over")
