"""Whether the light goes where it should: read-back, then optical power against the budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controller.circuits.contract import CircuitDriver, DirectedPort
from controller.optics import Expected, expected_powers, judge
from controller.record import StepFailed
from testbed.lab import Lab
from testbed.portmap import CrossConnect, PortMap
from testbed.wiring import Links


@dataclass(frozen=True)
class Judged:
    """One cross-connect's light. ``words`` is empty where it is verified."""

    cross_connect: CrossConnect
    in_dbm: float | None
    out_dbm: float | None
    expected: Expected | None
    words: str
    failed: bool


async def read_back(driver: CircuitDriver, wanted: PortMap) -> PortMap:
    """The device's map; ``StepFailed`` if it is not the one wanted."""
    now = await driver.read_map()
    if now != wanted:
        left = now.diff(wanted)
        raise StepFailed(
            f"{driver.name} reads back differently: "
            + ", ".join([f"{c} is there" for c in left.breaks]
                        + [f"{c} is missing" for c in left.makes])
        )  # fmt: skip
    return now


async def judge_light(
    lab: Lab,
    links: Links,
    driver: CircuitDriver,
    cross_connects: Iterable[CrossConnect],
    arriving_dbm: Mapping[DirectedPort, float | None] | None = None,
) -> list[Judged]:
    """What the device measures of these cross-connects, and what that says.

    ``arriving_dbm`` is the power at inputs that was measured a moment ago. Only devices with
    ``power_out`` can be asked.
    """
    asked = list(cross_connects)
    ports = [DirectedPort("out", c.out) for c in asked]
    known = dict(arriving_dbm or {})
    if driver.capabilities.power_in:
        ports += [p for c in asked if (p := DirectedPort("in", c.inp)) not in known]
    known |= await driver.power(ports)
    everywhere = expected_powers(lab, links, frozenset((driver.name, c) for c in asked))
    expected = {c: e for c in asked if (e := everywhere.get((driver.name, c))) is not None}
    found = []
    for c in asked:
        in_dbm, out_dbm = (
            known.get(DirectedPort("in", c.inp)),
            known.get(DirectedPort("out", c.out)),
        )
        words, failed = judge(expected, c, in_dbm, out_dbm)
        found.append(Judged(c, in_dbm, out_dbm, expected.get(c), words, failed))
    return found


async def verify_light(
    lab: Lab,
    links: Links,
    driver: CircuitDriver,
    made: Iterable[CrossConnect],
    arriving_dbm: Mapping[DirectedPort, float | None] | None = None,
) -> list[str]:
    """Remarks on what could not be verified; ``StepFailed`` where the light is not as it should."""
    if not driver.capabilities.power_out:
        return [f"{driver.name}: unverified, it has no power monitor"]
    judged = await judge_light(lab, links, driver, made, arriving_dbm)
    failed = [each.words for each in judged if each.failed]
    if failed:
        raise StepFailed(f"{driver.name}: {'; '.join(failed)}")
    return [f"{driver.name}: {each.words}" for each in judged if each.words]
