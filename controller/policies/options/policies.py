"""Policies that weigh options: with a learned model, or by the predicted delay of all jobs.

A model of *placement* and *topology* also weighs GPUs that circuits bring under one switch, and
must be chosen for both. The *least-delay* policies weigh the same options by the predicted costs
that a model starts from.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np

from patchlight.controller.policies import contract, files
from patchlight.controller.policies.contract import (
    ClusterView,
    JobView,
    PolicyKind,
)
from patchlight.controller.policies.files import (
    OUTPUT,
    CardError,
    OptionsCard,
    has_shape,
)
from patchlight.controller.policies.options import observation
from patchlight.controller.policies.options.listing import (
    Listing,
    Option,
    Options,
)
from patchlight.controller.policies.options.observation import ARRAYS
from patchlight.controller.policies.options.outlook import Outlook, Prospect
from patchlight.controller.policies.order import LAST
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap

_TYPES = {"float32": "tensor(float)", "int64": "tensor(int64)"}


class WeighsOptions(ABC):
    """Chooses the option with the best score; ``explanation`` describes the last choice."""

    kind: PolicyKind

    def __init__(self) -> None:
        self.explanation: Mapping[str, Any] | None = None
        self._observer = observation.Observer()
        self._listing = Listing()

    def outlook(self, cluster: ClusterView) -> Outlook:
        """The cluster's jobs and links."""
        return self._observer.outlook(cluster)

    @abstractmethod
    def scores(
        self,
        outlook: Outlook,
        job: JobView | None,
        options: Options,
    ) -> list[float]:
        """The score of each option, highest is best."""

    def _first_of_best(
        self, options: Options, scores: Sequence[float]
    ) -> Option:
        return options[scores.index(max(scores))]

    def _best(
        self,
        outlook: Outlook,
        job: JobView | None,
        options: Options,
    ) -> Any:
        """The answer of the best option, the first in a tie; ``None`` without options."""
        self.explanation = None
        if not options:
            return None
        scores = self.scores(outlook, job, options)
        best = self._first_of_best(options, scores)
        self.explanation = explained(
            outlook,
            options,
            scores,
            best,
        )
        return best.answer


class _WeighsDegrees(WeighsOptions):
    kind: PolicyKind = "partition"

    def options(
        self,
        outlook: Outlook,
        job: JobView,
        legal: Sequence[int],
    ) -> list[Option]:
        """The possible numbers of workers of the job."""
        return self._listing.degrees(outlook, job, legal)

    def degree(
        self,
        cluster: ClusterView,
        job: JobView,
        legal: tuple[int, ...],
    ) -> int | None:
        """The best degree; ``None`` while no degree fits."""
        outlook = self.outlook(cluster)
        return cast(
            int | None,
            self._best(outlook, job, self.options(outlook, job, legal)),
        )


class _WeighsPlaces(WeighsOptions):
    kind: PolicyKind = "placement"
    with_circuits: bool

    def options(
        self,
        outlook: Outlook,
        job: JobView,
        workers: int,
    ) -> list[Option]:
        """Where the job can go."""
        circuits = self.with_circuits
        return self._listing.placements(
            outlook,
            job,
            workers,
            with_circuits=circuits,
        )

    def place(
        self,
        cluster: ClusterView,
        job: JobView,
        workers: int,
    ) -> Sequence[int] | None:
        """The best GPUs; ``None`` while there are too few."""
        outlook = self.outlook(cluster)
        options = self.options(outlook, job, workers)
        return cast(Sequence[int] | None, self._best(outlook, job, options))


class _WeighsCircuits(WeighsOptions):
    kind: PolicyKind = "topology"

    def circuits(
        self, cluster: ClusterView, groups: contract.Groups
    ) -> Mapping[str, PortMap]:
        """The maps that change; empty if the circuits stay."""
        outlook = self.outlook(cluster)
        options = self._listing.circuits(outlook, groups)
        return cast(Mapping[str, PortMap], self._best(outlook, None, options))


class _WeighsSizes(WeighsOptions):
    kind: PolicyKind = "elasticity"
    stable: ClassVar[bool] = True

    def resize(
        self,
        cluster: ClusterView,
        jobs: Sequence[contract.ElasticJob],
        queue: Sequence[contract.QueuedJob],
    ) -> Mapping[str, int]:
        """The best resize; empty to change nothing."""
        outlook = self.outlook(cluster)
        options = self._listing.sizes(outlook, jobs, queue)
        return cast(Mapping[str, int], self._best(outlook, None, options))


