"""Keeps the claims of other schedulers: in line, held, or ended; time is an argument."""

import math
from collections.abc import Collection, Hashable, Mapping
from typing import Any, Literal, TypeVar

from patchlight.controller.changes.preflight import PortLocks
from patchlight.controller.changes.record import Refused
from patchlight.controller.storage.store import UNREADABLE, Store
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.wire.rest.circuits import ClaimAnswer

HOLDING = ("held", "overdue")
LIVE = ("waiting", *HOLDING)
RELEASE = "patchlight ocs claim {} --release"
_MOST_LIVE = 10_000
_MOST_ENDED = 1_000

T = TypeVar("T", bound=Hashable)
Ports = Mapping[str, Collection[int]]


def in_line(
    wanted: Collection[T], owners: dict[T, str], name: str
) -> list[str]:
    """The claims that own any of what this one wants, or are in line before it, by name.

    Whatever nobody has is reserved for it in ``owners``. Called for each claim in the order of
    requests, that is first come, first served: a claim gets all at once or nothing, and waits only
    for claims that want the same.
    """
    before = {owners[each] for each in wanted if each in owners} - {name}
    for each in wanted:
        owners.setdefault(each, name)
    return sorted(before)


class ClaimBook:
    """All claims of a lab, stored on disk, and the locks of their ports."""

    def __init__(
        self,
        lab: Lab,
        store: Store,
        locks: PortLocks,
    ) -> None:
        self._lab = lab
        self._store = store
        self._locks = locks
        found = sorted(store.claims(), key=lambda claim: claim.number)
        self._claims = {claim.name: claim for claim in found}
        for claim in found:
            if claim.state not in HOLDING:  # what was begun is begun again
                claim.owned = {}
                claim.reconfiguration = None

    def all(self) -> list[ClaimAnswer]:
        """Every claim, in the order of requests."""
        return list(self._claims.values())

    @property
    def live(self) -> list[ClaimAnswer]:
        """Those that wait or are held, in the order of requests."""
        return [c for c in self._claims.values() if c.state in LIVE]

    @property
    def hosts(self) -> dict[str, str]:
        """The claim that has a host, or its port at a circuit switch, by host."""
        plugs = self._lab.host_plugs
        at = {plug: nic for nic, plug in plugs.items()}
        locked = {
            at[lock.ocs, lock.port]: lock.claim
            for lock in self._locks.all()
            if lock.claim and (lock.ocs, lock.port) in at
        }
        found = {
            host.name: locked[host.endpoint]
            for host in self._lab.hosts
            if host.endpoint in locked
        }
        for claim in self._claims.values():
            if claim.state in HOLDING or claim.owned:
                found |= dict.fromkeys(claim.hosts, claim.name)
        return found

    def find(self, name: str) -> ClaimAnswer:
        """A claim by its name; ``BadInput`` if there is none."""
        if name not in self._claims:
            raise BadInput(f"unknown claim {name}: see 'patchlight ocs claim'")
        return self._claims[name]

    def sweep(self) -> None:
        """Complete what a crash or a full disk cut off: claims have locks of their ports, and no
        others. Locks of unknown claims stay."""
        locked: dict[str, set[tuple[str, int]]] = {}
        for lock in self._locks.all():
            locked.setdefault(lock.claim, set()).add((lock.ocs, lock.port))
        for claim in self._claims.values():
            has = locked.get(claim.name, set())
            wants = {(o, port) for o, n in claim.owned.items() for port in n}
            if has and claim.state not in HOLDING and not wants:
                self._locks.disclaim(claim.name)
            elif wants - has and not self._locks.on(claim.owned, claim.name):
                self._lock(claim, claim.owned)

    def renewed(self, wanted: ClaimAnswer, now: float) -> ClaimAnswer | None:
        """The live claim of that name with a new lease; ``None`` if there is none. ``Refused`` if
        it is another one."""
        known = self._claims.get(wanted.name)
        if known is None or known.state not in LIVE:
            return None
        differs = [
            f"its {what} are {has}, not {wants}"
            for what, has, wants in (
                ("hosts", sorted(known.hosts), sorted(wanted.hosts)),
                ("ports", known.ports, wanted.ports),
                ("shapes", [known.shape], [wanted.shape]),
            )
            if has != wants
        ]
        if known.words == UNREADABLE:
            differs = [UNREADABLE]
        if differs:
            raise Refused(
                f"claim {known.name} is {known.state}: {'; '.join(differs)}",
                hint=f"release it first: {RELEASE.format(known.name)}",
            )
        limit_s = wanted.time_limit_s
        terms: dict[str, Any] = {
            "time_limit_s": limit_s,
            "hold_s": wanted.hold_s,
        }
        if known.state in HOLDING:
            until = None if limit_s is None else now + limit_s
            words = "" if known.state == "overdue" else known.words
            terms |= {"state": "held", "until": until, "words": words}
        return self._keep(known, now, terms)

    def add(self, claim: ClaimAnswer) -> ClaimAnswer:
        """Put a new claim in line, in place of an ended one of its name."""
        if len(self.live) >= _MOST_LIVE:
            raise Refused(f"{_MOST_LIVE} claims are held or waiting")
        last = max((c.number for c in self._claims.values()), default=0)
        self._keep(claim, claim.made_at, {"number": last + 1})
        self._claims.pop(claim.name, None)
        self._claims[claim.name] = claim
        ended = [c for c in self._claims.values() if c.state not in LIVE]
        for each in ended[:-_MOST_ENDED]:
            self._store.delete_claim(each.name)
            del self._claims[each.name]
        return claim

    def take(self, claim: ClaimAnswer, ports: Ports) -> None:
        """Give a waiting claim these ports; ``Refused`` if one is locked."""
        self._lock(claim, ports)
        claim.owned = {ocs: sorted(n) for ocs, n in ports.items() if n}

    def give_back(self, claim: ClaimAnswer) -> None:
        """Take a waiting claim's ports from it."""
        self._locks.disclaim(claim.name)
        claim.owned = {}
        claim.reconfiguration = None

    def hold(
        self,
        claim: ClaimAnswer,
        hosts: list[str],
        circuits: Mapping[str, list[str]],
        ports: Ports,
        now: float,
    ) -> None:
        """A claim is held from now on, with these of its ports and circuits."""
        limit_s = claim.time_limit_s
        self._lock(claim, ports)
        terms = {
            "state": "held",
            "words": "",
            "hosts": hosts,
            "circuits": circuits,
            "owned": {ocs: sorted(n) for ocs, n in ports.items() if n},
            "held_at": now,
            "until": None if limit_s is None else now + limit_s,
        }
        self._keep(claim, now, terms)

    def say(self, claim: ClaimAnswer, words: str, now: float) -> None:
        """What is in the way of a claim; of a held one it is an event."""
        if claim.words == words:
            return
        if claim.state in HOLDING:
            self._keep(claim, now, {"words": words})
        claim.words = words

    def end(
        self,
        claim: ClaimAnswer,
        state: Literal["released", "expired", "failed"],
        words: str,
        now: float,
    ) -> None:
        """End a claim; its ports are free, its circuits stay."""
        terms = {"state": state, "words": words, "ended_at": now}
        self._keep(claim, now, {**terms, "owned": {}, "reconfiguration": None})
        self._locks.disclaim(claim.name)

    def expire(self, now: float) -> float:
        """End claims whose time is over; returns when to call again, infinity for never."""
        again_at = math.inf
        for claim in self.live:
            if claim.state not in HOLDING or claim.until is None:
                continue
            if now >= claim.until + claim.hold_s:
                self.end(claim, "expired", "its time limit is over", now)
                continue
            if now >= claim.until and claim.state == "held":
                words = (
                    f"its time limit is over: it ends after {claim.hold_s:g} s"
                )
                self._keep(claim, now, {"state": "overdue", "words": words})
            grace_s = claim.hold_s if claim.state == "overdue" else 0.0
            again_at = min(again_at, claim.until + grace_s)
        return again_at

    def _lock(self, claim: ClaimAnswer, ports: Ports) -> None:
        self._locks.claim(
            claim.name,
            ports,
            claim.by,
            claim.why,
        )

    def _keep(
        self,
        claim: ClaimAnswer,
        now: float,
        terms: Mapping[str, Any],
    ) -> ClaimAnswer:
        self._store.save_claim(claim.model_copy(update=dict(terms)), now)
        for name, value in terms.items():
            setattr(claim, name, value)
        return claim
