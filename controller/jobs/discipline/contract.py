"""Defines what a queue needs from the site where its jobs run, from jobs, and from users' accounts.

A *site* is a lab or a simulated cluster; an *entry* is a job, or a gang of jobs that start
together. An entry gets a *placement*: only the site knows which GPUs it contains.
"""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol, TypeVar

from patchlight.controller.policies.contract import Progress, Running
from patchlight.testbed.lab.rules import Discipline, Waiting, WaitReason

EPSILON_S = 1e-7
"""Times closer than this are equal."""

P = TypeVar("P")


class UserUsage(NamedTuple):
    """Past usage until ``at_s``: decayed ``gpu_s``, and ``window_gpu_s`` in the present window."""

    gpu_s: float = 0.0
    at_s: float = 0.0
    window_gpu_s: float = 0.0


class UserAccounts:
    """The accounts of one site. ``usage`` is what an earlier site stored; call ``took`` again for
    GPUs that are still held."""

    def __init__(
        self,
        settings: Discipline,
        usage: Mapping[str, UserUsage] | None = None,
    ) -> None:
        self._settings = settings
        self._usage = dict(usage or {})
        self._held: dict[str, int] = {}

    def took(
        self,
        user: str,
        gpus: int,
        now_s: float,
    ) -> None:
        """A user's job takes that many GPUs."""
        self._usage[user] = self._until(user, now_s)
        self._held[user] = self._held.get(user, 0) + gpus

    def gave_back(
        self,
        user: str,
        gpus: int,
        now_s: float,
    ) -> None:
        """A user's job gives back that many GPUs."""
        self.took(user, -gpus, now_s)

    def held(self, user: str) -> int:
        """How many GPUs a user's jobs have now."""
        return self._held.get(user, 0)

    def room(self, user: str) -> float:
        """How many more GPUs a user's jobs may take; infinity without a limit."""
        most = self._settings.allowance(user).gpus
        return math.inf if most is None else most - self.held(user)

    def usage(self, now_s: float) -> dict[str, UserUsage]:
        """The usage of each user until now, to be stored."""
        return {user: self._until(user, now_s) for user in self._usage}

    def shares(self, now_s: float) -> dict[str, float]:
        """Each user's GPU-seconds per share, decayed as in Slurm's multifactor priority."""
        share = {
            user: self._settings.allowance(user).share or 1.0
            for user in self._usage
        }
        return {
            user: self._until(user, now_s).gpu_s / share[user]
            for user in share
        }

    def over_quota(
        self,
        user: str,
        gpus: int,
        now_s: float,
    ) -> Waiting | None:
        """Why a user's job with that many GPUs may not start now; ``None`` if it may."""
        allowed = self._settings.allowance(user)
        if allowed.gpus is not None and self.held(user) + gpus > allowed.gpus:
            words = f"{_called(user)} has {self.held(user)} of at most {allowed.gpus} GPUs"
            return Waiting(
                WaitReason.QUOTA,
                f"{words}, and it needs {gpus}",
                is_blocked=True,
            )
        if allowed.gpu_hours is not None:
            had = self._until(user, now_s).window_gpu_s / 3600
            if had >= allowed.gpu_hours:
                words = f"{_called(user)} has used {allowed.gpu_hours:g} GPU-hours, the quota"
                left_s = self.next_window_s(now_s) - now_s
                words += f": more become available in {left_s / 3600:.3g} h"
                return Waiting(WaitReason.QUOTA, words, is_blocked=True)
        return None

    def next_window_s(self, now_s: float) -> float:
        """When the next window of GPU-hours begins."""
        length_s = self._settings.quota_window_s
        return (now_s // length_s + 1) * length_s

    def _until(self, user: str, now_s: float) -> UserUsage:
        known = self._usage.get(user)
        if known is None:
            return UserUsage(0.0, now_s, 0.0)
        passed_s = now_s - known.at_s
        if passed_s <= 0:
            return known
        held = self._held.get(user, 0)
        half_life_s = self._settings.half_life_s
        left = 0.5 ** (passed_s / half_life_s)
        # The integral of held · 2^(−t/half-life) over the elapsed time.
        gpu_s = known.gpu_s * left + held * half_life_s / math.log(2) * (
            1 - left
        )
        window_s = self._settings.quota_window_s
        begins_s = now_s // window_s * window_s
        before_gpu_s = known.window_gpu_s if known.at_s >= begins_s else 0.0
        return UserUsage(
            gpu_s,
            now_s,
            before_gpu_s + held * (now_s - max(begins_s, known.at_s)),
        )


def admission(
    settings: Discipline,
    user: str,
    gpus: int,
    jobs: int,
) -> Waiting | None:
    """Why a job of ``gpus`` may not even wait, if so; the user has ``jobs`` unfinished ones."""
    allowed = settings.allowance(user)
    if allowed.gpus is not None and gpus > allowed.gpus:
        words = f"it needs {gpus} GPUs, and {_called(user)} may have {allowed.gpus} at once"
        return Waiting(WaitReason.QUOTA, words, is_blocked=True)
    if allowed.jobs is not None and jobs >= allowed.jobs:
        words = f"{_called(user)} has {jobs} jobs waiting or running, the limit is {allowed.jobs}"
        return Waiting(WaitReason.QUOTA, words, is_blocked=True)
    return None


def _called(user: str) -> str:
    return f"user {user}" if user else "the user"


class JobFate(StrEnum):
    """The state of a job that others depend on."""

    PENDING = "pending"
    DONE = "done"
    FAILED = "failed"
    """It will never be done: failed, stopped, or unknown."""


class QueueEntry(Protocol):
    """A job, or a gang that starts as one. To change a waiting entry, ``remove`` it and add it to
    the site's ``joined`` again."""

    @property
    def index(self) -> int:
        """A unique number; in a tie the lower one comes first."""

    @property
    def name(self) -> str:
        """Its name for users."""

    @property
    def user(self) -> str:
        """Who submitted it."""

    @property
    def workers(self) -> int:
        """How many GPUs it wants in total; the minimum if a policy decides."""

    @property
    def wants(self) -> str:
        """The same as text, like ``4 GPUs of Tesla M40``."""

    @property
    def priority(self) -> int:
        """Higher ones come first, before the order policy."""

    @property
    def preemptible(self) -> bool:
        """Whether it may be preempted."""

    @property
    def held(self) -> bool:
        """Whether its user holds it back."""

    @property
    def after(self) -> Sequence[str]:
        """The jobs that must be done first, as its site names them."""

    @property
    def gpus(self) -> int:
        """Its GPUs while it runs, as a set."""

    @property
    def began_s(self) -> float:
        """When it began, while it runs."""

    def progress(self, now_s: float, known: bool) -> Progress:
        """GPU-seconds used and, if ``known``, seconds left."""


class Occupied(Protocol):
    """The GPUs that are not available; sets of GPUs are integers."""

    @property
    def free(self) -> int:
        """How many are free: neither held nor broken."""

    @property
    def occupied(self) -> int:
        """The held or broken GPUs, as a set."""

    @property
    def broken(self) -> int:
        """The GPUs that are broken or have unknown links, as a set."""


E = TypeVar("E", bound=QueueEntry)


class Site(Protocol[E, P]):
    """Where entries run. ``joined`` are those that began to wait, or were preempted, since the
    queue last cleared this list. The site updates ``accounts``."""

    joined: list[E]

    @property
    def accounts(self) -> UserAccounts | None:
        """Users' present and past usage; only for quotas and *fair-share*."""

    @property
    def now_s(self) -> float:
        """Seconds; constant during a pass."""

    @property
    def running(self) -> Mapping[int, E]:
        """The running entries, by their index."""

    @property
    def occupancy(self) -> Occupied:
        """The GPUs that are free, held and broken now."""

    @property
    def released(self) -> int:
        """Increases when a waiting entry may find a placement: GPUs or circuits changed."""

    @property
    def layout(self) -> int:
        """Increases when an entry may find a placement that had none even in an empty cluster."""

    def rank(self, entry: E) -> float:
        """The order policy's value of an entry now; of a gang, the minimum of its jobs'."""

    def ends(self) -> Sequence[Running]:
        """The ends of running entries, earliest first; infinity if unknown."""

    def would_end_s(self, entry: E) -> float:
        """The end of a waiting entry if it started now; infinity if unknown."""

    def fate(self, name: str) -> JobFate:
        """The state of a job in an entry's ``after``."""

    def free_for(self, entry: E) -> int:
        """How many free GPUs the entry can run on. Called only to explain why it waits."""

    def out_of_reach(self, entry: E) -> Waiting | None:
        """Why an entry waits for broken hosts, if so; later ones may overtake it."""

    def place(self, entry: E, occupied: int | None = None) -> P | Waiting:
        """The policies' placement of an entry if the GPUs in ``occupied`` are taken (by default the
        present ones), or why there is none; for some reasons later entries may overtake it."""

    def gpus_of(self, placement: P) -> int:
        """The GPUs of a placement, as a set."""

    def can_start(
        self,
        entry: E,
        placement: P,
        without: Sequence[E],
    ) -> bool:
        """Whether an entry could start there once the entries ``without`` have lost their GPUs."""

    def start(self, entry: E, placement: P) -> bool:
        """Start an entry there, in a lab after the pass. ``False``: its GPUs cannot be connected,
        and it continues to wait."""

    def preempt(self, entry: E) -> None:
        """Preempt a running entry. It waits again when it is next in ``joined``: immediately in a
        simulation; in a lab after it has stopped at the end of an iteration, with its GPUs."""

    def refuse(self, entry: E, why: Waiting) -> bool:
        """Whether a blocked entry leaves the queue, or waits for ``layout`` or its dependencies."""

    def wake_at(self, at_s: float) -> None:
        """Request a pass by that time."""


class OrderTraits(NamedTuple):
    """The traits of an order policy: see ``patchlight.controller.policies.order``."""

    stable: bool = False
    by_user: bool = False
    rises_at: Sequence[float] | None = None

    @classmethod
    def of(cls, policy: object) -> "OrderTraits":
        """The traits of a policy, or of the ``policy`` of a guard."""
        policy = getattr(policy, "policy", policy)
        stable = bool(getattr(policy, "stable", False))
        rises_at = getattr(policy, "rises_at", None) if stable else None
        return cls(stable, bool(getattr(policy, "by_user", False)), rises_at)
