"""Where the values of a JSON text stand."""

import json

from hypothesis import given
from hypothesis import strategies as st

from patchlight.testbed.files.json_text import positions

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@given(_json, st.sampled_from([None, 2]))
def test_each_value_is_found_where_it_stands(value: object, indent: int | None) -> None:
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
