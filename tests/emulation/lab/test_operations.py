"""What is done to a lab that is up: pings, rates, cut fibres, captures; from Python and typed."""

import json
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from patchlight import EmulatedLab, JobSpec, LabBuilder
from patchlight.controller.access.authority import Authority
from patchlight.emulation.fabric import build as fabric_build
from patchlight.testbed.errors import BadInput
from patchlight.testbed.generate.generate import single
from patchlight.testbed.lab.model import Fibre, Lab
from patchlight.testbed.linux import namespaces
from patchlight.testbed.linux import rate_limits as netem
from patchlight.testbed.linux.netlink import Netlink
from patchlight.testbed.linux.processes import process_start
from patchlight.testbed.linux.rate_limits import Impairment
from tests.support.emulated_labs import SWITCHES_ONLY, left_of, pings
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.root, pytest.mark.ovs]

# pcap: version 2.4, frames with times in nanoseconds, Ethernet.
PCAP_HEADER = struct.Struct("=IHHiIII")
PCAP_RECORD = struct.Struct("=IIII")


def patchlight(
    *arguments: str, typed: str | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "patchlight", *arguments],
        capture_output=True,
        text=True,
        input=typed,
        check=False,
    )


def frames_of(path: Path) -> list[bytes]:
    """The frames in a pcap file."""
    data = path.read_bytes()
    assert PCAP_HEADER.unpack_from(data) == (0xA1B23C4D, 2, 4, 0, 0, 65535, 1)
    frames = []
    offset = PCAP_HEADER.size
    while offset < len(data):
        _, nanoseconds, kept, size = PCAP_RECORD.unpack_from(data, offset)
        assert kept == size
        assert nanoseconds < 1_000_000_000
        offset += PCAP_RECORD.size + size
        frames.append(data[offset - size : offset])
    return frames


def test_everybody_is_reached_and_a_cut_fibre_is_told(
    lab: EmulatedLab,
) -> None:
    assert lab.pingall()
    assert lab.pingall().tried == 6
    # 10 Gb/s between the switches, divided by 1000.
    assert 0 < lab.iperf("gpu0", "gpu2", 1.0) < 10.1e6
    trunk = lab.wires.between("tor1", "tor2")
    assert str(trunk.a) == "tor1.3"
    lab.wires.set_up(trunk, up=False)
    assert not lab.wires.state(trunk).up
    beside = "server1.gpu0", "server1.gpu1"
    wait_until(
        lambda: beside not in lab.pingall(0.2).lost,
        "an answer over what is not cut",
    )
    assert ("server1.gpu0", "server2.gpu2") in lab.pingall(0.2).lost
    lab.wires.set_up(trunk, up=True)
    wait_until(lambda: bool(lab.pingall()), "the trunk to carry again")
    nic = lab.wires.between("gpu2", "tor2")
    lab.wires.set_up(nic, up=False)
    assert not pings(lab.host("gpu2"), lab.host("gpu0"))
    lab.wires.set_up(nic, up=True)
    wait_until(
        lambda: pings(lab.host("gpu2"), lab.host("gpu0")), "the NIC to be back"
    )
    fabric_build.verify_switch_ports(lab.plan)


def test_what_does_not_exist_is_bad_input(lab: EmulatedLab) -> None:
    with pytest.raises(BadInput, match="no fibre joins gpu0 and tor2"):
        lab.wires.between("gpu0", "tor2")
    with pytest.raises(BadInput, match="2 fibres join server1 and tor1"):
        lab.wires.between("server1", "tor1")
    with pytest.raises(BadInput, match="to itself"):
        lab.iperf("gpu0", "gpu0")
    with pytest.raises(BadInput, match="runs without a controller"):
        lab.submit(JobSpec("x", 1, 1, {}))


