"""What is written down: of each change who asked for what and what came of it; committed maps."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2s
from typing import Any, Literal

from patchlight.controller.changes.planning import Plan
from patchlight.controller.changes.progress import ChangeProgress
from patchlight.controller.storage.store import Store
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.labmaps import recorded_map
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import AnyMap, MapChange

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
    as made once it reads back: nobody knows yet what is plugged in at its ends.
    """

    by: str = ""
    origin: str = ""
    spare_jobs: bool = False
    planned_from: str = ""
    adopts: Mapping[str, AnyMap] = field(default_factory=dict)
    reverts: int | None = None
    judged: bool = True


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


def fill_record(record: Reconfiguration, plan: Plan, committed: Mapping[str, AnyMap]) -> None:
    """Put a plan into its record, and the maps that are committed once it is done."""
    record.before = {name: as_texts(m) for name, m in plan.before.items()}
    record.wanted = {name: as_texts(m) for name, m in plan.wanted.items()}
    record.changes = {name: change_as_texts(change) for name, change in plan.changes.items()}
    record.adopted = [name for name in committed if name not in plan.changes]
    record.commits = {name: as_texts(m) for name, m in committed.items() if m != plan.wanted[name]}


@dataclass(frozen=True)
class Drift:
    """How a device differs from its last committed map; changes nothing by itself."""

    missing: tuple[Any, ...]
    unknown: tuple[Any, ...]

    def __bool__(self) -> bool:
        return bool(self.missing or self.unknown)

    def as_texts(self) -> dict[str, list[str]]:
        """The difference as events and the API have it."""
        return {
            "missing": [str(c) for c in self.missing],
            "unknown": [str(c) for c in self.unknown],
        }


class CommittedMaps:
    """Committed maps, remembered in the store with the change that made them so."""

    def __init__(self, store: Store, lab: Lab | None = None) -> None:
        self._lab, self._store = lab, store
        self._maps: dict[str, AnyMap] = store.committed_maps(
            lambda name, row: recorded_map(lab, name, row["map"])
        )

    @property
    def maps(self) -> dict[str, AnyMap]:
        """The committed map of each optical switch that has one."""
        return dict(self._maps)

    def after(self, plan: Plan, adopts: Mapping[str, AnyMap]) -> dict[str, AnyMap]:
        """The committed maps once this plan is carried out.

        Only what was asked for is taken over: an entry that somebody else made or
        broke on the device goes on to differ. ``adopts`` are asked for by name.
        """
        maps: dict[str, AnyMap] = {}
        for name in {**plan.changes, **adopts}:
            committed, wanted = self._maps.get(name), plan.wanted[name]
            adopted = adopts[name] if name in adopts else wanted.of(())
            if committed is None or committed == plan.before[name] or adopted == wanted:
                maps[name] = wanted
                continue
            change = plan.before[name].diff(wanted)
            kept = committed.without(change.breaks)
            maps[name] = kept.joined(wanted.of(change.makes)).joined(adopted)
        return maps

    def of(self, record: Reconfiguration) -> dict[str, AnyMap]:
        """The committed maps that a finished change leaves behind, from its record alone."""
        changed = {**record.changes, **record.commits, **dict.fromkeys(record.adopted)}
        return {
            name: recorded_map(self._lab, name, record.commits.get(name, record.wanted[name]))
            for name in changed
        }

    def rows(self, maps: Mapping[str, AnyMap], record: Reconfiguration) -> dict[str, Any]:
        """As the store takes them, with the change they come from."""
        return {
            name: {"map": as_texts(m), "reconfiguration": record.id, "at": record.finished_at}
            for name, m in maps.items()
        }

    def take(self, maps: Mapping[str, AnyMap]) -> None:
        """These are committed now; the store has them already."""
        self._maps.update(maps)

    def begin_with(self, present: Mapping[str, AnyMap]) -> None:
        """Commit what devices that were never seen before have."""
        new = {name: m for name, m in present.items() if name not in self._maps}
        now = time.time()
        self._store.commit_maps(
            {n: {"map": as_texts(m), "reconfiguration": None, "at": now} for n, m in new.items()}
        )
        self._maps.update(new)

    def drift(self, present: Mapping[str, AnyMap]) -> dict[str, Drift]:
        """How each device differs from its committed map."""
        drift = {}
        for name, now in present.items():
            change = self._maps.get(name, now).diff(now)
            drift[name] = Drift(missing=change.breaks, unknown=change.makes)
        return drift
