"""What the JSON Schema of a model says of its keys: to messages, tables of keys, and editors."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema


class _Schema(GenerateJsonSchema):
    """JSON Schema without titles of fields and without defaults, which ``key`` describes."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def sort(self, value: Any, parent_key: str | None = None) -> Any:
        return value  # the order of the fields

    def model_schema(self, schema: Any) -> dict[str, Any]:
        made = super().model_schema(schema)
        made.pop("description", None)  # for readers of the code
        return made

    def dict_schema(self, schema: Any) -> dict[str, Any]:
        made = super().dict_schema(schema)
        pattern, *_ = made.pop("patternProperties", {".*": None})
        # With its title, which pydantic removes.
        values = self.generate_inner(schema["values_schema"])
        return {**made, "patternProperties": {pattern: values}}

    def default_schema(self, schema: Any) -> dict[str, Any]:
        return self.generate_inner(schema["schema"])


@cache
def described(type: Any) -> dict[str, Any]:
    """The JSON Schema of a type, with ``title``, ``shown``, ``example``, ``units`` for people."""
    schema = TypeAdapter(type).json_schema(schema_generator=_Schema)
    definitions = schema.pop("$defs", {})

    def inlined(part: Any) -> Any:
        if isinstance(part, list):
            return [inlined(each) for each in part]
        if not isinstance(part, dict):
            return part
        name = part.get("$ref", "").rpartition("/")[2]
        whole = {**definitions.get(name, {}), **part}
        whole.pop("$ref", None)
        return {key: inlined(value) for key, value in whole.items()}

    whole: dict[str, Any] = inlined(schema)
    return whole


_FOR_PEOPLE = {"title", "shown", "example", "units", "propertyNames"}


def published(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A ``described`` schema for editors (draft 2020-12)."""
    made: dict[str, Any] = {}
    last = (
        "maximum",
        "exclusiveMinimum",
        "required",
        "additionalProperties",
        "minProperties",
        "description",
    )
    if "properties" in schema:
        schema = {"required": [], **schema}
    for name in sorted(
        schema, key=lambda name: name in last and last.index(name) + 1
    ):
        value = schema[name]
        if name in ("properties", "patternProperties"):
            made[name] = {key: published(each) for key, each in value.items()}
        elif name == "items":
            made[name] = published(value)
        elif name == "anyOf":
            made[name] = [published(each) for each in value]
        elif name == "description":
            made[name] = description(schema)
        elif name not in _FOR_PEOPLE:
            made[name] = value
    return made


def description(schema: Mapping[str, Any]) -> str:
    """What a key is, with its default."""
    about = schema["description"]
    shown = schema.get("shown")
    return f"{about} (default: {shown})" if shown else f"{about}"


def bounds(schema: Mapping[str, Any]) -> str:
    """The bounds of a number in words, after a space."""
    most = schema.get("maximum")
    upto = "" if most is None else f" {most:g}"
    if (above := schema.get("exclusiveMinimum")) is not None:
        return f" above {above:g}" + (upto and f", at most{upto}")
    if (least := schema.get("minimum")) is not None:
        return f" from {least:g}" + (f" to{upto}" if upto else " on")
    return upto and f" of at most{upto}"


def expected(schema: Mapping[str, Any]) -> str:
    """What a value has to be, for messages."""
    what = schema.get("title", "")
    match schema:
        case {"anyOf": [*_, {"type": "array" | "object"} as last]}:
            return expected({**last, "title": what or last["title"]})
        case {"enum": _}:
            return str(what)
        case {"type": "integer"} | {"anyOf": [{"type": "integer"}, _]} if (
            "examples" not in schema
        ):
            span = schema.get("anyOf", [schema])[0]
            return f"{what}, a whole number from {span['minimum']} to {span['maximum']}"
        case {"type": "number"}:
            return f"{what}, a number{bounds(schema)}"
        case {"type": "boolean"}:
            return "true or false"
        case {"properties": _, "required": [*names]}:
            return f"{what} with {' and '.join(map(repr, names))}"
        case {"patternProperties": _, "example": example}:
            return f"{what}, like {example}"
        case {"examples": [example, *_]}:
            return f"{what}, like {example!r}"
    return str(what)


def sample(schema: Mapping[str, Any]) -> str:
    """An example of a value in YAML."""
    if schema.get("example"):
        return str(schema["example"])
    match schema:
        case {"anyOf": [first, *_]}:
            return sample(first)
        case {"type": "integer", "minimum": least}:
            return str(least)
        case {"type": "number"}:
            return f"{schema.get('maximum', 1.5):g}"
        case {"type": "boolean"}:
            return "true"
        case {"type": "array", "items": item}:
            count = schema.get("minItems", 1)
            return f"[{', '.join([sample(item)] * count)}]"
        case {"properties": properties}:
            pairs = (
                f"{name}: {sample(properties[name])}"
                for name in schema.get("required", ())
            )
            return f"{{{', '.join(pairs)}}}"
    return ""


def sections(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """A table of a group's keys under a heading, and of each nested group."""
    title = f"`{path}`: {schema['title']}" if path else "The top of the file"
    yield f"## {title}\n\n{table(schema)}"
    for name, inner in schema["properties"].items():
        group = group_in(inner)
        if group is not None:
            brackets = "[]" if inner.get("type") == "array" else ""
            yield from sections(group, f"{path}.{name}{brackets}".lstrip("."))


def group_in(schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The group that a value is, or has as items or values."""
    match schema:
        case {"properties": _}:
            return schema
        case {"items": inner} | {"anyOf": [*_, inner]}:
            return group_in(inner)
        case {"patternProperties": inner}:
            return group_in(*inner.values())
    return None


def table(schema: Mapping[str, Any]) -> str:
    """A row for each key of a group."""
    head = "| key | what it is | type | default | example |\n|---|---|---|---|---|\n"
    rows = (
        _row(name, key, name in schema.get("required", ()))
        for name, key in schema["properties"].items()
    )
    return head + "".join(rows)


def _row(name: str, key: Mapping[str, Any], is_required: bool) -> str:
    default = "**required**" if is_required else key.get("shown") or "—"
    cells = (
        f"`{name}`",
        key["description"],
        _kind(key),
        default,
        f"`{name}: {sample(key)}`",
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _kind(schema: Mapping[str, Any]) -> str:
    match schema:
        case {"type": "integer", "minimum": least, "maximum": most}:
            return f"whole number, {least} to {most}"
        case {"type": "number"}:
            return f"number{bounds(schema)}"
        case {"type": "boolean"}:
            return "`true` or `false`"
        case {"anyOf": [{"type": "integer"} as span, _], "title": _} if (
            "type" not in schema
        ):
            return _kind(span)
        case {"units": (_, *_) as units}:
            return f"{schema['title']}: {', '.join(units)}"
        case {"anyOf": [brief, {"type": "array" | "object"}]}:
            return f"{brief['title']}, or {expected(schema)}"
        case {"type": "array", "minItems": count}:
            return f"{schema['title']}, {count}"
    return str(schema["title"])