class LearnedOptions(WeighsOptions):
    """The common part of learned policies: a card, and a model that returns scores."""

    def __init__(self, card: OptionsCard, session: Any) -> None:
        super().__init__()
        self.card = card
        self.__doc__ = (
            card.notes
            or f"Learned, weighs options; trained on {card.trained_on}."
        )
        self.session = session
        self.with_circuits = "topology" in card.kinds
        self._inputs = [each.name for each in session.get_inputs()]

    def check_fits(
        self, shape: contract.ClusterShape, lab: Lab | None = None
    ) -> None:
        """``CardError`` if it cannot decide in such a cluster."""
        if (
            self.kind == "topology"
            and lab is not None
            and not lab.circuit_switches
        ):
            raise CardError(
                f"model {self.card.name!r} decides on circuits, but lab {lab.name} has no "
                "circuit switch",
                hint="choose another topology policy, like 'keep'",
            )

    def observe(
        self,
        outlook: Outlook,
        job: JobView | None,
        options: Options,
    ) -> observation.Observation:
        """What the model sees of these options."""
        return self._observer.observe(
            self.kind,
            outlook,
            job,
            options,
        )

    def scores(
        self,
        outlook: Outlook,
        job: JobView | None,
        options: Options,
    ) -> list[float]:
        """The model's score of each option, highest is best."""
        seen = self.observe(outlook, job, options)
        given = {name: seen[name] for name in self._inputs}
        found = self.session.run([OUTPUT], given)[0]
        if not np.isfinite(found).all():
            about = "" if job is None else f" for job {job.name!r}"
            raise PatchlightError(
                f"model {self.card.name!r} returned invalid scores{about}"
            )
        return [float(score) for score in found]


class WeighsPartitions(LearnedOptions, _WeighsDegrees):
    """A ``PartitionPolicy`` that uses a model."""


class LearnedPlacement(LearnedOptions, _WeighsPlaces):
    """A ``PlacementPolicy`` that uses a model."""


class LearnedTopology(LearnedOptions, _WeighsCircuits):
    """A ``TopologyPolicy`` that uses a model: keep circuits, or regroup jobs."""


class LearnedElasticity(LearnedOptions, _WeighsSizes):
    """An ``ElasticityPolicy`` that uses a model, one change at a time."""


class LearnedOrder(LearnedOptions):
    """An ``OrderPolicy`` that uses a model: the job with the best score is next.

    It is called once per job, when the job joins the queue.
    """

    kind: PolicyKind = "order"
    stable = True
    rises_at: Sequence[float] = ()

    def priority(
        self,
        cluster: ClusterView,
        job: JobView,
        progress: contract.Progress,
    ) -> float:
        """The negative score in seconds, so that scores of different times are comparable.

        Jobs of unknown duration come last.
        """
        outlook = self.outlook(cluster)
        option = self._listing.turn(outlook, job, progress)
        (score,) = self.scores(outlook, job, [option])
        self.explanation = explained(
            outlook,
            [option],
            [score],
            option,
        )
        behind_s = option.prospect.queue_s
        if math.isnan(behind_s):
            return LAST
        unit_s = observation.typical_s(cluster, ())
        # Jobs beyond the model's limit are also ordered by size.
        return min(
            max(0.0, behind_s - observation.MOST_COST * unit_s)
            - score * unit_s,
            LAST,
        )


class _LeastDelay(WeighsOptions):
    def scores(
        self,
        outlook: Outlook,
        job: JobView | None,
        options: Options,
    ) -> list[float]:
        """The predicted costs of the options, negated."""
        return [-min(rule_cost(option)[1], 1e12) for option in options]

    def _first_of_best(
        self, options: Options, scores: Sequence[float]
    ) -> Option:
        return min(options, key=rule_cost)


def rule_cost(option: Option) -> tuple[bool, float]:
    """The rule's criteria: whether there is no route, and how much later all jobs end."""
    cost_s = option.prospect.cost_s
    return option.prospect.stuck, 0.0 if math.isnan(cost_s) else cost_s


class LeastDelayPartition(_LeastDelay, _WeighsDegrees):
    """The number of workers that delays this job and waiting ones least in total.

    It considers the numbers that are possible now. The cost is the job's time where *consolidated*
    would put it, the slowdown of jobs that share its links, and the GPU time taken from waiting
    jobs: more workers end sooner, but hold more GPUs during communication. If some meet a job's
    deadline, only those count. If the job's work is unknown, it is the least number.
    """


class LeastDelayPlacement(_LeastDelay, _WeighsPlaces):
    """GPUs that delay this job, running and waiting ones least in total.

    Use it with the topology policy *least-delay*. It considers the places of the other placement
    policies, each packet switch with room, several ways to spread the job, GPUs of one model, and
    GPUs that circuits can bring under one switch. The cost is the job's time there, the slowdown of
    jobs that share its links, and the GPU time taken from waiting jobs, weighted by the GPU model's
    speed. If the job's work is unknown, it is *consolidated*.

    Without ``circuits`` circuits are assumed to stay: for another topology policy.
    """

    def __init__(self, circuits: bool = True) -> None:
        super().__init__()
        self.with_circuits = circuits


