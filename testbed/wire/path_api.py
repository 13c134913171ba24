"""What goes over an agent's API about paths of light, for both ends: bounds, and how a node is."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator

from patchlight.testbed.paths.agreement import Bounds

_MOST_NODES = 2**16
_LONGEST_US = 3_600_000_000
_Text = Annotated[str, Field(min_length=1, max_length=200)]
_Texts = Annotated[list[_Text], FailFast(), Field(min_length=2, max_length=_MOST_NODES)]


class PathBounds(BaseModel):
    """What the controller leaves to the nodes of a job, for the one that has this ``number``.

    ``addresses`` are those at which nodes hear each other, ``channels`` (in THz) those on which
    others send to them: each node gives the one of its own. ``key`` is in hexadecimal. Bounds of a
    NIC replace those of a lower ``epoch``.
    """

    model_config = ConfigDict(extra="forbid")

    epoch: Annotated[int, Field(ge=1, lt=2**32)]
    job: _Text
    number: Annotated[int, Field(ge=0)]
    addresses: _Texts
    channels: _Texts
    lease_us: Annotated[int, Field(ge=1, le=_LONGEST_US)]
    margin_us: Annotated[int, Field(ge=0, le=_LONGEST_US)]
    key: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.number < len(self.addresses) == len(self.channels):
            raise ValueError(
                f"node {self.number} of {len(self.addresses)} addresses and {len(self.channels)} "
                "channels: expected an address and a channel for each node"
            )
        return self

    @property
    def bounds(self) -> Bounds:
        """As the agreement of nodes has them."""
        nodes = len(self.addresses)
        return Bounds(self.epoch, nodes, tuple(range(nodes)), self.lease_us, self.margin_us)


class PathNodeStatus(BaseModel):
    """A NIC that has bounds. ``state``: ``quiet`` while it gives nothing yet, or what it does.

    While it asks or sends, ``destination`` is another node's number, and ``channel`` in THz where
    it sends.
    """

    nic: str
    epoch: int
    job: str
    number: int
    state: Literal["quiet", "dark", "asks", "sends"]
    destination: int | None = None
    channel: str | None = None
