"""Files whose keys are pydantic models: read with all their mistakes, by line and column."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Self

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)

from patchlight.testbed.errors import BadInput, nearest, short
from patchlight.testbed.io.describe import described, expected
from patchlight.testbed.io.nodes import (
    OPAQUE,
    Given,
    Items,
    data_of,
    describe,
    locate,
)
from patchlight.testbed.io.reader import FileIssues, Located, compose

_UNIT = re.compile("_(bps|s|db|dbm|bytes)$")


def key(
    about: str,
    default: str = "",
    example: str = "",
    **more: Any,
) -> Any:
    """A key that may be absent; ``default`` says what holds then, ``example`` is a YAML value."""
    return Field(
        None,
        description=about,
        json_schema_extra=_for_people(shown=default, example=example),
        **more,
    )


def needed(about: str, example: str = "") -> Any:
    """A key that a group must have."""
    return Field(
        description=about,
        json_schema_extra=_for_people(example=example),
    )


def _for_people(**said: str) -> dict[str, Any]:
    return {name: text for name, text in said.items() if text}


class Keys(BaseModel):
    """A group with known keys, as far as it could be read.

    A field is the key with its unit: ``rate`` fills ``rate_bps``. The title names the group in
    messages.
    """

    model_config = ConfigDict(
        extra="forbid",
        arbitrary_types_allowed=True,
        protected_namespaces=(),
        alias_generator=lambda name: _UNIT.sub("", name),
    )
    makes: ClassVar[Callable[..., Any] | None] = None
    _given: Given = PrivateAttr()

    @field_validator("*", mode="wrap")
    @classmethod
    def _as_far_as_readable(
        cls, value: object, read: ValidatorFunctionWrapHandler
    ) -> Any:
        return OPAQUE if value is OPAQUE else read(value)

    @model_validator(mode="wrap")
    @classmethod
    def _with_place(cls, given: Any, read: Callable[[Any], Self]) -> Self:
        made = read(given)
        if isinstance(given, Given):
            made._given = given
        return made

    @property
    def broken(self) -> set[str]:
        """The keys with mistakes."""
        return self._given.broken

    def __contains__(self, key: str) -> bool:
        return self._given.get(key, OPAQUE) is not OPAQUE

    def __getitem__(self, key: str) -> Located[Any]:
        name = field_names(type(self))[key]
        return self.located(key, getattr(self, name))

    def located(self, key: str, value: Any = None) -> Located[Any]:
        """``value`` at the place of a key's value; at the group's without the key."""
        _, node = self._given.nodes.get(key, (None, self._given.node))
        return locate(node, value)

    @property
    def there(self) -> dict[str, Located[Any]]:
        """The keys that could be read, with their values and places."""
        return {key: self[key] for key in self._given if key in self}

    @property
    def values(self) -> dict[str, Any]:
        """Plain values by field: lists are tuples, groups as ``made`` makes them."""
        return {
            name: plain(getattr(self, name))
            for name in self.model_fields_set
            if getattr(self, name) is not OPAQUE
        }

    def made(self) -> Any:
        """What ``makes`` makes of its values, or the values."""
        return self.makes(**self.values) if self.makes else self.values


def plain(value: Any) -> Any:
    """A value of a model without its places."""
    if isinstance(value, Keys):
        return value.made()
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return value


@cache
def field_names(group: type[Keys]) -> dict[str, str]:
    """The field of each key."""
    return {
        info.alias or name: name for name, info in group.model_fields.items()
    }


def read(group: Any, text: str, issues: FileIssues) -> Any:
    """The value in a YAML text as far as it could be read, or ``None``; notes every mistake.

    ``group`` is a model of ``Keys``, or any other type for pydantic.
    """
    schema = described(group)
    root = compose(
        text,
        issues,
        schema["title"],
        expected(schema),
    )
    return None if root is None else read_node(group, root, issues)


def read_node(group: Any, root: yaml.Node, issues: FileIssues) -> Any:
    """The same for a composed text."""
    return read_data(group, data_of(root, issues), root, issues)


def read_data(
    group: Any,
    data: Any,
    root: yaml.Node,
    issues: FileIssues,
) -> Any:
    """The same for data; its mistakes are removed from it until the rest is right."""
    validate = _adapter(group).validate_python
    while True:
        try:
            return validate(data)
        except ValidationError as error:
            mistakes = error.errors(include_url=False)
        # From behind: an item that is removed changes the indices of those after it.
        for mistake in reversed(mistakes):
            if not _prune(
                mistake,
                data,
                root,
                described(group),
                issues,
            ):
                return None


@cache
def _adapter(type: Any) -> TypeAdapter[Any]:
    return TypeAdapter(type)


def _prune(
    mistake: Mapping[str, Any],
    data: Any,
    node: yaml.Node,
    schema: Mapping[str, Any],
    issues: FileIssues,
) -> bool:
    """Note a mistake and remove its value; false if that is the whole of ``data``."""
    owner: Any = None  # what has the value
    step: Any = None
    around = schema
    named: Any = None  # the group around the value, and its key there
    rest = list(mistake["loc"])
    while rest and isinstance(data, Given | Items):
        if isinstance(data, Given) and rest[0] not in data:
            break
        around = schema
        owner = data
        step = rest.pop(0)
        schema = _inner(schema, step)
        data = owner[step]
        if isinstance(owner, Given):
            named = (owner, step)
            node = owner.nodes[step][1]
        else:
            node = owner.nodes[step]
    if mistake["type"] == "missing":
        _note_missing(data, rest[0], schema, issues)
        return True
    if mistake["type"] == "extra_forbidden":
        issues.at(
            locate(owner.nodes[step][0]),
            _unknown(step, around),
        )
    elif rest == ["[key]"]:
        key_node = owner.nodes[step][0]
        issues.at(locate(key_node), _words(mistake, key_node, schema))
    else:
        issues.at(locate(node), _words(mistake, node, schema))
    if owner is None:
        return False
    named[0].broken.add(named[1])
    del owner[step]
    if isinstance(owner, Items):
        del owner.nodes[step]
    return True


def _note_missing(
    given: Given,
    name: str,
    schema: Mapping[str, Any],
    issues: FileIssues,
) -> None:
    if name not in given.broken:
        about = _inner(schema, name)["description"]
        issues.at(
            locate(given.node),
            f"{schema['title']} lacks {name!r}: expected {about}",
        )
    given[name] = OPAQUE


def _inner(schema: Mapping[str, Any], step: str | int) -> Mapping[str, Any]:
    """The schema of a value in a group or list."""
    if "properties" in schema:
        found = schema["properties"].get(step, {})
    elif "patternProperties" in schema:
        (found,) = schema["patternProperties"].values()
    elif "items" in schema:
        found = schema["items"]
    else:
        found = _inner(schema["anyOf"][-1], step)
    return found  # type: ignore[no-any-return]


def _unknown(name: str, schema: Mapping[str, Any]) -> str:
    shown = name[1:] if name.startswith("\0") else f"{short(name)!r}"
    hint = nearest(name, schema["properties"])
    return f"unknown key {shown} in {schema['title']}: {hint}"


def _words(
    mistake: Mapping[str, Any],
    node: yaml.Node,
    schema: Mapping[str, Any],
) -> str:
    """What is wrong with the value of a node."""
    kind = mistake["type"]
    if kind == "refused":
        return str(mistake["ctx"]["words"])
    if kind == "value_error":
        return str(mistake["ctx"]["error"])
    is_group = not isinstance(node, yaml.ScalarNode)
    match schema:
        case {"anyOf": [brief, {"type": "array" | "object"}]} if not is_group:
            schema = brief
    found = describe(node)
    if kind in ("too_short", "too_long"):
        count = schema["minItems"]
        return f"expected {count} {schema['title']}, found {len(node.value)}"
    is_bare = found.startswith("the number ") or found in ("true", "false")
    of_texts = schema.get("type") in ("string", ["string", "number"])
    quote = is_bare and of_texts and not schema.get("units")
    hint = ": put it in quotes" if quote else ""
    return f"expected {expected(schema)}, found {found}{hint}"


_NOWHERE = yaml.Mark(
    "",
    0,
    0,
    0,
    None,
    0,
)


def value_of(
    group: type[Keys],
    key: str,
    given: str | Sequence[str] | Mapping[str, str],
) -> Any:
    """The plain value of a key as a command line gives it, or ``BadInput``.

    One text of a list has commas between its items.
    """
    schema = described(group)["properties"][key]
    pair = (_scalar(key, {"type": "string"}), _node(given, schema))
    issues = FileIssues("")
    read = read_node(
        group,
        yaml.MappingNode(
            "",
            [pair],
            _NOWHERE,
            _NOWHERE,
        ),
        issues,
    )
    if issues:
        raise BadInput("; ".join(issue.message for issue in issues.found))
    return plain(read[key].value)


def _node(
    given: str | Sequence[str] | Mapping[str, str],
    schema: Mapping[str, Any],
) -> yaml.Node:
    if isinstance(given, Mapping):
        inner = _inner(schema, "")
        pairs = [
            (_scalar(name, {"type": "string"}), _node(text, inner))
            for name, text in given.items()
        ]
        return yaml.MappingNode(
            "",
            pairs,
            _NOWHERE,
            _NOWHERE,
        )
    *_, whole = schema.get("anyOf", [schema])
    if isinstance(given, str) and whole.get("type") == "array":
        given = [text.strip() for text in given.split(",")]
    if isinstance(given, str):
        return _scalar(given, whole)
    items = [_node(text, _inner(schema, 0)) for text in given]
    return yaml.SequenceNode(
        "",
        items,
        _NOWHERE,
        _NOWHERE,
    )


def _scalar(text: str, schema: Mapping[str, Any]) -> yaml.ScalarNode:
    # The shell has removed the quotes that would mark a number as text.
    is_number = schema.get("type") in ("integer", "number", "boolean")
    return yaml.ScalarNode(
        "",
        text,
        _NOWHERE,
        _NOWHERE,
        style=None if is_number else '"',
    )