def test_the_commands_and_the_shell(lab: EmulatedLab, tmp_path: Path) -> None:
    name = lab.lab.name
    typed = "link tor1.3 tor2.3 down\npingall\nlink tor1 tor2 up\niperf gpu0\nlink\n"
    shell = patchlight("emulate", "exec", "--lab", name, typed=typed)
    assert "tor1.3 – tor2.3  down\n" in shell.stdout
    assert "2 of 6 pings answered" in shell.stdout
    assert "expected two hosts: iperf A B" in shell.stderr
    assert "link A B [up|down]" in shell.stderr
    shown = patchlight("emulate", "link", "tor1.3", "tor2", "--lab", name)
    assert shown.stdout == "tor1.3 – tor2.3  up\n"
    assert shown.stdout in patchlight("emulate", "link", "--lab", name).stdout
    address = lab.host("gpu0").address
    on_host = patchlight(
        "emulate", "exec", "--lab", name, "gpu0", typed="ip -br address\n"
    )
    assert address in on_host.stdout
    wrong = patchlight(
        "emulate", "link", "tor1", "tor2", "--delay", "5", "--lab", name
    )
    assert wrong.returncode == 2
    nowhere = tmp_path / "none" / "x.pcap"
    capture = ("emulate", "capture", "gpu2", "--lab", name, "--for", "1ms")
    failed = patchlight(*capture, "-o", str(nowhere))
    assert failed.returncode == 1
    assert "writing the capture to" in failed.stderr
    done = patchlight(*capture, "-o", str(tmp_path / "x.pcap"))
    assert (done.returncode, done.stdout) == (
        0,
        f"wrote {tmp_path}/x.pcap: 0 frames\n",
    )
    told = patchlight(*capture, "-o", str(tmp_path / "x.pcap"), "--json")
    size = (tmp_path / "x.pcap").stat().st_size
    written = {
        "file": f"{tmp_path}/x.pcap",
        "frames": 0,
        "size_bytes": size,
        "dropped": 0,
    }
    assert json.loads(told.stdout) == written
    cut = patchlight(
        "emulate", "link", "tor1.3", "tor2", "down", "--lab", name, "--json"
    )
    found = json.loads(cut.stdout)
    assert (found["a"], found["b"], found["up"]) == ("tor1.3", "tor2.3", False)
    assert found["delay_s"] == found["jitter_s"] == found["packet_loss"] == 0


def test_a_capture_has_both_ways_of_the_fibre(
    lab: EmulatedLab, tmp_path: Path
) -> None:
    path = tmp_path / "gpu0.pcap"
    gpu0 = lab.host("gpu0")
    gpu2 = lab.host("gpu2")
    ending = threading.Event()

    def ping() -> None:
        while not ending.is_set():
            pings(gpu2, gpu0)

    pinging = threading.Thread(target=ping)
    pinging.start()
    try:
        done = lab.capture("gpu0", path, PATIENCE_S, most_frames=8)
    finally:
        ending.set()
        pinging.join()
    frames = frames_of(path)
    assert done.frames == len(frames) == 8
    assert done.size_bytes == path.stat().st_size
    icmp = [
        frame
        for frame in frames
        if frame[12:14] == b"\x08\x00" and frame[23] == 1
    ]
    # Source addresses of the IPv4 headers: requests of one, answers of the other.
    assert {frame[26:30] for frame in icmp} == {
        gpu0.host.nic.address.packed,
        gpu2.host.nic.address.packed,
    }


@pytest.fixture
def rewirable() -> Lab:
    """Two servers that an OCS puts onto either of two switches."""
    build = LabBuilder("rewirable", network="10.1.0.0/24")
    build.ocs("ocs1")
    for tor in ("tor1", "tor2"):
        build.switch(tor)
    for name in ("server1", "server2"):
        build.server(name, gpus=["A100"], rate="10Gbps")
        build.fibre(name, "ocs1")
    for port in ("tor1.1", "tor1.2", "tor2.1"):
        build.fibre(port, "ocs1")
    build.fibre("tor1", "tor2")
    build.circuit("server1.nic0", "tor1.1")
    build.circuit("server2.nic0", "tor2.1")
    return build.lab()


def test_that_an_emulation_leaves_rdma_out_is_said_once(
    rewirable: Lab,
) -> None:
    said: list[str] = []
    EmulatedLab.from_lab(rewirable, progress=said.append)
    assert said == []
    servers = tuple(
        replace(
            each,
            nics=tuple(replace(nic, rdma="exclusive") for nic in each.nics),
        )
        for each in rewirable.servers
    )
    EmulatedLab.from_lab(
        rewirable.with_changes(servers=servers), progress=said.append
    )
    (warning,) = said
    assert warning.startswith("warning: ignoring rdma: exclusive from the lab")


