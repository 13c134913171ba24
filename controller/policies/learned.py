"""Learned partition policies: an ONNX file and its card, run by ONNX Runtime.

A model gets arrays of numbers (``observation``) and gives a score for each action; the best action
that can succeed is taken. A file is refused, with the reason, unless it is what its card
says and fits the schema and the lab. Nothing but ONNX is ever loaded; a card is a JSON file of the
same name, read as data and checked key by key.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import numpy as np

from patchlight.controller.policies.contract import ClusterShape, ClusterView, JobView
from patchlight.controller.policies.observation import SCHEMA, VERSION, Layout, Observer, written
from patchlight.testbed.errors import BadInput, PatchlightError

FORMAT, FORMAT_VERSION = "patchlight-policy", 1
_MOST_CARD_BYTES, _MOST_BYTES = 1_000_000, 64_000_000
_OUTPUT, _FLOAT = "scores", "tensor(float)"
MODELS = Path(__file__).resolve().parent / "models"


class CardError(BadInput):
    """A learned policy cannot be used: its card or its file is wrong, or they do not match."""


@dataclass(frozen=True)
class Card:
    """What a learned policy says of itself.

    ``actions`` are the degrees of its outputs, 0 first. ``ramp`` (groups, racks, servers of a
    rack) and ``placement_rule`` are of the lab that it was trained for. ``training`` holds the
    settings, and what else its trainer found worth keeping. ``sha256`` is of the ONNX file.
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

    @property
    def layout(self) -> Layout:
        """The sizes of what it sees."""
        return Layout(self.ramp, self.actions[1:])

    def written(self) -> str:
        """As JSON text that ``read_card`` takes."""
        found = {"format": FORMAT, "format_version": FORMAT_VERSION, **asdict(self)}
        return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def read_card(path: Path) -> Card:
    """The card in a file; ``CardError`` saying what is wrong with it."""
    try:
        if path.stat().st_size > _MOST_CARD_BYTES:
            raise CardError(f"{path} is no card of a learned policy: it is over 1 MB")
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CardError(
            f"the learned policy has no card: there is no {path}",
            hint="a model is two files, NAME.onnx and NAME.json: keep them together",
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise CardError(f"cannot read the card {path}: {error}") from error
    return _card(raw, path)


def _card(raw: object, path: Path) -> Card:
    def wrong(what: str) -> CardError:
        return CardError(
            f"{path} is no card of a learned policy: {what}",
            hint="a card is written by `patchlight policy export`",
        )

    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise wrong(f'its "format" is not {FORMAT!r}')
    if raw.get("format_version") != FORMAT_VERSION:
        raise wrong(
            f"it is of version {raw.get('format_version')!r}, this Patchlight reads "
            f"{FORMAT_VERSION}"
        )
    fields = {key: value for key, value in raw.items() if not key.startswith("format")}
    read_as = {int: int, tuple: list, Mapping: dict}
    kinds = {
        name: read_as.get(get_origin(hint) or hint, str)
        for name, hint in get_type_hints(Card).items()
    }
    unknown = sorted(set(fields) - set(kinds))
    missing = sorted(set(kinds) - set(fields) - {"notes", "training"})
    if unknown or missing:
        raise wrong(f"keys missing: {missing}, keys unknown: {unknown}")
    for key, value in fields.items():
        if not isinstance(value, kinds[key]) or isinstance(value, bool):
            raise wrong(f"{key!r} is {value!r}")
    actions, ramp = fields["actions"], fields["ramp"]
    if not all(type(n) is int for n in (*actions, *ramp)):
        raise wrong("'actions' and 'ramp' are lists of whole numbers")
    if actions[:1] != [0] or actions != sorted(set(actions)) or len(actions) < 2:
        raise wrong(f"'actions' is {actions}: expected degrees in ascending order, 0 first")
    if len(ramp) != 3 or min(ramp) < 1 or not actions[-1] <= ramp[0] * ramp[1] * ramp[2] <= 4096:
        raise wrong(f"'ramp' is {ramp}: expected groups, racks and servers of a rack")
    fields |= {key: tuple(fields[key]) for key in ("actions", "ramp")}
    return Card(**fields)


class LearnedPartition:
    """A ``PartitionPolicy`` that a model decides."""

    def __init__(self, card: Card, session: Any) -> None:
        self.card = card
        shape, rule = written(card.ramp), card.placement_rule
        self.__doc__ = card.notes or f"Learned, for a RAMP of {shape} servers and {rule}."
        self._session = session
        self._observer = Observer(card.layout)
        self._inputs = [each.name for each in session.get_inputs()]

    def scores(self, cluster: ClusterView, job: JobView, legal: tuple[int, ...]) -> list[float]:
        """The model's score of each action of its card; minus infinity where none can succeed.

        ``BadInput`` if the cluster or the job is not what the model was trained for.
        """
        seen = self._observer.observe(cluster, job, legal)
        given = {name: seen[name][None] for name in self._inputs}
        found = self._session.run([_OUTPUT], given)[0][0]
        possible = seen["mask"] > 0
        if not np.isfinite(found[possible]).all():
            raise PatchlightError(
                f"model {self.card.name!r} gave scores that are no numbers for job {job.name!r}"
            )
        return [float(score) for score in np.where(possible, found, -np.inf)]

    def check_fits(self, shape: ClusterShape) -> None:
        """``CardError`` if the model was trained for another cluster than one of this shape."""
        if shape.ramp != self.card.ramp:
            other = f"one of {written(shape.ramp)}" if shape.ramp else "a lab that is no RAMP"
            raise CardError(
                f"model {self.card.name!r} was trained for a RAMP of {written(self.card.ramp)} "
                f"servers, not for {other}",
                hint="train one for this lab (patchlight policy train), or choose another policy",
            )

    def degree(self, cluster: ClusterView, job: JobView, legal: tuple[int, ...]) -> int:
        """The degree with the best score, the lowest of equals."""
        scores = self.scores(cluster, job, legal)
        return self.card.actions[scores.index(max(scores))]


def load_learned(
    path: Path | str, ramp: tuple[int, int, int] | None = None, rule: str | None = None
) -> LearnedPartition:
    """The policy in an ONNX file with its card beside it.

    With ``ramp`` or ``rule``, a placement rule's name, a model that was trained for another one
    is refused. ``CardError`` says why a file was refused.
    """
    path = Path(path)
    if path.suffix != ".onnx":
        raise CardError(
            f"cannot load {path} as a learned policy: expected a file named NAME.onnx",
            hint="models are ONNX files; pickles and checkpoints are never loaded",
        )
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise CardError(f"cannot load {path}: it is over {_MOST_BYTES // 1_000_000} MB")
        content = path.read_bytes()
    except OSError as error:
        raise CardError(f"cannot read the learned policy {path}: {error}") from error
    card = read_card(path.with_suffix(".json"))
    _check_card(card, content, path)
    if ramp is not None and ramp != card.ramp:
        raise CardError(
            f"model {card.name!r} was trained for a RAMP of {written(card.ramp)} servers, "
            f"not for one of {written(ramp)}",
            hint="train one for this lab: patchlight policy train",
        )
    if rule is not None and rule != card.placement_rule:
        raise CardError(
            f"model {card.name!r} was trained for placement rule {card.placement_rule!r}, "
            f"not for {rule!r}"
        )
    session = _session(content, path)
    _check_session(card, session, path)
    return LearnedPartition(card, session)


def shipped_models() -> dict[str, Path]:
    """The models that come with Patchlight: their names and files."""
    return {path.stem: path for path in sorted(MODELS.glob("*.onnx"))}


def _check_card(card: Card, content: bytes, path: Path) -> None:
    if (found := hashlib.sha256(content).hexdigest()) != card.sha256.lower():
        raise CardError(
            f"{path} is not the file that its card was written for: its SHA-256 is {found[:16]}…, "
            f"the card says {card.sha256[:16]}…",
            hint="one of the two was changed or mixed up: export the model again",
        )
    if card.kind != "partition":
        raise CardError(f"model {card.name!r} is of kind {card.kind!r}: expected 'partition'")
    if (card.observation_schema, card.observation_version) != (SCHEMA, VERSION):
        raise CardError(
            f"model {card.name!r} sees {card.observation_schema!r} version "
            f"{card.observation_version}; this Patchlight shows {SCHEMA!r} version {VERSION}",
            hint="train and export it again with this Patchlight",
        )


def _session(content: bytes, path: Path) -> Any:
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise PatchlightError(
            "learned policies need the Python package 'onnxruntime', which is not installed",
            hint="pip install onnxruntime",
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's own kinds have no public root.
        reason = str(error).strip().splitlines()[0][:200]
        raise CardError(f"{path} is not an ONNX model that can be run: {reason}") from error


def _check_session(card: Card, session: Any, path: Path) -> None:
    """Inputs, output, and one trial run."""
    shapes = card.layout.shapes
    inputs, outputs = session.get_inputs(), session.get_outputs()
    for each in inputs:
        if each.name not in shapes:
            known = ", ".join(shapes)
            raise CardError(f"{path} wants an input {each.name!r}: an observation has {known}")
        wanted = (1, *shapes[each.name])
        if each.type != _FLOAT or not _fits(each.shape, wanted):
            raise CardError(
                f"{path}: input {each.name!r} is {each.type} of shape {each.shape}; an "
                f"observation of a RAMP of {written(card.ramp)} servers with degrees "
                f"{list(card.actions[1:])} has {_FLOAT} of shape {list(wanted)}"
            )
    if "remaining" not in {each.name for each in inputs}:
        raise CardError(f"{path} does not look at the cluster: it has no input 'remaining'")
    wanted = (1, len(card.actions))
    if (
        [o.name for o in outputs] != [_OUTPUT]
        or outputs[0].type != _FLOAT
        or not _fits(outputs[0].shape, wanted)
    ):
        found = ", ".join(f"{o.name!r} {o.type} {o.shape}" for o in outputs)
        raise CardError(
            f"{path} gives {found}: expected '{_OUTPUT}' {_FLOAT} of shape {list(wanted)}"
        )
    try:
        empty = card.layout.empty(1)
        scores = session.run([_OUTPUT], {each.name: empty[each.name] for each in inputs})[0]
    except Exception as error:
        reason = str(error).strip().splitlines()[0][:200]
        raise CardError(f"{path} fails on an empty cluster: {reason}") from error
    if scores.shape != wanted or not np.isfinite(scores).all():
        raise CardError(f"{path} gives no numbers of shape {list(wanted)} for an empty cluster")


def _fits(shape: list[Any], wanted: tuple[int, ...]) -> bool:
    """Whether a model's shape takes the one wanted; a name or nothing stands for any size."""
    return len(shape) == len(wanted) and all(
        not isinstance(have, int) or have == want for have, want in zip(shape, wanted, strict=True)
    )
