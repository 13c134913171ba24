"""Files whose keys follow from a dataclass, what no file may be, and where JSON's values stand."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BeforeValidator

from patchlight.testbed.errors import BadInput, FileError
from patchlight.testbed.graphs.files import positions
from patchlight.testbed.io import keys
from patchlight.testbed.io.describe import described, published
from patchlight.testbed.io.keys import (
    Text,
    choice,
    grouped,
    listing,
    mapping,
    matching,
    number,
    whole,
)
from patchlight.testbed.io.reader import FileIssues
from patchlight.testbed.io.records import record, setting


class MenuError(FileError):
    pass


@dataclass(frozen=True)
class Oven:
    heat: float = setting(
        Annotated[float, number("the heat", gt=0, le=300)], "degrees", 180.0
    )
    racks: int = setting(
        Annotated[
            int, whole("the racks", 1, 1000000), BeforeValidator(grouped)
        ],
        "how many racks",
        2,
    )

    def __post_init__(self) -> None:
        if self.heat > 250 and self.racks > 2:
            raise BadInput("an oven so hot has no more than 2 racks")


def _number(text: str) -> int | str:
    return int(text) if text.isdigit() else text


@dataclass(frozen=True)
class Menu:
    name: str = setting(
        Annotated[str, matching("[a-z]+", "a name", "small letters", "soup")],
        "what it is called",
    )
    days: tuple[str, ...] = setting(
        Annotated[
            tuple[Annotated[str, choice("a day", "mon", "tue")], ...],
            listing("days"),
        ],
        "when",
        ("mon",),
    )
    prices: Mapping[str, int | str] = setting(
        Annotated[
            dict[
                Annotated[Any, Text("a day", str)],
                Annotated[Any, Text("a price", _number, numbers=True)],
            ],
            mapping("prices", "{mon: 3}"),
        ],
        "what it costs",
        {},
    )
    oven: Oven = setting(record(Oven, "the oven"), "how it is baked", Oven())


MENU = record(Menu, "a menu")


def read(text: str) -> Menu:
    issues = FileIssues("menu.yaml", MenuError)
    found = keys.read(MENU, text, issues)
    issues.raise_if_any()
    menu = keys.plain(found)
    assert isinstance(menu, Menu)
    return menu


def test_what_is_not_in_the_file_has_its_default() -> None:
    assert read("name: soup") == Menu("soup")


def test_lists_mappings_and_groups_become_what_the_dataclass_has() -> None:
    text = "name: pie\ndays: [tue]\nprices: {mon: 3, tue: free}\noven: {heat: 2e2, racks: 10_000}"
    assert read(text) == Menu(
        "pie", ("tue",), {"mon": 3, "tue": "free"}, Oven(200.0, 10_000)
    )


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("days: []", 1, 1, "a menu lacks 'name'"),
        (
            "name: pie\noven: {heat: 0}",
            2,
            14,
            "a number above 0, at most 300, found the number 0",
        ),
        (
            "name: pie\noven: {racks: 1_00}",
            2,
            15,
            "a whole number from 1 to 1000000",
        ),
        (
            "name: x\noven: {rack: 1}",
            2,
            8,
            "unknown key 'rack' in the oven: did you mean 'racks'",
        ),
        (
            "name: pie\noven: {heat: 251, racks: 3}",
            2,
            7,
            "no more than 2 racks",
        ),
        ("name: pie\ndays: [sun]", 2, 8, "'sun' is not a day"),
        (
            "name: pie\nprices: 3",
            2,
            9,
            "expected prices, like {mon: 3}, found the number 3",
        ),
        ("", 1, 1, "the file is empty: expected a menu with 'name'"),
    ],
)
def test_what_is_wrong_is_named_with_its_position(
    text: str, line: int, column: int, message: str
) -> None:
    with pytest.raises(MenuError) as caught:
        read(text)
    (issue,) = caught.value.issues
    assert (issue.line, issue.column) == (line, column)
    assert message in issue.message


def test_the_schema_has_what_the_fields_say() -> None:
    schema = published(described(MENU))
    assert schema["required"] == ["name"]
    assert (
        schema["properties"]["days"]["description"] == "when (default: [mon])"
    )
    heat = schema["properties"]["oven"]["properties"]["heat"]
    assert (heat["exclusiveMinimum"], heat["maximum"]) == (0, 300)


def test_aliases_that_stand_for_more_and_more_are_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)
    ]
    with pytest.raises(
        MenuError, match="its aliases repeat more than 100,000 values"
    ):
        read("\n".join(lines))


def test_a_group_may_be_used_again_by_an_alias() -> None:
    assert read("name: pie\ndays: &d [mon, tue]\nprices: {mon: 1}").days == (
        "mon",
        "tue",
    )
    issues = FileIssues("x")
    twice = Annotated[
        tuple[
            Annotated[
                tuple[Annotated[Any, Text("a word", str)], ...],
                listing("words"),
            ],
            ...,
        ],
        listing("lists"),
    ]
    assert len(keys.read(twice, "[&a [x, y], *a]", issues)) == 2
    assert not issues


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@given(_json, st.sampled_from([None, 2]))
def test_each_value_is_found_where_it_stands(
    value: object, indent: int | None
) -> None:
    text = json.dumps(value, indent=indent)
    offsets = positions(text)

    def check(path: tuple[str | int, ...], part: object) -> None:
        decoded, _ = json.JSONDecoder().raw_decode(text, offsets[path])
        assert decoded == part
        if isinstance(part, dict):
            for key, inner in part.items():
                check((*path, key), inner)
        elif isinstance(part, list):
            for index, inner in enumerate(part):
                check((*path, index), inner)

    check((), value)
