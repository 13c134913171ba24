"""Files whose keys are pydantic models: read with all their mistakes, by line and column.

A model is a group of keys (``Keys``). Its texts have a form of their own (``Text``), its numbers
have bounds.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Self, get_args, get_origin

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError, core_schema

from patchlight.testbed.errors import BadInput, nearest, short
from patchlight.testbed.io.describe import described, expected
from patchlight.testbed.io.reader import (
    BROKEN,
    MOST_ISSUES,
    FileIssues,
    Given,
    Items,
    Located,
    Number,
    WholeNumber,
    compose,
    data_of,
    describe,
    locate,
)
from patchlight.testbed.units import WRITTEN, Units, pattern


@dataclass(frozen=True, eq=False)
class Text:
    """A type of texts: ``take`` makes the value, or refuses the text with ``BadInput``.

    ``units`` may follow its number; with ``numbers``, a bare number is text, too.
    """

    what: str
    take: Callable[[str], Any]
    json: Mapping[str, Any] = field(default_factory=dict)
    numbers: bool = False
    example: str = ""
    units: tuple[str, ...] = ()
    write: Callable[[Any], Any] = str

    def read(self, value: object) -> Any:
        """The value of a scalar."""
        if self.numbers and isinstance(value, Number):
            value = value.text
        if not isinstance(value, str):
            raise PydanticCustomError("text", "expected a text")
        try:
            return self.take(value)
        except BadInput as error:
            raise refused(error) from None

    def __get_pydantic_core_schema__(self, _: Any, __: Any) -> Any:
        return core_schema.no_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(self, _: Any, __: Any) -> dict[str, Any]:
        example = self.example or (*self.json.get("enum", ()), "")[0]
        return {
            "type": ["string", "number"] if self.numbers else "string",
            **({"examples": [self.example]} if self.example else {}),
            **self.json,
            "title": self.what,
            "example": example,
            "units": self.units,
        }


def refused(error: BadInput) -> PydanticCustomError:
    """A mistake as pydantic collects it."""
    return PydanticCustomError("refused", "{words}", {"words": error.message})


def matching(
    regex: str,
    what: str,
    expected: str,
    example: str,
    longest: int = 255,
) -> Text:
    """A text of at most ``longest`` characters that matches a pattern; ``what`` names it."""
    compiled = re.compile(regex)

    def take(text: str) -> str:
        if compiled.fullmatch(text) and len(text) <= longest:
            return text
        raise BadInput(
            f"{short(text)!r} is not {what}: expected {expected}, like {example!r}"
        )

    return Text(
        what,
        take,
        {"pattern": f"^{regex}$", "maxLength": longest},
        example=example,
    )


def printable(longest: int, refusal: str) -> Callable[[str], str]:
    """A parser of printable, non-blank texts that refuses others with ``refusal``."""

    def take(text: str) -> str:
        if text.strip() and text.isprintable() and len(text) <= longest:
            return text
        raise BadInput(f"{short(text)!r} {refusal}")

    return take


def quantity(
    parse: Callable[[str], object],
    known: Units,
    what: str,
    example: str,
) -> Text:
    """A number with one of the ``known`` units."""
    names = tuple(known)
    write, _ = WRITTEN[names[0]]
    return Text(
        f"{what} with its unit",
        parse,
        {"pattern": pattern(known)},
        example=example,
        units=names,
        write=write,
    )


def choice(what: str, *choices: str) -> Text:
    """One of several words."""

    def take(text: str) -> str:
        if text in choices:
            return text
        raise BadInput(
            f"{short(text)!r} is not {what}: {nearest(text, choices)}"
        )

    return Text(
        f"{what}: {' or '.join(choices)}", take, {"enum": list(choices)}
    )


def whole(what: str, least: int, most: int) -> FieldInfo:
    """What follows ``int`` in a type of whole numbers within bounds."""
    info: FieldInfo = Field(strict=True, ge=least, le=most, title=what)
    return info


def number(what: str, **bounds: Any) -> FieldInfo:
    """What follows ``float`` in a type of finite numbers, with bounds ``ge``, ``gt`` and ``le``."""
    info: FieldInfo = Field(
        strict=True,
        allow_inf_nan=False,
        title=what,
        **bounds,
    )
    return info


def grouped(value: object) -> object:
    """A whole number that may be written in groups of digits, like ``14_000_000``."""
    written = isinstance(value, str) and re.fullmatch(
        "[+-]?[0-9]{1,3}(?:_[0-9]{3})+", value
    )
    return int(str(value)) if written else value


def listing(what: str) -> FieldInfo:
    """What follows a ``tuple`` in a type of lists: the name of its items."""
    info: FieldInfo = Field(title=f"a list of {what}")
    return info


def mapping(what: str, example: str) -> FieldInfo:
    """What follows a ``dict`` in a type of mappings."""
    info: FieldInfo = Field(
        title=what,
        json_schema_extra={"example": example, "additionalProperties": False},
    )
    return info


YesNo = Annotated[bool, Field(strict=True)]


_HEXADECIMAL = re.compile(
    r"0x[0-9a-fA-F]{1,16}|(?:[0-9a-fA-F]{2}:){7}[0-9a-fA-F]{2}"
    r"|0[0-9a-fA-F]{15}|(?=[0-9]*[a-fA-F])[0-9a-fA-F]{16}"
)


class HexadecimalNumber(int):
    """A whole number written as ``0x…``."""


@dataclass(frozen=True, eq=False)
class Hexadecimal:
    """A whole number, also as switches print a datapath id: "0x2", ``00:00:00:00:00:00:00:02``, or
    ``0000000000000002``."""

    what: str
    least: int
    most: int
    write = HexadecimalNumber

    def read(self, value: object) -> int:
        """The number, decimal or hexadecimal."""
        text = value.text if isinstance(value, Number) else value
        found = value if isinstance(value, WholeNumber) else -1
        if isinstance(text, str) and _HEXADECIMAL.fullmatch(text):
            found = int(text.replace(":", ""), 16)
        if self.least <= found <= self.most:
            return int(found)
        raise PydanticCustomError("whole", "expected a whole number")

    def __get_pydantic_core_schema__(self, _: Any, __: Any) -> Any:
        return core_schema.no_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(self, _: Any, __: Any) -> dict[str, Any]:
        bounds = {"minimum": self.least, "maximum": self.most}
        text = {"type": "string", "pattern": f"^({_HEXADECIMAL.pattern})$"}
        return {
            "title": self.what,
            "anyOf": [{"type": "integer", **bounds}, text],
        }


@dataclass(frozen=True, eq=False)
class Brief:
    """A scalar ``form`` of a group or list, whose data ``take`` makes of the scalar."""

    form: Text
    take: Callable[[Any], Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        def whole_of(value: object) -> Any:
            if isinstance(value, Given | Items | list | tuple | dict):
                return value
            self.form.read(value)
            return self.take(value)

        return core_schema.no_info_before_validator_function(
            whole_of, handler(source)
        )

    def __get_pydantic_json_schema__(
        self, schema: Any, handler: Any
    ) -> dict[str, Any]:
        brief = self.form.__get_pydantic_json_schema__(None, None)
        return {
            "anyOf": [brief, handler(schema["schema"])],
            "example": brief["example"],
        }


def one_or_more(item: Text) -> Brief:
    """A list of items, or one item alone."""
    return Brief(item, lambda value: [value])


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


def needed(
    about: str,
    example: str = "",
    **more: Any,
) -> Any:
    """A key that a group must have."""
    return Field(
        description=about,
        json_schema_extra=_for_people(example=example),
        **more,
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
        defer_build=True,
        alias_generator=lambda name: _UNIT.sub("", name),
    )
    makes: ClassVar[Callable[..., Any]] = dict
    """Makes the value of the group from its fields."""
    like: ClassVar[Callable[..., Any] | None] = None
    """The dataclass with the defaults of the fields; by default what the group makes."""
    block: ClassVar[bool] = False
    """Whether the group is written with a line for each key."""
    field_of: ClassVar[Mapping[str, str]]
    """The field of each key."""
    given: ClassVar[Given] = Given(yaml.MappingNode("", []))
    """The data of the group; each object that was read has its own."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        cls.field_of = {
            info.alias or name: name for name, info in cls.model_fields.items()
        }

    @field_validator("*", mode="wrap")
    @classmethod
    def _as_far_as_readable(
        cls, value: object, read: ValidatorFunctionWrapHandler
    ) -> Any:
        return BROKEN if value is BROKEN else read(value)

    @model_validator(mode="wrap")
    @classmethod
    def _with_place(cls, given: Any, read: Callable[[Any], Self]) -> Self:
        made = read(given)
        if isinstance(given, Given):
            made.__dict__["given"] = given
        return made

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: Any, handler: Any
    ) -> dict[str, Any]:
        schema: dict[str, Any] = handler.resolve_ref_schema(handler(core))
        for key, value in usual(cls).items():
            # Text for people, if nothing else describes what holds without the key.
            if isinstance(value, str | int | float) and value != "":
                text = str(value)
                shown = text.lower() if isinstance(value, bool) else text
                schema["properties"][key].setdefault("shown", shown)
        return schema

    @staticmethod
    def said(value: Any) -> Mapping[str, Any]:
        """What keys say of a value whose fields differ from them; ``None``: nothing."""
        return {}

    @classmethod
    def written(cls, value: Any) -> dict[str, Any]:
        """The keys of a value as plain YAML data, without those that have their default."""
        said = cls.said(value)
        document: dict[str, Any] = {} if cls.block else OneLine()
        for key, name in cls.field_of.items():
            info = cls.model_fields[name]
            item = said[key] if key in said else getattr(value, name, None)
            data = _written(info, item)
            is_usual = key not in said and data == usual(cls).get(key, BROKEN)
            if data not in (None, {}) and (info.is_required() or not is_usual):
                document[key] = data
        return document

    @property
    def broken(self) -> frozenset[str]:
        """The keys with mistakes."""
        return self.given.broken

    @property
    def written_keys(self) -> set[str]:
        """All keys that are there."""
        return set(self.given.nodes)

    @property
    def place(self) -> Located[None]:
        """Where the group is."""
        return locate(self.given.node)

    def __contains__(self, key: str) -> bool:
        return self.given.get(key, BROKEN) is not BROKEN

    def __getitem__(self, key: str) -> Located[Any]:
        value = getattr(self, self.field_of[key])
        return locate(self.given.nodes[key][1], value)

    def value_of(self, key: str, default: Any = None) -> Any:
        """The value of a key, or the default."""
        return self[key].value if key in self else default

    def list_of(self, key: str) -> list[Any]:
        """The items of a list; empty without the key."""
        return list(self.value_of(key, ()))

    def items_of(self, key: str) -> list[Located[Any]]:
        """The items of a list, with their places; empty without the key."""
        if key not in self:
            return []
        nodes = self.given[key].nodes
        return [
            locate(node, value)
            for node, value in zip(nodes, self[key].value, strict=True)
        ]

    def pairs_of(self, key: str) -> list[tuple[Any, Located[Any]]]:
        """The keys of a mapping and their values, with the places of the keys."""
        if key not in self:
            return []
        given = self.given[key]
        return [
            (name, locate(given.nodes[text][0], value))
            for text, (name, value) in zip(
                given, self[key].value.items(), strict=True
            )
        ]

    @property
    def there(self) -> dict[str, Located[Any]]:
        """The keys that could be read, with their values and places."""
        return {key: self[key] for key in self.given if key in self}

    def made(self) -> Any:
        """What the group ``makes`` of its values."""
        names = self.field_of
        there = [names[key] for key in self.given] or self.model_fields_set
        values = {name: plain(getattr(self, name)) for name in there}
        return type(self).makes(**values)


