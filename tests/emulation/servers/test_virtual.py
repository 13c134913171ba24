"""Servers that are virtual machines have systemd and soft RoCE, and go away whole."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from patchlight import EmulatedLab
from patchlight.client.client import ControllerClient
from patchlight.controller.access.authority import Authority, authority_folder
from patchlight.emulation.fabric import lab_state as states
from patchlight.emulation.fabric.roce import RoceMeter
from patchlight.emulation.lab.emulated_lab import down_lab
from patchlight.emulation.lab.options import LabOptions
from patchlight.emulation.lab.services import reboot
from patchlight.emulation.servers import virtual
from patchlight.emulation.servers.server import NoRehearsalServers
from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobs import JobSpec
from tests.support.emulated_labs import left_of, no_virtual_machines, pings
from tests.support.waiting import wait_until

# Processors are emulated: a boot takes 25 s on a quiet machine, and minutes on a busy one.
pytestmark = [
    pytest.mark.root,
    pytest.mark.vm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        bool(no_virtual_machines()), reason=no_virtual_machines()
    ),
]
NAME = f"v{os.getpid()}"
SCRIPTS = Path(f"/srv/{NAME}")
TWO = (
    f"workers: {{mounts: [{SCRIPTS}]}}"
    + """
name: two
network: 192.168.10.0/24
servers:
  - name: server1
    gpus: [{name: gpu0, model: Tesla M40}]
    nics: [{name: nic0, address: 192.168.10.11, rate: 40Gbps, gpu: gpu0}]
  - name: server2
    gpus: [{name: gpu1, model: Tesla M40}, {name: gpu2, model: Tesla M40}]
    nics:
      - {name: nic0, address: 192.168.10.12, rate: 40Gbps, gpu: gpu1}
      - {name: nic1, address: 192.168.10.13, rate: 40Gbps, gpu: gpu2}
circuit_switches:
  - {name: ocs1, driver: polatis-tl1, address: "10.0.0.1:3082", ports: 4, cross_connects: [1-2]}
fibres: [server1.nic0 - ocs1.1, server2.nic0 - ocs1.2, server2.nic1 - ocs1.3]
"""
)
ALL_REDUCE = """
import numpy
from mpi4py import MPI
world, values = MPI.COMM_WORLD, numpy.full(100_000, MPI.COMM_WORLD.rank + 1.0)
world.Allreduce(MPI.IN_PLACE, values)
print(f"{world.size} ranks: {values.min()} to {values.max()}")
"""
WAIT_S = 300.0
# -u 20: an acknowledgement may take 4.3 s on a busy machine.
WRITE = "timeout {} ib_write_bw -F -d rxe_nic0 -x 1 -u 20 -s 65536 -n 50 {}"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedLab]:
    folder = tmp_path_factory.mktemp("lab")
    (path := folder / "two.yaml").write_text(TWO)
    SCRIPTS.mkdir()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_DATA_HOME", str(folder))
        authority = Authority(NAME, authority_folder(NAME))
        tls = authority.for_controller(
            authority.folder.parent / "controller"
        ).folder
        lab = EmulatedLab.from_file(
            path, 1000, name=NAME, servers="vm", tls=tls
        )
        lab.up()
        yield lab
    lab.down()
    assert left_of(NAME) == []
    shutil.rmtree(SCRIPTS)


def said(lab: EmulatedLab, host: str, command: str) -> str:
    """What a command of root's writes that succeeds."""
    result = lab.host(host).run(command)
    assert result.exit_status == 0, result.output
    return result.output.strip()


def writes(lab: EmulatedLab, limit_s: int) -> bool:
    """Whether the second server can write into the memory of the first."""
    began = time.monotonic()
    with lab.host("gpu0").popen(WRITE.format(limit_s, "")) as listening:
        said(
            lab,
            "gpu0",
            "sh -c 'until ss -tln | grep -q :18515; do sleep 0.5; done'",
        )
        listens_s = time.monotonic() - began
        written = lab.host("gpu1").run(WRITE.format(limit_s, "192.168.10.11"))
        there = lab.host("gpu1").run("sh -c 'ip neigh; ip -s link show nic0'")
        ended = listening.wait()
    # Shown where a test fails.
    print(
        f"listens after {listens_s:.0f} s, ended with {ended}; {written.output}{there.output}"
    )
    return written.exit_status == 0


def test_each_boots_with_systemd_and_has_soft_roce(lab: EmulatedLab) -> None:
    for host in lab.hosts:
        assert (
            said(lab, host.name, "systemctl is-system-running --wait")
            == "running"
        )
        assert said(lab, host.name, "hostname") == host.host.server.name
        link = said(lab, host.name, "rdma link")
        assert "rxe_nic0/1 state ACTIVE" in link
        assert "netdev nic0" in link
        gids = said(lab, host.name, "ibv_devinfo -v")
        assert f"::ffff:{host.address}, RoCE v2" in gids
    # Whichever NIC came up first.
    assert "dev nic0 table" in said(lab, "gpu1", "ip route get 192.168.10.11")


