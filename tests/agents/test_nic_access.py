"""In which way a worker gets a NIC, and its RDMA device, by what the kernel shows of them."""

import struct
from dataclasses import asdict
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from patchlight.agents.errors import NicError
from patchlight.agents.nics.moving import function_in, settings_of
from patchlight.agents.nics.state import (
    FunctionState,
    NicAccess,
    NicState,
    RdmaDevice,
    access_of,
    is_rdma_active,
    name_inside,
    rdma_device_of,
)
from patchlight.testbed.lab.model import Nic, default_mac
from patchlight.testbed.linux import devices as rdma
from patchlight.testbed.linux.devices import Priorities, priorities_in
from patchlight.testbed.linux.netlink import attribute
from tests.support.sysfs_tree import SysfsTree

ADDRESS = IPv4Address("192.168.10.11")
MLX = RdmaDevice(
    "mlx5_0", 1, ("/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm")
)


def nic(**keys: Any) -> Nic:
    return Nic("nic0", ADDRESS, default_mac(ADDRESS), interface="ens1", **keys)


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path)


def test_the_way_is_found_out(tree: SysfsTree) -> None:
    tree.virtual_nic("veth0")
    port = tree.nic("ens1")
    veth = Nic("veth0", ADDRESS, default_mac(ADDRESS))
    assert access_of(veth, tree.root, None) == NicAccess("veth", "veth0")
    assert access_of(nic(), tree.root, None) == NicAccess("physical", "ens1")
    tree.function(port, 10, "ens1v10")
    tree.function(port, 1, None)
    tree.function(port, 2, "ens1v2")
    given = NicAccess("sriov", "ens1v2", FunctionState("ens1", 2))
    assert access_of(nic(), tree.root, None) == given
    assert access_of(nic(mode="sriov"), tree.root, None) == given
    assert access_of(nic(mode="physical"), tree.root, None) == NicAccess(
        "physical", "ens1"
    )
    assert access_of(nic(mode="macvlan"), tree.root, None) == NicAccess(
        "macvlan", "ens1"
    )


def test_without_a_free_virtual_function_it_says_how_to_make_some(
    tree: SysfsTree,
) -> None:
    port = tree.nic("ens1")
    with pytest.raises(
        NicError, match="ens1 has no free virtual function"
    ) as caught:
        access_of(nic(mode="sriov"), tree.root, None)
    assert "/sys/class/net/ens1/device/sriov_numvfs" in str(caught.value.hint)
    tree.function(port, 0, None)
    with pytest.raises(NicError, match="no free virtual function"):
        access_of(nic(), tree.root, None)


def test_the_rdma_device_is_the_nic_s_own(tree: SysfsTree) -> None:
    ports = [tree.nic("ens0"), tree.nic("ens1"), tree.nic("ens2", dev_port=1)]
    tree.rdma(ports[0], "mlx5_9", 9)
    tree.rdma(ports[1], "mlx5_0", 0)
    tree.rdma(ports[2], "mlx4_0", 3, ports=2)
    assert rdma_device_of("ens1", tree.root) == MLX
    second = rdma_device_of("ens2", tree.root)
    assert second is not None
    assert (second.name, second.port) == ("mlx4_0", 2)
    assert rdma_device_of("ens7", tree.root) is None
    # A device made of software names its interface itself.
    soft = tree.root / "devices/virtual/infiniband/rxe0"
    (soft / "ports/1").mkdir(parents=True)
    (soft / "parent").write_text("veth0\n")
    (tree.root / "class/infiniband/rxe0").symlink_to(soft)
    assert rdma_device_of("veth0", tree.root) == RdmaDevice(
        "rxe0", is_soft=True
    )


def soft_roce(tree: SysfsTree) -> None:
    tree.nic("ens1")
    soft = tree.root / "devices/virtual/infiniband/rxe0"
    (soft / "ports/1").mkdir(parents=True)
    (soft / "parent").write_text("ens1\n")
    (tree.root / "class/infiniband").mkdir(exist_ok=True)
    (tree.root / "class/infiniband/rxe0").symlink_to(soft)


