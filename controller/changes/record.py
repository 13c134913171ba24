"""A change as a value: its plan, who asked for it, its progress, and its record."""

import asyncio
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2s
from typing import Any, Literal

from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import Endpoint, Lab
from patchlight.testbed.lab.portmap import AnyMap, MapChange
from patchlight.testbed.lab.wiring import Links, Place, check_map, entries_at, lab_links

Changes = Mapping[str, MapChange[Any]]
"""What changes on each optical switch, by name."""


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """One change of the network.

    ``before`` and ``wanted`` are the maps of the optical switches; ``changes`` the smallest change
    of each that has one. ``links_staying`` are up before and after alike: only
    on them may anything be sent while circuits change. ``moved`` are the ports whose link goes
    down, comes up, or leads to another port at the far end.
    """

    before: Mapping[str, AnyMap]
    wanted: Mapping[str, AnyMap]
    changes: Changes
    links_before: Links
    links_staying: Links
    links_after: Links
    moved: frozenset[Endpoint]

    def __bool__(self) -> bool:
        return bool(self.changes)


def plan(lab: Lab, before: Mapping[str, AnyMap], wanted: Mapping[str, AnyMap]) -> ChangePlan:
    """The plan that turns the maps ``before`` into ``wanted``.

    ``before`` holds every optical switch of the lab; ``wanted`` those that should change. Where
    wavelengths do not matter, light is followed through the cross-connects that differ, and through
    no others. ``BadInput`` where a wanted map names a switch, port or channel that is not there.
    """
    for name, wanted_map in wanted.items():
        check_map(lab.optical_switch(name), wanted_map)
    after = {**before, **wanted}
    diffs = {name: before[name].diff(wanted[name]) for name in before if name in wanted}
    changes = {name: change for name, change in diffs.items() if change}
    staying = {name: before[name].without(change.breaks) for name, change in changes.items()}
    links_before, links_after = lab_links(lab, before), lab_links(lab, after)
    return ChangePlan(
        before=dict(before),
        wanted=after,
        changes=changes,
        links_before=links_before,
        links_staying=lab_links(lab, {**before, **staying}),
        links_after=links_after,
        moved=frozenset(_moved(changes, links_before, links_after)),
    )


def _moved(changes: Changes, before: Links, after: Links) -> Iterable[Endpoint]:
    if changes and before.light is not None:
        # New light may also put out some that passes none of the entries that change.
        sources = before.paths.keys() | after.paths.keys()
        return [s for s in sources if before.paths.get(s) != after.paths.get(s)]
    return (
        source
        for name, change in changes.items()
        for links, differing in ((before, change.breaks), (after, change.makes))
        for source in links.sources(name, differing)
    )


def wanted_maps(
    lab: Lab,
    present: Mapping[str, AnyMap],
    asked: Mapping[str, AnyMap],
    dropped: Mapping[str, Collection[int | Place]],
    *,
    only: bool,
) -> dict[str, Any]:
    """The maps that a request means.

    What is ``asked`` for is added to what is there, or with ``only`` takes its place; places
    that are ``dropped`` lose their entries, in and out. ``BadInput`` for an optical switch that
    the lab does not have.
    """
    for name in (*asked, *dropped):
        lab.optical_switch(name)  # says so if there is none
    wanted: dict[str, AnyMap] = {}
    for name in {**asked, **dict.fromkeys(dropped)}:
        if only and name in asked:
            wanted[name] = asked[name]
            continue
        gone = dropped.get(name, ())
        kept = present[name].without(entries_at(present[name], gone)) if gone else present[name]
        wanted[name] = kept.joined(asked[name]) if name in asked else kept
    return wanted


def difference(before: Mapping[str, AnyMap], now: Mapping[str, AnyMap]) -> str:
    """In words, how the maps ``now`` differ from those ``before``; empty if they do not.

    A map that is not known now is not compared.
    """
    return "; ".join(
        f"the map of {name} changed meanwhile: "
        + ", ".join(
            [f"{c} is gone" for c in earlier.diff(now[name]).breaks]
            + [f"{c} is new" for c in earlier.diff(now[name]).makes]
        )
        for name, earlier in before.items()
        if name in now and now[name] != earlier
    )


class Notifier:
    """A number of steps that grows, and waiting for the next; ``step`` counts them."""

    def __init__(self) -> None:
        self.step = 0
        self._next: asyncio.Event | None = None

    def tell(self) -> None:
        """There is something new: wake who waits for that."""
        self.step += 1
        if self._next is not None:
            self._next.set()
            self._next = None

    async def after(self, step: int, wait_s: float) -> None:
        """Wait until there is a step after that one, at most so long."""
        if self.step > step:
            return
        told = self._next = self._next or asyncio.Event()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await told.wait()


WAITING = "waiting"
# From the first stage after these on, what was wanted stands, or is being undone already.
_MAY_HALT = frozenset((WAITING, "read", "plan", "check", "drain", "break", "make", "verify"))


