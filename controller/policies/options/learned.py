"""Learned policies that weigh options: a card, a model, and an adapter for each kind of decision.

One model may be of several kinds; one of *placement* and *topology* weighs, where a job goes, also
light that is moved for it, and wants to be chosen for both.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from patchlight.controller.policies.contract import (
    ClusterShape,
    ClusterView,
    ElasticJob,
    GpuSite,
    JobView,
    PolicyKind,
    Progress,
    QueuedJob,
)
from patchlight.controller.policies.files import (
    OUTPUT,
    CardError,
    check_digest,
    check_schema,
    first_line,
    has_shape,
    model_bytes,
    open_session,
)
from patchlight.controller.policies.options.card import OptionsCard, read_options_card
from patchlight.controller.policies.options.listing import Listing, Option
from patchlight.controller.policies.options.observation import (
    ARRAYS,
    MOST_COST,
    SCHEMA,
    VERSION,
    Observation,
    Observer,
    typical_s,
)
from patchlight.controller.policies.options.outlook import Outlook, Prospect
from patchlight.controller.policies.order import LAST
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap

_TYPES = {"float32": "tensor(float)", "int64": "tensor(int64)"}


class WeighsOptions:
    """What learned policies of all kinds share: options in, the one with the best score out.

    ``explanation`` has what was weighed last, for people.
    """

    kind: PolicyKind

    def __init__(self, card: OptionsCard, session: Any) -> None:
        self.card = card
        self.__doc__ = card.notes or f"Learned, weighs options; trained on {card.trained_on}."
        self.explanation: Mapping[str, Any] | None = None
        self.session = session
        self._observer, self._listing = Observer(), Listing()
        self._inputs = [each.name for each in session.get_inputs()]

    def check_fits(self, shape: ClusterShape, lab: Lab | None = None) -> None:
        """``CardError`` if it cannot decide in such a cluster."""
        if self.kind == "topology" and lab is not None and not lab.circuit_switches:
            raise CardError(
                f"model {self.card.name!r} decides on circuits: lab {lab.name} has no circuit "
                "switch",
                hint="choose another topology policy, like 'keep'",
            )

    def outlook(self, cluster: ClusterView) -> Outlook:
        """What is known of the cluster's jobs and links."""
        return self._observer.outlook(cluster)

    def observe(
        self, outlook: Outlook, job: JobView | None, options: Sequence[Option]
    ) -> Observation:
        """What the model sees of these options."""
        return self._observer.observe(self.kind, outlook, job, options)

    def scores(
        self, outlook: Outlook, job: JobView | None, options: Sequence[Option]
    ) -> list[float]:
        """The model's score of each option, the best the highest."""
        seen = self.observe(outlook, job, options)
        found = self.session.run([OUTPUT], {name: seen[name] for name in self._inputs})[0]
        if not np.isfinite(found).all():
            about = "" if job is None else f" for job {job.name!r}"
            raise PatchlightError(
                f"model {self.card.name!r} gave scores that are no numbers{about}"
            )
        return [float(score) for score in found]

    def _best(
        self, outlook: Outlook, job: JobView | None, options: Sequence[Option]
    ) -> Option | None:
        """The option with the best score, the first of equals; ``None`` if there are none."""
        self.explanation = None
        if not options:
            return None
        scores = self.scores(outlook, job, options)
        best = options[scores.index(max(scores))]
        self.explanation = explained(outlook, options, scores, best)
        return best


class LearnedPlacement(WeighsOptions):
    """A ``PlacementPolicy`` that a model decides."""

    kind: PolicyKind = "placement"

    def options(self, outlook: Outlook, job: JobView, workers: int) -> list[Option]:
        """Where the job can go."""
        with_circuits = "topology" in self.card.kinds
        return self._listing.placements(outlook, job, workers, with_circuits=with_circuits)

    def place(self, cluster: ClusterView, job: JobView, workers: int) -> Sequence[int] | None:
        """The GPUs with the best score; ``None`` while there are too few."""
        outlook = self.outlook(cluster)
        best = self._best(outlook, job, self.options(outlook, job, workers))
        return None if best is None else cast(Sequence[int], best.answer)


