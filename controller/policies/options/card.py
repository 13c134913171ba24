"""The card of a model that weighs options: what it says of itself."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from patchlight.controller.policies.contract import KINDS
from patchlight.controller.policies.model_files import (
    FORMAT,
    OPTIONS_VERSION,
    card_fields,
    no_card,
    raw_card,
)


@dataclass(frozen=True)
class OptionsCard:
    """What a model that weighs options says of itself.

    ``tested_range`` has the lowest and the highest value of each measure of labs (``lab_range``)
    on which it was tested; larger job graphs than ``most_operations`` are pooled to that. What
    came of the test is in ``training``, with the settings.
    """

    name: str
    kinds: tuple[str, ...]
    observation_schema: str
    observation_version: int
    most_operations: int
    trained_on: str
    tested_range: Mapping[str, Any]
    code_version: str
    sha256: str
    notes: str = ""
    training: Mapping[str, Any] = field(default_factory=dict)

    def written(self) -> str:
        """As JSON text that ``read_options_card`` takes."""
        found = {"format": FORMAT, "format_version": OPTIONS_VERSION, **asdict(self)}
        return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def read_options_card(path: Path) -> OptionsCard:
    """The card in a file; ``CardError`` saying what is wrong with it."""
    raw = raw_card(path)
    if raw["format_version"] != OPTIONS_VERSION:
        raise no_card(path, "it is one of a partition policy of one RAMP")
    fields = card_fields(raw, OptionsCard, path, {"notes", "training"})
    kinds = fields["kinds"]
    if not kinds or len(set(kinds)) != len(kinds) or not set(kinds) <= set(KINDS):
        raise no_card(path, f"'kinds' is {kinds}: expected some of {', '.join(KINDS)}")
    for name, bounds in fields["tested_range"].items():
        numbers = isinstance(bounds, list) and all(type(n) in (int, float) for n in bounds)
        if not numbers or len(bounds) != 2 or not bounds[0] <= bounds[1]:
            raise no_card(path, f"'tested_range' of {name!r} is {bounds!r}: expected two numbers")
    return OptionsCard(**{**fields, "kinds": tuple(kinds)})
