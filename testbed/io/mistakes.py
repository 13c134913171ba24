"""What pydantic finds wrong with a value, in plain words: the same wherever values come in."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from patchlight.testbed.io.issues import short

_MOST = 10
_LONGEST_PLACE = 80

# By pydantic's name of the mistake, filled with what it tells about it and with what was found.
_WORDS = {
    "missing": "it is missing",
    "extra_forbidden": "there is no such field",
    "unexpected_keyword_argument": "there is no such field",
    "greater_than": "{found} is not more than {gt}",
    "greater_than_equal": "{found} is less than {ge}",
    "less_than": "{found} is not less than {lt}",
    "less_than_equal": "{found} is more than {le}",
    "string_too_short": "expected at least {min_length} characters",
    "string_too_long": "expected at most {max_length} characters",
    "too_short": "expected at least {min_length} of them",
    "too_long": "expected at most {max_length} of them",
    "string_pattern_mismatch": "{found} does not match the pattern {pattern}",
    "literal_error": "expected {expected}, found {found}",
    "enum": "expected {expected}, found {found}",
    "value_error": "{error}",
    "json_invalid": "it is no JSON: {error}",
}
# The rest says of what kind a value is to be; by how the name of the mistake begins.
_KINDS = {
    "int": "a whole number",
    "finite_number": "a finite number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "tuple": "a list",
    "set": "a list",
    "dict": "an object",
    "mapping": "an object",
    "model": "an object",
    "dataclass": "an object",
    "none": "nothing",
}


def mistakes_in_words(error: ValidationError) -> str:
    """All that is wrong, like ``iterations: 12000000 is more than 10000000``, in one line."""
    return joined(mistake_in_words(each, each["loc"]) for each in error.errors())


def joined(mistakes: Iterable[str]) -> str:
    """Mistakes in one line: the first ten, and how many more there are."""
    listed = list(mistakes)
    more = [f"and {len(listed) - _MOST} more"] if len(listed) > _MOST else []
    return "; ".join([*listed[:_MOST], *more])


def mistake_in_words(
    mistake: Mapping[str, Any], place: Sequence[str | int], whole: str = ""
) -> str:
    """One of pydantic's ``errors()``: the place, and what is wrong there.

    ``place`` leads to the value; ``whole`` is what it is called where that is empty.
    """
    if mistake["type"] == "json_invalid":
        place = ()  # a number of characters
    where = ".".join(map(str, place))[:_LONGEST_PLACE] or whole
    return f"{where}: {_what(mistake)}" if where else _what(mistake)


def _what(mistake: Mapping[str, Any]) -> str:
    kind, found = mistake["type"], _shown(mistake.get("input"))
    if (words := _WORDS.get(kind)) is not None:
        limits = {key: _whole(limit) for key, limit in mistake.get("ctx", {}).items()}
        return words.format(**limits, found=found)
    expected = next((words for start, words in _KINDS.items() if kind.startswith(start)), None)
    # No kind of ours is without words; a later pydantic may have new ones.
    return f"expected {expected}, found {found}" if expected else str(mistake["msg"])


def _whole(limit: object) -> object:
    """``86400.0`` as 86400."""
    return int(limit) if isinstance(limit, float) and limit.is_integer() else limit


def _shown(value: object) -> str:
    """A value as users know it: short, and a text that is a number as the number."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case str():
            return short(value if value.lstrip("+-").isdecimal() else repr(value))
        case int() | float():
            return _number(value)
        case Mapping():
            return "an object"
        case Sequence():
            return "a list"
    return f"a {type(value).__name__}"


def _number(value: float) -> str:
    try:
        return short(str(value))
    except ValueError:  # Python writes no numbers of thousands of digits
        return "a number of thousands of digits"
