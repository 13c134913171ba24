"""The queue of the lab and of the simulator: starts waiting entries and resizes running ones, by
its settings and the policies. It never waits, reads a clock or touches a device."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from patchlight.controller.jobs.discipline.contract import (
    EPSILON_S,
    JobFate,
    OrderTraits,
    QueueEntry,
    Site,
)
from patchlight.controller.jobs.discipline.standings import (
    Place,
    Victims,
    WaitingLine,
)
from patchlight.controller.policies.contract import (
    ClusterView,
    ElasticJob,
    QueuedJob,
)
from patchlight.controller.prediction.completion import RingWork, units_s
from patchlight.controller.prediction.network import LabNetwork, Load
from patchlight.testbed.lab.rules import Discipline, Waiting, WaitReason

E = TypeVar("E", bound=QueueEntry)
P = TypeVar("P")

_NO_LIGHT = Waiting(WaitReason.NO_CIRCUIT, "circuits cannot connect its GPUs")
_HELD = Waiting(WaitReason.HELD, "it is held back", is_blocked=True)

ASK_AGAIN_S = 60.0
"""How often the policy is called without new or ended entries, unless it is ``stable``."""

_MOST_QUEUED = 64


class JobQueue(Generic[E, P]):
    """The waiting entries of one site, across passes; new ones are in the site's ``joined``. Other
    settings or another order policy need a new queue."""

    def __init__(
        self,
        site: Site[E, P],
        settings: Discipline,
        order: OrderTraits,
    ) -> None:
        if (settings.has_quotas or order.by_user) and site.accounts is None:
            raise ValueError(
                "a queue with quotas or an order by user needs the site's accounts"
            )
        self._site = site
        self._settings = settings
        self._quotas = site.accounts if settings.has_quotas else None
        self._line: WaitingLine[E] = WaitingLine(
            site.rank, order, settings.has_quotas
        )
        rises_at = None if order.by_user else order.rises_at
        self._victims = Victims(
            site,
            self._line.standing,
            settings.quantum_s,
            rises_at,
        )
        for entry in sorted(
            site.running.values(), key=lambda each: each.began_s
        ):
            self._victims.started(entry)
        # Entries outside the line, why, and the layout in which no placement was found.
        self._aside: dict[int, tuple[E, Waiting, int | None]] = {}
        self._failed: tuple[int, int] | None = None
        self._why_failed = _NO_LIGHT
        self._hopeless: int | None = None
        self._in_vain: tuple[int, int] | None = None
        self._again_s = 0.0

    def decide(self) -> bool:
        """One pass: start all that can; returns whether the next entry waits despite enough
        GPUs."""
        site = self._site
        line = self._line
        settings = self._settings
        if self._aside or line.changes:
            for entry, _, layout in list(self._aside.values()):
                if layout != site.layout:
                    del self._aside[entry.index]
                    self._at_gate(entry)
            line.begin()
        if site.joined:
            self._join()
        while (place := line.first()) is not None:
            head = place[3]
            if self._quotas is not None and self._over_quota(head):
                continue
            if self._try(head):
                line.remove(place)
            elif settings.preempt and self._make_room(place):
                pass
            elif (
                site.running or site.occupancy.broken
            ) and head.index != self._hopeless:
                break
            else:
                self._set_aside(place)
        if place is None:
            return False
        held_up = site.occupancy.free >= head.workers
        if settings.backfill:
            self._backfill(head)
        if settings.preempt and site.running:
            site.wake_at(site.now_s + settings.quantum_s)
        return held_up

    def first(self) -> E | None:
        """The next entry, as of the last pass; ``None`` if no entry is in line."""
        place = self._line.first()
        return None if place is None else place[3]

    def remove(self, entry: E) -> None:
        """An entry no longer waits: it was stopped, or can never run."""
        if entry in self._site.joined:
            self._site.joined.remove(entry)
        if self._aside.pop(entry.index, None):
            return
        for place, _ in self._line.all():
            if place[3] is entry:
                self._line.remove(place)
                return

    def began_anew(self, entry: E) -> None:
        """A running entry has other GPUs now, and another ``began_s``."""
        if self._settings.preempt:
            self._victims.started(entry)

    def reasons(self) -> Iterator[tuple[E, Waiting]]:
        """Why each waiting entry did not start in the last pass: those in line first."""
        first: E | None = None
        first_of: dict[str, E] = {}
        open_head = self.first()
        for (_, _, _, entry), shut in self._line.all():
            ahead = first_of.setdefault(entry.user, entry)
            if shut is not None:
                yield entry, shut
            elif entry is open_head:
                first = entry
                yield entry, self._why_first(entry)
            elif self._line.is_shut(entry.user):
                yield entry, _behind(ahead)
            else:
                yield entry, _behind(first or entry)
        for entry, why, _ in self._aside.values():
            yield entry, why

    def _join(self) -> None:
        joined = self._site.joined.copy()
        self._site.joined.clear()
        for entry in joined:
            if entry.after or entry.held:
                self._at_gate(entry)
            else:
                self._line.add(entry)

    def _at_gate(self, entry: E) -> None:
        """Put an entry in line, unless it is held back or its dependencies are not done."""
        why = _HELD if entry.held else self._depends(entry)
        if why is None:
            self._line.add(entry)
        elif not (why.is_blocked and self._site.refuse(entry, why)):
            self._aside[entry.index] = entry, why, None

    def _depends(self, entry: E) -> Waiting | None:
        fates = {name: self._site.fate(name) for name in entry.after}
        for fate, words in (
            (JobFate.FAILED, "it depends on {}, which can no longer succeed"),
            (JobFate.PENDING, "it depends on {}, which is not done yet"),
        ):
            names = [name for name, found in fates.items() if found is fate]
            if names:
                said = words.format(", ".join(names))
                return Waiting(
                    WaitReason.DEPENDENCY,
                    said,
                    is_blocked=fate is JobFate.FAILED,
                )
        return None

    def _over_quota(self, entry: E) -> bool:
        accounts = self._quotas
        site = self._site
        assert accounts is not None
        why = accounts.over_quota(entry.user, entry.workers, site.now_s)
        if why is None:
            return False
        self._line.shut(entry.user, why)
        if self._settings.allowance(entry.user).gpu_hours is not None:
            site.wake_at(accounts.next_window_s(site.now_s))
        return True

    def _set_aside(self, place: Place[E]) -> None:
        """Let others overtake the next entry if it would not start in an empty cluster either."""
        site = self._site
        head = place[3]
        why = self._why_first(head)._replace(is_blocked=True)
        self._line.remove(place)
        if not site.refuse(head, why):
            self._aside[head.index] = head, why, site.layout

    def _why_first(self, head: E) -> Waiting:
        free = self._site.free_for(head)
        if (
            free < head.workers
            or self._failed is None
            or self._failed[0] != head.index
        ):
            words = f"it needs {head.wants}, and {free} of them are free"
            return Waiting(WaitReason.NO_GPUS, words)
        return self._why_failed

    def _try(self, entry: E) -> bool:
        site = self._site
        if site.occupancy.free < entry.workers:
            # An earlier result for other free GPUs or hosts does not count.
            hopeless = (
                site.occupancy.broken and site.out_of_reach(entry) is not None
            )
            self._hopeless = entry.index if hopeless else None
            return False
        released = site.released
        if self._failed is not None and self._failed == (
            entry.index,
            released,
        ):
            return False  # No GPU has become free since the last try.
        placement = site.place(entry)
        if isinstance(placement, Waiting):
            self._why_failed = placement
            self._hopeless = (
                entry.index if placement.reason.is_passed else None
            )
        elif self._start(entry, placement):
            return True
        else:
            self._why_failed = _NO_LIGHT
        self._failed = (entry.index, released)
        return False

    def _start(self, entry: E, placement: P) -> bool:
        if not self._site.start(entry, placement):
            return False
        if self._settings.preempt:
            self._victims.started(entry)
        return True

    def _backfill(self, head: E) -> None:
        """EASY: later entries start if that does not delay the first. It can start when enough GPUs
        are free, wherever they are; if that time is unknown, only spare GPUs are given."""
        site = self._site
        line = self._line
        shadow_s = site.now_s
        free = site.occupancy.free
        for each in site.ends():
            if free >= head.workers:
                break
            shadow_s = each.ends_s
            free = free + each.gpus.bit_count()
        spare = free - head.workers
        latest_s = shadow_s + EPSILON_S if shadow_s < math.inf else -math.inf
        for place in line.some(self._settings.backfill_depth + 1)[1:]:
            entry = place[3]
            available = site.occupancy.free
            if not available:
                return
            if entry.workers > available:
                continue
            early = site.would_end_s(entry) <= latest_s
            if not early and entry.workers > spare:
                continue
            if self._quotas is not None and (
                line.is_shut(entry.user) or self._over_quota(entry)
            ):
                continue
            placement = site.place(entry)
            if isinstance(placement, Waiting) or not self._start(
                entry, placement
            ):
                continue
            line.remove(place)
            if not early:
                spare -= entry.workers

    def _make_room(self, place: Place[E]) -> bool:
        """Preempt entries behind the next one so that it can start; ``False`` if impossible."""
        site = self._site
        head = place[3]
        attempt = (head.index, site.released)
        if attempt == self._in_vain and site.now_s < self._again_s:
            return False  # The ranks of running entries have hardly changed since.
        freed = 0
        free = site.occupancy.free
        chosen = list[E]()
        for entry in self._victims.behind(self._line.standing(head)):
            chosen.append(entry)
            freed |= entry.gpus
            free += entry.workers
            if free < head.workers:
                continue
            placement = site.place(head, site.occupancy.occupied & ~freed)
            if isinstance(placement, Waiting):
                continue
            taken = site.gpus_of(placement)
            losing = [each for each in chosen if each.gpus & taken]
            if not site.can_start(head, placement, losing):
                continue
            for each in losing:
                site.preempt(each)
            self._line.remove(place)
            if not self._start(head, placement):  # contrary to ``can_start``
                self._line.add(head)
                attempt = (head.index, site.released)
                break
            # The preempted entries wait now, in the line's order.
            self._join()
            return True
        self._in_vain = attempt
        self._again_s = site.now_s + self._settings.quantum_s - EPSILON_S
        return False


def _behind(entry: QueueEntry) -> Waiting:
    return Waiting(WaitReason.BEHIND, f"it depends on {entry.name}")


class ElasticSite(Site[E, P], Protocol[E, P]):
    """A site whose running entries can be resized."""

    @property
    def is_stable(self) -> bool:
        """Whether the policy's answer is constant until an entry arrives, starts or ends."""

    def elastic(self) -> Sequence[tuple[E, ElasticJob]]:
        """The running entries that can be resized now, as the policy sees them."""

    def queued(self, entry: E) -> QueuedJob:
        """A waiting entry as the policy sees it."""

    def ask(
        self, jobs: Sequence[ElasticJob], queue: Sequence[QueuedJob]
    ) -> Mapping[str, int]:
        """The policy's answer for the present cluster."""

    def resize(self, entry: E, degree: int) -> None:
        """Give an entry that many GPUs, if the placement policy finds them. A lab does it later."""


