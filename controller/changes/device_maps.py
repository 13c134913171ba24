"""Reads, caches and commits the maps of the optical switches that answer.

A switch that does not answer is not changed, and does not delay the others. It is polled in the
background, with growing intervals, until it answers.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from patchlight.controller.changes.plan import ChangePlan, Changes, plan_change
from patchlight.controller.changes.record import Reconfiguration, Refused
from patchlight.controller.circuits.contract import (
    Alarm,
    DeviceUnreachable,
    Drivers,
    LoginRefused,
)
from patchlight.controller.storage.store import Store
from patchlight.testbed.clock import unix_s
from patchlight.testbed.errors import PatchlightError, in_words
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import AnyMap, PortMap, SwitchMap
from patchlight.testbed.lab.wiring import (
    Links,
    circuits_of,
    driven,
    lab_links,
    recorded_map,
)

log = logging.getLogger("patchlight.circuits")

M = TypeVar("M", bound=AnyMap)

_JUST_READ_S = 1.0
_FIRST_PAUSE_S = 0.5
_PAUSE_GROWTH = 2.0
_LONGEST_PAUSE_S = 30.0
# Some units lock an account after a few wrong passwords.
_PAUSE_AFTER_LOGIN_REFUSED_S = 300.0


class KnownMaps(dict[str, M]):
    """The maps of the optical switches that answer; ``unread`` says why the others do not.

    Looking up an unknown map raises ``Refused``: no change may rely on it.
    """

    def __init__(
        self, read: Mapping[str, M], unread: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(read)
        self.unread = dict(unread or {})

    def __missing__(self, name: str) -> M:
        if name not in self.unread:
            raise KeyError(name)
        raise Refused(
            f"nothing was changed: the map of {name} is unknown: {self.unread[name]}",
            hint="'patchlight status --wide' shows when it answers; other switches can be "
            "changed meanwhile",
        )


class Maps(KnownMaps[AnyMap]):
    """The same, with the last known maps ``assumed`` for those that do not answer.

    A switch that does not answer has most likely kept its mirrors, so its circuits count as up for
    flow entries: deleting entries of working links breaks traffic, and entries of links that are
    down are harmless (each names one NIC, and frames cannot loop). For new decisions, such as
    placing or regrouping jobs, they count as down.
    """

    def __init__(
        self,
        read: Mapping[str, AnyMap],
        assumed: Mapping[str, AnyMap] | None = None,
        unread: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(read, unread)
        self.assumed = dict(assumed or {})

    @property
    def circuits(self) -> KnownMaps[PortMap]:
        """Maps of circuit switches only."""
        return KnownMaps(circuits_of(self), self.unread)

    @property
    def everywhere(self) -> dict[str, AnyMap]:
        """These maps, and the assumed ones."""
        return {**self.assumed, **self}

    def after(self, wanted: Mapping[str, AnyMap]) -> Maps:
        """The same with these maps of switches that answer."""
        return Maps(
            {name: wanted.get(name, m) for name, m in self.items()},
            self.assumed,
            self.unread,
        )


def circuits_in(maps: Mapping[str, AnyMap]) -> Mapping[str, PortMap]:
    """Maps of circuit switches only; an unknown one is refused as above."""
    return maps.circuits if isinstance(maps, Maps) else circuits_of(maps)


Decide = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""From present maps to wanted maps (``PortMap`` or ``SpectrumMap``) of the switches that change."""


@dataclass
class _Unreachable:
    message: str
    since: float = field(default_factory=unix_s)
    pause_s: float = _FIRST_PAUSE_S


