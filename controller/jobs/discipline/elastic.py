"""Jobs that run get other numbers of workers: the elasticity policy says which, a site does it.

One implementation for the lab and for the simulator, asked after each pass of the queue.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from patchlight.controller.jobs.discipline.contract import QueueEntry, UserAccounts
from patchlight.controller.policies.contract import ClusterView, ElasticJob, QueuedJob
from patchlight.controller.prediction.completion import RingWork, units_s
from patchlight.controller.prediction.network import LabNetwork
from patchlight.controller.prediction.sharing import Load
from patchlight.testbed.lab.queueing import Waiting, WaitReason

ASK_AGAIN_S = 60.0
"""So often the policy is asked while nothing comes, starts or ends, unless it is ``stable``."""

_MOST_QUEUED = 64

E = TypeVar("E", bound=QueueEntry)


class ElasticSite(Protocol[E]):
    """A site whose running entries may get other numbers of GPUs."""

    @property
    def accounts(self) -> UserAccounts | None:
        """What users have and had; ``None`` where nobody has to know."""

    @property
    def now_s(self) -> float:
        """Seconds."""

    @property
    def is_stable(self) -> bool:
        """Whether the policy answers the same until something comes, starts or ends."""

    def elastic(self) -> Sequence[tuple[E, ElasticJob]]:
        """The running entries that may change now, as the policy is shown them."""

    def queued(self, entry: E) -> QueuedJob:
        """An entry that waits, as the policy is shown it."""

    def ask(self, jobs: Sequence[ElasticJob], queue: Sequence[QueuedJob]) -> Mapping[str, int]:
        """What the policy answers, the cluster being as it is now."""

    def resize(self, entry: E, degree: int) -> None:
        """Give an entry so many GPUs, if the placement policy finds them; what it had more, back.

        A lab notes it here and carries it out after the pass.
        """

    def wake_at(self, at_s: float) -> None:
        """There has to be a pass by then, whatever happens."""


def resize_jobs(site: ElasticSite[E], waiting: Iterable[tuple[E, Waiting]]) -> list[E]:
    """Ask once, and do what is answered: who changed. ``waiting`` has the next one first.

    Those that shrink come first. A job does not grow beyond what its user may have.
    """
    elastic = site.elastic()
    if not elastic:
        return []
    if not site.is_stable:
        site.wake_at(site.now_s + ASK_AGAIN_S)
    queue = [site.queued(entry) for entry in itertools.islice(_for_gpus(waiting), _MOST_QUEUED)]
    wanted = site.ask([job for _, job in elastic], queue)
    changes = [
        (wanted[job.name] - job.degree, entry, job) for entry, job in elastic if job.name in wanted
    ]
    changed: list[E] = []
    for more, entry, job in sorted(changes, key=lambda change: change[0]):
        accounts = site.accounts
        if more > 0 and accounts and accounts.over_quota(entry.user, more, site.now_s):
            continue
        site.resize(entry, job.degree + more)
        changed.append(entry)
    return changed


def _for_gpus(waiting: Iterable[tuple[E, Waiting]]) -> Iterator[E]:
    """Those that GPUs alone would help."""
    had_enough: set[str] = set()
    for entry, why in waiting:
        if why.reason is WaitReason.QUOTA:
            had_enough.add(entry.user)
        elif not (why.is_blocked or why.reason.is_passed or entry.user in had_enough):
            yield entry


def is_stable(policy: object) -> bool:
    """Whether an elasticity policy, or the one that a guard keeps, says that it is ``stable``."""
    return bool(getattr(getattr(policy, "policy", policy), "stable", False))


def room_for(view: ClusterView, name: str, gpus: int, *, grows: bool) -> ClusterView:
    """The cluster for a job that changes: its own GPUs, and if it grows the free ones, too."""
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
    """Predicted seconds of an iteration of a job by degree, for a ring and a load of each.

    Beside all that run in a lab, over its links as they are lit now. A degree whose ring has no way
    is left out.
    """
    others = [RingWork(r.ring, r.load) for r in view.rings if r.load is not None and r.name != name]
    times = {
        degree: units_s(network, [*others, RingWork(ring, load)])[-1]
        for degree, (ring, load) in options.items()
    }
    return {degree: seconds for degree, seconds in times.items() if seconds < float("inf")}
