"""Writes a plan to the devices, one after the other, and looks at what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from patchlight.controller.changes.device_maps import Maps
from patchlight.controller.changes.locks import StopButton
from patchlight.controller.changes.planning import Plan
from patchlight.controller.changes.power_check import PowerCheck, Readings, Verified, read_back
from patchlight.controller.changes.preflight import PreflightResult
from patchlight.controller.changes.record import Reconfiguration
from patchlight.controller.changes.recovery import raise_refusals
from patchlight.controller.circuits.contract import CircuitDriver
from patchlight.controller.store import BaselineKey
from patchlight.testbed.lab import Lab
from patchlight.testbed.wiring import trace_links


@dataclass(frozen=True)
class PlanExecutor:
    """Breaks, makes and verifies. What goes wrong on one device does not reach the next."""

    lab: Lab
    drivers: Mapping[str, CircuitDriver]
    power_check: PowerCheck
    stop: StopButton

    async def write(
        self, plan: Plan, preflight: PreflightResult, record: Reconfiguration, maps: Maps
    ) -> Readings:
        """Bring the plan about; the powers to remember if it is committed.

        ``maps`` are those just read. Raises what a device said, ``StepFailed`` where it
        refused, where it reads back differently or the power is wrong, and at the stop button.
        """
        several, unread = len(plan.changes) > 1, maps.unread
        readings: dict[BaselineKey, tuple[float, ...]] = {}
        for name, change in plan.changes.items():
            driver = self.drivers[name]
            self.stop.check()
            if change.breaks:
                with record.stage("break"):
                    outcome = await driver.disconnect(change.breaks)
                    raise_refusals(name, "break", outcome.refused)
                self.stop.check()
            if change.makes:
                with record.stage("make"):
                    outcome = await driver.connect(change.makes)
                    raise_refusals(name, "make", outcome.refused)
                self.stop.check()
            maps = maps.after({name: plan.wanted[name]})
            with record.stage("verify"):
                # Paths through devices that are still to change, or do not answer, are not
                # known to be there: no power is expected over them.
                links = trace_links(self.lab, maps) if several or unread else plan.links_new
                arriving_dbm = preflight.arriving_dbm.get(name)
                # Both at once: the device answers the one while the other is understood.
                results = await asyncio.gather(
                    read_back(driver, plan.wanted[name]),
                    self.power_check.verify(links, driver, change.makes, arriving_dbm),
                    return_exceptions=True,
                )
                for result in results:
                    if isinstance(result, BaseException):
                        raise result
                    if isinstance(result, Verified) and not several:
                        record.note(result.remarks)
                        readings |= self.power_check.baselines.with_readings(name, result.good)
        if several:
            with record.stage("verify"):
                links = trace_links(self.lab, maps) if unread else plan.links_new
                for name, change in plan.changes.items():
                    verified = await self.power_check.verify(
                        links, self.drivers[name], change.makes
                    )
                    record.note(verified.remarks)
                    readings |= self.power_check.baselines.with_readings(name, verified.good)
        self.stop.check()
        return readings