def test_rdma_goes_over_the_optical_switch(
    lab: EmulatedLab, tmp_path: Path
) -> None:
    captured = []

    def capture() -> None:
        captured.append(
            lab.capture("gpu0", tmp_path / "rdma.pcap", 600, most_frames=1000)
        )

    recording = Thread(target=capture)
    recording.start()
    wait_until(
        lambda: pings(lab.host("gpu1"), lab.host("gpu0")),
        "a packet to arrive",
        WAIT_S,
    )
    assert writes(lab, 300)
    recording.join()
    # RoCE v2 is UDP to port 4791.
    assert (tmp_path / "rdma.pcap").read_bytes().count(
        (4791).to_bytes(2, "big")
    ) > 500
    ocs = lab.ocs("ocs1")
    ocs.disconnect(1, 2)
    assert not pings(lab.host("gpu1"), lab.host("gpu0"))
    assert not writes(lab, 10)
    ocs.connect("1-2")
    assert pings(lab.host("gpu1"), lab.host("gpu0"))


def test_one_that_is_cut_off_boots_again_with_its_disk(
    lab: EmulatedLab,
) -> None:
    before = said(
        lab,
        "gpu1",
        "sh -c 'echo kept >/opt/mine; sync; cat /proc/sys/kernel/random/boot_id'",
    )
    reboot(lab.lab, lab.plan, "server2", print)
    after = said(
        lab, "gpu1", "cat /opt/mine /proc/sys/kernel/random/boot_id"
    ).split()
    assert after[0] == "kept"
    assert after[1] != before
    # It has this machine's folder again, and may not write to it.
    assert said(
        lab, "gpu1", f"findmnt --noheadings --output OPTIONS {SCRIPTS}"
    ).startswith("ro,")
    assert lab.status()["state"] == "up"
    assert pings(lab.host("gpu0"), lab.host("gpu1"))


