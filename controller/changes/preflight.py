"""Checks what can prevent a change before the first write: locks, the stop button, and more.

Locks and the stop button outlive the controller. Only undoing a failed change ignores them.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from pydantic import TypeAdapter

from patchlight.controller.changes.plan import ChangePlan, Changes
from patchlight.controller.changes.plan import objections as plan_objections
from patchlight.controller.changes.power import POWER_CEILING_DBM
from patchlight.controller.changes.record import (
    ChangeOptions,
    Reconfiguration,
    Refused,
    StepFailed,
)
from patchlight.controller.circuits.contract import (
    DirectedPort,
    Drivers,
    PortState,
)
from patchlight.controller.storage.store import UNREADABLE, Store
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.model import Endpoint, Lab, OpticalSwitch
from patchlight.testbed.lab.spectrum import Channel
from patchlight.testbed.lab.wiring import (
    Place,
    check_place,
    in_order,
    places_of,
)

_MARK = "stop"

LockKind = Literal["locked", "kept", "bad", "claimed"]


@dataclass(frozen=True)
class PortLock:
    """A lock of a port (input and output), or of one ``channel`` there, since ``at`` (Unix time).

    ``locked``: nobody may change it. ``kept``: only ``by`` may. ``bad``: a failed rollback left it
    in an unknown state. ``claimed``: it belongs to a ``claim``.
    """

    ocs: str
    port: int
    kind: LockKind
    by: str
    why: str
    at: float
    channel: str = ""
    claim: str = ""

    @property
    def place(self) -> Place:
        """The locked place."""
        return Place(
            self.port, Channel.parse(self.channel) if self.channel else None
        )

    def stops(self, who: ChangeOptions) -> bool:
        """Whether it prevents this change of the port."""
        if self.kind == "claimed":
            return not (who.force or who.claim == self.claim)
        return self.kind != "kept" or not who.by or who.by != self.by

    def __str__(self) -> str:
        by = f" by {self.claim or self.by}" if self.claim or self.by else ""
        why = f": {self.why}" if self.why else ""
        return f"{self.ocs}.{self.place} is {self.kind}{by}{why}"


_LOCK = TypeAdapter(PortLock)
_OURS = "patchlight"
_NOT_UNDONE = "change {} could not be rolled back"


class PortLocks:
    """The locks of a lab's optical switches, stored on disk."""

    def __init__(self, lab: Lab, store: Store) -> None:
        self._lab = lab
        self._store = store
        # Locks of users at the ports of changes that could not be undone.
        self._under: dict[tuple[str, Place], PortLock] = {}
        locks = store.locks(self._read, self._unreadable)
        self._locks = {_key(lock): lock for lock in locks}

    def _read(
        self,
        row: dict[str, Any],
        ocs: str,
        port: int,
        channel: str,
    ) -> PortLock:
        lock = _LOCK.validate_python(row)
        if (lock.ocs, lock.port, lock.channel) != (ocs, port, channel):
            raise ValueError(f"it belongs to {lock.ocs}.{lock.port}")
        if (under := row.get("under")) is not None:
            before = _LOCK.validate_python(under)
            if _key(before) != _key(lock):
                raise ValueError(
                    f"the lock before it belongs to {before.ocs}.{before.port}"
                )
            self._under[_key(lock)] = before
        return lock

    def _unreadable(
        self,
        ocs: object,
        port: object,
        channel: object,
        row: Mapping[str, Any],
    ) -> list[dict[str, Any]]:
        """Locks of what an unreadable lock may lock: its place by the columns and by the record,
        else its whole switch, else all."""
        switches = {
            switch.name: switch for switch in self._lab.optical_switches
        }
        named = [(ocs, port, channel)]
        with suppress(ValueError):
            of_record = _LOCK.validate_python(row)
            named.append((of_record.ocs, of_record.port, of_record.channel))
        places = dict[tuple[str, Place], None]()
        for name, number, part in named:
            with suppress(BadInput):
                place = Place.parse(
                    f"{number}@{part}" if part else f"{number}"
                )
                if isinstance(name, str) and name:
                    if name in switches:
                        check_place(switches[name], place)
                    places[name, place] = None
        if not any(name in switches for name, _ in places):
            whole = (
                [ocs]
                if isinstance(ocs, str) and ocs in switches
                else [*switches]
            )
            for name in whole:
                every = range(1, switches[name].ports + 1)
                places |= {(name, Place(number)): None for number in every}
        why = f"a lock: {UNREADABLE}"
        at = time.time()
        return [
            asdict(
                _new_lock(
                    name,
                    place,
                    "bad",
                    _OURS,
                    why,
                    at,
                )
            )
            for name, place in places
        ]

    def all(self) -> list[PortLock]:
        """Every lock, in the order of ports."""
        return sorted(
            self._locks.values(),
            key=lambda lock: (lock.ocs, lock.port, lock.channel),
        )

    def lock(
        self,
        ocs: str,
        ports: Iterable[int | Place],
        kind: LockKind,
        by: str,
        why: str,
    ) -> list[PortLock]:
        """Lock ports or places; ``BadInput`` if one does not exist or is locked by another user."""
        places = self._checked(ocs, ports)
        for place in places:
            lock = self._locks.get((ocs, place))
            if lock is not None and (lock.claim or lock.by != by):
                raise BadInput(f"{lock}", hint=_how_to_unlock(lock))
        return self._save(
            ocs,
            places,
            kind,
            by,
            why,
        )

    def claim(
        self,
        claim: str,
        ports: Mapping[str, Iterable[int]],
        by: str,
        why: str,
    ) -> None:
        """Lock all these ports for a claim, and unlock its others; ``Refused`` if one is locked."""
        at = time.time()
        new = {
            (ocs, Place(port)): PortLock(
                ocs,
                port,
                "claimed",
                by,
                why,
                at,
                claim=claim,
            )
            for ocs, numbers in ports.items()
            for port in sorted(numbers)
        }
        if taken := self.on(ports, but=claim):
            raise Refused(
                "; ".join(map(str, taken)), hint=_how_to_unlock(taken[0])
            )
        made = [lock for key, lock in new.items() if key not in self._locks]
        self._store.save_locks([self._row(lock) for lock in made])
        self._locks.update({_key(lock): lock for lock in made})
        self.disclaim(claim, keeping=new)

    def on(
        self, ports: Mapping[str, Iterable[int]], but: str = ""
    ) -> list[PortLock]:
        """The locks of these ports, or channels there, of others than a claim."""
        wanted = {
            (ocs, port) for ocs, numbers in ports.items() for port in numbers
        }
        return [
            lock
            for lock in self.all()
            if (lock.ocs, lock.port) in wanted
            if not but or lock.claim != but
        ]

    def disclaim(
        self, claim: str, keeping: Collection[tuple[str, Place]] = ()
    ) -> None:
        """Unlock the ports of a claim, except for some; bad ones stay locked as such."""
        gone = [
            lock
            for key, lock in self._locks.items()
            if lock.claim == claim and key not in keeping
        ]
        self._delete(gone)
        under = [
            key
            for key, lock in self._under.items()
            if lock.claim == claim and key not in keeping
        ]
        for key in under:
            del self._under[key]
        self._store.save_locks([self._row(self._locks[key]) for key in under])

    def mark_bad(self, changes: Changes, number: int) -> None:
        """Lock what a change touched that could not be undone."""
        for name, places in _touched(changes).items():
            self._save(
                name,
                places,
                "bad",
                _OURS,
                _NOT_UNDONE.format(number),
            )

    @property
    def in_doubt(self) -> bool:
        """Whether any port is locked because of a change of unknown result."""
        return any(lock.kind == "bad" for lock in self._locks.values())

    def still_holds(self, changes: Changes, number: int) -> bool:
        """Whether all that ``mark_bad`` locked for a change is still locked for it."""
        why = _NOT_UNDONE.format(number)
        touched = _touched(changes)
        locks = [
            self._locks.get((ocs, p))
            for ocs, places in touched.items()
            for p in places
        ]
        return bool(locks) and all(
            lock and (lock.kind, lock.why) == ("bad", why) for lock in locks
        )

    def lock_unreadable(self, named: object, number: int) -> list[str]:
        """Lock what an unreadable change may have touched, by its ``changes`` as far as they can be
        read; returns the switches."""
        switches = {
            switch.name: switch for switch in self._lab.optical_switches
        }
        texts = {
            n: each for n, each in _mapping(named).items() if n in switches
        }
        for name in texts or switches:
            ports = set[int]()
            try:
                change = _mapping(texts[name])
                for text in (*change["breaks"], *change["makes"]):
                    inp, _, out = text.partition("@")[0].partition(">")
                    ports |= {int(inp), int(out)}
                places = self._checked(name, ports)
            except (KeyError, TypeError, ValueError, AttributeError, BadInput):
                places = []
            every = [
                Place(port) for port in range(1, switches[name].ports + 1)
            ]
            why = f"change {number}: {UNREADABLE}"
            self._save(
                name,
                places or every,
                "bad",
                _OURS,
                why,
            )
        return [*(texts or switches)]

    def release(self, changes: Changes, record: Reconfiguration) -> None:
        """Undo ``mark_bad`` for a change whose result is known now; earlier locks are restored."""
        for ocs, places in _touched(changes).items():
            under = [
                self._under[ocs, place]
                for place in places
                if (ocs, place) in self._under
                if not self._under[
                    ocs, place
                ].claim  # ``unlock`` restores them
            ]
            self.unlock(
                ocs,
                places,
                _OURS,
                f"change {record.id} is {record.state}",
            )
            for lock in under:
                self._save(
                    ocs,
                    [lock.place],
                    lock.kind,
                    lock.by,
                    lock.why,
                )

    def _save(
        self,
        ocs: str,
        places: Sequence[Place],
        kind: LockKind,
        by: str,
        why: str,
    ) -> list[PortLock]:
        at = time.time()
        new = [
            _new_lock(
                ocs,
                place,
                kind,
                by,
                why,
                at,
            )
            for place in places
        ]
        for lock in new if kind == "bad" else ():
            if (
                before := self._locks.get(_key(lock))
            ) is not None and before.kind != "bad":
                self._under[_key(lock)] = before
        # A port in an unknown state is locked even if the disk is full.
        self._store.save_locks(
            [self._row(lock) for lock in new], soon=kind == "bad"
        )
        self._locks.update({_key(lock): lock for lock in new})
        event = {
            "ocs": ocs,
            "ports": _in_json(places),
            "lock": kind,
            "by": by,
            "why": why,
        }
        self._store.add_event(at, "locked", event)
        return new

    def _row(self, lock: PortLock) -> dict[str, Any]:
        under = self._under.get(_key(lock)) if lock.kind == "bad" else None
        return (
            asdict(lock)
            if under is None
            else {**asdict(lock), "under": asdict(under)}
        )

    def unlock(
        self,
        ocs: str,
        ports: Iterable[int | Place],
        by: str,
        why: str,
    ) -> list[PortLock]:
        """Remove the locks of these ports or places, including other users', and return them."""
        places = self._checked(ocs, ports)
        gone = [
            self._locks[ocs, place]
            for place in places
            if (ocs, place) in self._locks
        ]
        claimed = [
            under
            for lock in gone
            if (under := self._under.get(_key(lock))) and under.claim
        ]
        self._delete(gone)
        self._store.save_locks([self._row(lock) for lock in claimed])
        self._locks.update({_key(lock): lock for lock in claimed})
        if gone:
            ports_gone = _in_json(lock.place for lock in gone)
            event = {
                "ocs": ocs,
                "ports": ports_gone,
                "by": by,
                "why": why,
            }
            self._store.add_event(time.time(), "unlocked", event)
        return gone

    def _delete(self, locks: Iterable[PortLock]) -> None:
        gone = [*locks]
        self._store.delete_locks(
            [(lock.ocs, lock.port, lock.channel) for lock in gone]
        )
        for lock in gone:
            del self._locks[_key(lock)]
            self._under.pop(_key(lock), None)

    def objections(self, changes: Changes, who: ChangeOptions) -> list[str]:
        """Each lock that prevents these changes, as text."""
        if not self._locks:
            return []
        return [
            str(lock)
            for name, change in changes.items()
            for lock in self.all()
            if lock.ocs == name
            and lock.port in change.ports
            and lock.stops(who)
            if any(map(lock.place.holds, (*change.breaks, *change.makes)))
        ]

    def _checked(self, ocs: str, ports: Iterable[int | Place]) -> list[Place]:
        switch = self._lab.optical_switch(ocs)
        places = in_order(
            Place(port) if isinstance(port, int) else port for port in ports
        )
        for place in places:
            check_place(switch, place)
        return places


