"""What a lab file says of NICs' MTU, VLAN and routes, in an emulated lab."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from patchlight import EmulatedLab
from patchlight.emulation.fabric.links import NoVlans
from patchlight.emulation.lab.network import NotReached, check_packet_sizes
from patchlight.testbed.jobs import JobSpec
from patchlight.testbed.linux import namespaces
from tests.support.agent_bench import ip
from tests.support.emulated_labs import TWO_TORS
from tests.support.lab_jobs import connected
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.ovs]

SERVER2 = "192.168.10.13, rate: 40Gbps"
ROUTE = "10.9.0.0/16 via 192.168.10.1"
JUMBO = TWO_TORS.replace(
    "servers:", "defaults: {nic: {mtu: 9000}}\nservers:"
).replace(SERVER2, f'{SERVER2}, routes: ["{ROUTE}"]')


@pytest.fixture
def jumbo(
    tmp_path: Path, new_name: Callable[[], str]
) -> Iterator[EmulatedLab]:
    path = tmp_path / "jumbo.yaml"
    path.write_text(JUMBO)
    # 10 Mb/s between the switches: a frame of 9,000 bytes is larger than 4 ms of that rate.
    with EmulatedLab.from_file(
        path, 1000, name=new_name(), workers="process"
    ) as lab:
        yield lab


def passes(lab: EmulatedLab, size: int) -> bool:
    """Whether a packet of so many bytes passes from server1 to server2, whole."""
    ping = f"ping -c 1 -W 2 -M do -s {size - 28} 192.168.10.13"
    return lab.host("gpu0").run(ping).returncode == 0


def test_packets_as_large_as_the_lab_file_says_pass_and_workers_have_its_settings(
    jumbo: EmulatedLab,
) -> None:
    wait_until(lambda: passes(jumbo, 9000), "a packet of 9000 bytes")
    assert not passes(jumbo, 9001)
    assert ROUTE in jumbo.host("gpu2").run("ip route").output
    with connected(jumbo) as client:
        compute_s = {"Tesla M40": 0.1, "Titan V": 0.1}
        spec = JobSpec(
            "large", 1000, 4_000_000, compute_s, hosts=("gpu0", "gpu2")
        )
        job_id = client.submit([spec])[0].id
        wait_until(lambda: client.job(job_id).iterations_done >= 1)
        space = f"pl.{jumbo.lab.name}.server2.w-{job_id}-1"
        assert "mtu 9000" in ip("-n", space, "link", "show", "nic0")
        assert ROUTE in ip("-n", space, "route")


def test_a_port_that_carries_less_is_found_with_a_packet(
    jumbo: EmulatedLab,
) -> None:
    check_packet_sizes(jumbo.lab, jumbo.hosts)
    ip(
        "-n",
        f"pl.{jumbo.lab.name}.fabric",
        "link",
        "set",
        "tor2-1",
        "mtu",
        "1500",
    )
    with pytest.raises(
        NotReached,
        match=r"packets of 9000 bytes do not pass .*, smaller packets do",
    ):
        check_packet_sizes(jumbo.lab, jumbo.hosts)


def test_a_vlan_is_refused_where_the_kernel_has_none(
    tmp_path: Path, new_name: Callable[[], str]
) -> None:
    tagged = "ip link add link lo name pl-vlan type vlan id 7"
    tried = subprocess.run(
        ["unshare", "-n", *tagged.split()], capture_output=True, check=False
    )
    if tried.returncode == 0:
        pytest.skip("this kernel has VLANs")
    path = tmp_path / "vlan.yaml"
    name = new_name()
    path.write_text(
        TWO_TORS.replace("servers:", "defaults: {nic: {vlan: 7}}\nservers:")
    )
    with pytest.raises(NoVlans, match="'vlan' of a NIC needs"):
        EmulatedLab.from_file(path, 1000, name=name).up()
    assert not namespaces.names_with_prefix(f"pl.{name}.")
