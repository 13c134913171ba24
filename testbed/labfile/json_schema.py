"""The JSON Schema of a lab file, made of its keys."""

from typing import Any

from patchlight.testbed.labfile.ranges import ITEMS, RANGE_PATTERN, RANGED
from patchlight.testbed.labfile.schema import COMMON, LAB


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a lab file, for editors.

    It knows keys and the form of values. What needs the whole file (a port used twice, an
    address outside the network) only ``read_lab`` finds.
    """
    lab = LAB.schema()
    for name in ITEMS:
        if name in lab["properties"]:
            _with_short_forms(name, lab["properties"][name])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Patchlight lab file",
        **lab,
    }


def _with_short_forms(name: str, items: dict[str, Any]) -> None:
    """Let the schema of a list take ranges, fibres in a line, and what defaults may stand for."""
    group = items["items"]
    several = {"type": "string", "pattern": RANGE_PATTERN}
    common = COMMON.get(ITEMS[name], ())
    group["required"] = [key for key in group["required"] if key not in common]
    for key, value in group["properties"].items():
        about = value.pop("description", None)
        if key == "cross_connects":
            value["items"] = {"anyOf": [value["items"], several]}
        elif key == "ends":
            value = {"anyOf": [value, {"type": "string"}]}
        elif key in RANGED:
            value = {"anyOf": [value, several]}
        group["properties"][key] = value | {"description": about}
        if key in ITEMS:
            _with_short_forms(key, value)
    if name == "fibres":
        items["items"] = {"anyOf": [group, {"type": "string"}]}