class WeighsPartitions(WeighsOptions):
    """A ``PartitionPolicy`` that a model decides."""

    kind: PolicyKind = "partition"

    def options(self, outlook: Outlook, job: JobView, legal: Sequence[int]) -> list[Option]:
        """How many workers the job can have."""
        return self._listing.degrees(outlook, job, legal)

    def degree(self, cluster: ClusterView, job: JobView, legal: tuple[int, ...]) -> int | None:
        """The degree with the best score; ``None`` while there is a place for none."""
        outlook = self.outlook(cluster)
        best = self._best(outlook, job, self.options(outlook, job, legal))
        return None if best is None else cast(int | None, best.answer)


class LearnedOrder(WeighsOptions):
    """An ``OrderPolicy`` that a model decides: the job with the best score is next.

    It is asked once about a job, when that joins the line.
    """

    kind: PolicyKind = "order"
    stable = True
    rises_at: Sequence[float] = ()

    def turn(self, outlook: Outlook, job: JobView, progress: Progress) -> Option:
        """That the job is next."""
        return self._listing.turn(outlook, job, progress)

    def priority(self, cluster: ClusterView, job: JobView, progress: Progress) -> float:
        """Less its score, in seconds, so that scores at different times compare.

        Jobs come last of which nobody knows how long they take.
        """
        outlook = self.outlook(cluster)
        option = self.turn(outlook, job, progress)
        (score,) = self.scores(outlook, job, [option])
        self.explanation = explained(outlook, [option], [score], option)
        behind_s = option.prospect.queue_s
        if math.isnan(behind_s):
            return LAST
        unit_s = typical_s(cluster, ())
        # Beyond the most that the model is shown, too, those come first that take less.
        return min(max(0.0, behind_s - MOST_COST * unit_s) - score * unit_s, LAST)


class LearnedTopology(WeighsOptions):
    """A ``TopologyPolicy`` that a model decides: circuits as they are, or jobs regrouped."""

    kind: PolicyKind = "topology"

    def options(self, outlook: Outlook, groups: Sequence[Sequence[int]]) -> list[Option]:
        """Which circuits these jobs can have."""
        return self._listing.circuits(outlook, groups)

    def circuits(
        self, cluster: ClusterView, groups: Sequence[Sequence[int]]
    ) -> Mapping[str, PortMap]:
        """The maps with the best score."""
        outlook = self.outlook(cluster)
        best = self._best(outlook, None, self.options(outlook, groups))
        return {} if best is None else cast(Mapping[str, PortMap], best.answer)


class LearnedElasticity(WeighsOptions):
    """An ``ElasticityPolicy`` that a model decides, one change at a time."""

    kind: PolicyKind = "elasticity"
    stable = True

    def options(
        self, outlook: Outlook, jobs: Sequence[ElasticJob], queue: Sequence[QueuedJob]
    ) -> list[Option]:
        """Which of these jobs can have other numbers of workers."""
        return self._listing.sizes(outlook, jobs, queue)

    def resize(
        self, cluster: ClusterView, jobs: Sequence[ElasticJob], queue: Sequence[QueuedJob]
    ) -> Mapping[str, int]:
        """The change with the best score; none where the jobs are best left as they are."""
        outlook = self.outlook(cluster)
        best = self._best(outlook, None, self.options(outlook, jobs, queue))
        return {} if best is None else cast(Mapping[str, int], best.answer)


_ADAPTERS: Mapping[PolicyKind, type[WeighsOptions]] = {
    each.kind: each
    for each in (
        LearnedPlacement,
        WeighsPartitions,
        LearnedOrder,
        LearnedTopology,
        LearnedElasticity,
    )
}