def resize_jobs(
    site: ElasticSite[E, Any], waiting: Iterable[tuple[E, Waiting]]
) -> list[E]:
    """Call the elasticity policy after a pass and apply its answer, shrinking first; returns the
    changed entries. ``waiting`` has the next one first."""
    elastic = site.elastic()
    if not elastic:
        return []
    if not site.is_stable:
        site.wake_at(site.now_s + ASK_AGAIN_S)
    queue = list[QueuedJob]()
    had_enough = set[str]()
    for entry, why in waiting:  # only those that need nothing but GPUs
        if why.reason is WaitReason.QUOTA:
            had_enough.add(entry.user)
        elif not (
            why.is_blocked or why.reason.is_passed or entry.user in had_enough
        ):
            queue.append(site.queued(entry))
            if len(queue) == _MOST_QUEUED:
                break
    wanted = site.ask([job for _, job in elastic], queue)
    changes = [
        (wanted[job.name] - job.degree, entry, job)
        for entry, job in elastic
        if job.name in wanted
    ]
    changed: list[E] = []
    for more, entry, job in sorted(changes, key=lambda change: change[0]):
        accounts = site.accounts
        if (
            more > 0
            and accounts
            and accounts.over_quota(entry.user, more, site.now_s)
        ):
            continue
        site.resize(entry, job.degree + more)
        changed.append(entry)
    return changed


def is_stable(policy: object) -> bool:
    """Whether an elasticity policy, or the ``policy`` of a guard, is ``stable``."""
    return bool(getattr(getattr(policy, "policy", policy), "stable", False))


def room_for(
    view: ClusterView,
    name: str,
    gpus: int,
    *,
    grows: bool,
) -> ClusterView:
    """The cluster for a job that is resized: its GPUs and, if it grows, the free ones."""
    taken = view.occupied if grows else view.shape.everything
    return view._replace(
        occupied=taken & ~gpus,
        running=tuple([each for each in view.running if each.name != name]),
        rings=tuple([each for each in view.rings if each.name != name]),
    )


def iteration_times(
    network: LabNetwork,
    view: ClusterView,
    name: str,
    options: Mapping[int, tuple[Sequence[int], Load]],
) -> dict[int, float]:
    """Predicted seconds of an iteration by degree (if it has a route) while all others run."""
    others = [
        RingWork(r.ring, r.load)
        for r in view.rings
        if r.load is not None and r.name != name
    ]
    times = {
        degree: units_s(network, [*others, RingWork(ring, load)])[-1]
        for degree, (ring, load) in options.items()
    }
    return {
        degree: seconds
        for degree, seconds in times.items()
        if seconds < float("inf")
    }
