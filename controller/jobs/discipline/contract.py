"""What a queue needs of the place where its jobs run, of the jobs, and of their users' accounts.

A *site* is a lab or a simulated cluster; an *entry* is what the queue starts as one: a job, or
a gang of jobs that start together. Where an entry goes is a *placement*: the queue never looks
into it, it only asks the site which GPUs are in it.
"""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol, TypeVar

from patchlight.controller.policies.contract import Progress, Running
from patchlight.testbed.lab.rules import Discipline, Waiting, WaitReason

EPSILON_S = 1e-7
"""Moments nearer than this are one."""

P = TypeVar("P")


class UserUsage(NamedTuple):
    """What a user had, as of ``at_s``: what a site keeps of it for good.

    ``gpu_s`` are GPU-seconds of which those of a half-life ago count half, ``window_gpu_s``
    all those since the quota's present window began.
    """

    gpu_s: float = 0.0
    at_s: float = 0.0
    window_gpu_s: float = 0.0


class UserAccounts:
    """The books of one site. Whoever has GPUs is charged as time passes.

    ``usage`` is what was kept when the site was last there; GPUs that are held then have to be
    told again by ``took``.
    """

    def __init__(self, settings: Discipline, usage: Mapping[str, UserUsage] | None = None) -> None:
        self._settings = settings
        self._usage = dict(usage or {})
        self._held: dict[str, int] = {}

    def took(self, user: str, gpus: int, now_s: float) -> None:
        """A job of a user has so many GPUs from now on."""
        self._usage[user] = self._until(user, now_s)
        self._held[user] = self._held.get(user, 0) + gpus

    def gave_back(self, user: str, gpus: int, now_s: float) -> None:
        """A job of a user has them no more."""
        self.took(user, -gpus, now_s)

    def held(self, user: str) -> int:
        """How many GPUs a user's jobs have now."""
        return self._held.get(user, 0)

    def room(self, user: str) -> float:
        """How many more GPUs a user's jobs may have at once; infinity for any number."""
        most = self._settings.allowance(user).gpus
        return math.inf if most is None else most - self.held(user)

    def usage(self, now_s: float) -> dict[str, UserUsage]:
        """What each user had up to now: what to keep."""
        return {user: self._until(user, now_s) for user in self._usage}

    def shares(self, now_s: float) -> dict[str, float]:
        """Of each user the decayed GPU-seconds over the user's share.

        As in Slurm's multifactor priority: the use of the past decays with a half-life, and
        counts against what the user is entitled to.
        """
        allowance = self._settings.allowance
        return {
            user: self._until(user, now_s).gpu_s / (allowance(user).share or 1.0)
            for user in self._usage
        }

    def over_quota(self, user: str, gpus: int, now_s: float) -> Waiting | None:
        """Why a user's job of so many GPUs may not start now; ``None`` if it may."""
        allowed = self._settings.allowance(user)
        if allowed.gpus is not None and self.held(user) + gpus > allowed.gpus:
            words = f"{_called(user)} has {self.held(user)} of {allowed.gpus} GPUs at once"
            return Waiting(WaitReason.QUOTA, f"{words}, and it wants {gpus}", is_blocked=True)
        if allowed.gpu_hours is not None:
            had = self._until(user, now_s).window_gpu_s / 3600
            if had >= allowed.gpu_hours:
                words = f"{_called(user)} had all {allowed.gpu_hours:g} GPU-hours"
                left_s = self.next_window_s(now_s) - now_s
                words += f": the next ones are there in {left_s / 3600:.3g} h"
                return Waiting(WaitReason.QUOTA, words, is_blocked=True)
        return None

    def next_window_s(self, now_s: float) -> float:
        """When GPU-hours are counted anew."""
        length_s = self._settings.quota_window_s
        return (now_s // length_s + 1) * length_s

    def _until(self, user: str, now_s: float) -> UserUsage:
        """The usage as of now: what was had decays, what is held is added as it was had."""
        known = self._usage.get(user)
        if known is None:
            return UserUsage(0.0, now_s, 0.0)
        passed_s = now_s - known.at_s
        if passed_s <= 0:
            return known
        held, half_life_s = self._held.get(user, 0), self._settings.half_life_s
        left = 0.5 ** (passed_s / half_life_s)
        # ∫ held · 2^(−t/half-life) dt over the time that has passed.
        gpu_s = known.gpu_s * left + held * half_life_s / math.log(2) * (1 - left)
        window_s = self._settings.quota_window_s
        begins_s = now_s // window_s * window_s
        before_gpu_s = known.window_gpu_s if known.at_s >= begins_s else 0.0
        return UserUsage(gpu_s, now_s, before_gpu_s + held * (now_s - max(begins_s, known.at_s)))


def admission(settings: Discipline, user: str, gpus: int, jobs: int) -> Waiting | None:
    """Why a job of a user may not even wait; ``None`` if it may.

    It wants so many GPUs, and so many jobs of the user's wait or run already.
    """
    allowed = settings.allowance(user)
    if allowed.gpus is not None and gpus > allowed.gpus:
        words = f"it wants {gpus} GPUs, and {_called(user)} may have {allowed.gpus} at once"
        return Waiting(WaitReason.QUOTA, words, is_blocked=True)
    if allowed.jobs is not None and jobs >= allowed.jobs:
        words = f"{_called(user)} has {jobs} jobs that wait or run, of at most {allowed.jobs}"
        return Waiting(WaitReason.QUOTA, words, is_blocked=True)
    return None


def _called(user: str) -> str:
    return f"user {user}" if user else "the user"


class JobFate(StrEnum):
    """What has become of a job that others wait for."""

    PENDING = "pending"
    DONE = "done"
    FAILED = "failed"
    """It will never be done: failed, stopped, or nobody knows it."""


class QueueEntry(Protocol):
    """What is started as one: a job, or a gang of them.

    What changes while it waits, the queue hears by ``remove``, and by the site's ``joined`` again.
    """

    @property
    def index(self) -> int:
        """Its own number; of equals the lower one is first."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def user(self) -> str:
        """Whose it is."""

    @property
    def workers(self) -> int:
        """How many GPUs it wants in all; where a policy will say, the least that it can have."""

    @property
    def wants(self) -> str:
        """The same in words, like ``4 GPUs of Tesla M40``."""

    @property
    def priority(self) -> int:
        """The higher comes first, whatever the order policy says."""

    @property
    def preemptible(self) -> bool:
        """Whether its GPUs may be taken from it while it runs."""

    @property
    def held(self) -> bool:
        """Whether it waits because its user wants it to."""

    @property
    def after(self) -> Sequence[str]:
        """The jobs that have to be done before it starts, as its site names them."""

    @property
    def gpus(self) -> int:
        """While it runs, the GPUs that it has, as a set."""

    @property
    def began_s(self) -> float:
        """While it runs, since when."""

    def progress(self, now_s: float, known: bool) -> Progress:
        """GPU-seconds had and, where ``known``, seconds left."""


class Occupied(Protocol):
    """Which GPUs an entry cannot have. Numbers of GPUs, or sets of them as integers."""

    @property
    def free(self) -> int:
        """How many are neither held nor broken."""

    @property
    def occupied(self) -> int:
        """Those held or broken, as a set."""

    @property
    def broken(self) -> int:
        """Those that are broken, or whose links nobody knows, as a set."""


E = TypeVar("E", bound=QueueEntry)


class Site(Protocol[E, P]):
    """Where entries run.

    ``joined`` are the entries that began to wait since the queue last emptied this list, those
    that were preempted among them. ``accounts`` are needed for quotas and for *fair-share* only:
    the site tells them of each entry that gets GPUs or gives them back.
    """

    joined: list[E]

    @property
    def accounts(self) -> UserAccounts | None:
        """What users have and had; ``None`` where nobody has to know."""

    @property
    def now_s(self) -> float:
        """Seconds; it stands still during a pass."""

    @property
    def running(self) -> Mapping[int, E]:
        """Those that have GPUs, by their index."""

    @property
    def occupancy(self) -> Occupied:
        """Which GPUs are free, held and broken now."""

    @property
    def released(self) -> int:
        """It rises whenever an entry that found no place may find one: GPUs became free,
        or circuits changed."""

    @property
    def layout(self) -> int:
        """It rises whenever an entry that found no place in an empty cluster may find one."""

    # -- what is known

    def rank(self, entry: E) -> float:
        """What the order policy says of an entry now; of a gang, the least of its jobs'."""

    def ends(self) -> Sequence[Running]:
        """The ends of what runs, the next first; infinity where nobody knows."""

    def would_end_s(self, entry: E) -> float:
        """When an entry that waits would end if it started now; infinity where nobody knows."""

    def fate(self, name: str) -> JobFate:
        """What has become of a job that an entry names in ``after``."""

    def free_for(self, entry: E) -> int:
        """How many free GPUs the entry can run on. Asked only when somebody asks why it waits."""

    def out_of_reach(self, entry: E) -> Waiting | None:
        """Why an entry waits for broken hosts of which nobody knows when they are back, if so.

        Others pass it. Asked only while there are broken ones.
        """

    # -- what can be done

    def place(self, entry: E, occupied: int | None = None) -> P | Waiting:
        """Where the policies put an entry, or why nowhere. Nothing has happened by that.

        Taken are the GPUs in ``occupied``; ``None``: those that are. A reason that others pass
        (``WaitReason.is_passed``) is one that no GPU which becomes free would mend.
        """

    def gpus_of(self, placement: P) -> int:
        """The GPUs of a placement, as a set."""

    def can_start(self, entry: E, placement: P, without: Sequence[E]) -> bool:
        """Whether an entry could be started there once those ``without`` have lost their GPUs.

        Nothing has happened by that. It is asked before anybody loses any.
        """

    def start(self, entry: E, placement: P) -> bool:
        """Start an entry there: from now on it is in ``running``, and its GPUs are held.

        A lab notes it here and carries it out after the pass. ``False``: it cannot be started
        there, because its GPUs cannot be joined by light; it waits on.
        """

    def preempt(self, entry: E) -> None:
        """Take a running entry's GPUs: from now on they are free, and it is not in ``running``.

        It waits again from when it is next in ``joined``: at once in a simulation, in a lab
        once it has stopped at the end of an iteration. What is started on its GPUs in the same
        pass, a lab starts only then.
        """

    def refuse(self, entry: E, why: Waiting) -> bool:
        """Whether the site takes a blocked entry off the queue for good, now that it hears why.

        ``False`` keeps it waiting: it is tried again when ``layout`` rises, or what it waits
        for has changed.
        """

    def wake_at(self, at_s: float) -> None:
        """There has to be a pass by then, whatever happens."""


class OrderTraits(NamedTuple):
    """What an order policy says of itself: see ``patchlight.controller.policies.order``."""

    stable: bool = False
    by_user: bool = False
    rises_at: Sequence[float] | None = None

    @classmethod
    def of(cls, policy: object) -> "OrderTraits":
        """Those of a policy, or of the one that a guard keeps as its ``policy``."""
        policy = getattr(policy, "policy", policy)
        stable = bool(getattr(policy, "stable", False))
        rises_at = getattr(policy, "rises_at", None) if stable else None
        return cls(stable, bool(getattr(policy, "by_user", False)), rises_at)
