"""Asks policies for the number of workers, the hosts and the circuits of jobs."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from patchlight.controller.changes.parts import FlowHook
from patchlight.controller.changes.plan import ChangePlan
from patchlight.controller.changes.transaction import Transactions
from patchlight.controller.hosts.fleet import Fleet, unfit_hosts
from patchlight.controller.jobs import cluster_view
from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.jobs.policy_set import PoliciesInUse, named
from patchlight.controller.jobs.specs import JobFailed
from patchlight.controller.policies.contract import ClusterView, Frozen
from patchlight.controller.policies.registry import DEFAULTS
from patchlight.controller.policies.topology import NO_PORTS
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.jobs import JobStatus
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import AnyMap, PortMap
from patchlight.testbed.lab.reach import Reach, as_text
from patchlight.testbed.lab.rules import Waiting, WaitReason
from patchlight.testbed.lab.wiring import Links

HostsOfJobs = Mapping[str, Collection[str]]
"""The hosts of each running job, by the job's id."""


class LabSnapshot(NamedTuple):
    """The lab as policies see it, and the unusable hosts with the reason."""

    cluster: cluster_view.WiredLab
    view: ClusterView
    unseen: Mapping[str, str]
    reach: Reach

    def unlinked(self, statuses: Sequence[JobStatus]) -> Mapping[str, str]:
        """The hosts that these jobs cannot use until they have a link, and why."""
        alone = all(
            status.spec.size == 1 or status.topology != "keep"
            for status in statuses
        )
        return {} if alone else self.reach.without_link


class Placed(NamedTuple):
    """The hosts of a job in ring order, and the decisions behind them."""

    hosts: tuple[str, ...]
    decisions: tuple[cluster_view.Decision, ...]


class LabReach:
    """Which hosts reach each other, by agents' reports and by the flow entries that packet switches
    refused."""

    def __init__(
        self,
        lab: Lab,
        fleet: Fleet,
        flows: FlowHook,
    ) -> None:
        self._lab = lab
        self._fleet = fleet
        self._flows = flows
        self._of: tuple[object, ...] = ()
        self._reach = Reach(lab, None)

    def over(self, links: Links | None) -> Reach:
        """Over these links; computed again when anything has changed."""
        lost = {**self._flows.unserved(), **self._fleet.faults().lost}
        down = self._flows.trunks_down()
        if (links, lost, down) != self._of:
            self._of = links, lost, down
            self._reach = Reach(
                self._lab,
                links,
                lost,
                down,
            )
        return self._reach