class ChangeProgress:
    """The stage that a change is in, ``since`` when (Unix time), and which OCS it is at.

    Each step is ``news``. While an OCS breaks or makes ``cross_connects``, so many of them
    are ``done``; ``cancelled`` says in words who cancelled the change, and why.
    """

    def __init__(self) -> None:
        self.news = Notifier()
        self.stage, self.since = WAITING, time.time()
        self.ocs, self.cross_connects, self.done = "", 0, 0
        self.cancelled = ""

    @property
    def may_cancel(self) -> bool:
        """Whether the change can still be halted."""
        return not self.cancelled and self.stage in _MAY_HALT

    @property
    def as_json(self) -> dict[str, Any]:
        """As the API has it."""
        names = ("stage", "since", "ocs", "cross_connects", "done", "cancelled", "may_cancel")
        return {"step": self.news.step} | {name: getattr(self, name) for name in names}

    def enter(self, stage: str) -> None:
        """The change is in this stage from now on."""
        self.stage, self.since = stage, time.time()
        self.ocs, self.cross_connects, self.done = "", 0, 0
        self.news.tell()

    def count(self, ocs: str, done: int, cross_connects: int) -> None:
        """So many of those that an OCS is to break or make are done."""
        self.ocs, self.done, self.cross_connects = ocs, done, cross_connects
        self.news.tell()

    def cancel(self, words: str) -> None:
        """Have the change halted before its next step, for this reason."""
        self.cancelled = words
        self.news.tell()


State = Literal["intent", "committed", "refused", "rolled-back", "unknown"]


class Refused(PatchlightError):
    """A change may not be made; nothing was written to a device."""


class StepFailed(PatchlightError):
    """A step after the first write did not succeed: roll back."""


@dataclass(frozen=True)
class ChangeOptions:
    """Who asks for a change, from where, and under which conditions.

    ``by`` is a user's name, ``origin`` the address that the request came from. With
    ``spare_jobs`` a change on which a running job's traffic rides is refused.
    ``planned_from`` is the ``fingerprint`` of the maps that the user was shown: if the devices
    have others, the change is refused. ``adopts`` names entries that belong to the
    committed map from now on, also where the device has them already. ``reverts`` is the
    number of the change that this one undoes. Where the light is not ``judged``, a circuit counts
    as made once it reads back: nobody knows yet what is plugged in at its ends. Who ``detaches``
    does not wait until the change is over.
    """

    by: str = ""
    origin: str = ""
    spare_jobs: bool = False
    planned_from: str = ""
    adopts: Mapping[str, AnyMap] = field(default_factory=dict)
    reverts: int | None = None
    judged: bool = True
    detaches: bool = False


@dataclass
class Reconfiguration:
    """What became of one change. ``stages_s`` gives the seconds spent in each stage.

    ``commits`` has the committed map of a switch after this change where that is not ``wanted``:
    what differed before without being asked for goes on to differ. ``adopted`` names those
    whose committed map is new although nothing changes on the device.
    """

    why: str
    started_at: float
    id: int = 0
    state: State = "intent"
    message: str = ""
    by: str = ""
    origin: str = ""
    reverts: int | None = None
    changes: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    before: dict[str, list[str]] = field(default_factory=dict)
    wanted: dict[str, list[str]] = field(default_factory=dict)
    commits: dict[str, list[str]] = field(default_factory=dict)
    adopted: list[str] = field(default_factory=list)
    stages_s: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    finished_at: float | None = None

    def __post_init__(self) -> None:
        # Not of what is written down: it is of use only as long as the change is under way.
        self.progress = ChangeProgress()

    def note(self, remarks: list[str]) -> None:
        """Keep what is new of these remarks; a stage may say again what another said."""
        self.notes += [remark for remark in remarks if remark not in self.notes]

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time of the block as spent in this stage, however it ends."""
        self.progress.enter(name)
        began = time.monotonic()
        try:
            yield
        finally:
            spent = time.monotonic() - began
            self.stages_s[name] = round(self.stages_s.get(name, 0.0) + spent, 6)


def to_row(record: Reconfiguration) -> dict[str, Any]:
    """The record as it is now, as JSON takes it; ``dataclasses.asdict`` would copy maps, too."""
    row = {**vars(record), "stages_s": dict(record.stages_s), "notes": list(record.notes)}
    del row["progress"]
    return row


def as_texts(switch_map: AnyMap) -> list[str]:
    """A map as records and the API have it: each entry, one way, in order."""
    return list(switch_map.one_way_texts)


def change_as_texts(change: MapChange[Any]) -> dict[str, list[str]]:
    """A change of one map as records and the API have it."""
    return {"breaks": [str(c) for c in change.breaks], "makes": [str(c) for c in change.makes]}


def fingerprint(maps: Mapping[str, AnyMap]) -> str:
    """A short text that is the same for the same maps and for no others."""
    digest = blake2s(digest_size=12)
    for name in sorted(maps):
        digest.update(f"{name} {' '.join(as_texts(maps[name]))}\n".encode())
    return digest.hexdigest()


def fill_record(record: Reconfiguration, plan: ChangePlan, committed: Mapping[str, AnyMap]) -> None:
    """Put a plan into its record, and the maps that are committed once it is done."""
    record.before = {name: as_texts(m) for name, m in plan.before.items()}
    record.wanted = {name: as_texts(m) for name, m in plan.wanted.items()}
    record.changes = {name: change_as_texts(change) for name, change in plan.changes.items()}
    record.adopted = [name for name in committed if name not in plan.changes]
    record.commits = {name: as_texts(m) for name, m in committed.items() if m != plan.wanted[name]}