@pytest.mark.parametrize(
    ("keys", "sharing", "is_given"),
    [
        ({}, "shared", True),
        ({"rdma": "shared"}, "shared", True),
        ({}, "exclusive", False),
        ({"vlan": 7}, "shared", False),
        ({"mode": "macvlan"}, "shared", False),
        ({"rdma": "none"}, "shared", False),
    ],
)
def test_soft_roce_is_given_where_it_works(
    tree: SysfsTree, keys: dict[str, Any], sharing: Any, is_given: bool
) -> None:
    soft_roce(tree)
    access = access_of(nic(**keys), tree.root, sharing)
    assert (access.rdma is not None, access.rdma_moves) == (is_given, False)


@pytest.mark.parametrize(
    "keys", [{"rdma": "exclusive"}, {"rdma": "shared", "mode": "macvlan"}]
)
def test_soft_roce_that_cannot_be_as_the_lab_file_says_is_refused(
    tree: SysfsTree, keys: dict[str, Any]
) -> None:
    soft_roce(tree)
    with pytest.raises(NicError, match="rxe0 is soft RoCE") as caught:
        access_of(nic(**keys), tree.root, "shared")
    assert "rdma: shared, mode: physical" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("keys", "sharing", "device", "moves"),
    [
        ({}, "exclusive", MLX, True),
        ({}, "shared", MLX, False),
        ({"rdma": "exclusive"}, "exclusive", MLX, True),
        ({"rdma": "shared"}, "shared", MLX, False),
        ({"rdma": "none"}, "exclusive", None, False),
        ({"mode": "macvlan"}, "shared", MLX, False),
        ({"mode": "macvlan"}, "exclusive", None, False),
    ],
)
def test_the_rdma_device_goes_with_the_nic_where_it_can(
    tree: SysfsTree,
    keys: dict[str, Any],
    sharing: Any,
    device: RdmaDevice | None,
    moves: bool,
) -> None:
    tree.rdma(tree.nic("ens1"), "mlx5_0", 0)
    access = access_of(nic(**keys), tree.root, sharing)
    assert (access.rdma, access.rdma_moves) == (device, moves)


@pytest.mark.parametrize(
    ("keys", "sharing", "message", "hint"),
    [
        (
            {"rdma": "exclusive"},
            "shared",
            "RDMA devices are shared on this",
            "no other network",
        ),
        (
            {"rdma": "shared"},
            "exclusive",
            "RDMA devices are exclusive on",
            "ib_core netns_mode",
        ),
        (
            {"rdma": "exclusive", "mode": "macvlan"},
            "exclusive",
            "cannot own an RDMA device",
            "sriov",
        ),
    ],
)
def test_rdma_that_cannot_be_as_the_lab_file_says_is_refused(
    tree: SysfsTree,
    keys: dict[str, Any],
    sharing: Any,
    message: str,
    hint: str,
) -> None:
    tree.rdma(tree.nic("ens1"), "mlx5_0", 0)
    with pytest.raises(NicError, match=message) as caught:
        access_of(nic(**keys), tree.root, sharing)
    assert hint in str(caught.value.hint)


def test_a_nic_without_an_rdma_device_cannot_be_asked_for_one(
    tree: SysfsTree,
) -> None:
    tree.nic("ens1")
    with pytest.raises(
        NicError,
        match="nic0 has no RDMA device, and the lab file says rdma: sha",
    ):
        access_of(nic(rdma="shared"), tree.root, "shared")


def test_a_port_is_active_once_it_says_so(tree: SysfsTree) -> None:
    device = tree.nic("ens1")
    tree.rdma(device, "mlx5_0", 0)
    assert is_rdma_active(MLX, tree.root)
    (device / "infiniband/mlx5_0/ports/1/state").write_text("1: DOWN\n")
    assert not is_rdma_active(MLX, tree.root)
    assert not is_rdma_active(RdmaDevice("mlx5_1"), tree.root)


