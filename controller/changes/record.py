"""Models a change: its caller, progress and record."""

import asyncio
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2s
from typing import Any, Literal

from patchlight.controller.changes.plan import ChangePlan
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import AnyMap, MapChange
from patchlight.testbed.lab.reach import as_text
from patchlight.testbed.lab.wiring import Place, entries_at


def difference(before: Mapping[str, AnyMap], now: Mapping[str, AnyMap]) -> str:
    """How the known maps ``now`` differ from those ``before``, as text; empty if equal."""
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
    """A counter, ``step``, whose increase can be awaited."""

    def __init__(self) -> None:
        self.step = 0
        self._next: asyncio.Event | None = None

    def tell(self) -> None:
        """Count a step, and notify all that wait."""
        self.step += 1
        if self._next is not None:
            self._next.set()
            self._next = None

    async def after(self, step: int, wait_s: float) -> None:
        """Wait until ``step`` exceeds this one, for at most ``wait_s``."""
        if self.step > step:
            return
        told = self._next = self._next or asyncio.Event()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await told.wait()


WAITING = "waiting"
# After these stages the change is complete, or already being undone.
_MAY_HALT = frozenset(
    (
        WAITING,
        "read",
        "plan",
        "check",
        "drain",
        "break",
        "make",
        "verify",
        "announce",
    )
)


class ChangeProgress:
    """The stage of a change, ``since`` when (Unix time), and the current OCS.

    ``done``: how many of the OCS's ``cross_connects`` to break or make are done. ``cancelled``: who
    cancelled the change, and why, as text. ``news`` counts the steps.
    """

    def __init__(self) -> None:
        self.news = Notifier()
        self.stage = WAITING
        self.since = time.time()
        self._began = time.monotonic()
        self.ocs = ""
        self.cross_connects = 0
        self.done = 0
        self.cancelled = ""
        self.told_to_end = asyncio.Event()

    @property
    def may_cancel(self) -> bool:
        """Whether the change can still be stopped."""
        return not self.cancelled and self.stage in _MAY_HALT

    @property
    def as_json(self) -> dict[str, Any]:
        """As the API has it."""
        names = (
            "stage",
            "since",
            "ocs",
            "cross_connects",
            "done",
            "cancelled",
            "may_cancel",
        )
        return {"step": self.news.step} | {
            name: getattr(self, name) for name in names
        }

    def enter(self, stage: str) -> tuple[str, float]:
        """Begin a stage; the one before, and the seconds spent in it."""
        now = time.monotonic()
        ended = self.stage
        spent_s = now - self._began
        self.stage = stage
        self.since = time.time()
        self._began = now
        self.ocs = ""
        self.cross_connects = 0
        self.done = 0
        self.news.tell()
        return ended, spent_s

    def count(
        self,
        ocs: str,
        done: int,
        cross_connects: int,
    ) -> None:
        """Set how many cross-connects of an OCS are done."""
        self.ocs = ocs
        self.done = done
        self.cross_connects = cross_connects
        self.news.tell()

    def cancel(self, words: str) -> None:
        """Stop the change before its next step, for this reason."""
        self.cancelled = words
        self.told_to_end.set()
        self.news.tell()


State = Literal["intent", "committed", "refused", "rolled-back", "unknown"]


class Refused(PatchlightError):
    """A change is not allowed; nothing was written to a device."""


class StepFailed(PatchlightError):
    """A step after the first write failed: roll back."""


@dataclass(frozen=True)
class ChangeOptions:
    """The caller of a change (a user's name), their address, and conditions.

    ``spare_jobs``: refuse if a running job's traffic is affected. ``planned_from``: refuse unless
    the maps still have this ``fingerprint``. ``adopts``: entries that are committed afterwards,
    even if the device has them already. ``reverts``: the change that this one undoes. Unless
    ``judged``, a circuit counts as made once it reads back, whatever its power. ``detaches``: the
    caller does not wait for the end. ``claim``: the claim whose ports may change; with ``force``
    those of all claims may.
    """

    by: str = ""
    origin: str = ""
    spare_jobs: bool = False
    planned_from: str = ""
    adopts: Mapping[str, AnyMap] = field(default_factory=dict)
    reverts: int | None = None
    judged: bool = True
    detaches: bool = False
    claim: str = ""
    force: bool = False


LATE_S = 30.0
"""How long a switch may still carry out a command after the wait for its answer was given up."""