@cache
def usual(group: type[Keys]) -> dict[str, Any]:
    """What keys have in a file if they have their default."""
    model: Any = group.like or group.makes
    if not is_dataclass(model):
        return {}
    found = {}
    for each in fields(model):
        if each.default_factory is not MISSING:
            found[each.name] = each.default_factory()
        elif each.default is not MISSING:
            found[each.name] = each.default
    return {
        key: _written(group.model_fields[name], found[name])
        for key, name in group.field_of.items()
        if name in found
    }


class OneLine(dict[Any, Any]):
    """A mapping written as ``{a: 1, b: 2}``."""


class Listed(list[Any]):
    """A list written as ``[a, b]``."""


def _written(info: FieldInfo, value: Any) -> Any:
    return _data(info.annotation, info.metadata, value)


def _data(kind: Any, metadata: Sequence[Any], value: Any) -> Any:
    """A value of a type as plain YAML data."""
    if value is None:
        return None
    if get_origin(kind) is Annotated:
        inner, *more = get_args(kind)
        return _data(inner, more, value)
    form = next((each for each in metadata if hasattr(each, "write")), None)
    if form is not None:
        return form.write(value)
    if get_origin(kind) is tuple:
        of_item, *_ = get_args(kind)
        items = [_data(of_item, (), item) for item in value]
        return items if _is_group(of_item) else Listed(items)
    if get_origin(kind) is dict:
        of_key, of_value = get_args(kind)
        return OneLine(
            {
                _data(of_key, (), key): _data(of_value, (), each)
                for key, each in dict(value).items()
            }
        )
    if _is_group(kind):
        return kind.written(value)
    is_whole = isinstance(value, float) and value.is_integer()
    return int(value) if is_whole else value


