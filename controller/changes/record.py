"""What is written down of one change: who asked for what, and what became of it."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2s
from typing import Literal

from patchlight.controller.changes.planning import Plan
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.portmap import PortMap, PortMapChange

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
    have others, the change is refused. ``adopts`` names cross-connects that belong to the
    committed map from now on, also where the device has them already. ``reverts`` is the
    number of the change that this one undoes.
    """

    by: str = ""
    origin: str = ""
    spare_jobs: bool = False
    planned_from: str = ""
    adopts: Mapping[str, PortMap] = field(default_factory=dict)
    reverts: int | None = None


@dataclass
class Reconfiguration:
    """What became of one change. ``stages_s`` gives the seconds spent in each stage.

    ``commits`` has the committed map of an OCS after this change where that is not ``wanted``:
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

    def note(self, remarks: list[str]) -> None:
        """Keep what is new of these remarks; a stage may say again what another said."""
        self.notes += [remark for remark in remarks if remark not in self.notes]

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time of the block as spent in this stage, however it ends."""
        began = time.monotonic()
        try:
            yield
        finally:
            spent = time.monotonic() - began
            self.stages_s[name] = round(self.stages_s.get(name, 0.0) + spent, 6)


def to_row(record: Reconfiguration) -> dict[str, object]:
    """The record as JSON takes it; ``dataclasses.asdict`` would copy every list of it."""
    return dict(vars(record))


def as_texts(port_map: PortMap) -> list[str]:
    """A map as records and the API have it: each cross-connect, one way, in order."""
    return port_map.one_way_texts


def change_as_texts(change: PortMapChange) -> dict[str, list[str]]:
    """A change of one map as records and the API have it."""
    return {"breaks": [str(c) for c in change.breaks], "makes": [str(c) for c in change.makes]}


def fingerprint(maps: Mapping[str, PortMap]) -> str:
    """A short text that is the same for the same maps and for no others."""
    digest = blake2s(digest_size=12)
    for name in sorted(maps):
        digest.update(f"{name} {' '.join(as_texts(maps[name]))}\n".encode())
    return digest.hexdigest()


def fill_record(record: Reconfiguration, plan: Plan, committed: Mapping[str, PortMap]) -> None:
    """Put a plan into its record, and the maps that are committed once it is done."""
    record.before = {name: as_texts(m) for name, m in plan.before.items()}
    record.wanted = {name: as_texts(m) for name, m in plan.wanted.items()}
    record.changes = {name: change_as_texts(change) for name, change in plan.changes.items()}
    record.adopted = [name for name in committed if name not in plan.changes]
    record.commits = {name: as_texts(m) for name, m in committed.items() if m != plan.wanted[name]}
