"""What an agent tells of its server, its GPUs and its NICs, for both ends: as pydantic models."""

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

from patchlight.testbed.wire.path_api import PathNodeStatus
from patchlight.testbed.wire.worker_api import GidStatus, Mac, WorkerStatus


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
