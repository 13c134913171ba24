"""What an agent is asked, and says, of the fibres of its idle NICs, as pydantic models."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Token = Annotated[str, Field(pattern=r"^[0-9a-z-]{1,64}$")]
"""Marks the probes of one round of one search: all others are passed over."""

LONGEST_LISTEN_S = 20.0
"""A request is answered within the time that a client waits; who listens for longer asks again."""


class ProbeRequest(BaseModel):
    """Send probes out of every idle NIC, and hear what comes, for ``listen_s`` seconds."""

    model_config = ConfigDict(extra="forbid")

    token: Token
    listen_s: Annotated[float, Field(gt=0, le=LONGEST_LISTEN_S, allow_inf_nan=False)]


class HeardLldp(BaseModel):
    """A device that sends LLDP, by its name or number, and its port."""

    device: str
    port: str


class ProbedNic(BaseModel):
    """One NIC: whose probes came (``tor1.3``), which LLDP, and whether it had a carrier.

    ``problem`` says why it was not probed; empty where it was.
    """

    name: str
    heard: list[str] = []
    lldp: list[HeardLldp] = []
    carrier: bool = False
    problem: str = ""


class ProbeAnswer(BaseModel):
    """All NICs of a server."""

    nics: list[ProbedNic]
