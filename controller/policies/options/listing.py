"""Lists the candidate answers of each kind of decision, with their effects.

They are the answers of the built-in policies, and similar ones.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from patchlight.controller.policies import contract, placement
from patchlight.controller.policies.cheapest import Prices, jobs_to_light
from patchlight.controller.policies.contract import (
    ClusterView,
    JobView,
    RingOfJob,
)
from patchlight.controller.policies.degrees import GiveAndTake, shrink_for
from patchlight.controller.policies.options.outlook import (
    Outlook,
    Prospect,
    Resizing,
)
from patchlight.controller.policies.sets import lowest, members, pack
from patchlight.testbed.lab.ocs_drivers import outage_s

MOST_OPTIONS = 24
"""The maximum number of options for a model."""
_MADE_ROOM_FOR = 4  # of those that wait
_SPREAD = 6  # placements over several switches, in addition to those of the built-in policies

BUILT_IN: Mapping[str, contract.PlacementPolicy] = {
    "consolidated": placement.Consolidated(),
    "rack-aware": placement.RackAware(),
    "fragmentation-aware": placement.FragmentationAware(),
    "best-fit": placement.BestFit(),
    "first-fit": placement.FirstFit(),
}
"""The built-in placements that give options, the default's first, as it wins ties."""


@dataclass(frozen=True)
class Option:
    """A candidate answer: ``words`` describe it, ``proposers`` are policies that would choose it.

    ``gpus`` are those concerned, in ring order, ``taken`` how many free ones it takes (negative:
    releases), ``moves`` how many get other circuits.
    """

    answer: Any
    words: str
    gpus: tuple[int, ...]
    prospect: Prospect
    taken: int = 0
    moves: int = 0
    proposers: frozenset[str] = field(default=frozenset())


Options = Sequence[Option]


