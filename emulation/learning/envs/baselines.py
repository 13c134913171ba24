"""Reads a model of an environment: an ONNX file and its card.

Needs no PyTorch. What is refused is the same as for other learned policies: anything but ONNX, and
anything that does not match its card.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from patchlight.controller.policies.model_files import (
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


@dataclass(frozen=True)
class BaselineCard:
    """What a model says of itself: the environment it plays, what it sees, how it was trained.

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
            f'{path} is not the card of a model of an environment: its "format" is not {FORMAT!r}',
            hint="policies of labs and RAMPs are for 'patchlight policy'",
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
            hint="the card was changed, or is another model's: export the model again",
        )
    return Baseline(card, session)