def test_what_a_port_had_set_for_a_function_is_read() -> None:
    functions = [
        {
            "attrs": [
                (
                    "IFLA_VF_MAC",
                    {"vf": number, "mac": f"0c:42:a1:00:00:0{number}"},
                ),
                (
                    "IFLA_VF_VLAN",
                    {"vf": number, "vlan": 100 * number, "qos": 0},
                ),
            ]
        }
        for number in range(3)
    ]
    listed = {"attrs": [("IFLA_VF_INFO", each) for each in functions]}
    message = ifinfmsg()
    message["attrs"] = [("IFLA_VFINFO_LIST", listed)]
    message.encode()
    read = ifinfmsg(message.data)
    read.decode()
    found = function_in(read, FunctionState("ens1", 2))
    assert found == FunctionState("ens1", 2, "0c:42:a1:00:00:02", 200)
    with pytest.raises(
        NicError, match="ens1 does not report its virtual function 7"
    ):
        function_in(read, FunctionState("ens1", 7))


@pytest.mark.parametrize(
    ("mac", "vlan", "told"),
    [
        (None, None, {}),
        ("0c:42:a1:00:00:02", 100, {}),
        (None, 7, {"vf": 2, "vlan": 7}),
        (
            "02:4c:c0:a8:0a:0b",
            0,
            {"vf": 2, "mac": "02:4c:c0:a8:0a:0b", "vlan": 0},
        ),
    ],
)
def test_a_port_is_told_only_what_differs(
    mac: str | None, vlan: int | None, told: dict[str, Any]
) -> None:
    assert (
        settings_of(
            FunctionState("ens1", 2, "0c:42:a1:00:00:02", 100), mac, vlan
        )
        == told
    )


def test_the_state_of_a_function_with_rdma_survives_its_file() -> None:
    function = FunctionState("ens1", 2, "0c:42:a1:00:00:02", 100)
    state = NicState(
        "ens1v2", "0c:42:a1:00:00:02", 9000, True, mode="sriov", function=function, rdma=MLX,
        rdma_moves=True,
    )  # fmt: skip
    assert TypeAdapter(NicState).validate_python(asdict(state)) == state
    of_an_older_agent = asdict(state)
    for key in ("mode", "function", "rdma", "rdma_moves"):
        del of_an_older_agent[key]
    assert (
        TypeAdapter(NicState).validate_python(of_an_older_agent).mode
        == "physical"
    )


@pytest.mark.parametrize(
    ("mode", "vlan", "name"),
    [
        ("physical", None, "ens1"),
        ("sriov", 100, "ens1"),
        ("macvlan", 100, "vlan100"),
    ],
)
def test_what_the_interface_with_the_address_is_called(
    mode: Any, vlan: int, name: str
) -> None:
    assert name_inside("ens1", mode, vlan) == name


def test_messages_about_rdma_devices_are_as_the_kernel_has_them() -> None:
    # u32 RDMA_NLDEV_ATTR_DEV_INDEX (1), string DEV_NAME (2), u32 NET_NS_FD (68), u8 NETNS_MODE (66)
    devices = [
        attribute(1, struct.pack("=I", number))
        + attribute(2, f"mlx5_{number}\0".encode())
        for number in (0, 7)
    ]
    assert rdma.index_of("mlx5_7", devices) == 7
    assert rdma.index_of("mlx5_1", devices) is None
    assert (
        rdma.move_body(7, 5).hex() == "0800010007000000" + "0800440005000000"
    )
    assert rdma.mode_in(attribute(66, b"\0")) == "exclusive"
    assert rdma.mode_in(attribute(66, b"\1")) == "shared"
    assert rdma.mode_in(b"") == "shared"


def test_priorities_are_read_from_what_the_kernel_says_of_them() -> None:
    # struct ieee_pfc with priority 3 paused; two struct dcb_app: DSCP 26 is 3, and an ethertype.
    pfc = attribute(2, bytes([8, 0b1000, 0, 0]) + bytes(132))
    apps = attribute(1, struct.pack("=BBH", 5, 3, 26)) + attribute(
        1, struct.pack("=BBH", 1, 4, 0x8906)
    )
    body = struct.pack("=BBH", 0, 21, 0) + attribute(1, b"ens1\0")
    body += attribute(13, pfc + attribute(3, apps))
    assert priorities_in(body) == Priorities((3,), {26: 3})
    assert priorities_in(struct.pack("=BBH", 0, 21, 0)) is None
