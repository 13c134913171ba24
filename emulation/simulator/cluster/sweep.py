"""Simulates one trace under every combination of the named policies.

Policies that users wrote are guarded: their faults are reported.
"""

import itertools
import math
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from patchlight.controller.jobs.discipline.contract import (
    OrderTraits,
    UserAccounts,
)
from patchlight.controller.jobs.discipline.queue import JobQueue, resize_jobs
from patchlight.controller.policies import guard
from patchlight.controller.policies.cheapest import defragment
from patchlight.controller.policies.contract import Frozen, PolicyKind
from patchlight.controller.policies.registry import DEFAULTS, find, load_policy
from patchlight.emulation.simulator.cluster.cluster import Cluster
from patchlight.emulation.simulator.cluster.jobs import QueueJob, left_open
from patchlight.emulation.simulator.cluster.results import (
    QueueResult,
    summary_of,
)
from patchlight.emulation.simulator.cluster.simulated_job import (
    Cause,
    SimulatedJob,
)
from patchlight.emulation.simulator.cluster.simulation import Simulation
from patchlight.emulation.simulator.cluster.site import (
    Policies,
    Ring,
    SimulatedSite,
)
from patchlight.emulation.simulator.cluster.state import Settings
from patchlight.emulation.simulator.executors import (
    Engine,
    policy_seed,
    run_all,
)
from patchlight.testbed.errors import PatchlightError

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized

Tell = Callable[[int, int], None]
"""Called with the number of ended jobs and the number of all jobs."""

# A job that waited this long only for broken GPUs will not get them any more.
_HOPELESS_S = 365 * 86400.0
_TELL_EVERY = 20
_POLL_S = 0.25


class QueueScheduler:
    """Starts waiting jobs of a simulation as its policies decide, like a lab's queue.

    A job gets its place in the queue when it begins to wait. A policy whose order depends on more
    than the job and its progress is called again at each moment; one that does not depend on more
    has the attribute ``stable = True``, which makes long queues fast.
    """

    def __init__(self, simulation: Simulation, policies: Policies) -> None:
        self._simulation = simulation
        order = OrderTraits.of(policies.order)
        settings = simulation.settings
        if order.by_user or settings.has_quotas:
            simulation.user_accounts = UserAccounts(settings)
        self._site = SimulatedSite(simulation, policies)
        self._queue: JobQueue[SimulatedJob, Ring] = JobQueue(
            self._site, settings, order
        )
        self._look_s = 0.0
        self._seen_ended = 0
        self._seen: frozenset[int] = frozenset()
        self._is_elastic = policies.elasticity is not None
        self.latencies_s = self._site.latencies_s
        simulation.preview = self._site.preview

    def decide(self) -> None:
        """Start all jobs that can start now; then resize running jobs, or change their circuits."""
        simulation = self._simulation
        site = self._site
        site.now_s = simulation.now_s
        site.released = simulation.released
        simulation.held_up = self._queue.decide()
        resized = (
            resize_jobs(site, self._queue.reasons())
            if self._is_elastic
            else ()
        )
        for job in resized:
            self._queue.began_anew(job)
        if resized:
            simulation.held_up = self._queue.decide()
        if simulation.settings.defragment_s is not None and simulation.running:
            self._defragment(simulation.settings.defragment_s)

    @property
    def decides(self) -> bool:
        """Whether anything is to decide now."""
        return bool(
            self._simulation.waiting
            or (self._is_elastic and self._simulation.running)
        )

    def _defragment(self, every_s: float) -> None:
        simulation = self._simulation
        running = frozenset(simulation.running)
        if running == self._seen:
            return  # No job started or ended: the gain can only have become smaller.
        if (
            simulation.ended == self._seen_ended
            and simulation.now_s < self._look_s
        ):
            simulation.wake_at(self._look_s)
            return
        self._seen = running
        self._seen_ended = simulation.ended
        self._look_s = simulation.now_s + every_s
        # Its ports are locked because running jobs use them, and these jobs are to be moved.
        view = simulation.view()._replace(barred=Frozen())
        settings = simulation.settings
        proposal = defragment(view, settings.minimum_gain_s, settings.wiring_s)
        if proposal is not None:
            simulation.rewire(proposal.maps)

    def give_up(self) -> bool:
        """No event is left but jobs wait: block the next one; ``False`` if none waits."""
        head = self._queue.first() or next(
            iter(self._simulation.waiting.values()), None
        )
        if head is None:
            return False
        self._queue.remove(head)
        self._simulation.block(
            head, Cause.DEPENDENCY if head.after else Cause.UNPLACEABLE
        )
        return True

    def drop_hopeless(self) -> None:
        """If nothing runs or arrives, block jobs that have no place even without broken GPUs."""
        simulation = self._simulation
        while not simulation.running and simulation.all_arrived:
            head = self._queue.first()
            if head is None:
                return
            waited_s = simulation.now_s - head.waits_since_s
            if waited_s < _HOPELESS_S and self._site.is_placeable(head):
                return
            self.give_up()
            self.decide()