def _is_group(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Keys)


def optional(info: FieldInfo) -> tuple[Any, Any]:
    """The declaration of a field for another group, where its key may be absent."""
    declared = Field(
        None,
        description=info.description,
        json_schema_extra=info.json_schema_extra,
    )
    titled = Field(title=info.title)
    return Annotated[info.annotation, titled, *info.metadata], declared


def plain(value: Any) -> Any:
    """A value of a model without its places."""
    if type(value) is tuple:  # named ones are values
        return tuple(map(plain, value))
    if type(value) is dict:
        return {key: plain(each) for key, each in value.items()}
    make = getattr(value, "made", None)
    return make() if make else value


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
            found = error.errors(include_url=False, include_input=False)
            mistakes = found[:MOST_ISSUES]
        # Inner ones first, and from behind: an item that is removed changes the indices after it.
        mistakes.sort(key=lambda mistake: len(mistake["loc"]))
        for mistake in reversed(mistakes):
            if not _prune(
                mistake,
                data,
                root,
                described(group),
                issues,
            ):
                return None
        if len(found) > MOST_ISSUES and issues.is_full:
            issues.at(locate(root), "and more")  # raises all


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
        around = whole_form(schema)
        owner = data
        step = rest.pop(0)
        schema = inner(around, step)
        data = owner[step]
        if isinstance(owner, Given):
            named = (owner, step)
            node = owner.nodes[step][1]
        else:
            node = owner.nodes[step]
    if mistake["type"] == "missing":
        _note_missing(data, rest[0], whole_form(schema), issues)
        return True
    if mistake["type"] == "extra_forbidden":
        issues.at(
            locate(owner.nodes[step][0]),
            _unknown(step, around),
        )
    elif rest == ["[key]"]:
        key_node = owner.nodes[step][0]
        words = (
            _words(mistake, key_node, schema)
            if isinstance(key_node, yaml.ScalarNode)
            else f"expected a text as key, found {describe(key_node)}"
        )
        issues.at(locate(key_node), words)
    elif not (mistake["type"] == "too_short" and named[1] in named[0].broken):
        issues.at(locate(node), _words(mistake, node, schema))
    if owner is None:
        return False
    named[0].broken |= {named[1]}
    del owner[step]
    if isinstance(owner, Items):
        owner.nodes = [*owner.nodes[:step], *owner.nodes[step + 1 :]]
    return True


