"""What is wrong with a value, in plain words."""

import json
import math
from enum import StrEnum
from typing import Annotated, Any, Literal, get_args

import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core.core_schema import ErrorType

from patchlight.testbed.errors import (
    BadInput,
    FileError,
    FileIssue,
    PatchlightError,
    mistake_in_words,
    mistakes_in_words,
)
from patchlight.testbed.jobs import checked_specs


class Colour(StrEnum):
    RED = "red"


class Everything(BaseModel):
    model_config = ConfigDict(extra="forbid")

    number: Annotated[int, Field(ge=1, le=10)] = 1
    share: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] = 0.5
    flag: bool = True
    word: Annotated[
        str, Field(min_length=2, max_length=4, pattern="^[a-z]*$")
    ] = "abc"
    kind: Literal["keep", "regroup"] = "keep"
    colour: Colour = Colour.RED
    some: Annotated[list[int], Field(min_length=1, max_length=2)] = [1]
    pairs: dict[str, int] = {}
    needed: int


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"number": 12_000_000}, "number: 12000000 is more than 10"),
        ({"number": "12000000"}, "number: 12000000 is more than 10"),
        ({"number": 0}, "number: 0 is less than 1"),
        ({"number": 1.5}, "number: expected a whole number, found 1.5"),
        ({"number": "many"}, "number: expected a whole number, found 'many'"),
        ({"number": None}, "number: expected a whole number, found nothing"),
        ({"share": 0}, "share: 0 is not more than 0"),
        ({"share": 1.0}, "share: 1.0 is not less than 1"),
        ({"share": math.nan}, "share: expected a finite number, found nan"),
        ({"share": [1]}, "share: expected a number, found a list"),
        ({"flag": "perhaps"}, "flag: expected true or false, found 'perhaps'"),
        ({"word": "a"}, "word: expected at least 2 characters"),
        ({"word": "abcde"}, "word: expected at most 4 characters"),
        (
            {"word": "A\nb"},
            r"word: 'A\nb' does not match the pattern ^[a-z]*$",
        ),
        ({"word": 5}, "word: expected text, found 5"),
        (
            {"kind": "split"},
            "kind: expected 'keep' or 'regroup', found 'split'",
        ),
        ({"colour": True}, "colour: expected 'red', found true"),
        ({"some": []}, "some: expected at least 1 item(s)"),
        ({"some": [1, 2, 3]}, "some: expected at most 2 item(s)"),
        ({"some": {}}, "some: expected a list, found an object"),
        ({"some": [1, "x"]}, "some.1: expected a whole number, found 'x'"),
        ({"pairs": []}, "pairs: expected an object, found a list"),
        ({"extra": 1}, "extra: unknown field"),
        (
            {"number": 10**5000},
            "number: a number of thousands of digits is more than 10",
        ),
    ],
)
def test_each_mistake_has_words_of_its_own(
    given: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        Everything.model_validate({"needed": 1} | given)
    said = mistakes_in_words(caught.value)
    assert said.startswith(words)
    assert "\n" not in said


def test_what_is_missing_and_what_is_no_object() -> None:
    for given, words in (
        ({}, "needed: it is missing"),
        ([], "expected an object, found a list"),
        ("{", "expected an object, found '{'"),
    ):
        with pytest.raises(ValidationError) as caught:
            Everything.model_validate(given)
        assert mistakes_in_words(caught.value) == words
    with pytest.raises(ValidationError) as caught:
        Everything.model_validate_json("{")
    assert mistake_in_words(caught.value.errors()[0], (1,), "body").startswith(
        "body: not valid JSON: "
    )


def test_many_mistakes_are_counted() -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(list[int]).validate_python(["x"] * 15)
    assert mistakes_in_words(caught.value).endswith(
        "; 9: expected a whole number, found 'x'; and 5 more"
    )


def test_no_words_of_pydantic_for_numbers_texts_lists_and_objects() -> None:
    kinds = (
        "int",
        "float",
        "finite",
        "bool",
        "string",
        "list",
        "tuple",
        "dict",
        "mapping",
    )
    others = (
        "model",
        "dataclass",
        "too_",
        "enum",
        "literal",
        "greater",
        "less",
        "extra",
    )
    names = [
        name for name in get_args(ErrorType) if name.startswith(kinds + others)
    ]
    assert len(names) > 30
    limits = (
        "gt",
        "ge",
        "lt",
        "le",
        "min_length",
        "max_length",
        "pattern",
        "expected",
        "error",
    )
    for name in names:
        mistake = {
            "type": name,
            "ctx": dict.fromkeys(limits, 7),
            "msg": "unheard of",
        }
        assert "unheard of" not in mistake_in_words(mistake, ("a",)), name


def test_a_job_s_bounds() -> None:
    spec = {
        "name": "j",
        "iterations": 12_000_000,
        "gradient_bytes": 4,
        "compute_s": {"M": 0.1},
    }
    with pytest.raises(BadInput) as caught:
        checked_specs(
            json.loads(
                json.dumps([spec, {**spec, "name": "a b", "iterations": 1}])
            )
        )
    first, second = caught.value.message.split("; ")
    assert first == "job j: iterations: 12000000 is more than 10000000"
    assert second.startswith("job a b: name: 'a b': expected letters, digits")
    with pytest.raises(BadInput, match=r"^jobs: expected a list, found 5$"):
        checked_specs(5)


def test_what_an_error_quotes_moves_no_cursor_of_a_terminal() -> None:
    """A file's column, a device's answer or a name may have any character in it."""
    said = "columns submit_\x1b[31mtime, a\x07b, \x9b2J, \u202egnp"
    for error in (
        PatchlightError(said, hint=said),
        BadInput(said),
        FileError([FileIssue("f\x1b.csv", 1, 1, said)]),
    ):
        assert str(error).replace("\n", "").isprintable()
        assert r"submit_\x1b[31mtime" in str(error)
        assert "\x1b" in error.message, "programs get it as it is"
    assert str(PatchlightError("two\n\tlines")) == "two\n\tlines"