class LeastDelayTopology(_LeastDelay, _WeighsCircuits):
    """The present circuits, or the new jobs under one switch each, whichever delays all jobs less.

    Use it with the placement policy *least-delay*. Circuits of running jobs stay.
    """


class LeastDelayElasticity(_LeastDelay, _WeighsSizes):
    """The resize after which running jobs end and waiting ones start soonest in total.

    It considers each other number of workers of each job, what makes room for one of the next four
    waiting jobs, and the choice of *give-and-take*. The cost or gain is the change of the resized
    jobs' times and of the waiting jobs' starts, and for the next job to arrive the part of the
    cluster that is held, times the duration. It makes one change at a time.
    """


def explained(
    outlook: Outlook,
    options: Options,
    scores: Sequence[float],
    chosen: Option,
) -> dict[str, Any]:
    """Options with their scores, best first, and a summary of the cluster, as JSON."""

    def known(value: float) -> float | None:
        return round(value, 3) if math.isfinite(value) else None

    cluster = outlook.cluster
    ranked = sorted(
        zip(scores, options, strict=True), key=lambda each: -each[0]
    )
    return {
        "saw": {
            "gpus": len(cluster.shape.gpus),
            "free": cluster.free.bit_count(),
            "running": len(cluster.running),
            "waiting": len(cluster.queue),
            "rings whose work is known": sum(
                each.load is not None for each in cluster.rings
            ),
        },
        "options": [
            {
                "option": option.words,
                "score": round(score, 4),
                "chosen": option is chosen,
                "lasts_s": known(option.prospect.lasts_s),
                "delays_others_s": known(option.prospect.delays_s),
                "also_of": sorted(option.proposers),
            }
            for score, option in ranked
        ],
    }


def load_options(path: Path, kind: PolicyKind) -> LearnedOptions:
    """The policy of a kind in an ONNX file with its card; ``CardError`` with its mistake."""
    card, session = files.open_model(path, files.read_options_card)
    if kind not in card.kinds:
        listed = ", ".join(card.kinds)
        raise CardError(
            f"model {card.name!r} is of kind {listed}: expected {kind!r}"
        )
    files.check_schema(card, observation.SCHEMA, observation.VERSION)
    _check_session(session, path)
    adapters: Sequence[type[LearnedOptions]] = (
        WeighsPartitions,
        LearnedPlacement,
        LearnedOrder,
        LearnedTopology,
        LearnedElasticity,
    )
    policy = next(each for each in adapters if each.kind == kind)(
        card, session
    )
    _try(policy, path)
    return policy


def _check_session(session: Any, path: Path) -> None:
    inputs = session.get_inputs()
    outputs = session.get_outputs()
    for each in inputs:
        if each.name not in ARRAYS:
            raise CardError(
                f"{path} wants an input {each.name!r}: an observation has {', '.join(ARRAYS)}"
            )
        kind, columns = ARRAYS[each.name]
        rows_open = bool(each.shape) and (
            each.name == "state" or not isinstance(each.shape[0], int)
        )
        if (
            each.type != _TYPES[kind]
            or not rows_open
            or not has_shape(each.shape[1:], (columns,))
        ):
            raise CardError(
                f"{path}: input {each.name!r} is {each.type} of shape {each.shape}; an "
                f"observation has {_TYPES[kind]} of any number of rows of {columns}"
            )
    if "options" not in {each.name for each in inputs}:
        raise CardError(
            f"{path} has no input 'options', so it ignores the options"
        )
    if [o.name for o in outputs] != [OUTPUT] or outputs[0].type != _TYPES[
        "float32"
    ]:
        found = ", ".join(f"{o.name!r} {o.type} {o.shape}" for o in outputs)
        raise CardError(
            f"{path} gives {found}: expected '{OUTPUT}', a number for each option"
        )


def _try(policy: LearnedOptions, path: Path) -> None:
    for count in (2, 5):
        sites = tuple(
            contract.GpuSite(f"gpu{n}", n // 2, n // 4) for n in range(count)
        )
        servers = tuple(f"server{n}" for n in range(-(-count // 2)))
        racks = tuple(f"tor{n}" for n in range(-(-count // 4)))
        cluster = ClusterView(
            0.0, contract.ClusterShape(sites, servers, racks), 0
        )
        options = [
            Option(
                [n],
                "",
                (n,),
                Prospect(1.0 + n, 1.0),
                1,
            )
            for n in range(count)
        ]
        try:
            scores = policy.scores(
                policy.outlook(cluster), JobView("trial", 1), options
            )
        except PatchlightError as error:
            raise CardError(
                f"{path} returns no numbers for an empty cluster"
            ) from error
        except Exception as error:
            why = files.first_line(error)
            raise CardError(
                f"{path} fails on an empty cluster: {why}"
            ) from error
        if len(scores) != count:
            raise CardError(
                f"{path} returns {len(scores)} scores for {count} options"
            )
