"""A server with one NIC, what it is plugged into, and a place for a worker: namespaces."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from patchlight.agents.nics.moving import give_nic, read_nic, take_nic_back
from patchlight.agents.nics.state import NicAccess, NicState, WorkerNetwork
from patchlight.testbed.lab.model import NicMode
from patchlight.testbed.linux import devices, namespaces
from tests.support.agent_bench import ip


def tc(space: str, *arguments: str) -> str:
    return subprocess.run(
        ["ip", "netns", "exec", space, "tc", *arguments],
        check=True,
        capture_output=True,
        text=True,
    ).stdout


@dataclass
class Spaces:
    """A server with one NIC, what it is plugged into, and a place for a worker."""

    server: str
    worker: str
    fabric: str

    def read(self) -> NicState:
        return namespaces.inside(
            namespaces.namespace_path(self.server),
            lambda: read_nic(NicAccess("veth", "nic0")),
        )

    def give(self, state: NicState, **network: Any) -> None:
        wanted = WorkerNetwork(
            **{
                "address": "10.79.0.11",
                "prefix": 24,
                "mac": "02:4c:0a:4f:00:0b",
                "neighbours": (("10.79.0.1", "02:00:00:00:00:01"),),
                **network,
            }
        )
        worker = namespaces.namespace_path(self.worker)
        namespaces.inside(
            namespaces.namespace_path(self.server),
            lambda: give_nic(state, worker, wanted),
        )

    def take(self, state: NicState) -> None:
        take_nic_back(
            state,
            namespaces.namespace_path(self.worker),
            namespaces.namespace_path(self.server),
        )


@contextmanager
def made_spaces() -> Iterator[Spaces]:
    """Make them, and remove them."""
    names = [
        f"pl.test-{os.getpid()}.{part}"
        for part in ("nicserver", "nicworker", "nicfabric")
    ]
    made = Spaces(*names)
    try:
        for name in names:
            namespaces.create(name)
        ip("-n", made.fabric, "link", "add", "p0", "type", "veth", "peer", "name", "nic0",
           "netns", made.server)  # fmt: skip
        ip(
            "-n",
            made.fabric,
            "link",
            "set",
            "p0",
            "up",
            "address",
            "02:00:00:00:00:01",
        )
        ip("-n", made.fabric, "addr", "add", "10.79.0.1/24", "dev", "p0")
        yield made
    finally:
        for name in names:
            namespaces.delete(name)


def furnish(spaces: Spaces, rate: str) -> None:
    """Give the idle NIC one of everything that a move would lose."""
    space = spaces.server
    ip("-n", space, "link", "set", "nic0", "mtu", "1400", "up")
    ip("-n", space, "addr", "add", "10.79.0.5/24", "dev", "nic0")
    ip("-n", space, "addr", "add", "2001:db8::5/64", "dev", "nic0", "nodad")
    ip(
        "-n",
        space,
        "route",
        "add",
        "2001:db8:1::/48",
        "via",
        "2001:db8::1",
        "metric",
        "7",
    )
    ip("-n", space, "neigh", "add", "2001:db8::77", "lladdr", "02:00:00:00:00:77", "dev", "nic0",
       "nud", "permanent")  # fmt: skip
    ip("-n", space, "neigh", "add", "10.79.0.77", "lladdr", "02:00:00:00:00:77", "dev", "nic0",
       "nud", "permanent")  # fmt: skip
    ip(
        "-n",
        space,
        "route",
        "add",
        "10.80.0.0/16",
        "via",
        "10.79.0.1",
        "metric",
        "7",
    )
    ip("-n", space, "route", "add", "default", "dev", "nic0", "table", "101")
    tc(space, "qdisc", "add", "dev", "nic0", "root", "tbf", "rate", rate, "burst", "32k",
       "latency", "50ms")  # fmt: skip
    namespaces.inside(
        namespaces.namespace_path(space),
        lambda: devices.set_tx_checksum("nic0", False),
    )
    namespaces.inside(
        namespaces.namespace_path(space),
        lambda: namespaces.set_sysctl("ipv4/conf/nic0/arp_ignore", 1),
    )


def ping(space: str, address: str) -> bool:
    command = [
        "ip",
        "netns",
        "exec",
        space,
        "ping",
        "-c",
        "1",
        "-W",
        "0.3",
        address,
    ]
    return (
        subprocess.run(command, capture_output=True, check=False).returncode
        == 0
    )


def inside(space: str, name: str = "nic0", mode: NicMode = "veth") -> NicState:
    return namespaces.inside(
        namespaces.namespace_path(space),
        lambda: read_nic(NicAccess(mode, name)),
    )
