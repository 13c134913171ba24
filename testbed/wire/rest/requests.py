"""Defines the requests of the REST API, and the JSON encoding of responses."""

import json
import unicodedata
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le
from pydantic import (
    AfterValidator,
    BaseModel,
    FailFast,
    Field,
    field_validator,
    model_validator,
)
from pydantic_core import to_json

from patchlight.testbed.jobs import JobSpec, checked_specs
from patchlight.testbed.labfile.values import MOST_CIRCUIT_PORTS

PAGE = 100
"""The default number of rows of a list."""

# Lone surrogates, control characters, and other line ends.
_NOT_TEXT = {"Cs", "Cc", "Zl", "Zp"}


def _plain(text: str) -> str:
    if any(unicodedata.category(character) in _NOT_TEXT for character in text):
        raise ValueError(
            "expected text without control characters, line breaks or half characters"
        )
    return text


Text = Annotated[str, AfterValidator(_plain), Field(max_length=1000)]
"""A user's text: one line that can be stored, printed and sent as UTF-8."""

Number = Annotated[int, Ge(0), Le(2**63 - 1)]
"""A row number within the journal's range."""

WaitSeconds = Annotated[float, Ge(0), Le(30)]
"""How long a response may wait for changes."""

NO_NUMBER: Number = 2**63 - 1
"""Higher than any row's number."""

PageLength = Annotated[int, Ge(1), Le(1000)]
"""The maximum number of rows."""

Moment = Annotated[float, Ge(0), Le(1e11), Field(allow_inf_nan=False)]
"""A Unix time."""

LATEST: Moment = 1e11
"""Later than any event."""

Port = Annotated[int, Ge(1), Le(1_000_000)]
"""A port number, not yet checked against the switch."""


# Lists stop at their first mistake and have a maximum length: reporting a million mistakes takes
# minutes and blocks other clients.
Names = Annotated[list[Text], FailFast(), Field(max_length=1000)]
"""Names from a user: circuit switches, hosts, jobs."""

Ports = Annotated[list[Port], FailFast(), Field(max_length=MOST_CIRCUIT_PORTS)]
"""Ports of one switch."""

Places = Annotated[
    list[Port | Text], FailFast(), Field(max_length=MOST_CIRCUIT_PORTS)
]
"""Ports of one switch; of a wavelength switch also one channel there, like ``"3@193.100"``."""

CrossConnects = Annotated[
    list[Text], FailFast(), Field(max_length=MOST_CIRCUIT_PORTS)
]
"""Cross-connects of one switch."""

_MOST_SWITCHES = 1000
_MOST_FIELDS = 50


class Strict(BaseModel, extra="forbid", strict=True):
    """A request body without unknown fields."""

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, given: Any) -> Any:
        if isinstance(given, dict) and len(given) > _MOST_FIELDS:
            raise ValueError(
                f"expected the fields {', '.join(cls.model_fields)}, and no others"
            )
        return given


class ChangeRequest(Strict):
    """Options of every change.

    ``dry_run``: report what would change, and change nothing. ``spare_jobs``: refuse if a running
    job's traffic uses what changes. ``planned_from``: refuse unless the maps still match this value
    from a dry run. ``force``: also change ports of claims.
    """

    why: Text = ""
    dry_run: bool = False
    spare_jobs: bool = False
    planned_from: Text = ""
    force: bool = False


class ReconfigurationRequest(ChangeRequest):
    """Cross-connects by OCS: ``"1-7"`` both ways, ``"1>7"`` one way.

    At a wavelength switch with the channel: ``"1-7@193.100"``, attenuated ``"1>7@193.100-2dB"``.
    They are added to the map; with ``only`` they replace it. Ports under ``disconnect`` (of a
    wavelength switch also ``"3@193.100"``) lose the cross-connects they have.
    """

    maps: dict[Text, CrossConnects] = Field(
        default={},
        max_length=_MOST_SWITCHES,
    )
    disconnect: dict[Text, Places] = Field(
        default={},
        max_length=_MOST_SWITCHES,
    )
    only: bool = False


class TogetherRequest(ChangeRequest):
    """Servers or hosts to connect to one packet switch.

    Circuits of running jobs and of claims are moved only with ``force``.
    """

    nodes: Names = Field(min_length=1)


