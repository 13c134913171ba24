"""How a NIC is now: there or gone, its carrier, what it counted, and whether its RDMA port is back.

After a port was dark its RDMA device has no GIDs for a while. So a worker with RDMA is as one in
the dark until its GID is there again. Functions block, and look into the namespace they are given.
"""

import errno
from dataclasses import asdict, dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from patchlight.agents import roce
from patchlight.agents.nics.state import NicState
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.linux import ethtool, namespaces
from patchlight.testbed.linux.ethtool import Priorities, read_priorities
from patchlight.testbed.linux.sysfs import read_link, sysfs
from patchlight.testbed.wire.agent_status import NicCounters, RdmaStatus

GONE = "{} is gone: the server has no such interface any more"
NO_CARRIER = "{} has no carrier"


@dataclass(frozen=True, slots=True)
class NicPlace:
    """Where a NIC is, and as what: ``inside`` is the interface with the worker's ``address``."""

    namespace: Path
    state: NicState
    inside: str
    address: IPv4Address


@dataclass(frozen=True, slots=True)
class NicProblem:
    """What is wrong with a NIC, in words; ``is_dark`` if light may be all that it lacks."""

    words: str
    is_dark: bool = False


def problem_of(namespace: Path, interface: str) -> NicProblem | None:
    """What is wrong with a NIC that should be in the namespace; ``None`` if nothing is."""
    gone = NicProblem(GONE.format(interface))
    if not namespaces.is_one(namespace):
        return gone
    try:
        carrier = namespaces.inside(namespace, lambda: ethtool.settle_link(interface))
    except OSError as exc:
        return gone if exc.errno == errno.ENODEV else NicProblem(f"{interface}: {exc}")
    return None if carrier else NicProblem(NO_CARRIER.format(interface), is_dark=True)


def rdma_status(place: NicPlace) -> RdmaStatus | None:
    """How the RDMA device of a worker is, and the GID of its address; ``None`` without one."""
    device = place.state.rdma
    if device is None:
        return None

    def look() -> RdmaStatus:
        with sysfs() as root:
            gid = roce.gid_of(place.inside, place.address, root)
            return RdmaStatus(
                device=device.name,
                port=device.port,
                active=roce.is_active(device, root),
                gid=gid.status if gid else None,
            )

    return namespaces.inside(place.namespace, look)


def rdma_problem(status: RdmaStatus | None, address: IPv4Address) -> NicProblem | None:
    """What a worker's RDMA device lacks before it can be used."""
    if status is None:
        return None
    if not status.active:
        words = f"port {status.port} of RDMA device {status.device} is not active"
        return NicProblem(words, is_dark=True)
    if status.gid is None:
        words = f"RDMA device {status.device} has no RoCEv2 GID of {address}"
        return NicProblem(words, is_dark=True)
    return None


def facts_of(namespace: Path, interface: str, port: tuple[Path, str]) -> dict[str, Any]:
    """What an interface is and counted, named as the fields of a ``NicStatus``; empty if gone.

    ``port``, a namespace and an interface, is the NIC itself, which knows of priorities and pauses.
    """

    def of_port() -> tuple[Priorities | None, dict[str, int]]:
        return read_priorities(port[1]), ethtool.pause_frames(port[1])

    try:
        reading = namespaces.inside(namespace, lambda: read_link(interface))
        priorities, pauses = namespaces.inside(port[0], of_port)
    except (OSError, PatchlightError):  # it has just left, or the namespace has
        return {}
    counted = {k: v for k, v in asdict(reading).items() if k in NicCounters.model_fields}
    return {
        "mac": reading.mac,
        "mtu": reading.mtu,
        "carrier_changes": reading.carrier_changes,
        "counters": NicCounters(**counted, pause_frames=pauses),
        "pfc": None if priorities is None else list(priorities.paused),
        "dscp_priorities": None if priorities is None else dict(priorities.of_dscp),
    }
