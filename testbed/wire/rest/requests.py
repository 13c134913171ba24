"""Requests of the REST API: their fields, and the JSON that answers are sent as."""

import json
import unicodedata
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le
from pydantic import AfterValidator, BaseModel, FailFast, Field, model_validator
from pydantic_core import to_json

from patchlight.testbed.labfile.values import MOST_CIRCUIT_PORTS

PAGE = 100
"""How many rows a list gives where nothing else was said."""

# Halves of characters, control characters, and what else ends a line.
_NOT_TEXT = {"Cs", "Cc", "Zl", "Zp"}


def _plain(text: str) -> str:
    if any(unicodedata.category(character) in _NOT_TEXT for character in text):
        raise ValueError("expected text without control characters, line breaks or half characters")
    return text


Text = Annotated[str, AfterValidator(_plain), Field(max_length=1000)]
"""What a user writes: one line, as it can be stored, printed and sent as UTF-8."""

Number = Annotated[int, Ge(0), Le(2**63 - 1)]
"""A row's number, as the journal can have it."""

WaitSeconds = Annotated[float, Ge(0), Le(30)]
"""For how long an answer may wait for news."""

NO_NUMBER: Number = 2**63 - 1
"""No row has this one, and none a higher one."""

PageLength = Annotated[int, Ge(1), Le(1000)]
"""How many rows are wanted at most."""

Moment = Annotated[float, Ge(0), Le(1e11), Field(allow_inf_nan=False)]
"""A Unix time."""

LATEST: Moment = 1e11
"""Later than anything that happened."""

Port = Annotated[int, Ge(1), Le(1_000_000)]
"""The number of a switch's port, before anybody asked whether the switch has it."""


# A list ends at its first mistake, and none is longer than any lab needs: a report on each of a
# million wrong items takes minutes, and nobody else is answered meanwhile.
Names = Annotated[list[Text], FailFast(), Field(max_length=1000)]
"""What a user names: circuit switches, hosts, jobs."""

Ports = Annotated[list[Port], FailFast(), Field(max_length=MOST_CIRCUIT_PORTS)]
"""Ports of one switch."""

Places = Annotated[list[Port | Text], FailFast(), Field(max_length=MOST_CIRCUIT_PORTS)]
"""Ports of one switch; of a wavelength switch also one channel there, like ``"3@193.100"``."""

CrossConnects = Annotated[list[Text], FailFast(), Field(max_length=MOST_CIRCUIT_PORTS)]
"""Cross-connects of one switch."""

_MOST_SWITCHES = 1000
_MOST_FIELDS = 50


class Strict(BaseModel, extra="forbid", strict=True):
    """What is asked for: no field may be there that is not known."""

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, given: Any) -> Any:
        if isinstance(given, dict) and len(given) > _MOST_FIELDS:
            raise ValueError(f"expected the fields {', '.join(cls.model_fields)}, and no others")
        return given


class ChangeRequest(Strict):
    """What every change may be asked with.

    ``dry_run``: answer what would change, and change nothing. ``spare_jobs``: refuse where a
    running job's traffic rides on what changes. ``planned_from``: refuse unless the maps are
    still those that a dry run gave this for.
    """

    why: Text = ""
    dry_run: bool = False
    spare_jobs: bool = False
    planned_from: Text = ""


class ReconfigurationRequest(ChangeRequest):
    """Cross-connects by OCS: ``"1-7"`` both ways, ``"1>7"`` one way.

    Of a wavelength switch with the channel: ``"1-7@193.100"``, and weaker ``"1>7@193.100-2dB"``.
    They are added to what is there; with ``only`` they replace the whole map. Ports under
    ``disconnect`` (of a wavelength switch also ``"3@193.100"``) lose the cross-connects they have.
    """

    maps: dict[Text, CrossConnects] = Field(default={}, max_length=_MOST_SWITCHES)
    disconnect: dict[Text, Places] = Field(default={}, max_length=_MOST_SWITCHES)
    only: bool = False


class TogetherRequest(ChangeRequest):
    """Servers or hosts to be lit onto one packet switch.

    Without ``force`` no circuit of a running job is moved for it.
    """

    nodes: Names = Field(min_length=1)
    force: bool = False


class LightRequest(ChangeRequest):
    """Pairs of ends to be joined by light, both ways, over as many circuit switches as it takes.

    An end is a NIC, a host, a packet switch (any port of it) or a port of one.
    """

    pairs: list[Annotated[list[Text], Field(min_length=2, max_length=2)]] = Field(
        min_length=1, max_length=1024
    )


class RepairRequest(ChangeRequest):
    """Circuit switches to bring back to their committed maps; all if none are named."""

    ocs: Names = []


class BaselinesRequest(Strict):
    """Circuit switches whose power is to be the baseline from now on; all if none are named."""

    ocs: Names = []


class PresentMapsRequest(BaselinesRequest):
    """Circuit switches whose present maps are to be saved, or committed; all if none are named."""

    why: Text = ""


class StopRequest(Strict):
    """Why the stop button is pressed or cleared."""

    why: Text = ""


class UnlockRequest(StopRequest):
    """Ports of one switch, or channels there, whose locks are to go."""

    ocs: Text
    ports: Places = Field(min_length=1)


class LockRequest(UnlockRequest):
    """Ports of one switch, or channels there, to lock; with ``keep`` for all but who asks."""

    keep: bool = False


class PathRequest(Strict):
    """A flow that wants a path. ``deadline_s`` is from now; ``lease_s``: see ``docs/paths.md``."""

    source: Text
    destination: Text
    bytes: Annotated[float, Gt(0), Le(2.0**63)]
    deadline_s: Annotated[float, Gt(0), Le(1e9)] | None = None
    collective: Text | None = None
    round: Number = 0
    lease_s: Annotated[float, Ge(0.1), Le(3600)] = 10.0


class DiscoveryRequest(Strict):
    """Ports by OCS whose fibres are looked at; all, if none are named.

    ``listen_s``: how long each round. ``every_port``: also once all ends of the lab are found.
    ``dry_run``: answer what would be done, and do nothing.
    """

    ports: dict[Text, Ports] = Field(default={}, max_length=1000)
    listen_s: Annotated[float, Ge(0.1), Le(300), Field(allow_inf_nan=False)] = 2.0
    every_port: bool = False
    dry_run: bool = False


def as_json(content: Any) -> bytes:
    """Text on one line: ``?`` for a lone surrogate, ``null`` for NaN and infinity."""
    try:
        return to_json(content, inf_nan_mode="null")
    except ValueError:  # half characters
        finite = json.loads(json.dumps(content, default=vars), parse_constant=lambda _: None)
        return json.dumps(finite, ensure_ascii=False).encode("utf-8", "replace")
