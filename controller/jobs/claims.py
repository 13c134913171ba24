"""Gives the claims of other schedulers their circuits, one after the other."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from patchlight.controller.changes.claims import HOLDING, LIVE, in_line
from patchlight.controller.changes.device_maps import Maps, circuits_in
from patchlight.controller.changes.device_watch import power_report
from patchlight.controller.changes.record import ChangeOptions, Refused
from patchlight.controller.changes.transaction import Transactions
from patchlight.controller.changes.wanted import hosts_of
from patchlight.controller.hosts.fleet import Fleet
from patchlight.controller.jobs.cluster_view import WiredLab
from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.jobs.placement import HostsOfJobs, Placement
from patchlight.controller.jobs.rewiring import is_drained
from patchlight.controller.policies.placement import ring_order
from patchlight.controller.policies.registry import load_policy
from patchlight.controller.policies.topology import (
    NO_PORTS,
    CannotRegroup,
    Ports,
)
from patchlight.controller.storage.store import UNREADABLE
from patchlight.testbed.clock import unix_s
from patchlight.testbed.errors import BadInput, PatchlightError, in_words
from patchlight.testbed.jobs import JobState
from patchlight.testbed.lab.model import Host, Lab
from patchlight.testbed.lab.portmap import AnyMap, PortMap
from patchlight.testbed.lab.reach import Reach, as_text
from patchlight.testbed.lab.wiring import (
    Links,
    Place,
    check_map_name,
    check_place,
    circuit_ports,
    lab_links,
)
from patchlight.testbed.wire.rest.circuits import ClaimAnswer
from patchlight.testbed.wire.rest.requests import ClaimRequest

_POLICIES: Mapping[str, tuple[str, ...]] = {
    "switch": ("regroup",),
    "ring": ("regroup", "ring", "keep"),
    "open": ("regroup", "matching", "keep"),
}
"""Which topology policies bring about each shape, the best one first."""
_log = logging.getLogger(__name__)

_IDLE_S = 3600.0
_IN_LINE = "in line"
# How long a request waits for its first turn: then it says what is in its way.
_TURN_S = 2.0
# A change that was refused is not repeated at once.
_REFUSED_S = 10.0
_FINAL_RESULTS = ("rolled-back", "unknown")

Resource = str | tuple[str, int]
"""A host, or a port of a circuit switch."""


class ClaimPlan(NamedTuple):
    """Circuits for a claim: the ``changed`` maps, all maps ``before`` and ``after``, the ``ports``
    that it has then, those ``needed`` for the change as well, and its hosts as a ring."""

    changed: Mapping[str, PortMap]
    before: Mapping[str, AnyMap]
    after: Mapping[str, AnyMap]
    ports: Ports
    needed: Ports
    hosts: list[str]


def plan_claim(
    lab: Lab,
    maps: Mapping[str, AnyMap],
    claim: ClaimAnswer,
    running: HostsOfJobs,
    locked: Ports = NO_PORTS,
    failed: Ports = NO_PORTS,
) -> ClaimPlan:
    """Bring the hosts of a claim into its shape; circuits of ``locked`` ports stay, ``failed`` ones
    get none. Present circuits that do are kept. ``CannotRegroup`` if there is no way."""
    cluster = WiredLab.now(lab, maps)
    view = cluster.view(
        0.0,
        {**running, claim.name: claim.hosts},
        locked=locked,
        failed=failed,
    )
    hosts = [lab.host(name) for name in claim.hosts]
    gpus = [cluster.numbers[name] for name in claim.hosts]
    links = lab_links(lab, maps)
    if _under_one_switch(lab, links, hosts):
        return _planned(lab, maps, {}, claim)
    found = list[ClaimPlan]()
    errors = list[CannotRegroup]()
    for name in _POLICIES[claim.shape]:
        if name == "keep" and found:
            break
        try:
            policy = load_policy(name, "topology")
            wanted = policy.circuits(view, [gpus])  # type: ignore[union-attr]
            found.append(_planned(lab, maps, wanted, claim))
        except Refused:
            raise
        except CannotRegroup as error:
            errors.append(error)
        except PatchlightError as error:
            errors.append(CannotRegroup(error.message, hint=error.hint))
    if not found:
        raise errors[0]
    return min(found, key=lambda each: bool(each.changed))


def _under_one_switch(
    lab: Lab,
    links: Links,
    hosts: Collection[Host],
) -> bool:
    switches = {links.switch_of(lab, host.endpoint) for host in hosts}
    return not switches or (len(switches) == 1 and None not in switches)


def _apart(
    lab: Lab,
    links: Links | None,
    reach: Reach,
    hosts: Sequence[Host],
) -> Mapping[str, str]:
    """The hosts that the others do not reach, or a single one without a link, and why."""
    if len(hosts) != 1 or links is None:
        return reach.apart(hosts)
    if lab.coloured:
        return reach.reasons(hosts)
    (host,) = hosts
    return {} if links.peers(host.endpoint) else {host.name: "it has no link"}


def _planned(
    lab: Lab,
    maps: Mapping[str, AnyMap],
    changed: Mapping[str, PortMap],
    claim: ClaimAnswer,
) -> ClaimPlan:
    after = {**maps, **changed}
    links = lab_links(lab, after)
    hosts = [lab.host(name) for name in claim.hosts]
    if apart := _apart(lab, links, Reach(lab, links), hosts):
        raise CannotRegroup(as_text(apart))
    ports = {ocs: {*numbers} for ocs, numbers in claim.ports.items()}
    nics = {host.endpoint for host in hosts}
    for ocs, number in circuit_ports(lab, nics).values():
        ports.setdefault(ocs, set()).add(number)
    switches = {links.switch_of(lab, nic) for nic in nics}
    for source, path in links.paths.items():
        ends = (source, path.sink)
        if all(end in nics or end.device in switches for end in ends):
            for ocs, hop in path.hops:
                ports.setdefault(ocs, set()).update((hop.inp, hop.out))
    needed = {ocs: {*numbers} for ocs, numbers in ports.items()}
    for ocs, wanted in changed.items():
        change = maps[ocs].diff(wanted)
        needed.setdefault(ocs, set()).update(change.ports)
    cluster = WiredLab.now(lab, after)
    ring = ring_order(
        cluster.view(0.0, {}), [cluster.numbers[name] for name in claim.hosts]
    )
    return ClaimPlan(
        changed,
        maps,
        after,
        ports,
        needed,
        [*cluster.hosts(ring)],
    )


def _at(maps: Mapping[str, AnyMap], ports: Ports) -> dict[str, list[str]]:
    """The circuits of these ports, as texts, one way each."""
    return {
        ocs: [
            str(c) for c in maps[ocs] if c.inp in numbers or c.out in numbers
        ]
        for ocs, numbers in ports.items()
        if numbers
    }


def _with(*several: Ports) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for ports in several:
        for ocs, numbers in ports.items():
            found.setdefault(ocs, set()).update(numbers)
    return found


class ClaimService:
    """Takes claims, and gives each its ports and circuits in its turn. ``passing`` is locked while
    the queue of jobs decides; ``ready``: whether it knows all jobs."""

    def __init__(
        self,
        lab: Lab,
        fleet: Fleet,
        table: JobTable,
        transactions: Transactions,
        placement: Placement,
        passing: asyncio.Lock,
        ready: Callable[[], bool],
        clock: Callable[[], float] = unix_s,
    ) -> None:
        self._lab = lab
        self._fleet = fleet
        self._table = table
        self._transactions = transactions
        self._parts = transactions.parts
        self.book = transactions.parts.claims
        self._placement = placement
        self._passing = passing
        self._ready = ready
        self._clock = clock
        self._plans: dict[str, ClaimPlan] = {}
        self._planned: dict[str, tuple[Any, tuple[ClaimPlan, str]]] = {}
        self._again_at: dict[str, float] = {}
        self._changed = asyncio.Event()
        self._turn = asyncio.Event()
        self._out_of_use: Mapping[str, str] | None = None
        """Hosts that cannot be used, by the last look; ``None``: look again."""
        transactions.on_end.append(lambda _: self._wake())

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def want(
        self,
        name: str,
        wanted: ClaimRequest,
        who: ChangeOptions,
    ) -> ClaimAnswer:
        """Put a claim in line, or renew it; ``BadInput`` for what the lab lacks, ``Refused`` for
        what can never be, and for another claim under a live name."""
        check_map_name(name, "a claim")
        nodes = [*wanted.nodes, *wanted.gpus]
        if not (nodes or wanted.ports):
            raise BadInput("expected nodes, GPUs or ports to claim")
        for ocs, numbers in wanted.ports.items():
            switch = self._lab.circuit_switch(ocs)
            for number in numbers:
                check_place(switch, Place(number))
        hosts = hosts_of(self._lab, nodes) if nodes else []
        now = self._clock()
        new = ClaimAnswer(
            name=name,
            number=0,
            state="waiting",
            words=_IN_LINE,
            hosts=[host.name for host in hosts],
            ports={ocs: sorted({*n}) for ocs, n in wanted.ports.items()},
            shape=wanted.shape,
            time_limit_s=wanted.time_limit_s,
            hold_s=wanted.hold_s,
            by=who.by,
            why=wanted.why,
            owned={},
            circuits={},
            reconfiguration=None,
            made_at=now,
            held_at=None,
            until=None,
            ended_at=None,
        )
        claim = self.book.renewed(new, now)
        if claim is None:
            await self._refuse_impossible(new)
            # Another request may have put it in line meanwhile.
            claim = self.book.renewed(new, now) or self.book.add(new)
        self._wake()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TURN_S):
                while claim.state == "waiting" and claim.words == _IN_LINE:
                    await self._turn.wait()
        return claim

    async def _refuse_impossible(self, claim: ClaimAnswer) -> None:
        maps = self._parts.maps.last or await self._parts.maps.read()
        try:
            await asyncio.to_thread(
                plan_claim,
                self._lab,
                maps.everywhere,
                claim,
                {},
            )
        except CannotRegroup as error:
            raise Refused(
                f"{', '.join(claim.hosts)} cannot be brought together: {error.message}",
                hint="choose other nodes, fewer of them, or another shape",
            ) from error

    async def look(self, name: str, wait_s: float = 0.0) -> ClaimAnswer:
        """One claim; if it waits, after its turn or ``wait_s``."""
        ends = asyncio.get_running_loop().time() + wait_s
        while True:
            claim = self.book.find(name)
            left_s = ends - asyncio.get_running_loop().time()
            if claim.state != "waiting" or left_s <= 0:
                return claim
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._changed.wait()

    async def release(
        self, name: str, who: ChangeOptions
    ) -> list[ClaimAnswer]:
        """End a claim: its ports are free, its circuits stay. Empty if there is none."""
        known = {claim.name: claim for claim in self.book.all()}
        claim = known.get(name)
        if claim is None or claim.state not in LIVE:
            # Locks may be left of one whose record was lost.
            self._parts.locks.disclaim(name)
        else:
            self._stop_change(claim, f"released by {who.by}")
            words = f"by {who.by}" if who.by else ""
            self.book.end(claim, "released", words, self._clock())
        self._wake()
        return [] if claim is None else [claim]

    async def run(self) -> None:
        """Serve claims in line, watch held ones, and end those whose time is over."""
        while True:
            changed = self._changed
            states = [(c.name, c.state) for c in self.book.all()]
            again_at = 0.0
            if self._ready():
                try:
                    again_at = await self._serve()
                except PatchlightError as error:  # a full disk, say
                    _log.warning("claims: %s", in_words(error))
            if states != [(c.name, c.state) for c in self.book.all()]:
                self._wake()  # those that wait for them
            self._turn.set()
            self._turn = asyncio.Event()
            pause_s = (
                self._lab.controller_poll_s if self.book.live else _IDLE_S
            )
            pause_s = min(pause_s, max(0.1, again_at - self._clock()))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await changed.wait()

    async def _serve(self) -> float:
        """One turn of all claims; returns when to call again, infinity for any time."""
        book = self.book
        self._out_of_use = None
        book.sweep()
        again_at = book.expire(self._clock())
        for claim in book.live:
            if claim.state == "held" and claim.words != UNREADABLE:
                book.say(claim, "; ".join(self._lacks(claim)), self._clock())
        waiting = [claim for claim in book.live if claim.state == "waiting"]
        names = {claim.name for claim in waiting}
        for known in (self._plans, self._planned, self._again_at):
            for name in known.keys() - names:
                del known[name]
        if not waiting:
            return again_at
        owners: dict[Resource, str] = {}
        for claim in book.live:
            if claim.state in HOLDING or claim.owned:
                in_line(_wants(claim, claim.owned), owners, claim.name)
        maps = await self._parts.maps.read()
        locked, failed = await self._parts.closed_ports(
            ChangeOptions(force=True)
        )
        for claim in waiting:
            try:
                words = await (
                    self._finish(claim)
                    if claim.owned
                    else self._begin(
                        claim,
                        owners,
                        maps,
                        locked,
                        failed,
                    )
                )
            except PatchlightError as error:
                words = in_words(error)
            if claim.state == "waiting":
                book.say(claim, words, self._clock())
        return again_at

    async def _begin(
        self,
        claim: ClaimAnswer,
        owners: dict[Resource, str],
        maps: Maps,
        locked: Ports,
        failed: Ports,
    ) -> str:
        """Take a claim's ports and begin its change if nothing is in the way; else what is."""
        plugs = circuit_ports(
            self._lab, [self._lab.host(name).endpoint for name in claim.hosts]
        )
        own = _with(claim.ports, *({o: [n]} for o, n in plugs.values()))
        before = in_line(_wants(claim, own), owners, claim.name)
        jobs = self._table.hosts
        nics = [
            self._lab.host(name).endpoint
            for held in jobs.values()
            for name in held
        ]
        closed = _with(
            locked,
            *({o: [n]} for o, n in circuit_ports(self._lab, nics).values()),
            *(
                {each[0]: [each[1]]}
                for each, name in owners.items()
                if name != claim.name and not isinstance(each, str)
            ),
        )
        plan, why = await self._plan(
            claim,
            maps,
            jobs,
            closed,
            failed,
        )
        before += in_line(_wants(claim, plan.needed), owners, claim.name)
        reasons = self._in_the_way(claim, plan)
        reasons += [
            f"claim {name} has or awaits ports that it needs"
            for name in sorted({*before})
            if not any(f"claim {name} has" in reason for reason in reasons)
        ]
        if why and not reasons:
            reasons = [why]
        if reasons or self._clock() < self._again_at.get(claim.name, 0.0):
            return "; ".join(reasons) or claim.words
        return await self._take(claim, plan)

    async def _plan(
        self,
        claim: ClaimAnswer,
        maps: Maps,
        running: HostsOfJobs,
        locked: Ports,
        failed: Ports,
    ) -> tuple[ClaimPlan, str]:
        """Its plan; if there is none now, one as if nothing were in the way, and why."""
        given = (
            claim.number,
            maps,
            running,
            locked,
            failed,
        )
        if claim.name in self._planned:
            before, found = self._planned[claim.name]
            if before == given:
                return found

        def decided() -> tuple[ClaimPlan, str]:
            lab = self._lab
            try:
                plan = plan_claim(
                    lab,
                    maps,
                    claim,
                    running,
                    locked,
                    failed,
                )
            except CannotRegroup as error:
                return plan_claim(
                    lab,
                    maps,
                    claim,
                    running,
                ), error.message
            return plan, ""

        found = await asyncio.to_thread(decided)
        self._planned[claim.name] = given, found
        return found

    def _in_the_way(self, claim: ClaimAnswer, plan: ClaimPlan) -> list[str]:
        found = self._jobs_on(claim)
        found += self._unusable(claim)
        found += [
            str(lock)
            for lock in self._parts.locks.on(plan.needed, but=claim.name)
            if not lock.claim
        ]
        if stopped := self._parts.stop.message:
            found.append(stopped)
        if is_drained(self._parts.store):
            found.append("the controller is drained")
        return found

    def _jobs_on(self, claim: ClaimAnswer) -> list[str]:
        jobs = {
            job: sorted({*hosts} & {*claim.hosts})
            for job, hosts in self._table.hosts.items()
        }
        return [
            f"job {job} runs on {', '.join(hosts)}"
            for job, hosts in jobs.items()
            if hosts
        ]

    def _unusable(self, claim: ClaimAnswer) -> list[str]:
        if self._out_of_use is None:
            self._out_of_use = self._placement.unusable()
        unusable = self._out_of_use
        words = [unusable[host] for host in claim.hosts if host in unusable]
        owner = self.book.hosts
        words += [
            f"claim {owner[host]} has {host}"
            for host in claim.hosts
            if owner.get(host, claim.name) != claim.name
        ]
        return list(dict.fromkeys(words))

    async def _take(self, claim: ClaimAnswer, plan: ClaimPlan) -> str:
        def decide(maps: Mapping[str, AnyMap]) -> Mapping[str, PortMap]:
            if _at(maps, plan.needed) != _at(plan.before, plan.needed):
                raise Refused("the circuits of its ports have changed")
            return {
                ocs: _merged(circuits_in(maps)[ocs], wanted, plan.needed[ocs])
                for ocs, wanted in plan.changed.items()
            }

        options = ChangeOptions(
            by=claim.by,
            origin=f"claim {claim.name}",
            spare_jobs=True,
            claim=claim.name,
        )
        # No pass of the queue is under way: it may give a job these hosts.
        async with self._passing:
            self._out_of_use = None
            reasons = self._in_the_way(claim, plan)
            reasons += [
                f"job {status.id} is getting its circuits"
                for status in self._table.live()
                if status.state is JobState.RECONFIGURING
            ]
            reasons += [
                f"change {number} is in progress"
                for number in self._transactions.touching(plan.needed)
            ]
            if reasons:
                return "; ".join(reasons)
            self.book.take(claim, plan.needed)
        self._plans[claim.name] = plan
        if not plan.changed:
            return await self._finish(claim)
        record = None
        try:
            _, objections = await self._transactions.preview(decide, options)
            if not objections and claim.state == "waiting":
                record = await self._transactions.begin(
                    decide,
                    f"claim {claim.name}{claim.why and f': {claim.why}'}",
                    options,
                )
        except PatchlightError as error:
            objections = [in_words(error)]
        if record is None:
            if claim.state == "waiting":
                self.book.give_back(claim)
            return "; ".join(objections)
        claim.reconfiguration = record.id
        if claim.state != "waiting":  # it was released meanwhile
            self._stop_change(claim, "released")
        return f"change {record.id} is in progress"

    def _stop_change(self, claim: ClaimAnswer, why: str) -> None:
        number = claim.reconfiguration or 0
        if self._transactions.under_way(number) is not None:
            with contextlib.suppress(Refused):  # it is at its end
                self._transactions.cancel(number, claim.by, why)

    async def _finish(self, claim: ClaimAnswer) -> str:
        """Hold a claim once its change is done and its path is verified; else what it waits for."""
        number = claim.reconfiguration
        if number is not None:
            if self._transactions.under_way(number) is not None:
                return f"change {number} is in progress"
            row = self._parts.store.reconfiguration(number)
            if row is not None and row.state in _FINAL_RESULTS:
                words = (
                    f"change {number} is {row.state}: {row.message}. Remove the cause, then claim "
                    "it again"
                )
                self.book.end(
                    claim,
                    "failed",
                    words,
                    self._clock(),
                )
                return words
            if row is None or row.state != "committed":
                self._again_at[claim.name] = self._clock() + _REFUSED_S
                self.book.give_back(claim)
                return row.message if row else f"change {number} is lost"
        plan = self._plans[claim.name]
        lacks = self._lacks(claim)
        if not lacks:
            await self._fleet.sample(
                self._lab.host(name).server.name for name in claim.hosts
            )
        maps = await self._parts.maps.read()
        self._out_of_use = None
        # Circuits that are gone do not come back by waiting: plan again.
        if _at(maps, plan.ports) != _at(plan.after, plan.ports):
            self.book.give_back(claim)
            return "the circuits of its ports have changed"
        if lacks:
            return "; ".join(lacks)
        lacks = [*self._lacks(claim), *await self._dark(plan.ports, maps)]
        async with self._passing:
            lacks += self._jobs_on(claim)
            if claim.state != "waiting" or lacks:
                return "; ".join(lacks)
            self.book.hold(
                claim,
                plan.hosts,
                _at(plan.after, plan.ports),
                plan.ports,
                self._clock(),
            )
        return ""

    def _lacks(self, claim: ClaimAnswer) -> list[str]:
        """Why the path of a claim that has its circuits does not work."""
        hosts = [self._lab.host(name) for name in claim.hosts]
        nics = self._fleet.nics()
        found = self._unusable(claim)
        found += [
            f"{host.endpoint} has no carrier"
            for host in hosts
            if (nic := nics.get(str(host.endpoint))) and not nic.carrier
        ]
        if found:
            return found
        maps = self._parts.maps.last
        for ocs, texts in claim.circuits.items():
            if maps is not None and ocs in maps:
                now = _at(maps, {ocs: claim.owned.get(ocs, ())}).get(ocs, [])
                gone = [text for text in texts if text not in now]
                if gone:
                    return [f"{ocs} {', '.join(gone)}: no longer there"]
        links = self._parts.maps.present_links()
        apart = _apart(
            self._lab,
            links,
            self._placement.reach(),
            hosts,
        )
        if apart:
            return [as_text(apart)]
        if (
            claim.shape == "switch"
            and links is not None
            and not _under_one_switch(self._lab, links, hosts)
        ):
            return ["its hosts are not under one switch"]
        return []

    async def _dark(self, ports: Ports, maps: Maps) -> list[str]:
        """The circuits of these ports whose power is wrong, as texts."""
        found = []
        for ocs, numbers in ports.items():
            report = await power_report(self._parts, ocs, maps)
            found += [
                f"{ocs} {reading.cross_connect}: {reading.verdict.words}"
                for reading in report.readings
                if reading.cross_connect.inp in numbers
                and reading.verdict.kind == "failed"
            ]
        return found


def _wants(claim: ClaimAnswer, ports: Ports) -> set[Resource]:
    own = {
        (ocs, number) for ocs, numbers in ports.items() for number in numbers
    }
    return own.union(claim.hosts)


def _merged(
    present: PortMap,
    wanted: PortMap,
    ports: Collection[int],
) -> PortMap:
    """The present map, with the wanted circuits at these ports."""
    kept = [c for c in present if not {c.inp, c.out} & {*ports}]
    made = [c for c in wanted if {c.inp, c.out} & {*ports}]
    return PortMap.of([*kept, *made])
