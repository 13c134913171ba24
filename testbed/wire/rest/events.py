"""What happens in the lab."""

from typing_extensions import TypedDict


class EventShape(TypedDict):
    """Something that happened; what else is there depends on its kind."""

    number: int
    at: float
    kind: str


class EventList(TypedDict):
    """What happened, the oldest first, and the number of the latest event of all."""

    events: list[EventShape]
    last: int
