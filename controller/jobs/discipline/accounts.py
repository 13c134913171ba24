"""What each user has and had: the books behind quotas and *fair-share*."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from patchlight.testbed.lab.queueing import Discipline, Waiting, WaitReason


class Usage(NamedTuple):
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

    def __init__(self, settings: Discipline, usage: Mapping[str, Usage] | None = None) -> None:
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

    def usage(self, now_s: float) -> dict[str, Usage]:
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

    def _until(self, user: str, now_s: float) -> Usage:
        """The usage as of now: what was had decays, what is held is added as it was had."""
        known = self._usage.get(user)
        if known is None:
            return Usage(0.0, now_s, 0.0)
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
        return Usage(gpu_s, now_s, before_gpu_s + held * (now_s - max(begins_s, known.at_s)))


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