class DeviceMonitor:
    """The optical switches of a lab.

    A switch of the lab without a driver here counts as one that does not answer; a wavelength
    switch without a driver in the lab file always has the file's map.
    """

    def __init__(
        self,
        lab: Lab,
        drivers: Drivers,
        committed: CommittedMaps,
        store: Store,
    ) -> None:
        self._lab = lab
        self._drivers = drivers
        self._committed = committed
        self._store = store
        self._unreachable: dict[str, _Unreachable] = {}
        self._last_maps: dict[str, AnyMap] = {}
        self._fixed = {
            s.name: s.initial for s in lab.wavelength_switches if not s.driver
        }
        self._last_alarms: dict[str, Alarm] = {}
        self._opened: set[str] = set()
        self._left_to_watch = False
        self._changed = {name: asyncio.Event() for name in drivers}

    @property
    def unread(self) -> dict[str, str]:
        """Which optical switches do not answer, and why."""
        apart = {
            switch.name: f"this command does not connect to {switch.name}"
            for switch in self._lab.optical_switches
            if switch.name not in self._drivers
            and switch.name not in self._fixed
        }
        return apart | {
            name: lost.message for name, lost in self._unreachable.items()
        }

    def status(self) -> list[dict[str, Any]]:
        """Each optical switch: whether it answers; if not, since when and why."""
        return [
            {
                "name": name,
                "reachable": lost is None,
                "since": lost.since if lost else None,
                "words": lost.message if lost else "",
            }
            for name in self._drivers
            for lost in [self._unreachable.get(name)]
        ]

    def unseen_hosts(self) -> dict[str, str]:
        """The hosts at optical switches that do not answer, and why."""
        unread = self.unread
        ends = (
            (h.name, self._lab.fibre_ends.get(h.endpoint))
            for h in self._lab.hosts
        )
        return {
            name: f"{end[0].device}: {unread[end[0].device]}"
            for name, end in ends
            if end is not None and end[0].device in unread
        }

    async def open(self) -> None:
        """Open all devices that are closed or did not answer, in parallel; mark failures."""
        self._left_to_watch = True

        async def open_or_mark(name: str) -> None:
            try:
                await self._open(name)
            except (
                Exception
            ) as error:  # a driver's bug must not affect the others
                self._mark_unreachable(name, error)

        away = self._unreachable.keys() | (self._drivers.keys() - self._opened)
        async with asyncio.TaskGroup() as group:
            for name in self._drivers:
                if name in away:
                    group.create_task(open_or_mark(name))

    async def read_maps(self) -> Maps:
        """Read the present maps from all devices in parallel; mark failures."""
        # Devices that do not answer are polled in the background, not here.
        requested = [
            n
            for n in self._drivers
            if not (self._left_to_watch and n in self._unreachable)
        ]
        reading = (self._drivers[name].read_map() for name in requested)
        answers = await asyncio.gather(*reading, return_exceptions=True)
        maps: dict[str, AnyMap] = {}
        for name, answer in zip(requested, answers, strict=True):
            if isinstance(answer, SwitchMap):
                maps[name] = self._last_maps[name] = answer
                self._mark_reachable(name)
            elif isinstance(
                answer, Exception
            ):  # a driver's bug must not affect the others
                self._mark_unreachable(name, answer)
            else:
                raise answer
        unread = self.unread
        known = {**self._committed.maps, **self._last_maps}
        assumed = {
            n: known[n] if n in known else recorded_map(self._lab, n, ())
            for n in unread
        }
        return Maps({**maps, **self._fixed}, assumed, unread)

    async def alarms(self, name: str) -> Sequence[Alarm]:
        """The alarms of a device; empty (and it is marked) if it does not answer."""
        try:
            return await self._drivers[name].alarms()
        except (DeviceUnreachable, LoginRefused) as error:
            self._mark_unreachable(name, error)
            return ()

    async def new_alarms(self, name: str) -> Sequence[Alarm]:
        """The new alarms of this device since the last call; at first, all."""
        alarms = await self.alarms(name)
        last = self._last_alarms.get(name)
        if alarms:
            self._last_alarms[name] = alarms[-1]
        return alarms[alarms.index(last) + 1 :] if last in alarms else alarms

    async def watch(self, returned: Callable[[str], Awaitable[None]]) -> None:
        """Reopen devices that do not answer; call ``returned`` for each that does again."""
        self._left_to_watch = True
        for name in (
            self._unreachable
        ):  # also those that an earlier watch did not restore
            self._changed[name].set()
        async with asyncio.TaskGroup() as group:
            for name in self._drivers:
                group.create_task(self._keep(name, returned))

    async def _keep(
        self, name: str, returned: Callable[[str], Awaitable[None]]
    ) -> None:
        while True:
            await self._changed[name].wait()
            self._changed[name].clear()
            while (lost := self._unreachable.get(name)) is not None:
                await asyncio.sleep(lost.pause_s)
                try:
                    await self._open(name)
                except Exception as error:
                    lost.message = in_words(error)
                    longer_s = min(
                        _PAUSE_GROWTH * lost.pause_s, _LONGEST_PAUSE_S
                    )
                    is_refused = isinstance(error, LoginRefused)
                    lost.pause_s = (
                        _PAUSE_AFTER_LOGIN_REFUSED_S
                        if is_refused
                        else longer_s
                    )
            try:
                await returned(name)
            except Exception as error:
                log.warning(
                    "%s answers again, then: %s", name, in_words(error)
                )

    async def _open(self, name: str) -> None:
        if name in self._opened:
            self._last_maps[name] = await self._drivers[name].read_map()
        else:
            await self._drivers[name].open()
            self._opened.add(name)
        self._mark_reachable(name)

    def _mark_unreachable(self, name: str, error: Exception) -> None:
        """It did not answer: do not use it until it does."""
        if name in self._unreachable:
            self._unreachable[name].message = in_words(error)
            return
        self._unreachable[name] = lost = _Unreachable(in_words(error))
        if isinstance(error, LoginRefused):
            lost.pause_s = _PAUSE_AFTER_LOGIN_REFUSED_S
        if not isinstance(error, PatchlightError):
            log.error("%s", name, exc_info=error)
        log.warning("%s does not answer: %s", name, lost.message)
        self._store.add_event(
            lost.since, "unreachable", {"ocs": name, "message": lost.message}
        )
        self._changed[name].set()

    def _mark_reachable(self, name: str) -> None:
        lost = self._unreachable.pop(name, None)
        if lost is not None:
            away_s = round(time.time() - lost.since, 1)
            log.warning("%s answers again after %.1f s", name, away_s)
            self._store.add_event(
                time.time(), "reachable", {"ocs": name, "away_s": away_s}
            )


