"""Emulated labs for tests: what is made, what it carries, and what is left of it."""

import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from patchlight.emulation.fabric import lab_state as states
from patchlight.emulation.lab.hosts import EmulatedHost
from patchlight.emulation.lab.options import LabKeywords
from patchlight.testbed.generate import generate
from patchlight.testbed.labfile.writer import write_lab
from patchlight.testbed.linux import namespaces
from patchlight.testbed.linux.processes import (
    command_line,
    environment,
    process_ids,
)
from tests.support.waiting import PATIENCE_S

_LINKS = Path("/sys/class/net")
SWITCHES_ONLY: LabKeywords = {"controller": False, "agents": False}

TWO_TORS = """
name: two-tors
network: 192.168.10.0/24
servers:
  - name: server1
    gpus: [{name: gpu0, model: Tesla M40}, {name: gpu1, model: Titan V}]
    nics: [{name: nic0, address: 192.168.10.11, rate: 40Gbps, gpu: gpu0},
           {name: nic1, address: 192.168.10.12, rate: 40Gbps, gpu: gpu1}]
  - name: server2
    gpus: [{name: gpu2, model: Tesla M40}]
    nics: [{name: nic0, address: 192.168.10.13, rate: 40Gbps, gpu: gpu2}]
packet_switches: [{name: tor1, datapath_id: 1, ports: 3}, {name: tor2, datapath_id: 2, ports: 3}]
fibres:
  - {ends: [server1.nic0, tor1.1], rate: 100Gbps}
  - {ends: [server1.nic1, tor1.2]}
  - {ends: [server2.nic0, tor2.1]}
  - {ends: [tor1.3, tor2.3], rate: 10Gbps}
"""


def no_virtual_machines() -> str:
    """Why no server can be a virtual machine here; empty where one can."""
    if shutil.which("qemu-system-x86_64") is None:
        return "there is no QEMU here"
    system = platform.freedesktop_os_release()["ID"], platform.machine()
    return (
        ""
        if system == ("debian", "x86_64")
        else "virtual machines are made on Debian for amd64"
    )


# ``patchlight``, which stops for as long as it is let when it has called a function so many times.
PAUSING = """
import sys, time
from patchlight.cli.main import main
from patchlight.emulation.fabric.build import OpenVSwitch
from patchlight.emulation.fabric.processes import Supervisor
from patchlight.testbed.linux import namespaces

owner, name, count = {
    "namespaces": (namespaces, "create_here", 20),
    "switches": (OpenVSwitch, "start", 1),
    "servers": (Supervisor, "launch", 1),
}[sys.argv[1]]
function, results = getattr(owner, name), []

def pausing(*arguments):
    results.append(function(*arguments))
    if len(results) == count:
        print("paused", flush=True)
        time.sleep(100)  # until it is killed
    return results[-1]

setattr(owner, name, pausing)
main(sys.argv[2:])
"""

# Both print times of the machine's one monotonic clock.
RECEIVE = """
import socket, time
listener = socket.create_server(("0.0.0.0", 5000))
print("listening", flush=True)
client, _ = listener.accept()
client.settimeout(10)
received = 0
while data := client.recv(1 << 16):
    received += len(data)
print(received, time.monotonic())
"""
SEND = """
import socket, sys, time
client = socket.create_connection((sys.argv[1], 5000))
began = time.monotonic()
while time.monotonic() < began + float(sys.argv[2]):
    client.sendall(bytes(1 << 14))
print(began)
"""


def tree(tmp_path: Path, hosts: int, fabric: str = "openvswitch") -> Path:
    path = tmp_path / f"tree{hosts}-{fabric}.yaml"
    path.write_text(write_lab(generate.tree(hosts, fabric=fabric)))
    return path


def pings(a: EmulatedHost, b: EmulatedHost) -> bool:
    return a.run(f"ping -c 1 -W 2 {b.address}").exit_status == 0


def left_of(name: str) -> list[str]:
    """What there is of a lab on this machine, apart from links that the kernel is removing.

    It removes the links of a namespace some time after that; on a busy machine that takes seconds.
    """
    deadline = time.monotonic() + PATIENCE_S
    while remains := _remains_of(name):
        links_alone = all(each.startswith(str(_LINKS)) for each in remains)
        if not links_alone or time.monotonic() > deadline:
            break
        time.sleep(0.05)  # the pause between two looks
    return remains


def _remains_of(name: str) -> list[str]:
    remains = namespaces.names_with_prefix(f"pl.{name}.")
    for root in (states.RUN_ROOT, states.DISK_ROOT, _LINKS):
        remains += [str(path) for path in root.glob(f"*{name}*")]
    run_dir = f"/run/patchlight/{name}"
    for pid in process_ids():
        if any(run_dir in variable for variable in environment(pid)):
            remains.append(command_line(pid))
    return remains


def check_tcp_rate(
    sender: EmulatedHost,
    receiver: EmulatedHost,
    least_bps: float,
    most_bps: float,
) -> None:
    """One TCP connection carries a payload between these rates.

    A machine that is busy with other things can keep it below the lower one for a while, so that
    it may try again; above the upper one it must never be.
    """
    rates_bps: list[float] = []
    while len(rates_bps) < 24:
        rates_bps.append(_tcp_bps(sender, receiver))
        assert max(rates_bps) < most_bps
        if rates_bps[-1] > least_bps:
            return
    pytest.fail(
        f"{sender.name} to {receiver.name}: {rates_bps} bit/s, at least {least_bps:g}"
    )


def _tcp_bps(sender: EmulatedHost, receiver: EmulatedHost) -> float:
    """Counted from the first sending, lest a receiver that is slow to begin count too little."""
    with receiver.popen(
        [sys.executable, "-c", RECEIVE], stdout=subprocess.PIPE
    ) as listening:
        assert listening.stdout is not None
        assert listening.stdout.readline() == "listening\n"
        sent = sender.run(
            [sys.executable, "-c", SEND, receiver.address, "1.5"],
            timeout=PATIENCE_S,
        )
        assert sent.exit_status == 0, sent.output
        received_bytes, ended = map(float, listening.stdout.read().split())
    return received_bytes * 8 / (ended - float(sent.output))
