"""Ports of circuit switches that are one search's alone, for a while, and what they had before.

What has to be put back is in the store before anything is touched: the next controller does it.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace

from patchlight.controller.changes.device_maps import Decide
from patchlight.controller.changes.parts import CircuitParts
from patchlight.controller.changes.preflight import LockKind
from patchlight.controller.changes.record import ChangeOptions, Refused
from patchlight.controller.changes.transaction import Transactions
from patchlight.controller.discovery.search import Light
from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.jobs.scheduler import Scheduler
from patchlight.controller.openflow.packet_switches import PacketSwitches
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.portmap import CrossConnect, PortMap

_log = logging.getLogger(__name__)

_MARK = "discovery"
_KEPT: LockKind = "kept"
_PAUSES_S = (0.5, 2.0)


class _NothingWritten(PatchlightError):
    """A change of the window was refused: locked, or the stop button is pressed."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A window that is open: whose, its ports by OCS, the circuits that they had before, and
    whether the queue of jobs was held for it."""

    by: str
    ports: dict[str, list[int]]
    before: dict[str, list[str]]
    queue_held: bool
    whole: bool


class MaintenanceWindow:
    """The maintenance window of a search; there is one at most."""

    def __init__(
        self,
        parts: CircuitParts,
        transactions: Transactions,
        switches: PacketSwitches,
        scheduler: Scheduler,
        jobs: JobTable,
    ) -> None:
        self._parts, self._transactions, self._switches = parts, transactions, switches
        self._scheduler, self._jobs = scheduler, jobs

    @property
    def opened(self) -> Opened | None:
        """The window that is open, also one that an earlier controller left so."""
        return self._parts.store.mark(_MARK, lambda row: Opened(**row))

    async def ports(self, wanted: Mapping[str, Collection[int]]) -> dict[str, list[int]]:
        """Those of the wanted ports (all, if none are named) that can be lit, by OCS.

        ``Refused`` if a wanted one is locked or out of order, or its circuit leads out of the
        window; ``BadInput`` for a port that there is not, and for one that is alone.
        """
        parts = self._parts
        if parts.lab.sorting:
            raise Refused(
                f"the lab has {parts.lab.sorting[0].name}, which sorts or splits light: where the "
                "fibres behind it go cannot be found out yet"
            )
        for ocs, numbers in wanted.items():
            last = parts.lab.circuit_switch(ocs).ports
            if wrong := [number for number in numbers if not 1 <= number <= last]:
                raise BadInput(f"{ocs} has ports 1–{last}, not {wrong[0]}")
        staying, failed = await parts.closed_ports()
        maps = await parts.maps.read()
        found: dict[str, list[int]] = {}
        for switch in parts.lab.circuit_switches:
            ocs = switch.name
            closed = {*staying.get(ocs, ()), *failed.get(ocs, ())}
            if wanted:
                numbers = sorted(set(wanted.get(ocs, ())))
                if numbers and ocs in maps.unread:
                    raise Refused(f"{ocs} does not answer: {maps.unread[ocs]}")
                if len(numbers) == 1:
                    raise BadInput(
                        f"{ocs}.{numbers[0]} alone has nowhere to get light from",
                        hint=f"name another port of {ocs} with it, best one whose fibre is known",
                    )
                if shut := closed & set(numbers):
                    raise Refused(f"{ocs}.{min(shut)} is locked or out of order: leave it out")
            elif ocs in maps.unread:
                continue
            else:
                staying_too = _with_their_ends(closed, maps.circuits[ocs])
                numbers = [n for n in range(1, switch.ports + 1) if n not in staying_too]
            inside = set(numbers)
            for c in maps[ocs] if numbers else ():
                if len(inside & {c.inp, c.out}) == 1 and c.inp != c.out:
                    raise Refused(
                        f"circuit {c} of {ocs} leads out of the ports that were named",
                        hint=f"name {ocs}.{c.inp} and {ocs}.{c.out}, or free them first",
                    )
            if numbers:
                found[ocs] = numbers
        return found

    async def objections(self, ports: Mapping[str, Collection[int]], *, whole: bool) -> list[str]:
        """What speaks against a window of these ports now, in words."""
        found: list[str] = []
        if (open_now := self.opened) is not None:
            found.append(f"{open_now.by} has circuits away from their places already")
        if stopped := self._parts.stop.message:
            found.append(stopped)
        busy = [status.id for status in self._jobs.live() if not status.state.is_waiting]
        if whole and busy:
            found.append(f"the lab is not idle: {', '.join(busy)}")
        drifted = [o for o, d in (await self._transactions.drift()).items() if d and o in ports]
        if drifted:
            found.append(f"{', '.join(drifted)}: not as committed, see 'patchlight ocs drift'")
        options = ChangeOptions(spare_jobs=True)
        _, against = await self._transactions.preview(_only(ports, {}), options)
        return list(dict.fromkeys(found + against))

    async def open(
        self, ports: Mapping[str, Collection[int]], caller: ChangeOptions, *, whole: bool
    ) -> None:
        """Keep everybody else off these ports, and jobs from starting. ``Refused`` says why not."""
        if objections := await self.objections(ports, whole=whole):
            raise Refused(
                f"the wiring was not looked at: {'; '.join(objections)}",
                hint="wait for the jobs or stop them, or name free ports with --ports",
            )
        opened = Opened(
            by=f"wiring discovery of {caller.by}",
            ports={ocs: list(numbers) for ocs, numbers in ports.items()},
            before=await self.circuits(ports),
            queue_held=not self._scheduler.drained,
            whole=whole,
        )
        self._parts.store.set_mark(_MARK, asdict(opened))
        self._parts.store.add_event(time.time(), "discovery-begun", {"by": caller.by})
        if opened.queue_held:
            self._scheduler.hold_queue(opened.by)
        why = "its wiring is looked at"
        for ocs, numbers in ports.items():
            self._parts.locks.lock(ocs, numbers, _KEPT, opened.by, why)
        # What was under way when the ports were locked has come to its end after this.
        await self._transactions.drift()
        latest = replace(opened, before=await self.circuits(ports))
        self._parts.store.set_mark(_MARK, asdict(latest))
        self._switches.hand_over_probes = True

    async def circuits(self, ports: Mapping[str, Collection[int]]) -> dict[str, list[str]]:
        """The cross-connects of these ports now."""
        maps = await self._parts.maps.read()
        return {
            ocs: [str(c) for c in maps[ocs] if set(numbers) & {c.inp, c.out}]
            for ocs, numbers in ports.items()
        }

    async def light(self, light: Light, why: str) -> None:
        """Light these cross-connects, and no others of the window's ports."""
        wanted: dict[str, list[CrossConnect]] = {}
        for inp, out in light.items():
            wanted.setdefault(inp.ocs, []).append(CrossConnect(inp.number, out.number))
        await self._change({ocs: PortMap.of(circuits) for ocs, circuits in wanted.items()}, why)

    async def close(self) -> None:
        """Put everything back as it was; harmless where nothing is open.

        ``PatchlightError`` if it cannot be: then the ports stay locked, and this can be called
        again.
        """
        opened = self.opened
        if opened is None:
            return
        self._switches.hand_over_probes = False
        before = {ocs: PortMap.parse(texts) for ocs, texts in opened.before.items()}
        for pause_s in (*_PAUSES_S, None):
            try:
                await self._change(before, "as before the wiring was looked at", restores=True)
                break
            except PatchlightError as error:
                if pause_s is None:
                    kind = Refused if isinstance(error, _NothingWritten) else PatchlightError
                    raise kind(
                        f"the circuits are not as they were before: {error.message}",
                        hint="put right what is in the way, then: patchlight lab discover "
                        f"{self._parts.lab.name} --restore",
                    ) from error
                await asyncio.sleep(pause_s)
        for ocs, numbers in opened.ports.items():
            self._parts.locks.unlock(ocs, numbers, opened.by, "its wiring was looked at")
        if opened.queue_held:
            self._scheduler.resume()
        self._parts.store.set_mark(_MARK, None)
        self._parts.store.add_event(time.time(), "discovery-ended", {"by": opened.by})

    async def _change(
        self, circuits: Mapping[str, PortMap], why: str, *, restores: bool = False
    ) -> None:
        opened = self.opened
        assert opened is not None
        options = ChangeOptions(by=opened.by, spare_jobs=not restores, judged=False)
        decide = _only(opened.ports, circuits)
        record = await self._transactions.change(decide, why, options)
        if record.state != "committed":
            kind = _NothingWritten if record.state == "refused" else PatchlightError
            raise kind(f"change {record.id} came to: {record.state}, {record.message}")


def _only(ports: Mapping[str, Collection[int]], circuits: Mapping[str, PortMap]) -> Decide:
    """Of these ports these circuits and no others; all other ports as they are."""

    def decide(maps: Mapping[str, PortMap]) -> dict[str, PortMap]:
        return {
            ocs: _beside(maps[ocs], numbers).joined(circuits.get(ocs, PortMap()))
            for ocs, numbers in ports.items()
        }

    return decide


def _with_their_ends(numbers: Collection[int], port_map: PortMap) -> set[int]:
    """These ports, and those that circuits join to them, however many there are in between."""
    joined = set(numbers)
    while more := {n for c in port_map if joined & {c.inp, c.out} for n in c} - joined:
        joined |= more
    return joined


def _beside(port_map: PortMap, numbers: Collection[int]) -> PortMap:
    inside = set(numbers)
    return PortMap.of(c for c in port_map if not inside & {c.inp, c.out})
