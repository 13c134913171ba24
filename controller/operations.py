"""What operators do with the circuit switches: look, undo, repair, save and restore maps."""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from patchlight.controller.changes.device_maps import Decide, Maps
from patchlight.controller.changes.parts import CircuitParts
from patchlight.controller.changes.power import PortReading, PowerVerdict
from patchlight.controller.changes.record import Drift, Refused, as_texts
from patchlight.controller.changes.transaction import Transactions
from patchlight.controller.circuits.contract import DirectedPort, PortState
from patchlight.testbed.errors import BadInput
from patchlight.testbed.portmap import PortMap
from patchlight.testbed.wiring import trace_links

_NO_MONITOR = PowerVerdict("unverified", "unverified, no power monitor")
_NO_OUTPUT_MONITOR = PowerVerdict("unverified", "unverified, no power monitor at the outputs")


@dataclass(frozen=True)
class DriftReport:
    """How a device differs from the map that ``committed_by`` (a change's number) left.

    ``committed_at`` is Unix time. Both are ``None`` where nothing was committed yet;
    ``unreachable`` says why the drift is not known, and is empty where it is.
    """

    drift: Drift
    committed_by: int | None
    committed_at: float | None
    unreachable: str


@dataclass(frozen=True)
class PowerReport:
    """The power of each circuit of one OCS, and the states of its ports that are not ready.

    ``monitored``: whether the device measures at its outputs. ``unreachable`` says why nothing
    is known, and is empty where it is.
    """

    monitored: bool = False
    readings: list[PortReading] = field(default_factory=list)
    ports: Mapping[DirectedPort, PortState] = field(default_factory=dict)
    unreachable: str = ""


class CircuitOperations:
    """The circuit switches of a lab as their operators use them."""

    def __init__(self, parts: CircuitParts, transactions: Transactions) -> None:
        self.parts, self.transactions = parts, transactions

    def named(self, names: Collection[str]) -> list[str]:
        """These circuit switches, or all if none are named; ``BadInput`` if one is not there."""
        lab, drivers = self.parts.lab, self.parts.drivers
        return [lab.circuit_switch(name).name for name in names] or list(drivers)

    async def drift(self) -> dict[str, DriftReport]:
        """How each device differs from its last committed map, and since which change."""
        committed, drift = self.parts.store.committed_maps(dict), await self.transactions.drift()
        unread = self.parts.devices.unread
        return {
            name: DriftReport(
                drift.get(name, Drift((), ())),
                committed.get(name, {}).get("reconfiguration"),
                committed.get(name, {}).get("at"),
                unread.get(name, ""),
            )
            for name in self.parts.drivers
            if name in committed or name in unread
        }

    async def power(self, name: str, maps: Maps | None = None) -> PowerReport:
        """The power of each circuit of one OCS, and the ports that can carry none.

        With ``maps``, those that were read a moment ago are not read again.
        """
        name = self.parts.lab.circuit_switch(name).name
        if maps is None:
            maps = await self.parts.maps.read()
        if name in maps.unread:
            return PowerReport(unreachable=maps.unread[name])
        readings = await self._readings(name, maps)
        states = await self.parts.port_states.read(name)
        return PowerReport(
            monitored=self.parts.drivers[name].capabilities.power_out,
            readings=readings,
            ports={port: state for port, state in states.items() if state.condition != "ready"},
        )

    async def _readings(self, name: str, maps: Maps) -> list[PortReading]:
        driver = self.parts.drivers[name]
        if not (driver.capabilities.power_out or driver.capabilities.power_in):
            return [PortReading(c, None, None, None, None, _NO_MONITOR) for c in maps[name]]
        links = trace_links(self.parts.lab, maps)
        check = self.parts.power_check
        readings = await check.judge(driver, check.should_show(links, name, maps[name]))
        if driver.capabilities.power_out:
            return readings
        return [replace(reading, verdict=_NO_OUTPUT_MONITOR) for reading in readings]

    async def accept_power(self, names: Collection[str], by: str) -> dict[str, int]:
        """Take the powers of these circuit switches as baselines from now on, but for what has
        failed; how many circuits of each."""
        maps = await self.parts.maps.read()
        counts: dict[str, int] = {}
        for name in self.named(names):
            readings = await self._readings(name, maps)
            good = [reading for reading in readings if reading.verdict.kind != "failed"]
            counts[name] = self.parts.power_check.baselines.begin_anew(name, good)
        self.parts.store.add_event(time.time(), "baselines", {"circuits": counts, "by": by})
        return counts

    def undoing(self, number: int) -> tuple[Decide, dict[str, PortMap]]:
        """What undoes one change and nothing else, and the cross-connects it asks for.

        Its ``Decide`` raises ``Refused`` where later changes took the ports. ``BadInput`` for
        a change that is not there or did not come about.
        """
        record = self.parts.store.reconfiguration(number)
        if record is None:
            raise BadInput(f"there is no change {number}: 'patchlight ocs history' shows them")
        if record["state"] != "committed":
            raise BadInput(f"change {number} is {record['state']}: there is nothing to undo")
        made = {n: PortMap.parse(c["makes"]) for n, c in record["changes"].items()}
        broken = {n: PortMap.parse(c["breaks"]) for n, c in record["changes"].items()}

        def decide(maps: Mapping[str, PortMap]) -> dict[str, PortMap]:
            wanted, clashes = {}, []
            for name in made:
                present = frozenset(maps[name])
                clashes += [f"{name} {c} is gone" for c in made[name] if c not in present]
                kept = PortMap.of(c for c in maps[name] if c not in frozenset(made[name]))
                inputs, outputs = kept.out_of, kept.in_of
                clashes += [
                    f"{name} {c.inp} or {c.out} is in use"
                    for c in broken[name]
                    if (c.inp in inputs or c.out in outputs) and c not in present
                ]
                wanted[name] = kept.joined(broken[name])
            if clashes:
                raise Refused(
                    f"change {number} cannot be undone by itself: {'; '.join(clashes)}",
                    hint="undo the later changes of these ports first: patchlight ocs history",
                )
            return wanted

        return decide, broken

    def repairing(self, names: Collection[str]) -> dict[str, PortMap]:
        """The committed maps of these circuit switches, to be brought about."""
        committed = self.parts.committed.maps
        for name in names:
            if self.parts.lab.circuit_switch(name).name not in committed:
                raise Refused(f"nothing was ever committed for {name}: it was never seen yet")
        return {name: committed[name] for name in self.named(names) if name in committed}

    async def save(self, name: str, names: Collection[str], by: str, why: str) -> dict[str, Any]:
        """Keep the present maps under a name; what is kept."""
        maps = await self.parts.maps.read()
        texts = {ocs: as_texts(maps[ocs]) for ocs in self.named(names)}
        record = {"name": name, "maps": texts, "by": by, "why": why, "at": time.time()}
        self.parts.store.save_map(name, record)
        return record

    def saved(self, name: str) -> dict[str, PortMap]:
        """The maps kept under a name; ``BadInput`` if there are none."""
        saved = self.parts.store.saved_maps()
        if name not in saved:
            raise BadInput(f"no maps are saved as {name!r}: there are {', '.join(saved) or 'none'}")
        return {ocs: PortMap.parse(texts) for ocs, texts in saved[name]["maps"].items()}
