"""A job in the simulated cluster: its GPUs, its progress, and its costs so far."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from patchlight.controller.policies.contract import (
    Progress,
    RingOfJob,
    Running,
)
from patchlight.controller.prediction.network import Demand, Load
from patchlight.emulation.simulator.cluster.jobs import QueueJob
from patchlight.testbed.errors import BadInput


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
    QUOTA = "quota"
    """Its user may not have so many GPUs at once, or so many jobs that wait or run."""
    DEPENDENCY = "dependency"
    """A job that it was to come after was not done."""
    REFUSED = "refused"
    """The partition policy refused it."""


@dataclass(
    slots=True,
    eq=False,
)
class SimulatedJob:
    """A job's state in the simulation. Times are seconds, ``nan`` until they are known.

    It wants ``workers`` GPUs; one whose degree is open, while it waits, the least that it can have.
    ``units`` of work are to be done, ``remaining`` of them are left;
    each takes ``unit_s`` at the present pace. ``gpus`` is the ``ring`` as a set, ``demand`` the
    links that it uses.
    """

    held: ClassVar[bool] = False  # Nobody holds back jobs of a trace.

    index: int
    spec: QueueJob
    state: State = State.COMING
    cause: Cause | None = None
    workers: int = field(init=False)
    priority: int = field(init=False)
    after: tuple[str, ...] = field(init=False)
    preemptible: bool = field(init=False)
    units: float = field(init=False)
    remaining: float = field(init=False)
    began_remaining: float = field(init=False)
    load: Load = field(init=False)  # From when it starts.
    # The same on other numbers of such GPUs.
    loads: dict[int, Load] = field(default_factory=dict)
    ring: tuple[int, ...] = ()
    gpus: int = 0
    servers: int = 0  # Over how many of them it runs, as of racks.
    racks: int = 0
    demand: Demand = field(default_factory=dict)
    unit_s: float = math.inf
    ends_s: float = math.inf
    running: Running | None = None
    # To policies, of one that runs in a lab.
    shown: RingOfJob = field(init=False)
    # Counted up to ``since_s``; from ``resume_s`` on it gets on with its work.
    since_s: float = math.nan
    resume_s: float = math.nan
    began_s: float = math.nan
    waits_since_s: float = math.nan
    started_s: float = math.nan
    ended_s: float = math.nan
    waited_s: float = 0.0
    attained_gpu_s: float = 0.0
    busy_gpu_s: float = 0.0
    preemptions: int = 0
    resizes: int = 0
    losses: int = 0

    def __post_init__(self) -> None:
        spec = self.spec
        view = self.spec.view
        if (
            spec.training is not view.training
            or spec.communication != view.communication
        ):
            view = view._replace(
                training=spec.training,
                communication=spec.communication,
            )
            self.spec = spec = spec._replace(view=view)
        if not (spec.view.workers or spec.view.degrees):
            raise BadInput(
                f"job {spec.view.name} has no number of GPUs and no degrees for a partition policy"
            )
        self.workers = self.least
        self.priority = spec.priority
        self.after = spec.after
        self.preemptible = spec.preemptible
        self.units = (
            spec.duration_s
            if spec.training is None
            else float(spec.training.iterations)
        )
        self.remaining = self.began_remaining = self.units

    @property
    def name(self) -> str:
        """Its name in the trace."""
        return self.spec.view.name

    @property
    def is_open(self) -> bool:
        """Whether the partition policy says how many GPUs it gets."""
        return not self.spec.view.workers

    @property
    def least(self) -> int:
        """How many GPUs it wants; where its degree is open, the least that it can have."""
        return self.spec.view.workers or self.spec.view.degrees[0]

    @property
    def user(self) -> str:
        """Its user."""
        return self.spec.view.user

    @property
    def wants(self) -> str:
        """The GPUs that it wants, in words."""
        models = " or ".join(sorted(self.spec.view.gpu_models))
        return f"{self.workers} GPU{'s' * (self.workers != 1)}{f' of {models}' * bool(models)}"

    def progress(self, now_s: float, known: bool) -> Progress:
        """Its progress for an order policy; the rest only where that is known."""
        attained_gpu_s = self.attained_gpu_s
        remaining = self.remaining
        if self.state is State.RUNNING:
            attained_gpu_s += (now_s - self.since_s) * len(self.ring)
            remaining -= self._done_by(now_s)
        if not known:
            return Progress(attained_gpu_s)
        part = remaining / self.units if self.units else 0.0
        return Progress(attained_gpu_s, part * self.spec.duration_s)

    # -- its life

    def wait(self, now_s: float) -> None:
        """It begins to wait."""
        self.state = State.WAITING
        self.waits_since_s = now_s
        if self.is_open:
            self.workers = self.least

    def start(
        self,
        now_s: float,
        ring: Sequence[int],
        gpus: int,
        load: Load,
        start_s: float,
        restart_s: float,
        dark_s: float,
    ) -> None:
        """It has GPUs, and needs ``start_s`` to begin, or ``restart_s`` to begin again."""
        self.waited_s += now_s - self.waits_since_s
        self.resume_s = now_s + start_s + dark_s
        if math.isnan(self.started_s):
            self.started_s = now_s
        else:
            self.resume_s = now_s + restart_s + dark_s
        self.state = State.RUNNING
        self.ring = tuple(ring)
        self.gpus = gpus
        self.load = load
        self.loads = {}
        self.began_s = self.since_s = now_s
        self.began_remaining = self.remaining

    def reckon_end(self, now_s: float) -> None:
        """Its end at the present pace becomes ``ends_s``."""
        begins_s = max(now_s, self.resume_s)
        left = self.remaining
        self.ends_s = begins_s + left * self.unit_s if left else begins_s

    def finish(self, now_s: float) -> None:
        """Its work is done."""
        self.remaining = 0.0
        self.state = State.DONE
        self.ended_s = now_s

    def block(self, now_s: float, cause: Cause) -> None:
        """It will never run."""
        if self.state is State.WAITING:
            self.waited_s += now_s - self.waits_since_s
        self.state = State.BLOCKED
        self.cause = cause
        self.ended_s = now_s

    # -- its work

    def settle(self, now_s: float) -> None:
        """Count what it had and did at the pace that it had until now."""
        passed_s = now_s - self.since_s
        if passed_s <= 0:
            return
        workers = len(self.ring)
        self.attained_gpu_s += passed_s * workers
        done = self._done_by(now_s)
        self.remaining -= done
        self.busy_gpu_s += done * self.load.compute_s * workers
        self.since_s = now_s

    def left(self, now_s: float) -> float:
        """How many units it has still to do."""
        return self.remaining - self._done_by(now_s)

    def _done_by(self, now_s: float) -> float:
        """How many units it did since it was last counted."""
        at_work_s = now_s - max(self.since_s, self.resume_s)
        return (
            min(self.remaining, at_work_s / self.unit_s)
            if at_work_s > 0
            else 0.0
        )

    def lose_work(self, now_s: float, checkpoint_s: float) -> None:
        """Take back what was done since the last checkpoint, at the pace it has now."""
        self.losses += 1
        at_work_s = now_s - self.resume_s
        if at_work_s > 0:
            lost = math.fmod(at_work_s, checkpoint_s) / self.unit_s
            self.remaining = min(self.began_remaining, self.remaining + lost)