def _note_missing(
    given: Given,
    name: str,
    schema: Mapping[str, Any],
    issues: FileIssues,
) -> None:
    if name not in given.broken:
        about = inner(schema, name)["description"]
        issues.at(
            locate(given.node),
            f"{schema['title']} lacks {name!r}: expected {about}",
        )
    given[name] = BROKEN


def whole_form(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a group or list, without its brief form."""
    match schema:
        case {"anyOf": [_, {"type": "array" | "object"}]}:
            whole: Mapping[str, Any] = schema["anyOf"][1]
            return whole
    return schema


def inner(schema: Mapping[str, Any], step: str | int) -> Mapping[str, Any]:
    """The schema of a value in a group or list."""
    schema = whole_form(schema)
    found: Mapping[str, Any]
    if "properties" in schema:
        found = schema["properties"].get(step, {})
    elif "patternProperties" in schema:
        (found,) = schema["patternProperties"].values()
    else:
        found = schema["items"]
    return found


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
    if isinstance(node, yaml.ScalarNode) and whole_form(schema) is not schema:
        schema = schema["anyOf"][0]
    found = describe(node)
    if kind in ("too_short", "too_long"):
        what = schema["title"].removeprefix("a list of ")
        return f"expected {schema['minItems']} {what}, found {len(node.value)}"
    is_bare = found.startswith("the number ") or found in ("true", "false")
    of_texts = schema.get("type") in ("string", ["string", "number"])
    quote = is_bare and of_texts and not schema.get("units")
    hint = ": put it in quotes" if quote else ""
    return f"expected {expected(schema)}, found {found}{hint}"
