"""What a queue needs of the place where its jobs run, and of the jobs.

A *site* is a lab or a simulated cluster; an *entry* is what the queue starts as one: a job, or
a gang of jobs that start together. Where an entry goes is a *placement*: the queue never looks
into it, it only asks the site which GPUs are in it.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol, TypeVar

from patchlight.controller.jobs.discipline.accounts import UserAccounts
from patchlight.controller.policies.contract import Progress, Running
from patchlight.testbed.lab.queueing import Waiting

EPSILON_S = 1e-7
"""Moments nearer than this are one."""


class Fate(StrEnum):
    """What has become of a job that others wait for."""

    PENDING = "pending"
    DONE = "done"
    FAILED = "failed"
    """It will never be done: failed, stopped, or nobody knows it."""


class Entry(Protocol):
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


E = TypeVar("E", bound=Entry)
P = TypeVar("P")


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

    def fate(self, name: str) -> Fate:
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