@pytest.fixture(scope="module")
def controller(lab: EmulatedLab) -> Iterator[ControllerClient]:
    """The lab's controller, with an agent on each server."""
    push = [sys.executable, "-m", "patchlight", "deploy", "push", NAME]
    pushed = subprocess.run(
        push, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    with ControllerClient(lab.lab.controller_api) as client:

        def answer() -> bool:
            return all(agent.reachable for agent in client.status().agents)

        wait_until(
            answer, f"both agents after {pushed.stdout.decode()}", WAIT_S
        )
        yield client


def run(
    controller: ControllerClient,
    spec: JobSpec,
    meanwhile: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Run a job to its end; ``meanwhile`` happens after its first iteration."""
    job = controller.submit([spec], "keep")[0].id

    def now() -> dict[str, Any]:
        return dict(controller.job(job))

    def is_over() -> bool:
        return now()["state"] in ("done", "failed")

    wait_until(
        lambda: is_over() or now()["iterations_done"] >= 1,
        "its first iteration",
        WAIT_S,
    )
    meanwhile()
    wait_until(is_over, "its end", WAIT_S)
    return now()


BOTH_SERVERS = ("server1.gpu0", "server2.gpu1")


def over_rdma(
    iterations: int, hosts: tuple[str, ...] = BOTH_SERVERS
) -> JobSpec:
    """A job that trains over RDMA."""
    return JobSpec(
        "rdma",
        iterations=iterations,
        gradient_bytes=200_000_000,
        compute_s={"Tesla M40": 0.2},
        hosts=hosts,
        transport="rdma",
    )


def test_a_job_trains_over_rdma_across_an_outage(
    lab: EmulatedLab, controller: ControllerClient
) -> None:
    ocs = lab.ocs("ocs1")

    def outage() -> None:
        ocs.disconnect(1, 2)
        time.sleep(1)  # the outage, as long as queue pairs retry and longer
        ocs.connect("1-2")

    with RoceMeter([host.far_end for host in lab.hosts]) as meter:
        job = run(controller, over_rdma(8), outage)
    assert job["state"] == "done", job["message"]
    reports, _ = controller.iterations(job["id"])
    assert [report.check for report in reports] == ["ok"] * 16
    # Both ends of a queue pair that broke made it again, or none.
    made = {report.rank: report.queue_pairs_made or 0 for report in reports}
    assert made[0] == made[1] >= 2
    sent = sum(report.sent_bytes for report in reports)
    assert meter.share.roce_bytes > sent
    assert meter.share.of_bytes > 0.95
    for host in lab.hosts:  # each NIC is as it was
        assert "rxe_nic0/1 state ACTIVE" in said(lab, host.name, "rdma link")
        assert "roce" not in said(lab, host.name, "ip -br link")
        assert "clsact" not in said(lab, host.name, "tc qdisc show")


def test_two_workers_of_one_server_exchange_over_rdma(
    lab: EmulatedLab, controller: ControllerClient
) -> None:
    ocs = lab.ocs("ocs1")
    ocs.disconnect(1, 2)
    ocs.connect("2-3")
    try:
        with RoceMeter([host.far_end for host in lab.hosts]) as meter:
            job = run(
                controller, over_rdma(2, ("server2.gpu1", "server2.gpu2"))
            )
    finally:
        ocs.disconnect(2, 3)
        ocs.connect("1-2")
    assert job["state"] == "done", job["message"]
    reports, _ = controller.iterations(job["id"])
    assert [report.check for report in reports] == ["ok"] * 4
    assert meter.share.roce_bytes > sum(
        report.sent_bytes for report in reports
    )
    assert (
        said(lab, "gpu1", "cat /proc/sys/net/ipv4/conf/nic0/accept_local")
        == "0"
    )


def test_a_job_over_rdma_without_a_device_is_refused(
    lab: EmulatedLab, controller: ControllerClient
) -> None:
    said(lab, "gpu0", "rdma link delete rxe_nic0")
    try:
        job = run(controller, over_rdma(2))
    finally:
        said(lab, "gpu0", "rdma link add rxe_nic0 type rxe netdev nic0")
    assert job["state"] == "failed"
    assert "nic0 has no RDMA device that it can use" in job["message"]


def test_an_mpi_program_exchanges_over_rdma(
    lab: EmulatedLab, controller: ControllerClient
) -> None:
    (script := SCRIPTS / "all_reduce.py").write_text(ALL_REDUCE)
    command = (
        "python3",
        "-m",
        "patchlight.agents.training.mpirun",
        "python3",
        str(script),
    )
    spec = JobSpec(
        "mpi", trainer="command", hosts=BOTH_SERVERS, command=command
    )
    with RoceMeter([host.far_end for host in lab.hosts]) as meter:
        job = run(controller, spec)
    assert job["state"] == "done", controller.log(job["id"]).text
    sums = "2 ranks: 3.0 to 3.0"
    wait_until(
        lambda: sums in controller.log(job["id"]).text, "its output", WAIT_S
    )
    # Each rank sends its 800,000 bytes once: half to be added up, half of the sum.
    assert meter.share.roce_bytes > 1_600_000


def test_its_nic_is_inside_the_machine(lab: EmulatedLab) -> None:
    with pytest.raises(BadInput, match="inside a virtual machine"):
        lab.iperf("gpu0", "gpu1")


def test_what_is_missing_is_said_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        NoRehearsalServers, match="need 512,000,000 MB of memory"
    ):
        virtual.check_machine(1_000_000)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        NoRehearsalServers, match="qemu-system-x86_64 is not installed"
    ) as error:
        virtual.check_machine(1)
    assert "apt-get install" in (error.value.hint or "")


def test_what_fits_is_said_with_the_figures() -> None:
    idle, *more = virtual.what_fits(4, 2, 0.1, 24_000)
    assert more == []
    assert idle == (
        "4 virtual machines on 2 processors, all idle: up in about 13 s; they take 2,800 of 24,000 "
        "MB of free memory"
    )
    busy, warning, memory = virtual.what_fits(4, 2, 4.2, 2_500)
    assert "beside 4 other busy threads: up in about 27 s" in busy
    assert "takes 2.0 times as long as on an idle machine" in warning
    assert "memory may run short" in memory


def test_a_machine_that_is_not_ready_in_time_is_not_copied(
    tmp_path: Path,
) -> None:
    (base := tmp_path / "base").mkdir()
    (base / "disk.ext4").write_bytes(bytes(4096))
    script = Path(virtual.__file__).with_name("template.sh")
    for program in (["sleep", "1000"], ["false"]):
        make = [
            "sh",
            *map(str, (script, base, base / "template", 1)),
            *program,
        ]
        assert subprocess.run(
            make, stdin=subprocess.DEVNULL, check=False, timeout=60
        ).returncode
        assert [path.name for path in tmp_path.rglob("*")] == [
            "base",
            "disk.ext4",
        ]


def test_virtual_machines_do_not_run_in_real_time() -> None:
    with pytest.raises(
        BadInput, match="virtual machines cannot run in real time"
    ):
        LabOptions(servers="vm", real_time=True)


def test_an_interrupted_start_leaves_nothing(tmp_path: Path) -> None:
    def interrupted(line: str) -> None:
        if "starting" in line and "server-server1" in line:
            raise KeyboardInterrupt

    name = f"{NAME}-i"
    path = tmp_path / "two.yaml"
    path.write_text(TWO)
    up = EmulatedLab.from_file(
        path, 1000, name=name, servers="vm", progress=interrupted
    )
    with pytest.raises(KeyboardInterrupt):
        up.up()
    assert left_of(name) == []
    assert not (states.DISK_ROOT / name).exists()
    assert not down_lab(name)