def simulate(
    cluster: Cluster,
    jobs: Sequence[QueueJob],
    policies: Policies,
    settings: Settings | None = None,
    tell: Tell | None = None,
) -> QueueResult:
    """Run all jobs to their end. The same input gives the same result except for latencies.

    ``BadInput`` for a learned policy that cannot decide in such a cluster.
    """
    for slot in fields(policies):
        policy = getattr(policies, slot.name)
        # Of the guard of users' policies.
        policy = getattr(policy, "policy", policy)
        if hasattr(policy, "check_fits"):
            policy.check_fits(cluster.shape, cluster.lab)
    simulation = Simulation(cluster, jobs, settings or Settings())
    scheduler = QueueScheduler(simulation, policies)
    told = 0
    count = len(jobs)
    while simulation.ended < count:
        if simulation.advance():
            if scheduler.decides:
                scheduler.decide()
            if not simulation.running and simulation.all_arrived:
                scheduler.drop_hopeless()
        elif simulation.running:
            names = [job.spec.view.name for job in simulation.running.values()]
            raise PatchlightError(
                f"the simulation makes no progress at {simulation.now_s:.0f} s: "
                f"{', '.join(names[:5])} cannot continue: a NIC is dark",
                hint="the topology policy removed circuits of a running job",
            )
        elif not scheduler.give_up():
            raise PatchlightError(
                f"the simulation makes no progress at {simulation.now_s:.0f} s with "
                f"{count - simulation.ended} jobs not ended and none waiting"
            )
        else:
            scheduler.decide()
        if tell is not None and simulation.ended - told >= _TELL_EVERY:
            told = simulation.ended
            tell(told, count)
    if tell is not None:
        tell(simulation.ended, count)
    return QueueResult.of(simulation, scheduler.latencies_s)


_SHOWN = 5


@dataclass
class Faults:
    """The faults of policies: their number, and the first few messages."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def __call__(self, fault: guard.Fault) -> None:
        """Add a fault."""
        self.count += 1
        if len(self.first) < _SHOWN:
            self.first.append(str(fault))


_GUARDS: dict[PolicyKind, Any] = {
    "order": guard.GuardedOrder,
    "placement": guard.GuardedPlacement,
    "topology": guard.GuardedTopology,
    "elasticity": guard.GuardedElasticity,
    "partition": guard.GuardedPartition,
}
AS_ASKED = "as-asked"
"""The default partition policy: jobs get as many GPUs as they want."""


def load_policies(
    order: str,
    placement: str,
    topology: str,
    seed: int,
    faults: Callable[[guard.Fault], None],
    elasticity: str = "rigid",
    partition: str = AS_ASKED,
) -> Policies:
    """The policies with these names; their faults are added to ``faults``.

    Their random numbers follow from ``seed``, but differ from the simulation's.
    """
    seed = policy_seed(seed)
    return Policies(
        _load(
            "order",
            order,
            seed,
            faults,
        ),
        _load(
            "placement",
            placement,
            seed,
            faults,
        ),
        None
        if topology == "keep"
        else _load(
            "topology",
            topology,
            seed,
            faults,
        ),
        None
        if elasticity == "rigid"
        else _load(
            "elasticity",
            elasticity,
            seed,
            faults,
        ),
        None
        if partition == AS_ASKED
        else _load(
            "partition",
            partition,
            seed,
            faults,
        ),
    )


def check_policies(
    orders: Iterable[str],
    placements: Iterable[str],
    topologies: Iterable[str],
    elasticities: Iterable[str],
    partitions: Iterable[str],
) -> None:
    """``BadInput`` for the first policy that is unknown or cannot be created."""
    named = orders, placements, topologies, elasticities, partitions
    for kind, names in zip(_GUARDS, named, strict=True):
        for name in names:
            if name != AS_ASKED:
                load_policy(name, kind, seed=0)


def _load(
    kind: PolicyKind,
    name: str,
    seed: int,
    faults: Callable[[guard.Fault], None],
) -> Any:
    recipe = find(name, kind)
    policy = recipe.make(seed=seed)
    if recipe.origin == "built in":
        return policy
    default = load_policy(DEFAULTS[kind], kind, seed=seed)
    # No time limit: a result must not depend on how busy the machine is.
    return _GUARDS[kind](
        policy,
        default,
        recipe.text,
        faults,
        math.inf,
    )


class Combination(NamedTuple):
    """The names of policies, the seed, and whether running jobs' circuits change."""

    order: str = "fifo"
    placement: str = "first-fit"
    topology: str = "keep"
    seed: int = 0
    defragment: bool = False
    elasticity: str = "rigid"
    partition: str = AS_ASKED

    @property
    def name(self) -> str:
        """A short name for tables and files; policies that do nothing are left out."""
        parts = [
            self.order,
            self.placement,
            *([self.topology] * (self.topology != "keep")),
        ]
        parts += [self.elasticity] * (self.elasticity != "rigid")
        parts += [self.partition] * (self.partition != AS_ASKED)
        parts += ["defragment"] * self.defragment
        return " ".join(
            part.rpartition("/")[2].replace(":", " ") for part in parts
        )


