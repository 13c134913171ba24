"""Grants optical paths on request: the book of granted and waiting paths (time is an argument), and
the service with a clock. A path whose user is silent for a lease ends."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any, Literal

from patchlight.controller.changes.record import Refused
from patchlight.controller.storage.store import Store
from patchlight.testbed.clock import unix_s
from patchlight.testbed.errors import BadInput, nearest
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import AnyMap
from patchlight.testbed.paths.light_networks import (
    LightNetwork,
    light_networks,
)
from patchlight.testbed.paths.schedulers import path_scheduler
from patchlight.testbed.paths.scheduling import FlowRequest, PathScheduler
from patchlight.testbed.wire.rest.circuits import PathShape
from patchlight.testbed.wire.rest.requests import LONGEST_LEASE_S, PathRequest

_MOST_PATHS = 10_000
_KEPT = 1000

_LONGEST_PAUSE_S = 5.0
_MARK = "paths"
# Stored ahead, so that few paths wait for the disk.
_AHEAD_S = 1.0
_AHEAD = 100


@dataclass
class _Lane:
    network: LightNetwork
    scheduler: PathScheduler


class PathBook:
    """The paths of a lab's networks, numbered after ``last``. Nothing is granted before
    ``quiet_until``, because earlier paths may be in use until then."""

    def __init__(
        self,
        scheduler: str = "collective",
        quiet_until: float = 0.0,
        last: int = 0,
    ) -> None:
        self.scheduler = scheduler
        self.last = last
        self._quiet_until = quiet_until
        self._lanes: list[_Lane] = []
        self._of_host: dict[str, _Lane] = {}
        self._live: dict[int, PathShape] = {}
        self._ended: deque[PathShape] = deque(maxlen=_KEPT)

    @property
    def networks(self) -> list[LightNetwork]:
        """The present networks."""
        return [lane.network for lane in self._lanes]

    @property
    def live(self) -> list[PathShape]:
        """The granted and waiting paths, in order of their requests."""
        return list(self._live.values())

    def light_is(self, networks: Sequence[LightNetwork], now: float) -> None:
        """Set the present networks; all paths of changed ones end."""
        kept = []
        for network in networks:
            lane = next(
                (lane for lane in self._lanes if lane.network.same(network)),
                None,
            )
            kept.append(
                lane
                or _Lane(
                    network, path_scheduler(self.scheduler, network.paths)
                )
            )
        self._lanes = kept
        self._of_host = {
            host: lane for lane in kept for host in lane.network.hosts
        }
        for path in self.live:
            lane = self._of_host.get(path.source)
            if lane is None or not lane.scheduler.has(path.id):
                self._end(path, "expired", now)

    def want(
        self,
        wanted: PathRequest,
        by: str,
        now: float,
    ) -> PathShape:
        """Queue a flow, whose path may be granted immediately; may raise ``BadInput`` or
        ``Refused``."""
        lane = self._lane(wanted.source)
        if wanted.destination not in lane.network.numbers:
            self._lane(wanted.destination)
            raise BadInput(
                f"there is no path from {wanted.source} to {wanted.destination}: they are in "
                "different networks",
                hint="see 'patchlight ocs show --paths'",
            )
        if len(self._live) >= _MOST_PATHS:
            raise Refused(
                f"{_MOST_PATHS} paths are in use or waiting: retry later"
            )
        number = self.last + 1
        numbers = lane.network.numbers
        deadline_s = (
            inf if wanted.deadline_s is None else now + wanted.deadline_s
        )
        flow = FlowRequest(
            number,
            numbers[wanted.source],
            numbers[wanted.destination],
            wanted.bytes,
            deadline_s,
            wanted.collective,
            wanted.round,
        )
        try:
            refused = lane.scheduler.admit([flow], now)
        except BadInput as error:
            if flow.source == flow.destination:
                words = f"{wanted.source} requests a path to itself: expected another destination"
                raise BadInput(words) from error
            raise
        if refused:
            raise Refused(
                f"{wanted.source} gets no path to {wanted.destination}: {refused[0].reason}"
            )
        self.last = number
        path = PathShape(
            **wanted.model_dump(exclude={"deadline_s"}),
            id=number,
            by=by,
            wanted_at=now,
            until=now + wanted.lease_s,
            state="waiting",
            channel=None,
            starts_at=None,
            ends_at=None,
            ended_at=None,
        )
        self._live[number] = path
        self._grant(lane, now)
        return path

    def look(
        self,
        number: int,
        now: float,
        by: str,
    ) -> PathShape:
        """One path, active or recently ended. Reading keeps a waiting one alive."""
        path = self._found(number)
        if path.state == "waiting" and path.by == by:
            path.until = now + path.lease_s
        return path

    def release(self, number: int, now: float) -> PathShape:
        """End a path, or cancel its request."""
        path = self._found(number)
        if path.id in self._live:
            self._end(path, "released", now)
        return path

    def expire(self, now: float) -> float:
        """End paths whose lease is over; returns when to call again, infinity for never."""
        for path in self.live:
            if path.until <= now:
                self._end(path, "expired", now)
        ends = [path.until for path in self._live.values()]
        if now < self._quiet_until:
            return min(*ends, self._quiet_until, inf)
        for lane in self._lanes:
            self._grant(lane, now)
        return min(ends, default=inf)

    def _found(self, number: int) -> PathShape:
        path = self._live.get(number) or next(
            (p for p in self._ended if p.id == number), None
        )
        if path is None:
            raise BadInput(
                f"unknown path {number}: see 'patchlight ocs show --paths'"
            )
        return path

    def _lane(self, host: str) -> _Lane:
        if host in self._of_host:
            return self._of_host[host]
        words = "no two tunable transceivers have an optical path between them"
        if self._of_host:
            words = nearest(host, list(self._of_host), "expected one of")
        raise BadInput(f"{host} cannot have paths: {words}")

    def _end(
        self,
        path: PathShape,
        state: Literal["released", "expired"],
        now: float,
    ) -> None:
        del self._live[path.id]
        path.state = state
        path.ended_at = now
        self._ended.append(path)
        lane = self._of_host.get(path.source)
        if lane is not None and lane.scheduler.has(path.id):
            lane.scheduler.release(path.id, now)
            self._grant(lane, now)

    def _grant(self, lane: _Lane, now: float) -> None:
        if now < self._quiet_until:
            return
        for grant in lane.scheduler.grants(now):
            path = self._live[grant.flow]
            path.state = "granted"
            path.channel = str(lane.network.channels[grant.channel])
            path.starts_at = grant.starts_s
            path.ends_at = grant.ends_s if isfinite(grant.ends_s) else None
            path.until = now + path.lease_s


def _marked(row: Mapping[str, Any], now: float) -> tuple[float, int]:
    until = float(row["until"])
    last = int(row["last"])
    if not 0 <= until <= now + 2 * LONGEST_LEASE_S or last < 0:
        raise ValueError(f"no path has a lease until {until}")
    return until, last


class PathService:
    """Grants optical paths on request, and ends expired ones. The ``store`` keeps until when paths
    may be in use: the next controller grants none before."""

    def __init__(
        self,
        lab: Lab,
        maps: Callable[[], Mapping[str, AnyMap] | None],
        clock: Callable[[], float] = unix_s,
        store: Store | None = None,
    ) -> None:
        self._store = store
        # As if the longest lease had been granted just now; numbers must not be used again.
        found = store and store.mark(
            _MARK,
            lambda row: _marked(row, clock()),
            unreadable=lambda: {
                "until": clock() + LONGEST_LEASE_S,
                "last": int(clock()),
            },
        )
        self._marked_until, self._marked_last = found or (0.0, 0)
        self.book = PathBook(
            quiet_until=self._marked_until,
            last=self._marked_last,
        )
        self._lab = lab
        self._maps = maps
        self._clock = clock
        self._seen: Mapping[str, AnyMap] | None = None
        self._looking = asyncio.Lock()
        self._changed = asyncio.Event()

    @property
    def knows_light(self) -> bool:
        """Whether the networks are known."""
        return self._seen is not None

    async def want(self, wanted: PathRequest, by: str) -> PathShape:
        """Request a path; ``BadInput`` and ``Refused`` as in ``PathBook.want``."""
        await self.follow_light()
        self.book.expire(self._clock())
        path = self.book.want(wanted, by, self._clock())
        self._wake()
        return path

    async def look(
        self,
        number: int,
        by: str,
        wait_s: float = 0.0,
    ) -> PathShape:
        """One path; if it waits, after a change or ``wait_s``."""
        ends = asyncio.get_running_loop().time() + wait_s
        while True:
            path = self.book.look(number, self._clock(), by)
            left_s = ends - asyncio.get_running_loop().time()
            if path.state != "waiting" or left_s <= 0:
                return path
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._changed.wait()

    def release(self, number: int) -> PathShape:
        """End a path, or cancel its request."""
        path = self.book.release(number, self._clock())
        self._wake()
        return path

    async def run(self) -> None:
        """End paths whose lease is over."""
        while True:
            await self.follow_light()
            before = [(path.id, path.state) for path in self.book.live]
            again_at = self.book.expire(self._clock())
            if before != [(path.id, path.state) for path in self.book.live]:
                self._wake()
            pause_s = min(
                max(0.01, again_at - self._clock()), _LONGEST_PAUSE_S
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()

    async def follow_light(self) -> None:
        """Update the networks if maps have changed."""
        async with self._looking:
            maps = self._maps()
            if maps is None or maps == self._seen:
                return
            networks = await asyncio.to_thread(
                light_networks, self._lab, dict(maps)
            )
            self.book.light_is(networks, self._clock())
            self._seen = dict(maps)
        self._wake()

    def _wake(self) -> None:
        until = max(
            (p.until for p in self.book.live if p.state == "granted"),
            default=0.0,
        )
        if self._store and (
            until > self._marked_until or self.book.last > self._marked_last
        ):
            marked_until = max(self._marked_until, until + _AHEAD_S)
            marked_last = self.book.last + _AHEAD
            self._store.set_mark(
                _MARK, {"until": marked_until, "last": marked_last}
            )
            self._marked_until = marked_until
            self._marked_last = marked_last
        self._changed.set()
        self._changed = asyncio.Event()