class Listing:
    """Lists options, with a cache of the lab's constant parts."""

    def __init__(self) -> None:
        self._regroup = placement.RegroupPlacement()

    def placements(
        self,
        outlook: Outlook,
        job: JobView,
        workers: int,
        *,
        with_circuits: bool,
    ) -> list[Option]:
        """Where a job can go; empty if it must wait.

        ``with_circuits``: also GPUs that a topology policy must then bring under one switch.
        """
        cluster = outlook.cluster
        rings: dict[frozenset[int], tuple[list[int], set[str]]] = {}
        for name, ring in self._rings(cluster, job, workers):
            known = rings.setdefault(frozenset(ring), (ring, set()))
            known[1].update([name] if name else [])
        found = []
        for ring, names in rings.values():
            prospect = outlook.of(outlook.load_of(job, ring), ring)
            words = _named(cluster, ring)
            proposers = frozenset(names)
            found.append(
                Option(
                    ring,
                    words,
                    tuple(ring),
                    prospect,
                    len(ring),
                    0,
                    proposers,
                )
            )
        lab = cluster.lab
        if with_circuits and workers > 1 and lab is not None:
            choices = {
                (choice.rack, frozenset(choice.gpus)): choice
                for each in (job, *_of_one_model(cluster, job))
                for choice in sorted(
                    self._regroup.choices(cluster, each, workers)
                )
                if choice.moves
            }
            for choice in choices.values():
                switch = cluster.shape.racks[choice.rack]
                # The circuits are chosen later. Both ways of each moved NIC may be at any OCS.
                dark_s = max(
                    outage_s(lab, {ocs.name: 2 * choice.moves})
                    for ocs in lab.circuit_switches
                )
                prospect = outlook.of(
                    outlook.load_of(job, choice.gpus), choice.gpus, dark_s
                )
                words = f"{_named(cluster, choice.gpus)}, all connected to {switch}"
                gpus = choice.gpus
                moves = choice.moves
                proposers = frozenset(["regroup"])
                found.append(
                    Option(
                        gpus,
                        words,
                        tuple(gpus),
                        prospect,
                        workers,
                        moves,
                        proposers,
                    )
                )
        waits = list(_waits(outlook, job, workers)) if found else []
        return found[: MOST_OPTIONS - len(waits)] + waits

    def _rings(
        self,
        cluster: ClusterView,
        job: JobView,
        workers: int,
    ) -> Iterable[tuple[str, list[int]]]:
        """Rings with the built-in policy that would choose each, if any."""
        for name, policy in BUILT_IN.items():
            ring = policy.place(cluster, job, workers)
            if ring is None:
                return
            yield name, list(ring)
        free = cluster.free_for(job)
        shape = cluster.shape
        racks = [
            (each.bit_count(), n, each)
            for n, r in enumerate(shape.rack_gpus)
            if (each := free & r)
        ]
        roomy = sorted(each for each in racks if each[0] >= workers)
        for _, _, gpus in roomy[:MOST_OPTIONS]:
            yield "", pack(_by_server(cluster, gpus), workers)
        if not roomy:
            for _, _, first in sorted(racks, reverse=True)[:_SPREAD]:
                here = pack(
                    _by_server(cluster, first), min(workers, first.bit_count())
                )
                others = [gpus & ~first for _, _, gpus in racks]
                ring = here + pack(others, workers - len(here))
                if len(ring) == workers:
                    yield "", placement.ring_order(cluster, ring)
        for alike in _of_one_model(cluster, job):
            of_model = BUILT_IN["consolidated"].place(cluster, alike, workers)
            if of_model is not None:
                yield "", list(of_model)

    def degrees(
        self,
        outlook: Outlook,
        job: JobView,
        legal: Sequence[int],
    ) -> list[Option]:
        """Into how many parts a job can be split now, in ascending order; without refusal.

        For a job with a deadline, those that meet it, if any do.
        """
        cluster = outlook.cluster
        found: list[Option] = []
        for degree in _some(legal[1:]):
            gpus = cluster.preview(job, degree) if cluster.shape.ramp else None
            ring = None if gpus is None else members(gpus)
            if ring is None:
                placed = BUILT_IN["consolidated"].place(cluster, job, degree)
                ring = None if placed is None else list(placed)
            if ring is None:
                continue
            sized = job._replace(workers=degree)
            prospect = outlook.of(outlook.load_of(sized, ring), ring)
            if math.isnan(prospect.lasts_s) and degree in job.expected_s:
                prospect = Prospect(
                    job.expected_s[degree], job.expected_s[degree]
                )
            words = f"{degree} workers, on {_named(cluster, ring)}"
            found.append(
                Option(
                    degree,
                    words,
                    tuple(ring),
                    prospect,
                    degree,
                )
            )
        in_time = [
            option
            for option in found
            if option.prospect.lasts_s <= job.limit_s
        ]
        return in_time or found

    def turn(
        self,
        outlook: Outlook,
        job: JobView,
        progress: contract.Progress,
    ) -> Option:
        """A job as the next one, where the default placement would put it.

        Other jobs are delayed by the part of the cluster that it holds, times the duration.
        """
        cluster = outlook.cluster
        workers = max(1, job.workers)
        ring = BUILT_IN["consolidated"].place(cluster, job, workers)
        left_s = progress.remaining_s
        if math.isnan(left_s) and ring is not None:
            left_s = outlook.of(outlook.load_of(job, ring), ring).lasts_s
        behind_s = left_s * workers / max(1, len(cluster.shape.gpus))
        prospect = Prospect(left_s, left_s, queue_s=behind_s)
        return Option(
            None,
            job.name,
            tuple(ring or ()),
            prospect,
            workers,
        )

    def circuits(
        self, outlook: Outlook, groups: contract.Groups
    ) -> list[Option]:
        """Which circuits jobs can have: the present ones, or new ones under one switch each."""
        cluster = outlook.cluster
        lab = outlook.cluster.lab
        new = jobs_to_light(cluster, groups)
        gpus = tuple(gpu for job in new for gpu in job.ring)
        keep = Option(
            {},
            "keep the circuits",
            gpus,
            _together(outlook, new, None),
        )
        spread = any(
            len({cluster.shape.gpus[gpu].rack for gpu in job.ring}) > 1
            for job in new
        )
        if lab is None or not lab.circuit_switches or not spread:
            return [keep]
        prices = Prices(
            cluster,
            lab,
            cluster.rings,
            network=outlook.network,
        )
        maps = prices.regrouped(new)
        if not maps:
            return [keep]
        makes = {
            name: len(cluster.circuits[name].diff(each).makes)
            for name, each in maps.items()
        }
        moves = sum(makes.values())
        lit = _together(outlook, new, outage_s(lab, makes))
        words = f"connect each job to one switch ({moves} cross-connects)"
        return [
            keep,
            Option(
                maps,
                words,
                gpus,
                lit,
                0,
                moves,
                frozenset(["regroup"]),
            ),
        ]

    @staticmethod
    def sizes(
        outlook: Outlook,
        jobs: Sequence[contract.ElasticJob],
        queue: Sequence[contract.QueuedJob],
    ) -> list[Option]:
        """How running jobs can be resized; the first option changes nothing."""
        cluster = outlook.cluster
        resizing = Resizing(cluster, jobs, queue)
        keep = Option(
            {},
            "change nothing",
            (),
            Prospect(0.0, 0.0),
        )
        given = GiveAndTake().resize(cluster, jobs, queue)
        answers: list[Mapping[str, int]] = [given]
        for waits in queue[:_MADE_ROOM_FOR]:
            shrink = shrink_for(cluster, jobs, waits)
            answers.append({step.job.name: step.degree for step in shrink})
        answers += resizing.single(MOST_OPTIONS)
        degrees = {job.name: job.degree for job in jobs}
        gpus = {
            running.name: tuple(members(running.gpus))
            for running in cluster.running
        }
        found: dict[frozenset[tuple[str, int]], Option] = {}
        for answer in filter(None, answers):
            key = frozenset(answer.items())
            if key not in found:
                words = ", ".join(
                    f"{name} on {degree}" for name, degree in answer.items()
                )
                touched = tuple(
                    gpu for name in answer for gpu in gpus.get(name, ())
                )
                taken = sum(
                    degree - degrees[name] for name, degree in answer.items()
                )
                proposers = frozenset(
                    ["give-and-take"] if answer is given else []
                )
                prospect = resizing.of(answer)
                found[key] = Option(
                    answer,
                    words,
                    touched,
                    prospect,
                    taken,
                    0,
                    proposers,
                )
        cheapest = sorted(
            found.values(), key=lambda option: option.prospect.cost_s
        )
        return [keep, *cheapest[: MOST_OPTIONS - 1]]


