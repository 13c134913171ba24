"""What an agent says of its server, and is sent about paths and probes, as pydantic models."""

from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator

from patchlight.testbed.paths.agreement import Bounds
from patchlight.testbed.wire.worker_api import GidStatus, Mac, WorkerStatus

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


@dataclass(frozen=True, slots=True)
class GpuTelemetry:
    """What a GPU's driver tells of it; ``None`` is what this GPU cannot tell.

    ``energy_j`` counts from ``energy_since`` (Unix time; ``None``: since the driver was loaded);
    rates are in bits per second; ``processes`` are numbers of processes that compute on it;
    ``ecc_corrected`` and ``ecc_uncorrected`` count memory errors since the driver was loaded;
    ``xid`` is the number of the driver's last XID error, at ``xid_at`` (Unix time).
    """

    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    power_w: float | None = None
    energy_j: float | None = None
    energy_since: float | None = None
    temperature_c: float | None = None
    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    pcie_sent_bps: float | None = None
    pcie_received_bps: float | None = None
    nvlink_sent_bps: float | None = None
    nvlink_received_bps: float | None = None
    processes: tuple[int, ...] | None = None
    mig: bool | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    xid: int | None = None
    xid_at: float | None = None


class GpuStatus(BaseModel):
    """One GPU; ``utilization`` is 0…1 over the last second, where that is known.

    ``problem``: why it cannot be used; ``pairing``: what is wrong with where it sits beside the NIC
    that the lab file pairs it with, if anything is.
    """

    name: str
    model: str
    uuid: str | None = None
    utilization: float | None
    busy_s: float
    worker: str | None = None
    problem: str = ""
    pairing: str = ""
    telemetry: GpuTelemetry | None = None


class NicCounters(BaseModel):
    """What a NIC counted since it was made. ``pause_frames`` by the names that its driver has."""

    rx_packets: int = 0
    tx_packets: int = 0
    rx_bytes: int = 0
    tx_bytes: int = 0
    rx_errors: int = 0
    tx_errors: int = 0
    rx_dropped: int = 0
    tx_dropped: int = 0
    pause_frames: dict[str, int] = {}


class RdmaStatus(BaseModel):
    """A NIC's RDMA device: whether its port is active, and the GID of a worker's address."""

    device: str
    port: int
    active: bool
    gid: GidStatus | None = None


class NicStatus(BaseModel):
    """One NIC of the server. ``problem``: that it is gone or has no carrier, in words.

    One that is there without a carrier may only be dark: ``carrier`` is false. ``mac`` and ``mtu``
    are those of its workers, ``mode`` how they get it. ``carrier_changes`` counts ups and downs.
    ``pfc`` are the priorities with priority flow control, and ``dscp_priorities`` which DSCP is
    which; ``None`` where its driver knows neither.
    """

    name: str
    address: str
    state: Literal["idle", "leased"]
    worker: str | None = None
    problem: str = ""
    carrier: bool = True
    mac: Mac | None = None
    mtu: int | None = None
    mode: str = ""
    carrier_changes: int = 0
    counters: NicCounters = NicCounters()
    pfc: list[int] | None = None
    dscp_priorities: dict[int, int] | None = None
    rdma: RdmaStatus | None = None


API_VERSION = 1
"""Grows when controllers and agents that differ in it do not understand each other any more.

What may be left out, or be passed over, is no reason: then only ``version`` differs.
"""


class AgentStatus(BaseModel):
    """The server as its agent sees it. ``version`` is Patchlight's, ``api`` that of these models.

    ``server``, ``version`` and ``api`` can be asked for and read in all versions. ``gpu_access`` is
    how containers get an NVIDIA GPU. ``worker_user`` is whom workers run as; ``None`` from agents
    that know nothing of who submits jobs. ``paths`` are the NICs that have
    bounds for paths of light.
    """

    server: str
    version: str
    api: int = 1
    runner: str
    gpu_access: str = ""
    worker_user: str | None = None
    gpus: list[GpuStatus]
    nics: list[NicStatus]
    workers: list[WorkerStatus]
    paths: list[PathNodeStatus] = []


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
