"""Optical power, measured now and then, so that a scrape asks no device anything."""

import asyncio
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass

from patchlight.controller.changes.operations import CircuitOperations, PowerReport
from patchlight.controller.changes.power import PortReading
from patchlight.controller.metrics.families import Family, gauge
from patchlight.testbed.errors import in_words
from patchlight.testbed.lab.wiring import Place

_log = logging.getLogger(__name__)

EVERY_S = 15.0
_VERDICTS = ("ok", "degraded", "unverified", "failed")


@dataclass(frozen=True)
class _Sample:
    at: float
    report: PowerReport


class OpticalPower:
    """The latest powers of each circuit switch that measures any."""

    def __init__(self, operations: CircuitOperations) -> None:
        self._operations = operations
        self._samples: dict[str, _Sample] = {}

    async def run(self, every_s: float = EVERY_S) -> None:
        """Measure again and again, for ever; never while circuits change, which goes first."""
        while True:
            if not self._operations.transactions.busy:
                await self.measure()
            await asyncio.sleep(every_s)

    async def measure(self) -> None:
        """Ask each device that measures. What one that does not answer said is dropped."""
        drivers = self._operations.parts.drivers
        able = {name: driver.capabilities for name, driver in drivers.items()}
        measuring = [name for name, can in able.items() if can.power_in or can.power_out]
        maps = await self._operations.parts.maps.read() if measuring else None
        for name in measuring:
            try:
                report = await self._operations.power(name, maps)
            except Exception as error:  # a driver's bug takes no other's figures
                _log.debug("%s: measuring its power: %s", name, in_words(error))
                self._samples.pop(name, None)
                continue
            if report.unreachable:
                self._samples.pop(name, None)
            else:
                self._samples[name] = _Sample(time.time(), report)

    def collect(self) -> Iterator[Family]:
        """Power by port, how far it is from what it should be, and what that says."""
        samples = self._samples.items()
        readings = [(ocs, each) for ocs, s in samples for each in s.report.readings]
        yield gauge(
            "ocs_port_power_dbm",
            "Optical power at a port of a circuit switch; in: before, out: behind its mirrors.",
            ("ocs", "port", "direction"),
            [row for ocs, each in readings for row in _powers(ocs, each)],
        )
        yield gauge(
            "ocs_port_power_deficit_db",
            "By how much the power at an output is below what it should be.",
            ("ocs", "port"),
            [
                ((ocs, _port(each, each.cross_connect.out)), should - each.out_dbm)
                for ocs, each in readings
                if each.out_dbm is not None and (should := _should_be(each)) is not None
            ],
        )
        verdicts = {(ocs, verdict): 0 for ocs, _ in samples for verdict in _VERDICTS}
        for ocs, each in readings:
            verdicts[ocs, each.verdict.kind] += 1
        yield gauge(
            "ocs_circuits",
            "Cross-connects by what their optical power says of them.",
            ("ocs", "verdict"),
            verdicts.items(),
        )
        about = "When optical power was last measured."
        rows = [((ocs,), sample.at) for ocs, sample in samples]
        yield gauge("ocs_power_sample_timestamp_seconds", about, ("ocs",), rows)


def _powers(ocs: str, each: PortReading) -> Iterator[tuple[tuple[str, str, str], float]]:
    ends = (
        ("in", each.cross_connect.inp, each.in_dbm),
        ("out", each.cross_connect.out, each.out_dbm),
    )
    for direction, port, power_dbm in ends:
        if power_dbm is not None:
            yield (ocs, _port(each, port), direction), power_dbm


def _port(each: PortReading, port: int) -> str:
    """Its number; where light of several channels is told apart there, with the channel."""
    return str(Place(port, getattr(each.cross_connect, "channel", None)))


def _should_be(each: PortReading) -> float | None:
    """As before where that is known, else by the loss budget (dBm)."""
    if each.baseline_dbm is not None:
        return each.baseline_dbm
    return each.expected.power_dbm if each.expected is not None else None
