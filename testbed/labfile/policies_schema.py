"""The keys of a lab file under ``policies:``, each with its type: who decides there."""

from typing import Any

from patchlight.testbed import units
from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.fields import FieldType, Text, YesNo, plain, quantity
from patchlight.testbed.io.groups import Fields, Group, Key
from patchlight.testbed.io.issues import short
from patchlight.testbed.lab.queueing import KINDS, PolicyChoice

_TIMES = {
    "deadline": "deadline_s",
    "defragment_every": "defragment_every_s",
    "minimum_gain": "minimum_gain_s",
}
_LONGEST_NAME = 1000


def _policy(text: str) -> str:
    if text.strip() and text.isprintable() and len(text) <= _LONGEST_NAME:
        return text
    raise BadInput(f"{short(text)!r} is no policy: expected a name, FILE.py:CLASS or FILE.onnx")


def _time(field: str, example: str) -> FieldType:
    def take(text: str) -> float:
        said: dict[str, Any] = {field: units.parse_time(text)}
        PolicyChoice(**said)  # refuses what is out of bounds
        return float(said[field])

    return quantity(take, units.TIME, "a time", example)


POLICY = Text("a policy", _policy, {"minLength": 1, "maxLength": _LONGEST_NAME}, example="regroup")
POLICIES = Group(
    "who decides in the lab",
    *(
        Key(kind, POLICY, f"the {kind} policy: a name, FILE.py:CLASS or FILE.onnx")
        for kind in KINDS
    ),
    Key(
        "deadline",
        _time("deadline_s", "1s"),
        "after this the default decides in a policy's place",
        default="1s",
    ),
    Key(
        "defragment",
        YesNo("whether light follows jobs"),
        "whether light moves under running jobs by itself, where that gains more than it costs",
        default="false",
    ),
    Key(
        "defragment_every",
        _time("defragment_every_s", "10min"),
        "how often that is looked at, beside each end of a job",
        default="10min",
    ),
    Key(
        "minimum_gain",
        _time("minimum_gain_s", "10s"),
        "what all jobs together have to gain at least",
        default="10s",
    ),
)


def choice_of(fields: Fields) -> PolicyChoice:
    """What a file without mistakes says under ``policies:``."""
    return PolicyChoice(**{_TIMES.get(key, key): value for key, value in plain(fields).items()})


def policies_document(choice: PolicyChoice) -> dict[str, Any]:
    """The keys that say the same in a file."""
    key_of = {field: key for key, field in _TIMES.items()}
    return {
        key_of.get(field, field): units.write_time(float(value)) if field in key_of else value
        for field, value in choice.said.items()
    }