class LightRequest(ChangeRequest):
    """Pairs of ends to connect both ways, over any number of circuit switches.

    An end is a NIC, a host, a packet switch (any port of it) or a port of one.
    """

    pairs: list[
        Annotated[
            list[Text],
            Field(
                min_length=2,
                max_length=2,
            ),
        ]
    ] = Field(
        min_length=1,
        max_length=1024,
    )


class RepairRequest(ChangeRequest):
    """Circuit switches to restore to their committed maps; all if none are named."""

    ocs: Names = []


class BaselinesRequest(Strict):
    """Circuit switches whose present power becomes the baseline; all if none are named."""

    ocs: Names = []


class PresentMapsRequest(BaselinesRequest):
    """Circuit switches whose present maps are saved or committed; all if none are named."""

    why: Text = ""


class StopRequest(Strict):
    """Why the stop button is pressed or cleared."""

    why: Text = ""


class UnlockRequest(StopRequest):
    """Ports of one switch, or channels there, to unlock."""

    ocs: Text
    ports: Places = Field(min_length=1)


class LockRequest(UnlockRequest):
    """Ports of one switch, or channels there, to lock; with ``keep`` for all but the caller."""

    keep: bool = False


class ClaimRequest(Strict):
    """Servers, hosts and ports of circuit switches that a job of another scheduler needs.

    Their NICs are brought into this ``shape``. The claim ends ``hold_s`` after ``time_limit_s``,
    without one when it is released.
    """

    nodes: Names = []
    gpus: Names = []
    ports: dict[Text, Ports] = Field(
        default={},
        max_length=_MOST_SWITCHES,
    )
    shape: Literal["switch", "ring", "open"] = "switch"
    time_limit_s: Annotated[float, Gt(0), Le(1e9)] | None = None
    hold_s: Annotated[float, Ge(0), Le(1e9)] = 30.0
    why: Text = ""


LONGEST_LEASE_S = 3600


class PathRequest(Strict):
    """A flow that requests a path. ``deadline_s`` is from now; ``lease_s``: see docs/paths.md."""

    source: Text
    destination: Text
    bytes: Annotated[float, Gt(0), Le(2.0**63)]
    deadline_s: Annotated[float, Gt(0), Le(1e9)] | None = None
    collective: Text | None = None
    round: Number = 0
    lease_s: Annotated[float, Ge(0.1), Le(LONGEST_LEASE_S)] = 10.0


class DiscoveryRequest(Strict):
    """Ports by OCS whose fibres are searched; all if none are named.

    ``listen_s``: how long each round takes. ``every_port``: continue after all ends of the lab are
    found. ``dry_run``: report what would be done, and do nothing.
    """

    ports: dict[Text, Ports] = Field(
        default={},
        max_length=1000,
    )
    listen_s: Annotated[
        float, Ge(0.1), Le(300), Field(allow_inf_nan=False)
    ] = 2.0
    every_port: bool = False
    dry_run: bool = False


class JobsRequest(Strict):
    """Jobs that start ``together``, or each alone, and whether they are regrouped first.

    Without ``topology`` the jobs' or the lab's policy decides. ``plan``: also report where and when
    they would start now; ``dry_run``: report only that, and queue nothing.
    """

    jobs: list[JobSpec]
    topology: Literal["keep", "regroup"] | None = None
    together: bool = True
    plan: bool = False
    dry_run: bool = False

    @field_validator("jobs", mode="before")
    @classmethod
    def _checked(cls, jobs: object) -> list[JobSpec]:
        # Raises a Patchlight error instead of pydantic's.
        return checked_specs(jobs)


class RegroupRequest(Strict):
    """Running jobs, by id, each to be connected to one packet switch.

    ``dry_run``: report what would change, and change nothing.
    """

    jobs: Names
    dry_run: bool = False


class PoliciesRequest(Strict):
    """Policies to use from now on, by kind; ``defragment`` and ``interleave`` as in lab files.

    What is not named is unchanged.
    """

    placement: Text = ""
    order: Text = ""
    topology: Text = ""
    partition: Text | None = None
    elasticity: Text = ""
    defragment: bool = False
    interleave: bool = False


def as_json(content: Any) -> bytes:
    """One line of JSON: ``?`` for a lone surrogate, ``null`` for NaN and infinity."""
    try:
        return to_json(content, inf_nan_mode="null")
    except ValueError:  # lone surrogates
        finite = json.loads(
            json.dumps(content, default=vars), parse_constant=lambda _: None
        )
        return json.dumps(finite, ensure_ascii=False).encode(
            "utf-8", "replace"
        )
