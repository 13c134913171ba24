"""What the REST API answers, as types: of the client's calls, and of the API's description."""

from typing import Any

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

exactly = with_config(ConfigDict(extra="forbid"))
"""These fields and no others."""


def answer(name: str, about: str, /, **fields: Any) -> Any:
    """An answer that only the API's description names: it has these fields and no others."""
    define: Any = TypedDict
    shape = define(name, fields)
    shape.__doc__ = about
    return exactly(shape)
