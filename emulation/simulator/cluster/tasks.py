"""A job in the cluster: where it runs, how far it is, and what it has cost so far."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from enum import StrEnum

from patchlight.controller.policies.contract import Progress, Running
from patchlight.emulation.simulator.cluster.jobs import Load, QueueJob


class State(StrEnum):
    """Where a job is in its life; ``BLOCKED`` and ``DONE`` are its end."""

    COMING = "coming"
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    BLOCKED = "blocked"


class Cause(StrEnum):
    """Why a job was blocked."""

    TOO_LARGE = "too-large"
    """It wants more GPUs, of the models it can use, than the cluster has."""
    UNPLACEABLE = "unplaceable"
    """The placement policy finds no place for it even where nothing else runs."""
    REFUSED = "refused"
    """Who decides let it wait to the end, with nothing else left to happen."""


class SimulatedJob:
    """What the simulation knows of a job. Times are seconds, ``nan`` until they are known."""

    __slots__ = (
        "attained_gpu_s", "began_remaining", "began_s", "busy_gpu_s", "cause", "demand", "ended_s",
        "ends_s", "gpus", "index", "job", "load", "losses", "preemptions", "racks", "remaining",
        "resume_s", "ring", "running", "servers", "since_s", "started_s", "state", "unit_s",
        "units", "waited_s", "waits_since_s",
    )  # fmt: skip

    def __init__(self, index: int, job: QueueJob) -> None:
        self.index, self.job = index, job
        self.state = State.COMING
        self.cause: Cause | None = None
        self.units = job.duration_s if job.training is None else float(job.training.iterations)
        self.remaining = self.units
        self.load: Load | None = None
        self.ring: tuple[int, ...] = ()
        self.gpus = 0  # The ring as a set.
        self.servers = self.racks = 0  # Over how many of them it runs.
        self.demand: Mapping[Hashable, int] = {}
        self.unit_s = math.inf
        self.ends_s = math.inf
        self.running: Running | None = None
        # Counted up to ``since_s``; from ``resume_s`` on it gets on with its work.
        self.since_s = self.resume_s = self.began_s = self.waits_since_s = math.nan
        self.began_remaining = self.units
        self.started_s = self.ended_s = math.nan
        self.waited_s = self.attained_gpu_s = self.busy_gpu_s = 0.0
        self.preemptions = self.losses = 0

    @property
    def workers(self) -> int:
        """How many GPUs it wants."""
        return self.job.view.workers

    def progress(self, known: bool) -> Progress:
        """What an order policy is told; how much is left only where that is known."""
        if not known:
            return Progress(self.attained_gpu_s)
        part = self.remaining / self.units if self.units else 0.0
        return Progress(self.attained_gpu_s, part * self.job.duration_s)

    def settle(self, now_s: float) -> None:
        """Count what it had and did since it was last looked at."""
        passed_s = now_s - self.since_s
        if passed_s <= 0:
            return
        workers = len(self.ring)
        self.attained_gpu_s += passed_s * workers
        at_work_s = now_s - max(self.since_s, self.resume_s)
        if at_work_s > 0 and self.load is not None:
            done = min(self.remaining, at_work_s / self.unit_s)
            self.remaining -= done
            self.busy_gpu_s += done * self.load.compute_s * workers
        self.since_s = now_s

    def lose_work(self, now_s: float, checkpoint_s: float) -> None:
        """Take back what was done since the last checkpoint, at the pace it has now."""
        at_work_s = now_s - self.resume_s
        if at_work_s > 0:
            lost = math.fmod(at_work_s, checkpoint_s) / self.unit_s
            self.remaining = min(self.began_remaining, self.remaining + lost)
