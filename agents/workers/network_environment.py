"""What NCCL, Gloo and other programs have to know of a worker's network: variables, and a file.

Gloo sends its gradients over the interface that it is told, NCCL those that cannot go by RDMA. So a
second interface is told to NCCL only beside an RDMA device, and to Gloo never.
"""

import json
import os
from contextlib import suppress
from pathlib import Path

from patchlight.agents.nics.watch import NicPlace
from patchlight.agents.workers.contract import WorkerLaunch
from patchlight.testbed.wire.agent_status import RdmaStatus

FILE = "network.json"

# A packet is waited for 4.096 us x 2^22 = 17 s, and sent 7 times: a path may be dark for 2 minutes.
_IB_TIMEOUT, _IB_RETRIES = "22", "7"
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
# ECN-capable transport: congested switches mark packets that say so, instead of dropping them.
_ECN_CAPABLE = 0b10
_LONGEST_HOSTNAME = 64


def network_environment(launch: WorkerLaunch, folder: str) -> dict[str, str]:
    """The variables of a worker's network; ``folder`` is its own, as it sees it.

    No job can change these. The GID's index is not among them: it may be another one after a change
    of the light. NCCL finds it by the address, from version 2.21 on, and for others it is in
    the file ``PATCHLIGHT_NETWORK``.
    """
    interface = f"={launch.interface}"  # this one, and none whose name begins so
    device = launch.rdma
    variables = {
        "GLOO_SOCKET_IFNAME": launch.interface,
        "NCCL_SOCKET_IFNAME": interface,
        "PATCHLIGHT_NETWORK": f"{folder}/{FILE}",
    }
    if device is None:
        # Where a server has devices that all see, it would take anybody's.
        return {**variables, "NCCL_IB_DISABLE": "1"}
    if launch.rendezvous_interface is not None and launch.spec.rendezvous is not None:
        variables["NCCL_SOCKET_IFNAME"] = f"={launch.rendezvous_interface}"
    variables |= {
        "NCCL_IB_HCA": f"={device.name}:{device.port}",
        "NCCL_IB_ADDR_RANGE": f"{launch.address}/32",
    }
    return variables


def network_defaults(launch: WorkerLaunch) -> dict[str, str]:
    """The variables of a worker's network that a job may change."""
    if launch.rdma is None:
        return {}
    variables = {"NCCL_IB_TIMEOUT": _IB_TIMEOUT, "NCCL_IB_RETRY_CNT": _IB_RETRIES}
    if launch.dscp is not None:
        variables["NCCL_IB_TC"] = str(launch.dscp << 2 | _ECN_CAPABLE)
    return variables


def hostname(launch: WorkerLaunch) -> str:
    """What a worker's own host is called in there: the lab's name of its NIC's host."""
    return next(iter(launch.hosts.get(launch.address, ())), launch.spec.id)[:_LONGEST_HOSTNAME]


def hosts_file(launch: WorkerLaunch) -> str:
    """A worker's ``/etc/hosts``: every name of the lab, and its hostname at its own address."""
    own, name = launch.address, hostname(launch)
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    for address, names in {own: (), **launch.hosts}.items():
        aliases = dict.fromkeys((name, *names) if address == own else names)
        lines.append(f"{address} {' '.join(aliases)}")
    return "\n".join([*lines, ""])


def publish(folder: Path, place: NicPlace, rdma: RdmaStatus | None) -> None:
    """Write what a worker's network is like now into its folder, whole or not at all.

    The worker may have put anything there: it is replaced, never followed.
    """
    told = {
        "interface": place.inside,
        "address": str(place.address),
        "rdma": None if rdma is None else rdma.model_dump(),
    }
    fresh = folder / f"{FILE}.new"
    with suppress(OSError):  # a full disk is told of elsewhere
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, _NEW_FILE, 0o644), "w", encoding="utf-8") as file:
            json.dump(told, file)
        fresh.replace(folder / FILE)
