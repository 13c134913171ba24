"""Whether the light goes where it should: read-back, then optical power against the loss budget
and against what the same circuit showed before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from patchlight.controller.changes.power_budget import (
    DEFAULT_TOLERANCES,
    Expected,
    PowerVerdict,
    Tolerances,
    expected_powers,
    judge,
)
from patchlight.controller.changes.record import StepFailed
from patchlight.controller.circuits.contract import CircuitDriver, DirectedPort
from patchlight.controller.store import BaselineKey, Store
from patchlight.testbed.lab import Endpoint, Lab
from patchlight.testbed.portmap import CrossConnect, PortMap
from patchlight.testbed.wiring import Links

READINGS_KEPT = 9
"""The baseline is the median of so many readings: one that is off does not move it."""

Readings = Mapping[BaselineKey, tuple[float, ...]]


class Baselines:
    """Output powers (dBm) of circuits by their two ports and who sends the light.

    A reading is taken when a circuit is made and found good, and at no other time: else light
    that fades slowly while somebody looks at it often would take its baseline along.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._readings: dict[str, dict[BaselineKey, tuple[float, ...]]] = {}

    def dbm(self, ocs: str, c: CrossConnect, source: Endpoint | None) -> float | None:
        """The median of the last good readings of this circuit; ``None`` if there are none."""
        readings = self._of(ocs).get(_key(ocs, c, source))
        return None if readings is None else round(median(readings), 2)

    def with_readings(self, ocs: str, good: Iterable[PortReading]) -> Readings:
        """What is to be kept once these circuits were found good; keeps nothing itself."""
        kept: dict[BaselineKey, tuple[float, ...]] = {}
        for each in good:
            if each.out_dbm is not None:
                key = _key(ocs, each.cross_connect, each.source)
                earlier = self._of(ocs).get(key, ())
                kept[key] = (*earlier, each.out_dbm)[-READINGS_KEPT:]
        return kept

    def begin_anew(self, ocs: str, judged: Iterable[PortReading]) -> int:
        """Take these powers for the baselines from now on; how many there are."""
        new = {
            _key(ocs, each.cross_connect, each.source): (each.out_dbm,)
            for each in judged
            if each.out_dbm is not None
        }
        self._store.save_baselines(new)
        self.take(new)
        return len(new)

    def take(self, readings: Readings) -> None:
        """These are in the store now."""
        for key, values in readings.items():
            self._of(key[0])[key] = values

    def _of(self, ocs: str) -> dict[BaselineKey, tuple[float, ...]]:
        if ocs not in self._readings:
            self._readings[ocs] = self._store.baselines(ocs)
        return self._readings[ocs]


def _key(ocs: str, c: CrossConnect, source: Endpoint | None) -> BaselineKey:
    return ocs, c.inp, c.out, str(source or "")


@dataclass(frozen=True)
class PortReading:
    """One cross-connect's light: measured, as the loss budget and as it was before (dBm)."""

    cross_connect: CrossConnect
    in_dbm: float | None
    out_dbm: float | None
    expected: Expected | None
    baseline_dbm: float | None
    verdict: PowerVerdict

    @property
    def source(self) -> Endpoint | None:
        """Who sends the light, if that is known."""
        return self.expected.source if self.expected is not None else None

    @property
    def good(self) -> bool:
        """Whether this is what the circuit should show again: verified, or the first light of
        one that nothing is known of."""
        first = self.verdict.kind == "unverified" and self.out_dbm is not None
        return self.verdict.kind == "ok" or (first and self.baseline_dbm is None)


@dataclass(frozen=True)
class PowerCheck:
    """Judges light: by the lab's loss budgets, and by what circuits showed before."""

    lab: Lab
    baselines: Baselines
    tolerances: Tolerances = DEFAULT_TOLERANCES

    async def judge(
        self,
        links: Links,
        driver: CircuitDriver,
        cross_connects: Iterable[CrossConnect],
        arriving_dbm: Mapping[DirectedPort, float | None] | None = None,
    ) -> list[PortReading]:
        """What the device measures of these cross-connects, and what that says.

        ``arriving_dbm`` is the power at inputs that was measured a moment ago. Only devices
        with ``power_out`` can be asked.
        """
        asked = list(cross_connects)
        ports = [DirectedPort("out", c.out) for c in asked]
        known = dict(arriving_dbm or {})
        if driver.capabilities.power_in:
            ports += [p for c in asked if (p := DirectedPort("in", c.inp)) not in known]
        known |= await driver.power(ports)
        on_the_way = frozenset((driver.name, c) for c in asked)
        everywhere = expected_powers(self.lab, links, on_the_way)
        loss_db = self.lab.circuit_switch(driver.name).insertion_loss_db
        found = []
        for c in asked:
            in_dbm = known.get(DirectedPort("in", c.inp))
            out_dbm = known.get(DirectedPort("out", c.out))
            expected = everywhere.get((driver.name, c))
            source = expected.source if expected is not None else None
            before = self.baselines.dbm(driver.name, c, source)
            verdict = judge(expected, before, c, in_dbm, out_dbm, loss_db, self.tolerances)
            found.append(PortReading(c, in_dbm, out_dbm, expected, before, verdict))
        return found

    async def verify(
        self,
        links: Links,
        driver: CircuitDriver,
        made: Iterable[CrossConnect],
        arriving_dbm: Mapping[DirectedPort, float | None] | None = None,
    ) -> Verified:
        """``StepFailed`` where the light is not as it should be.

        Light that is degraded is a remark and no failure: it carries traffic, and what stood
        before was broken for it, so that going back helps nobody.
        """
        if not driver.capabilities.power_out:
            return Verified([f"{driver.name}: unverified, it has no power monitor"])
        judged = await self.judge(links, driver, made, arriving_dbm)
        failed = [each.verdict.words for each in judged if each.verdict.kind == "failed"]
        if failed:
            raise StepFailed(f"{driver.name}: {'; '.join(failed)}")
        remarks = [f"{driver.name}: {each.verdict.words}" for each in judged if each.verdict.words]
        return Verified(remarks, [each for each in judged if each.good])


@dataclass(frozen=True)
class Verified:
    """``remarks`` on what could not be verified or is degraded; ``good``: the readings to keep."""

    remarks: list[str]
    good: list[PortReading] = field(default_factory=list)


async def read_back(driver: CircuitDriver, wanted: PortMap) -> PortMap:
    """The device's map; ``StepFailed`` if it is not the one wanted."""
    now = await driver.read_map()
    if now != wanted:
        left = now.diff(wanted)
        raise StepFailed(
            f"{driver.name} reads back differently: "
            + ", ".join(
                [f"{c} is there" for c in left.breaks] + [f"{c} is missing" for c in left.makes]
            )
        )
    return now
