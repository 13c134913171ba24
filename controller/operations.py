"""The optical plant as its operators see it: light, drift, saved maps, undoing, watching."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from patchlight.controller.changes.committed_maps import Drift
from patchlight.controller.changes.device_maps import Decide
from patchlight.controller.changes.hooks import FlowHook, TrafficHook
from patchlight.controller.changes.planning import Plan
from patchlight.controller.changes.power_budget import DEFAULT_TOLERANCES, PowerVerdict, Tolerances
from patchlight.controller.changes.power_check import PortReading
from patchlight.controller.changes.preflight import POWER_CEILING_DBM
from patchlight.controller.changes.record import Refused, as_texts, fingerprint
from patchlight.controller.changes.transaction import Transactions
from patchlight.controller.circuits.contract import Alarm, CircuitDriver
from patchlight.controller.store import Store
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab import Lab
from patchlight.testbed.portmap import PortMap
from patchlight.testbed.wiring import trace_links

log = logging.getLogger("patchlight.circuits")

_ALARMS_EVERY_S = 0.5
_LOOK_EVERY_S = 30.0
# Of a device that floods us no more become events each time: the journal is not to grow by that.
_EVENTS_AT_ONCE = 20


class CircuitOperations:
    """The circuit switches of a lab, their changes, and what is remembered of them."""

    def __init__(
        self,
        lab: Lab,
        drivers: Mapping[str, CircuitDriver],
        flows: FlowHook,
        traffic: TrafficHook,
        store: Store,
        power_ceiling_dbm: float = POWER_CEILING_DBM,
        tolerances: Tolerances = DEFAULT_TOLERANCES,
    ) -> None:
        self.lab, self.drivers, self.store, self.traffic = lab, drivers, store, traffic
        self.reconfigurer = Transactions(
            lab, drivers, flows, traffic, store, power_ceiling_dbm, tolerances
        )
        self.locks, self.stop = self.reconfigurer.locks, self.reconfigurer.stop
        self.reach = self.reconfigurer.reach
        self._said: dict[str, Drift] = {}
        self._heard: dict[str, Alarm] = {}

    # -- on start and meanwhile ----------------------------------------------------------------

    async def begin(self) -> None:
        """Finish or undo what a dead controller left, then say how the devices differ.

        A difference is an event and stays: nothing is repaired unasked. What a device that
        was never seen before has counts as committed.
        """
        for record in await self.reconfigurer.resume():
            self.store.add_event(time.time(), "resumed", {
                "reconfiguration": record.id, "state": record.state, "message": record.message,
            })  # fmt: skip
        self.reconfigurer.commitments.begin_with(await self.reconfigurer.read_maps())
        await self._look()

    async def watch(self) -> None:
        """Make events of alarms and of drift, and bring back who is lost, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen_and_look())
            group.create_task(self.reach.watch(self._returned))

    async def _returned(self, name: str) -> None:
        """A device is back: what was left open is ended, drift told, flows follow its map."""
        self.reconfigurer.conditions.forget(name)
        self._said.pop(name, None)
        await self.begin()
        await self.reconfigurer.settle_flows()

    async def _listen_and_look(self) -> None:
        looked = time.monotonic()
        while True:
            await asyncio.sleep(_ALARMS_EVERY_S)
            for name, driver in self.drivers.items():
                if name in self.reach.unread:
                    continue
                try:
                    await self._listen(name, driver)
                except PatchlightError as error:
                    log.warning("%s: asking for its alarms: %s", name, error.message)
            if time.monotonic() - looked > _LOOK_EVERY_S:
                try:
                    await self._look()
                    for name in self.drivers.keys() - self.reach.unread.keys():
                        await self.reconfigurer.conditions.read(name)
                except PatchlightError as error:
                    log.warning("looking at the circuit switches: %s", error.message)
                looked = time.monotonic()

    async def _listen(self, name: str, driver: CircuitDriver) -> None:
        alarms = await self.reach.ask(name, driver.alarms()) or ()
        last = self._heard.get(name)
        new = alarms[alarms.index(last) + 1 :] if last in alarms else alarms
        if alarms:
            self._heard[name] = alarms[-1]
        # Notices tell what we did ourselves; ``patchlight ocs alarms`` shows them.
        told = [alarm for alarm in new if alarm.severity != "notice"]
        if not told:
            return
        self.reconfigurer.conditions.forget(name)
        left_out = len(told) - _EVENTS_AT_ONCE
        if left_out > 0:
            words = f"and {left_out} more at once: patchlight ocs alarms {name}"
            told = [*told[:_EVENTS_AT_ONCE], Alarm(time.time(), "minor", "flood", words)]
        self.store.add_events("alarm", [(a.at, {"ocs": name, **asdict(a)}) for a in told])

    async def _look(self) -> None:
        for name, drift in (await self.reconfigurer.drift()).items():
            if drift != self._said.get(name, Drift((), ())):
                self.store.add_event(time.time(), "drift", {"ocs": name, **_drift_as_json(drift)})
            self._said[name] = drift

    # -- looking -------------------------------------------------------------------------------

    def named(self, names: Collection[str]) -> list[str]:
        """These circuit switches, or all if none are named; ``BadInput`` if one is not there."""
        return [self.lab.circuit_switch(name).name for name in names] or list(self.drivers)

    async def drift(self) -> dict[str, Any]:
        """How each device differs from its last committed map, and since which change.

        ``unreachable`` says why that is not known of a device; empty for the others.
        """
        committed, found = self.store.committed_maps(), await self.reconfigurer.drift()
        unread = {name: self.reach.unread.get(name, "") for name in self.drivers}
        return {
            name: {
                **_drift_as_json(found.get(name, Drift((), ()))),
                "reconfiguration": committed.get(name, {}).get("reconfiguration"),
                "committed_at": committed.get(name, {}).get("at"),
                "unreachable": unread[name],
            }
            for name in self.drivers
            if name in committed or unread[name]
        }

    async def light(self, name: str) -> dict[str, Any]:
        """The light of each cross-connect of one OCS, and the ports that cannot carry any."""
        name = self.lab.circuit_switch(name).name
        maps = await self.reconfigurer.read_maps()
        if name in maps.unread:
            return {
                "monitored": False,
                "circuits": [],
                "ports": {},
                "unreachable": maps.unread[name],
            }
        driver = self.drivers[name]
        judged = await self._judged(name, maps)
        rows = [_light_as_json(each, monitored=driver.capabilities.power_out) for each in judged]
        states = await self.reconfigurer.conditions.read(name)
        return {
            "monitored": driver.capabilities.power_out,
            "circuits": rows or [_dark_as_json(text) for text in as_texts(maps[name])],
            "ports": {
                str(port): {"condition": state.condition, "words": state.words}
                for port, state in states.items()
                if state.condition != "ready"
            },
            "unreachable": "",
        }

    async def _judged(self, name: str, maps: Mapping[str, PortMap]) -> list[PortReading]:
        driver = self.drivers[name]
        if not (driver.capabilities.power_out or driver.capabilities.power_in):
            return []
        links = trace_links(self.lab, maps)
        return await self.reconfigurer.light.judge(links, driver, maps[name])

    async def accept_light(self, names: Collection[str], by: str) -> dict[str, int]:
        """Take the powers of these circuit switches as baselines from now on, but for what has
        failed; how many circuits of each."""
        maps = await self.reconfigurer.read_maps()
        found: dict[str, int] = {}
        for name in self.named(names):
            judged = [j for j in await self._judged(name, maps) if j.verdict.kind != "failed"]
            found[name] = self.reconfigurer.baselines.begin_anew(name, judged)
        self.store.add_event(time.time(), "baselines", {"circuits": found, "by": by})
        return found

    async def alarms(self, names: Collection[str]) -> list[dict[str, Any]]:
        """What these devices reported by themselves, as far as they answer."""
        found: list[dict[str, Any]] = []
        for name in self.named(names):
            alarms = await self.reach.ask(name, self.drivers[name].alarms())
            found += [{"ocs": name, **asdict(alarm)} for alarm in alarms or ()]
        return found

    async def circuit_switches(self) -> list[dict[str, Any]]:
        """Each circuit switch of the lab, whether it answers, and what it says that it is."""
        rows = []
        for state in self.reach.status():
            switch = self.lab.circuit_switch(state["name"])
            row = state | {
                "driver": switch.driver,
                "address": switch.address,
                "ports": switch.ports,
                "switching_time_s": switch.switching_time_s,
                "insertion_loss_db": switch.insertion_loss_db,
                "identity": None,
                "standing_alarms": None,
            }
            if state["reachable"]:
                try:
                    driver = self.drivers[switch.name]
                    row["identity"] = asdict(await driver.identify())
                    row["standing_alarms"] = sum(a.standing for a in await driver.alarms())
                except PatchlightError as error:
                    row["words"] = error.message
            rows.append(row)
        return rows

    def preview_as_json(self, steps: Plan, objections: list[str]) -> dict[str, Any]:
        """A plan as people and programs read it."""
        before, after = set(steps.links_before.pairs()), set(steps.links_after.pairs())
        return {
            "state": "planned",
            "changes": {
                name: {"breaks": [str(c) for c in x.breaks], "makes": [str(c) for c in x.makes]}
                for name, x in steps.changes.items()
            },
            "links_down": [f"{a}:{b}" for a, b in sorted(before - after)],
            "links_up": [f"{a}:{b}" for a, b in sorted(after - before)],
            "jobs": self.traffic.jobs_using(steps.moved),
            # Cross-connects that go without another in their place.
            "lost": {
                name: len(x.breaks) - len(x.makes)
                for name, x in steps.changes.items()
                if len(x.breaks) > len(x.makes)
            },
            "cleared": [n for n in steps.changes if steps.before[n] and not len(steps.wanted[n])],
            "objections": objections,
            "planned_from": fingerprint(steps.before),
        }

    # -- what can be asked for -----------------------------------------------------------------

    def undoing(self, number: int) -> tuple[Decide, dict[str, PortMap]]:
        """What undoes one change and nothing else, and the cross-connects it asks for.

        Its ``Decide`` raises ``Refused`` where later changes took the ports. ``BadInput`` for
        a change that is not there or did not come about.
        """
        record = self.store.reconfiguration(number)
        if record is None:
            raise BadInput(f"there is no change {number}: 'patchlight ocs history' shows them")
        if record["state"] != "committed":
            raise BadInput(f"change {number} is {record['state']}: there is nothing to undo")
        made = {n: PortMap.parse(c["makes"]) for n, c in record["changes"].items()}
        broken = {n: PortMap.parse(c["breaks"]) for n, c in record["changes"].items()}

        def decide(maps: Mapping[str, PortMap]) -> dict[str, PortMap]:
            wanted, clashes = {}, []
            for name in made:
                here = frozenset(maps[name])
                clashes += [f"{name} {c} is gone" for c in made[name] if c not in here]
                kept = PortMap.of(c for c in maps[name] if c not in frozenset(made[name]))
                inputs, outputs = kept.out_of, kept.in_of
                clashes += [
                    f"{name} {c.inp} or {c.out} is in use"
                    for c in broken[name]
                    if (c.inp in inputs or c.out in outputs) and c not in here
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
        committed = self.reconfigurer.commitments.maps
        for name in names:
            if self.lab.circuit_switch(name).name not in committed:
                raise Refused(f"nothing was ever committed for {name}: it was never seen yet")
        return {name: committed[name] for name in self.named(names) if name in committed}

    async def save(self, name: str, names: Collection[str], by: str, why: str) -> dict[str, Any]:
        """Keep the present maps under a name."""
        maps = await self.reconfigurer.read_maps()
        kept = {ocs: as_texts(maps[ocs]) for ocs in self.named(names)}
        record = {"name": name, "maps": kept, "by": by, "why": why, "at": time.time()}
        self.store.save_map(name, record)
        return record

    def saved(self, name: str) -> dict[str, PortMap]:
        """The maps kept under a name; ``BadInput`` if there are none."""
        found = self.store.saved_maps()
        if name not in found:
            raise BadInput(f"no maps are saved as {name!r}: there are {', '.join(found) or 'none'}")
        return {ocs: PortMap.parse(texts) for ocs, texts in found[name]["maps"].items()}


def _drift_as_json(drift: Drift) -> dict[str, list[str]]:
    return {
        "missing": [str(c) for c in drift.missing],
        "unknown": [str(c) for c in drift.unknown],
    }


def _light_as_json(judged: PortReading, *, monitored: bool) -> dict[str, Any]:
    expected, verdict = judged.expected, judged.verdict
    if not monitored:
        verdict = PowerVerdict("unverified", "unverified, no power monitor at the outputs")
    return {
        "cross_connect": str(judged.cross_connect),
        "in_dbm": judged.in_dbm,
        "out_dbm": judged.out_dbm,
        "expected_dbm": expected.power_dbm if expected else None,
        "baseline_dbm": judged.baseline_dbm,
        "source": str(expected.source) if expected else None,
        "verdict": verdict.kind,
        "words": verdict.words,
    }


def _dark_as_json(text: str) -> dict[str, Any]:
    return {
        "cross_connect": text,
        "in_dbm": None,
        "out_dbm": None,
        "expected_dbm": None,
        "baseline_dbm": None,
        "source": None,
        "verdict": "unverified",
        "words": "unverified, no power monitor",
    }