class MapCache:
    """Caches maps (``last``), so that not every plan reads every device."""

    def __init__(self, lab: Lab, devices: DeviceMonitor) -> None:
        self._lab = lab
        self._devices = devices
        self.last: Maps | None = None
        self._read_at_s = -math.inf
        self._present: tuple[Mapping[str, AnyMap], Links] | None = None
        self._planned: ChangePlan | None = None

    async def read(self) -> Maps:
        """Read the present map of every optical switch that answers."""
        self.last = await self._devices.read_maps()
        self._read_at_s = time.monotonic()
        return self.last

    async def just_read(self) -> Maps:
        """Those read within the last second, or now."""
        is_new = time.monotonic() - self._read_at_s < _JUST_READ_S
        return self.last if self.last and is_new else await self.read()

    def present_links(self) -> Links | None:
        """The links of the last known maps; ``None`` while none are known."""
        if self.last is None:
            return None
        maps = self.last.everywhere
        if self._present is None or maps != self._present[0]:
            self._present = maps, self.links(maps)
        return self._present[1]

    def links(self, maps: Mapping[str, AnyMap]) -> Links:
        """The links of these maps."""
        return lab_links(self._lab, maps)

    def plan(self, maps: Maps, decide: Decide) -> ChangePlan:
        """The plan from ``maps`` to what ``decide`` wants; ``Refused`` if a map is unknown."""
        wanted = decide(maps)
        for name in wanted:
            if name in maps.unread:
                maps[name]  # raises Refused with the reason
        before = maps.everywhere
        made = self._planned
        # A change that was shown first has an equal plan if the maps are equal.
        if (
            made is None
            or made.before != before
            or made.wanted != {**before, **wanted}
        ):
            made = self._planned = plan_change(self._lab, before, wanted)
        for name in made.changes:
            driven(self._lab.optical_switch(name))
        return made

    def done(self, plan: ChangePlan, maps: Maps) -> None:
        """The plan was carried out; ``maps`` were read before its first write."""
        self.last = maps.after(plan.wanted)

    def forget(self) -> None:
        """Read the devices before the next plan."""
        self.last = None


