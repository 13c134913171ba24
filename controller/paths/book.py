"""Who has asked for a path of light, who has one and for how long: one network's, or several.

Time is an argument, in seconds of the Unix clock. Whoever is not heard of for its lease has its
path taken back, or its place among those that wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf, isfinite
from typing import Any, Literal, NamedTuple

from patchlight.controller.changes.record import Refused
from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.issues import nearest
from patchlight.testbed.paths.contract import FlowRequest
from patchlight.testbed.paths.light_networks import LightNetwork
from patchlight.testbed.paths.schedulers import path_scheduler
from patchlight.testbed.paths.scheduling import Scheduling

State = Literal["waiting", "granted", "released", "expired"]
SHORTEST_LEASE_S, LONGEST_LEASE_S = 0.1, 3600.0
_MOST_PATHS = 10_000
_KEPT = 1000


class Wanted(NamedTuple):
    """What somebody wants a path for; hosts by name, ``deadline_s`` from now on."""

    source: str
    destination: str
    nbytes: float
    deadline_s: float | None = None
    collective: str | None = None
    round: int = 0
    lease_s: float = 10.0


@dataclass
class Path:
    """One path, from when it was wanted on. ``channel`` is in THz, as it is written."""

    id: int
    source: str
    destination: str
    bytes: float
    collective: str | None
    round: int
    by: str
    lease_s: float
    wanted_at: float
    until: float
    state: State = "waiting"
    channel: str | None = None
    starts_at: float | None = None
    ends_at: float | None = None
    ended_at: float | None = None

    @property
    def is_live(self) -> bool:
        """Whether it waits or is used."""
        return self.state in ("waiting", "granted")

    def as_json(self) -> dict[str, Any]:
        """As the API shows it."""
        return asdict(self)


@dataclass
class _Lane:
    """A network and who is on it."""

    network: LightNetwork
    scheduler: Scheduling


class PathBook:
    """The paths of a lab's networks, given by the scheduler of that name.

    Nothing is given before ``quiet_until``, as what was given before this book may be in use until
    then; paths are counted on from the number ``last``.
    """

    def __init__(
        self, scheduler: str = "collective", quiet_until: float = 0.0, last: int = 0
    ) -> None:
        self.scheduler, self.last = scheduler, last
        self._quiet_until = quiet_until
        self._lanes: list[_Lane] = []
        self._of_host: dict[str, _Lane] = {}
        self._live: dict[int, Path] = {}
        self._ended: deque[Path] = deque(maxlen=_KEPT)

    @property
    def networks(self) -> list[LightNetwork]:
        """The networks, as they were told last."""
        return [lane.network for lane in self._lanes]

    @property
    def live(self) -> list[Path]:
        """The paths in use and those that are waited for, as they came."""
        return list(self._live.values())

    def light_is(self, networks: Sequence[LightNetwork], now: float) -> None:
        """Take note of the networks that there are; on those that changed, all paths end."""
        kept = []
        for network in networks:
            lane = next((lane for lane in self._lanes if lane.network.same(network)), None)
            kept.append(lane or _Lane(network, path_scheduler(self.scheduler, network.paths)))
        self._lanes = kept
        self._of_host = {host: lane for lane in kept for host in lane.network.hosts}
        for path in self.live:
            lane = self._of_host.get(path.source)
            if lane is None or not lane.scheduler.has(path.id):
                self._end(path, "expired", now)

    def want(self, wanted: Wanted, by: str, now: float) -> Path:
        """Line a flow up; its path may be granted at once.

        ``BadInput`` for one that makes no sense here, ``Refused`` for one that gets no path.
        """
        lane = self._lane(wanted.source)
        if wanted.destination not in lane.network.numbers:
            self._lane(wanted.destination)
            raise BadInput(
                f"no light goes from {wanted.source} to {wanted.destination}: they are in "
                "different networks",
                hint="'patchlight paths --networks' shows them",
            )
        if not SHORTEST_LEASE_S <= wanted.lease_s <= LONGEST_LEASE_S:
            raise BadInput(
                f"a lease of {wanted.lease_s:g} s: expected {SHORTEST_LEASE_S:g} to "
                f"{LONGEST_LEASE_S:g}"
            )
        if len(self._live) >= _MOST_PATHS:
            raise Refused(f"{_MOST_PATHS} paths wait or are used: try again later")
        number, numbers = self.last + 1, lane.network.numbers
        deadline_s = inf if wanted.deadline_s is None else now + wanted.deadline_s
        flow = FlowRequest(
            *(number, numbers[wanted.source], numbers[wanted.destination], wanted.nbytes),
            *(deadline_s, wanted.collective, wanted.round),
        )
        try:
            refused = lane.scheduler.admit([flow], now)
        except BadInput as error:
            if flow.source == flow.destination:
                words = f"{wanted.source} wants a path to itself: expected another destination"
                raise BadInput(words) from error
            raise
        if refused:
            raise Refused(
                f"{wanted.source} gets no path to {wanted.destination}: {refused[0].reason}"
            )
        self.last = number
        path = self._live[number] = Path(
            id=number,
            source=wanted.source,
            destination=wanted.destination,
            bytes=wanted.nbytes,
            collective=wanted.collective,
            round=wanted.round,
            by=by,
            lease_s=wanted.lease_s,
            wanted_at=now,
            until=now + wanted.lease_s,
        )
        self._grant(lane, now)
        return path

    def look(self, number: int, now: float, by: str) -> Path:
        """One path, live or ended not long ago; ``BadInput`` if there is none.

        Who wanted it keeps its place among the waiting by looking.
        """
        path = self._found(number)
        if path.state == "waiting" and path.by == by:
            path.until = now + path.lease_s
        return path

    def release(self, number: int, now: float) -> Path:
        """End a path, or the wait for it; one that has ended stays as it is."""
        path = self._found(number)
        if path.is_live:
            self._end(path, "released", now)
        return path

    def expire(self, now: float) -> float:
        """End what was not heard of for its lease; when to look again, infinite for never."""
        for path in self.live:
            if path.until <= now:
                self._end(path, "expired", now)
        ends = [path.until for path in self._live.values()]
        if now < self._quiet_until:
            return min(*ends, self._quiet_until, inf)
        for lane in self._lanes:
            self._grant(lane, now)
        return min(ends, default=inf)

    def _found(self, number: int) -> Path:
        path = self._live.get(number) or next((p for p in self._ended if p.id == number), None)
        if path is None:
            raise BadInput(f"there is no path {number}: 'patchlight paths' shows them")
        return path

    def _lane(self, host: str) -> _Lane:
        if host in self._of_host:
            return self._of_host[host]
        words = "none has a tunable transceiver whose light reaches another's"
        if self._of_host:
            words = nearest(host, list(self._of_host), "expected one of")
        raise BadInput(f"{host} can have no path: {words}")

    def _end(self, path: Path, state: State, now: float) -> None:
        del self._live[path.id]
        path.state, path.ended_at = state, now
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
