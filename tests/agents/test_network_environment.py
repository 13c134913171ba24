"""What programs are told of a worker's network."""

import json
import os
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest

from patchlight.agents.nics.state import NicState, RdmaDevice
from patchlight.agents.nics.status import NicPlace, NicProblem, rdma_problem
from patchlight.agents.workers.contract import WorkerLaunch
from patchlight.agents.workers.programs import (
    NETWORK_FILE,
    hostname,
    hosts_file,
    network_defaults,
    network_environment,
    publish,
)
from patchlight.controller.jobs.specs import worker_specs
from patchlight.testbed.jobs import JobSpec
from patchlight.testbed.labfile.reader import parse_lab
from patchlight.testbed.linux.processes import Limits
from patchlight.testbed.wire.agent_status import RdmaStatus
from patchlight.testbed.wire.worker_api import GidStatus, WorkerSpec

LAB = """\
name: roce
network: 192.168.10.0/24
servers:
  - name: "s[1-2]"
    nics: [{name: nic0, address: "192.168.10.[11-12]"}]
"""
MLX = RdmaDevice("mlx5_0", 1)
GID = GidStatus(device="mlx5_0", port=1, index=3, gid="::ffff:192.168.10.11")


def spec(*rendezvous: str) -> WorkerSpec:
    """Rank 0's, in a lab whose NICs have these second interfaces."""
    text = LAB
    for number, address in enumerate(rendezvous, 1):
        way = f"rendezvous: {{interface: eno1, address: {address}/24}}"
        nic = f"{{name: nic0, address: 192.168.10.2{number}, {way}}}"
        text += f"  - {{name: m{number}, nics: [{nic}]}}\n"
    lab = parse_lab(text)
    names = [server.name for server in lab.servers[2:]] or ["s1", "s2"]
    hosts = [lab.host(name) for name in names]
    job = JobSpec("job", 5, 4_000_000, {}, workers=len(hosts))
    first, *_ = worker_specs("j-1", job, hosts, lab)
    return first


def variables(worker: WorkerSpec, **keys: Any) -> dict[str, str]:
    launch = WorkerLaunch(
        worker, Path("/w"), "ns", "nic0", Limits(1 << 30, 256), **keys
    )
    return {
        **network_defaults(launch),
        **network_environment(launch, "/run/worker"),
    }


def test_a_worker_is_called_as_the_lab_calls_its_host_and_knows_the_others() -> (
    None
):
    lab = parse_lab(LAB)
    launch = WorkerLaunch(
        spec(),
        Path("/w"),
        "ns",
        "nic0",
        Limits(1 << 30, 256),
        hosts=lab.names_by_address,
    )
    assert hostname(launch) == "s1.nic0"
    assert hosts_file(launch).splitlines() == [
        "127.0.0.1 localhost",
        "::1 localhost ip6-localhost ip6-loopback",
        "192.168.10.11 s1.nic0 s1",
        "192.168.10.12 s2.nic0 s2",
    ]
    unknown = replace(launch, hosts={})
    assert hosts_file(unknown).splitlines()[2:] == [
        f"192.168.10.11 {hostname(unknown)}"
    ]


def test_without_rdma_everything_goes_over_the_nic() -> None:
    assert variables(spec()) == {
        "NCCL_SOCKET_IFNAME": "=nic0",
        "GLOO_SOCKET_IFNAME": "nic0",
        "NCCL_IB_DISABLE": "1",
        "PATCHLIGHT_NETWORK": "/run/worker/network.json",
    }


def test_with_rdma_nccl_gets_this_device_and_times_that_outlive_the_dark() -> (
    None
):
    told = variables(spec(), rdma=MLX, dscp=26)
    assert told["NCCL_IB_HCA"] == "=mlx5_0:1"
    assert told["NCCL_IB_ADDR_RANGE"] == "192.168.10.11/32"
    assert told["UCX_NET_DEVICES"] == "mlx5_0:1"
    assert told["NCCL_IB_TC"] == "106"
    outlives_s = (
        4.096e-6
        * 2 ** int(told["NCCL_IB_TIMEOUT"])
        * int(told["NCCL_IB_RETRY_CNT"])
    )
    assert outlives_s > 100
    # Of an index that may change nothing is said, nor of a DSCP that nobody set.
    assert not told.keys() & {"NCCL_IB_GID_INDEX", "NCCL_IB_DISABLE"}
    assert "NCCL_IB_TC" not in variables(spec(), rdma=MLX)


def test_rendezvous_is_over_the_second_interface_if_all_have_one() -> None:
    assert spec().rendezvous is None
    worker = spec("10.0.0.51", "10.0.0.52")
    assert str(worker.rendezvous) == "10.0.0.51"
    beside_rdma = variables(worker, rendezvous_interface="rdv0", rdma=MLX)
    assert beside_rdma["NCCL_SOCKET_IFNAME"] == "=rdv0"
    assert beside_rdma["GLOO_SOCKET_IFNAME"] == "nic0"
    # NCCL's data goes over its sockets where there is no RDMA.
    assert (
        variables(worker, rendezvous_interface="rdv0")["NCCL_SOCKET_IFNAME"]
        == "=nic0"
    )
    assert (
        variables(spec(), rendezvous_interface="rdv0", rdma=MLX)[
            "NCCL_SOCKET_IFNAME"
        ]
        == "=nic0"
    )


def test_what_the_network_is_like_is_published_whatever_the_worker_put_there(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "w"
    secret = tmp_path / "secret"
    folder.mkdir()
    secret.write_text("mine")
    (folder / NETWORK_FILE).symlink_to(secret)
    (folder / f"{NETWORK_FILE}.new").symlink_to(secret)
    state = NicState("ens1", "0c:42:a1:00:00:01", 9000, True, rdma=MLX)
    place = NicPlace(tmp_path, state, "vlan7", IPv4Address("192.168.10.11"))
    before = os.umask(0o077)  # as in the agent's unit
    try:
        publish(
            folder,
            place,
            RdmaStatus(device="mlx5_0", port=1, active=True, gid=GID),
        )
    finally:
        os.umask(before)
    assert (folder / NETWORK_FILE).stat().st_mode & 0o777 == 0o644
    assert secret.read_text() == "mine"
    told = json.loads((folder / NETWORK_FILE).read_text())
    assert (told["interface"], told["address"]) == ("vlan7", "192.168.10.11")
    assert told["rdma"]["gid"]["index"] == 3


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (None, None),
        (RdmaStatus(device="mlx5_0", port=1, active=True, gid=GID), None),
        (
            RdmaStatus(device="mlx5_0", port=1, active=False, gid=GID),
            "port 1 of RDMA device mlx5_0 is not active",
        ),
        (
            RdmaStatus(device="mlx5_0", port=1, active=True),
            "RDMA device mlx5_0 has no RoCEv2 GID of 192.168.10.11",
        ),
    ],
)
def test_a_worker_with_rdma_is_in_the_dark_until_its_gid_is_back(
    status: RdmaStatus | None, words: str | None
) -> None:
    wanted = None if words is None else NicProblem(words, is_dark=True)
    assert rdma_problem(status, IPv4Address("192.168.10.11")) == wanted