@dataclass(frozen=True)
class Drift:
    """How a device differs from its last committed map."""

    missing: tuple[Any, ...]
    unknown: tuple[Any, ...]

    def __bool__(self) -> bool:
        return bool(self.missing or self.unknown)

    def as_texts(self) -> dict[str, list[str]]:
        """The difference in the form of events and the API."""
        return {
            "missing": [str(c) for c in self.missing],
            "unknown": [str(c) for c in self.unknown],
        }


class CommittedMaps:
    """Committed maps, stored with the change that committed them."""

    def __init__(self, store: Store, lab: Lab | None = None) -> None:
        self._lab = lab
        self._store = store
        self._maps: dict[str, AnyMap] = store.committed_maps(
            lambda name, row: recorded_map(lab, name, row["map"] or ())
        )
        lost = store.committed_maps(lambda _, row: row["map"] is None)
        self.unreadable = {name for name, is_lost in lost.items() if is_lost}
        """Switches whose committed map was lost: all their circuits are drift until adopted."""
        self._lose_unnamed()

    def _lose_unnamed(self) -> None:
        """A lost map of a switch that the lab does not have may be that of any switch without one:
        its name may be damaged, too."""
        switches = (
            [switch.name for switch in self._lab.optical_switches]
            if self._lab
            else []
        )
        if self.unreadable <= set(switches):
            return
        missing = [name for name in switches if name not in self._maps]
        self._maps |= {
            name: recorded_map(self._lab, name, ()) for name in missing
        }
        self.unreadable |= set(missing)

    @property
    def maps(self) -> dict[str, AnyMap]:
        """The committed map of each optical switch that has one."""
        return dict(self._maps)

    def after(
        self, plan: ChangePlan, adopts: Mapping[str, AnyMap]
    ) -> dict[str, AnyMap]:
        """The committed maps after this plan.

        Entries that others made or broke on the device remain drift, except those in ``adopts``.
        """
        maps: dict[str, AnyMap] = {}
        for name in {**plan.changes, **adopts}:
            if name in self.unreadable and name not in adopts:
                continue
            committed = self._maps.get(name)
            wanted = plan.wanted[name]
            adopted = adopts[name] if name in adopts else wanted.of(())
            if (
                committed is None
                or committed == plan.before[name]
                or adopted == wanted
            ):
                maps[name] = wanted
                continue
            change = plan.before[name].diff(wanted)
            kept = committed.without(change.breaks)
            maps[name] = kept.joined(wanted.of(change.makes)).joined(adopted)
        return maps

    def of(self, record: Reconfiguration) -> dict[str, AnyMap]:
        """The committed maps after a finished change, from its record."""
        changed = {
            **record.changes,
            **record.commits,
            **dict.fromkeys(record.adopted),
        }
        return {
            name: recorded_map(
                self._lab, name, record.commits.get(name, record.wanted[name])
            )
            for name in changed
            if name not in self.unreadable or name in record.adopted
        }

    def with_changes(self, changes: Changes) -> dict[str, AnyMap]:
        """The present committed maps of these switches, after these changes."""
        names = self._maps.keys() - self.unreadable
        known = {
            name: (self._maps[name], c)
            for name, c in changes.items()
            if name in names
        }
        return {
            name: kept.without(change.breaks).joined(kept.of(change.makes))
            for name, (kept, change) in known.items()
        }

    def take(self, maps: Mapping[str, AnyMap]) -> None:
        """These are committed now; they are stored already."""
        self._maps.update(maps)
        self.unreadable -= maps.keys()

    def begin_with(self, present: Mapping[str, AnyMap]) -> None:
        """Commit the maps of devices that were never seen before."""
        if not (
            new := {
                name: m
                for name, m in present.items()
                if name not in self._maps
            }
        ):
            return
        origin = {"reconfiguration": None, "at": time.time()}
        self._store.commit_maps(
            {
                name: {"map": [*m.one_way_texts], **origin}
                for name, m in new.items()
            }
        )
        self._maps.update(new)

    def drift(self, present: Mapping[str, AnyMap]) -> dict[str, Drift]:
        """How each device differs from its committed map."""
        drift = {}
        for name, now in present.items():
            change = self._maps.get(name, now).diff(now)
            drift[name] = Drift(
                missing=change.breaks,
                unknown=change.makes,
            )
        return drift
