"""The status of an agent's server, and requests about optical paths and probes."""

from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import BaseModel, FailFast, Field, model_validator

from patchlight.testbed.paths.agreement import Bounds
from patchlight.testbed.wire.probe_frames import LldpNeighbour
from patchlight.testbed.wire.worker_api import GidStatus, Mac, WorkerStatus

_MOST_NODES = 2**16
_LONGEST_US = 3_600_000_000
_Text = Annotated[
    str,
    Field(
        min_length=1,
        max_length=200,
    ),
]
_Texts = Annotated[
    list[_Text],
    FailFast(),
    Field(
        min_length=2,
        max_length=_MOST_NODES,
    ),
]


class PathBounds(BaseModel, extra="forbid"):
    """What one node needs to agree on paths with others: the bounds for node ``number``.

    By node, ``addresses`` are where it receives messages, ``channels`` (in THz) where others send
    to it. ``key`` is in hexadecimal. Bounds of a NIC replace those of a lower ``epoch``.
    """

    epoch: Annotated[
        int,
        Field(
            ge=1,
            lt=2**32,
        ),
    ]
    job: _Text
    number: Annotated[int, Field(ge=0)]
    addresses: _Texts
    channels: _Texts
    lease_us: Annotated[
        int,
        Field(
            ge=1,
            le=_LONGEST_US,
        ),
    ]
    margin_us: Annotated[
        int,
        Field(
            ge=0,
            le=_LONGEST_US,
        ),
    ]
    key: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.number < len(self.addresses) == len(self.channels):
            raise ValueError(
                f"node {self.number} of {len(self.addresses)} addresses and {len(self.channels)} "
                "channels: expected one address and one channel per node"
            )
        return self

    @property
    def bounds(self) -> Bounds:
        """The bounds as values."""
        nodes = len(self.addresses)
        return Bounds(
            self.epoch,
            nodes,
            tuple(range(nodes)),
            self.lease_us,
            self.margin_us,
        )


class PathNodeStatus(BaseModel):
    """A NIC that has bounds; ``quiet``: it grants nothing yet.

    While it asks or sends: ``destination``, the number of a node, and ``channel`` (THz).
    """

    nic: str
    epoch: int
    job: str
    number: int
    state: Literal["quiet", "dark", "asks", "sends"]
    destination: int | None = None
    channel: str | None = None


@dataclass(
    frozen=True,
    slots=True,
)
class GpuTelemetry:
    """What a GPU's driver reports; ``None`` for what it does not.

    ``energy_j`` counts from ``energy_since`` (Unix time) or, like the ECC errors, since the driver
    was loaded. ``processes``: ids of those that compute on it. ``xid``: the number of the last XID
    error, at ``xid_at`` (Unix time).
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
    """One GPU; ``utilization`` is 0…1 over the last second.

    ``problem``: why it cannot be used; ``pairing``: a problem of its distance to its NIC.
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
    """A NIC's counters; ``pause_frames`` by the driver's names."""

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
    """A NIC's RDMA device, the GID of a worker's address, and the device's counters."""

    device: str
    port: int
    active: bool
    gid: GidStatus | None = None
    counters: dict[str, int] = {}


class NicStatus(BaseModel):
    """One NIC of the server. ``problem``, as text: it is gone or has no carrier.

    ``mac`` and ``mtu`` are those of its workers, ``mode`` how they get it. ``carrier_changes``
    counts ups and downs. ``pfc``: the priorities with priority flow control; ``dscp_priorities``:
    the priority of each DSCP; ``None`` if the driver knows neither.
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
"""Grows with changes that older controllers or agents cannot ignore."""


class AgentStatus(BaseModel):
    """A server and its agent. ``version`` is Patchlight's, ``api`` that of these models.

    All versions have ``server``, ``version`` and ``api``. ``gpu_access``: how containers get an
    NVIDIA GPU. ``worker_user``: whom workers run as; ``None`` from agents that do not know who
    submits jobs. ``paths``: NICs with bounds for optical paths.
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
"""Marks the probes of one round of one search; others are ignored."""

LONGEST_LISTEN_S = 20.0
"""Less than a client's time-out: to listen for longer, repeat the request."""


class ProbeRequest(BaseModel, extra="forbid"):
    """Send probes from every idle NIC, and listen for ``listen_s`` seconds."""

    token: Token
    listen_s: Annotated[
        float,
        Field(
            gt=0,
            le=LONGEST_LISTEN_S,
            allow_inf_nan=False,
        ),
    ]


class ProbedNic(BaseModel):
    """What a NIC received: probes by source (``tor1.3``), and LLDP.

    ``problem``: why it was not probed; empty if it was.
    """

    name: str
    heard: list[str] = []
    lldp: list[LldpNeighbour] = []
    carrier: bool = False
    problem: str = ""


class ProbeAnswer(BaseModel):
    """All NICs of a server."""

    nics: list[ProbedNic]