@dataclass
class Reconfiguration:
    """The record of one change. ``stages_s``: the seconds spent in each stage.

    ``commits``: the committed maps after this change that differ from those ``wanted``, because
    earlier drift remains. ``adopted``: switches whose committed map changes though the device's
    does not. ``late_until``: until then (Unix time) a switch may still carry out a command that it
    did not answer, so the result is unknown.
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
    late_until: float | None = None

    def __post_init__(self) -> None:
        # Not a field: it is not stored, and only used while the change is in progress.
        self.progress = ChangeProgress()

    @property
    def as_row(self) -> dict[str, Any]:
        """The record as JSON; ``dataclasses.asdict`` would copy the maps, too."""
        row = {
            **vars(self),
            "stages_s": dict(self.stages_s),
            "notes": list(self.notes),
        }
        del row["progress"]
        return row

    @property
    def as_intent(self) -> dict[str, Any]:
        """The same with its progress: a change is an intent until its end is journalled."""
        return {
            **self.as_row,
            "state": "intent",
            "progress": self.progress.as_json,
        }

    @property
    def may_come_late(self) -> bool:
        """Whether a switch may still carry out what it did not answer; a clock that was set back
        does not prolong that."""
        return (
            self.late_until is not None
            and 0.0 < self.late_until - time.time() <= LATE_S
        )

    def fill(
        self,
        plan: ChangePlan,
        committed: Mapping[str, AnyMap],
        lost: Mapping[str, str],
    ) -> None:
        """Store a plan, the maps that it commits, and the hosts that lose their link."""
        self.before = {
            name: [*m.one_way_texts] for name, m in plan.before.items()
        }
        self.wanted = {
            name: [*m.one_way_texts] for name, m in plan.wanted.items()
        }
        self.changes = {
            name: change_as_texts(change)
            for name, change in plan.changes.items()
        }
        self.adopted = [name for name in committed if name not in plan.changes]
        self.note(without_link_words(lost))
        self.commits = {
            n: [*m.one_way_texts]
            for n, m in committed.items()
            if m != plan.wanted[n]
        }

    def note(self, remarks: list[str]) -> None:
        """Add the new ones of these remarks."""
        self.notes += [
            remark for remark in remarks if remark not in self.notes
        ]

    def enter(self, stage: str) -> None:
        """Begin a stage, which ends the one before."""
        ended, spent_s = self.progress.enter(stage)
        if ended != WAITING:
            self.stages_s[ended] = round(
                self.stages_s.get(ended, 0.0) + spent_s, 6
            )


def without_link_words(lost: Mapping[str, str]) -> list[str]:
    """A remark on the hosts that lose their link, if any."""
    count = "1 host has" if len(lost) == 1 else f"{len(lost)} hosts have"
    return (
        [f"{count} no link after this change: {as_text(lost)}"] if lost else []
    )


def change_as_texts(change: MapChange[Any]) -> dict[str, list[str]]:
    """A change of one map in the form of records and the API."""
    return {
        "breaks": [str(c) for c in change.breaks],
        "makes": [str(c) for c in change.makes],
    }


def fingerprint(maps: Mapping[str, AnyMap]) -> str:
    """A short text that is equal only for equal maps."""
    digest = blake2s(digest_size=12)
    for name in sorted(maps):
        digest.update(
            f"{name} {' '.join(maps[name].one_way_texts)}\n".encode()
        )
    return digest.hexdigest()


def wanted_maps(
    lab: Lab,
    present: Mapping[str, AnyMap],
    requested: Mapping[str, AnyMap],
    dropped: Mapping[str, Collection[int | Place]],
    *,
    only: bool,
) -> dict[str, Any]:
    """The maps that result from a request for cross-connects.

    The ``requested`` ones are added to the present ones, or with ``only`` replace them; ``dropped``
    places lose their entries, in and out. ``BadInput`` for an unknown optical switch.
    """
    for name in (*requested, *dropped):
        lab.optical_switch(name)  # raises BadInput if unknown
    wanted: dict[str, AnyMap] = {}
    for name in {**requested, **dict.fromkeys(dropped)}:
        if only and name in requested:
            wanted[name] = requested[name]
            continue
        gone = dropped.get(name, ())
        if gone and not requested and not entries_at(present[name], gone):
            ports = ", ".join(map(str, gone))
            raise BadInput(f"{name} port {ports} has no circuit to disconnect")
        kept = (
            present[name].without(entries_at(present[name], gone))
            if gone
            else present[name]
        )
        wanted[name] = (
            kept.joined(requested[name]) if name in requested else kept
        )
    return wanted
