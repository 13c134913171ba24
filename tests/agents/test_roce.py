"""GID tables, as the kernel lays them out."""

from ipaddress import IPv4Address
from pathlib import Path

from patchlight.agents.nics.state import gid_of
from patchlight.testbed.wire.worker_api import GidStatus


def entry(
    root: Path, index: int, gid: str, kind: str | None, interface: str | None
) -> None:
    port = root / "class/infiniband/mlx5_0/ports/1"
    for folder, value in (
        ("gids", gid),
        ("gid_attrs/types", kind),
        ("gid_attrs/ndevs", interface),
    ):
        (port / folder).mkdir(parents=True, exist_ok=True)
        if value is not None:
            (port / folder / str(index)).write_text(value + "\n")


def test_only_rocev2_gids_with_an_ipv4_address_count(tmp_path: Path) -> None:
    mapped = "0000:0000:0000:0000:0000:ffff:c0a8:0a0b"
    entry(
        tmp_path,
        0,
        "fe80:0000:0000:0000:0e42:a1ff:fe00:0001",
        "IB/RoCE v1",
        "nic0",
    )
    entry(
        tmp_path,
        1,
        "fe80:0000:0000:0000:0e42:a1ff:fe00:0001",
        "RoCE v2",
        "nic0",
    )
    entry(tmp_path, 2, mapped, "IB/RoCE v1", "nic0")
    entry(tmp_path, 11, mapped, "RoCE v2", "nic0")
    entry(
        tmp_path,
        3,
        "0000:0000:0000:0000:0000:ffff:c0a8:0a0c",
        "RoCE v2",
        "macvlan0",
    )
    # An empty slot: the kernel answers EINVAL for its attributes.
    entry(tmp_path, 4, "0000:0000:0000:0000:0000:0000:0000:0000", None, None)
    entry(tmp_path, 5, "not a gid", "RoCE v2", "nic0")
    second = GidStatus(
        device="mlx5_0", port=1, index=11, gid="::ffff:192.168.10.11"
    )
    assert gid_of("nic0", IPv4Address("192.168.10.11"), tmp_path) == second
    assert gid_of("nic0", IPv4Address("192.168.10.12"), tmp_path) is None
    assert gid_of("macvlan0", IPv4Address("192.168.10.11"), tmp_path) is None
    other = gid_of("macvlan0", IPv4Address("192.168.10.12"), tmp_path)
    assert other is not None
    assert other.index == 3


def test_a_server_without_rdma_has_none(tmp_path: Path) -> None:
    assert (
        gid_of("nic0", IPv4Address("192.168.10.11"), tmp_path / "nowhere")
        is None
    )