def test_light_and_jobs_from_python_and_what_lab_show_says(
    rewirable: Lab, new_name: Callable[[], str], tmp_path: Path
) -> None:
    name = new_name()
    authority = Authority(name, tmp_path / "ca")
    secured = rewirable.with_changes(controller_openflow_tls=True)
    with pytest.raises(
        BadInput, match="its controller and switches need certificates"
    ):
        EmulatedLab.from_lab(secured, 1000, name=name).up()
    with EmulatedLab.from_lab(
        secured,
        1000,
        name=name,
        workers="process",
        tls=authority.for_controller(tmp_path / "controller").folder,
        switch_tls=authority.for_switches(tmp_path / "switches").folder,
    ) as lab:
        ocs = lab.ocs("ocs1")
        assert ocs.map.texts == ("1-3", "2-5")
        assert ocs.connect("server2:tor1.2", why="nearer").state == "committed"
        assert lab.maps() == {"ocs1": ocs.map}
        assert ocs.map.texts == ("1-3", "2-4")
        with pytest.raises(BadInput, match=r"no fibre joins tor1\.3 and ocs1"):
            ocs.connect("server2:tor1.3")
        assert "server2.gpu0" in patchlight("lab", "show", name).stdout
        now = json.loads(patchlight("lab", "show", name, "--json").stdout)
        assert (now["circuits"]["ocs1"], now["dark"]) == (
            ["1-3", "2-4"],
            ["tor2.1"],
        )
        first = json.loads(
            patchlight("lab", "show", name, "--json", "--start").stdout
        )
        assert first["circuits"]["ocs1"] == ["1-3", "2-5"]
        assert "present circuits" in patchlight("lab", "show", name).stdout
        picture = tmp_path / "lab.svg"
        assert (
            patchlight("lab", "show", name, "-o", str(picture)).returncode == 0
        )
        spec = JobSpec("two", 2, 1_000_000, {"A100": 0.01}, workers=2)
        assert lab.wait_for(lab.submit(spec)[0].id).state == "done"
        ocs.disconnect(2)
        links = json.loads(patchlight("lab", "show", name, "--json").stdout)
        assert "server2.nic0" in links["dark"]
        assert ("server1.nic0", "tor1.1") in [
            (link["a"], link["b"]) for link in links["links"]
        ]
        assert ocs.fault(fail_ports=[7])["fail_ports"] == [7]
        fault = ("emulate", "fault", "--lab", name, "ocs1")
        assert patchlight(*fault).stdout == "ocs1: fail_ports [7]\n"
        assert patchlight(*fault, "end").stdout == "ocs1: no faults\n"
        assert patchlight(*fault, "lose", "1>3").stdout.startswith(
            "ocs1: lose 1>3: done\n"
        )
        with pytest.raises(
            BadInput, match="refused the fault: unknown fault 'fail_prots'"
        ):
            ocs.fault(fail_prots=[7])
        controller = next(
            p for p in lab.state.processes if p.name == "controller"
        )
        os.kill(controller.pid, signal.SIGKILL)
        wait_until(
            lambda: process_start(controller.pid) is None,
            "the controller to end",
        )
        shown = patchlight("lab", "show", name, "--json")
        assert json.loads(shown.stdout)["circuits"]["ocs1"] == ["1-3", "2-5"]
        assert "its circuits are unknown" in shown.stderr
    assert left_of(name) == []