@dataclass(frozen=True)
class CombinationResult:
    """The result of one combination, and its policies' faults."""

    combination: Combination
    result: QueueResult
    summary: dict[str, Any]
    cpu_s: float
    faults: Faults = field(default_factory=Faults)


@dataclass
class Sweep:
    """A cluster, a trace and settings; a call with a combination simulates it."""

    cluster: Cluster
    jobs: Sequence[QueueJob]
    settings: Settings = field(default_factory=Settings)
    ended: "Synchronized[int] | None" = None
    """How many jobs have ended in all combinations; shared by the processes."""

    def __call__(self, combination: Combination) -> CombinationResult:
        """Simulate one combination; ``BadInput`` for an unknown policy."""
        told = 0

        def tell(done: int, _: int) -> None:
            nonlocal told
            if self.ended is not None:
                with self.ended.get_lock():
                    self.ended.value += done - told
            told = done

        faults = Faults()
        kinds = combination.elasticity, combination.partition
        policies = load_policies(*combination[:4], faults, *kinds)
        jobs = (
            self.jobs
            if policies.partition is None
            else [left_open(job) for job in self.jobs]
        )
        began = time.process_time()
        every_s = (
            self.settings.defragment_s if combination.defragment else None
        )
        settings = replace(
            self.settings,
            seed=combination.seed,
            defragment_s=every_s,
        )
        result = simulate(
            self.cluster,
            jobs,
            policies,
            settings,
            tell,
        )
        cpu_s = time.process_time() - began
        return CombinationResult(
            combination,
            result,
            summary_of(result),
            cpu_s,
            faults,
        )


def combinations(
    orders: Sequence[str],
    placements: Sequence[str],
    topologies: Sequence[str],
    seed: int,
    defragment: Sequence[bool] = (False,),
    elasticities: Sequence[str] = ("rigid",),
    partitions: Sequence[str] = (AS_ASKED,),
) -> list[Combination]:
    """Every combination, each once."""
    found = (
        Combination(
            order,
            placement,
            topology,
            seed,
            moves,
            elasticity,
            partition,
        )
        for order, placement, topology, elasticity, partition in itertools.product(
            orders,
            placements,
            topologies,
            elasticities,
            partitions,
        )
        for moves in defragment
    )
    return list(dict.fromkeys(found))


def run_sweep(
    sweep: Sweep,
    wanted: Sequence[Combination],
    engine: Engine,
    tell: Callable[[int, int], None],
) -> list[CombinationResult]:
    """Run them all. ``tell`` counts ended jobs of all runs; on Ray, ended runs.

    ``Interrupted`` has the results that were finished at Ctrl-C.
    """
    if len(wanted) == 1:
        engine = Engine("serial")
    if engine.name == "ray":
        done = itertools.count(1)
        return run_all(
            wanted,
            sweep,
            engine,
            lambda: tell(next(done), len(wanted)),
        )
    ended = multiprocessing.get_context("spawn").Value("q", 0)
    over = threading.Event()
    total = len(wanted) * len(sweep.jobs)

    def poll() -> None:
        while not over.wait(_POLL_S):
            tell(min(ended.value, total), total)

    poller = threading.Thread(target=poll, name="progress", daemon=True)
    poller.start()
    try:
        return run_all(wanted, replace(sweep, ended=ended), engine)
    finally:
        over.set()
        poller.join()
        tell(min(ended.value, total), total)
