"""Trained baselines as files: an ONNX model and its card, for the environment that it plays.

Needs no PyTorch. The same is refused as of other learned policies: nothing but ONNX, and only what
its card was written for.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from patchlight.controller.policies.files import (
    OUTPUT,
    CardError,
    card_fields,
    check_digest,
    has_shape,
    model_bytes,
    open_session,
)
from patchlight.testbed.errors import BadInput

FORMAT, FORMAT_VERSION = "patchlight-baseline", 1
WHOLE = "observation"
"""What an observation is called that is one array."""
MODELS = Path(__file__).resolve().parent / "models"


@dataclass(frozen=True)
class BaselineCard:
    """What a baseline says of itself: the environment it plays, what it sees, how it was trained.

    ``inputs`` are the arrays that it sees, with their shapes; ``actions`` is how many there are.
    """

    name: str
    environment: str
    algorithm: str
    inputs: Mapping[str, Any]
    actions: int
    figure: str
    code_version: str
    sha256: str
    notes: str = ""
    training: Mapping[str, Any] = field(default_factory=dict)

    def written(self) -> str:
        """As JSON text that ``read_baseline_card`` takes."""
        found = {"format": FORMAT, "format_version": FORMAT_VERSION, **asdict(self)}
        return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


class Baseline:
    """A rule of an environment that a model decides: the allowed action with the best score."""

    def __init__(self, card: BaselineCard, session: Any) -> None:
        self.card, self._session = card, session
        self.__doc__ = card.notes

    def __call__(self, env: Any, seen: Any) -> int:
        """The action for what was seen; ``BadInput`` in an environment of another shape."""
        arrays, mask = as_arrays(seen), np.asarray(env.action_masks())
        given = {}
        for name, shape in self.card.inputs.items():
            array = np.asarray(arrays[name], np.float32) if name in arrays else None
            if array is None or list(array.shape) != list(shape) or len(mask) != self.card.actions:
                raise BadInput(
                    f"baseline {self.card.name!r} was trained for {self.card.environment} with "
                    f"{self.card.actions} actions and {name!r} of shape {shape}, and sees "
                    f"{len(mask)} and {None if array is None else list(array.shape)}",
                    hint="compare it in the environment it was trained in",
                )
            given[name] = array[None]
        (scores,) = self._session.run([OUTPUT], given)[0]
        if not np.isfinite(scores[mask]).all():
            raise BadInput(f"baseline {self.card.name!r} gave scores that are no numbers")
        return int(np.where(mask, scores, -np.inf).argmax())


def as_arrays(seen: Any) -> Mapping[str, Any]:
    """An observation as arrays by name."""
    return seen if isinstance(seen, Mapping) else {WHOLE: seen}


def read_baseline_card(path: Path) -> BaselineCard:
    """The card in a file; ``CardError`` saying what is wrong with it."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CardError(f"cannot read the card {path}: {error}") from error
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise CardError(
            f'{path} is no card of a baseline: its "format" is not {FORMAT!r}',
            hint="'patchlight env train' writes baselines; other policies are for 'policy'",
        )
    if raw["format_version"] != FORMAT_VERSION:
        raise CardError(
            f"{path} is of version {raw['format_version']!r}, expected {FORMAT_VERSION}"
        )
    return BaselineCard(**card_fields(raw, BaselineCard, path, {"notes", "training"}))


@cache
def load_baseline(path: Path) -> Baseline:
    """The baseline in a file; ``CardError`` if it is not what its card says."""
    content = model_bytes(path)
    card = read_baseline_card(path.with_suffix(".json"))
    check_digest(card.sha256, content, path)
    session = open_session(content, path)
    found = {each.name: each.shape for each in session.get_inputs()}
    wrong = found.keys() ^ card.inputs.keys() or [
        name for name, shape in card.inputs.items() if not has_shape(found[name], (1, *shape))
    ]
    outputs = [(each.name, each.shape) for each in session.get_outputs()]
    if wrong or len(outputs) != 1 or outputs[0][0] != OUTPUT:
        raise CardError(
            f"{path} is not as its card says: inputs {found}, outputs {outputs}",
            hint="the card was changed, or is another model's: train and export it again",
        )
    return Baseline(card, session)


@cache
def shipped_baselines() -> Mapping[str, Mapping[str, Path]]:
    """Those that come along: for each environment their names and files."""
    found: dict[str, dict[str, Path]] = {}
    for path in sorted(MODELS.glob("*.onnx")):
        card = read_baseline_card(path.with_suffix(".json"))
        found.setdefault(card.environment, {})[card.name] = path
    return found