@pytest.mark.kernel
def test_jobs_run_over_the_kernel_s_own_switches(
    rewirable: Lab, new_name: Callable[[], str]
) -> None:
    if fabric_build.datapath_type() != "system":
        pytest.skip("this kernel has no Open vSwitch")
    with EmulatedLab.from_lab(
        rewirable, 1000, name=new_name(), workers="process"
    ) as lab:
        assert lab.status()["datapath"] == "system"
        lab.ocs("ocs1").connect("server2:tor1.2")
        assert not lab.pingall().lost
        spec = JobSpec("two", 2, 1_000_000, {"A100": 0.01}, workers=2)
        assert lab.wait_for(lab.submit(spec)[0].id).state == "done"
        control = lab.state.run_dir / "ovs/ovs-vswitchd.ctl"
        shown = ["ovs-appctl", "-t", str(control), "dpctl/show"]
        (lookups,) = [
            line
            for line in subprocess.check_output(shown, text=True).splitlines()
            if "lookups:" in line
        ]
        # Frames matched entries that the kernel has: they went past ovs-vswitchd.
        assert int(lookups.partition("hit:")[2].split()[0]) > 0


def delayed_lab(fabric: str = "openvswitch") -> Lab:
    """Two hosts on one switch, 20 ms from it each, or from the OCS before it and on."""
    lab = single(2, rate_bps=10**9)
    if fabric == "through an OCS":
        lab = single(2, rate_bps=10**9, ocs="polatis-scpi")
    return lab.with_changes(
        fabric="bridge" if fabric == "bridge" else "openvswitch",
        fibres=tuple(
            Fibre(f.a, f.b, f.rate_bps, delay_s=0.02) for f in lab.fibres
        ),
    )


@pytest.fixture
def netem_is_there() -> Iterator[bool]:
    try:
        netem.check_supported()
    except netem.NoNetem:
        yield False
    else:
        yield True


def test_a_kernel_without_netem_refuses_before_anything_is_made(
    new_name: Callable[[], str], netem_is_there: bool
) -> None:
    if netem_is_there:
        pytest.skip("this kernel has netem")
    name = new_name()
    with pytest.raises(netem.NoNetem, match="this kernel has no netem"):
        EmulatedLab.from_lab(
            delayed_lab(), 100, name=name, **SWITCHES_ONLY
        ).up()
    assert left_of(name) == []


def test_a_live_delay_is_refused_whole_without_netem(
    lab: EmulatedLab, netem_is_there: bool
) -> None:
    if netem_is_there:
        pytest.skip("this kernel has netem")
    trunk = lab.wires.between("tor1", "tor2")
    with pytest.raises(netem.NoNetem, match="modprobe sch_netem"):
        lab.wires.impair(trunk, Impairment(0.01))
    with pytest.raises(BadInput, match="a jitter of at most the delay"):
        lab.wires.impair(trunk, Impairment(0.01, 0.02))
    fabric_build.verify_switch_ports(lab.plan)
    assert pings(lab.host("gpu0"), lab.host("gpu2"))


@pytest.mark.kernel
@pytest.mark.parametrize("fabric", ["bridge", "openvswitch", "through an OCS"])
def test_fibres_delay_beside_their_rates(
    new_name: Callable[[], str], netem_is_there: bool, fabric: str
) -> None:
    if not netem_is_there:
        pytest.skip("this kernel has no netem")
    delayed = delayed_lab(fabric)
    with EmulatedLab.from_lab(
        delayed, 100, name=new_name(), **SWITCHES_ONLY
    ) as lab:
        pinged = lab.host("h1").run("ping -c 3 10.0.0.2").output
        least_ms = float(
            pinged.partition("min/avg/max")[2]
            .partition("= ")[2]
            .partition("/")[0]
        )
        assert least_ms >= 2 * 20 * len(delayed.fibres)
        fabric_build.verify_switch_ports(lab.plan)
        assert lab.iperf("h1", "h2", 2.0) < 10.1e6
        fibre = lab.wires.between(
            "h1", "ocs1" if lab.lab.circuit_switches else "s1"
        )
        lab.wires.impair(fibre, Impairment(packet_loss=1.0))
        assert not pings(lab.host("h1"), lab.host("h2"))
        lab.wires.impair(fibre, netem.NOT_IMPAIRED)
        assert pings(lab.host("h1"), lab.host("h2"))
        with Netlink(namespaces.namespace_path(lab.plan.fabric)) as netlink:
            assert len(netem.read_impairments(netlink)) == 2 - (
                not lab.lab.circuit_switches
            )