def _together(
    outlook: Outlook,
    jobs: Sequence[RingOfJob],
    dark_s: float | None,
) -> Prospect:
    each = [outlook.of(job.load, job.ring, dark_s) for job in jobs]
    return Prospect(
        math.fsum(one.lasts_s for one in each),
        math.fsum(one.alone_s for one in each),
        math.fsum(one.delays_s for one in each),
        dark_s or 0.0,
        any(one.stuck for one in each),
        math.fsum(one.queue_s for one in each),
    )


def _of_one_model(cluster: ClusterView, job: JobView) -> Iterator[JobView]:
    models = cluster.shape.model_gpus
    if len(models) > 1:
        for model in models:
            if not job.gpu_models or model in job.gpu_models:
                yield job._replace(gpu_models=frozenset([model]))


def _waits(
    outlook: Outlook,
    job: JobView,
    workers: int,
) -> Iterator[Option]:
    """Waiting until enough GPUs of one model are free, for each model with too few now."""
    cluster = outlook.cluster
    free = cluster.free.bit_count()
    held_up = 0
    for other in cluster.queue:
        if other.name != job.name and other.workers <= free:
            free = free - other.workers
            held_up = held_up + 1
    for each in _of_one_model(cluster, job):
        (model,) = each.gpu_models
        of_model = cluster.shape.model_gpus[model] & ~cluster.broken
        missing = workers - (cluster.free & of_model).bit_count()
        wait_s = 0.0
        ends = [
            (outlook.left_by_job[one.name], one.gpus & of_model)
            for one in cluster.running
        ]
        for left_s, gpus in sorted(ends) if missing > 0 else ():
            missing = missing - gpus.bit_count()
            wait_s = left_s
            if missing <= 0:
                break
        load = outlook.load_of(job, lowest(of_model, workers))
        if missing <= 0 and 0 < wait_s < math.inf and load is not None:
            prospect = outlook.later(
                load,
                lowest(of_model, workers),
                wait_s,
                held_up,
            )
            yield Option(
                None,
                f"wait for GPUs of model {model}",
                (),
                prospect,
            )


def _some(degrees: Sequence[int]) -> Sequence[int]:
    """Degrees to try, ascending: all if there are few, else each about half as much again."""
    if len(degrees) <= MOST_OPTIONS:
        return degrees
    found = [degrees[-1]]
    for degree in reversed(degrees):
        if 3 * degree <= 2 * found[-1]:
            found.append(degree)
    return found[::-1]


def _by_server(cluster: ClusterView, gpus: int) -> list[int]:
    return [
        part for server in cluster.shape.server_gpus if (part := gpus & server)
    ]


def _named(cluster: ClusterView, ring: Sequence[int]) -> str:
    """GPUs by switch, as text: ``2 under tor1, 1 under tor2``."""
    shape = cluster.shape
    under: dict[int, int] = {}
    for gpu in ring:
        under[shape.gpus[gpu].rack] = under.get(shape.gpus[gpu].rack, 0) + 1
    words = [
        f"{count} {'without a link' if rack < 0 else f'under {shape.racks[rack]}'}"
        for rack, count in under.items()
    ]
    few = len(ring) <= 4
    named = (
        ", ".join(shape.gpus[gpu].name for gpu in ring)
        if few
        else f"{len(ring)} GPUs"
    )
    return f"{named} ({', '.join(words)})"
