"""Runs learned partition policies: a model scores each degree for a RAMP (``observation``).

A file is refused, with the reason, unless it matches its card, the schema and the lab.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from patchlight.controller.policies import files, observation
from patchlight.controller.policies.contract import (
    ClusterShape,
    ClusterView,
    JobView,
    PlacedDegree,
)
from patchlight.controller.policies.degrees import BestConstant, is_beaten
from patchlight.controller.policies.files import (
    FLOAT,
    OUTPUT,
    CardError,
    has_shape,
    no_card,
)
from patchlight.controller.policies.observation import (
    Observation,
    ObservationLayout,
    written,
)
from patchlight.controller.policies.sets import members
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.model import Lab

# How much better a constant degree has to be than the model, as in ``is_beaten``.
_CERTAINTY = 1.0


@dataclass(frozen=True)
class Card:
    """The card of a learned policy.

    ``actions`` are the degrees of its outputs, 0 first. ``ramp`` (groups, racks, servers of a rack)
    and ``placement_rule`` are of the lab that it was trained for. ``sha256`` is of the ONNX file.
    ``blocks``: among how many free blocks of each degree it chooses. With a ``most_load``,
    ``BestConstant`` decides in its place at loads above that, while it blocks nothing, and once it
    would have blocked fewer jobs.
    """

    name: str
    kind: str
    observation_schema: str
    observation_version: int
    actions: tuple[int, ...]
    ramp: tuple[int, int, int]
    placement_rule: str
    code_version: str
    sha256: str
    notes: str = ""
    training: Mapping[str, Any] = field(default_factory=dict)
    blocks: int = 1
    most_load: float = math.inf

    @property
    def layout(self) -> ObservationLayout:
        """The sizes of its observation."""
        return ObservationLayout(
            self.ramp, self.actions[1:], self.observation_version
        )

    def written(self) -> str:
        """As JSON text; ``read_card`` reads it."""
        found = {
            "format": files.FORMAT,
            "format_version": files.PLAIN_VERSION,
            **asdict(self),
        }
        if self.blocks == 1:
            # Earlier versions of Patchlight do not support it.
            del found["blocks"]
        if self.most_load == math.inf:
            del found["most_load"]
        return (
            json.dumps(
                found,
                indent=2,
                ensure_ascii=False,
            )
            + "\n"
        )


def read_card(path: Path) -> Card:
    """The card in a file; ``CardError`` with its mistake."""
    raw = files.raw_card(path)
    if raw["format_version"] != files.PLAIN_VERSION:
        raise no_card(path, "it is for a policy that weighs options")
    fields = files.card_fields(
        raw,
        Card,
        path,
        {"notes", "training", "blocks", "most_load"},
    )
    actions = fields["actions"]
    ramp = fields["ramp"]
    if not all(type(n) is int for n in (*actions, *ramp)):
        raise no_card(
            path, "'actions' and 'ramp' must be lists of whole numbers"
        )
    if (
        actions[:1] != [0]
        or actions != sorted(set(actions))
        or len(actions) < 2
    ):
        raise no_card(
            path,
            f"'actions' is {actions}: expected degrees in ascending order, 0 first",
        )
    if (
        len(ramp) != 3
        or min(ramp) < 1
        or not actions[-1] <= ramp[0] * ramp[1] * ramp[2] <= 4096
    ):
        raise no_card(
            path,
            f"'ramp' is {ramp}: expected groups, racks and servers of a rack",
        )
    if fields.get("blocks", 1) < 1:
        raise no_card(
            path, f"'blocks' is {fields['blocks']}: expected 1 or more"
        )
    if not fields.get("most_load", 1.0) > 0:
        raise no_card(
            path, f"'most_load' is {fields['most_load']}: expected more than 0"
        )
    fields |= {key: tuple(fields[key]) for key in ("actions", "ramp")}
    return Card(**fields)


class LearnedPartition:
    """A ``PartitionPolicy`` that uses a model.

    With more than one of ``blocks`` (by default its card's) it chooses the block, too: among that
    many free ones of each degree, the first and those that block the fewest others.
    """

    def __init__(
        self,
        card: Card,
        session: Any,
        blocks: int | None = None,
    ) -> None:
        self.card = card
        self._blocks = card.blocks if blocks is None else blocks
        shape = written(card.ramp)
        rule = card.placement_rule
        self.__doc__ = (
            card.notes or f"Learned, for a RAMP of {shape} servers and {rule}."
        )
        self._session = session
        self._constant = BestConstant() if card.most_load < math.inf else None
        self._blocked = 0
        self._is_beaten = False
        self._inputs = [each.name for each in session.get_inputs()]
        graphs = bool({"nodes", "edges"} & set(self._inputs))
        self._observer = observation.RampObserver(card.layout, graphs)

    def _scores(self, seen: Observation, job: JobView) -> list[float]:
        """The model's score of each action; minus infinity if the action cannot succeed."""
        given = {name: seen[name][None] for name in self._inputs}
        found = self._session.run([OUTPUT], given)[0][0]
        possible = seen["mask"] > 0
        if not np.isfinite(found[possible]).all():
            raise PatchlightError(
                f"model {self.card.name!r} returned invalid scores for job {job.name!r}"
            )
        return [float(score) for score in np.where(possible, found, -np.inf)]

    def check_fits(self, shape: ClusterShape, lab: Lab | None = None) -> None:
        """``CardError`` if the model was trained for a cluster of another shape."""
        if shape.ramp != self.card.ramp:
            other = (
                f"one of {written(shape.ramp)}"
                if shape.ramp
                else "a lab that is not a RAMP"
            )
            raise CardError(
                f"model {self.card.name!r} was trained for a RAMP of {written(self.card.ramp)} "
                f"servers, not for {other}",
                hint="train one for this lab (patchlight policy train), or choose another policy",
            )

    def degree(
        self,
        cluster: ClusterView,
        job: JobView,
        legal: tuple[int, ...],
    ) -> int:
        """The degree with the best score, the lowest in a tie; a ``PlacedDegree`` on its block.

        ``BadInput`` if the cluster or the job is not of the kind that the model was trained for.
        """
        if (constant := self._constant) is not None:
            least = constant.meet(cluster, job)
            if not least or not 0 < constant.load <= self.card.most_load:
                self._blocked = least
                return constant.follow(cluster, job, legal)
            self._is_beaten |= is_beaten(self._blocked, least, _CERTAINTY)
            if self._is_beaten:
                return constant.follow(cluster, job, legal)
            constant.used = -1
        seen = self._observer.observe(cluster, job, legal)
        scores = self._scores(seen, job)
        best = max(scores)
        chosen = self.card.actions[scores.index(best)]
        self._blocked += not chosen
        if self._blocks == 1:
            return chosen
        for blocks in self._other_blocks(cluster, job, seen):
            for action, gpus in blocks.items():
                row = seen["remaining"][action]
                row[:] = seen["remaining"][0]
                # The expected time.
                row[members(gpus)] = seen["options"][action, 1]
            scores = self._scores(seen, job)
            for action, gpus in blocks.items():
                if scores[action] > best:
                    best = scores[action]
                    chosen = PlacedDegree(self.card.actions[action], gpus)
        return chosen

    def _other_blocks(
        self,
        cluster: ClusterView,
        job: JobView,
        seen: Observation,
    ) -> Iterator[dict[int, int]]:
        actions = [
            n
            for n, degree in enumerate(self.card.actions)
            if degree and seen["mask"][n]
        ]
        places = {
            n: cluster.places(job, self.card.actions[n]) for n in actions
        }
        sizes = {
            gpus: gpus.bit_count()
            for found in places.values()
            for gpus in found
        }
        free = list(sizes.items())

        def harm(gpus: int) -> int:
            return sum([size for each, size in free if each & gpus])

        others = [list(found[1:]) for found in places.values()]
        most = self._blocks - 1
        others = [
            sorted(each, key=harm)[:most] if len(each) > most else each
            for each in others
        ]
        for row in zip_longest(*others):
            yield {
                n: gpus
                for n, gpus in zip(places, row, strict=True)
                if gpus is not None
            }

    def with_parameters(self, blocks: int | None = None) -> "LearnedPartition":
        """The same policy with that many free blocks of each degree."""
        if blocks is not None and blocks < 1:
            raise BadInput(
                f"cannot weigh {blocks} blocks of each degree: expected 1 or more"
            )
        return LearnedPartition(self.card, self._session, blocks)


def load_learned(path: Path) -> LearnedPartition:
    """The policy in an ONNX file with its card; ``CardError`` with its mistake."""
    card, session = files.open_model(path, read_card)
    if card.kind != "partition":
        raise CardError(
            f"model {card.name!r} is of kind {card.kind!r}: expected 'partition'"
        )
    is_known = card.observation_version in observation.VERSIONS
    version = card.observation_version if is_known else observation.VERSION
    files.check_schema(card, observation.SCHEMA, version)
    _check_session(card, session, path)
    return LearnedPartition(card, session)


def _check_session(
    card: Card,
    session: Any,
    path: Path,
) -> None:
    shapes = card.layout.shapes
    inputs = session.get_inputs()
    outputs = session.get_outputs()
    for each in inputs:
        if each.name not in shapes:
            known = ", ".join(shapes)
            raise CardError(
                f"{path} wants an input {each.name!r}: an observation has {known}"
            )
        wanted = (1, *shapes[each.name])
        if each.type != FLOAT or not has_shape(each.shape, wanted):
            raise CardError(
                f"{path}: input {each.name!r} is {each.type} of shape {each.shape}; an "
                f"observation of a RAMP of {written(card.ramp)} servers with degrees "
                f"{list(card.actions[1:])} has {FLOAT} of shape {list(wanted)}"
            )
    if "remaining" not in {each.name for each in inputs}:
        raise CardError(
            f"{path} has no input 'remaining', so it ignores the cluster"
        )
    wanted = (1, len(card.actions))
    named = [(o.name, o.type) for o in outputs]
    if named != [(OUTPUT, FLOAT)] or not has_shape(outputs[0].shape, wanted):
        found = ", ".join(f"{o.name!r} {o.type} {o.shape}" for o in outputs)
        raise CardError(
            f"{path} gives {found}: expected '{OUTPUT}' {FLOAT} of shape {list(wanted)}"
        )
    try:
        empty = card.layout.empty(1)
        scores = session.run(
            [OUTPUT], {each.name: empty[each.name] for each in inputs}
        )[0]
    except Exception as error:
        raise CardError(
            f"{path} fails on an empty cluster: {files.first_line(error)}"
        ) from error
    if scores.shape != wanted or not np.isfinite(scores).all():
        raise CardError(
            f"{path} returns no numbers of shape {list(wanted)} for an empty cluster"
        )