class Placement:
    """Asks the lab's policies for the hosts and circuits of jobs. The
    hosts of workers in ``ending``, which have no job any more, are not used."""

    def __init__(
        self,
        lab: Lab,
        fleet: Fleet,
        table: JobTable,
        policies: PoliciesInUse,
        transactions: Transactions,
        reach: LabReach,
    ) -> None:
        self._lab = lab
        self._fleet = fleet
        self._table = table
        self.policies = policies
        self._transactions = transactions
        self._circuits = transactions.parts
        self._reach = reach
        self.ending: dict[str, Sequence[str]] = {}
        self.swept = set[str]()
        """Jobs without a record that were stopped: agents end their workers when they answer."""

    def reach(self) -> Reach:
        """Which hosts reach each other, by the last known maps."""
        return self._reach.over(self._circuits.maps.present_links())

    def unusable(self) -> dict[str, str]:
        """The hosts that cannot be used now, and why; those of claims are not among them."""
        unfit = unfit_hosts(
            self._lab,
            self._fleet.silent(),
            self._fleet.faults(),
            self._circuits.maps.present_links(),
        )
        # With unknown links a job might wait for its ring forever.
        missing = self._circuits.flows.missing_ports()
        plugged = (
            (host.name, self._lab.fibre_ends.get(host.endpoint))
            for host in self._lab.hosts
        )
        unfit |= {
            name: f"{end[0].device} has {missing[end[0]]}"
            for name, end in plugged
            if end is not None and end[0] in missing
        }
        ending = {
            h: f"worker {w} is still ending"
            for w, each in self.ending.items()
            for h in each
        }
        held = self._fleet.held_for(
            self._table.unreadable | self.swept, self._lab.hosts
        )
        return {
            **self._circuits.devices.unseen_hosts(),
            **unfit,
            **ending,
            **held,
        }

    async def look(self, *, ports: bool = True) -> Callable[[], LabSnapshot]:
        """Read the devices, which takes time; the result returns the lab at the time of its call.
        ``ports``: with locked or failed ports, which plans of circuits need."""
        recent = self._table.recent()
        maps = await self._circuits.maps.read()
        claimed = {
            host: f"claim {name} has {host}"
            for host, name in self._circuits.claims.hosts.items()
        }
        unseen = {**self.unusable(), **claimed}
        locked = failed = NO_PORTS
        if ports and maps:
            locked, failed = await self._circuits.closed_ports()
        cluster = cluster_view.WiredLab.now(self._lab, maps)
        reach = self.reach()
        jobs = [cluster_view.view_of(status) for status in recent]
        waiting = {status.id for status in recent if status.state.is_waiting}

        def see() -> LabSnapshot:
            running = self._table.hosts
            statuses = self._table.several(running)
            view = cluster.view(
                time.time(),
                running,
                tuple(unseen),
                jobs,
                locked,
                failed,
                statuses,
                waiting,
            )
            return LabSnapshot(
                cluster,
                view,
                unseen,
                reach,
            )

        return see

    async def look_for_waiting(self) -> Callable[[], LabSnapshot]:
        """Like ``look``; with the states of ports, which are slow to read, only if needed."""
        live = self._table.live()
        own = any(
            s.spec.placement
            for s in live
            if s.state.is_waiting or s.spec.is_split
        )
        lab_wide = (
            named(self.policies.choice, "placement") != DEFAULTS["placement"]
        )
        return await self.look(ports=own or lab_wide)

    @staticmethod
    def gpus_named(
        lab: LabSnapshot, statuses: Sequence[JobStatus]
    ) -> dict[str, int]:
        """The GPUs that jobs name by their hosts, by job id."""
        named = {
            s.id: [lab.cluster.lab.host(h).name for h in s.spec.hosts]
            for s in statuses
        }
        return {
            job_id: lab.cluster.as_set(hosts)
            for job_id, hosts in named.items()
            if hosts
        }

    @staticmethod
    def free_for(lab: LabSnapshot, statuses: Sequence[JobStatus]) -> int:
        """How many free GPUs these jobs can use, each counted once."""
        able = 0
        for status in statuses:
            unlinked = lab.cluster.as_set(lab.unlinked([status]))
            able |= lab.view.free_for(cluster_view.view_of(status)) & ~unlinked
        return able.bit_count()

    def place(
        self,
        lab: LabSnapshot,
        status: JobStatus,
        occupied: int,
        workers: int = 0,
        most: float = math.inf,
    ) -> Placed | Waiting:
        """Hosts for a job, or why it must wait.

        ``occupied`` are unavailable GPUs. It gets ``workers`` workers, by default its own number,
        or that of the partition policy (at most ``most``), which may let it wait. ``JobFailed`` if
        that policy refuses it. Do not call from an event loop: policies are slow.
        """
        unlinked = lab.unlinked([status])
        if status.spec.hosts:
            found = self._as_named(lab, status, occupied)
            return (
                found
                if isinstance(found, Waiting)
                else self._linked(lab, status, found)
            )
        occupied |= lab.cluster.as_set(unlinked)
        job = cluster_view.view_of(status)
        if (unreached := self.out_of_reach(lab, [status])) is not None:
            return unreached
        if job.limit_s < min(job.expected_s.values(), default=0.0):
            words = f"its deadline is {job.limit_s:g} s, and it computes for {job.sequential_s:g} s"
            return Waiting(WaitReason.UNREACHABLE, words, is_blocked=True)
        placement = self.policies.now.placement
        if status.spec.placement is not None:
            placement = self.policies.now.placement_named(
                status.spec.placement
            )
        # Hosts that it failed on are avoided while there are others, unless it already runs.
        failed_on = lab.cluster.as_set(status.avoid)
        says = "placement"
        does = "finds no placement for it"
        for avoided in dict.fromkeys((failed_on, failed_on if workers else 0)):
            view = lab.view._replace(occupied=occupied | avoided)
            decisions: list[cluster_view.Decision] = []
            degree = (
                workers
                or job.workers
                or self._degree(
                    view,
                    status,
                    most,
                    decisions,
                )
            )
            if not degree:
                if decisions:
                    says = "partition"
                    does = "lets it wait"
                continue
            sized = (
                job if job.workers else cluster_view.view_of(status, degree)
            )
            gpus, decision = cluster_view.decided(
                "placement",
                placement,
                partial(
                    placement.place,
                    view,
                    sized,
                    degree,
                ),
                partial(
                    cluster_view.seen,
                    view,
                    sized,
                    graph=_graph_name(status),
                ),
            )
            if gpus is not None:
                placed = Placed(
                    lab.cluster.hosts(gpus), (*decisions, decision)
                )
                return self._linked(lab, status, placed)
        free = lab.view._replace(occupied=occupied).free_for(job).bit_count()
        words = f"the {says} policy {does} on the {free} free GPUs"
        words += (
            f"; hosts without a link: {as_text(unlinked)}" if unlinked else ""
        )
        return Waiting(WaitReason.NO_PLACE, words)

    @staticmethod
    def _linked(
        lab: LabSnapshot,
        status: JobStatus,
        placed: Placed,
    ) -> Placed | Waiting:
        """The placement, unless its hosts cannot reach each other and it gets no circuits."""
        hosts = [lab.cluster.lab.host(name) for name in placed.hosts]
        apart = lab.reach.apart(hosts) if status.topology == "keep" else {}
        return (
            Waiting(WaitReason.OUT_OF_REACH, as_text(apart))
            if apart
            else placed
        )

    @staticmethod
    def out_of_reach(
        lab: LabSnapshot, statuses: Sequence[JobStatus]
    ) -> Waiting | None:
        """Why jobs wait, if too few suitable hosts can be reached."""
        unlinked = {
            h: why
            for h, why in lab.unlinked(statuses).items()
            if h not in lab.unseen
        }
        if not lab.unseen and not unlinked:
            return None
        broken = lab.view.broken | lab.cluster.as_set(unlinked)
        for job in map(cluster_view.view_of, statuses):
            able = sum(
                not broken >> number & 1
                for number, gpu in enumerate(lab.view.shape.gpus)
                if not job.gpu_models or gpu.model in job.gpu_models
            )
            if max(1, job.workers) > able:
                why = "; ".join(
                    filter(
                        None,
                        (*sorted({*lab.unseen.values()}), as_text(unlinked)),
                    )
                )
                return Waiting(
                    WaitReason.OUT_OF_REACH,
                    f"too many hosts cannot be reached: {why}",
                )
        return None

    @staticmethod
    def _as_named(
        lab: LabSnapshot,
        status: JobStatus,
        occupied: int,
    ) -> Placed | Waiting:
        names = tuple(
            lab.cluster.lab.host(host).name for host in status.spec.hosts
        )
        busy = [
            name for name in names if lab.cluster.as_set([name]) & occupied
        ]
        if not busy:
            return Placed(names, ())
        silent = [lab.unseen[name] for name in busy if name in lab.unseen]
        if silent:
            return Waiting(
                WaitReason.OUT_OF_REACH, "; ".join(sorted(set(silent)))
            )
        verb = "is" if len(busy) == 1 else "are"
        return Waiting(
            WaitReason.NO_GPUS, f"{', '.join(busy[:3])} {verb} busy"
        )

    def _degree(
        self,
        view: ClusterView,
        status: JobStatus,
        most: float,
        decisions: list[cluster_view.Decision],
    ) -> int:
        partition = self.policies.now.partition
        job = cluster_view.view_of(status)
        spec = status.spec
        free = view.free_for(job).bit_count()
        able = spec.degrees or range(1, free + 1)
        legal = (0, *sorted(n for n in able if n <= min(free, most)))
        if partition is None or len(legal) == 1:
            return 0
        workers, decision = cluster_view.decided(
            "partition",
            partition,
            partial(
                partition.degree,
                view,
                job,
                legal,
            ),
            partial(
                cluster_view.seen,
                view,
                job,
                legal,
                graph=_graph_name(status),
            ),
        )
        decisions.append(decision)
        if workers == 0:
            raise JobFailed(
                f"the partition policy {partition.name} refuses it"
            )
        return workers or 0

    async def preview(
        self,
        topology: str,
        groups: HostsOfJobs,
        running: HostsOfJobs,
    ) -> tuple[ChangePlan, list[str]]:
        """What ``wish`` would change now for these groups, and the objections."""
        wish = await self.wish(
            topology,
            groups,
            running,
            tuple(groups),
        )
        return await self._transactions.preview(wish.decide)

    async def wish(
        self,
        topology: str,
        groups: HostsOfJobs,
        running: HostsOfJobs,
        jobs: Sequence[str],
    ) -> WishedCircuits:
        """The circuits that the topology policy of that name wants for these groups, while
        ``running`` have hosts. A fault is counted for ``jobs``."""
        policy = self.policies.now.topology(topology)
        locked, failed = await self._circuits.closed_ports()
        unseen = tuple(self._circuits.devices.unseen_hosts())
        statuses = self._table.several(running)
        rates_bps = self._circuits.flows.rates_bps()

        def ask(
            maps: Mapping[str, AnyMap],
        ) -> tuple[Mapping[str, PortMap], cluster_view.Decision]:
            cluster = cluster_view.WiredLab.now(self._lab, maps)
            view = cluster.view(
                time.time(),
                running,
                unseen,
                (),
                locked,
                failed,
                statuses,
            )
            numbers = cluster.numbers
            measured = {
                numbers[name]: r
                for name, r in rates_bps.items()
                if name in numbers
            }
            view = view._replace(measured=Frozen(measured))
            gpus = [
                [cluster.numbers[name] for name in hosts]
                for hosts in groups.values()
            ]
            return cluster_view.decided(
                "topology",
                policy,
                partial(
                    policy.circuits,
                    view,
                    gpus,
                    tuple(jobs),
                ),
                partial(cluster_view.seen, view, groups=gpus),
            )

        wish = WishedCircuits(ask)
        # A change plans in the event loop, and a policy may be slow: so it is called first.
        maps = self._circuits.maps.last or await self._circuits.maps.read()
        with contextlib.suppress(
            PatchlightError
        ):  # the change calls it again, and fails
            await asyncio.to_thread(wish.decide, maps)
        return wish


class WishedCircuits:
    """A policy's circuits, computed once per map; ``decision`` is the last one."""

    def __init__(
        self,
        ask: Callable[
            [Mapping[str, AnyMap]],
            tuple[Mapping[str, PortMap], cluster_view.Decision],
        ],
    ) -> None:
        self.decision: cluster_view.Decision | None = None
        self._ask = ask
        self._known: (
            tuple[Mapping[str, AnyMap], Mapping[str, PortMap]] | None
        ) = None

    def decide(self, maps: Mapping[str, AnyMap]) -> Mapping[str, PortMap]:
        """The wanted map of each OCS that changes, starting from these."""
        if self._known is None or self._known[0] != maps:
            wanted, self.decision = self._ask(maps)
            self._known = maps, wanted
        return self._known[1]


def _graph_name(status: JobStatus) -> str | None:
    graph = status.spec.graph
    return (
        cluster_view.OWN_GRAPH
        if graph is not None and graph.lstrip().startswith("{")
        else graph
    )
