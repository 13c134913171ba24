"""Types of values in files, for pydantic: texts with a form of their own, numbers within bounds."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError, core_schema

from patchlight.testbed.errors import BadInput, nearest, short
from patchlight.testbed.io.nodes import Given, Items, Number, WholeNumber
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