def _how_to_unlock(lock: PortLock) -> str:
    if lock.claim:
        return f"release it: patchlight ocs claim {lock.claim} --release"
    return "unlock it: patchlight ocs lock --release PORT"


def _new_lock(
    ocs: str,
    place: Place,
    kind: LockKind,
    by: str,
    why: str,
    at: float,
) -> PortLock:
    return PortLock(
        ocs,
        place.port,
        kind,
        by,
        why,
        at,
        str(place.channel or ""),
    )


def _touched(changes: Changes) -> dict[str, list[Place]]:
    return {
        name: in_order(places_of((*change.breaks, *change.makes)))
        for name, change in changes.items()
    }


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _key(lock: PortLock) -> tuple[str, Place]:
    return lock.ocs, lock.place


def _in_json(places: Iterable[Place]) -> list[int | str]:
    """Ports as numbers, channels of them as texts."""
    return [
        place.port if place.channel is None else str(place) for place in places
    ]


class EmergencyStop:
    """Whether changes are allowed; stored on disk, and in memory while the disk is full."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._latest: dict[str, Any] | None = None
        self._is_unwritten = False

    @property
    def pressed(self) -> dict[str, Any] | None:
        """Who pressed it, when and why; ``None`` if it is not pressed."""
        if self.unwritten:
            return self._latest
        # Read each time: with ``--direct`` another process may press it.
        return self._store.mark(
            _MARK,
            lambda row: {
                "by": str(row["by"]),
                "why": str(row["why"]),
                "at": float(row["at"]),
            },
            unreadable=lambda: {"by": "", "why": UNREADABLE, "at": 0.0},
        )

    @property
    def unwritten(self) -> str:
        """Why the last press or clear is not on disk yet; empty if it is."""
        return self._store.unwritten_because if self._is_unwritten else ""

    @property
    def message(self) -> str:
        """Who pressed it and why; empty if it is not pressed."""
        if (pressed := self.pressed) is None:
            return ""
        who = pressed["by"] or "somebody"
        why = f": {pressed['why']}" if pressed["why"] else ""
        return f"the stop button was pressed by {who}{why}"

    def press(self, by: str, why: str) -> None:
        """Stop the change in progress and refuse new ones, immediately, even with a full disk."""
        pressed = {"by": by, "why": why, "at": time.time()}
        self._set(pressed, "stopped", pressed)

    def clear(self, by: str, why: str) -> None:
        """Allow changes again."""
        if self.pressed is not None:
            self._set(None, "stop-cleared", {"by": by, "why": why})

    def _set(
        self,
        pressed: dict[str, Any] | None,
        kind: str,
        event: Mapping[str, Any],
    ) -> None:
        self._latest = pressed
        self._is_unwritten = not self._store.set_mark_soon(
            _MARK,
            pressed,
            kind,
            event,
        )

    def check(self) -> None:
        """``StepFailed`` if it is pressed; called between the steps of a change."""
        if message := self.message:
            raise StepFailed(message)


# Reading port states is slow. If a port fails meanwhile, the change is rolled back.
_STATES_KEPT_S = 60.0


class PortStates:
    """The port states of each optical switch, refreshed after a minute."""

    def __init__(self, drivers: Drivers) -> None:
        self._drivers = drivers
        self._states: dict[
            str, tuple[float, Mapping[DirectedPort, PortState]]
        ] = {}

    async def of(
        self, ocs: str, age_s: float = _STATES_KEPT_S
    ) -> Mapping[DirectedPort, PortState]:
        """The states, at most so old; empty if the device does not report them."""
        now = asyncio.get_running_loop().time()
        read_at, states = self._states.get(ocs, (0.0, {}))
        if ocs not in self._states or now - read_at > age_s:
            states = await self.read(ocs)
        return states

    async def not_ready(
        self, ocs: str, cross_connects: Iterable[Any]
    ) -> list[tuple[DirectedPort, PortState]]:
        """The ports of these cross-connects that are not ready, in order."""
        states = await self.of(ocs)
        return [
            (port, states[port])
            for c in cross_connects
            for port in (DirectedPort("in", c.inp), DirectedPort("out", c.out))
            if port in states and states[port].condition != "ready"
        ]

    async def read(self, ocs: str) -> Mapping[DirectedPort, PortState]:
        """The present states."""
        try:
            states = await self._drivers[ocs].port_states()
        except PatchlightError:
            # Some devices do not report them; making the circuits tests the ports.
            states = {}
        self._states[ocs] = (asyncio.get_running_loop().time(), states)
        return states

    def forget(self, ocs: str) -> None:
        """Read them again next time."""
        self._states.pop(ocs, None)


@dataclass
class PreflightResult:
    """``objections`` as text; ``arriving_dbm``: the measured input power of new circuits, where
    the change cannot alter it."""

    objections: list[str] = field(default_factory=list)
    arriving_dbm: dict[str, Mapping[DirectedPort, float | None]] = field(
        default_factory=dict
    )


@dataclass(frozen=True)
class PreflightChecks:
    """All checks of a plan; ``jobs_using`` returns the jobs whose traffic uses these ports.

    ``unfinished``: by switch, why it cannot be changed (an earlier result is not known).
    """

    lab: Lab
    drivers: Drivers
    locks: PortLocks
    stop: EmergencyStop
    port_states: PortStates
    jobs_using: Callable[[frozenset[Endpoint]], list[str]]
    power_ceiling_dbm: float = POWER_CEILING_DBM
    unfinished: dict[str, str] = field(default_factory=dict)

    def halts(self, plan: ChangePlan) -> list[str]:
        """What prevents any change of these switches."""
        reasons = [
            self.unfinished[name]
            for name in plan.changes
            if name in self.unfinished
        ]
        stopped = self.stop.message
        return list(dict.fromkeys([stopped, *reasons] if stopped else reasons))

    async def check(
        self, plan: ChangePlan, options: ChangeOptions
    ) -> PreflightResult:
        """Check a plan with these options. Reads from the devices; writes nothing."""
        result = PreflightResult(self.locks.objections(plan.changes, options))
        objections = result.objections
        if options.spare_jobs and (jobs := self.jobs_using(plan.moved)):
            objections.append(
                f"traffic of {', '.join(jobs)} uses these circuits"
            )
        objections += plan_objections(self.lab, plan)
        for name, change in plan.changes.items():
            if not change.makes:
                continue
            for port, state in await self.port_states.not_ready(
                name, change.makes
            ):
                reason = f" ({state.words})" if state.words else ""
                objections.append(
                    f"{name} reports {port} as {state.condition}{reason}"
                )
            if self.drivers[name].capabilities.power_in:
                inputs = [DirectedPort("in", c.inp) for c in change.makes]
                arriving = await self.drivers[name].power(inputs)
                result.arriving_dbm[name] = {
                    port: dbm
                    for port, dbm in arriving.items()
                    if not self._is_fed_by_a_switch(name, port)
                }
                objections += [
                    f"{dbm:.1f} dBm arrive at {name} {port}, above the ceiling of "
                    f"{self.power_ceiling_dbm:g} dBm"
                    for port, dbm in arriving.items()
                    if dbm is not None and dbm > self.power_ceiling_dbm
                ]
        return result

    def _is_fed_by_a_switch(self, name: str, port: DirectedPort) -> bool:
        """Whether an optical switch is at the other end of an input's fibre."""
        fibre = self.lab.fibre_ends.get(Endpoint(name, str(port.number)))
        return fibre is not None and isinstance(
            self.lab.device(fibre[0].device), OpticalSwitch
        )
