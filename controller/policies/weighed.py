"""What a policy tells of its answer: the options that it weighed, with their scores.

A policy that does has an attribute ``explanation``. It may come from a process of a user's, so what
is not of this form, or is very long, counts as nothing.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

_Words = Annotated[str, Field(max_length=1000)]


class WeighedOption(BaseModel):
    """An option in words; the best has the highest score. Times are ``None`` where not known.

    ``also_of`` names built-in policies that would choose it, too.
    """

    model_config = ConfigDict(extra="forbid")

    option: _Words
    score: Annotated[float, Field(allow_inf_nan=False)]
    chosen: bool
    lasts_s: Annotated[float, Field(allow_inf_nan=False)] | None = None
    delays_others_s: Annotated[float, Field(allow_inf_nan=False)] | None = None
    also_of: Annotated[list[_Words], Field(max_length=20)] = []


class Weighed(BaseModel):
    """What was seen of the cluster, in numbers with names, and the options."""

    model_config = ConfigDict(extra="forbid")

    saw: Annotated[dict[_Words, int], Field(max_length=20)]
    options: Annotated[list[WeighedOption], Field(max_length=100)]


def explanation_of(policy: object) -> Any:
    """What a policy tells of its last answer, as JSON; ``None`` if it tells nothing."""
    return checked_explanation(getattr(policy, "explanation", None))


def checked_explanation(told: Any) -> Any:
    """The same of what somebody says that it is."""
    if told is None:
        return None
    try:
        return Weighed.model_validate(told).model_dump(mode="json")
    except ValidationError:
        return None
