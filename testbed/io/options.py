"""Values of keys as a command line gives them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.describe import described
from patchlight.testbed.io.keys import Keys, inner, plain, read, whole_form
from patchlight.testbed.io.reader import FileIssues, is_bare_text


def value_of(
    group: type[Keys],
    key: str,
    given: str | Sequence[str] | Mapping[str, str],
) -> Any:
    """The plain value of a key as a command line gives it, or ``BadInput``.

    One text of a list has commas between its items.
    """
    issues = FileIssues("")
    schema = described(group)["properties"][key]
    found = read(group, f"{key}: {_in_flow(given, schema)}", issues)
    if issues:
        raise BadInput("; ".join(issue.message for issue in issues.found))
    return plain(found[key].value)


def _in_flow(
    given: str | Sequence[str] | Mapping[str, str],
    schema: Mapping[str, Any],
) -> str:
    """A value in YAML's flow style."""
    if isinstance(given, Mapping):
        item = inner(schema, "")
        pairs = (
            f"{json.dumps(name, ensure_ascii=False)}: {_in_flow(text, item)}"
            for name, text in given.items()
        )
        return f"{{{', '.join(pairs)}}}"
    if isinstance(given, str) and whole_form(schema).get("type") == "array":
        given = [text.strip() for text in given.split(",")]
    if not isinstance(given, str):
        item = inner(schema, 0)
        return f"[{', '.join(_in_flow(text, item) for text in given)}]"
    # The shell has removed the quotes that would mark a number as text.
    is_number = schema.get("type") in ("integer", "number", "boolean")
    if is_number and not is_bare_text(given):
        return given
    return json.dumps(given, ensure_ascii=False)