def explained(
    outlook: Outlook, options: Sequence[Option], scores: Sequence[float], chosen: Option
) -> dict[str, Any]:
    """Options with their scores, the best first, and what was seen of the cluster, as JSON."""
    cluster = outlook.cluster
    ranked = sorted(zip(scores, options, strict=True), key=lambda each: -each[0])
    return {
        "saw": {
            "gpus": len(cluster.shape.gpus),
            "free": cluster.free.bit_count(),
            "running": len(cluster.running),
            "waiting": len(cluster.queue),
            "rings whose work is known": sum(each.load is not None for each in cluster.rings),
        },
        "options": [
            {
                "option": option.words,
                "score": round(score, 4),
                "chosen": option is chosen,
                "lasts_s": _number(option.prospect.lasts_s),
                "delays_others_s": _number(option.prospect.delays_s),
                "also_of": sorted(option.proposers),
            }
            for score, option in ranked
        ],
    }


def _number(value: float) -> float | None:
    return round(value, 3) if math.isfinite(value) else None


def load_options(path: Path, kind: PolicyKind) -> WeighsOptions:
    """The policy of a kind in an ONNX file with its card beside it.

    ``CardError`` says why a file was refused.
    """
    content = model_bytes(path)
    card = read_options_card(path.with_suffix(".json"))
    check_digest(card.sha256, content, path)
    if kind not in card.kinds:
        listed = ", ".join(card.kinds)
        raise CardError(f"model {card.name!r} is of kind {listed}: expected {kind!r}")
    seen = card.observation_schema, card.observation_version
    check_schema(card.name, seen, (SCHEMA, VERSION))
    session = open_session(content, path)
    _check_session(session, path)
    policy = _ADAPTERS[kind](card, session)
    _try(policy, path)
    return policy


def _check_session(session: Any, path: Path) -> None:
    """Inputs and outputs; sizes have to be open."""
    inputs, outputs = session.get_inputs(), session.get_outputs()
    for each in inputs:
        if each.name not in ARRAYS:
            raise CardError(
                f"{path} wants an input {each.name!r}: an observation has {', '.join(ARRAYS)}"
            )
        kind, columns = ARRAYS[each.name]
        rows_open = bool(each.shape) and (
            each.name == "state" or not isinstance(each.shape[0], int)
        )
        if each.type != _TYPES[kind] or not rows_open or not has_shape(each.shape[1:], (columns,)):
            raise CardError(
                f"{path}: input {each.name!r} is {each.type} of shape {each.shape}; an "
                f"observation has {_TYPES[kind]} of any number of rows of {columns}"
            )
    if "options" not in {each.name for each in inputs}:
        raise CardError(f"{path} does not look at what it is to choose from: no input 'options'")
    if [o.name for o in outputs] != [OUTPUT] or outputs[0].type != _TYPES["float32"]:
        found = ", ".join(f"{o.name!r} {o.type} {o.shape}" for o in outputs)
        raise CardError(f"{path} gives {found}: expected '{OUTPUT}', a number for each option")


def _try(policy: WeighsOptions, path: Path) -> None:
    """One run on each of two made-up clusters of different sizes."""
    for count in (2, 5):
        sites = tuple(GpuSite(f"gpu{n}", n // 2, n // 4) for n in range(count))
        servers = tuple(f"server{n}" for n in range(-(-count // 2)))
        racks = tuple(f"tor{n}" for n in range(-(-count // 4)))
        cluster = ClusterView(0.0, ClusterShape(sites, servers, racks), 0)
        options = [Option([n], "", (n,), Prospect(1.0 + n, 1.0), 1) for n in range(count)]
        try:
            scores = policy.scores(policy.outlook(cluster), JobView("trial", 1), options)
        except PatchlightError as error:
            raise CardError(f"{path} gives no numbers for an empty cluster") from error
        except Exception as error:
            raise CardError(f"{path} fails on an empty cluster: {first_line(error)}") from error
        if len(scores) != count:
            raise CardError(f"{path} gives {len(scores)} scores for {count} options")
