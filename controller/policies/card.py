"""The card of a learned policy: what it is, what it was trained for, and which file it belongs to.

A card is a JSON file beside the ONNX file, of the same name. It is read as data and checked key
by key; nothing in it is ever run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from patchlight.controller.policies.observation import Layout
from patchlight.testbed.errors import BadInput

FORMAT, FORMAT_VERSION = "patchlight-policy", 1
_MOST_BYTES = 1_000_000


class CardError(BadInput):
    """A learned policy cannot be used: its card or its file is wrong, or they do not match."""


@dataclass(frozen=True)
class Card:
    """What a learned policy says of itself.

    ``actions`` are the degrees of its outputs, 0 first. ``ramp`` (groups, racks, servers of a
    rack) and ``placement_rule``
    are of the lab that it was trained for. ``training`` holds the
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
        if path.stat().st_size > _MOST_BYTES:
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
    kinds: dict[str, type] = {
        "name": str, "kind": str, "observation_schema": str, "observation_version": int,
        "actions": list, "ramp": list, "placement_rule": str, "code_version": str,
        "sha256": str, "notes": str, "training": dict,
    }  # fmt: skip
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
